"""What lies between a download and the server: proxies, certificates, redirections, IPv6; and what is told of it."""

import socket
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from commands import digests, run_main
from downloads import MESH, PATIENCE, Bar, fetch, fetched, make_private_authority, words
from release_server import Cut, Redirect, ReleaseServer, Reset, Set, Status, at, ending

from scannet_prep.base.errors import CertificateError, OutputError, ProxyError, TransferError
from scannet_prep.base.version import CONTACT_URL
from scannet_prep.remote.client import find_source_address


def test_a_mirror_with_a_private_authority_is_trusted_only_if_told_so(
    release_dir: Path, tmp_path: Path, authority: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    ca_path, certificate_path = authority
    with ReleaseServer(release_dir, certificate=certificate_path) as server:
        outcome = run_main(*words(server.base_url, tmp_path, "--json"))
        assert (outcome.status, outcome.json["error"]) == (1, "CertificateError")
        assert "--ca-bundle" in outcome.json["hint"]
        assert (
            server.connection_count <= 8
        )  # one or two for each of four threads: not one for each file
        assert {path.name for path in tmp_path.iterdir()} == {"terms_accepted.txt"}
        outcome = run_main(*words(server.base_url, tmp_path, "--limit", "1", "--insecure"))
        assert (outcome.status, "warning: --insecure" in outcome.stderr) == (0, True)
        assert run_main(*words(server.base_url, tmp_path, "--ca-bundle", ca_path)).status == 0
        assert fetched(tmp_path) == digests(release_dir)
        # Those that the environment names count for this machine too, whose proxy is not for it.
        monkeypatch.setenv("REQUESTS_CA_BUNDLE", str(ca_path))
        monkeypatch.setenv("HTTPS_PROXY", "http://127.0.0.1:9")
        server.forget()
        assert not fetch(server, tmp_path / "environment").failures
        assert all(CONTACT_URL in request.headers["user-agent"] for request in server.requests())


@pytest.mark.parametrize(
    "variable", ["REQUESTS_CA_BUNDLE", "CURL_CA_BUNDLE", "SSL_CERT_FILE", "SSL_CERT_DIR"]
)
def test_authorities_in_the_environment_are_trusted(
    release_dir: Path,
    tmp_path: Path,
    authority: tuple[Path, Path],
    authority_dir: Path,
    monkeypatch: pytest.MonkeyPatch,
    variable: str,
) -> None:
    ca_path, certificate_path = authority
    monkeypatch.setenv(variable, str(authority_dir if variable == "SSL_CERT_DIR" else ca_path))
    with ReleaseServer(release_dir, certificate=certificate_path) as server:
        assert run_main(*words(server.base_url, tmp_path, "--limit", "1")).status == 0


def test_ca_bundle_takes_a_folder_of_hashed_certificates(
    release_dir: Path, tmp_path: Path, authority: tuple[Path, Path], authority_dir: Path
) -> None:
    with ReleaseServer(release_dir, certificate=authority[1]) as server:
        assert (
            run_main(
                *words(server.base_url, tmp_path, "--limit", "1", "--ca-bundle", authority_dir)
            ).status
            == 0
        )


@pytest.mark.parametrize("is_option", [True, False])
def test_hint_after_a_given_authority_does_not_suggest_to_give_one(
    release_dir: Path,
    tmp_path: Path,
    authority: tuple[Path, Path],
    monkeypatch: pytest.MonkeyPatch,
    is_option: bool,
) -> None:
    other_path, _ = make_private_authority(tmp_path / "other")
    more = ["--ca-bundle", other_path] if is_option else []
    if not is_option:
        monkeypatch.setenv("SSL_CERT_FILE", str(other_path))
    with ReleaseServer(release_dir, certificate=authority[1]) as server:
        outcome = run_main(*words(server.base_url, tmp_path / "data", *more, "--json"))
    assert (outcome.status, outcome.json["error"]) == (1, "CertificateError")
    assert (
        outcome.json["hint"]
        == f"none of the authorities in {other_path} signed it: add the right one to them"
    )


def test_encryption_is_never_given_up(
    release_dir: Path, tmp_path: Path, authority: tuple[Path, Path]
) -> None:
    ca_path, certificate_path = authority
    with (
        ReleaseServer(release_dir) as plain,
        ReleaseServer(release_dir, certificate=certificate_path) as secure,
    ):
        secure.faults = [at(ending(".txt"), then=Redirect(origin=plain.origin))]
        plain.faults = [at(ending(MESH), then=Redirect(origin=secure.origin))]
        report = fetch(secure, tmp_path / "a", certificates=ca_path)
        assert {item.file.kind.suffix for item in report.failures} == {".txt"}
        assert (
            report.failures[0].reason == "is redirected from https to http, which is not followed"
        )
        assert plain.connection_count == 0
        assert not fetch(plain, tmp_path / "b", certificates=ca_path).failures


def test_server_that_redirects_to_http_is_refused_at_once(
    release_dir: Path, tmp_path: Path, authority: tuple[Path, Path]
) -> None:
    ca_path, certificate_path = authority
    with (
        ReleaseServer(release_dir) as plain,
        ReleaseServer(release_dir, certificate=certificate_path) as secure,
    ):
        secure.faults = [at(None, then=Redirect(origin=plain.origin))]
        with pytest.raises(
            TransferError, match="is redirected from https to http, which is not followed"
        ) as caught:
            fetch(secure, tmp_path, certificates=ca_path)
        assert "login page" in caught.value.hint
        assert (len(secure.requests()) < 12, plain.connection_count) == (True, 0)


@pytest.mark.parametrize(
    ("names", "days", "hint"),
    [
        ("IP:127.0.0.2", 2, "the address leads to another server"),
        ("IP:127.0.0.1", -1, "this machine's clock is wrong"),
    ],
)
def test_hints_tell_what_certificates_lack(
    release_dir: Path, tmp_path: Path, names: str, days: int, hint: str
) -> None:
    ca_path, certificate_path = make_private_authority(tmp_path / "authority", names, days)
    with (
        ReleaseServer(release_dir, certificate=certificate_path) as server,
        pytest.raises(CertificateError, match="cannot be verified") as caught,
    ):
        fetch(server, tmp_path / "data", certificates=ca_path)
    assert hint in caught.value.hint
    assert "--ca-bundle" not in caught.value.hint


@pytest.mark.parametrize("proxy", ["", "socks5://127.0.0.1:9", "http://", "http://127.0.0.1:port"])
def test_a_proxy_that_cannot_be_used_ends_the_run_and_says_so(
    server: ReleaseServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, proxy: str
) -> None:
    server.faults = [at(None, then=Status(407))]  # of the proxy that wants a password
    for scheme in ("http", "https"):
        monkeypatch.setenv(f"{scheme}_proxy", proxy or server.origin)
        server.base_url = f"{scheme}://mirror.invalid/scannet/"
        with pytest.raises(
            ProxyError, match="the proxy cannot be used" if proxy else "407"
        ) as caught:
            fetch(server, tmp_path)
        assert "http://USER:PASSWORD@HOST:PORT" in caught.value.hint


def test_ipv4_is_used_where_ipv6_leads_nowhere(monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.socket(socket.AF_INET6) as hole:
        try:
            hole.bind(("::1", 0))
        except OSError:
            pytest.skip("no IPv6 here")
        kind = socket.SOCK_STREAM, 6, ""
        found = [
            (socket.AF_INET6, *kind, hole.getsockname()),
            (socket.AF_INET, *kind, ("127.0.0.1", 9)),
        ]
        monkeypatch.setattr(socket, "getaddrinfo", lambda *_arguments, **_options: found)
        assert find_source_address("https://mirror.example/", 0.2) == ("0.0.0.0", 0)
        hole.listen()
        assert find_source_address("https://mirror.example/", 0.2) is None
        del found[0]
        assert find_source_address("https://mirror.example/", 0.2) is None


def test_room_is_sought_where_links_end(
    server: ReleaseServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("data", "elsewhere"):
        (tmp_path / name).mkdir()
    (tmp_path / "data/scans").symlink_to(tmp_path / "elsewhere")
    looked: list[Path] = []
    monkeypatch.setattr(
        "scannet_prep.stages.download.running.check_space", lambda folder, *_: looked.append(folder)
    )
    assert not fetch(server, tmp_path / "data").failures
    assert looked == [tmp_path / "elsewhere"]


@pytest.mark.parametrize(
    ("fault", "base_url", "words"),
    [
        (None, "http://mirror.invalid/", "cannot find mirror.invalid: is this machine online?"),
        (None, "http://127.0.0.1:9/", "127.0.0.1 refuses the connection"),
        (None, "https://127.0.0.1:PORT/", "no encrypted connection to 127.0.0.1 can be made: "),
        (Reset(), "", "the connection broke off"),
        (Cut(), "", "the connection broke off"),
        (
            Set(before=b"SSH-2.0-OpenSSH_9.6\r\n"),
            "",
            "127.0.0.1 sends an answer that cannot be understood",
        ),
    ],
)
def test_network_trouble_is_named(
    server: ReleaseServer, tmp_path: Path, fault: Any, base_url: str, words: str
) -> None:
    server.faults = [at(None, then=fault)]
    server.base_url = base_url.replace("PORT", str(server.port)) or server.base_url
    report = fetch(server, tmp_path, policy=replace(PATIENCE, first_answer_patience_s=0.1))
    assert report.failures
    assert all(f"({words}" in item.message for item in report.failures)


def test_whole_read_only_trees_are_fine(
    server: ReleaseServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(path: Path, _data: bytes, **_options: bool) -> None:
        raise OutputError(f"{path}: cannot be written: Read-only file system")

    bar = Bar()
    fetch(server, tmp_path)
    monkeypatch.setattr("scannet_prep.stages.download.running.write_if_changed", refuse)
    assert not fetch(server, tmp_path, bar=bar).failures
    (tmp_path / "scans/scene0000_00/scene0000_00.txt").unlink()
    with pytest.raises(OutputError, match="Read-only"):
        fetch(server, tmp_path)
    assert bar.notes == [
        f"not recorded: {tmp_path / 'scannet.lock'}: cannot be written: Read-only file system"
    ]
