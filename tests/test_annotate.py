"""Tests of the arrays made from raw files: by hand, against loops, and for any groups."""

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import oracles
import pytest
import tiny
from hypothesis import given, settings
from hypothesis import strategies as st
from tiny import Ply, aggregation_file, group, info_file, process_tiny, process_written
from training_sources import check_same

from scannet_prep.errors import AnnotationError, MissingFileError, RawFileError
from scannet_prep.processed.annotate import MAX_GROUPS, Annotation, annotate
from scannet_prep.processed.scene import ProcessedScene, encode_processed
from scannet_prep.processed.scene_problems import find_problems
from scannet_prep.raw.tree import RawScene
from scannet_prep.release import files as release
from scannet_prep.release.irregularities import SceneWarning, WarningKind
from scannet_prep.release.label_map import LabelMap, RawIds, builtin_label_map
from scannet_prep.release.scene import SceneId, Split
from scannet_prep.synthetic import make_scene, write_scene
from scannet_prep.synthetic.scene import SyntheticScene

MESH = "_vh_clean_2.ply"
SEGMENTS = "_vh_clean_2.0.010000.segs.json"
AGGREGATION = ".aggregation.json"
HIRES = "_vh_clean.aggregation.json"
LABELS_MESH = "_vh_clean_2.labels.ply"
INFO = ".txt"
PLY_LABELS = (2, 2, 50, 149, 40, 39)


@pytest.fixture(scope="module")
def tiny_scene(tmp_path_factory) -> ProcessedScene:
    return process_tiny(tmp_path_factory.mktemp("tiny"), faces=True)


def test_tiny_scene_has_the_arrays_found_by_hand(tiny_scene) -> None:
    expected = {
        "points": np.array(tiny.POSITIONS, "<f4"),
        "normals": np.array(tiny.NORMALS).astype("<f2"),
        "colors": np.array(tiny.COLORS, "|u1"),
        "faces": np.array(tiny.FACES, "<i4"),
        "labels": np.array(tiny.LABELS20, "|u1"),
        "nyu40_ids": np.array(tiny.NYU40_IDS, "|u1"),
        "scannet_ids": np.array(tiny.SCANNET_IDS, "<u2"),
        "instances": np.array(tiny.INSTANCES, "<i2"),
        "segments": np.array([0, 0, 1, 1, 2, 3], "<u2"),
        "axis_alignment": np.reshape(tiny.ALIGNMENT, (4, 4)),
    }

    arrays = tiny_scene.arrays()

    check_same({key: array for key, array in arrays.items() if key != "meta"}, expected)


def test_tiny_scene_has_the_raw_ids_of_its_segments(tiny_scene) -> None:
    assert tiny_scene.meta.segment_ids == (0, 2, 4, 5)


def test_tiny_scene_has_the_scene_type_of_its_metadata(tiny_scene) -> None:
    assert tiny_scene.meta.scene_type == "Bedroom / Hotel"


def test_tiny_scene_has_no_warnings(tiny_scene) -> None:
    assert tiny_scene.meta.warnings == ()


def test_tiny_scene_has_no_problems(tiny_scene) -> None:
    assert list(find_problems(tiny_scene)) == []


def test_missing_alignment_is_stored_as_the_identity(tmp_path) -> None:
    scene = process_tiny(tmp_path, {INFO: info_file(alignment=None)}, align_axis=True)

    assert scene.axis_alignment.tolist() == np.eye(4).tolist()


def test_missing_alignment_leaves_points_as_scanned(tmp_path) -> None:
    scene = process_tiny(tmp_path, {INFO: info_file(alignment=None)}, align_axis=True)

    assert (scene.points == np.array(tiny.POSITIONS)).all()


def test_missing_alignment_is_a_warning(tmp_path) -> None:
    scene = process_tiny(tmp_path, {INFO: info_file(alignment=None)}, align_axis=True)

    assert scene.meta.warnings == (SceneWarning(WarningKind.NO_ALIGNMENT),)


@pytest.mark.parametrize(
    "numbers",
    [
        (2.0, *tiny.ALIGNMENT[1:]),
        (*tiny.ALIGNMENT[:15], 2.0),
        tuple(np.diag([1.0, 1.0, -1.0, 1.0]).ravel()),
    ],
    ids=["scaled", "last row", "mirror"],
)
def test_alignment_that_is_not_rigid_is_a_warning(tmp_path, numbers) -> None:
    scene = process_tiny(tmp_path, {INFO: info_file(alignment=numbers)})

    assert [warning.kind for warning in scene.meta.warnings] == [WarningKind.NOT_RIGID]


def test_metadata_is_optional_without_alignment(tmp_path) -> None:
    scene = process_tiny(tmp_path, {INFO: None})

    assert scene.meta.warnings == (SceneWarning(WarningKind.NO_INFO),)


@pytest.mark.parametrize("suffix", [MESH, SEGMENTS, AGGREGATION, INFO])
def test_train_scene_without_a_needed_file_fails_and_names_it(tmp_path, suffix) -> None:
    with pytest.raises(MissingFileError, match="no such file") as caught:
        process_tiny(tmp_path, {suffix: None}, align_axis=True)

    assert caught.value.path.name == f"scene0000_00{suffix}"


@pytest.fixture(scope="module", params=[info_file(alignment=None), None], ids=["info", "no info"])
def scene_of_test_split(request, tmp_path_factory) -> ProcessedScene:
    """A scene of the test split, with or without metadata."""
    files = {SEGMENTS: None, AGGREGATION: None, INFO: request.param}
    return process_tiny(
        tmp_path_factory.mktemp("test"), files, split=Split.TEST, scene_id=tiny.TEST_SCENE_ID
    )


@pytest.mark.parametrize("name", ["stored_labels", "nyu40_ids", "scannet_ids"])
def test_scene_of_the_test_split_has_no_labels(scene_of_test_split, name) -> None:
    assert not getattr(scene_of_test_split, name).any()


def test_scene_of_the_test_split_has_no_instances(scene_of_test_split) -> None:
    assert scene_of_test_split.instances.tolist() == [-1] * 6


def test_scene_of_the_test_split_has_no_segments(scene_of_test_split) -> None:
    assert scene_of_test_split.segments is None


def test_file_of_a_scene_of_the_test_split_has_no_segments(scene_of_test_split) -> None:
    assert "segments" not in scene_of_test_split.arrays()


def test_scene_of_the_test_split_is_not_aligned(scene_of_test_split) -> None:
    assert scene_of_test_split.axis_alignment.tolist() == np.eye(4).tolist()


@pytest.mark.parametrize(
    ("info", "warnings"), [(info_file(alignment=None), ()), (None, (WarningKind.NO_INFO,))]
)
def test_only_missing_metadata_of_a_test_scene_is_a_warning(tmp_path, info, warnings) -> None:
    files = {SEGMENTS: None, AGGREGATION: None, INFO: info}

    scene = process_tiny(tmp_path, files, split=Split.TEST, scene_id=tiny.TEST_SCENE_ID)

    assert scene.meta.warnings == tuple(map(SceneWarning, warnings))


@pytest.fixture
def scene_of_both_groups(tmp_path) -> ProcessedScene:
    """A scene that also has other groups for the high-resolution mesh."""
    other = aggregation_file([group(0, [0, 2, 4, 5], "chair")])
    return process_tiny(tmp_path, {HIRES: other})


def test_high_resolution_groups_are_ignored_if_there_are_others(scene_of_both_groups) -> None:
    assert scene_of_both_groups.stored_labels.tolist() == list(tiny.LABELS20)


def test_ignored_high_resolution_groups_are_no_warning(scene_of_both_groups) -> None:
    assert scene_of_both_groups.meta.warnings == ()


def test_high_resolution_groups_are_used_if_alone(tmp_path) -> None:
    scene = process_tiny(tmp_path, {AGGREGATION: None, HIRES: aggregation_file()})

    assert scene.stored_labels.tolist() == list(tiny.LABELS20)


def test_high_resolution_groups_alone_are_a_warning(tmp_path) -> None:
    scene = process_tiny(tmp_path, {AGGREGATION: None, HIRES: aggregation_file()})

    warning = SceneWarning(WarningKind.HIGH_RESOLUTION_AGGREGATION, HIRES)
    assert scene.meta.warnings == (warning,)


def test_high_resolution_groups_with_other_segments_are_refused(tmp_path) -> None:
    groups = aggregation_file([group(0, [0, 3], "chair")])

    with pytest.raises(AnnotationError, match=r"high-resolution mesh: 1 of its"):
        process_tiny(tmp_path, {AGGREGATION: None, HIRES: groups})


def test_damaged_groups_are_not_replaced_by_high_resolution_ones(tmp_path) -> None:
    with pytest.raises(RawFileError, match=r"is damaged: .* missing required field"):
        process_tiny(tmp_path, {AGGREGATION: b"{}", HIRES: aggregation_file()})


@pytest.fixture(scope="module")
def scene_from_ply(tmp_path_factory) -> ProcessedScene:
    """A scene with groups whose labels are those of labels.ply."""
    files = {LABELS_MESH: Ply(labels=PLY_LABELS).encode()}
    return process_tiny(tmp_path_factory.mktemp("ply"), files, labels_from="ply")


def test_labels_from_ply_replace_the_nyu40_ids(scene_from_ply) -> None:
    assert scene_from_ply.nyu40_ids.tolist() == [2, 2, 0, 0, 40, 39]


def test_labels_from_ply_replace_the_stored_labels(scene_from_ply) -> None:
    assert scene_from_ply.stored_labels.tolist() == [2, 2, 0, 0, 0, 20]


def test_labels_from_ply_keep_the_scannet_ids_of_groups(scene_from_ply) -> None:
    assert scene_from_ply.scannet_ids.tolist() == list(tiny.SCANNET_IDS)


def test_labels_from_ply_keep_the_instances_of_groups(scene_from_ply) -> None:
    assert scene_from_ply.instances.tolist() == list(tiny.INSTANCES)


def test_labels_from_ply_are_a_warning_where_they_differ(scene_from_ply) -> None:
    # One vertex is a wall by the groups, and 40 in labels.ply.
    assert scene_from_ply.meta.warnings == (
        SceneWarning(WarningKind.LABELS_OUTSIDE_NYU40, "50, 149", 2),
        SceneWarning(WarningKind.LABELS_CONTRADICT_GROUPS, count=1),
    )


@pytest.fixture(scope="module")
def scene_without_groups(tmp_path_factory) -> ProcessedScene:
    """A scene without groups whose labels are those of labels.ply."""
    files = {LABELS_MESH: Ply(labels=PLY_LABELS).encode(), AGGREGATION: None}
    return process_tiny(tmp_path_factory.mktemp("no_groups"), files, labels_from="ply")


def test_scene_without_groups_has_labels_from_ply(scene_without_groups) -> None:
    assert scene_without_groups.stored_labels.tolist() == [2, 2, 0, 0, 0, 20]


def test_scene_without_groups_has_no_instances(scene_without_groups) -> None:
    assert scene_without_groups.instances.tolist() == [-1] * 6


def test_scene_without_groups_has_no_scannet_ids(scene_without_groups) -> None:
    assert not scene_without_groups.scannet_ids.any()


def test_scene_without_groups_has_a_warning(scene_without_groups) -> None:
    kinds = [warning.kind for warning in scene_without_groups.meta.warnings]

    assert WarningKind.NO_AGGREGATION in kinds


def test_labels_from_ply_without_groups_are_refused_for_scannet200(tmp_path) -> None:
    files = {LABELS_MESH: Ply(labels=PLY_LABELS).encode(), AGGREGATION: None}

    with pytest.raises(MissingFileError, match=r"no ScanNet ids"):
        process_tiny(tmp_path, files, labels_from="ply", scannet200=True)


def test_labels_ply_without_labels_is_refused(tmp_path) -> None:
    files = {LABELS_MESH: Ply(labels=None).encode()}

    with pytest.raises(RawFileError, match="no property label"):
        process_tiny(tmp_path, files, labels_from="ply")


@pytest.mark.parametrize(
    ("mesh", "problem"),
    [
        (
            Ply(labels=PLY_LABELS, positions=((0, 0, 9), *tiny.POSITIONS[1:])),
            "lie elsewhere",
        ),
        (
            Ply(labels=(1,), positions=((0, 0, 0),), colors=((1, 2, 3),), faces=()),
            "is for 1 vertices, but .* has 6",
        ),
    ],
    ids=["moved vertex", "fewer vertices"],
)
def test_labels_ply_of_another_mesh_is_refused(tmp_path, mesh, problem) -> None:
    with pytest.raises(AnnotationError, match=problem):
        process_tiny(tmp_path, {LABELS_MESH: mesh.encode()}, labels_from="ply")


def test_labels_ply_with_ids_beyond_nyu40_is_refused_as_v1(tmp_path) -> None:
    labels = Ply(labels=(2, 2, 50, 107, 1, 1176)).encode()
    files = {LABELS_MESH: labels, AGGREGATION: None, SEGMENTS: None}

    problem = r"3 of 6 labels are not nyu40 ids .* 50, 107, 1176: .*ScanNet v1"
    with pytest.raises(AnnotationError, match=problem) as caught:
        process_tiny(tmp_path, files, labels_from="ply")

    assert "--labels-from ply" in caught.value.hint


def write_strip(raw_dir, labels, groups) -> RawScene:
    """Write a scene of 20 vertices in two segments, with these labels in labels.ply."""
    positions = [(index, index % 2, 0) for index in range(20)]
    ply = Ply(positions=positions, colors=[(1, 2, 3)] * 20, faces=((0, 1, 2),))
    files = {
        MESH: ply.encode(),
        LABELS_MESH: replace(ply, labels=tuple(labels)).encode(),
        SEGMENTS: tiny.segments_file((0,) * 10 + (10,) * 10),
        AGGREGATION: aggregation_file(groups),
    }
    return tiny.write_tiny(raw_dir, files)


@pytest.mark.parametrize("v1_id", [2, 4, 0])  # a chair is 5; ScanNet id 2 is a chair, 4 a table
def test_labels_ply_that_contradicts_the_groups_is_refused_as_v1(tmp_path, v1_id) -> None:
    scene = write_strip(tmp_path, [v1_id] * 11 + [5] * 9, [group(0, [0, 10], "chair")])

    problem = f"contradict 11 of 20 labels.* vertex 0: {v1_id}, by the groups 5: .* v1"
    with pytest.raises(AnnotationError, match=problem):
        process_written(scene, labels_from="ply")


@pytest.fixture
def half_contradicted_scene(tmp_path) -> ProcessedScene:
    """A scene of which half of the labels contradict the group."""
    scene = write_strip(tmp_path, [2] * 10 + [5] * 10, [group(0, [0, 10], "chair")])
    return process_written(scene, labels_from="ply")


def test_half_of_the_labels_that_contradict_groups_are_a_warning(half_contradicted_scene) -> None:
    warning = SceneWarning(WarningKind.LABELS_CONTRADICT_GROUPS, count=10)
    assert half_contradicted_scene.meta.warnings == (warning,)


def test_labels_that_contradict_groups_are_kept(half_contradicted_scene) -> None:
    assert half_contradicted_scene.nyu40_ids.tolist() == [2] * 10 + [5] * 10


@pytest.fixture(
    params=[
        ([1] * 20, [group(0, [0, 10], "wall"), group(1, [0, 10], "floor")]),
        ([2] * 20, [group(0, [0, 10], "wall"), group(1, [0, 10], "floor")]),
        ([39] * 20, [group(0, [0, 10], "dishrack")]),
        ([5] * 10 + [7] * 10, [group(0, [0], "chair")]),
        ([5] * 10 + [0] * 10, [group(0, [0], "chair")] * 2),
        ([50] * 20, [group(0, [0, 10], "chair")]),
    ],
    ids=[
        "first of overlapping groups",
        "last of overlapping groups",
        "category of no label map",
        "groups missing",
        "groups listed twice",
        "known id outside nyu40",
    ],
)
def labels_as_designed(request, tmp_path) -> tuple[list[int], ProcessedScene]:
    """Labels that differ from the groups as those of the release do, and their scene."""
    labels, groups = request.param
    return labels, process_written(write_strip(tmp_path, labels, groups), labels_from="ply")


def test_differences_by_design_of_the_release_do_not_contradict(labels_as_designed) -> None:
    _, scene = labels_as_designed

    kinds = {warning.kind for warning in scene.meta.warnings}
    assert WarningKind.LABELS_CONTRADICT_GROUPS not in kinds


def test_labels_that_differ_by_design_of_the_release_are_kept(labels_as_designed) -> None:
    labels, scene = labels_as_designed

    assert scene.nyu40_ids.tolist() == [0 if label == 50 else label for label in labels]


def test_mesh_that_is_a_labels_ply_is_refused(tmp_path) -> None:
    scene = tiny.write_tiny(tmp_path, {LABELS_MESH: Ply(labels=PLY_LABELS).encode()})
    path = scene.directory / f"{scene.scene_id}{MESH}"
    path.unlink()
    path.symlink_to(f"{scene.scene_id}{LABELS_MESH}")

    with pytest.raises(RawFileError, match=r"labels\.ply under the name of the mesh"):
        process_written(scene)


@dataclass(frozen=True)
class SyntheticCase:
    """A synthetic scene, its files, and the scene that is processed from them."""

    made: SyntheticScene
    raw: RawScene
    options: dict[str, Any]
    scene: ProcessedScene

    @property
    def is_200_aligned(self) -> bool:
        return "scannet200" in self.options

    def expected_ids(self) -> tuple[list[int], list[int], list[int]]:
        groups = [
            {"id": group.id, "label": group.raw_category, "segments": group.segment_ids}
            for group in self.made.groups
        ]
        return oracles.ids_of_vertices(self.made.segment_ids.tolist(), groups)

    def exact_points(self) -> Any:
        alignment = self.made.axis_alignment if self.is_200_aligned else np.eye(4)
        return oracles.aligned_points(self.made.positions, alignment)


@pytest.fixture(
    scope="module",
    params=[
        {},
        {"scannet200": True, "align_axis": True, "faces": True},
        {"labels_from": "ply"},
    ],
    ids=["defaults", "200 classes, aligned", "labels.ply"],
)
def synthetic(request, tmp_path_factory) -> SyntheticCase:
    made = make_scene(tiny.SCENE_ID, vertices=600, seed=3, repeats_groups=True)
    path = write_scene(made, tmp_path_factory.mktemp("synthetic"))
    raw = RawScene(SceneId(tiny.SCENE_ID), path)
    return SyntheticCase(made, raw, request.param, process_written(raw, **request.param))


def test_synthetic_scene_is_processed_to_the_same_bytes_each_time(synthetic) -> None:
    again = process_written(synthetic.raw, **synthetic.options)

    assert encode_processed(again) == encode_processed(synthetic.scene)


def test_ids_of_a_synthetic_scene_equal_the_loops(synthetic) -> None:
    assert ids(synthetic.scene) == synthetic.expected_ids()


def test_labels_of_a_synthetic_scene_equal_the_loops(synthetic) -> None:
    nyu40_ids, scannet_ids, _ = synthetic.expected_ids()

    if synthetic.is_200_aligned:
        expected = oracles.labels200(scannet_ids)
    else:
        expected = oracles.labels20(nyu40_ids)
    assert synthetic.scene.stored_labels.tolist() == expected


def test_points_of_a_synthetic_scene_equal_the_loops(synthetic) -> None:
    assert synthetic.scene.points.tobytes() == np.float32(synthetic.exact_points()).tobytes()


def test_normals_of_a_synthetic_scene_equal_the_loops(synthetic) -> None:
    normals = oracles.vertex_normals(synthetic.exact_points(), synthetic.made.faces.tolist())

    expected = np.array(normals).astype(np.float16).astype(float)
    assert np.abs(synthetic.scene.normals.astype(float) - expected).max() <= 2**-11


def test_repeated_groups_of_a_synthetic_scene_are_a_warning(synthetic) -> None:
    count = len(synthetic.made.groups) // 2

    assert SceneWarning(WarningKind.REPEATED_GROUPS, count=count) in synthetic.scene.meta.warnings


def test_synthetic_scene_has_no_problems(synthetic) -> None:
    assert list(find_problems(synthetic.scene)) == []


def annotate_groups(
    groups, segment_ids=tiny.SEGMENT_IDS, label_map: LabelMap | None = None
) -> Annotation:
    segmentation = tiny.read_raw(release.SEGMENTS, tiny.segments_file(segment_ids))
    aggregation = tiny.read_raw(release.AGGREGATION, tiny.aggregation_file(groups))
    return annotate(segmentation, aggregation, label_map or builtin_label_map())


def ids(result: Annotation | ProcessedScene) -> tuple[list[int], list[int], list[int]]:
    return result.nyu40_ids.tolist(), result.scannet_ids.tolist(), result.instances.tolist()


@pytest.fixture(scope="module")
def annotation_of_repeated_groups() -> Annotation:
    """The annotation of a file that lists the groups twice, the second time with other ids."""
    repeated = [
        tiny_group | {"id": tiny_group["id"] + 2, "objectId": 31 + tiny_group["id"]}
        for tiny_group in tiny.GROUPS
    ]
    return annotate_groups([*tiny.GROUPS, *repeated])


def test_repeated_groups_change_no_ids(annotation_of_repeated_groups) -> None:
    assert ids(annotation_of_repeated_groups) == ids(annotate_groups(tiny.GROUPS))


def test_repeated_groups_are_listed_once(annotation_of_repeated_groups) -> None:
    assert [group.id for group in annotation_of_repeated_groups.groups] == [0, 1]


def test_repeated_groups_are_one_warning_with_their_number(annotation_of_repeated_groups) -> None:
    warning = SceneWarning(WarningKind.REPEATED_GROUPS, count=2)
    assert annotation_of_repeated_groups.warnings == (warning,)


def test_repeated_group_overrides_no_later_group() -> None:
    groups = [group(0, [0, 2], "chair"), group(1, [2], "table"), group(2, [2, 0, 0], "chair")]

    annotation = annotate_groups(groups)

    assert annotation.instances.tolist() == [0, 0, 1, 1, -1, -1]


def test_ids_of_a_repeated_group_equal_the_loops() -> None:
    groups = [group(0, [0, 2], "chair"), group(1, [2], "table"), group(2, [2, 0, 0], "chair")]

    annotation = annotate_groups(groups)

    assert ids(annotation) == oracles.ids_of_vertices(tiny.SEGMENT_IDS, groups)


@pytest.fixture(scope="module")
def annotation_of_unknown_categories() -> Annotation:
    return annotate_groups(
        [group(0, [0], "trashcan"), group(1, [2], "dishrack"), group(2, [4], "trashcan")]
    )


def test_group_of_an_unknown_category_is_an_unlabeled_instance(
    annotation_of_unknown_categories,
) -> None:
    assert ids(annotation_of_unknown_categories) == ([0] * 6, [0] * 6, [0, 0, 1, 1, 2, -1])


def test_unknown_category_is_one_warning_that_counts_its_groups(
    annotation_of_unknown_categories,
) -> None:
    assert annotation_of_unknown_categories.warnings == (
        SceneWarning(WarningKind.UNKNOWN_CATEGORY, "'trashcan' (did you mean 'trash can'?)", 2),
        SceneWarning(WarningKind.UNKNOWN_CATEGORY, "'dishrack' (did you mean 'dish rack'?)", 1),
    )


@pytest.mark.parametrize("name", ["Chair", " chair", "chair ", "chairs\u200b"])
def test_warning_of_a_misspelt_category_suggests_the_right_one(name) -> None:
    annotation = annotate_groups([group(0, [0], name)])

    (warning,) = annotation.warnings
    assert warning.subject == f"{name!r} (did you mean 'chair'?)"


@pytest.fixture(scope="module")
def annotation_of_odd_group() -> Annotation:
    """The annotation of a group with ids that are strings, null, or of no segment."""
    segment_ids = ["0", None, "2", 1, 999_999, 10**30, -4, None]
    return annotate_groups([group("3", segment_ids, "chair", "8")])


def test_segment_ids_and_group_ids_may_be_strings(annotation_of_odd_group) -> None:
    assert annotation_of_odd_group.instances.tolist() == [3, 3, 3, 3, -1, -1]


def test_object_id_may_be_a_string(annotation_of_odd_group) -> None:
    assert annotation_of_odd_group.groups[0].object_id == 8


def test_null_and_unknown_segment_ids_are_counted(annotation_of_odd_group) -> None:
    counts = {warning.kind: warning.count for warning in annotation_of_odd_group.warnings}

    assert counts == {WarningKind.NULL_SEGMENTS: 2, WarningKind.UNKNOWN_SEGMENTS: 4}


@pytest.fixture(params=[(None, 1), (7, 7), (0, 40_000), (-1, 0), (10**40, 0)])
def annotation_of_unusable_ids(request) -> Annotation:
    """The annotation of two groups whose ids are missing, equal or out of range."""
    first, second = request.param
    return annotate_groups([group(first, [0], "chair", 4), group(second, [2], "table", 4)])


def test_unusable_group_ids_are_replaced_by_the_file_order(annotation_of_unusable_ids) -> None:
    assert annotation_of_unusable_ids.instances.tolist() == [0, 0, 1, 1, -1, -1]


def test_replaced_group_ids_are_a_warning_with_their_number(annotation_of_unusable_ids) -> None:
    counts = [(warning.kind, warning.count) for warning in annotation_of_unusable_ids.warnings]

    assert counts == [(WarningKind.RENUMBERED_GROUPS, 2)]


def test_as_many_groups_as_int16_can_number_are_annotated() -> None:
    groups = [group(number, [number], "chair") for number in range(MAX_GROUPS)]

    annotation = annotate_groups(groups, tuple(range(MAX_GROUPS + 1)))

    assert annotation.instances.tolist() == [*range(MAX_GROUPS), -1]


def test_more_groups_than_int16_can_number_are_an_error(tmp_path) -> None:
    groups = [group(number, [number], "chair") for number in range(MAX_GROUPS + 1)]

    problem = r"scene0000_00\.aggregation\.json: has 32,768 groups"
    with pytest.raises(AnnotationError, match=problem):
        process_tiny(tmp_path, {AGGREGATION: aggregation_file(groups)})


@pytest.fixture(scope="module")
def annotation_of_other_label_map() -> Annotation:
    """The annotation with a label map that has other ids for two categories."""
    changed = {"floor": RawIds(9, 9), "desk": RawIds(1, 1)}
    label_map = LabelMap("other.tsv", {**builtin_label_map().rows, **changed})
    return annotate_groups(tiny.GROUPS, label_map=label_map)


def test_label_map_that_differs_from_the_built_in_one_is_used(
    annotation_of_other_label_map,
) -> None:
    annotation = annotation_of_other_label_map

    assert RawIds(annotation.scannet_ids[0], annotation.nyu40_ids[0]) == RawIds(9, 9)


def test_label_map_that_differs_from_the_built_in_one_is_a_warning(
    annotation_of_other_label_map,
) -> None:
    kinds = [warning.kind for warning in annotation_of_other_label_map.warnings]

    assert kinds == [WarningKind.LABEL_MAP_DIFFERS]


def test_warning_of_a_label_map_shows_its_ids_and_the_built_in_ones(
    annotation_of_other_label_map,
) -> None:
    text = annotation_of_other_label_map.warnings[0].text

    assert "'floor' is ScanNet id 9, nyu40 id 9 in" in text
    assert "but ScanNet id 3, nyu40 id 2 in the built-in" in text


NAMES = st.sampled_from(
    ["wall", "floor", "chair", "wardrobe cabinet", "rug", "trashcan", "stick", "ceiling"]
)
SEGMENT_LISTS = st.lists(st.integers(0, 12), min_size=1, max_size=30)


@st.composite
def groups_of_any_kind(draw: st.DrawFn) -> list[dict]:
    members = draw(st.lists(st.tuples(NAMES, st.lists(st.integers(0, 15), max_size=6)), max_size=8))
    numbers = draw(st.permutations(range(len(members))))
    return [
        group(number, list(segments), name)
        for number, (name, segments) in zip(numbers, members, strict=True)
    ]


@given(segment_ids=SEGMENT_LISTS, groups=groups_of_any_kind())
@settings(max_examples=40)
def test_any_annotation_equals_the_loops(segment_ids, groups) -> None:
    assert ids(annotate_groups(groups, tuple(segment_ids))) == oracles.ids_of_vertices(
        segment_ids, groups
    )
