"""Training on several ranks with gloo, in forked processes and by torchrun."""

from __future__ import annotations

import itertools
import json
import multiprocessing
import os
import re
import runpy
import signal
import socket
import sys
import warnings
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from training_sources import TRAIN, pack_into

from scannet_prep import EvalSampler, PointBudgetBatchSampler, ScanNetPrepError

torch = pytest.importorskip("torch")
from torch import distributed  # noqa: E402 - only if it is installed

pytestmark = pytest.mark.extra("torch")
PAGE = (Path(__file__).parents[1] / "docs/training.md").read_text(encoding="utf-8")
BLOCKS = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)
TRAIN_PY, EVALUATE_PY = [block for block in BLOCKS if "PATH, CHECKPOINT" in block]
SCRIPTS = {"train.py": TRAIN_PY, "evaluate.py": EVALUATE_PY}


# Changes of the training page's script: an epoch has several steps, and each of them saves a
# checkpoint.
SMALL_BATCHES = {"max_points=600_000": "max_points=1_600", "step % 100 == 0": "True"}
# After two minutes, a rank counts as hanging.
TIMEOUT_S = 120


def change_script(script: str, changes: dict[str, str]) -> str:
    """Replace texts, of which each occurs once."""
    for old, new in changes.items():
        assert script.count(old) == 1, old
        script = script.replace(old, new)
    return script


def be_rank(
    job: Callable[..., None], out_dir: Path, arguments: tuple[Any, ...], environment: dict[str, str]
) -> None:
    """Run a job as in a process of torchrun: the rank is in the environment.

    The output is appended to a file for each rank.
    """
    torch.set_num_threads(1)
    # The start method of its workers; it was started with another one itself.
    multiprocessing.set_start_method("fork", force=True)
    os.environ |= environment
    os.chdir(out_dir)
    output_path = out_dir / f"output{environment.get('RANK', 0)}.txt"
    sys.stdout = sys.stderr = output_path.open("a", buffering=1)
    job(out_dir, *arguments)


def run_ranks(
    job: Callable[..., None], out_dir: Path, *arguments: Any, count: int = 2
) -> list[int | None]:
    """Run a function in several processes, and return their exit statuses; None if one hangs.

    If one fails, the others are killed. The processes are forked from a server without threads,
    which has already imported torch (see conftest.py).
    """
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    context = multiprocessing.get_context("forkserver")
    ranks = []
    for rank in range(count):
        environment = {}
        if count > 1:
            environment = {
                "RANK": f"{rank}",
                "LOCAL_RANK": f"{rank}",
                "WORLD_SIZE": f"{count}",
                "MASTER_ADDR": "127.0.0.1",
                "MASTER_PORT": f"{port}",
            }
        process = context.Process(target=be_rank, args=(job, out_dir, arguments, environment))
        process.start()
        ranks.append(process)

    poll_s = 0.1
    for _ in range(int(TIMEOUT_S / poll_s)):
        alive = [process for process in ranks if process.is_alive()]
        has_failed = any(process.exitcode for process in ranks)
        if not alive or has_failed:
            break
        alive[0].join(poll_s)

    statuses = [process.exitcode for process in ranks]
    for process in ranks:
        process.kill()
        process.join()
    return statuses


def read_output(out_dir: Path) -> str:
    """Read the output of all ranks."""
    return "".join(path.read_text() for path in sorted(out_dir.glob("output?.txt")))


# Training, and resuming it.


def train(out_dir: Path, folder: Path, die_at: tuple[int, int] | None = None) -> None:
    """Run the training page's script in small batches, and record the scenes of each step.

    Args:
        out_dir: The folder for checkpoints and records.
        folder: The processed folder.
        die_at: Epoch and step at which rank 1 kills itself.
    """

    def record(epoch: int, step: int, batch: dict[str, Any]) -> None:
        # Wait until rank 0 has saved the checkpoint.
        distributed.barrier()
        rank = distributed.get_rank()
        if die_at == (epoch, step) and rank == 1:
            os.kill(os.getpid(), signal.SIGKILL)
        distributed.barrier()
        with (out_dir / f"rank{rank}.jsonl").open("a") as log:
            log.write(json.dumps({"epoch": epoch, "scenes": batch["scene_ids"]}) + "\n")

    changes = {
        '"data/processed"': repr(str(folder)),
        "optimizer.zero_grad()": "record(epoch, step, batch); optimizer.zero_grad()",
    }
    script = change_script(TRAIN_PY, SMALL_BATCHES | changes)
    torch.manual_seed(0)
    path = out_dir / f"train{os.environ['RANK']}.py"
    path.write_text(script)
    runpy.run_path(str(path), {"record": record}, "__main__")


Step = tuple[int, list[list[str]]]


def scenes_by_step(out_dir: Path) -> list[Step]:
    """Read the epoch and the scenes of each rank, step by step. All ranks must have all steps."""
    logs = []
    for rank in range(2):
        lines = (out_dir / f"rank{rank}.jsonl").read_text().splitlines()
        logs.append([json.loads(line) for line in lines])
    return [
        (step[0]["epoch"], [line["scenes"] for line in step]) for step in zip(*logs, strict=True)
    ]


@pytest.fixture(scope="module")
def whole_run(training_folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of an uninterrupted training on two ranks."""
    out_dir = tmp_path_factory.mktemp("whole_run")
    assert run_ranks(train, out_dir, training_folder) == [0, 0], read_output(out_dir)
    return out_dir


@dataclass(frozen=True)
class KilledRun:
    """A training that was killed, then resumed.

    Attributes:
        out_dir: Its folder.
        steps_before: The steps before the kill.
    """

    out_dir: Path
    steps_before: list[Step]


@pytest.fixture(scope="module")
def killed_run(training_folder: Path, tmp_path_factory: pytest.TempPathFactory) -> KilledRun:
    out_dir = tmp_path_factory.mktemp("killed_run")
    assert -signal.SIGKILL in run_ranks(train, out_dir, training_folder, (1, 2))
    steps_before = scenes_by_step(out_dir)
    assert run_ranks(train, out_dir, training_folder) == [0, 0], read_output(out_dir)
    return KilledRun(out_dir, steps_before)


def test_two_ranks_do_every_scene_once_an_epoch(whole_run: Path) -> None:
    counts: Counter[tuple[int, str]] = Counter()
    for epoch, step in scenes_by_step(whole_run):
        for scene_ids in step:
            counts.update((epoch, scene_id) for scene_id in scene_ids)

    assert counts == Counter(itertools.product(range(3), TRAIN))


def test_all_epochs_have_equally_many_steps(whole_run: Path) -> None:
    step_counts = Counter(epoch for epoch, _ in scenes_by_step(whole_run))
    assert len(set(step_counts.values())) == 1


def test_killed_run_does_the_same_steps_before_the_kill(
    whole_run: Path, killed_run: KilledRun
) -> None:
    whole = scenes_by_step(whole_run)
    before = killed_run.steps_before

    assert whole[: len(before)] == before
    # It was killed within epoch 1.
    assert before[-1][0] == 1
    assert whole[len(before)][0] == 1


def test_resumed_run_does_the_remaining_steps(whole_run: Path, killed_run: KilledRun) -> None:
    assert scenes_by_step(killed_run.out_dir) == scenes_by_step(whole_run)


def test_resumed_run_ends_with_the_same_network(whole_run: Path, killed_run: KilledRun) -> None:
    expected = torch.load(whole_run / "checkpoint.pt")["model"]
    actual = torch.load(killed_run.out_dir / "checkpoint.pt")["model"]

    assert actual.keys() == expected.keys()
    assert all(torch.equal(actual[name], value) for name, value in expected.items())


@pytest.fixture(scope="module")
def sparse_run(training_folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a training with labels in one scene only, so that batches have none."""
    out_dir = tmp_path_factory.mktemp("sparse_run")
    points = {scene_id: range(500) if scene_id == TRAIN[0] else [] for scene_id in TRAIN}
    changes = {
        '"data/processed"': repr(str(training_folder)),
        "transform=AUGMENT": f"transform=AUGMENT, points={points}",
    }
    (out_dir / "train.py").write_text(change_script(TRAIN_PY, SMALL_BATCHES | changes))
    assert run_ranks(run_script, out_dir, "train.py") == [0, 0], read_output(out_dir)
    return out_dir


def test_loss_of_a_batch_without_a_label_is_zero(sparse_run: Path) -> None:
    losses = re.findall(r"loss (\S+)", read_output(sparse_run))

    assert {"0.000", "-0.000"} & set(losses)


def test_loss_of_a_batch_without_a_label_is_a_number(sparse_run: Path) -> None:
    losses = re.findall(r"loss (\S+)", read_output(sparse_run))

    assert losses
    assert "nan" not in losses


def test_network_is_finite_after_batches_without_a_label(sparse_run: Path) -> None:
    weights = torch.load(sparse_run / "checkpoint.pt")["model"].values()
    assert all(weight.isfinite().all() for weight in weights)


# Samplers that do not fit the ranks.


def print_error(sampler: Any) -> None:
    """Print the error of iterating over a sampler."""
    try:
        list(sampler)
    except ScanNetPrepError as error:
        print(error.message, "/", error.hint)


def iterate_over_misfits(out_dir: Path) -> None:
    """Iterate over samplers that were made too early, or that differ between ranks."""
    rank = int(os.environ.pop("RANK"))
    world_size = os.environ.pop("WORLD_SIZE")
    options: dict[str, Any] = {"max_points": 20}
    early = [PointBudgetBatchSampler([10] * 8, **options), EvalSampler([10] * 8)]

    os.environ |= {"RANK": f"{rank}", "WORLD_SIZE": world_size}
    distributed.init_process_group("gloo")
    other_count = PointBudgetBatchSampler([10] * (8 + rank), **options)
    dataset = SimpleNamespace(lengths=[10] * 8, digest=f"{rank:08x}")
    other_digest = PointBudgetBatchSampler(dataset, **options)
    other_state = PointBudgetBatchSampler([10] * 8, **options)
    if rank == 0:
        other_state.load_state_dict(other_state.state_dict(steps_done=1))
    for sampler in (*early, other_count, other_digest, other_state):
        print_error(sampler)

    late = PointBudgetBatchSampler([10] * 8, **options)
    print(late.rank, late.world_size, len(list(late)), *EvalSampler([10] * 8))
    distributed.barrier()
    distributed.destroy_process_group()


@pytest.fixture(scope="module")
def misfit_output(tmp_path_factory: pytest.TempPathFactory) -> list[list[str]]:
    """The lines that each rank printed: five errors, then the samplers that fit."""
    out_dir = tmp_path_factory.mktemp("misfits")
    assert run_ranks(iterate_over_misfits, out_dir) == [0, 0]
    return [(out_dir / f"output{rank}.txt").read_text().splitlines() for rank in range(2)]


RANKS = pytest.mark.parametrize("rank", [0, 1])


@RANKS
@pytest.mark.parametrize("line", [0, 1], ids=["PointBudgetBatchSampler", "EvalSampler"])
def test_sampler_made_before_the_process_group_is_an_error(
    misfit_output: list[list[str]], rank: int, line: int
) -> None:
    text = misfit_output[rank][line]
    assert f"rank {rank} of 2 / call torch.distributed.init_process_group before you" in text


@RANKS
@pytest.mark.parametrize(
    ("line", "message"),
    [
        (2, "rank 1 has scene_count=9, rank 0 has 8"),
        (3, "rank 1 has digest of the scenes='00000001', rank 0 has '00000000'"),
        (4, "rank 1 has steps done=0, rank 0 has 1"),
    ],
    ids=["scenes", "digest", "state"],
)
def test_samplers_that_differ_between_ranks_are_an_error(
    misfit_output: list[list[str]], rank: int, line: int, message: str
) -> None:
    assert message in misfit_output[rank][line]


@pytest.mark.parametrize(("rank", "expected"), [(0, "0 2 2 0 3 4 7"), (1, "1 2 2 1 2 5 6")])
def test_samplers_made_after_the_process_group_have_its_rank(
    misfit_output: list[list[str]], rank: int, expected: str
) -> None:
    assert misfit_output[rank][5:] == [expected]


# The scripts of the training page.


def run_script(out_dir: Path, name: str, times: int = 1) -> None:
    for _ in range(times):
        runpy.run_path(name, run_name="__main__")


def run_scripts(out_dir: Path, *names: str) -> None:
    warnings.simplefilter("error")
    for name in names:
        run_script(out_dir, name)


def run_torchrun(out_dir: Path, *names: str) -> None:
    """Run scripts by torchrun on two ranks, which are forked and need not import torch again."""
    from torch.distributed import run

    # torchrun sets it to this value itself, but with a warning.
    os.environ["OMP_NUM_THREADS"] = "1"
    for name in names:
        run.main(
            [
                "--standalone",
                "--nproc_per_node=2",
                "--start-method=fork",
                "--run-path",
                str(out_dir / name),
            ]
        )


@pytest.fixture(scope="module", params=[run_scripts, run_torchrun])
def page_output(
    request: pytest.FixtureRequest,
    training_folder: Path,
    tmp_path_factory: pytest.TempPathFactory,
) -> str:
    """The output of the page's scripts: alone from a folder, and by torchrun from an archive."""
    out_dir = tmp_path_factory.mktemp("page")
    if request.param is run_scripts:
        place = training_folder
    else:
        place = pack_into(training_folder, out_dir / "scannet.tar.zst")
    for name, script in SCRIPTS.items():
        changed = change_script(script, {'"data/processed"': repr(str(place))})
        (out_dir / name).write_text(changed)
    assert run_ranks(request.param, out_dir, *SCRIPTS, count=1) == [0], read_output(out_dir)
    return read_output(out_dir)


def test_training_script_prints_a_loss_per_epoch(page_output: str) -> None:
    epochs = re.findall(r"epoch (\d), step \d+: loss \d+\.\d{3}\n", page_output)
    assert epochs == ["0", "1", "2"]


def test_evaluation_script_prints_one_accuracy(page_output: str) -> None:
    assert len(re.findall(r"^accuracy [01]\.\d{3}$", page_output, re.MULTILINE)) == 1
