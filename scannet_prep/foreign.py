"""Tells what a file is by how it begins, so that every reader names foreign files in the same words."""

from __future__ import annotations

ZSTD_MAGIC = b"\x28\xb5\x2f\xfd"
ZSTD_SKIPPABLE_MAGIC = b"\x5e\x2a\x4d\x18"  # the lowest four bits may be others
LOOK_BYTES = 1024

_MAGICS = (
    (b"\x1f\x8b", "a gzip file"),
    (b"\xfd7zXZ\0", "an xz file"),
    (b"BZh", "a bzip2 file"),
    (b"PK\x03\x04", "a zip file"),
    (b"7z\xbc\xaf\x27\x1c", "a 7z file"),
    (b"\x93NUMPY", "an .npy file"),
    (b"%PDF", "a PDF file"),
    (ZSTD_MAGIC, "a zstd file"),
    (b"ply", "a PLY file"),
)
_PAGE_STARTS = (b"<!doctype", b"<html", b"<?xml", b"<head", b"<body", b"<!--")


def describe_beginning(start: bytes) -> str | None:
    """Say what kind of file begins so.

    Args:
        start: The first `LOOK_BYTES` of the file, or all there is.

    Returns:
        For example `a gzip file` or `a web page`; None where it is nothing known.
    """
    if not start:
        return "empty"
    if start[1:4] == ZSTD_SKIPPABLE_MAGIC[1:] and start[0] >> 4 == ZSTD_SKIPPABLE_MAGIC[0] >> 4:
        return "a zstd file"  # as pzstd writes them, with a skippable frame before each frame
    for magic, name in _MAGICS:
        if start.startswith(magic):
            return name
    if start[257:262] == b"ustar":
        return "a tar file"
    if start.removeprefix(b"\xef\xbb\xbf").lstrip()[:64].lower().startswith(_PAGE_STARTS):
        return "a web page"
    if not start.strip(b"\0"):
        return "nothing but zeros"
    return None
