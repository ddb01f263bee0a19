"""Downloads from a server that misbehaves: the folder ends up equal to the release, or the run says what failed."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from commands import digests
from downloads import MESH, PATIENCE, SCENES, fetch, fetched
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from release_server import (
    BEFORE_STATUS,
    Cut,
    Gzip,
    Header,
    IfRangeIgnored,
    NoLength,
    Page,
    RangesIgnored,
    Redirect,
    ReleaseServer,
    Reset,
    Set,
    ShiftedRange,
    Stall,
    Status,
    Trickle,
    TrickledHead,
    WrongLength,
    always,
    at,
    at_random,
    ending,
    other_version,
    scene_url_path,
)

from scannet_prep.raw.lock import read_lock
from scannet_prep.remote.trouble import parse_retry_after
from scannet_prep.stages.download import FileOutcome
from scannet_prep.synthetic import write_release

MESH_PATH = scene_url_path(SCENES[0], MESH)
PASSING = {
    "cut before the status": [Cut(BEFORE_STATUS)],
    "cut at the first byte": [Cut(0)],
    "cut in the middle": [Cut(20_000), Cut(10_000), Cut(1)],
    "reset": [Reset(), Reset(10_000)],
    "silence within the body": [Stall(5_000)],
    "silence before the status": [Stall(BEFORE_STATUS)],
    "trickle of content": [Trickle(0.05, after_bytes=5_000)],
    "trickle of headers": [TrickledHead(0.02)],
    "chunk size without end": [lambda *parts: (NoLength()(*parts), Set(chunk_pause_s=0.02)(*parts))],
    "busy": [Status(503, "1"), Status(429, "Thu, 01 Jan 1970 00:00:00 GMT"), Status(500)],
    "range refused": [Cut(20_000), Status(416)],
    "ranges ignored": [Cut(20_000), RangesIgnored()],
    "shifted range": [Cut(20_000), ShiftedRange(-100), ShiftedRange(100)],
    "length too large": [WrongLength(100)],
    "length too small": [WrongLength(-100)],
    "no length": [NoLength()],
    "body ends with the connection": [NoLength(is_chunked=False)],
    "gzip": [Cut(10_000), Gzip()],
    "page": [Page()],
    "page of plain text": [Page(b"Back soon.\n")],
    "empty page": [Page(b"")],
}


@pytest.fixture(scope="module")
def release_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    release_dir = tmp_path_factory.mktemp("release")
    write_release(release_dir, SCENES, vertices=3_000)
    return release_dir


@pytest.fixture(scope="module")
def expected(release_dir: Path) -> dict[str, str]:
    return digests(release_dir)


@pytest.fixture(autouse=True)
def _no_threads_stay() -> Iterator[None]:
    yield
    assert not [thread.name for thread in threading.enumerate() if thread.name == "download"]


@pytest.mark.parametrize("name", PASSING)
@pytest.mark.parametrize("etag", ["strong", None])
def test_a_fault_that_passes_leaves_no_trace(
    release_dir: Path, expected: dict[str, str], tmp_path: Path, name: str, etag: Any
) -> None:
    with ReleaseServer(release_dir, faults=[at(ending(MESH), *PASSING[name])], etag=etag) as server:
        assert not fetch(server, tmp_path).failures
    assert fetched(tmp_path) == expected
