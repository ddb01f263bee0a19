"""Description of the machine and the libraries that the results depend on."""

from __future__ import annotations

import os
import platform
from importlib.metadata import version
from pathlib import Path


def describe_machine() -> dict[str, str]:
    """Describe the processor, the cores, Python and the libraries."""
    if hasattr(os, "sched_getaffinity"):
        core_count = len(os.sched_getaffinity(0))
    else:
        core_count = os.cpu_count() or 1
    return {
        "processor": _processor_name(),
        "cores": str(core_count),
        "system": platform.system(),
        "Python": platform.python_version(),
        "numpy": version("numpy"),
        "deflate": version("deflate"),
        "scannet_prep": version("scannet-prep"),
    }


def _processor_name() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        return platform.processor()
    for line in lines:
        if line.startswith("model name"):
            return line.partition(":")[2].strip()
    return "unknown"
