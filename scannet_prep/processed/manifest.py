"""`manifest.json` of a processed folder: which scenes it holds, how they were made, and what failed.

What shards have made and nobody has merged yet is in parts, which are manifests, too; reading takes all together.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Annotated, Any, Literal

import msgspec
import numpy as np
from numpy.typing import NDArray

from scannet_prep.errors import ContentError, ManifestError, MissingFileError
from scannet_prep.failures import SceneFailure
from scannet_prep.files import Fingerprint, read_file
from scannet_prep.labels import LabelSet
from scannet_prep.processed.scene import FORMAT_VERSION, ProcessedScene, ProcessOptions
from scannet_prep.scene import Split
from scannet_prep.scene_warnings import SceneWarning
from scannet_prep.shards import ShardFolder
from scannet_prep.typed_json import Count, Crc32, parse_json, to_plain

MANIFEST_NAME = "manifest.json"
PARTS_NAME = "manifest.d"

_HINT = "remove it and run scannet-prep process again: it is rebuilt, and whole scenes are kept"
_MAX_BYTES = 1 << 28


class SceneEntry(msgspec.Struct, frozen=True, rename={"vertex_count": "vertices"}):
    """One finished scene.

    Attributes:
        split: The split folder it lies in.
        vertex_count: V.
        size_bytes: Size of its `.npz`.
        crc32: CRC-32 of its `.npz`, eight hexadecimal digits.
        options: How it was made.
        nyu40_counts: Vertices by nyu40 id; 0 is unannotated.
        scannet_counts: Vertices by ScanNet id; 0 is unannotated.
        warnings: What was odd about its raw files.
    """

    split: Split
    vertex_count: Annotated[int, msgspec.Meta(ge=1, lt=1 << 48)]
    size_bytes: Count
    crc32: Crc32
    options: ProcessOptions
    nyu40_counts: Mapping[Count, Count]
    scannet_counts: Mapping[Count, Count]
    warnings: tuple[SceneWarning, ...] = ()

    @classmethod
    def from_scene(cls, scene: ProcessedScene, fingerprint: Fingerprint) -> SceneEntry:
        """Describe a scene whose file has the given fingerprint."""
        return cls(
            split=scene.meta.split,
            vertex_count=len(scene.points),
            size_bytes=fingerprint.size_bytes,
            crc32=fingerprint.crc32,
            options=scene.meta.options,
            nyu40_counts=count_ids(scene.nyu40_ids),
            scannet_counts=count_ids(scene.scannet_ids),
            warnings=scene.meta.warnings,
        )

    def counts(self, label_set: LabelSet) -> Mapping[int, int]:
        """Vertices by raw id of a label set."""
        return self.nyu40_counts if label_set.raw_ids_key == "nyu40_ids" else self.scannet_counts

    @property
    def fingerprint(self) -> Fingerprint:
        """Of its `.npz`."""
        return Fingerprint(self.size_bytes, self.crc32)


class Manifest(msgspec.Struct, frozen=True, rename={"is_complete": "complete"}):
    """What a processed folder holds.

    Attributes:
        scenes: Finished scenes by id.
        failures: Scenes that failed in the last run that tried them, by id.
        is_complete: Whether the last run came to its end.
        program_version: The program that wrote the manifest.
    """

    scenes: Mapping[Annotated[str, msgspec.Meta(pattern=r"^scene[0-9]{4}_[0-9]{2}\Z")], SceneEntry] = {}
    failures: Mapping[str, SceneFailure] = {}
    is_complete: bool = True
    program_version: str = ""


class _Head(msgspec.Struct):
    """What tells a manifest from other files."""

    format: Literal["scannet_prep processed folder"]
    format_version: Literal[1]


def shards_of(out_dir: Path) -> ShardFolder:
    """The shards that have made scenes of a processed folder and have not been merged."""
    return ShardFolder(out_dir / PARTS_NAME, "process")


def read_manifest(out_dir: Path) -> Manifest | None:
    """Read the manifest of a processed folder, with what shards have added; None where there is none.

    Raises:
        FileError: It, or a part, cannot be read.
        ManifestError: It, or a part, is damaged, or was written by something else.
    """
    shards = shards_of(out_dir)
    found = []
    for path in (out_dir / MANIFEST_NAME, *shards.list_files().values()):
        with suppress(MissingFileError):
            found.append(parse_manifest(read_file(path, _MAX_BYTES), path))
    if not (found and shards.exists()):
        return found[0] if found else None
    newest = dict[str, SceneEntry | SceneFailure]()
    for manifest in found:  # parts are newer than what they have not been merged into
        newest |= {**manifest.failures, **manifest.scenes}
    newest = {name: newest[name] for name in sorted(newest)}
    scenes = {name: item for name, item in newest.items() if isinstance(item, SceneEntry)}
    failures = {name: item for name, item in newest.items() if isinstance(item, SceneFailure)}
    is_complete = all(manifest.is_complete for manifest in found) and not shards.find_faults()
    return Manifest(scenes, failures, is_complete, found[-1].program_version)


def parse_manifest(data: bytes, path: str | Path) -> Manifest:
    """Read a manifest from its bytes; the path is for messages.

    Raises:
        ManifestError: It is damaged, or was written by something else.
    """
    try:
        parse_json(data, _Head)
        return parse_json(data, Manifest)
    except ContentError as error:
        raise ManifestError(path, f"is damaged, or not the manifest of a processed folder: {error}", _HINT) from error


def encode_manifest(manifest: Manifest) -> bytes:
    """Encode a manifest: one line for each scene, so that two can be compared with diff."""
    head = {"format": "scannet_prep processed folder", "format_version": FORMAT_VERSION}
    values = {**head, "program_version": manifest.program_version, "complete": manifest.is_complete}
    lines = [f'"{key}": {json.dumps(value)}' for key, value in values.items()]
    for key, entries in (("scenes", manifest.scenes), ("failures", manifest.failures)):
        each = [f'  "{name}": {json.dumps(to_plain(entry))}' for name, entry in sorted(entries.items())]
        lines.append(f'"{key}": ' + ("{\n" + ",\n".join(each) + "\n}" if each else "{}"))
    return ("{\n" + ",\n".join(lines) + "\n}\n").encode()


def count_ids(ids: NDArray[np.unsignedinteger[Any]]) -> dict[int, int]:
    """Count how often each id occurs."""
    counts = np.bincount(ids)
    return {int(number): int(counts[number]) for number in np.flatnonzero(counts)}
