"""What a user chooses of a dataset: scenes, keys, a part; and what tells about them."""

from __future__ import annotations

import pickle
from pathlib import Path

import numpy as np
import pytest

from scannet_prep import SCANNET20, ScanNet, WithEpoch, collate, read_processed
from scannet_prep.errors import UnknownSceneError, UsageError
from scannet_prep.processed.options import ProcessOptions
from scannet_prep.stages import pack, process
from scannet_prep.synthetic.release import write_release
from scannet_prep.transforms import Compose, CropPoints, Flip, RotateZ

TRAIN, VAL = ("scene0119_00", "scene0191_00", "scene0230_00"), "scene0568_00"


@pytest.fixture(scope="module", params=["folder", "archive"])
def place(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("choices")
    write_release(root / "raw", (*TRAIN, VAL), vertices=500)
    process.run(process.plan(root / "raw", root / "out", ProcessOptions(faces=True)))
    if request.param == "archive":
        pack.run(pack.plan(root / "out", root / "out.tar.zst"))
        return root / "out.tar.zst"
    return root / "out"


def test_only_the_scenes_that_were_asked_for_are_there(place: Path, tmp_path: Path) -> None:
    whole = ScanNet(place, split="train")
    names = tmp_path / "names.txt"
    names.write_text(f"{TRAIN[2]}  # the last\n\n{TRAIN[0]}\n")
    for scenes in ([TRAIN[2], TRAIN[0], TRAIN[2]], names, str(names)):
        chosen = ScanNet(place, split="train", scenes=scenes)
        assert chosen.scene_ids == [TRAIN[0], TRAIN[2]]
    for part in (chosen, whole.subset([2, -3]), pickle.loads(pickle.dumps(whole.subset([TRAIN[2], 0])))):
        assert (len(part), part.lengths.tolist()) == (2, whole.lengths[[0, 2]].tolist())
        assert np.array_equal(part[1]["points"], whole[2]["points"])
        assert (TRAIN[0] in part, TRAIN[1] in part, TRAIN[1] in whole, 1 in part) == (True, False, True, False)
        assert part.class_counts().sum() < whole.class_counts().sum()
    assert len(whole) == 3
    with pytest.raises(UnknownSceneError, match="has no train scene 'scene0568_00'") as caught:
        ScanNet(place, split="train", scenes=[VAL])
    assert 'split="val"' in caught.value.hint.replace("'", '"')
    with pytest.raises(IndexError):
        whole.subset([3])


def test_a_sample_holds_what_was_asked_for_and_shows_it_in_short(place: Path) -> None:
    whole = ScanNet(place, split="train")
    sample = whole[0]
    assert list(sample) == [
        "points", "normals", "colors", "labels", "instances", "segments", "axis_alignment", "faces", "scene_id",
    ]  # fmt: skip
    assert repr(sample).startswith(f"{{'points': float32 ({whole.lengths[0]}, 3),\n 'normals': float32")
    assert repr(sample).endswith("'scene_id': 'scene0119_00'}")
    part = ScanNet(place, split="train", keys=["labels", "points"])[0]
    assert list(part) == ["labels", "points", "scene_id"]
    assert np.array_equal(part["labels"], sample["labels"])
    with pytest.raises(UsageError, match="'color' is not a key of a sample"):
        ScanNet(place, split="train", keys=["color"])


def test_faces_and_alignments_of_a_batch_belong_to_its_points(place: Path) -> None:
    samples = [ScanNet(place, split="train")[index] for index in range(2)]
    batch = collate(samples)
    assert np.array_equal(batch["axis_alignment"], np.stack([sample["axis_alignment"] for sample in samples]))
    for sample, start, end in zip(samples, (0, batch["offset"][0]), batch["faces_offset"], strict=True):
        faces = batch["faces"][end - len(sample["faces"]) : end]
        assert np.array_equal(batch["points"][faces], sample["points"][sample["faces"]])
        assert faces.min() >= start
    four = {"points": np.zeros((4, 3), np.float32), "axis_alignment": np.eye(4), "faces": np.zeros((4, 3), int)}
    cropped = CropPoints(2)(four, np.random.default_rng(0))
    assert (list(cropped), cropped["axis_alignment"].shape) == (["points", "axis_alignment"], (4, 4))


def test_groups_of_a_scene_are_those_of_its_file(place: Path) -> None:
    dataset = ScanNet(place, split="val")
    groups = dataset.groups(VAL)
    assert groups == dataset.groups(0)
    if place.is_dir():
        assert groups == read_processed(str(place / f"val/{VAL}.npz")).meta.groups
    instances = dataset[VAL]["instances"]
    assert {group.id: group.vertex_count for group in groups} == {
        group.id: np.count_nonzero(instances == group.id) for group in groups
    }
    assert dataset.path == str(place)


def test_home_folder_is_understood(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(place.parent))
    assert len(ScanNet(f"~/{place.name}", split="train")) == 3


def test_sampler_of_pytorch_tells_the_epoch() -> None:
    class Sampler(list[int]):
        epoch = 0

        def set_epoch(self, epoch: int) -> None:
            self.epoch = epoch

    for sampler in (range(3), Sampler(range(3))):
        wrapped = WithEpoch(sampler)
        assert (len(wrapped), list(wrapped)) == (3, [(0, 0), (1, 0), (2, 0)])
        wrapped.set_epoch(2)
        assert list(wrapped) == [(0, 2), (1, 2), (2, 2)]
    assert sampler.epoch == 2


def test_list_of_transforms_is_composed_as_its_items_are() -> None:
    assert Compose([RotateZ(), Flip()]) == Compose(RotateZ(), Flip())


def test_label_set_names_and_colors_the_unlabeled_too() -> None:
    labels = np.array([[0, -1], [19, 255]])
    assert [SCANNET20.name_of(label) for label in labels.ravel()] == [
        "wall",
        "unlabeled",
        "otherfurniture",
        "unlabeled",
    ]
    expected = [[SCANNET20.colors[0], (0, 0, 0)], [SCANNET20.colors[19], (0, 0, 0)]]
    assert np.array_equal(SCANNET20.colorize(labels), np.array(expected, np.uint8))
