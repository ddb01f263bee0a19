"""Sizes and times of the files of each scene, as the last run saw them.

They are stored beside the manifest, so that a rerun need not read files. As in rsync, a file is
unchanged if its size, its time of change in ns and its inode are. They are not part of the folder's
content: without them, the next run reads everything once.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from scannet_prep.base.files import read_file, write_if_changed
from scannet_prep.base.json import encode_json, make_decoder, parse_json
from scannet_prep.errors import ContentError, FileError, OutputError
from scannet_prep.raw.tree import RawScene
from scannet_prep.release.files import INPUT_KINDS, MESH
from scannet_prep.release.label_map import LabelMap
from scannet_prep.release.scene import Split

SEEN_NAME = ".scannet-prep-seen.json"


@dataclass(frozen=True, slots=True)
class SeenScene:
    """The state of the files of one scene.

    Attributes:
        label_map: Digest of the label map; empty for test scenes, which do not depend on it.
        inputs: Size, time and inode of each raw file, `-` for one that does not exist.
        output: Size, time and inode of the processed file; empty if it does not exist.
        mesh: The absolute path of the mesh, where `verify --checksum` finds it. It does not count
            when two states are compared.
    """

    label_map: str
    inputs: str
    output: str
    mesh: str = field(default="", compare=False)


_SEEN_DECODER = make_decoder(dict[str, SeenScene])


def describe_files(
    scene: RawScene, split: Split, output_path: Path, label_map: LabelMap
) -> SeenScene:
    """Describe the present state of the files of one scene."""
    start = f"{scene.directory}/{scene.scene_id}"
    inputs = " ".join(_describe(start + kind.suffix) or "-" for kind in INPUT_KINDS)
    return SeenScene(
        label_map="" if split is Split.TEST else label_map.digest,
        inputs=inputs,
        output=_describe(output_path),
        mesh=os.path.abspath(scene.path(MESH)),  # noqa: PTH100 - Path.absolute takes longer
    )


def read_seen(out_dir: Path) -> dict[str, SeenScene]:
    """Read the states that the last run saw, by scene id; empty if there are none."""
    # If the file is missing or damaged, all scenes are read again.
    with suppress(FileError, ContentError):
        return parse_json(read_file(out_dir / SEEN_NAME), _SEEN_DECODER)
    return {}


def write_seen(out_dir: Path, scenes: Mapping[str, SeenScene]) -> None:
    """Write the states that this run saw, unless that is impossible: they only save time."""
    with suppress(OutputError):
        write_if_changed(out_dir / SEEN_NAME, encode_json(dict(sorted(scenes.items()))))


def _describe(path: str | Path) -> str:
    """Describe a file by its size, time of change in ns and inode; empty if that fails."""
    try:
        status = os.stat(path)  # noqa: PTH116 - eleven thousand of them, before anything else happens
    except OSError:
        return ""
    return f"{status.st_size}-{status.st_mtime_ns}-{status.st_ino}"
