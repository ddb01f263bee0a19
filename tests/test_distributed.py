"""Training on several ranks with gloo, in forked processes and by torchrun."""

import itertools
import json
import os
import re
import runpy
import signal
import warnings
from collections import Counter
from functools import partial
from types import SimpleNamespace

import pytest
from training import SCRIPTS, TRAIN, TRAIN_PY, pack_into, run_ranks, run_script

from scannet_prep import EvalSampler, PointBudgetBatchSampler, ScanNetPrepError

torch = pytest.importorskip("torch")

from torch import distributed  # noqa: E402 - only if it is installed


def change_script(script, changes):
    """Replace texts, of which each occurs once."""
    for old, new in changes.items():
        assert script.count(old) == 1, old
        script = script.replace(old, new)
    return script


def run_torchrun(out_dir, *names):
    """Run scripts by torchrun on two ranks, which are forked and need not import torch again."""
    from torch.distributed import run

    # torchrun sets it to this value itself, but with a warning.
    os.environ["OMP_NUM_THREADS"] = "1"
    for name in names:
        words = f"--standalone --nproc_per_node=2 --start-method=fork --run-path {name}"
        run.main(words.split())


pytestmark = pytest.mark.extra("torch")
# Changes of the training page's script: an epoch has several steps, and each of them saves a
# checkpoint.
SMALL_BATCHES = {"max_points=600_000": "max_points=1_600", "step % 100 == 0": "True"}


def train(out_dir, folder, die_at=None):
    """Run the training page's script in small batches, and record the scenes of each step.

    Rank 1 kills itself in the step `die_at`, given by epoch and step.
    """

    def record(epoch, step, batch):
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


def scenes_by_step(out_dir):
    """Read the epoch and the scenes of each rank, step by step. All ranks must have all steps."""
    logs = []
    for rank in range(2):
        lines = (out_dir / f"rank{rank}.jsonl").read_text().splitlines()
        logs.append([json.loads(line) for line in lines])
    return [
        (step[0]["epoch"], [line["scenes"] for line in step]) for step in zip(*logs, strict=True)
    ]


def test_ranks_do_every_scene_once_an_epoch_and_resume_exactly_after_a_kill(
    training_folder, tmp_path_factory
):
    whole_dir, killed_dir = map(tmp_path_factory.mktemp, ("whole", "killed"))
    run_ranks(train, whole_dir, training_folder)
    with pytest.raises(AssertionError, match=rf"^\(\[[^]]*{-signal.SIGKILL}"):
        run_ranks(train, killed_dir, training_folder, (1, 2))
    before = scenes_by_step(killed_dir)
    run_ranks(train, killed_dir, training_folder)

    whole = scenes_by_step(whole_dir)
    counts = Counter((epoch, name) for epoch, step in whole for names in step for name in names)
    assert counts == Counter(itertools.product(range(3), TRAIN))
    # It was killed within epoch 1.
    assert whole[: len(before)] == before
    assert before[-1][0] == whole[len(before)][0] == 1
    assert scenes_by_step(killed_dir) == whole
    expected = torch.load(whole_dir / "checkpoint.pt")["model"]
    actual = torch.load(killed_dir / "checkpoint.pt")["model"]
    assert actual.keys() == expected.keys()
    assert all(torch.equal(actual[name], value) for name, value in expected.items())


def test_batch_without_a_label_has_the_loss_zero_and_leaves_the_network_finite(
    training_folder, tmp_path
):
    # Labels in one scene only, so that batches have none.
    points = {scene_id: list(range(500)) if scene_id == TRAIN[0] else [] for scene_id in TRAIN}
    changes = {
        '"data/processed"': repr(str(training_folder)),
        "transform=AUGMENT": f"transform=AUGMENT, points={points}",
    }
    (tmp_path / "train.py").write_text(change_script(TRAIN_PY, SMALL_BATCHES | changes))
    output = run_ranks(run_script, tmp_path, "train.py")

    losses = set(re.findall(r"loss (\S+)", output))
    assert {"0.000", "-0.000"} & losses
    assert "nan" not in losses
    weights = torch.load(tmp_path / "checkpoint.pt")["model"].values()
    assert all(weight.isfinite().all() for weight in weights)


def iterate_over_misfits(out_dir):
    """Iterate over samplers that were made too early, or that differ between ranks."""
    rank = int(os.environ.pop("RANK"))
    world_size = os.environ.pop("WORLD_SIZE")
    lengths = [10] * 8
    make = partial(PointBudgetBatchSampler, max_points=20)
    early = [make(lengths), EvalSampler(lengths)]

    os.environ |= {"RANK": f"{rank}", "WORLD_SIZE": world_size}
    distributed.init_process_group("gloo")
    # Ranks that are given are not compared.
    given = make(lengths, rank=0, world_size=1)
    other_count = make([10] * (8 + rank))
    other_digest = make(SimpleNamespace(lengths=lengths, digest=f"{rank:08x}"))
    other_epoch = make(lengths)
    other_epoch.set_epoch(rank)
    other_state = make(lengths)
    if rank == 0:
        other_state.load_state_dict(other_state.state_dict(steps_done=1))
    for sampler in (*early, given, other_count, other_digest, other_epoch, other_state):
        try:
            list(sampler)
        except ScanNetPrepError as error:
            print(error.message, "/", error.hint)

    late = make(lengths)
    print(late.rank, late.world_size, len(list(late)), *EvalSampler(lengths))
    distributed.barrier()
    distributed.destroy_process_group()


def test_ranks_that_differ_stop_at_the_first_iteration_and_name_the_difference(tmp_path):
    run_ranks(iterate_over_misfits, tmp_path)
    for rank, last in enumerate(["0 2 2 0 2 4 6", "1 2 2 1 3 5 7"]):
        lines = (tmp_path / f"output{rank}.txt").read_text().splitlines()
        patterns = [
            "torch.distributed now has .* / call torch.distributed.init_process_group before",
            "torch.distributed now has .* / call torch.distributed.init_process_group before",
            "rank 1 has scene_count=9, rank 0 8",
            "rank 1 has digest='00000001', rank 0 '00000000'",
            "rank 1 has epoch=1, rank 0 0",
            "rank 1 has steps done=0, rank 0 1",
            last,
        ]
        for line, pattern in zip(lines, patterns, strict=True):
            assert re.search(pattern, line)


def run_scripts(out_dir, *names):
    warnings.simplefilter("error")
    for name in names:
        run_script(out_dir, name)


@pytest.mark.parametrize("run", [run_scripts, run_torchrun])
def test_scripts_of_the_training_page_run_alone_and_by_torchrun(training_folder, tmp_path, run):
    place = training_folder
    if run is run_torchrun:
        place = pack_into(training_folder, tmp_path / "scannet.tar.zst")
    for name, script in SCRIPTS.items():
        (tmp_path / name).write_text(change_script(script, {'"data/processed"': repr(str(place))}))
    output = run_ranks(run, tmp_path, *SCRIPTS, count=1)

    assert re.findall(r"epoch (\d), step \d+: loss \d+\.\d{3}\n", output) == ["0", "1", "2"]
    assert len(re.findall(r"^accuracy [01]\.\d{3}$", output, re.MULTILINE)) == 1
