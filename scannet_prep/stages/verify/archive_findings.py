"""What a check finds in an archive: each finding says which part it is about."""

from __future__ import annotations

from dataclasses import dataclass

from scannet_prep.archive.tail_check import Part
from scannet_prep.stages.finding import Finding, Severity


@dataclass(frozen=True, slots=True)
class ArchiveFinding(Finding):
    """One thing that a check found in an archive.

    Attributes:
        part: The part that it is about, if it is not a scene; None where it concerns the whole archive.
    """

    part: Part | None = None

    @property
    def place(self) -> str:
        """Where it was found, in words."""
        return f"{self.path}: {self.scene_id}" if self.scene_id else str(self.path)


class ArchiveFindings:
    """Collects what is found about one archive.

    Args:
        name: Path or address of the archive.

    Attributes:
        name: Path or address of the archive.
        found: What was found so far.
    """

    def __init__(self, name: str) -> None:
        self.name = name
        self.found: list[ArchiveFinding] = []

    def error(self, message: str, hint: str = "", *, scene_id: str = "", part: Part | None = None) -> None:
        """Something is wrong."""
        self.found.append(ArchiveFinding(self.name, scene_id, Severity.ERROR, message, hint, part=part))

    def note(self, message: str, hint: str = "", *, scene_id: str = "", part: Part | None = None) -> None:
        """Something is worth knowing."""
        self.found.append(ArchiveFinding(self.name, scene_id, Severity.NOTE, message, hint, part=part))
