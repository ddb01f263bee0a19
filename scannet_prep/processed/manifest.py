"""`manifest.json` of a processed folder: which scenes it holds, how they were made, and what failed."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from scannet_prep.errors import ContentError, ManifestError, MissingFileError, UsageError
from scannet_prep.failures import SceneFailure
from scannet_prep.files import Fingerprint, read_file, write_if_changed
from scannet_prep.processed.options import ProcessOptions
from scannet_prep.processed.scene import FORMAT_VERSION, ProcessedScene
from scannet_prep.scene import SceneId, Split
from scannet_prep.scene_warnings import SceneWarning
from scannet_prep.strict_json import take, take_count

MANIFEST_NAME = "manifest.json"

_FORMAT = "scannet_prep processed folder"
_HINT = "remove it and run scannet-prep process again: it is rebuilt, and whole scenes are kept"
_MAX_BYTES = 1 << 28
_FAILURE_KEYS = {"error", "message", "hint", "trace"}


@dataclass(frozen=True, slots=True)
class SceneEntry:
    """One finished scene.

    Attributes:
        split: The split folder it lies in.
        vertex_count: V.
        fingerprint: Of its `.npz`.
        options: How it was made.
        nyu40_counts: Vertices by nyu40 id; 0 is unannotated.
        scannet_counts: Vertices by ScanNet id; 0 is unannotated.
        warnings: What was odd about its raw files.
    """

    split: Split
    vertex_count: int
    fingerprint: Fingerprint
    options: ProcessOptions
    nyu40_counts: Mapping[int, int] = field(hash=False)
    scannet_counts: Mapping[int, int] = field(hash=False)
    warnings: tuple[SceneWarning, ...] = ()

    @classmethod
    def from_scene(cls, scene: ProcessedScene, fingerprint: Fingerprint) -> SceneEntry:
        """Describe a scene whose file has the given fingerprint."""
        return cls(
            split=scene.meta.split,
            vertex_count=len(scene.points),
            fingerprint=fingerprint,
            options=scene.meta.options,
            nyu40_counts=count_ids(scene.nyu40_ids),
            scannet_counts=count_ids(scene.scannet_ids),
            warnings=scene.meta.warnings,
        )

    def to_json(self) -> dict[str, Any]:
        """A dict of plain values."""
        return {
            "split": str(self.split),
            "vertices": self.vertex_count,
            **self.fingerprint.to_json(),
            "options": self.options.to_json(),
            "nyu40_counts": self.nyu40_counts,
            "scannet_counts": self.scannet_counts,
            "warnings": [item.to_json() for item in self.warnings],
        }

    @classmethod
    def from_json(cls, value: object) -> SceneEntry:
        """Read what `to_json` made.

        Raises:
            ContentError: It is something else.
            UsageError: It names a split that does not exist.
        """
        return cls(
            split=Split.parse(take(value, "split", str)),
            vertex_count=take_count(value, "vertices", 1),
            fingerprint=Fingerprint.from_json(value),
            options=ProcessOptions.from_json(take(value, "options", dict)),
            nyu40_counts=_counts_from_json(take(value, "nyu40_counts", dict)),
            scannet_counts=_counts_from_json(take(value, "scannet_counts", dict)),
            warnings=tuple(SceneWarning.from_json(item) for item in take(value, "warnings", list)),
        )


@dataclass(frozen=True, slots=True)
class Manifest:
    """What a processed folder holds.

    Attributes:
        scenes: Finished scenes by id.
        failures: Scenes that failed in the last run that tried them, by id.
        is_complete: Whether the last run came to its end.
        program_version: The program that wrote the manifest.
    """

    scenes: Mapping[str, SceneEntry] = field(default_factory=dict, hash=False)
    failures: Mapping[str, SceneFailure] = field(default_factory=dict, hash=False)
    is_complete: bool = True
    program_version: str = ""


def read_manifest(out_dir: Path) -> Manifest | None:
    """Read the manifest of a processed folder; None where there is none.

    Raises:
        FileError: It cannot be read.
        ManifestError: It is damaged, or was written by something else.
    """
    path = out_dir / MANIFEST_NAME
    try:
        data = read_file(path, _MAX_BYTES)
    except MissingFileError:
        return None
    return parse_manifest(data, path)


def parse_manifest(data: bytes, path: str | Path) -> Manifest:
    """Read a manifest from its bytes.

    Args:
        data: The whole file.
        path: Its name, for messages.

    Raises:
        ManifestError: It is damaged, or was written by something else.
    """
    try:
        return _manifest_from_json(json.loads(data))
    except (ContentError, UsageError, ValueError, RecursionError) as error:
        raise ManifestError(path, f"is damaged, or not a manifest: {error}", _HINT) from error


def write_manifest(out_dir: Path, manifest: Manifest) -> None:
    """Write the manifest of a processed folder.

    Raises:
        OutputError: It cannot be written.
    """
    write_if_changed(out_dir / MANIFEST_NAME, encode_manifest(manifest), is_durable=True)


def encode_manifest(manifest: Manifest) -> bytes:
    """Encode a manifest: one line for each scene, so that two can be compared with diff."""
    head = {
        "format": _FORMAT,
        "format_version": FORMAT_VERSION,
        "program_version": manifest.program_version,
        "complete": manifest.is_complete,
    }
    scenes = {name: entry.to_json() for name, entry in sorted(manifest.scenes.items())}
    failures = {name: failure.to_json() for name, failure in sorted(manifest.failures.items())}
    for failure in failures.values():
        del failure["scene_id"]
    lines = [f"{json.dumps(key)}: {json.dumps(value)}" for key, value in head.items()]
    lines += [f'"scenes": {_one_line_each(scenes)}', f'"failures": {_one_line_each(failures)}']
    text = "{\n" + ",\n".join(lines) + "\n}\n"
    return text.encode()


def _manifest_from_json(value: object) -> Manifest:
    found = take(value, "format", str), take(value, "format_version", int)
    if found != (_FORMAT, FORMAT_VERSION):
        raise ContentError(f"it says {found[0]!r:.60} {found[1]!r:.20}, expected {_FORMAT!r} {FORMAT_VERSION}")
    return Manifest(
        scenes={SceneId(name): SceneEntry.from_json(entry) for name, entry in take(value, "scenes", dict).items()},
        failures={name: _failure_from_json(name, entry) for name, entry in take(value, "failures", dict).items()},
        is_complete=take(value, "complete", bool),
        program_version=take(value, "program_version", str),
    )


def count_ids(ids: NDArray[np.unsignedinteger[Any]]) -> dict[int, int]:
    """Count how often each id occurs."""
    counts = np.bincount(ids)
    return {int(number): int(counts[number]) for number in np.flatnonzero(counts)}


def _one_line_each(entries: Mapping[str, Any]) -> str:
    if not entries:
        return "{}"
    return "{\n" + ",\n".join(f"  {json.dumps(name)}: {json.dumps(entry)}" for name, entry in entries.items()) + "\n}"


def _counts_from_json(value: Mapping[str, Any]) -> dict[int, int]:
    # Two of them for each of 1,613 scenes: one look at all keys, and one at all values.
    names = "".join(value)
    if not (names.isascii() and names.isdigit()) or set(map(type, value.values())) != {int}:
        raise ContentError(f"{value!r:.60} are not counts of vertices by id")
    if min(value.values()) < 0:
        raise ContentError("counts of vertices are negative")
    return {int(name): count for name, count in value.items()}


def _failure_from_json(scene_id: str, value: object) -> SceneFailure:
    if not isinstance(value, dict) or not {"error", "message"} <= set(value) <= _FAILURE_KEYS:
        raise ContentError(f"{scene_id!r:.40} has a failure without error and message")
    return SceneFailure(scene_id, **{key: take(value, key, str) for key in value})
