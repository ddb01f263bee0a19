"""Runs `verify` and compares its findings with what was planted."""

import json
import os
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

from commands import run_main

from scannet_prep.stages.finding import CheckTask, Findings

TRAIN, VAL, TEST = "scene0000_00", "scene0011_00", "scene0707_00"
SCENES = (TRAIN, VAL, TEST)
VERTEX_BYTES = 18  # of labels.ply: x y z, red green blue alpha, label

Row = tuple[str, str, str, str]


class Verify:
    """Runs the command and gives exit status and findings: severity, scene, file, message."""

    def __init__(self) -> None:
        self.value: dict[str, Any] = {}

    def __call__(self, path: Path | list[Path], *arguments: str) -> tuple[int, list[Row]]:
        # A limit tells the command that a part is wanted, so that it says nothing of the official lists.
        words = arguments or ("--limit", "1000")
        paths = path if isinstance(path, list) else [path]
        outcome = run_main("verify", *paths, "--json", *words)
        assert len(outcome.stdout.splitlines()) == 1
        self.value = outcome.json
        assert self.value["exit_status"] == outcome.status
        findings = self.value.get("findings", [])
        return outcome.status, [
            (item["severity"], item["scene_id"], os.path.relpath(item["path"], paths[0]), item["message"])
            for item in findings
        ]


def look_or_die(task: CheckTask, fatal_scene: str, findings: Findings) -> str:
    """End the worker as the kernel's out-of-memory killer does, for one scene."""
    if task.scene_id == fatal_scene:
        os.kill(os.getpid(), signal.SIGKILL)
    return task.scene_id


def raw_file(raw_dir: Path, suffix: str, scene_id: str = TRAIN) -> Path:
    folder = "scans_test" if scene_id == TEST else "scans"
    return raw_dir / folder / scene_id / f"{scene_id}{suffix}"


def patch(path: Path, offset: int, data: bytes) -> None:
    with path.open("r+b") as file:
        file.seek(offset, os.SEEK_END if offset < 0 else os.SEEK_SET)
        file.write(data)


def header_size(path: Path) -> int:
    data = path.read_bytes()
    return data.index(b"end_header\n") + len(b"end_header\n")


def edit_json(path: Path, change: Callable[[Any], object]) -> None:
    value = json.loads(path.read_text())
    change(value)
    path.write_text(json.dumps(value))


def check_one(result: tuple[int, list[Row]], severity: str, scene_id: str, file: str, *words: str) -> None:
    """The result is one finding of that kind, whose message has the words, and the exit status that goes with it."""
    status, findings = result
    assert len(findings) == 1, findings
    assert findings[0][:3] == (severity, scene_id, file)
    for word in words:
        assert word in findings[0][3]
    assert status == (3 if severity == "error" else 0)


def relative(scene_id: str, suffix: str) -> str:
    return str(raw_file(Path(), suffix, scene_id))
