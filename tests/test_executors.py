"""Worker processes, and engines of the caller's instead of them: what they make, what they lose, what becomes of it."""

from __future__ import annotations

import os
import re
import signal
import threading
from collections.abc import Callable
from concurrent.futures import Executor, Future, ProcessPoolExecutor, ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import pytest
from commands import PYTHON, Outcome, digests, is_running, run_words
from worker_functions import DiesWhileStarting, fail, kill_self_if_negative, multiply, sleep_and_tell

from scannet_prep import official_scenes
from scannet_prep.errors import WorkerDiedError
from scannet_prep.processed.scene import ProcessOptions
from scannet_prep.progress import Progress
from scannet_prep.stages import export, process
from scannet_prep.stages.pool import WorkerPool, run_tasks
from scannet_prep.stages.process import ProcessReport
from scannet_prep.stages.process.scene_worker import FinishedScene, ProcessTask, make_scene_file
from scannet_prep.synthetic import write_release

SCENES = official_scenes("train")[:6]
EXPORTS = ("octformer", "hdf5")
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


def make(raw_dir: Path, out_dir: Path, executor: Executor, progress: Progress | None = None) -> ProcessReport:
    return process.run(process.plan(raw_dir, out_dir, ProcessOptions()), executor=executor, progress=progress)


class At(Progress):
    """Does something when so many scenes are done."""

    def __init__(self, count: int, action: Callable[[], None]) -> None:
        self._left, self._action = count, action

    def advance(self, count: int = 1) -> None:
        self._left -= count
        if self._left == 0:
            self._action()


class Forgetful(Executor):
    """Loses the tasks that it is told to, each so many times: cancels them at first, then gives back nothing."""

    def __init__(self, losses: dict[object, int]) -> None:
        self.losses = losses

    def submit(self, function, task, context):
        future: Future[object] = Future()
        name = task.scene.scene_id if isinstance(task, ProcessTask) else task
        if self.losses.get(name, 0) > 0:
            self.losses[name] -= 1
            future.cancel() if self.losses[name] else future.set_result(None)
        else:
            future.set_result(function(task, context))
        return future


@pytest.mark.parametrize("kind", [ThreadPoolExecutor, ProcessPoolExecutor])
def test_an_executor_makes_the_same_bytes_as_worker_processes(
    raw: Path, expected: Path, tmp_path: Path, kind: type[ThreadPoolExecutor | ProcessPoolExecutor]
) -> None:
    with kind(2) as executor:
        assert len(make(raw, tmp_path / "out", executor).made) == len(SCENES)
        for name in EXPORTS:
            exported = export.run(export.plan([tmp_path / "out"], tmp_path / name, name), executor=executor)
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
            assert dict(run_tasks(multiply, range(50), 3, jobs=2, executor=executor)) == {n: n * 3 for n in range(50)}
            assert list(run_tasks(multiply, [], 3, executor=executor)) == []
            ((_, error),) = run_tasks(fail, [5], "task", executor=executor)
            assert "ZeroDivisionError: task 5" in str(error)
    with pytest.raises(WorkerDiedError, match="the executor takes no more tasks: cannot schedule new futures"):
        list(run_tasks(multiply, [1], 5, executor=threads))


def test_a_lost_task_is_tried_again_and_lost_twice_it_has_failed(raw: Path, expected: Path, tmp_path: Path) -> None:
    assert list(run_tasks(multiply, [1, 2, 3], 5, executor=Forgetful({2: 1}))) == [(1, 5), (3, 15), (2, 10)]
    report = make(raw, tmp_path, Forgetful({SCENES[1]: 1, SCENES[2]: 2}))
    assert [(item.scene_id, item.error) for item in report.failures] == [(SCENES[2], "WorkerDiedError")]
    told = "lost twice, the second time when running alone: the executor gave back no result"
    assert told in report.failures[0].message
    assert len(make(raw, tmp_path, Forgetful({})).made) == 1
    assert digests(tmp_path) == digests(expected)


def test_a_task_that_kills_its_worker_twice_is_given_up_and_costs_no_other(tmp_path: Path) -> None:
    results = dict(run_tasks(kill_self_if_negative, [1, 2, -7, 3, 4, 5, 6], tmp_path, jobs=2))
    assert {task: result for task, result in results.items() if task > 0} == {task: task for task in range(1, 7)}
    assert "its worker process ended with status -9" in str(results[-7])
    assert (tmp_path / "-7").read_text() == "xx"


def test_a_worker_that_dies_before_it_is_ready_is_started_again_but_not_for_ever(tmp_path: Path) -> None:
    results = dict(run_tasks(multiply, range(9), DiesWhileStarting(tmp_path, 8), jobs=4))
    assert results == {task: task * 8 for task in range(9)}
    assert len(list(tmp_path.iterdir())) >= 8  # all four at once, and others after them
    with pytest.raises(WorkerDiedError, match="end as soon as they are started"):
        list(run_tasks(multiply, range(9), DiesWhileStarting(tmp_path, 99), jobs=2))


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


def test_a_lock_that_an_interrupt_left_locked_does_not_keep_a_run_from_ending(tmp_path: Path) -> None:
    pool = WorkerPool(1)
    future = pool.submit(sleep_and_tell, 0.5, tmp_path)
    future._condition.acquire()  # the thread that leads the worker waits for it, and nobody gives it back
    ending = threading.Thread(target=pool.shutdown, daemon=True)
    ending.start()
    ending.join(60)
    assert not ending.is_alive()
    future._condition.release()


def test_a_broken_process_pool_ends_the_run_and_the_next_goes_on(raw: Path, expected: Path, tmp_path: Path) -> None:
    with ProcessPoolExecutor(2) as executor, pytest.raises(WorkerDiedError, match="takes no more tasks") as caught:
        list(run_tasks(kill_self_if_negative, [1, -2, *range(3, 9)], tmp_path, executor=executor))
    assert "what is done is kept" in caught.value.hint
    with ProcessPoolExecutor(1) as executor, pytest.raises(WorkerDiedError):
        make(raw, tmp_path / "out", executor, At(2, lambda: os.kill(next(iter(executor._processes)), signal.SIGKILL)))
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


def test_a_run_that_ends_with_an_error_ends_its_workers_though_the_error_is_kept(raw: Path, tmp_path: Path) -> None:
    before = threading.active_count()
    with pytest.raises(ZeroDivisionError) as kept:
        process.run(process.plan(raw, tmp_path, ProcessOptions()), progress=At(1, lambda: 1 // 0))
    assert (threading.active_count(), kept.type) == (before, ZeroDivisionError)


def test_a_worker_that_outlives_its_run_changes_nothing(raw: Path, expected: Path, tmp_path: Path) -> None:
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
    assert isinstance(make_scene_file(replace(plan.tasks[0], path=min(before)), plan.context), FinishedScene)
    late[0]()
    assert {path: path.stat().st_mtime_ns for path in tmp_path.rglob("scene*.npz")} == before
    process.run(process.plan(raw, tmp_path, ProcessOptions()))
    assert digests(tmp_path) == digests(expected)


def test_dask_loses_a_worker_in_the_middle_and_no_scene(raw: Path, expected: Path, tmp_path: Path) -> None:
    distributed = pytest.importorskip("distributed", reason="dask.distributed is not installed")
    with (
        distributed.LocalCluster(n_workers=2, threads_per_worker=1, dashboard_address=None, silence_logs=50) as cluster,
        distributed.Client(cluster) as client,
    ):
        pids = list(client.run(os.getpid).values())
        executor = client.get_executor()
        report = make(raw, tmp_path, executor, At(2, lambda: os.kill(pids[0], signal.SIGKILL)))
        assert not is_running(pids[0])
    assert (len(report.made) + len(report.kept), report.failures) == (len(SCENES), ())  # what is done again is there
    assert digests(tmp_path) == digests(expected)


@pytest.mark.parametrize("package", ["distributed", "submitit"])
def test_the_programs_of_the_page_run(raw: Path, tmp_path: Path, package: str) -> None:
    pytest.importorskip(package)
    programs = re.findall(r"^```python\n(.*?)^```$", PAGE, re.DOTALL | re.MULTILINE)
    program = next(text for text in programs if package in text)
    (tmp_path / "data").mkdir()
    (tmp_path / "data/ScanNet").symlink_to(raw)
    less = {", 16\n": ", 2\n", "jobs=8": "jobs=1", "n_workers=2": "n_workers=1", "cpus_per_task=8, mem_gb=16": ""}
    for old, new in less.items():
        program = program.replace(old, new)
    (tmp_path / "program.py").write_text(program)
    environ = os.environ | {"PATH": str(Path(PYTHON).parent)}  # a Slurm that is here is of no use to submitit
    done = run_words(PYTHON, "program.py", cwd=tmp_path, env=environ)
    assert done.status == 0, done.stderr
    assert re.search(r"\b6 (made|kept),.* 0 failed\n$", done.stdout)
