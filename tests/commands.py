"""Runs the command as a user does, in this process or in one of its own, and looks at what it finds and leaves."""

from __future__ import annotations

import contextlib
import gc
import hashlib
import io
import json
import os
import pickle
import resource
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest

from scannet_prep import SceneId, Split, official_scenes, read_processed
from scannet_prep.cli.main import main
from scannet_prep.processed.scene import encode_processed
from scannet_prep.release.findings import Findings
from scannet_prep.stages import pool
from scannet_prep.stages.scene_checks import CheckTask
from scannet_prep.synthetic import write_release

TRAIN, VAL, TEST = "scene0000_00", "scene0011_00", "scene0707_00"
SCENES = (TRAIN, VAL, TEST)
VERTEX_BYTES = 18  # of labels.ply: x y z, red green blue alpha, label

Row = tuple[str, str, str, str]
PYTHON = sys.executable
COMMAND = [PYTHON, "-W", "error", "-m", "scannet_prep"]


@dataclass(frozen=True)
class Outcome:
    status: int
    stdout: str
    stderr: str

    @property
    def json(self) -> Any:
        return json.loads(self.stdout)


class WorkersHere(pool.WorkerProcesses):
    """Workers in this process, to which tasks and results are sent as to a process of its own.

    To start a worker process takes longer than it works in most tests.
    """

    def run(self, tasks: Iterable[Any]) -> Iterator[tuple[Any, Any]]:
        function, context = pickle.loads(self._call)
        for task in tasks:
            result = function(pickle.loads(pickle.dumps(task)), context)
            yield task, pickle.loads(pickle.dumps(result))


def run_main(
    *words: str | Path, cwd: Path | None = None, main: Callable[[list[str]], int] = main
) -> Outcome:
    """Run the command in this process, with one worker in it unless told otherwise: for what needs no process."""
    argv, before = [*map(str, words)], Path.cwd()
    has_workers = "--jobs" in argv[:-1] and argv[argv.index("--jobs") + 1] != "1"
    if argv and argv[0] in {"process", "verify", "report", "export"} and "--jobs" not in argv:
        argv += ["--jobs", "1"]
    out, err = io.StringIO(), io.StringIO()
    os.chdir(cwd or before)
    try:
        with (
            contextlib.redirect_stdout(out),
            contextlib.redirect_stderr(err),
            pytest.MonkeyPatch.context() as patch,
        ):
            if not has_workers:
                patch.setattr(pool, "WorkerProcesses", WorkersHere)
            status = main(argv)
    except SystemExit as stop:  # after a help text
        status = int(stop.code or 0)
    finally:
        os.chdir(before)
    return Outcome(status, out.getvalue(), err.getvalue())


def count_reads_in_new_process(*words: str | Path) -> dict[str, int]:
    """Run a command in a process of its own, and count how often each file is opened for reading, by name."""
    program = "import json, sys; from worker_functions import count_reads; print(json.dumps(count_reads(*sys.argv[1:])))"
    outcome = run_words(PYTHON, "-c", program, *map(str, words), cwd=Path(__file__).parent)
    assert outcome.status == 0, outcome.stderr
    return outcome.json


def process_all_test_scenes(root: Path, vertices: int, *options: str) -> Path:
    """Make a processed folder of all test scenes, which are copies of the one in the folder `one` beside it."""
    write_release(root / "raw", [TEST], vertices=vertices)
    assert run_main("process", root / "raw", "-o", root / "one", *options).status == 0
    scene = read_processed(root / f"one/test/{TEST}.npz")
    (root / "processed/test").mkdir(parents=True)
    for name in official_scenes(Split.TEST):
        meta = replace(scene.meta, scene_id=SceneId(name))
        (root / f"processed/test/{name}.npz").write_bytes(
            b"".join(encode_processed(replace(scene, meta=meta)))
        )
    return root / "processed"


# For disks that are full: half of a module must not stay in Python's cache.
NO_BYTECODE = os.environ | {"PYTHONDONTWRITEBYTECODE": "1"}


@contextlib.contextmanager
def limited(kind: int, size_bytes: int) -> Iterator[None]:
    """Limit this process, for a while: `resource.RLIMIT_FSIZE` is a disk that takes no larger file."""
    limits = resource.getrlimit(kind)
    resource.setrlimit(kind, (size_bytes, limits[1]))
    try:
        yield
    finally:
        resource.setrlimit(kind, limits)


@contextlib.contextmanager
def limited_memory(more_bytes: int) -> Iterator[None]:
    """Let this process take no more than so many bytes of addresses beside those that it has."""
    used_bytes = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    with limited(resource.RLIMIT_AS, used_bytes + more_bytes):
        yield


def run_words(*words: str | Path, **options: Any) -> Outcome:
    """Run any program to its end."""
    options = {
        "stdin": subprocess.DEVNULL,
        "stdout": subprocess.PIPE,
        "stderr": subprocess.PIPE,
    } | options
    done = subprocess.run([*map(str, words)], text=True, timeout=120, check=False, **options)
    return Outcome(done.returncode, done.stdout, done.stderr)


def run_command(
    *words: str | Path, environment: dict[str, str] | None = None, **options: Any
) -> Outcome:
    env = (environment or os.environ) | {
        "COLUMNS": "80"
    }  # help is laid out for a terminal of that width
    outcome = run_words(*COMMAND, *words, env=env, **options)
    assert "Traceback" not in outcome.stderr, outcome.stderr
    return outcome


def start_command(
    *words: str | Path, before: Sequence[str] = (), **options: Any
) -> subprocess.Popen[str]:
    """Start it; `before` are words of another program, which starts it."""
    return subprocess.Popen(
        [*before, *COMMAND, *map(str, words)],
        stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True,
        **options,
    )  # fmt: skip


def digests(folder: Path) -> dict[str, str]:
    """Digest of every file below a folder, hidden ones too, but not of what `process` notes of times and inodes."""
    return {
        str(path.relative_to(folder)): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in sorted(folder.rglob("*"))
        if path.is_file() and path.name != ".scannet-prep-seen.json"
    }


def is_running(pid: int) -> bool:
    """Whether a process is there and not just waiting to be forgotten."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def processes_of_session(session_id: int) -> list[int]:
    """Living processes of a session: the command, its workers, and the process that they are forked from."""
    found = []
    for directory in Path("/proc").iterdir():
        try:
            fields = (directory / "stat").read_text().rpartition(")")[2].split()
        except (OSError, ValueError):
            continue
        if directory.name.isdigit() and int(fields[3]) == session_id and fields[0] != "Z":
            found.append(int(directory.name))
    return found


def wait_until_gone(session_id: int) -> None:
    """Wait until no process of a session is left."""
    deadline = time.monotonic() + 20
    while alive := processes_of_session(session_id):
        assert time.monotonic() < deadline, f"processes live on: {alive}"
        time.sleep(0.02)


def count_descriptors() -> int:
    """The fewest within a moment: threads that hand descriptors over, and servers, close theirs a little later."""
    gc.collect()
    return min(len(os.listdir("/proc/self/fd")) for _ in range(5) if not time.sleep(0.01))  # noqa: PTH208


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
            (
                item["severity"],
                item["scene_id"],
                os.path.relpath(item["path"], paths[0]),
                item["message"],
            )
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


def check_one(
    result: tuple[int, list[Row]], severity: str, scene_id: str, file: str, *words: str
) -> None:
    """The result is one finding of that kind, whose message has the words, and the exit status that goes with it."""
    status, findings = result
    assert len(findings) == 1, findings
    assert findings[0][:3] == (severity, scene_id, file)
    for word in words:
        assert word in findings[0][3]
    assert status == (3 if severity == "error" else 0)


def relative(scene_id: str, suffix: str) -> str:
    return str(raw_file(Path(), suffix, scene_id))
