"""Mistakes in using `ScanNet` that would otherwise go unnoticed are refused."""

from __future__ import annotations

import copy
import json
import operator
import pickle
import re
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from training_sources import SIZES, TRAIN, draw_in_sample

from scannet_prep import (
    SCANNET20,
    SCANNET200,
    ConcatDataset,
    LabelSet,
    PointBudgetBatchSampler,
    ScanNet,
    collate,
    collate_torch,
)
from scannet_prep.errors import FileError, MissingFileError, ScanNetPrepError, UsageError
from scannet_prep.processed.scene import ProcessOptions
from scannet_prep.stages import pack, process
from scannet_prep.transforms import (
    GridSample,
    Rotate,
)

torch = pytest.importorskip("torch")
torch_data = pytest.importorskip("torch.utils.data")
pytestmark = pytest.mark.extra("torch")

# Annotated vertices of each scene: the first, the last, and one in between.
POINTS = {scene_id: [0, 7 + index, SIZES[scene_id] - 1] for index, scene_id in enumerate(TRAIN)}


@pytest.fixture(scope="module")
def aligned_folder(training_folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The same scenes as in the training folder, axis-aligned and for ScanNet20."""
    folder = tmp_path_factory.mktemp("aligned") / "processed"
    raw_dir = training_folder.parent / "ScanNet"
    process.run(process.plan(raw_dir, folder, ProcessOptions(align_axis=True)), jobs=1)
    return folder


# Options that were lost.


@pytest.mark.parametrize("chosen", [[TRAIN[1], TRAIN[3]], [5, -21]])
def test_subset_of_a_looped_dataset_keeps_the_loop(source: Path, chosen: list[Any]) -> None:
    part = ScanNet(source, split="train", loop=5).subset(chosen)

    assert part.scene_ids == [TRAIN[1]] * 5 + [TRAIN[3]] * 5
    assert part.lengths.tolist() == [SIZES[name] for name in part.scene_ids]


def test_selected_scenes_are_looped(source: Path) -> None:
    dataset = ScanNet(source, split="train", scenes=[TRAIN[1], TRAIN[3]], loop=5)
    assert dataset.scene_ids == [TRAIN[1]] * 5 + [TRAIN[3]] * 5


@pytest.fixture(params=["list", "tuple", "file"])
def no_scenes(request: pytest.FixtureRequest, tmp_path: Path) -> Any:
    """An empty list of scenes."""
    (tmp_path / "names.txt").write_text("# none\n")
    return {"list": [], "tuple": (), "file": tmp_path / "names.txt"}[request.param]


def test_dataset_of_an_empty_list_of_scenes_is_refused(source: Path, no_scenes: Any) -> None:
    with pytest.raises(UsageError, match="is empty, expected at least one scene"):
        ScanNet(source, split="train", scenes=no_scenes)


def test_subset_of_an_empty_list_of_scenes_is_refused(source: Path, no_scenes: Any) -> None:
    dataset = ScanNet(source, split="train")
    with pytest.raises(UsageError, match="is empty, expected at least one scene"):
        dataset.subset(no_scenes)


# Label sets.


@pytest.fixture(params=["ScanNet200", "ScanNet20", "ScanNet20 archive"])
def place_and_label_set(
    request: pytest.FixtureRequest, training_folder: Path, aligned_folder: Path, tmp_path: Path
) -> tuple[Path, LabelSet]:
    """A folder or an archive, and the label set with which it was processed."""
    if request.param == "ScanNet200":
        return training_folder, SCANNET200
    if request.param == "ScanNet20":
        return aligned_folder, SCANNET20
    path = tmp_path / "scannet.tar.zst"
    pack.run(aligned_folder, path)
    return path, SCANNET20


def test_default_label_set_is_that_of_the_folder(
    place_and_label_set: tuple[Path, LabelSet],
) -> None:
    place, label_set = place_and_label_set

    dataset = ScanNet(place, split="train")

    assert dataset.label_set is label_set
    assert f"labels='{label_set.name.lower()}'" in repr(dataset)


def test_default_labels_are_those_of_the_default_label_set(
    place_and_label_set: tuple[Path, LabelSet],
) -> None:
    place, label_set = place_and_label_set
    labels = ScanNet(place, split="train")[0]["labels"]

    expected = ScanNet(place, split="train", labels=label_set)[0]["labels"]
    assert labels.tolist() == expected.tolist()


@pytest.mark.parametrize(
    ("name", "label_set"), [("scannet20", SCANNET20), ("ScanNet200", SCANNET200)]
)
def test_label_set_is_given_by_its_name(source: Path, name: str, label_set: LabelSet) -> None:
    assert ScanNet(source, split="train", labels=name).label_set is label_set


def test_unknown_name_of_a_label_set_is_refused(source: Path) -> None:
    with pytest.raises(UsageError, match="'nyu40' is not a label set"):
        ScanNet(source, split="train", labels="nyu40")


def grid_sample(sample: Any) -> Any:
    return GridSample(0.05)(sample, np.random.default_rng(0))


def pickle_and_load(sample: Any) -> Any:
    return pickle.loads(pickle.dumps(sample))


@pytest.mark.parametrize("change", [dict, copy.copy, copy.deepcopy, pickle_and_load, grid_sample])
def test_copied_or_transformed_sample_keeps_its_label_set(source: Path, change: Any) -> None:
    sample = ScanNet(source, split="train", labels=SCANNET20)[0]
    assert change(sample)["label_set"] == "ScanNet20"


@pytest.mark.parametrize("join", [collate, collate_torch])
def test_batch_has_the_label_set_of_its_samples(source: Path, join: Any) -> None:
    dataset = ScanNet(source, split="train", labels=SCANNET20)
    assert join([dataset[0], dataset[1]])["label_set"] == "ScanNet20"


@pytest.mark.parametrize("join", [collate, collate_torch])
def test_batch_from_a_worker_has_the_label_set(source: Path, join: Any) -> None:
    dataset = ScanNet(source, split="train", labels=SCANNET20)
    loader = torch_data.DataLoader(dataset, batch_size=3, num_workers=1, collate_fn=join)

    assert [batch["label_set"] for batch in loader] == ["ScanNet20"] * 3


def test_sample_without_labels_has_no_label_set(source: Path) -> None:
    assert "label_set" not in ScanNet(source, split="train", keys="points")[0]


def test_label_set_of_a_sample_can_be_selected_alone(source: Path) -> None:
    assert ScanNet(source, split="train", keys="label_set")[0]["label_set"] == "ScanNet200"


def test_samples_of_two_label_sets_are_not_joined(source: Path) -> None:
    names = ("scannet20", "scannet200")
    samples = [ScanNet(source, split="train", labels=name)[0] for name in names]

    message = "scene0000_00 has labels of ScanNet200, scene0000_00 of ScanNet20"
    with pytest.raises(UsageError, match=message):
        collate(samples)


# Frames.


def test_dataset_of_a_folder_in_the_scan_frame_is_not_aligned(source: Path) -> None:
    dataset = ScanNet(source, split="train")

    assert dataset.is_aligned is False
    assert repr(dataset).endswith("8 scenes, is_aligned=False")


def test_dataset_of_an_aligned_folder_is_aligned(aligned_folder: Path) -> None:
    dataset = ScanNet(aligned_folder, split="train")

    assert dataset.is_aligned is True
    assert repr(dataset).endswith("8 scenes, is_aligned=True")


def test_axis_alignment_is_the_same_in_both_frames(source: Path, aligned_folder: Path) -> None:
    scans = ScanNet(source, split="train")
    aligned_scans = ScanNet(aligned_folder, split="train")

    for scan, aligned in zip(scans, aligned_scans, strict=True):
        assert scan["axis_alignment"].tolist() == aligned["axis_alignment"].tolist()


def test_axis_alignment_maps_scan_points_to_aligned_points(
    source: Path, aligned_folder: Path
) -> None:
    scans = ScanNet(source, split="train")
    aligned_scans = ScanNet(aligned_folder, split="train")

    for scan, aligned in zip(scans, aligned_scans, strict=True):
        matrix = scan["axis_alignment"]
        moved = scan["points"] @ matrix[:3, :3].T + matrix[:3, 3]
        assert np.allclose(moved, aligned["points"], atol=1e-5)


# Joined datasets.


def make_concat(*datasets: Any) -> ConcatDataset:
    return ConcatDataset(datasets)


@pytest.mark.parametrize(
    ("other_name", "problem"),
    [
        ("frame", "is_aligned=False, .* has is_aligned=True"),
        ("label set", "label_set=ScanNet20, .* has label_set=ScanNet200"),
        ("ignore index", "ignore_index=-1, .* has ignore_index=255"),
    ],
)
@pytest.mark.parametrize("join", [operator.add, make_concat])
def test_joining_different_datasets_is_refused_naming_both(
    source: Path, aligned_folder: Path, other_name: str, problem: str, join: Any
) -> None:
    train = ScanNet(source, split="train", labels="scannet20")
    others = {
        "frame": ScanNet(aligned_folder, split="val"),
        "label set": ScanNet(source, split="val"),
        "ignore index": ScanNet(source, split="val", labels=SCANNET20, ignore_index=255),
    }
    other = others[other_name]

    with pytest.raises(UsageError, match=problem) as caught:
        join(train, other)

    assert repr(train) in caught.value.message
    assert repr(other) in caught.value.message


@pytest.fixture
def train_and_val(source: Path) -> tuple[Any, Any]:
    return ScanNet(source, split="train"), ScanNet(source, split="val", seed=1)


def test_plus_makes_a_concat_dataset(train_and_val: tuple[Any, Any]) -> None:
    train, val = train_and_val

    assert type(train + val) is ConcatDataset


def test_repr_of_joined_datasets_shows_each(train_and_val: tuple[Any, Any]) -> None:
    train, val = train_and_val

    shown = repr(train + val)

    assert repr(train) in shown
    assert repr(val) in shown


def test_joined_datasets_can_be_joined_again(train_and_val: tuple[Any, Any]) -> None:
    train, val = train_and_val
    both = train + val

    assert len(both + val) == len(both) + len(val)


@pytest.mark.parametrize(
    ("name", "expected"), [("label_set", SCANNET200), ("is_aligned", False), ("ignore_index", -1)]
)
def test_joined_dataset_has_the_common_attributes(
    train_and_val: tuple[Any, Any], name: str, expected: object
) -> None:
    train, val = train_and_val

    assert getattr(train + val, name) is expected


def test_joined_dataset_is_loaded_with_the_sampler(train_and_val: tuple[Any, Any]) -> None:
    train, val = train_and_val
    both = train + val
    sampler = PointBudgetBatchSampler(both, max_points=1600)
    loader = torch_data.DataLoader(
        both, batch_sampler=sampler, collate_fn=collate_torch, num_workers=1
    )

    scene_ids = sorted(scene_id for batch in loader for scene_id in batch["scene_ids"])

    assert scene_ids == [*train.scene_ids, *val.scene_ids]


@pytest.fixture
def joined_halves(source: Path) -> ConcatDataset:
    """The train split as two datasets that are joined."""
    parts = (TRAIN[:3], TRAIN[3:])
    return ConcatDataset([ScanNet(source, split="train", scenes=part) for part in parts])


def test_class_counts_of_joined_datasets_are_of_all_scenes(
    source: Path, joined_halves: ConcatDataset
) -> None:
    whole = ScanNet(source, split="train")
    assert joined_halves.class_counts().tolist() == whole.class_counts().tolist()


@pytest.mark.parametrize("formula", ["inverse", "inverse_sqrt", "log", "median_frequency"])
def test_class_weights_of_joined_datasets_are_of_all_scenes(
    source: Path, joined_halves: ConcatDataset, formula: Any
) -> None:
    expected = ScanNet(source, split="train").class_weights(formula)
    assert joined_halves.class_weights(formula).tolist() == expected.tolist()


def test_joining_a_single_dataset_without_a_list_is_refused(source: Path) -> None:
    with pytest.raises(UsageError, match="expected a list of datasets") as caught:
        ConcatDataset(ScanNet(source, split="train"))
    assert caught.value.hint == "ConcatDataset([train, val]), or train + val"


@pytest.mark.parametrize(
    ("kind", "problem", "hint"),
    [
        ("Subset", "a Subset of PyTorch has no lengths", "dataset.subset(indices)"),
        ("ConcatDataset", "a ConcatDataset of PyTorch has no lengths", "train + val"),
        ("None", "None is not a dataset", "train + val"),
    ],
)
def test_joining_a_wrapper_of_pytorch_or_another_object_is_refused(
    source: Path, kind: str, problem: str, hint: str
) -> None:
    train = ScanNet(source, split="train")
    others = {
        "Subset": torch_data.Subset(train, [0]),
        "ConcatDataset": torch_data.ConcatDataset([train]),
        "None": None,
    }

    with pytest.raises(UsageError, match=problem) as caught:
        train + others[kind]

    assert hint in caught.value.hint


def test_class_weights_with_a_dataset_that_cannot_count_are_an_error(source: Path) -> None:
    with pytest.raises(UsageError, match="has no method class_counts_by_scene"):
        ConcatDataset([ScanNet(source, split="train"), [{}]]).class_weights()


def test_several_splits_at_once_are_refused_with_concat_as_hint(source: Path) -> None:
    with pytest.raises(UsageError, match="expected the name of one split") as caught:
        ScanNet(source, split=["train", "val"])  # type: ignore[arg-type]
    assert "ConcatDataset([ScanNet(" in caught.value.hint


@pytest.mark.parametrize(
    "mask", [[True, False], np.array([True, False]), torch.tensor([True, False])], ids=type
)
@pytest.mark.parametrize("is_joined", [False, True])
def test_subset_by_a_mask_of_booleans_is_refused(source: Path, mask: Any, is_joined: bool) -> None:
    dataset: Any = ScanNet(source, split="train")
    if is_joined:
        dataset = dataset + dataset

    with pytest.raises(UsageError, match="booleans") as caught:
        dataset.subset(mask)

    assert "numpy.flatnonzero(mask)" in caught.value.hint


def test_subset_of_joined_datasets_has_the_chosen_scenes(train_and_val: tuple[Any, Any]) -> None:
    train, val = train_and_val
    both = train + val

    part = both.subset([len(train), 0, -1])

    indices = sorted({0, len(train), len(both) - 1})
    scene_ids = [part[index]["scene_id"] for index in range(len(part))]
    assert scene_ids == [both[index]["scene_id"] for index in indices]
    assert part.lengths.tolist() == both.lengths[indices].tolist()


def test_subset_of_joined_datasets_is_indexed_by_sampler_keys(
    train_and_val: tuple[Any, Any],
) -> None:
    train, val = train_and_val
    both = train + val
    part = both.subset([len(train), 0, -1])
    sampler = PointBudgetBatchSampler(part, max_points=10_000)

    scene_ids = sorted(part[key]["scene_id"] for batch in sampler for key in batch)

    indices = {0, len(train), len(both) - 1}
    assert scene_ids == sorted(both[index]["scene_id"] for index in indices)


@pytest.mark.parametrize("key", ["scene0191_00", slice(0, 1), 0.5, None, (0, 1, 2)])
def test_joined_datasets_refuse_keys_that_are_not_indices(source: Path, key: Any) -> None:
    train = ScanNet(source, split="train")
    with pytest.raises(UsageError, match="is not an index"):
        (train + train)[key]


# PyTorch's default collate function.


@pytest.mark.parametrize("kind", ["plain", "transformed", "joined", "Subset"])
@pytest.mark.parametrize("workers", [0, 1])
def test_default_collation_of_scenes_of_different_sizes_is_refused(
    source: Path, kind: str, workers: int
) -> None:
    train = ScanNet(source, split="train")
    dataset = {
        "plain": train,
        "transformed": ScanNet(source, split="train", transform=draw_in_sample),
        "joined": train + train,
        "Subset": torch_data.Subset(train, [0, 1, 2]),
    }[kind]
    loader = torch_data.DataLoader(dataset, batch_size=2, num_workers=workers)

    message = "PyTorch's default collate function stacks arrays"
    with pytest.raises(UsageError, match=message) as caught:
        next(iter(loader))
    assert "collate_fn=collate_torch" in str(caught.value)


def crop(sample: dict[str, Any], generator: np.random.Generator) -> Any:
    return {"points": sample["points"][:100]}


def test_default_collation_stacks_samples_of_one_shape(source: Path) -> None:
    dataset = ScanNet(source, split="train", transform=crop)
    batch = next(iter(torch_data.DataLoader(dataset, batch_size=4)))

    assert batch["points"].shape == (4, 100, 3)


# Errors of transforms.


def refuse(sample: dict[str, Any], generator: np.random.Generator) -> Any:
    raise UsageError("no such class", "take another one")


def test_error_of_a_transform_shows_its_hint_once(source: Path) -> None:
    dataset = ScanNet(source, split="train", transform=refuse)

    message = "the transform failed: UsageError: no such class\nhint: take"
    with pytest.raises(ScanNetPrepError, match=message) as caught:
        dataset[0, 2]

    assert caught.value.hint == "take another one; reproduce it with dataset[0, 2]"


# Limited annotations from a file.


def make_numpy_integers(indices: list[int]) -> list[Any]:
    return [np.int64(index) for index in indices]


def make_int32_array(indices: list[int]) -> Any:
    return np.array(indices, np.int32)


def save_torch(path: Path, *, is_zip: bool) -> None:
    """Save the points with `torch.save`, with indices of several types."""
    makers = [list, np.array, make_numpy_integers, make_int32_array]
    content = {}
    for number, (scene_id, indices) in enumerate(POINTS.items()):
        content[scene_id] = makers[number % len(makers)](indices)
    torch.save(content, path, _use_new_zipfile_serialization=is_zip)


def save_new_torch(path: Path) -> None:
    save_torch(path, is_zip=True)


def save_old_torch(path: Path) -> None:
    save_torch(path, is_zip=False)


def make_arrays() -> dict[str, Any]:
    return {scene_id: np.array(indices) for scene_id, indices in POINTS.items()}


def save_pickle_2(path: Path) -> None:
    path.write_bytes(pickle.dumps(make_arrays(), protocol=2))


def save_pickle_5(path: Path) -> None:
    path.write_bytes(pickle.dumps(make_arrays(), protocol=5))


def save_json(path: Path) -> None:
    path.write_text(json.dumps(POINTS))


def save_npz(path: Path) -> None:
    with path.open("wb") as file:
        np.savez(file, **make_arrays())


@pytest.mark.parametrize("path_type", [Path, str])
@pytest.mark.parametrize(
    "save", [save_new_torch, save_old_torch, save_pickle_2, save_pickle_5, save_json, save_npz]
)
def test_points_are_read_from_a_file(
    source: Path, tmp_path: Path, save: Any, path_type: Any
) -> None:
    save(tmp_path / "points20")
    expected = ScanNet(source, split="train", points=POINTS)

    dataset = ScanNet(source, split="train", points=path_type(tmp_path / "points20"))

    assert dataset.digest == expected.digest
    for sample, expected_sample in zip(dataset, expected, strict=True):
        assert sample["labels"].tolist() == expected_sample["labels"].tolist()
        assert sample["instances"].tolist() == expected_sample["instances"].tolist()


@pytest.mark.parametrize("module", [b"numpy.core.multiarray", b"numpy._core.multiarray"])
def test_points_of_numpy_1_and_numpy_2_are_read(
    source: Path, tmp_path: Path, module: bytes
) -> None:
    data = pickle.dumps(make_arrays(), protocol=2)
    data = re.sub(rb"numpy\._?core\.multiarray", module, data)
    (tmp_path / "points20").write_bytes(data)

    labels = ScanNet(source, split="train", points=tmp_path / "points20")[0]["labels"]

    assert labels.tolist().count(-1) >= 897


class Evil:
    """An object whose pickle creates a file when it is loaded."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> Any:
        return Path.touch, (self.path,)


@pytest.mark.parametrize("kind", ["torch", "old torch", "pickle"])
def test_code_in_a_file_of_points_is_refused_and_not_executed(
    source: Path, tmp_path: Path, kind: str
) -> None:
    content = {"scene0000_00": Evil(tmp_path / "touched")}
    path = tmp_path / "points20"
    if kind == "pickle":
        path.write_bytes(pickle.dumps(content))
    else:
        torch.save(content, path, _use_new_zipfile_serialization=kind == "torch")

    message = "points20: is not a list of annotated points: UnpicklingError"
    with pytest.raises(FileError, match=message):
        ScanNet(source, split="train", points=path)
    assert not (tmp_path / "touched").exists()


def test_missing_file_of_points_is_an_error(source: Path, tmp_path: Path) -> None:
    with pytest.raises(MissingFileError, match="points20: no such file"):
        ScanNet(source, split="train", points=tmp_path / "points20")


@pytest.fixture
def tensors_path(tmp_path: Path) -> Path:
    """A file of points that are tensors."""
    path = tmp_path / "points20"
    tensors = {scene_id: torch.tensor(indices) for scene_id, indices in POINTS.items()}
    torch.save(tensors, path)
    return path


def test_file_of_points_with_tensors_is_refused_with_a_hint(
    source: Path, tensors_path: Path
) -> None:
    with pytest.raises(FileError, match=r"points20: .*torch._utils") as caught:
        ScanNet(source, split="train", points=tensors_path)
    assert "points=torch.load(FILE, weights_only=True)" in caught.value.hint


def test_points_with_tensors_are_accepted_from_torch_load(source: Path, tensors_path: Path) -> None:
    dataset = ScanNet(source, split="train", points=torch.load(tensors_path))
    assert dataset.class_counts().sum() > 0


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"points",
        b"{",
        b"PK\x03\x04",
        pickle.dumps([1, 2]),
        pickle.dumps(POINTS)[:-20],
    ],
    ids=["empty", "text", "json", "zip", "list", "truncated"],
)
def test_damaged_or_foreign_file_of_points_is_an_error(
    source: Path, tmp_path: Path, data: bytes
) -> None:
    (tmp_path / "points20").write_bytes(data)
    with pytest.raises(FileError, match="points20: "):
        ScanNet(source, split="train", points=tmp_path / "points20")


def test_file_of_points_with_one_array_is_refused_by_its_type(source: Path, tmp_path: Path) -> None:
    (tmp_path / "points20").write_bytes(pickle.dumps(np.arange(3)))
    with pytest.raises(FileError, match="points20: holds a ndarray, expected a dict"):
        ScanNet(source, split="train", points=tmp_path / "points20")


def test_points_are_read_without_pytorch(
    source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    save_new_torch(tmp_path / "points20")
    monkeypatch.setitem(sys.modules, "torch", None)
    dataset = ScanNet(source, split="train", points=tmp_path / "points20")

    assert dataset.class_counts().sum() > 0


# Batches.


@pytest.fixture
def batch(source: Path) -> Any:
    dataset = ScanNet(source, split="train")
    return collate_torch([dataset[0], dataset[1]])


@pytest.fixture
def moved(batch: Any) -> Any:
    return batch.to("meta", non_blocking=True)


def test_batch_moves_its_tensors(moved: Any) -> None:
    tensors = [value for value in moved.values() if isinstance(value, torch.Tensor)]

    assert {tensor.device.type for tensor in tensors} == {"meta"}


def test_moved_batch_keeps_its_type(batch: Any, moved: Any) -> None:
    assert type(moved) is type(batch)


def test_moved_batch_keeps_the_order_of_its_keys(batch: Any, moved: Any) -> None:
    assert list(moved) == list(batch)


def test_moved_batch_keeps_values_that_are_not_tensors(batch: Any, moved: Any) -> None:
    assert moved["scene_ids"] == batch["scene_ids"]
    assert moved["label_set"] == "ScanNet200"


def test_moving_a_batch_leaves_the_batch_where_it_is(batch: Any) -> None:
    batch.to("meta", non_blocking=True)
    assert batch["points"].device.type == "cpu"


def test_moving_a_batch_of_arrays_is_an_error(source: Path) -> None:
    batch = collate([ScanNet(source, split="train")[0]])

    with pytest.raises(UsageError, match="is an array of NumPy") as caught:
        batch.to("cpu")

    assert "collate_torch" in caught.value.hint


def test_converting_a_batch_to_another_type_is_an_error(batch: Any) -> None:
    # It would convert the labels, too.
    with pytest.raises(TypeError):
        batch.to(torch.float16)


def test_labels_of_a_batch_are_colorized(batch: Any) -> None:
    colors = SCANNET200.colorize(batch["labels"].numpy())
    assert colors.shape == (len(batch["labels"]), 3)


# Invalid arguments.


@pytest.mark.parametrize("ignore_index", [0, 19, 199, None, 1.5, "x", 2**63])
def test_ignore_index_that_is_a_train_id_or_not_a_number_is_refused(
    source: Path, ignore_index: Any
) -> None:
    with pytest.raises(UsageError, match=f"ignore_index is {ignore_index!r}"):
        ScanNet(source, split="train", labels=SCANNET200, ignore_index=ignore_index)


@pytest.mark.parametrize("ignore_index", [-1, -100, 20, 255])
def test_ignore_index_can_be_any_number_that_is_not_a_train_id(
    source: Path, ignore_index: int
) -> None:
    dataset = ScanNet(source, split="train", labels=SCANNET20, ignore_index=ignore_index)
    labels = set(np.unique(dataset[0]["labels"]).tolist())

    assert labels <= {ignore_index, *range(20)}


@pytest.mark.parametrize(
    "transform", [Rotate, [Rotate()], "Rotate()", 3], ids=["class", "list", "text", "number"]
)
def test_transform_that_cannot_be_called_is_refused(source: Path, transform: Any) -> None:
    with pytest.raises(UsageError, match=r"expected a callable transform\(sample, rng\)"):
        ScanNet(source, split="train", transform=transform)


def turn(sample: dict[str, Any]) -> dict[str, Any]:
    return sample


def test_transform_with_one_parameter_is_refused_with_the_signature(source: Path) -> None:
    message = r"transform: turn\(.*\) .*cannot be called with \(sample, rng\)"

    with pytest.raises(UsageError, match=message) as caught:
        ScanNet(source, split="train", transform=turn)  # type: ignore[arg-type]

    assert caught.value.hint.endswith("def transform(sample, rng)")


def return_first(*arguments: Any) -> Any:
    return arguments[0]


@pytest.mark.parametrize(
    "transform",
    [return_first, torch.nn.Identity(), Rotate().__call__],
    ids=["function", "module", "method"],
)
def test_callable_that_takes_two_arguments_is_accepted_as_transform(
    source: Path, transform: Any
) -> None:
    assert len(ScanNet(source, split="train", transform=transform)) == len(TRAIN)
