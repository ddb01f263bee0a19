"""Files appear whole or not at all, and one run at a time writes into a folder."""

import errno
import os
import resource
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import pytest
from commands import limited

from scannet_prep.base.files import (
    is_hidden_or_temporary,
    make_directory,
    remove_temporaries,
    write_atomically,
)
from scannet_prep.base.json import make_decoder, parse_json
from scannet_prep.base.run_lock import RUN_LOCK_NAME, run_lock
from scannet_prep.errors import DiskFullError, FileError, LockedError, OutputError


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def chunks_that_raise(error: Exception) -> Iterator[bytes]:
    yield b"half"
    raise error


FULL = OSError(errno.ENOSPC, "No space left on device")
OVER_QUOTA = OSError(errno.EDQUOT, "Disk quota exceeded")
READ_ONLY = OSError(errno.EROFS, "Read-only file system")


@pytest.mark.parametrize("error", [RuntimeError("no more"), FULL, OVER_QUOTA, READ_ONLY], ids=repr)
def test_failed_write_leaves_old_file_and_no_other(tmp_path: Path, error: Exception) -> None:
    path = tmp_path / "file"
    path.write_bytes(b"old")

    with pytest.raises((RuntimeError, DiskFullError)):
        write_atomically(path, chunks_that_raise(error))

    assert path.read_bytes() == b"old"
    assert names(tmp_path) == ["file"]


def test_unfinished_write_is_in_hidden_file_beside_old_file(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(b"old")
    names_halfway = []

    def chunks() -> Iterator[bytes]:
        yield b"half"
        names_halfway.extend(names(tmp_path))
        assert path.read_bytes() == b"old"
        yield b"rest"

    write_atomically(path, chunks())

    (temporary_name,) = set(names_halfway) - {"file"}
    assert is_hidden_or_temporary(temporary_name)


def test_write_that_fails_in_its_content_raises_that_error(tmp_path: Path) -> None:
    with pytest.raises(RuntimeError, match="no more"):
        write_atomically(tmp_path / "file", chunks_that_raise(RuntimeError("no more")))


@pytest.mark.parametrize(
    ("error", "hint"),
    [
        (FULL, "free some space"),
        (OVER_QUOTA, "free some space"),
        (READ_ONLY, "that you may write to"),
    ],
    ids=["full", "over-quota", "read-only"],
)
def test_write_to_full_disk_raises_disk_full_error(
    tmp_path: Path, error: OSError, hint: str
) -> None:
    with pytest.raises(DiskFullError, match=error.strerror) as caught:
        write_atomically(tmp_path / "file", chunks_that_raise(error))

    assert hint in caught.value.hint


def test_remove_temporaries_removes_only_files_of_this_program(tmp_path: Path) -> None:
    others = [".hidden.tmp", ".notes.1-x.tmp", "scene.1-0123abcd.tmp"]
    for name in (*others, ".scene0000_00.npz.1-0123abcd.tmp"):
        (tmp_path / name).touch()
    (tmp_path / ".not-removable.1-0123abcd.tmp").mkdir()

    remove_temporaries(tmp_path)

    assert names(tmp_path) == sorted([*others, ".not-removable.1-0123abcd.tmp"])


def test_run_lock_keeps_second_run_out_on_full_disk(tmp_path: Path) -> None:
    with (
        limited(resource.RLIMIT_FSIZE, 0),
        run_lock(tmp_path),
        pytest.raises(LockedError, match="another run is working in this folder"),
        run_lock(tmp_path),
    ):
        pass


def test_run_lock_ends_without_error_after_folder_has_moved(tmp_path: Path) -> None:
    folder = tmp_path / "folder"
    folder.mkdir()

    with run_lock(folder):
        folder.rename(tmp_path / "moved")
        folder.touch()

    assert names(tmp_path) == ["folder", "moved"]


def test_run_lock_ends_without_error_if_its_file_cannot_be_removed(tmp_path: Path) -> None:
    lock_path = tmp_path / RUN_LOCK_NAME

    with run_lock(tmp_path):
        lock_path.unlink()
        (lock_path / "x").mkdir(parents=True)

    assert names(lock_path) == ["x"]


@pytest.fixture
def obstacles(tmp_path: Path) -> Path:
    """A folder with a file, a folder, a link to a device, and a link to a pipe."""
    (tmp_path / "folder").mkdir()
    (tmp_path / "file").write_bytes(b"")
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "null").symlink_to("/dev/null")
    (tmp_path / "link").symlink_to("pipe")
    return tmp_path


# Names that cannot be those of files, and the error for each.
NO_FILES = {
    "absent/file": "cannot be written",
    "folder": "is a folder",
    "x" * 300: "cannot be written",
    "null": "is a device or a pipe",
    "link": "is a device or a pipe",
}
NO_FILE_IDS = ["no folder", "folder", "long name", "device", "pipe"]


@pytest.mark.parametrize(("name", "problem"), NO_FILES.items(), ids=NO_FILE_IDS)
def test_write_to_path_that_cannot_be_file_is_an_error_with_the_path(
    obstacles: Path, name: str, problem: str
) -> None:
    path = obstacles / name

    with pytest.raises((OutputError, FileError), match=problem) as caught:
        write_atomically(path, [b"x"])

    assert str(path) in str(caught.value)


@pytest.mark.parametrize("name", NO_FILES, ids=NO_FILE_IDS)
def test_write_to_path_that_cannot_be_file_changes_nothing(obstacles: Path, name: str) -> None:
    before = names(obstacles)

    with pytest.raises((OutputError, FileError)):
        write_atomically(obstacles / name, [b"x"])

    assert names(obstacles) == before
    assert names(obstacles / "folder") == []
    assert (obstacles / "null").is_symlink()
    assert (obstacles / "link").is_symlink()


@pytest.mark.parametrize("name", ["file", "file/below"])
def test_make_directory_in_place_of_file_raises(obstacles: Path, name: str) -> None:
    before = names(obstacles)

    with pytest.raises(OutputError, match="cannot create this folder"):
        make_directory(obstacles / name)

    assert names(obstacles) == before


def test_make_directory_accepts_existing_folder(tmp_path: Path) -> None:
    make_directory(tmp_path / "folder/b")
    make_directory(tmp_path / "folder/b")

    assert names(tmp_path / "folder") == ["b"]


@dataclass
class Pair:
    a: int | None
    b: list[str] | None


def test_threads_that_share_a_decoder_read_the_same_value() -> None:
    objects = b",".join(b'{"a": %d, "b": ["s"]}' % number for number in range(100))
    decoder = make_decoder(list[Pair])
    expected = parse_json(b"[%b]" % objects, decoder)

    with ThreadPoolExecutor(4) as threads:
        values = list(threads.map(lambda _: parse_json(b"[%b]" % objects, decoder), range(100)))

    assert values == [expected] * 100
