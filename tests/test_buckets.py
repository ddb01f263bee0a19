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
from commands import TRAIN, VAL, run_command, run_main, start_command

from scannet_prep import ScanNet
from scannet_prep.base.errors import (
    ArchiveError,
    CertificateError,
    NotOnServerError,
    OutputError,
    ScanNetPrepError,
    ServerDownError,
    TransferError,
    UsageError,
)
from scannet_prep.remote.bucket import BucketSource, parse_address, upload

for package in ("s3fs", "boto3", "moto.server"):
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
        if name.startswith(("AWS_", "FSSPEC_")):  # which would lead elsewhere
            monkeypatch.delenv(name)
    for name, value in running.environment().items():
        monkeypatch.setenv(name, value)
    running.reset()
    return running


@pytest.fixture
def archive(packed_dir: Path) -> Path:
    return packed_dir / "processed.tar.zst"


def test_commands_read_archives_in_buckets_like_files(
    server: BucketServer, archive: Path, tmp_path: Path
) -> None:
    server.put("dir/scannet.tar.zst", archive.read_bytes())
    for words in (["info", "--scenes"], ["verify", "--limit", "9"]):
        found, expected = (
            run_main(words[0], place, *words[1:], "--json").json for place in (URL, archive)
        )
        for value in (found, expected):
            for name in ("path", "paths", "seconds", "speed"):
                value.pop(name, None)
        assert found == expected
    for number, place in enumerate((URL, archive)):
        assert run_main("unpack", place, "-o", tmp_path / str(number)).status == 0
    assert read_tree(tmp_path / "0") == read_tree(tmp_path / "1")


@pytest.mark.parametrize("method", ["fork", "spawn", "forkserver"])
def test_workers_read_from_a_bucket_that_their_parent_has_read_from(
    server: BucketServer, archive: Path, method: str
) -> None:
    data = pytest.importorskip("torch.utils.data")
    server.put("dir/scannet.tar.zst", archive.read_bytes())
    dataset = ScanNet(URL, split="train", loop=4)
    points = [sample["points"].tobytes() for sample in ScanNet(archive, split="train", loop=4)]
    assert dataset[0]["points"].tobytes() == points[0]
    loader = data.DataLoader(
        dataset, num_workers=2, batch_size=None, multiprocessing_context=method
    )
    assert [sample["points"].numpy().tobytes() for sample in loader] == points
    assert dataset[0]["points"].tobytes() == points[0]


def test_threads_read_at_once(server: BucketServer) -> None:
    source = BucketSource(server.put("x", CONTENT))
    starts = range(0, len(CONTENT), 7_000)
    with ThreadPoolExecutor(4) as pool:
        assert b"".join(pool.map(source.read, starts, [7_000] * len(starts))) == CONTENT


def test_closed_and_pickled_sources_read_again(server: BucketServer) -> None:
    source = BucketSource(server.put("x", CONTENT))
    assert [secret for secret in SECRETS if secret.encode() in pickle.dumps(source)] == []
    copy = pickle.loads(pickle.dumps(source))
    source.close()
    assert source.read(5, 10) == copy.read(5, 10) == CONTENT[5:15]
    assert (source.read(len(CONTENT) - 5, 10), source.read(len(CONTENT), 10)) == (CONTENT[-5:], b"")


def test_range_takes_one_request_once_the_object_is_open(server: BucketServer) -> None:
    source = BucketSource(server.put("x", CONTENT))
    server.requests.clear()
    source.read(0, 200_000)
    source.read(50, 60)
    assert server.requests == [("GET", f"/{BUCKET}/x")] * 2


def test_new_source_uses_changed_environment_without_child_processes(
    server: BucketServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    address = server.put("x", CONTENT)
    monkeypatch.delenv("AWS_ACCESS_KEY_ID")
    before = list_child_processes()  # of other tests
    for number in range(3):
        with pytest.raises(TransferError, match="no usable credentials were found"):
            BucketSource(address)
        monkeypatch.setenv("AWS_ACCESS_KEY_ID", f"{ACCESS_KEY}{number}")
        assert BucketSource(address).read(0, 5) == CONTENT[:5]
        monkeypatch.delenv("AWS_ACCESS_KEY_ID")
    assert list_child_processes() <= before


def list_child_processes() -> set[str]:
    command = ["pgrep", "-P", str(os.getpid()), "python"]
    return set(subprocess.run(command, capture_output=True, text=True, check=False).stdout.split())


def test_failed_requests_are_retried(server: BucketServer) -> None:
    source = BucketSource(server.put("x", CONTENT))
    for faults in ([503, 500], ["short", "reset"]):
        server.faults[:] = faults
        assert source.read(10, 200_000) == CONTENT[10:200_010]
        assert server.faults == []


def test_store_that_keeps_failing_is_an_error_until_it_recovers(
    server: BucketServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AWS_MAX_ATTEMPTS", "2")
    source = BucketSource(server.put("x", CONTENT))
    server.requests.clear()
    server.rule = lambda *_: (500, "InternalError")
    with pytest.raises(
        ServerDownError, match=r"does not answer or fails \(500 InternalError\)"
    ) as caught:
        source.read(10, 200_000)
    assert "run the same command again later" in caught.value.hint
    assert len(server.requests) == 2
    server.rule = lambda *_: None
    assert source.read(10, 20) == CONTENT[10:30]


def test_replaced_object_is_refused_by_open_and_new_readers(server: BucketServer) -> None:
    source = BucketSource(server.put("x", CONTENT))
    copy = pickle.loads(pickle.dumps(source))
    server.put("x", CONTENT[::-1])
    for reader in (source, copy):
        with pytest.raises(
            ArchiveError, match=f"{source.name}: was replaced or changed since it was opened"
        ):
            reader.read(10, 20)
    server.boto().delete_object(Bucket=BUCKET, Key="x")
    with pytest.raises(NotOnServerError):
        source.read(10, 20)


def test_checksums_refuse_replaced_archive_if_the_store_ignores_etags(
    server: BucketServer, archive: Path
) -> None:
    server.put("dir/scannet.tar.zst", archive.read_bytes())
    dataset = ScanNet(URL, split="train")
    changed = bytearray(archive.read_bytes())
    frame = dataset[0]["points"].nbytes // 2
    changed[1_000 : 1_000 + frame] = os.urandom(frame)
    server.put("dir/scannet.tar.zst", bytes(changed))
    server.rule = lambda *_: "no if-match"
    with pytest.raises(ArchiveError):
        dataset[0]


# What is wrong: the environment (None: not set), or the server's answer; the address; the exit status, and the message.
WRONG: dict[str, tuple[dict[str, Any], str, int, tuple[str, ...]]] = {
    "no such object": ({}, f"s3://{BUCKET}/no.tar.zst", 1, ("no such bucket or object",)),
    "no such bucket": ({}, "s3://nobody/x.tar.zst", 1, ("(404 NoSuchBucket)", "AWS_ENDPOINT_URL")),
    "empty": ({}, f"s3://{BUCKET}/empty", 1, ("is empty or a folder",)),
    "folder": ({}, f"s3://{BUCKET}/dir", 1, ("is empty or a folder",)),
    "no address": ({}, f"s3://{BUCKET}", 2, ("is not an address of an object", "s3://BUCKET/NAME")),
    "password": ({}, f"s3://{ACCESS_KEY}:s3cret/key@{BUCKET}/x?s1gnature", 2, ("is not an address", "environment")),
    "no credentials": (
        {"AWS_ACCESS_KEY_ID": None, "AWS_SECRET_ACCESS_KEY": None}, URL, 1,
        ("no usable credentials were found", "AWS_ACCESS_KEY_ID", "FSSPEC_S3_ANON=true"),
    ),
    "no server": (
        {"AWS_ENDPOINT_URL": "http://127.0.0.1:9", "AWS_MAX_ATTEMPTS": "1"}, URL, 1,
        ("does not answer", "AWS_ENDPOINT_URL"),
    ),
    "password in endpoint": (
        {"AWS_ENDPOINT_URL": "http://anna:pa55word@127.0.0.1:9"}, URL, 2,
        ("settings for the store cannot be used", "AWS_ENDPOINT_URL"),
    ),
    "no url": ({"AWS_ENDPOINT_URL": "anna:pa55word@127.0.0.1"}, URL, 2, ("settings", "AWS_ENDPOINT_URL")),
    "no profile": ({"AWS_PROFILE": "pa55word"}, URL, 2, ("settings", "AWS_PROFILE")),
    "denied": ({"fault": (403, "AccessDenied")}, URL, 1, ("refuses access (403)", "AWS_PROFILE")),
}  # fmt: skip


@pytest.mark.parametrize("name", WRONG)
def test_mistakes_are_named_without_secrets(
    name: str, server: BucketServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    changes, address, status, words = WRONG[name]
    server.put("empty", b"")
    server.put("dir/x", CONTENT)
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


@pytest.mark.parametrize(
    ("scheme", "missing", "package"),
    [
        ("s3", "fsspec", "s3fs"),
        ("s3", "s3fs", "s3fs"),
        ("gs", "gcsfs", "gcsfs"),
        ("az", "adlfs", "adlfs"),
    ],
)
def test_missing_package_is_named_with_the_command_that_installs_it(
    server: BucketServer, tmp_path: Path, scheme: str, missing: str, package: str
) -> None:
    (tmp_path / f"{missing}.py").write_text(
        "raise ModuleNotFoundError('No module named ' + repr(__name__))"
    )
    environment = os.environ | {"PYTHONPATH": str(tmp_path)}
    outcome = run_command("verify", f"{scheme}://{BUCKET}/x.tar.zst", environment=environment)
    assert outcome.status == 2
    assert f"{scheme}:// addresses need the package {package}: " in outcome.stderr
    assert missing in outcome.stderr
    assert f"hint: pip install 'scannet-prep[cloud]' {package}\n" in outcome.stderr


def test_public_object_is_read_without_credentials(server: BucketServer, archive: Path) -> None:
    server.put("dir/scannet.tar.zst", archive.read_bytes())
    server.boto().put_object_acl(Bucket=BUCKET, Key="dir/scannet.tar.zst", ACL="public-read")
    environment = {name: value for name, value in os.environ.items() if "_ACCESS_KEY" not in name}
    environment["FSSPEC_S3_ANON"] = "true"
    assert run_command("info", URL, environment=environment).status == 0


@pytest.mark.parametrize(
    "key", ["dir/a blank.tar.zst", "dir/a %20 + ü * ~.tar.zst", "dir/[a]{b}::c.tar.zst"]
)
def test_object_names_are_taken_as_they_are(server: BucketServer, key: str) -> None:
    address = f"S3://{BUCKET}/{key}"
    assert upload(address, [CONTENT], len(CONTENT)) == len(CONTENT)
    assert server.get(key) == CONTENT
    assert BucketSource(address).read(0, 9) == CONTENT[:9]


@pytest.mark.parametrize("address", ["gs://b/a/x.tar.zst", "AZ://b/a/x.tar.zst"])
def test_addresses_of_google_and_azure_are_accepted(address: str) -> None:
    assert parse_address(address) == (address[:2].lower(), "b/a/x.tar.zst")


@pytest.mark.parametrize(
    "address", ["s3://b/../x", "s3://b/a//x", "s3://b/x#1", "s3://b/x?versionId=1", "gs:///x"]
)
def test_addresses_of_no_object_are_refused(address: str) -> None:
    with pytest.raises(UsageError, match="is not an address of an object in a bucket"):
        parse_address(address)


def test_an_authority_is_named_for_buckets_as_for_web_servers(
    server: BucketServer,
    archive: Path,
    authority: tuple[Path, Path],
    authority_dir: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    server.put("dir/scannet.tar.zst", archive.read_bytes())
    secure = BucketServer(authority[1])
    monkeypatch.setenv("AWS_ENDPOINT_URL", secure.origin)
    with pytest.raises(
        CertificateError, match="the certificate of the store cannot be verified"
    ) as caught:
        BucketSource(URL)
    assert "AWS_CA_BUNDLE=FILE" in caught.value.hint
    assert run_main("info", URL, "--ca-bundle", authority[0]).status == 0
    refused = run_main("info", URL, "--ca-bundle", authority_dir)
    assert (refused.status, "s3:// addresses need one file of certificates" in refused.stderr) == (
        2,
        True,
    )
    assert run_main("info", URL, "--insecure").status == 0
    secure.server.shutdown()


def test_folder_of_authorities_in_ssl_cert_dir_does_not_concern_buckets(
    server: BucketServer, archive: Path, authority_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    server.put("dir/scannet.tar.zst", archive.read_bytes())
    monkeypatch.setenv("SSL_CERT_DIR", str(authority_dir))
    assert run_main("info", URL).status == 0


def test_pack_writes_the_same_bytes_and_knows_what_is_new(
    server: BucketServer, whole_dir: Path, archive: Path
) -> None:
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
    assert (fewer.status, "holds 2 scenes that the new archive would not" in fewer.stderr) == (
        2,
        True,
    )


def test_places_that_pack_does_not_write_to_are_refused_at_once(
    server: BucketServer, whole_dir: Path
) -> None:
    for more, words in (
        ([URL, "--shard-size", "4MB"], "shards are not written to a bucket"),
        ([f"s3://{BUCKET}/scannet"], f"use -o s3://{BUCKET}/scannet.tar.zst"),
        (
            [f"https://anna:pa55word@{BUCKET}/x.tar.zst"],
            "is not an address of an object in a bucket",
        ),
    ):
        outcome = run_main("pack", whole_dir / "processed", "-o", *more)
        assert (outcome.status, words in outcome.stderr, "pa55word" in outcome.stderr) == (
            2,
            True,
            False,
        )
    assert (server.keys(), server.requests) == ([], [])


@pytest.fixture
def large_dir(tmp_path: Path) -> Path:
    """A raw tree of two parts and a half."""
    files = {
        f"scans/{name}/{name}_vh_clean_2.ply": np.random.default_rng(1).bytes(10_000_000)
        for name in (TRAIN, VAL)
    }
    return write_tree(tmp_path / "large", files)


def test_large_archives_go_in_parts_some_of_which_fail(
    server: BucketServer, large_dir: Path, tmp_path: Path
) -> None:
    failed = iter(["reset", (503, "SlowDown")])
    server.rule = lambda _, path: next(failed, None) if "partNumber=2" in path else None
    assert run_main("pack", large_dir, "-o", URL, "--force").status == 0
    parts = {
        re.findall(r"partNumber=(\d+)", path)[0]
        for method, path in server.requests
        if method == "PUT"
    }
    assert parts == set("123")
    pack_tree(large_dir, tmp_path / "x.tar.zst")
    assert server.get("dir/scannet.tar.zst") == (tmp_path / "x.tar.zst").read_bytes()


@pytest.mark.parametrize(
    "at", [r"POST .*\?uploads\b", r"PUT .*partNumber=2\b", r"POST .*\?uploadId\b"]
)
def test_a_failed_upload_leaves_the_older_object_and_no_parts(
    server: BucketServer, large_dir: Path, at: str
) -> None:
    server.put("dir/scannet.tar.zst", b"older")
    server.rule = lambda method, path: (
        (403, "AccessDenied") if re.match(at, f"{method} {path}") else None
    )
    outcome = run_main("pack", large_dir, "-o", URL, "--force", "-v")
    assert outcome.status == 1
    assert f"error: {URL}: cannot be written: " in outcome.stderr
    assert [secret for secret in SECRETS if secret in outcome.stderr + outcome.stdout] == []
    assert server.get("dir/scannet.tar.zst") == b"older"
    assert server.unfinished() == []


def interrupt_upload(
    server: BucketServer, large_dir: Path, number: signal.Signals
) -> tuple[int, str]:
    """Send a signal to `pack` while it uploads the first part; return its exit status and messages."""
    server.rule = lambda _, path: (lambda: time.sleep(0.5)) if "partNumber" in path else None
    command = start_command("pack", large_dir, "-o", URL, "--force")
    while not any("partNumber=1" in path for _, path in list(server.requests)):
        assert command.poll() is None
        time.sleep(0.05)
    command.send_signal(number)
    _, messages = command.communicate(timeout=60)
    return command.returncode, messages


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_interrupted_upload_leaves_older_object_and_no_parts(
    server: BucketServer, large_dir: Path, number: signal.Signals
) -> None:
    server.put("dir/scannet.tar.zst", b"older")
    status, messages = interrupt_upload(server, large_dir, number)
    assert (status, "Traceback" in messages) == (130, False), messages
    assert server.unfinished() == []
    assert server.get("dir/scannet.tar.zst") == b"older"


def test_killed_upload_leaves_no_object(server: BucketServer, large_dir: Path) -> None:
    status, _ = interrupt_upload(server, large_dir, signal.SIGKILL)
    assert status == -signal.SIGKILL
    assert server.keys() == []


def test_source_that_fails_while_it_is_packed_leaves_nothing(server: BucketServer) -> None:
    with pytest.raises(ZeroDivisionError):
        upload(URL, (CONTENT * (30 // number) for number in (1, 0)), 1)
    assert any(method == "DELETE" for method, _ in server.requests)
    assert (server.unfinished(), server.keys()) == ([], [])


def test_failed_upload_shows_no_secrets_in_its_error(server: BucketServer) -> None:
    server.rule = lambda method, _: (403, "SignatureDoesNotMatch") if method == "PUT" else None
    with pytest.raises(OutputError, match="cannot be written: the store refuses access") as caught:
        upload(URL, [CONTENT * 30], 1)
    assert caught.value.__context__ is None
    assert [secret for secret in SECRETS if secret in repr(caught.value)] == []


def test_parts_grow_with_the_archive_so_that_their_number_is_bounded(server: BucketServer) -> None:
    upload(URL, [CONTENT * 20] * 4, 9_000 * 12_000_000)
    assert len([path for method, path in server.requests if method == "PUT"]) == 2
    assert server.get("dir/scannet.tar.zst") == CONTENT * 80
