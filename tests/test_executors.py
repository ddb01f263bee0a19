"""`process` and `export` on executors of the caller, and on dask clusters."""

import os
import re
import signal
from concurrent.futures import Executor, ProcessPoolExecutor, ThreadPoolExecutor

import pytest
from commands import (
    PAGES,
    PYTHON,
    WorkersHere,
    digests,
    fail,
    run_main,
    run_words,
    start_cluster,
    start_command,
    succeed,
)

from scannet_prep import official_scenes
from scannet_prep.base import workers
from scannet_prep.base.progress import Progress
from scannet_prep.errors import OutputError
from scannet_prep.processed.manifest import read_manifest
from scannet_prep.stages import export, process, scene_run
from scannet_prep.synthetic import write_release

SCENES = official_scenes("train")[:6]


@pytest.fixture(scope="module")
def raw(tmp_path_factory):
    raw_dir = tmp_path_factory.mktemp("executors") / "raw"
    write_release(raw_dir, SCENES, vertices=2_000)
    return raw_dir


@pytest.fixture(scope="module")
def expected(raw):
    """The folder that worker processes make, with an export beside it."""
    folder = raw.parent / "expected"
    process.run(process.plan(raw, folder))
    export.run(export.plan(folder, raw.parent / "octformer", "octformer"))
    return folder


@pytest.fixture(scope="module")
def scheduler():
    """The address of a dask cluster."""
    with start_cluster() as cluster:
        yield cluster.scheduler_address


class After(Progress):
    """Calls a function when a number of scenes is done."""

    def __init__(self, count, action):
        self._left = count
        self._action = action

    def advance(self, count=1):
        self._left -= count
        if self._left == 0:
            self._action()


def check_export(folder, raw):
    """Compare an export with the expected one, without its manifest, which names its source."""
    files = digests(folder)
    expected_files = digests(raw.parent / "octformer")
    del files["export.json"], expected_files["export.json"]
    assert files == expected_files


@pytest.mark.parametrize("make_executor", [ThreadPoolExecutor, ProcessPoolExecutor])
def test_executor_makes_the_bytes_of_worker_processes(raw, expected, tmp_path, make_executor):
    out_dir = tmp_path / "out"
    with make_executor(2) as executor:
        report = process.run(process.plan(raw, out_dir), executor=executor)
        plan = export.plan(out_dir, tmp_path / "octformer", "octformer")
        exported = export.run(plan, executor=executor)

    assert len(report.made) == len(exported.made) == len(SCENES)
    assert digests(out_dir) == digests(expected)
    check_export(tmp_path / "octformer", raw)


def test_run_on_an_executor_that_breaks_is_continued_by_the_next(raw, expected, tmp_path):
    plan = process.plan(raw, tmp_path)
    with ProcessPoolExecutor(1) as executor:
        kill = After(2, lambda: os.kill(next(iter(executor._processes)), signal.SIGKILL))
        with pytest.raises(RuntimeError, match="process pool"):
            process.run(plan, executor=executor, progress=kill)
    assert run_main("verify", tmp_path).status == 1
    report = process.run(process.plan(raw, tmp_path))

    assert len(report.kept) >= 2
    assert digests(tmp_path) == digests(expected)


def test_task_that_outlives_its_run_changes_nothing(raw, expected, tmp_path):
    late = []

    class Late(Executor):
        def submit(self, function, *arguments):
            late.append(lambda: function(*arguments))
            raise ConnectionError("no such host")

    with pytest.raises(ConnectionError):
        process.run(process.plan(raw, tmp_path), executor=Late())
    process.run(process.plan(raw, tmp_path))
    paths = [*tmp_path.rglob("scene*.npz")]
    times = [path.stat().st_mtime_ns for path in paths]
    late[0]()

    assert times == [path.stat().st_mtime_ns for path in paths]
    process.run(process.plan(raw, tmp_path))
    assert digests(tmp_path) == digests(expected)


def test_scene_whose_file_cannot_be_put_in_place_is_unfinished(raw, tmp_path, monkeypatch):
    # On a full disk, the last record needs the space of hidden files.
    hidden = []
    monkeypatch.setattr(
        scene_run, "write_failed_list", lambda *_: hidden.extend(tmp_path.rglob(".*.tmp"))
    )
    # All scenes are made before the first is put in place.
    lose = After(1, lambda: (tmp_path / "train").rename(tmp_path / "val"))
    with pytest.raises(OutputError, match="No such file"):
        process.run(process.plan(raw, tmp_path), executor=WorkersHere(1), progress=lose)

    manifest = read_manifest(tmp_path)
    assert (len(manifest.scenes), len(manifest.unfinished)) == (1, 5)
    assert hidden == []


@pytest.mark.extra("distributed")
def test_commands_on_dask_make_the_same_bytes(raw, expected, tmp_path, scheduler):
    # Relative paths would be wrong for the workers, which have another current folder.
    (tmp_path / "data").mkdir()
    (tmp_path / "data/ScanNet").symlink_to(raw)
    succeed("process", "--dask", scheduler, cwd=tmp_path)
    words = ("--format", "octformer", "-o", tmp_path / "octformer", "--dask", scheduler)
    succeed("export", expected, *words)

    assert digests(tmp_path / "data/processed") == digests(expected)
    check_export(tmp_path / "octformer", raw)


@pytest.mark.extra("distributed")
@pytest.mark.parametrize(
    ("address", "problem"),
    [
        ("node01", "missing port number in address 'node01'"),
        ("tcp://127.0.0.1:9", "tcp://127.0.0.1:9: no scheduler answers"),
        ("", "missing port number"),
    ],
)
def test_dask_address_that_cannot_be_used_is_refused(raw, tmp_path, monkeypatch, address, problem):
    monkeypatch.setattr(workers, "_DASK_TIMEOUT_S", 1)

    fail(2, problem, "process", raw, "-o", tmp_path / "out", "--dask", address)


# A scheduler in an environment without this package.
BARE_SCHEDULER = """
import sys
sys.modules["scannet_prep"] = None
from distributed.cli.dask_scheduler import main
main(["--port", "0", "--no-dashboard"])
"""


@pytest.mark.extra("distributed")
def test_scheduler_without_the_package_is_refused(raw, tmp_path):
    with start_command(command=[PYTHON, "-c", BARE_SCHEDULER]) as scheduler:
        line = next(line for line in scheduler.stderr if "Scheduler at" in line)
        words = ("process", raw, "-o", tmp_path / "out", "--dask", line.split()[-1])
        fail(2, "the scheduler has scannet_prep none", *words)
        scheduler.kill()


@pytest.mark.extra("distributed")
def test_program_of_the_cluster_page_runs(raw, tmp_path):
    page = PAGES["docs/cluster.md"]
    (program,) = re.findall(r"^```python\n(.*?)^```$", page, re.DOTALL | re.MULTILINE)
    (tmp_path / "data").mkdir()
    (tmp_path / "data/ScanNet").symlink_to(raw)
    (tmp_path / "program.py").write_text(program.replace("n_workers=2", "n_workers=1"))
    assert "6 made, 0 failed" in succeed(PYTHON, "program.py", cwd=tmp_path, run=run_words).stdout
