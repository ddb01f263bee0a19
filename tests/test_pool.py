"""Worker processes: results, deaths, and how many of them."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from commands import is_running
from worker_functions import (
    DiesWhileStarting,
    fail,
    kill_self_if_negative,
    multiply,
    multiply_by_context,
    sleep_and_tell,
)

from scannet_prep.errors import WorkerDiedError
from scannet_prep.stages.pool import default_worker_count, run_tasks


def test_every_task_gets_its_result_and_what_a_function_raises_is_told() -> None:
    assert dict(run_tasks(multiply, range(50), 3, jobs=2)) == {task: task * 3 for task in range(50)}
    assert list(run_tasks(multiply, [], 3, jobs=2)) == []
    ((_, error),) = run_tasks(fail, [5], "task")
    assert "ZeroDivisionError: task 5" in str(error)


def test_a_task_that_kills_its_worker_twice_is_given_up_and_costs_no_other(tmp_path: Path) -> None:
    results = dict(run_tasks(kill_self_if_negative, [1, 2, -7, 3, 4, 5, 6], tmp_path, jobs=2))
    assert {task: result for task, result in results.items() if task > 0} == {task: task for task in range(1, 7)}
    assert isinstance(results[-7], WorkerDiedError)
    assert (tmp_path / "-7").read_text() == "xx"


def test_a_worker_that_dies_before_it_is_ready_is_started_again_but_not_for_ever(tmp_path: Path) -> None:
    results = dict(run_tasks(multiply_by_context, range(4), DiesWhileStarting(tmp_path, 3), jobs=2))
    assert results == {task: task * 3 for task in range(4)}
    assert len(list(tmp_path.iterdir())) == 3
    with pytest.raises(WorkerDiedError, match="end as soon as they are started"):
        list(run_tasks(multiply_by_context, range(4), DiesWhileStarting(tmp_path, 99), jobs=2))


def test_a_caller_that_stops_listening_leaves_no_worker_behind(tmp_path: Path) -> None:
    results = run_tasks(sleep_and_tell, [0.01, 60.0, 60.0, 60.0], tmp_path, jobs=2)
    assert next(results) == (0.01, 0.01)
    results.close()  # type: ignore[attr-defined]
    workers = [int(path.name) for path in tmp_path.iterdir()]
    assert workers
    assert not any(is_running(pid) for pid in workers)


@pytest.mark.parametrize("way", ["script.py", "-c", "-"])
def test_workers_start_from_scripts_without_a_guard(whole_dir: Path, tmp_path: Path, way: str) -> None:
    script = (
        "from pathlib import Path\n"
        "from scannet_prep.processed.scene import ProcessOptions\n"
        "from scannet_prep.stages import process\n"
        f"plan = process.plan(Path({str(whole_dir / 'raw')!r}), Path('out'), ProcessOptions())\n"
        "print(len(process.run(plan, jobs=1).made))\n"
    )
    (tmp_path / "script.py").write_text(script)
    words = [sys.executable, way, *[script] * (way == "-c")]
    done = subprocess.run(words, input=script, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (0, "3\n", "")


def test_the_number_of_workers_is_the_smallest_of_all_limits(tmp_path: Path) -> None:
    unlimited = default_worker_count({}, tmp_path)
    assert unlimited >= 1
    for limit, count in (("1", 1), ("100000", unlimited), ("many", unlimited)):
        assert default_worker_count({"SLURM_CPUS_PER_TASK": limit}, tmp_path) == count


@pytest.mark.parametrize(
    ("membership", "files", "is_limited"),
    [
        ("0::/job/7\n", {"job/7/cpu.max": "50000 100000\n"}, True),
        ("0::/job/7\n", {"job/cpu.max": "100000 100000\n", "job/7/cpu.max": "max 100000\n"}, True),
        ("0::/\n", {"cpu.max": "max 100000\n"}, False),
        ("0::/\n", {"cpu.max": "garbage"}, False),
        ("4:cpu,cpuacct:/job\n", {"cpu,cpuacct/job/cpu.cfs_quota_us": "100000\n"}, True),
        ("4:cpu,cpuacct:/job\n", {"cpu,cpuacct/job/cpu.cfs_quota_us": "-1\n"}, False),
        ("4:memory:/job\n", {"memory/job/cpu.max": "50000 100000\n"}, False),
    ],
)
def test_the_quota_of_a_container_counts(tmp_path: Path, membership: str, files: dict[str, str], is_limited) -> None:
    for name, text in files.items():
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
        path.with_name("cpu.cfs_period_us").write_text("100000\n")
    (tmp_path / "membership").write_text(membership)
    unlimited = default_worker_count({}, tmp_path / "none", tmp_path / "membership")
    assert default_worker_count({}, tmp_path, tmp_path / "membership") == (1 if is_limited else unlimited)
