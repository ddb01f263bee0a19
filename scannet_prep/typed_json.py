"""JSON with types: what is read is exactly what a dataclass declares, or an error that says where it is not."""

from __future__ import annotations

import os
import threading
from pathlib import PurePath
from typing import Annotated, Any, TypeAlias, TypeVar

import msgspec

from scannet_prep.errors import ContentError

Value = TypeVar("Value")

Count: TypeAlias = Annotated[int, msgspec.Meta(ge=0, lt=1 << 48)]
"""A number of things or bytes."""

Crc32: TypeAlias = Annotated[str, msgspec.Meta(pattern="^[0-9a-f]{8}$")]
"""A CRC-32 as eight hexadecimal digits."""

_PREPARED, _PREPARING = set[Any](), threading.Lock()
if hasattr(os, "register_at_fork"):  # else the new process would have the lock, and what it guards, as they were then
    os.register_at_fork(
        before=_PREPARING.acquire, after_in_parent=_PREPARING.release, after_in_child=_PREPARING.release
    )


def parse_json(data: bytes | bytearray | memoryview, kind: type[Value]) -> Value:
    """Read a value of a declared type, most often a dataclass, from JSON.

    Types are strict: no bool for a number, no text for one, no number beyond the range, nothing missing. Classes that
    derive from `str`, such as `SceneId`, check the text by themselves. Unknown keys are passed over.

    Raises:
        ContentError: It is not JSON, or a value has another type; the message says which.
    """
    try:
        return decode_json(data, kind)
    except (msgspec.MsgspecError, ValueError, RecursionError) as error:
        raise ContentError(str(error)) from None


def decode_json(data: bytes | bytearray | memoryview | str, kind: type[Value]) -> Value:
    """Do what `parse_json` does, with the errors of msgspec; and in threads, which msgspec alone does not survive.

    What it finds out of a type when that is first used, another thread must not find half done.
    """
    if kind not in _PREPARED:
        with _PREPARING:
            msgspec.json.Decoder(kind, dec_hook=_from_text)
            _PREPARED.add(kind)
    return msgspec.json.decode(data, type=kind, dec_hook=_from_text)


def encode_json(value: object) -> bytes:
    """Write a value as JSON in one line: dataclasses as objects, with their fields in the order of the class."""
    return msgspec.json.encode(value, enc_hook=_to_text)


def to_plain(value: object) -> Any:  # noqa: ANN401 - dict, list, str, int, float, bool or None
    """Turn dataclasses, paths and enumerations into the values that `json` knows."""
    return msgspec.to_builtins(value, enc_hook=_to_text, str_keys=True)


def _to_text(value: object) -> str:
    if isinstance(value, str | PurePath):
        return str.__str__(value) if isinstance(value, str) else str(value)
    raise TypeError(f"{type(value).__name__} is not a value for JSON")


def _from_text(kind: type, value: object) -> object:
    if not isinstance(value, str):
        raise ValueError(f"Expected `str`, got `{type(value).__name__}`")  # noqa: TRY004 - what msgspec translates
    return kind(value)
