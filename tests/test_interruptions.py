"""Interrupted runs of `process` and `unpack` leave whole scenes, and the next run continues."""

import json
import os
import random
import shutil
import signal
import time
from dataclasses import dataclass
from pathlib import Path

import pytest
from archives import pack_tree
from commands import digests, run_main, start_command, wait_until_gone

from scannet_prep import ScanNet, official_scenes
from scannet_prep.errors import FileError, MissingFileError, ScanNetPrepError
from scannet_prep.release.scene import Split
from scannet_prep.synthetic import write_release

SCENES = [
    *official_scenes(Split.TRAIN)[:20],
    *official_scenes(Split.VAL)[:3],
    *official_scenes(Split.TEST)[:1],
]
# Commands, and the signals that end them.
ENDED = [("process", signal.SIGINT), ("process", signal.SIGTERM), ("unpack", signal.SIGKILL)]
LABEL_MAP = "scannetv2-labels.combined.tsv"


@pytest.fixture(scope="module")
def raw_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    raw_dir = tmp_path_factory.mktemp("release") / "ScanNet"
    write_release(raw_dir, SCENES, vertices=3_000)
    return raw_dir


@pytest.fixture(scope="module")
def expected_dir(raw_dir: Path) -> Path:
    expected_dir = raw_dir.parent / "expected"
    assert run_main("process", raw_dir, "-o", expected_dir).status == 0
    return expected_dir


def count_scenes(folder: Path) -> int:
    return len(list(folder.rglob("*.npz")))


def interrupt(
    command: str, source: Path, out_dir: Path, number: signal.Signals, new_scenes: int
) -> tuple[int, str, str]:
    """Start a command, and send it a signal after some more scenes.

    Args:
        command: The command.
        source: Its source.
        out_dir: Its output folder.
        number: The signal. SIGINT is sent to the whole group, as a terminal does.
        new_scenes: Number of scenes to wait for; 0 for a random time of at most one second.

    Returns:
        Exit status, standard output and standard error.
    """
    count = count_scenes(out_dir) + new_scenes
    process = start_command(command, source, "-o", out_dir, "--json", "--jobs", "2")
    while count_scenes(out_dir) < count and process.poll() is None:
        time.sleep(0.001)
    if new_scenes == 0:
        time.sleep(random.uniform(0, 1))
    if number == signal.SIGINT:
        os.killpg(process.pid, number)
    else:
        process.send_signal(number)
    stdout, stderr = process.communicate(timeout=30)
    wait_until_gone(process.pid)  # no worker outlives the program
    return process.returncode, stdout, stderr


@dataclass(frozen=True)
class EndedRuns:
    """Two runs that were ended by signals, and a third one that was not.

    Attributes:
        first: Exit status, standard output and standard error of the first run.
        left: After each of the two runs, the digests of the scenes, by path.
        errors: Of each folder that was not complete, the error of a dataset.
        kept: The modification times of the scenes before the third run, by path.
        kept_after: Those of the same scenes after it.
        made: The digests of all files after it, by path.
    """

    first: tuple[int, str, str]
    left: list[dict[str, str]]
    errors: list[ScanNetPrepError | None]
    kept: dict[Path, int]
    kept_after: dict[Path, int]
    made: dict[str, str]


def open_folder(folder: Path) -> ScanNetPrepError | None:
    """Open the train scenes of a folder, and return the error if it is refused."""
    try:
        ScanNet(folder, split="train")
    except ScanNetPrepError as error:
        return error
    return None


@pytest.fixture(
    scope="module",
    params=ENDED,
    ids=lambda param: f"{param[0]}, {param[1].name}",
)
def ended(
    request: pytest.FixtureRequest,
    raw_dir: Path,
    expected_dir: Path,
    tmp_path_factory: pytest.TempPathFactory,
) -> EndedRuns:
    """The runs with a signal after the first scene, and then with SIGKILL at a random moment."""
    command, number = request.param
    source = raw_dir
    if command == "unpack":
        source = raw_dir.with_name("a.tar.zst")
        pack_tree(expected_dir, source)
    out_dir = tmp_path_factory.mktemp("ended")

    runs = []
    left = []
    errors = []
    for signum, new_scenes in ((number, 1), (signal.SIGKILL, random.randrange(5))):
        runs.append(interrupt(command, source, out_dir, signum, new_scenes))
        all_digests = digests(out_dir)
        scenes = {name: all_digests[name] for name in all_digests if Path(name).match("scene*.npz")}
        left.append(scenes)
        if len(scenes) < len(SCENES):
            errors.append(open_folder(out_dir))
        else:  # the run was faster than the signal
            shutil.rmtree(out_dir)

    kept = {path: path.stat().st_mtime_ns for path in out_dir.rglob("scene*.npz")}
    assert run_main(command, source, "-o", out_dir).status == 0
    kept_after = {path: path.stat().st_mtime_ns for path in kept}
    return EndedRuns(runs[0], left, errors, kept, kept_after, digests(out_dir))


@pytest.mark.parametrize("ended", ENDED[:2], ids=["SIGINT", "SIGTERM"], indirect=True)
def test_interrupted_run_exits_with_130_and_a_hint(ended: EndedRuns) -> None:
    status, stdout, stderr = ended.first

    assert status == 130, stderr
    assert json.loads(stdout)["exit_status"] == 130
    assert "run the same command again" in stderr
    assert "Traceback" not in stderr


def test_run_ended_by_a_signal_leaves_whole_scenes_only(
    ended: EndedRuns, expected_dir: Path
) -> None:
    expected = digests(expected_dir)

    for left in ended.left:
        assert left.items() <= expected.items()


def test_dataset_refuses_the_folder_of_a_run_ended_by_a_signal(ended: EndedRuns) -> None:
    assert ended.errors
    assert {type(error) for error in ended.errors} <= {FileError, MissingFileError}


def test_next_run_completes_the_folder_of_ended_runs(ended: EndedRuns, expected_dir: Path) -> None:
    # Temporary files would show up here, too.
    assert ended.made == digests(expected_dir)


def test_next_run_keeps_the_scenes_of_ended_runs(ended: EndedRuns) -> None:
    assert ended.kept_after == ended.kept


class TestKilledReprocessing:
    """A complete folder, whose reprocessing after a change of the label map is killed."""

    @pytest.fixture
    def changed_raw_dir(self, raw_dir: Path, tmp_path: Path) -> Path:
        changed = Path(shutil.copytree(raw_dir, tmp_path / "raw"))
        path = changed / LABEL_MAP
        path.write_bytes(path.read_bytes().replace(b"\twall\t", b"\tvall\t"))
        return changed

    @pytest.fixture
    def out_dir(self, changed_raw_dir: Path, expected_dir: Path, tmp_path: Path) -> Path:
        """The folder after a run that is killed when it begins to process the scenes again."""
        out_dir = Path(shutil.copytree(expected_dir, tmp_path / "out"))
        before = (out_dir / "manifest.json").read_bytes()
        process = start_command("process", changed_raw_dir, "-o", out_dir, "--jobs", "2")
        # The new label map is recorded after the folder has been marked as unfinished.
        while (out_dir / "manifest.json").read_bytes() == before:
            assert process.poll() is None, "the run ended without a mark"
            time.sleep(0.0005)
        process.send_signal(signal.SIGKILL)
        process.communicate()
        return out_dir

    def test_dataset_refuses_folder_while_scenes_are_reprocessed(self, out_dir: Path) -> None:
        with pytest.raises(FileError, match="has not finished"):
            ScanNet(out_dir, split="train")

    def test_run_for_one_scene_leaves_the_folder_unfinished(
        self, changed_raw_dir: Path, out_dir: Path
    ) -> None:
        last = max(path.name for path in (changed_raw_dir / "scans").iterdir())

        outcome = run_main("process", changed_raw_dir, "-o", out_dir, "--scenes", last)

        assert outcome.status == 0
        assert "not finished: an earlier run was stopped before it made" in outcome.stdout
        with pytest.raises(FileError, match="has not finished"):
            ScanNet(out_dir, split="train")

    def test_next_run_completes_the_folder(
        self, changed_raw_dir: Path, out_dir: Path, expected_dir: Path
    ) -> None:
        assert run_main("process", changed_raw_dir, "-o", out_dir).status == 0

        assert len(ScanNet(out_dir, split="train")) == 20
        assert digests(out_dir) != digests(expected_dir)
