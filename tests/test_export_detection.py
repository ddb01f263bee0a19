"""Exports for VoteNet and ScanRefer, read as their datasets do, and compared with loops."""

from __future__ import annotations

import functools
import json
from collections.abc import Callable, Collection
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import oracles
import pytest
import tiny
from commands import TEST, TRAIN, VAL, Outcome, digests, run_main
from extras import REAL_DIR
from test_export_frameworks import (
    BOXES20,
    DRAWN,
    SPLITS,
    files_in,
    truth,
    write_export,
)
from test_export_frameworks import TEST as DRAWN_TEST
from test_export_frameworks import TRAIN as DRAWN_TRAIN

from scannet_prep import official_scenes
from scannet_prep.errors import ScanNetPrepError, UsageError
from scannet_prep.export import make_format
from scannet_prep.export.format import ExportOptions
from scannet_prep.processed.scene import ProcessedScene
from scannet_prep.raw.tree import RawScene
from scannet_prep.release.label_sets import SCANNET200
from scannet_prep.release.scene import SceneId, Split
from scannet_prep.synthetic.release import write_scene
from scannet_prep.synthetic.scene import SyntheticScene, make_scene

NAMES = ("votenet", "scanrefer")
ANNOTATED = [scene_id for scene_id, split in SPLITS.items() if split is not Split.TEST]
# The classes of ScanRefer: all of nyu40 but wall, floor and ceiling.
BOXES37 = {*range(3, 22), *range(23, 41)}
VOTENET_SUFFIXES = {"vert", "sem_label", "ins_label", "bbox"}
SCANREFER_SUFFIXES = VOTENET_SUFFIXES | {"aligned_vert", "aligned_bbox"}
# Sizes of the arrays in which the datasets collect the boxes of a scene.
VOTENET_MAX_BOXES = 64
SCANREFER_MAX_BOXES = 128
Process = Callable[..., list[ProcessedScene]]


@pytest.fixture(scope="module")
def process(tmp_path_factory: pytest.TempPathFactory) -> Process:
    """Processes the drawn scenes with the options that are given."""
    raw_dir = tmp_path_factory.mktemp("raw")
    raw = {
        scene_id: RawScene(SceneId(scene_id), write_scene(scene, raw_dir))
        for scene_id, scene in DRAWN.items()
    }
    return functools.cache(
        lambda **options: [
            tiny.process_written(raw[scene_id], SPLITS[scene_id], **options) for scene_id in raw
        ]
    )


@pytest.fixture(scope="module", params=[False, True], ids=["from_scan", "from_aligned"])
def exports(
    request: pytest.FixtureRequest, process: Process, tmp_path_factory: pytest.TempPathFactory
) -> dict[str, Path]:
    """The folders of both programs with all points, from scenes in either frame."""
    scenes = process(align_axis=request.param)
    folder = tmp_path_factory.mktemp("exports")
    return {name: write_export(name, scenes, folder / name, points="all") for name in NAMES}


def load(folder: Path, scene_id: str, suffix: str) -> np.ndarray:
    return np.load(folder / f"{scene_id}_{suffix}.npy")


@dataclass(frozen=True)
class Sample:
    """What a dataset makes of the files of one scene, before augmentation.

    Attributes:
        points: The points that it has sampled, (N, 3).
        votes: The way from each point to the centre of its object, (N, 3); zeros for none.
        has_vote: Whether a point belongs to an object that has a vote, (N,).
        centers: Centre of each box, then zeros, (M, 3).
        sizes: Size of each box, then zeros, (M, 3).
        classes: The class of each box.
        object_ids: The object id of each box; ScanRefer only.
    """

    points: np.ndarray
    votes: np.ndarray
    has_vote: np.ndarray
    centers: np.ndarray
    sizes: np.ndarray
    classes: list[int]
    object_ids: list[int]


def read_votenet(folder: Path, split: Split) -> dict[str, Sample]:
    """Read a split as `ScannetDetectionDataset` does, with all points."""
    available = {path.name[:12] for path in folder.iterdir() if path.name.startswith("scene")}
    nyu40_ids = np.array(list(BOXES20))
    samples = {}
    for scene_id in [name for name in official_scenes(split) if name in available]:
        vertices = load(folder, scene_id, "vert")
        instances = load(folder, scene_id, "ins_label")
        labels = load(folder, scene_id, "sem_label")
        boxes = load(folder, scene_id, "bbox")
        # Points with colour and height above the floor.
        assert vertices[:, 0:6].shape[1] == 6
        heights = vertices[:, 2] - np.percentile(vertices[:, 2], 0.99)
        assert np.isfinite(heights).all()
        classes = [int(np.where(nyu40_ids == nyu40_id)[0][0]) for nyu40_id in boxes[:, -1]]
        samples[scene_id] = make_sample(
            vertices, instances, labels, boxes, nyu40_ids.tolist(), classes, VOTENET_MAX_BOXES
        )
    return samples


def read_scanrefer(folder: Path, scene_ids: Collection[str]) -> dict[str, Sample]:
    """Read scenes as `ScannetReferenceDataset` does, with all points, colours and normals.

    It names the scenes after the descriptions that it reads.
    """
    class_of_nyu40_id = {nyu40_id: number for number, nyu40_id in enumerate(sorted(BOXES37))}
    samples = {}
    for scene_id in scene_ids:
        vertices = load(folder, scene_id, "aligned_vert")
        instances = load(folder, scene_id, "ins_label")
        labels = load(folder, scene_id, "sem_label")
        boxes = load(folder, scene_id, "aligned_bbox")
        assert vertices[:, 6:9].shape[1] == 3
        count = min(len(boxes), SCANREFER_MAX_BOXES)
        # The dataset of the test split looks at no class.
        classes = []
        if SPLITS.get(scene_id) is not Split.TEST:
            classes = [class_of_nyu40_id[int(nyu40_id)] for nyu40_id in boxes[:count, -2]]
        samples[scene_id] = make_sample(
            vertices, instances, labels, boxes, sorted(BOXES37), classes, SCANREFER_MAX_BOXES
        )
    return samples


def make_sample(
    vertices: np.ndarray,
    instances: np.ndarray,
    labels: np.ndarray,
    boxes: np.ndarray,
    nyu40_ids: list[int],
    classes: list[int],
    max_boxes: int,
) -> Sample:
    """Sample points, collect the boxes, and compute votes, as both datasets do."""
    # More points than the scene has are sampled with replacement; here, each is taken once.
    choices = np.random.default_rng(0).permutation(len(vertices))
    points = vertices[choices, 0:3]
    instances = instances[choices]
    labels = labels[choices]
    targets = np.zeros((max_boxes, 6))
    targets[: len(boxes)] = boxes[:, 0:6]
    votes = np.zeros((len(points), 3))
    has_vote = np.zeros(len(points), bool)
    for number in np.unique(instances):
        members = np.where(instances == number)[0]
        # The first point of an object stands for all of them.
        if labels[members[0]] in nyu40_ids:
            center = 0.5 * (points[members].min(0) + points[members].max(0))
            votes[members] = center - points[members]
            has_vote[members] = True
    object_ids = boxes[:, 7].astype(int).tolist() if boxes.shape[1] == 8 else []
    return Sample(points, votes, has_vote, targets[:, :3], targets[:, 3:], classes, object_ids)


def loop_boxes(
    points: Any, scene: SyntheticScene, classes: Collection[int], *, has_object_ids: bool
) -> list[list[float]]:
    """Compute the boxes of a scene with loops over objects, axes and vertices, in float32."""
    _, nyu40_ids, objects = truth(scene)
    boxes = []
    for number in sorted(set(objects) - {-1}):
        members = [vertex for vertex, owner in enumerate(objects) if owner == number]
        nyu40_id = nyu40_ids[members[0]]
        if nyu40_id not in classes:
            continue
        centers = []
        sizes = []
        for axis in range(3):
            low = min(np.float32(points[vertex][axis]) for vertex in members)
            high = max(np.float32(points[vertex][axis]) for vertex in members)
            centers.append(float((low + high) / np.float32(2)))
            sizes.append(float(high - low))
        boxes.append([*centers, *sizes, nyu40_id, *([number] if has_object_ids else [])])
    return boxes


def aligned_positions(scene: SyntheticScene) -> list[oracles.Vector]:
    """Return the aligned vertices; those of a test scene have no alignment."""
    matrix = np.eye(4) if scene.axis_alignment is None else scene.axis_alignment
    return oracles.aligned_points(scene.positions, matrix)


def unit_in_last_place(scene: SyntheticScene) -> float:
    """Return the unit in the last place of the largest coordinate of a scene in the scan frame."""
    return float(np.spacing(np.abs(scene.positions).max()))


# The files.


@pytest.mark.parametrize(
    ("name", "suffixes", "scene_ids"),
    [("votenet", VOTENET_SUFFIXES, ANNOTATED), ("scanrefer", SCANREFER_SUFFIXES, [*SPLITS])],
)
def test_export_has_these_files_for_each_scene(
    exports: dict[str, Path], name: str, suffixes: set[str], scene_ids: list[str]
) -> None:
    expected = {f"{scene_id}_{suffix}.npy" for scene_id in scene_ids for suffix in suffixes}

    assert set(files_in(exports[name])) == expected


@pytest.mark.parametrize(
    ("name", "suffix", "dtype", "columns"),
    [
        ("votenet", "vert", "<f4", 6),
        ("votenet", "bbox", "<f8", 7),
        ("scanrefer", "vert", "<f4", 9),
        ("scanrefer", "aligned_vert", "<f4", 9),
        ("scanrefer", "bbox", "<f8", 8),
        ("scanrefer", "aligned_bbox", "<f8", 8),
    ],
)
def test_matrices_have_the_types_and_columns_of_the_scripts(
    exports: dict[str, Path], name: str, suffix: str, dtype: str, columns: int
) -> None:
    for scene_id in ANNOTATED:
        array = load(exports[name], scene_id, suffix)
        assert array.dtype.str == dtype
        assert array.shape[1] == columns
        assert array.flags.c_contiguous


@pytest.mark.parametrize("name", NAMES)
def test_labels_and_objects_equal_loops_over_the_raw_scenes(
    exports: dict[str, Path], name: str
) -> None:
    for scene_id in ANNOTATED:
        _, nyu40_ids, objects = truth(DRAWN[scene_id])
        labels = load(exports[name], scene_id, "sem_label")
        numbers = load(exports[name], scene_id, "ins_label")
        assert labels.dtype.str == numbers.dtype.str == "<u4"
        assert labels.tolist() == nyu40_ids
        assert numbers.tolist() == [number + 1 for number in objects]


# VoteNet.


def test_votenet_points_are_aligned_and_have_colors(exports: dict[str, Path]) -> None:
    for scene_id in ANNOTATED:
        scene = DRAWN[scene_id]
        vertices = load(exports["votenet"], scene_id, "vert")
        expected = np.hstack([aligned_positions(scene), scene.colors], dtype=np.float32)
        assert vertices.tolist() == expected.tolist()


def test_votenet_boxes_equal_a_loop_over_the_vertices(exports: dict[str, Path]) -> None:
    for scene_id in ANNOTATED:
        scene = DRAWN[scene_id]
        boxes = load(exports["votenet"], scene_id, "bbox")
        expected = loop_boxes(aligned_positions(scene), scene, BOXES20, has_object_ids=False)
        assert len(expected) > 2
        assert boxes.tolist() == expected


@pytest.mark.parametrize("split", [Split.TRAIN, Split.VAL])
def test_votenet_reader_finds_the_scenes_of_a_split(exports: dict[str, Path], split: Split) -> None:
    samples = read_votenet(exports["votenet"], split)

    assert samples.keys() == {scene_id for scene_id in SPLITS if SPLITS[scene_id] is split}


@pytest.mark.parametrize("split", [Split.TRAIN, Split.VAL])
def test_votes_of_votenet_lead_to_the_centers_of_its_boxes(
    exports: dict[str, Path], split: Split
) -> None:
    for sample in read_votenet(exports["votenet"], split).values():
        check_votes(sample)


def check_votes(sample: Sample) -> None:
    """Check that the points of objects with votes vote for exactly the centres of the boxes."""
    voted = (sample.points + sample.votes)[sample.has_vote]
    targets = sample.centers[: len(sample.classes)]
    distances = np.linalg.norm(voted[:, None] - targets, axis=2)
    assert distances.min(axis=1).max() < 1e-5
    assert set(distances.argmin(axis=1).tolist()) == set(range(len(targets)))


def test_votenet_leaves_out_test_scenes(process: Process, tmp_path: Path) -> None:
    folder = write_export("votenet", process(), tmp_path)

    assert not [*folder.glob(f"{DRAWN_TEST}*")]


def test_votenet_refuses_points_in_the_frame_of_the_scan() -> None:
    with pytest.raises(UsageError, match="axis-aligned boxes") as raised:
        make_format("votenet", ExportOptions(is_aligned=False))

    assert raised.value.hint == "leave out --unaligned"


# ScanRefer.


def test_scanrefer_aligned_points_equal_a_loop(exports: dict[str, Path]) -> None:
    for scene_id, scene in DRAWN.items():
        vertices = load(exports["scanrefer"], scene_id, "aligned_vert")
        expected = np.hstack([aligned_positions(scene), scene.colors], dtype=np.float32)
        assert vertices[:, :6].tolist() == expected.tolist()


def test_scanrefer_points_of_the_scan_equal_the_mesh(exports: dict[str, Path]) -> None:
    for scene_id, scene in DRAWN.items():
        vertices = load(exports["scanrefer"], scene_id, "vert")
        expected = np.hstack([scene.positions, scene.colors], dtype=np.float32)
        assert np.abs(vertices[:, :6] - expected).max() <= unit_in_last_place(scene)


@pytest.mark.parametrize(("suffix", "is_aligned"), [("vert", False), ("aligned_vert", True)])
def test_scanrefer_normals_are_those_of_the_frame(
    exports: dict[str, Path], suffix: str, is_aligned: bool
) -> None:
    for scene_id, scene in DRAWN.items():
        points = aligned_positions(scene) if is_aligned else scene.positions.tolist()
        expected = oracles.vertex_normals(points, scene.faces.tolist())
        normals = load(exports["scanrefer"], scene_id, suffix)[:, 6:]
        # Stored as float16, and perhaps turned.
        assert np.abs(normals - expected).max() < 6e-4


def test_scanrefer_aligned_boxes_equal_a_loop_over_the_vertices(exports: dict[str, Path]) -> None:
    for scene_id in ANNOTATED:
        scene = DRAWN[scene_id]
        boxes = load(exports["scanrefer"], scene_id, "aligned_bbox")
        expected = loop_boxes(aligned_positions(scene), scene, BOXES37, has_object_ids=True)
        assert boxes.tolist() == expected


def test_scanrefer_boxes_of_the_scan_equal_a_loop_over_the_vertices(
    exports: dict[str, Path],
) -> None:
    for scene_id in ANNOTATED:
        scene = DRAWN[scene_id]
        boxes = load(exports["scanrefer"], scene_id, "bbox")
        expected = loop_boxes(scene.positions, scene, BOXES37, has_object_ids=True)
        assert boxes[:, 6:].tolist() == [box[6:] for box in expected]
        # A vertex may be off by one unit, and so a size by two.
        difference = np.abs(boxes[:, :6] - np.array(expected)[:, :6]).max()
        assert difference <= 2 * unit_in_last_place(scene)


def test_scanrefer_has_boxes_that_votenet_lacks(exports: dict[str, Path]) -> None:
    labels = [*load(exports["scanrefer"], DRAWN_TRAIN, "aligned_bbox")[:, 6]]

    assert set(labels) <= BOXES37
    assert set(labels) - BOXES20.keys()


def test_scanrefer_reader_finds_the_object_of_a_description(exports: dict[str, Path]) -> None:
    (sample,) = read_scanrefer(exports["scanrefer"], [DRAWN_TRAIN]).values()
    scene = DRAWN[DRAWN_TRAIN]
    described = {
        group.object_id
        for group in scene.groups
        if oracles.label_map_rows()[group.raw_category][1] in BOXES37
    }

    assert len(described) > 2
    assert sample.object_ids == sorted(described)


def test_votes_of_scanrefer_lead_to_the_centers_of_its_boxes(exports: dict[str, Path]) -> None:
    for sample in read_scanrefer(exports["scanrefer"], ANNOTATED).values():
        check_votes(sample)


@pytest.mark.parametrize("suffix", ["sem_label", "ins_label"])
def test_scanrefer_test_scene_has_zeros_as_labels(exports: dict[str, Path], suffix: str) -> None:
    array = load(exports["scanrefer"], DRAWN_TEST, suffix)

    assert array.dtype == np.uint32
    assert array.tolist() == [0] * 600


@pytest.mark.parametrize("suffix", ["bbox", "aligned_bbox"])
def test_scanrefer_test_scene_has_one_box_of_zeros(exports: dict[str, Path], suffix: str) -> None:
    assert load(exports["scanrefer"], DRAWN_TEST, suffix).tolist() == [[0.0] * 8]


def test_scanrefer_reader_accepts_a_test_scene(exports: dict[str, Path]) -> None:
    (sample,) = read_scanrefer(exports["scanrefer"], [DRAWN_TEST]).values()

    assert not sample.has_vote.any()


def test_scanrefer_has_both_frames_with_any_option(process: Process, tmp_path: Path) -> None:
    aligned = write_export("scanrefer", process(), tmp_path / "aligned", is_aligned=True)
    unaligned = write_export("scanrefer", process(), tmp_path / "unaligned", is_aligned=False)

    assert digests(aligned) == digests(unaligned)


# Objects.


@pytest.mark.parametrize("name", NAMES)
def test_scannet200_is_refused(name: str) -> None:
    with pytest.raises(UsageError, match="has no ScanNet200: its labels are nyu40 ids"):
        make_format(name, ExportOptions(SCANNET200))


def process_groups(folder: Path, *groups: dict[str, Any]) -> ProcessedScene:
    """Process the tiny scene with these groups."""
    return tiny.process_tiny(folder, {".aggregation.json": tiny.aggregation_file(groups)})


def test_boxes_are_in_the_order_of_object_ids_which_may_have_gaps(tmp_path: Path) -> None:
    chair = tiny.group(0, [2, 4], "chair", object_id=9)
    bed = tiny.group(1, [0], "bed", object_id=4)
    scene = process_groups(tmp_path / "raw", chair, bed)

    boxes = load(write_export("scanrefer", [scene], tmp_path / "out"), TRAIN, "aligned_bbox")

    assert boxes[:, 6:].tolist() == [[4, 4], [5, 9]]


def test_object_without_vertices_has_no_box(tmp_path: Path) -> None:
    # The table takes both segments of the chair.
    scene = process_groups(
        tmp_path / "raw", tiny.group(0, [2, 4], "chair"), tiny.group(1, [2, 4, 5], "table")
    )

    boxes = load(write_export("votenet", [scene], tmp_path / "out"), TRAIN, "bbox")

    assert boxes[:, 6].tolist() == [7]


@pytest.mark.parametrize(("name", "columns"), [("votenet", 7), ("scanrefer", 8)])
def test_scene_without_objects_of_the_classes_has_an_empty_array_of_boxes(
    tmp_path: Path, name: str, columns: int
) -> None:
    # A floor and a wall.
    folder = write_export(name, [tiny.process_tiny(tmp_path / "raw")], tmp_path / "out")

    assert load(folder, TRAIN, "bbox").shape == (0, columns)


@pytest.mark.parametrize("name", NAMES)
def test_repeated_groups_have_the_object_ids_of_the_last_copies(tmp_path: Path, name: str) -> None:
    # As in scene0217_00.
    categories = [("chair", [0]), ("bed", [2, 4])] * 2
    groups = [
        tiny.group(number, segments, category)
        for number, (category, segments) in enumerate(categories)
    ]
    scene = process_groups(tmp_path / "raw", *groups)

    folder = write_export(name, [scene], tmp_path / "out")

    assert load(folder, TRAIN, "ins_label").tolist() == [3, 3, 4, 4, 4, 0]


@pytest.mark.parametrize("name", NAMES)
def test_vertices_of_an_object_have_the_label_of_its_group(tmp_path: Path, name: str) -> None:
    labels = tiny.Ply(labels=(5, 2, 1, 1, 1, 7)).encode()
    files = {"_vh_clean_2.labels.ply": labels}
    scene = tiny.process_tiny(tmp_path / "raw", files, labels_from="ply")

    folder = write_export(name, [scene], tmp_path / "out")

    assert load(folder, TRAIN, "sem_label").tolist()[:5] == [2, 2, 1, 1, 1]


@pytest.mark.parametrize("name", NAMES)
def test_vertices_of_no_object_have_no_label(tmp_path: Path, name: str) -> None:
    labels = tiny.Ply(labels=(2, 2, 1, 1, 1, 7)).encode()
    files = {"_vh_clean_2.labels.ply": labels}
    scene = tiny.process_tiny(tmp_path / "raw", files, labels_from="ply")

    folder = write_export(name, [scene], tmp_path / "out")

    assert load(folder, TRAIN, "sem_label").tolist() == [2, 2, 1, 1, 1, 0]


def test_points_of_no_object_have_no_vote(tmp_path: Path) -> None:
    # In labels.ply, the vertex of no group belongs to a table. The dataset would take all such
    # points for one object.
    labels = tiny.Ply(labels=(2, 2, 1, 1, 1, 7)).encode()
    files = {"_vh_clean_2.labels.ply": labels}
    scene = tiny.process_tiny(tmp_path / "raw", files, labels_from="ply")
    folder = write_export("votenet", [scene], tmp_path / "out")

    (sample,) = read_votenet(folder, Split.TRAIN).values()

    assert not sample.has_vote.any()


@pytest.mark.parametrize("name", NAMES)
def test_scene_without_groups_is_refused_with_the_files_to_download(
    tmp_path: Path, name: str
) -> None:
    files = {
        "_vh_clean_2.labels.ply": tiny.Ply(labels=(1,) * 6).encode(),
        ".aggregation.json": None,
    }
    scene = tiny.process_tiny(tmp_path, files, labels_from="ply")

    with pytest.raises(ScanNetPrepError, match="scene0000_00 has no groups") as raised:
        write_export(name, [scene], tmp_path / "out")

    assert ".aggregation.json _vh_clean_2.0.010000.segs.json" in str(raised.value.hint)


@pytest.mark.parametrize("name", NAMES)
def test_scene_without_known_alignment_is_refused(tmp_path: Path, name: str) -> None:
    scene = tiny.process_tiny(tmp_path, {".txt": None})

    with pytest.raises(ScanNetPrepError, match="has no axis alignment") as raised:
        write_export(name, [scene], tmp_path / "out")

    assert raised.value.hint == "download .txt, then process the scene again"


# Points.


def drawn_vertices(folder: Path, scene: ProcessedScene, suffix: str = "vert") -> list[int]:
    """Find the vertices that the points of an export are."""
    vertices = load(folder, scene.meta.scene_id, suffix)
    index_by_row = {row.tobytes(): index for index, row in enumerate(scene.points)}
    return [index_by_row[np.ascontiguousarray(row[:3]).tobytes()] for row in vertices]


@pytest.mark.parametrize("name", NAMES)
def test_all_points_are_the_vertices_in_mesh_order(
    process: Process, tmp_path: Path, name: str
) -> None:
    scene = process(align_axis=True)[0]
    suffix = "vert" if name == "votenet" else "aligned_vert"

    folder = write_export(name, [scene], tmp_path, points="all")

    assert drawn_vertices(folder, scene, suffix) == list(range(600))


def test_drawn_points_are_distinct_vertices_in_mesh_order(process: Process, tmp_path: Path) -> None:
    scene = process(align_axis=True)[0]

    vertices = drawn_vertices(write_export("votenet", [scene], tmp_path, points=200), scene)

    assert len(vertices) == 200
    assert vertices == sorted(set(vertices))


def test_every_vertex_is_drawn_with_the_same_probability(process: Process) -> None:
    scene = process()[0]
    counts = np.zeros(600, int)
    for seed in range(400):
        counts[
            make_format("votenet", ExportOptions(points=150, seed=seed)).choose_vertices(scene)
        ] += 1

    # Of 400 draws, 100 are expected, with a standard deviation of 8.7.
    assert counts.min() > 100 - 45
    assert counts.max() < 100 + 45


@pytest.mark.parametrize("name", NAMES)
def test_all_arrays_of_a_scene_have_the_same_drawn_vertices(
    process: Process, tmp_path: Path, name: str
) -> None:
    whole = write_export(name, process(), tmp_path / "all", points="all")
    drawn = write_export(name, process(), tmp_path / "drawn", points=200)
    scene = process()[0]
    scene_id = scene.meta.scene_id
    chosen = make_format(name, ExportOptions(points=200)).choose_vertices(scene)

    for path in drawn.glob(f"{scene_id}_*.npy"):
        expected = np.load(whole / path.name)
        # Boxes are those of all vertices.
        if not path.stem.endswith("bbox"):
            expected = expected[chosen]
        assert np.load(path).tobytes() == expected.tobytes(), path.name


@pytest.mark.parametrize("name", NAMES)
def test_scene_with_few_vertices_keeps_all_of_them(
    process: Process, tmp_path: Path, name: str
) -> None:
    by_default = write_export(name, process(), tmp_path / "default")
    whole = write_export(name, process(), tmp_path / "all", points="all")

    assert digests(by_default) == digests(whole)


def test_large_scene_has_50000_points_by_default(tmp_path: Path) -> None:
    path = write_scene(make_scene(TRAIN, vertices=50_001), tmp_path / "raw")
    scene = tiny.process_written(RawScene(SceneId(TRAIN), path))

    folder = write_export("votenet", [scene], tmp_path / "out")

    assert load(folder, TRAIN, "vert").shape == (50_000, 6)


def test_draw_is_the_same_with_any_version_of_numpy(process: Process) -> None:
    scene = process()[0]
    chosen = make_format("votenet", ExportOptions(points=8, seed=3)).choose_vertices(scene)

    assert chosen.tolist() == [129, 139, 271, 281, 305, 402, 423, 487]


def test_another_seed_draws_other_points(process: Process) -> None:
    scene = process()[0]
    first, second = (
        make_format("votenet", ExportOptions(points=200, seed=seed)).choose_vertices(scene)
        for seed in (0, 1)
    )

    assert first.tolist() != second.tolist()


def test_scans_of_one_space_have_different_draws(process: Process) -> None:
    export_format = make_format("votenet", ExportOptions(points=200))
    first, second = (export_format.choose_vertices(scene) for scene in process()[:2])

    assert first.tolist() != second.tolist()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"points": 0}, "points is 0, expected a positive number or 'all'"),
        ({"seed": -1}, "seed is -1, expected a number of at least 0"),
        ({"points": "all", "seed": 0}, "all points need no seed"),
    ],
)
def test_wrong_points_and_seeds_are_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        make_format("votenet", ExportOptions(**options))


@pytest.mark.parametrize("options", [{"points": 50_000}, {"points": "all"}, {"seed": 1}])
def test_other_formats_refuse_to_draw_points(options: dict[str, Any]) -> None:
    with pytest.raises(UsageError, match="the format pointcept always has all points") as raised:
        make_format("pointcept", ExportOptions(**options))

    assert raised.value.hint == "leave out --points and --seed"


# The command.


def run_export(place: Path, out_dir: Path, *words: str) -> Outcome:
    return run_main("export", place, "-o", out_dir, "--json", *words)


@pytest.mark.parametrize("name", NAMES)
def test_any_number_of_jobs_gives_the_same_export(
    whole_dir: Path, tmp_path: Path, name: str
) -> None:
    words = ("--format", name, "--points", "300", "--seed", "7")
    for jobs in ("1", "2"):
        outcome = run_export(whole_dir / "processed", tmp_path / jobs, *words, "--jobs", jobs)
        assert outcome.status == 0, outcome.stderr

    assert digests(tmp_path / "1") == digests(tmp_path / "2")


def test_scenes_exported_one_by_one_give_the_same_export(whole_dir: Path, tmp_path: Path) -> None:
    words = ("--format", "scanrefer", "--points", "300")
    for scene_id in (VAL, TEST, TRAIN):
        one_by_one = run_export(
            whole_dir / "processed", tmp_path / "a", *words, "--scenes", scene_id
        )
        assert one_by_one.json["made"] == [scene_id]

    assert run_export(whole_dir / "processed", tmp_path / "b", *words).status == 0

    assert digests(tmp_path / "a") == digests(tmp_path / "b")


@pytest.mark.parametrize("name", NAMES)
def test_export_records_points_and_seed(whole_dir: Path, tmp_path: Path, name: str) -> None:
    assert run_export(whole_dir / "processed", tmp_path / "out", "--format", name).status == 0

    settings = json.loads((tmp_path / "out/export.json").read_text())["settings"]
    assert settings["points"] == 50_000
    assert settings["seed"] == 0


@pytest.mark.parametrize(
    ("words", "change"),
    [
        (("--points", "all"), "(points: 50000 -> all)"),
        (("--points", "300", "--seed", "1"), "(points: 50000 -> 300, seed: 0 -> 1)"),
    ],
)
def test_export_with_other_points_or_seed_is_refused(
    whole_dir: Path, tmp_path: Path, words: tuple[str, ...], change: str
) -> None:
    place = whole_dir / "processed"
    assert run_export(place, tmp_path / "out", "--format", "votenet").status == 0
    before = digests(tmp_path / "out")

    outcome = run_export(place, tmp_path / "out", "--format", "votenet", *words)

    assert outcome.status == 2
    assert f"holds an export with other options {change}" in outcome.json["message"]
    assert digests(tmp_path / "out") == before


def test_second_export_makes_only_the_scene_with_a_missing_file(
    whole_dir: Path, tmp_path: Path
) -> None:
    words = ("--format", "scanrefer", "--points", "300")
    out_dir = tmp_path / "out"
    assert run_export(whole_dir / "processed", out_dir, *words).json["made"] == [TRAIN, VAL, TEST]
    before = digests(out_dir)
    (out_dir / f"{VAL}_aligned_bbox.npy").unlink()

    outcome = run_export(whole_dir / "processed", out_dir, *words)

    assert outcome.json["made"] == [VAL]
    assert digests(out_dir) == before


@pytest.mark.parametrize(
    ("words", "text"),
    [
        ((), "ScanNet20, axis-aligned, up to 50,000 points, drawn with seed 0"),
        (("--points", "all"), "ScanNet20, axis-aligned, all points"),
    ],
)
def test_first_line_names_the_points(
    whole_dir: Path, tmp_path: Path, words: tuple[str, ...], text: str
) -> None:
    outcome = run_main(
        *("export", whole_dir / "processed", "-o", tmp_path / "out", "--format", "votenet"), *words
    )

    assert outcome.stderr.splitlines()[0].endswith(text)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("--points", "0"), "'0' is not a whole number of at least 1"),
        (("--points", "some"), "'some' is not a whole number of at least 1"),
        (("--seed", "-1"), "'-1' is not a whole number"),
    ],
)
def test_wrong_numbers_are_wrong_usage(
    whole_dir: Path, tmp_path: Path, words: tuple[str, ...], message: str
) -> None:
    outcome = run_export(
        whole_dir / "processed", tmp_path / "out", "--format", "votenet", f"{words[0]}={words[1]}"
    )

    assert outcome.status == 2
    assert message in outcome.json["message"]


def test_scene_without_groups_fails_and_the_others_are_exported(
    raw_dir: Path, tmp_path: Path
) -> None:
    for path in raw_dir.rglob(f"{VAL}*.json"):
        path.unlink()
    place = tmp_path / "without_groups"
    assert run_main("process", raw_dir, "-o", place, "--labels-from", "ply").status == 0

    outcome = run_export(place, tmp_path / "out", "--format", "votenet")

    assert outcome.status == 3
    assert outcome.json["made"] == [TRAIN]
    assert [failure["scene_id"] for failure in outcome.json["failures"]] == [VAL]


# The real scene.


@pytest.fixture(scope="module")
def real_export(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The real scene, exported for VoteNet."""
    scene = tiny.process_written(RawScene(SceneId("scene0000_00"), REAL_DIR / "scans/scene0000_00"))
    return write_export("votenet", [scene], tmp_path_factory.mktemp("real"))


def read_real_groups() -> list[dict[str, Any]]:
    path = REAL_DIR / "scans/scene0000_00/scene0000_00.aggregation.json"
    return json.loads(path.read_bytes())["segGroups"]


@pytest.mark.extra("real data")
def test_real_scene_has_the_known_number_of_boxes(real_export: Path) -> None:
    # The annotation of ScanNet v1 is another one. The label map lacks its category `trashcan`.
    is_v1 = any(group["label"] == "trashcan" for group in read_real_groups())

    assert len(load(real_export, "scene0000_00", "bbox")) == (22 if is_v1 else 27)


@pytest.mark.extra("real data")
def test_real_scene_has_the_boxes_of_a_loop_over_the_vertices(real_export: Path) -> None:
    groups = read_real_groups()
    raw = RawScene(SceneId("scene0000_00"), REAL_DIR / "scans/scene0000_00")
    scene = tiny.process_written(raw, align_axis=True)
    path = raw.directory / "scene0000_00_vh_clean_2.0.010000.segs.json"
    segment_ids = json.loads(path.read_bytes())["segIndices"]
    rows = oracles.label_map_rows()

    expected = []
    for group in sorted(groups, key=lambda group: group["objectId"]):
        nyu40_id = rows.get(group["label"], (0, 0))[1]
        if nyu40_id not in BOXES20:
            continue
        members = {*group["segments"]}
        vertices = [index for index, segment in enumerate(segment_ids) if segment in members]
        low = [min(scene.points[index][axis] for index in vertices) for axis in range(3)]
        high = [max(scene.points[index][axis] for index in vertices) for axis in range(3)]
        centers = [float((a + b) / np.float32(2)) for a, b in zip(low, high, strict=True)]
        sizes = [float(b - a) for a, b in zip(low, high, strict=True)]
        expected.append([*centers, *sizes, nyu40_id])
    assert load(real_export, "scene0000_00", "bbox").tolist() == expected


@pytest.mark.extra("real data")
def test_real_scene_has_50000_drawn_points(real_export: Path) -> None:
    assert load(real_export, "scene0000_00", "vert").shape == (50_000, 6)


@pytest.mark.extra("real data")
def test_drawn_points_of_the_real_scene_vote_for_its_boxes(real_export: Path) -> None:
    (sample,) = read_votenet(real_export, Split.TRAIN).values()
    voted = (sample.points + sample.votes)[sample.has_vote]

    targets = sample.centers[: len(sample.classes)]
    distances = np.linalg.norm(voted[:, None] - targets, axis=2).min(axis=1)

    # The box of the drawn points of an object is a little smaller than that of its vertices.
    assert distances.max() < 0.05
