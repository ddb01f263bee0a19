"""The checks of `doctor`, both those that cannot hang and those that may.

Each check yields one or more remarks, and `make_check` merges them into one finding.
"""

from __future__ import annotations

import ctypes
import os
import platform
import re
import shutil
import subprocess
import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from importlib import metadata
from importlib.util import find_spec
from pathlib import Path
from typing import NamedTuple, TypeAlias, TypeVar

from scannet_prep.base.files import RESERVE_BYTES
from scannet_prep.base.findings import Finding, Severity
from scannet_prep.base.machine import find_core_limits, find_memory_limits
from scannet_prep.base.text import format_bytes
from scannet_prep.base.version import VERSION
from scannet_prep.errors import ScanNetPrepError

DEFAULT_PLACE = "data/processed"

_PACKAGES = (
    "numpy",
    "plyfile",
    "zstandard",
    "pandas",
    "requests",
    "msgspec",
    "deflate",
)
_LOW_OPEN_FILES = 4096
_LOW_MEMORY_BYTES = 2 << 30
_LOW_SHM_BYTES = 1 << 30
_MIN_FREE_SHM_BYTES = 16 << 20
_LOW_DISK_BYTES = 5_000_000_000
_MIN_FREE_FILES = 100
_MAX_MESSAGE_LETTERS = 300
_SHOWN_NAMES = (
    "HTTPS_PROXY",
    "HTTP_PROXY",
    "ALL_PROXY",
    "NO_PROXY",
    "REQUESTS_CA_BUNDLE",
    "CURL_CA_BUNDLE",
    "SSL_CERT_FILE",
    "SSL_CERT_DIR",
    "SCANNET_PREP_BASE_URL",
)
_SHOWN_PREFIXES = ("NCCL_", "TORCH_NCCL_", "GLOO_")
_NETWORK_TYPES = re.compile(
    r"nfs\d?|lustre|cifs|smb3?|beegfs|gpfs|ceph|glusterfs|afs|9p|panfs|wekafs|fuse\..*"
)
_SEVERITIES: tuple[Severity, ...] = ("ok", "note", "problem")


class Remark(NamedTuple):
    """A part of a finding.

    Attributes:
        severity: `ok`, `note` (worth knowing), or `problem` (will cause failures).
        text: The observation; may be empty.
        hint: What to do about it; may be empty.
    """

    severity: Severity
    text: str
    hint: str = ""


Argument = TypeVar("Argument")
Probe: TypeAlias = Callable[[Argument], Iterator[Remark]]


def make_check(topic: str, probe: Probe[Argument], argument: Argument) -> Finding:
    """Make one check, and turn any exception of a library or a driver into a remark.

    The finding is as severe as the most severe remark.
    """
    remarks: list[Remark] = []
    try:
        remarks.extend(probe(argument))
    except ScanNetPrepError as error:
        remarks = [Remark("problem", error.message, error.hint)]
    except Exception as error:  # noqa: BLE001 - a driver may raise anything
        hint = "this is a bug of scannet-prep: please report this line"
        if topic == "GPU":
            hint = "test it alone: python -c 'import torch; torch.cuda.init()'"
        remarks.append(
            Remark("problem", f"{type(error).__name__}: {error}"[:_MAX_MESSAGE_LETTERS], hint)
        )
    severities = [remark.severity for remark in remarks]
    return Finding(
        subject=topic,
        message="; ".join(remark.text for remark in remarks if remark.text),
        severity=max(severities, key=_SEVERITIES.index),
        hint="; ".join(remark.hint for remark in remarks if remark.hint),
    )


def check_machine(environ: Mapping[str, str]) -> list[Finding]:
    """Make the checks that cannot hang."""
    probes: dict[str, Probe[Mapping[str, str]]] = {
        "versions": check_versions,
        "cores": check_cores,
        "memory": check_memory,
        "shared memory": check_shared_memory,
        "open files": check_open_files,
        "environment": check_environment,
    }
    return [make_check(topic, probe, environ) for topic, probe in probes.items()]


def check_versions(_environ: Mapping[str, str]) -> Iterator[Remark]:
    """Find the versions of Python, of this package, and of its dependencies."""
    versions = [f"scannet-prep {VERSION}", f"python {platform.python_version()}"]
    installed = [name for name in _PACKAGES if find_spec(name)]
    versions += [f"{name} {metadata.version(name)}" for name in installed]
    versions.append(f"{platform.system()} {platform.machine()}")
    yield Remark("ok", ", ".join(versions))


def check_cores(environ: Mapping[str, str]) -> Iterator[Remark]:
    """Find the processors of the machine, and the number that may be used."""
    limits = find_core_limits(environ)
    count = min(limits.values())
    machine = os.cpu_count() or 1
    names = ", ".join(f"{name} {number}" for name, number in limits.items())
    yield Remark("ok", f"{count} of {machine} may be used ({names})")
    if count < machine:
        yield Remark("note", "", "for more: srun --cpus-per-task=N, docker run --cpus=N")


def check_memory(environ: Mapping[str, str]) -> Iterator[Remark]:
    """Find the memory of the machine, and the amount that may be used."""
    limits = find_memory_limits(environ)
    if not limits:
        yield Remark("ok", "not known on Windows")
        return
    limit = min(limits.values())
    names = ", ".join(f"{name} {format_bytes(number)}" for name, number in limits.items())
    yield Remark("ok", f"{format_bytes(limit)} may be used ({names})")
    if limit < _LOW_MEMORY_BYTES:
        yield Remark(
            "problem",
            "too little for several workers",
            "for more: srun --mem=8G, docker run --memory=8g, ulimit -v unlimited; "
            "otherwise pass --jobs 1",
        )


def check_shared_memory(_environ: Mapping[str, str]) -> Iterator[Remark]:
    """Check the file system that holds shared memory and semaphores."""
    path = Path("/dev/shm")  # noqa: S108
    # Other systems than Linux do not have it.
    if not path.is_dir():
        yield Remark("ok", f"there is no {path}")
        return
    usage = shutil.disk_usage(path)
    yield Remark("ok", f"{format_bytes(usage.total)} at {path}, {format_bytes(usage.used)} used")
    if usage.free < _MIN_FREE_SHM_BYTES:
        yield Remark("problem", "it is full", f"see what fills it, and remove it: ls -lS {path}")
    elif usage.total < _LOW_SHM_BYTES:
        yield Remark(
            "note",
            "small: batches of collate_torch need no room in it, "
            "but other tensors of workers and NCCL do",
            "docker run --shm-size=8g, or --ipc=host",
        )


def check_open_files(_environ: Mapping[str, str]) -> Iterator[Remark]:
    """Check the limit of open files of a process."""
    try:
        import resource
    except ImportError:  # Windows
        yield Remark("ok", "not limited on Windows")
        return
    # -1 stands for no limit.
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    text = f"soft limit {soft:,}, hard limit {hard:,}".replace("-1", "none")
    yield Remark("ok", text)
    if 0 <= soft < _LOW_OPEN_FILES:
        yield Remark(
            "note",
            "few for many workers, which need one for each tensor",
            "ulimit -n 65536; if that is not allowed, "
            "ask the administrator for a higher hard limit",
        )


def check_environment(environ: Mapping[str, str]) -> Iterator[Remark]:
    """List the variables that affect connections, without values that may hold passwords."""
    # Addresses of proxies may contain passwords, so only the names of these variables are shown.
    names = []
    settings = []
    for name, value in sorted(environ.items()):
        if value and name.upper() in _SHOWN_NAMES:
            names.append(name)
        elif name.startswith(_SHOWN_PREFIXES):
            settings.append(f"{name}={value}")
    shown = ", ".join(names + settings)
    if shown:
        yield Remark("ok", f"set: {shown}")
    else:
        yield Remark("ok", "no proxy, certificates or NCCL variables are set")


def check_folder(place: str) -> Iterator[Remark]:
    """Check the file system of a folder: its type, its free space and its file locks.

    If the folder does not exist, the nearest existing parent is checked.
    """
    folder = Path(place or DEFAULT_PLACE).absolute()
    while not folder.is_dir() and folder != folder.parent:
        folder = folder.parent
    if not hasattr(os, "statvfs"):  # Windows
        free_bytes = shutil.disk_usage(folder).free
        yield Remark("ok", f"{folder}: {format_bytes(free_bytes)} free")
        yield Remark(
            "note", "on Windows, scenes can be read but not made", "to process scenes, use WSL"
        )
        return
    file_system = _find_type(folder)
    status = os.statvfs(folder)
    free_bytes = status.f_bavail * status.f_frsize
    text = f"{folder}: {file_system}, {format_bytes(free_bytes)} free"
    # 0 if the file system does not limit the number of files.
    if status.f_files:
        text += f", room for {status.f_favail:,} files"
    yield Remark("ok", text)

    # `f_blocks` is 0 if the file system does not have a size.
    if status.f_blocks and free_bytes < RESERVE_BYTES:
        yield Remark("problem", "it is full", "free some space")
    elif status.f_blocks and free_bytes < _LOW_DISK_BYTES:
        hint = "all scenes need about 5 GB processed, and 21 GB raw"
        yield Remark("note", "little space is free", hint)
    if status.f_files and status.f_favail < _MIN_FREE_FILES:
        yield Remark("problem", "no more files can be made", "remove some, or ask for a quota")
    if _NETWORK_TYPES.fullmatch(file_system):
        yield Remark(
            "note",
            "on the network",
            "for training, pack the scenes into an archive on a local disk",
        )
    yield _check_locks(folder)


def check_scenes(place: str) -> Iterator[Remark]:
    """Check that the scenes of a folder or an archive exist and have their recorded sizes."""
    from scannet_prep.source.place import find_kind

    if not place and not Path(DEFAULT_PLACE).exists():
        yield Remark("note", f"{DEFAULT_PLACE} does not exist", "name the folder of the scenes")
        return
    place = place or DEFAULT_PLACE
    if find_kind(place) == "raw":
        yield from _check_raw_scenes(Path(place))
    else:
        yield from _check_processed_scenes(place)


def check_server(base_url: str) -> Iterator[Remark]:
    """Check that the server of the release answers, whatever the status."""
    from scannet_prep.remote.addresses import public_url
    from scannet_prep.remote.http import ADDRESS, HttpClient, RequestError

    shown_url = public_url(base_url)
    if not ADDRESS.fullmatch(base_url):
        yield Remark(
            "problem",
            f"{shown_url} is not an address",
            "export SCANNET_PREP_BASE_URL=https://HOST/scannet/, or unset SCANNET_PREP_BASE_URL",
        )
        return
    try:
        with HttpClient(timeout_s=3.0).open(base_url.rstrip("/") + "/ScanNet_TOS.pdf"):
            pass
    except RequestError as error:
        hint = error.hint or "only download needs it: download on a machine with a network"
        yield Remark("note", f"{shown_url}; {error.message}", hint)
        return
    yield Remark("ok", f"{shown_url} answers")


def check_gpu(_argument: str) -> Iterator[Remark]:
    """Check the GPUs and NCCL, as PyTorch sees them."""
    if find_spec("torch") is None:
        yield Remark("note", "PyTorch is not installed", "to train: pip install torch")
        return
    # A driver that hangs must not stop the other threads. PyTorch keeps Python's global lock while
    # it waits for the driver, ctypes does not. So call the driver through ctypes first; without a
    # driver, this raises OSError.
    with suppress(OSError):
        ctypes.CDLL("libcuda.so.1").cuInit(0)
    import torch

    count = 0
    if torch.cuda.is_available():
        count = torch.cuda.device_count()
    names = sorted({torch.cuda.get_device_name(index) for index in range(count)})
    gpus = "no GPU"
    if names:
        gpus = f"{count} GPUs: {', '.join(names)}"
    backend = "no NCCL, gloo only"
    if torch.distributed.is_available() and torch.distributed.is_nccl_available():
        backend = "NCCL without a GPU"
        if names:
            backend = f"NCCL {'.'.join(map(str, torch.cuda.nccl.version()))}"
    yield Remark("ok", f"PyTorch {torch.__version__}: {gpus}; {backend}")
    if not names and has_nvidia_device():
        yield Remark(
            "problem",
            f"there is a GPU, but PyTorch (built for CUDA {torch.version.cuda}) cannot use it",
            "compare with the driver version of nvidia-smi; in a container, start it with "
            "docker run --gpus all or apptainer exec --nv",
        )


PROBES: dict[str, Probe[str]] = {
    "folder": check_folder,
    "scenes": check_scenes,
    "server": check_server,
    "GPU": check_gpu,
}
"""The checks that may hang, by topic."""


def has_nvidia_device() -> bool:
    """Whether the machine has an NVIDIA GPU whose driver is loaded."""
    return any(Path("/dev").glob("nvidia[0-9]*"))


def _check_raw_scenes(raw_dir: Path) -> Iterator[Remark]:
    """Count the scenes of a raw tree, and those listed in its `failed.txt`."""
    from scannet_prep.raw.tree import find_raw_scenes
    from scannet_prep.release.splits import read_scene_list

    yield Remark("ok", f"{raw_dir}: {len(find_raw_scenes(raw_dir)):,} raw scenes")
    list_path = raw_dir / "failed.txt"
    if not list_path.exists():
        return
    failed = list(read_scene_list(list_path))
    if failed:
        yield Remark(
            "problem",
            f"scenes that failed: {len(failed):,}, such as {failed[0]}",
            "verify shows the reasons",
        )


def _check_processed_scenes(place: str) -> Iterator[Remark]:
    """Compare the files of processed scenes with the sizes in the manifest."""
    from scannet_prep.processed.manifest import processed_path
    from scannet_prep.remote.addresses import public_url
    from scannet_prep.source.place import open_processed

    opened = open_processed(place)
    shown = public_url(place) if "://" in place else place
    yield Remark("ok", f"{shown}: {len(opened.scenes):,} processed scenes")
    if opened.failures:
        yield Remark(
            "problem",
            f"scenes that failed: {len(opened.failures):,}, such as {min(opened.failures)}",
            "info shows the reasons",
        )
    if opened.folder is None:
        # The size of an archive has been compared with its index.
        return

    missing = []
    resized = []
    for scene_id, entry in opened.scenes.items():
        path = processed_path(opened.folder, entry.split, scene_id)
        try:
            size_bytes = path.stat().st_size
        except FileNotFoundError:
            missing.append(str(path))
            continue
        if size_bytes != entry.size_bytes:
            resized.append(f"{path} ({size_bytes:,} bytes, expected {entry.size_bytes:,})")
    if missing:
        text = f"files of scenes that are missing: {len(missing):,}, such as {missing[0]}"
        yield Remark("problem", text)
    if resized:
        count = f"{len(resized):,}"
        text = f"files of another size than in the manifest: {count}, such as {resized[0]}"
        yield Remark("problem", text)
    if missing or resized:
        yield Remark(
            "problem",
            "",
            "verify names all of them; process them again, or unpack the archive again",
        )


def _find_type(folder: Path) -> str:
    """Find the type of the file system that holds a folder."""
    # Only GNU df has this option.
    command = ["df", "--output=fstype", str(folder)]
    with suppress(OSError, subprocess.CalledProcessError):
        output = subprocess.check_output(command, stderr=subprocess.DEVNULL, text=True)  # noqa: S603
        return output.split()[-1]
    return "file system of unknown type"


def _check_locks(folder: Path) -> Remark:
    """Check that a locked file cannot be locked again."""
    try:
        with (
            tempfile.NamedTemporaryFile(prefix=".scannet-prep-doctor-", dir=folder) as file,
            Path(file.name).open("rb") as same_file,
        ):
            has_locks = _refuses_second_lock(file.fileno(), same_file.fileno())
    except OSError as error:
        return Remark(
            "note",
            f"nothing can be written here ({error.strerror}), so locks were not checked",
            "write to another folder: -o DIR",
        )
    if has_locks:
        return Remark("ok", "locks work")
    return Remark(
        "problem",
        "file locks do not work on this file system: a second process was not kept out",
        "let only one run at a time write there",
    )


def _refuses_second_lock(descriptor: int, other_descriptor: int) -> bool:
    """Whether a lock on one descriptor of a file prevents a lock on another descriptor."""
    import fcntl  # not on Windows, where no folder is locked

    # A lock belongs to an open file, so two open files of one process compete like two processes.
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        fcntl.flock(other_descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    except OSError:
        # The file system does not support locks.
        return False
    # Both locks were granted.
    return False
