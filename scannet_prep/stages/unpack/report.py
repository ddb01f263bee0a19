"""What became of an archive that was unpacked."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from scannet_prep.archive.index import ArchiveKind
from scannet_prep.archive.pending import FileOutcome
from scannet_prep.failures import SceneFailure
from scannet_prep.stages.unpack.record import FolderRecord


@dataclass(frozen=True, slots=True)
class UnpackReport:
    """What a run did.

    Attributes:
        archives: Paths, addresses, or the name of a pipe.
        kind: What the archives were made from.
        out_dir: Where the files are.
        files: Number of files by outcome.
        replaced: Names of files that were there with another content.
        scenes: Scenes that are there now, whole.
        new_scenes: Those of them of which something was written.
        failures: Scenes that could not be unpacked.
        damages: What else is damaged, in words: parts whose scene is not known, files that belong to no scene.
        left_out: Scenes that `--splits` left out because nobody knows their split.
        missing_shards: Names of shards that belong to the ones that were given.
        size_bytes: Size of all files.
        failed_path: The list of failed scenes; None where none has failed.
    """

    archives: tuple[str, ...]
    kind: ArchiveKind
    out_dir: Path
    files: Mapping[FileOutcome, int] = field(hash=False)
    replaced: tuple[str, ...]
    scenes: tuple[str, ...]
    new_scenes: tuple[str, ...]
    failures: tuple[SceneFailure, ...]
    damages: tuple[str, ...]
    left_out: tuple[str, ...]
    missing_shards: tuple[str, ...]
    size_bytes: int
    failed_path: Path | None

    @property
    def is_whole(self) -> bool:
        """Whether all that was asked for is there."""
        return not self.failures and not self.damages

    def to_json(self) -> dict[str, Any]:
        """A dict of plain values."""
        return {
            "archives": list(self.archives),
            "kind": str(self.kind),
            "out_dir": str(self.out_dir),
            "files": {str(outcome): self.files.get(outcome, 0) for outcome in FileOutcome},
            "replaced": list(self.replaced),
            "scenes": list(self.scenes),
            "new_scenes": list(self.new_scenes),
            "failures": [
                {"scene_id": item.scene_id, "error": item.error, "message": item.message, "hint": item.hint}
                for item in self.failures
            ],
            "damages": list(self.damages),
            "left_out": list(self.left_out),
            "missing_shards": list(self.missing_shards),
            "size_bytes": self.size_bytes,
        }


def make_report(
    record: FolderRecord,
    kind: ArchiveKind,
    archives: tuple[str, ...],
    scenes: Mapping[str, bool],
    damages: Sequence[str],
    *,
    left_out: tuple[str, ...] = (),
    missing_shards: tuple[str, ...] = (),
) -> UnpackReport:
    """Put a report together.

    Args:
        record: What was done.
        kind: What the archives were made from.
        archives: Paths, addresses, or the name of a pipe.
        scenes: The scenes that are there, and whether something of them was written.
        damages: What is damaged beside scenes.
        left_out: Scenes whose split nobody knows.
        missing_shards: Names of shards that were not given.
    """
    files = record.files.values()
    return UnpackReport(
        archives=archives,
        kind=kind,
        out_dir=record.out_dir,
        files=Counter(file.outcome for file in files),
        replaced=tuple(sorted(file.name for file in files if file.outcome is FileOutcome.REPLACED)),
        scenes=tuple(sorted(scenes)),
        new_scenes=tuple(sorted(name for name, is_new in scenes.items() if is_new)),
        failures=tuple(failure for _, failure in sorted(record.failures.items())),
        damages=tuple(damages),
        left_out=left_out,
        missing_shards=missing_shards,
        size_bytes=sum(file.size_bytes for file in files),
        failed_path=record.failed_path,
    )
