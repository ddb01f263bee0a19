"""The checks: those that cannot hang, such as versions, and those that may."""

from __future__ import annotations

import fcntl
import os
import platform
import re
import resource
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping
from contextlib import suppress
from importlib import metadata
from importlib.util import find_spec
from pathlib import Path
from shlex import quote
from typing import TypeVar

from scannet_prep.base.disk import RESERVE_BYTES, RESERVE_FILES, format_bytes
from scannet_prep.base.errors import ScanNetPrepError
from scannet_prep.base.typed_json import encode_json
from scannet_prep.base.version import VERSION
from scannet_prep.stages.doctor.check import Check
from scannet_prep.stages.granted import find_granted_cores, find_granted_memory

DEFAULT_PLACE = "data/processed"

_Argument = TypeVar("_Argument")
_PACKAGES = ("numpy", "plyfile", "zstandard", "pandas", "requests", "msgspec", "deflate", "numba")
_FEW_FILES = 4096
_LITTLE_MEMORY_BYTES, _SMALL_SHM_BYTES, _FULL_SHM_BYTES, _LITTLE_BYTES = (
    2 << 30,
    1 << 30,
    16 << 20,
    5_000_000_000,
)
_NAMES = (
    "HTTPS_PROXY", "HTTP_PROXY", "ALL_PROXY", "NO_PROXY", "REQUESTS_CA_BUNDLE", "CURL_CA_BUNDLE", "SSL_CERT_FILE",
    "SSL_CERT_DIR", "SCANNET_PREP_BASE_URL",
)  # fmt: skip
_NETWORK_TYPES = re.compile(
    r"nfs\d?|lustre|cifs|smb3?|beegfs|gpfs|ceph|glusterfs|afs|9p|panfs|wekafs|fuse\..*"
)
_LOCK = "import fcntl, sys; fcntl.flock(open(sys.argv[1]), fcntl.LOCK_EX | fcntl.LOCK_NB)"


def check_machine(environ: Mapping[str, str]) -> list[Check]:
    """Make the checks that cannot hang."""
    checks = (
        check_versions,
        check_cores,
        check_memory,
        check_shared_memory,
        check_open_files,
        check_environment,
    )
    return [make_check(check.__name__[6:].replace("_", " "), check, environ) for check in checks]


def check_versions(check: Check, _environ: Mapping[str, str]) -> None:
    """Python, this package, and what it stands on."""
    versions = [f"{name} {metadata.version(name)}" for name in _PACKAGES if find_spec(name)]
    system = f"{platform.system()} {platform.machine()}"
    check.message = ", ".join(
        [f"scannet-prep {VERSION}", f"python {platform.python_version()}", *versions, system]
    )
    if find_spec("numba") is None:
        hint = 'process is faster with it: pip install "scannet-prep[fast]"'
        check.add("note", "numba is not installed", hint)


def check_cores(check: Check, environ: Mapping[str, str]) -> None:
    """Processors: of the machine, and those that are granted."""
    granted, machine = find_granted_cores(environ), os.cpu_count() or 1
    count = min(granted.values())
    who = ", ".join(f"{name} {number}" for name, number in granted.items())
    check.message = f"{count} of {machine} may be used ({who})"
    if count < machine:
        check.add("note", "", "for more: srun --cpus-per-task=N, docker run --cpus=N")


def check_memory(check: Check, environ: Mapping[str, str]) -> None:
    """Memory: of the machine, and what is granted."""
    granted = find_granted_memory(environ)
    limit = min(granted.values())
    who = ", ".join(f"{name} {format_bytes(number)}" for name, number in granted.items())
    check.message = f"{format_bytes(limit)} may be used ({who})"
    if limit < _LITTLE_MEMORY_BYTES:
        hint = "for more: srun --mem=8G, docker run --memory=8g, ulimit -v unlimited; with this little: --jobs 1"
        check.add("problem", "too little for several workers", hint)


def check_shared_memory(check: Check, _environ: Mapping[str, str]) -> None:
    """The file system that shared memory and semaphores are in."""
    path = Path("/dev/shm")  # noqa: S108
    if not path.is_dir():  # not Linux
        check.message = f"there is no {path}"
        return
    usage = shutil.disk_usage(path)
    check.message = f"{format_bytes(usage.total)} at {path}, {format_bytes(usage.used)} used"
    if usage.free < _FULL_SHM_BYTES:
        check.add("problem", "it is full", f"see what fills it, and remove it: ls -lS {path}")
    elif usage.total < _SMALL_SHM_BYTES:
        why = "small: batches of collate_torch need no room in it, other tensors of workers and NCCL do"
        check.add("note", why, "docker run --shm-size=8g, or --ipc=host")


def check_open_files(check: Check, _environ: Mapping[str, str]) -> None:
    """How many files a process may have open."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)  # -1 for no limit
    check.message = f"soft limit {soft:,}, hard limit {hard:,}".replace("-1", "none")
    if 0 <= soft < _FEW_FILES:
        hint = "ulimit -n 65536; where that is not allowed, ask the administrator for a higher hard limit"
        check.add("note", "few for many workers, which need one for each tensor", hint)


def check_environment(check: Check, environ: Mapping[str, str]) -> None:
    """Variables that lead connections elsewhere. Passwords never show."""
    shown = sorted(name for name in environ if environ[name] and name.upper() in _NAMES)
    shown += sorted(
        f"{name}={environ[name]}"
        for name in environ
        if name.startswith(("NCCL_", "TORCH_NCCL_", "GLOO_"))
    )
    check.message = (
        f"set: {', '.join(shown)}" if shown else "no proxy, certificates or NCCL variables are set"
    )


def check_folder(check: Check, place: str) -> None:
    """Type of the file system of a folder, or of the nearest one that exists, what is free, and whether locks work."""
    folder = Path(place or DEFAULT_PLACE).absolute()
    while not folder.is_dir() and folder != folder.parent:
        folder = folder.parent
    kind, status = _find_type(folder), os.statvfs(folder)
    free_bytes, files = status.f_bavail * status.f_frsize, f", room for {status.f_favail:,} files"
    check.message = (
        f"{folder}: {kind}, {format_bytes(free_bytes)} free{files if status.f_files else ''}"
    )
    if status.f_blocks and free_bytes < RESERVE_BYTES:
        check.add("problem", "it is full", f"free some space: df -h {quote(str(folder))}")
    elif status.f_blocks and free_bytes < _LITTLE_BYTES:
        check.add("note", "little is free", "all scenes need about 5 GB processed, and 21 GB raw")
    if status.f_files and status.f_favail < RESERVE_FILES:
        hint = f"remove some, or ask for a quota: df -i {quote(str(folder))}"
        check.add("problem", "no more files can be made", hint)
    if _NETWORK_TYPES.fullmatch(kind):
        hint = "for training, pack the scenes onto a local disk: scannet-prep pack -o /LOCAL/scannet.tar.zst"
        check.add("note", "on the network", hint)
    try:
        has_locks = _try_lock(folder)
    except OSError as error:
        why = f"nothing can be written here ({error.strerror}), so locks were not tried"
        check.add("note", why, "write to another folder: -o DIR")
        return
    if has_locks:
        check.message += "; locks work between two processes of this machine"
    else:
        why = "file locks do not work on this file system: a second process was not kept out"
        check.add("problem", why, "let only one run at a time write there")


def check_scenes(check: Check, place: str) -> None:
    """Whether the scenes of a folder or an archive are there, with the sizes on record; none is read."""
    from scannet_prep.archive.layout import ArchiveKind
    from scannet_prep.tree import identify_tree, is_archive

    if not place and not Path(DEFAULT_PLACE).exists():
        check.add(
            "note", f"{DEFAULT_PLACE} is not there", "name a folder: scannet-prep doctor PLACE"
        )
        return
    place = place or DEFAULT_PLACE
    if not is_archive(place) and identify_tree(Path(place)) is ArchiveKind.RAW:
        _check_raw_scenes(check, Path(place))
    else:
        _check_processed_scenes(check, place)


def _check_raw_scenes(check: Check, raw_dir: Path) -> None:
    from scannet_prep.raw.layout import find_raw_scenes
    from scannet_prep.release.splits import read_scene_list

    check.message = f"{raw_dir}: {len(find_raw_scenes(raw_dir)):,} raw scenes"
    list_path = raw_dir / "failed.txt"
    if list_path.exists() and (failed := list(read_scene_list(list_path))):
        why = f"scenes that failed: {len(failed):,}, such as {failed[0]}"
        check.add("problem", why, f"to see why: scannet-prep verify {quote(str(raw_dir))}")


def _check_processed_scenes(check: Check, place: str) -> None:
    from scannet_prep.place import open_place
    from scannet_prep.processed.folder import processed_path
    from scannet_prep.remote.addresses import public_url

    opened = open_place([place])
    shown = public_url(place) if "://" in place else place
    check.message = f"{shown}: {len(opened.entries):,} processed scenes"
    if opened.failures:
        why = f"scenes that failed: {len(opened.failures):,}, such as {min(opened.failures)}"
        check.add("problem", why, f"to see why: scannet-prep info {quote(shown)}")
    if opened.folder is None:
        return  # the size of an archive has been compared with its index
    missing, resized = [], []
    for scene_id, entry in opened.entries.items():
        path = processed_path(opened.folder, entry.split, scene_id)
        try:
            size_bytes = path.stat().st_size
        except FileNotFoundError:
            missing.append(str(path))
        else:
            if size_bytes != entry.size_bytes:
                resized.append(f"{path} ({size_bytes:,} bytes, expected {entry.size_bytes:,})")
    if missing:
        check.add(
            "problem",
            f"files of scenes that are missing: {len(missing):,}, such as {missing[0]}",
            "",
        )
    if resized:
        check.add(
            "problem",
            f"files of another size than in the manifest: {len(resized):,}, such as {resized[0]}",
            "",
        )
    if missing or resized:
        hint = f"scannet-prep verify {quote(place)} names all of them; to make them again, run the same "
        check.add("problem", "", f"{hint}scannet-prep process command, or unpack the archive again")


def check_server(check: Check, base_url: str) -> None:
    """Whether the server of the release answers, whatever it says."""
    from scannet_prep.remote.addresses import is_server_address, public_url
    from scannet_prep.remote.client import Client
    from scannet_prep.remote.policy import TransferPolicy
    from scannet_prep.remote.request_errors import AttemptError

    check.message = public_url(base_url)
    if not is_server_address(base_url):
        hint = "export SCANNET_PREP_BASE_URL=https://HOST/scannet/, or unset SCANNET_PREP_BASE_URL"
        check.add("problem", "it is not an address", hint)
        return
    try:
        policy = TransferPolicy(connect_timeout_s=2.5, answer_timeout_s=3.0)
        client = Client(base_url, policy, certificates=True)
        with client.open(base_url.rstrip("/") + "/ScanNet_TOS.pdf", {}, "HEAD"):
            pass
    except AttemptError as error:
        if not error.is_answer and not error.is_busy:
            hint = error.hint or "only download needs it: download where there is a network"
            check.add("note", str(error.reason), hint)
            return
    check.message += " answers"


def check_gpu(check: Check, _argument: str) -> None:
    """Check the GPUs and NCCL, as PyTorch sees them."""
    if find_spec("torch") is None:
        check.add("note", "PyTorch is not installed", "to train: pip install torch")
        return
    import torch

    count = torch.cuda.device_count() if torch.cuda.is_available() else 0
    names = {torch.cuda.get_device_name(index) for index in range(count)}
    gpus = f"{count} GPUs: {', '.join(sorted(names))}" if names else "no GPU"
    backend = "no NCCL, gloo only"
    if torch.distributed.is_available() and torch.distributed.is_nccl_available():
        backend = (
            f"NCCL {'.'.join(map(str, torch.cuda.nccl.version())) if names else 'without a GPU'}"
        )
    check.message = f"PyTorch {torch.__version__}: {gpus}; {backend}"
    if not names and any(Path("/dev").glob("nvidia[0-9]*")):
        why = f"there is a GPU, and PyTorch (built for CUDA {torch.version.cuda}) cannot use it"
        hint = "nvidia-smi shows driver and version; docker run --gpus all, apptainer exec --nv"
        check.add("problem", why, hint)


PROBES: dict[str, Callable[[Check, str], None]] = {
    "folder": check_folder,
    "scenes": check_scenes,
    "server": check_server,
}
"""The checks that may hang, by topic, without the one of the GPU."""


def main() -> None:
    """Check the GPU, and print the result as JSON."""
    output = os.dup(1)
    os.dup2(2, 1)  # keeps what libraries print out of the result
    os.write(output, encode_json(make_check("GPU", check_gpu, "")))


def make_check(
    topic: str, function: Callable[[Check, _Argument], None], argument: _Argument
) -> Check:
    """Make one check; whatever a library or a driver raises is a finding, too."""
    check = Check(topic, "")
    try:
        function(check, argument)
    except ScanNetPrepError as error:
        check.message = ""
        check.add("problem", error.message, error.hint)
    except Exception as error:  # noqa: BLE001 - see above
        test = "test it alone: python -c 'import torch; torch.cuda.init()'"
        hint = test if topic == "GPU" else "this cannot be found out here; please report this line"
        check.add("problem", f"{type(error).__name__}: {error}"[:300], hint)
    return check


def _find_type(folder: Path) -> str:
    """Type of the file system that a folder is on."""
    command = ["df", "--output=fstype", str(folder)]  # of GNU; others have no such option
    with suppress(OSError, subprocess.CalledProcessError):
        return subprocess.check_output(command, stderr=subprocess.DEVNULL, text=True).split()[-1]  # noqa: S603
    return "file system of unknown type"


def _try_lock(folder: Path) -> bool:
    """Whether a lock that this process holds keeps another one out."""
    with tempfile.NamedTemporaryFile(prefix=".scannet-prep-doctor-", dir=folder) as file:
        command = [sys.executable, "-I", "-S", "-c", _LOCK, file.name]
        try:
            fcntl.flock(file, fcntl.LOCK_EX)
        except OSError:
            return False
        return subprocess.run(command, stderr=subprocess.DEVNULL, check=False).returncode == 1  # noqa: S603
