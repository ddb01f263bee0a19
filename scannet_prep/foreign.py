"""Tells what a file is by how it begins, so that every reader names foreign files in the same words."""

from __future__ import annotations

import re

LOOK_BYTES = 1024

_KINDS = {
    rb"\Z": "empty",
    rb"\x1f\x8b": "a gzip file",
    rb"\xfd7zXZ\0": "an xz file",
    rb"BZh": "a bzip2 file",
    rb"PK\x03\x04": "a zip file",
    rb"7z\xbc\xaf\x27\x1c": "a 7z file",
    rb"\x93NUMPY": "an .npy file",
    rb"%PDF": "a PDF file",
    rb"\x28\xb5\x2f\xfd|[\x50-\x5f]\x2a\x4d\x18": "a zstd file",  # pzstd writes a skippable frame before each frame
    rb"ply": "a PLY file",
    rb"(?s:.{257})ustar": "a tar file",
    rb"(?i)(?:\xef\xbb\xbf)?\s*<(?:!doctype|html|\?xml|head|body|!--)": "a web page",
    rb"\0+\Z": "nothing but zeros",
}


def describe_beginning(start: bytes) -> str | None:
    """Say what kind of file begins so.

    Args:
        start: The first `LOOK_BYTES` of the file, or all there is.

    Returns:
        For example `a gzip file` or `a web page`; None where it is nothing known.
    """
    return next((name for pattern, name in _KINDS.items() if re.match(pattern, start)), None)
