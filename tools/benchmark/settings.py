"""Settings of a run, and the functions of a part."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias

if TYPE_CHECKING:
    from pathlib import Path

Result: TypeAlias = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Settings:
    """Amount of work to be measured.

    Attributes:
        folder: Folder for the scenes, and for everything that is made from them.
        scene_count: Number of scenes.
        vertex_count: Number of vertices of each scene.
        repeat: Number of measurements, of which the fastest counts.
        reference_count: Number of scenes that the reference processes too.
        seed: Seed of the scenes.
    """

    folder: Path
    scene_count: int
    vertex_count: int
    repeat: int
    reference_count: int
    seed: int

    def to_json(self) -> Result:
        """Return all settings but the folder."""
        return {key: value for key, value in asdict(self).items() if key != "folder"}


class Part(Protocol):
    """Part of the benchmark: a module with these functions."""

    def measure(self, settings: Settings) -> Result:
        """Measure, and return values that can be written as JSON."""

    def describe(self, result: Result) -> str:
        """Format the result of `measure` as tables."""
