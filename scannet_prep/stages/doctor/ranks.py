"""`doctor --ddp`: whether all ranks of a job are there, agree, and can work together; else, which one is the reason.

A collective operation only says that somebody is missing, and says it late. So every rank leaves its own keys in the
store of the job. Rank 0 looks at them until the time is up, and is the one that tells what it found:

    here/RANK   host and process: it has started
    facts/RANK  scenes, plan and versions, as it sees them, or why it cannot see them
    sum/RANK    how the all-reduce went, which follows
    end/0       rank 0 has seen enough: all may end
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
from datetime import timedelta
from typing import Any

from scannet_prep.base.errors import ScanNetPrepError, UsageError
from scannet_prep.base.version import VERSION
from scannet_prep.stages.doctor import DoctorReport
from scannet_prep.stages.doctor.check import Check

Results = dict[int, dict[str, Any]]

_LOOK_S, _GRACE_S, _GOODBYE_S = 0.05, 5.0, 1.0
_SLOW_S, _SLOW_FACTOR = 3.0, 3.0
_MAX_POINTS = 600_000  # of a batch, for the plan
_START = (
    "start it as you start training: torchrun --nproc_per_node=2 -m scannet_prep doctor --ddp PLACE"
)
_MISSING = (
    "was it started, on every machine, with the same MASTER_ADDR, MASTER_PORT and number of ranks?"
)
_STUCK = "its file system is slow or hangs: scannet-prep doctor PLACE on that machine"
_SLOW = "all others wait for it in every step: look at its disk and its load"
_DIFFERENT = "give all ranks the same scenes, verified, and the same versions of NumPy, PyTorch and scannet-prep"
_SUM = "look at its network: NCCL_DEBUG=INFO, NCCL_SOCKET_IFNAME, GLOO_SOCKET_IFNAME; docs/training-hangs.md"


def run(place: str, environ: Mapping[str, str], *, timeout_s: float) -> DoctorReport:
    """Compare the ranks of a job; to be called on all of them, under torchrun.

    Something that hangs may go on in a thread when this returns: end the process with `os._exit`.

    Args:
        place: Folder or archive of processed scenes.
        environ: The environment, as torchrun sets it: RANK, WORLD_SIZE, MASTER_ADDR, MASTER_PORT.
        timeout_s: How long to wait for the ranks, and again for the all-reduce.

    Returns:
        On rank 0, everything that was found; on the others, nothing but why they do not hear from rank 0.

    Raises:
        UsageError: PyTorch is not installed, or this is not a rank of a job.
    """
    started_s = time.monotonic()
    try:
        rank, world_size, port = (
            int(environ[name]) for name in ("RANK", "WORLD_SIZE", "MASTER_PORT")
        )
        host, local_rank = environ["MASTER_ADDR"], int(environ.get("LOCAL_RANK", rank))
    except (KeyError, ValueError):
        message = (
            "this is not a rank of a job: RANK, WORLD_SIZE, MASTER_ADDR and MASTER_PORT must be set"
        )
        raise UsageError(message, _START) from None
    if not 0 <= rank < world_size:
        raise UsageError(
            f"RANK is {rank}, WORLD_SIZE is {world_size}: the first must be less", _START
        )
    try:
        from torch import distributed
    except ImportError:
        raise UsageError(
            "comparing ranks needs PyTorch, which is not installed", "pip install torch"
        ) from None

    def connect(*, is_keeper: bool = False) -> Any:  # noqa: ANN401 - of torch
        limit = timedelta(seconds=timeout_s)
        store = distributed.TCPStore(host, port, None, is_keeper, limit, wait_for_workers=False)
        return distributed.PrefixStore("scannet-prep-doctor", store)

    def work() -> None:
        facts = _attempt(_find_facts, place, rank, world_size)
        job.say("facts", facts)
        if "error" not in facts:
            # Over a connection of its own: one that waits for another rank lets nobody else speak.
            job.say(
                "sum", _attempt(_all_reduce, connect(), rank, world_size, local_rank, timeout_s)
            )

    # torchrun itself keeps the store, if it says so.
    is_keeper = rank == 0 and environ.get("TORCHELASTIC_USE_AGENT_STORE") != "True"
    try:
        job = _RankJob(connect(is_keeper=is_keeper), rank, world_size, timeout_s)
        job.say("here", f"{socket.gethostname()}, process {os.getpid()}")
        threading.Thread(target=work, daemon=True).start()
        checks = job.judge() if rank == 0 else []
        if rank != 0:  # again over another connection, so that the thread can speak
            connect().wait(["end/0"], timedelta(seconds=2 * timeout_s + _GRACE_S))
    except RuntimeError as error:
        whose = (
            "another job uses the port"
            if is_keeper
            else "rank 0 has not started, has ended, or cannot be reached"
        )
        text = f"rank {rank} cannot use the store of the job at {host}:{port}: {str(error).splitlines()[0][:200]}"
        checks = [_problem("ranks", text, f"{whose}; look at MASTER_ADDR and MASTER_PORT")]
    if is_keeper:
        time.sleep(_GOODBYE_S)  # until the others have heard that all may end
    return DoctorReport(tuple(checks), round(time.monotonic() - started_s, 3))


class _RankJob:
    """The ranks of a job, and what they say to each other through its store."""

    def __init__(self, store: Any, rank: int, world_size: int, timeout_s: float) -> None:  # noqa: ANN401 - of torch
        self._store, self._rank, self._world_size, self._timeout_s = (
            store,
            rank,
            world_size,
            timeout_s,
        )

    def judge(self) -> list[Check]:
        """Tell what all ranks say, and let them end."""
        facts, ready_s = self._listen("facts")
        checks = self._judge_presence(facts, ready_s)
        checks += self._compare(
            {rank: found for rank, found in sorted(facts.items()) if "error" not in found}
        )
        if all(check.severity != "problem" for check in checks):
            checks.append(self._judge_sums(self._listen("sum")[0]))
        self.say("end", True)
        return checks

    def _listen(self, key: str) -> tuple[Results, dict[int, float]]:
        """What ranks say until the time is up, in the order in which they do; and when they were heard."""
        found, heard_s = Results(), dict[int, float]()
        deadline_s = time.monotonic() + self._timeout_s
        while time.monotonic() < deadline_s and len(found) < self._world_size:
            for rank in set(range(self._world_size)) - found.keys():
                if (result := self._hear(key, rank)) is not None:
                    found[rank], heard_s[rank] = result, time.monotonic()
                    if (
                        key == "sum" and "error" in result
                    ):  # the others wait for it, perhaps for ever
                        deadline_s = min(deadline_s, time.monotonic() + 1.0)
            time.sleep(_LOOK_S)
        return found, heard_s

    def _judge_presence(self, facts: Results, ready_s: dict[int, float]) -> list[Check]:
        """Tell which ranks are missing, cannot see the scenes, or are slow."""
        checks, times_s = [], list(ready_s.values()) or [0.0]
        first_s, usual_s, last_s = times_s[0], statistics.median_low(times_s), times_s[-1]
        for rank in range(self._world_size):
            if rank not in facts:
                is_here = self._hear("here", rank) is not None
                text = (
                    "came, but could not read the scenes in time"
                    if is_here
                    else "is missing: it never came"
                )
                checks.append(
                    _problem("ranks", f"{self._name(rank)} {text}", _STUCK if is_here else _MISSING)
                )
            elif "error" in facts[rank]:
                checks.append(
                    _problem(
                        "ranks", f"{self._name(rank)}: {facts[rank]['error']}", facts[rank]["hint"]
                    )
                )
            elif (wait_s := ready_s[rank] - first_s) > max(
                _SLOW_S, _SLOW_FACTOR * (usual_s - first_s)
            ):
                text = f"{self._name(rank)} is slow: it was ready {wait_s:.1f} s after the first"
                checks.append(Check("ranks", text, "note", _SLOW))
        if all(check.severity == "note" for check in checks):
            text = f"all {self._world_size} are there, the last {last_s - first_s:.1f} s after the first"
            checks.insert(0, Check("ranks", text))
        return checks

    def _compare(self, facts: Results) -> list[Check]:
        """Compare what ranks see. What most of them see is right; else what the first does."""
        checks, usual = [], dict[str, Any]()
        for name in next(iter(facts.values()), {}):
            usual[name], count = Counter(found[name] for found in facts.values()).most_common(1)[0]
            others = f"{count} {'rank has' if count == 1 else 'ranks have'} {usual[name]}"
            for rank, found in facts.items():
                if found[name] != usual[name]:
                    text = f"{self._name(rank)}: {name}: {found[name]}; {others}"
                    checks.append(_problem("agreement", text, _DIFFERENT))
        if not checks and usual:
            checks.append(
                Check("agreement", ", ".join(f"{name} {value}" for name, value in usual.items()))
            )
        return checks

    def _judge_sums(self, sums: Results) -> Check:
        """Tell whether the all-reduce went well; else the first rank that failed, because of which others failed."""
        for rank, result in sums.items():
            if "error" in result:
                return _problem(
                    "all-reduce", f"{self._name(rank)}: {result['error']}", result["hint"] or _SUM
                )
        if silent := [self._name(rank) for rank in range(self._world_size) if rank not in sums]:
            text = f"did not end within {self._timeout_s:.0f} s on {', '.join(silent[:8])}"
            return _problem("all-reduce", text, _SUM)
        return Check("all-reduce", f"{sums[0]['backend']} works on all {self._world_size} ranks")

    def _name(self, rank: int) -> str:
        return f"rank {rank} ({where})" if (where := self._hear("here", rank)) else f"rank {rank}"

    def say(self, key: str, value: object) -> None:
        """Leave a key of this rank."""
        self._store.set(f"{key}/{self._rank}", json.dumps(value))

    def _hear(self, key: str, rank: int) -> Any:  # noqa: ANN401 - as it was said
        """What a rank has said; None where nothing was."""
        name = f"{key}/{rank}"
        return json.loads(self._store.get(name)) if self._store.check([name]) else None


def _attempt(function: Callable[..., dict[str, Any]], *arguments: Any) -> dict[str, Any]:  # noqa: ANN401
    """Call a function; what came of it."""
    try:
        return function(*arguments)
    except ScanNetPrepError as error:
        return {"error": error.message, "hint": error.hint}
    except Exception as error:  # noqa: BLE001 - whatever a backend raises is told
        return {"error": f"{type(error).__name__}: {error}"[:300].partition("\n")[0], "hint": ""}


def _find_facts(place: str, rank: int, world_size: int) -> dict[str, Any]:
    """What all ranks must agree on."""
    import numpy as np
    import torch

    from scannet_prep.training.dataset import ScanNet
    from scannet_prep.training.samplers import PointBudgetBatchSampler

    with ScanNet(place, split="train") as dataset:
        sampler = PointBudgetBatchSampler(
            dataset, max_points=_MAX_POINTS, rank=rank, world_size=world_size
        )
        versions = {
            "numpy": np.__version__,
            "torch": str(torch.__version__),
            "scannet_prep": VERSION,
        }
        seen = {"scenes": len(dataset), "digest of the scenes": dataset.digest}
        return (
            seen
            | versions
            | {"steps of the epoch": len(sampler), "plan of the epoch": sampler.digest}
        )


def _all_reduce(
    store: Any,
    rank: int,
    world_size: int,
    local_rank: int,
    timeout_s: float,  # noqa: ANN401
) -> dict[str, Any]:
    """Let all ranks add up a number: with nccl where there are GPUs, else with gloo."""
    import torch
    from torch import distributed

    backend, device = "gloo", torch.device("cpu")
    if torch.cuda.is_available() and distributed.is_nccl_available():
        backend, device = "nccl", torch.device("cuda", local_rank)
        torch.cuda.set_device(device)
    limit = timedelta(seconds=timeout_s)
    distributed.init_process_group(
        backend, store=store, rank=rank, world_size=world_size, timeout=limit
    )
    total = torch.ones(1, device=device)
    distributed.all_reduce(total)
    if total.item() != world_size:  # which waits for the GPU
        raise UsageError(f"{backend} adds {world_size} ones up to {total.item()}", "")
    distributed.destroy_process_group()
    return {"backend": backend}


def _problem(topic: str, message: str, hint: str) -> Check:
    return Check(topic, message, "problem", hint)
