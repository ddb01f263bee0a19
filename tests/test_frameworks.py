"""Other frameworks: loaders give every scene once, and batches are those of the framework."""

import json
import re
import sys
from collections import Counter
from importlib.util import find_spec
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest
from commands import PYTHON, needing, run_words, succeed
from training import BLOCKS, SCRIPTS, TRAIN, make_sample, run_ranks, run_script

from scannet_prep import PointBudgetBatchSampler, ScanNet, collate_torch
from scannet_prep.convert import to_ocnn, to_pointcept, to_pyg
from scannet_prep.errors import UsageError
from scannet_prep.transforms import Compose, GridSample, Mix3D, Normalize, pointcept

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.extra("torch")


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

    def val_dataloader(self):
        train = self.train_set
        return DataLoader(train, sampler=EvalSampler(train.lengths), collate_fn=collate_torch)

    predict_dataloader = val_dataloader


def make_trainer(**options):
    return Trainer(accelerator="cpu", logger=False, num_sanity_val_steps=0, **options)
"""
# Fits and predicts on two ranks, then validates with Lightning's own sampler, which takes half.
ON_TWO_RANKS = """
options = {"devices": 2, "strategy": "ddp", "max_epochs": 2, "enable_checkpointing": False}
module = Watched()
trainer = make_trainer(use_distributed_sampler=False, **options)
trainer.fit(module)
trainer.predict(module)
with open(f"rank{trainer.global_rank}.json", "w") as file:
    json.dump(SEEN, file)

SEEN.clear()
loader = module.val_dataloader()
make_trainer(**options).validate(module, loader)
loader.sampler.end_epoch(len(SEEN))
"""
# Trains with a checkpoint within and after each step, then resumes from each; from the latter, the
# next ones are written anew.
RESUMED = """
from lightning.pytorch.callbacks import ModelCheckpoint


class Saving(Watched):
    def on_before_backward(self, loss):
        if not self.trainer.ckpt_path:
            self.trainer.save_checkpoint(f"within={self.global_step}.ckpt")


def fit(checkpoint=None, **options):
    SEEN.clear()
    trainer = make_trainer(max_epochs=2, use_distributed_sampler=False, **options)
    trainer.fit(Saving(), ckpt_path=checkpoint, weights_only=False)
    return [seen[3] for seen in SEEN if seen[0] == "train"]


options = {"every_n_train_steps": 1, "save_top_k": -1, "enable_version_counter": False}
checkpoints = ModelCheckpoint(".", filename="{step}", **options)
whole = fit(callbacks=[checkpoints])
for done in range(1, len(whole)):
    assert fit(f"step={done}.ckpt", callbacks=[checkpoints]) == whole[done:], done
    assert fit(f"within={done}.ckpt", enable_checkpointing=False) == whole[done:], done
assert len(whole) > 6, len(whole)
"""


def run_lightning(folder, out_dir, end, **options):
    """Run the training page's script, with small batches and another end; return the output."""
    (block,) = [block for block in BLOCKS if "from lightning" in block]
    script = block.replace("600_000", "1_600").replace("data/processed", f"{folder}")
    (out_dir / "script.py").write_text(script.split("\n\nif __name__")[0] + WATCHED + end)
    return run_ranks(run_script, out_dir, "script.py", **options)


@pytest.mark.extra("lightning")
def test_lightning_covers_every_scene_once_per_pass_unless_it_shards_again(
    training_folder, tmp_path
):
    output = run_lightning(training_folder, tmp_path, ON_TWO_RANKS)

    counts = Counter()
    for rank in range(2):
        for kind, epoch, _, ids in json.loads((tmp_path / f"rank{rank}.json").read_text()):
            counts.update((kind, epoch, scene_id) for scene_id in ids)
    passes = (("train", 0), ("train", 1), ("validate", 0), ("validate", 1), ("predict", 2))
    assert counts == Counter((*one, scene_id) for one in passes for scene_id in TRAIN)
    warning = r"rank [01] of 2 did 2 of the 4 steps .* scenes were left out.*"
    assert re.search(warning + "use_distributed_sampler=False", output)


@pytest.mark.extra("lightning")
def test_lightning_resumes_within_an_epoch(training_folder, tmp_path):
    # The script compares the batches itself.
    run_lightning(training_folder, tmp_path, RESUMED, count=1)


def use_accelerate(out_dir, folder):
    """Do one epoch with a loader that accelerate has prepared, and compare the steps."""
    from accelerate import Accelerator

    accelerator = Accelerator(cpu=True)
    dataset = ScanNet(folder, split="train")
    sampler = PointBudgetBatchSampler(dataset, max_points=1600)
    loader = torch.utils.data.DataLoader(dataset, batch_sampler=sampler, collate_fn=collate_torch)
    sampler.end_epoch(len(list(accelerator.prepare(loader))))


@pytest.mark.extra("accelerate")
def test_loader_prepared_by_accelerate_leaves_scenes_out_with_a_warning(training_folder, tmp_path):
    output = run_ranks(use_accelerate, tmp_path, training_folder)
    warning = r"rank [01] of 2 did \d+ of the \d+ steps .* accelerate: do not prepare the loader"
    assert re.search(warning, output)


def import_ocnn():
    """Import ocnn, with an empty torchvision if that is not installed.

    Only one of its networks needs torchvision, which is not used here, and whose wheel is for CUDA.
    """
    with pytest.MonkeyPatch.context() as patch:
        if not find_spec("torchvision"):
            for name in ("torchvision", "torchvision.models"):
                module = ModuleType(name)
                module.resnet18 = None
                patch.setitem(sys.modules, name, module)
        import ocnn

        return ocnn


# The second time, the script continues from its own checkpoint.
@pytest.mark.parametrize("name", needing("lightning", "accelerate"))
def test_script_of_the_training_page_runs(training_folder, tmp_path, name):
    (tmp_path / "data").mkdir()
    (tmp_path / "data/processed").symlink_to(training_folder)
    (block,) = [block for block in BLOCKS if f"from {name}" in block]
    (tmp_path / "train.py").write_text(block)

    run_ranks(run_script, tmp_path, "train.py", 2, count=1)


@pytest.mark.extra("pyright")
def test_pyright_finds_no_errors_in_the_scripts_of_the_training_page(tmp_path):
    for name, script in SCRIPTS.items():
        (tmp_path / name).write_text(script)
    settings = {"extraPaths": [str(Path(__file__).parents[1])]}
    (tmp_path / "pyrightconfig.json").write_text(json.dumps(settings))

    succeed(PYTHON, "-m", "pyright", "--pythonpath", PYTHON, cwd=tmp_path, run=run_words)


# Conversions.


def make_samples(*steps):
    """Make three scenes as in a dataset: uint8 colours, -1 for unlabeled, int32 instances."""
    samples = []
    for count in (3, 5, 4):
        sample = make_sample(count, count)
        del sample["vertex_keys"], sample["height"]
        sample["labels"] = sample["labels"] - 1
        sample["instances"] = sample["instances"].astype(np.int32)
        samples.append(Compose(*steps)(sample, np.random.default_rng(0)))
    return samples


def make_tensors():
    """Make tensors of each sample, with colours in 0..1."""
    scenes = []
    for sample in make_samples():
        del sample["scene_id"]
        tensors = {key: torch.from_numpy(value) for key, value in sample.items()}
        tensors["colors"] = tensors["colors"] / 255
        scenes.append(tensors)
    return scenes


def check_unknown_colors(convert):
    """Check that a conversion refuses colours whose range is unknown."""
    means = np.float32([0.48, 0.43, 0.37])
    for transform in (
        lambda sample, _: sample | {"colors": sample["colors"] / np.float32(255)},
        lambda sample, _: sample | {"colors": np.full_like(sample["colors"], 255, np.float32)},
        lambda sample, _: sample | {"colors": (sample["colors"] / np.float32(255) - means) / means},
    ):
        batch = collate_torch(make_samples(transform))
        batch["grid"] = batch["points"].int()
        message = r"colors are torch.float32 from .* but not those of Normalize"
        with pytest.raises(UsageError, match=message):
            convert(batch)


@pytest.mark.extra("ocnn")
def test_to_ocnn_equals_the_merged_points_of_ocnn_within_its_cube():
    octree = import_ocnn().octree
    samples = make_samples()
    expected = octree.Points.init_points("cpu", batch_size=3)
    expected.merge_points(
        [
            octree.Points(s["points"] / 10.24, s["normals"], s["colors"], s["labels"] + 1)
            for s in make_tensors()
        ]
    )

    points = to_ocnn(collate_torch(samples))

    for name in ("points", "normals", "features", "labels", "batch_id", "batch_npt"):
        assert torch.equal(getattr(points, name), getattr(expected, name)), name
    assert points.batch_size == expected.batch_size == 3
    octree.Octree(5, 2, batch_size=3).build_octree(points)
    check_unknown_colors(to_ocnn)

    samples[1]["points"][2, 0] = -11
    message = r"points reach 11.00 m from the origin, expected at most 10.24 m"
    with pytest.raises(UsageError, match=message):
        to_ocnn(collate_torch(samples))
    assert to_ocnn(collate_torch(samples), scale=22.0).points.min() == -0.5


@pytest.mark.extra("torch_geometric")
def test_to_pyg_equals_the_batch_of_torch_geometric(tmp_path):
    # In another process, because importing it here takes longer.
    run_ranks(convert_for_torch_geometric, tmp_path, count=1)


def convert_for_torch_geometric(out_dir):
    from torch_geometric.data import Batch, Data

    check_unknown_colors(to_pyg)
    expected = Batch.from_data_list(
        [
            Data(pos=s["points"], x=s["colors"], normal=s["normals"], y=s["labels"])
            for s in make_tensors()
        ]
    )

    converted = to_pyg(collate_torch(make_samples()))

    assert sorted(converted.keys()) == sorted(expected.keys())
    for key in expected.keys():  # noqa: SIM118 - it is not a dict
        assert torch.equal(converted[key], expected[key]), key
    assert [scene.num_nodes for scene in converted.to_data_list()] == [3, 5, 4]


def test_to_pointcept_has_the_features_and_types_of_pointcept():
    batch = to_pointcept(collate_torch(make_samples(Normalize(), GridSample(1e-4))))

    features = [torch.cat([one["colors"], one["normals"]], dim=1) for one in make_tensors()]
    assert batch["feat"] == pytest.approx(torch.cat(features), abs=1e-6)
    types = {key: str(value.dtype).removeprefix("torch.") for key, value in batch.items()}
    assert types == {
        "coord": "float32",
        "grid_coord": "int64",
        "feat": "float32",
        "segment": "int64",
        "instance": "int64",
        "offset": "int64",
    }
    assert batch["offset"].tolist() == [3, 8, 12]
    assert (
        batch["segment"].tolist() == torch.cat([one["labels"] for one in make_tensors()]).tolist()
    )
    check_unknown_colors(to_pointcept)
    # Mixed scenes have no cells until the step finds them.
    scenes = make_samples(pointcept())
    mixed = Mix3D(collate_torch, 1, GridSample(0.02, False))(scenes)
    assert len(to_pointcept(mixed)["offset"]) == 2
    with pytest.raises(UsageError, match=r"has no grid\n.* or as step of Mix3D"):
        to_pointcept(Mix3D(collate_torch, 1)(scenes))


def test_to_pointcept_finds_the_levels_of_normalized_colors():
    batch = collate_torch(make_samples())
    batch |= {
        "normals": torch.zeros(256, 3),
        "grid": torch.zeros(256, 3),
        # All 256 levels, from -1 to 1, in half precision.
        "colors": (torch.arange(256.0).expand(3, -1).T / 127.5 - 1).half(),
    }

    red = to_pointcept(batch)["feat"][:, 0]

    assert red.tolist() == pytest.approx([level / 255 for level in range(256)], abs=5e-4)
