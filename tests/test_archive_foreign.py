"""Files that are no archives of this program: every reader says the same, and what to type."""

from __future__ import annotations

import gzip
import io
import os
import tarfile
import zipfile
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import zstandard
from archives import call, unpack_pipe

from scannet_prep import ScanNet
from scannet_prep.archive import open_archive
from scannet_prep.errors import ArchiveError, ForeignFileError, UsageError
from scannet_prep.stages import info, unpack
from scannet_prep.stages.verify import archive as verify_archive


def written(write: Callable[[io.BytesIO], object]) -> bytes:
    data = io.BytesIO()
    write(data)
    return data.getvalue()


def write_zip(data: io.BytesIO) -> None:
    with zipfile.ZipFile(data, "w") as archive:
        archive.writestr("some.txt", "text")


TAR = tarfile.TarInfo("some.txt").tobuf() + bytes(1024)
FRAME = zstandard.compress(TAR, 3)
FOREIGN = {
    "a .tar.zst of another program": (FRAME, "tar --zstd -xf"),
    "a .tar.zst of pzstd": (b"\x50\x2a\x4d\x18\4\0\0\0" + len(FRAME).to_bytes(4, "little") + FRAME, "tar --zstd -xf"),
    "a zstd file": (zstandard.compress(b"text"), "zstd -d"),
    "a tar file": (TAR, "tar -xf"),
    "a gzip file": (gzip.compress(TAR), "tar -xzf"),
    "a zip file": (written(write_zip), "unzip"),
    "a zip file of arrays": (written(lambda data: np.savez(data, points=np.zeros(3))), "unzip"),
    "a 7z file": (b"7z\xbc\xaf\x27\x1c" + bytes(60), "7z x"),
    "a web page": (b"<!DOCTYPE html><html>Please log in</html>", "in a browser"),
    "empty": (b"", "copy it again"),
    "a file of another kind": (b"something else" * 50, "scannet-prep pack made"),
}

READERS: dict[str, Callable[[Path], object]] = {
    "info": lambda path: info.run([path]),
    "verify": lambda path: verify_archive.run([path]),
    "unpack": lambda path: unpack.plan([path]),
    "ScanNet": lambda path: ScanNet(path, split="train"),
}


@pytest.mark.parametrize("what", FOREIGN)
def test_every_reader_says_what_a_foreign_file_is_and_what_to_type(what: str, tmp_path: Path) -> None:
    data, command = FOREIGN[what]
    path = tmp_path / "some file.tar.zst"
    path.write_bytes(data)
    told = set()
    for name, read in READERS.items():
        with pytest.raises(ArchiveError) as caught:
            read(path)
        assert command in caught.value.hint, name
        assert ("'" in caught.value.hint) == ("-" in command.split()[-1] or command in {"unzip", "7z x"})
        told.add((caught.value.problem, caught.value.hint))
    assert len(told) == 1
    assert next(iter(told))[0].startswith("is ")
    assert "seek table" not in str(told)


def test_a_foreign_file_in_a_pipe_is_recognised_too(tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(FOREIGN["a gzip file"][0])
    outcome = unpack_pipe(tmp_path / "a", "-o", tmp_path / "out")
    assert (outcome.status, "is a gzip file" in outcome.stderr) == (1, True)
    assert not (tmp_path / "out").exists()


def test_a_damaged_archive_of_ours_is_not_taken_for_a_foreign_file(packed: Path) -> None:
    packed.write_bytes(packed.read_bytes()[:-30])
    with pytest.raises(ArchiveError) as caught:
        open_archive(packed)
    assert not isinstance(caught.value, ForeignFileError)
    assert "is damaged or truncated" in str(caught.value)


@pytest.mark.parametrize("name", READERS)
def test_an_address_of_a_store_says_what_it_needs(name: str) -> None:
    read: Callable[[str], object] = READERS[name]  # type: ignore[assignment]
    with pytest.raises(UsageError, match="addresses of the kind s3:// are not read") as caught:
        read("s3://bucket/scannet.tar.zst")
    assert "aws s3 presign s3://bucket/scannet.tar.zst" in caught.value.hint


@pytest.mark.parametrize("command", ["info", "verify", "unpack"])
def test_a_named_pipe_does_not_hang_and_a_file_that_is_not_there_is_named(command: str, tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "a.tar.zst")
    outcome = call(command, tmp_path / "a.tar.zst")
    assert (outcome.status, "is a named pipe" in outcome.stderr) == (1, True), outcome.stderr
    outcome = call(command, tmp_path / "b.tar.zst")
    assert (outcome.status, "b.tar.zst: no such archive" in outcome.stderr) == (1, True)
