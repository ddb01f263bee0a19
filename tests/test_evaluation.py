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
THRESHOLDS = [number / 100 for number in (*range(50, 95, 5), 25)]
# The classes that occur and count, in both label sets.
COUNTED = (4, 5)


def mean(values):
    values = list(values)
    return sum(values) / len(values) if values else None


# Loops. A scene is its masks, the label of each vertex, and the instance of each vertex; a mask is
# its vertices, its label and its confidence.


def score_semantic_by_loops(pairs, class_count):
    """Score pairs of a predicted and a true label, which is a class."""
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
    """Match annotated instances with predictions: list verdicts of confidence and correctness."""
    verdicts = []
    used = set()
    for region in regions:
        above = [k for k, mask in enumerate(masks) if iou(mask[0], region) > threshold]
        unused = [k for k in above if k not in used]
        if unused:
            used.add(unused[0])
            *lower_scores, best_score = sorted(masks[k][2] for k in unused)
            verdicts.append((best_score, True))
            verdicts += [(score, False) for score in lower_scores]
    return verdicts


def judge_by_loops(scene, label, threshold):
    """Judge the predictions of one class in a scene, and count the instances that count."""
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

    verdicts = match_by_loops(large_regions, masks, threshold)
    for vertices, _, score in masks:
        if any(iou(vertices, region) > threshold for region in regions.values()):
            continue
        ignored_count = sum(len(vertices & part) for part in [void, *small_regions])
        if ignored_count / len(vertices) <= threshold:
            verdicts.append((score, False))
    return verdicts, len(large_regions)


def average_precision_by_loops(scenes, label, threshold):
    verdicts = []
    total = 0
    for scene in scenes:
        scene_verdicts, region_count = judge_by_loops(scene, label, threshold)
        verdicts += scene_verdicts
        total += region_count
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


def score_instances(scenes, label_set, mask_type=bool, **options):
    scores = InstanceScores(label_set, **options)
    for scene_masks, true_labels, instances in scenes:
        vertices = range(len(true_labels))
        masks = np.array([np.isin(vertices, [*mask]) for mask, _, _ in scene_masks], mask_type)
        labels = [label for _, label, _ in scene_masks]
        confidences = [score for _, _, score in scene_masks]
        truth = InstanceTruth(labels=true_labels, instances=np.array(instances, np.int16))
        scores.add(InstancePrediction(masks, labels, confidences), truth)
    return scores


# Random scenes.

# Label, instance and number of blocks of a run of vertices. Only one number beyond the train ids is
# allowed in the ground truth.
LABELS = st.sampled_from([4, 4, 4, 5, -1, 0, 255])
RUNS = st.tuples(LABELS, st.integers(-1, 2), st.sampled_from([3, 4, 4, 5, 8]))


def make_scene(runs, predictions):
    """Make a scene of runs of blocks, and of predictions with masks of blocks."""
    blocks = []
    for label, instance, block_count in runs:
        blocks += [(label, instance)] * block_count
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
    runs = draw(st.lists(RUNS, min_size=1, max_size=6))
    starts = [0, *np.cumsum([block_count for _, _, block_count in runs])]
    predictions = []
    for _ in range(draw(st.integers(0, 8))):
        chosen = draw(st.lists(st.integers(0, len(runs) - 1), min_size=1, max_size=2))
        blocks = {block for run in chosen for block in range(starts[run], starts[run + 1])}
        blocks ^= draw(st.sets(st.integers(0, starts[-1] - 1), max_size=4))
        label = draw(st.just(runs[chosen[0]][0]) | LABELS)
        predictions.append((blocks, label, draw(st.sampled_from([0.0, 0.25, 0.5, 1.0]))))
    return make_scene(runs, predictions)


LABEL_SETS = st.sampled_from([SCANNET20, SCANNET200])
EXAMPLES = [
    # Masks that cover exactly half of a region, and lie on void by exactly half.
    (
        [(4, 0, 8), (4, 1, 8), (5, 1, 2), (-1, -1, 2)],
        [(range(8, 12), 4, 0.25), (range(8), 4, 0.5), (range(16, 20), 4, 1.0)],
    ),
    # Exactly 100 vertices.
    ([(4, 0, 4), (4, 1, 3)], [(range(4), 4, 0.5), (range(4, 7), 4, 1.0)]),
    # Small regions of another class, and of the same; confidences that float32 does not tell apart.
    ([(4, 0, 8), (5, 0, 3)], [(range(8), 4, 0.5), (range(7, 11), 4, 0.5 + 1e-9)]),
    ([(4, 0, 8), (4, 1, 3)], [(range(8), 4, 0.5), (range(7, 11), 4, 1.0)]),
    # The first and the last mask match two regions, the other one only the first.
    (
        [(4, 0, 6), (4, 1, 6)],
        [(range(3, 9), 4, 0.25), (range(6), 4, 0.5), (range(2, 9), 4, 0.0)],
    ),
]


def summarize(rows):
    """Average precisions over the thresholds from 0.5 on, and those at 0.5 and 0.25."""
    return {
        "ap": mean(value for row in rows for value in row[:9]),
        "ap50": mean(row[0] for row in rows),
        "ap25": mean(row[9] for row in rows),
    }


@example(SCANNET20, [make_scene(*each) for each in EXAMPLES])
@settings(max_examples=100)
@given(LABEL_SETS, st.lists(instance_scenes(), max_size=3))
def test_instance_scores_agree_with_loops_also_when_they_are_merged(label_set, scenes):
    scores = score_instances(scenes[:1], label_set, np.uint8)
    scores.merge(pickle.loads(pickle.dumps(score_instances(scenes[1:], label_set, np.float16))))
    table = scores.result()

    assert table == score_instances(scenes, label_set).result()
    assert [*table.classes] == [name for name in label_set.names if name not in {"wall", "floor"}]
    rows = {}
    for label in COUNTED:
        row = [average_precision_by_loops(scenes, label, each) for each in THRESHOLDS]
        if row[0] is not None:
            rows[label] = row
        numbers = table.classes[label_set.names[label]]
        expected = summarize([row] if label in rows else [])
        assert numbers == pytest.approx(numbers | expected, abs=1e-9)
    assert len(table.means) == (4 if label_set is SCANNET200 else 1)
    for name, means in table.means.items():
        group = getattr(label_set, name, COUNTED)
        expected = summarize([rows[label] for label in rows if label in group])
        assert means == pytest.approx(expected, abs=1e-9)
    # Each prediction counts once.
    labels = [label for masks, _, _ in scenes for _, label, _ in masks]
    counted = sum(label in COUNTED for label in labels)
    totals = table.totals
    assert totals["small"] + totals["predictions"] == counted
    assert totals["other"] == len(labels) - counted


# The last mask matches both regions: it is the second one for that of the first class.
@example(
    SCANNET20,
    [make_scene([(5, 0, 6), (4, 1, 6)], [(range(6, 12), 4, 0.5), (range(12), 4, 1.0)])],
)
@settings(max_examples=50)
@given(LABEL_SETS, st.lists(instance_scenes(), max_size=3))
def test_class_agnostic_scores_are_those_of_all_classes_as_one(label_set, scenes):
    table = score_instances(scenes, label_set, is_class_agnostic=True).result()

    as_one = []
    for masks, labels, instances in scenes:
        of_one_class = [(vertices, 4, score) for vertices, _, score in masks]
        merged = np.where(np.isin(labels, COUNTED), 4, labels)
        # By class and then by number, as in the programs that score so.
        numbers = np.where(np.array(instances) < 0, -1, np.array(labels) * 9 + instances)
        as_one.append((of_one_class, merged, numbers))
    expected = score_instances(as_one, label_set).result()
    assert table.classes == {"object": expected.classes[label_set.names[4]]}
    assert table.means == {"all": expected.means["all"]}


# Pairs of predicted and true labels of the vertices of up to four scenes.
LABEL_PAIRS = st.lists(
    st.lists(st.tuples(st.integers(-2, 22), st.integers(-2, 20)), max_size=60), max_size=4
)


def score_semantic(label_set, scenes):
    scores = SemanticScores(label_set)
    for pairs in scenes:
        predicted, true = np.array(pairs, np.int8).reshape(-1, 2).T
        scores.add(predicted, true)
    return scores


@settings(max_examples=100)
@given(LABEL_SETS, LABEL_PAIRS)
def test_semantic_scores_agree_with_loops_also_when_they_are_merged(label_set, scenes):
    scores = score_semantic(label_set, scenes[:1])
    scores.merge(pickle.loads(pickle.dumps(score_semantic(label_set, scenes[1:]))))
    table = scores.result()

    assert table == score_semantic(label_set, scenes).result()
    pairs = [pair for scene in scenes for pair in scene if pair[1] in range(len(label_set))]
    ious, means, totals = score_semantic_by_loops(pairs, len(label_set))
    for label, name in enumerate(label_set.names):
        numbers = table.classes[name]
        assert numbers["iou"] == pytest.approx(ious.get(label), abs=1e-9)
        counts = [sum(pair[place] == label for pair in pairs) for place in (0, 1)]
        assert [numbers["predicted"], numbers["vertices"]] == counts
    assert table.means["all"] == pytest.approx(means, abs=1e-9)
    assert table.totals == pytest.approx(totals, abs=1e-9)
    if label_set == SCANNET200:
        expected = mean(ious[label] for label in label_set.head if label in ious)
        assert table.means["head"]["over_union"] == pytest.approx(expected, abs=1e-9)


# Refused arguments.


def add_instances(masks, scores=(1,), labels=(2, 2), instances=(0, 0), **options):
    truth = InstanceTruth(labels=labels, instances=instances)
    prediction = InstancePrediction(masks, [2] * len(scores), scores)
    InstanceScores(SCANNET20, **options).add(prediction, truth)


OF_BOTH_SETS = [0, 20, 111, 20, -1]


def add_semantic(predicted, true):
    SemanticScores("scannet20").add(predicted, true)


REFUSED = [
    (lambda: add_semantic([1, 2, 3], [1, 2]), "found 3 vertices, expected 2"),
    (lambda: add_semantic([1.0, 2.0], [1, 2]), r"found float64 \(2,\), expected"),
    (lambda: add_instances([[1, 1, 1]]), r"masks: found int64 \(1, 3\), expected \(1, 2\)"),
    (lambda: add_instances([[1, 1]], []), r"masks: found int64 \(1, 2\), expected \(0, 2\)"),
    (lambda: add_instances([[1, 1]], [np.inf]), "scores: found float64 .* 1 finite numbers"),
    (
        lambda: add_instances([[1, 1]], instances=[0]),
        "instances of the ground truth: found 1 vertices, expected 2",
    ),
    (lambda: add_instances([[0.1, 0.9]]), "found float64 from 0.1 to 0.9, expected bool, or"),
    (
        lambda: add_semantic(OF_BOTH_SETS, OF_BOTH_SETS),
        r"found 20, 111, which are not train ids of ScanNet20 \(0 to 19\)",
    ),
    (
        lambda: add_instances([], [], OF_BOTH_SETS, OF_BOTH_SETS, is_class_agnostic=True),
        "found 20, 111, which are not",
    ),
    (lambda: InstanceTruth([1, 1], [0, 0]), "positional"),
]


@pytest.mark.parametrize(("use", "problem"), REFUSED)
def test_wrong_arguments_are_refused_with_what_was_found(use, problem):
    with pytest.raises((ValueError, TypeError), match=problem):
        use()
