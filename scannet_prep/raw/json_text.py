"""JSON as the release's annotation files hold it."""

from __future__ import annotations

import reprlib
from pathlib import Path
from typing import Any

import msgspec

from scannet_prep.errors import ContentError, FileError
from scannet_prep.files import Buffer
from scannet_prep.foreign import LOOK_BYTES, describe_beginning

_HINT = "download it again"


def parse_json_object(
    data: Buffer, path: Path, error_type: type[FileError], value_type: object = Any
) -> dict[str, Any]:
    """Parse a file that holds one JSON object.

    Args:
        data: The whole file.
        path: Its name, for messages.
        error_type: What to raise.
        value_type: `msgspec.Raw` to get the values as text; else they are parsed.

    Raises:
        FileError: Of the given type: the file is empty, truncated, of another kind, or holds something else.
    """
    try:
        text = str(data, "utf-8")  # checked here, as msgspec does not look into what it leaves as text
        is_object = text.lstrip().startswith("{")
        value = msgspec.json.decode(text, type=dict[str, value_type] if is_object else Any)  # type: ignore[valid-type]
    except (ValueError, RecursionError) as error:
        found = describe_beginning(bytes(data[:LOOK_BYTES]))
        problem = f"is {found}, expected JSON" if found else f"is not JSON: {error}; it has {len(data):,} bytes"
        raise error_type(path, problem, _HINT) from None
    if not isinstance(value, dict):
        raise error_type(path, f"holds a JSON {type(value).__name__}, expected an object", _HINT)
    return value


def parse_optional_id(value: object) -> int | None:
    """Read an id as ScanNet's own reader does: a whole number, a string of digits, or null.

    Raises:
        ContentError: It is none of these.
    """
    if value is None or type(value) is int:
        return value
    if isinstance(value, str) and value.isascii() and value.isdigit() and len(value) < 20:
        return int(value)
    raise ContentError(f"{shorten(value)} is not an id")


def parse_name(value: object) -> str:
    """Read the name of a scene or file, without the `scannet.` that v2 puts before it; empty where there is none."""
    return value.removeprefix("scannet.") if isinstance(value, str) else "" if value is None else shorten(value)


def shorten(value: object) -> str:
    """Show a value in a message, at most 40 characters of it."""
    return f"{reprlib.repr(value) if isinstance(value, list | dict) else repr(value):.40}"  # nested ones may be deep
