"""Under other frameworks: every scene once, or an error that names the option, and batches as they make them."""

import json
import re
import shutil
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
from test_distributed import BLOCKS, SCRIPTS, read_output, run_ranks, run_script
from test_loader import epochs_of
from test_transforms import make_sample
from training_sources import TRAIN

from scannet_prep import EvalSampler, PointBudgetBatchSampler, ScanNet, collate_torch
from scannet_prep.base.errors import UsageError
from scannet_prep.convert import to_ocnn, to_pointcept, to_pyg
from scannet_prep.transforms import Compose, GridSample, Normalize, NormalizeColor, octformer

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.torch


def needs(name: str) -> Any:
    return pytest.mark.skipif(find_spec(name) is None, reason=f"pip install {name}")


def make_loaders(
    folder: Path, kind: Any = torch.utils.data.DataLoader, **options: Any
) -> tuple[Any, Any]:
    """For training, and for evaluation of the same scenes."""
    dataset = ScanNet(folder, split="train")
    sampler = PointBudgetBatchSampler(dataset.lengths, max_points=1600)
    return (
        kind(dataset, batch_sampler=sampler, collate_fn=collate_torch, **options),
        kind(dataset, sampler=EvalSampler(dataset.lengths), collate_fn=collate_torch, **options),
    )


WATCHED = """
import json

SEEN = []


class Watched(Model):
    def training_step(self, batch, step):
        kind = "predict" if self.trainer.predicting else "train" if self.trainer.training else "validate"
        SEEN.append([kind, self.current_epoch, step, batch["scene_ids"]])
        return super().training_step(batch, step)

    predict_step = training_step


def make_trainer(**options):
    return Trainer(accelerator="cpu", logger=False, num_sanity_val_steps=0, **options)
"""
ON_TWO_RANKS = """
options = {"devices": 2, "strategy": "ddp", "max_epochs": 2, "enable_checkpointing": False}
module, trainer = Watched(), make_trainer(use_distributed_sampler=False, **options)
train = module.train_set
loader = DataLoader(train, sampler=EvalSampler(train.lengths), collate_fn=collate_torch)
trainer.fit(module, val_dataloaders=loader)
trainer.predict(module, loader)
with open(f"rank{trainer.global_rank}.json", "w") as file:
    json.dump(SEEN, file)
make_trainer(**options).validate(module, loader)
"""
RESUMED = """
from lightning.pytorch.callbacks import ModelCheckpoint


def fit(checkpoint=None, **options):
    SEEN.clear()
    trainer = make_trainer(max_epochs=3, use_distributed_sampler=False, **options)
    trainer.fit(Watched(), ckpt_path=checkpoint, weights_only=False)
    return [seen for seen in SEEN if seen[0] == "train"]


whole = fit(callbacks=[ModelCheckpoint(".", filename="{step}", every_n_train_steps=1, save_top_k=-1)])
for done in range(1, len(whole)):
    assert fit(f"step={done}.ckpt", enable_checkpointing=False) == whole[done:], done
assert len(whole) > 6, len(whole)
"""


def write_lightning_script(path: Path, folder: Path, end: str) -> None:
    """The training page's, in small batches, with another end."""
    (block,) = [block for block in BLOCKS if "from lightning" in block]
    script = block.replace("600_000", "1_600").replace("data/processed", f"{folder}")
    path.write_text(script.split("\n\nif __name__")[0] + WATCHED + end)


@needs("lightning")
def test_lightning_covers_every_scene_once_and_its_own_sampler_is_refused(
    training_folder: Path, tmp_path: Path
) -> None:
    write_lightning_script(tmp_path / "script.py", training_folder, ON_TWO_RANKS)
    assert 1 in run_ranks(run_script, tmp_path, "script.py")
    assert "takes only some of it\nhint: Trainer(use_distributed_sampler=False)" in read_output(
        tmp_path
    )
    seen = [json.loads((tmp_path / f"rank{rank}.json").read_text()) for rank in range(2)]
    scenes = Counter(
        (kind, epoch, scene_id) for rank in seen for kind, epoch, _, ids in rank for scene_id in ids
    )
    passes = (("train", 0), ("train", 1), ("validate", 0), ("validate", 1), ("predict", 2))
    assert scenes == Counter((*once, scene_id) for once in passes for scene_id in TRAIN)


@needs("lightning")
def test_lightning_goes_on_within_an_epoch_by_its_own_count_of_batches(
    training_folder: Path, tmp_path: Path
) -> None:
    write_lightning_script(tmp_path / "script.py", training_folder, RESUMED)
    assert run_ranks(run_script, tmp_path, "script.py", count=1) == [0], read_output(tmp_path)


def use_accelerate(out_dir: Path, folder: Path) -> None:
    from accelerate import Accelerator, DataLoaderConfiguration

    loaders = make_loaders(folder)
    for loader, is_dispatched in [(loaders[0], False), (loaders[1], False), (loaders[0], True)]:
        options = DataLoaderConfiguration(dispatch_batches=is_dispatched)
        try:
            list(Accelerator(cpu=True, dataloader_config=options).prepare(loader))
        except UsageError as error:
            print(f"{error}\nhint: {error.hint}")


@needs("accelerate")
def test_a_loader_that_accelerate_prepared_fails_naming_the_remedy(
    training_folder: Path, tmp_path: Path
) -> None:
    run_ranks(use_accelerate, tmp_path, training_folder)
    refused = r"share of rank [01] of 2, and (\w+) .*\nhint: do not pass this loader to accelerator\.prepare"
    found = Counter(re.findall(refused, read_output(tmp_path)))
    assert found["BatchSamplerShard"] == 4
    assert found["DataLoaderDispatcher"] >= 1, "the other rank may have been ended by then"


@needs("torchdata")
@pytest.mark.filterwarnings("ignore:'set_vital' is deprecated")
@pytest.mark.parametrize("workers", [0, 1])
def test_torchdatas_stateful_loader_goes_on_where_it_stopped(
    training_folder: Path, workers: int
) -> None:
    from torchdata.stateful_dataloader import StatefulDataLoader

    def make() -> Any:
        return make_loaders(training_folder, StatefulDataLoader, num_workers=workers)[0]

    whole = [batch["scene_ids"] for batch in epochs_of(make(), range(2))]
    for done in (0, 1, len(whole) // 2) if workers else range(len(whole) // 2 + 1):
        loader = make()
        running = iter(loader)
        found = [next(running)["scene_ids"] for _ in range(done)]
        state = json.loads(json.dumps(loader.state_dict()))
        del running
        loader = make()
        loader.load_state_dict(state)
        batches = iter(loader)
        while (epoch := loader.batch_sampler.epoch) < 2:
            found += [batch["scene_ids"] for batch in batches]
            loader.batch_sampler.set_epoch(epoch + 1)
            batches = iter(loader)
        assert found == whole, done


def import_ocnn() -> Any:
    """ocnn. One of its networks, which nothing here uses, needs torchvision, whose wheel is for CUDA: an empty one."""
    empty = {
        name: ModuleType(name)
        for name in ("torchvision", "torchvision.models")
        if not find_spec("torchvision")
    }
    for module in empty.values():
        module.resnet18 = None  # type: ignore[attr-defined]
    with pytest.MonkeyPatch.context() as patch:
        for name, module in empty.items():
            patch.setitem(sys.modules, name, module)
        return pytest.importorskip("ocnn", reason="pip install --no-deps ocnn")


def run_page(out_dir: Path, name: str) -> None:
    if name == "ocnn":
        import_ocnn()
    run_script(out_dir, "train.py", 2)


PACKAGES = ("lightning", "accelerate", "torchdata", "torch_geometric", "ocnn")


@pytest.mark.parametrize("name", [pytest.param(name, marks=needs(name)) for name in PACKAGES])
def test_the_scripts_of_the_training_page_run(
    training_folder: Path, tmp_path: Path, name: str
) -> None:
    (tmp_path / "data").mkdir()
    (tmp_path / "data/processed").symlink_to(training_folder)
    (block,) = [block for block in BLOCKS if f"from {name}" in block]
    (tmp_path / "train.py").write_text(block)
    # The second time, it goes on from its own checkpoint.
    assert run_ranks(run_page, tmp_path, name, count=1) == [0], read_output(tmp_path)


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


train = ScanNet("data/processed", split="train", transform=Compose([Flip(), brighter]))
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
print([one.name for one in plain.label_set], plain.label_set["wall"].color)
"""


def test_pyright_finds_no_fault_in_a_typed_script_nor_in_the_scripts_of_the_training_page(
    tmp_path: Path,
) -> None:
    command = [PYTHON, "-m", "pyright"] if find_spec("pyright") else [shutil.which("pyright")]
    if None in command:
        pytest.skip("pip install pyright")
    for name, script in SCRIPTS.items():
        (tmp_path / name).write_text(script)
    (tmp_path / "own.py").write_text(TYPED)
    (tmp_path / "pyrightconfig.json").write_text(
        json.dumps({"extraPaths": [str(Path(__file__).parents[1])]})
    )
    done = run_words(*command, "--pythonpath", PYTHON, cwd=tmp_path)
    assert done.status == 0, done.stdout


def make_samples() -> list[dict[str, Any]]:
    """Three scenes as the dataset gives them: metres, uint8 colours, -1 for unlabeled, int32 instances."""
    whole = [make_sample(count, count) for count in (3, 5, 4)]
    return [
        s | {"labels": s["labels"] - 1, "instances": s["instances"].astype(np.int32)} for s in whole
    ]


def one_by_one(samples: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Each scene as tensors, with colours in 0..1."""
    return [
        {key: torch.from_numpy(value) for key, value in sample.items() if key != "scene_id"}
        | {"colors": torch.from_numpy(sample["colors"]) / 255}
        for sample in samples
    ]


def test_ocnn_gets_what_it_merges_itself_and_nothing_beyond_its_cube() -> None:
    octree = import_ocnn().octree
    check_unknown_colors(to_ocnn)
    samples = make_samples()
    expected = octree.Points.init_points("cpu", batch_size=3)
    expected.merge_points(
        [
            octree.Points(s["points"] / 10.24, s["normals"], s["colors"], s["labels"] + 1)
            for s in one_by_one(samples)
        ]
    )
    found = to_ocnn(collate_torch(samples))
    for name in ("points", "normals", "features", "labels", "batch_id", "batch_npt"):
        assert torch.equal(getattr(found, name), getattr(expected, name)), name
    assert found.batch_size == expected.batch_size == 3
    octree.Octree(5, 2, batch_size=3).build_octree(found)
    samples[1]["points"][2, 0] = -11  # beyond ocnn's cube
    with pytest.raises(
        UsageError, match=r"points reach 11.00 m from the origin, expected at most 10.24 m"
    ) as caught:
        to_ocnn(collate_torch(samples))
    assert "Normalize()" in caught.value.hint
    assert to_ocnn(collate_torch(samples), scale=22.0).points.min() == -0.5


@needs("torch_geometric")
def test_torch_geometric_gets_what_it_batches_itself(tmp_path: Path) -> None:
    # In another process, which is quicker than to import it here.
    assert run_ranks(convert_for_torch_geometric, tmp_path, count=1) == [0], read_output(tmp_path)


def convert_for_torch_geometric(out_dir: Path) -> None:
    from torch_geometric.data import Batch, Data

    check_unknown_colors(to_pyg)
    samples = make_samples()
    for sample, edges in zip(samples, ([[0, 1], [1, 2]], [[4], [0]], [[], []]), strict=True):
        sample["edge_index"] = np.array(edges, int)
    expected = Batch.from_data_list(
        [
            Data(
                pos=s["points"],
                x=s["colors"],
                normal=s["normals"],
                y=s["labels"],
                edge_index=s["edge_index"],
            )
            for s in one_by_one(samples)
        ]
    )
    found = to_pyg(collate_torch(samples))
    keys = sorted(expected.keys())
    assert sorted(found.keys()) == keys
    for key in keys:
        assert torch.equal(found[key], expected[key]), key
    assert found.num_graphs == expected.num_graphs == 3
    assert found.num_nodes == 12


def test_pointcept_gets_its_names_types_and_colours() -> None:
    samples = make_samples()
    grid = Compose(Normalize(), GridSample(1e-4))
    sampled = [grid(sample, np.random.default_rng(0)) for sample in samples]
    found = to_pointcept(collate_torch(sampled))
    parts = one_by_one(samples)
    assert found["feat"] == pytest.approx(
        torch.cat([torch.cat([s["colors"], s["normals"]], 1) for s in parts]), abs=1e-6
    )
    assert found["feat"].dtype == found["coord"].dtype == torch.float32
    assert {found[key].dtype for key in ("grid_coord", "segment", "instance", "offset")} == {
        torch.int64
    }
    assert found["offset"].tolist() == [3, 8, 12]
    assert found["segment"].tolist() == [label for s in samples for label in s["labels"].tolist()]
    with pytest.raises(UsageError, match="has no grid"):
        to_pointcept(collate_torch(samples))


def test_the_preset_of_octformer_fills_an_octree_of_its_depth() -> None:
    octree_of = import_ocnn().octree.Octree
    scenes = [
        sample | {"points": sample["points"] * 2 + 9} for sample in make_samples()
    ]  # rooms, far from the origin
    crops = [octformer()(sample, np.random.default_rng(seed)) for seed, sample in enumerate(scenes)]
    points = to_ocnn(collate_torch(crops))
    assert points.batch_npt.tolist() == [len(sample["points"]) for sample in crops] == [2, 4, 3]
    assert points.points.abs().max() < 1
    assert 0 <= points.features.min() <= points.features.max() <= 1
    octree = octree_of(11, 2, batch_size=3)
    octree.build_octree(points)
    assert octree.nnum_nempty[11] == 9, "each point has a cell of its own"
    assert octree.features[11].sum(dim=0).tolist() == pytest.approx(
        points.features.sum(dim=0).tolist()
    )


def check_unknown_colors(convert: Callable[[dict[str, Any]], Any]) -> None:
    for step in (
        NormalizeColor(),
        NormalizeColor((0, 0, 0), (1, 1, 1)),
        NormalizeColor((0.5,) * 3, (0.25,) * 3),
    ):
        batch = collate_torch([step(sample, np.random.default_rng(0)) for sample in make_samples()])
        batch["grid"] = batch["points"].int()
        with pytest.raises(
            UsageError, match=r"colors are torch.float32 from .* but not those of Normalize"
        ):
            convert(batch)


def test_colours_of_an_unknown_range_are_refused_and_of_all_others_their_levels_found() -> None:
    check_unknown_colors(to_pointcept)
    batch = collate_torch(make_samples()) | {
        "normals": torch.zeros(256, 3),
        "grid": torch.zeros(256, 3),
    }
    batch["colors"] = (torch.arange(256.0).expand(3, -1).T / 127.5 - 1).half()
    feat = to_pointcept(batch)["feat"]
    assert feat[:, 0].tolist() == pytest.approx([level / 255 for level in range(256)], abs=5e-4)
