"""Training on several ranks, by the real torchrun with gloo: no hang, and nothing lost."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from training_sources import TRAIN, pack_into

pytestmark = pytest.mark.torch
JOB = Path(__file__).parent / "training_job.py"
EPOCHS = 3


def torchrun(rank_count: int, *words: str | Path, job: Path = JOB, cwd: Path | None = None) -> tuple[int, str]:
    """Run the job; a hang ends it, and the test.

    Returns:
        Exit status and what it printed.
    """
    pytest.importorskip("torch")
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", f"--nproc_per_node={rank_count}", job]
    environment = {name: value for name, value in os.environ.items() if name not in {"RANK", "WORLD_SIZE"}}
    process = subprocess.Popen(
        [*map(str, command), *map(str, words)],
        env=environment | {"OMP_NUM_THREADS": "1"}, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
        start_new_session=True, cwd=cwd,
    )  # fmt: skip
    try:
        output, _ = process.communicate(timeout=120)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        output, _ = process.communicate()
        pytest.fail(f"the job hangs:\n{output}")
    return process.returncode, output


def read_logs(out_dir: Path, rank_count: int) -> list[list[dict[str, Any]]]:
    return [
        [json.loads(line) for line in (out_dir / f"rank{rank}.jsonl").read_text().splitlines()]
        for rank in range(rank_count)
    ]


def scenes_by_step(logs: list[list[dict[str, Any]]]) -> list[tuple[int, list[list[str]]]]:
    """Epoch and the scenes of each rank, step by step; fails where ranks have different numbers of steps."""
    return [(step[0]["epoch"], [line["scenes"] for line in step]) for step in zip(*logs, strict=True)]


@pytest.fixture(scope="module")
def two_ranks(training_folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    out_dir = tmp_path_factory.mktemp("two")
    status, output = torchrun(2, training_folder, out_dir)
    assert status == 0, output
    return out_dir


def test_two_ranks_do_every_scene_once_an_epoch_in_as_many_steps(two_ranks: Path) -> None:
    steps = scenes_by_step(read_logs(two_ranks, 2))
    for epoch in range(EPOCHS):
        seen = Counter(scene for number, step in steps if number == epoch for scenes in step for scene in scenes)
        assert seen == Counter(TRAIN)
    assert len(set(Counter(epoch for epoch, _ in steps).values())) == 1
    hands = json.loads((two_ranks / "evaluated.json").read_text())
    assert sorted(scene for hand in hands for scene in hand) == TRAIN


def test_a_killed_run_goes_on_where_it_stopped(training_folder: Path, tmp_path: Path, two_ranks: Path) -> None:
    torch = pytest.importorskip("torch")
    status, output = torchrun(2, training_folder, tmp_path, "--die-at", "1", "1")
    assert status != 0, output
    before = scenes_by_step(read_logs(tmp_path, 2))
    whole = scenes_by_step(read_logs(two_ranks, 2))
    assert whole[: len(before)] == before
    assert before[-1][0] == whole[len(before)][0] == 1, "it was to die within epoch 1"
    status, output = torchrun(2, training_folder, tmp_path)
    assert status == 0, output
    assert scenes_by_step(read_logs(tmp_path, 2)) == whole
    expected = torch.load(two_ranks / "final.pt")
    for name, value in torch.load(tmp_path / "final.pt").items():
        assert torch.equal(value, expected[name])


LATE = """
import sys
from torch import distributed
from scannet_prep import EvalSampler, PointBudgetBatchSampler, ScanNetPrepError

def complain(sampler):
    try:
        list(sampler)
    except ScanNetPrepError as error:
        print(error, "/", error.hint)

rank = int(sys.argv[1])
early = [PointBudgetBatchSampler([10] * 8, max_points=20), EvalSampler([10] * 8)]
distributed.init_process_group("gloo", init_method=f"file://{sys.argv[2]}", rank=rank, world_size=2)
complain(early[0])
complain(early[1])
complain(PointBudgetBatchSampler([10] * (8 + rank), max_points=20))
resumed = PointBudgetBatchSampler([10] * 8, max_points=20)
if rank == 0:
    resumed.load_state_dict(resumed.state_dict(steps_done=1))
complain(resumed)
late = PointBudgetBatchSampler([10] * 8, max_points=20)
print(late.rank, late.world_size, len(list(late)))
distributed.barrier()
distributed.destroy_process_group()
"""


def test_samplers_that_were_made_too_early_or_that_differ_between_ranks_say_so(tmp_path: Path) -> None:
    pytest.importorskip("torch")
    environment = {name: value for name, value in os.environ.items() if name not in {"RANK", "WORLD_SIZE"}}
    running = [
        subprocess.Popen(
            [sys.executable, "-c", LATE, str(rank), str(tmp_path / "store")],
            env=environment, stdout=subprocess.PIPE, text=True,
        )
        for rank in range(2)
    ]  # fmt: skip
    for rank, process in enumerate(running):
        output, _ = process.communicate(timeout=120)
        assert process.returncode == 0
        *early, scenes, state, last = output.splitlines()
        assert last == f"{rank} 2 2"
        assert len(early) == 2
        for complaint in early:
            assert f"says rank {rank} of 2" in complaint
            assert "init_process_group before you make the sampler" in complaint
        assert "rank 1 has scene_count=9, rank 0 has 8" in scenes
        assert "rank 1 has steps done=0, rank 0 has 1" in state


def test_the_scripts_of_the_training_page_run_on_two_ranks(training_folder: Path, tmp_path: Path) -> None:
    page = (Path(__file__).parents[1] / "docs/training.md").read_text(encoding="utf-8")
    scripts = [block for block in re.findall(r"```python\n(.*?)```", page, re.DOTALL) if "PATH, CHECKPOINT" in block]
    archive_path = pack_into(training_folder, tmp_path / "scannet.tar.zst")
    for name, script in zip(("train.py", "evaluate.py"), scripts, strict=True):
        assert script.count('"data/processed"') == 1
        (tmp_path / name).write_text(script.replace('"data/processed"', repr(str(archive_path))))
    status, output = torchrun(2, job=tmp_path / "train.py", cwd=tmp_path)
    assert status == 0, output
    assert re.findall(r"epoch (\d), step \d+: loss \d+\.\d{3}\n", output) == ["0", "1", "2"]
    status, output = torchrun(2, job=tmp_path / "evaluate.py", cwd=tmp_path)
    assert status == 0, output
    assert re.search(r"^accuracy [01]\.\d{3}$", output, re.MULTILINE)


def test_a_worker_that_dies_ends_the_job_with_a_message(training_folder: Path, tmp_path: Path) -> None:
    status, output = torchrun(2, training_folder, tmp_path, "--die-in", "worker")
    assert status != 0
    assert "DataLoader worker (pid" in output
    assert "killed by signal: Killed" in output
