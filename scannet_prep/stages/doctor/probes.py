"""The checks: what cannot hang, such as versions; and what may, which processes of their own look at."""

from __future__ import annotations

import fcntl
import multiprocessing
import os
import platform
import re
import resource
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from contextlib import suppress
from importlib import metadata
from importlib.util import find_spec
from pathlib import Path
from shlex import quote

from scannet_prep.errors import ScanNetPrepError
from scannet_prep.space import RESERVE_BYTES, RESERVE_FILES, format_bytes
from scannet_prep.stages.doctor.check import Check, make_check
from scannet_prep.stages.granted import find_granted_cores, find_granted_memory
from scannet_prep.typed_json import encode_json
from scannet_prep.version import VERSION

ARGUMENT = "SCANNET_PREP_DOCTOR_ARGUMENT"
"""Variable with what a probe looks at: an address may hold a password, and everybody sees arguments of processes."""

_PACKAGES = ("numpy", "plyfile", "zstandard", "pandas", "requests", "msgspec", "deflate", "numba")
_FEW_FILES = 4096
_LITTLE_MEMORY_BYTES, _SMALL_SHM_BYTES, _FULL_SHM_BYTES = 2 << 30, 1 << 30, 16 << 20
_PROXIES = ("HTTPS_PROXY", "HTTP_PROXY", "ALL_PROXY", "NO_PROXY")
_NAMES = (*_PROXIES, "REQUESTS_CA_BUNDLE", "CURL_CA_BUNDLE", "SSL_CERT_FILE", "SCANNET_PREP_BASE_URL")
_NETWORK = ("NCCL_", "TORCH_NCCL_", "GLOO_")
DEFAULT_PLACE = "data/processed"

_NETWORK_TYPES = re.compile(r"nfs\d?|lustre|cifs|smb3?|beegfs|gpfs|ceph|glusterfs|afs|9p|panfs|wekafs|fuse\..*")
_LITTLE_BYTES = 5_000_000_000
_LOCK = "import fcntl, sys; fcntl.flock(open(sys.argv[1]), fcntl.LOCK_EX | fcntl.LOCK_NB)"


def check_machine(environ: Mapping[str, str]) -> list[Check]:
    """Make all checks of this module."""
    checks = (check_versions, check_cores, check_memory, check_shared_memory, check_open_files, check_environment)
    return [make_check(check.__name__[6:].replace("_", " "), check, environ) for check in checks]


def check_versions(_environ: Mapping[str, str]) -> Check:
    """Python, this package, and what it stands on."""
    versions: dict[str, str | None] = {"scannet-prep": VERSION, "python": platform.python_version()}
    for name in _PACKAGES:
        versions[name] = metadata.version(name) if find_spec(name) else None
    shown = ", ".join(f"{name} {version}" for name, version in versions.items() if version)
    check = Check("versions", f"{shown}; {platform.system()} {platform.machine()}", dict(versions))
    if not versions["numba"]:
        check.note("numba is not installed", 'process is faster with it: pip install "scannet-prep[fast]"')
    if missing := [name for name in _PACKAGES[:-1] if not versions[name]]:
        check.problem(f"missing: {', '.join(missing)}", f"pip install {' '.join(missing)}")
    return check


def check_cores(environ: Mapping[str, str]) -> Check:
    """Processors: of the machine, and those that are granted."""
    granted, machine = find_granted_cores(environ), os.cpu_count() or 1
    count = min(granted.values())
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
    check = Check("shared memory", f"there is no {path}")
    if path.is_dir():  # else not Linux, or no semaphore can be made
        usage = shutil.disk_usage(path)
        check.message = f"{format_bytes(usage.total)} at {path}, {format_bytes(usage.used)} used"
        check.values = {"total_bytes": usage.total, "free_bytes": usage.free}
        if usage.free < _FULL_SHM_BYTES:
            check.problem("it is full", f"see what fills it, and remove it: ls -lS {path}")
        elif usage.total < _SMALL_SHM_BYTES:
            why = "small: batches of collate_torch need no room in it, other tensors of workers and NCCL do"
            check.note(why, "docker run --shm-size=8g, or --ipc=host")
    try:
        multiprocessing.get_context("spawn").Lock()
    except OSError as error:
        why = f"no semaphore can be made ({error.strerror}): a DataLoader with workers cannot start"
        check.problem(why, f"make {path} writable, and remove what fills it")
    return check


def check_open_files(_environ: Mapping[str, str]) -> Check:
    """How many files a process may have open."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)  # -1 for no limit
    shown = [f"{number:,}" if number >= 0 else "none" for number in (soft, hard)]
    check = Check("open files", f"soft limit {shown[0]}, hard limit {shown[1]}", {"soft": soft, "hard": hard})
    if 0 <= soft < _FEW_FILES:
        hint = "ulimit -n 65536; where that is not allowed, ask the administrator for a higher hard limit"
        check.note("few for many workers, which need one for each tensor", hint)
    return check


def check_environment(environ: Mapping[str, str]) -> Check:
    """Variables that lead connections elsewhere. Passwords never show."""
    shown = sorted(name for name in environ if environ[name] and name.upper() in _NAMES)
    shown += sorted(f"{name}={environ[name]}" for name in environ if name.startswith(_NETWORK))
    text = f"set: {', '.join(shown)}" if shown else "no proxy, certificates or NCCL variables are set"
    return Check("environment", text, {"set": shown})


def check_folder(place: str) -> Check:
    """Type of the file system of a folder, what is free, and whether its locks work."""
    folder = _find_existing(place)
    kind, mount = _find_mount(folder)
    status = os.statvfs(folder)
    free_bytes = status.f_bavail * status.f_frsize
    files = f", room for {status.f_favail:,} files" if status.f_files else ""
    text = f"{folder}: {kind} (mounted at {mount}), {format_bytes(free_bytes)} free{files}"
    check = Check("folder", text, {"path": str(folder), "type": kind, "free_bytes": free_bytes})
    if status.f_blocks and free_bytes < RESERVE_BYTES:
        check.problem("it is full", f"free some space: df -h {quote(str(folder))}")
    elif status.f_blocks and free_bytes < _LITTLE_BYTES:
        check.note("little is free", "all scenes need about 5 GB processed, and 21 GB raw")
    if status.f_files and status.f_favail < RESERVE_FILES:
        check.problem("no more files can be made", f"remove some, or ask for a quota: df -i {quote(str(folder))}")
    if _NETWORK_TYPES.fullmatch(kind):
        check.note("on the network", "for training, pack the scenes and copy the archive to a local disk")
    try:
        check.values["locks"] = _try_locks(folder)
    except OSError as error:
        why = f"nothing can be written here ({error.strerror}), so locks were not tried"
        return check.note(why, "choose another folder for what is written")
    if not check.values["locks"]:
        why = "locks do not work: they keep no other process out, or there are none"
        return check.problem(why, "let only one run at a time write there, or give each run a part: --shard")
    check.message += "; locks work between two processes of this machine"
    return check


def check_scenes(place: str) -> Check:
    """Whether a folder or an archive is whole, as the dataset and all commands see it."""
    from scannet_prep.archive.layout import ArchiveKind
    from scannet_prep.place import open_place
    from scannet_prep.raw.layout import find_raw_scenes
    from scannet_prep.remote.trouble import public_url
    from scannet_prep.splits import read_scene_list
    from scannet_prep.tree import identify_tree, is_archive

    path, shown = Path(place or DEFAULT_PLACE), public_url(place) if "://" in place else place or DEFAULT_PLACE
    if not place and not path.exists():
        return Check("scenes", f"{path} is not there").note("", "name a folder: scannet-prep doctor PLACE")
    try:
        if not is_archive(place or path) and identify_tree(path) is ArchiveKind.RAW:
            count, kind, how = len(find_raw_scenes(path)), "raw", "verify"
            failed = [*read_scene_list(path / "failed.txt")] if (path / "failed.txt").exists() else []
        else:
            opened = open_place([place or path])
            count, kind, how = len(opened.entries), "processed", "info"
            failed = sorted(opened.failures)
    except ScanNetPrepError as error:
        return Check("scenes", "").problem(error.message, error.hint)
    check = Check("scenes", f"{shown}: {count:,} {kind} scenes", {"kind": kind, "scenes": count, "failed": failed})
    if failed:
        why = f"scenes that failed: {len(failed):,}, such as {failed[0]}"
        check.problem(why, f"to see why: scannet-prep {how} {quote(shown)}")
    return check


def check_server(base_url: str) -> Check:
    """Whether the server of the release answers, whatever it says."""
    from scannet_prep.remote.client import Client
    from scannet_prep.remote.gate import TransferPolicy
    from scannet_prep.remote.trouble import AttemptError, is_server_address, public_url

    shown = public_url(base_url)
    if not is_server_address(base_url):
        return Check("", shown).problem("it is not an address", "an address looks like https://host/scannet/")
    try:
        client = Client(base_url, TransferPolicy(connect_timeout_s=2.5, answer_timeout_s=3.0), True)
        with client.open(base_url.rstrip("/") + "/ScanNet_TOS.pdf", {}, "HEAD"):
            pass
    except AttemptError as error:
        if not error.is_answer and not error.is_busy:
            hint = error.hint or "only download needs it: download where there is a network"
            return Check("", f"{shown}: {error.reason}").note("", hint)
    except ScanNetPrepError as error:  # certificates, proxies
        return Check("", error.message).problem("", error.hint)
    return Check("", f"{shown} answers")


def check_gpu(_argument: str) -> Check:
    """What PyTorch says of GPUs and NCCL."""
    if find_spec("torch") is None:
        return Check("GPU", "PyTorch is not installed").note("", "to train: pip install torch")
    import torch

    count = torch.cuda.device_count() if torch.cuda.is_available() else 0
    names = [torch.cuda.get_device_name(index) for index in range(count)]
    has_nccl = torch.distributed.is_available() and torch.distributed.is_nccl_available()
    nccl = ".".join(map(str, torch.cuda.nccl.version())) if has_nccl and names else None
    values = {"torch": str(torch.__version__), "cuda": torch.version.cuda, "gpus": names, "nccl": nccl}
    gpus = f"{count} GPUs: {', '.join(sorted(set(names)))}" if names else "no GPU"
    backend = f"NCCL {nccl or 'without a GPU'}" if has_nccl else "no NCCL, gloo only"
    check = Check("GPU", f"PyTorch {torch.__version__}: {gpus}; {backend}", values)
    if not names and any(Path("/dev").glob("nvidia[0-9]*")):
        why = f"there is a GPU, and PyTorch (built for CUDA {torch.version.cuda}) cannot use it"
        check.problem(why, "nvidia-smi shows driver and version; docker run --gpus all, apptainer exec --nv")
    return check


PROBES = {"folder": check_folder, "scenes": check_scenes, "server": check_server, "GPU": check_gpu}


def main() -> None:
    """Make one check, and print it as JSON."""
    topic = sys.argv[1]
    output = os.dup(1)
    os.dup2(2, 1)  # what libraries print is not an answer
    os.write(output, encode_json(make_check(topic, PROBES[topic], os.environ[ARGUMENT])))


def _find_existing(place: str) -> Path:
    """The folder of a file, or the nearest folder that exists."""
    path = Path(place or DEFAULT_PLACE).absolute()
    while not path.is_dir() and path != path.parent:
        path = path.parent
    return path


def _find_mount(folder: Path) -> tuple[str, str]:
    """Type and place of the file system that a folder is on."""
    found, resolved = ("unknown type", "?"), folder.resolve()
    with suppress(OSError, IndexError):  # not Linux
        for line in Path("/proc/self/mountinfo").read_text(encoding="utf-8", errors="replace").splitlines():
            fields, _, rest = line.partition(" - ")
            mount = re.sub(r"\\(\d{3})", lambda match: chr(int(match[1], 8)), fields.split()[4])
            if resolved.is_relative_to(mount) and len(mount) >= len(found[1]):
                found = (rest.split()[0], mount)
    return found


def _try_locks(folder: Path) -> bool:
    """Whether a lock that this process holds keeps another one out, and is free for it afterwards."""
    with tempfile.NamedTemporaryFile(prefix=".scannet-prep-doctor-", dir=folder) as file:
        command = [sys.executable, "-I", "-S", "-c", _LOCK, file.name]
        statuses = []
        for operation in (fcntl.LOCK_EX, fcntl.LOCK_UN):
            try:
                fcntl.flock(file, operation)
            except OSError:
                return False
            done = subprocess.run(command, stderr=subprocess.DEVNULL, check=False)  # noqa: S603 - our own interpreter
            statuses.append(done.returncode)
        return statuses == [1, 0]
