"""The command in containers: users without a home, and limits of the system."""

import os
from argparse import Namespace
from pathlib import Path

from commands import run_command, succeed, write_tree

from scannet_prep.base.machine import find_core_limits, find_memory_limits
from scannet_prep.cli.arguments import jobs_from

GIB = 1 << 30


def test_user_without_home_and_terminal_gets_plain_lines_and_an_intact_archive(raw_dir, tmp_path):
    environment = {
        "PATH": os.environ["PATH"],
        "HOME": "/nonexistent",
        "PYTHONPATH": str(Path(__file__).parents[1]),
    }
    words = ("process", raw_dir, "-o", tmp_path / "out", "--jobs", "1")
    outcome = run_command(*words, environment=environment)
    assert outcome.status == 0
    assert not set("\r\x1b") & set(outcome.stdout + outcome.stderr)

    words = ("pack", tmp_path / "out", "-o", tmp_path / "a.tar.zst")
    assert run_command(*words, environment=environment).status == 0
    succeed("verify", tmp_path / "a.tar.zst")


# Limits of cores and memory.

GROUPS = "sys/fs/cgroup"
MEMBERSHIP = "proc/self/cgroup"


def write_group(root, files):
    """Write the files of control groups, of which this process belongs to `/job/step`."""
    contents = {f"{GROUPS}/{name}": text.encode() for name, text in files.items()}
    contents[MEMBERSHIP] = b"3:cpu,cpuacct:/box\n0::/job/step\n"
    return write_tree(root, contents)


def test_limits_are_those_of_all_control_groups_and_of_slurm(tmp_path, monkeypatch):
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0, 3, 5})
    files = {"cpu.max": "150000 100000", "memory.max": f"{3 * GIB}\n"}
    root = write_group(tmp_path / "at the root", files)
    assert find_core_limits({}, root)["container"] == 2  # a part of a core is rounded up
    assert find_memory_limits(root)["container"] == 3 * GIB

    files |= {
        "job/cpu.max": "100000 100000",
        "job/memory.max": f"{2 * GIB}",
        "job/step/cpu.max": "max 100000",
        "job/step/memory.max": "max",
    }
    root = write_group(tmp_path / "outer", files)
    environ = {"SLURM_CPUS_PER_TASK": "7", "SLURM_CPUS_ON_NODE": "9"}
    assert find_core_limits(environ, root) == {
        "affinity": 3,
        "SLURM_CPUS_PER_TASK": 7,
        "SLURM_CPUS_ON_NODE": 9,
        "container": 1,
    }
    assert find_memory_limits(root)["container"] == 2 * GIB

    assert "container" not in find_core_limits({}, tmp_path)
    monkeypatch.setenv("SLURM_CPUS_PER_TASK", "1")
    assert jobs_from(Namespace(jobs=None)) == 1


def test_values_that_are_no_limits_are_ignored(tmp_path):
    files = {"job/cpu.max": "100000 0", "job/step/cpu.max": "", "job/memory.max": "²"}
    root = write_group(tmp_path, files)
    (root / GROUPS / "job/step/memory.max").write_bytes(b"\xff\xfe\0")
    slurm = {"SLURM_CPUS_PER_TASK": "²", "SLURM_CPUS_ON_NODE": "4(x2)"}
    assert [*find_core_limits(slurm, root)] == ["affinity"]
    assert {*find_memory_limits(root)} == {"machine"}
    (root / MEMBERSHIP).write_bytes(b"0::/\0\n::\n\xff\n0::/../../..\n")
    assert [*find_core_limits({}, root)] == ["affinity"]
