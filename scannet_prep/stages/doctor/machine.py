"""Checks that cannot hang: versions, what the machine grants, and what the environment says."""

from __future__ import annotations

import multiprocessing
import os
import platform
import shutil
from collections.abc import Mapping
from importlib import metadata
from pathlib import Path

from scannet_prep.remote.trouble import public_url
from scannet_prep.space import format_bytes
from scannet_prep.stages.doctor.check import Check
from scannet_prep.stages.granted import find_granted_cores, find_granted_memory
from scannet_prep.version import VERSION

_NEEDED = ("numpy", "plyfile", "zstandard", "pandas", "requests", "msgspec", "deflate")
_OPTIONAL = {"numba": 'process is faster with it: pip install "scannet-prep[fast]"', "torch": ""}
_FEW_FILES, _MANY_FILES = 1024, 4096
_LITTLE_MEMORY_BYTES, _SMALL_SHM_BYTES, _FULL_SHM_BYTES = 2 << 30, 1 << 30, 16 << 20
_PROXIES = ("HTTPS_PROXY", "HTTP_PROXY", "ALL_PROXY")
_NAMES = ("NO_PROXY", "REQUESTS_CA_BUNDLE", "CURL_CA_BUNDLE", "SSL_CERT_FILE", "SCANNET_PREP_BASE_URL")
_CONTAINER_MARKS = (Path("/.dockerenv"), Path("/run/.containerenv"), Path("/.singularity.d"))


def check_machine(environ: Mapping[str, str]) -> list[Check]:
    """Make all checks of this module."""
    found = []
    for check in (check_versions, check_cores, check_memory, check_shared_memory, check_open_files, check_environment):
        try:
            found.append(check(environ))
        except (OSError, ImportError) as error:  # a system that has nothing of the kind
            topic = check.__name__.removeprefix("check_").replace("_", " ")
            found.append(Check(topic, "").note(f"cannot be found out here: {error}", ""))
    return found


def check_versions(_environ: Mapping[str, str]) -> Check:
    """Python, this package, and what it stands on."""
    versions: dict[str, str | None] = {"scannet-prep": VERSION, "python": platform.python_version()}
    installed = {item.metadata["Name"]: item.version for item in metadata.distributions()}
    versions |= {name: installed.get(name) for name in (*_NEEDED, *_OPTIONAL)}
    where = ", in a container" if any(mark.exists() for mark in _CONTAINER_MARKS) else ""
    shown = ", ".join(f"{name} {version}" for name, version in versions.items() if version)
    check = Check("versions", f"{shown}; {platform.system()} {platform.machine()}{where}", dict(versions))
    for name in (name for name in versions if not versions[name]):
        if name in _NEEDED:
            check.problem(f"{name} is missing", f"pip install {name}")
        else:
            check.note(f"{name} is not installed", _OPTIONAL[name])
    return check


def check_cores(environ: Mapping[str, str]) -> Check:
    """Processors: of the machine, and those that are granted."""
    granted, machine = find_granted_cores(environ), os.cpu_count() or 1
    count = max(1, min(granted.values()))
    who = ", ".join(f"{name} {number}" for name, number in granted.items())
    check = Check("cores", f"{count} of {machine} may be used ({who})", {"granted": count, **granted})
    return check if count == machine else check.note("", "for more: srun --cpus-per-task=N, docker run --cpus=N")


def check_memory(environ: Mapping[str, str]) -> Check:
    """Memory: of the machine, and what is granted."""
    granted = find_granted_memory(environ)
    limit = min(granted.values())
    who = ", ".join(f"{name} {format_bytes(number)}" for name, number in granted.items())
    check = Check("memory", f"{format_bytes(limit)} may be used ({who})", {"granted": limit, **granted})
    if limit < _LITTLE_MEMORY_BYTES:
        hint = "srun --mem=8G, docker run --memory=8g, ulimit -v unlimited; until then --jobs 1"
        check.problem("too little for several workers", hint)
    return check


def check_shared_memory(_environ: Mapping[str, str], path: Path = Path("/dev/shm")) -> Check:  # noqa: S108
    """The file system that shared memory and semaphores are in."""
    usage = shutil.disk_usage(path)
    text = f"{format_bytes(usage.total)} at {path}, {format_bytes(usage.used)} used"
    check = Check("shared memory", text, {"total_bytes": usage.total, "free_bytes": usage.free})
    try:
        multiprocessing.get_context("spawn").Lock()
    except OSError as error:
        why = f"no semaphore can be made ({error.strerror}): a DataLoader with workers cannot start"
        check.problem(why, f"make {path} writable, and remove what fills it")
    if usage.free < _FULL_SHM_BYTES:
        check.problem("it is full", f"see what fills it, and remove it: ls -lS {path}")
    elif usage.total < _SMALL_SHM_BYTES:
        why = "small: batches of collate_torch need no room in it, other tensors of workers and NCCL do"
        check.note(why, "docker run --shm-size=8g, or --ipc=host")
    return check


def check_open_files(_environ: Mapping[str, str]) -> Check:
    """How many files a process may have open."""
    import resource

    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)  # -1 for no limit
    shown = [f"{number:,}" if number >= 0 else "none" for number in (soft, hard)]
    check = Check("open files", f"soft limit {shown[0]}, hard limit {shown[1]}", {"soft": soft, "hard": hard})
    target = min(65_536, hard) if hard >= 0 else 65_536
    hint = f"ulimit -n {target}" if target > soft else "ask the administrator for a higher hard limit"
    if 0 <= soft < _FEW_FILES:
        check.problem("too few for a DataLoader with workers", hint)
    elif 0 <= soft < _MANY_FILES:
        check.note("few for many workers, which need one for each tensor", hint)
    return check


def check_environment(environ: Mapping[str, str]) -> Check:
    """Variables that lead connections elsewhere. Passwords never show."""
    shown = {}
    for name, value in sorted(environ.items()):
        if value and name.upper() in _PROXIES:
            shown[name] = f"{name} ({public_url(value if '://' in value else f'//{value}').removeprefix('//')})"
        elif value and (name.upper() in _NAMES or name.startswith(("NCCL_", "TORCH_NCCL_", "GLOO_"))):
            shown[name] = name if name.upper() in _NAMES else f"{name}={value}"
    text = f"set: {', '.join(shown.values())}" if shown else "no proxy, certificates or NCCL variables are set"
    return Check("environment", text, {"names": [*shown]})
