"""Streams are fetched one by one, and removed when their frames are complete, never before."""

import os
import shutil
import signal
import threading
import time

import pytest
from commands import TEST, TRAIN, VAL, digests, fail, raw_file, run_main, start_command, succeed
from release_server import ReleaseServer, Status, at, ending

from scannet_prep.frames import FrameFolder
from scannet_prep.frames.folder import find_scenes
from scannet_prep.stages.download import fetch as download_fetch
from scannet_prep.synthetic import write_release

SCENES = [TRAIN, VAL, TEST]


@pytest.fixture(scope="module")
def release(tmp_path_factory):
    """A release of three scenes, and a server for it."""
    raw_dir = tmp_path_factory.mktemp("release") / "raw"
    write_release(raw_dir, SCENES, vertices=600, frames=4)
    with ReleaseServer(raw_dir) as server:
        yield raw_dir, server


@pytest.fixture
def own_dir(tmp_path):
    """A raw tree of somebody who has accepted the terms."""
    (tmp_path / "own").mkdir()
    (tmp_path / "own/terms_accepted.txt").write_text("yes")
    return tmp_path / "own"


def words_of(release, own_dir, out_dir, *words):
    options = ("--every", "1", "--fetch", release[1].base_url, "--scenes", *SCENES)
    return ("frames", own_dir, "-o", out_dir, *options, *words)


def fetch(release, own_dir, out_dir, *words):
    return run_main(*words_of(release, own_dir, out_dir, *words), "--json")


@pytest.mark.parametrize("words", [(), ("--layout", "colmap"), ("--with", "color", "labels")])
def test_fetched_streams_leave_the_frames_of_streams_that_are_there(
    release, own_dir, tmp_path, words
):
    raw_dir, _ = release
    own_stream = raw_file(own_dir, ".sens")
    own_stream.parent.mkdir(parents=True)
    own_stream.write_bytes(b"mine")

    outcome = fetch(release, own_dir, tmp_path / "out", *words)

    assert (outcome.status, sorted(outcome.json["made"])) == (0, SCENES), outcome.stderr
    expected = tmp_path / "expected"
    run_main("frames", raw_dir, "-o", expected, "--every", "1", *words)
    assert digests(tmp_path / "out") == digests(expected)
    # The hidden folder of streams is gone, and other streams are neither read nor removed.
    assert sorted(path.name for path in (tmp_path / "out").iterdir()) == ["TERMS.txt", *SCENES]
    assert own_stream.read_bytes() == b"mine"
    again = fetch(release, own_dir, tmp_path / "out", *words)
    assert again.json["made"] == []
    assert again.json["kept"] == SCENES


def test_fetching_needs_accepted_terms(release, tmp_path):
    fail(2, "have not been accepted", release, tmp_path / "nobody", tmp_path / "out", run=fetch)
    assert not (tmp_path / "out").exists()


def test_mirror_of_the_environment_is_fetched_from(release, own_dir, tmp_path, monkeypatch):
    monkeypatch.setenv("SCANNET_PREP_BASE_URL", release[1].base_url)
    words = ("frames", own_dir, "-o", tmp_path / "out", "--scenes", VAL, "--fetch", "--json")
    assert run_main(*words).json["made"] == [VAL]


def test_stream_stays_until_its_frames_are_complete(release, own_dir, tmp_path):
    _, server = release
    out_dir = tmp_path / "out"
    (out_dir / VAL).mkdir(parents=True)  # it is in the way of the frames
    server.faults = [at(ending(f"{TRAIN}.sens"), then=Status(404))]
    outcome = fetch(release, own_dir, out_dir)
    server.faults = []

    assert outcome.status == 3
    assert outcome.json["made"] == [TEST]
    refused, in_the_way = outcome.json["failures"]
    assert "404" in refused["message"]
    assert in_the_way["message"] == "is in the way"
    stream = out_dir / f".scannet-prep-streams/{VAL}/scans/{VAL}/{VAL}.sens"
    # Frames of another folder do not need it, but those that it was fetched for do.
    succeed("frames", stream.parents[1], "-o", tmp_path / "other")
    assert stream.read_bytes() == raw_file(release[0], ".sens", VAL).read_bytes()

    (out_dir / VAL).rmdir()
    before = len(server.requests())
    assert fetch(release, own_dir, out_dir).json["made"] == [TRAIN, VAL]
    assert not [request for request in server.requests()[before:] if VAL in request.path]
    assert not stream.exists()


def test_stream_stays_if_the_frames_have_not_their_sizes(release, own_dir, tmp_path, monkeypatch):
    out_dir = tmp_path / "out"
    stream = out_dir / f".scannet-prep-streams/{TRAIN}/scans/{TRAIN}/{TRAIN}.sens"
    with monkeypatch.context() as patch:
        patch.setattr("scannet_prep.frames.folder.have_sizes", lambda *_: False)
        assert fetch(release, own_dir, out_dir).json["made"] == SCENES
    assert stream.exists()

    assert fetch(release, own_dir, out_dir).json["kept"] == SCENES
    assert not stream.exists()


def test_outage_ends_the_run_at_its_start_and_is_waited_for_later(
    release, own_dir, tmp_path, monkeypatch
):
    _, server = release
    monkeypatch.setattr(download_fetch, "_FIRST_ANSWER_S", 0.3)
    out_dir = tmp_path / "out"
    # It has folders for the scenes of each split.
    words = (release, own_dir, out_dir, "--layout", "concerto", "--with", "color")
    for status, scenes in ((503, ()), (404, (TRAIN,))):
        server.faults = [at(None, then=Status(status))]
        outcome = fetch(*words)
        assert outcome.status == 1
        assert "no file was served" in outcome.json["message"]
        assert tuple(find_scenes(out_dir)) == scenes
        server.faults = []
        fetch(*words, "--limit", "1")

    monkeypatch.undo()
    shutil.copytree(out_dir / "train" / TRAIN, out_dir / "train/room")
    server.faults = [at(None, then=Status(404))]
    threading.Timer(2, server.faults.clear).start()
    assert fetch(*words).json["made"] == [VAL, TEST]


def test_stream_that_alone_does_not_come_fails_alone(release, own_dir, tmp_path, monkeypatch):
    """A mirror may lack the metadata, which are not needed."""
    _, server = release
    monkeypatch.setattr(download_fetch, "_FIRST_PAUSE_S", 1e-4)
    server.faults = [
        at(ending(f"{TRAIN}.sens"), then=Status(503)),
        at(ending(f"{VAL}.txt"), then=Status(404)),
    ]
    outcome = fetch(release, own_dir, tmp_path / "out")
    server.faults = []
    assert outcome.status == 3
    assert outcome.json["made"] == [VAL, TEST]
    assert outcome.json["failures"][0]["error"] == "TransferError"


def test_killed_run_continues_and_keeps_what_it_has(release, own_dir, tmp_path):
    out_dir = tmp_path / "out"
    for delay_s in (0.3, 0.6, 0.9):
        run = start_command(*words_of(release, own_dir, out_dir, "--jobs", "2"))
        time.sleep(delay_s)
        os.killpg(run.pid, signal.SIGKILL)
        run.communicate(timeout=120)
        for path in out_dir.glob("*/frames.json"):
            assert FrameFolder(out_dir)[path.parent.name].record.files
    assert fetch(release, own_dir, out_dir).status == 0
    expected = tmp_path / "expected"
    run_main("frames", release[0], "-o", expected, "--every", "1")
    assert digests(out_dir) == digests(expected)
