"""Transforms for tests, at module level so that they pickle."""

from __future__ import annotations

from typing import Any


def count_points(sample: dict[str, Any]) -> int:
    return len(sample["points"])
