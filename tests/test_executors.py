"""Worker processes, and engines of the caller's instead of them: what they make, what they lose, what becomes of it."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Executor, Future, ProcessPoolExecutor, ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import pytest
from commands import PYTHON, Outcome, digests, is_running, run_command, run_words
from worker_functions import (
    DiesWhileStarting,
    fail,
    kill_self_if_negative,
    measure_context,
    multiply,
    sleep_and_tell,
)

from scannet_prep import official_scenes
from scannet_prep.base.errors import UsageError, WorkerDiedError
from scannet_prep.base.progress import Progress
from scannet_prep.base.version import VERSION
from scannet_prep.processed.scene import ProcessOptions
from scannet_prep.stages import dask_engine, export, process
from scannet_prep.stages.pool import run_tasks
from scannet_prep.stages.process import ProcessReport
from scannet_prep.stages.process.scene_worker import FinishedScene, ProcessContext, make_scene_file
from scannet_prep.synthetic import write_release

SCENES = official_scenes("train")[:6]
EXPORTS = ("octformer", "mask3d")
PAGE = (Path(__file__).parent.parent / "docs/cluster.md").read_text()


@pytest.fixture(scope="module")
def raw(tmp_path_factory: pytest.TempPathFactory) -> Path:
    raw_dir = tmp_path_factory.mktemp("executors") / "raw"
    write_release(raw_dir, SCENES, vertices=2_000)
    return raw_dir


@pytest.fixture(scope="module")
def expected(raw: Path) -> Path:
    """What worker processes make."""
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
    """Does something when so many scenes are done."""

    def __init__(self, count: int, action: Callable[[], None]) -> None:
        self._left, self._action = count, action

    def advance(self, count: int = 1) -> None:
        self._left -= count
        if self._left == 0:
            self._action()


class Recorder(Executor):
    """Records the contexts of its tasks, and loses each task."""

    def __init__(self) -> None:
        self.contexts: list[ProcessContext] = []

    def submit(self, function, task, call):  # noqa: ARG002 - as in Executor
        _, context = call
        self.contexts.append(context)
        future: Future[object] = Future()
        future.set_result(None)
        return future


class Forgetful(Executor):
    """Loses the tasks that it is told to, each so many times: cancels them at first, then gives back nothing."""

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


@pytest.mark.parametrize(
    ("scenes", "jobs", "uses_numba"), [(39, 1, False), (40, 1, True), (79, 2, False), (80, 2, True)]
)
def test_run_uses_numba_from_40_scenes_per_worker(
    scenes: int, jobs: int, uses_numba: bool, tmp_path: Path
) -> None:
    write_release(tmp_path / "raw", official_scenes("train")[:scenes], vertices=500)
    recorder = Recorder()

    plan = process.plan(tmp_path / "raw", tmp_path / "out", ProcessOptions())
    process.run(plan, jobs=jobs, executor=recorder)

    assert {context.uses_numba for context in recorder.contexts} == {uses_numba}


@pytest.mark.parametrize("kind", [ThreadPoolExecutor, ProcessPoolExecutor])
def test_an_executor_makes_the_same_bytes_as_worker_processes(
    raw: Path, expected: Path, tmp_path: Path, kind: type[ThreadPoolExecutor | ProcessPoolExecutor]
) -> None:
    with kind(2) as executor:
        assert len(make(raw, tmp_path / "out", executor).made) == len(SCENES)
        for name in EXPORTS:
            exported = export.run(
                export.plan([tmp_path / "out"], tmp_path / name, name), executor=executor
            )
            assert len(exported.made) == len(SCENES)
        assert make(raw, tmp_path / "out", executor).made == ()
    assert digests(tmp_path / "out") == digests(expected)
    for name in EXPORTS:
        found, made = digests(tmp_path / name), digests(raw.parent / name)
        for item in (found, made):
            del item["export.json"]  # it names the place
        assert found == made


def test_every_task_gets_its_result_and_what_a_function_raises_is_told() -> None:
    with ThreadPoolExecutor(1) as threads:
        for executor in (None, threads):
            assert dict(run_tasks(multiply, range(50), 3, jobs=2, executor=executor)) == {
                n: n * 3 for n in range(50)
            }
            assert list(run_tasks(multiply, [], 3, executor=executor)) == []
            ((_, error),) = run_tasks(fail, [5], "task", executor=executor)
            assert "ZeroDivisionError: task 5" in str(error)
    with pytest.raises(
        WorkerDiedError, match="the executor takes no more tasks: cannot schedule new futures"
    ):
        list(run_tasks(multiply, [1], 5, executor=threads))


def test_a_lost_task_is_tried_again_and_lost_twice_it_has_failed(
    raw: Path, expected: Path, tmp_path: Path
) -> None:
    assert list(run_tasks(multiply, [1, 2, 3], 5, executor=Forgetful({2: 1}))) == [
        (1, 5),
        (3, 15),
        (2, 10),
    ]
    report = make(raw, tmp_path, Forgetful({SCENES[1]: 1, SCENES[2]: 2}))
    assert [(item.scene_id, item.error) for item in report.failures] == [
        (SCENES[2], "WorkerDiedError")
    ]
    told = "lost twice, the second time when running alone: the executor gave back no result"
    assert told in report.failures[0].message
    assert len(make(raw, tmp_path, Forgetful({})).made) == 1
    assert digests(tmp_path) == digests(expected)


def test_export_lists_a_scene_whose_task_is_lost_twice_as_failed(
    expected: Path, tmp_path: Path
) -> None:
    plan = export.plan([expected], tmp_path / "out", "octformer")

    report = export.run(plan, executor=Forgetful({SCENES[1]: 1, SCENES[2]: 2}))

    (failure,) = report.failures
    assert (failure.scene_id, failure.error) == (SCENES[2], "WorkerDiedError")
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


def test_a_task_that_kills_its_worker_twice_is_given_up_and_costs_no_other(tmp_path: Path) -> None:
    results = dict(run_tasks(kill_self_if_negative, [1, 2, -7, 3, 4, 5, 6], tmp_path, jobs=2))
    assert {task: result for task, result in results.items() if task > 0} == {
        task: task for task in range(1, 7)
    }
    assert "its worker process ended with status -9" in str(results[-7])
    assert (tmp_path / "-7").read_text() == "xx"


def test_a_worker_that_dies_before_it_is_ready_is_started_again_but_not_for_ever(
    tmp_path: Path,
) -> None:
    results = dict(run_tasks(multiply, range(9), DiesWhileStarting(tmp_path, 8), jobs=4))
    assert results == {task: task * 8 for task in range(9)}
    assert len(list(tmp_path.iterdir())) >= 8  # all four at once, and others after them
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
from scannet_prep.base.errors import WorkerDiedError
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
    ("kind", "count", "problem", "command"),
    [
        ("RLIMIT_NOFILE", 5, "worker processes cannot be started: Too many open files", "ulimit -n 4096"),
        pytest.param(
            "RLIMIT_NPROC", 1, "worker processes cannot be started: Resource temporarily unavailable", "--jobs 1",
            marks=pytest.mark.skipif(os.getuid() != 0, reason="needs a user without other processes"),
        ),
    ],
)  # fmt: skip
def test_limit_that_keeps_workers_from_starting_is_named_with_a_remedy(
    kind: str, count: int, problem: str, command: str
) -> None:
    environ = os.environ | {"OPENBLAS_NUM_THREADS": "1"}  # its threads count, too
    outcome = run_words(
        PYTHON, "-c", LIMITED_RUN, kind, str(count), cwd=Path(__file__).parent, env=environ
    )
    message, hint = outcome.stdout.splitlines()
    assert message == problem
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


def test_a_broken_process_pool_ends_the_run_and_the_next_goes_on(
    raw: Path, expected: Path, tmp_path: Path
) -> None:
    with (
        ProcessPoolExecutor(2) as executor,
        pytest.raises(WorkerDiedError, match="takes no more tasks") as caught,
    ):
        list(run_tasks(kill_self_if_negative, [1, -2, *range(3, 9)], tmp_path, executor=executor))
    assert "what is done is kept" in caught.value.hint
    with ProcessPoolExecutor(1) as executor, pytest.raises(WorkerDiedError):
        make(
            raw,
            tmp_path / "out",
            executor,
            At(2, lambda: os.kill(next(iter(executor._processes)), signal.SIGKILL)),
        )
    assert (tmp_path / "out/unfinished.txt").exists()
    with ThreadPoolExecutor(1) as threads:
        assert len(make(raw, tmp_path / "out", threads).kept) >= 2
    assert digests(tmp_path / "out") == digests(expected)


def test_a_caller_that_stops_cancels_what_waits_and_leaves_no_worker_behind(tmp_path: Path) -> None:
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
    (tmp_path / "pids").mkdir()
    results = run_tasks(sleep_and_tell, [0.01, 60.0, 60.0, 60.0], tmp_path / "pids", jobs=2)
    assert next(results) == (0.01, 0.01)
    results.close()
    workers = [int(path.name) for path in (tmp_path / "pids").iterdir()]
    assert workers
    assert not any(is_running(pid) for pid in workers)


def test_a_run_that_ends_with_an_error_ends_its_workers_though_the_error_is_kept(
    raw: Path, tmp_path: Path
) -> None:
    before = threading.active_count()
    with pytest.raises(ZeroDivisionError) as kept:
        process.run(process.plan(raw, tmp_path, ProcessOptions()), progress=At(1, lambda: 1 // 0))
    assert (threading.active_count(), kept.type) == (before, ZeroDivisionError)


def test_a_worker_that_outlives_its_run_changes_nothing(
    raw: Path, expected: Path, tmp_path: Path
) -> None:
    late: list[Callable[[], object]] = []

    class Late(Executor):
        def submit(self, function, task, context):
            late.append(lambda: function(task, context))
            raise ConnectionError("no such host")

    with pytest.raises(WorkerDiedError, match="the executor takes no more tasks: no such host"):
        make(raw, tmp_path, Late())
    process.run(process.plan(raw, tmp_path, ProcessOptions()))
    before = {path: path.stat().st_mtime_ns for path in tmp_path.rglob("scene*.npz")}
    plan = process.plan(raw, tmp_path / "other", ProcessOptions(align_axis=True))
    assert isinstance(
        make_scene_file(replace(plan.tasks[0], path=min(before)), plan.context), FinishedScene
    )
    late[0]()
    assert {path: path.stat().st_mtime_ns for path in tmp_path.rglob("scene*.npz")} == before
    process.run(process.plan(raw, tmp_path, ProcessOptions()))
    assert digests(tmp_path) == digests(expected)


def test_dask_loses_a_worker_in_the_middle_and_no_scene(
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
    assert (len(report.made) + len(report.kept), report.failures) == (
        len(SCENES),
        (),
    )  # what is done again is there
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
    outcome = run_command("process", raw, "-o", tmp_path / "out", "--dask", scheduler)

    assert outcome.status == 0, outcome.stderr
    assert digests(tmp_path / "out") == digests(expected)


def test_export_on_dask_makes_the_same_files(
    raw: Path, expected: Path, tmp_path: Path, scheduler: str
) -> None:
    words = ("--format", "octformer", "-o", tmp_path / "octformer", "--dask", scheduler)
    outcome = run_command("export", expected, *words)

    assert outcome.status == 0, outcome.stderr
    made = digests(tmp_path / "octformer")
    wanted = digests(raw.parent / "octformer")
    del made["export.json"], wanted["export.json"]  # it names the processed folder
    assert made == wanted


def test_relative_paths_reach_dask_workers_with_another_folder(
    raw: Path, tmp_path: Path, scheduler: str
) -> None:
    (tmp_path / "data").mkdir()
    (tmp_path / "data/ScanNet").symlink_to(raw)

    outcome = run_command("process", "--dask", scheduler, cwd=tmp_path)

    assert outcome.status == 0, outcome.stderr


def test_dask_address_without_scheduler_is_a_usage_error(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("distributed")
    monkeypatch.setattr(dask_engine, "_CONNECT_TIMEOUT_S", 1)

    with pytest.raises(UsageError, match=r"--dask tcp://127\.0\.0\.1:9: no scheduler answers"):
        dask_engine.dask_executor("tcp://127.0.0.1:9").__enter__()


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
def test_the_programs_of_the_page_run(raw: Path, tmp_path: Path, name: str) -> None:
    pytest.importorskip("distributed")
    programs = re.findall(r"^```python\n(.*?)^```$", PAGE, re.DOTALL | re.MULTILINE)
    program = next(text for text in programs if name in text)
    (tmp_path / "data").mkdir()
    (tmp_path / "data/ScanNet").symlink_to(raw)
    replacements = {
        "from dask_jobqueue import SLURMCluster": "from dask.distributed import LocalCluster",
        'SLURMCluster(cores=8, processes=8, memory="16GB", walltime="01:00:00")': "LocalCluster(n_workers=1)",
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
