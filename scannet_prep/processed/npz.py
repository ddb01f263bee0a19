"""The container of a processed scene: a zip file of `.npy` members that plain `np.load` reads.

It is not written by `np.savez`, for three reasons:

- Large members are stored (not compressed) and begin at multiples of 64 bytes, so that they can be
  mapped.
- Integer members are compressed by libdeflate, which is four times as fast as zlib and gives the
  same bytes on every processor.
- Neither the time nor the machine influences the bytes.

Formats: https://pkware.cachefly.net/webdocs/casestudies/APPNOTE.TXT (zip) and numpy.lib.format
(npy).
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

from scannet_prep.base.files import Buffer
from scannet_prep.errors import ProcessedFileError
from scannet_prep.release.scene import SceneId

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
_STORED = 0
_DEFLATED = 8
_DOS_DATE_1980 = 0x21
# The extra field for padding, registered by Android's zipalign.
_PADDING_ID = 0xD935
_DEFLATE_LEVEL = 1
_MAX_DEFLATE_RATIO = 1032
# Larger than the header of any `.npy` member that this program writes.
_NPY_HEADER_LOOK_BYTES = 4096
_LOCAL_MAGIC = b"PK\x03\x04"
# `np.dtype`, which parses its argument each time, with a cache for the few types of members.
_find_dtype = lru_cache(maxsize=64)(np.dtype)


@dataclass(frozen=True, slots=True)
class _Member:
    """One entry of the directory.

    Attributes:
        method: Stored or deflated, as a number of the zip format.
        crc32: CRC-32 of the content.
        stored_bytes: Size in the file.
        size_bytes: Size of the content, after decompression.
        start: Offset of the first byte in the file, after the header.
    """

    method: int
    crc32: int
    stored_bytes: int
    size_bytes: int
    start: int


def process_command(scene_id: str) -> str:
    """Return the beginning of the command that makes a scene. An own scan is named by its file."""
    if SceneId.is_own(scene_id):
        return f"scannet-prep process {scene_id}.ply"
    return "scannet-prep process"


def again_hint(path: Path | str) -> str:
    """Return the hint for a damaged scene: the command that makes it again.

    Args:
        path: `<folder>/<split>/<scene>.npz`, or a text for a scene in an archive.
    """
    if isinstance(path, Path):
        folder = quote(str(path.parent.parent))
        command = process_command(path.stem)
        return f"process the scene again: {command} --checksum -o {folder}"
    return (
        "copy or fetch the archive again; "
        "or process the scene again (scannet-prep process --checksum) and pack"
    )


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
        # A view, because the arrays are large.
        data = np.ascontiguousarray(array).reshape(-1).view(np.uint8).data
        payload: list[Buffer] = [header, data] if data else [header]
        method = _STORED
        if key in deflated:
            method = _DEFLATED
            payload = [deflate.deflate_compress(b"".join(payload), _DEFLATE_LEVEL)]
        stored_bytes = sum(map(len, payload))
        local, central = _encode_headers(
            name=f"{key}.npy".encode("ascii"),
            method=method,
            crc32=deflate.crc32(data, deflate.crc32(header)),
            stored_bytes=stored_bytes,
            size_bytes=len(header) + len(data),
            offset=offset,
        )
        pieces += [local, *payload]
        directory.append(central)
        offset += len(local) + stored_bytes
    return [*pieces, _encode_directory(directory, offset)]


def _encode_headers(
    name: bytes, method: int, crc32: int, stored_bytes: int, size_bytes: int, offset: int
) -> tuple[bytes, bytes]:
    """Encode the header of a member that begins at an offset, and its entry in the directory."""
    extra = b""
    if method == _STORED:
        extra = _padding(offset + _LOCAL.size + len(name))
    # The fields that both have, in the same order.
    flags = 0
    time = 0
    common = (flags, method, time, _DOS_DATE_1980, crc32, stored_bytes, size_bytes, len(name))
    local = _LOCAL.pack(_LOCAL_MAGIC, _VERSION, *common, len(extra))
    # No extra field, comment, disk number or attributes.
    central = _CENTRAL.pack(b"PK\x01\x02", _VERSION, _VERSION, *common, 0, 0, 0, 0, 0, offset)
    return local + name + extra, central + name


def _encode_directory(entries: list[bytes], offset: int) -> bytes:
    """Encode the end of the file, which begins at an offset: the directory, and its end record."""
    directory = b"".join(entries)
    count = len(entries)
    end = _END.pack(b"PK\x05\x06", 0, 0, count, count, len(directory), offset, 0)
    return directory + end


class NpzReader:
    """A reader of the members of an `.npz` file that `encode_npz` made; it checks their CRC-32.

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
            dtype, shape, start = _parse_npy_header(bytes(content[:_NPY_HEADER_LOOK_BYTES]))
            return np.frombuffer(content, dtype, offset=start).reshape(shape)
        except (TypeError, ValueError, OverflowError):
            # The header has another form, a size that NumPy cannot count, or elements of 0 bytes.
            raise self._error(f"array {key!r} has a header of another program") from None

    def _read_directory(self) -> dict[str, _Member]:
        """Read the headers of the members from the first to the last.

        The headers and the directory must be what this program writes. Otherwise, a flipped bit in
        a name could hide an array.
        """
        members: dict[str, _Member] = {}
        directory: list[bytes] = []
        position = 0
        while True:
            header = self._read_header(position)
            if header is None:
                break
            key, member, central = header
            members[key] = member
            directory.append(central)
            position = member.start + member.stored_bytes

        has_repeated_key = len(members) < len(directory)
        end = _encode_directory(directory, position)
        if has_repeated_key or bytes(self._data[position:]) != end:
            raise self._error(
                "is truncated, damaged, or was written by another program: "
                "its zip directory is not as this program writes it"
            )
        return members

    def _read_header(self, position: int) -> tuple[str, _Member, bytes] | None:
        """Read the header of the member that begins at a position.

        Returns:
            Its key, the member, and its expected entry in the directory; None if the bytes are not
            a header that this program would write.
        """
        data = self._data
        rest_bytes = len(data) - position
        if bytes(data[position : position + 4]) != _LOCAL_MAGIC or rest_bytes < _LOCAL.size:
            return None
        fields = _LOCAL.unpack_from(data, position)
        method, _, _, crc32, stored_bytes, size_bytes, name_bytes, _ = fields[3:]
        name_start = position + _LOCAL.size
        name = bytes(data[name_start : name_start + name_bytes])
        # The header must have the same bytes as one that is made from its fields.
        local, central = _encode_headers(
            name, method, crc32, stored_bytes, size_bytes, offset=position
        )
        if bytes(data[position : position + len(local)]) != local:
            return None
        if method not in (_STORED, _DEFLATED):
            return None
        # Deflate compresses by a factor of 1,032 at most. A larger size is damaged, and would make
        # the decompressor reserve memory for it.
        max_size_bytes = _MAX_DEFLATE_RATIO * stored_bytes + 64
        if stored_bytes > rest_bytes or size_bytes > max_size_bytes:
            return None
        key = name.decode("latin-1").removesuffix(".npy")
        start = position + len(local)
        return key, _Member(method, crc32, stored_bytes, size_bytes, start), central

    def _read_content(self, key: str, member: _Member) -> memoryview:
        """Return the checked bytes of a member. A stored one is checked only once."""
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
    """Parse the header of an `.npy` member that this program wrote.

    Args:
        start: The beginning of the member.

    Returns:
        Type, shape, and the offset of the data.

    Raises:
        ValueError: The member begins with something else.
    """
    # Bytes 8 and 9 have the length of the description, which begins at byte 10.
    end = 10 + int.from_bytes(start[8:10], "little")
    match = _NPY_HEADER.fullmatch(start[10:end].decode("latin-1"))
    if not start.startswith(_NPY_MAGIC) or len(start) < end or match is None:
        raise ValueError
    lengths = [text for text in match[2].replace(" ", "").split(",") if text]
    return _find_dtype(match[1]), tuple(map(int, lengths)), end


@lru_cache(maxsize=64)
def encode_npy_header(descr: str, shape: tuple[int, ...]) -> bytes:
    """Encode the beginning of an `.npy` file, up to the array's bytes in C order."""
    buffer = io.BytesIO()
    np.lib.format.write_array_header_1_0(
        buffer, {"descr": descr, "fortran_order": False, "shape": shape}
    )
    return buffer.getvalue()


def _padding(offset: int) -> bytes:
    """Return an extra field for an offset, so that the next byte is at a multiple of 64 bytes."""
    # The extra field begins with four bytes for its kind and its length.
    count = -(offset + 4) % ALIGNMENT_BYTES
    return struct.pack("<HH", _PADDING_ID, count) + bytes(count)
