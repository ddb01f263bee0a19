"""What a download accepts as whole, and what it fetches again: before anything is recorded in `scannet.lock`."""

from __future__ import annotations

import json
import os
import shutil
import struct
import zipfile
from collections.abc import Callable
from pathlib import Path

import pytest
from commands import digests, run_command
from downloads import MESH, SCENES, Bar, fetch, fetched, release_fixture
from release_server import ReleaseServer, Status, always

from scannet_prep.errors import FileError
from scannet_prep.raw.lock import digest_file, read_lock, write_lock
from scannet_prep.release import KINDS
from scannet_prep.scene import SceneId, Split
from scannet_prep.stages.download import FileOutcome
from scannet_prep.stages.download.checks import check_file
from scannet_prep.stages.download.planning import list_files

SCENE = SCENES[0]
SEGMENTS, AGGREGATION, INFO = "_vh_clean_2.0.010000.segs.json", ".aggregation.json", ".txt"
LABELS_MESH = "_vh_clean_2.labels.ply"
OTHER = "scene0011_00"


release_dir = release_fixture(SCENES, 600)


def place(folder: Path, suffix: str, scene_id: str = SCENE) -> Path:
    return folder / f"scans/{scene_id}/{scene_id}{suffix}"


def with_zeros(path: Path, _release_dir: Path) -> None:
    """As aria2 leaves a file that it has not finished: of the full size, the end not written yet."""
    size_bytes = path.stat().st_size
    os.truncate(path, size_bytes - 300)
    os.truncate(path, size_bytes)


def of_another_scene(path: Path, release_dir: Path) -> None:
    shutil.copyfile(place(release_dir, path.name.removeprefix(SCENE), OTHER), path)


def beside_a_control_file(path: Path, _release_dir: Path) -> None:
    path.with_name(f"{path.name}.aria2").write_bytes(b"\0\1")


def shorter_than_on_the_server(path: Path, _release_dir: Path) -> None:
    lines = path.read_bytes().splitlines(keepends=True)
    path.write_bytes(b"".join(lines[:-1]))


DAMAGES = {
    "a mesh with a tail of zeros": (MESH, with_zeros),
    "a labels mesh with a tail of zeros": (LABELS_MESH, with_zeros),
    "segments with a tail of zeros": (SEGMENTS, with_zeros),
    "an aggregation with a tail of zeros": (AGGREGATION, with_zeros),
    "metadata with a tail of zeros": (INFO, with_zeros),
    "the mesh of another scene": (MESH, of_another_scene),
    "the labels mesh of another scene": (LABELS_MESH, of_another_scene),
    "the segments of another scene": (SEGMENTS, of_another_scene),
    "the aggregation of another scene": (AGGREGATION, of_another_scene),
    "a mesh that aria2 has not finished": (MESH, beside_a_control_file),
    "metadata without its last line": (INFO, shorter_than_on_the_server),
}


@pytest.mark.parametrize("name", DAMAGES)
def test_a_damaged_file_is_not_adopted_but_fetched_again(release_dir: Path, tmp_path: Path, name: str) -> None:
    data_dir = Path(shutil.copytree(release_dir, tmp_path / "data"))
    suffix, damage = DAMAGES[name]
    damage(place(data_dir, suffix), release_dir)
    with ReleaseServer(release_dir) as server:
        report = fetch(server, data_dir)
        asked = {request.path.rpartition("/")[2] for request in server.requests()}
    assert not report.failures
    assert f"{SCENE}{suffix}" in asked
    assert {name: entry.sha256 for name, entry in read_lock(data_dir / "scannet.lock").items()} == digests(release_dir)
    assert {name: d for name, d in fetched(data_dir).items() if not name.endswith(".aria2")} == digests(release_dir)


@pytest.mark.parametrize("name", [name for name in DAMAGES if "aria2" not in name and "last line" not in name])
def test_a_damaged_file_of_the_server_is_not_accepted(release_dir: Path, tmp_path: Path, name: str) -> None:
    upstream = Path(shutil.copytree(release_dir, tmp_path / "upstream"))
    suffix, damage = DAMAGES[name]
    damage(place(upstream, suffix), release_dir)
    with ReleaseServer(upstream) as server:
        report = fetch(server, tmp_path / "data")
    assert report.failures
    assert {item.file.scene_id for item in report.failures} == {SCENE}
    assert all("is not what it should be" in item.message for item in report.failures)


def test_adopted_files_are_compared_with_the_sizes_on_the_server_only_once(release_dir: Path, tmp_path: Path) -> None:
    data_dir = Path(shutil.copytree(release_dir, tmp_path / "data"))
    with ReleaseServer(release_dir) as server:
        assert not fetch(server, data_dir).failures
        assert len(server.requests(method="HEAD")) == len(digests(release_dir))
        server.forget()
        fetch(server, data_dir)
        assert server.requests(method="HEAD") == server.requests() == []


def test_a_server_that_does_not_tell_sizes_is_asked_once_for_each_connection(release_dir: Path, tmp_path: Path) -> None:
    data_dir = Path(shutil.copytree(release_dir, tmp_path / "data"))
    refuse = always(None, Status(405))
    with ReleaseServer(
        release_dir, faults=[lambda request: refuse(request) if request.method == "HEAD" else []]
    ) as server:
        report = fetch(server, data_dir)
        assert {item.outcome for item in report.results} == {FileOutcome.PRESENT}
        assert len(server.requests(method="HEAD")) <= 4


def test_verify_fetches_again_what_was_recorded_too_early(release_dir: Path, tmp_path: Path) -> None:
    data_dir = Path(shutil.copytree(release_dir, tmp_path / "data"))
    with_zeros(place(data_dir, MESH), release_dir)
    of_another_scene(place(data_dir, SEGMENTS), release_dir)
    write_lock(
        data_dir / "scannet.lock", {name: digest_file(data_dir / name) for name in digests(data_dir)}
    )  # as versions before this one did
    words = ["download", "--types", "seg", "--scenes", SCENE, "--accept-terms", "-o", data_dir, "--base-url"]
    with ReleaseServer(release_dir) as server:
        assert not fetch(server, data_dir).mended
        outcome = run_command(*words, server.base_url, "--verify", "--json")
    assert outcome.status == 0, outcome.stderr
    assert outcome.json["mended"] == [f"scans/{SCENE}/{SCENE}{SEGMENTS}", f"scans/{SCENE}/{SCENE}{MESH}"]
    lock = read_lock(data_dir / "scannet.lock")
    assert lock[f"scans/{SCENE}/{SCENE}{MESH}"].sha256 == digests(release_dir)[f"scans/{SCENE}/{SCENE}{MESH}"]


def test_verify_keeps_the_record_of_a_file_that_has_changed_on_disk(release_dir: Path, tmp_path: Path) -> None:
    with ReleaseServer(release_dir) as server:
        fetch(server, tmp_path)
        with_zeros(place(tmp_path, MESH), release_dir)
        server.files[f"/scannet/v2/scans/{SCENE}/{SCENE}{MESH}"] = place(release_dir, MESH, OTHER)
        report = fetch(server, tmp_path, is_strict=True)
    assert len(report.failures) == 1
    assert read_lock(tmp_path / "scannet.lock")[f"scans/{SCENE}/{SCENE}{MESH}"] == digest_file(place(release_dir, MESH))


def test_a_file_that_differs_from_its_record_on_the_server_is_refused(release_dir: Path, tmp_path: Path) -> None:
    with ReleaseServer(release_dir) as server:
        fetch(server, tmp_path)
        place(tmp_path, INFO).unlink()
        server.change = lambda request, content: content + b"more = 1\n" if request.path.endswith(INFO) else content
        report = fetch(server, tmp_path)
    assert "is not what scannet.lock records" in report.failures[0].message
    assert "remove its line" in report.failures[0].hint


def sensor_stream(frames: int, imu_frames: int = 0) -> bytes:
    frame = bytes(64) + struct.pack("<4Q", 1, 2, 5, 7) + b"color" + b"depth.."
    head = struct.pack("<IQ9s", 4, 9, b"StructSen") + bytes(256) + struct.pack("<2i4IfQ", 2, 1, 8, 6, 8, 6, 1e3, frames)
    return head + frame * frames + struct.pack("<Q", imu_frames) + bytes(128 * imu_frames)


def zip_file(path: Path) -> bytes:
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("1.png", bytes(range(256)) * 10)
    return path.read_bytes()


@pytest.mark.parametrize("suffix", [".sens", "_2d-label.zip"])
def test_streams_and_zips_are_checked_to_their_end(tmp_path: Path, suffix: str) -> None:
    (file,) = list_files([(SceneId(SCENE), Split.TRAIN)], [KINDS[suffix]])
    path = tmp_path / "file"
    data = sensor_stream(3, 2) if suffix == ".sens" else zip_file(path)
    path.write_bytes(data)
    check_file(file, path)
    damages: list[Callable[[bytes], bytes]] = [
        lambda data: data[:-1],
        lambda data: data[: len(data) // 2],
        lambda data: data[: len(data) // 2] + bytes(len(data) - len(data) // 2),
        lambda data: data[:3],
        lambda _: b"",
    ]
    for damage in damages:
        path.write_bytes(damage(data))
        with pytest.raises(FileError):
            check_file(file, path)


def test_a_file_that_is_larger_than_any_of_its_kind_is_not_read(tmp_path: Path) -> None:
    (file,) = list_files([(SceneId(SCENE), Split.TRAIN)], [KINDS[".txt"]])
    path = tmp_path / "file"
    path.touch()
    os.truncate(path, 1 << 40)
    with pytest.raises(FileError, match="expected at most 1,048,576"):
        check_file(file, path)


def test_train_scenes_need_an_axis_alignment_and_test_scenes_do_not(release_dir: Path) -> None:
    path = release_dir / "scans_test/scene0707_00/scene0707_00.txt"
    (test_file,) = list_files([(SceneId("scene0707_00"), Split.TEST)], [KINDS[".txt"]])
    (train_file,) = list_files([(SceneId(SCENE), Split.TRAIN)], [KINDS[".txt"]])
    check_file(test_file, path)
    with pytest.raises(FileError, match="has no axisAlignment"):
        check_file(train_file, path)


def test_what_is_fetched_again_is_told_with_the_reason(release_dir: Path, tmp_path: Path) -> None:
    data_dir, bar = Path(shutil.copytree(release_dir, tmp_path / "data")), Bar()
    document = json.loads(place(data_dir, AGGREGATION).read_text())
    place(data_dir, AGGREGATION).write_text(json.dumps(document | {"sceneId": "scannet.scene0706_00"}))
    with ReleaseServer(release_dir) as server:
        fetch(server, data_dir, bar=bar)
    assert bar.notes == [
        f"{place(data_dir, AGGREGATION)}: sceneId is 'scene0706_00', expected {SCENE}; fetching it again"
    ]
