"""The arrays made from raw files: by hand, against loops, and for any groups."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import oracles
import pytest
import tiny
from commands import edit_json, repeat_groups
from hypothesis import given, settings
from hypothesis import strategies as st
from oracles import check_same, find_problems
from tiny import Ply, aggregation_file, group, info_file, process_tiny, process_written

from scannet_prep.base.files import Fingerprint
from scannet_prep.errors import FileError, MissingFileError
from scannet_prep.processed.annotate import MAX_GROUPS, annotate, measure_groups
from scannet_prep.processed.scene import encode_processed
from scannet_prep.raw.tree import list_raw
from scannet_prep.release import files as release
from scannet_prep.release.irregularities import SceneWarning, WarningKind
from scannet_prep.release.label_map import builtin_label_map
from scannet_prep.release.scenes import Split
from scannet_prep.synthetic import make_scene, write_scene

MESH = "_vh_clean_2.ply"
SEGMENTS = "_vh_clean_2.0.010000.segs.json"
AGGREGATION = ".aggregation.json"
HIRES = "_vh_clean.aggregation.json"
LABELS_MESH = "_vh_clean_2.labels.ply"
INFO = ".txt"
PLY_LABELS = (2, 2, 50, 149, 40, 39)


def ids(result):
    """Return nyu40 ids, ScanNet ids and instances of a scene or an annotation."""
    return result.nyu40_ids.tolist(), result.scannet_ids.tolist(), result.instances.tolist()


def test_tiny_scene_has_the_arrays_found_by_hand(tmp_path):
    scene = process_tiny(tmp_path, faces=True)

    arrays = scene.arrays()
    del arrays["meta"]
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
    check_same(arrays, expected)
    assert scene.meta.segment_ids == (0, 2, 4, 5)
    assert scene.meta.scene_type == "Bedroom / Hotel"
    assert scene.meta.warnings == ()
    paths = Path(tmp_path, "scans", tiny.SCENE_ID).iterdir()
    assert scene.meta.inputs == {path.name: Fingerprint.from_file(path) for path in paths}
    assert scene.meta.label_map == builtin_label_map().digest
    assert not list(find_problems(scene))


@pytest.mark.parametrize(
    ("info", "kind"),
    [
        (info_file(alignment=None), WarningKind.NO_ALIGNMENT),
        (None, WarningKind.NO_INFO),
        (info_file(alignment=(1e-3, *tiny.ALIGNMENT[1:])), WarningKind.NOT_RIGID),
        (info_file(alignment=(*tiny.ALIGNMENT[:15], 2.0)), WarningKind.NOT_RIGID),
        # A mirror.
        (
            info_file(alignment=(*tiny.ALIGNMENT[:10], -1.0, *tiny.ALIGNMENT[11:])),
            WarningKind.NOT_RIGID,
        ),
    ],
)
def test_unusual_alignment_is_a_warning_and_a_missing_one_is_the_identity(tmp_path, info, kind):
    scene = process_tiny(tmp_path, {INFO: info}, align_axis=info is not None)

    (warning,) = scene.meta.warnings
    assert warning.kind is kind
    if kind is not WarningKind.NOT_RIGID:
        assert scene.axis_alignment.tolist() == np.eye(4).tolist()
        assert (scene.points == np.array(tiny.POSITIONS)).all()


BARE = {SEGMENTS: None, AGGREGATION: None, INFO: None}


def process_own(raw_dir, files, **options):
    return process_tiny(raw_dir, files, split=Split.TEST, scene_id="room", **options)


def test_scene_of_the_test_split_is_made_of_what_is_there(tmp_path):
    files = BARE | {INFO: info_file(alignment=None)}
    release = process_tiny(
        tmp_path / "scans/v2", files, split=Split.TEST, scene_id=tiny.TEST_SCENE_ID
    )
    own = process_own(tmp_path / "own", BARE, align_axis=True, labels_from="ply")
    for scene in (release, own):
        assert ids(scene) == ([0] * 6, [0] * 6, [-1] * 6)
        assert not scene.stored_labels.any()
        assert not {"segments", "faces"} & scene.arrays().keys()
        assert scene.meta.label_map == ""
    assert release.meta.warnings == ()

    annotated = process_own(tmp_path / "annotated", {})
    assert annotated.instances.tolist() == list(tiny.INSTANCES)
    assert {warning.kind for warning in annotated.meta.warnings} == {WarningKind.OTHER_SCENE}
    with pytest.raises(MissingFileError, match=r"segs\.json: no such file"):
        process_own(tmp_path / "groups", BARE | {AGGREGATION: aggregation_file()})


@pytest.mark.parametrize("suffix", [MESH, SEGMENTS, AGGREGATION, INFO])
def test_train_scene_without_a_needed_file_fails_and_names_it(tmp_path, suffix):
    with pytest.raises(MissingFileError, match=rf"scene0000_00{suffix}: no such file\n.*download"):
        process_tiny(tmp_path, {suffix: None}, align_axis=True)


def test_high_resolution_groups_are_used_only_if_there_are_no_others(tmp_path):
    other = aggregation_file([group(0, [0, 2, 4, 5], "chair")])
    both = process_tiny(tmp_path / "both", {HIRES: other})
    alone = process_tiny(
        tmp_path / "alone", {AGGREGATION: None, HIRES: aggregation_file(scene_id="")}
    )

    assert ids(both) == ids(alone)
    assert both.instances.tolist() == list(tiny.INSTANCES)
    assert both.meta.warnings == ()
    assert alone.meta.warnings == (SceneWarning(WarningKind.HIGH_RESOLUTION_AGGREGATION, HIRES),)


def test_labels_ply_replaces_nyu40_ids_and_nothing_else(tmp_path):
    files = labeled()
    scene = process_tiny(tmp_path / "groups", files, labels_from="ply")
    alone = process_tiny(tmp_path / "alone", files | {AGGREGATION: None}, labels_from="ply")

    nyu40_ids = [2, 2, 0, 0, 40, 39]
    assert scene.stored_labels.tolist() == [2, 2, 0, 0, 0, 20]
    assert ids(scene) == (nyu40_ids, list(tiny.SCANNET_IDS), list(tiny.INSTANCES))
    outside = SceneWarning(WarningKind.LABELS_OUTSIDE_NYU40, "50, 149", 2)
    # One vertex is a wall by the groups, and 40 in labels.ply.
    contradiction = SceneWarning(WarningKind.LABELS_CONTRADICT_GROUPS, count=1)
    assert scene.meta.warnings == (outside, contradiction)
    assert ids(alone) == (nyu40_ids, [0] * 6, [-1] * 6)
    assert alone.meta.warnings == (SceneWarning(WarningKind.NO_AGGREGATION), outside)


FROM_PLY = {"labels_from": "ply"}


def labeled(labels=PLY_LABELS, **changes):
    """Make the content of files with a labels.ply."""
    return {LABELS_MESH: Ply(labels=labels, **changes).encode()}


@pytest.mark.parametrize(
    ("files", "options", "problem"),
    [
        (
            {AGGREGATION: None, HIRES: aggregation_file([group(0, [0, 3], "chair")])},
            {},
            "high-resolution mesh: segment ids of groups that no vertex has: 1",
        ),
        ({AGGREGATION: b"{}", HIRES: aggregation_file()}, {}, "is damaged: .* missing required"),
        ({SEGMENTS: tiny.segments_file((0, 2))}, {}, "is for 2 vertices.* has 6"),
        (
            {AGGREGATION: aggregation_file([group(n, [n], "chair") for n in range(32_768)])},
            {},
            r"\.aggregation\.json: has 32,768 groups",
        ),
        ({}, FROM_PLY, r"labels\.ply: no such file"),
        (
            labeled() | {AGGREGATION: None},
            FROM_PLY | {"scannet200": True},
            r"aggregation\.json: no such file",
        ),
        (labeled(None), FROM_PLY, r"labels\.ply: .*no property label"),
        (
            labeled(positions=((0, 0, 9), *tiny.POSITIONS[1:])),
            FROM_PLY,
            r"labels\.ply: its vertices lie elsewhere",
        ),
        (
            labeled((1,), positions=[(0, 0, 0)], colors=[(1, 2, 3)], faces=()),
            FROM_PLY,
            r"labels\.ply: is for 1 vertices, but .* has 6",
        ),
        (
            labeled((2, 40, 41, 50, 1, 1176)) | {AGGREGATION: None, SEGMENTS: None},
            FROM_PLY,
            r"3 of 6 labels are not nyu40 ids .* 41, 50, 1176: .*ScanNet v1",
        ),
    ],
)
def test_files_that_do_not_fit_together_are_refused(tmp_path, files, options, problem):
    with pytest.raises(FileError, match=problem):
        process_tiny(tmp_path, files, **options)


def process_strip(raw_dir, labels, groups):
    """Process a scene of 20 vertices in two segments, with these labels in labels.ply."""
    positions = [(index, index % 2, 0) for index in range(20)]
    ply = Ply(positions=positions, colors=[(1, 2, 3)] * 20, faces=((0, 1, 2),))
    files = {
        MESH: ply.encode(),
        LABELS_MESH: replace(ply, labels=tuple(labels)).encode(),
        SEGMENTS: tiny.segments_file((0,) * 10 + (10,) * 10),
        AGGREGATION: aggregation_file(groups),
    }
    return process_tiny(raw_dir, files, labels_from="ply")


WHOLE = group(0, [0, 10], "chair")
OVERLAPPING = [group(0, [0, 10], "wall"), group(1, [0, 10], "floor")]
UNKNOWN = group(0, [0, 10], "dishrack")


@pytest.mark.parametrize("v1_id", [2, 4, 0])  # a chair is 5; ScanNet id 2 is a chair, 4 a table
def test_labels_ply_that_contradicts_the_groups_is_refused_as_v1(tmp_path, v1_id):
    problem = f"contradict 11 of 20 labels.* vertex 0: {v1_id}, by the groups 5: .* v1"
    with pytest.raises(FileError, match=problem) as caught:
        process_strip(tmp_path, [v1_id] * 11 + [5] * 9, [WHOLE])

    assert "--labels-from aggregation" in caught.value.hint


@pytest.mark.parametrize(
    ("first", "last", "groups", "count"),
    [
        (2, 5, [WHOLE], 10),
        # Any of overlapping groups, or of those that are listed twice, may be right.
        (1, 1, OVERLAPPING, 0),
        (2, 2, OVERLAPPING, 0),
        (5, 0, [group(0, [0], "chair")] * 2, 0),
        # A category of no label map, alone or beneath another one.
        (39, 39, [UNKNOWN], 0),
        (39, 39, [UNKNOWN, group(1, [0], "chair")], 0),
        # The group is missing, or the label is known to be outside nyu40.
        (5, 7, [group(0, [0], "chair")], 0),
        (50, 50, [WHOLE], 0),
    ],
)
def test_labels_ply_is_kept_and_only_contradictions_are_counted(
    tmp_path, first, last, groups, count
):
    scene = process_strip(tmp_path, [first] * 10 + [last] * 10, groups)

    counts = {warning.kind: warning.count for warning in scene.meta.warnings}
    assert counts.get(WarningKind.LABELS_CONTRADICT_GROUPS, 0) == count
    assert 0 not in counts.values()
    expected = [0 if label == 50 else label for label in (first, last)]
    assert scene.nyu40_ids[[0, -1]].tolist() == expected


@pytest.mark.parametrize(
    "options", [{}, {"scannet200": True, "align_axis": True, "faces": True}, {"labels_from": "ply"}]
)
def test_synthetic_scene_equals_the_loops_and_has_the_same_bytes_each_time(tmp_path, options):
    made = make_scene(tiny.SCENE_ID, vertices=600, seed=3)
    edit_json(write_scene(made, tmp_path) / f"{tiny.SCENE_ID}.aggregation.json", repeat_groups)
    (raw,) = list_raw(tmp_path).scenes.values()

    scene = process_written(raw, **options)

    assert encode_processed(process_written(raw, **options)) == encode_processed(scene)
    assert not list(find_problems(scene))
    groups = [group(entry.id, entry.segment_ids, entry.raw_category) for entry in made.groups]
    expected_ids = oracles.ids_of_vertices(made.segment_ids.tolist(), groups)
    assert ids(scene) == expected_ids
    nyu40_ids, scannet_ids, _ = expected_ids
    is_200 = "scannet200" in options
    labels = oracles.labels200(scannet_ids) if is_200 else oracles.labels20(nyu40_ids)
    assert scene.stored_labels.tolist() == labels
    matrix = made.axis_alignment if is_200 else None
    points = made.positions if matrix is None else oracles.aligned_points(made.positions, matrix)
    assert scene.points.tobytes() == np.float32(points).tobytes()
    normals = oracles.vertex_normals(made.positions, made.faces.tolist(), matrix)
    assert scene.normals.tobytes() == np.float16(normals).tobytes()


def annotate_groups(groups, segment_ids=tiny.SEGMENT_IDS):
    segmentation = tiny.read_raw(release.SEGMENTS, tiny.segments_file(segment_ids))
    aggregation = tiny.read_raw(release.AGGREGATION, tiny.aggregation_file(groups))
    return annotate(segmentation, aggregation, builtin_label_map(), Path())


def test_repeated_groups_are_dropped_and_override_no_later_group():
    repeated = [
        entry | {"id": entry["id"] + 2, "objectId": 31 + entry["id"]} for entry in tiny.GROUPS
    ]
    repeated += [
        tiny.GROUPS[0] | {"segments": [2, None, 0, 2]},
        tiny.GROUPS[1] | {"objectId": None},
    ]
    groups = [group(0, [0, 2], "chair"), group(1, [2], "table"), group(2, [2, 0, 0], "chair")]

    annotation = annotate_groups([*tiny.GROUPS, *repeated])
    overridden = annotate_groups(groups)

    assert ids(annotation) == ids(annotate_groups(tiny.GROUPS))
    assert [entry.aliases for entry in annotation.groups] == [(31,), (32,)]
    assert annotation.warnings == (
        SceneWarning(WarningKind.NULL_SEGMENTS, count=1),
        SceneWarning(WarningKind.REPEATED_GROUPS, count=4),
    )
    assert overridden.instances.tolist() == [0, 0, 1, 1, -1, -1]


def test_groups_of_unknown_categories_are_unlabeled_instances_and_counted_by_name():
    annotation = annotate_groups(
        [group(0, [0], "trashcan"), group(1, [2], "dishrack"), group(2, [4], "trashcan")]
    )

    assert ids(annotation) == ([0] * 6, [0] * 6, [0, 0, 1, 1, 2, -1])
    assert annotation.warnings == (
        SceneWarning(WarningKind.UNKNOWN_CATEGORY, "'trashcan' (did you mean 'trash can'?)", 2),
        SceneWarning(WarningKind.UNKNOWN_CATEGORY, "'dishrack' (did you mean 'dish rack'?)", 1),
    )


def test_ids_may_be_strings_and_those_that_are_null_or_unknown_are_counted():
    segment_ids = ["0", None, "2", 1, 999_999, 10**30, -4, None]

    annotation = annotate_groups([group("3", segment_ids, "chair", "8")])

    assert annotation.instances.tolist() == [3, 3, 3, 3, -1, -1]
    assert annotation.groups[0].object_id == 8
    counts = {warning.kind: warning.count for warning in annotation.warnings}
    assert counts == {WarningKind.NULL_SEGMENTS: 2, WarningKind.UNKNOWN_SEGMENTS: 4}


@pytest.mark.parametrize("group_ids", [(None, 1), (7, 7), (0, 32_768), (-1, 0), (10**40, 0)])
def test_unusable_group_ids_are_replaced_by_the_file_order(group_ids):
    groups = [
        group(number, [segment], "chair") for number, segment in zip(group_ids, (0, 2), strict=True)
    ]

    annotation = annotate_groups(groups)

    assert annotation.instances.tolist() == [0, 0, 1, 1, -1, -1]
    counts = [(warning.kind, warning.count) for warning in annotation.warnings]
    assert counts == [(WarningKind.RENUMBERED_GROUPS, 2)]


def test_as_many_groups_as_int16_can_number_are_annotated():
    groups = [group(number + 1, [number], "chair") for number in range(MAX_GROUPS)]

    # More segments than groups.
    annotation = annotate_groups(groups, tuple(range(MAX_GROUPS + 2)))
    points = np.zeros((MAX_GROUPS + 2, 3), np.float32)
    measured = measure_groups(annotation.groups, annotation.instances, points)

    assert annotation.instances.tolist() == [*range(1, MAX_GROUPS + 1), -1, -1]
    assert {(entry.vertex_count, entry.segment_count) for entry in measured} == {(1, 1)}


NAMES = st.sampled_from(
    ["wall", "floor", "chair", "wardrobe cabinet", "rug", "trashcan", "stick", "ceiling"]
)
MEMBERS = st.lists(st.tuples(NAMES, st.lists(st.integers(0, 15), max_size=6)), max_size=8)
SEGMENT_LISTS = st.lists(st.integers(0, 12), min_size=1, max_size=30)


@given(segment_ids=SEGMENT_LISTS, members=MEMBERS, data=st.data())
@settings(max_examples=60)
def test_any_annotation_and_the_measures_of_its_groups_equal_the_loops(segment_ids, members, data):
    numbers = data.draw(st.permutations(range(len(members))))
    groups = [
        group(number, segments, name)
        for number, (name, segments) in zip(numbers, members, strict=True)
    ]
    points = np.random.default_rng(0).normal(size=(len(segment_ids), 3)).astype(np.float32)

    annotation = annotate_groups(groups, tuple(segment_ids))
    measured = measure_groups(annotation.groups, annotation.instances, points)

    assert ids(annotation) == oracles.ids_of_vertices(segment_ids, groups)
    for entry in measured:
        is_member = annotation.instances == entry.id
        rows = points[is_member].tolist()
        columns = list(zip(*rows, strict=True))
        box = [round(find(column), 4) for find in (min, max) for column in columns]
        assert entry.vertex_count == len(rows)
        assert entry.segment_count == len(set(np.array(segment_ids)[is_member].tolist()))
        assert entry.box == (tuple(box) if rows else None)
