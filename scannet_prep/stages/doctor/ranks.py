"""`doctor --ddp`: whether all ranks of a job are there, agree, and can work together; else, which one is the reason.

A collective operation only says that somebody is missing, and says it late. So before the first one, every rank leaves
its own keys in the store of the job; rank 0 looks at them until the time is up, and tells the others what to do:

    here/RANK      host and process: it has started
    facts/RANK     scenes, plan and versions, as it sees them, or why it cannot see them
    verdict/0      the problems, by rank; where there are none, the all-reduce comes next
    sum/RANK       how that went
    end/0, bye/RANK  rank 0, and then each other, has told what it has found: all may end
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
from contextlib import suppress
from datetime import timedelta
from typing import Any, TypeAlias

from scannet_prep.errors import ScanNetPrepError, UsageError
from scannet_prep.stages.doctor import DoctorReport
from scannet_prep.stages.doctor.check import Check, Severity
from scannet_prep.version import VERSION

Results: TypeAlias = "dict[int, dict[str, Any]]"

_LOOK_S, _GRACE_S, _GOODBYE_S = 0.05, 5.0, 2.0
_SLOW_S, _SLOW_FACTOR = 3.0, 3.0
_START = "start it as you start training: torchrun --nproc_per_node=2 -m scannet_prep doctor --ddp PLACE"
_MISSING = "was it started, on every machine, with the same MASTER_ADDR, MASTER_PORT and number of ranks?"
_STUCK = "its file system is slow or hangs: scannet-prep doctor PLACE on that machine"
_DIFFERENT = "give all ranks the same scenes, verified, and the same versions of NumPy, PyTorch and scannet-prep"
_SUM = "look at its network: NCCL_DEBUG=INFO, NCCL_SOCKET_IFNAME, GLOO_SOCKET_IFNAME; docs/training-hangs.md"


def run(
    place: str, environ: Mapping[str, str], tell: Callable[[DoctorReport], object], *, max_points: int, timeout_s: float
) -> DoctorReport:
    """Compare the ranks of a job; to be called on all of them, under torchrun.

    Args:
        place: Folder or archive of processed scenes.
        environ: The environment, as torchrun sets it: RANK, WORLD_SIZE, MASTER_ADDR, MASTER_PORT.
        tell: Called with the report before any rank ends: torchrun ends all of them as soon as one has ended badly.
        max_points: Budget of a batch.
        timeout_s: How long to wait for the ranks, and again for the all-reduce.

    Returns:
        On rank 0, everything that was found; on the others, their own problems.

    Raises:
        UsageError: PyTorch is not installed, or this is not a rank of a job.
    """
    started_s = time.monotonic()
    try:
        rank, world_size, port = (int(environ[name]) for name in ("RANK", "WORLD_SIZE", "MASTER_PORT"))
        host, local_rank = environ["MASTER_ADDR"], int(environ.get("LOCAL_RANK", rank))
    except (KeyError, ValueError):
        message = "this is not a rank of a job: RANK, WORLD_SIZE, MASTER_ADDR and MASTER_PORT must be set"
        raise UsageError(message, _START) from None
    if not 0 <= rank < world_size:
        raise UsageError(f"RANK is {rank}, WORLD_SIZE is {world_size}: the first must be less", _START)
    try:
        from torch import distributed
    except ImportError:
        raise UsageError("--ddp needs PyTorch, which is not installed", "pip install torch") from None

    def report(checks: list[Check], *, hangs: bool = False) -> DoctorReport:
        return DoctorReport(place, tuple(checks), round(time.monotonic() - started_s, 3), hangs)

    # torchrun itself keeps the store, if it says so.
    is_keeper = rank == 0 and environ.get("TORCHELASTIC_USE_AGENT_STORE") != "True"
    try:
        limit = timedelta(seconds=timeout_s)
        store = distributed.TCPStore(host, port, None, is_keeper, limit, wait_for_workers=False)
    except RuntimeError as error:
        whose = "another job uses the port" if is_keeper else "rank 0 has not started, or a firewall is between"
        text = f"rank {rank} cannot use the store of the job at {host}:{port}: {str(error).splitlines()[0][:200]}"
        found = report([Check("ranks", text).problem("", f"{whose}; look at MASTER_ADDR and MASTER_PORT")])
        tell(found)
        return found
    member = _Rank(distributed.PrefixStore("scannet-prep-doctor", store), rank, world_size, timeout_s)
    facts = member.exchange("facts", lambda: _find_facts(place, rank, world_size, max_points))
    checks = member.judge(facts) if rank == 0 else []
    if not (problems := member.agree(checks)):
        sums = member.exchange("sum", lambda: _all_reduce(member.store, rank, world_size, local_rank, timeout_s))
        checks.append(member.judge_sums(sums))
        problems = [] if rank == 0 else [check for check in checks if check.severity is Severity.PROBLEM]
    if rank:
        checks = [check for check in problems if check.values.get("rank") == rank]
    found = report(checks, hangs=member.hangs)
    member.part(lambda: tell(found))
    return found


class _Rank:
    """One rank, and what it says to the others through the store."""

    def __init__(self, store: Any, rank: int, world_size: int, timeout_s: float) -> None:  # noqa: ANN401 - of torch
        self.store, self._rank, self._world_size, self._timeout_s = store, rank, world_size, timeout_s
        self.hangs = False
        self._say("here", {"host": socket.gethostname(), "pid": os.getpid()})

    def exchange(self, key: str, function: Callable[[], dict[str, Any]]) -> Results:
        """Do something that may hang, and say what came of it; the first rank waits for what all say, in that order."""
        own: dict[str, Any] = {}
        threading.Thread(target=_try, args=(function, own), daemon=True).start()
        found: Results = {}
        wanted = range(self._world_size) if self._rank == 0 else [self._rank]
        deadline_s = time.monotonic() + self._timeout_s
        while time.monotonic() < deadline_s and len(found) < len(wanted):
            if "seconds" in own and self._rank not in found:
                self._say(key, own)
            for rank in set(wanted) - found.keys():
                if (result := self._hear(f"{key}/{rank}")) is not None:
                    found[rank] = result | {"at_s": time.monotonic()}
                    if key == "sum" and "error" in result:  # the others wait for it, perhaps for ever
                        deadline_s = min(deadline_s, time.monotonic() + _GOODBYE_S)
            time.sleep(_LOOK_S)
        self.hangs |= "seconds" not in own
        return found

    def agree(self, checks: list[Check]) -> list[Check]:
        """Say what the first rank has found, or hear it: the problems of all ranks."""
        problems = [check for check in checks if check.severity is Severity.PROBLEM]
        if self._rank == 0:
            self._say("verdict", [[check.topic, check.message, check.hint, check.values["rank"]] for check in problems])
            return problems
        told = self._hear("verdict/0", self._timeout_s + _GRACE_S)
        if told is None:
            return [_problem("ranks", "rank 0 does not answer", "look at what rank 0 says", self._rank)]
        return [_problem(*words) for words in told]

    def part(self, tell: Callable[[], object]) -> None:
        """Tell what was found, the first rank before all others, and wait until all have told it."""
        if self._rank:
            self._hear("end/0", self._timeout_s + _GRACE_S)
        tell()
        self._say("bye" if self._rank else "end", {})
        deadline_s = time.monotonic() + _GOODBYE_S
        for rank in range(1, self._world_size if self._rank == 0 else 0):
            if self._hear(f"here/{rank}"):
                self._hear(f"bye/{rank}", max(0.01, deadline_s - time.monotonic()))

    def judge(self, facts: Results) -> list[Check]:
        """Tell which ranks are missing, slow, or see something else than most of them."""
        checks, hosts = [], set()
        whole = {rank: dict(result) for rank, result in sorted(facts.items()) if "error" not in result}
        for rank in range(self._world_size):
            who, here = self._name(rank), self._hear(f"here/{rank}")
            hosts.add(here["host"] if here else "?")
            if rank not in facts:
                text = "came, but could not read the scenes in time" if here else "is missing: it never came"
                checks.append(_problem("ranks", f"{who} {text}", _STUCK if here else _MISSING, rank))
            elif rank not in whole:
                checks.append(_problem("ranks", f"{who}: {facts[rank]['error']}", facts[rank]["hint"], rank))
        reads_s = {rank: result.pop("seconds") for rank, result in whole.items()}
        ready_s = {rank: result.pop("at_s") for rank, result in whole.items()}
        first_s = min((ready_s[rank] - reads_s[rank] for rank in whole), default=0.0)
        usual_s = statistics.median_low(ready_s.values()) - first_s if whole else 0.0
        for rank in whole:
            if (wait_s := ready_s[rank] - first_s) > max(_SLOW_S, _SLOW_FACTOR * usual_s):
                late = f"came {wait_s - reads_s[rank]:.1f} s after the first, read for {reads_s[rank]:.1f} s"
                check = Check("ranks", f"{self._name(rank)} is slow: {late}", {"rank": rank})
                checks.append(check.note("", "all others wait for it in every step: look at its disk and its load"))
        if len(whole) == self._world_size:
            text = f"all {self._world_size} are there, on {', '.join(sorted(hosts))[:200]}"
            last = max(ready_s, key=lambda rank: ready_s[rank])
            text += f"; the last, rank {last}, was ready {ready_s[last] - first_s:.1f} s after the first came"
            checks.insert(0, Check("ranks", text, {"hosts": sorted(hosts)}))
        return checks + self._compare(whole)

    def judge_sums(self, sums: Results) -> Check:
        """Tell whether the all-reduce went well; else the first rank that failed, because of which others failed."""
        for rank, result in sums.items():
            if "error" in result:
                return _problem("all-reduce", f"{self._name(rank)}: {result['error']}", result["hint"] or _SUM, rank)
        wanted = range(self._world_size) if self._rank == 0 else [self._rank]
        if silent := [rank for rank in wanted if rank not in sums]:
            names = ", ".join(map(self._name, silent[:8]))
            return _problem("all-reduce", f"did not end within {self._timeout_s:.0f} s on {names}", _SUM, silent[0])
        backend, seconds = next(iter(sums.values()))["backend"], max(result["seconds"] for result in sums.values())
        text = f"{backend} works on all {self._world_size} ranks, {seconds:.2f} s with its start"
        return Check("all-reduce", text, {"backend": backend, "seconds": round(seconds, 3)})

    def _compare(self, facts: Results) -> list[Check]:
        """Compare what ranks see. What most of them see is right; else what the first does."""
        checks, usual = [], dict[str, Any]()
        for name in next(iter(facts.values()), {}):
            usual[name], count = Counter(result[name] for result in facts.values()).most_common(1)[0]
            for rank, result in facts.items():
                if result[name] != usual[name]:
                    others = f"{count} {'rank has' if count == 1 else 'ranks have'} {usual[name]}"
                    text = f"{self._name(rank)}: {name}: {result[name]}; {others}"
                    checks.append(_problem("agreement", text, _DIFFERENT, rank))
        if not checks and usual:
            text = ", ".join(f"{name} {value}" for name, value in usual.items())
            checks.append(Check("agreement", text, usual))
        return checks

    def _name(self, rank: int) -> str:
        here = self._hear(f"here/{rank}")
        return f"rank {rank} ({here['host']}, process {here['pid']})" if here else f"rank {rank}"

    def _say(self, key: str, value: object) -> None:
        with suppress(RuntimeError):  # the store is gone: who kept it tells why
            self.store.set(f"{key}/{self._rank}", json.dumps(value))

    def _hear(self, name: str, wait_s: float = 0.0) -> Any:  # noqa: ANN401 - as it was said
        """What was said under a name; None where nothing was, or not in time."""
        with suppress(RuntimeError):
            if wait_s:
                self.store.wait([name], timedelta(seconds=wait_s))
            if self.store.check([name]):
                return json.loads(self.store.get(name))
        return None


def _try(function: Callable[[], dict[str, Any]], found: dict[str, Any]) -> None:
    """Call a function, and put down what came of it, and at last how long it took."""
    started_s = time.monotonic()
    try:
        found.update(function())
    except ScanNetPrepError as error:
        found.update(error=error.message, hint=error.hint)
    except Exception as error:  # noqa: BLE001 - whatever a backend raises is told
        found.update(error=f"{type(error).__name__}: {error}"[:300].partition("\n")[0], hint="")
    found["seconds"] = time.monotonic() - started_s


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

    backend, device = "gloo", torch.device("cpu")
    if torch.cuda.is_available() and distributed.is_nccl_available():
        if local_rank >= torch.cuda.device_count():
            message = f"LOCAL_RANK is {local_rank}, and there are {torch.cuda.device_count()} GPUs"
            raise UsageError(message, "start as many ranks on a machine as it has GPUs: --nproc_per_node=gpu")
        backend, device = "nccl", torch.device("cuda", local_rank)
        torch.cuda.set_device(device)
    limit = timedelta(seconds=timeout_s)
    distributed.init_process_group(backend, store=store, rank=rank, world_size=world_size, timeout=limit)
    total = torch.ones(1, device=device)
    distributed.all_reduce(total)
    if total.item() != world_size:  # which waits for the GPU
        raise UsageError(f"{backend} adds {world_size} ones up to {total.item()}", "")
    distributed.destroy_process_group()
    return {"backend": backend}


def _problem(topic: str, message: str, hint: str, rank: int) -> Check:
    return Check(topic, message, {"rank": rank}).problem("", hint)
