"""The training source on a processed folder."""

from __future__ import annotations

import json
import pickle
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from commands import run_command
from sample_transforms import count_points

from scannet_prep import SCANNET20, SCANNET200, ScanNet, read_processed
from scannet_prep.errors import (
    MissingFileError,
    ProcessedFileError,
    ScanNetPrepError,
    UnknownSceneError,
    UnknownSplitError,
    UsageError,
)
from scannet_prep.synthetic import write_release

SIZES = {"scene0000_00": 900, "scene0001_00": 700, "scene0002_00": 800, "scene0011_00": 600, "scene0707_00": 650}
TRAIN = ["scene0000_00", "scene0001_00", "scene0002_00"]


@pytest.fixture(scope="module")
def pristine_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("dataset")
    for scene_id, vertices in SIZES.items():
        write_release(root / "ScanNet", [scene_id], vertices=vertices)
    assert run_command("process", root / "ScanNet", "-o", root / "processed", "--scannet200").status == 0
    return root / "processed"


@pytest.fixture
def folder(pristine_dir: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(pristine_dir, tmp_path / "processed"))


def test_it_has_the_scenes_of_its_split_in_order(pristine_dir: Path) -> None:
    dataset = ScanNet(pristine_dir, split="train")
    assert (len(dataset), dataset.scene_ids) == (3, TRAIN)
    assert dataset.lengths.dtype == np.int64
    assert dataset.lengths.tolist() == [900, 700, 800]
    dataset.lengths[:] = 0
    assert dataset.lengths.tolist() == [900, 700, 800]
    assert [sample["scene_id"] for sample in dataset] == TRAIN
    assert ScanNet(str(pristine_dir), split="val").scene_ids == ["scene0011_00"]


@pytest.mark.parametrize("label_set", [SCANNET20, SCANNET200])
def test_a_sample_is_what_the_file_holds_in_training_types(pristine_dir: Path, label_set: Any) -> None:
    dataset = ScanNet(pristine_dir, split="train", labels=label_set, ignore_id=-100)
    for sample in dataset:
        scene = read_processed(pristine_dir / f"train/{sample['scene_id']}.npz")
        raw_ids = scene.nyu40_ids if label_set is SCANNET20 else scene.scannet_ids
        train_id_of = {raw_id: train_id for train_id, raw_id in enumerate(label_set.ids)}
        expected = {
            "points": scene.points,
            "normals": scene.normals.astype(np.float32),
            "colors": scene.colors,
            "labels": np.array([train_id_of.get(int(raw_id), -100) for raw_id in raw_ids], np.int64),
            "instances": scene.instances.astype(np.int64),
            "segments": scene.segments.astype(np.int64),
        }
        assert list(sample) == [*expected, "scene_id"]
        for key, array in expected.items():
            assert sample[key].dtype == array.dtype, key
            assert np.array_equal(sample[key], array), key
            assert sample[key].flags.c_contiguous, key
            assert sample[key].flags.writeable, key


def test_test_scenes_have_no_labels_instances_or_segments(pristine_dir: Path) -> None:
    sample = ScanNet(pristine_dir, split="test")["scene0707_00"]
    for key in ("labels", "instances", "segments"):
        assert sample[key].dtype == np.int64
        assert (sample[key] == -1).all()


def test_scenes_are_found_by_index_from_either_end_and_by_name(pristine_dir: Path) -> None:
    dataset = ScanNet(pristine_dir, split="train")
    for key in (1, -2, np.int64(1), "scene0001_00"):
        assert dataset[key]["scene_id"] == "scene0001_00"
    for key in (3, -4):
        with pytest.raises(IndexError, match="has 3 train scenes"):
            dataset[key]


def test_samples_do_not_share_memory(pristine_dir: Path) -> None:
    dataset = ScanNet(pristine_dir, split="train")
    first = dataset[0]
    first["points"][:] = 0
    first["colors"][:] = 0
    assert dataset[0]["points"].any()
    assert dataset[0]["colors"].any()


def test_a_transform_makes_the_sample(pristine_dir: Path) -> None:
    assert list(ScanNet(pristine_dir, split="train", transform=count_points)) == [900, 700, 800]


def test_the_label_set_tells_its_classes(pristine_dir: Path) -> None:
    label_set = ScanNet(pristine_dir, split="val", labels=SCANNET200).label_set
    assert (label_set.names[:3], label_set.ids[:3], len(label_set)) == (("wall", "chair", "floor"), (1, 2, 3), 200)
    assert label_set.colors[0] == (174, 199, 232)
    assert [len(group) for group in (label_set.head, label_set.common, label_set.tail)] == [66, 68, 66]


def test_without_a_manifest_lengths_come_from_the_headers(folder: Path) -> None:
    (folder / "manifest.json").unlink()
    dataset = ScanNet(folder, split="train")
    assert (dataset.scene_ids, dataset.lengths.tolist()) == (TRAIN, [900, 700, 800])


def test_opening_reads_no_scene(folder: Path) -> None:
    for path in folder.rglob("*.npz"):
        path.write_bytes(b"")
    assert ScanNet(folder, split="train").lengths.tolist() == [900, 700, 800]


@pytest.mark.parametrize(
    ("make", "error", "message", "hint"),
    [
        (
            lambda path: ScanNet(path / "none", split="train"),
            MissingFileError,
            "no such folder",
            "scannet-prep process",
        ),
        (lambda path: ScanNet(path / "train", split="train"), MissingFileError, "no processed scenes", "process"),
        (lambda path: ScanNet(path, split="training"), UnknownSplitError, "'training' is not a split", "train, val"),
        (lambda path: ScanNet(path, split="train", labels="20"), UsageError, "expected a label set", "SCANNET20"),
        (lambda path: ScanNet(path, split="train")["scene0011_00"], UnknownSceneError, "no train scene", 'split="val"'),
        (lambda path: ScanNet(path, split="train")["scene0191_00"], UnknownSceneError, "no train", "process --scenes"),
        (lambda path: ScanNet(path, split="train")["chair"], UnknownSceneError, "'chair'", ""),
        (
            lambda path: ScanNet(path, split="train")[[(0, 1)]],
            UsageError,
            r"\[\(0, 1\)\] is no scene",
            "batch_sampler=",
        ),
        (lambda path: ScanNet(path, split="train")[0, 1, 2], UsageError, "is no scene", "batch_sampler="),
    ],
)
def test_errors_say_what_to_type(pristine_dir: Path, make: Any, error: type, message: str, hint: str) -> None:
    with pytest.raises(error, match=message) as caught:
        make(pristine_dir)
    assert isinstance(caught.value, ScanNetPrepError)
    assert hint.replace('"', "'") in caught.value.hint.replace('"', "'")


def test_a_raw_folder_is_told_apart(pristine_dir: Path) -> None:
    with pytest.raises(MissingFileError) as caught:
        ScanNet(pristine_dir.parent / "ScanNet", split="train")
    assert "make processed scenes from it: scannet-prep process" in caught.value.hint


def test_a_split_without_scenes_is_an_error_that_names_the_others(folder: Path) -> None:
    manifest = json.loads((folder / "manifest.json").read_text())
    manifest["scenes"] = {name: entry for name, entry in manifest["scenes"].items() if entry["split"] != "val"}
    (folder / "manifest.json").write_text(json.dumps(manifest))
    with pytest.raises(UnknownSplitError, match="holds no val scenes, only test, train") as caught:
        ScanNet(folder, split="val")
    assert "--splits val" in caught.value.hint


def test_a_damaged_scene_names_its_file_and_leaves_the_others_readable(folder: Path) -> None:
    dataset = ScanNet(folder, split="train")
    path = folder / "train/scene0001_00.npz"
    data = bytearray(path.read_bytes())
    data[1000] ^= 4
    path.write_bytes(data)
    with pytest.raises(ProcessedFileError, match=r"scene0001_00\.npz: array 'points' is damaged"):
        dataset[1]
    path.write_bytes(data[:-1])
    with pytest.raises(ProcessedFileError, match=r"scene0001_00\.npz: is truncated"):
        dataset[1]
    path.unlink()
    with pytest.raises(MissingFileError, match=r"scene0001_00\.npz: no such file"):
        dataset[1]
    assert dataset[0]["scene_id"] == "scene0000_00"


def test_scenes_that_failed_in_processing_are_warned_about_and_explained(folder: Path, pristine_dir: Path) -> None:
    raw_dir = Path(shutil.copytree(pristine_dir.parent / "ScanNet", folder.parent / "ScanNet"))
    (raw_dir / "scans/scene0001_00/scene0001_00.txt").unlink()
    assert run_command("process", raw_dir, "-o", folder, "--scannet200").status == 3
    with pytest.warns(UserWarning, match=r"failed in processing are missing: 1, for example scene0001_00"):
        dataset = ScanNet(folder, split="train")
    assert len(dataset) == 2
    with pytest.raises(UnknownSceneError, match=r"failed in processing: .*scene0001_00.txt: no such file"):
        dataset["scene0001_00"]


def test_it_pickles(pristine_dir: Path) -> None:
    dataset = ScanNet(pristine_dir, split="train", labels=SCANNET200)
    dataset[0]
    copy = pickle.loads(pickle.dumps(dataset))
    assert (len(copy), copy.scene_ids, repr(copy)) == (3, TRAIN, repr(dataset))
    assert np.array_equal(copy[2]["labels"], dataset[2]["labels"])


def test_reading_does_not_import_torch(pristine_dir: Path) -> None:
    script = (
        "import sys; from scannet_prep import ScanNet\n"
        f"ScanNet({str(pristine_dir)!r}, split='train')[0]\n"
        "print([name for name in ('torch', 'requests', 'pandas', 'plyfile', 'numba') if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"


@pytest.mark.torch
@pytest.mark.parametrize(("workers", "start_method"), [(0, None), (2, "fork"), (2, "spawn")])
def test_it_feeds_a_data_loader(pristine_dir: Path, workers: int, start_method: str | None) -> None:
    data = pytest.importorskip("torch.utils.data")
    dataset = ScanNet(pristine_dir, split="train", labels=SCANNET200)
    loader = data.DataLoader(dataset, batch_size=None, num_workers=workers, multiprocessing_context=start_method)
    samples = list(loader)
    assert [sample["scene_id"] for sample in samples] == TRAIN
    for sample, expected in zip(samples, dataset, strict=True):
        for key, array in expected.items():
            if key != "scene_id":
                assert np.array_equal(np.asarray(sample[key]), array), key
