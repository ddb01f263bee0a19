"""Checks of the machine, the folder, the server and the GPUs, and of the ranks of a job.

Each check makes one line of the output. One that fails, or does not answer in time, becomes a
problem in its line, and the others are still made.
"""

from __future__ import annotations

import os
import platform
import re
import shutil
import subprocess
import threading
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from datetime import timedelta
from importlib import metadata
from importlib.util import find_spec
from pathlib import Path

from msgspec.structs import replace

from scannet_prep.base.files import RESERVE_BYTES, run_lock
from scannet_prep.base.findings import Finding
from scannet_prep.base.machine import find_core_limits, find_memory_limits
from scannet_prep.base.text import count_of, format_bytes
from scannet_prep.base.version import VERSION
from scannet_prep.errors import OutputError, ScanNetPrepError

TIME_LIMIT_S = 7.0
# How long a rank waits for the others.
RANK_TIME_LIMIT_S = 60.0

_PACKAGES = (
    "numpy",
    "plyfile",
    "zstandard",
    "pandas",
    "requests",
    "msgspec",
    "deflate",
    "pillow",
)
_LOW_OPEN_FILES = 4096
_LOW_SHM_BYTES = 1 << 30
# Addresses of proxies may contain passwords, so only the names of these variables are shown.
_CONNECTION_NAME = re.compile(
    r"\w+_PROXY|\w+_CA_BUNDLE|SSL_CERT_\w+|SCANNET_PREP_\w+", re.IGNORECASE
)
_NETWORK_NAME = re.compile(r"(TORCH_)?NCCL_\w+|GLOO_\w+")
# The point budget of a batch, for the plan of the epoch that the ranks compare.
_MAX_POINTS = 600_000
_SUMMED_BYTES = 64 << 20
_HINT_SERVER = "only downloads need it: download on a machine with a network"
_HINT_RANKS = (
    "start it as you start training: torchrun --nproc_per_node=2 -m scannet_prep doctor --ddp "
    "PLACE; check MASTER_ADDR, NCCL_SOCKET_IFNAME, GLOO_SOCKET_IFNAME and nvidia-smi topo -m; "
    "see docs/training-hangs.md"
)


def check_machine(
    place: str,
    environ: Mapping[str, str],
    base_url: str,
) -> list[Finding]:
    """Make all checks of this machine. No exception is raised.

    Args:
        place: A folder or an archive of scenes: path or address; empty for none, then only the
            current folder is checked.
        environ: The environment of this process.
        base_url: Address of the server that `download` fetches from.

    Returns:
        A finding for each check, in a fixed order. Its subject is the topic.
    """
    checks = {
        "versions": check_versions,
        "cores": lambda: check_cores(environ),
        "memory": check_memory,
        "shared memory": check_shared_memory,
        "open files": check_open_files,
        "environment": lambda: check_environment(environ),
        "folder": lambda: check_folder(Path(place)),
        "scenes": lambda: check_scenes(place),
        "server": lambda: check_server(base_url),
        "GPU": check_gpu,
    }
    if "://" in place:
        del checks["folder"]
    if not place:
        del checks["scenes"]
    return [_check_in_time(topic, check) for topic, check in checks.items()]


def check_ranks(place: str) -> list[Finding]:
    """Compare the ranks of a job, and time an all-reduce. To be called on all ranks.

    Args:
        place: Folder or archive of processed scenes.

    Returns:
        A finding for each check, up to the first problem.
    """
    topic = f"rank {os.environ.get('RANK', '?')}"
    findings = [_attempt(topic, lambda: compare_ranks(place), _HINT_RANKS)]
    if findings[0].severity == "ok":
        findings.append(_attempt("all-reduce", time_all_reduce, _HINT_RANKS))
    return findings


def check_versions() -> Finding:
    """Find the versions of Python, of this package, and of its dependencies."""
    versions = [f"scannet-prep {VERSION}", f"python {platform.python_version()}"]
    versions += [f"{name} {metadata.version(name)}" for name in _PACKAGES]
    versions.append(f"{platform.system()} {platform.machine()}")
    return _ok(", ".join(versions))


def check_cores(environ: Mapping[str, str]) -> Finding:
    """Find the cores of the machine, and the number that may be used."""
    limits = find_core_limits(environ)
    names = [f"{name} {number}" for name, number in limits.items()]
    count = min(limits.values())
    return _ok(f"{count} of {os.cpu_count()} may be used ({', '.join(names)})")


def check_memory() -> Finding:
    """Find the memory of the machine, and the limits on it."""
    names = [f"{name} {format_bytes(size)}" for name, size in find_memory_limits().items()]
    return _ok(", ".join(names) or "not known on Windows")


def check_shared_memory() -> Finding:
    """Check the file system that holds shared memory and semaphores."""
    path = Path("/dev/shm")  # noqa: S108
    if not path.is_dir():  # not Linux
        return _ok(f"there is no {path}")
    usage = shutil.disk_usage(path)
    text = f"{format_bytes(usage.free)} of {format_bytes(usage.total)} free at {path}"
    if usage.free < _LOW_SHM_BYTES:
        text += "; batches of collate_torch need none of it, but NCCL and semaphores do"
        return _note(
            text, "see what fills it: ls -lS /dev/shm; in a container: docker run --shm-size=8g"
        )
    return _ok(text)


def check_open_files() -> Finding:
    """Check the limit of open files of a process."""
    try:
        import resource
    except ImportError:
        return _ok("not limited on Windows")
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    text = f"soft limit {soft:,}, hard limit {hard:,}"
    if soft < _LOW_OPEN_FILES:
        return _note(f"{text}; low for many workers", "ulimit -n 65536")
    return _ok(text)


def check_environment(environ: Mapping[str, str]) -> Finding:
    """List the variables that affect connections, without values that may hold passwords."""
    shown = []
    for name, value in sorted(environ.items()):
        if _CONNECTION_NAME.fullmatch(name):
            shown.append(name)
        elif _NETWORK_NAME.fullmatch(name):
            shown.append(f"{name}={value}")
    names = ", ".join(shown)
    return _ok(f"set: {names or 'no proxy, certificates or NCCL variables'}")


def check_folder(path: Path) -> Finding:
    """Check the file system of a folder, or of the folder of a file: space and locks."""
    folder = path.absolute()
    if not path.is_dir():
        folder = folder.parent
    usage = shutil.disk_usage(folder)
    text = f"{folder}: {_find_type(folder)}, {format_bytes(usage.free)} free"
    # The size is 0 if the file system has none.
    if usage.total and usage.free < RESERVE_BYTES:
        return _problem(f"{text}; it is full", "free some space")
    if not os.access(folder, os.W_OK):
        return _note(f"{text}; nothing can be written here", "write to another folder: -o DIR")
    if not hasattr(os, "statvfs"):
        return _note(f"{text}; on Windows, scenes can be read but not made", "use WSL")
    try:
        with run_lock(folder), run_lock(folder):
            text += "; file locks do not work: a second run is not kept out"
            return _problem(text, "let only one run at a time write there")
    except OutputError:  # the second run is kept out
        return _ok(f"{text}; locks work")


def check_scenes(place: str) -> Finding:
    """Count the scenes of a place. Their files are not read."""
    from scannet_prep.source.place import open_place

    opened = open_place(place)
    count = count_of(len(opened.scenes), "scene")
    text = f"{opened.name}: {count} ({opened.kind})"
    if opened.failures:
        text += f"; {len(opened.failures):,} failed, such as {min(opened.failures)}"
        return _problem(text, "scannet-prep info shows the reasons")
    return _ok(text)


def check_server(base_url: str) -> Finding:
    """Check that the server of the release answers, whatever the status."""
    from scannet_prep.remote.addresses import ADDRESS, hide_secrets
    from scannet_prep.remote.http import HttpClient, RequestError

    shown_url = hide_secrets(base_url)
    if not ADDRESS.fullmatch(base_url):
        hint = "export SCANNET_PREP_BASE_URL=https://HOST/scannet/, or unset SCANNET_PREP_BASE_URL"
        return _problem(f"{shown_url} is not an address", hint)
    try:
        with HttpClient(timeout_s=3.0).open(base_url.rstrip("/") + "/ScanNet_TOS.pdf"):
            return _ok(f"{shown_url} answers")
    except RequestError as error:
        return _note(f"{shown_url}; {error.message}", error.hint or _HINT_SERVER)


def check_gpu() -> Finding:
    """Check the GPUs and NCCL, as PyTorch sees them."""
    if find_spec("torch") is None:
        return _note("PyTorch is not installed", "to train: pip install torch")
    import torch

    text = f"PyTorch {torch.__version__}, built for CUDA {torch.version.cuda}"
    if torch.cuda.is_available():
        text += f": {torch.cuda.device_count()} x {torch.cuda.get_device_name()}"
        # PyTorch has no NCCL on Windows.
        with suppress(AttributeError):
            text += f"; NCCL {torch.cuda.nccl.version()}"
        return _ok(text)
    if any(Path("/dev").glob("nvidia[0-9]*")):
        hint = "compare with nvidia-smi; in a container: docker run --gpus all, apptainer exec --nv"
        return _problem(f"{text}: there is a GPU, but PyTorch cannot use it", hint)
    return _ok(f"{text}: no GPU")


def compare_ranks(place: str) -> Finding:
    """Join the ranks of the job, and compare their scenes and versions."""
    import torch
    from torch import distributed

    from scannet_prep.training.dataset import ScanNet
    from scannet_prep.training.samplers import PointBudgetBatchSampler

    dataset = ScanNet(place, split="train")
    timeout = timedelta(seconds=RANK_TIME_LIMIT_S)
    backend = "cpu:gloo,cuda:nccl" if torch.cuda.is_available() else "gloo"
    distributed.init_process_group(backend, timeout=timeout)
    sampler = PointBudgetBatchSampler(dataset, max_points=_MAX_POINTS)
    # The first iteration raises UsageError on all ranks if one of them differs.
    next(iter(sampler))
    rank_count = distributed.get_world_size()
    return _ok(f"{rank_count} ranks have the same {count_of(len(dataset), 'scene')} and versions")


def time_all_reduce() -> Finding:
    """Add numbers over all ranks, by NCCL if there are GPUs."""
    import torch
    from torch import distributed

    device = "cpu"
    if torch.cuda.is_available():
        device = f"cuda:{os.environ.get('LOCAL_RANK', '0')}"
    numbers = torch.ones(_SUMMED_BYTES // 4, device=device)
    # The first all-reduce connects the ranks.
    distributed.all_reduce(torch.ones(1, device=device))
    started_s = time.monotonic()
    distributed.all_reduce(numbers)
    # Reading a number waits for the GPU.
    found = numbers[-1].item()
    milliseconds = (time.monotonic() - started_s) * 1000
    expected = distributed.get_world_size()
    distributed.destroy_process_group()
    if found != expected:
        return _problem(f"{expected} ones add up to {found}", _HINT_RANKS)
    return _ok(f"{format_bytes(_SUMMED_BYTES)} on {device} in {milliseconds:,.0f} ms")


def _check_in_time(topic: str, check: Callable[[], Finding]) -> Finding:
    """Make a check in a thread, which is left behind if it does not answer in time."""
    results: list[Finding] = []
    thread = threading.Thread(target=lambda: results.append(_attempt(topic, check)), daemon=True)
    thread.start()
    thread.join(TIME_LIMIT_S)
    if results:
        return results[0]
    text = f"no answer within {TIME_LIMIT_S:.0f} s"
    if topic == "server":
        # Without a network, looking up its name may take longer.
        return replace(_note(text, _HINT_SERVER), subject=topic)
    hint = (
        "try again, in case it was only slow; if not, the file system, the network or the driver "
        "hangs: ask the administrator"
    )
    return Finding(subject=topic, message=text, severity="problem", hint=hint)


def _attempt(
    topic: str,
    check: Callable[[], Finding],
    hint: str = "",
) -> Finding:
    """Make a check, and turn its exception into a problem.

    Args:
        topic: The subject of the finding.
        check: The check.
        hint: What to do about an exception that is not one of this package.
    """
    try:
        found = check()
    except ScanNetPrepError as error:
        found = _problem(error.message, error.hint)
    except ModuleNotFoundError as error:
        found = _problem(f"{error.name} is not installed", f"pip install {error.name}")
    except Exception as error:  # noqa: BLE001 - a driver may raise anything
        first_line, *_ = f"{type(error).__name__}: {error}".splitlines()
        found = _problem(first_line, hint)
    return replace(found, subject=topic)


def _find_type(folder: Path) -> str:
    """Find the type of the file system that holds a folder."""
    # Only GNU stat has these options.
    command = ["stat", "-f", "-c", "%T", str(folder)]
    with suppress(OSError, subprocess.CalledProcessError):
        return subprocess.check_output(command, stderr=subprocess.DEVNULL, text=True).strip()  # noqa: S603
    return "file system of unknown type"


def _ok(message: str) -> Finding:
    """Make a finding that everything is in order."""
    return Finding(message=message, severity="ok")


def _note(message: str, hint: str) -> Finding:
    """Make a finding that is worth knowing."""
    return Finding(message=message, severity="note", hint=hint)


def _problem(message: str, hint: str) -> Finding:
    """Make a finding of something that will cause failures."""
    return Finding(message=message, severity="problem", hint=hint)
