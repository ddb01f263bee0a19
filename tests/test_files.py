"""Files appear whole or not at all, whatever happens while they are written."""

import errno
import os
import resource
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import pytest
from commands import limited

from scannet_prep.base.errors import DiskFullError, FileError, LockedError, OutputError
from scannet_prep.base.files import (
    LOCK_NAME,
    is_hidden_or_temporary,
    make_directory,
    remove_temporaries,
    run_lock,
    write_atomically,
)
from scannet_prep.base.typed_json import make_decoder, parse_json


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
def test_a_writer_killed_or_failing_halfway_leaves_what_was_there(
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


@dataclass
class Pair:
    a: int | None
    b: list[str] | None


def test_threads_that_share_a_decoder_read_the_same_value() -> None:
    lines = b",".join(b'{"a": %d, "b": ["s"]}' % number for number in range(100))
    decoder = make_decoder(list[Pair])
    expected = parse_json(b"[%b]" % lines, decoder)

    with ThreadPoolExecutor(4) as threads:
        values = list(threads.map(lambda _: parse_json(b"[%b]" % lines, decoder), range(100)))

    assert values == [expected] * 100
