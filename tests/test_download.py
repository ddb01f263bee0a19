"""The command `download`: what it fetches, checks, records, prints and refuses."""

import os
import re
import shutil
import zipfile

import pytest
from commands import (
    COMMAND,
    PAGES,
    SCENES,
    digests,
    fail,
    run_command,
    run_main,
    run_on_terminal,
    succeed,
)
from release_server import (
    MESH,
    Bar,
    Status,
    at,
    ending,
    failed_names,
    fetch,
    fetched,
    scene_url_path,
    words,
)
from tiny import DEPTH, make_stream, make_zip

from scannet_prep.base.version import CONTACT_URL
from scannet_prep.raw.lock import read_tree_lock
from scannet_prep.release.files import BASE_URL, KINDS, SHARED_KINDS, TERMS_URL

SCENE = SCENES[0]
SEGMENTS = "_vh_clean_2.0.010000.segs.json"
LABELS_MESH = "_vh_clean_2.labels.ply"
LABEL_MAP = "scannetv2-labels.combined.tsv"


def recorded(data_dir):
    """Return the digests in scannet.lock."""
    return {name: entry.sha256 for name, entry in read_tree_lock(data_dir).items()}


def scene_path(folder, suffix, scene_id=SCENE):
    return folder / f"scans/{scene_id}/{scene_id}{suffix}"


def test_download_fetches_and_records_the_release_and_a_second_run_requests_nothing(
    server, tmp_path
):
    release = digests(server.root)
    first = succeed(*words(server.base_url, tmp_path, "--json"))
    assert first.json["files"] == {"fetched": len(release), "already there": 0, "failed": 0}
    assert first.json["received_bytes"] == sum(map(os.path.getsize, server.root.rglob("*.*")))
    assert fetched(tmp_path) == recorded(tmp_path) == release
    assert not list(tmp_path.rglob(".*.part*"))
    for request in server.requests():
        assert CONTACT_URL in request.headers["user-agent"]
        assert request.headers["accept-encoding"] == "identity"

    server.forget()
    second = succeed(*words(server.base_url, tmp_path, "--json"))
    assert second.json["files"] == {"fetched": 0, "already there": len(release), "failed": 0}
    assert not server.requests()


def test_dry_run_counts_files_and_bytes_of_all_kinds_and_touches_nothing(tmp_path):
    def plan(*types):
        return run_main("download", "--types", *types, "-o", "data", "--dry-run", "--json").json

    os.chdir(tmp_path)
    seg = plan("seg")
    assert seg["files"] == 7_766
    saved_bytes = seg["missing_bytes"] - plan("seg-min")["missing_bytes"]
    assert round(saved_bytes / 1e9, 1) == 9.7
    text = run_main("download", "--types", ".sens", "-o", "data", "--dry-run").stdout
    assert re.search(r"^\.sens +1,613 +0 +1\.21 TB$", text, re.MULTILINE)
    assert "1,613 files to fetch, about 1.21 TB" in text
    kinds = KINDS | SHARED_KINDS
    assert all(0 < kind.typical_bytes < kind.max_bytes for kind in kinds.values())
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("address", ["http://host:99999/", "http://a..b/", "http://\u2100.de/"])
def test_address_that_cannot_be_used_ends_the_run_at_once(tmp_path, address):
    outcome = fail(1, "cannot be requested", *words(address, tmp_path))
    assert "check the address" in outcome.stderr


@pytest.mark.parametrize("more", [["--dry-run"], ["--json"], ["-v"]])
@pytest.mark.parametrize("suffix", [".txt", ""])
def test_password_of_a_mirror_is_never_shown(server, tmp_path, more, suffix):
    server.faults = [at(ending(suffix), then=Status(404))]
    outcome = run_main(*words(server.base_url.replace("//", "//user:secret@"), tmp_path, *more))
    assert outcome.status == (0 if "--dry-run" in more else 3 if suffix else 1), outcome.stderr
    assert "secret" not in outcome.stdout + outcome.stderr


def test_urls_of_missing_files_are_printed_one_per_line(server, tmp_path):
    files = ["--types", ".sens", "--types", MESH, "--scenes", SCENE, SCENES[2], "-o", tmp_path]
    scene, of_test = f"scans/{SCENE}/{SCENE}", f"scans/{SCENES[2]}/{SCENES[2]}"
    urls = [f"v1/{scene}.sens", f"v2/{scene}{MESH}", f"v2/{of_test}.sens", f"v2/{of_test}{MESH}"]
    lines = run_main("download", *files, "--print-urls").stdout.splitlines()
    assert lines == [BASE_URL + url for url in urls]

    fetch(server, tmp_path, [SCENE, SCENES[2]], types=[MESH])
    os.truncate(scene_path(tmp_path, MESH), 1000)
    printed = run_main("download", *files, "--print-urls", "--json").json["files"]
    assert [file["url"] for file in printed] == [BASE_URL + url for url in urls[:3]]
    assert printed[1]["path"] == f"{scene}{MESH}"

    # `wget --cut-dirs=2`, as the page shows it, stores the files with /scans/ in their places.
    command = re.search(
        r"scannet-prep (.*) --print-urls \| grep /scans/", PAGES["docs/download.md"]
    )
    printed = run_main(*command[1].split(), "-o", tmp_path / "new", "--print-urls", "--json")
    for file in printed.json["files"]:
        stored = file["url"].removeprefix(f"{BASE_URL}v2/")
        assert file["path"] == (stored if "/scans/" in file["url"] else LABEL_MAP)


def test_damaged_files_of_an_existing_tree_are_fetched_again(server, tmp_path):
    """The tree has no scannet.lock, as the official script leaves it."""
    shutil.copytree(server.root, tmp_path, dirs_exist_ok=True)
    mesh = scene_path(tmp_path, MESH)
    # A file of the full size whose end is not written, as some programs leave it.
    size_bytes = mesh.stat().st_size
    os.truncate(mesh, size_bytes - 300)
    os.truncate(mesh, size_bytes)
    damaged = {
        scene_path(tmp_path, LABELS_MESH): mesh.read_bytes(),
        scene_path(tmp_path, SEGMENTS): scene_path(tmp_path, SEGMENTS).read_bytes()[:-9],
        scene_path(tmp_path, ".aggregation.json"): b"<html>404</html>",
        scene_path(tmp_path, ".txt"): scene_path(tmp_path, ".txt").read_bytes()[:5],
        tmp_path / LABEL_MAP: b"id\tname\n1\twall\n",
    }
    for path, content in damaged.items():
        path.write_bytes(content)
    link = scene_path(tmp_path, MESH, SCENES[1])
    link.unlink()
    link.symlink_to("/nowhere")
    # aria2c leaves this file beside one with gaps, and a killed run the other.
    scene_path(tmp_path, ".txt", SCENES[1]).write_text("a = 1\n")
    control = scene_path(tmp_path, ".txt.aria2", SCENES[1])
    control.touch()
    (tmp_path / ".scannet.lock.7-0123abcd.tmp").touch()
    bar = Bar()
    assert not fetch(server, tmp_path, bar=bar).failures
    control.unlink()
    assert fetched(tmp_path) == recorded(tmp_path) == digests(server.root)
    assert len(server.requests()) == len(damaged) + 3
    assert {note.partition(": ")[0] for note in bar.notes} == {str(mesh), *map(str, damaged)}
    assert bar.left == 0


def test_damaged_files_of_the_server_fail_until_it_replaces_them(server, tmp_path):
    stream, zipped = make_stream(), make_zip(zipfile.ZIP_STORED)
    good, bad = {}, {}
    for path in server.files:
        if path.endswith((LABEL_MAP, f"{SCENE}.aggregation.json")):
            good[path] = server.files[path].read_bytes()
            bad[path] = good[path][:-200]
    for version, suffix, data, part in [
        ("v1", ".sens", stream, DEPTH),
        ("v2", "_2d-label.zip", zipped, b"second"),
    ]:
        path = f"/scannet/{version}/scans/{SCENE}/{SCENE}{suffix}"
        good[path] = data
        bad[path] = data.replace(part, part[:-1] + b"?", 1)
    server.files |= bad
    types = ["seg", ".sens", "_2d-label.zip"]
    bar = Bar()
    report = fetch(server, tmp_path, SCENES[:1], types=types, bar=bar)
    assert bar.left == 0
    names = sorted(path.rpartition("/")[2] for path in bad)
    assert failed_names(report) == names
    assert all("is not what it should be" in finding.message for finding in report.failures)
    assert (tmp_path / "failed.txt").read_text().endswith(f"@failed.txt\n{SCENE}\n")
    assert not set(recorded(tmp_path)) & {f"scans/{SCENE}/{name}" for name in names}

    server.files |= good
    assert not fetch(server, tmp_path, SCENES[:1], types=types).failures
    assert not (tmp_path / "failed.txt").exists()
    assert scene_path(tmp_path, ".sens").read_bytes() == stream


def test_recorded_file_is_replaced_only_by_the_recorded_one(server, tmp_path):
    fetch(server, tmp_path)
    before = recorded(tmp_path)
    path = scene_path(tmp_path, ".txt")
    original = path.read_bytes()
    path.write_bytes(original.swapcase())
    server.files[scene_url_path(SCENE, ".txt")] = original + b"more = 1\n"
    report = fetch(server, tmp_path)
    assert failed_names(report) == [path.name]
    assert "is not the file recorded in scannet.lock" in report.failures[0].message
    assert "remove its line" in report.failures[0].hint
    assert recorded(tmp_path) == before

    server.files[scene_url_path(SCENE, ".txt")] = original
    fetch(server, tmp_path)
    assert fetched(tmp_path) == before


SIGNING = (TERMS_URL, "institution", "scannet@googlegroups.com", "within a week", "docs/access.md")
QUESTION = "[y/N]"


@pytest.fixture
def unaccepted(server, tmp_path):
    """The command that downloads a scene, without --accept-terms."""
    output = ["-o", str(tmp_path / "data"), "--base-url", server.base_url]
    return ["download", "--types", "seg", *output, "--scenes", SCENE]


def test_terms_are_asked_once_at_a_terminal_and_recorded(unaccepted, tmp_path):
    status, shown = run_on_terminal([*COMMAND, *unaccepted], typed="Yes\n")
    assert status == 0, shown
    assert f"Terms of Use: {TERMS_URL}" in shown
    assert QUESTION in shown
    assert TERMS_URL in (tmp_path / "data/terms_accepted.txt").read_text()
    status, shown = run_on_terminal([*COMMAND, *unaccepted])
    assert status == 0
    assert QUESTION not in shown


@pytest.mark.parametrize("answer", ["n\n", "\n", "\x04", "yesterday\n"])
def test_any_other_answer_is_status_2_and_touches_nothing(server, unaccepted, tmp_path, answer):
    status, _ = run_on_terminal([*COMMAND, *unaccepted], typed=answer)
    assert status == 2
    assert server.requests() == list(tmp_path.iterdir()) == []


def test_terms_without_a_terminal_are_an_error(server, unaccepted, tmp_path):
    status, shown = run_on_terminal([*COMMAND, *unaccepted, "--json"], typed="y\n")
    assert status == 2
    assert QUESTION not in shown
    outcome = run_command(*unaccepted)
    assert outcome.status == 2
    assert not [text for text in (*SIGNING, "--accept-terms") if text not in outcome.stderr]
    assert server.requests() == list(tmp_path.iterdir()) == []
