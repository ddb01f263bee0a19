"""Tests of `view --serve`: pages of all scenes, for browsers on this machine only.

`test_view_list.py` tests the list of scenes in a browser."""

from __future__ import annotations

import contextlib
import http.client
import json
import re
import shutil
import signal
import socket
import struct
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import NamedTuple
from urllib.parse import quote

import numpy as np
import pytest
from commands import SCENES, TRAIN, VAL, run_main, start_command

from scannet_prep import read_processed
from scannet_prep.stages.serve import SceneServer
from scannet_prep.stages.viewing import Viewing, open_scenes
from scannet_prep.view.coloring import ViewedScene


class Answer(NamedTuple):
    status: int
    content: bytes


Get = Callable[..., Answer]


class Serving(NamedTuple):
    """A running server."""

    pid: int
    port: int


@pytest.fixture(scope="module")
def serving(whole_dir: Path) -> Iterator[Serving]:
    """A server, which must print nothing but its port until it is interrupted."""
    process = start_command("view", "--serve", "0", "--source", whole_dir / "processed", "--json")
    yield Serving(process.pid, json.loads(process.stdout.readline())["port"])
    process.send_signal(signal.SIGINT)
    assert process.communicate(timeout=30) == ("", "")
    assert process.returncode == 0


@pytest.fixture(scope="module")
def port(serving: Serving) -> int:
    return serving.port


@pytest.fixture
def get(port: int) -> Get:
    """A function that sends a request to the server."""

    def get(path: str, method: str = "GET", host: str | None = "localhost:1234") -> Answer:
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
        connection.putrequest(method, path, skip_host=True)
        if host is not None:
            connection.putheader("Host", host)
        connection.endheaders()
        response = connection.getresponse()
        return Answer(response.status, response.read())

    return get


# The list of scenes.


def test_list_describes_all_scenes(get: Get) -> None:
    answer = get("/scenes")

    assert answer.status == 200
    assert [scene["id"] for scene in json.loads(answer.content)["scenes"]] == list(SCENES)


def test_list_counts_the_classes_of_its_label_set(get: Get, whole_dir: Path) -> None:
    scene = read_processed(whole_dir / f"processed/val/{VAL}.npz")
    count = len(np.unique(scene.labels[scene.labels >= 0]))

    (described,) = [row for row in json.loads(get("/scenes").content)["scenes"] if row["id"] == VAL]

    assert described["classCount"] == count


def test_labeled_share_is_missing_for_test_scenes_only(get: Get) -> None:
    scenes = json.loads(get("/scenes").content)["scenes"]
    is_missing = {scene["split"]: scene["labeled"] is None for scene in scenes}

    assert is_missing == {"train": False, "val": False, "test": True}


def test_server_without_predictions_has_no_scores(get: Get) -> None:
    assert get("/scores").status == 404


@pytest.mark.parametrize("scene_id", SCENES)
def test_thumbnail_of_a_scene_is_a_png(get: Get, scene_id: str) -> None:
    answer = get(f"/thumbnail/{scene_id}")

    assert answer.status == 200
    assert answer.content.startswith(b"\x89PNG")


@pytest.mark.parametrize("scene_id", SCENES)
def test_thumbnail_of_a_scene_is_always_the_same(get: Get, scene_id: str) -> None:
    assert get(f"/thumbnail/{scene_id}") == get(f"/thumbnail/{scene_id}")


@pytest.mark.parametrize("path", ["/", "/scenes"])
def test_query_does_not_change_the_answer(get: Get, path: str) -> None:
    markup = quote('"><script>alert(1)</script>')
    assert get(f"{path}?class={markup}&split={markup}") == get(path)


# The page of a scene.


def test_page_of_a_scene_contains_the_scene(get: Get) -> None:
    answer = get(f"/scene/{VAL}")

    assert answer.status == 200
    assert f'"name":"{VAL}"'.encode() in answer.content


def test_scene_is_read_once_for_many_simultaneous_requests(whole_dir: Path) -> None:
    loaded = []

    class SlowViewing(Viewing):
        def load(self, scene_id: str) -> ViewedScene:
            loaded.append(scene_id)
            time.sleep(0.1)
            return super().load(scene_id)

    viewing = open_scenes([VAL], whole_dir / "processed")
    slow_viewing = SlowViewing(
        place=viewing.place,
        scene_ids=viewing.scene_ids,
        predictions=None,
        color="",
        label_set=viewing.label_set,
    )
    with SceneServer(slow_viewing, port=0) as server, ThreadPoolExecutor(8) as pool:
        for kind in ("scene", "thumbnail"):
            contents = set(pool.map(server.make, [kind] * 8, [VAL] * 8))
            assert len(contents) == 1
    assert loaded == [VAL]


def test_page_does_not_wait_for_a_picture_that_takes_long(whole_dir: Path) -> None:
    must_end = threading.Event()
    has_begun = threading.Event()

    class StuckViewing(Viewing):
        def load(self, scene_id: str) -> ViewedScene:
            if scene_id == TRAIN:
                has_begun.set()
                must_end.wait(60)
            return super().load(scene_id)

    viewing = open_scenes([TRAIN, VAL], whole_dir / "processed")
    stuck_viewing = StuckViewing(
        place=viewing.place,
        scene_ids=viewing.scene_ids,
        predictions=None,
        color="",
        label_set=viewing.label_set,
    )
    with SceneServer(stuck_viewing, port=0) as server, ThreadPoolExecutor(2) as pool:
        picture = pool.submit(server.make, "thumbnail", TRAIN)
        has_begun.wait(60)
        page = pool.submit(server.make, "scene", VAL)

        try:
            assert VAL.encode() in page.result(timeout=20)
            assert not picture.done()
        finally:
            must_end.set()


# Requests that are refused.


@pytest.mark.parametrize(
    "path",
    [
        "/scene/scene0999_00",
        "/scenes/",
        f"/scenes/{VAL}",
        "/scene/",
        f"/pages/{VAL}",
        f"/scene/{VAL}/",
        "/../../etc/passwd",
        "/scene/../../etc/passwd",
        "/scene/%2e%2e/%2e%2e/etc/passwd",
        "//etc/passwd",
        f"/thumbnail/{VAL}.png",
        "/thumbnail/..",
        "/%00",
        "http://[/",
        "http://evil.example/",
    ],
)
def test_path_of_nothing_that_is_served_is_not_found(get: Get, path: str) -> None:
    assert get(path).status == 404


@pytest.mark.parametrize(
    "host",
    ["evil.example", "evil.example:8808", "127.0.0.1.evil.example", "localhost.evil", "", None],
)
def test_request_for_another_host_is_refused(get: Get, host: str | None) -> None:
    answer = get("/", host=host)

    assert answer.status == 421
    assert b"scene" not in answer.content


@pytest.mark.parametrize(
    "host", ["127.0.0.1", "localhost", "LOCALHOST:80", "[::1]:8808", "127.0.0.1:9"]
)
def test_request_for_this_machine_with_any_port_is_answered(get: Get, host: str) -> None:
    assert get("/", host=host).status == 200


@pytest.mark.parametrize(
    "method", ["HEAD", "POST", "PUT", "DELETE", "OPTIONS", "CONNECT", "NONSENSE"]
)
def test_other_method_than_get_is_refused(get: Get, method: str) -> None:
    assert get("/", method).status == 405


def test_other_machines_cannot_connect(port: int) -> None:
    with socket.socket() as other, pytest.raises(OSError, match=r"refused|unreachable"):
        other.connect(("127.0.0.2", port))


@pytest.mark.parametrize(
    "request_bytes",
    [b"", f"GET /scene/{VAL} HTTP/1.0\r\nHost: localhost\r\n\r\n".encode()],
    ids=["before the request", "before the answer"],
)
def test_connection_reset_by_the_browser_prints_nothing(
    get: Get, serving: Serving, request_bytes: bytes
) -> None:
    before = count_sockets(serving.pid)

    with socket.create_connection(("127.0.0.1", serving.port)) as browser:
        browser.sendall(request_bytes)
        # Without lingering, closing resets the connection.
        browser.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))

    # The server accepts connections in order, and closes each after it has printed any error. The
    # fixture `serving` checks that nothing was printed.
    get("/")
    deadline = time.monotonic() + 20
    while count_sockets(serving.pid) > before:
        assert time.monotonic() < deadline, "the connection stays open"
        time.sleep(0.01)


def count_sockets(pid: int) -> int:
    """Count the open sockets of a process, each of which may be closed meanwhile."""
    count = 0
    for link in Path(f"/proc/{pid}/fd").iterdir():
        with contextlib.suppress(FileNotFoundError):
            count += str(link.readlink()).startswith("socket:")
    return count


# A folder with a damaged scene.


class DamagedRun(NamedTuple):
    """A server of a folder with a damaged scene, after requests for two scenes.

    Attributes:
        path: The damaged file.
        port: The port.
        text: The text that the command printed.
        damaged: The answer for the damaged scene.
        intact: The answer for an intact scene.
        status: Exit status of the command.
    """

    path: Path
    port: int
    text: str
    damaged: Answer
    intact: Answer
    status: int


@pytest.fixture(scope="module")
def damaged_run(whole_dir: Path, tmp_path_factory: pytest.TempPathFactory) -> DamagedRun:
    out_dir = tmp_path_factory.mktemp("damaged") / "processed"
    shutil.copytree(whole_dir / "processed", out_dir)
    path = out_dir / "val" / f"{VAL}.npz"
    path.write_bytes(path.read_bytes()[:1000])
    process = start_command("view", "--serve", "0", "--source", out_dir)
    answers = []
    try:
        text = "".join(process.stdout.readline() for _ in range(4))
        match = re.search(r"http://127\.0\.0\.1:(\d+)/", text)
        assert match is not None
        port = int(match[1])
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
        for scene_id in (VAL, TRAIN):
            connection.request("GET", f"/scene/{scene_id}")
            response = connection.getresponse()
            answers.append(Answer(response.status, response.read()))
    finally:
        process.send_signal(signal.SIGINT)
        process.communicate(timeout=30)
    return DamagedRun(path, port, text, *answers, status=process.returncode)


def test_page_of_a_damaged_scene_is_an_error_that_names_the_file(
    damaged_run: DamagedRun,
) -> None:
    assert damaged_run.damaged.status == 500
    assert str(damaged_run.path).encode() in damaged_run.damaged.content


def test_other_scenes_are_shown_beside_a_damaged_one(damaged_run: DamagedRun) -> None:
    assert damaged_run.intact.status == 200


def test_interrupted_server_has_exit_status_0(damaged_run: DamagedRun) -> None:
    assert damaged_run.status == 0


def test_server_prints_the_ssh_command_for_a_tunnel(damaged_run: DamagedRun) -> None:
    port = damaged_run.port
    assert f"\n  ssh -L {port}:127.0.0.1:{port} " in damaged_run.text


# Wrong usage.


def test_port_in_use_is_refused_with_the_option_for_a_free_one(whole_dir: Path, port: int) -> None:
    outcome = run_main("view", "--serve", str(port), "--source", whole_dir / "processed")

    assert outcome.status == 2
    assert f"port {port} cannot be used: Address already in use" in outcome.stderr
    assert "to use any free port: --serve 0" in outcome.stderr


@pytest.mark.parametrize(
    ("words", "status", "problem"),
    [
        (["--serve", "70000"], 2, "is not a port"),
        (["--serve", "-o", "page.html"], 2, "--serve writes no file"),
        (["--serve", "--png"], 2, "not allowed with argument"),
        (["--serve", "--size", "800x600"], 2, "--serve writes no file"),
        (["--serve", "--source", "nowhere"], 1, "nowhere"),
        (["scene0999_00", "--serve"], 2, "has no scene scene0999_00"),
    ],
    ids=["port", "output", "picture", "size", "source", "scene"],
)
def test_wrong_arguments_of_serve_are_refused(
    whole_dir: Path, words: list[str], status: int, problem: str
) -> None:
    source = [] if "--source" in words else ["--source", whole_dir / "processed"]
    outcome = run_main("view", *words, *source)

    assert outcome.status == status
    assert problem in outcome.stderr
