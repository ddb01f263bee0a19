"""Archives in buckets: read, trained from and written, through faults, and without telling secrets."""

import os
import pickle
import re
import signal
import subprocess
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from archives import pack_tree, read_tree, write_tree
from bucket_server import ACCESS_KEY, BUCKET, SECRETS, BucketServer
from commands import TRAIN, VAL, run_main, start_command

from scannet_prep import ScanNet
from scannet_prep.errors import ArchiveError, CertificateError, NotOnServerError, ScanNetPrepError, ServerDownError
from scannet_prep.remote import bucket
from scannet_prep.remote.bucket import BucketSource, upload

for package in ("obstore", "boto3", "moto.server"):
    pytest.importorskip(package, reason=f"{package} is not installed")

URL = f"s3://{BUCKET}/dir/scannet.tar.zst"
CONTENT = np.random.default_rng(0).bytes(300_000)


@pytest.fixture(scope="module")
def running() -> Iterator[BucketServer]:
    server = BucketServer()
    yield server
    server.server.shutdown()


@pytest.fixture
def server(running: BucketServer, monkeypatch: pytest.MonkeyPatch) -> BucketServer:
    for name in os.environ:
        if name.startswith(("AWS_", "GOOGLE_", "AZURE_")):  # which would lead elsewhere
            monkeypatch.delenv(name)
    for name, value in running.environment().items():
        monkeypatch.setenv(name, value)
    running.reset()
    return running


@pytest.fixture
def archive(packed_dir: Path) -> Path:
    return packed_dir / "processed.tar.zst"


def test_commands_read_archives_in_buckets_like_files(server: BucketServer, archive: Path, tmp_path: Path) -> None:
    server.put("dir/scannet.tar.zst", archive.read_bytes())
    for words in (["info", "--scenes"], ["verify", "--limit", "9"]):
        found, expected = (run_main(words[0], place, *words[1:], "--json").json for place in (URL, archive))
        for value in (found, expected):
            for name in ("path", "paths", "seconds", "speed"):
                value.pop(name, None)
        assert found == expected
    for number, place in enumerate((URL, archive)):
        assert run_main("unpack", place, "-o", tmp_path / str(number)).status == 0
    assert read_tree(tmp_path / "0") == read_tree(tmp_path / "1")


@pytest.mark.filterwarnings("ignore:This DataLoader will create 4 worker processes")
def test_forked_workers_read_from_a_bucket_that_their_parent_has_read_from(server: BucketServer, archive: Path) -> None:
    data = pytest.importorskip("torch.utils.data")
    server.put("dir/scannet.tar.zst", archive.read_bytes())
    dataset, expected = (ScanNet(place, split="train", loop=4) for place in (URL, archive))
    loader = data.DataLoader(dataset, num_workers=4, batch_size=None, multiprocessing_context="fork")
    points = [item["points"].tobytes() for item in expected]
    assert dataset[0]["points"].tobytes() == points[0]
    assert [item["points"].numpy().tobytes() for item in loader] == points
    assert dataset[0]["points"].tobytes() == points[0]


def test_threads_read_at_once_and_killed_helpers_are_replaced(server: BucketServer) -> None:
    source = BucketSource(server.put("x", CONTENT))
    starts = range(0, len(CONTENT), 7_000)
    with ThreadPoolExecutor(4) as pool:
        assert b"".join(pool.map(source.read, starts, [7_000] * len(starts))) == CONTENT
    mine = subprocess.check_output(["pgrep", "-P", str(os.getpid()), "-f", "bucket_process"])
    for pid in mine.split():
        os.kill(int(pid), signal.SIGKILL)
    assert all(secret.encode() not in pickle.dumps(source) for secret in SECRETS)
    copy = pickle.loads(pickle.dumps(source))
    source.close()
    assert source.read(5, 10) == copy.read(5, 10) == CONTENT[5:15]
    assert (source.read(len(CONTENT) - 5, 10), source.read(len(CONTENT), 10)) == (CONTENT[-5:], b"")


def test_a_store_that_fails_is_asked_again_for_a_while(server: BucketServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_READ_TIMEOUT", "1s")
    source = BucketSource(server.put("x", CONTENT))
    for faults in ([503, 500, "silent"], ["short", "reset"]):
        server.faults[:] = faults
        assert source.read(10, 200_000) == CONTENT[10:200_010]
        assert server.faults == []
    monkeypatch.setattr(bucket, "_RETRIES", 1)
    server.requests.clear()
    server.rule = lambda *_: (503, "SlowDown")
    with pytest.raises(ServerDownError, match=r"fails or breaks off \(503 SlowDown\)") as caught:
        source.read(10, 200_000)
    assert "run the same command again later" in caught.value.hint
    assert len(server.requests) == 2
    server.rule = lambda *_: None
    assert source.read(10, 20) == CONTENT[10:30]


@pytest.mark.parametrize("fault", [None, "no if-match"])
def test_a_replaced_object_is_refused_whatever_the_store_checks(server: BucketServer, fault: str | None) -> None:
    source = BucketSource(server.put("x", CONTENT))
    server.put("x", CONTENT[::-1])
    server.rule = lambda *_: fault
    with pytest.raises(ArchiveError, match=f"{source.name}: was replaced or changed since it was opened"):
        source.read(10, 20)
    server.boto().delete_object(Bucket=BUCKET, Key="x")
    with pytest.raises(NotOnServerError):
        source.read(10, 20)


# What is wrong: the environment (None: not set), or what the server says; the address; the status, and what is said.
WRONG: dict[str, tuple[dict[str, Any], str, int, tuple[str, ...]]] = {
    "no such object": ({}, f"s3://{BUCKET}/no.tar.zst", 1, ("no such bucket or object (404 NoSuchKey)",)),
    "no such bucket": ({}, "s3://nobody/x.tar.zst", 1, ("(404 NoSuchBucket)", "AWS_ENDPOINT_URL")),
    "no address": ({}, f"s3://{BUCKET}", 2, ("is not an address of an object", "s3://BUCKET/NAME")),
    "password": ({}, f"s3://{ACCESS_KEY}:s3cret/key@{BUCKET}/x?s1gnature", 2, ("is not an address", "environment")),
    "no credentials": (
        {"AWS_ACCESS_KEY_ID": None, "AWS_SECRET_ACCESS_KEY": None, "AWS_METADATA_ENDPOINT": "http://127.0.0.1:9"},
        URL, 1, ("no credentials were found", "AWS_ACCESS_KEY_ID", "AWS_SKIP_SIGNATURE=true"),
    ),
    "http": ({"AWS_ALLOW_HTTP": None}, URL, 2, ("settings", "AWS_ALLOW_HTTP=true")),
    "no server": (
        {"AWS_ENDPOINT_URL": "http://anna:pa55word@127.0.0.1:9"}, URL, 1,
        ("127.0.0.1:9 does not answer", "AWS_ENDPOINT_URL"),
    ),
    "no url": ({"AWS_ENDPOINT_URL": "anna:pa55word@127.0.0.1"}, URL, 2, ("settings", "AWS_*")),
    "denied": ({"fault": (403, "AccessDenied")}, URL, 1, ("refuses it (403 AccessDenied)", "permission")),
    "region": ({"fault": (301, "PermanentRedirect")}, URL, 1, ("refuses it", "AWS_REGION")),
    "az": ({}, "az://b/x.tar.zst", 1, ("no credentials were found", "AZURE_STORAGE_ACCOUNT_NAME")),
}  # fmt: skip


@pytest.mark.parametrize("name", WRONG)
def test_mistakes_are_named_without_secrets(name: str, server: BucketServer, monkeypatch: pytest.MonkeyPatch) -> None:
    changes, address, status, words = WRONG[name]
    for variable, value in changes.items():
        if variable == "fault":
            server.rule = lambda *_, fault=value: fault
        elif value is None:
            monkeypatch.delenv(variable)
        else:
            monkeypatch.setenv(variable, value)
    outcome = run_main("info", address, "-v", "--json")
    said = outcome.stdout + outcome.stderr
    assert outcome.status == status, said
    assert [word for word in words if word not in said] == []
    with pytest.raises(ScanNetPrepError) as caught:
        BucketSource(address)
    error: BaseException | None = caught.value
    while error is not None:
        said += repr(error) + str(error) + repr(pickle.dumps(error))
        error = error.__context__
    assert [secret for secret in (*SECRETS, "s3cret") if secret in said] == []


def test_without_obstore_a_hint_names_it(server: BucketServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "obstore.py").write_text("raise ModuleNotFoundError('No module named obstore', name='obstore')")
    monkeypatch.syspath_prepend(str(tmp_path))
    outcome = run_main("verify", URL)
    assert outcome.status == 2
    assert "obstore is not installed" in outcome.stderr
    assert "hint: pip install 'scannet-prep[cloud]'" in outcome.stderr


def test_google_and_azure_are_read_too(server: BucketServer, archive: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """By the part of their interfaces that is that of S3."""
    key = "dir/a blank.tar.zst"
    server.put(key, archive.read_bytes())
    server.boto().put_object_acl(Bucket=BUCKET, Key=key, ACL="public-read")
    odd = server.put("dir/a %20 + ü * ~.tar.zst", CONTENT)
    assert BucketSource(odd).read(0, 9) == CONTENT[:9]
    settings = {"GOOGLE_BASE_URL": server.origin, "GOOGLE_ALLOW_HTTP": "true", "GOOGLE_BEARER_TOKEN": "s3cret"}
    settings |= {"AZURE_STORAGE_ENDPOINT": server.origin, "AZURE_ALLOW_HTTP": "true", "AZURE_SKIP_SIGNATURE": "true"}
    for name, value in (settings | {"AZURE_STORAGE_ACCOUNT_NAME": "anna"}).items():
        monkeypatch.setenv(name, value)
    for scheme in ("s3", "gs", "az", "S3"):
        source = BucketSource(f"{scheme}://{BUCKET}/{key}")
        assert source.read(0, 1 << 30) == archive.read_bytes()
        with pytest.raises(NotOnServerError, match=f"{scheme}://{BUCKET}/none: there is no such bucket or object"):
            BucketSource(f"{scheme}://{BUCKET}/none")
    upload(f"gs://{BUCKET}/x", [CONTENT], len(CONTENT))
    assert server.get("x") == CONTENT


def test_an_authority_is_named_for_buckets_as_for_web_servers(
    server: BucketServer, archive: Path, authority: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    server.put("dir/scannet.tar.zst", archive.read_bytes())
    secure = BucketServer(authority[1])
    monkeypatch.setenv("AWS_ENDPOINT_URL", secure.origin)
    with pytest.raises(CertificateError, match=r"the certificate of 127\.0\.0\.1:\d+ cannot be verified") as caught:
        BucketSource(URL)
    assert "SSL_CERT_FILE=FILE" in caught.value.hint
    assert run_main("info", URL, "--ca-bundle", authority[0]).status == 0
    assert run_main("info", URL, "--insecure").status == 0
    secure.server.shutdown()


def test_pack_writes_the_same_bytes_and_knows_what_is_new(server: BucketServer, whole_dir: Path, archive: Path) -> None:
    words = ("pack", whole_dir / "processed", "-o", URL)
    first, again = run_main(*words, "--json").json, run_main(*words, "--json").json
    assert (first["up_to_date"], again["up_to_date"]) == (False, True)
    assert first["archives"] == {URL: archive.stat().st_size}
    assert server.get("dir/scannet.tar.zst") == archive.read_bytes()
    assert f'in Python: ScanNet("{URL}", split="train")' in run_main(*words, "--force").stdout
    changed = bytearray(archive.read_bytes())
    changed[500] ^= 1
    server.put("dir/scannet.tar.zst", bytes(changed))
    assert run_main(*words, "--json").json["up_to_date"] is False
    assert server.get("dir/scannet.tar.zst") == archive.read_bytes()
    fewer = run_main(*words, "--splits", "val")
    assert (fewer.status, "holds 2 scenes that the new archive would not" in fewer.stderr) == (2, True)


def test_places_that_pack_does_not_write_to_are_refused_at_once(server: BucketServer, whole_dir: Path) -> None:
    for more, words in (
        ([URL, "--shard-size", "4MB"], "shards are not written to a bucket"),
        ([f"s3://{BUCKET}/scannet"], f"name it s3://{BUCKET}/scannet.tar.zst"),
        ([f"https://anna:pa55word@{BUCKET}/x.tar.zst"], "is not an address of an object in a bucket"),
    ):
        outcome = run_main("pack", whole_dir / "processed", "-o", *more)
        assert (outcome.status, words in outcome.stderr, "pa55word" in outcome.stderr) == (2, True, False)
    assert (server.keys(), server.requests) == ([], [])


@pytest.fixture
def large_dir(tmp_path: Path) -> Path:
    """A raw tree of two parts and a half."""
    files = {f"scans/{name}/{name}_vh_clean_2.ply": np.random.default_rng(1).bytes(10_000_000) for name in (TRAIN, VAL)}
    return write_tree(tmp_path / "large", files)


def test_large_archives_go_in_parts_some_of_which_fail(server: BucketServer, large_dir: Path, tmp_path: Path) -> None:
    failed = iter(["reset", (503, "SlowDown")])
    server.rule = lambda _, path: next(failed, None) if "partNumber=2" in path else None
    assert run_main("pack", large_dir, "-o", URL, "--force").status == 0
    parts = {re.findall(r"partNumber=(\d+)", path)[0] for method, path in server.requests if method == "PUT"}
    assert parts == set("123")
    pack_tree(large_dir, tmp_path / "x.tar.zst")
    assert server.get("dir/scannet.tar.zst") == (tmp_path / "x.tar.zst").read_bytes()


@pytest.mark.parametrize("at", [r"POST .*\?uploads\b", r"PUT .*partNumber=2\b", r"POST .*\?uploadId\b"])
def test_a_failed_upload_leaves_the_older_object_and_no_parts(server: BucketServer, large_dir: Path, at: str) -> None:
    server.put("dir/scannet.tar.zst", b"older")
    server.rule = lambda method, path: (403, "AccessDenied") if re.match(at, f"{method} {path}") else None
    outcome = run_main("pack", large_dir, "-o", URL, "--force", "-v")
    assert outcome.status == 1
    assert f"error: {URL}: cannot be written: " in outcome.stderr
    assert [secret for secret in SECRETS if secret in outcome.stderr + outcome.stdout] == []
    assert server.get("dir/scannet.tar.zst") == b"older"
    assert server.unfinished() == []


def check_that_nothing_is_left(server: BucketServer) -> None:
    """Neither an object nor parts, once the process that talks to the store has given them up, a moment later."""
    give_up_s, has_given_up = time.monotonic() + 20, False
    while not has_given_up and time.monotonic() < give_up_s:
        time.sleep(0.05)
        has_given_up = any(method == "DELETE" for method, _ in server.requests) and not server.unfinished()
    assert (has_given_up, server.unfinished(), server.keys()) == (True, [], []), server.requests


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGKILL])
def test_an_interrupted_upload_leaves_nothing(server: BucketServer, large_dir: Path, number: signal.Signals) -> None:
    mesh = np.random.default_rng(0).bytes(10_000_000)
    for name in (f"scene010{digit}_00" for digit in range(4)):  # more than what may be under way
        write_tree(large_dir, {f"scans/{name}/{name}_vh_clean_2.ply": mesh})
    server.rule = lambda _, path: (lambda: time.sleep(0.5)) if "partNumber" in path else None
    command = start_command("pack", large_dir, "-o", URL, "--force")
    while not any("partNumber=1" in path for _, path in list(server.requests)):
        assert command.poll() is None
        time.sleep(0.05)
    command.send_signal(number)
    _, said = command.communicate(timeout=60)
    assert command.returncode == (-9 if number is signal.SIGKILL else 130), said
    check_that_nothing_is_left(server)
    assert "Traceback" not in said


def test_a_source_that_changes_while_it_is_packed_leaves_no_object(server: BucketServer) -> None:
    with pytest.raises(ZeroDivisionError):
        upload(URL, (CONTENT[: 1 // number] for number in (1, 0)), 1)
    check_that_nothing_is_left(server)


def test_parts_grow_with_the_archive_so_that_their_number_is_bounded(server: BucketServer) -> None:
    upload(URL, [CONTENT * 20] * 4, 9_000 * 12_000_000)
    assert len([path for method, path in server.requests if method == "PUT"]) == 2
    assert server.get("dir/scannet.tar.zst") == CONTENT * 80
