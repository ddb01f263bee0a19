"""Writes synthetic scenes as the release has them: same files, names, headers, line ends and white space."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import numpy as np

from scannet_prep.errors import UsageError
from scannet_prep.files import make_directory, write_atomically
from scannet_prep.labels import LABEL_MAP_NAME, MAX_NYU40_ID, SCANNET20, builtin_label_map
from scannet_prep.raw.layout import SEGMENTS_SUFFIX, RawScene
from scannet_prep.release import SPLIT_DIRS
from scannet_prep.scene import SceneId, Split
from scannet_prep.splits import find_official_split
from scannet_prep.synthetic.scene import SyntheticScene, make_scene, with_known_irregularity

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence
    from pathlib import Path

    from numpy.typing import NDArray

_VERTEX_FIELDS = [
    ("x", "<f4"),
    ("y", "<f4"),
    ("z", "<f4"),
    ("red", "u1"),
    ("green", "u1"),
    ("blue", "u1"),
    ("alpha", "u1"),
]
_VERTEX = np.dtype(_VERTEX_FIELDS)
_LABELED_VERTEX = np.dtype([*_VERTEX_FIELDS, ("label", "<u2")])
_FACE = np.dtype([("count", "u1"), ("vertex_indices", "<i4", (3,))])
_PLY_TYPES = {"<f4": "float", "|u1": "uchar", "<u2": "ushort"}

_SEGMENTATION_PARAMETERS = {
    "kThresh": "0.0001",
    "segMinVerts": "20",
    "minPoints": "750",
    "maxPoints": "30000",
    "thinThresh": "0.05",
    "flatThresh": "0.001",
    "minLength": "0.02",
    "maxLength": "1",
}
# Made up, in the places and with the digits of a real file.
_CAMERA_LINES = (
    "colorHeight = 968",
    (
        "colorToDepthExtrinsics = 0.999950 0.010000 0.000000 -0.040000 -0.010000 0.999950 0.000000 0.000000 "
        "0.000000 0.000000 1.000000 -0.020000 -0.000000 0.000000 -0.000000 1.000000"
    ),
    "colorWidth = 1296",
    "depthHeight = 480",
    "depthWidth = 640",
    "fx_color = 1150.000000",
    "fx_depth = 575.000000",
    "fy_color = 1150.000000",
    "fy_depth = 575.000000",
    "mx_color = 648.000000",
    "mx_depth = 320.000000",
    "my_color = 484.000000",
    "my_depth = 240.000000",
    "numColorFrames = 1000",
    "numDepthFrames = 1000",
    "numIMUmeasurements = 2000",
)
_LABEL_MAP_COLUMNS = (
    "id",
    "raw_category",
    "category",
    "count",
    "nyu40id",
    "eigen13id",
    "nyuClass",
    "nyu40class",
    "eigen13class",
    "ModelNet40",
    "ModelNet10",
    "ShapeNetCore55",
    "synsetoffset",
    "wnsynsetid",
    "wnsynsetkey",
    "mpcat40",
    "mpcat40index",
)


def write_release(
    raw_dir: Path,
    scene_ids: Sequence[str],
    *,
    vertices: int = 4000,
    seed: int = 0,
    irregular: Collection[str] = (),
) -> list[SyntheticScene]:
    """Make scenes and write them and the label map as the release's folder.

    Args:
        raw_dir: The folder that gets `scans/`, `scans_test/` and the label map.
        scene_ids: Which scenes.
        vertices: The exact number of vertices of each.
        seed: Another seed gives other scenes.
        irregular: Those of the scenes that list every group twice.

    Returns:
        The scenes, in the order of `scene_ids`.

    Raises:
        UnknownSceneError: One of the ids is no scene id.
        UsageError: `vertices` or `seed` is too small, or `irregular` names a scene that is not asked for.
        OutputError: A file or folder cannot be written.
    """
    names = [SceneId(scene_id) for scene_id in scene_ids]
    strangers = sorted(set(irregular) - set(names))
    if strangers:
        raise UsageError(f"irregular has {', '.join(strangers)}, which scene_ids has not")
    scenes = [make_scene(name, vertices=vertices, seed=seed) for name in names]
    scenes = [with_known_irregularity(scene) if scene.scene_id in irregular else scene for scene in scenes]
    write_label_map(raw_dir)
    for scene in scenes:
        write_scene(scene, raw_dir)
    return scenes


def write_scene(scene: SyntheticScene, raw_dir: Path) -> Path:
    """Write the files of one scene.

    Scenes of the official test split go to `scans_test/` and get a mesh and metadata only; all others, also those that
    are in no official list, go to `scans/` with everything.

    Returns:
        The scene's folder.

    Raises:
        OutputError: A file or folder cannot be written.
    """
    split = find_official_split(scene.scene_id)
    files = RawScene(scene.scene_id, raw_dir / SPLIT_DIRS[split or Split.TRAIN] / scene.scene_id)
    make_directory(files.directory)
    write_atomically(files.mesh_path, _mesh_chunks(_vertex_records(scene, scene.colors, _VERTEX), scene.faces))
    write_atomically(files.info_path, [_info_text(scene).encode("utf-8")])
    if split is not Split.TEST:
        nyu40_ids = _nyu40_ids(scene)
        records = _vertex_records(scene, _label_palette()[nyu40_ids], _LABELED_VERTEX)
        records["label"] = nyu40_ids
        write_atomically(files.labels_mesh_path, _mesh_chunks(records, scene.faces))
        write_atomically(files.segments_path, [_segments_text(scene).encode("ascii")])
        write_atomically(files.aggregation_path, [_aggregation_text(scene).encode("ascii")])
    return files.directory


def write_label_map(raw_dir: Path) -> Path:
    """Write the built-in label map with the release's 17 columns; those that nothing should use are empty.

    Returns:
        The file's path.

    Raises:
        OutputError: The file or its folder cannot be written.
    """
    make_directory(raw_dir)
    lines = ["\t".join(_LABEL_MAP_COLUMNS)]
    for raw_category, ids in builtin_label_map().rows.items():
        known = {
            "id": str(ids.scannet_id),
            "raw_category": raw_category,
            "category": raw_category,
            "nyu40id": str(ids.nyu40_id),
        }
        lines.append("\t".join(known.get(column, "") for column in _LABEL_MAP_COLUMNS))
    path = raw_dir / LABEL_MAP_NAME
    write_atomically(path, [_crlf_text(lines).encode("utf-8")])
    return path


def _vertex_records(
    scene: SyntheticScene, colors: NDArray[np.uint8], record_type: np.dtype[np.void]
) -> NDArray[np.void]:
    records = np.empty(len(scene.positions), record_type)
    records["x"], records["y"], records["z"] = scene.positions.T
    records["red"], records["green"], records["blue"] = colors.T
    records["alpha"] = 255
    return records


def _mesh_chunks(vertices: NDArray[np.void], faces: NDArray[np.int32]) -> list[bytes]:
    """Content of a PLY file: header, vertices, faces."""
    triangles = np.empty(len(faces), _FACE)
    triangles["count"] = 3
    triangles["vertex_indices"] = faces
    header = "\n".join(
        (
            "ply",
            "format binary_little_endian 1.0",
            "comment VCGLIB generated",
            f"element vertex {len(vertices)}",
            *(f"property {_PLY_TYPES[vertices.dtype[name].str]} {name}" for name in vertices.dtype.names or ()),
            f"element face {len(faces)}",
            "property list uchar int vertex_indices",
            "end_header\n",
        )
    )
    return [header.encode("ascii"), vertices.tobytes(), triangles.tobytes()]


def _nyu40_ids(scene: SyntheticScene) -> NDArray[np.uint8]:
    """uint8 (V,): the nyu40 id of each vertex; the last group wins, repeated groups count once."""
    rows = builtin_label_map().rows
    # Groups may name segments that no vertex has, also beyond the last vertex.
    named = (segment for group in scene.groups for segment in group.segments)
    table = np.zeros(1 + max(named, default=0) + len(scene.segment_ids), np.uint8)
    seen = set()
    for group in scene.groups:
        key = (group.raw_category, frozenset(group.segments))
        if key not in seen:
            seen.add(key)
            table[list(group.segments)] = rows[group.raw_category].nyu40_id if group.raw_category in rows else 0
    return table[scene.segment_ids]


def _label_palette() -> NDArray[np.uint8]:
    """uint8 (41, 3): a colour for each nyu40 id; ScanNet20's own, grey for other classes, black for unannotated."""
    palette = np.repeat(np.arange(100, 100 + 3 * (MAX_NYU40_ID + 1), 3, dtype=np.uint8)[:, None], 3, axis=1)
    palette[0] = 0
    palette[list(SCANNET20.ids)] = SCANNET20.colors
    return palette


def _segments_text(scene: SyntheticScene) -> str:
    parameters = ",\r\n".join(f'\t"{key}": "{value}"' for key, value in _SEGMENTATION_PARAMETERS.items())
    lines = [
        "{",
        '"params": {',
        parameters,
        "}",
        ",",
        f'"sceneId": "{scene.scene_id}",',
        f'"segIndices": [{",".join(map(str, scene.segment_ids.tolist()))}]',
        "}",
    ]
    return _crlf_text(lines)


def _aggregation_text(scene: SyntheticScene) -> str:
    """Text of an `.aggregation.json` of the v2 release, which prefixes names with `scannet.`."""
    lines = ["{", f'"sceneId": "scannet.{scene.scene_id}",', '"appId": "Aggregator.v2",', '"segGroups": [']
    for index, group in enumerate(scene.groups):
        lines += [
            "\t{",
            f'\t"id": {group.id},',
            f'\t"objectId": {group.object_id},',
            f'\t"segments": [{",".join(map(str, group.segments))}],',
            f'\t"label": {json.dumps(group.raw_category)}',
            "\t}," if index + 1 < len(scene.groups) else "\t}",
        ]
    lines += ["],", f'"segmentsFile": "scannet.{scene.scene_id}{SEGMENTS_SUFFIX}"}}']
    return _crlf_text(lines)


def _info_text(scene: SyntheticScene) -> str:
    lines = list(_CAMERA_LINES)
    if scene.axis_alignment is not None:
        # Adding 0 turns a negative zero into a positive one.
        numbers = "".join(f"{number + 0.0:.6f} " for number in scene.axis_alignment.ravel().tolist())
        lines.insert(0, f"axisAlignment = {numbers}")
    if scene.scene_type is not None:
        lines.append(f"sceneType = {scene.scene_type}")
    return _crlf_text(lines)


def _crlf_text(lines: Sequence[str]) -> str:
    return "".join(f"{line}\r\n" for line in lines)
