"""Tests of worker processes, and of executors of the caller that take their place."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Executor, Future, ProcessPoolExecutor, ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path

import pytest
from commands import PYTHON, Outcome, digests, is_running, run_command, run_main, run_words
from worker_functions import (
    DiesWhileStarting,
    fail,
    kill_self_if_negative,
    measure_context,
    multiply,
    sleep_and_tell,
)

from scannet_prep import official_scenes
from scannet_prep.base.progress import Progress
from scannet_prep.base.version import VERSION
from scannet_prep.errors import UsageError, WorkerDiedError
from scannet_prep.processed.scene import ProcessOptions
from scannet_prep.stages import dask_engine, export, process
from scannet_prep.stages.pool import run_tasks
from scannet_prep.stages.process import ProcessReport
from scannet_prep.stages.process.scene_worker import FinishedScene, make_scene_file
from scannet_prep.synthetic import write_release

SCENES = official_scenes("train")[:6]
EXPORTS = ("octformer", "mask3d")
SLURM_CLUSTER = 'SLURMCluster(cores=8, processes=8, memory="16GB", walltime="01:00:00")'
PAGE = (Path(__file__).parent.parent / "docs/cluster.md").read_text()


@pytest.fixture(scope="module")
def raw(tmp_path_factory: pytest.TempPathFactory) -> Path:
    raw_dir = tmp_path_factory.mktemp("executors") / "raw"
    write_release(raw_dir, SCENES, vertices=2_000)
    return raw_dir


@pytest.fixture(scope="module")
def expected(raw: Path) -> Path:
    """The folder that worker processes make, with the exports beside it."""
    folder = raw.parent / "expected"
    process.run(process.plan(raw, folder, ProcessOptions()))
    for name in EXPORTS:
        export.run(export.plan([folder], raw.parent / name, name))
    return folder


def make(
    raw_dir: Path, out_dir: Path, executor: Executor, progress: Progress | None = None
) -> ProcessReport:
    return process.run(
        process.plan(raw_dir, out_dir, ProcessOptions()), executor=executor, progress=progress
    )


class At(Progress):
    """Calls a function when a number of scenes is done."""

    def __init__(self, count: int, action: Callable[[], None]) -> None:
        self._left = count
        self._action = action

    def advance(self, count: int = 1) -> None:
        self._left -= count
        if self._left == 0:
            self._action()


class Forgetful(Executor):
    """Loses each of the given tasks a number of times.

    The last time, its result is None; before that, it is cancelled.
    """

    def __init__(self, losses: dict[object, int]) -> None:
        self.losses = losses

    def submit(self, function, task, context):
        future: Future[object] = Future()
        name = getattr(task, "scene_id", task)
        if self.losses.get(name, 0) > 0:
            self.losses[name] -= 1
            future.cancel() if self.losses[name] else future.set_result(None)
        else:
            future.set_result(function(task, context))
        return future


@dataclass(frozen=True)
class ExecutorRuns:
    """Runs of an executor: `process` twice, and then each export.

    Attributes:
        out_dir: The processed folder, with the exports beside it.
        made: The scenes that the first run made.
        made_again: The scenes that the second run made.
        exported: The scenes that each export made, by its name.
    """

    out_dir: Path
    made: tuple[str, ...]
    made_again: tuple[str, ...]
    exported: dict[str, tuple[str, ...]]


@pytest.fixture(scope="module", params=[ThreadPoolExecutor, ProcessPoolExecutor])
def runs(
    request: pytest.FixtureRequest, raw: Path, tmp_path_factory: pytest.TempPathFactory
) -> ExecutorRuns:
    directory = tmp_path_factory.mktemp("runs")
    out_dir = directory / "out"
    with request.param(2) as executor:
        made = make(raw, out_dir, executor).made
        made_again = make(raw, out_dir, executor).made
        exported = {}
        for name in EXPORTS:
            plan = export.plan([out_dir], directory / name, name)
            exported[name] = export.run(plan, executor=executor).made
    return ExecutorRuns(out_dir, made, made_again, exported)


def test_executor_makes_the_same_scenes_as_worker_processes(
    runs: ExecutorRuns, expected: Path
) -> None:
    assert len(runs.made) == len(SCENES)
    assert digests(runs.out_dir) == digests(expected)


def test_second_run_of_an_executor_makes_no_scene(runs: ExecutorRuns) -> None:
    assert runs.made_again == ()


@pytest.mark.usefixtures("expected")
@pytest.mark.parametrize("name", EXPORTS)
def test_executor_makes_the_same_export_as_worker_processes(
    runs: ExecutorRuns, raw: Path, name: str
) -> None:
    assert len(runs.exported[name]) == len(SCENES)
    assert files_of_export(runs.out_dir.parent / name) == files_of_export(raw.parent / name)


def files_of_export(folder: Path) -> dict[str, str]:
    """Return the digests of an export without its manifest, which names the processed folder."""
    files = digests(folder)
    del files["export.json"]
    return files


@pytest.fixture(params=["workers", "threads"])
def engine(request: pytest.FixtureRequest) -> Iterator[Executor | None]:
    """An executor with one thread, or None for worker processes."""
    if request.param == "workers":
        yield None
    else:
        with ThreadPoolExecutor(1) as threads:
            yield threads


def test_each_task_gets_its_result(engine: Executor | None) -> None:
    results = dict(run_tasks(multiply, range(50), 3, jobs=2, executor=engine))

    assert results == {number: number * 3 for number in range(50)}


def test_no_tasks_give_no_results(engine: Executor | None) -> None:
    assert list(run_tasks(multiply, [], 3, executor=engine)) == []


def test_exception_of_a_task_is_in_its_error(engine: Executor | None) -> None:
    ((_, error),) = run_tasks(fail, [5], "task", executor=engine)

    assert "ZeroDivisionError: task 5" in str(error)


def test_executor_that_was_shut_down_is_an_error() -> None:
    threads = ThreadPoolExecutor(1)
    threads.shutdown()

    problem = "the executor takes no more tasks: cannot schedule new futures"
    with pytest.raises(WorkerDiedError, match=problem):
        list(run_tasks(multiply, [1], 5, executor=threads))


def test_task_that_is_lost_once_runs_again_at_the_end() -> None:
    results = list(run_tasks(multiply, [1, 2, 3], 5, executor=Forgetful({2: 1})))

    assert results == [(1, 5), (3, 15), (2, 10)]


def test_scene_that_is_lost_twice_fails(raw: Path, tmp_path: Path) -> None:
    report = make(raw, tmp_path, Forgetful({SCENES[1]: 1, SCENES[2]: 2}))

    (failure,) = report.failures
    assert failure.scene_id == SCENES[2]
    assert failure.error == "WorkerDiedError"
    problem = "lost twice, the second time when running alone: the executor gave back no result"
    assert problem in failure.message


def test_next_run_makes_a_scene_that_was_lost_twice(
    raw: Path, expected: Path, tmp_path: Path
) -> None:
    make(raw, tmp_path, Forgetful({SCENES[1]: 1, SCENES[2]: 2}))

    report = make(raw, tmp_path, Forgetful({}))

    assert report.made == (SCENES[2],)
    assert digests(tmp_path) == digests(expected)


def test_export_lists_a_scene_whose_task_is_lost_twice_as_failed(
    expected: Path, tmp_path: Path
) -> None:
    plan = export.plan([expected], tmp_path / "out", "octformer")

    report = export.run(plan, executor=Forgetful({SCENES[1]: 1, SCENES[2]: 2}))

    (failure,) = report.failures
    assert failure.scene_id == SCENES[2]
    assert failure.error == "WorkerDiedError"
    assert failure.message.startswith(f"{expected / 'train' / SCENES[2]}.npz: lost twice")
    assert set(report.made) == set(SCENES) - {SCENES[2]}


def test_run_after_a_lost_scene_completes_the_export(
    raw: Path, expected: Path, tmp_path: Path
) -> None:
    plan = export.plan([expected], tmp_path / "out", "octformer")
    export.run(plan, executor=Forgetful({SCENES[2]: 2}))

    report = export.run(plan)

    assert report.made == (SCENES[2],)
    assert digests(tmp_path / "out") == digests(raw.parent / "octformer")


def test_task_that_kills_its_worker_twice_fails_alone(tmp_path: Path) -> None:
    results = dict(run_tasks(kill_self_if_negative, [1, 2, -7, 3, 4, 5, 6], tmp_path, jobs=2))

    error = results.pop(-7)
    assert "its worker process ended with status -9" in str(error)
    assert results == {task: task for task in range(1, 7)}
    assert (tmp_path / "-7").read_text() == "xx", "two attempts"


def test_worker_that_dies_while_starting_is_replaced(tmp_path: Path) -> None:
    results = dict(run_tasks(multiply, range(9), DiesWhileStarting(tmp_path, 8), jobs=4))

    assert results == {task: task * 8 for task in range(9)}
    # All four at once, and others after them.
    assert len(list(tmp_path.iterdir())) >= 8


def test_workers_that_always_die_while_starting_are_given_up(tmp_path: Path) -> None:
    with pytest.raises(WorkerDiedError, match="end as soon as they are started"):
        list(run_tasks(multiply, range(9), DiesWhileStarting(tmp_path, 99), jobs=2))


def test_worker_that_dies_before_it_reads_a_large_context_is_replaced(tmp_path: Path) -> None:
    # Its process dies at the first object, and leaves the rest unread.
    context = (DiesWhileStarting(tmp_path, 1), bytes(10_000_000))

    results = dict(run_tasks(measure_context, [1, 2], context, jobs=1))

    assert results == {1: 10_000_000, 2: 10_000_000}


def test_killed_run_leaves_no_worker(tmp_path: Path) -> None:
    words = (PYTHON, "-c", SLEEPING_RUN, tmp_path)
    run = subprocess.Popen(words, cwd=Path(__file__).parent)
    while len(list(tmp_path.iterdir())) < 2:
        assert run.poll() is None
        time.sleep(0.01)

    run.kill()
    run.wait()

    workers = [int(path.name) for path in tmp_path.iterdir()]
    deadline = time.monotonic() + 20
    while any(is_running(pid) for pid in workers):
        assert time.monotonic() < deadline, "workers live on"
        time.sleep(0.05)


SLEEPING_RUN = """
import sys
from pathlib import Path
from worker_functions import sleep_and_tell
from scannet_prep.stages.pool import run_tasks
list(run_tasks(sleep_and_tell, [0.2] * 1000, Path(sys.argv[1]), jobs=2))
"""

LIMITED_RUN = """
import os, resource, sys
from worker_functions import multiply
from scannet_prep.errors import WorkerDiedError
from scannet_prep.stages.pool import run_tasks
kind, count = sys.argv[1], int(sys.argv[2])
if kind == "RLIMIT_NPROC" and os.getuid() == 0:  # the limit does not hold for root
    os.setuid(61_234)
resource.setrlimit(getattr(resource, kind), (count, count))
try:
    print(list(run_tasks(multiply, [1, 2], 3, jobs=2)))
except WorkerDiedError as error:
    print(error.message, error.hint, sep="\\n")
"""


@pytest.mark.parametrize(
    ("kind", "count", "cause", "command"),
    [
        ("RLIMIT_NOFILE", 5, "Too many open files", "ulimit -n 4096"),
        pytest.param(
            "RLIMIT_NPROC",
            1,
            "Resource temporarily unavailable",
            "--jobs 1",
            marks=pytest.mark.skipif(
                os.getuid() != 0, reason="needs a user without other processes"
            ),
        ),
    ],
)
def test_limit_that_prevents_workers_is_named_with_a_remedy(
    kind: str, count: int, cause: str, command: str
) -> None:
    # Threads of OpenBLAS count, too.
    environ = os.environ | {"OPENBLAS_NUM_THREADS": "1"}
    words = (PYTHON, "-c", LIMITED_RUN, kind, str(count))

    outcome = run_words(*words, cwd=Path(__file__).parent, env=environ)

    message, hint = outcome.stdout.splitlines()
    assert message == f"worker processes cannot be started: {cause}"
    assert command in hint


@pytest.mark.parametrize("way", ["script.py", "< script.py"])
def test_workers_start_from_scripts_without_a_guard(raw: Path, tmp_path: Path, way: str) -> None:
    script = f"""if True:
        from pathlib import Path
        from scannet_prep.processed.scene import ProcessOptions
        from scannet_prep.stages import process
        plan = process.plan(Path({str(raw)!r}), Path('out'), ProcessOptions())
        print(len(process.run(plan, jobs=1).made))
    """
    (tmp_path / "script.py").write_text(script)

    assert run_words("sh", "-c", f"{PYTHON} {way}", cwd=tmp_path) == Outcome(0, "6\n", "")


def test_broken_process_pool_is_an_error_that_names_what_is_kept(tmp_path: Path) -> None:
    tasks = [1, -2, *range(3, 9)]
    with (
        ProcessPoolExecutor(2) as executor,
        pytest.raises(WorkerDiedError, match="takes no more tasks") as caught,
    ):
        list(run_tasks(kill_self_if_negative, tasks, tmp_path, executor=executor))

    assert "what is done is kept" in caught.value.hint


def test_run_after_a_broken_process_pool_continues(
    raw: Path, expected: Path, tmp_path: Path
) -> None:
    with ProcessPoolExecutor(1) as executor:

        def kill_process() -> None:
            os.kill(next(iter(executor._processes)), signal.SIGKILL)

        with pytest.raises(WorkerDiedError):
            make(raw, tmp_path, executor, At(2, kill_process))
    assert (tmp_path / "unfinished.txt").exists()

    with ThreadPoolExecutor(1) as threads:
        assert len(make(raw, tmp_path, threads).kept) >= 2
    assert digests(tmp_path) == digests(expected)


def test_caller_that_stops_early_cancels_waiting_futures(tmp_path: Path) -> None:
    futures: list[Future[float]] = []

    class Remembering(ThreadPoolExecutor):
        def submit(self, *arguments, **options):
            futures.append(super().submit(*arguments, **options))
            return futures[-1]

    with Remembering(1) as executor:
        results = run_tasks(sleep_and_tell, [0.01, *[0.3] * 50], tmp_path, executor=executor)
        assert next(results) == (0.01, 0.01)
        results.close()

    assert all(future.done() for future in futures)
    assert sum(future.cancelled() for future in futures) > 20


def test_caller_that_stops_early_leaves_no_worker(tmp_path: Path) -> None:
    results = run_tasks(sleep_and_tell, [0.01, 60.0, 60.0, 60.0], tmp_path, jobs=2)
    assert next(results) == (0.01, 0.01)

    results.close()

    workers = [int(path.name) for path in tmp_path.iterdir()]
    assert workers
    assert not any(is_running(pid) for pid in workers)


def test_failed_run_ends_its_workers_while_its_error_is_kept(raw: Path, tmp_path: Path) -> None:
    thread_count = threading.active_count()
    plan = process.plan(raw, tmp_path, ProcessOptions())

    # `kept` holds the traceback, and with it the frames of the run.
    with pytest.raises(ZeroDivisionError) as kept:
        process.run(plan, progress=At(1, lambda: 1 // 0))

    assert threading.active_count() == thread_count
    assert kept.type is ZeroDivisionError


def test_worker_that_outlives_its_run_changes_nothing(
    raw: Path, expected: Path, tmp_path: Path
) -> None:
    late: list[Callable[[], object]] = []

    class Late(Executor):
        def submit(self, function, task, context):
            late.append(lambda: function(task, context))
            raise ConnectionError("no such host")

    # The first run ends before its task has run. The second makes all scenes.
    with pytest.raises(WorkerDiedError, match="the executor takes no more tasks: no such host"):
        make(raw, tmp_path, Late())
    process.run(process.plan(raw, tmp_path, ProcessOptions()))
    before = {path: path.stat().st_mtime_ns for path in tmp_path.rglob("scene*.npz")}

    # The late task, and one of a run with other options, end now.
    plan = process.plan(raw, tmp_path / "other", ProcessOptions(align_axis=True))
    late_task = replace(plan.tasks[0], path=min(before))
    assert isinstance(make_scene_file(late_task, plan.context), FinishedScene)
    late[0]()

    assert {path: path.stat().st_mtime_ns for path in tmp_path.rglob("scene*.npz")} == before
    process.run(process.plan(raw, tmp_path, ProcessOptions()))
    assert digests(tmp_path) == digests(expected)


def test_dask_that_loses_a_worker_makes_all_scenes(
    raw: Path, expected: Path, tmp_path: Path
) -> None:
    distributed = pytest.importorskip("distributed", reason="dask.distributed is not installed")
    with (
        distributed.LocalCluster(
            n_workers=2, threads_per_worker=1, dashboard_address=":0", silence_logs=50
        ) as cluster,
        distributed.Client(cluster) as client,
    ):
        pids = list(client.run(os.getpid).values())
        executor = client.get_executor()
        report = make(raw, tmp_path, executor, At(2, lambda: os.kill(pids[0], signal.SIGKILL)))
        assert not is_running(pids[0])

    # A task that runs again may find its scene made.
    assert len(report.made) + len(report.kept) == len(SCENES)
    assert report.failures == ()
    assert digests(tmp_path) == digests(expected)


@pytest.fixture(scope="module")
def scheduler() -> Iterator[str]:
    """The address of a dask cluster of two workers."""
    distributed = pytest.importorskip("distributed", reason="dask.distributed is not installed")
    with distributed.LocalCluster(
        n_workers=2, threads_per_worker=1, dashboard_address=":0", silence_logs=50
    ) as cluster:
        yield cluster.scheduler_address


def test_process_on_dask_makes_the_same_bytes(
    raw: Path, expected: Path, tmp_path: Path, scheduler: str
) -> None:
    outcome = run_main("process", raw, "-o", tmp_path / "out", "--dask", scheduler)

    assert outcome.status == 0, outcome.stderr
    assert digests(tmp_path / "out") == digests(expected)


def test_export_on_dask_makes_the_same_files(
    raw: Path, expected: Path, tmp_path: Path, scheduler: str
) -> None:
    words = ("--format", "octformer", "-o", tmp_path / "octformer", "--dask", scheduler)
    outcome = run_main("export", expected, *words)

    assert outcome.status == 0, outcome.stderr
    made = files_of_export(tmp_path / "octformer")
    assert made == files_of_export(raw.parent / "octformer")


def test_relative_paths_reach_dask_workers_with_another_folder(
    raw: Path, tmp_path: Path, scheduler: str
) -> None:
    (tmp_path / "data").mkdir()
    (tmp_path / "data/ScanNet").symlink_to(raw)

    outcome = run_main("process", "--dask", scheduler, cwd=tmp_path)

    assert outcome.status == 0, outcome.stderr


def test_dask_address_without_scheduler_is_a_usage_error(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("distributed")
    monkeypatch.setattr(dask_engine, "_CONNECT_TIMEOUT_S", 1)

    with pytest.raises(UsageError, match=r"--dask tcp://127\.0\.0\.1:9: no scheduler answers"):
        dask_engine.dask_executor("tcp://127.0.0.1:9").__enter__()


def test_dask_address_without_port_is_refused_at_once(raw: Path, tmp_path: Path) -> None:
    pytest.importorskip("distributed")

    outcome = run_command("process", raw, "-o", tmp_path / "out", "--dask", "node01")

    assert outcome.status == 2
    assert "missing port number in address 'node01'" in outcome.stderr
    assert "Traceback" not in outcome.stderr


def test_dask_and_jobs_together_are_refused(raw: Path, tmp_path: Path) -> None:
    outcome = run_command(
        "process", raw, "-o", tmp_path / "out", "--dask", "tcp://127.0.0.1:9", "--jobs", "2"
    )

    assert outcome.status == 2
    assert "--jobs and --dask" in outcome.stderr


def test_workers_of_another_version_are_refused() -> None:
    answers = {
        "tcp://a:1": VERSION,
        "tcp://b:2": "0.0.1",
        "tcp://c:3": ModuleNotFoundError("scannet_prep"),
    }

    with pytest.raises(UsageError, match=r"tcp://b:2 has scannet_prep 0\.0\.1, expected"):
        dask_engine._check_versions(answers)


@pytest.mark.parametrize("name", ["Client", "SLURMCluster"])
def test_program_of_the_cluster_page_runs(raw: Path, tmp_path: Path, name: str) -> None:
    pytest.importorskip("distributed")
    programs = re.findall(r"^```python\n(.*?)^```$", PAGE, re.DOTALL | re.MULTILINE)
    program = next(text for text in programs if name in text)
    (tmp_path / "data").mkdir()
    (tmp_path / "data/ScanNet").symlink_to(raw)
    replacements = {
        "from dask_jobqueue import SLURMCluster": "from dask.distributed import LocalCluster",
        SLURM_CLUSTER: "LocalCluster(n_workers=1)",
        "    cluster.scale(jobs=2)\n": "    cluster.scale(1)\n",
        "n_workers=2": "n_workers=1",
    }
    for old, new in replacements.items():
        program = program.replace(old, new)
    (tmp_path / "program.py").write_text(program)
    environ = os.environ | {"PATH": f"{Path(PYTHON).parent}:{os.environ['PATH']}"}
    done = run_words(PYTHON, "program.py", cwd=tmp_path, env=environ)

    assert done.status == 0, done.stderr
    assert re.search(r"\b6 made,.* 0 failed", done.stdout)
