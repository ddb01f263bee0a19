"""Mistakes in using `ScanNet` that would go unnoticed: other frame, other label set, lost options; each is refused."""

import copy
import json
import pickle
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from training_sources import SIZES, TRAIN, draw_in_sample

from scannet_prep import (
    SCANNET20,
    SCANNET200,
    ConcatDataset,
    PointBudgetBatchSampler,
    ScanNet,
    collate,
    collate_torch,
)
from scannet_prep.base.errors import FileError, MissingFileError, TransformError, UsageError
from scannet_prep.processed.scene import ProcessOptions
from scannet_prep.stages import pack, process
from scannet_prep.transforms import (
    GridSample,
    InstanceTargets,
    RotateZ,
    instance_masks,
    pool_segments,
    unique_segments,
)

torch = pytest.importorskip("torch")
torch_data = pytest.importorskip("torch.utils.data")
pytestmark = pytest.mark.torch
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
    assert (
        ScanNet(source, split="train", scenes=[TRAIN[1], TRAIN[3]], loop=5).scene_ids
        == part.scene_ids
    )


def test_empty_list_of_scenes_is_refused_at_construction(source: Path, tmp_path: Path) -> None:
    (tmp_path / "names.txt").write_text("# none\n")
    whole = ScanNet(source, split="train")
    for scenes in ([], (), tmp_path / "names.txt"):
        for make in (whole.subset, lambda some: ScanNet(source, split="train", scenes=some)):
            with pytest.raises(UsageError, match="is empty, expected at least one scene"):
                make(scenes)


# Label sets.


def test_default_label_set_is_that_of_the_folder(
    source: Path, aligned_folder: Path, tmp_path: Path
) -> None:
    pack.run(aligned_folder, tmp_path / "scannet.tar.zst")
    for place, label_set in (
        (source, SCANNET200),
        (aligned_folder, SCANNET20),
        (tmp_path / "scannet.tar.zst", SCANNET20),
    ):
        dataset = ScanNet(place, split="train")
        assert dataset.label_set is label_set
        assert f"labels='{label_set.name.lower()}'" in repr(dataset)
        expected = ScanNet(place, split="train", labels=label_set)[0]["labels"]
        assert dataset[0]["labels"].tolist() == expected.tolist()


def test_label_set_is_accepted_by_name_and_an_unknown_name_is_refused(source: Path) -> None:
    for name, label_set in (("scannet20", SCANNET20), ("ScanNet200", SCANNET200)):
        assert ScanNet(source, split="train", labels=name).label_set is label_set
    with pytest.raises(UsageError, match="'nyu40' is not a label set"):
        ScanNet(source, split="train", labels="nyu40")


def test_sample_keeps_its_label_set_in_copies_pickles_transforms_workers_and_batches(
    source: Path,
) -> None:
    dataset = ScanNet(source, split="train", labels=SCANNET20)
    sample = dataset[0]
    changed = GridSample(0.05)(sample, np.random.default_rng(0))
    for one in (
        dict(sample),
        copy.copy(sample),
        copy.deepcopy(sample),
        pickle.loads(pickle.dumps(sample)),
        changed,
    ):
        assert one["label_set"] == "ScanNet20"
    for join in (collate, collate_torch):
        assert join([dataset[0], dataset[1]])["label_set"] == "ScanNet20"
        loader = torch_data.DataLoader(dataset, batch_size=3, num_workers=1, collate_fn=join)
        assert [batch["label_set"] for batch in loader] == ["ScanNet20"] * 3
    assert "label_set" not in ScanNet(source, split="train", keys="points")[0]
    assert ScanNet(source, split="train", keys="label_set")[0]["label_set"] == "ScanNet200"


def test_samples_of_two_label_sets_are_not_joined(source: Path) -> None:
    samples = [
        ScanNet(source, split="train", labels=name)[0] for name in ("scannet20", "scannet200")
    ]
    with pytest.raises(
        UsageError, match="scene0000_00 has labels of ScanNet200, scene0000_00 of ScanNet20"
    ):
        collate(samples)


# Frames.


def test_dataset_and_its_repr_show_whether_points_are_aligned(
    source: Path, aligned_folder: Path
) -> None:
    scans, aligned = ScanNet(source, split="train"), ScanNet(aligned_folder, split="train")
    assert (scans.is_aligned, aligned.is_aligned) == (False, True)
    assert repr(scans).endswith("8 scenes, is_aligned=False")
    assert repr(aligned).endswith("8 scenes, is_aligned=True")


def test_axis_alignment_maps_points_of_the_scan_frame_to_aligned_points(
    source: Path, aligned_folder: Path
) -> None:
    for scan, aligned in zip(
        ScanNet(source, split="train"), ScanNet(aligned_folder, split="train"), strict=True
    ):
        matrix = scan["axis_alignment"]
        assert matrix.tolist() == aligned["axis_alignment"].tolist()
        assert np.allclose(
            scan["points"] @ matrix[:3, :3].T + matrix[:3, 3], aligned["points"], atol=1e-5
        )


# Joined datasets.


def test_concat_refuses_other_frames_label_sets_and_ignore_indices_and_names_both(
    source: Path, aligned_folder: Path
) -> None:
    train = ScanNet(source, split="train", labels="scannet20")
    for other, problem in (
        (ScanNet(aligned_folder, split="val"), "is_aligned=False, .* has is_aligned=True"),
        (ScanNet(source, split="val"), "label_set=ScanNet20, .* has label_set=ScanNet200"),
        (
            ScanNet(source, split="val", labels=SCANNET20, ignore_index=255),
            "ignore_index=-1, .* has ignore_index=255",
        ),
    ):
        for join in (lambda *some: ConcatDataset(some), lambda one, two: one + two):
            with pytest.raises(UsageError, match=problem) as caught:
                join(train, other)
            assert repr(train) in caught.value.message
            assert repr(other) in caught.value.message


def test_plus_joins_datasets_for_the_sampler(source: Path) -> None:
    train, val = ScanNet(source, split="train"), ScanNet(source, split="val", seed=1)
    both = train + val
    assert type(both) is ConcatDataset
    assert (both.label_set, both.is_aligned, both.ignore_index) == (SCANNET200, False, -1)
    scene_ids = [*train.scene_ids, *val.scene_ids]
    loader = torch_data.DataLoader(
        both,
        batch_sampler=PointBudgetBatchSampler(both, max_points=1600),
        collate_fn=collate_torch,
        num_workers=1,
    )
    assert sorted(name for batch in loader for name in batch["scene_ids"]) == scene_ids
    assert len(both + val) == len(both) + len(val)
    assert repr(train) in repr(both)


@pytest.mark.parametrize("formula", ["inverse", "inverse_sqrt", "log", "median_frequency"])
def test_class_weights_of_joined_datasets_are_those_of_all_their_scenes(
    source: Path, formula: Any
) -> None:
    parts = [ScanNet(source, split="train", scenes=some) for some in (TRAIN[:3], TRAIN[3:])]
    whole = ScanNet(source, split="train")
    assert ConcatDataset(parts).class_counts().tolist() == whole.class_counts().tolist()
    assert (
        ConcatDataset(parts).class_weights(formula).tolist()
        == whole.class_weights(formula).tolist()
    )


def test_single_dataset_is_not_taken_for_a_list_of_its_scenes(source: Path) -> None:
    with pytest.raises(UsageError, match="expected a list of datasets") as caught:
        ConcatDataset(ScanNet(source, split="train"))
    assert caught.value.hint == "ConcatDataset([train, val]), or train + val"


def test_wrappers_of_pytorch_and_other_objects_cannot_be_joined(source: Path) -> None:
    train = ScanNet(source, split="train")
    for other, problem, hint in (
        (
            torch_data.Subset(train, [0]),
            "a Subset of PyTorch has no lengths",
            "dataset.subset(indices)",
        ),
        (
            torch_data.ConcatDataset([train]),
            "a ConcatDataset of PyTorch has no lengths",
            "train + val",
        ),
        (None, "None is not a dataset", "train + val"),
    ):
        with pytest.raises(UsageError, match=problem) as caught:
            train + other
        assert hint in caught.value.hint


def test_class_weights_with_a_dataset_that_does_not_count_classes_are_an_error(
    source: Path,
) -> None:
    with pytest.raises(UsageError, match="has no method class_counts_by_scene"):
        ConcatDataset([ScanNet(source, split="train"), [{}]]).class_weights()


def test_several_splits_at_once_are_refused_with_concat_as_the_hint(source: Path) -> None:
    with pytest.raises(UsageError, match="expected the name of one split") as caught:
        ScanNet(source, split=["train", "val"])  # type: ignore[arg-type]
    assert "ConcatDataset([ScanNet(" in caught.value.hint


# PyTorch's default collate function.


def test_default_collate_function_is_refused_for_scenes_of_different_sizes(source: Path) -> None:
    train = ScanNet(source, split="train")
    transformed = ScanNet(source, split="train", transform=draw_in_sample)
    for dataset in (train, transformed, train + train, torch_data.Subset(train, [0, 1, 2])):
        for workers in (0, 1):
            with pytest.raises(
                UsageError, match="PyTorch's default collate function stacks arrays"
            ) as caught:
                next(iter(torch_data.DataLoader(dataset, batch_size=2, num_workers=workers)))
            assert "collate_fn=collate_torch" in str(caught.value)


def crop(sample: dict[str, Any], generator: np.random.Generator) -> Any:
    return {"points": sample["points"][:100]}


def test_default_collate_function_stacks_what_has_one_shape(source: Path) -> None:
    dataset = ScanNet(source, split="train", transform=crop)
    assert next(iter(torch_data.DataLoader(dataset, batch_size=4)))["points"].shape == (4, 100, 3)


# Errors of transforms.


def refuse(sample: dict[str, Any], generator: np.random.Generator) -> Any:
    raise UsageError("no such class", "take another one")


def test_error_of_a_transform_shows_its_hint_once(source: Path) -> None:
    with pytest.raises(
        TransformError, match="the transform failed: UsageError: no such class\nhint: take"
    ) as caught:
        ScanNet(source, split="train", transform=refuse)[0, 2]
    assert caught.value.hint == "take another one; reproduce it with dataset[0, 2]"


# Limited annotations from a file.


def save_torch(path: Path, is_zip: bool) -> None:
    makers = [
        list,
        np.array,
        lambda some: [np.int64(one) for one in some],
        lambda some: np.array(some, np.int32),
    ]
    content = {name: makers[number % 4](some) for number, (name, some) in enumerate(POINTS.items())}
    torch.save(content, path, _use_new_zipfile_serialization=is_zip)


def save_pickle(path: Path, protocol: int) -> None:
    path.write_bytes(
        pickle.dumps({name: np.array(some) for name, some in POINTS.items()}, protocol)
    )


def save_npz(path: Path) -> None:
    with path.open("wb") as file:
        np.savez(file, **{name: np.array(some) for name, some in POINTS.items()})


@pytest.mark.parametrize(
    "save",
    [
        lambda path: save_torch(path, is_zip=True),
        lambda path: save_torch(path, is_zip=False),
        lambda path: save_pickle(path, 2),
        lambda path: save_pickle(path, 5),
        lambda path: path.write_text(json.dumps(POINTS)),
        save_npz,
    ],
    ids=["torch", "old torch", "pickle 2", "pickle 5", "json", "npz"],
)
def test_points_are_read_from_a_file(source: Path, tmp_path: Path, save: Any) -> None:
    save(tmp_path / "points20")
    expected = ScanNet(source, split="train", points=POINTS)
    for path in (tmp_path / "points20", str(tmp_path / "points20")):
        found = ScanNet(source, split="train", points=path)
        for one, other in zip(found, expected, strict=True):
            assert one["labels"].tolist() == other["labels"].tolist()
            assert one["instances"].tolist() == other["instances"].tolist()
        assert found.digest == expected.digest


def test_points_of_numpy_1_are_read(source: Path, tmp_path: Path) -> None:
    data = pickle.dumps({name: np.array(some) for name, some in POINTS.items()}, 2)
    for old, new in (
        (b"numpy._core.multiarray", b"numpy.core.multiarray"),
        (b"numpy.core.multiarray",) * 2,
    ):
        (tmp_path / "points20").write_bytes(data.replace(old, new))
        assert (
            ScanNet(source, split="train", points=tmp_path / "points20")[0]["labels"]
            .tolist()
            .count(-1)
            >= 897
        )


class Evil:
    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> Any:
        return Path.touch, (self.path,)


@pytest.mark.parametrize("is_zip", [True, False, None])
def test_points_of_a_file_with_code_are_refused_and_nothing_is_executed(
    source: Path, tmp_path: Path, is_zip: bool | None
) -> None:
    content = {"scene0000_00": Evil(tmp_path / "touched")}
    if is_zip is None:
        (tmp_path / "points20").write_bytes(pickle.dumps(content))
    else:
        torch.save(content, tmp_path / "points20", _use_new_zipfile_serialization=is_zip)
    with pytest.raises(
        FileError, match="points20: is not a list of annotated points: UnpicklingError"
    ):
        ScanNet(source, split="train", points=tmp_path / "points20")
    assert not (tmp_path / "touched").exists()


def test_points_of_a_damaged_foreign_or_missing_file_are_an_error_that_names_it(
    source: Path, tmp_path: Path
) -> None:
    path = tmp_path / "points20"
    with pytest.raises(MissingFileError, match="points20: no such file"):
        ScanNet(source, split="train", points=path)
    torch.save({name: torch.tensor(some) for name, some in POINTS.items()}, path)
    with pytest.raises(FileError, match=r"points20: .*torch._utils") as caught:
        ScanNet(source, split="train", points=path)
    assert "points=torch.load(FILE, weights_only=True)" in caught.value.hint
    assert ScanNet(source, split="train", points=torch.load(path)).class_counts().sum() > 0
    for data in (
        b"",
        b"points",
        b"{",
        b"PK\x03\x04",
        pickle.dumps([1, 2]),
        pickle.dumps(POINTS)[:-20],
    ):
        path.write_bytes(data)
        with pytest.raises(FileError, match="points20: "):
            ScanNet(source, split="train", points=path)


def test_points_are_read_without_pytorch(
    source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    save_torch(tmp_path / "points20", is_zip=True)
    monkeypatch.setitem(__import__("sys").modules, "torch", None)
    assert ScanNet(source, split="train", points=tmp_path / "points20").class_counts().sum() > 0


# Batches.


def test_batch_moves_its_tensors_and_keeps_the_rest(source: Path) -> None:
    dataset = ScanNet(source, split="train")
    batch = collate_torch([dataset[0], dataset[1]])
    moved = batch.to("meta", non_blocking=True)
    assert type(moved) is type(batch)
    assert list(moved) == list(batch)
    assert {value.device.type for value in moved.values() if isinstance(value, torch.Tensor)} == {
        "meta"
    }
    assert (moved["scene_ids"], moved["label_set"]) == (batch["scene_ids"], "ScanNet200")
    assert batch["points"].device.type == "cpu"
    with pytest.raises(UsageError, match="is an array of NumPy") as caught:
        collate([dataset[0]]).to("cpu")
    assert "collate_torch" in caught.value.hint


def test_batch_is_not_converted_to_another_type_because_labels_would_be_too(source: Path) -> None:
    batch = collate_torch([ScanNet(source, split="train")[0]])
    with pytest.raises(TypeError):
        batch.to(torch.float16)


def test_documented_calls_take_a_batch_of_collate_torch(source: Path) -> None:
    dataset = ScanNet(source, split="train", transform=InstanceTargets(SCANNET200))
    batch = collate_torch([dataset[0], dataset[1]])
    superpoints, scenes = unique_segments(batch["segments"], batch["batch"])
    pooled = pool_segments(batch["points"], superpoints, len(scenes))
    # A loop over scenes and segments.
    pairs = list(zip(batch["batch"].tolist(), batch["segments"].tolist(), strict=True))
    numbers = {
        pair: number
        for number, pair in enumerate(sorted(pair for pair in set(pairs) if pair[1] >= 0))
    }
    assert superpoints.tolist() == [numbers.get(pair, -1) for pair in pairs]
    assert scenes.tolist() == [scene for scene, _ in numbers]
    assert superpoints.dtype == scenes.dtype == torch.int64
    expected = [batch["points"][superpoints == number].mean(dim=0) for number in range(len(scenes))]
    assert torch.allclose(pooled, torch.stack(expected), atol=1e-5)
    first = batch["instances"][: batch["offset"][0]]
    masks = instance_masks(first)
    assert masks.shape == (int(first.max()) + 1, len(first))
    assert SCANNET200.colorize(batch["labels"].numpy()).shape == (len(batch["labels"]), 3)


@pytest.mark.parametrize("ignore_index", [0, 19, 199, None, 1.5, "x", 2**63])
def test_ignore_index_that_is_a_train_id_or_no_number_is_refused(
    source: Path, ignore_index: Any
) -> None:
    with pytest.raises(UsageError, match=f"ignore_index is {ignore_index!r}"):
        ScanNet(source, split="train", labels=SCANNET200, ignore_index=ignore_index)


@pytest.mark.parametrize("ignore_index", [-1, -100, 20, 255])
def test_ignore_index_may_be_any_number_that_is_not_a_train_id(
    source: Path, ignore_index: int
) -> None:
    dataset = ScanNet(source, split="train", labels=SCANNET20, ignore_index=ignore_index)
    assert {*np.unique(dataset[0]["labels"]).tolist()} <= {ignore_index, *range(20)}


@pytest.mark.parametrize(
    "transform", [RotateZ, [RotateZ()], "RotateZ()", 3], ids=["class", "list", "text", "number"]
)
def test_transform_that_cannot_be_called_is_refused_at_construction(
    source: Path, transform: Any
) -> None:
    with pytest.raises(UsageError, match=r"expected a callable transform\(sample, rng\)"):
        ScanNet(source, split="train", transform=transform)


def turn(sample: dict[str, Any]) -> dict[str, Any]:
    return sample


def test_transform_with_one_argument_is_refused_at_construction_with_both_signatures(
    source: Path,
) -> None:
    message = re.escape("transform: turn(sample) cannot be called with (sample, rng)")
    with pytest.raises(UsageError, match=message) as caught:
        ScanNet(source, split="train", transform=turn)  # type: ignore[arg-type]
    assert caught.value.hint.endswith("def transform(sample, rng)")


@pytest.mark.parametrize(
    "transform", [lambda *arguments: arguments[0], torch.nn.Identity(), RotateZ().__call__]
)
def test_callables_that_take_two_arguments_are_accepted_as_transforms(
    source: Path, transform: Any
) -> None:
    assert len(ScanNet(source, split="train", transform=transform)) == len(TRAIN)


@pytest.mark.parametrize(
    "mask", [[True, False], np.array([True, False]), torch.tensor([True, False])], ids=type
)
@pytest.mark.parametrize("is_joined", [False, True])
def test_mask_of_booleans_is_not_taken_for_indices(
    source: Path, mask: Any, is_joined: bool
) -> None:
    dataset: Any = ScanNet(source, split="train")
    if is_joined:
        dataset = dataset + dataset
    with pytest.raises(UsageError, match="booleans") as caught:
        dataset.subset(mask)
    assert "numpy.flatnonzero(mask)" in caught.value.hint


def test_subset_of_joined_datasets_has_the_chosen_scenes_of_each(source: Path) -> None:
    train = ScanNet(source, split="train")
    val = ScanNet(source, split="val", seed=1)
    both = train + val
    part = both.subset([len(train), 0, -1])
    expected = sorted({0, len(train), len(both) - 1})
    assert [part[number]["scene_id"] for number in range(len(part))] == [
        both[key]["scene_id"] for key in expected
    ]
    assert part.lengths.tolist() == both.lengths[expected].tolist()
    sampler = PointBudgetBatchSampler(part, max_points=10_000)
    assert sorted(part[key]["scene_id"] for batch in sampler for key in batch) == sorted(
        both[number]["scene_id"] for number in expected
    )


@pytest.mark.parametrize("key", ["scene0191_00", slice(0, 1), 0.5, None])
def test_joined_datasets_refuse_keys_that_are_not_indices(source: Path, key: Any) -> None:
    train = ScanNet(source, split="train")
    with pytest.raises(UsageError, match="is not an index"):
        (train + train)[key]
