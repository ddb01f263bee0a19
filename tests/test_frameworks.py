"""Other frameworks: loaders give every scene once, and batches are those of the framework."""

from __future__ import annotations

import json
import re
import sys
from collections import Counter
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
from commands import PYTHON, run_words
from extras import needing
from samples import make_sample
from test_distributed import BLOCKS, SCRIPTS, read_output, run_ranks, run_script
from test_loader import epochs_of
from training_sources import TRAIN

from scannet_prep import EvalSampler, PointBudgetBatchSampler, ScanNet, collate_torch
from scannet_prep.convert import to_ocnn, to_pointcept, to_pyg
from scannet_prep.errors import UsageError
from scannet_prep.transforms import Compose, GridSample, Normalize

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.extra("torch")


def make_loaders(
    folder: Path, kind: Any = torch.utils.data.DataLoader, **options: Any
) -> tuple[Any, Any]:
    """Make a loader for training, and one for evaluation of the same scenes."""
    dataset = ScanNet(folder, split="train")
    sampler = PointBudgetBatchSampler(dataset.lengths, max_points=1600)
    return (
        kind(dataset, batch_sampler=sampler, collate_fn=collate_torch, **options),
        kind(dataset, sampler=EvalSampler(dataset.lengths), collate_fn=collate_torch, **options),
    )


# Appended to the Lightning script of the training page: a module that records the scenes of steps.
WATCHED = """
import json

SEEN = []


class Watched(Model):
    def training_step(self, batch, step):
        if self.trainer.predicting:
            kind = "predict"
        elif self.trainer.training:
            kind = "train"
        else:
            kind = "validate"
        SEEN.append([kind, self.current_epoch, step, batch["scene_ids"]])
        return super().training_step(batch, step)

    predict_step = training_step


def make_trainer(**options):
    return Trainer(accelerator="cpu", logger=False, num_sanity_val_steps=0, **options)
"""
# Fits and predicts on two ranks, then validates with Lightning's own sampler, which is an error.
ON_TWO_RANKS = """
options = {"devices": 2, "strategy": "ddp", "max_epochs": 2, "enable_checkpointing": False}
module = Watched()
trainer = make_trainer(use_distributed_sampler=False, **options)
train = module.train_set
loader = DataLoader(train, sampler=EvalSampler(train.lengths), collate_fn=collate_torch)
trainer.fit(module, val_dataloaders=loader)
trainer.predict(module, loader)
with open(f"rank{trainer.global_rank}.json", "w") as file:
    json.dump(SEEN, file)
make_trainer(**options).validate(module, loader)
"""
# Trains with a checkpoint after each step, then resumes from each of them.
RESUMED = """
from lightning.pytorch.callbacks import ModelCheckpoint


def fit(checkpoint=None, **options):
    SEEN.clear()
    trainer = make_trainer(max_epochs=3, use_distributed_sampler=False, **options)
    trainer.fit(Watched(), ckpt_path=checkpoint, weights_only=False)
    return [seen for seen in SEEN if seen[0] == "train"]


checkpoints = ModelCheckpoint(".", filename="{step}", every_n_train_steps=1, save_top_k=-1)
whole = fit(callbacks=[checkpoints])
for done in range(1, len(whole)):
    assert fit(f"step={done}.ckpt", enable_checkpointing=False) == whole[done:], done
assert len(whole) > 6, len(whole)
"""


def write_lightning_script(path: Path, folder: Path, end: str) -> None:
    """Write the training page's script, with small batches and another end."""
    (block,) = [block for block in BLOCKS if "from lightning" in block]
    script = block.replace("600_000", "1_600").replace("data/processed", f"{folder}")
    path.write_text(script.split("\n\nif __name__")[0] + WATCHED + end)


@pytest.fixture(scope="module")
def lightning_dir(training_folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a run on two ranks, which ends with an error."""
    out_dir = tmp_path_factory.mktemp("lightning")
    write_lightning_script(out_dir / "script.py", training_folder, ON_TWO_RANKS)
    assert 1 in run_ranks(run_script, out_dir, "script.py")
    return out_dir


@pytest.mark.extra("lightning")
def test_lightnings_own_sampler_is_refused_naming_the_option(lightning_dir: Path) -> None:
    message = "takes only some of it\nhint: Trainer(use_distributed_sampler=False)"
    assert message in read_output(lightning_dir)


@pytest.mark.extra("lightning")
def test_lightning_covers_every_scene_once_per_pass(lightning_dir: Path) -> None:
    counts: Counter[tuple[str, int, str]] = Counter()
    for rank in range(2):
        for kind, epoch, _, ids in json.loads((lightning_dir / f"rank{rank}.json").read_text()):
            counts.update((kind, epoch, scene_id) for scene_id in ids)

    passes = (("train", 0), ("train", 1), ("validate", 0), ("validate", 1), ("predict", 2))
    assert counts == Counter((*one, scene_id) for one in passes for scene_id in TRAIN)


@pytest.mark.extra("lightning")
def test_lightning_resumes_within_an_epoch(training_folder: Path, tmp_path: Path) -> None:
    # The script compares the batches itself.
    write_lightning_script(tmp_path / "script.py", training_folder, RESUMED)
    assert run_ranks(run_script, tmp_path, "script.py", count=1) == [0], read_output(tmp_path)


def use_accelerate(out_dir: Path, folder: Path) -> None:
    """Print the errors of iterating over loaders that accelerate has prepared."""
    from accelerate import Accelerator, DataLoaderConfiguration

    loader, evaluation_loader = make_loaders(folder)
    for prepared, is_dispatched in [
        (loader, False),
        (evaluation_loader, False),
        (loader, True),
    ]:
        options = DataLoaderConfiguration(dispatch_batches=is_dispatched)
        try:
            list(Accelerator(cpu=True, dataloader_config=options).prepare(prepared))
        except UsageError as error:
            print(f"{error}\nhint: {error.hint}")


@pytest.mark.extra("accelerate")
def test_loader_prepared_by_accelerate_is_refused_with_a_hint(
    training_folder: Path, tmp_path: Path
) -> None:
    run_ranks(use_accelerate, tmp_path, training_folder)

    refused = (
        r"share of rank [01] of 2, and (\w+) .*\n"
        r"hint: do not pass this loader to accelerator\.prepare"
    )
    counts = Counter(re.findall(refused, read_output(tmp_path)))
    # Two loaders on two ranks.
    assert counts["BatchSamplerShard"] == 4
    # The other rank may have been killed before it printed the error.
    assert counts["DataLoaderDispatcher"] >= 1


def finish_epochs(loader: Any) -> list[list[str]]:
    """Read the rest of two epochs with a loader whose state was loaded."""
    scene_ids = []
    batches = iter(loader)
    while loader.batch_sampler.epoch < 2:
        scene_ids += [batch["scene_ids"] for batch in batches]
        loader.batch_sampler.set_epoch(loader.batch_sampler.epoch + 1)
        batches = iter(loader)
    return scene_ids


@pytest.mark.extra("torchdata")
@pytest.mark.filterwarnings("ignore:'set_vital' is deprecated")
@pytest.mark.parametrize("workers", [0, 1])
def test_stateful_loader_of_torchdata_resumes_after_any_step(
    training_folder: Path, workers: int
) -> None:
    from torchdata.stateful_dataloader import StatefulDataLoader

    def make() -> Any:
        return make_loaders(training_folder, StatefulDataLoader, num_workers=workers)[0]

    whole = [batch["scene_ids"] for batch in epochs_of(make(), range(2))]
    step_count = len(whole) // 2
    # Starting workers takes long: with them, resume after three of the steps only.
    all_steps = range(step_count + 1)
    for done in (0, 1, step_count) if workers else all_steps:
        loader = make()
        batches = iter(loader)
        scene_ids = [next(batches)["scene_ids"] for _ in range(done)]
        state = json.loads(json.dumps(loader.state_dict()))
        del batches

        loader = make()
        loader.load_state_dict(state)
        scene_ids += finish_epochs(loader)

        assert scene_ids == whole, done


def import_ocnn() -> Any:
    """Import ocnn, with an empty torchvision if that is not installed.

    Only one of its networks needs torchvision, which is not used here, and whose wheel is for CUDA.
    """
    with pytest.MonkeyPatch.context() as patch:
        if not find_spec("torchvision"):
            for name in ("torchvision", "torchvision.models"):
                module: Any = ModuleType(name)
                module.resnet18 = None
                patch.setitem(sys.modules, name, module)
        import ocnn

        return ocnn


def run_page(out_dir: Path, name: str) -> None:
    """Run a script twice; the second time, it continues from its own checkpoint."""
    if name == "ocnn":
        import_ocnn()
    run_script(out_dir, "train.py", 2)


PACKAGES = ("lightning", "accelerate", "torchdata", "torch_geometric", "ocnn")


@pytest.mark.parametrize("name", needing(*PACKAGES))
def test_script_of_the_training_page_runs(training_folder: Path, tmp_path: Path, name: str) -> None:
    (tmp_path / "data").mkdir()
    (tmp_path / "data/processed").symlink_to(training_folder)
    (block,) = [block for block in BLOCKS if f"from {name}" in block]
    (tmp_path / "train.py").write_text(block)

    assert run_ranks(run_page, tmp_path, name, count=1) == [0], read_output(tmp_path)


# A script with types, which pyright checks.
TYPED = """\
from typing import Any

import numpy as np
from numpy.typing import NDArray
from torch import Tensor
from torch.utils.data import DataLoader, RandomSampler
from typing_extensions import assert_type

from scannet_prep import ScanNet, WithEpoch, collate, collate_torch
from scannet_prep.training.dataset import Sample
from scannet_prep.transforms import Compose, Flip


def brighter(sample: Sample, generator: np.random.Generator) -> Sample:
    sample["colors"] = (sample["colors"] + generator.integers(0, 3)).astype(np.uint8)
    return sample


def count(sample: Sample, generator: np.random.Generator) -> int:
    return len(sample["points"])


train = ScanNet("data/processed", split="train", transform=Compose(Flip(), brighter))
loader = DataLoader(train, sampler=WithEpoch(RandomSampler(train)), batch_size=None)
first: Sample = train[0]
print(first["scene_id"], first["points"].mean(axis=0))

plain = ScanNet("data/processed", split="train", labels="scannet200")
assert_type(plain[0]["points"], NDArray[np.float32])
assert_type((plain + plain)[0], Any)
assert_type(plain.subset([0])["scene0191_00", 3]["label_set"], str)
assert_type(ScanNet("data/processed", split="train", transform=count)[0], int)
with plain as opened:
    assert_type(opened[0]["scene_id"], str)
batch = collate_torch([plain[0], plain[1]])
assert_type(batch["points"], Tensor)
assert_type(batch.to("cuda", non_blocking=True)["offset"], Tensor)
assert_type(batch["scene_ids"], list[str])
assert_type(collate([plain[0]])["labels"], NDArray[Any])
print([label_class.name for label_class in plain.label_set], plain.label_set["wall"].color)
"""


@pytest.mark.extra("pyright")
def test_pyright_finds_no_errors_in_typed_scripts_and_the_training_page(tmp_path: Path) -> None:
    for name, script in {**SCRIPTS, "own.py": TYPED}.items():
        (tmp_path / name).write_text(script)
    settings = {"extraPaths": [str(Path(__file__).parents[1])]}
    (tmp_path / "pyrightconfig.json").write_text(json.dumps(settings))

    done = run_words(PYTHON, "-m", "pyright", "--pythonpath", PYTHON, cwd=tmp_path)

    assert done.status == 0, done.stdout


# Conversions.


def make_samples() -> list[dict[str, Any]]:
    """Make three scenes as in a dataset: uint8 colours, -1 for unlabeled, int32 instances."""
    samples = []
    for count in (3, 5, 4):
        sample = make_sample(count, count)
        del sample["vertex_keys"], sample["height"]
        sample["labels"] = sample["labels"] - 1
        sample["instances"] = sample["instances"].astype(np.int32)
        samples.append(sample)
    return samples


def make_tensors(samples: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Make tensors of each sample, with colours in 0..1."""
    scenes = []
    for sample in samples:
        arrays = {key: value for key, value in sample.items() if key != "scene_id"}
        tensors = {key: torch.from_numpy(value) for key, value in arrays.items()}
        tensors["colors"] = tensors["colors"] / 255
        scenes.append(tensors)
    return scenes


def apply_to_all(transform: Any, samples: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [transform(sample, np.random.default_rng(0)) for sample in samples]


def test_to_ocnn_equals_the_merged_points_of_ocnn() -> None:
    octree = import_ocnn().octree
    samples = make_samples()
    expected = octree.Points.init_points("cpu", batch_size=3)
    expected.merge_points(
        [
            octree.Points(s["points"] / 10.24, s["normals"], s["colors"], s["labels"] + 1)
            for s in make_tensors(samples)
        ]
    )

    points = to_ocnn(collate_torch(samples))

    for name in ("points", "normals", "features", "labels", "batch_id", "batch_npt"):
        assert torch.equal(getattr(points, name), getattr(expected, name)), name
    assert points.batch_size == expected.batch_size == 3


def test_ocnn_builds_an_octree_of_the_converted_points() -> None:
    octree = import_ocnn().octree
    points = to_ocnn(collate_torch(make_samples()))
    octree.Octree(5, 2, batch_size=3).build_octree(points)


@pytest.fixture
def samples_beyond_cube() -> list[dict[str, Any]]:
    """Samples with a point outside the cube of ocnn."""
    samples = make_samples()
    samples[1]["points"][2, 0] = -11
    return samples


def test_points_beyond_the_cube_of_ocnn_are_refused(
    samples_beyond_cube: list[dict[str, Any]],
) -> None:
    import_ocnn()

    message = r"points reach 11.00 m from the origin, expected at most 10.24 m"
    with pytest.raises(UsageError, match=message) as caught:
        to_ocnn(collate_torch(samples_beyond_cube))

    assert "Normalize()" in caught.value.hint


def test_larger_scale_puts_all_points_into_the_cube_of_ocnn(
    samples_beyond_cube: list[dict[str, Any]],
) -> None:
    import_ocnn()
    points = to_ocnn(collate_torch(samples_beyond_cube), scale=22.0)

    assert points.points.min() == -0.5


@pytest.mark.extra("torch_geometric")
def test_to_pyg_equals_the_batch_of_torch_geometric(tmp_path: Path) -> None:
    # In another process, because importing it here takes longer.
    assert run_ranks(convert_for_torch_geometric, tmp_path, count=1) == [0], read_output(tmp_path)


def convert_for_torch_geometric(out_dir: Path) -> None:
    from torch_geometric.data import Batch, Data

    check_unknown_colors(to_pyg)
    samples = make_samples()
    for sample, edges in zip(samples, ([[0, 1], [1, 2]], [[4], [0]], [[], []]), strict=True):
        sample["edge_index"] = np.array(edges, int)
    scenes = []
    for sample in make_tensors(samples):
        data = Data(
            pos=sample["points"],
            x=sample["colors"],
            normal=sample["normals"],
            y=sample["labels"],
            edge_index=sample["edge_index"],
        )
        scenes.append(data)
    expected = Batch.from_data_list(scenes)

    converted = to_pyg(collate_torch(samples))

    keys = sorted(expected.keys())
    assert sorted(converted.keys()) == keys
    for key in keys:
        assert torch.equal(converted[key], expected[key]), key
    assert converted.num_graphs == expected.num_graphs == 3
    assert converted.num_nodes == 12


@pytest.fixture
def pointcept_batch() -> dict[str, Any]:
    grid = Compose(Normalize(), GridSample(1e-4))
    return to_pointcept(collate_torch(apply_to_all(grid, make_samples())))


def test_features_for_pointcept_are_colors_and_normals(pointcept_batch: dict[str, Any]) -> None:
    parts = [
        torch.cat([tensors["colors"], tensors["normals"]], dim=1)
        for tensors in make_tensors(make_samples())
    ]
    assert pointcept_batch["feat"] == pytest.approx(torch.cat(parts), abs=1e-6)


@pytest.mark.parametrize(
    ("key", "dtype"),
    [
        ("feat", torch.float32),
        ("coord", torch.float32),
        ("grid_coord", torch.int64),
        ("segment", torch.int64),
        ("instance", torch.int64),
        ("offset", torch.int64),
    ],
)
def test_tensors_for_pointcept_have_its_types(
    pointcept_batch: dict[str, Any], key: str, dtype: Any
) -> None:
    assert pointcept_batch[key].dtype == dtype


def test_offsets_and_segments_for_pointcept_are_those_of_the_samples(
    pointcept_batch: dict[str, Any],
) -> None:
    labels = [label for sample in make_samples() for label in sample["labels"].tolist()]

    assert pointcept_batch["offset"].tolist() == [3, 8, 12]
    assert pointcept_batch["segment"].tolist() == labels


def test_to_pointcept_without_a_grid_is_an_error() -> None:
    with pytest.raises(UsageError, match="has no grid"):
        to_pointcept(collate_torch(make_samples()))


def to_units(sample):
    return sample["colors"] / np.float32(255)


MEANS = np.float32([0.48, 0.43, 0.37])
DEVIATIONS = np.float32([0.28, 0.28, 0.27])
UNKNOWN_COLORS = [
    lambda sample, _: sample | {"colors": sample["colors"] / np.float32(255)},
    lambda sample, _: (
        sample | {"colors": (sample["colors"] / np.float32(255) - MEANS) / DEVIATIONS}
    ),
]


def check_unknown_colors(convert: Callable[[dict[str, Any]], Any]) -> None:
    """Check that a conversion refuses colours whose range is unknown."""
    for transform in UNKNOWN_COLORS:
        batch = collate_torch(apply_to_all(transform, make_samples()))
        batch["grid"] = batch["points"].int()
        message = r"colors are torch.float32 from .* but not those of Normalize"
        with pytest.raises(UsageError, match=message):
            convert(batch)


def test_to_ocnn_refuses_colors_of_an_unknown_range() -> None:
    import_ocnn()
    check_unknown_colors(to_ocnn)


def test_to_pointcept_refuses_colors_of_an_unknown_range() -> None:
    check_unknown_colors(to_pointcept)


def test_to_pointcept_finds_the_levels_of_normalized_colors() -> None:
    batch = collate_torch(make_samples())
    batch |= {
        "normals": torch.zeros(256, 3),
        "grid": torch.zeros(256, 3),
        # All 256 levels, from -1 to 1, in half precision.
        "colors": (torch.arange(256.0).expand(3, -1).T / 127.5 - 1).half(),
    }

    red = to_pointcept(batch)["feat"][:, 0]

    assert red.tolist() == pytest.approx([level / 255 for level in range(256)], abs=5e-4)
