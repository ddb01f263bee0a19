"""The command `download`, against a real server that behaves."""

from pathlib import Path

import pytest
from commands import count_reads_in_new_process, digests, run_main
from downloads import fetched, words
from release_server import ReleaseServer, Status, at, ending

from scannet_prep.raw.lock import read_lock
from scannet_prep.release.files import BASE_URL


def test_it_brings_the_release_and_records_it(server: ReleaseServer, tmp_path: Path) -> None:
    outcome = run_main(*words(server.base_url, tmp_path, "--json"))
    assert outcome.status == 0, outcome.stderr
    lock = read_lock(tmp_path / "scannet.lock")
    assert (
        fetched(tmp_path)
        == digests(server.root)
        == {name: entry.sha256 for name, entry in lock.items()}
    )
    server.forget()
    again = run_main(*words(server.base_url, tmp_path, "--json"))
    assert outcome.json["files"] == {"fetched": len(lock), "already there": 0, "failed": 0}
    assert again.json["files"] == {"fetched": 0, "already there": len(lock), "failed": 0}
    assert (again.status, server.requests()) == (0, [])


def test_download_opens_each_file_of_a_scene_once(server: ReleaseServer, tmp_path: Path) -> None:
    counts = count_reads_in_new_process(*words(server.base_url, tmp_path))

    names = [path.name for path in tmp_path.rglob("scene*.*")]
    assert {name: counts.get(name) for name in names} == dict.fromkeys(names, 1)


def test_the_plan_needs_no_network_and_asks_test_scenes_only_for_what_they_have(
    tmp_path: Path,
) -> None:
    outcome = run_main("download", "--types", "seg", "-o", tmp_path / "x", "--dry-run", "--json")
    assert outcome.json["files"] == 7_766
    kinds = {(item["type"], item["split"]): item["files"] for item in outcome.json["kinds"]}
    assert kinds["_vh_clean_2.ply", "test"] == kinds[".txt", "test"] == 100
    assert ("_vh_clean_2.labels.ply", "test") not in kinds
    assert list(tmp_path.iterdir()) == []
    smaller = run_main(
        "download", "--types", "seg-min", "-o", tmp_path / "x", "--dry-run", "--json"
    )
    saved_bytes = outcome.json["missing_bytes"] - smaller.json["missing_bytes"]
    assert (smaller.json["files"], round(saved_bytes / 1e9, 1)) == (7_766 - 1_513, 9.7)
    told = run_main("download", "--types", "seg", "-o", tmp_path / "x", "--dry-run")
    assert "--types seg-min would save about 9.7 GB" in told.stdout


@pytest.mark.parametrize(
    ("more", "text"),
    [
        (["--types", "segm"], "'segm' is not a type of file"),
        (["--scenes", "scene9999_00"], "scene9999_00 is in none of the official lists"),
        (["--jobs", "9"], "expected 1 to 8"),
        (["--insecure", "--ca-bundle", "x"], "not allowed with"),
        (["--ca-bundle", "nowhere.pem"], "nowhere.pem: No such file"),
        (["--ca-bundle", __file__], "contains no certificate (PEM)"),
        (["--ca-bundle", str(Path(__file__).parent)], "contains no certificate under its hash"),
        (["--base-url", "kaldir"], "is not a base URL"),
        (["--base-url", "http://host:99999/"], "is not a base URL"),
        (["--base-url", "http://a..b/"], "'http://a..b/' is not a base URL"),
        (["--base-url", f"http://{'a' * 64}.de/"], "is not a base URL"),
        (["--base-url", "http://host/?token=1"], "'http://host/?...' is not a base URL"),
        (
            ["--types", "_vh_clean_2.labels.ply", "--splits", "test"],
            "no file of these types exists",
        ),
        (
            [],
            "/environment.pem: No such file or directory\nhint: --ca-bundle PATH takes a file of certificates (PEM)",
        ),
    ],
)
def test_bad_usage_touches_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, more: list[str], text: str
) -> None:
    monkeypatch.setenv("REQUESTS_CA_BUNDLE", "/environment.pem")
    command = ["download", "--types", "seg", "-o", "x", "--accept-terms", "--limit", "1", "--json"]
    outcome = run_main(*command, *more, cwd=tmp_path)
    assert outcome.status == outcome.json["exit_status"] == 2
    assert text in outcome.stderr
    assert list(tmp_path.iterdir()) == []


def test_no_password_is_ever_shown(server: ReleaseServer, tmp_path: Path) -> None:
    server.faults = [at(ending(".txt"), then=Status(404))]
    base_url = server.base_url.replace("//", "//user:secret@")
    for more in (["--dry-run"], ["--dry-run", "--json"], ["--json"], []):
        outcome = run_main(*words(base_url, tmp_path, *more))
        assert "secret" not in outcome.stdout + outcome.stderr
    assert outcome.status == 3
    server.faults = [at(None, then=Status(404))]
    nothing = run_main(*words(base_url, tmp_path / "x"))
    assert (nothing.status, "secret" in nothing.stderr) == (1, False)
    assert "gives none of the first files" in nothing.stderr
    assert {path.name for path in (tmp_path / "x").iterdir()} == {"terms_accepted.txt"}


def test_a_damaged_lock_is_told_before_anything_is_touched(tmp_path: Path) -> None:
    (tmp_path / "scannet.lock").write_text("<<<<<<< ours\n")
    outcome = run_main(*words(BASE_URL, tmp_path, "--json"))
    assert (outcome.status, outcome.json["error"]) == (1, "RawFileError")
    assert [path.name for path in tmp_path.iterdir()] == ["scannet.lock"]


def test_lock_file_with_a_byte_order_mark_is_read(tmp_path: Path) -> None:
    path = tmp_path / "scannet.lock"
    path.write_text(f"{'0' * 64}  3  scans/scene0000_00/scene0000_00.txt\n", encoding="utf-8-sig")
    assert read_lock(path)["scans/scene0000_00/scene0000_00.txt"].size_bytes == 3


def test_addresses_are_printed_for_other_programs(tmp_path: Path) -> None:
    scenes = ["--types", ".sens", "_vh_clean_2.ply", "--scenes", "scene0000_00", "scene0707_00"]
    command = ["download", *scenes, "-o", tmp_path, "--print-urls"]
    expected = [
        (
            f"{BASE_URL}{version}/scans/{scene_id}/{scene_id}{suffix}",
            f"{folder}/{scene_id}/{scene_id}{suffix}",
        )
        for version, folder, scene_id, suffix in [
            ("v1", "scans", "scene0000_00", ".sens"),
            ("v2", "scans", "scene0000_00", "_vh_clean_2.ply"),
            ("v2", "scans_test", "scene0707_00", ".sens"),
            ("v2", "scans_test", "scene0707_00", "_vh_clean_2.ply"),
        ]
    ]
    aria2 = [line for url, path in expected for line in (url, f"  dir={tmp_path}", f"  out={path}")]
    assert run_main(*command, "aria2").stdout.splitlines() == aria2
    assert run_main(*command, "plain").stdout.splitlines() == [url for url, _ in expected]
    assert run_main(*command, "plain", "--json").json["files"] == [
        {"url": url, "path": path} for url, path in expected
    ]
    for _, path in expected:
        (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / path).write_bytes(b"content")
    assert run_main(*command, "plain").stdout == ""
