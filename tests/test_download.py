"""The command `download`, against a real server that behaves."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from commands import digests, run_main
from downloads import SCENES, fetched, release_fixtures, words
from release_server import ReleaseServer, Status, at, ending

from scannet_prep.raw.lock import read_lock
from scannet_prep.release import BASE_URL

release_dir, server = release_fixtures(SCENES, 600)


def download(server: ReleaseServer, data_dir: Path, *more: str):
    return run_main(*words(SCENES, server.base_url, data_dir, *more))


def test_it_brings_the_release_and_records_it(server: ReleaseServer, tmp_path: Path) -> None:
    outcome = download(server, tmp_path, "--json")
    assert outcome.status == 0, outcome.stderr
    lock = read_lock(tmp_path / "scannet.lock")
    assert fetched(tmp_path) == digests(server.root) == {name: entry.sha256 for name, entry in lock.items()}
    server.forget()
    again = download(server, tmp_path, "--json")
    assert outcome.json["files"] == {"fetched": len(lock), "already there": 0, "failed": 0}
    assert again.json["files"] == {"fetched": 0, "already there": len(lock), "failed": 0}
    assert (again.status, server.requests()) == (0, [])


def test_a_tree_of_the_official_script_is_adopted_and_mended(server: ReleaseServer, tmp_path: Path) -> None:
    data_dir = Path(shutil.copytree(server.root, tmp_path / "ScanNet"))
    mesh = data_dir / "scans/scene0000_00/scene0000_00_vh_clean_2.ply"
    segments = data_dir / "scans/scene0011_00/scene0011_00_vh_clean_2.0.010000.segs.json"
    labels = data_dir / "scans/scene0000_00/scene0000_00_vh_clean_2.labels.ply"
    mesh.write_bytes(mesh.read_bytes()[:-100])
    segments.unlink()
    labels.write_text("<html>404</html>")
    outcome = download(server, data_dir, "--json")
    assert len(server.requests()) == 3  # what is whole is not asked for
    assert outcome.status == 0, outcome.stderr
    assert fetched(data_dir) == digests(server.root)


def test_nothing_is_fetched_before_the_terms(
    server: ReleaseServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    data_dir = tmp_path / "ScanNet"
    command = ["download", "--types", "seg", "-o", data_dir, "--base-url", server.base_url, "--limit", "1"]
    outcome = run_main(*command, "--json")
    assert (outcome.status, outcome.json["error"]) == (2, "TermsError")
    assert "--accept-terms" in outcome.json["hint"]
    assert (server.requests(), data_dir.exists()) == ([], False)
    monkeypatch.setenv("SCANNET_PREP_ACCEPT_TERMS", "1")
    assert run_main(*command).status == 0
    assert "ScanNet_TOS.pdf" in (data_dir / "terms_accepted.txt").read_text()


def test_the_plan_needs_no_network_and_asks_test_scenes_only_for_what_they_have(tmp_path: Path) -> None:
    outcome = run_main("download", "--types", "seg", "-o", tmp_path / "x", "--dry-run", "--json")
    assert outcome.json["files"] == 7_765 + 1
    kinds = {(item["type"], item["split"]): item["files"] for item in outcome.json["kinds"]}
    assert kinds["_vh_clean_2.ply", "test"] == kinds[".txt", "test"] == 100
    assert ("_vh_clean_2.labels.ply", "test") not in kinds
    assert list(tmp_path.iterdir()) == []
    smaller = run_main("download", "--types", "seg-min", "-o", tmp_path / "x", "--dry-run", "--json")
    saved_bytes = outcome.json["missing_bytes"] - smaller.json["missing_bytes"]
    assert (smaller.json["files"], round(saved_bytes / 1e9, 1)) == (7_766 - 1_513, 9.7)
    told = run_main("download", "--types", "seg", "-o", tmp_path / "x", "--dry-run")
    assert "--types seg-min would save about 9.7 GB" in told.stdout


@pytest.mark.parametrize(
    ("words", "status", "message"),
    [
        (["--types", "segm"], 2, "'segm' is not a type of file"),
        (["--types", "seg", "--scenes", "scene9999_00"], 2, "scene9999_00 is in none of the official lists"),
        (["--types", "seg", "--jobs", "9"], 2, "expected 1 to 8"),
        (["--types", "seg", "--insecure", "--ca-bundle", "x"], 2, "not allowed with"),
        (["--types", "seg", "--ca-bundle", "nowhere.pem"], 2, "nowhere.pem: No such file"),
        (["--types", "seg", "--ca-bundle", __file__], 2, "holds no certificate (PEM)"),
        (["--types", "seg", "--base-url", "kaldir"], 2, "is not a base URL"),
        (["--types", "seg", "--base-url", "http://host:99999/"], 2, "is not a base URL"),
        (["--types", "seg", "--base-url", "http://host/?token=1"], 2, "'http://host/?...' is not a base URL"),
        (["--types", "_vh_clean_2.labels.ply", "--splits", "test"], 2, "no file of these types exists"),
    ],
)
def test_wrong_requests_touch_nothing(tmp_path: Path, words: list[str], status: int, message: str) -> None:
    outcome = run_main("download", *words, "-o", tmp_path / "x", "--accept-terms", "--json", cwd=tmp_path)
    assert outcome.status == status
    assert message in outcome.stderr
    assert not (tmp_path / "x").exists()


def test_a_password_of_a_mirror_is_never_shown(server: ReleaseServer, tmp_path: Path) -> None:
    server.faults = [at(ending(".txt"), then=Status(404))]
    base_url = server.base_url.replace("//", "//user:secret@")
    for more in (["--dry-run"], ["--dry-run", "--json"], ["--json"], []):
        outcome = run_main(*words(SCENES, base_url, tmp_path, *more))
        assert "secret" not in outcome.stdout + outcome.stderr
    assert outcome.status == 3
    server.faults = [at(None, then=Status(404))]
    nothing = run_main(*words(SCENES, base_url, tmp_path / "x"))
    assert (nothing.status, "secret" in nothing.stderr) == (1, False)
    assert "gives none of the first files" in nothing.stderr
    assert {path.name for path in (tmp_path / "x").iterdir()} == {"terms_accepted.txt"}


def test_certificates_of_the_environment_are_read_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("REQUESTS_CA_BUNDLE", "/nowhere.pem")
    outcome = run_main("download", "--types", "seg", "-o", tmp_path / "x", "--accept-terms", "--json")
    assert (outcome.status, outcome.json["message"]) == (2, "/nowhere.pem: No such file or directory")
    assert "REQUESTS_CA_BUNDLE" in outcome.json["hint"]
    assert not (tmp_path / "x").exists()


def test_a_damaged_lock_is_told_before_anything_is_touched(tmp_path: Path) -> None:
    (tmp_path / "scannet.lock").write_text("<<<<<<< ours\n")
    outcome = run_main("download", "--types", "seg", "-o", tmp_path, "--accept-terms", "--json")
    assert (outcome.status, outcome.json["error"]) == (1, "LockError")
    assert [path.name for path in tmp_path.iterdir()] == ["scannet.lock"]


@pytest.mark.parametrize("style", ["plain", "aria2"])
def test_addresses_are_printed_for_other_programs(style: str, tmp_path: Path) -> None:
    command = ["download", "--types", ".sens", "_vh_clean_2.ply", "--scenes", "scene0000_00", "scene0707_00"]
    outcome = run_main(*command, "--print-urls", style, "-o", tmp_path)
    expected = [
        (f"{BASE_URL}{version}/scans/{scene_id}/{scene_id}{suffix}", f"{folder}/{scene_id}/{scene_id}{suffix}")
        for version, folder, scene_id, suffix in [
            ("v1", "scans", "scene0000_00", ".sens"),
            ("v2", "scans", "scene0000_00", "_vh_clean_2.ply"),
            ("v2", "scans_test", "scene0707_00", ".sens"),
            ("v2", "scans_test", "scene0707_00", "_vh_clean_2.ply"),
        ]
    ]
    aria2 = [line for url, path in expected for line in (url, f"  dir={tmp_path}", f"  out={path}")]
    assert outcome.stdout.splitlines() == (aria2 if style == "aria2" else [url for url, _ in expected])
    value = run_main(*command, "--print-urls", style, "-o", tmp_path, "--json").json
    assert value["files"] == [{"url": url, "path": path} for url, path in expected]
    for _, path in expected:
        (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / path).touch()
    assert run_main(*command, "--print-urls", style, "-o", tmp_path).stdout == ""
