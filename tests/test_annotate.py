"""Groups and segments become ids per vertex: checked by hand, against loops, and for properties that must hold."""

import oracles
import pytest
import tiny
from hypothesis import given, settings
from hypothesis import strategies as st
from tiny import group

from scannet_prep.annotate import MAX_GROUPS, Annotation, annotate
from scannet_prep.labels import LabelMap, RawIds, builtin_label_map
from scannet_prep.raw.segments import read_aggregation, read_segments
from scannet_prep.scene_warnings import SceneWarning, WarningKind


def annotate_groups(groups, segment_ids=tiny.SEGMENT_IDS, label_map: LabelMap | None = None) -> Annotation:
    segmentation = tiny.read_bytes(read_segments, tiny.segments_file(segment_ids))
    aggregation = tiny.read_bytes(read_aggregation, tiny.aggregation_file(groups))
    return annotate(segmentation, aggregation, label_map or builtin_label_map())


def ids(found: Annotation) -> tuple[list[int], list[int], list[int]]:
    return found.nyu40_ids.tolist(), found.scannet_ids.tolist(), found.instances.tolist()


def test_a_repeated_group_counts_once_whatever_the_order_of_its_segments_and_wins_over_nothing_in_between() -> None:
    groups = [*tiny.GROUPS, *(item | {"id": item["id"] + 2, "objectId": 31 + item["id"]} for item in tiny.GROUPS)]
    found = annotate_groups(groups)
    assert ids(found) == ids(annotate_groups(tiny.GROUPS))
    assert [item.id for item in found.groups] == [0, 1]
    assert found.warnings == (SceneWarning(WarningKind.REPEATED_GROUPS, count=2),)
    groups = [group(0, [0, 2], "chair"), group(1, [2], "table"), group(2, [2, 0, 0], "chair")]
    found = annotate_groups(groups)
    assert found.instances.tolist() == [0, 0, 1, 1, -1, -1]
    assert ids(found) == oracles.ids_of_vertices(tiny.SEGMENT_IDS, groups)


def test_raw_categories_are_matched_to_the_letter_and_an_unknown_one_is_unlabeled_and_warned_about_once() -> None:
    found = annotate_groups([group(0, [0], "trashcan"), group(1, [2], "dishrack"), group(2, [4], "trashcan")])
    assert ids(found) == ([0] * 6, [0] * 6, [0, 0, 1, 1, 2, -1])
    assert found.warnings == (
        SceneWarning(WarningKind.UNKNOWN_CATEGORY, "'trashcan' (did you mean 'trash can'?)", 2),
        SceneWarning(WarningKind.UNKNOWN_CATEGORY, "'dishrack' (did you mean 'dish rack'?)", 1),
    )
    names = ["Chair", " chair", "chair ", "chairs\u200b"]
    found = annotate_groups([group(number, [0], name) for number, name in enumerate(names)])
    assert [warning.subject for warning in found.warnings] == [f"{name!r} (did you mean 'chair'?)" for name in names]


def test_segment_ids_that_are_null_or_of_no_vertex_are_counted_and_strings_of_digits_are_ids() -> None:
    found = annotate_groups([group("3", ["0", None, "2", 1, 999_999, 10**30, -4, None], "chair", "8")])
    assert found.instances.tolist() == [3, 3, 3, 3, -1, -1]
    assert found.groups[0].object_id == 8
    counts = {item.kind: item.count for item in found.warnings}
    assert counts == {WarningKind.NULL_SEGMENTS: 2, WarningKind.UNKNOWN_SEGMENTS: 4}


@pytest.mark.parametrize(("first", "second"), [(None, 1), (7, 7), (0, 40_000), (-1, 0), (10**40, 0)])
def test_group_ids_that_cannot_tell_the_groups_apart_are_replaced_by_the_file_order(first, second) -> None:
    found = annotate_groups([group(first, [0], "chair", 4), group(second, [2], "table", 4)])
    assert found.instances.tolist() == [0, 0, 1, 1, -1, -1]
    assert [(item.kind, item.count) for item in found.warnings] == [(WarningKind.RENUMBERED_GROUPS, 2)]


def test_as_many_groups_as_int16_can_number_are_kept() -> None:
    groups = [group(number, [number], "chair") for number in range(MAX_GROUPS)]
    found = annotate_groups(groups, tuple(range(MAX_GROUPS + 1)))
    assert found.instances.tolist() == [*range(MAX_GROUPS), -1]


def test_a_label_map_that_disagrees_with_the_built_in_one_counts_and_is_warned_about_where_it_matters() -> None:
    other = LabelMap("other.tsv", {**builtin_label_map().rows, "floor": RawIds(9, 9), "desk": RawIds(1, 1)})
    found = annotate_groups(tiny.GROUPS, label_map=other)
    assert (found.scannet_ids[0], found.nyu40_ids[0]) == (9, 9)
    assert [warning.kind for warning in found.warnings] == [WarningKind.LABEL_MAP_DIFFERS]
    assert "'floor' is ScanNet id 9, nyu40 id 9 in" in found.warnings[0].text
    assert "but ScanNet id 3, nyu40 id 2 in the built-in" in found.warnings[0].text


NAMES = st.sampled_from(["wall", "floor", "chair", "wardrobe cabinet", "rug", "trashcan", "stick", "ceiling"])
SEGMENT_LISTS = st.lists(st.integers(0, 12), min_size=1, max_size=30)


@st.composite
def groups_of_any_kind(draw: st.DrawFn) -> list[dict]:
    members = draw(st.lists(st.tuples(NAMES, st.lists(st.integers(0, 15), max_size=6)), max_size=8))
    numbers = draw(st.permutations(range(len(members))))
    return [group(number, list(segments), name) for number, (name, segments) in zip(numbers, members, strict=True)]


@given(segment_ids=SEGMENT_LISTS, groups=groups_of_any_kind())
@settings(max_examples=40)
def test_any_annotation_agrees_with_the_loops(segment_ids, groups) -> None:
    assert ids(annotate_groups(groups, tuple(segment_ids))) == oracles.ids_of_vertices(segment_ids, groups)
