"""Files that are there before the first download, as from the official script: what is whole is kept, and recorded."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
import release_faults as faults
from commands import digests, run_command
from downloads import PATIENCE, fetched
from release_faults import Rule, at
from release_server import ReleaseServer

from scannet_prep.labels import LABEL_MAP_NAME
from scannet_prep.progress import NoProgress
from scannet_prep.raw.lock import read_lock
from scannet_prep.scene import SceneId
from scannet_prep.stages import download
from scannet_prep.stages.download import DownloadReport
from scannet_prep.stages.selection import Selection
from scannet_prep.synthetic import write_release

SCENES = ["scene0000_00", "scene0001_00", "scene0011_00", "scene0707_00"]
ENDLESS_COUNT = len(SCENES) + 1  # the .txt files and the label map
INFO = "scans/scene0000_00/scene0000_00.txt"


@pytest.fixture(scope="module")
def release_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    release_dir = tmp_path_factory.mktemp("release")
    write_release(release_dir, SCENES, vertices=2_000)
    return release_dir


@pytest.fixture
def data_dir(release_dir: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(release_dir, tmp_path / "ScanNet"))


class Notes(NoProgress):
    def __init__(self) -> None:
        self.notes: list[str] = []

    def note(self, text: str) -> None:
        self.notes.append(text)


def adopt(server: ReleaseServer, data_dir: Path, policy=PATIENCE) -> tuple[DownloadReport, list[str]]:
    selection = Selection(scene_ids=tuple(map(SceneId, SCENES)))
    plan = download.plan(data_dir, ["seg"], selection=selection, base_url=server.base_url)
    progress = Notes()
    return download.run(plan, policy=policy, progress=progress, needs_terms=False), progress.notes


def answering_head(*answers: faults.Fault) -> Rule:
    return lambda request: answers if request.method == "HEAD" else ()


def test_a_tree_of_the_official_script_is_adopted_and_mended(release_dir: Path, data_dir: Path) -> None:
    mesh = data_dir / "scans/scene0000_00/scene0000_00_vh_clean_2.ply"
    segments = data_dir / "scans/scene0001_00/scene0001_00_vh_clean_2.0.010000.segs.json"
    labels = data_dir / "scans/scene0011_00/scene0011_00_vh_clean_2.labels.ply"
    mesh.write_bytes(mesh.read_bytes()[:-100])
    segments.unlink()
    labels.write_text("<html>404</html>")
    (mesh.parent / "tmp1a2b").write_bytes(b"half a file")
    for path in data_dir.rglob("scene*.*"):
        path.chmod(0o600)
    with ReleaseServer(release_dir) as server:
        words = ["--types", "seg", "--scenes", *SCENES, "--accept-terms", "-o", data_dir, "--base-url", server.base_url]
        outcome = run_command("download", *words, "--json")
    assert outcome.status == 0, outcome.stderr
    assert len(outcome.json["mended"]) == 2
    assert outcome.json["orphans"] == [str(mesh.parent / "tmp1a2b")]
    (mesh.parent / "tmp1a2b").unlink()
    assert fetched(data_dir) == digests(release_dir)
    assert mesh.stat().st_mode & 0o077
    assert len(outcome.json["permissions_repaired"]) >= 15


def cut_at_a_line(path: Path) -> None:
    lines = path.read_bytes().splitlines(keepends=True)
    path.write_bytes(b"".join(lines[: len(lines) // 2]))


@pytest.mark.parametrize("cut", [cut_at_a_line, lambda path: path.write_bytes(path.read_bytes()[:-1])])
@pytest.mark.parametrize("name", [INFO, LABEL_MAP_NAME])
def test_what_does_not_tell_its_length_is_compared_with_the_servers(
    release_dir: Path, data_dir: Path, name: str, cut
) -> None:
    cut(data_dir / name)
    with ReleaseServer(release_dir) as server:
        report, notes = adopt(server, data_dir)
        assert report.mended == (name,)
        assert "bytes, the server's has" in notes[0]
        assert [len(server.requests(method=method)) for method in ("HEAD", "GET")] == [ENDLESS_COUNT, 1]
        assert fetched(data_dir) == digests(release_dir)
        server.forget()
        assert not adopt(server, data_dir)[0].mended
        assert not server.requests()  # all is recorded


@pytest.mark.parametrize(
    "fault", [faults.Status(404), faults.NoLength(), faults.Header("Content-Length", "many"), faults.Gzip()]
)
def test_where_the_server_does_not_tell_the_length_files_are_adopted_as_they_are(
    release_dir: Path, data_dir: Path, fault: faults.Fault
) -> None:
    with ReleaseServer(release_dir, faults=[answering_head(fault)]) as server:
        report, notes = adopt(server, data_dir)
        assert not server.requests(method="GET")
    assert (report.failures, report.mended, notes) == ((), (), [])
    assert {name: entry.sha256 for name, entry in read_lock(data_dir / "scannet.lock").items()} == digests(release_dir)


@pytest.mark.parametrize(
    ("fault", "reason"),
    [
        (faults.Status(405), "status 405"),
        (faults.Status(500), "8 attempts in a row failed"),
        (faults.HtmlPage(), "a page in place of a file"),
    ],
)
def test_where_it_gives_no_answer_they_are_not_recorded_and_the_others_are_fetched(
    release_dir: Path, data_dir: Path, fault: faults.Fault, reason: str
) -> None:
    mesh_path = data_dir / "scans/scene0011_00/scene0011_00_vh_clean_2.ply"
    mesh_path.unlink()
    with ReleaseServer(release_dir, faults=[answering_head(fault)]) as server:
        report, notes = adopt(server, data_dir)
        assert len(server.requests(method="GET")) == 1
        assert not report.failures
        assert fetched(data_dir) == digests(release_dir)
        assert [reason in note and "taken for whole" in note for note in notes] == [True]
        assert len(digests(release_dir).keys() - read_lock(data_dir / "scannet.lock").keys()) == ENDLESS_COUNT
        server.faults = []
        adopt(server, data_dir)
    assert read_lock(data_dir / "scannet.lock").keys() == digests(release_dir).keys()


def test_without_the_server_nothing_that_is_whole_fails(release_dir: Path, data_dir: Path) -> None:
    with ReleaseServer(release_dir) as server:
        server.stop()
        report, notes = adopt(server, data_dir)
    assert not report.failures
    assert ["taken for whole" in note for note in notes] == [True]


def test_a_flaky_server_is_asked_again(release_dir: Path, data_dir: Path) -> None:
    (data_dir / INFO).write_bytes((data_dir / INFO).read_bytes()[:-7])
    with ReleaseServer(release_dir, faults=[at(None, faults.Status(503), faults.Reset(), faults.Cut(-1))]) as server:
        assert adopt(server, data_dir)[0].mended == (INFO,)
    assert fetched(data_dir) == digests(release_dir)
