"""What archives are read from: every reader tells foreign files alike, and reads addresses in few requests."""

from __future__ import annotations

import gzip
import os
import shutil
import tarfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import zstandard
from archives import call, pack_shards, unpack_pipe
from certificates import make_private_authority
from forged_archives import find_parts, flip
from release_server import ROOT, ReleaseServer
from verifying import TRAIN, VAL

from scannet_prep import ScanNet
from scannet_prep.errors import ArchiveError, FileError, UsageError
from scannet_prep.remote import ranges
from scannet_prep.stages import info, unpack
from scannet_prep.stages.verify import archive as verify_archive

TAR = tarfile.TarInfo("some.txt").tobuf() + bytes(1024)
FRAME = zstandard.compress(TAR, 3)
FOREIGN = {
    "a .tar.zst of another program": (FRAME, "tar --zstd -xf"),
    "a .tar.zst of pzstd": (b"\x50\x2a\x4d\x18\4\0\0\0" + len(FRAME).to_bytes(4, "little") + FRAME, "tar --zstd -xf"),
    "a zstd file": (zstandard.compress(b"text"), "zstd -d"),
    "a tar file": (TAR, "tar -xf"),
    "a gzip file": (gzip.compress(TAR), "tar -xf"),
    "a zip file": (b"PK\x03\x04" + bytes(60), "unzip"),
    "a 7z file": (b"7z\xbc\xaf\x27\x1c" + bytes(60), "7z x"),
    "a web page": (b"<!DOCTYPE html><html>Please log in</html>", "in a browser"),
    "empty": (b"", "copy it again"),
    "a file of another kind": (b"something else" * 50, "scannet-prep pack made"),
}

READERS: dict[str, Callable[[Path], object]] = {
    "info": lambda path: info.run([path]),
    "verify": lambda path: verify_archive.run([path]),
    "unpack": lambda path: unpack.plan([path]),
    "ScanNet": lambda path: ScanNet(path, split="train"),
}


@pytest.mark.parametrize("what", FOREIGN)
def test_every_reader_says_what_a_foreign_file_is_and_what_to_type(what: str, tmp_path: Path) -> None:
    data, command = FOREIGN[what]
    path = tmp_path / "some file.tar.zst"
    path.write_bytes(data)
    told = set()
    for name, read in READERS.items():
        with pytest.raises(ArchiveError) as caught:
            read(path)
        assert command in caught.value.hint, name
        assert ("'" in caught.value.hint) == ("-" in command.split()[-1] or command in {"unzip", "7z x"})
        told.add((caught.value.problem, caught.value.hint))
    assert len(told) == 1
    assert next(iter(told))[0].startswith("is ")
    assert "seek table" not in str(told)


def test_a_foreign_file_in_a_pipe_is_recognised_too(tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(FOREIGN["a gzip file"][0])
    outcome = unpack_pipe(tmp_path / "a", "-o", tmp_path / "out")
    assert (outcome.status, "is a gzip file" in outcome.stderr) == (1, True)
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("name", READERS)
def test_a_named_pipe_does_not_hang_and_places_that_cannot_be_read_say_what_they_need(
    name: str, tmp_path: Path
) -> None:
    read: Callable[[Any], object] = READERS[name]
    with pytest.raises(UsageError, match="addresses of the kind s3:// are not read") as caught:
        read("s3://bucket/scannet.tar.zst")
    assert "aws s3 presign s3://bucket/scannet.tar.zst" in caught.value.hint
    os.mkfifo(tmp_path / "a.tar.zst")
    for place, message in (("a.tar.zst", "is a named pipe"), ("b.tar.zst", "no such archive")):
        with pytest.raises(FileError, match=message):
            read(tmp_path / place)


SECRETS = ("anna", "s3cret", "t0ken")


@pytest.fixture
def archive_path(packed_dir: Path, tmp_path: Path) -> Path:
    return Path(shutil.copy(packed_dir / "processed.tar.zst", tmp_path / "scannet.tar.zst"))


@pytest.fixture
def server(archive_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[ReleaseServer]:
    monkeypatch.setattr(ranges, "TAIL_BYTES", 4_096)  # else all of it would come with the end
    with ReleaseServer(archive_path.parent) as server:
        server.files[f"{ROOT}scannet.tar.zst"] = archive_path
        yield server


def secret_url(server: ReleaseServer, name: str = "scannet.tar.zst") -> str:
    return f"{server.origin}{ROOT}{name}?key=t0ken".replace("http://", "http://anna:s3cret@")


def public(server: ReleaseServer, name: str = "scannet.tar.zst") -> str:
    return f"{server.origin}{ROOT}{name}?..."


def run(*words: object) -> tuple[int, dict[str, Any]]:
    outcome = call(*words, "--json")
    assert not any(secret in outcome.stdout + outcome.stderr for secret in SECRETS)
    return outcome.status, outcome.json


def test_info_and_verify_say_of_an_address_what_they_say_of_the_file_in_few_requests(
    server: ReleaseServer, archive_path: Path
) -> None:
    for command in (["info"], ["verify", "--jobs", "2"], ["verify", "--quick"], ["verify", "--scenes", TRAIN]):
        of_file = run(command[0], archive_path, *command[1:])
        of_url = run(command[0], secret_url(server), *command[1:])
        assert of_url[0] == of_file[0] == 0
        assert {key for key in of_url[1] if of_url[1][key] != of_file[1][key]} <= {"path", "paths", "seconds"}
        assert of_url[1]["path"] == public(server)
        outcome = call(command[0], secret_url(server))
        assert (outcome.status, public(server) in outcome.stdout) == (0, True)
        assert not any(secret in outcome.stdout + outcome.stderr for secret in SECRETS)
    limits = {"info": 4, "verify": 12, "verify --quick": 12, f"verify --scenes {VAL}": 8}
    for command, limit in limits.items():
        server.forget()
        name, *options = command.split()
        assert run(name, secret_url(server), *options)[0] == 0
        assert len(server.requests()) <= limit, command


def test_only_what_is_asked_for_is_fetched(server: ReleaseServer, archive_path: Path, tmp_path: Path) -> None:
    assert run("unpack", secret_url(server), "--scenes", VAL, "-o", tmp_path / "out")[0] == 0
    parts, ranges = find_parts(archive_path), [request.range for request in server.requests()]
    assert all(f"bytes={parts[part][0]}-{parts[part][1] - 1}" in ranges for part in ("files", VAL))
    assert f"bytes={parts[TRAIN][0]}-{parts[TRAIN][1] - 1}" not in ranges
    assert len(ranges) <= 8


def test_damage_on_a_server_is_found_and_named(server: ReleaseServer, archive_path: Path) -> None:
    flip(archive_path, sum(find_parts(archive_path)[VAL]) // 2)
    status, value = run("verify", secret_url(server))
    assert (status, value["damaged_scenes"]) == (3, [VAL])
    assert [(item["path"], item["scene_id"]) for item in value["findings"]] == [(public(server), VAL)]
    flip(archive_path, 0)  # then the manifest cannot be read
    status, value = run("info", secret_url(server))
    assert status == 3
    assert [item["path"] for item in value["unreadable"]] == [public(server)]


def test_a_truncated_archive_on_a_server_is_walked_through_in_few_requests(
    server: ReleaseServer, archive_path: Path, tmp_path: Path
) -> None:
    start, end = find_parts(archive_path)[VAL]
    archive_path.write_bytes(archive_path.read_bytes()[: (start + end) // 2])
    status, value = run("verify", secret_url(server))
    assert (status, value["whole_scenes"]) == (3, [TRAIN])
    assert len(server.requests()) <= 12
    server.forget()
    assert run("unpack", secret_url(server), "-o", tmp_path / "rescued")[0] == 3
    assert (tmp_path / f"rescued/train/{TRAIN}.npz").is_file()
    assert len(server.requests()) <= 12


def test_shards_may_be_files_and_addresses_mixed(server: ReleaseServer, whole_dir: Path, tmp_path: Path) -> None:
    paths = pack_shards(whole_dir / "processed", tmp_path / "s.tar.zst", 20_000)
    server.files |= {f"{ROOT}{path.name}": path for path in paths}
    (tmp_path / "other disk").mkdir()
    moved = Path(shutil.move(paths[1], tmp_path / "other disk"))
    places: list[object] = [secret_url(server, paths[0].name), moved, paths[2]]
    for command in ("info", "verify"):
        status, value = run(command, *places)
        assert (status, value["scenes"]) == (0, 3)
    status, value = run("info", *places[:2])
    assert value["missing_shards"] == [public(server, paths[2].name).removesuffix("?...")]
    status, value = run("verify", *places[:2])
    assert status == 3
    assert "of its set of shards, 1 were not given" in value["findings"][0]["message"]
    status, value = run("unpack", *places, "-o", tmp_path / "out")
    assert (status, len(value["scenes"])) == (0, 3)


def test_what_a_server_does_not_give_is_an_error_without_secrets(server: ReleaseServer) -> None:
    for command in ("info", "verify"):
        for places, expected in (
            ([secret_url(server, "nothing.tar.zst")], (1, "NotOnServerError")),
            ([secret_url(server)] * 2, (2, "UsageError")),
            (["https://anna:s3cret@[/?t0ken"], (2, "UsageError")),
        ):
            status, value = run(command, *places)
            assert (status, value["error"]) == expected


def test_authorities_can_be_named(archive_path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("REQUESTS_CA_BUNDLE", raising=False)
    ca_path, certificate_path = make_private_authority(tmp_path / "authority")
    with ReleaseServer(archive_path.parent, certificate=certificate_path) as server:
        server.files[f"{ROOT}a.tar.zst"] = archive_path
        url = f"{server.origin}{ROOT}a.tar.zst"
        for words in (["info"], ["verify"], ["unpack", "-o", tmp_path / "out"]):
            status, value = run(*words, url)
            assert (status, value["error"]) == (1, "CertificateError")
            assert "--ca-bundle" in value["hint"]
            assert run(*words, url, "--ca-bundle", ca_path)[0] == 0
            outcome = call(*words, url, "--insecure")
            assert (outcome.status, "certificates are not verified" in outcome.stderr) == (0, True)
