"""Writes synthetic scenes in the format of the release: files, names, headers, line ends."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from scannet_prep.base.files import write_if_changed
from scannet_prep.base.ply import encode_ply
from scannet_prep.raw.tree import RawScene
from scannet_prep.release.files import (
    AGGREGATION,
    INFO,
    KINDS,
    LABEL_MAP,
    LABELS_MESH,
    MESH,
    SEGMENTS,
    SPLIT_DIRS,
)
from scannet_prep.release.label_map import MAX_NYU40_ID, builtin_label_map
from scannet_prep.release.label_sets import SCANNET20
from scannet_prep.release.scenes import Split, official_splits
from scannet_prep.synthetic.frames import encode_files
from scannet_prep.synthetic.scene import SyntheticScene, make_scene, spread_over_vertices

# The colour of ids that are not in ScanNet20: grey.
_OTHER_COLOR = 128

# As in the release.
_SEGMENT_PARAMETERS = '\t"kThresh": "0.0001",\r\n\t"segMinVerts": "20"'
# The keys are those of the release; the camera is made up.
_CAMERA_TEXT = """\
colorHeight = 968
colorToDepthExtrinsics = 0.999950 0.010000 0.000000 -0.040000 -0.010000 0.999950 0.000000 0.000000 \
0.000000 0.000000 1.000000 -0.020000 -0.000000 0.000000 -0.000000 1.000000
colorWidth = 1296
depthHeight = 480
depthWidth = 640
fx_color = 1150.000000
fx_depth = 575.000000
fy_color = 1150.000000
fy_depth = 575.000000
mx_color = 648.000000
mx_depth = 320.000000
my_color = 484.000000
my_depth = 240.000000
numColorFrames = 1000
numDepthFrames = 1000
numIMUmeasurements = 2000"""


def write_release(
    raw_dir: Path,
    scene_ids: Sequence[str],
    *,
    vertices: int = 4000,
    seed: int = 0,
    frames: int = 0,
) -> None:
    """Make scenes and write them, with the label map, in the layout of the release.

    Args:
        raw_dir: The folder that gets `scans/`, `scans_test/` and the label map.
        scene_ids: The scenes to make.
        vertices: The exact number of vertices of each.
        seed: Another seed gives other scenes.
        frames: The number of frames of the sensor streams; without any, there are neither streams
            nor 2D labels.

    Raises:
        UsageError: A scene id, the number of vertices or the seed is invalid.
        OutputError: The folder cannot be written to.
    """
    for scene_id in scene_ids:
        scene = make_scene(scene_id, vertices=vertices, seed=seed)
        write_scene(scene, raw_dir, frames=frames)
    write_label_map(raw_dir)


def write_scene(
    scene: SyntheticScene,
    raw_dir: Path,
    *,
    frames: int = 0,
) -> Path:
    """Write the files of one scene that are missing or differ, and return its folder.

    Scenes of the official test split go to `scans_test/` and get a mesh and metadata only. All
    others, also those that are in no official list, go to `scans/` and get all files.

    Args:
        scene: The scene.
        raw_dir: The folder that gets `scans/` or `scans_test/`.
        frames: The number of frames of its sensor stream, as for `write_release`.
    """
    split = official_splits().get(scene.scene_id) or Split.TRAIN
    scans_dir = raw_dir / SPLIT_DIRS[split]
    files = RawScene(scene.scene_id, scans_dir / scene.scene_id)
    contents = {
        MESH: _mesh_chunks(scene, scene.colors),
        INFO: [_info_text(scene)],
    }
    if split is not Split.TEST:
        contents[LABELS_MESH] = _labels_mesh_chunks(scene)
        contents[SEGMENTS] = [_segments_text(scene)]
        contents[AGGREGATION] = [_aggregation_text(scene)]
    if frames:
        for suffix, data in encode_files(scene, frames).items():
            contents[KINDS[suffix]] = [data]
    for kind, chunks in contents.items():
        write_if_changed(files.path(kind), b"".join(chunks))
    return files.directory


def write_label_map(raw_dir: Path) -> Path:
    """Write the built-in label map: of the 17 columns of the release, the three that are used."""
    path = raw_dir / LABEL_MAP.suffix
    lines = ["id\traw_category\tnyu40id"]
    for raw_category, ids in builtin_label_map().rows.items():
        columns = (str(ids.scannet_id), raw_category, str(ids.nyu40_id))
        lines.append("\t".join(columns))
    write_if_changed(path, _crlf_text(lines))
    return path


def _mesh_chunks(
    scene: SyntheticScene,
    colors: NDArray[np.uint8],
    **others: NDArray[np.unsignedinteger],
) -> list[Any]:
    """Return the content of a PLY file: header, vertices, faces."""
    opaque = np.full(len(colors), 255, np.uint8)
    return encode_ply(
        "VCGLIB generated",
        scene.positions,
        colors,
        scene.faces,
        alpha=opaque,
        **others,
    )


def _labels_mesh_chunks(scene: SyntheticScene) -> list[Any]:
    """Return the content of a `labels.ply`: the mesh with nyu40 ids, and the colour of each id."""
    palette = np.full((MAX_NYU40_ID + 1, 3), _OTHER_COLOR, np.uint8)
    palette[0] = 0
    # The ids of ScanNet20 are nyu40 ids.
    palette[list(SCANNET20.ids)] = SCANNET20.colors
    rows = builtin_label_map().rows
    values = [rows[group.raw_category].nyu40_id for group in scene.groups]
    nyu40_ids = spread_over_vertices(scene, values).astype(np.uint16)
    return _mesh_chunks(scene, palette[nyu40_ids], label=nyu40_ids)


def _segments_text(scene: SyntheticScene) -> bytes:
    """Return the text of a `.segs.json`."""
    numbers = ",".join(map(str, scene.segment_ids.tolist()))
    return _crlf_text(
        [
            "{",
            '"params": {',
            _SEGMENT_PARAMETERS,
            "}",
            ",",
            f'"sceneId": "{scene.scene_id}",',
            f'"segIndices": [{numbers}]',
            "}",
        ]
    )


def _aggregation_text(scene: SyntheticScene) -> bytes:
    """Return the text of an `.aggregation.json` of the v2 release: names begin with `scannet.`."""
    groups = []
    for group in scene.groups:
        segment_ids = ",".join(map(str, group.segment_ids))
        fields = [
            f'"id": {group.id}',
            f'"objectId": {group.object_id}',
            f'"segments": [{segment_ids}]',
            f'"label": "{group.raw_category}"',
        ]
        body = ",\r\n\t".join(fields)
        groups.append(f"\t{{\r\n\t{body}\r\n\t}}")
    lines = [
        "{",
        f'"sceneId": "scannet.{scene.scene_id}",',
        '"appId": "Aggregator.v2",',
        '"segGroups": [',
    ]
    if groups:
        lines.append(",\r\n".join(groups))
    lines.append("],")
    lines.append(f'"segmentsFile": "scannet.{scene.scene_id}{SEGMENTS.suffix}"}}')
    return _crlf_text(lines)


def _info_text(scene: SyntheticScene) -> bytes:
    """Return the text of a `<scene>.txt`."""
    lines = _CAMERA_TEXT.splitlines()
    # Test scenes have neither of these two lines.
    if scene.axis_alignment is not None:
        # Adding 0 turns a negative zero into a positive one.
        values = (scene.axis_alignment + 0.0).ravel().tolist()
        numbers = "".join(f"{value:.6f} " for value in values)
        lines.insert(0, f"axisAlignment = {numbers}")
        lines.append("sceneType = Bedroom / Hotel")
    return _crlf_text(lines)


def _crlf_text(lines: Iterable[str]) -> bytes:
    """Join lines with CR LF, as in the release."""
    return "".join(f"{line}\r\n" for line in lines).encode()
