"""Archives for tests, and other programs' ways to open them."""

from __future__ import annotations

import shutil
import subprocess
import sys
import tarfile
from collections.abc import Mapping
from pathlib import Path

import pytest
import zstandard
from commands import Outcome
from commands import run_main as call
from verifying import TEST, TRAIN, VAL

from scannet_prep.archive.reader import Archive, open_archive
from scannet_prep.archive.source import shard_path
from scannet_prep.archive.writer import write_archive
from scannet_prep.progress import NoProgress
from scannet_prep.stages.contents import find_contents
from scannet_prep.stages.selection import Selection

# A raw tree by its names, with content that is none.
TREE = {
    "scannetv2-labels.combined.tsv": b"of no scene",
    "empty": b"",
    f"scans/{TRAIN}/{TRAIN}_vh_clean_2.ply": b"first" * 500,
    f"scans/{TRAIN}/{TRAIN}.txt": b"",
    f"scans/{VAL}/{VAL}_vh_clean_2.ply": bytes(70_000),
    f"scans_test/{TEST}/{TEST}_vh_clean_2.ply": b"test",
    "scene0022_00/scene0022_00.aggregation.json": b"not in scans",
}


def write_tree(folder: Path, files: Mapping[str, bytes]) -> Path:
    """Write files by name."""
    folder.mkdir(parents=True, exist_ok=True)
    for name, data in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)
    return folder


def pack_tree(folder: Path, archive_path: Path, jobs: int = 1, level: int = 1) -> Archive:
    """Pack a folder and open the archive."""
    contents, _ = find_contents(folder, Selection(), level=level, allows_incomplete=True)
    write_archive(contents, archive_path, jobs=jobs)
    return open_archive(archive_path)


def pack_shards(folder: Path, target: Path, shard_bytes: int) -> list[Path]:
    """Pack a folder as shards, which may be smaller than the command makes them."""
    parts = find_contents(folder, Selection(), allows_incomplete=True)[0].split(shard_bytes)
    paths = [shard_path(target, number, len(parts)) for number in range(len(parts))]
    for part, path in zip(parts, paths, strict=True):
        write_archive(part, path)
    return paths


def pack(*words: object) -> tuple[int, dict[str, object]]:
    """Run `pack --json`; gives its status and what it prints."""
    outcome = call("pack", *words, "--json")
    return outcome.status, outcome.json


def unpack_pipe(archive: Path, *words: object) -> Outcome:
    """Run `unpack -`, which reads an archive from stdin."""
    with archive.open("rb") as file, pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "stdin", file)
        return call("unpack", "-", *words)


def read_tree(folder: Path) -> dict[str, bytes]:
    """All files by name, without what an archive adds for itself."""
    return {
        path.relative_to(folder).as_posix(): path.read_bytes()
        for path in folder.rglob("*")
        if path.is_file() and not path.is_relative_to(folder / ".scannet-prep")
    }


def unpack_by(tool: str, archive_path: Path, folder: Path) -> dict[str, bytes]:
    """Unpack with a program that is not ours."""
    folder.mkdir()
    if tool == "python":
        with zstandard.open(archive_path) as stream, tarfile.open(fileobj=stream, mode="r|") as archive:
            archive.extractall(folder, filter="data")
        return read_tree(folder)
    lines = {"tar": "tar --zstd -xf '{0}' -C '{1}'", "zstd": "zstd -dcq -- '{0}' | tar -x -C '{1}'"}
    line = lines.get(tool, f"{tool} -xf '{{0}}' -C '{{1}}'").format(archive_path, folder)
    subprocess.run(line, shell=True, check=True)
    return read_tree(folder)


def has_tool(tool: str) -> bool:
    """Whether a program is there; `tar --zstd` needs zstd."""
    return all(shutil.which(name) for name in ({"tar", "zstd"} if tool in {"tar", "zstd"} else {tool}))


class CountingProgress(NoProgress):
    """Adds up what a stage tells of."""

    def __init__(self) -> None:
        self.total = self.done = 0

    def start(self, _title: str, total: int, _unit: str) -> None:
        self.total += total

    def advance(self, count: int = 1) -> None:
        assert count >= 0
        self.done += count
