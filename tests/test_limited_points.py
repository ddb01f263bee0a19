"""Limited annotations: `ScanNet(..., scenes=, points=)` ignores all that is not listed, and refuses wrong lists."""

from __future__ import annotations

import itertools
import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from training_sources import SIZES, TRAIN

from scannet_prep import SCANNET200, ScanNet, collate
from scannet_prep.errors import UsageError
from scannet_prep.transforms import RotateZ

POINTS = {scene_id: [0, 7 + index, SIZES[scene_id] - 1] for index, scene_id in enumerate(TRAIN)}


def expect(whole: dict[str, Any], ignore_id: int) -> tuple[list[int], list[int]]:
    """Labels and instances of a scene, point by point."""
    chosen = POINTS[whole["scene_id"]]
    labels = [label if index in chosen else ignore_id for index, label in enumerate(whole["labels"].tolist())]
    instances = [one if index in chosen else -1 for index, one in enumerate(whole["instances"].tolist())]
    return labels, instances


@pytest.mark.parametrize("ignore_id", [-1, 255])
def test_only_listed_points_keep_label_and_instance_and_all_else_is_as_before(source: Path, ignore_id: int) -> None:
    options: dict[str, Any] = {"split": "train", "labels": SCANNET200, "ignore_id": ignore_id}
    for whole, limited in zip(ScanNet(source, **options), ScanNet(source, **options, points=POINTS), strict=True):
        assert (limited["labels"].tolist(), limited["instances"].tolist()) == expect(whole, ignore_id)
        assert limited["labels"].flags.writeable
        assert list(limited) == list(whole)
        for key in whole.keys() - {"labels", "instances", "scene_id"}:
            assert np.array_equal(limited[key], whole[key]), key


@pytest.mark.torch
@pytest.mark.parametrize("is_zip", [True, False])
def test_lists_of_torch_save_are_taken_as_torch_reads_them(training_folder: Path, tmp_path: Path, is_zip: bool) -> None:
    torch = pytest.importorskip("torch")
    makers = itertools.cycle([list, np.array, torch.tensor, lambda some: list(map(np.int32, some))])
    made = {name: make(some) for make, (name, some) in zip(makers, POINTS.items(), strict=False)}
    torch.save(made | {"scene9999_00": [1]}, tmp_path / "points20", _use_new_zipfile_serialization=is_zip)
    points = torch.load(tmp_path / "points20", weights_only=False)
    limited = ScanNet(training_folder, split="train", points=points)
    for whole, found in zip(ScanNet(training_folder, split="train"), limited, strict=True):
        assert (found["labels"].tolist(), found["instances"].tolist()) == expect(whole, -1)


def test_points_go_with_chosen_scenes_subsets_loops_keys_workers_and_transforms(
    training_folder: Path, tmp_path: Path
) -> None:
    (tmp_path / "scannet_20p.txt").write_text(f"{TRAIN[2]}\n{TRAIN[0]}\n")
    few = {name: POINTS[name] for name in (TRAIN[0], TRAIN[2])}
    scenes = tmp_path / "scannet_20p.txt"
    dataset = ScanNet(training_folder, split="train", scenes=scenes, points=few, loop=2, transform=RotateZ())
    assert dataset.scene_ids == sorted([TRAIN[0], TRAIN[2]] * 2)
    for one in (dataset, pickle.loads(pickle.dumps(dataset)), dataset.subset([TRAIN[2]])):
        for sample in one:
            kept = few[sample["scene_id"]]
            assert set(np.flatnonzero(sample["labels"] != -1)) <= set(kept)
            assert set(np.flatnonzero(sample["instances"] != -1)) <= set(kept)
    batch = collate([dataset[0], dataset[3]])
    assert np.count_nonzero(batch["labels"] != -1) <= 6
    assert "labels" not in ScanNet(training_folder, split="train", points=POINTS, keys="points")[0]


def test_classes_are_counted_over_the_listed_points_only(training_folder: Path) -> None:
    limited = ScanNet(training_folder, split="train", points=POINTS)
    labels = np.concatenate([sample["labels"] for sample in limited])
    assert limited.class_counts().tolist() == np.bincount(labels[labels >= 0], minlength=20).tolist()
    assert 0 < limited.class_counts().sum() <= 3 * len(TRAIN)


@pytest.mark.parametrize(
    ("changed", "problem"),
    [
        ({TRAIN[1]: [SIZES[TRAIN[1]]]}, rf"points: {TRAIN[1]}: found vertices .* there are {SIZES[TRAIN[1]]:,}"),
        ({TRAIN[0]: [4, -1]}, "vertices -1 to 4"),
        ({TRAIN[0]: [0.5]}, r"found float64 \(1,\), expected a list of whole numbers"),
        ({TRAIN[0]: [[1, 2]]}, r"found int64 \(1, 2\)"),
        ({TRAIN[0]: np.ones(3, bool)}, r"found bool \(3,\)"),
        ({TRAIN[0]: "12"}, "expected a list of whole numbers"),
        ({TRAIN[0]: None}, "expected a list of whole numbers"),
    ],
)
def test_points_that_do_not_fit_a_scene_are_refused_by_name(
    training_folder: Path, changed: dict[str, Any], problem: str
) -> None:
    with pytest.raises(UsageError, match=problem):
        ScanNet(training_folder, split="train", points=POINTS | changed)


def test_a_scene_without_points_is_named_and_an_empty_list_ignores_all(training_folder: Path) -> None:
    with pytest.raises(
        UsageError, match=rf"points: there are none of {TRAIN[0]} \(1 of {len(TRAIN)} scenes are not there\)"
    ):
        ScanNet(training_folder, split="train", points={name: POINTS[name] for name in TRAIN[1:]})
    dataset = ScanNet(training_folder, split="train", points=POINTS | {TRAIN[0]: []})
    assert (dataset[TRAIN[0]]["labels"] == -1).all()
    with pytest.raises(UsageError, match="points: found str, expected"):
        ScanNet(training_folder, split="train", points="points20")  # type: ignore[arg-type]
