"""Training on several ranks with gloo, by the real torchrun and in forked processes: no hang, and nothing lost."""

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
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from training_sources import TRAIN, pack_into

from scannet_prep import EvalSampler, PointBudgetBatchSampler, ScanNetPrepError

torch = pytest.importorskip("torch")
from torch import distributed  # noqa: E402 - where it is installed

pytestmark = pytest.mark.torch
PAGE = (Path(__file__).parents[1] / "docs/training.md").read_text(encoding="utf-8")
BLOCKS = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)
TRAIN_PY, EVALUATE_PY = [block for block in BLOCKS if "PATH, CHECKPOINT" in block]
SCRIPTS = {"train.py": TRAIN_PY, "evaluate.py": EVALUATE_PY}


def be_rank(
    job: Callable[..., None], out_dir: Path, arguments: tuple[Any, ...], environment: dict[str, str]
) -> None:
    """What a process of torchrun's is: its rank in the environment, its output in a file."""
    torch.set_num_threads(1)
    multiprocessing.set_start_method(
        "fork", force=True
    )  # of its workers, not the one that it was started by itself
    os.environ |= environment
    os.chdir(out_dir)
    sys.stdout = sys.stderr = (out_dir / f"output{environment.get('RANK', 0)}.txt").open(
        "a", buffering=1
    )
    job(out_dir, *arguments)


def run_ranks(
    job: Callable[..., None], out_dir: Path, *arguments: Any, count: int = 2
) -> list[int | None]:
    """Run a function in processes of its own, and give their exit statuses, None where one hangs.

    When one ends badly, the others are ended. They are forked from a server without threads, which has imported torch
    already (see conftest.py).
    """
    with socket.create_server(("127.0.0.1", 0)) as free:
        every = {
            "WORLD_SIZE": f"{count}",
            "MASTER_ADDR": "127.0.0.1",
            "MASTER_PORT": f"{free.getsockname()[1]}",
        }
    context = multiprocessing.get_context("forkserver")
    ranks = []
    for rank in range(count):
        environment = every | {"RANK": f"{rank}", "LOCAL_RANK": f"{rank}"} if count > 1 else {}
        ranks.append(context.Process(target=be_rank, args=(job, out_dir, arguments, environment)))
        ranks[-1].start()
    for _ in range(1200):
        alive = [process for process in ranks if process.is_alive()]
        if not alive or any(process.exitcode for process in ranks):
            break
        alive[0].join(0.1)
    found = [process.exitcode for process in ranks]
    for process in ranks:
        process.kill()
        process.join()
    return found


def read_output(out_dir: Path) -> str:
    return "".join(path.read_text() for path in sorted(out_dir.glob("output?.txt")))


def train(out_dir: Path, folder: Path, die_at: tuple[int, int] | None = None) -> None:
    """Run the training page's script in small batches, let it save after each step, and note the scenes of each."""

    def note(epoch: int, step: int, batch: dict[str, Any]) -> None:
        distributed.barrier()  # what rank 0 has to save is there
        rank = distributed.get_rank()
        if die_at == (epoch, step) and rank == 1:
            os.kill(os.getpid(), signal.SIGKILL)
        distributed.barrier()
        with (out_dir / f"rank{rank}.jsonl").open("a") as log:
            log.write(json.dumps({"epoch": epoch, "scenes": batch["scene_ids"]}) + "\n")

    script = TRAIN_PY
    for old, new in (
        ('"data/processed"', repr(str(folder))),
        ("max_points=600_000", "max_points=1_600"),
        ("step % 100 == 0", "True"),
        ("optimizer.zero_grad()", "note(epoch, step, batch); optimizer.zero_grad()"),
    ):
        assert script.count(old) == 1
        script = script.replace(old, new)
    torch.manual_seed(0)
    path = out_dir / f"train{os.environ['RANK']}.py"
    path.write_text(script)
    runpy.run_path(str(path), {"note": note}, "__main__")


def scenes_by_step(out_dir: Path) -> list[tuple[int, list[list[str]]]]:
    """Epoch and the scenes of each rank, step by step; fails where ranks have different numbers of steps."""
    logs = [
        [json.loads(line) for line in (out_dir / f"rank{rank}.jsonl").read_text().splitlines()]
        for rank in range(2)
    ]
    return [
        (step[0]["epoch"], [line["scenes"] for line in step]) for step in zip(*logs, strict=True)
    ]


def test_two_ranks_do_every_scene_once_an_epoch_in_as_many_steps_also_when_they_were_killed(
    training_folder: Path, tmp_path: Path
) -> None:
    whole_dir, killed_dir = tmp_path / "whole", tmp_path / "killed"
    whole_dir.mkdir()
    killed_dir.mkdir()
    assert run_ranks(train, whole_dir, training_folder) == [0, 0], read_output(whole_dir)
    whole = scenes_by_step(whole_dir)
    counts = Counter(
        (epoch, scene_id) for epoch, step in whole for scenes in step for scene_id in scenes
    )
    assert counts == Counter(itertools.product(range(3), TRAIN))
    assert len(set(Counter(epoch for epoch, _ in whole).values())) == 1
    assert -signal.SIGKILL in run_ranks(train, killed_dir, training_folder, (1, 2))
    before = scenes_by_step(killed_dir)
    assert whole[: len(before)] == before
    assert before[-1][0] == whole[len(before)][0] == 1, "it was to die within epoch 1"
    assert run_ranks(train, killed_dir, training_folder) == [0, 0], read_output(killed_dir)
    assert scenes_by_step(killed_dir) == whole
    expected, found = (
        torch.load(folder / "checkpoint.pt")["model"] for folder in (whole_dir, killed_dir)
    )
    assert found.keys() == expected.keys()
    assert all(torch.equal(found[name], value) for name, value in expected.items())


def test_training_script_keeps_a_finite_loss_in_batches_without_a_label(
    training_folder: Path, tmp_path: Path
) -> None:
    points = {scene_id: range(500) if scene_id == TRAIN[0] else [] for scene_id in TRAIN}
    script = TRAIN_PY
    for old, new in (
        ('"data/processed"', repr(str(training_folder))),
        ("max_points=600_000", "max_points=1_600"),
        ("step % 100 == 0", "True"),
        ("transform=AUGMENT", f"transform=AUGMENT, points={points}"),
    ):
        assert script.count(old) == 1
        script = script.replace(old, new)
    (tmp_path / "train.py").write_text(script)
    assert run_ranks(run_script, tmp_path, "train.py") == [0, 0], read_output(tmp_path)
    losses = re.findall(r"loss (\S+)", read_output(tmp_path))
    assert {"0.000", "-0.000"} & set(losses), "rank 0 had no batch without a label"
    assert "nan" not in losses
    weights = torch.load(tmp_path / "checkpoint.pt")["model"].values()
    assert all(one.isfinite().all() for one in weights)


def complain(out_dir: Path) -> None:
    """Print the complaints of samplers that were made too early, or that differ between ranks."""
    rank = int(os.environ.pop("RANK"))
    world_size = os.environ.pop("WORLD_SIZE")
    options: dict[str, Any] = {"max_points": 20}
    samplers = [PointBudgetBatchSampler([10] * 8, **options), EvalSampler([10] * 8)]
    os.environ |= {"RANK": f"{rank}", "WORLD_SIZE": world_size}
    distributed.init_process_group("gloo")
    samplers.append(PointBudgetBatchSampler([10] * (8 + rank), **options))
    samplers.append(
        PointBudgetBatchSampler(SimpleNamespace(lengths=[10] * 8, digest=f"{rank:08x}"), **options)
    )
    samplers.append(PointBudgetBatchSampler([10] * 8, **options))
    if rank == 0:
        samplers[-1].load_state_dict(samplers[-1].state_dict(steps_done=1))
    for sampler in samplers:
        try:
            list(sampler)
        except ScanNetPrepError as error:
            print(error.message, "/", error.hint)
    late = PointBudgetBatchSampler([10] * 8, **options)
    print(late.rank, late.world_size, len(list(late)), *EvalSampler([10] * 8))
    distributed.barrier()
    distributed.destroy_process_group()


def test_samplers_that_were_made_too_early_or_that_differ_between_ranks_say_so(
    tmp_path: Path,
) -> None:
    assert run_ranks(complain, tmp_path) == [0, 0]
    for rank in range(2):
        early = f"says rank {rank} of 2 / call torch.distributed.init_process_group before you make the sampler"
        expected = [early, early, "rank 1 has scene_count=9, rank 0 has 8"]
        expected.append("rank 1 has digest of the scenes='00000001', rank 0 has '00000000'")
        expected.append("rank 1 has steps done=0, rank 0 has 1")
        *lines, late = (tmp_path / f"output{rank}.txt").read_text().splitlines()
        assert [line for line, part in zip(lines, expected, strict=True) if part not in line] == []
        assert late == f"{rank} 2 2 {('0 3 4 7', '1 2 5 6')[rank]}"


def run_script(out_dir: Path, name: str, times: int = 1) -> None:
    for _ in range(times):
        runpy.run_path(name, run_name="__main__")


def run_scripts(out_dir: Path, *names: str) -> None:
    warnings.simplefilter("error")
    for name in names:
        run_script(out_dir, name)


def run_torchrun(out_dir: Path, *names: str) -> None:
    """What the command does for two ranks, but that these are forked and need not import torch again."""
    from torch.distributed import run

    os.environ["OMP_NUM_THREADS"] = "1"  # as torchrun sets it, but with a warning
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


@pytest.mark.parametrize("job", [run_scripts, run_torchrun])
def test_the_scripts_of_the_training_page_run_alone_and_on_two_ranks(
    training_folder: Path, tmp_path: Path, job: Callable[..., None]
) -> None:
    is_alone = job is run_scripts
    place = (
        training_folder if is_alone else pack_into(training_folder, tmp_path / "scannet.tar.zst")
    )
    for name, script in SCRIPTS.items():
        text, count = re.subn('"data/processed"', repr(str(place)), script)
        assert count == 1
        (tmp_path / name).write_text(text)
    assert run_ranks(job, tmp_path, *SCRIPTS, count=1) == [0], read_output(tmp_path)
    output = read_output(tmp_path)
    assert re.findall(r"epoch (\d), step \d+: loss \d+\.\d{3}\n", output) == ["0", "1", "2"]
    assert len(re.findall(r"^accuracy [01]\.\d{3}$", output, re.MULTILINE)) == 1
