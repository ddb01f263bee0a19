"""Scores on arrays agree with loops written from the rules, scene by scene and merged."""

from __future__ import annotations

import pickle
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from scannet_prep import SCANNET20, SCANNET200, LabelSet
from scannet_prep.base.errors import ContentError, UsageError
from scannet_prep.evaluation import (
    InstancePrediction,
    InstanceScores,
    InstanceTruth,
    ScoreTable,
    SemanticScores,
)

BLOCK = 25  # vertices that always go together, so that sizes and overlaps hit the limits exactly
BLOCKS = 24
THRESHOLDS = [number / 100 for number in (50, 55, 60, 65, 70, 75, 80, 85, 90, 25)]
WITHOUT_INSTANCES = {20: (0, 1), 200: (0, 2)}  # wall and floor

Scene = tuple[
    list[tuple[set[int], int, float]], list[int], list[int]
]  # predictions; labels and instances of vertices


def mean(values: Iterable[float]) -> float | None:
    found = list(values)
    return sum(found) / len(found) if found else None


def semantic_by_loops(
    scenes: Sequence[tuple[list[int], list[int]]], class_count: int
) -> dict[str, Any]:
    pairs = [
        pair for scene in scenes for pair in zip(*scene, strict=True) if 0 <= pair[1] < class_count
    ]
    ious: dict[int, float] = {}
    for item in range(class_count):
        hits = sum(found == truth == item for found, truth in pairs)
        union = sum(item in pair for pair in pairs)
        if union:
            ious[item] = hits / union
    in_truth = {truth for _, truth in pairs}
    return {
        "ious": ious,
        "accuracy": mean(found == truth for found, truth in pairs),
        "missed": sum(not 0 <= found < class_count for found, _ in pairs),
        "over_all": sum(ious.values()) / class_count,
        "over_union": mean(ious.values()),
        "over_ground_truth": mean(ious[item] for item in in_truth),
    }


def iou(a: set[int], b: set[int]) -> float:
    return len(a & b) / len(a | b)


def regions_by_loops(
    scene: Scene, item: int, classes: Sequence[int]
) -> tuple[list[set[int]], set[int]]:
    """Vertices of each annotated instance of one class, by its number; and those of no instance of any class."""
    regions: dict[int, set[int]] = {}
    void = set()
    for vertex, (label, instance) in enumerate(zip(*scene[1:], strict=True)):
        if label not in classes or instance < 0:
            void.add(vertex)
        elif label == item:
            regions.setdefault(instance, set()).add(vertex)
    return [region for _, region in sorted(regions.items())], void


def match_by_loops(
    regions: Sequence[set[int]], mine: Sequence[tuple[set[int], float]], limit: float
) -> tuple[list[tuple[float, bool]], int]:
    """Confidence and verdict of what regions are matched with, and the number of regions without a match."""
    verdicts, used, missed = list[tuple[float, bool]](), set[int](), 0
    for region in regions:
        kept = None
        for number, (mask, score) in enumerate(mine):
            if number not in used and iou(mask, region) > limit:
                if kept is None:
                    kept = score
                    used.add(number)
                else:
                    verdicts.append((min(kept, score), False))
                    kept = max(kept, score)
        if kept is None:
            missed += 1
        else:
            verdicts.append((kept, True))
    return verdicts, missed


def verdicts_by_loops(
    scene: Scene, item: int, limit: float, classes: Sequence[int]
) -> tuple[list[tuple[float, bool]], int]:
    regions, void = regions_by_loops(scene, item, classes)
    mine = [(mask, score) for mask, label, score in scene[0] if label == item and len(mask) >= 100]
    verdicts, missed = match_by_loops(
        [region for region in regions if len(region) >= 100], mine, limit
    )
    for mask, score in mine:
        if not any(iou(mask, region) > limit for region in regions):
            ignored = len(mask & void) + sum(
                len(mask & region) for region in regions if len(region) < 100
            )
            if ignored / len(mask) <= limit:
                verdicts.append((score, False))
    return verdicts, missed


def precision_by_loops(
    scenes: Sequence[Scene], item: int, limit: float, classes: Sequence[int]
) -> float | None:
    parts = [verdicts_by_loops(scene, item, limit, classes) for scene in scenes]
    verdicts, missed = (
        [verdict for part, _ in parts for verdict in part],
        sum(number for _, number in parts),
    )
    total = missed + sum(is_right for _, is_right in verdicts)
    if not total:
        return None
    curve = []
    for confidence in sorted({score for score, _ in verdicts}):
        above = [is_right for score, is_right in verdicts if score >= confidence]
        curve.append((sum(above) / len(above), sum(above) / total))
    curve.append((1.0, 0.0))
    recalls = [curve[0][1], *(recall for _, recall in curve), 0.0]
    return sum(curve[k][0] * (recalls[k] - recalls[k + 2]) / 2 for k in range(len(curve)))


def score(scenes: Sequence[Scene], label_set: LabelSet = SCANNET20) -> InstanceScores:
    scores = InstanceScores(label_set)
    for predictions, labels, instances in scenes:
        masks = np.zeros((len(predictions), len(labels)), np.uint8)
        for row, (mask, _, _) in zip(masks, predictions, strict=True):
            row[list(mask)] = 1
        columns = [
            np.array([item[place] for item in predictions], kind)
            for place, kind in ((1, int), (2, float))
        ]
        scores.add(
            InstancePrediction(masks, *columns),
            InstanceTruth(labels=np.array(labels), instances=np.array(instances, np.int16)),
        )
    return scores


def check(table: ScoreTable, scenes: Sequence[Scene], label_set: LabelSet) -> None:
    classes = [
        item for item in range(len(label_set)) if item not in WITHOUT_INSTANCES[len(label_set)]
    ]
    assert list(table.classes) == [label_set.names[item] for item in classes]
    rows, present = [], {label for scene in scenes for label in scene[1]}
    for item in classes:
        found = table.classes[label_set.names[item]]
        expected = [
            precision_by_loops(scenes, item, limit, classes)
            for limit in THRESHOLDS
            if item in present
        ]
        if expected in ([], [None] * len(THRESHOLDS)):
            assert (found["ap"], found["ap50"], found["ap25"]) == (None, None, None)
        else:
            rows.append([value for value in expected if value is not None])
            numbers = [found["ap"], found["ap50"], found["ap25"]]
            assert numbers == pytest.approx(
                [mean(rows[-1][:9]), rows[-1][0], rows[-1][9]], abs=1e-9
            )
    means = [
        mean(value for row in rows for value in row[:9]),
        mean(row[0] for row in rows),
        mean(r[9] for r in rows),
    ]
    assert list(table.means["all"].values()) == (
        pytest.approx(means, abs=1e-9) if rows else [None] * 3
    )


LABELS = st.sampled_from([2, 2, 2, 5, -1, 0, 20, 255])
TRUE_LABELS = st.sampled_from([2, 2, 2, 5, -1, 0, 255])  # beyond the train ids, one number at most
RUNS = st.tuples(
    TRUE_LABELS, st.integers(-1, 2), st.sampled_from([3, 4, 4, 5, 8])
)  # label, instance, blocks


def make_scene(
    runs: Sequence[tuple[int, int, int]], predictions: Iterable[tuple[set[int], int, float]]
) -> Scene:
    blocks = ([run[:2] for run in runs for _ in range(run[2])] + [(-1, -1)] * BLOCKS)[:BLOCKS]
    labels, instances = (
        [block[place] for block in blocks for _ in range(BLOCK)] for place in (0, 1)
    )
    masks = (
        {place * BLOCK + number for place in mask for number in range(BLOCK)}
        for mask, *_ in predictions
    )
    return (
        [(mask, *item[1:]) for mask, item in zip(masks, predictions, strict=True)],
        labels,
        instances,
    )


@st.composite
def instance_scenes(draw: st.DrawFn) -> Scene:
    """Regions in runs of blocks; masks of one or two runs, with some blocks more and less; few confidences."""
    runs, predictions = draw(st.lists(RUNS, min_size=1, max_size=8)), []
    starts = [sum(run[2] for run in runs[:place]) for place in range(len(runs))]
    for _ in range(draw(st.integers(0, 8))):
        chosen = draw(st.lists(st.integers(0, len(runs) - 1), min_size=1, max_size=2))
        mask = {
            block
            for place in chosen
            for block in range(starts[place], starts[place] + runs[place][2])
        }
        mask = {block for block in mask if block < BLOCKS} ^ draw(
            st.sets(st.integers(0, BLOCKS - 1), max_size=4)
        )
        label = draw(st.one_of(st.just(runs[chosen[0]][0]), LABELS))
        predictions.append((mask, label, draw(st.sampled_from([0.0, 0.25, 0.5, 1.0]))))
    return make_scene(runs, predictions)


EXACTLY_HALF = make_scene(  # of a region, and on void
    [(2, 0, 8), (2, 1, 8), (5, 1, 2)],
    [({8, 9, 10, 11}, 2, 0.25), (set(range(8)), 2, 0.5), ({16, 17, 18, 19}, 2, 1.0)],
)
EXACTLY_100 = make_scene([(2, 0, 4), (2, 1, 3)], [({0, 1, 2, 3}, 2, 0.5), ({4, 5, 6}, 2, 1.0)])
ON_SMALL_OF_ANOTHER_CLASS = make_scene(
    [(2, 0, 8), (5, 0, 3)], [(set(range(8)), 2, 0.5), ({7, 8, 9, 10}, 2, 1.0)]
)
ON_SMALL_OF_ITS_CLASS = make_scene(
    [(2, 0, 8), (2, 1, 3)], [(set(range(8)), 2, 0.5), ({7, 8, 9, 10}, 2, 1.0)]
)


@example([EXACTLY_HALF])
@example([EXACTLY_100])
@example([ON_SMALL_OF_ANOTHER_CLASS])
@example([ON_SMALL_OF_ITS_CLASS])
@settings(max_examples=50)
@given(st.lists(instance_scenes(), max_size=3))
def test_average_precision_agrees_with_loops_for_any_overlaps_orders_ties_and_small_regions(
    scenes: list[Scene],
) -> None:
    scores = score(scenes)
    check(scores.result(), scenes, SCANNET20)
    merged = score(scenes[:1])
    merged.merge(pickle.loads(pickle.dumps(score(scenes[1:]))))
    assert merged.result() == scores.result()
    totals, predictions = scores.result().totals, [item for scene in scenes for item in scene[0]]
    other = [label for _, label, _ in predictions if label not in range(2, 20)]
    assert totals["other"] == len(other)
    assert totals["small"] + totals["predictions"] == len(predictions) - len(other)


@settings(max_examples=50)
@given(
    st.sampled_from([SCANNET20, SCANNET200]),
    st.lists(
        st.lists(st.tuples(st.integers(-2, 22), st.integers(-2, 20)), max_size=60), max_size=4
    ),
)
def test_ious_and_three_means_agree_with_loops(
    label_set: LabelSet, pairs: list[list[tuple[int, int]]]
) -> None:
    scenes = [([found for found, _ in scene], [truth for _, truth in scene]) for scene in pairs]
    scores, merged = SemanticScores(label_set), SemanticScores(label_set)
    for found, truth in scenes:
        scores.add(np.array(found, np.int16), np.array(truth, np.int64))
        part = SemanticScores(label_set)
        part.add(np.array(found, np.int8), np.array(truth, np.int32))
        merged.merge(pickle.loads(pickle.dumps(part)))
    table, expected = scores.result(), semantic_by_loops(scenes, len(label_set))
    assert merged.result() == table
    assert {
        name: row["iou"] for name, row in table.classes.items() if row["iou"] is not None
    } == pytest.approx(
        {label_set.names[item]: value for item, value in expected["ious"].items()}, abs=1e-9
    )
    for name in ("over_all", "over_union", "over_ground_truth"):
        assert table.means["all"][name] == pytest.approx(expected[name], abs=1e-9)
    assert (table.totals["accuracy"], table.totals["missed"]) == (
        pytest.approx(expected["accuracy"], abs=1e-9), expected["missed"],
    )  # fmt: skip
    if label_set is SCANNET200:
        head = [table.classes[label_set.names[item]]["iou"] for item in label_set.head]
        assert table.means["head"]["over_union"] == pytest.approx(
            mean(x for x in head if x is not None), abs=1e-9
        )


def test_perfect_prediction_of_the_classes_of_val_is_one_in_all_means_but_that_over_all_classes() -> (
    None
):
    present = np.array([item.train_id for item in SCANNET200.classes if item.in_val])
    scores = SemanticScores(SCANNET200)
    scores.add(present, present)
    assert scores.result().means["all"] == pytest.approx(
        {"over_all": 189 / 200, "over_union": 1.0, "over_ground_truth": 1.0}, abs=1e-9
    )
    assert scores.result().totals["accuracy"] == 1


def test_class_that_is_only_predicted_counts_zero_only_in_the_mean_over_unions() -> None:
    scores = SemanticScores(SCANNET20)
    scores.add(np.array([3, 4, 7]), np.array([3, 3, -1]))
    means = scores.result().means["all"]
    assert (means["over_all"], means["over_union"], means["over_ground_truth"]) == pytest.approx(
        (0.025, 0.25, 0.5)
    )
    assert (
        scores.result().classes[SCANNET20.names[7]]["iou"] is None
    )  # only where nothing is annotated


@pytest.mark.parametrize("label_set", [SCANNET20, SCANNET200])
def test_perfect_instances_are_one_for_every_class_but_wall_and_floor(label_set: LabelSet) -> None:
    labels = np.repeat(np.arange(len(label_set)), 100)
    scores = InstanceScores(label_set)
    classes = np.arange(len(label_set))
    scores.add(
        InstancePrediction(labels == classes[:, None], classes, np.ones(len(classes))),
        InstanceTruth(labels=labels, instances=np.zeros(len(labels), int)),
    )
    table = scores.result()
    assert table.means["all"] == {"ap": 1.0, "ap50": 1.0, "ap25": 1.0}
    assert (table.totals["instances"], table.totals["other"]) == (len(label_set) - 2, 2)
    assert len(table.classes) == len(label_set) - 2
    assert set(table.means) == (
        {"all"} if label_set is SCANNET20 else {"all", "head", "common", "tail"}
    )


def test_ap25_depends_on_the_order_of_predictions() -> None:
    labels, instances = [5] * 300, [1] * 150 + [2] * 150
    between, first = (set(range(75, 225)), 5, 0.8), (set(range(150)), 5, 0.9)
    assert score([([first, between], labels, instances)]).result().means["all"][
        "ap25"
    ] == pytest.approx(11 / 12)
    assert score([([between, first], labels, instances)]).result().means["all"][
        "ap25"
    ] == pytest.approx(0.5)


def test_class_whose_predictions_are_all_ignored_has_precision_zero() -> None:
    scene: Scene = [(set(range(150, 300)), 5, 0.9)], [5] * 150 + [-1] * 150, [0] * 150 + [-1] * 150
    assert score([scene]).result().means["all"] == {"ap": 0.0, "ap50": 0.0, "ap25": 0.0}


@pytest.mark.parametrize("masks", [[], np.zeros((0, 300)), np.zeros((300, 0), bool)])
def test_scene_without_predictions_has_missed_its_instances_in_whatever_shape_the_empty_arrays_are(
    masks: Any,
) -> None:
    scores = InstanceScores(SCANNET20)
    scores.add(
        InstancePrediction(masks, [], []), InstanceTruth(labels=[5] * 300, instances=[0] * 300)
    )
    assert scores.result().means["all"] == {"ap": 0.0, "ap50": 0.0, "ap25": 0.0}
    assert (scores.result().totals["instances"], scores.result().totals["predictions"]) == (1, 0)


def test_what_does_not_fit_is_refused_with_both_numbers() -> None:
    semantic, instance = SemanticScores(SCANNET20), InstanceScores(SCANNET20)
    truth = InstanceTruth(labels=[1, 1], instances=[0, 0])
    with pytest.raises(ContentError, match="prediction: found 3 vertices, expected 2"):
        semantic.add([1, 2, 3], [1, 2])
    with pytest.raises(ContentError, match=r"prediction: found float64 \(2,\), expected integers"):
        semantic.add([1.0, 2.0], [1, 2])
    with pytest.raises(ContentError, match=r"masks: found bool \(1, 3\), expected \(1, 2\)"):
        instance.add(InstancePrediction(np.ones((1, 3), bool), [1], [1]), truth)
    with pytest.raises(ContentError, match=r"scores: found float64 .* expected 1 finite numbers"):
        instance.add(InstancePrediction(np.ones((1, 2), bool), [1], [np.nan]), truth)
    with pytest.raises(
        ContentError, match="instances of the ground truth: found 1 vertices, expected 2"
    ):
        instance.add(
            InstancePrediction(np.ones((1, 2), bool), [1], [1]),
            InstanceTruth(labels=[1, 1], instances=[0]),
        )
    with pytest.raises(
        UsageError,
        match="SemanticScores of ScanNet200 cannot be merged into SemanticScores of ScanN",
    ):
        semantic.merge(SemanticScores(SCANNET200))
    with pytest.raises(
        UsageError, match="InstanceScores of ScanNet20 cannot be merged into SemanticScores"
    ):
        semantic.merge(instance)


REFUSED_MASKS = (
    (
        np.array([[0.1, 0.9]]),
        "masks: found float64 from 0.1 to 0.9, expected bool, or only 0 and 1",
    ),
    (np.array([[-3.5, 4]], np.float32), "masks: found float32 from -3.5 to 4, expected"),
    (np.array([[0, 255]], np.uint8), "masks: found uint8 from 0 to 255, expected"),
    (np.array([[-1, 1]]), "masks: found int64 from -1 to 1, expected"),
    (np.array([[np.nan, 1]]), "masks: found float64 from nan to nan, expected"),
)


@pytest.mark.parametrize(("masks", "problem"), REFUSED_MASKS)
def test_masks_with_other_values_than_0_and_1_are_refused_with_their_range(
    masks: np.ndarray, problem: str
) -> None:
    scores = InstanceScores(SCANNET20)
    with pytest.raises(ContentError, match=problem):
        scores.add(
            InstancePrediction(masks, [2], [0.5]), InstanceTruth(labels=[2, 2], instances=[0, 0])
        )


@pytest.mark.parametrize("kind", [bool, np.uint8, np.int64, np.float16, np.float64])
def test_masks_of_0_and_1_score_the_same_in_any_type(kind: type) -> None:
    scores = InstanceScores(SCANNET20)
    masks = np.repeat([[1, 0]], 100, axis=1).astype(kind)
    scores.add(
        InstancePrediction(masks, [2], [0.5]),
        InstanceTruth(labels=[2] * 200, instances=[0] * 100 + [1] * 100),
    )
    assert scores.result().classes["cabinet"]["ap50"] == pytest.approx(0.5)


@pytest.mark.torch
@pytest.mark.parametrize("name", ["masks", "labels", "scores"])
@pytest.mark.parametrize("has_gradient", [True, False])
def test_tensors_that_numpy_cannot_hold_are_refused_by_name_with_the_conversion(
    name: str, has_gradient: bool
) -> None:
    torch = pytest.importorskip("torch")
    values: dict[str, Any] = {"masks": [[0.0, 1.0]], "labels": [2], "scores": [0.5]}
    dtype = torch.float32 if has_gradient else torch.bfloat16
    values[name] = torch.tensor(values[name], dtype=dtype, requires_grad=has_gradient)
    with pytest.raises(
        ContentError, match=f"^{name}: not an array, and cannot become one: "
    ) as caught:
        InstanceScores(SCANNET20).add(
            InstancePrediction(**values), InstanceTruth(labels=[2, 2], instances=[0, 0])
        )
    assert "tensor.detach().cpu().numpy()" in caught.value.hint


def test_instance_truth_takes_named_arguments_only() -> None:
    with pytest.raises(TypeError, match="positional"):
        InstanceTruth([1, 1], [0, 0])  # type: ignore[misc]


@pytest.mark.parametrize("make", [SemanticScores, InstanceScores])
def test_scores_accept_the_name_of_a_label_set_and_refuse_others(make: Any) -> None:
    assert make("scannet200").label_set == SCANNET200
    for other in ("200", 200, None):
        with pytest.raises(UsageError, match="is not a label set"):
            make(other)


def add_truth(scores: SemanticScores | InstanceScores, labels: list[int]) -> None:
    if isinstance(scores, SemanticScores):
        scores.add([0] * len(labels), labels)
    else:
        nothing = InstancePrediction(masks=[], labels=[], scores=[])
        scores.add(nothing, InstanceTruth(labels=labels, instances=[1] * len(labels)))


@pytest.mark.parametrize("make", [SemanticScores, InstanceScores])
def test_ground_truth_of_the_other_label_set_is_refused(make: Any) -> None:
    with pytest.raises(
        ContentError, match=r"found 35, 111, which are not train ids of ScanNet20 \(0 to 19\)"
    ):
        add_truth(make(SCANNET20), [0, 35, 111, 35, -1])


@pytest.mark.parametrize("make", [SemanticScores, InstanceScores])
@pytest.mark.parametrize("unlabeled", [-1, -100, 20, 255])
def test_ground_truth_may_have_any_one_number_for_unlabeled(make: Any, unlabeled: int) -> None:
    scores = make(SCANNET20)
    add_truth(scores, [4, unlabeled, -1, unlabeled])
    assert (
        scores.result().classes["chair"]["vertices" if make is SemanticScores else "instances"] <= 1
    )
