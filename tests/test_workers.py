"""Tasks in worker processes and in executors: kills, bugs, and runs that end early."""

import os
import signal
import subprocess
import sys
import threading
import time
from concurrent.futures import Executor, Future, ThreadPoolExecutor
from pathlib import Path
from typing import NamedTuple

import pytest
from commands import PYTHON, Outcome, is_running, run_words, start_cluster

from scannet_prep.base import workers
from scannet_prep.base.findings import Finding
from scannet_prep.base.version import VERSION
from scannet_prep.base.workers import dask_executor, run_tasks
from scannet_prep.errors import FileError, OutputError, UsageError, WorkerDiedError

ERRORS = {
    "bad file": FileError("a.ply", "has 5 vertices, expected 6"),
    "no memory": MemoryError(),
    "cannot write": OutputError("cannot write"),
}


class Work(NamedTuple):
    """A task, whose name says what it does."""

    scene_id: str

    @property
    def source(self):
        return f"folder of {self.scene_id}"


def act(task, context):
    """Do what the name of a task says; if the context is a folder, leave a file with the pid."""
    if isinstance(context, Path):
        (context / f"{os.getpid()}").touch()
    name = task.scene_id
    if name.startswith("kill"):
        # As the out-of-memory killer does. The attempts are counted in a file.
        with (context / name).open("a") as file:
            file.write("x")
        if name != "kill once" or (context / name).stat().st_size == 1:
            os.kill(os.getpid(), signal.SIGKILL)
    if name == "bug":
        return 1 // 0
    if name == "exit":
        sys.exit(5)
    if name in ERRORS:
        raise ERRORS[name]
    time.sleep({"nap": 0.2, "sleep": 60}.get(name, 0))
    return name


class DiesWhileStarting:
    """A context that kills the first `count` workers that receive it."""

    def __init__(self, folder, count):
        self.folder = folder
        self.count = count

    def __setstate__(self, state):
        self.__dict__.update(state)
        if len(list(self.folder.iterdir())) < self.count:
            (self.folder / f"{os.getpid()}").touch()
            os.kill(os.getpid(), signal.SIGKILL)


TESTS_DIR = Path(__file__).parent
# A script without `if __name__ == "__main__"`. Its arguments are a folder, the name of its tasks,
# and a limit of open files.
SCRIPT = """
import resource, sys
from pathlib import Path
from test_workers import Work, act
from scannet_prep.errors import WorkerDiedError
from scannet_prep.base.workers import run_tasks
folder, name, *limit = sys.argv[1:]
if limit:
    resource.setrlimit(resource.RLIMIT_NOFILE, (int(limit[0]), int(limit[0])))
try:
    print(len(list(run_tasks(act, [Work(name)] * 1000, Path(folder), jobs=2))))
except WorkerDiedError as error:
    print(error)
"""


class Forgetful(Executor):
    """Does calls at once, but loses a task as often as it is in a list."""

    def __init__(self, losses):
        self.losses = losses

    def submit(self, function, task, call):
        future = Future()
        if task.scene_id in self.losses:
            self.losses.remove(task.scene_id)
            future.cancel()
        else:
            future.set_result(function(task, call))
        return future


class Remembering(ThreadPoolExecutor):
    """Has its futures in a tuple."""

    futures = ()

    def submit(self, *call):
        future = super().submit(*call)
        self.futures = (*self.futures, future)
        return future


def pids_in(folder):
    """Find the processes that have done tasks, each of which leaves a file."""
    return [int(path.name) for path in folder.iterdir() if path.name.isdigit()]


@pytest.mark.parametrize("jobs", [1, 3])
def test_killed_workers_and_bugs_fail_only_their_own_tasks(tmp_path, jobs):
    good = [f"number {number}" for number in range(40)]
    tasks = ["kill a", "kill once", *good, "bug", "kill b", "bad file", "exit", "no memory"]

    outcomes = dict(run_tasks(act, map(Work, tasks), tmp_path, jobs))

    failures = {}
    for task, outcome in outcomes.items():
        if isinstance(outcome, Finding):
            failures[outcome.scene_id] = outcome
        else:
            assert outcome == task.scene_id
    assert len(outcomes) == len(tasks)
    assert {name: failure.error for name, failure in failures.items()} == {
        "kill a": "WorkerDiedError",
        "kill b": "WorkerDiedError",
        "exit": "WorkerDiedError",
        "bug": "ZeroDivisionError",
        "bad file": "FileError",
        "no memory": "MemoryError",
    }
    assert (tmp_path / "kill a").read_text() == "xx", "two attempts"
    killed = failures["kill a"]
    assert killed.message.startswith("killed twice")
    assert "status -9" in killed.message
    assert "--jobs" in killed.hint
    assert killed.subject == "folder of kill a"
    assert "in act\n" in failures["bug"].trace
    assert "please report this" in failures["bug"].hint
    assert failures["bad file"].subject == "a.ply"
    assert pids_in(tmp_path)
    assert not any(map(is_running, pids_in(tmp_path)))


@pytest.mark.parametrize("ending", ["error in the loop", "end of the loop", "cannot write"])
def test_run_that_ends_early_ends_its_workers_at_once(tmp_path, ending):
    threads = threading.enumerate()
    tasks = ["number 1", "sleep", "sleep", ending]

    # `ended` holds the traceback, and with it the frames of the run.
    with pytest.raises(OutputError) as ended:  # noqa: PT012
        for _ in run_tasks(act, map(Work, tasks), tmp_path, 3):
            if ending == "end of the loop":
                break
            if ending == "error in the loop":
                raise OutputError(ending)
        raise OutputError("end of the loop")

    assert ended.value.message == ending
    assert pids_in(tmp_path)
    assert not any(map(is_running, pids_in(tmp_path)))
    assert {*threading.enumerate()} <= {*threads}


def test_run_that_is_killed_leaves_no_worker(tmp_path):
    run = subprocess.Popen((PYTHON, "-c", SCRIPT, tmp_path, "sleep"), cwd=TESTS_DIR)
    while len(pids_in(tmp_path)) < 2:
        assert run.poll() is None
        time.sleep(0.01)
    for pid in pids_in(tmp_path):
        assert os.getpgid(pid) == pid, "Ctrl-C is for the main process"

    run.kill()
    run.wait()

    deadline = time.monotonic() + 20
    while any(map(is_running, pids_in(tmp_path))):
        assert time.monotonic() < deadline, "workers live on"
        time.sleep(0.02)


def test_worker_ends_whose_run_was_killed_before_it_had_started():
    program = "import os; from scannet_prep.base.workers import work; work(os.pipe()[0], 0)"

    assert run_words(PYTHON, "-c", program) == Outcome(1, "", "")


@pytest.mark.parametrize("way", ["script.py . number", "- . number < script.py"])
def test_script_without_a_guard_starts_workers(tmp_path, way):
    (tmp_path / "script.py").write_text(SCRIPT)
    environ = os.environ | {"PYTHONPATH": f"{TESTS_DIR}:{TESTS_DIR.parent}"}

    outcome = run_words("sh", "-c", f'"{PYTHON}" {way}', cwd=tmp_path, env=environ)

    assert (outcome.stdout, outcome.stderr) == ("1000\n", "")


def test_limit_that_prevents_workers_is_named(tmp_path):
    outcome = run_words(PYTHON, "-c", SCRIPT, tmp_path, "number", "6", cwd=TESTS_DIR)

    assert outcome.stdout.startswith("worker processes cannot be started: ")
    assert "Too many open files" in outcome.stdout
    assert "ulimit" in outcome.stdout


def test_worker_that_dies_with_a_large_context_half_read_is_replaced(tmp_path):
    context = (DiesWhileStarting(tmp_path, 2), bytes(10_000_000))

    assert len([*run_tasks(act, map(Work, ["context", "number 1", "number 2"]), context, 2)]) == 3
    assert len(list(tmp_path.iterdir())) == 2


def test_task_that_an_executor_loses_runs_again_at_the_end(tmp_path):
    executor = Forgetful(["b", "c", "c"])

    *results, (_, failure) = run_tasks(act, map(Work, "abcd"), tmp_path, 1, executor)

    assert [outcome for _, outcome in results] == ["a", "d", "b"]
    assert (failure.scene_id, failure.error) == ("c", "WorkerDiedError")


def test_loop_that_is_left_cancels_what_waits_in_an_executor(tmp_path):
    with Remembering(1) as executor:
        for _ in run_tasks(act, map(Work, ["a", *["nap"] * 50]), tmp_path, executor=executor):
            break

    assert sum(future.cancelled() for future in executor.futures) > 20
    assert all(future.done() for future in executor.futures)


@pytest.mark.extra("distributed")
def test_run_whose_dask_cluster_is_lost_ends_with_an_error(tmp_path):
    with start_cluster() as cluster, dask_executor(cluster.scheduler_address) as executor:
        outcomes = run_tasks(act, map(Work, ["nap"] * 20), tmp_path, 1, executor)
        next(outcomes)
        cluster.close()
        with pytest.raises(WorkerDiedError, match="scheduler is lost"):
            list(outcomes)


@pytest.mark.extra("distributed")
def test_dask_cluster_that_loses_a_worker_does_all_tasks(tmp_path):
    with start_cluster() as cluster:
        done = []
        with dask_executor(cluster.scheduler_address) as executor:
            for task, outcome in run_tasks(act, map(Work, ["nap"] * 20), tmp_path, 1, executor):
                done.append((task.scene_id, outcome))
                if len(done) == 2:
                    os.kill(pids_in(tmp_path)[0], signal.SIGKILL)

        with cluster.get_client() as client:
            client.run(setattr, workers, "VERSION", "0.0.1")
        with pytest.raises(UsageError, match=f"scannet_prep 0.0.1, expected {VERSION}"):
            dask_executor(cluster.scheduler_address).__enter__()

    assert done == [("nap", "nap")] * 20
