"""Files appear whole or not at all, whatever happens while they are written."""

import errno
import os
import signal
import stat
import subprocess
import sys
import time
import zlib
from itertools import product
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from scannet_prep.errors import FileError, MissingFileError, OutputError
from scannet_prep.files import (
    Fingerprint,
    is_hidden_or_temporary,
    make_directory,
    read_file,
    remove_temporaries,
    write_atomically,
)

WRITE_FOREVER = """
import sys
from pathlib import Path
from scannet_prep.files import write_atomically
def chunks():
    yield b"half of the "
    print("started", flush=True)
    sys.stdin.read()
write_atomically(Path(sys.argv[1]), chunks())
"""


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def test_what_is_written_can_be_read_and_nothing_else_is_left(tmp_path: Path) -> None:
    path = tmp_path / "scene0000_00.npz"
    contents = ([b"old content"], [b"new", bytearray(b" "), memoryview(b"content")], [])
    for chunks, is_durable in product(contents, (False, True)):
        write_atomically(path, chunks, is_durable=is_durable)
        assert read_file(path) == b"".join(chunks)
        assert names(tmp_path) == ["scene0000_00.npz"]


def test_permissions_are_what_the_umask_leaves(tmp_path: Path) -> None:
    for umask, mode in ((0o022, 0o644), (0o002, 0o664), (0o077, 0o600), (0o000, 0o666)):
        before = os.umask(umask)
        try:
            write_atomically(tmp_path / "file", [b"x"])
        finally:
            os.umask(before)
        assert stat.S_IMODE((tmp_path / "file").stat().st_mode) == mode


@pytest.mark.parametrize("content", [None, b"old"])
@pytest.mark.parametrize(
    ("cause", "expected"),
    [(RuntimeError("no more"), RuntimeError), (OSError(errno.ENOSPC, "No space left on device"), OutputError)],
)
def test_a_writer_that_fails_halfway_leaves_what_was_there(tmp_path: Path, content, cause, expected) -> None:
    path = tmp_path / "file"
    if content is not None:
        path.write_bytes(content)

    def chunks():
        yield b"half"
        raise cause

    with pytest.raises(expected, match=r"no more|No space left") as caught:
        write_atomically(path, chunks())
    assert expected is RuntimeError or "free some space" in caught.value.hint
    assert names(tmp_path) == ([] if content is None else ["file"])
    assert content is None or path.read_bytes() == content


def test_a_folder_that_is_not_there_or_a_name_that_is_taken_is_an_output_error(tmp_path: Path) -> None:
    (tmp_path / "folder").mkdir()
    for path in (tmp_path / "absent/file", tmp_path / "folder", tmp_path / ("x" * 300)):
        with pytest.raises((OutputError, FileError), match=r"cannot be written|is a folder") as caught:
            write_atomically(path, [b"x"])
        assert str(path) in str(caught.value)
    assert names(tmp_path) == ["folder"]


def test_folders_are_made_with_parents_and_a_file_in_the_way_is_an_error(tmp_path: Path) -> None:
    make_directory(tmp_path / "a/b")
    make_directory(tmp_path / "a/b")
    assert (tmp_path / "a/b").is_dir()
    (tmp_path / "file").write_bytes(b"")
    for path in (tmp_path / "file", tmp_path / "file/below"):
        with pytest.raises(OutputError, match="cannot create this folder"):
            make_directory(path)


def test_a_killed_writer_leaves_the_old_file_and_a_temporary_one_that_the_next_run_removes(tmp_path: Path) -> None:
    path = tmp_path / "scene0000_00.npz"
    path.write_bytes(b"old")
    with subprocess.Popen(
        [sys.executable, "-c", WRITE_FOREVER, path], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as child:
        assert child.stdout.readline() == "started\n"
        assert len(names(tmp_path)) == 2
        child.send_signal(signal.SIGKILL)
        child.wait()
    assert path.read_bytes() == b"old"
    (left,) = [name for name in names(tmp_path) if name != path.name]
    assert is_hidden_or_temporary(left)
    assert not is_hidden_or_temporary(path.name)
    others = [".hidden.tmp", ".notes.1-x.tmp", "scene.1-0123abcd.tmp"]
    for name in others:
        (tmp_path / name).touch()
    remove_temporaries(tmp_path)
    assert names(tmp_path) == sorted([path.name, *others])


def test_an_orphaned_worker_renames_nothing(tmp_path: Path) -> None:
    program = (
        "import os, sys, time; from pathlib import Path; from scannet_prep.files import write_atomically\n"
        "leader = os.getpid()\n"
        "if os.fork(): time.sleep(0.2); os.kill(leader, 9)\n"
        "try: write_atomically(Path(sys.argv[1]), (time.sleep(0.6) or b'late' for _ in '1'), run_pid=leader)\n"
        "except Exception as error: Path(sys.argv[1] + '.error').write_text(str(error))\n"
    )
    subprocess.run([sys.executable, "-c", program, tmp_path / "file"], check=False)
    deadline = time.monotonic() + 20
    while not (tmp_path / "file.error").exists() and time.monotonic() < deadline:
        time.sleep(0.05)
    assert "the run that it was made for has ended" in (tmp_path / "file.error").read_text()
    assert names(tmp_path) == ["file.error"]


def test_what_cannot_be_read_is_an_error_that_names_it(tmp_path: Path) -> None:
    with pytest.raises(MissingFileError, match="no such file"):
        read_file(tmp_path / "absent")
    with pytest.raises(FileError, match="is a folder, expected a file"):
        read_file(tmp_path)
    with (tmp_path / "huge").open("wb") as file:
        file.truncate(1 << 40)
    with pytest.raises(FileError, match=r"has 1,099,511,627,776 bytes, expected at most 1,000"):
        read_file(tmp_path / "huge", 1000)


@given(st.lists(st.binary(max_size=300), max_size=4))
def test_a_fingerprint_is_size_and_crc32_however_the_bytes_are_cut(chunks: list[bytes]) -> None:
    whole = b"".join(chunks)
    assert Fingerprint.from_bytes(*chunks) == Fingerprint(len(whole), f"{zlib.crc32(whole):08x}")
