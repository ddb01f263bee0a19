"""What a check of archives found, in values."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from scannet_prep.archive.index import Index
from scannet_prep.archive.tail_check import Part
from scannet_prep.stages.verify.archive_findings import ArchiveFinding


@dataclass(frozen=True, slots=True)
class ArchiveReport:
    """What was found about one archive.

    Attributes:
        name: Where it is: its path or address.
        index: What it says about itself; None where that is lost.
        size_bytes: Size of the file.
        content_bytes: Size of the tar bytes that were read, or that the headers of the frames name.
        whole_scenes: Scenes in which nothing is wrong.
        damaged_scenes: Scenes in which something is.
        damaged_parts: What else is damaged.
        is_truncated: Whether the file ends too early.
        resume_offset: From which byte on a transfer should go on; None where the end is whole.
        unheld: Scenes that the manifest names and the index does not have.
        findings: Errors first, then by scene.
    """

    name: str
    index: Index | None
    size_bytes: int
    content_bytes: int
    whole_scenes: tuple[str, ...]
    damaged_scenes: tuple[str, ...]
    damaged_parts: tuple[Part, ...]
    is_truncated: bool
    resume_offset: int | None
    unheld: frozenset[str]
    findings: tuple[ArchiveFinding, ...]

    @property
    def scene_count(self) -> int:
        """Scenes that were checked."""
        return len(self.whole_scenes) + len(self.damaged_scenes)

    @property
    def vertex_count(self) -> int:
        """Vertices of the whole scenes."""
        whole = set(self.whole_scenes)
        scenes = () if self.index is None else self.index.scenes
        return sum(scene.vertex_count for scene in scenes if scene.scene_id in whole)

    def to_json(self) -> dict[str, Any]:
        """A dict of plain values."""
        return {
            "path": self.name,
            "archive_kind": None if self.index is None else str(self.index.head.kind),
            "scenes": self.scene_count,
            "vertices": self.vertex_count,
            "size_bytes": self.size_bytes,
            "content_bytes": self.content_bytes,
            "whole_scenes": list(self.whole_scenes),
            "damaged_scenes": list(self.damaged_scenes),
            "damaged_parts": [str(part) for part in self.damaged_parts],
            "truncated": self.is_truncated,
            "resume_offset": self.resume_offset,
        }


@dataclass(frozen=True, slots=True)
class VerifyArchivesReport:
    """What `run` found.

    Attributes:
        archives: One or several.
        is_quick: Whether only the structure was looked at.
        set_findings: About the archives as a set.
    """

    archives: tuple[ArchiveReport, ...]
    is_quick: bool
    set_findings: tuple[ArchiveFinding, ...]

    @property
    def findings(self) -> tuple[ArchiveFinding, ...]:
        """About all of them."""
        return (*self.set_findings, *(finding for archive in self.archives for finding in archive.findings))

    @property
    def errors(self) -> tuple[ArchiveFinding, ...]:
        """The findings that are wrong, not just worth knowing."""
        return tuple(finding for finding in self.findings if finding.is_error)

    def to_json(self) -> dict[str, Any]:
        """A dict of plain values; of a single archive flat, of several with their sums and each under `archives`."""
        values = [archive.to_json() for archive in self.archives]
        if len(values) == 1:
            (top,) = values
        else:
            sums = ("scenes", "vertices", "size_bytes", "content_bytes")
            top = {key: sum(value[key] for value in values) for key in sums}
            top |= {
                key: sorted({name for value in values for name in value[key]})
                for key in ("whole_scenes", "damaged_scenes")
            }
            top |= {"archives": values}
        return {
            "kind": "archive",
            "quick": self.is_quick,
            **top,
            "errors": len(self.errors),
            "notes": len(self.findings) - len(self.errors),
            "findings": self.findings,
        }
