"""JSON as the release's annotation files hold it."""

from __future__ import annotations

from pathlib import Path
from typing import Any, TypeAlias, TypeVar

import msgspec

from scannet_prep.errors import FileError
from scannet_prep.files import Buffer
from scannet_prep.foreign import LOOK_BYTES, describe_beginning

Document = TypeVar("Document")

Id: TypeAlias = int | str | None
"""An id as ScanNet's own reader takes it: a whole number, a string of digits, or null."""

_HINT = "download it again"


def parse_document(data: Buffer, path: Path, error_type: type[FileError], kind: type[Document]) -> Document:
    """Parse a file that holds one JSON object.

    Args:
        data: The whole file.
        path: Its name, for messages.
        error_type: What to raise.
        kind: What the object holds.

    Raises:
        FileError: Of the given type: the file is empty, truncated, of another kind, or holds something else.
    """
    try:
        return msgspec.json.decode(str(data, "utf-8"), type=kind)  # msgspec does not look into what it leaves as text
    except msgspec.ValidationError as error:
        raise error_type(path, f"is damaged: {error}", _HINT) from None
    except (ValueError, RecursionError) as error:
        found = describe_beginning(bytes(data[:LOOK_BYTES]))
        problem = f"is {found}, expected JSON" if found else f"is not JSON: {error}; it has {len(data):,} bytes"
        raise error_type(path, problem, _HINT) from None


def parse_id(value: Id, place: str, path: Path, error_type: type[FileError]) -> int | None:
    """Read an id; `place` says where it stands.

    Raises:
        FileError: Of the given type: it is a text of something else than digits.
    """
    if not isinstance(value, str):
        return value
    if value.isascii() and value.isdigit() and len(value) < 20:
        return int(value)
    raise error_type(path, f"{place} is {value!r:.40}, expected a whole number", _HINT)


def parse_name(value: Any) -> str:  # noqa: ANN401 - whatever the file has there
    """Read the name of a scene or file, without the `scannet.` that v2 puts before it; empty where there is none."""
    return value.removeprefix("scannet.") if isinstance(value, str) else "" if value is None else f"{value!r:.40}"
