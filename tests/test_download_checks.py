"""Checks of existing and downloaded files, before anything is recorded in `scannet.lock`."""

import json
import os
import random
import re
import shlex
import shutil
import zipfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest
from commands import digests, run_main
from downloads import MESH, SCENES, Bar, fetch, fetched, words
from large_files import DEPTH, make_stream, make_zip
from release_server import Fault, ReleaseServer, Request, Status, scene_url_path

from scannet_prep.cli.main import make_parser
from scannet_prep.errors import FileError
from scannet_prep.raw.lock import digest_file, encode_lock, read_lock
from scannet_prep.release.files import KINDS, LABEL_MAP
from scannet_prep.release.scene import SceneId, Split
from scannet_prep.stages.download import FileOutcome, worker
from scannet_prep.stages.download.content import check_file
from scannet_prep.stages.download.planning import list_files

SCENE = SCENES[0]
OTHER_SCENE = "scene0011_00"
SEGMENTS = "_vh_clean_2.0.010000.segs.json"
AGGREGATION = ".aggregation.json"
INFO = ".txt"
LABELS_MESH = "_vh_clean_2.labels.ply"
COMPARED = (MESH, LABELS_MESH, SEGMENTS, AGGREGATION)


def scene_file(folder: Path, suffix: str, scene_id: str = SCENE) -> Path:
    return folder / f"scans/{scene_id}/{scene_id}{suffix}"


def recorded_digests(data_dir: Path) -> dict[str, str]:
    entries = read_lock(data_dir / "scannet.lock")
    return {name: entry.sha256 for name, entry in entries.items()}


# Damages: functions of the file to damage and the folder of the release.


def zero_the_tail(path: Path, _release_dir: Path) -> None:
    """Leave the file like an unfinished one of aria2: of the full size, its end not yet written."""
    size_bytes = path.stat().st_size
    os.truncate(path, size_bytes - 300)
    os.truncate(path, size_bytes)


def cut_100_bytes(path: Path, _release_dir: Path) -> None:
    os.truncate(path, path.stat().st_size - 100)


def cut_last_byte(path: Path, _release_dir: Path) -> None:
    os.truncate(path, path.stat().st_size - 1)


def replace_by_other_scene(path: Path, release_dir: Path) -> None:
    suffix = path.name.removeprefix(SCENE)
    shutil.copyfile(scene_file(release_dir, suffix, OTHER_SCENE), path)


def replace_by_mesh(path: Path, _release_dir: Path) -> None:
    shutil.copyfile(path.with_name(f"{SCENE}{MESH}"), path)


def replace_by_labels_mesh(path: Path, _release_dir: Path) -> None:
    shutil.copyfile(path.with_name(f"{SCENE}{LABELS_MESH}"), path)


def replace_by_page(path: Path, _release_dir: Path) -> None:
    path.write_text("<html>404</html>")


def name_unknown_segments(path: Path, _release_dir: Path) -> None:
    groups = json.loads(path.read_text())["segGroups"]
    changed = [group | {"segments": [10_000_000]} for group in groups]
    path.write_text(json.dumps({"segGroups": changed}))


def leave_to_aria2(path: Path, _release_dir: Path) -> None:
    path.with_name(f"{path.name}.aria2").touch()


@dataclass(frozen=True)
class Damage:
    suffix: str
    apply: Callable[[Path, Path], None]


# Damages that are also found in files that a server sends.
SERVED_DAMAGES = {
    "mesh with a tail of zeros": Damage(MESH, zero_the_tail),
    "truncated mesh": Damage(MESH, cut_100_bytes),
    "segments with a tail of zeros": Damage(SEGMENTS, zero_the_tail),
    "aggregation with a tail of zeros": Damage(AGGREGATION, zero_the_tail),
    "mesh of another scene": Damage(MESH, replace_by_other_scene),
    "labels mesh of another scene": Damage(LABELS_MESH, replace_by_other_scene),
    "mesh without labels in place of the labels mesh": Damage(LABELS_MESH, replace_by_mesh),
    "labels mesh in place of the mesh": Damage(MESH, replace_by_labels_mesh),
    "segments of another scene": Damage(SEGMENTS, replace_by_other_scene),
    "aggregation of another scene": Damage(AGGREGATION, replace_by_other_scene),
    "aggregation of unknown segments": Damage(AGGREGATION, name_unknown_segments),
}
# Damages that are found by comparing with the server, or that a server cannot send.
LOCAL_DAMAGES = {
    "mesh that aria2 has not finished": Damage(MESH, leave_to_aria2),
    "page in place of a labels mesh": Damage(LABELS_MESH, replace_by_page),
    "metadata without its last byte": Damage(INFO, cut_last_byte),
}
DAMAGES = SERVED_DAMAGES | LOCAL_DAMAGES


@pytest.fixture
def data_dir(release_dir: Path, tmp_path: Path) -> Path:
    """A complete tree without `scannet.lock`, as the official script leaves it."""
    return Path(shutil.copytree(release_dir, tmp_path / "data"))


@pytest.fixture
def upstream(release_dir: Path, tmp_path: Path) -> Path:
    """A copy of the release to be damaged and served."""
    return Path(shutil.copytree(release_dir, tmp_path / "upstream"))


@pytest.mark.parametrize("name", DAMAGES)
def test_damaged_existing_file_is_fetched_again(
    server: ReleaseServer, data_dir: Path, name: str
) -> None:
    damage = DAMAGES[name]
    damage.apply(scene_file(data_dir, damage.suffix), server.root)
    bar = Bar()

    report = fetch(server, data_dir, bar=bar)

    assert not report.failures
    assert fetched(data_dir) == digests(server.root)
    assert recorded_digests(data_dir) == digests(server.root)
    notes = [note for note in bar.notes if f"{damage.suffix}: " in note]
    assert notes
    assert notes[0].endswith("; fetching it again")


@pytest.mark.parametrize("name", LOCAL_DAMAGES)
def test_intact_files_beside_a_damaged_one_are_not_fetched(
    server: ReleaseServer, data_dir: Path, name: str
) -> None:
    damage = LOCAL_DAMAGES[name]
    damage.apply(scene_file(data_dir, damage.suffix), server.root)

    fetch(server, data_dir)

    requested = [request.path.rpartition("/")[2] for request in server.requests()]
    assert requested == [f"{SCENE}{damage.suffix}"]


@pytest.mark.parametrize("name", SERVED_DAMAGES)
def test_damaged_file_of_the_server_fails_until_it_is_replaced(
    release_dir: Path, upstream: Path, data_dir: Path, name: str
) -> None:
    damage = SERVED_DAMAGES[name]
    for folder in (upstream, data_dir):
        damage.apply(scene_file(folder, damage.suffix), release_dir)
    with ReleaseServer(upstream) as server:
        failures = fetch(server, data_dir).failures

        requested = [request.path.rpartition("/")[2] for request in server.requests()]
        assert f"{SCENE}{damage.suffix}" in requested
        assert {failure.file.scene_id for failure in failures} == {SCENE}
        reasons = "is not what it should be|contradict each other"
        assert all(re.search(reasons, failure.message) for failure in failures)

        shutil.copyfile(scene_file(release_dir, damage.suffix), scene_file(upstream, damage.suffix))
        assert not fetch(server, data_dir).failures
    assert recorded_digests(data_dir) == digests(release_dir)
    assert fetched(data_dir) == digests(release_dir)


def change_floor(_request: Request | None, content: bytes) -> bytes:
    """Change the nyu40 id of floor in a label map."""
    return content.replace(b"3\tfloor\t2", b"3\tfloor\t0")


CHANGED_FLOOR = "1 raw categories: floor (for example, 'floor' is ScanNet id 3, nyu40 id 0"


def test_existing_label_map_with_other_ids_causes_a_warning(
    server: ReleaseServer, tmp_path: Path
) -> None:
    content = (server.root / LABEL_MAP.suffix).read_bytes()
    (tmp_path / LABEL_MAP.suffix).write_bytes(change_floor(None, content))
    bar = Bar()

    assert not fetch(server, tmp_path, bar=bar).failures

    (note,) = bar.notes
    assert CHANGED_FLOOR in note


def test_fetched_label_map_with_other_ids_causes_a_warning(
    server: ReleaseServer, tmp_path: Path
) -> None:
    server.change = change_floor
    bar = Bar()

    assert not fetch(server, tmp_path, bar=bar).failures

    (note,) = bar.notes
    assert CHANGED_FLOOR in note


@pytest.mark.parametrize("suffix", [MESH, LABELS_MESH])
def test_contradicting_files_of_a_scene_all_fail_unrecorded(
    release_dir: Path, upstream: Path, tmp_path: Path, suffix: str
) -> None:
    replace_by_other_scene(scene_file(upstream, suffix), release_dir)
    data_dir = tmp_path / "downloaded"
    with ReleaseServer(upstream) as server:
        failures = fetch(server, data_dir, jobs=1).failures

    assert {failure.file.kind.suffix for failure in failures} == set(COMPARED)
    recorded = recorded_digests(data_dir)
    compared_names = {f"scans/{SCENE}/{SCENE}{other}" for other in COMPARED}
    assert compared_names.isdisjoint(recorded)


@pytest.mark.parametrize("suffix", [MESH, LABELS_MESH])
def test_contradicting_files_are_fetched_again_by_the_next_run(
    release_dir: Path, upstream: Path, tmp_path: Path, suffix: str
) -> None:
    replace_by_other_scene(scene_file(upstream, suffix), release_dir)
    data_dir = tmp_path / "downloaded"
    with ReleaseServer(upstream) as server:
        fetch(server, data_dir, jobs=1)
        shutil.copyfile(scene_file(release_dir, suffix), scene_file(upstream, suffix))
        assert not fetch(server, data_dir).failures

    assert fetched(data_dir) == digests(release_dir)


def test_contradiction_names_its_files_and_a_command(
    release_dir: Path, upstream: Path, tmp_path: Path
) -> None:
    replace_by_other_scene(scene_file(upstream, MESH), release_dir)
    with ReleaseServer(upstream) as server:
        failure = fetch(server, tmp_path / "downloaded", jobs=1).failures[0]

    files = f"the files of {SCENE} contradict each other ({', '.join(COMPARED)})"
    assert f"{files}: the numbers of vertices differ" in failure.message
    command = shlex.split(failure.hint.partition(": ")[2])
    assert command[:2] == ["scannet-prep", "download"]
    assert make_parser().parse_args(command[1:]).scenes == [SCENE]


def test_file_that_differs_from_its_record_shows_both_digests(
    server: ReleaseServer, tmp_path: Path
) -> None:
    fetch(server, tmp_path)
    path = scene_file(tmp_path, INFO)
    recorded = digest_file(path)
    # Other content of the same size.
    path.write_bytes(path.read_bytes().swapcase())
    changed = digest_file(path)
    bar = Bar()

    assert not fetch(server, tmp_path, bar=bar).failures

    (note,) = bar.notes
    assert f"sha256 {changed.sha256[:12]}, expected" in note
    expected = f"expected {recorded.size_bytes:,}, {recorded.sha256[:12]}; fetching it again"
    assert note.endswith(expected)
    assert digest_file(path) == recorded


def refuse_head(request: Request) -> list[Fault]:
    return [Status(405)] if request.method == "HEAD" else []


def test_sizes_of_all_existing_files_are_compared_with_the_server(
    server: ReleaseServer, data_dir: Path
) -> None:
    report = fetch(server, data_dir)

    assert {task.outcome for task in report.results} == {FileOutcome.PRESENT}
    assert len(server.requests(method="HEAD")) == len(digests(server.root))


def test_recorded_files_are_not_compared_with_the_server_again(
    server: ReleaseServer, data_dir: Path
) -> None:
    fetch(server, data_dir)
    server.forget()

    fetch(server, data_dir)

    assert server.requests(method="HEAD") == []
    assert server.requests() == []


def test_server_that_refuses_sizes_is_asked_once_per_connection(
    server: ReleaseServer, data_dir: Path
) -> None:
    server.faults = [refuse_head]

    report = fetch(server, data_dir)

    assert {task.outcome for task in report.results} == {FileOutcome.PRESENT}
    assert len(server.requests(method="HEAD")) <= 4


@pytest.fixture
def recorded_damage(server: ReleaseServer, data_dir: Path) -> Path:
    """A tree with a damaged mesh and wrong segments, and records of both."""
    zero_the_tail(scene_file(data_dir, MESH), server.root)
    replace_by_other_scene(scene_file(data_dir, SEGMENTS), server.root)
    entries = {name: digest_file(data_dir / name) for name in digests(data_dir)}
    (data_dir / "scannet.lock").write_bytes(encode_lock(entries))
    return data_dir


def test_recorded_damaged_files_are_kept_without_verify(
    server: ReleaseServer, recorded_damage: Path
) -> None:
    fetch(server, recorded_damage)
    assert server.requests() == []


def test_verify_fetches_only_recorded_damaged_files_again(
    server: ReleaseServer, recorded_damage: Path
) -> None:
    outcome = run_main(*words(server.base_url, recorded_damage, "--verify"))

    assert outcome.status == 0, outcome.stderr
    requested = {request.path.rpartition("/")[2] for request in server.requests()}
    assert requested == {f"{SCENE}{SEGMENTS}", f"{SCENE}{MESH}"}
    name = f"scans/{SCENE}/{SCENE}{MESH}"
    assert recorded_digests(recorded_damage)[name] == digests(server.root)[name]


@pytest.mark.parametrize("is_strict", [True, False])
def test_server_file_that_differs_from_the_record_is_refused(
    server: ReleaseServer, tmp_path: Path, is_strict: bool
) -> None:
    def change(request: Request, content: bytes) -> bytes:
        return content + b"more = 1\n" if request.path.endswith(INFO) else content

    fetch(server, tmp_path)
    server.change = change
    zero_the_tail(scene_file(tmp_path, INFO), server.root)

    (failure,) = fetch(server, tmp_path, is_strict=is_strict).failures

    assert "is not what scannet.lock records" in failure.message
    assert "remove its line" in failure.hint
    entry = read_lock(tmp_path / "scannet.lock")[failure.file.local_path]
    assert entry == digest_file(scene_file(server.root, INFO))


def test_interrupted_check_leaves_scannet_lock_unchanged(
    server: ReleaseServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupt(*_arguments: object) -> None:
        raise KeyboardInterrupt

    fetch(server, tmp_path)
    before = read_lock(tmp_path / "scannet.lock")
    monkeypatch.setattr(worker, "check_file", interrupt)

    with pytest.raises(KeyboardInterrupt):
        fetch(server, tmp_path, is_strict=True)

    assert read_lock(tmp_path / "scannet.lock") == before


@dataclass(frozen=True)
class LargeFile:
    """A complete large file, and a part of it that a checksum covers."""

    content: bytes
    checked_part: bytes

    def replace_part(self, part: bytes) -> bytes:
        return self.content.replace(self.checked_part, part, 1)


LARGE_FILES = {
    ".sens": LargeFile(make_stream(), checked_part=DEPTH),
    "_2d-label.zip": LargeFile(make_zip(zipfile.ZIP_STORED), checked_part=b"second"),
}


def write_scene_file(folder: Path, suffix: str, content: bytes) -> Path:
    path = scene_file(folder, suffix)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content)
    return path


@pytest.mark.parametrize("suffix", LARGE_FILES)
def test_damaged_large_file_fails_until_the_server_replaces_it(
    release_dir: Path, tmp_path: Path, suffix: str
) -> None:
    upstream = tmp_path / "upstream"
    data_dir = tmp_path / "data"
    large_file = LARGE_FILES[suffix]
    part = large_file.checked_part
    damaged = large_file.replace_part(part[:-1] + bytes([part[-1] ^ 1]))
    info = scene_file(release_dir, INFO).read_bytes()
    for folder in (upstream, data_dir):
        write_scene_file(folder, suffix, damaged)
        write_scene_file(folder, INFO, info)

    with ReleaseServer(upstream) as server:
        (failure,) = fetch(server, data_dir, [SCENE], types=[suffix, INFO]).failures
        assert "is not what it should be" in failure.message
        assert f"{SCENE}{suffix}" not in (data_dir / "scannet.lock").read_text()

        write_scene_file(upstream, suffix, large_file.content)
        assert not fetch(server, data_dir, [SCENE], types=[suffix]).failures
    assert scene_file(data_dir, suffix).read_bytes() == large_file.content


@pytest.mark.parametrize("suffix", LARGE_FILES)
def test_verify_replaces_recorded_damaged_large_files(tmp_path: Path, suffix: str) -> None:
    upstream = tmp_path / "upstream"
    data_dir = tmp_path / "data"
    large_file = LARGE_FILES[suffix]
    write_scene_file(upstream, suffix, large_file.content)
    damaged = large_file.replace_part(large_file.checked_part[:-1] + b"?")
    path = write_scene_file(data_dir, suffix, damaged)
    name = str(path.relative_to(data_dir))
    (data_dir / "scannet.lock").write_bytes(encode_lock({name: digest_file(path)}))

    with ReleaseServer(upstream) as server:
        report = fetch(server, data_dir, [SCENE], types=[suffix], is_strict=True)

    assert not report.failures
    assert path.read_bytes() == large_file.content


def test_metadata_of_a_test_scene_needs_no_axis_alignment(release_dir: Path) -> None:
    (file,) = list_files([(SceneId("scene0707_00"), Split.TEST)], [KINDS[INFO]])
    check_file(file, release_dir / file.local_path)


def test_metadata_of_a_train_scene_needs_axis_alignment(release_dir: Path) -> None:
    (file,) = list_files([(SceneId(SCENE), Split.TRAIN)], [KINDS[INFO]])
    path = release_dir / "scans_test/scene0707_00/scene0707_00.txt"

    with pytest.raises(FileError, match="has no axisAlignment"):
        check_file(file, path)


def test_large_file_broken_at_the_server_fails_after_its_tries_though_it_is_the_only_one(
    server, tmp_path
):
    header = (
        "ply\nformat binary_little_endian 1.0\nelement vertex 1000000\n"
        "property float x\nproperty float y\nproperty float z\n"
        "property uchar red\nproperty uchar green\nproperty uchar blue\nproperty uchar alpha\n"
        "element face 1000000\nproperty list uchar int vertex_indices\nend_header\n"
    )
    body = random.Random(0).randbytes(29_000_000)
    url_path = scene_url_path(SCENE, "_vh_clean.ply")
    server.files[url_path] = header.encode() + body
    bar = Bar()

    report = fetch(server, tmp_path, [SCENE], types=["_vh_clean.ply"], bar=bar)

    (failure,) = report.failures
    assert failure.message.startswith(f"{server.base_url}v2/scans/{SCENE}/{SCENE}_vh_clean.ply: ")
    assert "3 attempts failed, the last one: is not what it should be" in failure.message
    assert len(server.requests()) == 3
    assert len([note for note in bar.notes if "is tried again after the others" in note]) == 1
