"""`export.json`, the manifest of an export: its settings, its source, and every file."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from scannet_prep.base.files import Fingerprint, read_file, write_if_changed
from scannet_prep.base.findings import Finding
from scannet_prep.base.json import make_decoder, parse_json, to_plain
from scannet_prep.base.version import VERSION
from scannet_prep.errors import ContentError, FileError, MissingFileError
from scannet_prep.export import EXPORT_NAME, Setting
from scannet_prep.release.scene import SceneId, Split

_KIND = "scannet_prep export"
_FORMAT_VERSION = 1
_MAX_BYTES = 1 << 30
_HINT = "remove the folder of the export, then run the same scannet-prep export command again"


@dataclass(frozen=True, slots=True)
class ExportEntry:
    """One scene of an export.

    Attributes:
        split: Its split.
        source: The fingerprint of the processed scene that it was made from.
        files: The fingerprints of its files, by name.
        record: The values of the scene that the lists of the format need.
    """

    split: Split
    source: Fingerprint
    files: Mapping[str, Fingerprint] = field(hash=False)
    record: Mapping[str, Any] = field(hash=False)


@dataclass(frozen=True, slots=True)
class ExportManifest:
    """The content of an export.

    Attributes:
        settings: `ExportPlan.settings`: `format`, `label_set`, `aligned`, `variant` and so on of
            all scenes, and options of the processed scenes, such as `processed_labels_from`.
            `label_set` is empty if the files hold both label sets, or raw ids.
        place: The folder or archive of the processed scenes.
        program_version: The version of this program that wrote the manifest.
        shared: The fingerprints of files that concern several scenes, by name.
        scenes: The exported scenes, by id.
        failures: Scenes that failed in the last run that tried them, by id.
        unfinished: Scenes that a run has still to make, or had when it was interrupted.
    """

    settings: Mapping[str, Setting] = field(hash=False)
    place: str
    kind: str = _KIND
    format_version: int = _FORMAT_VERSION
    program_version: str = VERSION
    shared: Mapping[str, Fingerprint] = field(default_factory=dict, hash=False)
    scenes: Mapping[str, ExportEntry] = field(default_factory=dict, hash=False)
    failures: Mapping[str, Finding] = field(default_factory=dict, hash=False)
    unfinished: tuple[str, ...] = ()

    def files(self) -> Iterator[tuple[str, Fingerprint]]:
        """Iterate over all files, those that concern several scenes first."""
        yield from self.shared.items()
        for entry in self.scenes.values():
            yield from entry.files.items()


_MANIFEST_DECODER = make_decoder(ExportManifest)


def read_export(out_dir: Path) -> ExportManifest | None:
    """Read the manifest of an export. Returns None if the folder has none.

    Raises:
        FileError: It cannot be read, is damaged, or was written by another program.
    """
    try:
        return _read(out_dir / EXPORT_NAME)
    except MissingFileError:
        return None


def _read(path: Path) -> ExportManifest:
    """Read a manifest, and check that its names cannot lead out of the folder."""
    try:
        manifest = parse_json(read_file(path, _MAX_BYTES), _MANIFEST_DECODER)
    except ContentError as error:
        raise FileError(path, f"is damaged, or not of an export: {error}", _HINT) from None
    if (manifest.kind, manifest.format_version) != (_KIND, _FORMAT_VERSION):
        actual = f"{manifest.kind[:40]!a}, version {manifest.format_version}"
        raise FileError(path, f"is {actual}, expected {_KIND!r}, version {_FORMAT_VERSION}", _HINT)
    for name in manifest.scenes:
        if not SceneId.is_valid(name):
            raise FileError(
                path, f"is damaged: it names {name[:40]!a}, which is not a scene id", _HINT
            )
    for name, _ in manifest.files():
        has_odd_part = any(part in {"", ".", ".."} for part in name.split("/"))
        if has_odd_part or "\0" in name:
            raise FileError(path, f"is damaged: it names the file {name[:80]!a}", _HINT)
    return manifest


def write_export(path: Path, manifest: ExportManifest, *, is_durable: bool = False) -> None:
    """Write a manifest, unless the file already has this content.

    Raises:
        OutputError: It cannot be written.
    """
    write_if_changed(path, encode_export(manifest), is_durable=is_durable)


def encode_export(manifest: ExportManifest) -> bytes:
    """Encode a manifest. Equal manifests give equal bytes."""
    return json.dumps(to_plain(manifest), sort_keys=True).encode() + b"\n"
