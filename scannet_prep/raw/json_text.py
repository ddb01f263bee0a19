"""JSON as the release's annotation files hold it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from scannet_prep.errors import FileError
from scannet_prep.files import Buffer

_HINT = "download it again"


def parse_json_object(data: Buffer, path: Path, error_type: type[FileError]) -> dict[str, Any]:
    """Parse a file that holds one JSON object.

    Args:
        data: The whole file.
        path: Its name, for messages.
        error_type: What to raise.

    Raises:
        FileError: Of the given type: the file is empty, truncated, an HTML page, not JSON, or no object.
    """
    if not data:
        raise error_type(path, "is empty", _HINT)
    try:
        value = json.loads(bytes(data))
    except (ValueError, RecursionError) as error:
        start = bytes(data[:16])
        if start.lstrip().startswith(b"<"):
            raise error_type(path, f"is an HTML page: it begins with {start!r}, expected JSON", _HINT) from None
        raise error_type(path, f"is no JSON: {error}; it has {len(data):,} bytes", _HINT) from None
    if not isinstance(value, dict):
        raise error_type(path, f"holds a JSON {type(value).__name__}, expected an object")
    return value


def parse_optional_id(value: object) -> int | None:
    """Read an id as ScanNet's own reader does: a whole number, a string of digits, or null.

    Raises:
        ValueError: It is none of these.
    """
    if value is None:
        return None
    if isinstance(value, int) and not isinstance(value, bool):
        return value
    if isinstance(value, str) and value.isascii() and value.isdigit() and len(value) < 20:
        return int(value)
    raise ValueError(f"{value!r:.40} is no id")


def parse_name(value: object) -> str:
    """Read the name of a scene or file, without the `scannet.` that v2 puts before it; empty where there is none."""
    return value.removeprefix("scannet.") if isinstance(value, str) else "" if value is None else shorten(value)


def shorten(value: object) -> str:
    """Show a value in a message, at most 40 characters of it."""
    return f"{value!r:.40}"
