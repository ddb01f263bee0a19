"""Files appear whole or not at all, whatever happens while they are written."""

import errno
import os
import resource
from pathlib import Path

import pytest
from commands import limited

from scannet_prep.errors import DiskFullError, FileError, LockedError, OutputError
from scannet_prep.files import (
    is_hidden_or_temporary,
    make_directory,
    read_file,
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
def test_a_writer_that_is_killed_or_fails_halfway_leaves_what_was_there(
    tmp_path: Path, cause: Exception, hint: str
) -> None:
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


def test_a_folder_that_is_not_there_or_a_name_that_is_taken_is_an_output_error(tmp_path: Path) -> None:
    (tmp_path / "folder").mkdir()
    for path in (tmp_path / "absent/file", tmp_path / "folder", tmp_path / ("x" * 300)):
        with pytest.raises((OutputError, FileError), match=r"cannot be written|is a folder") as caught:
            write_atomically(path, [b"x"])
        assert str(path) in str(caught.value)
    assert names(tmp_path) == ["folder"]


def test_devices_and_pipes_behind_links_are_not_replaced_by_files(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    for target in (Path("/dev/null"), tmp_path / "pipe"):
        link = tmp_path / "link"
        link.symlink_to(target)
        with pytest.raises(FileError, match="is a device or a pipe"):
            write_atomically(link, [b"x"])
        assert link.is_symlink()
        link.unlink()


def test_folders_are_made_with_parents_and_a_file_in_the_way_is_an_error(tmp_path: Path) -> None:
    make_directory(tmp_path / "a/b")
    make_directory(tmp_path / "a/b")
    assert (tmp_path / "a/b").is_dir()
    (tmp_path / "file").write_bytes(b"")
    for path in (tmp_path / "file", tmp_path / "file/below"):
        with pytest.raises(OutputError, match="cannot create this folder"):
            make_directory(path)


def test_a_file_that_is_too_large_is_not_read(tmp_path: Path) -> None:
    with (tmp_path / "huge").open("wb") as file:
        file.truncate(1 << 40)
    with pytest.raises(FileError, match=r"has 1,099,511,627,776 bytes, expected at most 1,000"):
        read_file(tmp_path / "huge", 1000)
