"""The container: a zip file of `.npy` members that plain `np.load` reads.

It is written here and not by `np.savez` for three reasons: large members are stored (not compressed) and begin at
multiples of 64 bytes, so that they can be mapped; small integer members are compressed by libdeflate, which is four
times as fast as zlib and gives the same bytes on every processor; no time and no machine leaves a trace in the bytes.

Formats: https://pkware.cachefly.net/webdocs/casestudies/APPNOTE.TXT (zip) and numpy.lib.format (npy).
"""

from __future__ import annotations

import io
import re
import struct
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from shlex import quote
from typing import Any

import deflate
import numpy as np
from numpy.typing import NDArray

from scannet_prep.base.errors import ProcessedFileError
from scannet_prep.base.files import Buffer

ALIGNMENT_BYTES = 64
FORCE_HINT = "process the folder again: scannet-prep process --force"

_LOCAL = struct.Struct("<4s5H3I2H")
_CENTRAL = struct.Struct("<4s6H3I5H2I")
_END = struct.Struct("<4s4H2IH")
_NPY_MAGIC = b"\x93NUMPY\x01\x00"
_NPY_HEADER = re.compile(
    r"\{'descr': '([<|][biufU]\d+)', 'fortran_order': False, 'shape': \(([\d, ]*)\), \} *\n",
    re.ASCII,
)

_VERSION = 20
_STORED, _DEFLATED = 0, 8
_DOS_DATE_1980 = 0x21
_PADDING_ID = 0xD935  # the extra field that Android's zipalign registered for padding
_DEFLATE_LEVEL = 1
_MAX_DEFLATE_RATIO = 1032
_find_dtype = lru_cache(maxsize=64)(np.dtype)


@dataclass(frozen=True, slots=True)
class _Member:
    """One entry of the directory, and where its bytes begin."""

    method: int
    crc32: int
    stored_bytes: int
    size_bytes: int
    start: int


def again_hint(path: Path | str) -> str:
    """Return the hint for a damaged scene: the command that makes it again.

    Args:
        path: `<folder>/<split>/<scene>.npz`, or a text for a scene in an archive.
    """
    if isinstance(path, Path):
        folder = quote(str(path.parent.parent))
        return f"process the scene again: scannet-prep process --checksum -o {folder}"
    return "copy or fetch the archive again; or process the scene again (scannet-prep process --checksum) and pack"


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
        header = encode_npy_header(array.dtype.str, array.shape)
        data = (
            np.ascontiguousarray(array).reshape(-1).view(np.uint8).data
        )  # a view: the arrays are large
        crc32, size = deflate.crc32(data, deflate.crc32(header)), len(header) + len(data)
        payload: list[Buffer] = [header, data] if data else [header]
        if key in deflated:
            payload = [deflate.deflate_compress(b"".join(payload), _DEFLATE_LEVEL)]
        stored_size = sum(map(len, payload))
        method = _DEFLATED if key in deflated else _STORED
        local, central = _encode_headers(
            f"{key}.npy".encode("ascii"), method, crc32, stored_size, size, offset
        )
        pieces += [local, *payload]
        directory.append(central)
        offset += len(local) + stored_size
    return [*pieces, _encode_directory(directory, offset)]


def _encode_headers(
    name: bytes, method: int, crc32: int, stored_size: int, size: int, offset: int
) -> tuple[bytes, bytes]:
    """What stands before a member that begins at an offset, and what the directory says of it."""
    extra = b"" if method == _DEFLATED else _padding(offset + _LOCAL.size + len(name))
    common = (method, 0, _DOS_DATE_1980, crc32, stored_size, size, len(name))
    local = _LOCAL.pack(b"PK\x03\x04", _VERSION, 0, *common, len(extra)) + name + extra
    return local, _CENTRAL.pack(
        b"PK\x01\x02", _VERSION, _VERSION, 0, *common, 0, 0, 0, 0, 0, offset
    ) + name


def _encode_directory(entries: list[bytes], offset: int) -> bytes:
    """What stands at the end of the file, from an offset on."""
    directory = b"".join(entries)
    return directory + _END.pack(
        b"PK\x05\x06", 0, 0, len(entries), len(entries), len(directory), offset, 0
    )


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
            return np.frombuffer(content, dtype, offset=start).reshape(shape)
        # Also what NumPy cannot count, and no bytes with items of no size.
        except (TypeError, ValueError, OverflowError):
            raise self._error(f"array {key!r} has a header of another program") from None

    def _read_directory(self) -> dict[str, _Member]:
        """Go through the headers of the members; they, and the directory, must be what this program writes.

        A flipped bit in a name would otherwise hide an array.
        """
        data, position = self._data, 0
        members: dict[str, _Member] = {}
        directory: list[bytes] = []
        while bytes(
            data[position : position + 4]
        ) == b"PK\x03\x04" and position + _LOCAL.size <= len(data):
            *_, method, _, _, crc32, stored_size, size, name_size, _ = _LOCAL.unpack_from(
                data, position
            )
            name = bytes(data[position + _LOCAL.size : position + _LOCAL.size + name_size])
            local, central = _encode_headers(name, method, crc32, stored_size, size, position)
            is_ours = bytes(data[position : position + len(local)]) == local and method in (
                _STORED,
                _DEFLATED,
            )
            can_be = (
                stored_size <= len(data) - position
                and size <= _MAX_DEFLATE_RATIO * stored_size + 64
            )
            if not (is_ours and can_be):
                break
            directory.append(central)
            start, key = position + len(local), name.decode("latin-1").removesuffix(".npy")
            members[key] = _Member(method, crc32, stored_size, size, start)
            position = start + stored_size
        if len(members) < len(directory) or bytes(data[position:]) != _encode_directory(
            directory, position
        ):
            raise self._error(
                "is truncated, damaged, or was written by another program: its zip directory is not ours"
            )
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
        return ProcessedFileError(self._path, problem, again_hint(self._path))


def _parse_npy_header(start: bytes) -> tuple[np.dtype[Any], tuple[int, ...], int]:
    """Parse the beginning of a `.npy` member; gives type, shape and where the data begin. ValueError if it is none."""
    end = 10 + int.from_bytes(start[8:10], "little")
    match = _NPY_HEADER.fullmatch(start[10:end].decode("latin-1"))
    if not start.startswith(_NPY_MAGIC) or len(start) < end or match is None:
        raise ValueError
    return (
        _find_dtype(match[1]),
        tuple(int(item) for item in match[2].replace(" ", "").split(",") if item),
        end,
    )


@lru_cache(maxsize=64)
def encode_npy_header(descr: str, shape: tuple[int, ...]) -> bytes:
    """The beginning of an `.npy` file, up to the array's bytes in C order."""
    buffer = io.BytesIO()
    np.lib.format.write_array_header_1_0(
        buffer, {"descr": descr, "fortran_order": False, "shape": shape}
    )
    return buffer.getvalue()


def _padding(offset: int) -> bytes:
    """An extra field that makes what follows it begin at a multiple of 64 bytes."""
    count = -(offset + 4) % ALIGNMENT_BYTES
    return struct.pack("<HH", _PADDING_ID, count) + bytes(count)
