"""Facts that a sample carries through transforms: frame, label set, annotated vertices, and what was drawn."""

import json
import math
import pickle
from collections import Counter
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from test_transforms import ALL, make_sample, rng
from training_sources import check_same

from scannet_prep import SCANNET20, SCANNET200, collate, collate_torch
from scannet_prep import transforms as aug
from scannet_prep.base.errors import UsageError

MOVING = [
    aug.CenterShift(), aug.ClipGaussianJitter(), aug.ElasticDistortion(), aug.Flip(), aug.Jitter(), aug.Normalize(),
    aug.RandomRotate(), aug.RandomShift(), aug.RotateZ(), aug.Scale(), aug.Sometimes(aug.Flip(), 0),
    aug.Compose(aug.Drop(), aug.RotateZ()), aug.pointcept(), aug.octformer(), aug.mask3d(),
]  # fmt: skip
NOT_MOVING = [
    aug.ColorJitter(), aug.HueSaturationTranslation(), aug.RandomDropNormal(), aug.CropPoints(9), aug.Drop(),
    aug.GridSample(0.5), aug.ShufflePoint(), aug.CropBox(1), aug.InstanceTargets(SCANNET20),
]  # fmt: skip


def make_known(label_set_name: str, count: int = 40) -> Any:
    """A sample as the dataset gives it, with labels of a label set."""
    return make_sample(count) | {"labels": np.arange(count) % 20, "label_set": label_set_name}


def _own_step(sample: dict[str, Any], generator: np.random.Generator) -> dict[str, Any]:
    return {**sample, "mean": sample["points"].mean()}


# The frame.


@pytest.mark.parametrize("transform", MOVING)
def test_transforms_that_move_points_remove_axis_alignment(transform: Any) -> None:
    found = transform(make_sample() | {"axis_alignment": np.eye(4)}, rng())
    assert "axis_alignment" not in found


@pytest.mark.parametrize("transform", NOT_MOVING)
def test_transforms_that_do_not_move_points_keep_axis_alignment(transform: Any) -> None:
    alignment = np.diag([2.0, 3.0, 4.0, 1.0])
    found = transform(make_sample() | {"axis_alignment": alignment}, rng())
    assert np.array_equal(found["axis_alignment"], alignment)


def test_mixed_scenes_have_no_axis_alignment() -> None:
    samples = [make_sample(seed=seed) | {"axis_alignment": np.eye(4)} for seed in range(2)]
    assert "axis_alignment" not in aug.mix(samples)


# The label set.


@pytest.mark.parametrize("transform", ALL)
def test_transformed_sample_records_its_label_set(transform: Any) -> None:
    assert transform(make_known("ScanNet20"), rng())["label_set"] == "ScanNet20"


OTHER = "the classes are of {}, but the labels of the sample are of {}"


@pytest.mark.parametrize(
    ("wanted", "other"), [(SCANNET20, "ScanNet200"), (SCANNET200, "ScanNet20")]
)
@pytest.mark.parametrize(
    "before",
    [[], [aug.RotateZ()], [aug.mask3d()], [aug.Compose(aug.Drop(), record=True)], [_own_step]],
)
def test_instance_targets_refuse_labels_of_the_other_set(
    wanted: Any, other: str, before: list[Any]
) -> None:
    transform = aug.Compose(*before, aug.InstanceTargets(wanted))
    with pytest.raises(
        UsageError, match="InstanceTargets: " + OTHER.format(wanted.name, other)
    ) as caught:
        transform(make_known(other), rng())
    assert caught.value.hint.startswith(f"ScanNet(..., labels={wanted.name.upper()})")


@pytest.mark.parametrize("classes", [SCANNET200.head, SCANNET200.common, SCANNET200.tail])
@pytest.mark.parametrize("max_points", [9, 1000])
def test_crops_around_classes_of_scannet200_refuse_scannet20(classes: Any, max_points: int) -> None:
    with pytest.raises(UsageError, match="CropPoints: " + OTHER.format("ScanNet200", "ScanNet20")):
        aug.CropPoints(max_points, classes=classes)(make_known("ScanNet20"), rng())


def test_crops_with_a_label_set_refuse_the_other() -> None:
    transform = aug.CropPoints(9, classes=(3, 7), label_set=SCANNET20)
    with pytest.raises(UsageError, match="CropPoints: " + OTHER.format("ScanNet20", "ScanNet200")):
        transform(make_known("ScanNet200"), rng())
    assert len(transform(make_known("ScanNet20"), rng())["points"]) == 9


def test_dicts_without_a_label_set_are_accepted_with_either() -> None:
    for label_set in (SCANNET20, SCANNET200):
        assert "instance_boxes" in aug.InstanceTargets(label_set)(make_sample(), rng())
    assert len(aug.CropPoints(9, classes=SCANNET200.tail)(make_sample(), rng())["points"]) == 9


def test_scenes_of_two_label_sets_cannot_be_mixed() -> None:
    with pytest.raises(UsageError, match="their labels are of ScanNet20 and ScanNet200"):
        aug.mix([make_known("ScanNet20"), make_known("ScanNet200")])
    assert aug.mix([make_known("ScanNet20")] * 2)["label_set"] == "ScanNet20"


# Annotated vertices.


def make_limited(count: int, annotated: set[int], seed: int = 0) -> dict[str, Any]:
    """A sample in which some vertices are annotated; `height` * 7 is the index of a vertex."""
    mask = np.isin(np.arange(count), list(annotated))
    sample = make_sample(count, seed)
    return sample | {"labels": np.where(mask, 1, -1), "annotated": mask, "index": np.arange(count)}


annotations = st.sets(st.integers(0, 39))


@given(annotations, st.sampled_from([0.1, 0.5, 1.0, 9.0]), st.integers(0, 20))
def test_grid_sampling_keeps_annotated_vertices_and_one_of_other_cells(
    annotated: set[int], size: float, seed: int
) -> None:
    sample = make_limited(40, annotated)
    found = aug.GridSample(size)(sample, rng(seed))
    cells = [
        tuple(math.floor(float(value) / size) for value in point) for point in sample["points"]
    ]
    kept = found["index"].tolist()
    assert kept == sorted(kept)
    assert set(kept) >= annotated
    for cell, members in _by_cell(cells).items():
        kept_members = [index for index in kept if cells[index] == cell]
        if annotated & members:
            assert set(kept_members) == annotated & members
        else:
            assert len(kept_members) == 1
    for index, place in enumerate(found["inverse"].tolist()):
        assert cells[kept[place]] == cells[index]
        assert index not in annotated or kept[place] == index
    assert found["annotated"].tolist() == [index in annotated for index in kept]


def _by_cell(cells: list[Any]) -> dict[Any, set[int]]:
    result: dict[Any, set[int]] = {}
    for index, cell in enumerate(cells):
        result.setdefault(cell, set()).add(index)
    return result


def test_representative_of_a_cell_is_any_of_its_annotated_vertices() -> None:
    sample = make_limited(6, {1, 3, 4}) | {"points": np.zeros((6, 3), np.float32)}
    chosen = Counter()
    for seed in range(60):
        found = aug.GridSample(1)(sample, rng(seed))
        chosen[int(found["index"][found["inverse"][0]])] += 1
    assert set(chosen) == {1, 3, 4}


@given(annotations, st.floats(0, 1), st.integers(0, 20))
def test_drop_keeps_annotated_vertices_beside_its_share(
    annotated: set[int], share: float, seed: int
) -> None:
    without = make_limited(40, set())
    del without["annotated"]
    others = aug.Drop(share)(without, rng(seed))["index"].tolist()
    kept = aug.Drop(share)(make_limited(40, annotated), rng(seed))["index"].tolist()
    assert kept == sorted({*others, *annotated})


@pytest.mark.parametrize("crop", [aug.CropPoints(15), aug.CropBox(1.0)])
def test_crops_keep_the_same_vertices_with_and_without_annotation(crop: Any) -> None:
    limited = make_limited(40, {1, 5, 20, 33})
    found = crop(limited, rng())
    del limited["annotated"]
    assert found["index"].tolist() == crop(limited, rng())["index"].tolist()
    assert found["annotated"].tolist() == [
        index in {1, 5, 20, 33} for index in found["index"].tolist()
    ]


@given(annotations, st.integers(0, 20))
def test_annotated_vertices_survive_the_whole_pipeline_and_mixing(
    annotated: set[int], seed: int
) -> None:
    pipeline = aug.Compose(aug.pointcept(grid_size=0.4, shuffle=True), _own_step, aug.Drop(0.5))
    found = [pipeline(make_limited(40, annotated), rng(seed + number)) for number in range(2)]
    mixed = aug.Mix3D(collate, 1.0, aug.GridSample(0.5))(
        [_without_grid(sample) for sample in found]
    )
    assert np.count_nonzero(mixed["annotated"]) == 2 * len(annotated)
    assert sorted(mixed["index"][mixed["annotated"]].tolist()) == sorted([*annotated] * 2)
    assert np.count_nonzero(mixed["labels"] != -1) == 2 * len(annotated)


def _without_grid(sample: dict[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in sample.items() if key != "grid"}


def test_annotated_of_another_length_than_the_points_is_refused() -> None:
    sample = make_limited(40, {3}) | {"annotated": np.ones(39, bool)}
    with pytest.raises(
        UsageError, match=r"GridSample: 'annotated' is bool \(39,\), expected bool \(40,\)"
    ):
        aug.GridSample(0.5)(sample, rng())


def test_indices_in_place_of_a_mask_are_refused() -> None:
    sample = make_limited(40, {3}) | {"annotated": np.array([3])}
    with pytest.raises(
        UsageError, match=r"Drop: 'annotated' is int64 \(1,\), expected bool \(40,\)"
    ):
        aug.Drop()(sample, rng())


# The drawn parameters.


def shift_labels(sample: dict[str, Any], generator: np.random.Generator) -> dict[str, Any]:
    """A step of a user's, which makes a new dict and leaves out the log."""
    generator.random()
    return {key: value for key, value in sample.items() if key != "transform_log"}


STEPS = (
    aug.RandomRotate(center=(0, 0, 0)), aug.Sometimes(aug.Scale(anisotropic=True), 1), aug.Sometimes(aug.Flip(), 0),
    aug.Compose(aug.Flip(), aug.RandomShift(((-1, 1),) * 3)), shift_labels, aug.Drop(0.5), aug.ColorJitter(12, 0),
    aug.GridSample(0.3), aug.CropPoints(9), aug.Normalize(),
)  # fmt: skip


def test_log_names_each_step_in_order() -> None:
    log = aug.Compose(*STEPS, record=True)(make_sample(), rng())["transform_log"]
    assert [entry["name"] for entry in log] == [
        "RandomRotate", "Sometimes", "Scale", "Sometimes", "Flip", "RandomShift", "shift_labels", "Drop",
        "ColorJitter", "GridSample", "CropPoints", "Normalize",
    ]  # fmt: skip
    assert log[1]["parameters"] == {"step": "Scale", "is_applied": True}
    assert log[3]["parameters"] == {"step": "Flip", "is_applied": False}


@pytest.mark.parametrize("seed", range(5))
def test_log_has_the_parameters_that_were_applied(seed: int) -> None:
    steps = [*STEPS[:4], aug.ColorJitter(12, 0)]
    sample = make_sample() | {"colors": np.full((40, 3), 128, np.uint8)}
    found = aug.Compose(steps, record=True)(sample, rng(seed))
    values = {entry["name"]: entry["parameters"] for entry in found["transform_log"]}
    angle = values["RandomRotate"]["angle"]
    fixed = aug.Compose(
        aug.RandomRotate((angle / np.pi, angle / np.pi), "z", (0, 0, 0)),
    )(sample, rng())["points"]
    factors, signs, shift = (
        np.array(values[name][key])
        for name, key in [("Scale", "factors"), ("Flip", "signs"), ("RandomShift", "shift")]
    )
    assert found["points"] == pytest.approx(fixed * factors * signs + shift, abs=1e-5)
    assert found["colors"] == pytest.approx(
        128 + np.tile(values["ColorJitter"]["shift"], (40, 1)), abs=0.51
    )


@pytest.mark.parametrize(
    "transform", [aug.Compose(*STEPS), aug.pointcept(), aug.mask3d(), aug.octformer()]
)
def test_recording_changes_nothing_else(transform: Any) -> None:
    plain = transform(make_sample(), rng(4))
    assert "transform_log" not in plain
    recorded = aug.Compose(transform, record=True)(make_sample(), rng(4))
    log = recorded.pop("transform_log")
    check_same(recorded, plain)
    assert json.loads(json.dumps(log)) == log


def test_nested_compose_records_where_the_outer_one_does_not() -> None:
    nested = aug.Compose(aug.Drop(), aug.Compose(aug.Flip(1), record=True), aug.RotateZ())
    log = nested(make_sample(), rng())["transform_log"]
    assert log == [{"name": "Flip", "parameters": {"signs": [-1, -1, 1]}}]


def test_second_recording_follows_the_first() -> None:
    twice = aug.Compose(aug.Flip(), record=True)
    found = aug.Compose(twice, shift_labels)(make_sample(), rng())
    assert "transform_log" not in found, "a step of the user's that leaves it out"
    found = twice(twice(make_sample(), rng()), rng())
    assert [entry["name"] for entry in found["transform_log"]] == ["Flip", "Flip"]


def test_given_sample_keeps_its_own_log() -> None:
    sample = aug.Compose(aug.Flip(), record=True)(make_sample(), rng())
    aug.Compose(aug.Flip(), record=True)(sample, rng())
    assert len(sample["transform_log"]) == 1


def test_recording_a_step_that_returns_no_dict_is_refused() -> None:
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
    logs = [sample["transform_log"] for sample in samples]
    parameters = {"scene_ids": ["scene0000_00"] * 2, "transform_logs": logs}
    assert log[0] == {"name": "mix", "parameters": parameters}
    assert [entry["name"] for entry in log] == ["mix", "GridSample"]
