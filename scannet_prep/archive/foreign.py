"""Tells files of other kinds, and what to type for them."""

from __future__ import annotations

import zstandard

from scannet_prep.archive.frames import MAX_WINDOW_BYTES, decompress_start
from scannet_prep.archive.index import FORMAT_NAME
from scannet_prep.archive.tar import BLOCK_BYTES, parse_header

LOOK_BYTES = 1 << 18
_ZSTD_MAGIC = b"\x28\xb5\x2f\xfd"
_COMPRESSED = (
    (b"\x1f\x8b", "gzip", "tar -xzf", "gunzip"),
    (b"\xfd7zXZ\0", "xz", "tar -xJf", "unxz"),
    (b"BZh", "bzip2", "tar -xjf", "bunzip2"),
    (b"PK\x03\x04", "zip", "unzip", "unzip"),
)
_PAGE_STARTS = (b"<!doctype", b"<html", b"<?xml", b"<head", b"<body")


def explain_foreign(start: bytes, name: str) -> tuple[str, str] | None:
    """Say what a file is that is no archive of this program.

    Args:
        start: Its beginning, `LOOK_BYTES` or all there is.
        name: Its name, for what to type.

    Returns:
        What it is, and a hint; None where it begins as an archive of this program does.
    """
    if not start:
        return "is empty", "write it again with scannet-prep pack, or fetch it again"
    if start.startswith(_ZSTD_MAGIC):
        return _explain_zstd(start, name)
    for magic, kind, unpack, decompress in _COMPRESSED:
        if start.startswith(magic):
            command = (
                unpack if kind == "zip" or name.endswith((".tgz", ".txz", ".tbz")) or ".tar" in name else decompress
            )
            return f"is a {kind} file, not an archive of this program (.tar.zst)", f"{command} {name}"
    if start[257:262] == b"ustar":
        return "is a plain tar file, not an archive of this program (.tar.zst)", f"tar -xf {name}"
    if start.lstrip()[:64].lower().startswith(_PAGE_STARTS):
        return (
            "is a web page, not an archive: the server sent something else than the file",
            "look at it with a browser or an editor: it may ask for a login; then fetch the archive again",
        )
    return "is no archive of this program: it begins with something else", "name a .tar.zst that scannet-prep pack made"


def _explain_zstd(start: bytes, name: str) -> tuple[str, str] | None:
    foreign = "is a .tar.zst of another program: it has no index", f"tar --zstd -xf {name}"
    try:
        content = decompress_start(start, BLOCK_BYTES)
    except ValueError:
        content = _decompress_anyhow(start)
        if content[257:262] == b"ustar":
            return foreign
        if content:
            return "is a .zst file, but no archive", f"zstd -d {name}"
        return None  # damaged: whoever reads it says where
    try:
        member = parse_header(content)
    except ValueError:
        member = None
    if member is not None and member.name == FORMAT_NAME:
        return None
    if content[257:262] == b"ustar":
        return foreign
    return "is a .zst file, but no archive of this program", f"zstd -d {name}"


def _decompress_anyhow(start: bytes) -> bytes:
    """The first block of a frame that other programs write: without its size, or without a checksum."""
    try:
        return bytes(
            zstandard.ZstdDecompressor(max_window_size=MAX_WINDOW_BYTES).stream_reader(start).read(BLOCK_BYTES)
        )
    except zstandard.ZstdError:
        return b""
