"""Samplers: plans that agree, cover every scene once, keep their limits, and can be resumed."""

import json
import re
from collections import Counter
from itertools import combinations, pairwise
from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from scannet_prep import EvalSampler, PointBudgetBatchSampler
from scannet_prep.errors import UsageError
from scannet_prep.training.plan import sum_loads

# Environments of processes, recorded from Slurm 22.05, Open MPI 4.1, MPICH 4.0 and torchrun 2.13:
# how a process was started, whether others were started with it, and the variables.
RECORDED = """\
script | alone
mpiexec of MPICH without Slurm | one of several
    PMI_SIZE=6 PMI_RANK=5
the script of a task of --array=1-3:2 --ntasks=4 | alone
    SLURM_JOB_ID=7 SLURM_PROCID=0 SLURM_NTASKS=4 SLURM_TASKS_PER_NODE=4 SLURM_CPUS_ON_NODE=4
    SLURM_ARRAY_TASK_ID=3 SLURM_ARRAY_TASK_COUNT=2 SLURM_ARRAY_TASK_MIN=1 SLURM_ARRAY_TASK_MAX=3
    SLURM_ARRAY_TASK_STEP=2
the script of a task of --array=3,7 | alone
    SLURM_JOB_ID=7 SLURM_PROCID=0 SLURM_TASKS_PER_NODE=1 SLURM_CPUS_ON_NODE=1
    SLURM_ARRAY_TASK_ID=3 SLURM_ARRAY_TASK_COUNT=2 SLURM_ARRAY_TASK_MIN=3 SLURM_ARRAY_TASK_MAX=7
    SLURM_ARRAY_TASK_STEP=1
srun in a task of an array | one of several
    SLURM_JOB_ID=7 SLURM_STEP_ID=0 SLURM_PROCID=2 SLURM_NTASKS=4 SLURM_STEP_NUM_TASKS=4
    SLURM_TASKS_PER_NODE=4 SLURM_STEP_TASKS_PER_NODE=4 SLURM_CPUS_ON_NODE=4
    SLURM_ARRAY_TASK_ID=3 SLURM_ARRAY_TASK_COUNT=2 SLURM_ARRAY_TASK_MIN=1 SLURM_ARRAY_TASK_MAX=3
    SLURM_ARRAY_TASK_STEP=2
sbatch --ntasks=4 | alone
    SLURM_JOB_ID=7 SLURM_PROCID=0 SLURM_NTASKS=4 SLURM_TASKS_PER_NODE=4 SLURM_CPUS_ON_NODE=4
sbatch --ntasks=4, srun | one of several
    SLURM_JOB_ID=7 SLURM_STEP_ID=0 SLURM_PROCID=2 SLURM_NTASKS=4 SLURM_STEP_NUM_TASKS=4
    SLURM_TASKS_PER_NODE=4 SLURM_STEP_TASKS_PER_NODE=4 SLURM_CPUS_ON_NODE=4
sbatch --cpus-per-task=2, srun | alone
    SLURM_JOB_ID=7 SLURM_STEP_ID=0 SLURM_PROCID=0 SLURM_NTASKS=1 SLURM_STEP_NUM_TASKS=1
    SLURM_TASKS_PER_NODE=1 SLURM_STEP_TASKS_PER_NODE=1 SLURM_CPUS_ON_NODE=2
    SLURM_CPUS_PER_TASK=2
srun --ntasks=2 --cpus-per-task=2 | one of several
    SLURM_JOB_ID=7 SLURM_STEP_ID=0 SLURM_PROCID=1 SLURM_NTASKS=2 SLURM_STEP_NUM_TASKS=2
    SLURM_TASKS_PER_NODE=2 SLURM_STEP_TASKS_PER_NODE=2 SLURM_CPUS_ON_NODE=4
    SLURM_CPUS_PER_TASK=2
srun --mpi=pmi2 on three nodes | one of several
    SLURM_JOB_ID=7 SLURM_STEP_ID=1 SLURM_PROCID=5 SLURM_NTASKS=6 SLURM_STEP_NUM_TASKS=6
    SLURM_TASKS_PER_NODE=4,1(x2) SLURM_STEP_TASKS_PER_NODE=4,1(x2) SLURM_CPUS_ON_NODE=1
    PMI_RANK=5 PMI_SIZE=6
srun of a heterogeneous job | one of several
    SLURM_JOB_ID=7 SLURM_STEP_ID=0 SLURM_PROCID=2 SLURM_NTASKS=3 SLURM_STEP_NUM_TASKS=3
    SLURM_TASKS_PER_NODE=2,1 SLURM_STEP_TASKS_PER_NODE=2,1 SLURM_CPUS_ON_NODE=1
salloc --ntasks=3 | alone
    SLURM_JOB_ID=7 SLURM_NTASKS=3 SLURM_TASKS_PER_NODE=3
salloc --ntasks=3, interactive step | alone
    SLURM_JOB_ID=7 SLURM_STEP_ID=4294967290 SLURM_PROCID=0 SLURM_NTASKS=3 SLURM_STEP_NUM_TASKS=1
    SLURM_TASKS_PER_NODE=3 SLURM_STEP_TASKS_PER_NODE=1 SLURM_CPUS_ON_NODE=3
sbatch --ntasks=4, mpirun of Open MPI | one of several
    SLURM_JOB_ID=7 SLURM_PROCID=0 SLURM_NTASKS=4 SLURM_TASKS_PER_NODE=4 SLURM_CPUS_ON_NODE=4
    OMPI_COMM_WORLD_RANK=3 OMPI_COMM_WORLD_SIZE=4 OMPI_COMM_WORLD_LOCAL_SIZE=4
sbatch on three nodes, mpirun of Open MPI | one of several
    SLURM_JOB_ID=7 SLURM_STEP_ID=0 SLURM_PROCID=1 SLURM_NTASKS=2 SLURM_STEP_NUM_TASKS=2
    SLURM_TASKS_PER_NODE=1(x2) SLURM_STEP_TASKS_PER_NODE=1(x2) SLURM_CPUS_ON_NODE=1
    OMPI_COMM_WORLD_RANK=5 OMPI_COMM_WORLD_SIZE=6 OMPI_COMM_WORLD_LOCAL_SIZE=1
sbatch on three nodes, mpiexec of MPICH | one of several
    SLURM_JOB_ID=7 SLURM_STEP_ID=1 SLURM_PROCID=0 SLURM_NTASKS=6 SLURM_STEP_NUM_TASKS=3
    SLURM_TASKS_PER_NODE=1(x3) SLURM_STEP_TASKS_PER_NODE=1(x3) SLURM_CPUS_ON_NODE=4 PMI_RANK=1
    PMI_SIZE=6 MPI_LOCALNRANKS=4
sbatch --ntasks=4, torchrun | one of several
    SLURM_JOB_ID=7 SLURM_PROCID=0 SLURM_NTASKS=4 SLURM_TASKS_PER_NODE=4 SLURM_CPUS_ON_NODE=4
    RANK=1 WORLD_SIZE=2 LOCAL_WORLD_SIZE=2
srun torchrun on three nodes | one of several
    SLURM_JOB_ID=7 SLURM_STEP_ID=0 SLURM_PROCID=2 SLURM_NTASKS=3 SLURM_STEP_NUM_TASKS=3
    SLURM_TASKS_PER_NODE=1(x3) SLURM_STEP_TASKS_PER_NODE=1(x3) SLURM_CPUS_ON_NODE=1 RANK=4
    WORLD_SIZE=6 LOCAL_WORLD_SIZE=2
mpirun of Open MPI | one of several
    OMPI_COMM_WORLD_RANK=2 OMPI_COMM_WORLD_SIZE=4 OMPI_COMM_WORLD_LOCAL_SIZE=4
mpiexec of MPICH | one of several
    PMI_RANK=1 PMI_SIZE=2 MPI_LOCALNRANKS=2
torchrun | one of several
    RANK=1 WORLD_SIZE=2 LOCAL_WORLD_SIZE=2
"""


def parse_launches():
    launches = []
    for head, body in re.findall(r"^(\S.*)\n((?:    .*\n)*)", RECORDED, re.MULTILINE):
        environ = dict(word.split("=", 1) for word in body.split())
        launches.append((environ, *head.split(" | ")))
    return launches


def make_samplers(lengths, world_size=1, epoch=0, **options):
    """Make the samplers of all ranks."""
    samplers = []
    for rank in range(world_size):
        sampler = PointBudgetBatchSampler(lengths, rank=rank, world_size=world_size, **options)
        sampler.set_epoch(epoch)
        samplers.append(sampler)
    return samplers


def list_steps(samplers):
    """List the keys of each rank, step by step. All ranks must have equally many steps."""
    return list(zip(*map(list, samplers), strict=True))


def list_scenes(batches):
    return [[scene for scene, _ in batch] for batch in batches]


@st.composite
def problems(draw):
    """Draw lengths, budgets and ranks, with many ties, large scenes, and few scenes."""
    world_size = draw(st.integers(1, 9))
    sizes = st.one_of(st.integers(0, 100), st.sampled_from([1, 33, 34, 50, 51, 99, 100, 101, 500]))
    return {
        "lengths": draw(st.lists(sizes, min_size=world_size, max_size=60)),
        "max_points": draw(st.sampled_from([1, 50, 100, 101, 150, 1000, 10_000])),
        "world_size": world_size,
        "seed": draw(st.integers(0, 3)),
        "epoch": draw(st.integers(0, 1000)),
    }


@settings(max_examples=100)
@given(problems(), st.data())
def test_ranks_take_equal_steps_see_every_scene_and_resume_exactly(problem, data):
    samplers = make_samplers(**problem)
    steps = list_steps(samplers)
    step_count = len(steps)
    batches = list_scenes(batch for step in steps for batch in step)
    counts = Counter(scene for batch in batches for scene in batch)
    padding = counts.total() - len(problem["lengths"])

    assert len(samplers[0]) == samplers[0].steps_left == step_count
    epochs = {epoch for step in steps for batch in step for _, epoch in batch}
    assert epochs == {problem["epoch"]}
    assert sorted(counts) == list(range(len(problem["lengths"])))
    assert 0 <= padding < problem["world_size"]
    for batch in batches:
        load = sum(problem["lengths"][scene] for scene in batch)
        assert len(batch) == len(set(batch)) >= 1
        assert len(batch) == 1 or (load <= problem["max_points"] and not padding)

    done = data.draw(st.integers(0, step_count))
    states = [sampler.state_dict(steps_done=done) for sampler in samplers]
    assert all(state == states[0] for state in states)
    resumed = make_samplers(**problem | {"epoch": 0})
    for sampler in resumed:
        sampler.load_state_dict(json.loads(json.dumps(states[0])))
        # As at the top of a loop over epochs.
        sampler.set_epoch(sampler.epoch)
        assert sampler.state_dict(steps_done=0) == states[0]
    if done < step_count:
        assert resumed[0].steps_left == step_count - done
        assert list_steps(resumed) == steps[done:]
    assert list_steps(resumed) == list_steps(samplers)
    assert resumed[0].epoch == problem["epoch"] + 1


# In the second case, few scenes fit together, so that few exchanges are possible.
@pytest.mark.parametrize(
    ("lengths", "max_points"),
    [(np.random.default_rng(1).integers(10, 100, 200), 300), ([26, 26, 27, 27, 46, 48] * 10, 100)],
)
def test_plan_depends_on_seed_and_epoch_alone(lengths, max_points):
    def plan(epoch, seed=0):
        first, _ = make_samplers(lengths, 2, epoch, max_points=max_points, seed=seed)
        return list_scenes(first)

    sampler, _ = make_samplers(lengths, 2, max_points=max_points)
    plans = [plan(epoch) for epoch in range(8)]
    assert [list_scenes(sampler) for _ in range(8)] == plans
    assert len({str(one) for one in [*plans, plan(0, seed=1)]}) == 9


@pytest.mark.parametrize(
    ("world_size", "max_points"), [(1, 550_000), (4, 600_000), (8, 1_200_000), (1, 600_000)]
)
def test_batches_of_scannet_are_full_and_even_and_new_in_each_epoch(world_size, max_points):
    # Like those of the train split: mean 149,000, at most 550,000.
    sizes = np.random.default_rng(0).lognormal(0, 0.6, 1201)
    for _ in range(50):
        sizes = np.clip(sizes * 149_000 / sizes.mean(), 5_000, 550_000)
    lengths = sizes.astype(np.int64)
    sampler = make_samplers(lengths, world_size, max_points=max_points)[0]

    pairs = []
    for epoch in range(4):
        plan = sampler.plan(epoch)
        steps = sum_loads(plan, lengths).reshape(-1, world_size)
        assert steps.mean() / max_points >= 0.94
        assert steps.min() / steps.mean() >= 0.94
        assert (steps.max(axis=1) / steps.mean(axis=1)).mean() <= 1.003
        assert sum(map(len, plan)) == len(lengths)
        # No rank has the largest batch of each step, and steps are not ordered by size.
        assert len(set(steps.argmax(axis=1))) >= min(2, world_size)
        assert np.diff(steps.max(axis=1)).max() > 0
        pairs.append({(a, b) for batch in plan for a in batch for b in batch if a < b})
    for before, after in pairwise(pairs):
        assert len(before & after) < 0.03 * len(before)


def test_scenes_above_the_budget_leave_others_free_to_change_batches():
    # Two scenes fill batches of their own; the others change partners as they do without them.
    lengths = np.random.default_rng(4).integers(50, 150, 60)
    shares, step_counts = [], []
    for large in ([], [3000, 3000]):
        sampler = PointBudgetBatchSampler([*lengths, *large], max_points=300)
        step_counts.append(len(sampler))
        pairs = [
            {frozenset(pair) for batch in sampler.plan(epoch) for pair in combinations(batch, 2)}
            for epoch in range(40)
        ]
        repeated = sum(len(before & after) for before, after in pairwise(pairs))
        shares.append(repeated / sum(map(len, pairs)))
    assert shares[1] < 1.5 * shares[0]
    assert step_counts[1] == step_counts[0] + 2
    # In random order, because Mix3D joins neighbours.
    assert any(batch != sorted(batch) for batch in sampler.plan(0))


def test_scenes_that_are_repeated_are_others_in_each_epoch():
    # Five scenes of which no two fit together, on four ranks: three scenes are repeated.
    samplers = make_samplers([100] * 5, 4, max_points=100)
    repeated = set()
    for _ in range(12):
        counts = Counter(scene for step in list_steps(samplers) for (scene,) in list_scenes(step))
        assert sorted(counts.values()) == [1, 1, 2, 2, 2]
        repeated |= {scene for scene, count in counts.items() if count > 1}
    assert repeated == {0, 1, 2, 3, 4}
    # Two of 67 scenes fit together, which makes 66 batches: none is repeated on two ranks.
    assert len(make_samplers([100] * 65 + [50] * 2, 2, max_points=100)[0]) == 33


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"lengths": [10], "world_size": 3}, "1 scene for 3 ranks"),
        (
            {"lengths": SimpleNamespace(dataset=[[1]])},
            "is a SimpleNamespace, expected the vertices",
        ),
        ({"rank": 2}, "found rank 2 and world size 2"),
        ({"rank": -1}, "found rank -1"),
        ({"max_points": -1}, "max_points is -1"),
        ({"rank": 0, "world_size": None}, "world size None, expected both"),
    ],
)
def test_invalid_argument_of_the_sampler_is_refused(options, message):
    valid = {"lengths": [10, 20], "max_points": 100, "rank": 1, "world_size": 2}
    with pytest.raises(UsageError, match=message):
        PointBudgetBatchSampler(**valid | options)


@pytest.mark.parametrize(("environ", "launch", "others"), parse_launches())
def test_rank_is_unknown_in_jobs_of_several_processes(monkeypatch, environ, launch, others):
    monkeypatch.setattr("os.environ", environ)

    for kind, options in ((PointBudgetBatchSampler, {"max_points": 100}), (EvalSampler, {})):
        given_rank = kind([10] * 8, rank=1, world_size=2, **options)
        assert given_rank.rank == 1
        assert given_rank.world_size == 2
        if others == "alone":
            sampler = kind([10] * 8, **options)
            assert sampler.rank == 0
            assert sampler.world_size == 1
        else:
            with pytest.raises(UsageError, match="all would get the same data"):
                kind([10] * 8, **options)


@given(st.lists(st.integers(0, 1000), min_size=1, max_size=50), st.integers(1, 9))
def test_evaluation_gives_every_scene_to_one_rank_evenly(lengths, world_size):
    samplers = [
        EvalSampler(lengths, rank=rank, world_size=world_size) for rank in range(world_size)
    ]
    hands = list(map(list, samplers))
    counts = list(map(len, samplers))
    descending = sorted(lengths, reverse=True)

    assert hands == list(map(list, samplers))
    assert counts == list(map(len, hands))
    assert sorted(scene for hand in hands for scene in hand) == list(range(len(lengths)))
    assert max(counts) <= min(counts) + 1
    for step in range(len(lengths) // world_size):
        in_step = [lengths[hand[step]] for hand in hands]
        assert in_step == descending[step * world_size : (step + 1) * world_size]


@pytest.mark.extra("torch")
@pytest.mark.parametrize(
    "options", [{}, {"num_workers": 1}, {"num_workers": 1, "persistent_workers": True}]
)
def test_each_pass_of_a_loader_is_the_next_epoch(options):
    from torch.utils.data import DataLoader

    (sampler,) = make_samplers([10] * 80, max_points=20)
    # A dataset whose items are their keys.
    keys = {(scene, epoch): (scene, epoch) for scene in range(80) for epoch in range(7)}
    loader = DataLoader(keys, batch_sampler=sampler, collate_fn=list, **options)

    def expect(epoch):
        return list(make_samplers([10] * 80, epoch=epoch, max_points=20)[0])

    for epoch in (0, 1):
        assert list(loader) == expect(epoch)
        assert sampler.epoch == epoch
    sampler.set_epoch(5)
    next(iter(loader))
    assert list(loader) == expect(6)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"max_points": 30}, "saved state has max_points=20, this sampler 30"),
        ({"seed": 2}, "seed=1, this sampler 2"),
        ({"world_size": 2}, "world_size=1, this sampler 2"),
        ({"lengths": [10] * 6 + [9, 11]}, "lengths_crc32="),
        ({"lengths": SimpleNamespace(lengths=[10] * 8, digest="b")}, "digest='', this sampler 'b'"),
    ],
)
def test_state_of_another_sampler_is_refused_naming_the_difference(change, message):
    options = {"lengths": [10] * 8, "max_points": 20, "seed": 1}
    (saved,) = make_samplers(**options)
    sampler = make_samplers(**options | change)[0]
    with pytest.raises(UsageError, match=message):
        sampler.load_state_dict(saved.state_dict(steps_done=1))
    with pytest.raises(UsageError, match="version=None"):
        sampler.load_state_dict({"epoch": 3})


def test_number_of_steps_done_is_compared_with_the_plan():
    (sampler,) = make_samplers([10] * 8, max_points=20)
    _, *rest = sampler
    sampler.load_state_dict(sampler.state_dict(steps_done=1))

    assert list(sampler) == rest
    sampler.end_epoch(3)
    with pytest.warns(UserWarning, match="rank 0 of 1 did 2 of the 3 steps .*left out") as caught:
        sampler.end_epoch(2)
    assert caught[0].filename == __file__
    for steps_done in (4, -1):
        with pytest.raises(UsageError, match=f"steps_done is {steps_done}.* 3 steps"):
            sampler.state_dict(steps_done=steps_done)
