"""`manifest.json` of a processed folder: which scenes it holds, how they were made, and what failed."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from scannet_prep.errors import ManifestError, MissingFileError
from scannet_prep.failures import SceneFailure
from scannet_prep.files import Fingerprint, read_file, write_if_changed
from scannet_prep.processed.options import ProcessOptions
from scannet_prep.processed.scene import FORMAT_VERSION, ProcessedScene
from scannet_prep.scene import Split
from scannet_prep.scene_warnings import SceneWarning, WarningKind

MANIFEST_NAME = "manifest.json"

_FORMAT = "scannet_prep processed folder"
_HINT = "remove it and run scannet-prep process again: it is rebuilt, and whole scenes are kept"


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
        ManifestError: It is damaged, or was written by something else.
    """
    path = out_dir / MANIFEST_NAME
    try:
        data = read_file(path)
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
        value = json.loads(data)
        if value["format"] != _FORMAT or value["format_version"] != FORMAT_VERSION:
            raise ManifestError(
                path,
                f"says {value['format']!r:.60} {value['format_version']!r:.20}, expected {_FORMAT!r} {FORMAT_VERSION}",
                _HINT,
            )
        return Manifest(
            scenes={name: _entry_from_json(entry) for name, entry in value["scenes"].items()},
            failures={name: SceneFailure(name, **entry) for name, entry in value["failures"].items()},
            is_complete=bool(value["complete"]),
            program_version=str(value["program_version"]),
        )
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        if isinstance(error, ManifestError):
            raise
        raise ManifestError(path, f"is damaged: {type(error).__name__}: {error}", _HINT) from error


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
    scenes = {name: _entry_to_json(entry) for name, entry in sorted(manifest.scenes.items())}
    failures = {name: _without_id(failure) for name, failure in sorted(manifest.failures.items())}
    lines = [f"{json.dumps(key)}: {json.dumps(value)}" for key, value in head.items()]
    lines += [f'"scenes": {_one_line_each(scenes)}', f'"failures": {_one_line_each(failures)}']
    text = "{\n" + ",\n".join(lines) + "\n}\n"
    return text.encode()


def _one_line_each(entries: Mapping[str, Any]) -> str:
    if not entries:
        return "{}"
    return "{\n" + ",\n".join(f"  {json.dumps(name)}: {json.dumps(entry)}" for name, entry in entries.items()) + "\n}"


def _entry_to_json(entry: SceneEntry) -> dict[str, Any]:
    return {
        "split": str(entry.split),
        "vertices": entry.vertex_count,
        "size_bytes": entry.fingerprint.size_bytes,
        "crc32": f"{entry.fingerprint.crc32:08x}",
        "options": entry.options.to_json(),
        "nyu40_counts": entry.nyu40_counts,
        "scannet_counts": entry.scannet_counts,
        "warnings": [{"kind": str(item.kind), "subject": item.subject, "count": item.count} for item in entry.warnings],
    }


def _entry_from_json(value: Mapping[str, Any]) -> SceneEntry:
    return SceneEntry(
        split=Split(value["split"]),
        vertex_count=int(value["vertices"]),
        fingerprint=Fingerprint(int(value["size_bytes"]), int(value["crc32"], 16)),
        options=ProcessOptions.from_json(value["options"]),
        nyu40_counts={int(key): int(count) for key, count in value["nyu40_counts"].items()},
        scannet_counts={int(key): int(count) for key, count in value["scannet_counts"].items()},
        warnings=tuple(
            SceneWarning(WarningKind(item["kind"]), item["subject"], item["count"]) for item in value["warnings"]
        ),
    )


def _without_id(failure: SceneFailure) -> dict[str, str]:
    return {key: text for key, text in failure.to_json().items() if key != "scene_id"}


def count_ids(ids: NDArray[np.unsignedinteger[Any]]) -> dict[int, int]:
    """Count how often each id occurs."""
    counts = np.bincount(ids)
    return {int(number): int(counts[number]) for number in np.flatnonzero(counts)}
