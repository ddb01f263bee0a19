"""Twelve irregular inputs."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import plyfile

from scannet_prep.release.scene import Split
from scannet_prep.release.splits import official_scenes
from scannet_prep.synthetic import write_release

VERTEX_COUNT = 2000
TRAIN_SCENES = tuple(sorted(str(scene_id) for scene_id in official_scenes(Split.TRAIN)[:5]))
# In the middle, so that other scenes follow it.
SCENE = TRAIN_SCENES[2]
TEST_SCENE = str(official_scenes(Split.TEST)[0])

_MESH = "_vh_clean_2.ply"
_LABELS_MESH = "_vh_clean_2.labels.ply"
_SEGMENTS = "_vh_clean_2.0.010000.segs.json"
_AGGREGATION = ".aggregation.json"
_INFO = ".txt"


@dataclass(frozen=True, slots=True)
class Irregularity:
    """One irregular input.

    Attributes:
        title: The scene or file, for the page.
        apply: Makes the input irregular. Its argument is the folder of `SCENE`.
        scene_id: The scene that is irregular.
    """

    title: str
    apply: Callable[[Path], object]
    scene_id: str = SCENE


def write_regular_scenes(raw_dir: Path) -> None:
    """Write the train scenes, without an irregularity."""
    write_release(raw_dir, TRAIN_SCENES, vertices=VERTEX_COUNT)


def _path(scene_dir: Path, suffix: str) -> Path:
    return scene_dir / f"{scene_dir.name}{suffix}"


def _edit_json(path: Path, edit: Callable[[dict[str, Any]], object]) -> None:
    content = json.loads(path.read_text(encoding="utf-8"))
    edit(content)
    path.write_text(json.dumps(content), encoding="utf-8")


def _rename_category(scene_dir: Path) -> None:
    def edit(content: dict[str, Any]) -> None:
        content["segGroups"][0]["label"] = "no such category"

    _edit_json(_path(scene_dir, _AGGREGATION), edit)


def _truncate_mesh(scene_dir: Path) -> None:
    path = _path(scene_dir, _MESH)
    content = path.read_bytes()
    path.write_bytes(content[: len(content) * 9 // 10])


def _write_nan(scene_dir: Path) -> None:
    path = _path(scene_dir, _MESH)
    mesh = plyfile.PlyData.read(path, mmap=False)
    mesh["vertex"]["x"][0] = np.nan
    mesh.write(path)


def _repeat_groups(scene_dir: Path) -> None:
    raw_dir = scene_dir.parent.parent
    write_release(raw_dir, [SCENE], vertices=VERTEX_COUNT, repeats_groups=[SCENE])


def _add_test_scene(scene_dir: Path) -> None:
    write_release(scene_dir.parent.parent, [TEST_SCENE], vertices=VERTEX_COUNT)


def _remove_segments_file(scene_dir: Path) -> None:
    _path(scene_dir, _SEGMENTS).unlink()


def _shorten_segments(scene_dir: Path) -> None:
    def edit(content: dict[str, Any]) -> None:
        del content["segIndices"][-100:]

    _edit_json(_path(scene_dir, _SEGMENTS), edit)


def _shorten_labels_mesh(scene_dir: Path) -> None:
    path = _path(scene_dir, _LABELS_MESH)
    mesh = plyfile.PlyData.read(path, mmap=False)
    vertices = mesh["vertex"].data[:-10]
    faces = mesh["face"].data
    is_kept = np.vstack(faces["vertex_indices"]).max(axis=1) < len(vertices)
    vertex_element = plyfile.PlyElement.describe(vertices, "vertex")
    face_element = plyfile.PlyElement.describe(faces[is_kept], "face")
    plyfile.PlyData([vertex_element, face_element]).write(path)


def _add_unknown_segment(scene_dir: Path) -> None:
    def edit(content: dict[str, Any]) -> None:
        content["segGroups"][0]["segments"].append(10 * VERTEX_COUNT)

    _edit_json(_path(scene_dir, _AGGREGATION), edit)


def _remove_groups(scene_dir: Path) -> None:
    _edit_json(_path(scene_dir, _AGGREGATION), lambda content: content["segGroups"].clear())


def _remove_alignment(scene_dir: Path) -> None:
    path = _path(scene_dir, _INFO)
    lines = path.read_text(encoding="utf-8").splitlines(keepends=True)
    kept = [line for line in lines if not line.startswith("axisAlignment")]
    path.write_text("".join(kept), encoding="utf-8")


def _add_byte_order_mark(scene_dir: Path) -> None:
    path = _path(scene_dir, _INFO)
    path.write_bytes(b"\xef\xbb\xbf" + path.read_bytes())


IRREGULARITIES = (
    Irregularity("a raw category that is not in the label map", _rename_category),
    Irregularity("a mesh that is truncated", _truncate_mesh),
    Irregularity("a mesh with a coordinate that is not a number", _write_nan),
    Irregularity("every group twice, with new ids, as in scene0217_00", _repeat_groups),
    Irregularity("a test scene, which has no annotation", _add_test_scene, TEST_SCENE),
    Irregularity("a missing `.segs.json`", _remove_segments_file),
    Irregularity("a `.segs.json` with 100 vertices fewer than the mesh", _shorten_segments),
    Irregularity("a `labels.ply` with 10 vertices fewer than the mesh", _shorten_labels_mesh),
    Irregularity("a group with a segment that no vertex has", _add_unknown_segment),
    Irregularity("an aggregation without groups", _remove_groups),
    Irregularity("a `.txt` without `axisAlignment`", _remove_alignment),
    Irregularity("a `.txt` that begins with a byte order mark", _add_byte_order_mark),
)
