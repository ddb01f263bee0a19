"""The samplers under Lightning, accelerate and torchdata: every scene once, or an error that names the option."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections import Counter
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
from test_distributed import torchrun
from test_sampling import make_sampler
from training_sources import TRAIN

from scannet_prep import EvalSampler, PointBudgetBatchSampler, ScanNet, collate_torch
from scannet_prep.errors import UsageError

JOB = Path(__file__).parent / "framework_job.py"
PAGE = (Path(__file__).parents[1] / "docs/training.md").read_text(encoding="utf-8")


def needs(name: str) -> Any:
    return pytest.mark.skipif(find_spec(name) is None, reason=f"pip install {name}")


class BatchSamplerShard:
    """As accelerate's: each process takes every second batch."""

    def __init__(self, batch_sampler: Any) -> None:
        self.batch_sampler = batch_sampler

    def __iter__(self) -> Any:
        return (batch for number, batch in enumerate(self.batch_sampler) if number % 2)


def test_a_second_sharding_is_refused_and_what_to_change_is_named() -> None:
    for sampler in (make_sampler([10] * 8, 0, 2, max_points=20), EvalSampler([10] * 8, rank=1, world_size=2)):
        with pytest.raises(UsageError, match=r"share of rank . of 2, and BatchSamplerShard takes only some") as caught:
            list(BatchSamplerShard(sampler))
        assert "accelerator.prepare" in caught.value.hint
        assert len(list(sampler)) == len(sampler)
    assert len(list(BatchSamplerShard(make_sampler([10] * 8, max_points=20)))) == 2  # of one rank, it is right


@needs("lightning")
def test_lightning_finds_set_epoch_and_covers_every_scene_once(training_folder: Path, tmp_path: Path) -> None:
    status, output = torchrun(2, "lightning", training_folder, tmp_path, job=JOB)
    assert status == 0, output
    seen = [json.loads((tmp_path / f"rank{rank}.json").read_text()) for rank in range(2)]
    for kind, epoch in (("train", 0), ("train", 1), ("validate", 0), ("validate", 1), ("predict", 2)):
        scenes = Counter(
            scene_id for rank in seen for one, at, ids in rank if (one, at) == (kind, epoch) for scene_id in ids
        )
        assert scenes == Counter(TRAIN), (kind, epoch)


@needs("lightning")
def test_lightning_with_its_own_sampler_fails_naming_the_option(training_folder: Path, tmp_path: Path) -> None:
    status, output = torchrun(2, "lightning's sampler", training_folder, tmp_path, job=JOB)
    assert status != 0
    assert "takes only some of it" in output
    assert "hint: Trainer(use_distributed_sampler=False)" in output


@needs("accelerate")
def test_a_loader_that_accelerate_prepared_fails_naming_the_remedy(training_folder: Path, tmp_path: Path) -> None:
    status, output = torchrun(2, "accelerate", training_folder, tmp_path, job=JOB)
    assert status == 0, output
    assert len(re.findall(r"rank [01]: this is the share of rank [01] of 2", output)) == 4
    assert output.count("hint: do not pass this loader to accelerator.prepare") == 4


@needs("torchdata")
@pytest.mark.filterwarnings("ignore:'set_vital' is deprecated")
@pytest.mark.parametrize("workers", [0, 2])
def test_torchdatas_stateful_loader_goes_on_where_it_stopped(training_folder: Path, workers: int) -> None:
    from torchdata.stateful_dataloader import StatefulDataLoader

    def make() -> Any:
        dataset = ScanNet(training_folder, split="train")
        sampler = PointBudgetBatchSampler(dataset.lengths, max_points=1600, rank=0, world_size=1)
        return StatefulDataLoader(dataset, batch_sampler=sampler, collate_fn=collate_torch, num_workers=workers)

    loader = make()
    whole = []
    for epoch in range(2):
        loader.batch_sampler.set_epoch(epoch)
        whole += [batch["scene_ids"] for batch in loader]
    for done in range(len(whole) // 2 + 1):
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


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=needs(name)) for name in ("lightning", "accelerate", "torchdata")]
)
def test_the_scripts_of_the_training_page_run(training_folder: Path, tmp_path: Path, name: str) -> None:
    (block,) = [block for block in re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL) if f"from {name}" in block]
    (tmp_path / "data").mkdir()
    (tmp_path / "data/processed").symlink_to(training_folder)
    (tmp_path / "train.py").write_text(block)
    for _ in range(2):  # the second goes on from the first one's checkpoint
        done = subprocess.run(
            [sys.executable, "train.py"], cwd=tmp_path, capture_output=True, text=True, timeout=120, check=False
        )
        assert done.returncode == 0, done.stderr
