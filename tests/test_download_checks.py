"""What a download accepts as whole, and what it fetches again: before anything is recorded in `scannet.lock`."""

import json
import os
import re
import shlex
import shutil
import zipfile
from pathlib import Path

import pytest
from commands import digests, run_main
from downloads import MESH, SCENES, Bar, fetch, fetched, words
from large_files import DEPTH, make_stream, make_zip
from release_server import ReleaseServer, Status

from scannet_prep.base.errors import FileError
from scannet_prep.cli.main import make_parser
from scannet_prep.raw.lock import digest_file, encode_lock, read_lock
from scannet_prep.release.files import KINDS, LABEL_MAP
from scannet_prep.release.scene import SceneId, Split
from scannet_prep.stages.download import FileOutcome, tasks
from scannet_prep.stages.download.planning import list_files
from scannet_prep.stages.download.tasks import check_file

SCENE = SCENES[0]
SEGMENTS, AGGREGATION, INFO = "_vh_clean_2.0.010000.segs.json", ".aggregation.json", ".txt"
LABELS_MESH = "_vh_clean_2.labels.ply"
OTHER = "scene0011_00"


def place(folder: Path, suffix: str, scene_id: str = SCENE) -> Path:
    return folder / f"scans/{scene_id}/{scene_id}{suffix}"


def with_zeros(path: Path, _release_dir: Path) -> None:
    """As aria2 leaves a file that it has not finished: of the full size, the end not written yet."""
    size_bytes = path.stat().st_size
    os.truncate(path, size_bytes - 300)
    os.truncate(path, size_bytes)


def of_another_scene(path: Path, release_dir: Path) -> None:
    shutil.copyfile(place(release_dir, path.name.removeprefix(SCENE), OTHER), path)


def of_other_segments(path: Path, _release_dir: Path) -> None:
    groups = json.loads(path.read_text())["segGroups"]
    path.write_text(
        json.dumps({"segGroups": [group | {"segments": [10_000_000]} for group in groups]})
    )


DAMAGES = {
    "a mesh with a tail of zeros": (MESH, with_zeros),
    "a truncated mesh": (MESH, lambda path, _: os.truncate(path, path.stat().st_size - 100)),
    "segments with a tail of zeros": (SEGMENTS, with_zeros),
    "an aggregation with a tail of zeros": (AGGREGATION, with_zeros),
    "the mesh of another scene": (MESH, of_another_scene),
    "the labels mesh of another scene": (LABELS_MESH, of_another_scene),
    "a mesh without labels in place of the labels mesh": (
        LABELS_MESH,
        lambda path, _: shutil.copyfile(path.with_name(f"{SCENE}{MESH}"), path),
    ),
    "the labels mesh in place of the mesh": (
        MESH,
        lambda path, _: shutil.copyfile(path.with_name(f"{SCENE}{LABELS_MESH}"), path),
    ),
    "the segments of another scene": (SEGMENTS, of_another_scene),
    "the aggregation of another scene": (AGGREGATION, of_another_scene),
    "an aggregation of segments that are not there": (AGGREGATION, of_other_segments),
    "a mesh that aria2 has not finished": (
        MESH,
        lambda path, _: path.with_name(f"{path.name}.aria2").touch(),
    ),
    "a page in place of a mesh": (LABELS_MESH, lambda path, _: path.write_text("<html>404</html>")),
    "metadata without its last byte": (
        INFO,
        lambda path, _: os.truncate(path, path.stat().st_size - 1),
    ),
}


@pytest.mark.parametrize("name", DAMAGES)
def test_damaged_files_are_neither_adopted_nor_accepted(
    release_dir: Path, tmp_path: Path, name: str
) -> None:
    suffix, damage = DAMAGES[name]
    # Such a file is not taken from a server either; the others are told by what the server has, or never come from it.
    is_seen_alone = not name.startswith(("a page", "metadata")) and "aria2" not in name
    upstream, data_dir = (
        Path(shutil.copytree(release_dir, tmp_path / place)) for place in ("upstream", "data")
    )
    for folder in (upstream, data_dir) if is_seen_alone else (data_dir,):
        damage(place(folder, suffix), release_dir)
    bar = Bar()
    with ReleaseServer(upstream) as server:
        report = fetch(server, data_dir, bar=bar)
        asked = [request.path.rpartition("/")[2] for request in server.requests()]
        assert f"{SCENE}{suffix}" in asked
        assert (
            is_seen_alone or len(asked) == 1
        )  # what is whole is adopted: a tree of the official script
        assert [
            note
            for note in bar.notes
            if f"{suffix}: " in note and note.endswith("; fetching it again")
        ]
        assert {item.file.scene_id for item in report.failures} == (
            {SCENE} if is_seen_alone else set()
        )
        reasons = "is not what it should be|contradict each other"
        assert all(re.search(reasons, failure.message) for failure in report.failures)
        shutil.copyfile(place(release_dir, suffix), place(upstream, suffix))
        assert not fetch(server, data_dir).failures
    expected = digests(release_dir)
    assert {
        name: entry.sha256 for name, entry in read_lock(data_dir / "scannet.lock").items()
    } == expected
    assert fetched(data_dir) == expected


@pytest.mark.parametrize("is_there", [True, False])
def test_label_map_that_is_not_the_release_s_is_warned_of(
    server: ReleaseServer, tmp_path: Path, is_there: bool
) -> None:
    def change(_request: object, content: bytes) -> bytes:
        return content.replace(b"3\tfloor\t2", b"3\tfloor\t0")

    if is_there:  # as fetched by another program
        path = tmp_path / LABEL_MAP.suffix
        path.write_bytes(change(None, (server.root / path.name).read_bytes()))
    else:
        server.change = change
    bar = Bar()
    assert not fetch(server, tmp_path, bar=bar).failures
    (note,) = bar.notes
    assert "1 raw categories: floor (for example, 'floor' is ScanNet id 3, nyu40 id 0" in note


@pytest.mark.parametrize("suffix", [MESH, LABELS_MESH])
def test_files_of_a_scene_that_contradict_each_other_are_all_named_and_none_is_recorded(
    release_dir: Path, tmp_path: Path, suffix: str
) -> None:
    upstream = Path(shutil.copytree(release_dir, tmp_path / "upstream"))
    of_another_scene(place(upstream, suffix), release_dir)
    data_dir = tmp_path / "data"
    suffixes = {MESH, LABELS_MESH, SEGMENTS, AGGREGATION}
    with ReleaseServer(upstream) as server:
        failures = fetch(server, data_dir, jobs=1).failures
        assert {failure.file.kind.suffix for failure in failures} == suffixes
        lock = read_lock(data_dir / "scannet.lock")
        assert not [
            name
            for name in lock
            if name.startswith(f"scans/{SCENE}/") and name.endswith(tuple(suffixes))
        ]
        shutil.copyfile(place(release_dir, suffix), place(upstream, suffix))
        assert not fetch(server, data_dir).failures
    assert fetched(data_dir) == digests(release_dir)


def test_contradiction_names_its_files_and_a_command(release_dir: Path, tmp_path: Path) -> None:
    upstream = Path(shutil.copytree(release_dir, tmp_path / "upstream"))
    of_another_scene(place(upstream, MESH), release_dir)
    with ReleaseServer(upstream) as server:
        failure = fetch(server, tmp_path / "data", jobs=1).failures[0]
    names = f"{MESH}, {LABELS_MESH}, {SEGMENTS}, {AGGREGATION}"
    assert (
        f"the files of {SCENE} contradict each other ({names}): the numbers of vertices differ"
        in failure.message
    )
    command = shlex.split(failure.hint.partition(": ")[2])
    assert command[:2] == ["scannet-prep", "download"]
    assert make_parser().parse_args(command[1:]).scenes == [SCENE]


def test_recorded_file_with_other_content_of_equal_size_shows_both_hashes(
    server: ReleaseServer, tmp_path: Path
) -> None:
    fetch(server, tmp_path)
    path = place(tmp_path, INFO)
    before = digest_file(path)
    path.write_bytes(path.read_bytes().swapcase())
    bar = Bar()
    assert not fetch(server, tmp_path, bar=bar).failures
    (note,) = bar.notes
    assert f"sha256 {digest_file(path).sha256[:12]}" not in note  # it is whole again
    assert f", expected {before.size_bytes:,}, {before.sha256[:12]}; fetching it again" in note
    assert re.search(r"sha256 [0-9a-f]{12}, expected", note)


@pytest.mark.parametrize("tells_sizes", [True, False])
def test_adopted_files_are_compared_with_sizes_once(
    server: ReleaseServer, tmp_path: Path, tells_sizes: bool
) -> None:
    data_dir = Path(shutil.copytree(server.root, tmp_path / "data"))
    server.faults = [
        lambda request: [Status(405)] if request.method == "HEAD" and not tells_sizes else []
    ]
    assert {item.outcome for item in fetch(server, data_dir).results} == {FileOutcome.PRESENT}
    asked = len(server.requests(method="HEAD"))
    assert (
        asked == len(digests(server.root)) if tells_sizes else asked <= 4
    )  # one for each connection
    server.forget()
    fetch(server, data_dir)
    assert server.requests(method="HEAD") == server.requests() == []


def test_verify_fetches_again_what_was_recorded_too_early(
    server: ReleaseServer, tmp_path: Path
) -> None:
    data_dir = Path(shutil.copytree(server.root, tmp_path / "data"))
    with_zeros(place(data_dir, MESH), server.root)
    of_another_scene(place(data_dir, SEGMENTS), server.root)
    found = {name: digest_file(data_dir / name) for name in digests(data_dir)}
    (data_dir / "scannet.lock").write_bytes(encode_lock(found))  # as versions before this one did
    fetch(server, data_dir)
    assert server.requests() == []
    outcome = run_main(*words(server.base_url, data_dir, "--verify"))
    assert outcome.status == 0, outcome.stderr
    asked = {request.path.rpartition("/")[2] for request in server.requests()}
    assert asked == {f"{SCENE}{SEGMENTS}", f"{SCENE}{MESH}"}
    lock = read_lock(data_dir / "scannet.lock")
    assert (
        lock[f"scans/{SCENE}/{SCENE}{MESH}"].sha256
        == digests(server.root)[f"scans/{SCENE}/{SCENE}{MESH}"]
    )


def test_what_differs_from_its_record_is_refused_and_the_record_stays(
    server: ReleaseServer, tmp_path: Path
) -> None:
    fetch(server, tmp_path)
    server.change = lambda request, content: (
        content + b"more = 1\n" if request.path.endswith(INFO) else content
    )
    for is_strict in (True, False):
        with_zeros(place(tmp_path, INFO), server.root)
        (failure,) = fetch(server, tmp_path, is_strict=is_strict).failures
        assert "is not what scannet.lock records" in failure.message
        assert "remove its line" in failure.hint
        assert read_lock(tmp_path / "scannet.lock")[failure.file.local_path] == digest_file(
            place(server.root, INFO)
        )


def test_interrupted_it_keeps_records(
    server: ReleaseServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fetch(server, tmp_path)
    before = read_lock(tmp_path / "scannet.lock")

    def interrupt(*_arguments: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(tasks, "check_file", interrupt)
    with pytest.raises(KeyboardInterrupt):
        fetch(server, tmp_path, is_strict=True)
    assert read_lock(tmp_path / "scannet.lock") == before


CHANGES = {
    ".sens": (make_stream(), DEPTH),
    "_2d-label.zip": (make_zip(zipfile.ZIP_STORED), b"second"),
}


@pytest.mark.parametrize("suffix", CHANGES)
def test_damaged_content_of_large_files_is_neither_adopted_nor_accepted(
    release_dir: Path, tmp_path: Path, suffix: str
) -> None:
    whole, part = CHANGES[suffix]
    damaged = whole.replace(part, part[:-1] + bytes([part[-1] ^ 1]), 1)
    upstream, data_dir = tmp_path / "upstream", tmp_path / "data"
    for folder in (upstream, data_dir):
        place(folder, suffix).parent.mkdir(parents=True)
        place(folder, suffix).write_bytes(damaged)
        shutil.copyfile(place(release_dir, INFO), place(folder, INFO))
    with ReleaseServer(upstream) as server:
        (failure,) = fetch(server, data_dir, [SCENE], types=[suffix, INFO]).failures
        assert "is not what it should be" in failure.message
        assert place(data_dir, suffix).name not in (data_dir / "scannet.lock").read_text()
        place(upstream, suffix).write_bytes(whole)
        assert not fetch(server, data_dir, [SCENE], types=[suffix]).failures
    assert place(data_dir, suffix).read_bytes() == whole


@pytest.mark.parametrize("suffix", CHANGES)
def test_verify_replaces_large_files_that_were_recorded_damaged(
    tmp_path: Path, suffix: str
) -> None:
    whole, part = CHANGES[suffix]
    upstream, data_dir = tmp_path / "upstream", tmp_path / "data"
    for folder, data in ((upstream, whole), (data_dir, whole.replace(part, part[:-1] + b"?", 1))):
        place(folder, suffix).parent.mkdir(parents=True)
        place(folder, suffix).write_bytes(data)
    path = place(data_dir, suffix)
    (data_dir / "scannet.lock").write_bytes(
        encode_lock({str(path.relative_to(data_dir)): digest_file(path)})
    )
    with ReleaseServer(upstream) as server:
        assert not fetch(server, data_dir, [SCENE], types=[suffix], is_strict=True).failures
    assert path.read_bytes() == whole


def test_metadata_has_an_alignment_in_train(release_dir: Path) -> None:
    (test_file,) = list_files([(SceneId("scene0707_00"), Split.TEST)], [KINDS[".txt"]])
    (train_file,) = list_files([(SceneId(SCENE), Split.TRAIN)], [KINDS[".txt"]])
    check_file(test_file, release_dir / test_file.local_path)
    with pytest.raises(FileError, match="has no axisAlignment"):
        check_file(train_file, release_dir / test_file.local_path)
