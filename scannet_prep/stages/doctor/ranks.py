"""`doctor --ddp`: whether all ranks of a job are there, agree, and can work together; else, which one is the reason.

A collective operation only says that somebody is missing, and says it late. So before the first one, every rank leaves
its own keys in the store of the job; rank 0 looks at them until the time is up, and tells the others what to do:

    here/RANK      host and process: it has started
    facts/RANK     scenes, plan and versions, as it sees them, or why it cannot see them
    verdict        from rank 0: the problems of each rank; without any, the all-reduce comes next
    sum/RANK       how that went
    end, bye/RANK  rank 0, and then each other, has told what it has found: all may end
"""

from __future__ import annotations

import json
import os
import socket
import statistics
import threading
import time
from collections import Counter
from collections.abc import Callable, Collection, Mapping
from contextlib import suppress
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

from scannet_prep.errors import ScanNetPrepError, UsageError
from scannet_prep.stages.doctor.check import Check, Severity
from scannet_prep.version import VERSION

_LOOK_S, _GRACE_S, _GOODBYE_S = 0.05, 5.0, 2.0
_SLOW_S, _SLOW_FACTOR = 3.0, 3.0
_START = "torchrun --nproc_per_node=2 -m scannet_prep doctor --ddp PLACE"
_HINTS = {
    "scenes": "give all ranks the same folder; copy the archive to every machine, and verify it there",
    "digest of the scenes": "give all ranks the same folder; copy the archive to every machine, and verify it there",
}
_OTHER_HINT = "install the same versions of NumPy, PyTorch and scannet-prep on all machines"


@dataclass(frozen=True, slots=True)
class RankReport:
    """What one rank tells.

    Attributes:
        rank: Its number.
        world_size: Number of ranks.
        checks: Of rank 0, everything that was found; of the others, their own problems.
        hangs: Whether something hangs still, so that the process must not wait for it.
        seconds: How long it took.
    """

    rank: int
    world_size: int
    checks: tuple[Check, ...]
    hangs: bool
    seconds: float

    @property
    def problems(self) -> list[Check]:
        """What is going to hurt."""
        return [check for check in self.checks if check.severity is Severity.PROBLEM]


def run(
    place: str, environ: Mapping[str, str], tell: Callable[[RankReport], object], *, max_points: int, timeout_s: float
) -> RankReport:
    """Compare the ranks of a job; to be called on all of them, under torchrun.

    Args:
        place: Folder or archive of processed scenes.
        environ: The environment, as torchrun sets it: RANK, WORLD_SIZE, MASTER_ADDR, MASTER_PORT.
        tell: Called with the report before any rank ends: torchrun ends all of them as soon as one has ended badly.
        max_points: Budget of a batch.
        timeout_s: How long to wait for the ranks, and again for the all-reduce.

    Raises:
        UsageError: PyTorch is not installed, or this is not a rank of a job.
    """
    started_s = time.monotonic()
    names = ("RANK", "WORLD_SIZE", "MASTER_PORT")
    try:
        rank, world_size, port = (int(environ[name]) for name in names)
        host = environ["MASTER_ADDR"]
    except (KeyError, ValueError):
        message = "this is not a rank of a job: RANK, WORLD_SIZE, MASTER_ADDR and MASTER_PORT must be set"
        raise UsageError(message, f"start it as you start training: {_START}") from None
    if not 0 <= rank < world_size:
        raise UsageError(f"RANK is {rank}, WORLD_SIZE is {world_size}", f"start it as you start training: {_START}")
    try:
        import torch.distributed
    except ImportError:
        raise UsageError("--ddp needs PyTorch, which is not installed", "pip install torch") from None
    is_agents = environ.get("TORCHELASTIC_USE_AGENT_STORE") == "True"  # then torchrun itself keeps the store
    limit = timedelta(seconds=timeout_s)
    try:
        store = torch.distributed.TCPStore(host, port, None, rank == 0 and not is_agents, limit, wait_for_workers=False)
    except RuntimeError as error:
        whose = "the port is used by another job, or" if rank == 0 else "rank 0 has not started, or"
        hint = f"{whose} a firewall is between: nc -vz {host} {port}; look at MASTER_ADDR and MASTER_PORT"
        text = f"rank {rank} cannot reach the store of the job at {host}:{port}: {str(error).splitlines()[0][:200]}"
        check = Check("ranks", Severity.PROBLEM, text, hint)
        report = RankReport(rank, world_size, (check,), False, round(time.monotonic() - started_s, 3))
        tell(report)
        return report
    prefixed = torch.distributed.PrefixStore("scannet-prep-doctor", store)
    member = _Rank(prefixed, rank, world_size, timeout_s)
    facts = _Task(lambda: _find_facts(place, rank, world_size, max_points))
    local_rank = int(environ.get("LOCAL_RANK", rank))
    checks = (member.lead if rank == 0 else member.follow)(facts, local_rank)
    report = RankReport(rank, world_size, tuple(checks), member.hangs, round(time.monotonic() - started_s, 3))
    member.part(lambda: tell(report))
    return report


class _Task(threading.Thread):
    """Something that may hang, and then is left behind.

    Attributes:
        result: What it gives, with the seconds it took; or `error` and `hint` where it fails.
    """

    def __init__(self, function: Callable[[], dict[str, Any]]) -> None:
        super().__init__(daemon=True)
        self._function = function
        self.result: dict[str, Any] = {}
        self.start()

    def run(self) -> None:
        started_s = time.monotonic()
        try:
            self.result = self._function() | {"seconds": time.monotonic() - started_s}
        except ScanNetPrepError as error:
            self.result = {"error": error.message, "hint": error.hint}
        except Exception as error:  # noqa: BLE001 - whatever a backend raises is told
            self.result = {"error": f"{type(error).__name__}: {str(error).splitlines()[0][:300] if str(error) else ''}"}


class _Rank:
    """One rank, and what it says to the others through the store."""

    def __init__(self, store: Any, rank: int, world_size: int, timeout_s: float) -> None:  # noqa: ANN401 - of torch
        self._store, self._rank, self._world_size = store, rank, world_size
        self._deadline_s, self._timeout_s = time.monotonic() + timeout_s, timeout_s
        self._came: list[int] = []  # of the first rank: those that it has seen
        self.hangs = False
        self._say("here", {"host": socket.gethostname(), "pid": os.getpid()})

    def follow(self, facts: _Task, local_rank: int) -> list[Check]:
        """Do what every rank does but the first; gives its own problems."""
        self._finish(facts, "facts")
        problems = self._hear_verdict()
        if problems is None:
            return [_problem("ranks", f"rank {self._rank}: rank 0 does not answer", "look at what rank 0 says")]
        if not problems:
            result = self._finish(self._start_adding(local_rank), "sum")
            if "error" in result:
                problems = [_all_reduce_failed(self._rank, result)]
        return [check for check in problems if check.values.get("rank") == self._rank]

    def lead(self, facts: _Task, local_rank: int) -> list[Check]:
        """Do what the first rank does: look at all of them, and decide; gives everything that was found."""
        came, found, times = self._watch(facts)
        checks = [*_judge_presence(self._world_size, came, found, times), *_judge_facts(came, found)]
        problems = [check for check in checks if check.severity is Severity.PROBLEM]
        self._say("verdict", {"problems": [[*_plain(check)] for check in problems]})
        if not problems:
            checks.append(_judge_sums(self._world_size, came, self._watch_sums(self._start_adding(local_rank))))
        self._came = [*came]
        return checks

    def part(self, tell: Callable[[], object]) -> None:
        """Tell what was found, the first rank before all others, and wait until all have told it."""
        if self._rank:
            with suppress(RuntimeError):
                self._store.wait(["end/0"], timedelta(seconds=self._timeout_s + _GRACE_S))
        tell()
        self._say("end" if self._rank == 0 else "bye", {})
        self._wait_for("bye", [rank for rank in self._came if rank], time.monotonic() + _GOODBYE_S)

    def _watch(self, facts: _Task) -> tuple[dict[int, Any], dict[int, Any], dict[int, float]]:
        """Look until all ranks have told their facts, or the time is up: who came, with which facts, and when."""
        came: dict[int, Any] = {}
        found: dict[int, Any] = {}
        times: dict[int, float] = {}
        while time.monotonic() < self._deadline_s and len(found) < self._world_size:
            if facts.result and 0 not in found:
                self._say("facts", facts.result)
            for rank, value in self._look("here", set(range(self._world_size)) - came.keys()).items():
                came[rank], times[rank] = value, time.monotonic()
            found |= self._look("facts", came.keys() - found.keys())
            time.sleep(_LOOK_S)
        self.hangs |= not facts.result
        return came, found, times

    def _start_adding(self, local_rank: int) -> _Task:
        """Begin the all-reduce."""
        self._deadline_s = time.monotonic() + self._timeout_s
        return _Task(lambda: _all_reduce(self._store, self._rank, self._world_size, local_rank, self._timeout_s))

    def _watch_sums(self, task: _Task) -> dict[int, Any]:
        """Look until all ranks have told of their all-reduce, one has failed, or the time is up; in order of time."""
        sums: dict[int, Any] = {}
        deadline_s = self._deadline_s + _GRACE_S
        while time.monotonic() < deadline_s and len(sums) < self._world_size:
            if task.result and 0 not in sums:
                self._say("sum", task.result)
            sums |= self._look("sum", set(range(self._world_size)) - sums.keys())
            if any("error" in result for result in sums.values()):  # the others wait for it, perhaps for ever
                deadline_s = min(deadline_s, time.monotonic() + _GOODBYE_S)
            time.sleep(_LOOK_S)
        self.hangs |= not task.result
        return sums

    def _finish(self, task: _Task, key: str) -> dict[str, Any]:
        """Wait for a task as long as there is time, and tell the others what came of it, if anything did."""
        task.join(max(0.0, self._deadline_s - time.monotonic()))
        if not task.result:
            self.hangs = True
            return {"error": f"did not end within {self._timeout_s:.0f} s"}
        self._say(key, task.result)
        return task.result

    def _hear_verdict(self) -> list[Check] | None:
        try:
            self._store.wait(["verdict/0"], timedelta(seconds=self._timeout_s + _GRACE_S))
            value = json.loads(self._store.get("verdict/0"))
        except RuntimeError:
            return None
        return [_problem(topic, message, hint, rank=rank) for topic, message, hint, rank in value["problems"]]

    def _say(self, key: str, value: object) -> None:
        with suppress(RuntimeError):  # the store is gone: who kept it tells why
            self._store.set(f"{key}/{self._rank}", json.dumps(value))

    def _look(self, key: str, ranks: Collection[int]) -> dict[int, Any]:
        """What those of the ranks have said that have said something."""
        names = {rank: f"{key}/{rank}" for rank in ranks}
        return {rank: json.loads(self._store.get(name)) for rank, name in names.items() if self._store.check([name])}

    def _wait_for(self, key: str, ranks: Collection[int], deadline_s: float) -> dict[int, Any]:
        found: dict[int, Any] = {}
        while len(found) < len(ranks) and time.monotonic() < deadline_s:
            found |= self._look(key, set(ranks) - found.keys())
            time.sleep(_LOOK_S)
        return found


def _find_facts(place: str, rank: int, world_size: int, max_points: int) -> dict[str, Any]:
    """What all ranks must agree on."""
    import numpy as np
    import torch

    from scannet_prep.dataset import ScanNet
    from scannet_prep.sampling.samplers import PointBudgetBatchSampler

    with ScanNet(place, split="train") as dataset:
        sampler = PointBudgetBatchSampler(dataset, max_points=max_points, rank=rank, world_size=world_size)
        versions = {"numpy": np.__version__, "torch": str(torch.__version__), "scannet_prep": VERSION}
        seen = {"scenes": len(dataset), "digest of the scenes": dataset.digest}
        return seen | versions | {"steps of the epoch": len(sampler), "plan of the epoch": sampler.digest}


def _all_reduce(store: Any, rank: int, world_size: int, local_rank: int, timeout_s: float) -> dict[str, Any]:  # noqa: ANN401
    """Let all ranks add up a number: with nccl where there are GPUs, else with gloo."""
    import torch
    from torch import distributed

    has_gpu = torch.cuda.is_available() and distributed.is_nccl_available()
    if has_gpu and local_rank >= torch.cuda.device_count():
        message = f"LOCAL_RANK is {local_rank}, and there are {torch.cuda.device_count()} GPUs"
        raise UsageError(message, "start as many ranks a machine as it has GPUs: --nproc_per_node=gpu")
    backend, device = ("nccl", f"cuda:{local_rank}") if has_gpu else ("gloo", "cpu")
    if has_gpu:
        torch.cuda.set_device(local_rank)
    limit = timedelta(seconds=timeout_s)
    distributed.init_process_group(backend, store=store, rank=rank, world_size=world_size, timeout=limit)
    total = torch.full((1,), rank + 1, dtype=torch.int64, device=device)
    distributed.all_reduce(total)
    found, expected = int(total.item()), world_size * (world_size + 1) // 2
    distributed.destroy_process_group()
    if found != expected:
        raise UsageError(f"{backend} added up to {found}, expected {expected}", "look for errors of the network")
    return {"backend": backend}


def _judge_presence(
    world_size: int, came: Mapping[int, Any], found: Mapping[int, Any], times: Mapping[int, float]
) -> list[Check]:
    checks = []
    for rank in range(world_size):
        who = _name(rank, came)
        if rank not in came:
            hint = "was it started, on every machine, with the same MASTER_ADDR, MASTER_PORT and number of ranks?"
            checks.append(_problem("ranks", f"{who} is missing: it never came", hint, rank=rank))
        elif rank not in found:
            hint = "its file system is slow or hangs: scannet-prep doctor PLACE on that machine"
            checks.append(_problem("ranks", f"{who} came, but could not read the scenes in time", hint, rank=rank))
        elif "error" in found[rank]:
            checks.append(_problem("ranks", f"{who}: {found[rank]['error']}", found[rank].get("hint", ""), rank=rank))
    first_s = min(times.values(), default=0.0)
    waits = {rank: (times[rank] - first_s, facts.get("seconds", 0.0)) for rank, facts in found.items()}
    usual_s = statistics.median_low(sum(wait) for wait in waits.values()) if waits else 0.0
    for rank, (late_s, read_s) in waits.items():
        if late_s + read_s > max(_SLOW_S, _SLOW_FACTOR * usual_s):
            text = f"{_name(rank, came)} is slow: came {late_s:.1f} s after the first, read for {read_s:.1f} s"
            hint = "all others wait for it in every step: look at its disk and its load"
            checks.append(Check("ranks", Severity.NOTE, text, hint, {"rank": rank}))
    if not any(check.severity is Severity.PROBLEM for check in checks):
        hosts = sorted({value["host"] for value in came.values()})
        text = f"all {world_size} are there, on {', '.join(hosts[:4])}{' and others' if len(hosts) > 4 else ''}"
        last = max(waits, key=lambda rank: sum(waits[rank]))
        text += f"; the last, rank {last}, was ready {sum(waits[last]):.1f} s after the first came"
        checks.insert(0, Check("ranks", Severity.OK, text, values={"hosts": hosts}))
    return checks


def _judge_facts(came: Mapping[int, Any], found: Mapping[int, Any]) -> list[Check]:
    """Compare the facts of all ranks that have some. What most of them have is right; else what the first has."""
    whole = {rank: found[rank] for rank in sorted(found) if "error" not in found[rank]}
    if not whole:
        return []
    checks, usual = [], dict[str, Any]()
    for name in (name for name in next(iter(whole.values())) if name != "seconds"):
        counts = Counter(facts[name] for facts in whole.values())
        usual[name], count = counts.most_common(1)[0]  # of equally common ones, the first that was met
        for rank, facts in whole.items():
            if facts[name] != usual[name]:
                others = f"{count} {'rank has' if count == 1 else 'ranks have'} {usual[name]}"
                text = f"{_name(rank, came)}: {name}: {facts[name]}; {others}"
                checks.append(_problem("agreement", text, _HINTS.get(name, _OTHER_HINT), rank=rank))
    if not checks:
        text = ", ".join(f"{name} {value}" for name, value in usual.items())
        checks.append(Check("agreement", Severity.OK, text, values=usual))
    return checks


def _judge_sums(world_size: int, came: Mapping[int, Any], sums: Mapping[int, Any]) -> Check:
    failed = {rank: result for rank, result in sums.items() if "error" in result}
    if failed:
        return _all_reduce_failed(*next(iter(failed.items())))  # the first; the others failed because of it
    if silent := [rank for rank in range(world_size) if rank not in sums]:
        names = ", ".join(_name(rank, came) for rank in silent[:8])
        hint = "its network interface: NCCL_DEBUG=INFO, NCCL_SOCKET_IFNAME, GLOO_SOCKET_IFNAME; docs/training-hangs.md"
        return _problem("all-reduce", f"did not end in time on {names}", hint, rank=silent[0])
    backend, seconds = sums[0]["backend"], max(result["seconds"] for result in sums.values())
    text = f"{backend} works on all {world_size} ranks, {seconds:.2f} s with its start"
    return Check("all-reduce", Severity.OK, text, values={"backend": backend, "seconds": round(seconds, 3)})


def _all_reduce_failed(rank: int, result: Mapping[str, str]) -> Check:
    hint = result.get("hint", "") or "NCCL_DEBUG=INFO, or TORCH_DISTRIBUTED_DEBUG=DETAIL, tells more"
    return _problem("all-reduce", f"rank {rank}: {result['error']}", hint, rank=rank)


def _name(rank: int, came: Mapping[int, Any]) -> str:
    return f"rank {rank} ({came[rank]['host']}, process {came[rank]['pid']})" if rank in came else f"rank {rank}"


def _problem(topic: str, message: str, hint: str, **values: object) -> Check:
    return Check(topic, Severity.PROBLEM, message, hint, dict(values))


def _plain(check: Check) -> tuple[str, str, str, int]:
    return check.topic, check.message, check.hint, check.values["rank"]
