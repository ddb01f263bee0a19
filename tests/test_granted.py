"""Cores and memory that are granted: by the machine, by a container, by Slurm."""

from __future__ import annotations

from pathlib import Path

from archives import write_tree
from launches import LAUNCHES

from scannet_prep.stages.granted import find_granted_cores, find_granted_memory

GROUPS, MEMBERSHIP = "sys/fs/cgroup", "proc/self/cgroup"


def write_group(root: Path, files: dict[str, str]) -> Path:
    groups = {f"{GROUPS}/{name}": text.encode() for name, text in files.items()}
    return write_tree(root, groups | {MEMBERSHIP: b"4:memory:/box\n3:cpu,cpuacct:/box\n0::/job/step\n"})


def test_granted_cores_and_memory_are_the_least_of_machine_container_and_slurm(tmp_path: Path) -> None:
    first = {"cpu,cpuacct/cpu.cfs_quota_us": "150000", "cpu,cpuacct/cpu.cfs_period_us": "100000"}
    first["memory/memory.limit_in_bytes"] = f"{3 << 30}\n"
    group = write_group(tmp_path / "first", first | {"memory/box/memory.limit_in_bytes": f"{(1 << 63) - 4096}"})
    assert find_granted_cores({}, group)["container"] == 2
    assert find_granted_memory({}, group)["container"] == 3 << 30
    second = {"job/cpu.max": "100000 100000", "job/step/cpu.max": "max 100000", "job/step/memory.max": "max"}
    group = write_group(tmp_path / "second", second | {"job/memory.max": f"{2 << 30}"})
    cores = find_granted_cores({"SLURM_CPUS_PER_TASK": "7"}, group)
    assert cores | {"affinity": 0} == {"affinity": 0, "Slurm": 7, "container": 1}
    slurm = {"SLURM_MEM_PER_NODE": "1024"}
    expected = {"machine": 0, "container": 2 << 30, "Slurm": 1 << 30}
    assert find_granted_memory(slurm, group) | {"machine": 0} == expected
    assert find_granted_memory({"SLURM_MEM_PER_CPU": "512", "SLURM_CPUS_ON_NODE": "4"}, group)["Slurm"] == 2 << 30
    assert "container" not in find_granted_cores({}, tmp_path)


def test_a_process_gets_its_share_of_the_cores_that_slurm_grants(tmp_path: Path) -> None:
    for launch in LAUNCHES:
        cores = find_granted_cores(launch.environ, tmp_path)
        assert cores.get("Slurm") == launch.cores, launch.name


def test_odd_words_in_control_groups_and_the_environment_are_no_limits(tmp_path: Path) -> None:
    group = write_group(tmp_path, {"job/cpu.max": "100000 0", "job/step/cpu.max": "", "job/memory.max": "²"})
    (tmp_path / GROUPS / "job/step/memory.max").write_bytes(b"\xff\xfe\0")
    odd = {"SLURM_CPUS_PER_TASK": "²", "SLURM_CPUS_ON_NODE": "4(x2)", "SLURM_STEP_TASKS_PER_NODE": "0,²(x2)"}
    odd |= {"SLURM_MEM_PER_NODE": "8G", "SLURM_MEM_PER_CPU": "-1"}
    assert list(find_granted_cores(odd, group)) == ["affinity"]
    assert set(find_granted_memory(odd, group)) <= {"machine", "ulimit -v"}
    (tmp_path / GROUPS / "job/cpu.max").write_text("100000 -1")
    assert list(find_granted_cores(odd, group)) == ["affinity"]
    (tmp_path / MEMBERSHIP).write_bytes(b"0::/\0\n::\n\xff\n0::/../../..\n")
    assert list(find_granted_cores({}, group)) == ["affinity"]
