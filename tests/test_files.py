"""Files appear whole or not at all, and one run at a time writes into a folder."""

import errno
import fcntl
import os
import resource
from pathlib import Path

import pytest
from commands import limited

from scannet_prep.base import files
from scannet_prep.base.files import RUN_LOCK_NAME, run_lock
from scannet_prep.errors import DiskFullError, FileError, MissingFileError, OutputError


def names(folder):
    return sorted(path.name for path in folder.iterdir())


def test_file_is_written_beside_the_old_one_and_then_replaces_it(tmp_path):
    path = tmp_path / "file"
    path.write_bytes(b"old")
    names_halfway = []

    def chunks():
        yield b"half"
        names_halfway.extend(names(tmp_path))
        assert path.read_bytes() == b"old"
        yield b"rest"

    files.write_atomically(path, chunks())

    (temporary_name,) = set(names_halfway) - {"file"}
    assert temporary_name.startswith(".file.")
    assert path.read_bytes() == b"halfrest"
    assert names(tmp_path) == ["file"]
    assert files.Fingerprint.from_file(path) == files.Fingerprint.from_bytes(b"half", b"rest")
    assert str(files.Fingerprint.from_bytes(b"123456789")) == "9 bytes, CRC-32 cbf43926"

    before = path.stat()
    files.write_if_changed(path, b"halfrest")
    assert path.stat() == before
    files.write_if_changed(path, b"resthalf")
    assert files.read_file(path) == b"resthalf"


@pytest.mark.parametrize(
    ("error", "expected", "hint"),
    [
        (RuntimeError(0, "no more"), RuntimeError, ""),
        (FileError("other", "is damaged", "copy it"), FileError, "copy it"),
        (OSError(errno.ENOSPC, "No space left on device"), DiskFullError, "free some space"),
        (OSError(errno.EDQUOT, "Disk quota exceeded"), DiskFullError, "free some space"),
        (OSError(errno.EROFS, "Read-only file system"), DiskFullError, "choose another disk"),
        (OSError(errno.EACCES, "Permission denied"), OutputError, ""),
    ],
    ids=lambda value: str(value)[:30],
)
def test_failed_write_leaves_old_file_and_no_other(tmp_path, error, expected, hint):
    path = tmp_path / "file"
    path.write_bytes(b"old")

    def chunks():
        yield b"half"
        raise error

    with pytest.raises(expected, match=error.args[1]) as caught:
        files.write_atomically(path, chunks())

    assert hint in getattr(caught.value, "hint", "")
    if isinstance(caught.value, OutputError):
        assert str(path) in caught.value.message
    assert path.read_bytes() == b"old"
    assert names(tmp_path) == ["file"]


@pytest.fixture
def obstacles(tmp_path):
    """A folder with a file, a folder, a pipe, and links to a device and to nothing."""
    (tmp_path / "folder").mkdir()
    (tmp_path / "file").write_bytes(b"12")
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "null").symlink_to("/dev/null")
    (tmp_path / "nowhere").symlink_to("absent")
    return tmp_path


@pytest.mark.parametrize(
    ("name", "problem"),
    [
        ("file/below", "file: is a file, or a link that leads nowhere, expected a folder"),
        ("folder", "is not a regular file, so no file can be written there"),
        ("x" * 300, "cannot be written: File name too long"),
        ("null", "is not a regular file"),
    ],
)
def test_path_that_cannot_be_written_is_an_error_and_nothing_changes(obstacles, name, problem):
    path = obstacles / name
    before = names(obstacles)

    with pytest.raises((OutputError, FileError), match=problem) as caught:
        files.write_atomically(path, [b"x"])

    assert str(obstacles) in str(caught.value)
    assert names(obstacles) == before
    assert names(obstacles / "folder") == []
    assert (obstacles / "null").is_symlink()


@pytest.mark.parametrize(
    ("name", "error_type", "problem"),
    [
        ("absent", MissingFileError, "no such file"),
        ("nowhere", MissingFileError, "is a link that leads nowhere"),
        ("folder", FileError, "cannot be read: Is a directory"),
        ("file/below", FileError, "cannot be read: Not a directory"),
        ("pipe", FileError, "is a named pipe or a device, expected a file"),
        ("null", FileError, "is a named pipe or a device, expected a file"),
        ("file", FileError, "has 2 bytes, expected at most 1"),
        ("a\0b", FileError, "has a NUL in its name"),
    ],
)
def test_path_that_cannot_be_read_is_an_error_with_its_name(obstacles, name, error_type, problem):
    with pytest.raises(FileError, match=problem) as caught:
        files.read_file(obstacles / name, max_bytes=1)

    assert type(caught.value) is error_type
    assert caught.value.path == obstacles / name


def test_remove_temporaries_removes_only_files_of_this_program(tmp_path):
    others = [".hidden.tmp", ".notes.1-x.tmp", "scene.1-0123abcd.tmp"]
    for name in (*others, ".scene0000_00.npz.1-0123abcd.tmp"):
        (tmp_path / name).touch()
    (tmp_path / ".not-removable.1-0123abcd.tmp").mkdir()

    files.remove_temporaries(tmp_path)

    assert names(tmp_path) == sorted([*others, ".not-removable.1-0123abcd.tmp"])


def test_run_lock_keeps_second_run_out_on_full_disk_and_while_its_file_goes(tmp_path, monkeypatch):
    with (
        limited(resource.RLIMIT_FSIZE, 0),
        run_lock(tmp_path),
        pytest.raises(OutputError, match="another run is working in this folder"),
        run_lock(tmp_path),
    ):
        pass

    # The first run ends after the second has opened the file, and a third may lock a new one.
    monkeypatch.setattr(fcntl, "flock", lambda *_: (tmp_path / RUN_LOCK_NAME).unlink())
    with pytest.raises(OutputError, match="another run"), run_lock(tmp_path):
        pass

    # Any other error is that of a file system without locks.
    monkeypatch.setattr(fcntl, "flock", lambda *_: tmp_path.rmdir())
    with run_lock(tmp_path):
        pass


def test_run_lock_ends_without_error_after_its_file_has_gone(tmp_path):
    folder = tmp_path / "folder"
    folder.mkdir()
    with run_lock(folder):
        folder.rename(tmp_path / "moved")
        folder.touch()
    assert names(tmp_path) == ["folder", "moved"]

    lock_path = tmp_path / RUN_LOCK_NAME
    with run_lock(tmp_path):
        lock_path.unlink()
        (lock_path / "x").mkdir(parents=True)
    # As in a folder that can only be read, there is no lock.
    with run_lock(tmp_path):
        assert names(lock_path) == ["x"]


def test_file_system_that_does_not_report_its_free_space_passes():
    files.check_space(Path("/proc"), 1)
