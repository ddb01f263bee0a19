"""What a run of the benchmark is made of."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias

if TYPE_CHECKING:
    from pathlib import Path

Result: TypeAlias = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Settings:
    """How much to measure.

    Attributes:
        folder: For the scenes and everything that is made from them.
        scene_count: Number of scenes.
        vertex_count: Vertices of each.
        repeat: How often everything is measured; the fastest counts.
        reference_count: How many of the scenes the reference works on too.
        seed: Of the scenes.
    """

    folder: Path
    scene_count: int
    vertex_count: int
    repeat: int
    reference_count: int
    seed: int

    def to_json(self) -> Result:
        """A dict of plain values."""
        return {key: value for key, value in asdict(self).items() if key != "folder"}


class Part(Protocol):
    """One part of the benchmark: a module with these functions."""

    def measure(self, settings: Settings) -> Result:
        """Measure, and return plain values."""

    def describe(self, result: Result) -> str:
        """Show what `measure` returned as text for people."""
