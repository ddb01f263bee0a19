"""Writes synthetic scenes as the release has them: same files, names, headers, line ends and white space."""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable, Sequence
from pathlib import Path
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from scannet_prep.files import make_directory, write_atomically
from scannet_prep.labels import LABEL_MAP_NAME, MAX_NYU40_ID, SCANNET20, RawIds, builtin_label_map
from scannet_prep.raw.layout import RawScene
from scannet_prep.release import AGGREGATION, INFO, LABELS_MESH, MESH, SEGMENTS, SPLIT_DIRS
from scannet_prep.scene import Split
from scannet_prep.splits import find_official_split
from scannet_prep.synthetic.scene import SyntheticScene, make_scene

Bytes: TypeAlias = NDArray[np.uint8]

_FACE = np.dtype([("count", "u1"), ("vertex_indices", "<i4", (3,))])
_FIELDS = [*((name, "<f4") for name in "xyz"), *((name, "u1") for name in ("red", "green", "blue", "alpha"))]
_PLY_TYPES = {"<f4": "float", "u1": "uchar", "<u2": "ushort"}

# As in the release; the camera is made up.
_PARAMETERS = '\t"kThresh": "0.0001",\r\n\t"segMinVerts": "20"'
_CAMERA = (
    "colorHeight = 968, colorToDepthExtrinsics = 0.999950 0.010000 0.000000 -0.040000 -0.010000 0.999950 0.000000 "
    "0.000000 0.000000 0.000000 1.000000 -0.020000 -0.000000 0.000000 -0.000000 1.000000, colorWidth = 1296, "
    "depthHeight = 480, depthWidth = 640, fx_color = 1150.000000, fx_depth = 575.000000, fy_color = 1150.000000, "
    "fy_depth = 575.000000, mx_color = 648.000000, mx_depth = 320.000000, my_color = 484.000000, "
    "my_depth = 240.000000, numColorFrames = 1000, numDepthFrames = 1000, numIMUmeasurements = 2000"
)


def write_release(
    raw_dir: Path, scene_ids: Sequence[str], *, vertices: int = 4000, seed: int = 0, irregular: Collection[str] = ()
) -> None:
    """Make scenes and write them and the label map as the release's folder.

    Args:
        raw_dir: The folder that gets `scans/`, `scans_test/` and the label map.
        scene_ids: Which scenes.
        vertices: The exact number of vertices of each.
        seed: Another seed gives other scenes.
        irregular: Those of the scenes that list every group twice.
    """
    for scene_id in scene_ids:
        write_scene(make_scene(scene_id, vertices=vertices, seed=seed, repeats_groups=scene_id in irregular), raw_dir)
    write_label_map(raw_dir)


def write_scene(scene: SyntheticScene, raw_dir: Path) -> Path:
    """Write the files of one scene, and return its folder.

    Scenes of the official test split go to `scans_test/` and get a mesh and metadata only; all others, also those that
    are in no official list, go to `scans/` with everything.
    """
    split = find_official_split(scene.scene_id) or Split.TRAIN
    files = RawScene(scene.scene_id, raw_dir / SPLIT_DIRS[split])
    make_directory(files.directory)
    contents = {MESH: _mesh_chunks(scene, scene.colors), INFO: [_info_text(scene)]}
    if split is not Split.TEST:
        labels = _nyu40_ids(scene)
        palette = np.full((MAX_NYU40_ID + 1, 3), 128, np.uint8)  # ScanNet20's own colours, else grey, or black for none
        palette[[0, *SCANNET20.ids]] = [(0, 0, 0), *SCANNET20.colors]
        contents[LABELS_MESH] = _mesh_chunks(scene, palette[labels], labels)
        numbers = ",".join(map(str, scene.segment_ids.tolist()))
        head = ["{", '"params": {', _PARAMETERS, "}", ","]
        segments = [*head, f'"sceneId": "{scene.scene_id}",', f'"segIndices": [{numbers}]', "}"]
        contents |= {SEGMENTS: [_crlf_text(segments)], AGGREGATION: [_aggregation_text(scene)]}
    for kind, chunks in contents.items():
        write_atomically(files.path(kind), chunks)
    return files.directory


def write_label_map(raw_dir: Path) -> Path:
    """Write the built-in label map, which has those three of the release's 17 columns that count."""
    make_directory(raw_dir)
    path = raw_dir / LABEL_MAP_NAME
    rows = [f"{ids.scannet_id}\t{name}\t{ids.nyu40_id}" for name, ids in builtin_label_map().rows.items()]
    write_atomically(path, [_crlf_text(["id\traw_category\tnyu40id", *rows])])
    return path


def _mesh_chunks(scene: SyntheticScene, colors: Bytes, labels: Bytes | None = None) -> list[bytes]:
    """Content of a PLY file: header, vertices, faces."""
    fields = [*_FIELDS, *([("label", "<u2")] if labels is not None else [])]
    columns = (*scene.positions.T, *colors.T, 255, *([] if labels is None else [labels]))
    vertices, triangles = np.empty(len(colors), fields), np.empty(len(scene.faces), _FACE)
    for (name, _), column in zip(fields, columns, strict=True):
        vertices[name] = column
    triangles["count"], triangles["vertex_indices"] = 3, scene.faces
    properties = [f"property {_PLY_TYPES[kind]} {name}\n" for name, kind in fields]
    header = (
        f"ply\nformat binary_little_endian 1.0\ncomment VCGLIB generated\nelement vertex {len(vertices)}\n"
        f"{''.join(properties)}element face {len(triangles)}\nproperty list uchar int vertex_indices\nend_header\n"
    )
    return [header.encode("ascii"), vertices.tobytes(), triangles.tobytes()]


def _nyu40_ids(scene: SyntheticScene) -> NDArray[np.uint8]:
    """uint8 (V,): the nyu40 id of each vertex, 0 where it has none; of groups that share a segment, the last counts."""
    ids_of, unknown = builtin_label_map().rows, RawIds(0, 0)
    label_of = np.zeros(len(scene.segment_ids), np.uint8)  # by segment id, which is the index of a vertex
    for group in scene.groups:
        label_of[np.array(group.segment_ids)] = ids_of.get(group.raw_category, unknown).nyu40_id
    return label_of[scene.segment_ids]


def _aggregation_text(scene: SyntheticScene) -> bytes:
    """Text of an `.aggregation.json` of the v2 release, which prefixes names with `scannet.`."""
    groups = [
        f'\t{{\r\n\t"id": {group.id},\r\n\t"objectId": {group.object_id},\r\n\t"segments": '
        f'[{",".join(map(str, group.segment_ids))}],\r\n\t"label": {json.dumps(group.raw_category)}\r\n\t}}'
        for group in scene.groups
    ]
    head = ["{", f'"sceneId": "scannet.{scene.scene_id}",', '"appId": "Aggregator.v2",', '"segGroups": [']
    tail = ["],", f'"segmentsFile": "scannet.{scene.scene_id}{SEGMENTS.suffix}"}}']
    return _crlf_text([*head, *([",\r\n".join(groups)] if groups else []), *tail])


def _info_text(scene: SyntheticScene) -> bytes:
    lines = _CAMERA.split(", ")
    if scene.axis_alignment is not None:
        # Adding 0 turns a negative zero into a positive one.
        numbers = "".join(f"{number + 0.0:.6f} " for number in scene.axis_alignment.ravel().tolist())
        lines.insert(0, f"axisAlignment = {numbers}")
        lines.append("sceneType = Bedroom / Hotel")
    return _crlf_text(lines)


def _crlf_text(lines: Iterable[str]) -> bytes:
    return "".join(f"{line}\r\n" for line in lines).encode()
