"""Scores of arrays, compared with loops written from the rules of the benchmark."""

import pickle

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from scannet_prep import SCANNET20, SCANNET200
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
# The classes of ScanNet20 but wall and floor.
COUNTED = range(2, 20)


def mean(values):
    values = list(values)
    return sum(values) / len(values) if values else None


# Loops. A scene is its masks, the label of each vertex, and the instance of each vertex; a mask is
# its vertices, its label and its confidence.


def score_semantic_by_loops(scenes, class_count):
    """Score scenes of pairs of a predicted and a true label."""
    pairs = [pair for scene in scenes for pair in scene if 0 <= pair[1] < class_count]
    ious = {}
    for label in range(class_count):
        union = sum(label in pair for pair in pairs)
        if union:
            ious[label] = pairs.count((label, label)) / union
    means = {
        "over_all": sum(ious.values()) / class_count,
        "over_union": mean(ious.values()),
        "over_ground_truth": mean(ious[label] for label in {true for _, true in pairs}),
    }
    totals = {
        "vertices": len(pairs),
        "missed": sum(not 0 <= predicted < class_count for predicted, _ in pairs),
        "accuracy": mean(predicted == true for predicted, true in pairs),
    }
    return ious, means, totals


def iou(a, b):
    return len(a & b) / len(a | b)


def match_by_loops(regions, masks, threshold):
    """Match annotated instances with predictions.

    Returns the confidence of each verdict, whether it is correct, and how many have no match.
    """
    verdicts = []
    used = set()
    missed_count = 0
    for region in regions:
        matched_score = None
        for number, (vertices, _, score) in enumerate(masks):
            if number in used or iou(vertices, region) <= threshold:
                continue
            if matched_score is None:
                matched_score = score
                used.add(number)
            else:
                verdicts.append((min(matched_score, score), False))
                matched_score = max(matched_score, score)
        if matched_score is None:
            missed_count += 1
        else:
            verdicts.append((matched_score, True))
    return verdicts, missed_count


def judge_by_loops(scene, label, threshold):
    """Judge the predictions of one class in a scene, and count the missed instances."""
    all_masks, labels, instances = scene
    regions = {}
    void = set()
    for vertex, (true_label, instance) in enumerate(zip(labels, instances, strict=True)):
        if true_label not in COUNTED or instance < 0:
            void.add(vertex)
        elif true_label == label:
            regions.setdefault(instance, set()).add(vertex)
    large_regions = [regions[number] for number in sorted(regions) if len(regions[number]) >= 100]
    small_regions = [region for region in regions.values() if len(region) < 100]
    masks = [mask for mask in all_masks if mask[1] == label and len(mask[0]) >= 100]

    verdicts, missed_count = match_by_loops(large_regions, masks, threshold)
    for vertices, _, score in masks:
        if any(iou(vertices, region) > threshold for region in regions.values()):
            continue
        ignored_count = sum(len(vertices & part) for part in [void, *small_regions])
        if ignored_count / len(vertices) <= threshold:
            verdicts.append((score, False))
    return verdicts, missed_count


def average_precision_by_loops(scenes, label, threshold):
    verdicts = []
    total = 0
    for scene in scenes:
        scene_verdicts, missed_count = judge_by_loops(scene, label, threshold)
        verdicts += scene_verdicts
        total += missed_count + sum(is_correct for _, is_correct in scene_verdicts)
    if not total:
        return None

    precisions = []
    recalls = []
    for confidence in sorted({score for score, _ in verdicts}):
        above = [is_correct for score, is_correct in verdicts if score >= confidence]
        precisions.append(sum(above) / len(above))
        recalls.append(sum(above) / total)
    precisions.append(1.0)
    recalls.append(0.0)

    # The width of a step is half the distance between the recalls before and after it.
    padded = [recalls[0], *recalls, 0.0]
    widths = [(padded[k] - padded[k + 2]) / 2 for k in range(len(recalls))]
    return sum(precision * width for precision, width in zip(precisions, widths, strict=True))


def score_instances(scenes, is_class_agnostic=False):
    scores = InstanceScores(SCANNET20, is_class_agnostic=is_class_agnostic)
    for scene_masks, true_labels, instances in scenes:
        masks = np.zeros((len(scene_masks), len(true_labels)), np.uint8)
        for row, (vertices, _, _) in zip(masks, scene_masks, strict=True):
            row[list(vertices)] = 1
        labels = np.array([label for _, label, _ in scene_masks], int)
        confidences = np.array([score for _, _, score in scene_masks], float)
        truth = InstanceTruth(labels=np.array(true_labels), instances=np.array(instances, np.int16))
        scores.add(InstancePrediction(masks, labels, confidences), truth)
    return scores


# Random scenes.

# Label, instance and number of blocks of a run of vertices. Only one number beyond the train ids is
# allowed in the ground truth.
RUNS = st.tuples(
    st.sampled_from([2, 2, 2, 5, -1, 0, 255]),
    st.integers(-1, 2),
    st.sampled_from([3, 4, 4, 5, 8]),
)
PREDICTED_LABELS = st.sampled_from([2, 2, 2, 5, -1, 0, 20, 255])


def make_scene(runs, predictions):
    """Make a scene of runs of blocks, and of predictions with masks of blocks."""
    blocks = []
    for label, instance, block_count in runs:
        blocks += [(label, instance)] * block_count
    blocks = (blocks + [(-1, -1)] * BLOCK_COUNT)[:BLOCK_COUNT]
    labels, instances = np.repeat(blocks, BLOCK_VERTICES, axis=0).T.tolist()
    masks = []
    for mask_blocks, label, score in predictions:
        starts = [block * BLOCK_VERTICES for block in mask_blocks]
        vertices = {start + vertex for start in starts for vertex in range(BLOCK_VERTICES)}
        masks.append((vertices, label, score))
    return masks, labels, instances


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
        label = draw(st.just(runs[chosen[0]][0]) | PREDICTED_LABELS)
        predictions.append((blocks, label, draw(st.sampled_from([0.0, 0.25, 0.5, 1.0]))))
    return make_scene(runs, predictions)


EXAMPLES = [
    # Masks that cover exactly half of a region, and lie on void by exactly half.
    (
        [(2, 0, 8), (2, 1, 8), (5, 1, 2)],
        [({8, 9, 10, 11}, 2, 0.25), ({*range(8)}, 2, 0.5), ({16, 17, 18, 19}, 2, 1.0)],
    ),
    # Exactly 100 vertices.
    ([(2, 0, 4), (2, 1, 3)], [({0, 1, 2, 3}, 2, 0.5), ({4, 5, 6}, 2, 1.0)]),
    # Small regions of another class, and of the same.
    ([(2, 0, 8), (5, 0, 3)], [({*range(8)}, 2, 0.5), ({7, 8, 9, 10}, 2, 1.0)]),
    ([(2, 0, 8), (2, 1, 3)], [({*range(8)}, 2, 0.5), ({7, 8, 9, 10}, 2, 1.0)]),
    # The first mask matches two regions, the second one only the first.
    ([(2, 0, 6), (2, 1, 6)], [({*range(3, 9)}, 2, 0.25), ({*range(6)}, 2, 0.5)]),
]


@example([make_scene(*each) for each in EXAMPLES])
@settings(max_examples=100)
@given(st.lists(instance_scenes(), max_size=3))
def test_instance_scores_agree_with_loops_also_when_they_are_merged(scenes):
    scores = score_instances(scenes[:1])
    scores.merge(pickle.loads(pickle.dumps(score_instances(scenes[1:]))))
    table = scores.result()

    assert table == score_instances(scenes).result()
    assert [*table.classes] == [*SCANNET20.names[2:]]
    true_labels = {label for _, labels, _ in scenes for label in labels}
    rows = []
    for label in COUNTED:
        row = []
        if label in true_labels:
            row = [average_precision_by_loops(scenes, label, each) for each in THRESHOLDS]
        is_scored = row and row[0] is not None
        if is_scored:
            rows.append(row)
        expected = [mean(row[:9]), row[0], row[9]] if is_scored else [None] * 3
        numbers = table.classes[SCANNET20.names[label]]
        found = [numbers[name] for name in ("ap", "ap50", "ap25")]
        assert found == pytest.approx(expected, abs=1e-9)
    expected = [mean(value for row in rows for value in row[:9])]
    expected += [mean(row[index] for row in rows) for index in (0, 9)]
    assert [*table.means["all"].values()] == pytest.approx(expected, abs=1e-9)
    # Each prediction counts once.
    labels = [label for masks, _, _ in scenes for _, label, _ in masks]
    assert table.totals["other"] == sum(label not in COUNTED for label in labels)
    counts = [table.totals[name] for name in ("other", "small", "predictions")]
    assert sum(counts) == len(labels)


@settings(max_examples=50)
@given(st.lists(instance_scenes(), max_size=3))
def test_class_agnostic_scores_are_those_of_all_classes_as_one(scenes):
    table = score_instances(scenes, is_class_agnostic=True).result()

    assert [*table.classes] == ["object"]
    as_one = []
    for masks, labels, instances in scenes:
        as_cabinets = [(vertices, 2, score) for vertices, _, score in masks]
        as_one.append(
            (as_cabinets, [2 if label in COUNTED else label for label in labels], instances)
        )
    expected = score_instances(as_one).result()
    assert table.classes["object"] == expected.classes["cabinet"]
    assert table.means == {"all": expected.means["all"]}


# Pairs of predicted and true labels of the vertices of up to four scenes.
LABEL_PAIRS = st.lists(
    st.lists(st.tuples(st.integers(-2, 22), st.integers(-2, 20)), max_size=60), max_size=4
)


def score_semantic(label_set, scenes, predicted_type=np.int16, true_type=np.int64):
    scores = SemanticScores(label_set)
    for pairs in scenes:
        predicted, true = np.array(pairs, int).reshape(-1, 2).T
        scores.add(predicted.astype(predicted_type), true.astype(true_type))
    return scores


@settings(max_examples=100)
@given(st.sampled_from([SCANNET20, SCANNET200]), LABEL_PAIRS)
def test_semantic_scores_agree_with_loops_also_when_they_are_merged(label_set, scenes):
    scores = score_semantic(label_set, scenes[:1])
    other = score_semantic(label_set, scenes[1:], np.int8, np.int32)
    scores.merge(pickle.loads(pickle.dumps(other)))
    table = scores.result()

    assert table == score_semantic(label_set, scenes).result()
    ious, means, totals = score_semantic_by_loops(scenes, len(label_set))
    for label, name in enumerate(label_set.names):
        assert table.classes[name]["iou"] == pytest.approx(ious.get(label), abs=1e-9)
    assert table.means["all"] == pytest.approx(means, abs=1e-9)
    assert table.totals == pytest.approx(totals, abs=1e-9)
    if label_set == SCANNET200:
        expected = mean(ious[label] for label in label_set.head if label in ious)
        assert table.means["head"]["over_union"] == pytest.approx(expected, abs=1e-9)


# Examples.


def test_perfect_instances_score_1_in_all_classes_but_wall_and_floor():
    classes = np.arange(200)
    labels = np.repeat(classes, 100)
    scores = InstanceScores(SCANNET200)
    scores.add(
        InstancePrediction(labels == classes[:, None], classes, np.ones(200)),
        InstanceTruth(labels=labels, instances=np.zeros(len(labels), int)),
    )
    table = scores.result()

    assert [*table.means] == ["all", "head", "common", "tail"]
    assert table.means["all"] == {"ap": 1.0, "ap50": 1.0, "ap25": 1.0}
    assert len(table.classes) == table.totals["instances"] == 198
    assert table.totals["other"] == 2
    agnostic = InstanceScores(SCANNET200, is_class_agnostic=True).result()
    assert ([*agnostic.means], [*agnostic.classes]) == (["all"], ["object"])


ROW = np.repeat([[1, 0]], 100, axis=1)


@pytest.mark.parametrize(
    "masks",
    [
        *([], np.zeros((0, 200)), np.zeros((200, 0), bool)),
        *(ROW.astype(kind) for kind in (bool, np.uint8, np.float16)),
    ],
)
def test_masks_may_have_any_type_and_be_none(masks):
    count = int(np.size(masks) > 0)
    truth = InstanceTruth(labels=[2] * 200, instances=[0] * 100 + [1] * 100)
    scores = InstanceScores(SCANNET20)

    scores.add(InstancePrediction(masks, [2] * count, [0.5] * count), truth)

    table = scores.result()
    assert table.classes["cabinet"]["ap50"] == pytest.approx(count / 2)
    assert (table.totals["instances"], table.totals["predictions"]) == (2, count)


# Refused arguments.

TRUTH_OF_TWO = InstanceTruth(labels=[2, 2], instances=[0, 0])


def add_instances(masks, scores=(1,), truth=TRUTH_OF_TWO):
    InstanceScores(SCANNET20).add(InstancePrediction(masks, [2], scores), truth)


def add_instances_of(labels):
    truth = InstanceTruth(labels=labels, instances=[1] * len(labels))
    InstanceScores(SCANNET20).add(InstancePrediction([], [], []), truth)


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
    (lambda: SemanticScores(SCANNET20).merge(SemanticScores(SCANNET200)), "broadcast"),
    (lambda: InstanceScores(SCANNET20).merge(InstanceScores(SCANNET200)), "broadcast"),
    (
        lambda: SemanticScores(SCANNET20).add([0] * 5, OF_BOTH_SETS),
        r"found 35, 111, which are not train ids of ScanNet20 \(0 to 19\)",
    ),
    (lambda: add_instances_of(OF_BOTH_SETS), "found 35, 111, which are not"),
    (lambda: InstanceTruth([1, 1], [0, 0]), "positional"),
]


@pytest.mark.parametrize(("use", "problem"), REFUSED)
def test_wrong_arguments_are_refused_with_what_was_found(use, problem):
    with pytest.raises((ValueError, TypeError), match=problem):
        use()


@pytest.mark.parametrize("unlabeled", [-1, -100, 20, 255])
def test_ground_truth_may_have_any_one_number_for_unlabeled(unlabeled):
    labels = [4, unlabeled, -1, unlabeled]
    scores = SemanticScores("scannet20")
    scores.add([0] * 4, labels)
    assert scores.result().classes["chair"]["vertices"] == 1
    add_instances_of(labels)
