"""`ScanNet` gives the same samples wherever the scenes are, or names the file, and never a wrong one."""

import math
import os
import pickle
import re
import shutil
import statistics
import sys
import threading
import traceback
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from archives import flip
from commands import count_descriptors, edit_json
from training_sources import KINDS, SIZES, TRAIN, Stored, check_same, draw, process_into, store

from scannet_prep import SCANNET20, SCANNET200, LabelSet, ScanNet, read_processed
from scannet_prep.base.errors import (
    FileError,
    MissingFileError,
    ProcessedFileError,
    ServerDownError,
    UnknownSceneError,
    UsageError,
)
from scannet_prep.synthetic import write_release


def test_read_processed_gives_the_train_ids_of_the_dataset_and_the_file_keeps_train_id_plus_one(
    training_folder: Path,
) -> None:
    dataset = ScanNet(training_folder, split="train", labels=SCANNET200)  # the folder's label set
    for sample in dataset:
        path = training_folder / "train" / f"{sample['scene_id']}.npz"
        scene = read_processed(path)
        assert (scene.labels.dtype, scene.labels.tolist()) == (np.int64, sample["labels"].tolist())
        with np.load(path) as stored:
            assert (
                stored["labels"].tolist()
                == scene.stored_labels.tolist()
                == (sample["labels"] + 1).tolist()
            )


@pytest.mark.parametrize("split", ["train", "val", "test"])
def test_a_sample_is_what_the_file_holds_in_training_types_and_its_own(
    stored: Stored, training_folder: Path, split: str
) -> None:
    paths = sorted((training_folder / split).glob("*.npz"))
    datasets = [
        ScanNet(stored.place, split=split, labels=one, ignore_index=-100)
        for one in (SCANNET20, SCANNET200)
    ]
    for dataset, path in product(datasets, paths):
        assert dataset.scene_ids == [path.stem for path in paths]
        label_set, scene = dataset.label_set, read_processed(path)
        raw_ids = scene.nyu40_ids if label_set is SCANNET20 else scene.scannet_ids
        expected = {
            "points": scene.points,
            "normals": scene.normals.astype(np.float32),
            "colors": scene.colors,
            "labels": np.array(
                [[*label_set.ids, raw_id].index(raw_id) for raw_id in raw_ids.tolist()], np.int64
            ),
            "instances": scene.instances.astype(np.int32),
            "segments": np.full(len(raw_ids), -1, np.int32)
            if split == "test"
            else scene.segments.astype(np.int32),
            "axis_alignment": scene.axis_alignment,
            "faces": scene.faces,
            "label_set": label_set.name,
            "scene_id": path.stem,
        }
        expected["labels"][expected["labels"] == len(label_set.ids)] = -100
        for _ in range(2):
            sample = dataset[path.stem]
            check_same(sample, expected)
            for key in expected.keys() - {"label_set", "scene_id"}:
                assert sample[key].flags.c_contiguous, key
                sample[key][:] = 77  # is seen by nobody else
        assert (expected["labels"] == -100).all() == (split == "test")


def test_scenes_are_found_by_index_and_name_and_lengths_are_known_without_opening_any(
    stored: Stored, folder: Path, tmp_path: Path
) -> None:
    dataset = ScanNet(stored.place, split="train")
    for key in (1, -7, np.int64(1), "scene0000_01", (1, 5)):
        assert dataset[key]["scene_id"] == "scene0000_01"
    for key in (8, -9):
        with pytest.raises(IndexError, match="has 8 train scenes"):
            dataset[key]
    dataset.lengths[:] = 0  # of a copy
    assert dataset.lengths.dtype == np.int64
    assert dataset.lengths.tolist() == [SIZES[scene_id] for scene_id in TRAIN]
    for path in folder.rglob("*.npz"):
        path.write_bytes(b"")
    (tmp_path / "folder.tar.zst").symlink_to(folder)  # named as archives are
    for place in (str(folder), tmp_path / "folder.tar.zst"):
        assert ScanNet(place, split="train").lengths.tolist() == dataset.lengths.tolist()


def test_a_loop_over_a_dataset_ends_with_an_error_of_its_items_and_not_in_silence(
    training_folder: Path,
) -> None:
    dataset = ScanNet(training_folder, split="train", keys="points")
    assert isinstance(dataset, Iterable)
    assert [sample["scene_id"] for sample in dataset] == TRAIN
    short = type("Short", (ScanNet,), {"__getitem__": lambda _, key: [0, 1][key]})
    with pytest.raises(IndexError):
        list(short(training_folder, split="train"))


@pytest.mark.parametrize(
    ("key", "message", "hint"),
    [
        ("scene0011_00", "has no train scene 'scene0011_00'", 'split="val"'),
        ("scene0191_00", "has no train scene 'scene0191_00'", "process --scenes scene0191_00"),
        ("chair", "has no train scene 'chair'", ""),
        ([(0, 1)], r"\[\(0, 1\)\] is not a scene", "batch_sampler="),
        ((0, 1, 2), "is not a scene", "batch_sampler="),
        (slice(3), r"slice\(None, 3, None\) is not a scene", "dataset[i] for i in range(3)"),
    ],
)
def test_what_is_not_a_scene_is_refused_with_what_to_type(
    stored: Stored, key: Any, message: str, hint: str
) -> None:
    with pytest.raises(UsageError, match=message) as caught:
        ScanNet(stored.place, split="train")[key]
    assert hint.replace('"', "'") in caught.value.hint.replace('"', "'")
    if "split" in hint:
        assert eval(caught.value.hint.partition(": ")[2]).scene_ids == ["scene0011_00"]


def test_it_pickles_small_and_without_what_is_open_and_its_repr_makes_it_again(
    stored: Stored,
) -> None:
    dataset = ScanNet(stored.place, split="train", labels=SCANNET200)
    expected = dataset[2]
    data = pickle.dumps(dataset)
    assert len(data) < 20_000 + 400 * len(TRAIN)  # the label set makes the most of it
    text, _, facts = repr(dataset).rpartition(": ")
    assert facts == "8 scenes, is_aligned=False"
    for copy in (pickle.loads(data), eval(text, {"ScanNet": ScanNet})):
        assert (copy.scene_ids, repr(copy)) == (TRAIN, repr(dataset))
        check_same(copy[2], expected)


def test_only_the_scenes_that_were_asked_for_are_there(
    source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", str(source.parent))
    whole = ScanNet(f"~/{source.name}", split="train")
    names = tmp_path / "names.txt"
    names.write_text(f"{TRAIN[2]}  # the last\n\n{TRAIN[0]}\n")
    parts = [
        ScanNet(source, split="train", scenes=some)
        for some in ([TRAIN[2], TRAIN[0]] * 2, names, str(names))
    ]
    parts += [whole.subset(some) for some in (names, [2, -8], [TRAIN[2], 0])]
    for part in (*parts, pickle.loads(pickle.dumps(parts[-1]))):
        assert part.scene_ids == [TRAIN[0], TRAIN[2]]
        assert part.lengths.tolist() == whole.lengths[[0, 2]].tolist()
        check_same(part[1], whole[2])
        assert (TRAIN[0] in part, TRAIN[1] in part, TRAIN[1] in whole, 1 in part) == (
            True,
            False,
            True,
            False,
        )
        assert part.class_counts().sum() < whole.class_counts().sum()
    for single in (whole.subset(TRAIN[1]), ScanNet(source, split="train", scenes=TRAIN[1])):
        assert single.scene_ids == [TRAIN[1]]
    assert len(whole) == 8
    with pytest.raises(UnknownSceneError, match="has no train scene 'scene0011_00'") as caught:
        ScanNet(source, split="train", scenes=["scene0011_00"])
    assert 'split="val"' in caught.value.hint.replace("'", '"')
    with pytest.raises(IndexError):
        whole.subset([8])


def test_a_sample_holds_what_was_asked_for_and_shows_it_in_short(source: Path) -> None:
    sample = ScanNet(source, split="train")[0]
    assert repr(sample).startswith("{'points': float32 (900, 3),\n 'normals': float32")
    assert repr(sample).endswith("'scene_id': 'scene0000_00'}")
    for keys, expected in (
        (["labels", "points"], ["labels", "points", "label_set"]),
        ("labels", ["labels", "label_set"]),
    ):
        part = ScanNet(source, split="train", keys=keys)[0]
        assert list(part) == [*expected, "scene_id"]
        assert np.array_equal(part["labels"], sample["labels"])
    with pytest.raises(UsageError, match="'color' is not a key of a sample"):
        ScanNet(source, split="train", keys=["color"])


def test_groups_of_a_scene_are_those_of_its_file(source: Path, training_folder: Path) -> None:
    dataset = ScanNet(source, split="val")
    groups = dataset.groups("scene0011_00")
    assert (
        groups
        == dataset.groups(0)
        == read_processed(training_folder / "val/scene0011_00.npz").meta.groups
    )
    counts = np.bincount(dataset[0]["instances"] + 1)[1:]
    assert {group.id: group.vertex_count for group in groups} == {
        i: counts[i] for i in np.flatnonzero(counts)
    }
    assert dataset.path == str(source)


# Shards are archives, several of them.
several_kinds = pytest.mark.parametrize("stored", ["folder", "shards", "url"], indirect=True)


@several_kinds
def test_threads_read_at_the_same_time_while_others_close(stored: Stored) -> None:
    dataset = ScanNet(stored.place, split="train")
    expected = [dataset[index] for index in range(3)]
    copy = pickle.loads(pickle.dumps(dataset))  # opened by all threads at once
    is_done = threading.Event()

    def close_again_and_again() -> None:
        while not is_done.wait(
            0.05 if stored.kind == "url" else 0
        ):  # opening it again asks the server
            copy.close()

    def read(index: int) -> dict[str, Any] | None:
        try:
            return copy[index]
        except ServerDownError:
            # To close a connection ends what other threads read from it.
            if stored.kind != "url":
                raise
            return None

    with ExitStack() as stack:
        stack.callback(sys.setswitchinterval, sys.getswitchinterval())
        sys.setswitchinterval(1e-6)
        pool = stack.enter_context(ThreadPoolExecutor(9))
        stack.callback(is_done.set)
        order = [index % 3 for index in range(60 if stored.kind == "url" else 300)]
        samples = pool.map(read, order)
        pool.submit(close_again_and_again)
        for index, sample in zip(order, samples, strict=True):
            if sample is not None:
                check_same(sample, expected[index])


@several_kinds
def test_nothing_grows_over_epochs_and_closing_gives_back_descriptors_until_it_is_read_again(
    stored: Stored,
) -> None:
    def read_private_bytes() -> int:
        return 1024 * int(
            re.search(r"Private_Dirty: +(\d+)", Path("/proc/self/smaps_rollup").read_text())[1]
        )

    def list_shared() -> set[str]:
        return set(re.findall(r"/dev/shm/.*", Path("/proc/self/maps").read_text()))

    def are_back() -> bool:  # the web server, which is in this process too, needs a moment
        return any(
            count_descriptors() <= before or threading.Event().wait(0.01) for _ in range(1_000)
        )

    before, shared = count_descriptors(), list_shared()
    epochs = 8 if stored.kind == "url" else 40  # a scene has 30 kB: all of them would be 2 or 10 MB
    with ScanNet(stored.place, split="train") as dataset:
        for epoch in range(epochs):
            expected = list(dataset)
            if epoch == epochs // 4:
                files, size = count_descriptors(), read_private_bytes()
        assert count_descriptors() <= files
        assert stored.kind in {"folder", "url"} or files > before
        assert list_shared() == shared
        assert (
            stored.kind == "url" or read_private_bytes() - size < 5_000_000
        )  # the server in this process takes notes
    assert are_back()
    check_same(dataset[0], expected[0])
    for _ in range(2):
        dataset.close()
    assert are_back()


def test_random_numbers_come_from_seed_epoch_and_index_alone(source: Path) -> None:
    dataset = ScanNet(source, split="train", transform=draw)
    assert (
        dataset[1, 5]
        == dataset[1, 5]
        == dataset["scene0000_01", 5]
        == dataset[1 - len(dataset), np.int64(5)]
    )
    assert (
        dataset[1, 5]
        == np.random.default_rng(np.random.SeedSequence((0, 5, 1))).integers(0, 1 << 30, 3).tolist()
    )
    other = ScanNet(source, split="train", transform=draw, seed=1)
    assert (
        len(
            {
                str(item)
                for item in (
                    dataset[0, 0],
                    dataset[1, 0],
                    dataset[0, 1],
                    dataset[2, 0],
                    other[0, 0],
                )
            }
        )
        == 5
    )
    with pytest.raises(UsageError, match="epoch is -1"):
        dataset[0, -1]
    for seed in (-3, 1.5, "1"):
        with pytest.raises(UsageError, match=f"seed is {seed!r}, expected a whole number from 0"):
            ScanNet(source, split="train", seed=seed)  # type: ignore[arg-type]
    # A plain index means the next epoch in train, and epoch 0 in val.
    assert [other[1], other["scene0000_01"], other[1]] == [other[1, 0], other[1, 1], other[1, 2]]
    assert list(other) == [other[index, 3 if index == 1 else 0] for index in range(8)]
    part = other.subset([1])
    assert [part[0], part[0]] == [part[0, 0], part[0, 1]], "its scenes have not been read before"
    val = ScanNet(source, split="val", transform=draw)
    assert val[0] == val[0] == val[0, 0]


@pytest.mark.parametrize("label_set", [SCANNET20, SCANNET200])
def test_class_weights_follow_their_formulas(
    source: Path, folder: Path, label_set: LabelSet
) -> None:
    dataset = ScanNet(source, split="train", labels=label_set)
    scenes = [read_processed(path) for path in sorted((folder / "train").glob("*.npz"))]
    raw_ids = [getattr(scene, label_set.raw_ids_key).tolist() for scene in scenes]
    rows = [[ids.count(raw_id) for raw_id in label_set.ids] for ids in raw_ids]
    counts = [sum(column) for column in zip(*rows, strict=True)]
    assert (dataset.class_counts().tolist(), dataset.class_counts().dtype) == (counts, np.int64)
    present = [c for c, count in enumerate(counts) if count]
    assert 0 < len(present) < len(counts)
    frequency = {c: counts[c] / sum(sum(row) for row in rows if row[c]) for c in present}
    formulas = {
        "inverse": lambda c: sum(counts) / counts[c],
        "inverse_sqrt": lambda c: math.sqrt(sum(counts) / counts[c]),
        "log": lambda c: 1 / math.log(1.02 + counts[c] / sum(counts)),
        "median_frequency": lambda c: statistics.median(frequency.values()) / frequency[c],
    }
    for name, formula in formulas.items():
        raw = [formula(c) if counts[c] else 0.0 for c in range(len(counts))]
        found = dataset.class_weights(name)
        assert found.dtype == np.float32
        assert found.tolist() == pytest.approx(
            [weight * len(present) / sum(raw) for weight in raw], rel=1e-5
        ), name
    assert np.array_equal(dataset.class_weights(), dataset.class_weights("inverse_sqrt"))
    (folder / "manifest.json").unlink()
    from_scenes = ScanNet(folder, split="train", labels=label_set)
    assert from_scenes.class_counts().tolist() == counts
    assert from_scenes.lengths.tolist() == dataset.lengths.tolist()


def test_class_weights_of_nothing_and_label_sets_that_are_none_are_errors(source: Path) -> None:
    with pytest.raises(UsageError, match="expected ScanNet20 or ScanNet200"):
        ScanNet(source, split="train", labels="20")
    with pytest.raises(UsageError, match="no vertex has a class"):
        ScanNet(source, split="test").class_weights()
    assert ScanNet(source, split="test").class_counts().sum() == 0
    with pytest.raises(UsageError, match="'cubic' is not a formula") as caught:
        ScanNet(source, split="train").class_weights("cubic")  # type: ignore[arg-type]
    assert "median_frequency" in caught.value.hint


@pytest.mark.parametrize("kind", KINDS)
def test_a_damaged_scene_names_its_file_and_leaves_the_others_readable(
    folder: Path, tmp_path: Path, kind: str
) -> None:
    with store(kind, folder, tmp_path / "stored") as stored:
        path = stored.paths[0]
        path = path / "train/scene0001_00.npz" if kind == "folder" else path
        flip(path, path.stat().st_size // 3)
        dataset = ScanNet(stored.place, split="train")
        errors = []
        for scene_id in TRAIN * 2:
            try:
                assert dataset[scene_id]["scene_id"] == scene_id
            except FileError as error:
                errors.append((scene_id, error))
    assert len(errors) == 2
    for scene_id, error in errors:
        assert isinstance(error, ValueError)
        assert re.search(rf"{scene_id}.*is damaged", str(error))
        assert kind == "folder" or re.search(r"scannet(-\d+-of-\d+)?\.tar\.zst", str(error))
        assert error.hint


def test_a_file_that_is_not_the_scene_is_named_and_never_given(folder: Path) -> None:
    path = folder / "train/scene0001_00.npz"
    data = path.read_bytes()
    renamed = bytearray(data)
    renamed[data.rindex(b"segments.npy")] ^= 1  # in the directory
    write_release(folder.parent / "other/ScanNet", [path.stem], vertices=950)
    process_into(folder.parent / "other/ScanNet", folder.parent / "other/processed")
    dataset = ScanNet(folder, split="train")
    for content, message in (
        (data[:-1], "is truncated"),
        (
            path.with_name("scene0000_00.npz").read_bytes(),
            "holds 'scene0000_00' of train, expected scene0001_00",
        ),
        (
            (folder.parent / f"other/processed/train/{path.name}").read_bytes(),
            r"points of shape \(950, 3\), expected",
        ),
        (renamed, "regments|directory"),
    ):
        path.write_bytes(content)
        with pytest.raises(ProcessedFileError, match=rf"scene0001_00\.npz: .*{message}"):
            dataset["scene0001_00"]
        assert dataset["scene0002_00"]["scene_id"] == "scene0002_00"
    path.unlink()
    with pytest.raises(MissingFileError, match=r"scene0001_00\.npz: no such file"):
        dataset["scene0001_00"]
    os.mkfifo(path)
    with pytest.raises(FileError, match=r"scene0001_00\.npz"):
        dataset["scene0001_00"]


def test_scenes_that_failed_are_warned_about_and_a_split_without_scenes_is_an_error_that_names_the_others(
    folder: Path, training_folder: Path, tmp_path: Path
) -> None:
    raw_dir = Path(shutil.copytree(training_folder.parent / "ScanNet", tmp_path / "ScanNet"))
    (raw_dir / "scans/scene0001_00/scene0001_00_vh_clean_2.ply").write_bytes(b"")
    assert len(process_into(raw_dir, folder).failures) == 1
    shutil.rmtree(folder / "val")
    edit_json(folder / "manifest.json", lambda value: value["scenes"].pop("scene0011_00"))
    for kind in ("folder", "archive", "shards"):
        with store(kind, folder, tmp_path / kind) as stored:
            text = "failed in processing are missing: 1, for example scene0001_00"
            with pytest.warns(UserWarning, match=text) as told:
                dataset = ScanNet(stored.place, split="train")
            assert [item.filename for item in told] == [__file__]
            assert len(dataset) == len(TRAIN) - 1
            reason = r"failed in processing: .*scene0001_00_vh_clean_2\.ply: is empty"
            with pytest.raises(UnknownSceneError, match=reason):
                dataset["scene0001_00"]
            with pytest.raises(UsageError, match="holds no val scenes, only test, train") as caught:
                ScanNet(stored.place, split="val")
            assert "--splits val" in caught.value.hint
            with pytest.raises(UsageError, match="'training' is not a split"):
                ScanNet(stored.place, split="training")


def test_scenes_that_the_manifest_no_longer_names_are_counted_by_their_files(folder: Path) -> None:
    dataset = ScanNet(folder, split="train")
    expected = dataset.class_counts().tolist()
    edit_json(folder / "manifest.json", lambda value: value["scenes"].pop("scene0001_00"))
    assert dataset.class_counts().tolist() == expected
    (folder / "train/scene0001_00.npz").unlink()
    with pytest.raises(
        MissingFileError, match="no such file, though the folder's manifest names it"
    ):
        dataset.class_counts()


def test_every_error_of_a_place_names_it_and_says_what_to_type(
    training_folder: Path, tmp_path: Path
) -> None:
    for name, message, hint in (
        ("processed/none", "no such folder", "scannet-prep process"),
        ("processed/train", "no processed scenes", "process"),
        ("ScanNet", "no processed scenes", "if these are raw scenes: scannet-prep process"),
        (
            "it's new",
            "no such folder",
            f"""make it: scannet-prep process -o '{training_folder.parent}/it'"'"'s new'""",
        ),
    ):
        with pytest.raises(MissingFileError, match=rf"{name}: .*{message}") as caught:
            ScanNet(training_folder.parent / name, split="train")
        assert hint in caught.value.hint
        assert "".join(traceback.format_exception(caught.value)).endswith(
            f"\nhint: {caught.value.hint}\n"
        )
    (tmp_path / "empty.tar.zst").touch()
    (tmp_path / "text").write_text("not an archive\n" * 1_000)
    os.mkfifo(tmp_path / "pipe.tar.zst")
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(FileError, match="is a named pipe"):
        ScanNet(tmp_path / "pipe", split="train")
    long_name = 300 * "n"
    for name in (
        "nothing",
        "nothing.tar.zst",
        "empty.tar.zst",
        "text",
        "pipe.tar.zst",
        long_name,
        f"{long_name}.zst",
    ):
        for place in (tmp_path / name, str(tmp_path / name), [tmp_path / name]):
            with pytest.raises(FileError, match=name):
                ScanNet(place, split="train")
