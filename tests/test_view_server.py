"""`view --serve`: pages of a whole place, for browsers on this machine only."""

import http.client
import json
import re
import signal
import socket
import struct
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from urllib.parse import quote

import pytest
from commands import SCENES, TRAIN, VAL, run_main, start_command

from scannet_prep.stages.serve import SceneServer
from scannet_prep.stages.view import Viewing, open_scenes
from scannet_prep.view.coloring import ViewedScene

Get = Callable[..., tuple[int, bytes]]


@pytest.fixture(scope="module")
def port(whole_dir: Path) -> Iterator[int]:
    process = start_command("view", "--serve", "0", "--source", whole_dir / "processed", "--json")
    yield json.loads(process.stdout.readline())["port"]
    process.send_signal(signal.SIGINT)
    assert process.communicate(timeout=30) == ("", "")
    assert process.returncode == 0


@pytest.fixture
def get(port: int) -> Get:
    def get(
        path: str, method: str = "GET", host: str | None = "localhost:1234", **headers: str
    ) -> tuple[int, bytes]:
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
        connection.putrequest(method, path, skip_host=True)
        for name, value in (({"Host": host} if host is not None else {}) | headers).items():
            connection.putheader(name, value)
        connection.endheaders()
        answer = connection.getresponse()
        return answer.status, answer.read()

    return get


def names(page: bytes) -> list[str]:
    return re.findall(r'<a href="/scene/([^"]+)">', page.decode())


def test_list_has_all_scenes_and_their_pictures(get: Get) -> None:
    status, page = get("/")
    assert (status, names(page)) == (200, list(SCENES))
    for name in SCENES:
        status, picture = get(f"/thumbnail/{name}")
        assert status == 200
        assert picture.startswith(b"\x89PNG")
        assert get(f"/thumbnail/{name}")[1] == picture


def test_list_is_filtered_by_split_and_class(get: Get) -> None:
    assert names(get("/?split=val")[1]) == [VAL]
    assert names(get("/?split=&class=")[1]) == list(SCENES)
    assert names(get("/?class=ScanNet20:+wall")[1]) == [TRAIN, VAL]
    assert names(get("/?class=ScanNet200:+wall&split=train")[1]) == [TRAIN]
    status, page = get("/?class=ScanNet20:+unicorn")
    assert (status, names(page)) == (200, [])
    assert b"No scene matches both filters" in page


def test_nothing_of_what_was_asked_for_becomes_markup(get: Get) -> None:
    evil = quote('"><script>alert(1)</script>')
    assert b"<script" not in get(f"/?class={evil}&split={evil}")[1]


def test_page_of_a_scene_leads_back_to_the_list(get: Get) -> None:
    status, page = get(f"/scene/{VAL}")
    assert status == 200
    assert b'"home":"/"' in page
    assert f'"name":"{VAL}"'.encode() in page


@pytest.mark.parametrize(
    "path",
    ["/scene/scene0999_00", "/scene/", f"/pages/{VAL}", f"/scene/{VAL}/", "/../../etc/passwd",
     "/scene/../../etc/passwd", "/scene/%2e%2e/%2e%2e/etc/passwd", "//etc/passwd", f"/thumbnail/{VAL}.png",
     "/thumbnail/..", "/%00", "http://[/", "http://evil.example/"],
)  # fmt: skip
def test_nothing_but_the_list_and_its_scenes_is_served(get: Get, path: str) -> None:
    assert get(path)[0] == 404


@pytest.mark.parametrize(
    "host",
    ["evil.example", "evil.example:8808", "127.0.0.1.evil.example", "localhost.evil", "", None],
)
def test_other_names_of_this_machine_are_refused(get: Get, host: str | None) -> None:
    status, answer = get("/", host=host)
    assert status == 421
    assert b"scene" not in answer


@pytest.mark.parametrize(
    "host", ["127.0.0.1", "localhost", "LOCALHOST:80", "[::1]:8808", "127.0.0.1:9"]
)
def test_this_machine_by_any_port_is_answered(get: Get, host: str) -> None:
    assert get("/", host=host)[0] == 200


@pytest.mark.parametrize(
    "method", ["HEAD", "POST", "PUT", "DELETE", "OPTIONS", "CONNECT", "NONSENSE"]
)
def test_only_reading_is_allowed(get: Get, method: str) -> None:
    assert get("/", method)[0] == 405


def test_browser_that_goes_away_is_no_reason_to_print(port: int) -> None:
    for request in (b"", f"GET /scene/{VAL} HTTP/1.0\r\nHost: localhost\r\n\r\n".encode()):
        with socket.create_connection(("127.0.0.1", port)) as browser:
            browser.sendall(request)
            browser.setsockopt(
                socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0)
            )  # reset, not closed
    time.sleep(0.3)  # the fixture `port` looks at what was printed


def test_page_that_is_asked_for_many_times_at_once_is_made_once(whole_dir: Path) -> None:
    asked = []

    class Slow(Viewing):
        def load(self, scene_id: str) -> ViewedScene:
            asked.append(scene_id)
            time.sleep(0.1)
            return super().load(scene_id)

    seen = open_scenes([VAL], whole_dir / "processed")
    viewing = Slow(seen.place, seen.scene_ids, None, "", seen.label_set)
    with SceneServer(viewing, 0) as server, ThreadPoolExecutor(8) as pool:
        for kind in ("scene", "thumbnail"):
            assert len(set(pool.map(server.make, [kind] * 8, [VAL] * 8))) == 1
    assert asked == [VAL]  # its page and its picture


def test_only_this_machine_can_connect(port: int) -> None:
    with socket.socket() as other, pytest.raises(OSError, match=r"refused|unreachable"):
        other.connect(("127.0.0.2", port))


def test_damaged_scene_is_told_and_the_others_are_shown(out_dir: Path) -> None:
    path = out_dir / "val" / f"{VAL}.npz"
    path.write_bytes(path.read_bytes()[:1000])
    process = start_command("view", "--serve", "0", "--source", out_dir)
    try:
        told = "".join(process.stdout.readline() for _ in range(4))
        port = int(re.search(r"http://127\.0\.0\.1:(\d+)/", told)[1])
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
        found = {}
        for name in (VAL, TRAIN):
            connection.request("GET", f"/scene/{name}")
            answer = connection.getresponse()
            found[name] = answer.status, answer.read()
        assert f"\n  ssh -L {port}:127.0.0.1:{port} " in told
    finally:
        process.send_signal(signal.SIGINT)
        process.communicate(timeout=30)
    assert found[TRAIN][0] == 200
    assert found[VAL][0] == 500
    assert str(path).encode() in found[VAL][1]
    assert process.returncode == 0


def test_port_that_is_taken_is_told_with_what_to_type(whole_dir: Path, port: int) -> None:
    done = run_main("view", "--serve", str(port), "--source", whole_dir / "processed")
    assert done.status == 2
    assert f"port {port} cannot be used: Address already in use" in done.stderr
    assert "to use any free port: --serve 0" in done.stderr


@pytest.mark.parametrize(
    ("words", "problem"),
    [
        (["--serve", "70000"], "is not a port"),
        (["--serve", "-o", "page.html"], "--serve writes no file"),
        (["--serve", "--png"], "not allowed with argument"),
        (["--serve", "--size", "800x600"], "--serve writes no file"),
        (["--serve", "--source", "nowhere"], "nowhere"),
        (["scene0999_00", "--serve"], "has no scene scene0999_00"),
    ],
)
def test_what_cannot_be_served_is_an_error(whole_dir: Path, words: list[str], problem: str) -> None:
    done = run_main(
        "view", *words, *([] if "--source" in words else ["--source", whole_dir / "processed"])
    )
    assert done.status in {1, 2}
    assert problem in done.stderr
