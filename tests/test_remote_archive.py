"""Archives at addresses: a web server with faults, and a bucket."""

import multiprocessing
import random
import sys
import traceback
from concurrent.futures import ThreadPoolExecutor

import pytest
from commands import read_tree, succeed, unpack_file
from release_server import (
    Cut,
    Gzip,
    Header,
    NoLength,
    Page,
    RangesIgnored,
    Redirect,
    ReleaseServer,
    Reset,
    ShiftedRange,
    Stall,
    Status,
    UntilClosed,
    WrongLength,
    at,
)

from scannet_prep import ScanNet
from scannet_prep.archive.frames import open_source
from scannet_prep.errors import OutageError, TransferError
from scannet_prep.remote import archive as remote_archive

PATH = "/a b.tar.zst"
CONTENT = random.Random(0).randbytes(500_000)
# Faults after which another attempt helps.
PASSING = [
    Status(503), Status(429, retry_after="1"), Status(500), Cut(), Cut(0), Cut(9_000), Reset(),
    Reset(9_000), Stall(), Stall(9_000), WrongLength(-1), WrongLength(1000)
]  # fmt: skip
FINAL = {
    "refused": (Status(403), "status 403"),
    "without ranges": (RangesIgnored(), r"without the range.*\nhint: serve it with nginx"),
    "compressed": (Gzip(), "gzip in place of the file"),
    "login": (Page(), "a web page in place of the file"),
    "other range": (ShiftedRange(by=1), "without the range"),
    "redirect to a login": (Redirect("/login?token=s3cret"), "status 404"),
    "redirect elsewhere": (Redirect(PATH, origin="ftp://anna:s3cret@host"), "cannot be requested"),
    "shorter": (Header("content-range", "bytes 5-13/9"), "without the range"),
    "no size": (Header("content-range", "bytes 0-0/*"), "without the range"),
}


@pytest.fixture
def server(tmp_path, monkeypatch):
    monkeypatch.setattr(remote_archive, "_PAUSES_S", [0.001] * 4)
    monkeypatch.setattr(remote_archive, "_TIMEOUT_S", 0.5)
    remote_archive._get_client.cache_clear()
    with ReleaseServer(tmp_path) as server:
        server.files[PATH] = CONTENT
        yield server


def open_server(server):
    return open_source(server.origin + PATH.replace(" ", "%20"))


def test_ranges_are_right_after_passing_faults_and_in_threads(server):
    source = open_server(server)
    assert source.size_bytes == 500_000
    assert source.read(499_990, 100) == CONTENT[499_990:]
    assert source.read(500_000, 9) == b""
    for fault in PASSING:
        server.faults = [at(PATH, *3 * [fault])]
        server.forget()
        assert source.read(1000, 20_000) == CONTENT[1000:21_000], fault
    for fault in (NoLength(), UntilClosed()):
        server.faults = [at(PATH, then=fault)]
        assert source.read(1000, 20_000) == CONTENT[1000:21_000]

    dice = random.Random(1)
    server.faults = [lambda _: [dice.choice(PASSING)] if dice.random() < 0.2 else []]
    offsets = [dice.randrange(490_000) for _ in range(100)]
    with ThreadPoolExecutor(4) as pool:
        pieces = pool.map(source.read, offsets, [10_000] * 100)
        assert list(pieces) == [CONTENT[offset : offset + 10_000] for offset in offsets]


@pytest.mark.parametrize("name", FINAL)
def test_final_faults_are_errors_after_one_request_that_show_no_secret(name, server):
    fault, message = FINAL[name]
    query = "signature=it's)s3cret"
    address = f"{server.origin}{PATH}?{query}".replace("//", "//anna:s3cret@")
    source = open_source(address)
    assert source.name == address.replace("anna:s3cret", "...").replace(query, "...")
    server.faults = [at(PATH, then=fault)]
    server.forget()
    for attempt in (lambda: source.read(5, 9), lambda: open_source(address)):
        with pytest.raises(TransferError, match=message) as caught:
            attempt()
        assert "s3cret" not in "".join(traceback.format_exception(caught.value))
    assert len(server.requests(f"{PATH}?{query}")) <= 2


def test_server_that_stays_away_is_an_error_soon_at_first(server, monkeypatch):
    server.faults = [at(PATH, *3 * [Status(503)])]
    with pytest.raises(OutageError):
        open_server(server)
    source = open_server(server)
    server.stop()
    pauses_s = []
    monkeypatch.setattr(remote_archive.time, "sleep", pauses_s.append)
    with pytest.raises(OutageError, match="the server cannot be reached"):
        source.read(0, 9)
    # Workers that fail together do not retry together.
    assert len(set(pauses_s)) == 4
    server.start()
    assert source.read(0, 9) == CONTENT[:9]


def read_in_process(source, queue):
    queue.put(source.read(0, 1000))


@pytest.mark.parametrize("method", ["fork", "spawn"])
def test_each_process_connects_itself(method, server):
    source = open_server(server)
    context = multiprocessing.get_context(method)
    queue = context.SimpleQueue()
    for _ in range(2):
        process = context.Process(target=read_in_process, args=(source, queue))
        process.start()
        assert queue.get() == CONTENT[:1000]
        process.join()
        assert source.read(5, 9) == CONTENT[5:14]
    connections = [request.connection for request in server.requests()]
    assert len(set(connections)) == 3
    assert len(set(connections[1::2])) == 1


def test_dataset_and_commands_read_a_web_server(server, whole_dir, packed_dir, tmp_path):
    server.files["/a.tar.zst"] = packed_dir / "processed.tar.zst"
    address = f"{server.origin}/a.tar.zst"
    assert len(ScanNet(address, split="train")[0]["points"]) == 600
    # Its size, the seek table, and the index with the manifest; a scene.
    assert len(server.requests("/a.tar.zst")) == 4
    succeed("verify", address, "--limit", "9")
    assert unpack_file(address, "-o", tmp_path / "out").status == 0
    assert read_tree(tmp_path / "out") == read_tree(whole_dir / "processed")


@pytest.mark.extra("s3fs", "moto", "flask", "flask_cors")
def test_dataset_reads_a_bucket_and_missing_objects_are_named(packed_dir, tmp_path, monkeypatch):
    import boto3
    from moto.server import ThreadedMotoServer

    monkeypatch.setattr(remote_archive, "_PAUSES_S", [])
    server = ThreadedMotoServer(port=0)
    server.start()
    _, port = server.get_host_and_port()
    settings = {
        "AWS_ENDPOINT_URL": f"http://127.0.0.1:{port}",
        "AWS_ACCESS_KEY_ID": "AKIDT0PS3CRET",
        "AWS_SECRET_ACCESS_KEY": "s3cret",
        "AWS_DEFAULT_REGION": "us-east-1",
    }
    for name, value in settings.items():
        monkeypatch.setenv(name, value)
    try:
        client = boto3.client("s3")
        client.create_bucket(Bucket="scannet")
        client.upload_file(str(packed_dir / "processed.tar.zst"), "scannet", "dir/a.tar.zst")
        dataset = ScanNet("s3://scannet/dir/a.tar.zst", split="train")
        with multiprocessing.get_context("spawn").Pool(1) as pool:
            [sample] = pool.map(dataset.__getitem__, [0])
        assert len(sample["points"]) == len(dataset[0]["points"]) == 600
        with pytest.raises(TransferError, match=r"s3://scannet/b\.tar\.zst: .*FileNotFound"):
            open_source("s3://scannet/b.tar.zst")
    finally:
        server.stop()


@pytest.mark.extra("huggingface_hub")
def test_hugging_face_is_asked_for_the_range_alone(server, monkeypatch):
    import fsspec

    # Before 2024.3, fsspec has this function only in `fsspec.core`.
    monkeypatch.delattr(fsspec, "url_to_fs")
    monkeypatch.setitem(fsspec.config.conf, "hf", {"endpoint": server.origin})
    path = "/datasets/o/n/resolve/main/a"
    server.files |= {
        "/api/datasets/o/n": b'{"id": "o/n", "sha": ""}',
        "/api/datasets/o/n/tree/main": b'[{"type": "file", "path": "a", "size": 99, "oid": ""}]',
        path: CONTENT,
    }
    assert open_source("hf://datasets/o/n/a").read(5, 9) == CONTENT[5:14]
    assert server.requests(path)[-1].range == "bytes=5-13"


def test_missing_package_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "fsspec", None)
    with pytest.raises(TransferError, match="NotFoundError") as caught:
        open_source("s3://scannet/a.tar.zst")
    assert "the extra [remote]" in caught.value.hint
