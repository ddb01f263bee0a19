"""The container: a zip file of `.npy` members that plain `np.load` reads.

It is written here and not by `np.savez` for three reasons: large members are stored (not compressed) and begin at
multiples of 64 bytes, so that they can be mapped; small integer members are compressed by libdeflate, which is four
times as fast as zlib and gives the same bytes on every processor; no time and no machine leaves a trace in the bytes.

Formats: https://pkware.cachefly.net/webdocs/casestudies/APPNOTE.TXT (zip) and numpy.lib.format (npy).
"""

from __future__ import annotations

import io
import math
import re
import struct
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

import deflate
import numpy as np
from numpy.typing import NDArray

from scannet_prep.errors import ContentError, ProcessedFileError
from scannet_prep.files import Buffer

ALIGNMENT_BYTES = 64

_LOCAL = struct.Struct("<4s5H3I2H")
_CENTRAL = struct.Struct("<4s6H3I5H2I")
_END = struct.Struct("<4s4H2IH")
_NPY_MAGIC = b"\x93NUMPY\x01\x00"
_NPY_HEADER = re.compile(
    r"\{'descr': '([<|][biufU]\d+)', 'fortran_order': False, 'shape': \(([\d, ]*)\), \} *\n", re.ASCII
)

_VERSION = 20
_STORED, _DEFLATED = 0, 8
_DOS_DATE_1980 = 0x21
_PADDING_ID = 0xD935  # the extra field that Android's zipalign registered for padding
_DEFLATE_LEVEL = 1
_MAX_DEFLATE_RATIO = 1032


@dataclass(frozen=True, slots=True)
class _Member:
    """One entry of the directory, and where its bytes begin."""

    method: int
    crc32: int
    stored_bytes: int
    size_bytes: int
    start: int


def encode_npz(arrays: Mapping[str, NDArray[Any]], deflated: frozenset[str]) -> list[Buffer]:
    """Encode arrays as the bytes of an `.npz` file.

    Args:
        arrays: By key, in the order in which they are written.
        deflated: Keys of the arrays to compress; the others are stored, aligned to 64 bytes.

    Returns:
        Pieces of the file, in order.
    """
    pieces: list[Buffer] = []
    directory: list[bytes] = []
    offset = 0
    for key, array in arrays.items():
        name = f"{key}.npy".encode("ascii")
        header = encode_npy_header(array.dtype.str, array.shape)
        data = np.ascontiguousarray(array).reshape(-1).view(np.uint8).data  # a view: the arrays are large
        crc32, size = deflate.crc32(data, deflate.crc32(header)), len(header) + len(data)
        is_deflated = key in deflated
        payload: list[Buffer] = [header, data] if data else [header]
        if is_deflated:
            payload = [deflate.deflate_compress(b"".join(payload), _DEFLATE_LEVEL)]
        stored_size = sum(map(len, payload))
        extra = b"" if is_deflated else _padding(offset + _LOCAL.size + len(name))
        common = (_DEFLATED if is_deflated else _STORED, 0, _DOS_DATE_1980, crc32, stored_size, size, len(name))
        local = _LOCAL.pack(b"PK\x03\x04", _VERSION, 0, *common, len(extra)) + name + extra
        central = _CENTRAL.pack(b"PK\x01\x02", _VERSION, _VERSION, 0, *common, 0, 0, 0, 0, 0, offset) + name
        pieces += [local, *payload]
        directory.append(central)
        offset += len(local) + stored_size
    size = sum(map(len, directory))
    pieces += directory
    pieces.append(_END.pack(b"PK\x05\x06", 0, 0, len(directory), len(directory), size, offset, 0))
    return pieces


class NpzReader:
    """Reads members of an `.npz` file that `encode_npz` made, and checks each by its CRC-32.

    Args:
        data: The whole file. Arrays of stored members are views of it, writable if it is.
        path: Its name, for messages.

    Raises:
        ProcessedFileError: The file is truncated, damaged, or was written by another program.
    """

    def __init__(self, data: Buffer, path: str | Path) -> None:
        self._data = memoryview(data)
        self._path = path
        self._members = self._read_directory()
        self._checked: dict[str, memoryview] = {}

    @property
    def keys(self) -> tuple[str, ...]:
        """Keys of all members, in file order."""
        return tuple(self._members)

    def read(self, key: str) -> NDArray[Any]:
        """Read one array.

        Raises:
            ProcessedFileError: There is no such member, or it is damaged.
        """
        member = self._members.get(key)
        if member is None:
            raise self._error(f"has no array {key!r}")
        content = self._read_content(key, member)
        try:
            dtype, shape, start = _parse_npy_header(bytes(content[:4096]))
        except ContentError:
            raise self._error(f"array {key!r} has a header of another program") from None
        if math.prod(shape) * dtype.itemsize != len(content) - start:
            raise self._error(f"array {key!r} does not fill its member")
        try:
            return np.frombuffer(content, dtype, offset=start).reshape(shape)
        except ValueError:  # no bytes, but items of no size or dimensions beyond what NumPy can count
            raise self._error(f"array {key!r} has the impossible shape {shape}") from None

    def _read_directory(self) -> dict[str, _Member]:
        """Read the directory at the end; each of its entries must say the same as the header of its member.

        A flipped bit in a name would otherwise hide an array.
        """
        data = self._data
        if len(data) < _END.size:
            raise self._error(f"is truncated: {len(data)} bytes")
        magic, _, _, count, total, size, directory_start, comment = _END.unpack(data[-_END.size :])
        offset, position = directory_start, 0
        if magic != b"PK\x05\x06" or comment or count != total or offset + size + _END.size != len(data):
            raise self._error("is truncated, or not a file of this program: it does not end in a zip directory")
        members: dict[str, _Member] = {}
        for _ in range(count):
            if offset + _CENTRAL.size > len(data) or position + _LOCAL.size > directory_start:
                raise self._error("has a damaged zip directory")
            central, local = _CENTRAL.unpack_from(data, offset), _LOCAL.unpack_from(data, position)
            name_start = position + _LOCAL.size
            name = bytes(data[name_start : name_start + local[9]])
            offset += _CENTRAL.size + len(name)
            is_same = central[2:11] == local[1:10] and bytes(data[offset - len(name) : offset]) == name
            is_ours = (
                (central[0], local[0]) == (b"PK\x01\x02", b"PK\x03\x04")
                and central[16] == position
                and local[3] in (_STORED, _DEFLATED)
                and not any(central[11:14])
                and name.endswith(b".npy")
                and name.isascii()
            )
            key = name[:-4].decode("latin-1")
            if not is_same or not is_ours or key in members:
                raise self._error("has a zip directory that is damaged, or that another program wrote")
            start = name_start + len(name) + local[10]
            members[key] = member = _Member(local[3], local[6], local[7], local[8], start)
            if member.size_bytes > _MAX_DEFLATE_RATIO * member.stored_bytes + 64:
                raise self._error("has a damaged zip directory: a member is larger than its bytes can hold")
            position = start + member.stored_bytes
        if (position, offset) != (directory_start, directory_start + size):
            raise self._error("has a damaged zip directory: it does not account for all bytes")
        return members

    def _read_content(self, key: str, member: _Member) -> memoryview:
        if key in self._checked:
            return self._checked[key]
        content = self._data[member.start : member.start + member.stored_bytes]
        if member.method == _DEFLATED:
            try:
                content = memoryview(deflate.deflate_decompress(content, member.size_bytes))
            except deflate.DeflateError:
                raise self._error(f"array {key!r} cannot be decompressed") from None
        if len(content) != member.size_bytes or deflate.crc32(content) != member.crc32:
            raise self._error(f"array {key!r} is damaged: its CRC-32 does not match")
        if member.method == _STORED:
            self._checked[key] = content
        return content

    def _error(self, problem: str) -> ProcessedFileError:
        return ProcessedFileError(
            self._path, problem, "process the scene again: scannet-prep process --checksum, with the same options"
        )


def _parse_npy_header(start: bytes) -> tuple[np.dtype[Any], tuple[int, ...], int]:
    """Parse the beginning of a `.npy` member; gives type, shape, and the offset of the data."""
    end = 10 + int.from_bytes(start[8:10], "little")
    if not start.startswith(_NPY_MAGIC) or len(start) < end:
        raise ContentError("not an .npy header")
    match = _NPY_HEADER.fullmatch(start[10:end].decode("latin-1"))
    if match is None:
        raise ContentError("not an .npy header as this program writes it")
    return _parse_dtype(match[1]), tuple(int(item) for item in match[2].replace(" ", "").split(",") if item), end


@lru_cache(maxsize=64)
def _parse_dtype(text: str) -> np.dtype[Any]:
    try:
        return np.dtype(text)
    except TypeError:
        raise ContentError(f"unknown type {text}") from None


@lru_cache(maxsize=64)
def encode_npy_header(descr: str, shape: tuple[int, ...]) -> bytes:
    """The beginning of an `.npy` file, up to the array's bytes in C order."""
    buffer = io.BytesIO()
    np.lib.format.write_array_header_1_0(buffer, {"descr": descr, "fortran_order": False, "shape": shape})
    return buffer.getvalue()


def _padding(offset: int) -> bytes:
    """An extra field that makes what follows it begin at a multiple of 64 bytes."""
    count = -(offset + 4) % ALIGNMENT_BYTES
    return struct.pack("<HH", _PADDING_ID, count) + bytes(count)
