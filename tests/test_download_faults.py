"""Downloads from a server that misbehaves: the folder ends up equal to the release, or the run says what failed."""

import gc
import os
import random
import shutil
import threading
from collections.abc import Iterator, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from commands import digests
from downloads import MESH, PASSING, PATIENCE, SCENES, fetch, fetched, finished, random_faults
from release_server import (
    Cut,
    Header,
    NoLength,
    Page,
    Redirect,
    ReleaseServer,
    ShiftedRange,
    Stall,
    Status,
    answer_part,
    at,
    ending,
    other_version,
    scene_url_path,
)

from scannet_prep.base.errors import TransferError
from scannet_prep.raw.lock import read_lock
from scannet_prep.release.label_map import LABEL_MAP_NAME
from scannet_prep.release.splits import read_scene_list
from scannet_prep.remote.trouble import FEW_TRIES, MANY_TRIES

MESH_PATH = scene_url_path(SCENES[0], MESH)
SEGMENTS = "_vh_clean_2.0.010000.segs.json"
NAMES = list(PASSING)
DATED = [name for name in PASSING if "range" in name or "cut" in name]


@pytest.fixture(autouse=True)
def _no_threads_stay() -> Iterator[None]:
    yield
    assert not [thread.name for thread in threading.enumerate() if thread.name == "download"]


@pytest.mark.parametrize(
    ("names", "etag"),
    [(NAMES[n : n + 3], "strong") for n in range(0, len(NAMES), 3)]
    + [(DATED[n::2], None) for n in (0, 1)],
)
@pytest.mark.filterwarnings("ignore:unclosed <socket:ResourceWarning")
def test_faults_that_pass_leave_no_trace(
    release_dir: Path, tmp_path: Path, names: Sequence[str], etag: Any
) -> None:
    places = [scene_url_path(scene_id, MESH) for scene_id in SCENES]
    rules = [at(place, *PASSING[name]) for place, name in zip(places, names, strict=False)]
    with ReleaseServer(release_dir, faults=rules, etag=etag) as server:
        assert not fetch(server, tmp_path).failures
    assert fetched(tmp_path) == digests(release_dir)
    # urllib3 does not close an answer with two lengths, `Content-Length: 1, 2`. No later test should meet its socket.
    gc.collect()


@pytest.mark.parametrize(
    ("etag", "second", "ranges"),
    [
        ("strong", None, [None, "bytes=40000-"]),
        ("strong", ShiftedRange(0), [None, "bytes=40000-", None]),
        ("weak", None, [None, None]),
        (None, None, [None, None]),
    ],
)
def test_versions_are_never_mixed(
    server: ReleaseServer, tmp_path: Path, etag: Any, second: Any, ranges: Any
) -> None:
    server.etag, server.has_last_modified = etag, False
    server.faults = [at(MESH_PATH, Cut(40_000), second)]
    # At first, a version that begins and ends alike and has the same size, so that a mixture looks whole.
    server.change = lambda request, content: (
        content[:30_000] + other_version(content[30_000:60_000]) + content[60_000:]
        if request.number == 1
        else content
    )
    assert not fetch(server, tmp_path).failures
    assert [request.range for request in server.requests(MESH_PATH)] == ranges
    assert fetched(tmp_path) == digests(server.root)


def test_a_part_not_asked_for_is_not_added_to_what_a_killed_run_left(
    server: ReleaseServer, tmp_path: Path
) -> None:
    server.etag, server.has_last_modified = None, False
    server.faults = [
        at(
            ending(".txt"),
            lambda answer, request: answer_part(
                answer, request.content or b"", 0, len(answer.body)
            ),
        )
    ]
    left = tmp_path / f"scans/{SCENES[0]}/.{SCENES[0]}.txt.part"
    left.parent.mkdir(parents=True)
    left.write_text("old = 1\n")
    assert not fetch(server, tmp_path).failures
    assert fetched(tmp_path) == digests(server.root)


@pytest.mark.parametrize(
    "fault", [Status(404), Page(), Page(b""), Page(b" \n<?xml version='1.0'?><Error/>")]
)
def test_what_has_arrived_is_kept_for_the_next_run(
    server: ReleaseServer, tmp_path: Path, fault: Any
) -> None:
    server.faults = [at(MESH_PATH, Cut(20_000), Cut(10_000), then=fault)]
    (failure,) = fetch(server, tmp_path).failures
    assert "no such file" in failure.message or "in place of the file" in failure.message
    assert not any(path.name == MESH_PATH.rpartition("/")[2] for path in tmp_path.rglob("scene*"))
    server.faults = []
    assert not fetch(server, tmp_path).failures
    assert server.bytes_sent_again(MESH_PATH) == 0
    assert fetched(tmp_path) == digests(server.root)


@pytest.mark.parametrize(
    ("fault", "jobs", "suffix", "tries"),
    [
        (Status(404), 1, ".txt", 1),
        (Status(403), 4, ".aggregation.json", 1),
        (Status(503), 1, LABEL_MAP_NAME, MANY_TRIES),  # the first file: that is no outage
        (Status(503), 4, MESH, MANY_TRIES),
        (Cut(), 4, MESH, MANY_TRIES),
        (Cut(0), 1, MESH, PATIENCE.tries),
        (Page(), 4, MESH, FEW_TRIES),
        (Stall(), 4, MESH, FEW_TRIES),
    ],
)
def test_files_that_always_fail_cost_their_tries_and_stop_no_other(
    server: ReleaseServer, tmp_path: Path, fault: Any, jobs: int, suffix: str, tries: int
) -> None:
    server.faults = [at(ending(suffix), then=fault)]
    report = fetch(server, tmp_path, jobs=jobs)
    assert {item.file.kind.suffix for item in report.failures} == {suffix}
    for item in report.failures:
        assert len(server.requests(item.file.url.removeprefix(server.origin))) <= tries
    assert fetched(tmp_path).keys() == {
        name for name in digests(server.root) if not name.endswith(suffix)
    }
    failed = {item.file.scene_id for item in report.failures} - {None}
    assert not failed or set((tmp_path / "failed.txt").read_text().split()) >= failed


def test_a_scene_stays_in_the_list_of_failures_until_a_run_completes_it(
    server: ReleaseServer, tmp_path: Path
) -> None:
    server.faults = [at(ending(".txt"), then=Status(404))]
    ((text, _),) = fetch(server, tmp_path).describe_failures()
    assert text.startswith(
        "failed: 3 files: the server has no such file (404); for example http://"
    )
    server.faults = []
    for scene_id in SCENES:
        assert scene_id in read_scene_list(tmp_path / "failed.txt")
        fetch(server, tmp_path, [scene_id])
    assert not (tmp_path / "failed.txt").exists()


def test_failures_stop_no_other_scene(server: ReleaseServer, tmp_path: Path) -> None:
    server.faults = [at(ending(".txt"), then=Status(503))]
    assert [item.file.kind.suffix for item in fetch(server, tmp_path, jobs=1).failures] == [
        ".txt"
    ] * len(SCENES)


EVER_EARLIER = (80_000, 50_000, 79_000, 60_000, 70_000, 78_500, 55_000, 65_000)


@pytest.mark.parametrize("sizes", [(1,), (15_000,), (20_000,), EVER_EARLIER])
def test_a_connection_that_brings_too_little_has_failed(
    server: ReleaseServer, tmp_path: Path, sizes: Any
) -> None:
    server.faults = [at(MESH_PATH, *map(Cut, sizes * 24))]
    if sizes is EVER_EARLIER:
        server.etag, server.has_last_modified = None, False
    report, is_enough = fetch(server, tmp_path), sizes == (20_000,)
    assert [item.file.kind.suffix for item in report.failures] == ([] if is_enough else [MESH])
    assert (
        is_enough
        or f"{PATIENCE.tries} attempts failed, the last one: " in report.failures[0].message
    )
    assert len(server.requests(MESH_PATH)) <= PATIENCE.tries + (2 if sizes is EVER_EARLIER else 3)
    assert sizes is EVER_EARLIER or server.bytes_sent_again(MESH_PATH) == 0


def test_pipes_folders_and_links_in_the_way_cost_at_most_their_files(
    server: ReleaseServer, tmp_path: Path
) -> None:
    folder, outside = tmp_path / "data/scans" / SCENES[0], tmp_path / "outside"
    folder.mkdir(parents=True)
    outside.write_text("somebody's")
    os.mkfifo(folder / f"{SCENES[0]}.txt")
    (folder / f"{SCENES[0]}.aggregation.json").mkdir()
    (folder / f"{SCENES[0]}{SEGMENTS}").symlink_to("/nowhere")
    scene_id = SCENES[1]  # whose partial files can be replaced
    other = tmp_path / "data/scans" / scene_id
    other.mkdir()
    os.mkfifo(other / f".{scene_id}.txt.part")
    os.mkfifo(other / f".{scene_id}.aggregation.json.part.version")
    (other / f".{scene_id}{MESH}.part").symlink_to(outside)
    report = fetch(server, tmp_path / "data")
    assert {item.file.kind.suffix: item.reason for item in report.failures} == {
        ".txt": "is a named pipe, expected a file",
        ".aggregation.json": "is a folder, expected a file",
        SEGMENTS: "is a link that leads nowhere",
    }
    assert (len(fetched(other)), outside.read_text()) == (5, "somebody's")


def test_redirections_are_followed_unless_they_lead_nowhere(
    release_dir: Path, tmp_path: Path
) -> None:
    with ReleaseServer(release_dir) as mirror, ReleaseServer(release_dir) as dead:
        dead.stop()
        places = {
            ".txt": mirror.origin, ".aggregation.json": "", "_vh_clean_2.labels.ply": dead.origin,
            MESH: "file:///etc", SEGMENTS: "http://[::1",
        }  # fmt: skip
        rules = [
            at(ending(suffix), then=Redirect(origin=origin)) for suffix, origin in places.items()
        ]
        with ReleaseServer(release_dir, faults=rules) as server:
            report = fetch(server, tmp_path)
            assert len(server.requests(MESH_PATH)) <= 3
    reasons = {item.file.kind.suffix: item.reason for item in report.failures}
    nowhere = "is redirected to an address that cannot be used"
    assert reasons.pop("_vh_clean_2.labels.ply").endswith("127.0.0.1 refuses the connection")
    assert reasons == {
        ".aggregation.json": "is redirected in a circle",
        MESH: nowhere,
        SEGMENTS: nowhere,
    }


def test_a_body_larger_than_any_file_of_its_kind_is_broken_off(
    server: ReleaseServer, tmp_path: Path
) -> None:
    paths = [scene_url_path(scene_id, ".txt") for scene_id in SCENES[:2]]
    server.files |= dict.fromkeys(paths, b"key = value\n" * 1_000_000)
    server.faults = [at(paths[0], then=NoLength())]
    report = fetch(server, tmp_path)
    assert [scene_url_path(item.file.scene_id, ".txt") for item in report.failures] == paths
    assert all(
        "no file of this kind has more than 1.0 MB" in item.message for item in report.failures
    )
    assert report.received_bytes < 10_000_000


def test_a_length_beyond_the_disk_fails(
    server: ReleaseServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        shutil, "disk_usage", lambda _: SimpleNamespace(total=1 << 40, free=300_000_000)
    )
    server.faults = [at(MESH_PATH, then=Header("Content-Length", "350000000"))]
    report = fetch(server, tmp_path)
    assert [item.file.kind.suffix for item in report.failures] == [MESH]
    assert "has 350.0 MB, but only 300.0 MB is free on the disk" in report.failures[0].message


@pytest.mark.parametrize("seed", range(6))
def test_whatever_goes_wrong_the_folder_equals_the_release(
    server: ReleaseServer, tmp_path: Path, seed: int
) -> None:
    expected, dice = digests(server.root), random.Random(seed)
    server.faults, server.etag = (
        [at(None, *random_faults(dice, 5))],
        dice.choice(["strong", "weak", None]),
    )
    for _ in range(7):
        try:
            report = fetch(server, tmp_path)
        except TransferError as error:  # nothing but refusals at first
            assert "gives none of the first files" in str(error)  # noqa: PT017 - may also succeed
            continue
        assert finished(tmp_path).items() <= expected.items()
        if not report.failures:
            break
    assert fetched(tmp_path) == expected
    assert {
        name: entry.sha256 for name, entry in read_lock(tmp_path / "scannet.lock").items()
    } == expected
