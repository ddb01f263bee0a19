"""Arrays in `.npy` and `.npz` files and in texts of a number a line, as other programs write them."""

from __future__ import annotations

import io
import os
import re
import struct
import zipfile
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import deflate
import numpy as np
from numpy.typing import NDArray

from scannet_prep.errors import ContentError, PredictionError, ScanNetPrepError
from scannet_prep.files import open_file
from scannet_prep.number_lists import parse_plain_list

_MAX_BYTES = 1 << 36
_NUMBER = re.compile(rb"[ \t]*(-?[0-9]{1,18})[ \t]*")
_ROWS = 4096  # 3 MB of 201 scores each: they stay in the processor's cache
_NAME_LENGTHS = 26  # where the header of a zip file's member has the lengths of its name and of its extra field


def load_arrays(path: Path, *keys: str) -> dict[str, NDArray[Any]]:
    """Read arrays of an `.npz` by their keys, or the one of an `.npy` under an empty key.

    Raises:
        FileError: It cannot be read, or has none of that name.
    """
    with _translate_errors(path), open_file(path, _MAX_BYTES) as file:
        found: Any = np.load(file, allow_pickle=False)
        return {key: found[key] for key in keys} if keys else {"": found[:]}


def iter_scores(path: Path, class_count: int) -> Iterator[NDArray[np.floating[Any]]]:
    """Read the scores of all vertices, `prob` of OctFormer's `<scene>.eval.npz`, some thousand vertices at a time.

    This takes a quarter of the time of `np.load`: what is read is used while it is in the processor's cache, and
    libdeflate computes the CRC-32, which is checked at the end.

    Yields:
        Floats (N, K + 1) of the next vertices; the first column stands for unlabeled.

    Raises:
        FileError: It cannot be read, or does not hold them.
    """
    with _translate_errors(path), open_file(path, _MAX_BYTES) as file, zipfile.ZipFile(file) as archive:
        if "prob.npy" not in archive.namelist():
            raise ContentError("has no array 'prob'")
        member = archive.getinfo("prob.npy")
        file.seek(member.header_offset + _NAME_LENGTHS)
        file.seek(sum(struct.unpack("<2H", file.read(4))), os.SEEK_CUR)
        content: Any = file
        if member.compress_type == zipfile.ZIP_DEFLATED:
            content = io.BytesIO(deflate.deflate_decompress(file.read(member.compress_size), member.file_size))
        start = content.tell()
        np.lib.format.read_magic(content)
        shape, is_by_column, dtype = np.lib.format.read_array_header_1_0(content)
        header_bytes = content.tell() - start
        if len(shape) != 2 or shape[1] != class_count + 1 or dtype.kind != "f":
            raise ContentError(f"prob: found {dtype} {shape}, expected floats (vertices, {class_count + 1})")
        if header_bytes + shape[0] * shape[1] * dtype.itemsize != member.file_size:
            raise ContentError(f"prob: found {member.file_size:,} bytes, which {dtype} {shape} does not have")
        content.seek(start)
        crc32 = deflate.crc32(content.read(header_bytes))
        step = max(1, shape[0]) if is_by_column else _ROWS
        for first in range(0, max(1, shape[0]), step):
            scores = np.empty((min(step, shape[0] - first), shape[1]), dtype, "F" if is_by_column else "C")
            data = scores.reshape(-1, order="A").view(np.uint8).data
            if content.readinto(data) != len(data):
                raise EOFError("it is truncated")
            crc32 = deflate.crc32(data, crc32)
            if np.isnan(scores.max(initial=0)):
                raise ContentError("prob: found NaN, expected numbers")
            yield scores
        if crc32 != member.CRC:
            raise zipfile.BadZipFile("Bad CRC-32 of prob")


@contextmanager
def _translate_errors(path: Path) -> Iterator[None]:
    try:
        yield
    except ContentError as error:
        raise PredictionError(path, error.message) from None
    except ScanNetPrepError:
        raise
    except KeyError as error:
        raise PredictionError(path, f"has no array {error}") from None
    except (
        ValueError, EOFError, IndexError, TypeError, MemoryError, OSError, RuntimeError, NotImplementedError,
        struct.error, zipfile.BadZipFile, zlib.error, deflate.DeflateError,
    ) as error:  # fmt: skip
        raise PredictionError(path, f"cannot be read as {path.suffix}: {error}") from None


def parse_lines(text: bytes) -> NDArray[np.int64]:
    """Read whole numbers, one a line. Lines may end in CR LF, and the last one in nothing.

    Returns:
        int64 (lines,).

    Raises:
        ContentError: A line is something else; the message says which.
    """
    text = text.replace(b"\r\n", b"\n").rstrip(b"\n")
    if not text:
        return np.zeros(0, np.int64)
    if (values := parse_plain_list(text, b"\n")) is not None:
        return values
    lines = text.split(b"\n")
    matches = [_NUMBER.fullmatch(line) for line in lines]
    if None in matches:
        number = matches.index(None)
        raise ContentError(f"line {number + 1:,}: found {str(lines[number])[1:42]}, expected a whole number")
    return np.array([int(match[1]) for match in matches if match], np.int64)
