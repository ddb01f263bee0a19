"""`export.json`, the manifest of an export: its settings and its scenes.

A run writes it before it changes a scene, every few seconds, and at its end. A scene that it does
not list does not count, and is made by the next run.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, TypeAlias

import msgspec

from scannet_prep.base.files import read_file, write_atomically
from scannet_prep.base.json import Count, Crc32, encode_json, make_decoder, parse_json
from scannet_prep.base.version import VERSION
from scannet_prep.errors import ContentError, FileError, MissingFileError
from scannet_prep.export import EXPORT_NAME
from scannet_prep.processed.manifest import SceneIdText
from scannet_prep.release.scene import Split

_FORMAT = "scannet_prep export"
_MAX_BYTES = 1 << 30
_HINT = "remove the folder of the export, then run the same scannet-prep export command again"


Setting: TypeAlias = str | int | bool | None
"""What all scenes of an export were made with."""


class ExportEntry(msgspec.Struct, frozen=True):
    """One scene of an export.

    Attributes:
        split: Its split.
        source_crc32: CRC-32 of the processed file that it was made from.
        sizes: The size of each of its files in bytes, by name.
        record: The values of the scene that the lists of the format need.
    """

    split: Split
    source_crc32: Crc32
    sizes: Mapping[str, Count]
    record: Mapping[str, Any]


class ExportManifest(msgspec.Struct, frozen=True, tag_field="kind", tag=_FORMAT):
    """The content of an export. All of its scenes were made with the same settings.

    Attributes:
        settings: The format, the settings that it uses, and the options of the processed scenes.
        scenes: The exported scenes, by id.
        program_version: The version of this program that wrote the manifest.
    """

    settings: Mapping[str, Setting]
    scenes: Mapping[SceneIdText, ExportEntry] = {}
    program_version: str = VERSION


_DECODER = make_decoder(ExportManifest)


def read_export(out_dir: Path) -> ExportManifest | None:
    """Read the manifest of an export; None if the folder has none.

    Raises:
        FileError: It cannot be read, is damaged, or was written by another program.
    """
    path = out_dir / EXPORT_NAME
    try:
        return parse_json(read_file(path, _MAX_BYTES), _DECODER)
    except MissingFileError:
        return None
    except ContentError as error:
        raise FileError(path, f"is damaged, or not of an export: {error}", _HINT) from None


def write_export(out_dir: Path, manifest: ExportManifest) -> None:
    """Write the manifest of an export.

    Raises:
        OutputError: It cannot be written.
    """
    write_atomically(out_dir / EXPORT_NAME, [encode_json(manifest) + b"\n"])
