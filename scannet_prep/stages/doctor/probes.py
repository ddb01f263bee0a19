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

from scannet_prep.errors import ScanNetPrepError
from scannet_prep.space import RESERVE_BYTES, RESERVE_FILES, format_bytes
from scannet_prep.stages.doctor.check import Check
from scannet_prep.typed_json import encode_json

DEFAULT_PLACE = "data/processed"

_NETWORK_TYPES = re.compile(r"nfs\d?|lustre|cifs|smb3?|beegfs|gpfs|ceph|glusterfs|afs|9p|panfs|wekafs|fuse\..*")
_LITTLE_BYTES = 5_000_000_000
_LOCK = "import fcntl, sys; fcntl.flock(open(sys.argv[1]), fcntl.LOCK_EX | fcntl.LOCK_NB)"


def check_file_system(place: str) -> Check:
    """Type of the file system of a folder, and what is free."""
    folder = _find_existing(place)
    kind, mount = _find_mount(folder)
    status = os.statvfs(folder)
    free_bytes = status.f_bavail * status.f_frsize
    files = f", room for {status.f_favail:,} files" if status.f_files else ""
    text = f"{folder}: {kind} (mounted at {mount}), {format_bytes(free_bytes)} free{files}"
    check = Check("file system", text, {"path": str(folder), "type": kind, "free_bytes": free_bytes})
    if status.f_flag & os.ST_RDONLY or not os.access(folder, os.W_OK):
        check.note("nothing can be written here", "choose another folder for what is written")
    elif status.f_blocks and free_bytes < RESERVE_BYTES:
        check.problem("it is full", f"free some space: df -h {quote(str(folder))}")
    elif status.f_blocks and free_bytes < _LITTLE_BYTES:
        check.note("little is free", "all scenes need about 5 GB processed, and 21 GB raw")
    if status.f_files and status.f_favail < RESERVE_FILES:
        check.problem("no more files can be made", f"remove some, or ask for a quota: df -i {quote(str(folder))}")
    if _NETWORK_TYPES.fullmatch(kind):
        check.note("on the network", "for training, pack the scenes and copy the archive to a local disk")
    return check


def check_locks(place: str) -> Check:
    """Whether a lock that this process holds keeps another one out, and is free for it afterwards."""
    import fcntl

    folder = _find_existing(place)
    check = Check("locks", f"{folder}: they work between two processes of this machine")
    try:
        file = tempfile.NamedTemporaryFile(prefix=".scannet-prep-doctor-", dir=folder)  # noqa: SIM115 - or none
    except OSError as error:
        return Check("locks", "").note(f"not tried: nothing can be written to {folder} ({error.strerror})", "")
    with file, suppress(OSError):
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        is_held = _try_lock(file.name)
        fcntl.flock(file, fcntl.LOCK_UN)
        if not is_held and _try_lock(file.name):
            return check
    check.message = f"{folder}: they do not work: a lock keeps no other process out, or there are none"
    return check.problem("", "let only one run at a time write there, or give each run a part: --shard")


def check_scenes(place: str) -> Check:
    """Whether a folder or an archive is whole, as the dataset and all commands see it."""
    from scannet_prep.archive.layout import ArchiveKind
    from scannet_prep.place import open_place
    from scannet_prep.processed.folder import find_state
    from scannet_prep.raw.layout import find_raw_scenes
    from scannet_prep.remote.trouble import public_url
    from scannet_prep.splits import read_scene_list
    from scannet_prep.tree import identify_tree, is_archive

    path = Path(place or DEFAULT_PLACE)
    if not place and not path.exists():
        return Check("scenes", f"{path} is not there").note("", "name a folder: scannet-prep doctor PLACE")
    shown, faults = str(path), []
    try:
        if is_archive(place or path):
            shown = public_url(place) if "://" in place else shown
            opened = open_place([place or path])
            count, failed, kind = len(opened.entries), sorted(opened.failures), "processed"
        elif identify_tree(path) is ArchiveKind.RAW:
            count, failed, kind = len(find_raw_scenes(path)), [], "raw"
            if (path / "failed.txt").exists():
                failed = read_scene_list(path / "failed.txt")
        else:
            state = find_state(path)
            count, failed, kind = len(state.manifest.scenes), sorted(state.manifest.failures), "processed"
            faults = [(fault.message.removeprefix(f"{path}/"), fault.hint) for fault in state.faults[:1]]
    except ScanNetPrepError as error:
        return Check("scenes", "").problem(error.message, error.hint)
    check = Check("scenes", f"{shown}: {count:,} {kind} scenes", {"kind": kind, "scenes": count, "failed": failed})
    for message, hint in faults:
        check.problem(message, hint)
    if failed:
        remedy = "to see why: scannet-prep info" if kind == "processed" else "scannet-prep verify"
        check.problem(f"scenes that failed: {len(failed):,}, such as {failed[0]}", f"{remedy} {quote(shown)}")
    return check


def check_server(base_url: str) -> Check:
    """Whether the server of the release answers, whatever it says."""
    from scannet_prep.remote.client import Client
    from scannet_prep.remote.gate import TransferPolicy
    from scannet_prep.remote.trouble import AttemptError, is_server_address, public_url

    check = Check("server", f"{public_url(base_url)} answers")
    try:
        if not is_server_address(base_url):
            return check.problem("it is not an address", "an address looks like https://host/scannet/")
        client = Client(base_url, TransferPolicy(connect_timeout_s=2.5, answer_timeout_s=3.0), True)
        with client.open(base_url.rstrip("/") + "/ScanNet_TOS.pdf", {}, "HEAD"):
            pass
    except AttemptError as error:
        if not error.is_answer and not error.is_busy:
            check.message = f"{public_url(base_url)}: {error.reason}"
            check.note("", error.hint or "only download needs it: download where there is a network")
    except ScanNetPrepError as error:  # certificates, proxies
        check.message = error.message
        check.problem("", error.hint)
    return check


def check_gpu(_argument: str) -> Check:
    """What PyTorch says of GPUs and NCCL."""
    import torch

    has_cuda, distributed = torch.cuda.is_available(), torch.distributed
    names = [torch.cuda.get_device_name(index) for index in range(torch.cuda.device_count())] if has_cuda else []
    nccl = distributed.is_available() and distributed.is_nccl_available()
    values: dict[str, Any] = {"torch": torch.__version__, "cuda": torch.version.cuda, "gpus": names}
    values["nccl"] = ".".join(map(str, torch.cuda.nccl.version())) if nccl and has_cuda else None
    gpus = f"{len(names)} GPUs: {', '.join(sorted(set(names)))}" if names else "no GPU"
    backend = f"NCCL {values['nccl'] or 'without a GPU'}" if nccl else "no NCCL, gloo only"
    check = Check("GPU", f"PyTorch {torch.__version__}: {gpus}; {backend}", values)
    if not names and any(Path("/dev").glob("nvidia[0-9]*")):
        why = f"there is a GPU, and PyTorch (built for CUDA {torch.version.cuda}) cannot use it"
        check.problem(why, "nvidia-smi shows driver and version; docker run --gpus all, apptainer exec --nv")
    return check


PROBES: dict[str, tuple[Callable[[str], Check], ...]] = {
    "folder": (check_file_system, check_locks, check_scenes),
    # Finding the folder of temporary files writes into it.
    "temporary": (
        lambda _: check_file_system(tempfile.gettempdir()),
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
    for function in PROBES[name]:
        try:
            check = function(argument)
        except Exception as error:  # noqa: BLE001 - whatever a library or a driver raises is a finding
            check = Check(name, "").problem(f"{type(error).__name__}: {error}"[:300], "")
        os.write(output, encode_json(check) + b"\n")


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
        for line in Path("/proc/self/mountinfo").read_text(encoding="utf-8", errors="replace").splitlines():
            fields, _, rest = line.partition(" - ")
            mount = re.sub(r"\\(\d{3})", lambda match: chr(int(match[1], 8)), fields.split()[4])
            if resolved.is_relative_to(mount) and len(mount) >= len(found[1]):
                found = (rest.split()[0], mount)
    return found


def _try_lock(name: str) -> bool:
    command = [sys.executable, "-I", "-S", "-c", _LOCK, name]
    return not subprocess.run(command, stderr=subprocess.DEVNULL, check=False).returncode  # noqa: S603
