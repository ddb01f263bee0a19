"""JSON with types: a value that was read has exactly the types that a dataclass declares.

Types are strict: no bool or text for a number, no number beyond its range, nothing missing. Unknown
keys are ignored. Decoders are made when a module is imported: msgspec analyses a type when it is
first used, and two threads that do this at the same time crash.
"""

from __future__ import annotations

from pathlib import Path, PurePath
from typing import Annotated, Any, TypeAlias, TypeVar

import msgspec

from scannet_prep.errors import FileError

Value = TypeVar("Value")

Count: TypeAlias = Annotated[int, msgspec.Meta(ge=0, lt=1 << 48)]
"""A number of things or bytes."""

Crc32: TypeAlias = Annotated[str, msgspec.Meta(pattern="^[0-9a-f]{8}$")]
"""A CRC-32 as eight hexadecimal digits."""


def parse_record(
    data: bytes | str, path: Path | str, decoder: msgspec.json.Decoder[Value], hint: str
) -> Value:
    """Parse JSON that this program has written.

    Args:
        data: The JSON.
        path: The name of its file, for messages; a text if it is in an archive.
        decoder: The decoder of its type.
        hint: What to do if it is damaged.

    Raises:
        FileError: It is damaged, or was written by another program or version; the message names
            the value.
    """
    try:
        return decoder.decode(data)
    except (msgspec.MsgspecError, ValueError, RecursionError) as error:
        problem = f"is damaged, or not a file of this version: {error}"
        raise FileError(path, problem, hint) from None


def encode_json(value: object) -> bytes:
    """Encode a value as one line of JSON, a dataclass as an object with its fields in order."""
    return msgspec.json.encode(value, enc_hook=_to_plain)


def to_plain(value: object) -> Any:  # noqa: ANN401 - dict, list, str, int, float, bool or None
    """Turn dataclasses, paths and enumerations into values that the module `json` can write."""
    return msgspec.to_builtins(value, enc_hook=_to_plain, str_keys=True)


def _to_plain(value: object) -> object:
    if isinstance(value, str):
        return str.__str__(value)
    if isinstance(value, PurePath):
        return str(value)
    if hasattr(value, "tolist"):
        return value.tolist()
    raise TypeError(f"{type(value).__name__} is not a value for JSON")
