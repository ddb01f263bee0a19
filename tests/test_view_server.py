"""Tests of `view --serve`: pages of all scenes, for browsers on this machine only."""

import http.client
import re
import signal
import socket
import struct
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import partial

import pytest
from commands import SCENES, TEST, TRAIN, VAL, fail, start_command

from scannet_prep.errors import FileError
from scannet_prep.stages.view import open_scenes
from scannet_prep.view.server import SceneServer

NAMED = [VAL, TRAIN, TEST]


@pytest.fixture(scope="module")
def serving(whole_dir):
    """The port of a server of named scenes, which prints nothing else until it is interrupted."""
    words = ("view", *NAMED, "--serve", "0", "--source", whole_dir / "processed")
    process = start_command(*words)
    text = "".join(process.stdout.readline() for _ in range(4))
    port = int(re.search(r"http://127\.0\.0\.1:(\d+)/", text)[1])
    assert f"\n  ssh -L {port}:127.0.0.1:{port} " in text
    yield port
    process.send_signal(signal.SIGINT)
    assert process.communicate(timeout=120) == ("", "")
    assert process.returncode == 0


@pytest.fixture
def get(serving):
    return partial(request, serving)


def connect(port):
    return socket.create_connection(("127.0.0.1", port))


def request(port, path, method="GET", host="localhost:1234"):
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
    connection.putrequest(method, path, skip_host=True)
    if host is not None:
        connection.putheader("Host", host)
    connection.endheaders()
    response = connection.getresponse()
    return response.status, response.read(), dict(response.getheaders())


def test_list_links_to_the_pages_and_pictures_of_the_scenes_in_their_order(get, whole_dir):
    status, content, headers = get("/?unknown=query")

    text = content.decode()
    assert status == 200
    assert re.findall(r'href="/scene/(.*?)"', text) == NAMED
    assert re.findall(r'loading="lazy" src="/thumbnail/(.*?).png"', text) == NAMED
    assert headers["X-Content-Type-Options"] == "nosniff"
    for name in NAMED:
        status, content, headers = get(f"/thumbnail/{name}.png")
        assert status == 200
        assert headers["Content-Type"] == "image/png"
        assert content.startswith(b"\x89PNG")
        assert f'"name":"{name}"'.encode() in get(f"/scene/{name}")[1]
    # Unless some are named, all are shown.
    assert open_scenes((), whole_dir / "processed", takes_all=True).scene_ids == SCENES


def test_path_of_nothing_that_is_served_is_not_found(get):
    unknown = f"/scene/scene0999_00 /pages/{VAL} /scene/{VAL}/ /scene/../../etc/passwd http://[/"
    for path in unknown.split():
        assert get(path)[0] == 404, path


def test_request_for_another_host_is_refused(get):
    for host in ("evil.example", "evil.example:80", "127.0.0.1.evil.example", "", None):
        assert get("/", host=host)[0] == 421, host
        assert get("/", "HEAD", host=host)[0] == 421
    for host in ("127.0.0.1", "LOCALHOST:80", "[::1]:8808"):
        assert get("/", host=host)[0] == 200, host


def test_head_has_no_content_and_other_methods_are_refused(get, serving):
    status, _, headers = get("/", "HEAD")
    assert status == 200
    assert int(headers["Content-Length"]) == len(get("/")[1])
    with connect(serving) as client:
        client.sendall(b"HEAD / HTTP/1.0\r\nHost: localhost\r\n\r\n")
        assert client.makefile("rb").read().endswith(b"\r\n\r\n")
    assert get("/scene/none", "HEAD")[0] == 404
    for method in ("POST", "PUT", "DELETE", "OPTIONS", "CONNECT", "NONSENSE"):
        assert get("/", method)[0] == 501, method


def test_other_machines_cannot_connect(serving):
    with socket.socket() as other, pytest.raises(OSError, match=r"refused|unreachable"):
        other.connect(("127.0.0.2", serving))


def test_connection_reset_by_the_browser_prints_nothing(get, serving):
    """The fixture `serving` checks that nothing was printed."""
    for sent in (b"", f"GET /scene/{VAL} HTTP/1.0\r\nHost: localhost\r\n\r\n".encode()):
        with connect(serving) as browser:
            browser.sendall(sent)
            # Without lingering, closing resets the connection.
            browser.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    # One scene after the other is made, so this one follows.
    assert get(f"/scene/{TRAIN}")[0] == 200


@pytest.fixture
def running():
    """A server of two scenes in this process, one damaged, and the pictures that it has made."""
    made = []

    def make_picture(scene_id):
        made.append(scene_id)
        return b"picture of " + scene_id.encode()

    def make_page(scene_id):
        if scene_id == "<b>":
            raise FileError("b.npz", "is damaged")
        return bytes(30_000_000)

    with SceneServer("<i>\udce9", ["one", "<b>"], make_page, make_picture, 0) as serving:
        thread = threading.Thread(target=serving.serve_forever)
        thread.start()
        yield serving, made
        serving.shutdown()
        thread.join()


def test_request_that_is_sent_too_slowly_is_ended_but_a_page_may_be_read_slowly(
    running, monkeypatch
):
    monkeypatch.setattr("scannet_prep.view.server._MAX_REQUEST_S", 0.5)
    with connect(running[0].server_port) as reader:
        reader.sendall(b"GET /scene/one HTTP/1.0\r\nHost: localhost\r\n\r\n")
        time.sleep(1)
        assert len(reader.makefile("rb").read()) > 30_000_000
    with connect(running[0].server_port) as slow, suppress(OSError):
        for _ in range(200):
            slow.sendall(b"G")
            time.sleep(0.05)
        pytest.fail("was not ended")


def test_client_that_never_reads_is_given_up(running, monkeypatch):
    handler = running[0].RequestHandlerClass
    monkeypatch.setattr(handler, "timeout", handler.timeout / 2400)
    before = threading.active_count()
    with connect(running[0].server_port) as silent:
        silent.sendall(b"GET /scene/one HTTP/1.0\r\nHost: localhost\r\n\r\n")
        for _ in range(200):
            time.sleep(0.05)
            if silent.recv(1, socket.MSG_PEEK) and threading.active_count() <= before:
                return
    pytest.fail("was not given up")


def test_many_clients_get_a_picture_that_is_made_once(running):
    serving, made = running
    with ThreadPoolExecutor(50) as pool:
        answers = list(
            pool.map(lambda _: request(serving.server_port, "/thumbnail/one.png"), range(200))
        )

    assert {answer[:2] for answer in answers} == {(200, b"picture of one")}
    assert made == ["one"]


def test_names_are_escaped_and_damage_is_an_error_that_names_the_file(running):
    port = running[0].server_port
    content = request(port, "/")[1]
    assert b"<h1>&lt;i&gt;\\udce9: 2 scenes</h1>" in content
    assert b"<b>" not in content
    status, content, _ = request(port, "/scene/<b>")
    assert status == 500
    assert b"b.npz: is damaged" in content


@pytest.mark.parametrize(
    ("words", "problem"),
    [
        ("70000", "port 70000 cannot be used"),
        ("PORT", "[Errno 98] Address already in use\nhint: to use any free port: --serve 0"),
        ("-o page.html", "--serve writes no file"),
        ("--png", "--serve writes no file"),
        ("--size 800x600", "--serve writes no file"),
    ],
)
def test_wrong_arguments_of_serve_are_refused(whole_dir, serving, words, problem):
    words = words.replace("PORT", str(serving)).split()
    fail(2, problem, "view", "--serve", *words, "--source", whole_dir / "processed")
