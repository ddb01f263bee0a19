"""`info`, `verify` and `unpack` on addresses: as on files, with few requests, and without showing secrets."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from archives import call, pack_shards
from certificates import make_private_authority
from forged_archives import find_parts, flip
from release_server import ROOT, ReleaseServer
from verifying import TRAIN, VAL

from scannet_prep.remote import ranges

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


def without_places(value: dict[str, Any]) -> dict[str, Any]:
    return {key: item for key, item in value.items() if key not in ("path", "paths", "seconds")}


def test_info_and_verify_say_of_an_address_what_they_say_of_the_file(server: ReleaseServer, archive_path: Path) -> None:
    for command in (["info"], ["verify", "--jobs", "2"], ["verify", "--quick"], ["verify", "--scenes", TRAIN]):
        of_file = run(command[0], archive_path, *command[1:])
        of_url = run(command[0], secret_url(server), *command[1:])
        assert of_url[0] == of_file[0] == 0
        assert without_places(of_url[1]) == without_places(of_file[1])
        assert of_url[1]["path"] == public(server)
    for name in ("info", "verify"):
        outcome = call(name, secret_url(server))
        assert (outcome.status, public(server) in outcome.stdout) == (0, True)
        assert not any(secret in outcome.stdout + outcome.stderr for secret in SECRETS)
    limits = {"info": 4, "verify": 12, "verify --quick": 12, f"verify --scenes {VAL}": 8}
    for command, limit in limits.items():
        server.forget()
        name, *options = command.split()
        assert run(name, secret_url(server), *options)[0] == 0
        assert len(server.requests()) <= limit, command


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
    status, value = run("unpack", secret_url(server), "-o", tmp_path / "rescued")
    assert status == 3
    assert (tmp_path / f"rescued/train/{TRAIN}.npz").is_file()
    assert len(server.requests()) <= 12
    status, value = run("info", secret_url(server))
    assert (status, value["error"]) == (1, "ArchiveError")


def test_shards_may_be_files_and_addresses_mixed(server: ReleaseServer, whole_dir: Path, tmp_path: Path) -> None:
    paths = pack_shards(whole_dir / "processed", tmp_path / "s.tar.zst", 20_000)
    assert len(paths) == 3
    server.files |= {f"{ROOT}{path.name}": path for path in paths}
    (tmp_path / "other disk").mkdir()
    shutil.move(paths[1], tmp_path / "other disk")
    places: list[object] = [secret_url(server, paths[0].name), tmp_path / "other disk" / paths[1].name, paths[2]]
    server.files[f"{ROOT}{paths[1].name}"] = tmp_path / "other disk" / paths[1].name
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
        status, value = run(command, secret_url(server, "nothing.tar.zst"))
        assert (status, value["error"]) == (1, "NotOnServerError")
        status, value = run(command, secret_url(server), secret_url(server))
        assert (status, value["error"]) == (2, "UsageError")
        status, value = run(command, "https://anna:s3cret@[/?t0ken")
        assert (status, value["error"]) == (2, "UsageError")


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
