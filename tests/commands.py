"""Runs the command as a user does, in this process or in one of its own, and looks at what it leaves behind."""

from __future__ import annotations

import contextlib
import hashlib
import io
import json
import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from scannet_prep.cli.main import main

COMMAND = [sys.executable, "-W", "error", "-m", "scannet_prep"]


@dataclass(frozen=True)
class Outcome:
    status: int
    stdout: str
    stderr: str

    @property
    def json(self) -> Any:
        return json.loads(self.stdout)


def run_main(*words: str | Path, cwd: Path | None = None) -> Outcome:
    """Run the command in this process, with one worker unless told otherwise: for what needs no process of its own."""
    argv, before = [*map(str, words)], Path.cwd()
    if argv and argv[0] in {"process", "verify", "info"} and "--jobs" not in argv:
        argv += ["--jobs", "1"]
    out, err = io.StringIO(), io.StringIO()
    os.chdir(cwd or before)
    try:
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
            status = main(argv)
    except SystemExit as stop:  # after a help text
        status = int(stop.code or 0)
    finally:
        os.chdir(before)
    return Outcome(status, out.getvalue(), err.getvalue())


def run_command(
    *words: str | Path, cwd: Path | None = None, environment: dict[str, str] | None = None, **options: Any
) -> Outcome:
    done = subprocess.run(  # COLUMNS: help is laid out for a terminal of that width
        [*COMMAND, *map(str, words)],
        cwd=cwd, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=120, check=False,
        env=(environment or os.environ) | {"COLUMNS": "80"}, **options,
    )  # fmt: skip
    assert "Traceback" not in done.stderr, done.stderr
    return Outcome(done.returncode, done.stdout, done.stderr)


def start_command(*words: str | Path, **options: Any) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [*COMMAND, *map(str, words)],
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
