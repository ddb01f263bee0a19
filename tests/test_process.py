"""The command `process`: what it writes, keeps, makes again, and says."""

from __future__ import annotations

import json
import os
import resource
from pathlib import Path
from typing import Any

import pytest
from archives import flip
from commands import (
    SCENES,
    TEST,
    TRAIN,
    VAL,
    Outcome,
    count_reads_in_new_process,
    digests,
    edit_json,
    header_size,
    limited,
    run_command,
    run_main,
)

from scannet_prep import read_processed
from scannet_prep.processed.npz import encode_npz
from scannet_prep.synthetic import make_scene, write_label_map, write_scene

UNLISTED = "scene9000_00"
LABEL_MAP = "scannetv2-labels.combined.tsv"


def process(raw_dir: Path, out_dir: Path, *words: str | Path) -> Outcome:
    return run_main("process", raw_dir, "-o", out_dir, "--json", *words)


def manifest_of(out_dir: Path) -> Any:
    return json.loads((out_dir / "manifest.json").read_text())


def test_a_run_writes_scenes_manifest_and_terms_with_any_number_of_jobs_and_a_second_run_keeps_them_unless_forced(
    raw_dir: Path, whole_dir: Path, tmp_path: Path
) -> None:
    new_dir, expected = tmp_path / "new", digests(whole_dir / "processed")
    names = [f"test/{TEST}.npz", f"train/{TRAIN}.npz", f"val/{VAL}.npz"]
    assert sorted(expected) == ["TERMS.txt", "manifest.json", *names]
    outcome = run_command("process", raw_dir, "-o", tmp_path / "two", "--jobs", "2", "--json")
    assert (outcome.json["made"], digests(tmp_path / "two")) == ([*SCENES], expected)
    for words, key in (([], "made"), ([], "kept"), (["--force"], "made")):
        times = {path: path.stat().st_mtime_ns for path in new_dir.rglob("*.npz")}
        assert process(raw_dir, new_dir, *words).json[key] == [*SCENES]
        assert digests(new_dir) == expected
        is_untouched = times == {path: path.stat().st_mtime_ns for path in new_dir.rglob("*.npz")}
        assert is_untouched == (key == "kept")
    assert "Terms of Use" in (new_dir / "TERMS.txt").read_text()
    manifest = manifest_of(new_dir)
    assert {entry["vertices"] for entry in manifest["scenes"].values()} == {600}


DAMAGES = [
    lambda path: os.truncate(path, path.stat().st_size - 100),
    lambda path: path.write_bytes(b""),
    lambda path: path.write_bytes(
        b"".join(encode_npz(read_processed(path).arrays(), frozenset()))
    ),  # other bytes
    lambda path: path.write_bytes(
        b"PK\x05\x06" + bytes(18)
    ),  # a file of another program, without arrays
    lambda path: flip(path, path.stat().st_size // 2),
    lambda path: flip(
        path, path.read_bytes().index(b"\x35\xd9") + 6
    ),  # padding, which nobody reads
    lambda path: flip(path, path.read_bytes().rindex(b"PK\x01\x02") + 5),
    lambda path: flip(path, path.read_bytes().index(b"points.npy")),
    lambda path: flip(path, path.stat().st_size - 4),
]


@pytest.mark.parametrize("is_second_run", [False, True])
def test_process_opens_each_raw_file_once(
    raw_dir: Path, tmp_path: Path, is_second_run: bool
) -> None:
    out_dir = tmp_path / "out"
    if is_second_run:
        assert process(raw_dir, out_dir).status == 0

    counts = count_reads_in_new_process("process", raw_dir, "-o", out_dir, "--checksum")

    names = [path.name for path in raw_dir.rglob("scene*.*") if "labels.ply" not in path.name]
    assert {name: counts.get(name) for name in names} == dict.fromkeys(names, 1)


@pytest.mark.parametrize("has_manifest", [True, False])
def test_every_damaged_or_foreign_file_under_a_final_name_is_made_again(
    raw_dir: Path, out_dir: Path, has_manifest: bool
) -> None:
    whole = digests(out_dir)
    # Without a manifest and a whole scene, nothing shows the options of the folder.
    words = () if has_manifest else ("--no-scannet200",)
    for damages in (DAMAGES[:3], DAMAGES[3:6], DAMAGES[6:]):
        for path, damage in zip(sorted(out_dir.glob("*/*.npz")), damages, strict=True):
            damage(path)
        if not has_manifest:
            (out_dir / "manifest.json").unlink()
        outcome = process(raw_dir, out_dir, *words)
        assert (outcome.status, outcome.json["made"]) == (0, [*SCENES])
        assert digests(out_dir) == whole


def test_a_changed_input_of_the_same_size_and_time_is_found_where_bytes_are_compared(
    raw_dir: Path, out_dir: Path
) -> None:
    assert process(raw_dir, out_dir).json["made"] == []
    path = raw_dir / f"scans/{TRAIN}/{TRAIN}_vh_clean_2.ply"
    before, red = path.stat(), header_size(path) + 12  # of vertex 0
    flip(path, red)
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))
    assert process(raw_dir, out_dir).json["made"] == []
    assert process(raw_dir, out_dir, "--checksum").json["made"] == [TRAIN]
    assert read_processed(out_dir / f"train/{TRAIN}.npz").colors[0, 0] == path.read_bytes()[red]


def test_the_label_map_is_found_beside_the_scenes_and_one_that_says_something_else_makes_annotated_scenes_again(
    raw_dir: Path, out_dir: Path, tmp_path: Path
) -> None:
    (tmp_path / "link").symlink_to(raw_dir / "scans")
    for cwd, raw in ((raw_dir / "scans", "."), (tmp_path, "link"), (tmp_path, "raw/scans")):
        outcome = run_main("process", raw, "-o", tmp_path / "new", "--dry-run", cwd=cwd)
        assert f"{LABEL_MAP}\n" in outcome.stdout
    path = raw_dir / LABEL_MAP
    path.write_bytes(path.read_bytes().replace(b"\r\n", b"\r\r\n"))  # says the same
    assert process(raw_dir, out_dir).json["made"] == []
    path.unlink()
    outcome = process(raw_dir, out_dir, "--force")
    assert "label map: the built-in label map" in outcome.stderr
    write_label_map(raw_dir)
    assert process(raw_dir / "scans", out_dir).json["made"] == []
    path.write_text("raw_category\tid\tnyu40id\nwall\t1\t1\n")
    outcome = process(raw_dir, out_dir)
    assert outcome.json["made"] == [TRAIN, VAL]
    difference = "is missing in the label map, but ScanNet id 3, nyu40 id 2 in the built-in one"
    assert f"raw category 'floor' {difference}" in outcome.stderr


@pytest.mark.parametrize(("words", "status"), [((), 0), (("--strict",), 1)])
def test_label_map_with_a_changed_id_is_a_warning_and_an_error_if_strict(
    raw_dir: Path, tmp_path: Path, words: tuple[str, ...], status: int
) -> None:
    path = raw_dir / LABEL_MAP
    path.write_bytes(path.read_bytes().replace(b"3\tfloor\t2", b"3\tfloor\t0"))
    outcome = run_main("process", raw_dir, "-o", tmp_path / "new", *words)
    assert outcome.status == status
    difference = "in 1 raw categories: floor (for example, 'floor' is ScanNet id 3, nyu40 id 0, expected ScanNet id 3, "
    assert (
        f"{'error' if status else 'warning'}: {path}: differs from the label map of the release"
        in outcome.stderr
    )
    assert difference in outcome.stderr


def test_label_map_without_rows_is_refused(raw_dir: Path, tmp_path: Path) -> None:
    path = raw_dir / LABEL_MAP
    path.write_bytes(path.read_bytes().splitlines(keepends=True)[0])
    outcome = run_main("process", raw_dir, "-o", tmp_path / "new")
    assert outcome.status == 1
    assert f"error: {path}: has a header and 0 rows, expected about 607" in outcome.stderr


def test_label_map_with_rows_of_its_own_labels_their_groups_also_if_strict(
    raw_dir: Path, tmp_path: Path
) -> None:
    path = raw_dir / LABEL_MAP
    path.write_bytes(path.read_bytes() + b"5\tthrone\t5\n")
    edit_json(raw_dir / f"scans/{TRAIN}/{TRAIN}.aggregation.json", rename_first_group)
    outcome = run_main("process", raw_dir, "-o", tmp_path / "new", "--strict")
    assert (outcome.status, "warning" in outcome.stderr) == (0, False)
    scene = read_processed(tmp_path / f"new/train/{TRAIN}.npz")
    assert set(scene.nyu40_ids[scene.instances == scene.meta.groups[0].id].tolist()) == {5}


def rename_first_group(aggregation: Any) -> None:
    aggregation["segGroups"][0]["label"] = "throne"


@pytest.mark.parametrize(("words", "option"), [((), "--lenient"), (("--strict",), "--lenient")])
def test_scene_that_fails_for_want_of_an_alignment_has_no_identity_recorded(
    raw_dir: Path, tmp_path: Path, words: tuple[str, ...], option: str
) -> None:
    path = raw_dir / f"scans/{TRAIN}/{TRAIN}.txt"
    path.write_text("sceneType = Office\n")
    outcome = run_main("process", raw_dir, "-o", tmp_path / "new", *words)
    assert outcome.status == 3
    assert f"failed: {TRAIN}: {path}: the .txt has no axisAlignment\n" in outcome.stderr
    assert option in next(line for line in outcome.stderr.splitlines() if line.startswith("hint: "))


def test_damaged_mesh_comes_with_the_command_that_downloads_it_again(
    raw_dir: Path, tmp_path: Path
) -> None:
    (raw_dir / f"scans/{TRAIN}/{TRAIN}_vh_clean_2.ply").write_bytes(b"")
    outcome = run_main("process", raw_dir, "-o", tmp_path / "new")
    command = (
        f"scannet-prep download --types _vh_clean_2.ply -o {raw_dir} --scenes {TRAIN} --verify"
    )
    assert f"hint: download it again: {command}\n" in outcome.stderr


def test_a_bad_scene_stops_no_other_leaves_the_lists_and_can_be_tried_again(
    raw_dir: Path, out_dir: Path
) -> None:
    path, before = raw_dir / f"scans/{VAL}/{VAL}_vh_clean_2.ply", digests(out_dir)
    whole = path.read_bytes()
    path.write_bytes(whole[:-500])
    outcome = process(raw_dir, out_dir, "--force")
    assert (outcome.status, outcome.json["made"]) == (3, [TRAIN, TEST])
    (failure,) = outcome.json["failures"]
    assert failure["scene_id"] == VAL
    assert failure["message"].startswith(
        f"{path}: is damaged or truncated ({len(whole) - 500:,} bytes): "
    )
    assert f"val/{VAL}.npz" not in digests(out_dir)  # the result of the good input no longer holds
    assert list(manifest_of(out_dir)["scenes"]) == [TRAIN, TEST]
    assert list(manifest_of(out_dir)["failures"]) == [VAL]
    path.write_bytes(whole)
    outcome = process(raw_dir, out_dir, "--scenes", f"@{out_dir / 'failed.txt'}")
    assert (outcome.status, outcome.json["made"]) == (0, [VAL])
    assert digests(out_dir) == before  # without failed.txt
    for path in raw_dir.glob("scans/*/*.segs.json"):
        path.unlink()
    new_dir = out_dir.with_name("new")
    outcome = run_main("process", raw_dir, "-o", new_dir)
    assert (outcome.status, outcome.stderr.count("no such file")) == (3, 2)
    command = f"scannet-prep download --types seg -o {raw_dir} --scenes @{new_dir}/failed.txt"
    assert outcome.stdout.count(command) == 1, "once for all that is missing"


def test_scene_folders_directly_below_are_found_and_stray_files_ignored(
    raw_dir: Path, out_dir: Path
) -> None:
    for stray in ("._scene0002_00", "tmp1234"):
        (raw_dir / "scans" / stray).write_bytes(b"")
    (raw_dir / f"scans/{TRAIN}/._{TRAIN}_vh_clean_2.ply").write_bytes(b"Mac OS X")
    (raw_dir / "scans" / TEST).mkdir()  # the official download script leaves such empty folders
    (raw_dir / "scans/my_room").mkdir()
    (raw_dir / "scans/extra").symlink_to("extra")
    outcome = process(raw_dir, out_dir)
    assert outcome.json["kept"] == [*SCENES]
    assert "ignored folders whose names are not scene ids: 2 (extra, my_room)" in outcome.stderr
    outcome = process(raw_dir / "scans_test", out_dir)
    assert outcome.status == 0
    assert outcome.json["raw_gone"] == [TRAIN, VAL]
    outcome = process(raw_dir / "scans_test", out_dir.with_name("new"), "--splits", "val")
    assert (outcome.json["error"], "has 1 scenes, but none of val" in outcome.stderr) == (
        "UsageError",
        True,
    )


def test_a_scene_in_no_official_list_needs_a_split_and_is_in_one_only(
    raw_dir: Path, tmp_path: Path
) -> None:
    write_scene(make_scene(UNLISTED, vertices=600), raw_dir)
    out_dir = tmp_path / "new"
    outcome = process(raw_dir, out_dir, "--scenes", UNLISTED)
    assert outcome.status == 3
    assert f"{UNLISTED} is in none of the official split lists" in outcome.stderr
    for split, other in (("train", "val"), ("val", "test")):
        outcome = process(raw_dir, out_dir, "--scenes", UNLISTED, "--splits", split)
        assert (outcome.status, outcome.json["made"]) == (0, [UNLISTED])
        assert (
            process(raw_dir, out_dir, "--splits", other).status == 0
        )  # where it is not named, it stays
        assert [path.parent.name for path in out_dir.rglob(f"{UNLISTED}.npz")] == [split]
        assert manifest_of(out_dir)["scenes"][UNLISTED]["split"] == split


def test_splits_scenes_and_limit_choose_and_a_dry_run_and_wrong_requests_write_nothing(
    whole_dir: Path, tmp_path: Path
) -> None:
    (tmp_path / "list.txt").write_text(f"# a comment\n{VAL}  # another\n\n")
    for line, chosen in (
        ("", [*SCENES]),
        ("--splits train", [TRAIN]),
        ("--splits val test", [VAL, TEST]),
        (f"--scenes {TRAIN} @{tmp_path}/list.txt", [TRAIN, VAL]),
        ("--limit 2", [TRAIN, VAL]),
    ):
        outcome = process(whole_dir / "raw", tmp_path / "new", "--dry-run", *line.split())
        assert sorted(outcome.json["scenes"]) == chosen
        assert not (tmp_path / "new").exists()
    for line, status, message in (
        ("--jobs -1", 2, "'-1' is not a positive whole number"),
        (
            f"--scenes {TEST} --splits train",
            2,
            f"{TEST} is in the split test, but only train was asked for",
        ),
        ("--scenes scene0900_00", 2, "is in none of the official lists, and"),
        ("--scenes @nowhere.txt", 1, "nowhere.txt: no such file"),
        ("--scenes scene0002_00", 3, "has no folder scene0002_00"),
    ):
        outcome = process(whole_dir / "raw", tmp_path, *line.split())
        assert (outcome.status, outcome.json["exit_status"]) == (status, status)
        assert message in outcome.stderr
        assert not list(tmp_path.rglob("*.npz"))
    outcome = run_main("process", cwd=tmp_path)
    assert (outcome.status, outcome.stdout) == (1, "")
    assert outcome.stderr.startswith("error: data/ScanNet: no such folder\nhint: ")
    assert not (tmp_path / "data").exists()


def test_strict_makes_doubts_failures_and_counts_each_unknown_name_once(
    raw_dir: Path, out_dir: Path
) -> None:
    trash = {"id": 90, "label": "trashcan", "segments": []}
    path = raw_dir / f"scans/{TRAIN}/{TRAIN}.aggregation.json"
    edit_json(
        path, lambda value: value["segGroups"].extend([trash, trash | {"id": 91, "segments": [0]}])
    )
    outcome = process(raw_dir, out_dir)
    assert outcome.status == 0
    assert outcome.stderr.count("'trashcan'") == 1
    assert "groups left unlabeled: 2" in outcome.stderr
    for _ in range(2):  # an up-to-date file does not excuse it
        outcome = process(raw_dir, out_dir, "--strict")
        assert (outcome.status, [item["scene_id"] for item in outcome.json["failures"]]) == (
            3,
            [TRAIN],
        )
        assert f"{TRAIN}.aggregation.json: raw category 'trashcan'" in outcome.stderr


def test_a_disk_that_takes_no_more_ends_the_run_and_leaves_no_half_file(
    whole_dir: Path, tmp_path: Path
) -> None:
    with limited(resource.RLIMIT_FSIZE, 6_000):
        outcome = process(whole_dir / "raw", tmp_path)
    assert (outcome.status, outcome.json["error"]) == (1, "DiskFullError")
    assert not [name for name in digests(tmp_path) if "npz" in Path(name).suffix or ".tmp" in name]
    assert process(whole_dir / "raw", tmp_path).status == 0


def test_what_cannot_go_well_is_refused_before_it_begins(
    raw_dir: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for place in (raw_dir, raw_dir / "scans", raw_dir / f"scans/{TRAIN}"):
        outcome = process(raw_dir, place)
        assert (outcome.status, "would lie among the raw ones" in outcome.stderr) == (2, True)
    outcome = process(raw_dir, raw_dir / f"scans/{TRAIN}/{TRAIN}_vh_clean_2.ply")
    assert (outcome.status, "is not a folder" in outcome.stderr) == (1, True)
    monkeypatch.setattr("scannet_prep.base.disk.RESERVE_BYTES", 1 << 60)
    outcome = process(raw_dir, tmp_path / "out")
    assert (outcome.status, outcome.json["error"], " and a reserve of " in outcome.stderr) == (
        1,
        "DiskFullError",
        True,
    )
    assert not list(tmp_path.rglob("*.npz"))
