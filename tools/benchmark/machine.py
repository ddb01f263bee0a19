"""What the figures were measured on."""

from __future__ import annotations

import os
import platform
from importlib.metadata import version
from pathlib import Path

from scannet_prep.base.compiled import compile_geometry


def describe_machine() -> dict[str, str]:
    """Processor, cores, Python and the libraries that matter."""
    return {
        "processor": _processor_name(),
        "cores": str(
            len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
        ),
        "system": platform.system(),
        "Python": platform.python_version(),
        "numpy": version("numpy"),
        "numba": version("numba") if compile_geometry() else "not used",
        "deflate": version("deflate"),
        "scannet_prep": version("scannet-prep"),
    }


def _processor_name() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        return platform.processor()
    return next(
        (line.partition(":")[2].strip() for line in lines if line.startswith("model name")),
        "unknown",
    )
