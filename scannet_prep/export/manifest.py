"""`export.json` of an export: what made it, from what, with which options, and every file of it."""

from __future__ import annotations

import json
from collections.abc import Collection, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from scannet_prep.errors import ContentError, ManifestError, MissingFileError
from scannet_prep.export import EXPORT_NAME, PARTS_NAME
from scannet_prep.failures import SceneFailure
from scannet_prep.files import Fingerprint, read_file, write_if_changed
from scannet_prep.scene import SceneId, Split
from scannet_prep.shards import ShardFolder
from scannet_prep.typed_json import parse_json, to_plain
from scannet_prep.version import VERSION

_KIND = "scannet_prep export"
_FORMAT_VERSION = 1
_MAX_BYTES = 1 << 30
_HINT = "remove the export, and make it again"


@dataclass(frozen=True, slots=True)
class ExportEntry:
    """One scene of an export.

    Attributes:
        split: Its split.
        source: Of the processed scene that it was made from.
        files: Its files, by name; none for a scene that is part of a larger file.
        record: What the lists of the format tell of it.
    """

    split: Split
    source: Fingerprint
    files: Mapping[str, Fingerprint] = field(hash=False)
    record: Mapping[str, Any] = field(hash=False)


@dataclass(frozen=True, slots=True)
class ExportManifest:
    """What an export holds.

    Attributes:
        settings: What is the same for all scenes: `format`, `label_set` (empty for both), `aligned`, `variant`.
        place: From which folder or archive.
        program_version: By which version of this program.
        shared: Files that tell of several scenes, or hold them, by name.
        scenes: By scene id.
        failures: Scenes that failed in the last run that tried them, by id.
        unfinished: Scenes that runs had still to make; empty where the last one came to its end.
    """

    settings: Mapping[str, bool | str] = field(hash=False)
    place: str
    kind: str = _KIND
    format_version: int = _FORMAT_VERSION
    program_version: str = VERSION
    shared: Mapping[str, Fingerprint] = field(default_factory=dict, hash=False)
    scenes: Mapping[str, ExportEntry] = field(default_factory=dict, hash=False)
    failures: Mapping[str, SceneFailure] = field(default_factory=dict, hash=False)
    unfinished: tuple[str, ...] = ()

    def restrict(self, scene_ids: Collection[str]) -> ExportManifest:
        """What it tells of some scenes, by themselves."""
        scenes = {name: item for name, item in self.scenes.items() if name in scene_ids}
        return replace(self, shared={}, scenes=scenes, failures={}, unfinished=())

    def files(self) -> Iterator[tuple[str, Fingerprint]]:
        """All files, those that tell of several scenes first."""
        yield from self.shared.items()
        for entry in self.scenes.values():
            yield from entry.files.items()


def shards_of(out_dir: Path) -> ShardFolder:
    """The shards that have made scenes of an export and have not been merged."""
    return ShardFolder(out_dir / PARTS_NAME, "export")


def read_export(out_dir: Path) -> ExportManifest | None:
    """Read the manifest of an export, with what shards have added; None where there is none.

    Raises:
        FileError: It, or a part, cannot be read.
        ManifestError: It, or a part, is damaged, or was written by something else.
    """
    merged = None
    for path in (out_dir / EXPORT_NAME, *shards_of(out_dir).list_files().values()):
        with suppress(MissingFileError):
            found = _read(path)
            merged = found if merged is None else _add(merged, found)
    return merged


def _add(known: ExportManifest, part: ExportManifest) -> ExportManifest:
    """Add what a shard has made, or was to make, to what was known before."""
    told = {*part.scenes, *part.failures, *part.unfinished}
    scenes = {name: item for name, item in known.scenes.items() if name not in told}
    failures = {name: item for name, item in known.failures.items() if name not in told}
    unfinished = {*known.unfinished}.difference(told).union(part.unfinished)
    return replace(
        part,
        shared=known.shared,
        scenes={**scenes, **part.scenes},
        failures={**failures, **part.failures},
        unfinished=tuple(sorted(unfinished)),
    )


def _read(path: Path) -> ExportManifest:
    try:
        manifest = parse_json(read_file(path, _MAX_BYTES), ExportManifest)
    except ContentError as error:
        raise ManifestError(path, f"is damaged, or not of an export: {error}", _HINT) from None
    if (manifest.kind, manifest.format_version) != (_KIND, _FORMAT_VERSION):
        found = f"{manifest.kind[:40]!a}, version {manifest.format_version}"
        raise ManifestError(path, f"says that it is {found}, expected {_KIND!r}, {_FORMAT_VERSION}", _HINT)
    for name in (*manifest.scenes, *manifest.unfinished):
        if not SceneId.is_valid(name):
            raise ManifestError(path, f"is damaged: it names {name[:40]!a}, which is not a scene id", _HINT)
    for name, _ in manifest.files():
        if "\0" in name or not {"", ".", ".."}.isdisjoint(name.split("/")):
            raise ManifestError(path, f"is damaged: it names the file {name[:80]!a}", _HINT)
    return manifest


def write_export(path: Path, manifest: ExportManifest, *, is_durable: bool = False) -> None:
    """Write a manifest; the same one is not written again.

    Raises:
        OutputError: It cannot be written.
    """
    write_if_changed(path, encode_export(manifest), is_durable=is_durable)


def encode_export(manifest: ExportManifest) -> bytes:
    """Encode a manifest; equal ones are equal bytes."""
    return json.dumps(to_plain(manifest), sort_keys=True).encode() + b"\n"
