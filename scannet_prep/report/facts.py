"""Facts about a scene as texts by name, and their comparison."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TypeAlias

from scannet_prep.base.files import Fingerprint
from scannet_prep.base.typed_json import to_plain

SceneFacts: TypeAlias = Mapping[str, str]
"""The values to compare, as texts by name."""

Differences: TypeAlias = Mapping[str, tuple[str, str]]
"""The facts that differ, by name: the value here and the value there, `-` for none."""

NONE = "-"
# A longer text is represented by its length and CRC-32.
_MAX_FACT_LETTERS = 90


def compare_facts(here: SceneFacts, there: SceneFacts) -> Differences:
    """Find the facts that differ."""
    differences = {}
    for name in {**here, **there}:
        value_here = here.get(name, NONE)
        value_there = there.get(name, NONE)
        if value_here != value_there:
            differences[name] = (value_here, value_there)
    return differences


def flatten(value: object, name: str = "") -> dict[str, str]:
    """Return the facts in a value, by name; the name of a nested value is the path to it."""
    plain = to_plain(value)
    if isinstance(plain, dict):
        facts = {}
        for key, nested in plain.items():
            facts.update(flatten(nested, f"{name} {key}".lstrip()))
        return facts
    text = str(plain)
    if len(text) > _MAX_FACT_LETTERS:
        crc32 = Fingerprint.from_bytes(text.encode()).crc32
        text = f"{len(text):,} characters, CRC-32 {crc32}"
    return {name: text}
