"""Compare the ranks of a job for `doctor --ddp`, and name those that are missing or differ.

A collective operation only reports late that some rank is missing. So every rank writes its own
keys into the store of the job. Rank 0 reads them until the time is up, and reports:

    here/RANK   host and process: the rank has started
    facts/RANK  scenes, plan and versions of the rank, or the error that it met
    sum/RANK    the result of the all-reduce, which follows
    end/0       rank 0 has finished, and all ranks may end
"""

from __future__ import annotations

import json
import os
import socket
import statistics
import threading
import time
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, TypeAlias

from scannet_prep.base.findings import Finding
from scannet_prep.base.version import VERSION
from scannet_prep.errors import ScanNetPrepError, UsageError

Results: TypeAlias = dict[int, dict[str, Any]]
"""The values of a key by rank, in order of arrival."""

_POLL_INTERVAL_S = 0.05
_GRACE_S = 5.0
_EXIT_DELAY_S = 1.0
_SLOW_AFTER_S = 3.0
_SLOW_FACTOR = 3.0
# The point budget of a batch, for the plan of the epoch that the ranks compare.
_MAX_POINTS = 600_000
_MAX_NAMED_RANKS = 8
_HINT_MISSING = (
    "start it on every machine with the same MASTER_ADDR, MASTER_PORT and number of ranks"
)
_HINT_STUCK = "its file system is slow or hangs: run doctor on that machine"
_HINT_SLOW = "all other ranks wait for it in every step: check its disk and its load"
_HINT_DIFFERENT = (
    "give all ranks the same verified scenes, "
    "and the same versions of NumPy, PyTorch and scannet-prep"
)
_HINT_START = (
    "start it as you start training: torchrun --nproc_per_node=2 -m scannet_prep doctor --ddp PLACE"
)
_HINT_NETWORK = (
    "check its network: NCCL_DEBUG=INFO, NCCL_SOCKET_IFNAME, GLOO_SOCKET_IFNAME; "
    "see docs/training-hangs.md"
)


@dataclass(frozen=True, slots=True)
class TorchrunJob:
    """A process of a job that torchrun started.

    Attributes:
        rank: Number of this process, from 0.
        world_size: Number of processes.
        local_rank: Number of this process on its machine; the index of its GPU.
        host: Address of the store that all processes share.
        port: Port of the store.
        has_store: Whether torchrun itself keeps the store; otherwise rank 0 has to.
    """

    rank: int
    world_size: int
    local_rank: int
    host: str
    port: int
    has_store: bool


def read_torchrun_job(environ: Mapping[str, str]) -> TorchrunJob:
    """Read the job that this process belongs to.

    Raises:
        UsageError: The process does not belong to a job.
    """
    try:
        rank = int(environ["RANK"])
        world_size = int(environ["WORLD_SIZE"])
        job = TorchrunJob(
            rank=rank,
            world_size=world_size,
            local_rank=int(environ.get("LOCAL_RANK", rank)),
            host=environ["MASTER_ADDR"],
            port=int(environ["MASTER_PORT"]),
            has_store=environ.get("TORCHELASTIC_USE_AGENT_STORE") == "True",
        )
    except (KeyError, ValueError):
        raise UsageError(
            "this process is not a rank of a job: "
            "RANK, WORLD_SIZE, MASTER_ADDR and MASTER_PORT must be set",
            _HINT_START,
        ) from None
    if not 0 <= rank < world_size:
        raise UsageError(
            f"RANK is {rank}, expected at least 0 and less than WORLD_SIZE, which is {world_size}",
            _HINT_START,
        )
    return job


def compare(place: str, environ: Mapping[str, str], *, timeout_s: float) -> list[Finding]:
    """Compare the ranks of a job; see the stage `doctor.compare_ranks`.

    Raises:
        UsageError: PyTorch is not installed, or this is not a rank of a job.
    """
    job = read_torchrun_job(environ)
    try:
        from torch import distributed  # noqa: F401 - checks that it is installed
    except ImportError:
        raise UsageError(
            "comparing ranks needs PyTorch, which is not installed", "pip install torch"
        ) from None

    # torchrun usually keeps the store itself; otherwise, the process of rank 0 does.
    keeps_store = job.rank == 0 and not job.has_store
    try:
        checks = _compare_ranks(job, place, timeout_s, keeps_store=keeps_store)
    except RuntimeError as error:
        checks = [_describe_store_error(error, job, keeps_store=keeps_store)]
    if keeps_store:
        # Keep the store until the other ranks have read that all may end.
        time.sleep(_EXIT_DELAY_S)
    return checks


def _compare_ranks(
    job: TorchrunJob, place: str, timeout_s: float, *, keeps_store: bool
) -> list[Finding]:
    """Write the keys of this rank; on rank 0, judge the keys of all ranks.

    Raises:
        RuntimeError: The store cannot be reached.
    """
    board = _Board(_connect(job, timeout_s, keeps_store=keeps_store), job.rank)
    board.write("here", f"{socket.gethostname()}, process {os.getpid()}")

    def work() -> None:
        facts = _attempt(_find_facts, place, job)
        board.write("facts", facts)
        if "error" not in facts:
            board.write("sum", _attempt(_all_reduce, job, timeout_s))

    threading.Thread(target=work, daemon=True).start()
    if job.rank == 0:
        return _Judge(board, job.world_size, timeout_s).judge()
    # A connection that waits blocks all its other requests. The thread writes meanwhile, so wait on
    # a second connection. Rank 0 waits for two keys, for up to `timeout_s` each.
    _connect(job, timeout_s).wait(["end/0"], timedelta(seconds=2 * timeout_s + _GRACE_S))
    return []


def _connect(job: TorchrunJob, timeout_s: float, *, keeps_store: bool = False) -> Any:  # noqa: ANN401 - of torch
    """Connect to the store of the job."""
    from torch import distributed

    store = distributed.TCPStore(
        job.host,
        job.port,
        world_size=None,
        is_master=keeps_store,
        timeout=timedelta(seconds=timeout_s),
        wait_for_workers=False,
    )
    return distributed.PrefixStore("scannet-prep-doctor", store)


def _describe_store_error(error: RuntimeError, job: TorchrunJob, *, keeps_store: bool) -> Finding:
    """Describe why the store of the job cannot be used."""
    reason = "rank 0 has not started, has ended, or cannot be reached"
    if keeps_store:
        reason = "another job uses the port"
    text = str(error).splitlines()[0][:200]
    return _problem(
        "ranks",
        f"rank {job.rank} cannot use the store of the job at {job.host}:{job.port}: {text}",
        f"{reason}; check MASTER_ADDR and MASTER_PORT",
    )


class _Board:
    """The keys of the ranks in the store of the job.

    Args:
        store: The store.
        rank: The rank of this process.
    """

    def __init__(self, store: Any, rank: int) -> None:  # noqa: ANN401 - of torch
        self._store = store
        self._rank = rank

    def write(self, key: str, value: object) -> None:
        """Write a key of this rank."""
        self._store.set(f"{key}/{self._rank}", json.dumps(value))

    def read(self, key: str, rank: int) -> Any:  # noqa: ANN401 - as it was written
        """Read a key of a rank; None if it is not written yet."""
        name = f"{key}/{rank}"
        if not self._store.check([name]):
            return None
        return json.loads(self._store.get(name))

    def name(self, rank: int) -> str:
        """Return the name of a rank, with its host and process if it has started."""
        location = self.read("here", rank)
        if not location:
            return f"rank {rank}"
        return f"rank {rank} ({location})"


class _Judge:
    """The judgement of rank 0 about the keys of all ranks.

    Args:
        board: The keys.
        world_size: Number of ranks.
        timeout_s: How long to wait for a key of all ranks.
    """

    def __init__(self, board: _Board, world_size: int, timeout_s: float) -> None:
        self._board = board
        self._world_size = world_size
        self._timeout_s = timeout_s

    def judge(self) -> list[Finding]:
        """Read the keys of all ranks, report the findings, and let all ranks end."""
        facts, arrivals_s = self._collect("facts")
        checks = self._judge_presence(facts, arrivals_s)
        readable = {rank: facts[rank] for rank in sorted(facts) if "error" not in facts[rank]}
        checks += self._judge_agreement(readable)
        if all(check.severity != "problem" for check in checks):
            sums, _ = self._collect("sum")
            checks.append(self._judge_sums(sums))
        self._board.write("end", value=True)
        return checks

    def _collect(self, key: str) -> tuple[Results, dict[int, float]]:
        """Collect a key of all ranks until the time is up.

        Returns:
            The values, and the time at which each was read.
        """
        results: Results = {}
        arrivals_s: dict[int, float] = {}
        deadline_s = time.monotonic() + self._timeout_s
        while time.monotonic() < deadline_s and len(results) < self._world_size:
            for rank in range(self._world_size):
                if rank in results:
                    continue
                result = self._board.read(key, rank)
                if result is None:
                    continue
                results[rank] = result
                arrivals_s[rank] = time.monotonic()
                if key == "sum" and "error" in result:
                    # The other ranks wait for this one, perhaps without end.
                    deadline_s = min(deadline_s, time.monotonic() + 1.0)
            time.sleep(_POLL_INTERVAL_S)
        return results, arrivals_s

    def _judge_presence(self, facts: Results, arrivals_s: dict[int, float]) -> list[Finding]:
        """Find the ranks that are missing, cannot read the scenes, or are slow."""
        checks = []
        # From the first arrival to the last.
        times_s = list(arrivals_s.values()) or [0.0]
        first_s = times_s[0]
        usual_wait_s = statistics.median_low(times_s) - first_s
        max_wait_s = max(_SLOW_AFTER_S, _SLOW_FACTOR * usual_wait_s)
        for rank in range(self._world_size):
            name = self._board.name(rank)
            if rank not in facts:
                checks.append(self._judge_missing(rank, name))
            elif "error" in facts[rank]:
                text = f"{name}: {facts[rank]['error']}"
                checks.append(_problem("ranks", text, facts[rank]["hint"]))
            elif arrivals_s[rank] - first_s > max_wait_s:
                wait_s = arrivals_s[rank] - first_s
                text = f"{name} is slow: it was ready {wait_s:.1f} s after the first"
                checks.append(
                    Finding(subject="ranks", message=text, severity="note", hint=_HINT_SLOW)
                )
        if all(check.severity == "note" for check in checks):
            spread_s = times_s[-1] - first_s
            text = f"all {self._world_size} have started, the last {spread_s:.1f} s after the first"
            checks.insert(0, _ok("ranks", text))
        return checks

    def _judge_missing(self, rank: int, name: str) -> Finding:
        """Describe a rank that has not written its facts."""
        has_started = self._board.read("here", rank) is not None
        if has_started:
            text = f"{name} has started, but could not read the scenes in time"
            return _problem("ranks", text, _HINT_STUCK)
        return _problem("ranks", f"{name} is missing: it has not reached rank 0", _HINT_MISSING)

    def _judge_agreement(self, facts: Results) -> list[Finding]:
        """Compare the facts of each rank with those that most ranks have.

        If two values are equally common, that of the lower rank is the usual one.
        """
        if not facts:
            return []
        checks = []
        usual = {}
        first = next(iter(facts.values()))
        for name in first:
            counts = Counter(rank_facts[name] for rank_facts in facts.values())
            value, count = counts.most_common(1)[0]
            usual[name] = value
            ranks = "1 rank has" if count == 1 else f"{count} ranks have"
            for rank, rank_facts in facts.items():
                if rank_facts[name] != value:
                    rank_name = self._board.name(rank)
                    text = f"{rank_name}: {name}: {rank_facts[name]}; {ranks} {value}"
                    checks.append(_problem("agreement", text, _HINT_DIFFERENT))
        if not checks:
            text = ", ".join(f"{name} {value}" for name, value in usual.items())
            checks.append(_ok("agreement", text))
        return checks

    def _judge_sums(self, sums: Results) -> Finding:
        """Check the all-reduce, and report the first rank that failed: it made others fail."""
        for rank, result in sums.items():
            if "error" in result:
                text = f"{self._board.name(rank)}: {result['error']}"
                return _problem("all-reduce", text, result["hint"] or _HINT_NETWORK)
        silent = [rank for rank in range(self._world_size) if rank not in sums]
        if silent:
            names = ", ".join(self._board.name(rank) for rank in silent[:_MAX_NAMED_RANKS])
            text = f"did not finish within {self._timeout_s:.0f} s on {names}"
            return _problem("all-reduce", text, _HINT_NETWORK)
        return _ok("all-reduce", f"{sums[0]['backend']} works on all {self._world_size} ranks")


def _attempt(function: Callable[..., dict[str, Any]], *arguments: object) -> dict[str, Any]:
    """Call a function, and return its result, or `error` and `hint` of its exception."""
    try:
        return function(*arguments)
    except ScanNetPrepError as error:
        return {"error": error.message, "hint": error.hint}
    except Exception as error:  # noqa: BLE001 - a backend may raise anything
        first_line, _, _ = f"{type(error).__name__}: {error}"[:300].partition("\n")
        return {"error": first_line, "hint": ""}


def _find_facts(place: str, job: TorchrunJob) -> dict[str, Any]:
    """Collect the facts on which all ranks must agree."""
    import numpy as np
    import torch

    from scannet_prep.training.dataset import ScanNet
    from scannet_prep.training.samplers import PointBudgetBatchSampler

    with ScanNet(place, split="train") as dataset:
        sampler = PointBudgetBatchSampler(
            dataset, max_points=_MAX_POINTS, rank=job.rank, world_size=job.world_size
        )
        return {
            "scenes": len(dataset),
            "digest of the scenes": dataset.digest,
            "numpy": np.__version__,
            "torch": str(torch.__version__),
            "scannet_prep": VERSION,
            "steps of the epoch": len(sampler),
            "plan of the epoch": sampler.digest,
        }


def _all_reduce(job: TorchrunJob, timeout_s: float) -> dict[str, Any]:
    """Add a number over all ranks, with NCCL if there are GPUs, otherwise with gloo."""
    import torch
    from torch import distributed

    backend = "gloo"
    device = torch.device("cpu")
    if torch.cuda.is_available() and distributed.is_nccl_available():
        backend = "nccl"
        device = torch.device("cuda", job.local_rank)
        torch.cuda.set_device(device)
    distributed.init_process_group(
        backend,
        # A separate connection, because one that waits for a rank blocks all its other requests.
        store=_connect(job, timeout_s),
        rank=job.rank,
        world_size=job.world_size,
        timeout=timedelta(seconds=timeout_s),
    )
    ones = torch.ones(1, device=device)
    distributed.all_reduce(ones)
    # Reading the number waits for the GPU.
    total = ones.item()
    if total != job.world_size:
        raise UsageError(
            f"all-reduce with {backend} is wrong: {job.world_size} ones add up to {total}"
        )
    distributed.destroy_process_group()
    return {"backend": backend}


def _ok(topic: str, message: str) -> Finding:
    """Make a finding that everything is in order."""
    return Finding(subject=topic, message=message, severity="ok")


def _problem(topic: str, message: str, hint: str) -> Finding:
    """Make a finding of a problem."""
    return Finding(subject=topic, message=message, severity="problem", hint=hint)
