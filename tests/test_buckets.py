"""Archives in buckets: reading, training and writing, through faults, without showing secrets."""

import functools
import os
import pickle
import re
import signal
import subprocess
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from archives import pack_tree, read_tree, write_tree
from bucket_server import ACCESS_KEY, BUCKET, SECRETS, BucketServer, Fault
from commands import TRAIN, VAL, run_command, run_main, start_command
from downloads import run_openssl
from worker_functions import update_environment

from scannet_prep import ScanNet
from scannet_prep.errors import (
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
    pytest.importorskip(package)
pytestmark = pytest.mark.extra("s3fs", "boto3", "moto")

URL = f"s3://{BUCKET}/dir/scannet.tar.zst"
CONTENT = np.random.default_rng(0).bytes(300_000)


@pytest.fixture(scope="module")
def running() -> Iterator[BucketServer]:
    server = BucketServer()
    yield server
    server.server.shutdown()


@pytest.fixture
def server(running: BucketServer, monkeypatch: pytest.MonkeyPatch) -> BucketServer:
    """An empty server, which the environment names."""
    # Other settings would lead elsewhere.
    for name in os.environ:
        if name.startswith(("AWS_", "FSSPEC_")):
            monkeypatch.delenv(name)
    for name, value in running.environment().items():
        monkeypatch.setenv(name, value)
    running.reset()
    return running


@pytest.fixture
def source(server: BucketServer) -> BucketSource:
    """An open object. The requests that opened it are forgotten."""
    source = BucketSource(server.put("x", CONTENT))
    server.requests.clear()
    return source


def find_secrets(text: str) -> list[str]:
    return [secret for secret in (*SECRETS, "s3cret") if secret in text]


@pytest.fixture
def archive(packed_dir: Path) -> Path:
    return packed_dir / "processed.tar.zst"


def read_json(command: list[str], place: str | Path) -> Any:
    """Run a command on an archive, and return its result without what depends on the place."""
    value = run_main(command[0], place, *command[1:], "--json").json
    for name in ("path", "paths", "seconds", "speed"):
        value.pop(name, None)
    return value


@pytest.mark.parametrize("command", [["info", "--scenes"], ["verify", "--limit", "9"]])
def test_commands_read_an_archive_in_a_bucket_like_a_file(
    server: BucketServer, archive: Path, command: list[str]
) -> None:
    server.put("dir/scannet.tar.zst", archive.read_bytes())
    assert read_json(command, URL) == read_json(command, archive)


def test_unpack_reads_an_archive_in_a_bucket_like_a_file(
    server: BucketServer, archive: Path, tmp_path: Path
) -> None:
    server.put("dir/scannet.tar.zst", archive.read_bytes())

    assert run_main("unpack", URL, "-o", tmp_path / "bucket").status == 0
    assert run_main("unpack", archive, "-o", tmp_path / "file").status == 0

    assert read_tree(tmp_path / "bucket") == read_tree(tmp_path / "file")


@pytest.mark.extra("torch")
@pytest.mark.parametrize("method", ["fork", "spawn", "forkserver"])
def test_workers_read_a_bucket_that_their_parent_has_read(
    server: BucketServer, archive: Path, method: str
) -> None:
    from torch.utils import data

    server.put("dir/scannet.tar.zst", archive.read_bytes())
    expected = [sample["points"].tobytes() for sample in ScanNet(archive, split="train", loop=4)]
    dataset = ScanNet(URL, split="train", loop=4)
    assert dataset[0]["points"].tobytes() == expected[0]

    # A fork server has the environment of the test that used it first.
    initialize = functools.partial(update_environment, dict(os.environ))
    loader = data.DataLoader(
        dataset,
        num_workers=2,
        batch_size=None,
        multiprocessing_context=method,
        worker_init_fn=initialize,
    )
    points = [sample["points"].numpy().tobytes() for sample in loader]

    assert points == expected
    # The parent can still read.
    assert dataset[0]["points"].tobytes() == expected[0]


def test_threads_read_at_once(source: BucketSource) -> None:
    starts = range(0, len(CONTENT), 7_000)

    with ThreadPoolExecutor(4) as pool:
        pieces = list(pool.map(source.read, starts, [7_000] * len(starts)))

    assert b"".join(pieces) == CONTENT


def test_pickled_source_holds_no_secrets(source: BucketSource) -> None:
    assert [secret for secret in SECRETS if secret.encode() in pickle.dumps(source)] == []


def test_pickled_source_reads(source: BucketSource) -> None:
    copy = pickle.loads(pickle.dumps(source))
    assert copy.read(5, 10) == CONTENT[5:15]


def test_closed_source_reads_again(source: BucketSource) -> None:
    source.close()
    assert source.read(5, 10) == CONTENT[5:15]


def test_range_beyond_the_end_is_cut_at_the_end(source: BucketSource) -> None:
    assert source.read(len(CONTENT) - 5, 10) == CONTENT[-5:]
    assert source.read(len(CONTENT), 10) == b""


def test_range_takes_one_request_once_the_object_is_open(
    server: BucketServer, source: BucketSource
) -> None:
    source.read(0, 200_000)
    source.read(50, 60)

    assert server.requests == [("GET", f"/{BUCKET}/x")] * 2


def test_new_source_uses_the_changed_environment(
    server: BucketServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    address = server.put("x", CONTENT)
    monkeypatch.delenv("AWS_ACCESS_KEY_ID")

    for number in range(3):
        with pytest.raises(TransferError, match="no usable credentials were found"):
            BucketSource(address)
        monkeypatch.setenv("AWS_ACCESS_KEY_ID", f"{ACCESS_KEY}{number}")
        assert BucketSource(address).read(0, 5) == CONTENT[:5]
        monkeypatch.delenv("AWS_ACCESS_KEY_ID")


def test_source_in_a_changed_environment_starts_no_child_process(
    server: BucketServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    address = server.put("x", CONTENT)
    # Other tests may have left some.
    children_before = list_child_processes()

    for number in range(3):
        monkeypatch.setenv("AWS_ACCESS_KEY_ID", f"{ACCESS_KEY}{number}")
        BucketSource(address).read(0, 5)

    assert list_child_processes() <= children_before


def list_child_processes() -> set[str]:
    command = ["pgrep", "-P", str(os.getpid()), "python"]
    return set(subprocess.run(command, capture_output=True, text=True, check=False).stdout.split())


@pytest.mark.parametrize("faults", [[503, 500], ["short", "reset"]])
def test_failed_requests_are_retried(
    server: BucketServer, source: BucketSource, faults: list[Fault]
) -> None:
    server.faults[:] = faults

    assert source.read(10, 200_000) == CONTENT[10:200_010]

    assert server.faults == []


@pytest.fixture
def failing_source(server: BucketServer, monkeypatch: pytest.MonkeyPatch) -> BucketSource:
    """A source whose store now answers each request with an error; two attempts are made."""
    monkeypatch.setenv("AWS_MAX_ATTEMPTS", "2")
    source = BucketSource(server.put("x", CONTENT))
    server.requests.clear()
    server.rule = lambda *_: (500, "InternalError")
    return source


def test_store_that_keeps_failing_is_an_error_after_all_attempts(
    server: BucketServer, failing_source: BucketSource
) -> None:
    problem = r"does not answer or fails \(500 InternalError\)"
    with pytest.raises(ServerDownError, match=problem) as caught:
        failing_source.read(10, 200_000)

    assert "run the same command again later" in caught.value.hint
    assert len(server.requests) == 2


def test_source_reads_again_once_its_store_recovers(
    server: BucketServer, failing_source: BucketSource
) -> None:
    with pytest.raises(ServerDownError):
        failing_source.read(10, 200_000)
    server.rule = lambda *_: None

    assert failing_source.read(10, 20) == CONTENT[10:30]


@pytest.mark.parametrize("is_new_reader", [True, False])
def test_replaced_object_is_refused_by_open_and_new_readers(
    server: BucketServer, source: BucketSource, is_new_reader: bool
) -> None:
    reader = pickle.loads(pickle.dumps(source)) if is_new_reader else source
    server.put("x", CONTENT[::-1])

    problem = f"{source.name}: was replaced or changed since it was opened"
    with pytest.raises(ArchiveError, match=problem):
        reader.read(10, 20)


def test_deleted_object_is_an_error(server: BucketServer, source: BucketSource) -> None:
    server.boto().delete_object(Bucket=BUCKET, Key="x")

    with pytest.raises(NotOnServerError):
        source.read(10, 20)


def test_checksums_refuse_a_replaced_archive_if_the_store_ignores_etags(
    server: BucketServer, archive: Path
) -> None:
    content = archive.read_bytes()
    server.put("dir/scannet.tar.zst", content)
    dataset = ScanNet(URL, split="train")
    changed_bytes = dataset[0]["points"].nbytes // 2
    changed = bytearray(content)
    changed[1_000 : 1_000 + changed_bytes] = os.urandom(changed_bytes)
    server.put("dir/scannet.tar.zst", bytes(changed))
    server.rule = lambda *_: "no if-match"

    with pytest.raises(ArchiveError):
        dataset[0]


@dataclass(frozen=True)
class Mistake:
    """A wrong address, wrong settings, or a refusal.

    Attributes:
        address: The address of the archive.
        messages: Words of the error or its hint.
        status: The exit status.
        variables: Changes to the environment; None removes a variable.
        fault: The server's answer to all requests.
    """

    address: str
    messages: tuple[str, ...]
    status: int = 1
    variables: dict[str, str | None] = field(default_factory=dict)
    fault: Fault = None


MISTAKES = {
    "no such object": Mistake(f"s3://{BUCKET}/no.tar.zst", ("no such bucket or object",)),
    "no such bucket": Mistake("s3://nobody/x.tar.zst", ("(404 NoSuchBucket)", "AWS_ENDPOINT_URL")),
    "empty object": Mistake(f"s3://{BUCKET}/empty", ("is empty or a folder",)),
    "folder": Mistake(f"s3://{BUCKET}/dir", ("is empty or a folder",)),
    "address of a bucket": Mistake(
        f"s3://{BUCKET}", ("is not an address of an object", "s3://BUCKET/NAME"), status=2
    ),
    "password in the address": Mistake(
        f"s3://{ACCESS_KEY}:s3cret/key@{BUCKET}/x?s1gnature",
        ("is not an address", "environment"),
        status=2,
    ),
    "no credentials": Mistake(
        URL,
        ("no usable credentials were found", "AWS_ACCESS_KEY_ID", "FSSPEC_S3_ANON=true"),
        variables={"AWS_ACCESS_KEY_ID": None, "AWS_SECRET_ACCESS_KEY": None},
    ),
    "no server": Mistake(
        URL,
        ("does not answer", "AWS_ENDPOINT_URL"),
        variables={"AWS_ENDPOINT_URL": "http://127.0.0.1:9", "AWS_MAX_ATTEMPTS": "1"},
    ),
    "password in the endpoint": Mistake(
        URL,
        ("settings for the store cannot be used", "AWS_ENDPOINT_URL"),
        status=2,
        variables={"AWS_ENDPOINT_URL": "http://anna:pa55word@127.0.0.1:9"},
    ),
    "endpoint without scheme": Mistake(
        URL,
        ("settings", "AWS_ENDPOINT_URL"),
        status=2,
        variables={"AWS_ENDPOINT_URL": "anna:pa55word@127.0.0.1"},
    ),
    "unknown profile": Mistake(
        URL, ("settings", "AWS_PROFILE"), status=2, variables={"AWS_PROFILE": "pa55word"}
    ),
    "access denied": Mistake(
        URL, ("refuses access (403)", "AWS_PROFILE"), fault=(403, "AccessDenied")
    ),
}


@pytest.fixture
def mistake(
    request: pytest.FixtureRequest, server: BucketServer, monkeypatch: pytest.MonkeyPatch
) -> Mistake:
    """One of the mistakes, with its environment and its server."""
    mistake = MISTAKES[request.param]
    server.put("empty", b"")
    server.put("dir/x", CONTENT)
    server.rule = lambda *_: mistake.fault
    for name, value in mistake.variables.items():
        if value is None:
            monkeypatch.delenv(name)
        else:
            monkeypatch.setenv(name, value)
    return mistake


@pytest.mark.parametrize("mistake", MISTAKES, indirect=True)
def test_mistake_is_named_without_secrets(mistake: Mistake) -> None:
    outcome = run_main("info", mistake.address, "-v", "--json")

    output = outcome.stdout + outcome.stderr
    assert outcome.status == mistake.status, output
    assert [text for text in mistake.messages if text not in output] == []
    assert find_secrets(output) == []


@pytest.mark.parametrize("mistake", MISTAKES, indirect=True)
def test_error_of_a_mistake_and_its_contexts_hold_no_secrets(mistake: Mistake) -> None:
    with pytest.raises(ScanNetPrepError) as caught:
        BucketSource(mistake.address)

    error: BaseException | None = caught.value
    while error is not None:
        text = repr(error) + str(error) + repr(pickle.dumps(error))
        assert find_secrets(text) == []
        error = error.__context__


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
    code = "raise ModuleNotFoundError('No module named ' + repr(__name__))"
    (tmp_path / f"{missing}.py").write_text(code)
    environment = os.environ | {"PYTHONPATH": str(tmp_path)}

    outcome = run_command("verify", f"{scheme}://{BUCKET}/x.tar.zst", environment=environment)

    assert outcome.status == 2
    assert f"{scheme}:// addresses need the package {package}: " in outcome.stderr
    assert missing in outcome.stderr
    assert f"hint: in a clone: pip install '.[cloud]' {package}\n" in outcome.stderr


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
def test_address_without_an_object_is_refused(address: str) -> None:
    with pytest.raises(UsageError, match="is not an address of an object in a bucket"):
        parse_address(address)


@pytest.fixture
def secure_server(
    server: BucketServer,
    archive: Path,
    authority: tuple[Path, Path],
    monkeypatch: pytest.MonkeyPatch,
) -> Iterator[BucketServer]:
    """A server with an archive and a certificate of a private authority."""
    server.put("dir/scannet.tar.zst", archive.read_bytes())
    secure = BucketServer(authority[1])
    monkeypatch.setenv("AWS_ENDPOINT_URL", secure.origin)
    yield secure
    secure.server.shutdown()


@pytest.fixture(scope="session")
def authority_dir(authority: tuple[Path, Path], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the same authority, under the hash by which OpenSSL looks it up."""
    folder = tmp_path_factory.mktemp("authorities")
    name = run_openssl("x509", "-in", authority[0], "-noout", "-subject_hash").strip()
    (folder / f"{name}.0").write_bytes(authority[0].read_bytes())
    return folder


@pytest.mark.usefixtures("secure_server")
def test_certificate_of_an_unknown_authority_is_an_error() -> None:
    problem = "the certificate of the store cannot be verified"
    with pytest.raises(CertificateError, match=problem) as caught:
        BucketSource(URL)

    assert "AWS_CA_BUNDLE=FILE" in caught.value.hint


def test_folder_of_authorities_in_ssl_cert_dir_does_not_concern_buckets(
    server: BucketServer, archive: Path, authority_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    server.put("dir/scannet.tar.zst", archive.read_bytes())
    monkeypatch.setenv("SSL_CERT_DIR", str(authority_dir))

    assert run_main("info", URL).status == 0


@pytest.fixture
def pack_words(whole_dir: Path) -> list[str | Path]:
    """The command that packs a processed folder into the bucket."""
    return ["pack", whole_dir / "processed", "-o", URL]


def test_pack_writes_the_same_bytes_as_to_a_file(
    server: BucketServer, pack_words: list[str | Path], archive: Path
) -> None:
    value = run_main(*pack_words, "--json").json

    assert value["archives"] == {URL: archive.stat().st_size}
    assert value["up_to_date"] is False
    assert server.get("dir/scannet.tar.zst") == archive.read_bytes()


def test_pack_shows_the_line_of_python_that_reads_the_bucket(
    server: BucketServer, pack_words: list[str | Path]
) -> None:
    assert f'in Python: ScanNet("{URL}", split="train")' in run_main(*pack_words).stdout


def test_pack_keeps_an_archive_that_is_up_to_date(
    server: BucketServer, pack_words: list[str | Path], archive: Path
) -> None:
    server.put("dir/scannet.tar.zst", archive.read_bytes())
    assert run_main(*pack_words, "--json").json["up_to_date"] is True


def test_pack_replaces_a_changed_archive(
    server: BucketServer, pack_words: list[str | Path], archive: Path
) -> None:
    changed = bytearray(archive.read_bytes())
    changed[500] ^= 1
    server.put("dir/scannet.tar.zst", bytes(changed))

    assert run_main(*pack_words, "--json").json["up_to_date"] is False

    assert server.get("dir/scannet.tar.zst") == archive.read_bytes()


def test_pack_refuses_to_lose_scenes_of_the_older_archive(
    server: BucketServer, pack_words: list[str | Path], archive: Path
) -> None:
    server.put("dir/scannet.tar.zst", archive.read_bytes())

    outcome = run_main(*pack_words, "--splits", "val")

    assert outcome.status == 2
    assert "holds 2 scenes that the new archive would not" in outcome.stderr


@pytest.mark.parametrize(
    ("output", "problem"),
    [
        ([URL, "--shard-size", "4MB"], "shards are not written to a bucket"),
        ([f"s3://{BUCKET}/scannet"], f"use -o s3://{BUCKET}/scannet.tar.zst"),
        (
            [f"https://anna:pa55word@{BUCKET}/x.tar.zst"],
            "is not an address of an object in a bucket",
        ),
    ],
)
def test_place_that_pack_does_not_write_to_is_refused_at_once(
    server: BucketServer, whole_dir: Path, output: list[str], problem: str
) -> None:
    outcome = run_main("pack", whole_dir / "processed", "-o", *output)

    assert outcome.status == 2
    assert problem in outcome.stderr
    assert "pa55word" not in outcome.stderr
    assert server.keys() == []
    assert server.requests == []


@pytest.fixture
def large_dir(tmp_path: Path) -> Path:
    """A raw tree whose archive has two parts and a half."""
    content = np.random.default_rng(1).bytes(10_000_000)
    files = {f"scans/{name}/{name}_vh_clean_2.ply": content for name in (TRAIN, VAL)}
    return write_tree(tmp_path / "large", files)


def part_numbers(server: BucketServer) -> set[str]:
    """Return the numbers of the parts that were uploaded."""
    numbers = set()
    for method, path in server.requests:
        if method == "PUT":
            numbers.update(re.findall(r"partNumber=(\d+)", path))
    return numbers


def test_large_archive_is_written_in_parts_some_of_which_fail(
    server: BucketServer, large_dir: Path, tmp_path: Path
) -> None:
    faults = iter(["reset", (503, "SlowDown")])
    server.rule = lambda _, path: next(faults, None) if "partNumber=2" in path else None

    assert run_main("pack", large_dir, "-o", URL, "--force").status == 0

    assert part_numbers(server) == {"1", "2", "3"}
    pack_tree(large_dir, tmp_path / "x.tar.zst")
    assert server.get("dir/scannet.tar.zst") == (tmp_path / "x.tar.zst").read_bytes()


@pytest.mark.parametrize(
    "failing", [r"POST .*\?uploads\b", r"PUT .*partNumber=2\b", r"POST .*\?uploadId\b"]
)
def test_failed_upload_leaves_the_older_object_and_no_parts(
    server: BucketServer, large_dir: Path, failing: str
) -> None:
    def deny(method: str, path: str) -> Fault:
        return (403, "AccessDenied") if re.match(failing, f"{method} {path}") else None

    server.put("dir/scannet.tar.zst", b"older")
    server.rule = deny

    outcome = run_main("pack", large_dir, "-o", URL, "--force", "-v")

    assert outcome.status == 1
    assert f"error: {URL}: cannot be written: " in outcome.stderr
    assert find_secrets(outcome.stderr + outcome.stdout) == []
    assert server.get("dir/scannet.tar.zst") == b"older"
    assert server.unfinished() == []


def interrupt_upload(
    server: BucketServer, large_dir: Path, number: signal.Signals
) -> tuple[int, str]:
    """Send a signal to `pack` while it uploads the first part.

    Returns:
        Its exit status and its messages.
    """

    is_sent = threading.Event()

    def wait_for_signal() -> None:
        is_sent.wait(60)

    def hold_parts(_method: str, path: str) -> Fault:
        return wait_for_signal if "partNumber" in path else None

    server.rule = hold_parts
    command = start_command("pack", large_dir, "-o", URL, "--force")
    while not any("partNumber=1" in path for _, path in list(server.requests)):
        assert command.poll() is None
        time.sleep(0.05)
    command.send_signal(number)
    is_sent.set()
    _, messages = command.communicate(timeout=60)
    return command.returncode, messages


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_interrupted_upload_leaves_older_object_and_no_parts(
    server: BucketServer, large_dir: Path, number: signal.Signals
) -> None:
    server.put("dir/scannet.tar.zst", b"older")

    status, messages = interrupt_upload(server, large_dir, number)

    assert status == 130, messages
    assert "Traceback" not in messages
    assert server.unfinished() == []
    assert server.get("dir/scannet.tar.zst") == b"older"


def test_killed_upload_leaves_no_object(server: BucketServer, large_dir: Path) -> None:
    status, _ = interrupt_upload(server, large_dir, signal.SIGKILL)

    assert status == -signal.SIGKILL
    assert server.keys() == []


def test_content_that_fails_while_it_is_uploaded_leaves_nothing(server: BucketServer) -> None:
    def make_pieces() -> Iterator[bytes]:
        yield CONTENT * 30
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        upload(URL, make_pieces(), 1)

    assert any(method == "DELETE" for method, _ in server.requests)
    assert server.unfinished() == []
    assert server.keys() == []


def test_failed_upload_shows_no_secrets_in_its_error(server: BucketServer) -> None:
    server.rule = lambda method, _: (403, "SignatureDoesNotMatch") if method == "PUT" else None
    with pytest.raises(OutputError, match="cannot be written: the store refuses access") as caught:
        upload(URL, [CONTENT * 30], 1)

    assert caught.value.__context__ is None
    assert find_secrets(repr(caught.value)) == []


def test_parts_of_a_larger_archive_are_larger(server: BucketServer) -> None:
    upload(URL, [CONTENT * 20] * 4, expected_bytes=9_000 * 12_000_000)

    assert len([path for method, path in server.requests if method == "PUT"]) == 2
    assert server.get("dir/scannet.tar.zst") == CONTENT * 80
