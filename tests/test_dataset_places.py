"""`ScanNet` gives the same, wherever the scenes are: in a folder, an archive, several, or on the web."""

from __future__ import annotations

import gc
import json
import multiprocessing
import os
import pickle
import re
import shutil
import sys
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from commands import run_command
from scene_places import ARCHIVE_KINDS, KINDS, Stored

from scannet_prep import SCANNET20, SCANNET200, ScanNet
from scannet_prep.errors import (
    FileError,
    ManifestError,
    ScanNetPrepError,
    UnknownSceneError,
    UnknownSplitError,
)
from scannet_prep.synthetic import write_release

SIZES = {"scene0000_00": 900, "scene0001_00": 700, "scene0002_00": 800, "scene0011_00": 600, "scene0707_00": 650}
TRAIN = ["scene0000_00", "scene0001_00", "scene0002_00"]
START_METHODS = ["fork", "forkserver", "spawn"]


@pytest.fixture(scope="module")
def raw_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("places")
    for scene_id, vertices in SIZES.items():
        write_release(root / "ScanNet", [scene_id], vertices=vertices)
    return root / "ScanNet"


@pytest.fixture(scope="module")
def folder(raw_dir: Path) -> Path:
    assert run_command("process", raw_dir, "-o", raw_dir.parent / "processed", "--scannet200").status == 0
    return raw_dir.parent / "processed"


@pytest.fixture(scope="module", params=KINDS)
def stored(request: pytest.FixtureRequest, folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stored]:
    """Not to be changed."""
    with Stored.store(request.param, folder, tmp_path_factory.mktemp("stored") / "x").serve() as stored:
        yield stored


def assert_same(sample: dict[str, Any], expected: dict[str, Any]) -> None:
    assert list(sample) == list(expected)
    for key, array in expected.items():
        if key == "scene_id":
            assert sample[key] == array
            continue
        found = np.asarray(sample[key])
        assert found.dtype == array.dtype, key
        assert np.array_equal(found, array), key


@pytest.mark.parametrize("label_set", [SCANNET20, SCANNET200])
@pytest.mark.parametrize("split", ["train", "val", "test"])
def test_samples_are_those_of_the_folder(stored: Stored, folder: Path, label_set: Any, split: str) -> None:
    dataset = ScanNet(stored.place, split=split, labels=label_set, ignore_id=-100)
    expected = ScanNet(folder, split=split, labels=label_set, ignore_id=-100)
    assert (len(dataset), dataset.scene_ids) == (len(expected), expected.scene_ids)
    assert dataset.lengths.dtype == np.int64
    assert dataset.lengths.tolist() == expected.lengths.tolist()
    for sample, other in zip(dataset, expected, strict=True):
        assert_same(sample, other)
        for key, array in sample.items():
            if key != "scene_id":
                assert array.flags.c_contiguous, key
                assert array.flags.writeable, key


def test_scenes_are_found_by_index_from_either_end_and_by_name(stored: Stored) -> None:
    dataset = ScanNet(stored.place, split="train")
    for key in (1, -2, np.int64(1), "scene0001_00", (1, 5)):
        assert dataset[key]["scene_id"] == "scene0001_00"
    for key in (3, -4):
        with pytest.raises(IndexError, match="has 3 train scenes"):
            dataset[key]


def test_samples_do_not_share_memory(stored: Stored) -> None:
    dataset = ScanNet(stored.place, split="train")
    first, second = dataset[0], dataset[0]
    for key in ("points", "normals", "colors", "labels", "instances", "segments"):
        before = second[key].copy()
        first[key][:] = 77
        assert np.array_equal(second[key], before), key
    assert np.array_equal(dataset[0]["points"], second["points"])


@pytest.mark.parametrize("label_set", [SCANNET20, SCANNET200])
def test_class_counts_are_those_of_the_folder(stored: Stored, folder: Path, label_set: Any) -> None:
    dataset, expected = (ScanNet(place, split="train", labels=label_set) for place in (stored.place, folder))
    assert dataset.class_counts().tolist() == expected.class_counts().tolist()
    assert dataset.class_weights().tolist() == expected.class_weights().tolist()


def test_class_counts_need_no_manifest(folder: Path, tmp_path: Path) -> None:
    copy = Path(shutil.copytree(folder, tmp_path / "processed"))
    (copy / "manifest.json").unlink()
    expected = ScanNet(folder, split="train").class_counts().tolist()
    for kind in ("folder",):
        stored = Stored.store(kind, copy, tmp_path / kind)
        assert ScanNet(stored.place, split="train").class_counts().tolist() == expected


@pytest.mark.parametrize(
    ("scene_id", "hint"),
    [("scene0011_00", 'split="val"'), ("scene0191_00", "process --scenes scene0191_00"), ("x", "")],
)
def test_an_unknown_scene_is_told_with_what_to_type(stored: Stored, scene_id: str, hint: str) -> None:
    with pytest.raises(UnknownSceneError, match=f"has no train scene '{scene_id}'") as caught:
        ScanNet(stored.place, split="train")[scene_id]
    assert hint.replace('"', "'") in caught.value.hint
    if "split" in hint:
        code = caught.value.hint.partition(": ")[2]
        assert eval(code).scene_ids == ["scene0011_00"]


def test_it_tells_what_it_is(stored: Stored) -> None:
    dataset = ScanNet(stored.place, split="train")
    text, _, count = repr(dataset).rpartition(": ")
    assert count == "3 scenes"
    assert eval(text, {"ScanNet": ScanNet, "ScanNet20": SCANNET20}).scene_ids == TRAIN


def test_it_pickles_small_and_without_what_is_open(stored: Stored) -> None:
    dataset = ScanNet(stored.place, split="train", labels=SCANNET200)
    expected = dataset[2]
    data = pickle.dumps(dataset)
    assert len(data) < 20_000 + 100 * len(TRAIN)  # the label set makes the most of it
    copy = pickle.loads(data)
    assert (len(copy), copy.scene_ids, repr(copy)) == (3, TRAIN, repr(dataset))
    assert_same(copy[2], expected)


def count_descriptors() -> int:
    gc.collect()
    return len(os.listdir("/proc/self/fd"))  # noqa: PTH208 - counts itself, each time


def test_closing_gives_back_descriptors_and_reading_opens_again(stored: Stored) -> None:
    def are_back() -> bool:
        """The web server, which is in this process too, needs a moment."""
        stop = threading.Event()
        return any(count_descriptors() <= before or stop.wait(0.01) for _ in range(1_000))

    before = count_descriptors()
    with ScanNet(stored.place, split="train") as dataset:
        expected = dataset[0]
        assert (count_descriptors() > before) == (stored.kind != "folder")
    assert are_back()
    assert_same(dataset[0], expected)
    dataset.close()
    dataset.close()
    assert are_back()


def read_some(dataset: ScanNet, order: list[int]) -> list[Any]:
    return [dataset[index] for index in order]


def send_some(dataset: ScanNet, order: list[int], connection: Any) -> None:
    connection.send(read_some(dataset, order))
    connection.close()


@pytest.mark.parametrize("start_method", START_METHODS)
@pytest.mark.parametrize("is_used", [False, True])
def test_processes_read_at_the_same_time(stored: Stored, start_method: str, is_used: bool) -> None:
    context = multiprocessing.get_context(start_method)
    dataset = ScanNet(stored.place, split="train")
    order = [0, 2, 1] * 10
    expected = read_some(ScanNet(stored.place, split="train"), order)
    if is_used:
        dataset[1]
    pipes, processes = [], []
    for _ in range(2):
        here, there = context.Pipe(duplex=False)
        processes.append(context.Process(target=send_some, args=(dataset, order, there)))
        processes[-1].start()
        there.close()
        pipes.append(here)
    for found in (read_some(dataset, order), *(pipe.recv() for pipe in pipes)):
        for sample, other in zip(found, expected, strict=True):
            assert_same(sample, other)
    for process, pipe in zip(processes, pipes, strict=True):
        process.join()
        pipe.close()


def test_threads_read_at_the_same_time(stored: Stored) -> None:
    dataset = ScanNet(stored.place, split="train")
    order = [index % 3 for index in range(60)]
    expected = [dataset[index] for index in range(3)]
    copy = pickle.loads(pickle.dumps(dataset))  # opened by all threads at once
    for reader in (dataset, copy):
        with ThreadPoolExecutor(8) as pool:
            for index, sample in zip(order, pool.map(reader.__getitem__, order), strict=True):
                assert_same(sample, expected[index])


def read_private_bytes() -> int:
    text = Path("/proc/self/smaps_rollup").read_text()
    return 1024 * int(re.search(r"Private_Dirty: +(\d+)", text)[1])


def test_nothing_grows_over_epochs(stored: Stored) -> None:
    dataset = ScanNet(stored.place, split="train")
    files, shared, size = count_descriptors(), sorted(os.listdir("/dev/shm")), 0  # noqa: PTH208
    epochs = 40 if stored.kind == "url" else 400  # a scene has 20 kB: all of them would be 2 or 20 MB
    for epoch in range(epochs):
        for index in range(3):
            dataset[index]
        if epoch == epochs // 4:
            files, size = count_descriptors(), read_private_bytes()
    assert count_descriptors() == files
    assert sorted(os.listdir("/dev/shm")) == shared  # noqa: PTH208
    assert read_private_bytes() - size < 5_000_000
    assert [path.name for path in stored.paths[0].parent.iterdir() if path.name.endswith((".tmp", ".part"))] == []


@pytest.mark.torch
@pytest.mark.parametrize("stored", ARCHIVE_KINDS, indirect=True)
@pytest.mark.parametrize("start_method", START_METHODS)
def test_it_feeds_a_data_loader(stored: Stored, folder: Path, start_method: str) -> None:
    data = pytest.importorskip("torch.utils.data")
    loader = data.DataLoader(
        ScanNet(stored.place, split="train", labels=SCANNET200), batch_size=None, num_workers=2,
        multiprocessing_context=start_method, persistent_workers=True,
    )  # fmt: skip
    for _ in range(2):
        for sample, expected in zip(loader, ScanNet(folder, split="train", labels=SCANNET200), strict=True):
            assert_same(sample, expected)


@pytest.mark.parametrize("stored", ["folder", "archive", "shards"], indirect=True)
def test_closing_disturbs_no_thread_that_reads(stored: Stored) -> None:
    dataset = ScanNet(stored.place, split="train")
    expected = [dataset[index] for index in range(3)]
    is_done = threading.Event()

    def close_again_and_again() -> None:
        while not is_done.is_set():
            dataset.close()

    def read(index: int) -> None:
        assert_same(dataset[index % 3], expected[index % 3])

    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    closing = threading.Thread(target=close_again_and_again)
    closing.start()
    try:
        with ThreadPoolExecutor(4) as executor:
            list(executor.map(read, range(600)))
    finally:
        is_done.set()
        closing.join()
        sys.setswitchinterval(interval)


@pytest.fixture(params=KINDS)
def own(request: pytest.FixtureRequest, folder: Path, tmp_path: Path) -> Stored:
    """May be changed; not yet served."""
    return Stored.store(request.param, folder, tmp_path / "own")


def test_a_damaged_scene_names_its_file_and_leaves_the_others_readable(own: Stored) -> None:
    own.damage("scene0001_00")
    with own.serve() as stored:
        dataset = ScanNet(stored.place, split="train")
        for _ in range(2):
            with pytest.raises(FileError, match=r"scene0001_00.*is damaged") as caught:
                dataset["scene0001_00"]
            assert isinstance(caught.value, ValueError)
            assert caught.value.hint
            if own.kind != "folder":
                assert re.search(r"scannet(-\d{5}-of-\d{5})?\.tar\.zst: scene0001_00: is damaged", str(caught.value))
            assert dataset["scene0000_00"]["scene_id"] == "scene0000_00"
            assert dataset["scene0002_00"]["scene_id"] == "scene0002_00"


@pytest.fixture
def incomplete_dir(folder: Path, raw_dir: Path, tmp_path: Path) -> Path:
    """A processed folder in which one scene has failed."""
    raw_copy = Path(shutil.copytree(raw_dir, tmp_path / "ScanNet"))
    (raw_copy / "scans/scene0001_00/scene0001_00.txt").unlink()
    copy = Path(shutil.copytree(folder, tmp_path / "incomplete"))
    assert run_command("process", raw_copy, "-o", copy, "--scannet200").status == 3
    return copy


@pytest.mark.parametrize("kind", ["folder", "archive", "shards"])
def test_scenes_that_failed_are_warned_about_and_explained(incomplete_dir: Path, tmp_path: Path, kind: str) -> None:
    place: Any = incomplete_dir
    if kind == "archive":
        place = tmp_path / "scannet.tar.zst"
        assert run_command("pack", incomplete_dir, "-o", place, "--allow-incomplete").status in (0, 3)
    elif kind == "shards":
        place = Stored.store(kind, incomplete_dir, tmp_path / "own").place
    with pytest.warns(UserWarning, match="failed in processing are missing: 1, for example scene0001_00") as warned:
        dataset = ScanNet(place, split="train")
    assert [item.filename for item in warned] == [__file__]
    assert len(dataset) == 2
    with pytest.raises(UnknownSceneError, match=r"failed in processing: .*scene0001_00.txt: no such file"):
        dataset["scene0001_00"]


@pytest.mark.parametrize("kind", ["folder", "archive", "shards"])
def test_a_split_without_scenes_is_an_error_that_names_the_others(folder: Path, tmp_path: Path, kind: str) -> None:
    copy = Path(shutil.copytree(folder, tmp_path / "processed"))
    manifest = json.loads((copy / "manifest.json").read_text())
    manifest["scenes"] = {name: entry for name, entry in manifest["scenes"].items() if entry["split"] != "val"}
    (copy / "manifest.json").write_text(json.dumps(manifest))
    stored = Stored.store(kind, copy, tmp_path / "own")
    with pytest.raises(UnknownSplitError, match="holds no val scenes, only test, train") as caught:
        ScanNet(stored.place, split="val")
    assert "--splits val" in caught.value.hint
    with pytest.raises(UnknownSplitError, match="'training' is not a split"):
        ScanNet(stored.place, split="training")


@pytest.mark.parametrize("kind", ["folder", "archive"])
def test_scenes_of_a_run_that_was_interrupted_are_refused(folder: Path, tmp_path: Path, kind: str) -> None:
    copy = Path(shutil.copytree(folder, tmp_path / "processed"))
    manifest = json.loads((copy / "manifest.json").read_text())
    (copy / "manifest.json").write_text(json.dumps(manifest | {"complete": False}))
    (copy / "unfinished.txt").write_text("interrupted\n")
    place = copy
    if kind == "archive":
        place = tmp_path / "scannet.tar.zst"
        assert run_command("pack", copy, "-o", place, "--allow-incomplete").status in (0, 3)
    with pytest.raises(ManifestError, match=r"processing ha[sd] not finished") as caught:
        ScanNet(place, split="train")
    assert "process" in caught.value.hint


def test_every_error_of_a_place_is_one_of_ours(tmp_path: Path) -> None:
    (tmp_path / "empty.tar.zst").touch()
    (tmp_path / "text").write_text("no archive\n" * 1_000)
    os.mkfifo(tmp_path / "pipe.tar.zst")
    long_name = 300 * "n"
    for name in ("nothing", "nothing.tar.zst", "empty.tar.zst", "text", "pipe.tar.zst", long_name, f"{long_name}.zst"):
        for place in (tmp_path / name, str(tmp_path / name), [tmp_path / name]):
            with pytest.raises(ScanNetPrepError, match=name) as caught:
                ScanNet(place, split="train")
            assert isinstance(caught.value, FileError)
