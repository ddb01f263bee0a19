"""Checks that cannot hang: versions, what the machine grants, and what the environment says."""

from __future__ import annotations

import multiprocessing
import os
import platform
import shutil
import socket
from collections.abc import Callable, Mapping
from importlib import metadata
from pathlib import Path

from scannet_prep.remote.trouble import public_url
from scannet_prep.space import format_bytes
from scannet_prep.stages.doctor.check import Check, Severity, judge
from scannet_prep.stages.granted import find_granted_cores, find_granted_memory
from scannet_prep.version import VERSION

_NEEDED = ("numpy", "plyfile", "zstandard", "pandas", "requests", "msgspec", "deflate")
_OPTIONAL = {"numba": 'process is slower: pip install "scannet-prep[fast]"', "torch": ""}
_FEW_FILES, _MANY_FILES = 1024, 4096
_LITTLE_MEMORY_BYTES, _MEMORY_PER_CORE_BYTES = 2 << 30, 1 << 29
_SMALL_SHM_BYTES, _FULL_SHM_BYTES = 1 << 30, 16 << 20
_PROXIES = ("HTTPS_PROXY", "HTTP_PROXY", "ALL_PROXY")
_NAMES = ("NO_PROXY", "REQUESTS_CA_BUNDLE", "CURL_CA_BUNDLE", "SSL_CERT_FILE", "SCANNET_PREP_BASE_URL")
_CONTAINER_MARKS = (Path("/.dockerenv"), Path("/run/.containerenv"), Path("/.singularity.d"))

Complaint = tuple[Severity, str, str]


def check_machine(environ: Mapping[str, str]) -> list[Check]:
    """Make all checks of this module."""
    checks: tuple[tuple[str, Callable[[Mapping[str, str]], Check]], ...] = (
        ("versions", check_versions),
        ("cores", check_cores),
        ("memory", check_memory),
        ("shared memory", check_shared_memory),
        ("open files", check_open_files),
        ("environment", check_environment),
    )
    found = []
    for topic, check in checks:
        try:
            found.append(check(environ))
        except (OSError, ValueError, ImportError) as error:  # a system that has nothing of the kind
            found.append(Check(topic, Severity.NOTE, f"cannot be found out here: {error}"))
    return found


def check_versions(environ: Mapping[str, str]) -> Check:
    """Python, this package, and what it stands on."""
    versions: dict[str, str | None] = {"scannet-prep": VERSION, "python": platform.python_version()}
    for name in (*_NEEDED, *_OPTIONAL):
        try:
            versions[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            versions[name] = None
    complaints = [
        (Severity.PROBLEM, f"{name} is missing", f"pip install {name}") for name in _NEEDED if not versions[name]
    ]
    complaints += [
        (Severity.NOTE, f"{name} is not installed", hint) for name, hint in _OPTIONAL.items() if not versions[name]
    ]
    shown = ", ".join(f"{name} {version}" for name, version in versions.items() if version)
    is_container = "APPTAINER_CONTAINER" in environ or any(mark.exists() for mark in _CONTAINER_MARKS)
    where = f"{platform.system()} {platform.machine()}{', in a container' if is_container else ''}"
    return judge("versions", f"{shown}; {where}", complaints, **versions, is_container=is_container)


def check_cores(environ: Mapping[str, str]) -> Check:
    """Processors: of the machine, and those that are granted."""
    granted, machine = find_granted_cores(environ), os.cpu_count() or 1
    count = max(1, min(granted.values()))
    who = ", ".join(f"{name} {number}" for name, number in granted.items())
    hint = "to get more: srun --cpus-per-task=N, docker run --cpus=N, taskset; fewer worker processes than cores do"
    complaints: list[Complaint] = [(Severity.NOTE, "", hint)] if count < machine else []
    return judge("cores", f"{count} of {machine} may be used ({who})", complaints, granted=count, **granted)


def check_memory(environ: Mapping[str, str]) -> Check:
    """Memory: of the machine, and what is granted."""
    granted = find_granted_memory(environ)
    limit = min(granted.values())
    who = ", ".join(f"{name} {format_bytes(number)}" for name, number in granted.items())
    cores, complaints = min(find_granted_cores(environ).values()), list[Complaint]()
    if limit < _LITTLE_MEMORY_BYTES:
        hint = "ask for at least 2 GB: srun --mem=8G, docker run --memory=8g; until then --jobs 1"
        complaints.append((Severity.PROBLEM, "too little for several workers", hint))
    elif limit < _MEMORY_PER_CORE_BYTES * cores:
        jobs = limit // _MEMORY_PER_CORE_BYTES
        complaints.append((Severity.NOTE, f"less than 0.5 GB for each of {cores} cores", f"use --jobs {jobs}"))
    if "ulimit -v" in granted:
        why = "a limit of addresses stops PyTorch and CUDA, which reserve much more than they use"
        complaints.append((Severity.NOTE, why, "ulimit -v unlimited"))
    return judge("memory", f"{format_bytes(limit)} may be used ({who})", complaints, granted_bytes=limit, **granted)


def check_shared_memory(_environ: Mapping[str, str], path: Path = Path("/dev/shm")) -> Check:  # noqa: S108
    """The file system that shared memory and semaphores are in."""
    if not path.exists():
        return Check("shared memory", Severity.NOTE, f"there is no {path} on this system")
    usage = shutil.disk_usage(path)
    complaints: list[Complaint] = []
    try:
        multiprocessing.get_context("spawn").Lock()
    except OSError as error:
        why = f"no semaphore can be made ({error.strerror}): a DataLoader with workers cannot start"
        complaints.append((Severity.PROBLEM, why, f"make {path} writable, and remove what fills it"))
    if usage.free < _FULL_SHM_BYTES:
        complaints.append((Severity.PROBLEM, "it is full", f"see what fills it: ls -lS {path}; then remove it"))
    elif usage.total < _SMALL_SHM_BYTES:
        why = "small: batches of collate_torch need no room in it, other tensors of workers and NCCL do"
        complaints.append((Severity.NOTE, why, "docker run --shm-size=8g, or --ipc=host"))
    text = f"{format_bytes(usage.total)} at {path}, {format_bytes(usage.used)} used"
    return judge("shared memory", text, complaints, total_bytes=usage.total, free_bytes=usage.free)


def check_open_files(_environ: Mapping[str, str]) -> Check:
    """How many files a process may have open."""
    import resource

    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    names = ["unlimited" if number == resource.RLIM_INFINITY else f"{number:,}" for number in (soft, hard)]
    complaints: list[Complaint] = []
    if soft != resource.RLIM_INFINITY and soft < _MANY_FILES:
        is_few = soft < _FEW_FILES
        target = min(65_536, hard) if hard != resource.RLIM_INFINITY else 65_536
        hint = f"ulimit -n {target}" if target > soft else "ask the administrator for a higher hard limit"
        why = "too few for a DataLoader with workers" if is_few else "few for many workers, each tensor needs one"
        complaints.append((Severity.PROBLEM if is_few else Severity.NOTE, why, hint))
    return judge("open files", f"soft limit {names[0]}, hard limit {names[1]}", complaints, soft=soft, hard=hard)


def check_environment(environ: Mapping[str, str]) -> Check:
    """Variables that lead connections elsewhere. Passwords never show."""
    lowered = {name.upper(): value for name, value in environ.items() if name.upper() in (*_PROXIES, *_NAMES) and value}
    shown = [f"{name} ({_hide(value)})" if name in _PROXIES else name for name, value in sorted(lowered.items())]
    own = {name: value for name, value in sorted(environ.items()) if name.startswith(("NCCL_", "TORCH_NCCL_", "GLOO_"))}
    shown += [f"{name}={value}" for name, value in own.items()]
    complaints: list[Complaint] = []
    present = [name for _, name in socket.if_nameindex()]
    for name in ("NCCL_SOCKET_IFNAME", "GLOO_SOCKET_IFNAME"):
        wanted = own.get(name, "")
        if wanted and not wanted.startswith("^") and not _matches(wanted, present):
            why = f"{name} names no network interface of this machine"
            complaints.append((Severity.PROBLEM, why, f"there are: {', '.join(present)}; unset {name}, or name one"))
    text = "set: " + ", ".join(shown) if shown else "no proxy, no certificates, no NCCL variables are set"
    return judge("environment", text, complaints, names=[*sorted(lowered), *own])


def _matches(wanted: str, present: list[str]) -> bool:
    """Whether an interface fits a list of prefixes, or with `=` of names, as NCCL reads it; for gloo, prefixes do."""
    is_exact, parts = wanted.startswith("="), wanted.lstrip("=").split(",")
    return any(name == part or (not is_exact and name.startswith(part)) for name in present for part in parts)


def _hide(address: str) -> str:
    """An address without user and password, also where it has no scheme."""
    return public_url(address) if "://" in address else public_url(f"//{address}").removeprefix("//")
