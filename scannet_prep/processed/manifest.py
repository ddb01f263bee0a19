"""`manifest.json` of a processed folder: its options, its scenes, and the scenes that failed."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from shlex import quote
from typing import Annotated, Any, Literal

import msgspec
import numpy as np
from numpy.typing import NDArray

from scannet_prep.base.files import Fingerprint, read_file
from scannet_prep.base.findings import Finding
from scannet_prep.base.json import Count, Crc32, make_decoder, parse_json, to_plain
from scannet_prep.errors import ContentError, FileError, MissingFileError, OldFormatError
from scannet_prep.processed.scene import (
    FORMAT_VERSION,
    ProcessedScene,
    ProcessOptions,
    SegmentsSource,
)
from scannet_prep.release.label_sets import LabelSet
from scannet_prep.release.scene import OWN_ID_PATTERN, Split
from scannet_prep.release.scene_warnings import SceneWarning

MANIFEST_NAME = "manifest.json"
FORCE_HINT = "process the folder again: scannet-prep process --force"

_HINT_REBUILD = (
    "remove it and run scannet-prep process again: it is rebuilt, and intact scenes are kept"
)
_MAX_BYTES = 1 << 28


class SceneEntry(msgspec.Struct, frozen=True, rename={"vertex_count": "vertices"}):
    """One finished scene.

    Attributes:
        split: The split folder that holds its `.npz`.
        vertex_count: V.
        size_bytes: Size of its `.npz`.
        crc32: CRC-32 of its `.npz`, eight hexadecimal digits.
        nyu40_counts: Vertices by nyu40 id; 0 is unannotated.
        scannet_counts: Vertices by ScanNet id; 0 is unannotated.
        warnings: Oddities of its raw files.
        segments_source: `computed` if its segments are not from the release; left out of the JSON
            otherwise.
    """

    split: Split
    vertex_count: Annotated[int, msgspec.Meta(ge=1, lt=1 << 48)]
    size_bytes: Count
    crc32: Crc32
    nyu40_counts: Mapping[Count, Count]
    scannet_counts: Mapping[Count, Count]
    warnings: tuple[SceneWarning, ...] = ()
    segments_source: SegmentsSource = "release"

    @classmethod
    def from_scene(cls, scene: ProcessedScene, fingerprint: Fingerprint) -> SceneEntry:
        """Describe a scene whose file has the given fingerprint."""
        return cls(
            split=scene.meta.split,
            vertex_count=len(scene.points),
            size_bytes=fingerprint.size_bytes,
            crc32=fingerprint.crc32,
            nyu40_counts=count_ids(scene.nyu40_ids),
            scannet_counts=count_ids(scene.scannet_ids),
            warnings=scene.meta.warnings,
            segments_source=scene.meta.segments_source,
        )

    def to_json(self) -> dict[str, Any]:
        """Return a dict of plain values, as it is stored in the manifest."""
        plain: dict[str, Any] = to_plain(self)
        if self.segments_source == "release":
            del plain["segments_source"]
        return plain

    def counts(self, label_set: LabelSet) -> Mapping[int, int]:
        """Return the number of vertices by raw id of a label set."""
        if label_set.raw_ids_key == "nyu40_ids":
            return self.nyu40_counts
        return self.scannet_counts

    @property
    def fingerprint(self) -> Fingerprint:
        """The fingerprint of its `.npz`."""
        return Fingerprint(self.size_bytes, self.crc32)


# The scene ids of the release have this form, too.
SceneIdText = Annotated[str, msgspec.Meta(pattern=rf"^{OWN_ID_PATTERN}\Z")]


class Manifest(msgspec.Struct, frozen=True):
    """The content of a processed folder. All of its scenes were made with the same options.

    Attributes:
        options: The options of every scene in the folder.
        label_map: Digest of the label map that the annotated scenes were made with.
        scenes: Finished scenes by id.
        failures: Scenes that failed in the last run that tried them, by id.
        program_version: The program that wrote the manifest.
    """

    options: ProcessOptions
    label_map: str = ""
    scenes: Mapping[SceneIdText, SceneEntry] = {}
    failures: Mapping[str, Finding] = {}
    program_version: str = ""


class _Head(msgspec.Struct):
    """The fields that distinguish a manifest from other files, and one format from the next."""

    format: Literal["scannet_prep processed folder"]
    format_version: int


_MANIFEST_DECODER = make_decoder(Manifest)
_HEAD_DECODER = make_decoder(_Head)


def read_manifest(out_dir: Path) -> Manifest | None:
    """Read the manifest of a processed folder. Returns None if there is none.

    Raises:
        OldFormatError: The folder has the format of an older version.
        FileError: It cannot be read, is damaged, or was written by another program.
    """
    path = out_dir / MANIFEST_NAME
    try:
        data = read_file(path, _MAX_BYTES)
    except MissingFileError:
        return None
    return parse_manifest(data, path)


def parse_manifest(data: bytes, path: str | Path) -> Manifest:
    """Parse a manifest.

    Args:
        data: The bytes of the file.
        path: Its name, for messages; a text if it is in an archive.

    Raises:
        OldFormatError: It has the format of an older version.
        FileError: It is damaged, or was written by another program.
    """
    try:
        version = parse_json(data, _HEAD_DECODER).format_version
        manifest = parse_json(data, _MANIFEST_DECODER) if version == FORMAT_VERSION else None
    except ContentError as error:
        problem = f"is damaged, or not the manifest of a processed folder: {error}"
        raise FileError(path, problem, _HINT_REBUILD) from error
    if manifest is not None:
        _check_counts(manifest, path)
        return manifest
    if isinstance(path, Path):
        hint = f"{FORCE_HINT} -o {quote(str(path.parent))}"
    else:
        hint = f"{FORCE_HINT}, and pack it again"
    raise OldFormatError(path, describe_other_format(version), hint)


def describe_other_format(version: int) -> str:
    """Describe a folder in another format than this version reads."""
    age = "an older" if version < FORMAT_VERSION else "a newer"
    return f"was made by {age} scannet-prep: it has format {version}, expected {FORMAT_VERSION}"


def _check_counts(manifest: Manifest, path: str | Path) -> None:
    """Check that the counts by id of each scene add up to its number of vertices.

    Class weights are computed from these counts, so a wrong one would change a training.

    Raises:
        FileError: The counts of a scene do not add up. The message names it and both numbers.
    """
    for scene_id, entry in manifest.scenes.items():
        counts_by_name = {
            "nyu40_counts": entry.nyu40_counts,
            "scannet_counts": entry.scannet_counts,
        }
        for name, counts in counts_by_name.items():
            total = sum(counts.values())
            if total != entry.vertex_count:
                raise FileError(
                    path,
                    f"is damaged: {scene_id}: {name} add up to {total:,}, "
                    f"expected {entry.vertex_count:,} vertices",
                    _HINT_REBUILD,
                )


class _EntryOptions(msgspec.Struct):
    """The options of one scene. Format 1 stored them with every scene."""

    options: ProcessOptions


class _OldManifest(msgspec.Struct):
    """The part of a manifest in format 1 that contains the options of its scenes."""

    scenes: Mapping[str, _EntryOptions] = {}


_OLD_MANIFEST_DECODER = make_decoder(_OldManifest)


def read_old_options(out_dir: Path) -> ProcessOptions | None:
    """Read the options of a folder in an older format; None if its manifest does not have them.

    Raises:
        FileError: The manifest cannot be read.
    """
    data = read_file(out_dir / MANIFEST_NAME, _MAX_BYTES)
    try:
        scenes = parse_json(data, _OLD_MANIFEST_DECODER).scenes
    except ContentError:
        return None
    entry = next(iter(scenes.values()), None)
    return None if entry is None else entry.options


def encode_manifest(manifest: Manifest) -> bytes:
    """Encode a manifest with one line per scene, so that two can be compared with diff."""
    head = {
        "format": "scannet_prep processed folder",
        "format_version": FORMAT_VERSION,
        "program_version": manifest.program_version,
        "options": manifest.options.to_json(),
        "label_map": manifest.label_map,
    }
    scenes = {name: entry.to_json() for name, entry in manifest.scenes.items()}
    failures = {name: to_plain(failure) for name, failure in manifest.failures.items()}
    lines = [f'"{key}": {json.dumps(value)}' for key, value in head.items()]
    lines.append(f'"scenes": {_encode_lines(scenes)}')
    lines.append(f'"failures": {_encode_lines(failures)}')
    return ("{\n" + ",\n".join(lines) + "\n}\n").encode()


def _encode_lines(entries: Mapping[str, object]) -> str:
    """Encode entries by scene id as a JSON object, one line each."""
    if not entries:
        return "{}"
    lines = [f'  "{name}": {json.dumps(entry)}' for name, entry in sorted(entries.items())]
    return "{\n" + ",\n".join(lines) + "\n}"


def count_ids(ids: NDArray[np.unsignedinteger[Any]]) -> dict[int, int]:
    """Count how often each id occurs."""
    counts = np.bincount(ids)
    return {int(number): int(counts[number]) for number in np.flatnonzero(counts)}
