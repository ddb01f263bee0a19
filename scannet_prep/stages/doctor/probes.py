"""Checks that may hang: folders, the server, PyTorch. `check.run_probes` makes them in processes of their own."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from shlex import quote
from typing import Any

from scannet_prep.errors import FileError, ScanNetPrepError, TransferError
from scannet_prep.space import RESERVE_BYTES, RESERVE_FILES, format_bytes
from scannet_prep.stages.doctor.check import Check, Severity, judge
from scannet_prep.typed_json import encode_json

_NETWORK_TYPES = re.compile(r"nfs\d?|lustre|cifs|smb3?|beegfs|gpfs|ceph|glusterfs|afs|9p|panfs|wekafs|fuse\..*")
DEFAULT_PLACE = "data/processed"
_LITTLE_BYTES = 5_000_000_000
_MOUNTS_PATH = Path("/proc/self/mountinfo")
_LOCK = """
import fcntl, sys
with open(sys.argv[1], "r+") as file:
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        print("refused")
    else:
        print("granted")
"""


def check_file_system(place: str) -> Check:
    """Type of the file system of a folder, and what is free."""
    folder = _find_existing(place)
    kind, mount = _find_mount(folder)
    status = os.statvfs(folder)
    free_bytes = status.f_bavail * status.f_frsize
    complaints = []
    if status.f_flag & os.ST_RDONLY or not os.access(folder, os.W_OK):
        complaints.append((Severity.NOTE, "nothing can be written here", "choose another folder for what is written"))
    elif status.f_blocks and free_bytes < RESERVE_BYTES:
        complaints.append((Severity.PROBLEM, "it is full", f"free some space: df -h {quote(str(folder))}"))
    elif status.f_blocks and free_bytes < _LITTLE_BYTES:
        hint = "all scenes need about 5 GB processed, and 21 GB raw"
        complaints.append((Severity.NOTE, "little is free", hint))
    if status.f_files and status.f_favail < RESERVE_FILES:
        hint = f"remove files, or have the quota raised: df -i {quote(str(folder))}"
        complaints.append((Severity.PROBLEM, "no more files can be made", hint))
    if _NETWORK_TYPES.fullmatch(kind):
        hint = "for training, pack the scenes and copy the archive to a local disk"
        complaints.append((Severity.NOTE, "on the network", hint))
    files = f", room for {status.f_favail:,} files" if status.f_files else ""
    text = f"{folder}: {kind} (mounted at {mount}), {format_bytes(free_bytes)} free{files}"
    return judge("file system", text, complaints, path=str(folder), type=kind, free_bytes=free_bytes)


def check_locks(place: str) -> Check:
    """Whether a lock that this process holds keeps another one out, and is free for it afterwards."""
    import fcntl

    folder = _find_existing(place)
    alone = "until then, let only one run at a time write there, or give each run a part: --shard"
    try:
        descriptor, name = tempfile.mkstemp(prefix=".scannet-prep-doctor-", dir=folder)
    except OSError as error:
        return Check("locks", Severity.NOTE, f"not tried: nothing can be written to {folder} ({error.strerror})")
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        held = _try_lock(name)
        fcntl.flock(descriptor, fcntl.LOCK_UN)
        freed = _try_lock(name)
    except OSError as error:
        return Check("locks", Severity.PROBLEM, f"{folder}: there are no locks: {error.strerror}", alone)
    finally:
        os.close(descriptor)
        with suppress(OSError):
            Path(name).unlink()
    if (held, freed) == ("refused", "granted"):
        return Check("locks", Severity.OK, f"{folder}: they work between two processes of this machine")
    text = f"{folder}: they do not work: a lock that is held was {held}, a free one {freed}, to another process"
    return Check("locks", Severity.PROBLEM, text, alone)


def check_scenes(place: str) -> Check:
    """Whether a folder or an archive is whole, as the dataset and all commands see it."""
    from scannet_prep.archive.layout import ArchiveKind
    from scannet_prep.processed.folder import find_state
    from scannet_prep.raw.layout import find_raw_scenes
    from scannet_prep.stages.place import open_place
    from scannet_prep.stages.tree import identify_tree, is_archive

    is_named, place = bool(place), place or DEFAULT_PLACE
    shown = _public(place) if "://" in place else place
    try:
        if not is_named and not Path(place).exists():
            return Check("scenes", Severity.NOTE, f"{place} is not there", "name a folder: scannet-prep doctor PLACE")
        if is_archive(place):
            opened = open_place([place])
            return _judge_processed(shown, len(opened.entries), list(opened.failures), None)
        if identify_tree(Path(place)) is ArchiveKind.RAW:
            scenes = find_raw_scenes(Path(place))
            has_failed = (Path(place) / "failed.txt").exists()
            hint = f"scannet-prep download --types seg -o {quote(place)}; scannet-prep verify {quote(place)}"
            complaints = [(Severity.PROBLEM, "failed.txt lists scenes that lack files", hint)] if has_failed else []
            return judge("scenes", f"{place}: {len(scenes):,} raw scenes", complaints, scenes=len(scenes))
        state = find_state(Path(place))
        fault = state.faults[0] if state.faults else None
        return _judge_processed(place, len(state.manifest.scenes), list(state.manifest.failures), fault)
    except ScanNetPrepError as error:
        return Check("scenes", Severity.PROBLEM, error.message, error.hint)


def check_server(base_url: str) -> Check:
    """Whether the server of the release answers, whatever it says."""
    from scannet_prep.remote.client import Client
    from scannet_prep.remote.gate import TransferPolicy
    from scannet_prep.remote.trouble import AttemptError, is_server_address

    shown = _public(base_url)
    if not is_server_address(base_url):
        return Check("server", Severity.PROBLEM, f"{shown} is not an address", "such as https://host/scannet/")
    try:
        client = Client(base_url, TransferPolicy(connect_timeout_s=2.5, answer_timeout_s=3.0), True)
        try:
            with client.open(base_url.rstrip("/") + "/ScanNet_TOS.pdf", {}, "HEAD"):
                return Check("server", Severity.OK, f"{shown} answers")
        finally:
            client.close()
    except AttemptError as error:
        if error.is_answer or error.is_busy:
            return Check("server", Severity.OK, f"{shown} answers ({error.reason})")
        hint = error.hint or "only download needs it: download on a machine that is online, and copy the files"
        return Check("server", Severity.NOTE, f"{shown}: {error.reason}", hint)
    except (TransferError, FileError, ScanNetPrepError) as error:
        return Check("server", Severity.PROBLEM, error.message, error.hint)


def check_gpu(_argument: str) -> Check:
    """What PyTorch says of GPUs and NCCL."""
    import torch

    distributed = torch.distributed
    backends = [
        name
        for name, has in (("gloo", "is_gloo_available"), ("nccl", "is_nccl_available"))
        if distributed.is_available() and getattr(distributed, has)()
    ]
    count = torch.cuda.device_count() if torch.cuda.is_available() else 0
    names = [f"{torch.cuda.get_device_name(index)}" for index in range(count)]
    values: dict[str, Any] = {"torch": torch.__version__, "cuda": torch.version.cuda, "gpus": names}
    values |= {"backends": backends, "nccl": None}
    if "nccl" in backends and torch.version.cuda:
        with suppress(Exception):
            values["nccl"] = ".".join(map(str, torch.cuda.nccl.version()))
    complaints = []
    has_driver = Path("/proc/driver/nvidia").exists() or any(Path("/dev").glob("nvidia[0-9]*"))
    if has_driver and not count:
        built = f"built for CUDA {torch.version.cuda}" if torch.version.cuda else "built without CUDA"
        hint = "nvidia-smi shows driver and version; docker run --gpus all, apptainer exec --nv; install PyTorch for it"
        complaints.append((Severity.PROBLEM, f"there is a GPU, and PyTorch ({built}) cannot use it", hint))
    gpus = f"{count} GPUs: {', '.join(sorted(set(names)))}" if count else "no GPU"
    nccl = f", NCCL {values['nccl']}" if values["nccl"] else ""
    text = f"PyTorch {torch.__version__}: {gpus}{nccl}; backends: {', '.join(backends) or 'none'}"
    return judge("GPU", text, complaints, **values)


PROBES: dict[str, tuple[Callable[[str], Check], ...]] = {
    "folder": (check_file_system, check_locks, check_scenes),
    "temporary": (
        lambda _: check_file_system(tempfile.gettempdir()),  # finding it writes into it
        lambda _: check_locks(tempfile.gettempdir()),
    ),
    "scenes": (check_scenes,),
    "server": (check_server,),
    "gpu": (check_gpu,),
}
"""The checks of each probe, in order. All take one text."""


def main() -> None:
    """Make the checks of one probe, and print each as a line of JSON as soon as it is known."""
    name, argument = sys.argv[1:]
    output = os.dup(1)
    os.dup2(2, 1)  # what libraries print is not an answer
    with os.fdopen(output, "wb") as file:
        for check in PROBES[name]:
            try:
                found = check(argument)
            except Exception as error:  # noqa: BLE001 - whatever a library or a driver raises is a finding
                found = Check(name, Severity.PROBLEM, f"{type(error).__name__}: {error}"[:300])
            file.write(encode_json(found) + b"\n")
            file.flush()


def _judge_processed(place: str, count: int, failed: list[str], fault: FileError | None) -> Check:
    complaints = []
    if fault is not None:
        complaints.append((Severity.PROBLEM, fault.message.removeprefix(f"{place}: "), fault.hint))
    if failed:
        hint = f"see why: scannet-prep info {quote(place)}"
        complaints.append((Severity.PROBLEM, f"{len(failed):,} failed in processing, such as {failed[0]}", hint))
    return judge("scenes", f"{place}: {count:,} processed scenes", complaints, scenes=count, failed=failed)


def _find_existing(place: str) -> Path:
    """The folder of a file, or the nearest folder that exists."""
    path = Path(place or DEFAULT_PLACE).absolute()
    while not path.is_dir() and path != path.parent:
        path = path.parent
    return path


def _find_mount(folder: Path) -> tuple[str, str]:
    """Type and place of the file system that a folder is on."""
    found, resolved = ("unknown type", "?"), folder.resolve()
    with suppress(OSError):  # not Linux
        for line in _MOUNTS_PATH.read_text(encoding="utf-8", errors="replace").splitlines():
            fields, _, rest = line.partition(" - ")
            mount = re.sub(r"\\(\d{3})", lambda match: chr(int(match[1], 8)), fields.split()[4])
            if resolved.is_relative_to(mount) and len(mount) >= len(found[1]):
                found = (rest.split()[0], mount)
    return found


def _try_lock(name: str) -> str:
    command = [sys.executable, "-I", "-S", "-c", _LOCK, name]
    done = subprocess.run(command, capture_output=True, text=True, check=False)  # noqa: S603
    return done.stdout.strip() or f"an error ({done.stderr.strip().splitlines()[-1:]})"


def _public(address: str) -> str:
    from scannet_prep.remote.trouble import public_url

    return public_url(address)
