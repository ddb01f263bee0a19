"""Proxies, certificates and redirections between a download and its server."""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from commands import digests, run_main
from downloads import (
    MESH,
    PATIENCE,
    Bar,
    failed_suffixes,
    fetch,
    fetched,
    make_private_authority,
    words,
)
from release_server import Cut, Fault, Redirect, ReleaseServer, Reset, Set, Status, at, ending

from scannet_prep.base.version import CONTACT_URL
from scannet_prep.errors import CertificateError, OutputError, ProxyError, TransferError


@pytest.fixture
def private_server(release_dir: Path, authority: tuple[Path, Path]) -> Iterator[ReleaseServer]:
    """A server with a certificate of a private authority."""
    _, certificate_path = authority
    with ReleaseServer(release_dir, certificate=certificate_path) as server:
        yield server


def test_certificate_of_an_unknown_authority_ends_the_run(
    private_server: ReleaseServer, tmp_path: Path
) -> None:
    outcome = run_main(*words(private_server.base_url, tmp_path, "--json"))

    assert outcome.status == 1
    assert outcome.json["error"] == "CertificateError"
    assert "--ca-bundle" in outcome.json["hint"]
    # One or two for each of four threads, not one for each file.
    assert private_server.connection_count <= 8
    assert [path.name for path in tmp_path.iterdir()] == ["terms_accepted.txt"]


def test_insecure_accepts_any_certificate_with_a_warning(
    private_server: ReleaseServer, tmp_path: Path
) -> None:
    outcome = run_main(*words(private_server.base_url, tmp_path, "--limit", "1", "--insecure"))

    assert outcome.status == 0
    assert "warning: --insecure" in outcome.stderr


def test_authority_of_ca_bundle_is_trusted(
    private_server: ReleaseServer, tmp_path: Path, authority: tuple[Path, Path]
) -> None:
    command = words(private_server.base_url, tmp_path, "--ca-bundle", authority[0])

    assert run_main(*command).status == 0

    assert fetched(tmp_path) == digests(private_server.root)


def test_ca_bundle_takes_a_folder_of_hashed_certificates(
    private_server: ReleaseServer, tmp_path: Path, authority_dir: Path
) -> None:
    more = ["--limit", "1", "--ca-bundle", authority_dir]
    assert run_main(*words(private_server.base_url, tmp_path, *more)).status == 0


@pytest.mark.parametrize(
    "variable", ["REQUESTS_CA_BUNDLE", "CURL_CA_BUNDLE", "SSL_CERT_FILE", "SSL_CERT_DIR"]
)
def test_authorities_named_in_the_environment_are_trusted(
    private_server: ReleaseServer,
    tmp_path: Path,
    authority: tuple[Path, Path],
    authority_dir: Path,
    monkeypatch: pytest.MonkeyPatch,
    variable: str,
) -> None:
    path = authority_dir if variable == "SSL_CERT_DIR" else authority[0]
    monkeypatch.setenv(variable, str(path))

    assert run_main(*words(private_server.base_url, tmp_path, "--limit", "1")).status == 0


def test_proxy_is_not_used_for_this_machine(
    private_server: ReleaseServer,
    tmp_path: Path,
    authority: tuple[Path, Path],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("HTTPS_PROXY", "http://127.0.0.1:9")
    assert not fetch(private_server, tmp_path, certificates=authority[0]).failures


def test_requests_name_the_program_and_its_home_page(server: ReleaseServer, tmp_path: Path) -> None:
    fetch(server, tmp_path)

    agents = {request.headers["user-agent"] for request in server.requests()}
    assert len(agents) == 1
    assert CONTACT_URL in agents.pop()


@pytest.mark.parametrize("is_option", [True, False])
def test_hint_after_a_given_authority_does_not_suggest_giving_one(
    private_server: ReleaseServer,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    is_option: bool,
) -> None:
    other_path, _ = make_private_authority(tmp_path / "other")
    more: list[str | Path] = []
    if is_option:
        more = ["--ca-bundle", other_path]
    else:
        monkeypatch.setenv("SSL_CERT_FILE", str(other_path))

    outcome = run_main(*words(private_server.base_url, tmp_path / "data", *more, "--json"))

    assert outcome.status == 1
    assert outcome.json["error"] == "CertificateError"
    hint = f"none of the authorities in {other_path} signed it: add the right one to them"
    assert outcome.json["hint"] == hint


REFUSED_REDIRECTION = "is redirected from https to http, which is not followed"


def test_redirection_of_a_file_to_http_is_not_followed(
    server: ReleaseServer,
    private_server: ReleaseServer,
    tmp_path: Path,
    authority: tuple[Path, Path],
) -> None:
    private_server.faults = [at(ending(".txt"), then=Redirect(origin=server.origin))]

    report = fetch(private_server, tmp_path, certificates=authority[0])

    assert set(failed_suffixes(report)) == {".txt"}
    assert report.failures[0].reason == REFUSED_REDIRECTION
    assert server.connection_count == 0


def test_redirection_of_a_file_to_https_is_followed(
    server: ReleaseServer,
    private_server: ReleaseServer,
    tmp_path: Path,
    authority: tuple[Path, Path],
) -> None:
    server.faults = [at(ending(MESH), then=Redirect(origin=private_server.origin))]
    assert not fetch(server, tmp_path, certificates=authority[0]).failures


def test_redirection_of_all_files_to_http_ends_the_run(
    server: ReleaseServer,
    private_server: ReleaseServer,
    tmp_path: Path,
    authority: tuple[Path, Path],
) -> None:
    private_server.faults = [at(None, then=Redirect(origin=server.origin))]

    with pytest.raises(TransferError, match=REFUSED_REDIRECTION) as caught:
        fetch(private_server, tmp_path, certificates=authority[0])

    assert "login page" in caught.value.hint
    assert len(private_server.requests()) < 12
    assert server.connection_count == 0


@pytest.mark.parametrize(
    ("names", "days", "hint"),
    [
        ("IP:127.0.0.2", 2, "the address leads to another server"),
        ("IP:127.0.0.1", -1, "this machine's clock is wrong"),
    ],
)
def test_hint_names_the_fault_of_a_certificate(
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


@pytest.mark.parametrize("scheme", ["http", "https"])
def test_proxy_that_requires_a_password_ends_the_run(
    server: ReleaseServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, scheme: str
) -> None:
    server.faults = [at(None, then=Status(407))]
    monkeypatch.setenv(f"{scheme}_proxy", server.origin)
    server.base_url = f"{scheme}://mirror.invalid/scannet/"

    with pytest.raises(ProxyError, match="407") as caught:
        fetch(server, tmp_path)

    assert "http://USER:PASSWORD@HOST:PORT" in caught.value.hint


@pytest.mark.parametrize("scheme", ["http", "https"])
@pytest.mark.parametrize("proxy", ["socks5://127.0.0.1:9", "http://", "http://127.0.0.1:port"])
def test_proxy_that_cannot_be_used_ends_the_run(
    server: ReleaseServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, proxy: str, scheme: str
) -> None:
    monkeypatch.setenv(f"{scheme}_proxy", proxy)
    server.base_url = f"{scheme}://mirror.invalid/scannet/"

    with pytest.raises(ProxyError, match="the proxy cannot be used") as caught:
        fetch(server, tmp_path)

    assert "http://USER:PASSWORD@HOST:PORT" in caught.value.hint


def test_disk_space_is_checked_where_a_link_leads(
    server: ReleaseServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    data_dir = tmp_path / "data"
    elsewhere = tmp_path / "elsewhere"
    data_dir.mkdir()
    elsewhere.mkdir()
    (data_dir / "scans").symlink_to(elsewhere)
    checked: list[Path] = []
    monkeypatch.setattr(
        "scannet_prep.stages.download.running.check_space",
        lambda folder, *_: checked.append(folder),
    )

    assert not fetch(server, data_dir).failures

    assert checked == [elsewhere]


NOT_HTTP = Set(before=b"SSH-2.0-OpenSSH_9.6\r\n")


@pytest.mark.parametrize(
    ("fault", "base_url", "reason"),
    [
        (None, "http://mirror.invalid/", "cannot find mirror.invalid: is this machine online?"),
        (None, "http://127.0.0.1:9/", "127.0.0.1 refuses the connection"),
        (None, "https://127.0.0.1:PORT/", "no encrypted connection to 127.0.0.1 can be made: "),
        (Reset(), "", "the connection broke off"),
        (Cut(), "", "the connection broke off"),
        (NOT_HTTP, "", "127.0.0.1 sends an answer that cannot be understood"),
    ],
)
def test_failure_of_the_network_is_named(
    server: ReleaseServer, tmp_path: Path, fault: Fault | None, base_url: str, reason: str
) -> None:
    server.faults = [at(None, then=fault)]
    if base_url:
        server.base_url = base_url.replace("PORT", str(server.port))

    report = fetch(server, tmp_path, policy=replace(PATIENCE, first_answer_patience_s=0.1))

    assert report.failures
    assert all(f"({reason}" in task.message for task in report.failures)


@pytest.fixture
def read_only_dir(server: ReleaseServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A complete tree in which `scannet.lock` can no longer be written."""

    def refuse(path: Path, _data: bytes, **_options: bool) -> None:
        raise OutputError(f"{path}: cannot be written: Read-only file system")

    fetch(server, tmp_path)
    monkeypatch.setattr("scannet_prep.stages.download.running.write_if_changed", refuse)
    return tmp_path


def test_complete_read_only_tree_is_accepted_with_a_note(
    server: ReleaseServer, read_only_dir: Path
) -> None:
    bar = Bar()

    assert not fetch(server, read_only_dir, bar=bar).failures

    lock_path = read_only_dir / "scannet.lock"
    assert bar.notes == [f"not recorded: {lock_path}: cannot be written: Read-only file system"]


def test_fetched_file_that_cannot_be_recorded_is_an_error(
    server: ReleaseServer, read_only_dir: Path
) -> None:
    (read_only_dir / "scans/scene0000_00/scene0000_00.txt").unlink()

    with pytest.raises(OutputError, match="Read-only"):
        fetch(server, read_only_dir)
