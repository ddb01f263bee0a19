"""`manifest.json`: the only record of what is in a processed folder.

    <out>/manifest.json           options, label map, scenes, failures, scenes still to be made
          <split>/<scene>.npz     a file that the manifest does not list does not count
          failed.txt              the failures, as a list for --scenes @failed.txt
          TERMS.txt               a notice about ScanNet's terms

A run writes the manifest before it changes a scene, every few seconds, and at its end. If it is
killed, the manifest lists what was finished and what was not; until the rest is made, readers
refuse the folder.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Literal

import msgspec
import numpy as np
from numpy.typing import NDArray

from scannet_prep.base.files import Fingerprint, read_file, write_if_changed
from scannet_prep.base.findings import Finding
from scannet_prep.base.json import Count, Crc32, encode_json, parse_record, to_plain
from scannet_prep.processed.scene import (
    FORMAT_VERSION,
    ProcessedScene,
    ProcessOptions,
    SceneIdText,
    SegmentsSource,
)
from scannet_prep.release.irregularities import SceneWarning, WarningKind
from scannet_prep.release.label_sets import LabelSet
from scannet_prep.release.scenes import Split

MANIFEST_NAME = "manifest.json"

_FORMAT = "scannet_prep processed folder"
_HINT_AGAIN = "remove it, and process the folder again, with the options that it had"


class SceneEntry(msgspec.Struct, frozen=True, rename={"vertex_count": "vertices"}):
    """One finished scene.

    Attributes:
        split: The split folder that holds its `.npz`.
        vertex_count: V.
        size_bytes: Size of its `.npz`.
        crc32: CRC-32 of its `.npz`, eight hexadecimal digits.
        input_bytes: Size of all raw files that it was made from.
        nyu40_counts: Vertices by nyu40 id; 0 is unannotated.
        scannet_counts: Vertices by ScanNet id; 0 is unannotated.
        warnings: Oddities of its raw files.
        segments_source: Where its segments are from; see `SceneMeta`.

    Raises:
        ValueError: The counts do not add up to the vertices. Class weights are computed from them.
    """

    split: Split
    vertex_count: Annotated[int, msgspec.Meta(ge=1, lt=1 << 48)]
    size_bytes: Count
    crc32: Crc32
    input_bytes: Count
    nyu40_counts: Mapping[Count, Count]
    scannet_counts: Mapping[Count, Count]
    warnings: tuple[SceneWarning, ...] = ()
    segments_source: SegmentsSource = "release"

    def __post_init__(self) -> None:
        """Check the sums."""
        for counts in (self.nyu40_counts, self.scannet_counts):
            total = sum(counts.values())
            if total != self.vertex_count:
                raise ValueError(f"counts add up to {total:,}, expected {self.vertex_count:,}")

    @classmethod
    def from_scene(cls, scene: ProcessedScene, fingerprint: Fingerprint) -> SceneEntry:
        """Describe a scene whose file has the given fingerprint."""
        return cls(
            split=scene.meta.split,
            vertex_count=len(scene.points),
            size_bytes=fingerprint.size_bytes,
            crc32=fingerprint.crc32,
            input_bytes=sum(raw_file.size_bytes for raw_file in scene.meta.inputs.values()),
            nyu40_counts=count_ids(scene.nyu40_ids),
            scannet_counts=count_ids(scene.scannet_ids),
            warnings=scene.meta.warnings,
            segments_source=scene.meta.segments_source,
        )

    @property
    def fingerprint(self) -> Fingerprint:
        """The fingerprint of its `.npz`."""
        return Fingerprint(self.size_bytes, self.crc32)

    def counts(self, label_set: LabelSet) -> Mapping[int, int]:
        """Return the number of vertices by raw id of a label set."""
        if label_set.raw_ids_key == "nyu40_ids":
            return self.nyu40_counts
        return self.scannet_counts


class Manifest(msgspec.Struct, frozen=True, tag_field="format", tag=_FORMAT):
    """The content of a processed folder. All of its scenes were made with the same options.

    Attributes:
        options: The options of every scene in the folder.
        label_map: Digest of the label map that the annotated scenes were made with.
        scenes: Finished scenes by id.
        failures: Scenes that failed in the last run that tried them, by id.
        unfinished: Scenes that a run has still to make, or had when it was interrupted.
        program_version: The program that wrote the manifest.
        format_version: Version of this format.
    """

    options: ProcessOptions
    label_map: str = ""
    scenes: Mapping[SceneIdText, SceneEntry] = {}
    failures: Mapping[str, Finding] = {}
    unfinished: tuple[str, ...] = ()
    program_version: str = ""
    format_version: Literal[2] = FORMAT_VERSION

    def summarize_warnings(self) -> list[tuple[str, list[str]]]:
        """Merge the warnings of all scenes, so that each oddity appears once.

        Returns:
            For each kind and subject, in the order of the scenes: the text of the warning, with
            the counts added up, and the scenes that show it.
        """
        # For each oddity, the count in each scene.
        scene_counts = defaultdict[tuple[WarningKind, str], Counter[str]](Counter)
        for scene_id, entry in sorted(self.scenes.items()):
            for warning in entry.warnings:
                scene_counts[warning.kind, warning.subject][scene_id] += warning.count
        return [
            (SceneWarning(kind, subject, counts.total()).text, [*counts])
            for (kind, subject), counts in scene_counts.items()
        ]


MANIFEST_DECODER = msgspec.json.Decoder(Manifest)


def processed_path(out_dir: Path, split: str, scene_id: str) -> Path:
    """Return the path of a processed scene."""
    return out_dir / split / f"{scene_id}.npz"


def read_manifest(
    out_dir: Path,
    *,
    may_be_missing: bool = False,
) -> Manifest:
    """Read the manifest of a processed folder.

    Args:
        out_dir: The folder.
        may_be_missing: Whether a folder without a manifest has an empty one.

    Raises:
        MissingFileError: The folder has no manifest.
        FileError: It cannot be read, is damaged, or was written by another program or version.
    """
    path = out_dir / MANIFEST_NAME
    if may_be_missing and not path.exists():
        return Manifest(ProcessOptions())
    return parse_record(read_file(path), path, MANIFEST_DECODER, _HINT_AGAIN)


def write_manifest(
    out_dir: Path,
    manifest: Any,  # noqa: ANN401 - of an export, too
    *,
    name: str = MANIFEST_NAME,
) -> None:
    """Write the manifest of a processed folder or of an export, if it has changed.

    For other programs, it also records whether the folder is `complete`.

    Raises:
        OutputError: The folder cannot be written to.
    """
    values = to_plain(manifest)
    for key in ("scenes", "failures"):
        values[key] = dict(sorted(values[key].items()))
    values["complete"] = not values["unfinished"]
    write_if_changed(out_dir / name, encode_json(values) + b"\n")


def count_ids(ids: NDArray[np.unsignedinteger[Any]]) -> dict[int, int]:
    """Count how often each id occurs."""
    counts = np.bincount(ids)
    return {int(number): int(counts[number]) for number in np.flatnonzero(counts)}
