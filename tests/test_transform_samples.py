"""Metadata of a sample in transforms: frame, label set, annotated vertices and drawn parameters."""

import json
import math
import pickle
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from test_transforms import ALL, make_sample, rng
from training_sources import check_same

from scannet_prep import SCANNET20, SCANNET200, collate, collate_torch
from scannet_prep import transforms as aug
from scannet_prep.errors import UsageError

MOVING = [
    aug.CenterShift(), aug.ClipGaussianJitter(), aug.ElasticDistortion(), aug.Flip(), aug.Jitter(),
    aug.Normalize(), aug.RandomRotate(), aug.RandomShift(), aug.RotateZ(), aug.Scale(),
    aug.Sometimes(aug.Flip(), 0), aug.Compose(aug.Drop(), aug.RotateZ()), aug.pointcept(),
    aug.octformer(), aug.mask3d(),
]  # fmt: skip
NOT_MOVING = [
    aug.ColorJitter(), aug.HueSaturationTranslation(), aug.RandomDropNormal(), aug.CropPoints(9),
    aug.Drop(), aug.GridSample(0.5), aug.ShufflePoint(), aug.CropBox(1),
    aug.InstanceTargets(SCANNET20),
]  # fmt: skip


def make_labeled_sample(label_set_name: str, count: int = 40) -> Any:
    """Make a sample that names the label set of its labels, like those of the dataset."""
    return make_sample(count) | {"labels": np.arange(count) % 20, "label_set": label_set_name}


def add_mean(sample: dict[str, Any], generator: np.random.Generator) -> dict[str, Any]:
    return {**sample, "mean": sample["points"].mean()}


# The frame.


@pytest.mark.parametrize("transform", MOVING)
def test_transforms_that_move_points_remove_axis_alignment(transform: Any) -> None:
    result = transform(make_sample() | {"axis_alignment": np.eye(4)}, rng())

    assert "axis_alignment" not in result


@pytest.mark.parametrize("transform", NOT_MOVING)
def test_transforms_that_do_not_move_points_keep_axis_alignment(transform: Any) -> None:
    alignment = np.diag([2.0, 3.0, 4.0, 1.0])

    result = transform(make_sample() | {"axis_alignment": alignment}, rng())

    assert np.array_equal(result["axis_alignment"], alignment)


def test_mixed_scenes_have_no_axis_alignment() -> None:
    samples = [make_sample(seed=seed) | {"axis_alignment": np.eye(4)} for seed in range(2)]

    assert "axis_alignment" not in aug.mix(samples)


# The label set.


@pytest.mark.parametrize("transform", ALL)
def test_transformed_sample_records_its_label_set(transform: Any) -> None:
    result = transform(make_labeled_sample("ScanNet20"), rng())

    assert result["label_set"] == "ScanNet20"


def describe_refusal(transform_name: str, expected: str, actual: str) -> str:
    return (
        f"{transform_name}: the classes are of {expected}, "
        f"but the labels of the sample are of {actual}"
    )


@pytest.mark.parametrize(
    ("expected", "actual"), [(SCANNET20, "ScanNet200"), (SCANNET200, "ScanNet20")]
)
@pytest.mark.parametrize(
    "steps",
    [[], [aug.RotateZ()], [aug.mask3d()], [aug.Compose(aug.Drop(), record=True)], [add_mean]],
)
def test_instance_targets_refuse_labels_of_the_other_set(
    expected: Any, actual: str, steps: list[Any]
) -> None:
    transform = aug.Compose(*steps, aug.InstanceTargets(expected))

    problem = describe_refusal("InstanceTargets", expected.name, actual)
    with pytest.raises(UsageError, match=problem) as caught:
        transform(make_labeled_sample(actual), rng())

    assert caught.value.hint.startswith(f"ScanNet(..., labels={expected.name.upper()})")


@pytest.mark.parametrize("classes", [SCANNET200.head, SCANNET200.common, SCANNET200.tail])
@pytest.mark.parametrize("max_points", [9, 1000])
def test_crops_around_classes_of_scannet200_refuse_scannet20(classes: Any, max_points: int) -> None:
    transform = aug.CropPoints(max_points, classes=classes)

    problem = describe_refusal("CropPoints", "ScanNet200", "ScanNet20")
    with pytest.raises(UsageError, match=problem):
        transform(make_labeled_sample("ScanNet20"), rng())


CROP_AROUND_SCANNET20 = aug.CropPoints(9, classes=(3, 7), label_set=SCANNET20)


def test_crops_with_a_label_set_refuse_the_other() -> None:
    problem = describe_refusal("CropPoints", "ScanNet20", "ScanNet200")
    with pytest.raises(UsageError, match=problem):
        CROP_AROUND_SCANNET20(make_labeled_sample("ScanNet200"), rng())


def test_crops_with_a_label_set_accept_its_labels() -> None:
    result = CROP_AROUND_SCANNET20(make_labeled_sample("ScanNet20"), rng())

    assert len(result["points"]) == 9


@pytest.mark.parametrize("label_set", [SCANNET20, SCANNET200])
def test_instance_targets_accept_a_dict_without_a_label_set(label_set: Any) -> None:
    assert "instance_boxes" in aug.InstanceTargets(label_set)(make_sample(), rng())


def test_crops_around_classes_accept_a_dict_without_a_label_set() -> None:
    result = aug.CropPoints(9, classes=SCANNET200.tail)(make_sample(), rng())

    assert len(result["points"]) == 9


def test_scenes_of_two_label_sets_cannot_be_mixed() -> None:
    samples = [make_labeled_sample("ScanNet20"), make_labeled_sample("ScanNet200")]

    with pytest.raises(UsageError, match="their labels are of ScanNet20 and ScanNet200"):
        aug.mix(samples)


def test_mixed_scenes_record_their_label_set() -> None:
    mixed = aug.mix([make_labeled_sample("ScanNet20")] * 2)

    assert mixed["label_set"] == "ScanNet20"


# Annotated vertices.


def make_limited(count: int, annotated: set[int], seed: int = 0) -> dict[str, Any]:
    """Make a sample in which only some vertices are annotated, with the index of each vertex."""
    is_annotated = np.isin(np.arange(count), list(annotated))
    return make_sample(count, seed) | {
        "labels": np.where(is_annotated, 1, -1),
        "annotated": is_annotated,
        "index": np.arange(count),
    }


ANNOTATIONS = st.sets(st.integers(0, 39))
CELL_SIZES = st.sampled_from([0.1, 0.5, 1.0, 9.0])
SEEDS = st.integers(0, 20)


def find_cells(sample: dict[str, Any], size: float) -> list[tuple[int, ...]]:
    def find_cell(point: np.ndarray) -> tuple[int, ...]:
        return tuple(math.floor(float(value) / size) for value in point)

    return [find_cell(point) for point in sample["points"]]


@given(ANNOTATIONS, CELL_SIZES, SEEDS)
def test_grid_sample_keeps_annotated_vertices_and_one_of_other_cells(
    annotated: set[int], size: float, seed: int
) -> None:
    sample = make_limited(40, annotated)

    result = aug.GridSample(size)(sample, rng(seed))

    kept = result["index"].tolist()
    assert kept == sorted(kept)
    assert result["annotated"].tolist() == [index in annotated for index in kept]
    cells = find_cells(sample, size)
    for cell in set(cells):
        annotated_in_cell = {index for index in annotated if cells[index] == cell}
        kept_in_cell = {index for index in kept if cells[index] == cell}
        if annotated_in_cell:
            assert kept_in_cell == annotated_in_cell
        else:
            assert len(kept_in_cell) == 1


@given(ANNOTATIONS, CELL_SIZES, SEEDS)
def test_inverse_leads_annotated_vertices_to_themselves(
    annotated: set[int], size: float, seed: int
) -> None:
    sample = make_limited(40, annotated)

    result = aug.GridSample(size)(sample, rng(seed))

    representatives = result["index"][result["inverse"]].tolist()
    cells = find_cells(sample, size)
    assert [cells[index] for index in representatives] == cells
    for index in annotated:
        assert representatives[index] == index


def test_any_annotated_vertex_may_represent_its_cell() -> None:
    sample = make_limited(6, {1, 3, 4}) | {"points": np.zeros((6, 3), np.float32)}

    representatives = set()
    for seed in range(60):
        result = aug.GridSample(1)(sample, rng(seed))
        representatives.add(int(result["index"][result["inverse"][0]]))

    assert representatives == {1, 3, 4}


@given(ANNOTATIONS, st.floats(0, 1), SEEDS)
def test_drop_keeps_annotated_vertices_in_addition_to_its_share(
    annotated: set[int], share: float, seed: int
) -> None:
    limited = make_limited(40, annotated)
    unlimited = {key: value for key, value in limited.items() if key != "annotated"}

    kept = aug.Drop(share)(limited, rng(seed))["index"].tolist()

    share_kept = aug.Drop(share)(unlimited, rng(seed))["index"].tolist()
    assert kept == sorted({*share_kept, *annotated})


@pytest.mark.parametrize("crop", [aug.CropPoints(15), aug.CropBox(1.0)])
def test_crops_keep_the_same_vertices_with_and_without_annotation(crop: Any) -> None:
    limited = make_limited(40, {1, 5, 20, 33})
    unlimited = {key: value for key, value in limited.items() if key != "annotated"}

    kept = crop(limited, rng())["index"].tolist()

    assert kept == crop(unlimited, rng())["index"].tolist()


@pytest.mark.parametrize("crop", [aug.CropPoints(15), aug.CropBox(1.0)])
def test_crops_keep_annotated_with_the_vertices(crop: Any) -> None:
    annotated = {1, 5, 20, 33}

    result = crop(make_limited(40, annotated), rng())

    expected = [index in annotated for index in result["index"].tolist()]
    assert result["annotated"].tolist() == expected


@given(ANNOTATIONS, SEEDS)
def test_annotated_vertices_survive_the_whole_pipeline_and_mixing(
    annotated: set[int], seed: int
) -> None:
    pipeline = aug.Compose(aug.pointcept(grid_size=0.4, shuffle=True), add_mean, aug.Drop(0.5))
    scenes = []
    for number in range(2):
        scene = pipeline(make_limited(40, annotated), rng(seed + number))
        del scene["grid"]
        scenes.append(scene)

    mixed = aug.Mix3D(collate, 1.0, aug.GridSample(0.5))(scenes)

    indices = mixed["index"][mixed["annotated"]].tolist()
    assert sorted(indices) == sorted([*annotated, *annotated])
    assert np.count_nonzero(mixed["labels"] != -1) == 2 * len(annotated)


@pytest.mark.parametrize("transform", [aug.ShufflePoint(), aug.Drop()], ids=repr)
def test_selection_of_vertices_refuses_a_sample_without_points(transform: Any) -> None:
    with pytest.raises(UsageError, match="the sample has no 'points', only colors"):
        transform({"colors": np.zeros((4, 3), np.uint8)}, rng())


def test_annotated_of_another_length_than_the_points_is_refused() -> None:
    sample = make_limited(40, {3}) | {"annotated": np.ones(39, bool)}

    problem = r"GridSample: 'annotated' is bool \(39,\), expected bool \(40,\)"
    with pytest.raises(UsageError, match=problem):
        aug.GridSample(0.5)(sample, rng())


def test_indices_instead_of_a_mask_are_refused() -> None:
    sample = make_limited(40, {3}) | {"annotated": np.array([3])}

    problem = r"Drop: 'annotated' is int64 \(1,\), expected bool \(40,\)"
    with pytest.raises(UsageError, match=problem):
        aug.Drop()(sample, rng())


# The drawn parameters.


def leave_out_log(sample: dict[str, Any], generator: np.random.Generator) -> dict[str, Any]:
    """Draw a number, and return a new dict without the log, as a step of a user's may do."""
    generator.random()
    return {key: value for key, value in sample.items() if key != "transform_log"}


STEPS = (
    aug.RandomRotate(center=(0, 0, 0)),
    aug.Sometimes(aug.Scale(anisotropic=True), 1),
    aug.Sometimes(aug.Flip(), 0),
    aug.Compose(aug.Flip(), aug.RandomShift(((-1, 1),) * 3)),
    leave_out_log,
    aug.Drop(0.5),
    aug.ColorJitter(12, 0),
    aug.GridSample(0.3),
    aug.CropPoints(9),
    aug.Normalize(),
)


def test_log_names_each_step_in_order() -> None:
    log = aug.Compose(*STEPS, record=True)(make_sample(), rng())["transform_log"]

    assert [entry["name"] for entry in log] == [
        "RandomRotate", "Sometimes", "Scale", "Sometimes", "Flip", "RandomShift", "leave_out_log",
        "Drop", "ColorJitter", "GridSample", "CropPoints", "Normalize",
    ]  # fmt: skip


def test_log_records_whether_sometimes_applies_its_step() -> None:
    log = aug.Compose(*STEPS, record=True)(make_sample(), rng())["transform_log"]

    assert log[1]["parameters"] == {"step": "Scale", "is_applied": True}
    assert log[3]["parameters"] == {"step": "Flip", "is_applied": False}


@pytest.mark.parametrize("seed", range(5))
def test_log_has_the_parameters_that_moved_points(seed: int) -> None:
    sample = make_sample()

    result = aug.Compose(*STEPS[:4], record=True)(sample, rng(seed))

    values = {entry["name"]: entry["parameters"] for entry in result["transform_log"]}
    half_turns = values["RandomRotate"]["angle"] / np.pi
    rotation = aug.RandomRotate((half_turns, half_turns), "z", (0, 0, 0))
    points = rotation(sample, rng())["points"]
    points = points * values["Scale"]["factors"] * values["Flip"]["signs"]
    points = points + values["RandomShift"]["shift"]
    assert result["points"] == pytest.approx(points, abs=1e-5)


@pytest.mark.parametrize("seed", range(5))
def test_log_has_the_shift_of_colors(seed: int) -> None:
    sample = make_sample() | {"colors": np.full((40, 3), 128, np.uint8)}

    result = aug.Compose(aug.ColorJitter(12, 0), record=True)(sample, rng(seed))

    shift = result["transform_log"][0]["parameters"]["shift"]
    assert result["colors"] == pytest.approx(128 + np.tile(shift, (40, 1)), abs=0.51)


@pytest.mark.parametrize(
    "transform", [aug.Compose(*STEPS), aug.pointcept(), aug.mask3d(), aug.octformer()]
)
def test_recording_adds_a_plain_log_and_changes_nothing_else(transform: Any) -> None:
    plain = transform(make_sample(), rng(4))
    assert "transform_log" not in plain

    recorded = aug.Compose(transform, record=True)(make_sample(), rng(4))

    log = recorded.pop("transform_log")
    check_same(recorded, plain)
    assert json.loads(json.dumps(log)) == log


RECORDED_FLIP = aug.Compose(aug.Flip(1), record=True)


def test_nested_compose_records_even_if_the_outer_one_does_not() -> None:
    outer = aug.Compose(aug.Drop(), RECORDED_FLIP, aug.RotateZ())

    log = outer(make_sample(), rng())["transform_log"]

    assert log == [{"name": "Flip", "parameters": {"signs": [-1, -1, 1]}}]


def test_later_step_may_leave_out_the_log() -> None:
    result = aug.Compose(RECORDED_FLIP, leave_out_log)(make_sample(), rng())

    assert "transform_log" not in result


def test_second_recording_is_appended_to_the_first() -> None:
    once = RECORDED_FLIP(make_sample(), rng())

    twice = RECORDED_FLIP(once, rng())

    assert [entry["name"] for entry in twice["transform_log"]] == ["Flip", "Flip"]


def test_given_sample_keeps_its_own_log() -> None:
    sample = RECORDED_FLIP(make_sample(), rng())

    RECORDED_FLIP(sample, rng())

    assert len(sample["transform_log"]) == 1


def test_recording_a_step_that_returns_a_list_is_refused() -> None:
    transform = aug.Compose(aug.Flip(), lambda sample, _: [sample], record=True)
    with pytest.raises(UsageError, match="Compose: the last step returned a list, expected a dict"):
        transform(make_sample(), rng())


@pytest.mark.parametrize("join", [collate, pytest.param(collate_torch, marks=pytest.mark.torch)])
def test_batch_has_the_log_of_each_scene(join: Any) -> None:
    if join is collate_torch:
        pytest.importorskip("torch")
    transform = aug.Compose(aug.RotateZ(), record=True)
    samples = [transform(make_sample(seed=seed), rng(seed)) for seed in range(3)]

    batch = pickle.loads(pickle.dumps(join(samples)))

    assert batch["transform_log"] == [sample["transform_log"] for sample in samples]


def test_mixed_scene_has_the_logs_of_both() -> None:
    transform = aug.Compose(aug.RotateZ(), record=True)
    samples = [transform(make_sample(seed=seed), rng(seed)) for seed in range(2)]
    step = aug.Compose(aug.GridSample(0.5), record=True)

    (log,) = aug.Mix3D(collate, 1.0, step)(samples)["transform_log"]

    assert [entry["name"] for entry in log] == ["mix", "GridSample"]
    assert log[0]["parameters"] == {
        "scene_ids": ["scene0000_00"] * 2,
        "transform_logs": [sample["transform_log"] for sample in samples],
    }
