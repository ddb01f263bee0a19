"""Tests of the arrays made from raw files: by hand, against loops, and for any groups."""

from dataclasses import replace

import numpy as np
import oracles
import pytest
import tiny
from hypothesis import given, settings
from hypothesis import strategies as st
from tiny import Ply, aggregation_file, group, info_file, process_tiny, process_written
from training_sources import check_same

from scannet_prep.base.errors import AnnotationError, MissingFileError, RawFileError
from scannet_prep.base.typed_json import make_decoder, parse_json
from scannet_prep.processed.annotate import MAX_GROUPS, Annotation, annotate
from scannet_prep.processed.scene import encode_processed, find_problems
from scannet_prep.raw.layout import RawScene
from scannet_prep.release import files as release
from scannet_prep.release.label_map import LabelMap, RawIds, builtin_label_map
from scannet_prep.release.scene import SceneId, Split
from scannet_prep.release.scene_warnings import SceneWarning, WarningKind
from scannet_prep.synthetic import make_scene, write_scene

MESH = "_vh_clean_2.ply"
SEGMENTS = "_vh_clean_2.0.010000.segs.json"
AGGREGATION = ".aggregation.json"
HIRES = "_vh_clean.aggregation.json"
LABELS_MESH = "_vh_clean_2.labels.ply"
INFO = ".txt"
PLY_LABELS = (2, 2, 50, 149, 40, 39)


def test_tiny_scene_has_the_values_and_types_found_by_hand(tmp_path) -> None:
    scene = process_tiny(tmp_path, faces=True)
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
    check_same({key: array for key, array in scene.arrays().items() if key != "meta"}, expected)
    assert scene.meta.segment_ids == (0, 2, 4, 5)
    assert scene.meta.scene_type == "Bedroom / Hotel"
    assert scene.meta.warnings == ()
    assert list(find_problems(scene)) == []


def test_missing_alignment_leaves_points_as_scanned_with_a_warning(tmp_path) -> None:
    scene = process_tiny(tmp_path, {INFO: info_file(alignment=None)}, align_axis=True)

    assert scene.axis_alignment.tolist() == np.eye(4).tolist()
    assert (scene.points == np.array(tiny.POSITIONS)).all()
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


@pytest.mark.parametrize(
    ("info", "warnings"), [(info_file(alignment=None), ()), (None, (WarningKind.NO_INFO,))]
)
def test_test_scene_is_made_without_annotation(tmp_path, info, warnings) -> None:
    files = {SEGMENTS: None, AGGREGATION: None, INFO: info}
    scene = process_tiny(tmp_path, files, split=Split.TEST, scene_id=tiny.TEST_SCENE_ID)
    assert not any(ids.any() for ids in (scene.stored_labels, scene.nyu40_ids, scene.scannet_ids))
    assert scene.instances.tolist() == [-1] * 6
    assert scene.segments is None
    assert "segments" not in scene.arrays()
    assert scene.axis_alignment.tolist() == np.eye(4).tolist()
    assert scene.meta.warnings == tuple(map(SceneWarning, warnings))


def test_high_resolution_groups_are_ignored_if_there_are_others(tmp_path) -> None:
    other = aggregation_file([group(0, [0, 2, 4, 5], "chair")])

    scene = process_tiny(tmp_path, {HIRES: other})

    assert scene.stored_labels.tolist() == list(tiny.LABELS20)
    assert scene.meta.warnings == ()


def test_high_resolution_groups_are_used_with_a_warning_if_alone(tmp_path) -> None:
    scene = process_tiny(tmp_path, {AGGREGATION: None, HIRES: aggregation_file()})

    assert scene.stored_labels.tolist() == list(tiny.LABELS20)
    warning = SceneWarning(WarningKind.HIGH_RESOLUTION_AGGREGATION, HIRES)
    assert scene.meta.warnings == (warning,)


def test_high_resolution_groups_with_other_segments_are_refused(tmp_path) -> None:
    groups = aggregation_file([group(0, [0, 3], "chair")])

    with pytest.raises(AnnotationError, match=r"high-resolution mesh: 1 of its"):
        process_tiny(tmp_path, {AGGREGATION: None, HIRES: groups})


def test_damaged_groups_are_not_replaced_by_high_resolution_ones(tmp_path) -> None:
    with pytest.raises(RawFileError, match=r"is damaged: .* missing required field"):
        process_tiny(tmp_path, {AGGREGATION: b"{}", HIRES: aggregation_file()})


def test_labels_from_ply_replace_only_the_nyu40_ids(tmp_path) -> None:
    files = {LABELS_MESH: Ply(labels=PLY_LABELS).encode()}

    scene = process_tiny(tmp_path, files, labels_from="ply")

    assert scene.nyu40_ids.tolist() == [2, 2, 0, 0, 40, 39]
    assert scene.stored_labels.tolist() == [2, 2, 0, 0, 0, 20]
    assert scene.scannet_ids.tolist() == list(tiny.SCANNET_IDS)
    assert scene.instances.tolist() == list(tiny.INSTANCES)
    # One vertex is a wall by the groups, and 40 in labels.ply.
    assert scene.meta.warnings == (
        SceneWarning(WarningKind.LABELS_OUTSIDE_NYU40, "50, 149", 2),
        SceneWarning(WarningKind.LABELS_CONTRADICT_GROUPS, count=1),
    )


def test_labels_from_ply_without_groups_have_no_instances(tmp_path) -> None:
    files = {LABELS_MESH: Ply(labels=PLY_LABELS).encode(), AGGREGATION: None}

    scene = process_tiny(tmp_path, files, labels_from="ply")

    assert scene.stored_labels.tolist() == [2, 2, 0, 0, 0, 20]
    assert scene.instances.tolist() == [-1] * 6
    assert not scene.scannet_ids.any()
    assert WarningKind.NO_AGGREGATION in [warning.kind for warning in scene.meta.warnings]


def test_labels_from_ply_without_groups_are_refused_for_scannet200(tmp_path) -> None:
    files = {LABELS_MESH: Ply(labels=PLY_LABELS).encode(), AGGREGATION: None}

    with pytest.raises(MissingFileError, match=r"no ScanNet ids"):
        process_tiny(tmp_path, files, labels_from="ply", scannet200=True)


def test_labels_ply_of_another_mesh_is_refused(tmp_path) -> None:
    moved = ((0, 0, 9), *tiny.POSITIONS[1:])
    small = Ply(labels=(1,), positions=((0, 0, 0),), colors=((1, 2, 3),), faces=())
    with pytest.raises(RawFileError, match="no property label"):
        process_tiny(tmp_path / "none", {LABELS_MESH: Ply(labels=None).encode()}, labels_from="ply")
    for mesh, problem in (
        (Ply(labels=PLY_LABELS, positions=moved), "lie elsewhere"),
        (small, "is for 1 vertices, but .* has 6"),
    ):
        with pytest.raises(AnnotationError, match=problem):
            process_tiny(tmp_path / problem, {LABELS_MESH: mesh.encode()}, labels_from="ply")


def test_labels_ply_with_ids_beyond_nyu40_is_refused_as_v1(tmp_path) -> None:
    labels = Ply(labels=(2, 2, 50, 107, 1, 1176)).encode()
    with pytest.raises(
        AnnotationError, match=r"3 of 6 labels are not nyu40 ids .* 50, 107, 1176: .*ScanNet v1"
    ) as got:
        process_tiny(
            tmp_path, {LABELS_MESH: labels, AGGREGATION: None, SEGMENTS: None}, labels_from="ply"
        )
    assert "--labels-from ply" in got.value.hint


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
    groups = [group(0, [0, 10], "chair")]
    scene = write_strip(tmp_path, [v1_id] * 11 + [5] * 9, groups)
    with pytest.raises(
        AnnotationError,
        match=f"contradict 11 of 20 labels.* vertex 0: {v1_id}, by the groups 5: .* v1",
    ):
        process_written(scene, labels_from="ply")


def test_few_labels_that_contradict_the_groups_are_a_warning(tmp_path) -> None:
    scene = process_written(
        write_strip(tmp_path, [2] * 10 + [5] * 10, [group(0, [0, 10], "chair")]), labels_from="ply"
    )
    assert scene.meta.warnings == (SceneWarning(WarningKind.LABELS_CONTRADICT_GROUPS, count=10),)
    assert scene.nyu40_ids.tolist() == [2] * 10 + [5] * 10


@pytest.mark.parametrize(
    ("labels", "groups"),
    [
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
def test_differences_by_design_of_the_release_do_not_contradict(tmp_path, labels, groups) -> None:
    scene = process_written(write_strip(tmp_path, labels, groups), labels_from="ply")
    assert WarningKind.LABELS_CONTRADICT_GROUPS not in {
        warning.kind for warning in scene.meta.warnings
    }
    assert scene.nyu40_ids.tolist() == [0 if label == 50 else label for label in labels]


def test_mesh_that_is_a_labels_ply_is_refused(tmp_path) -> None:
    scene = tiny.write_tiny(tmp_path, {LABELS_MESH: Ply(labels=PLY_LABELS).encode()})
    path = scene.directory / f"{scene.scene_id}{MESH}"
    path.unlink()
    path.symlink_to(f"{scene.scene_id}{LABELS_MESH}")
    with pytest.raises(RawFileError, match=r"labels\.ply under the name of the mesh"):
        process_written(scene)


@pytest.mark.parametrize(
    "options", [{}, {"scannet200": True, "align_axis": True, "faces": True}, {"labels_from": "ply"}]
)
def test_synthetic_scene_equals_loops_and_is_reproducible(tmp_path, options) -> None:
    made = make_scene(tiny.SCENE_ID, vertices=600, seed=3, repeats_groups=True)
    raw_scene = RawScene(SceneId(tiny.SCENE_ID), write_scene(made, tmp_path).parent)
    scene = process_written(raw_scene, **options)
    assert encode_processed(scene) == encode_processed(process_written(raw_scene, **options))
    groups = [{"id": g.id, "label": g.raw_category, "segments": g.segment_ids} for g in made.groups]
    nyu40_ids, scannet_ids, instances = oracles.ids_of_vertices(made.segment_ids.tolist(), groups)
    assert scene.nyu40_ids.tolist() == nyu40_ids
    assert scene.scannet_ids.tolist() == scannet_ids
    assert scene.instances.tolist() == instances
    is_200 = "scannet200" in options  # and aligned
    assert scene.stored_labels.tolist() == (
        oracles.labels200(scannet_ids) if is_200 else oracles.labels20(nyu40_ids)
    )
    exact = oracles.aligned_points(made.positions, made.axis_alignment if is_200 else np.eye(4))
    assert scene.points.tobytes() == np.float32(exact).tobytes()
    expected = np.array(oracles.vertex_normals(exact, made.faces.tolist())).astype(np.float16)
    assert np.abs(scene.normals.astype(float) - expected.astype(float)).max() <= 2**-11
    assert (
        SceneWarning(WarningKind.REPEATED_GROUPS, count=len(made.groups) // 2)
        in scene.meta.warnings
    )
    assert list(find_problems(scene)) == []


def annotate_groups(
    groups, segment_ids=tiny.SEGMENT_IDS, label_map: LabelMap | None = None
) -> Annotation:
    segmentation = tiny.read_raw(release.SEGMENTS, tiny.segments_file(segment_ids))
    aggregation = tiny.read_raw(release.AGGREGATION, tiny.aggregation_file(groups))
    return annotate(segmentation, aggregation, label_map or builtin_label_map())


def ids(found: Annotation) -> tuple[list[int], list[int], list[int]]:
    return found.nyu40_ids.tolist(), found.scannet_ids.tolist(), found.instances.tolist()


def test_repeated_group_counts_once_and_overrides_no_later_group() -> None:
    groups = [
        *tiny.GROUPS,
        *(item | {"id": item["id"] + 2, "objectId": 31 + item["id"]} for item in tiny.GROUPS),
    ]
    found = annotate_groups(groups)
    assert ids(found) == ids(annotate_groups(tiny.GROUPS))
    assert [item.id for item in found.groups] == [0, 1]
    assert found.warnings == (SceneWarning(WarningKind.REPEATED_GROUPS, count=2),)
    groups = [group(0, [0, 2], "chair"), group(1, [2], "table"), group(2, [2, 0, 0], "chair")]
    found = annotate_groups(groups)
    assert found.instances.tolist() == [0, 0, 1, 1, -1, -1]
    assert ids(found) == oracles.ids_of_vertices(tiny.SEGMENT_IDS, groups)


def test_unknown_category_is_unlabeled_with_one_warning_per_name() -> None:
    found = annotate_groups(
        [group(0, [0], "trashcan"), group(1, [2], "dishrack"), group(2, [4], "trashcan")]
    )
    assert ids(found) == ([0] * 6, [0] * 6, [0, 0, 1, 1, 2, -1])
    assert found.warnings == (
        SceneWarning(WarningKind.UNKNOWN_CATEGORY, "'trashcan' (did you mean 'trash can'?)", 2),
        SceneWarning(WarningKind.UNKNOWN_CATEGORY, "'dishrack' (did you mean 'dish rack'?)", 1),
    )
    names = ["Chair", " chair", "chair ", "chairs\u200b"]
    found = annotate_groups([group(number, [0], name) for number, name in enumerate(names)])
    assert [warning.subject for warning in found.warnings] == [
        f"{name!r} (did you mean 'chair'?)" for name in names
    ]


def test_null_and_unknown_segment_ids_are_counted_and_strings_read() -> None:
    found = annotate_groups(
        [group("3", ["0", None, "2", 1, 999_999, 10**30, -4, None], "chair", "8")]
    )
    assert found.instances.tolist() == [3, 3, 3, 3, -1, -1]
    assert found.groups[0].object_id == 8
    counts = {item.kind: item.count for item in found.warnings}
    assert counts == {WarningKind.NULL_SEGMENTS: 2, WarningKind.UNKNOWN_SEGMENTS: 4}


@pytest.mark.parametrize(
    ("first", "second"), [(None, 1), (7, 7), (0, 40_000), (-1, 0), (10**40, 0)]
)
def test_unusable_group_ids_are_replaced_by_the_file_order(first, second) -> None:
    found = annotate_groups([group(first, [0], "chair", 4), group(second, [2], "table", 4)])
    assert found.instances.tolist() == [0, 0, 1, 1, -1, -1]
    assert [(item.kind, item.count) for item in found.warnings] == [
        (WarningKind.RENUMBERED_GROUPS, 2)
    ]


def test_more_groups_than_int16_can_number_are_an_error(tmp_path) -> None:
    groups = [group(number, [number], "chair") for number in range(MAX_GROUPS + 1)]
    found = annotate_groups(groups[:-1], tuple(range(MAX_GROUPS + 1)))
    assert found.instances.tolist() == [*range(MAX_GROUPS), -1]
    with pytest.raises(
        AnnotationError, match=r"scene0000_00\.aggregation\.json: has 32,768 groups"
    ):
        process_tiny(tmp_path, {AGGREGATION: aggregation_file(groups)})


def test_label_map_that_differs_from_the_built_in_one_is_used_and_warned_of() -> None:
    other = LabelMap(
        "other.tsv", {**builtin_label_map().rows, "floor": RawIds(9, 9), "desk": RawIds(1, 1)}
    )
    found = annotate_groups(tiny.GROUPS, label_map=other)
    assert found.scannet_ids[0] == 9
    assert found.nyu40_ids[0] == 9
    assert [warning.kind for warning in found.warnings] == [WarningKind.LABEL_MAP_DIFFERS]
    assert "'floor' is ScanNet id 9, nyu40 id 9 in" in found.warnings[0].text
    assert "but ScanNet id 3, nyu40 id 2 in the built-in" in found.warnings[0].text


def test_warning_kind_of_earlier_versions_is_still_read() -> None:
    stored = b'{"kind": "ambiguous_category", "subject": "\'wall\' is both", "count": 2}'
    assert "'wall' is both in the label map" in parse_json(stored, make_decoder(SceneWarning)).text


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
