"""Scores of arrays, compared with loops written from the rules of the benchmark."""

from __future__ import annotations

import pickle
from typing import NamedTuple

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from scannet_prep import SCANNET20, SCANNET200
from scannet_prep.errors import ContentError, UsageError
from scannet_prep.evaluation import (
    InstancePrediction,
    InstanceScores,
    InstanceTruth,
    SemanticScores,
)

# Vertices that belong together, so that sizes and overlaps reach the limits exactly.
BLOCK_VERTICES = 25
BLOCK_COUNT = 24
THRESHOLDS = [number / 100 for number in (50, 55, 60, 65, 70, 75, 80, 85, 90, 25)]
# Train ids of wall and floor, by the number of classes.
CLASSES_WITHOUT_INSTANCES = {20: (0, 1), 200: (0, 2)}


class Mask(NamedTuple):
    """A predicted instance: its vertices, train id and confidence."""

    vertices: set[int]
    label: int
    score: float


class Scene(NamedTuple):
    """Predicted instances, and the label and the instance of each vertex."""

    masks: list[Mask]
    labels: list[int]
    instances: list[int]


class Verdict(NamedTuple):
    """Whether a prediction of some confidence is correct."""

    score: float
    is_correct: bool


def mean(values):
    values = list(values)
    return sum(values) / len(values) if values else None


# Loops.


def score_semantic_by_loops(scenes, class_count):
    """Score scenes of predicted and true labels."""
    pairs = []
    for predicted_labels, true_labels in scenes:
        for predicted, true in zip(predicted_labels, true_labels, strict=True):
            if 0 <= true < class_count:
                pairs.append((predicted, true))

    ious = {}
    for label in range(class_count):
        hits = pairs.count((label, label))
        union = sum(label in pair for pair in pairs)
        if union:
            ious[label] = hits / union
    labels_in_truth = {true for _, true in pairs}
    return {
        "ious": ious,
        "accuracy": mean(predicted == true for predicted, true in pairs),
        "missed": sum(not 0 <= predicted < class_count for predicted, _ in pairs),
        "over_all": sum(ious.values()) / class_count,
        "over_union": mean(ious.values()),
        "over_ground_truth": mean(ious[label] for label in labels_in_truth),
    }


def iou(a, b):
    return len(a & b) / len(a | b)


def find_regions_by_loops(scene, label, classes):
    """Find the annotated instances of one class, by number, and the void vertices."""
    regions = {}
    void = set()
    for vertex, (true_label, instance) in enumerate(
        zip(scene.labels, scene.instances, strict=True)
    ):
        if true_label not in classes or instance < 0:
            void.add(vertex)
        elif true_label == label:
            regions.setdefault(instance, set()).add(vertex)
    return [region for _, region in sorted(regions.items())], void


def match_by_loops(regions, masks, threshold):
    """Match annotated instances with predictions, and count those without a match."""
    verdicts = []
    used = set()
    missed_count = 0
    for region in regions:
        matched_score = None
        for number, mask in enumerate(masks):
            if number in used or iou(mask.vertices, region) <= threshold:
                continue
            if matched_score is None:
                matched_score = mask.score
                used.add(number)
            else:
                verdicts.append(Verdict(min(matched_score, mask.score), False))
                matched_score = max(matched_score, mask.score)
        if matched_score is None:
            missed_count += 1
        else:
            verdicts.append(Verdict(matched_score, True))
    return verdicts, missed_count


def judge_by_loops(scene, label, threshold, classes):
    """Judge the predictions of one class in a scene, and count the missed instances."""
    regions, void = find_regions_by_loops(scene, label, classes)
    large_regions = [region for region in regions if len(region) >= 100]
    small_regions = [region for region in regions if len(region) < 100]
    masks = [mask for mask in scene.masks if mask.label == label and len(mask.vertices) >= 100]

    verdicts, missed_count = match_by_loops(large_regions, masks, threshold)
    for mask in masks:
        if any(iou(mask.vertices, region) > threshold for region in regions):
            continue
        ignored_count = len(mask.vertices & void)
        ignored_count += sum(len(mask.vertices & region) for region in small_regions)
        if ignored_count / len(mask.vertices) <= threshold:
            verdicts.append(Verdict(mask.score, False))
    return verdicts, missed_count


def average_precision_by_loops(scenes, label, threshold, classes):
    verdicts = []
    total = 0
    for scene in scenes:
        scene_verdicts, missed_count = judge_by_loops(scene, label, threshold, classes)
        verdicts += scene_verdicts
        total += missed_count + sum(verdict.is_correct for verdict in scene_verdicts)
    if not total:
        return None

    precisions = []
    recalls = []
    for confidence in sorted({verdict.score for verdict in verdicts}):
        above = [verdict.is_correct for verdict in verdicts if verdict.score >= confidence]
        precisions.append(sum(above) / len(above))
        recalls.append(sum(above) / total)
    precisions.append(1.0)
    recalls.append(0.0)

    # The width of a step is half the distance between the recalls before and after it.
    padded = [recalls[0], *recalls, 0.0]
    widths = [(padded[k] - padded[k + 2]) / 2 for k in range(len(recalls))]
    return sum(precision * width for precision, width in zip(precisions, widths, strict=True))


def score_instances(
    scenes,
    label_set=SCANNET20,
    scores=None,
):
    scores = scores or InstanceScores(label_set)
    for scene in scenes:
        masks = np.zeros((len(scene.masks), len(scene.labels)), np.uint8)
        for row, mask in zip(masks, scene.masks, strict=True):
            row[list(mask.vertices)] = 1
        prediction = InstancePrediction(
            masks,
            labels=np.array([mask.label for mask in scene.masks], int),
            scores=np.array([mask.score for mask in scene.masks], float),
        )
        truth = InstanceTruth(
            labels=np.array(scene.labels), instances=np.array(scene.instances, np.int16)
        )
        scores.add(prediction, truth)
    return scores


def check_instance_scores(table, scenes, label_set):
    """Check the scores of all classes, and their means, against the loops."""
    skipped = CLASSES_WITHOUT_INSTANCES[len(label_set)]
    classes = [label for label in range(len(label_set)) if label not in skipped]
    assert list(table.classes) == [label_set.names[label] for label in classes]

    labels_in_truth = {label for scene in scenes for label in scene.labels}
    precisions_of_classes = []
    for label in classes:
        scores = table.classes[label_set.names[label]]
        numbers = [scores["ap"], scores["ap50"], scores["ap25"]]
        precisions = []
        if label in labels_in_truth:
            for threshold in THRESHOLDS:
                precision = average_precision_by_loops(scenes, label, threshold, classes)
                if precision is not None:
                    precisions.append(precision)
        if not precisions:
            assert numbers == [None, None, None]
            continue
        precisions_of_classes.append(precisions)
        expected = [mean(precisions[:9]), precisions[0], precisions[9]]
        assert numbers == pytest.approx(expected, abs=1e-9)

    means = list(table.means["all"].values())
    if not precisions_of_classes:
        assert means == [None, None, None]
        return
    expected_means = [
        mean(value for precisions in precisions_of_classes for value in precisions[:9]),
        mean(precisions[0] for precisions in precisions_of_classes),
        mean(precisions[9] for precisions in precisions_of_classes),
    ]
    assert means == pytest.approx(expected_means, abs=1e-9)


# Random scenes.

PREDICTED_LABELS = st.sampled_from([2, 2, 2, 5, -1, 0, 20, 255])
# Only one number beyond the train ids is allowed.
TRUE_LABELS = st.sampled_from([2, 2, 2, 5, -1, 0, 255])
# Label, instance and number of blocks of a run of vertices.
RUNS = st.tuples(TRUE_LABELS, st.integers(-1, 2), st.sampled_from([3, 4, 4, 5, 8]))


def make_scene(runs, predictions):
    """Make a scene of runs of blocks, and of predictions with masks of blocks."""
    block_labels = []
    block_instances = []
    for label, instance, block_count in runs:
        block_labels += [label] * block_count
        block_instances += [instance] * block_count
    block_labels = (block_labels + [-1] * BLOCK_COUNT)[:BLOCK_COUNT]
    block_instances = (block_instances + [-1] * BLOCK_COUNT)[:BLOCK_COUNT]

    masks = []
    for blocks, label, score in predictions:
        vertices = set()
        for block in blocks:
            vertices.update(range(block * BLOCK_VERTICES, (block + 1) * BLOCK_VERTICES))
        masks.append(Mask(vertices, label, score))
    return Scene(
        masks,
        np.repeat(block_labels, BLOCK_VERTICES).tolist(),
        np.repeat(block_instances, BLOCK_VERTICES).tolist(),
    )


@st.composite
def instance_scenes(draw):
    """Draw runs, and masks of one or two of them with some blocks added or removed.

    Few confidences occur, so that many are equal.
    """
    runs = draw(st.lists(RUNS, min_size=1, max_size=8))
    blocks_of_runs = []
    start = 0
    for _, _, block_count in runs:
        blocks_of_runs.append(range(start, start + block_count))
        start += block_count

    predictions = []
    for _ in range(draw(st.integers(0, 8))):
        chosen = draw(st.lists(st.integers(0, len(runs) - 1), min_size=1, max_size=2))
        blocks = {block for run in chosen for block in blocks_of_runs[run] if block < BLOCK_COUNT}
        blocks ^= draw(st.sets(st.integers(0, BLOCK_COUNT - 1), max_size=4))
        true_label = runs[chosen[0]][0]
        label = draw(st.one_of(st.just(true_label), PREDICTED_LABELS))
        score = draw(st.sampled_from([0.0, 0.25, 0.5, 1.0]))
        predictions.append((blocks, label, score))
    return make_scene(runs, predictions)


# Masks that cover exactly half of a region, and lie on void by exactly half.
EXACTLY_HALF = make_scene(
    [(2, 0, 8), (2, 1, 8), (5, 1, 2)],
    [({8, 9, 10, 11}, 2, 0.25), (set(range(8)), 2, 0.5), ({16, 17, 18, 19}, 2, 1.0)],
)
EXACTLY_100_VERTICES = make_scene(
    [(2, 0, 4), (2, 1, 3)],
    [({0, 1, 2, 3}, 2, 0.5), ({4, 5, 6}, 2, 1.0)],
)
ON_SMALL_REGION_OF_ANOTHER_CLASS = make_scene(
    [(2, 0, 8), (5, 0, 3)],
    [(set(range(8)), 2, 0.5), ({7, 8, 9, 10}, 2, 1.0)],
)
ON_SMALL_REGION_OF_ITS_CLASS = make_scene(
    [(2, 0, 8), (2, 1, 3)],
    [(set(range(8)), 2, 0.5), ({7, 8, 9, 10}, 2, 1.0)],
)


@example([EXACTLY_HALF])
@example([EXACTLY_100_VERTICES])
@example([ON_SMALL_REGION_OF_ANOTHER_CLASS])
@example([ON_SMALL_REGION_OF_ITS_CLASS])
@settings(max_examples=50)
@given(st.lists(instance_scenes(), max_size=3))
def test_average_precision_agrees_with_loops(scenes):
    check_instance_scores(score_instances(scenes).result(), scenes, SCANNET20)


@settings(max_examples=50)
@given(st.lists(instance_scenes(), max_size=3))
def test_class_agnostic_scores_are_those_of_all_classes_as_one(scenes):
    scores = InstanceScores(SCANNET20, is_class_agnostic=True)
    merged = []
    for scene in scenes:
        masks = [Mask(mask.vertices, 2, mask.score) for mask in scene.masks]
        labels = [2 if 2 <= label < 20 else label for label in scene.labels]
        merged.append(Scene(masks, labels, scene.instances))
        half = score_instances([scene], scores=InstanceScores(SCANNET20, is_class_agnostic=True))
        scores.merge(half)

    table = scores.result()

    assert list(table.classes) == ["object"]
    expected = score_instances(merged).result()
    assert table.classes["object"] == expected.classes["cabinet"]
    assert table.means == {"all": expected.means["all"]}


@settings(max_examples=50)
@given(st.lists(instance_scenes(), max_size=3))
def test_merged_instance_scores_equal_those_of_all_scenes(scenes):
    merged = score_instances(scenes[:1])
    merged.merge(pickle.loads(pickle.dumps(score_instances(scenes[1:]))))

    assert merged.result() == score_instances(scenes).result()


@settings(max_examples=50)
@given(st.lists(instance_scenes(), max_size=3))
def test_totals_count_each_prediction_once(scenes):
    totals = score_instances(scenes).result().totals

    labels = [mask.label for scene in scenes for mask in scene.masks]
    other_count = sum(label not in range(2, 20) for label in labels)
    assert totals["other"] == other_count
    assert totals["small"] + totals["predictions"] == len(labels) - other_count


# Pairs of predicted and true labels of the vertices of up to four scenes.
LABEL_PAIRS = st.lists(
    st.lists(st.tuples(st.integers(-2, 22), st.integers(-2, 20)), max_size=60), max_size=4
)
LABEL_SETS = st.sampled_from([SCANNET20, SCANNET200])


def split_pairs(scenes):
    """Split the pairs of each scene into its predicted and its true labels."""
    return [
        ([predicted for predicted, _ in pairs], [true for _, true in pairs]) for pairs in scenes
    ]


def score_semantic(label_set, pairs):
    scores = SemanticScores(label_set)
    for predicted_labels, true_labels in split_pairs(pairs):
        scores.add(np.array(predicted_labels, np.int16), np.array(true_labels, np.int64))
    return scores


@settings(max_examples=50)
@given(LABEL_SETS, LABEL_PAIRS)
def test_ious_and_means_agree_with_loops(label_set, pairs):
    table = score_semantic(label_set, pairs).result()

    expected = score_semantic_by_loops(split_pairs(pairs), len(label_set))
    ious = {}
    for train_id, row in enumerate(table.classes.values()):
        if row["iou"] is not None:
            ious[train_id] = row["iou"]
    assert ious == pytest.approx(expected["ious"], abs=1e-9)
    for name in ("over_all", "over_union", "over_ground_truth"):
        assert table.means["all"][name] == pytest.approx(expected[name], abs=1e-9)
    assert table.totals["accuracy"] == pytest.approx(expected["accuracy"], abs=1e-9)
    assert table.totals["missed"] == expected["missed"]


@settings(max_examples=50)
@given(LABEL_PAIRS)
def test_means_over_head_are_those_of_its_classes(pairs):
    table = score_semantic(SCANNET200, pairs).result()

    ious = [table.classes[SCANNET200.names[label]]["iou"] for label in SCANNET200.head]
    expected = mean(iou for iou in ious if iou is not None)
    assert table.means["head"]["over_union"] == pytest.approx(expected, abs=1e-9)


@settings(max_examples=50)
@given(LABEL_SETS, LABEL_PAIRS)
def test_merged_semantic_scores_equal_those_of_all_scenes(label_set, pairs):
    merged = SemanticScores(label_set)
    for predicted_labels, true_labels in split_pairs(pairs):
        part = SemanticScores(label_set)
        # Other types than those of `score_semantic`.
        part.add(np.array(predicted_labels, np.int8), np.array(true_labels, np.int32))
        merged.merge(pickle.loads(pickle.dumps(part)))

    assert merged.result() == score_semantic(label_set, pairs).result()


# Examples.


def test_classes_that_do_not_occur_count_differently_in_each_mean():
    classes_of_val = np.array([one.train_id for one in SCANNET200.classes if one.in_val])
    perfect = SemanticScores(SCANNET200)
    perfect.add(classes_of_val, classes_of_val)
    # Class 4 is only predicted, and class 7 only at an unlabeled vertex.
    wrong = SemanticScores(SCANNET20)
    wrong.add(np.array([3, 4, 7]), np.array([3, 3, -1]))

    assert perfect.result().means["all"] == pytest.approx(
        {"over_all": 189 / 200, "over_union": 1, "over_ground_truth": 1}
    )
    assert perfect.result().totals["accuracy"] == 1
    assert wrong.result().means["all"] == pytest.approx(
        {"over_all": 0.025, "over_union": 0.25, "over_ground_truth": 0.5}
    )
    assert wrong.result().classes[SCANNET20.names[7]]["iou"] is None


def score_perfect_instances(label_set):
    """Score one correctly predicted instance of each class, also of wall and floor."""
    classes = np.arange(len(label_set))
    labels = np.repeat(classes, 100)
    masks = labels == classes[:, None]
    scores = InstanceScores(label_set)
    scores.add(
        InstancePrediction(masks, classes, np.ones(len(classes))),
        InstanceTruth(labels=labels, instances=np.zeros(len(labels), int)),
    )
    return scores.result()


@pytest.mark.parametrize(
    ("label_set", "means"),
    [(SCANNET20, ["all"]), (SCANNET200, ["all", "head", "common", "tail"])],
)
def test_perfect_instances_score_1_in_all_classes_but_wall_and_floor(label_set, means):
    table = score_perfect_instances(label_set)

    assert [*table.means] == means
    assert table.means["all"] == {"ap": 1.0, "ap50": 1.0, "ap25": 1.0}
    assert len(table.classes) == table.totals["instances"] == len(label_set) - 2
    assert table.totals["other"] == 2


FIRST_INSTANCE = Mask(set(range(150)), 5, 0.9)
BETWEEN_BOTH_INSTANCES = Mask(set(range(75, 225)), 5, 0.8)


@pytest.mark.parametrize(
    ("masks", "expected"),
    [
        ([FIRST_INSTANCE, BETWEEN_BOTH_INSTANCES], 11 / 12),
        ([BETWEEN_BOTH_INSTANCES, FIRST_INSTANCE], 0.5),
    ],
)
def test_ap25_depends_on_the_order_of_predictions(masks, expected):
    scene = Scene(masks, labels=[5] * 300, instances=[1] * 150 + [2] * 150)

    means = score_instances([scene]).result().means["all"]

    assert means["ap25"] == pytest.approx(expected)


ZERO = {"ap": 0.0, "ap50": 0.0, "ap25": 0.0}


def test_class_whose_predictions_are_all_ignored_has_precision_zero():
    on_void = Mask(set(range(150, 300)), 5, 0.9)
    scene = Scene([on_void], labels=[5] * 150 + [-1] * 150, instances=[0] * 150 + [-1] * 150)

    assert score_instances([scene]).result().means["all"] == ZERO


@pytest.mark.parametrize("masks", [[], np.zeros((0, 300)), np.zeros((300, 0), bool)])
def test_empty_prediction_of_any_shape_misses_all_instances(masks):
    scores = InstanceScores(SCANNET20)
    truth = InstanceTruth(labels=[5] * 300, instances=[0] * 300)
    scores.add(InstancePrediction(masks, [], []), truth)

    table = scores.result()

    assert table.means["all"] == ZERO
    assert table.totals["instances"] == 1
    assert table.totals["predictions"] == 0


# Refused arguments.

TRUTH_OF_TWO = InstanceTruth(labels=[2, 2], instances=[0, 0])


def add_instances(masks, scores=(1,), truth=TRUTH_OF_TWO):
    InstanceScores(SCANNET20).add(InstancePrediction(masks, [2], scores), truth)


def add_truth(scores, labels):
    """Add a scene with some prediction."""
    if isinstance(scores, SemanticScores):
        scores.add([0] * len(labels), labels)
    else:
        nothing = InstancePrediction(masks=[], labels=[], scores=[])
        scores.add(nothing, InstanceTruth(labels=labels, instances=[1] * len(labels)))


OF_BOTH_SETS = [0, 35, 111, 35, -1]
REFUSED = [
    (lambda: SemanticScores(SCANNET20).add([1, 2, 3], [1, 2]), "found 3 vertices, expected 2"),
    (lambda: SemanticScores(SCANNET20).add([1.0, 2.0], [1, 2]), r"found float64 \(2,\), expected"),
    (lambda: add_instances([[1, 1, 1]]), r"masks: found int64 \(1, 3\), expected \(1, 2\)"),
    (lambda: add_instances([[1, 1]], [np.nan]), "scores: found float64 .* 1 finite numbers"),
    (
        lambda: add_instances([[1, 1]], truth=InstanceTruth(labels=[1, 1], instances=[0])),
        "instances of the ground truth: found 1 vertices, expected 2",
    ),
    (lambda: add_instances([[0.1, 0.9]]), "found float64 from 0.1 to 0.9, expected bool, or"),
    (lambda: add_instances(np.array([[-3.5, 4]], np.float32)), "found float32 from -3.5 to 4,"),
    (lambda: add_instances(np.array([[0, 255]], np.uint8)), "found uint8 from 0 to 255,"),
    (lambda: add_instances([[-1, 1]]), "found int64 from -1 to 1,"),
    (lambda: add_instances([[np.nan, 1]]), "found float64 from nan to nan,"),
    (
        lambda: SemanticScores(SCANNET20).merge(SemanticScores(SCANNET200)),
        "SemanticScores of ScanNet200 cannot be merged into SemanticScores of ScanNet20",
    ),
    (
        lambda: SemanticScores(SCANNET20).merge(InstanceScores(SCANNET20)),
        "InstanceScores of ScanNet20 cannot be merged into SemanticScores of ScanNet20",
    ),
    (lambda: SemanticScores("200"), "is not a label set"),
    (lambda: InstanceScores(None), "is not a label set"),
    (
        lambda: add_truth(SemanticScores(SCANNET20), OF_BOTH_SETS),
        r"found 35, 111, which are not train ids of ScanNet20 \(0 to 19\)",
    ),
    (lambda: add_truth(InstanceScores(SCANNET20), OF_BOTH_SETS), "found 35, 111, which are not"),
    (lambda: InstanceTruth([1, 1], [0, 0]), "positional"),
]


@pytest.mark.parametrize(("use", "problem"), REFUSED)
def test_wrong_arguments_are_refused_with_what_was_found(use, problem):
    with pytest.raises((ContentError, UsageError, TypeError), match=problem):
        use()


@pytest.mark.parametrize("kind", [bool, np.uint8, np.int64, np.float16, np.float64])
def test_masks_of_0_and_1_score_the_same_in_any_type(kind):
    masks = np.repeat([[1, 0]], 100, axis=1).astype(kind)
    truth = InstanceTruth(labels=[2] * 200, instances=[0] * 100 + [1] * 100)
    scores = InstanceScores(SCANNET20)

    scores.add(InstancePrediction(masks, [2], [0.5]), truth)

    assert scores.result().classes["cabinet"]["ap50"] == pytest.approx(0.5)


@pytest.mark.extra("torch")
@pytest.mark.parametrize("name", ["masks", "labels", "scores"])
@pytest.mark.parametrize("has_gradient", [True, False])
def test_tensors_without_a_numpy_form_are_refused_with_the_conversion(name, has_gradient):
    import torch

    values = {"masks": [[0.0, 1.0]], "labels": [2], "scores": [0.5]}
    dtype = torch.float32 if has_gradient else torch.bfloat16
    values[name] = torch.tensor(values[name], dtype=dtype, requires_grad=has_gradient)

    problem = f"^{name}: not an array, and cannot become one: "
    with pytest.raises(ContentError, match=problem) as caught:
        InstanceScores(SCANNET20).add(InstancePrediction(**values), TRUTH_OF_TWO)

    assert "tensor.detach().cpu().numpy()" in caught.value.hint


@pytest.mark.parametrize(
    ("scores_class", "key", "expected"),
    [(SemanticScores, "vertices", 1), (InstanceScores, "instances", 0)],
)
@pytest.mark.parametrize("unlabeled", [-1, -100, 20, 255])
def test_ground_truth_may_have_any_one_number_for_unlabeled(scores_class, key, expected, unlabeled):
    scores = scores_class("scannet20")

    add_truth(scores, [4, unlabeled, -1, unlabeled])

    assert scores.result().classes["chair"][key] == expected
