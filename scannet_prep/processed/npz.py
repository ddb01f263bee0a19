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
import zipfile
from collections.abc import Mapping
from functools import lru_cache
from pathlib import Path
from typing import Any

import deflate
import numpy as np
from numpy.typing import NDArray

from scannet_prep.base.files import Buffer
from scannet_prep.errors import FileError

ALIGNMENT_BYTES = 64
HINT_DAMAGED = "copy it again; or remove it, process again, and pack again if it was in an archive"

# The header of a member, up to its name.
_LOCAL_BYTES = 30
# The extra field for padding, registered by Android's zipalign.
_PADDING_ID = 0xD935
_DEFLATE_LEVEL = 1
_MAX_DEFLATE_RATIO = 1032
# The directory of 11 members takes 700 bytes.
_DIRECTORY_LOOK_BYTES = 1 << 16
_NPY_HEADER = re.compile(
    rb"\x93NUMPY\x01\x00..\{'descr': '([<|][biufU]\d+)', 'fortran_order': False, "
    rb"'shape': \(([\d, ]*)\), \} *\n",
    re.DOTALL,
)


def encode_npz(
    arrays: Mapping[str, NDArray[Any]],
    deflated: frozenset[str],
) -> list[Buffer]:
    """Encode arrays as the bytes of an `.npz` file.

    Args:
        arrays: By key, in the order in which they are written.
        deflated: Keys of the arrays to compress; the others are stored, aligned to 64 bytes.

    Returns:
        Pieces of the file, in order.
    """
    pieces: list[Buffer] = []
    directory = b""
    offset = 0
    for key, array in arrays.items():
        npy_header = encode_npy_header(array.dtype.str, array.shape)
        # A view, because the arrays are large.
        numbers = np.ascontiguousarray(array).reshape(-1)
        data = numbers.view(np.uint8).data
        content: list[Buffer] = [npy_header, data]

        # Its time is 1980-01-01.
        info = zipfile.ZipInfo(f"{key}.npy")
        info.file_size = sum(map(len, content))
        info.CRC = deflate.crc32(data, deflate.crc32(npy_header))
        if key in deflated:
            info.compress_type = zipfile.ZIP_DEFLATED
            content = [deflate.deflate_compress(b"".join(content), _DEFLATE_LEVEL)]
        else:
            # The padding begins with four bytes for its kind and its length.
            start = offset + _LOCAL_BYTES + len(info.filename) + 4
            padding = bytes(-start % ALIGNMENT_BYTES)
            info.extra = struct.pack("<HH", _PADDING_ID, len(padding)) + padding
        info.compress_size = sum(map(len, content))
        header = info.FileHeader(zip64=False)
        pieces += [header, *content]

        # An entry of the directory has the same fields, from the version to the length of the name.
        # Its extra field, comment, disk number and attributes are empty.
        directory += b"PK\x01\x02"
        directory += header[4:6]
        directory += header[4:28]
        directory += bytes(12)
        directory += struct.pack("<I", offset)
        directory += info.filename.encode()
        offset += len(header) + info.compress_size
    count = len(arrays)
    # The numbers of disks and the length of the comment are 0.
    end = struct.pack("<4s4x2H2I2x", b"PK\x05\x06", count, count, len(directory), offset)
    return [*pieces, directory, end]


@lru_cache(maxsize=64)
def encode_npy_header(descr: str, shape: tuple[int, ...]) -> bytes:
    """Encode the beginning of an `.npy` file, up to the array's bytes in C order."""
    buffer = io.BytesIO()
    np.lib.format.write_array_header_1_0(
        buffer, {"descr": descr, "fortran_order": False, "shape": shape}
    )
    return buffer.getvalue()


class NpzReader:
    """A reader of the members of an `.npz` file; it checks their CRC-32.

    Args:
        data: The whole file. Arrays of stored members are views of it, writable if it is.
        path: Its name, for messages.

    Attributes:
        data: As given.
        path: As given.

    Raises:
        FileError: The file is truncated, damaged, or not an `.npz` file.
    """

    def __init__(self, data: Buffer, path: str | Path) -> None:
        self.data = data
        self.path = path
        try:
            self._members = _find_members(memoryview(data))
        except (zipfile.BadZipFile, ValueError, NotImplementedError) as error:
            raise self._error(f"is truncated, damaged, or not an .npz file: {error}") from None

    @property
    def keys(self) -> tuple[str, ...]:
        """Keys of all members, in file order."""
        return tuple(self._members)

    def read(self, key: str) -> NDArray[Any]:
        """Read one array.

        Raises:
            FileError: There is no such member, or it is damaged.
        """
        if key not in self._members:
            raise self._error(f"has no array {key!r}")
        info, content = self._members[key]
        try:
            return _parse_member(info, content)
        except (deflate.DeflateError, TypeError, ValueError, OverflowError) as error:
            raise self._error(f"array {key!r} is damaged: {error}") from None

    def _error(self, problem: str) -> FileError:
        return FileError(self.path, problem, HINT_DAMAGED)


def _find_members(data: memoryview) -> dict[str, tuple[zipfile.ZipInfo, memoryview]]:
    """Find the members by key: each ends where the next one begins, the last one at the directory.

    Raises:
        BadZipFile, ValueError, NotImplementedError: The directory is damaged.
    """
    # zipfile takes the tail for a file that has lost its beginning, and shifts all offsets.
    tail = data[-_DIRECTORY_LOOK_BYTES:]
    shift = len(data) - len(tail)
    directory = zipfile.ZipFile(io.BytesIO(tail))
    infos = directory.infolist()
    ends = [info.header_offset for info in infos[1:]]
    ends.append(directory.start_dir)
    members = {}
    for info, end in zip(infos, ends, strict=False):
        start = end - info.compress_size
        content = data[shift + start : shift + end]
        members[info.filename.removesuffix(".npy")] = info, content
        # The name is also in the header of the member.
        name = info.filename.encode()
        name_start = shift + info.header_offset + _LOCAL_BYTES
        if data[name_start : name_start + len(name)] != name:
            raise ValueError(f"{info.filename} is missing")
    # Otherwise, a flipped bit in the directory could hide an array.
    count = int.from_bytes(tail[-12:-10], "little")
    if len(members) != count:
        raise ValueError(f"it has {len(members)} members, expected {count}")
    return members


def _parse_member(
    info: zipfile.ZipInfo,
    content: memoryview,
) -> NDArray[Any]:
    """Check the content of a member, and return its array, as a view if it is stored.

    Raises:
        DeflateError, TypeError, ValueError, OverflowError: It is damaged, or has a header that
            this program does not write.
    """
    if info.compress_type == zipfile.ZIP_DEFLATED:
        # A damaged size must not make the decompressor reserve memory for it.
        size_bytes = min(info.file_size, _MAX_DEFLATE_RATIO * len(content) + 64)
        content = memoryview(deflate.deflate_decompress(content, size_bytes))
    crc32 = deflate.crc32(content)
    if len(content) != info.file_size or crc32 != info.CRC:
        raise ValueError("its CRC-32 does not match")
    # Bytes 8 and 9 have the length of the description, which begins at byte 10.
    start = 10 + int.from_bytes(content[8:10], "little")
    header = _NPY_HEADER.fullmatch(content[:start])
    if header is None:
        raise ValueError("it has a header of another program")
    descr = header[1].decode()
    lengths = header[2].split(b",")
    shape = [int(length) for length in lengths if length]
    return np.frombuffer(content, descr, offset=start).reshape(shape)


def widen_normals(halves: NDArray[np.float16]) -> NDArray[np.float32]:
    """Convert finite float16 to float32.

    NumPy converts one number at a time, which takes seven times as long.
    """
    # Widening repeats the sign bit; the mask keeps only its first copy. Exponent and fraction move
    # to their places in float32, whose exponent is larger by 112.
    bits = halves.view(np.int16).astype(np.int32)
    bits <<= 13
    bits &= np.int32(-0x7000_2000)
    floats = bits.view(np.float32)
    floats *= np.float32(2.0**112)
    return floats
