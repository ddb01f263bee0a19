"""The command `download`, against a real server that behaves."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from commands import Outcome, digests, run_main
from downloads import fetched, words
from release_server import ReleaseServer, Request, Status, at, ending

from scannet_prep.raw.lock import LockEntry, read_lock
from scannet_prep.release.files import BASE_URL


@dataclass
class TwoRuns:
    """A complete download, and a second run in the same folder.

    Attributes:
        first: The result of the first run.
        second: The result of the second run.
        second_requests: The requests that the second run made.
        files: Digests of the downloaded files, by local path.
        lock: The entries of `scannet.lock`.
        expected: Digests of the server's files, by local path.
    """

    first: Outcome
    second: Outcome
    second_requests: list[Request]
    files: dict[str, str]
    lock: dict[str, LockEntry]
    expected: dict[str, str]


@pytest.fixture(scope="module")
def two_runs(release_dir: Path, tmp_path_factory: pytest.TempPathFactory) -> TwoRuns:
    data_dir = tmp_path_factory.mktemp("data")
    with ReleaseServer(release_dir) as server:
        first = run_main(*words(server.base_url, data_dir, "--json"))
        assert first.status == 0, first.stderr
        server.forget()
        second = run_main(*words(server.base_url, data_dir, "--json"))
        assert second.status == 0, second.stderr
        return TwoRuns(
            first=first,
            second=second,
            second_requests=server.requests(),
            files=fetched(data_dir),
            lock=read_lock(data_dir / "scannet.lock"),
            expected=digests(server.root),
        )


def test_download_brings_all_files_of_the_release(two_runs: TwoRuns) -> None:
    assert two_runs.files == two_runs.expected


def test_download_counts_all_files_as_fetched(two_runs: TwoRuns) -> None:
    counts = {"fetched": len(two_runs.expected), "already there": 0, "failed": 0}
    assert two_runs.first.json["files"] == counts


def test_download_records_the_digests_of_all_files(two_runs: TwoRuns) -> None:
    recorded = {name: entry.sha256 for name, entry in two_runs.lock.items()}
    assert recorded == two_runs.expected


def test_second_download_finds_all_files_already_there(two_runs: TwoRuns) -> None:
    counts = {"fetched": 0, "already there": len(two_runs.expected), "failed": 0}
    assert two_runs.second.json["files"] == counts


def test_second_download_requests_nothing(two_runs: TwoRuns) -> None:
    assert two_runs.second_requests == []


@dataclass
class DryRuns:
    """Results of `--dry-run` in a folder that does not exist, as JSON."""

    data_dir: Path
    seg: Any
    seg_min: Any


@pytest.fixture(scope="module")
def dry_runs(tmp_path_factory: pytest.TempPathFactory) -> DryRuns:
    data_dir = tmp_path_factory.mktemp("dry") / "data"

    def plan(preset: str) -> Any:
        return run_main("download", "--types", preset, "-o", data_dir, "--dry-run", "--json").json

    return DryRuns(data_dir, seg=plan("seg"), seg_min=plan("seg-min"))


def test_dry_run_counts_the_files_of_the_release(dry_runs: DryRuns) -> None:
    assert dry_runs.seg["files"] == 7_766


def test_dry_run_plans_for_test_scenes_only_what_they_have(dry_runs: DryRuns) -> None:
    kinds = [kind for kind in dry_runs.seg["kinds"] if kind["split"] == "test"]
    counts = {kind["type"]: kind["files"] for kind in kinds}

    assert counts == {"_vh_clean_2.ply": 100, ".txt": 100}


def test_dry_run_touches_nothing(dry_runs: DryRuns) -> None:
    assert list(dry_runs.data_dir.parent.iterdir()) == []


def test_seg_min_leaves_out_the_1513_labels_meshes(dry_runs: DryRuns) -> None:
    assert dry_runs.seg_min["files"] == 7_766 - 1_513


def test_seg_min_saves_nearly_10_gb(dry_runs: DryRuns) -> None:
    saved_bytes = dry_runs.seg["missing_bytes"] - dry_runs.seg_min["missing_bytes"]
    assert round(saved_bytes / 1e9, 1) == 9.7


def test_dry_run_suggests_seg_min_with_what_it_saves(tmp_path: Path) -> None:
    outcome = run_main("download", "--types", "seg", "-o", tmp_path / "x", "--dry-run")
    assert "--types seg-min would save about 9.7 GB" in outcome.stdout


MISSING_BUNDLE = (
    "/environment.pem: No such file or directory\n"
    "hint: --ca-bundle PATH takes a file of certificates (PEM)"
)
WRONG_ARGUMENTS: list[tuple[list[str], str]] = [
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
    (["--types", "_vh_clean_2.labels.ply", "--splits", "test"], "no file of these types exists"),
    ([], MISSING_BUNDLE),
]


@pytest.mark.parametrize(("more", "message"), WRONG_ARGUMENTS)
def test_wrong_arguments_are_status_2_and_touch_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, more: list[str], message: str
) -> None:
    monkeypatch.setenv("REQUESTS_CA_BUNDLE", "/environment.pem")
    command = ["download", "--types", "seg", "-o", "x", "--accept-terms", "--limit", "1", "--json"]

    outcome = run_main(*command, *more, cwd=tmp_path)

    assert outcome.status == 2
    assert outcome.json["exit_status"] == 2
    assert message in outcome.stderr
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("more", [["--dry-run"], ["--dry-run", "--json"], ["--json"], []])
def test_password_of_a_mirror_is_never_shown(
    server: ReleaseServer, tmp_path: Path, more: list[str]
) -> None:
    server.faults = [at(ending(".txt"), then=Status(404))]
    base_url = server.base_url.replace("//", "//user:secret@")

    outcome = run_main(*words(base_url, tmp_path, *more))

    assert outcome.status == (0 if "--dry-run" in more else 3)
    assert "secret" not in outcome.stdout + outcome.stderr


@pytest.fixture
def refused(server: ReleaseServer, tmp_path: Path) -> Outcome:
    """A download from a mirror with a password that has none of the files."""
    server.faults = [at(None, then=Status(404))]
    base_url = server.base_url.replace("//", "//user:secret@")
    return run_main(*words(base_url, tmp_path))


def test_mirror_that_refuses_everything_is_an_error_without_password(refused: Outcome) -> None:
    assert refused.status == 1
    assert "refuses all of the first files" in refused.stderr
    assert "secret" not in refused.stderr


@pytest.mark.usefixtures("refused")
def test_refused_download_leaves_only_the_accepted_terms(tmp_path: Path) -> None:
    assert [path.name for path in tmp_path.iterdir()] == ["terms_accepted.txt"]


def test_damaged_lock_is_an_error_before_anything_is_touched(tmp_path: Path) -> None:
    (tmp_path / "scannet.lock").write_text("<<<<<<< ours\n")

    outcome = run_main(*words(BASE_URL, tmp_path, "--json"))

    assert outcome.status == 1
    assert outcome.json["error"] == "RawFileError"
    assert [path.name for path in tmp_path.iterdir()] == ["scannet.lock"]


def test_lock_file_with_a_byte_order_mark_is_read(tmp_path: Path) -> None:
    path = tmp_path / "scannet.lock"
    path.write_text(f"{'0' * 64}  3  scans/scene0000_00/scene0000_00.txt\n", encoding="utf-8-sig")

    entry = read_lock(path)["scans/scene0000_00/scene0000_00.txt"]

    assert entry.size_bytes == 3


# The sensor streams and meshes of a scene of train and one of test: URL below the server's address,
# and local path.
PRINTED_FILES = [
    ("v1/scans/scene0000_00/scene0000_00.sens", "scans/scene0000_00/scene0000_00.sens"),
    (
        "v2/scans/scene0000_00/scene0000_00_vh_clean_2.ply",
        "scans/scene0000_00/scene0000_00_vh_clean_2.ply",
    ),
    ("v2/scans/scene0707_00/scene0707_00.sens", "scans_test/scene0707_00/scene0707_00.sens"),
    (
        "v2/scans/scene0707_00/scene0707_00_vh_clean_2.ply",
        "scans_test/scene0707_00/scene0707_00_vh_clean_2.ply",
    ),
]


def print_urls(data_dir: Path, *style: str) -> Outcome:
    files = ["--types", ".sens", "_vh_clean_2.ply", "--scenes", "scene0000_00", "scene0707_00"]
    return run_main("download", *files, "-o", data_dir, "--print-urls", *style)


def test_plain_urls_are_one_per_line(tmp_path: Path) -> None:
    lines = print_urls(tmp_path, "plain").stdout.splitlines()
    assert lines == [f"{BASE_URL}{url}" for url, _ in PRINTED_FILES]


def test_urls_for_aria2_have_folder_and_local_path(tmp_path: Path) -> None:
    expected = []
    for url, path in PRINTED_FILES:
        expected += [f"{BASE_URL}{url}", f"  dir={tmp_path}", f"  out={path}"]

    assert print_urls(tmp_path, "aria2").stdout.splitlines() == expected


def test_urls_in_json_have_the_local_path(tmp_path: Path) -> None:
    files = print_urls(tmp_path, "plain", "--json").json["files"]
    assert files == [{"url": f"{BASE_URL}{url}", "path": path} for url, path in PRINTED_FILES]


def test_urls_of_existing_files_are_not_printed(tmp_path: Path) -> None:
    for _, path in PRINTED_FILES:
        (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / path).write_bytes(b"content")

    assert print_urls(tmp_path, "plain").stdout == ""
