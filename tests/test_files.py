"""Files appear whole or not at all, whatever happens while they are written."""

import errno
import os
import resource
import subprocess
import sys
from pathlib import Path

import pytest
from commands import limited

from scannet_prep.errors import DiskFullError, FileError, LockedError, OutputError
from scannet_prep.files import (
    LOCK_NAME,
    is_hidden_or_temporary,
    make_directory,
    remove_temporaries,
    run_lock,
    write_atomically,
)


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


@pytest.mark.parametrize(
    ("cause", "hint"),
    [
        (RuntimeError("no more"), ""),
        (OSError(errno.ENOSPC, "No space left on device"), "free some space"),
        (OSError(errno.EDQUOT, "Disk quota exceeded"), "free some space"),
        (OSError(errno.EROFS, "Read-only file system"), "that you may write to"),
    ],
)
def test_a_writer_killed_or_failing_halfway_leaves_what_was_there(tmp_path: Path, cause: Exception, hint: str) -> None:
    path = tmp_path / "file"
    path.write_bytes(b"old")

    def chunks():
        yield b"half"
        (temporary,) = set(names(tmp_path)) - {"file"}  # where a kill would leave it
        assert (path.read_bytes(), is_hidden_or_temporary(temporary)) == (b"old", True)
        raise cause

    kind = RuntimeError if isinstance(cause, RuntimeError) else DiskFullError
    with pytest.raises(kind, match=str(cause.args[-1])) as caught:
        write_atomically(path, chunks())
    assert hint in getattr(caught.value, "hint", "")
    assert (names(tmp_path), path.read_bytes()) == (["file"], b"old")


def test_only_temporary_files_of_this_program_are_removed(tmp_path: Path) -> None:
    others = [".hidden.tmp", ".notes.1-x.tmp", "scene.1-0123abcd.tmp"]
    for name in (*others, ".scene0000_00.npz.1-0123abcd.tmp"):
        (tmp_path / name).touch()
    (tmp_path / ".not-removable.1-0123abcd.tmp").mkdir()
    remove_temporaries(tmp_path)
    assert names(tmp_path) == sorted([*others, ".not-removable.1-0123abcd.tmp"])


def test_a_lock_ends_no_run_where_the_disk_is_full_or_the_folder_has_gone(tmp_path: Path) -> None:
    folder = tmp_path / "folder"
    folder.mkdir()
    with (
        limited(resource.RLIMIT_FSIZE, 0),
        run_lock(folder),
        pytest.raises(LockedError, match="another run is working in this folder"),
        run_lock(folder),
    ):
        pass
    with run_lock(folder):
        folder.rename(tmp_path / "moved")
        folder.touch()
    assert names(tmp_path) == ["folder", "moved"]
    with run_lock(tmp_path / "moved"):  # and where the lock cannot be removed
        (tmp_path / "moved" / LOCK_NAME).unlink()
        (tmp_path / "moved" / LOCK_NAME / "x").mkdir(parents=True)


def test_places_that_cannot_be_written_to_are_errors_and_stay_what_they_are(tmp_path: Path) -> None:
    make_directory(tmp_path / "folder/b")
    make_directory(tmp_path / "folder/b")
    (tmp_path / "file").write_bytes(b"")
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "null").symlink_to("/dev/null")
    (tmp_path / "link").symlink_to("pipe")
    before = names(tmp_path)
    for name, problem in (
        ("absent/file", "cannot be written"),
        ("folder", "is a folder"),
        ("x" * 300, "cannot be written"),
        ("null", "is a device or a pipe"),
        ("link", "is a device or a pipe"),
    ):
        with pytest.raises((OutputError, FileError), match=problem) as caught:
            write_atomically(tmp_path / name, [b"x"])
        assert str(tmp_path / name) in str(caught.value)
    for name in ("file", "file/below"):
        with pytest.raises(OutputError, match="cannot create this folder"):
            make_directory(tmp_path / name)
    assert (names(tmp_path), names(tmp_path / "folder")) == (before, ["b"])
    assert (tmp_path / "null").is_symlink()
    assert (tmp_path / "link").is_symlink()


def test_threads_that_read_json_of_a_new_type_at_once_do_not_crash_or_stop_a_process_forked_meanwhile() -> None:
    script = """
import os, signal, sys, threading
from dataclasses import make_dataclass
from scannet_prep.typed_json import parse_json
sys.setswitchinterval(1e-6)
for _ in range(100):
    inner = make_dataclass("Inner", [("a", "int | None"), ("b", "list[str] | None")])
    outer = make_dataclass("Outer", [("x", list[inner]), ("y", inner)])
    start = threading.Barrier(5)
    def read():
        start.wait()
        parse_json(b'{"x": [{"a": 1, "b": ["s"]}], "y": {"a": null, "b": null}}', outer)
    threads = [threading.Thread(target=read) for _ in range(4)]
    [thread.start() for thread in threads]
    start.wait()
    if not (child := os.fork()):
        signal.alarm(10)
        parse_json(b'{"z": 1}', make_dataclass("Other", [("z", int)]))
        os._exit(0)
    assert os.waitpid(child, 0)[1] == 0
    [thread.join() for thread in threads]
"""
    done = subprocess.run([sys.executable, "-W", "ignore", "-c", script], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
