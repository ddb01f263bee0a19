"""The stage `doctor`: what a maintainer would ask first, found out within ten seconds whatever hangs."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

from scannet_prep.stages.doctor.check import Check, Probe, Severity, run_probes
from scannet_prep.stages.doctor.machine import check_machine

_FOLDER_LIMIT_S, _SERVER_LIMIT_S, _GPU_LIMIT_S = 6.0, 6.0, 7.0
_OFFLINE = "only download needs it; look at proxy and firewall, or download on another machine"
_HANGING = "run nvidia-smi: if it hangs, too, the driver does; else PyTorch is on a file system that is slow or hangs"


@dataclass(frozen=True, slots=True)
class DoctorReport:
    """What was found.

    Attributes:
        place: What was looked at; empty where nothing was named.
        checks: All findings, in a fixed order.
        seconds: How long it took.
        hangs: Whether something in this process hangs still, so that nobody must wait for its end.
    """

    place: str
    checks: tuple[Check, ...]
    seconds: float
    hangs: bool = False

    @property
    def problems(self) -> list[Check]:
        """What is going to hurt."""
        return [check for check in self.checks if check.severity is Severity.PROBLEM]


def run(place: str, environ: Mapping[str, str], base_url: str) -> DoctorReport:
    """Look at everything that training and processing depend on. Nothing is left behind, and nothing raised.

    Args:
        place: A folder or an archive of scenes, or an address; empty for `data/processed`, if that is there.
        environ: The environment; the checks run in it.
        base_url: Of the server that `download` fetches from.
    """
    started_s = time.monotonic()
    stuck = "the file system hangs, or is very slow; df hangs, too. Ask its administrator"
    probes = [
        Probe("temporary", "", ("temporary folder", "locks in it"), _FOLDER_LIMIT_S, stuck),
        Probe("server", base_url, ("server",), _SERVER_LIMIT_S, _OFFLINE, Severity.NOTE),
    ]
    if "://" in place:
        probes.insert(0, Probe("scenes", place, ("scenes",), _SERVER_LIMIT_S, "is the address right?"))
    else:
        slow = f"{stuck}; scannet-prep verify PLACE looks at every scene, however long it takes"
        probes.insert(0, Probe("folder", place, ("folder", "locks", "scenes"), _FOLDER_LIMIT_S, slow))
    if has_torch := find_spec("torch") is not None:
        severity = Severity.PROBLEM if any(Path("/dev").glob("nvidia[0-9]*")) else Severity.NOTE
        probes.append(Probe("gpu", "", ("GPU",), _GPU_LIMIT_S, _HANGING, severity))
    found = check_machine(environ) + run_probes(probes, environ)
    if not has_torch:
        found.append(Check("GPU", "PyTorch is not installed").note("", "to train: pip install torch"))
    return DoctorReport(place, tuple(found), round(time.monotonic() - started_s, 3))
