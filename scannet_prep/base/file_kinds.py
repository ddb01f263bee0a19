"""Identify files by their first bytes, so that all readers describe foreign files alike."""

from __future__ import annotations

import re

BEGINNING_BYTES = 1024

# Descriptions, by the pattern with which a file of the kind begins. `\Z` is the end of the data.
_KINDS = {
    rb"\Z": "empty",
    rb"\x1f\x8b": "a gzip file",
    rb"PK\x03\x04": "a zip file",
    rb"7z\xbc\xaf\x27\x1c": "a 7z file",
    # The second form is a skippable frame, with which files of pzstd begin.
    rb"\x28\xb5\x2f\xfd|[\x50-\x5f]\x2a\x4d\x18": "a zstd file",
    rb"ply": "a PLY file",
    rb"(?s:.{257})ustar": "a tar file",
    rb"(?i)(?:\xef\xbb\xbf)?\s*<(?:!doctype|html|\?xml|head|body|!--)": "a web page",
    rb"\0+\Z": "nothing but zeros",
}


def describe_beginning(data: bytes) -> str | None:
    """Describe the kind of a file by its beginning.

    Args:
        data: The file, or at least its first `BEGINNING_BYTES`.

    Returns:
        A description such as `a gzip file` or `a web page`; None for an unknown kind.
    """
    start = data[:BEGINNING_BYTES]
    for pattern, name in _KINDS.items():
        if re.match(pattern, start):
            return name
    return None
