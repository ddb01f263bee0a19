"""Tests of the command `process`: its output, kept scenes, failures and refusals."""

from __future__ import annotations

import json
import os
import resource
from collections.abc import Callable
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


def times_of(out_dir: Path) -> dict[Path, int]:
    return {path: path.stat().st_mtime_ns for path in out_dir.rglob("*.npz")}


@pytest.fixture
def new_dir(tmp_path: Path) -> Path:
    """A folder for processed scenes, which does not exist yet."""
    return tmp_path / "new"


def test_processed_folder_contains_scenes_manifest_and_terms_only(out_dir: Path) -> None:
    names = [f"test/{TEST}.npz", f"train/{TRAIN}.npz", f"val/{VAL}.npz"]

    assert sorted(digests(out_dir)) == ["TERMS.txt", "manifest.json", *names]


def test_file_of_terms_names_the_terms_of_use(out_dir: Path) -> None:
    assert "Terms of Use" in (out_dir / "TERMS.txt").read_text()


def test_manifest_records_the_vertices_of_each_scene(out_dir: Path) -> None:
    entries = manifest_of(out_dir)["scenes"].values()
    assert {entry["vertices"] for entry in entries} == {600}


def test_run_with_two_jobs_writes_the_same_bytes(
    raw_dir: Path, whole_dir: Path, new_dir: Path
) -> None:
    outcome = run_command("process", raw_dir, "-o", new_dir, "--jobs", "2", "--json")

    assert outcome.json["made"] == [*SCENES]
    assert digests(new_dir) == digests(whole_dir / "processed")


def test_run_with_one_job_writes_the_same_bytes(
    raw_dir: Path, whole_dir: Path, new_dir: Path
) -> None:
    assert process(raw_dir, new_dir).json["made"] == [*SCENES]

    assert digests(new_dir) == digests(whole_dir / "processed")


def test_second_run_keeps_all_scenes_untouched(raw_dir: Path, new_dir: Path) -> None:
    process(raw_dir, new_dir)
    before = digests(new_dir)
    times = times_of(new_dir)

    assert process(raw_dir, new_dir).json["kept"] == [*SCENES]

    assert digests(new_dir) == before
    assert times_of(new_dir) == times


def test_forced_run_writes_all_scenes_again(raw_dir: Path, new_dir: Path) -> None:
    process(raw_dir, new_dir)
    before = digests(new_dir)
    times = times_of(new_dir)

    assert process(raw_dir, new_dir, "--force").json["made"] == [*SCENES]

    assert digests(new_dir) == before
    assert times_of(new_dir) != times


def compress_nothing(path: Path) -> None:
    """Write the same arrays with other bytes."""
    arrays = read_processed(path).arrays()
    path.write_bytes(b"".join(encode_npz(arrays, deflated=frozenset())))


# Three kinds of damage for each of three runs, one for each scene.
DAMAGES = [
    lambda path: os.truncate(path, path.stat().st_size - 100),
    lambda path: path.write_bytes(b""),
    compress_nothing,
    # A file of another program, without arrays.
    lambda path: path.write_bytes(b"PK\x05\x06" + bytes(18)),
    lambda path: flip(path, path.stat().st_size // 2),
    # In padding, which no reader uses.
    lambda path: flip(path, path.read_bytes().index(b"\x35\xd9") + 6),
    lambda path: flip(path, path.read_bytes().rindex(b"PK\x01\x02") + 5),
    lambda path: flip(path, path.read_bytes().index(b"points.npy")),
    lambda path: flip(path, path.stat().st_size - 4),
]


@pytest.mark.parametrize("damages", [DAMAGES[:3], DAMAGES[3:6], DAMAGES[6:]])
@pytest.mark.parametrize("has_manifest", [True, False])
def test_damaged_or_foreign_scene_is_made_again(
    raw_dir: Path, out_dir: Path, has_manifest: bool, damages: list[Callable[[Path], object]]
) -> None:
    whole = digests(out_dir)
    for path, damage in zip(sorted(out_dir.glob("*/*.npz")), damages, strict=True):
        damage(path)
    words = []
    if not has_manifest:
        (out_dir / "manifest.json").unlink()
        # Without a manifest and a whole scene, nothing shows the options of the folder.
        words = ["--no-scannet200"]

    outcome = process(raw_dir, out_dir, *words)

    assert outcome.status == 0
    assert outcome.json["made"] == [*SCENES]
    assert digests(out_dir) == whole


def test_change_that_keeps_size_and_time_is_found_by_checksum(raw_dir: Path, out_dir: Path) -> None:
    assert process(raw_dir, out_dir).json["made"] == []
    path = raw_dir / f"scans/{TRAIN}/{TRAIN}_vh_clean_2.ply"
    before = path.stat()
    red_of_first_vertex = header_size(path) + 12
    flip(path, red_of_first_vertex)
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))

    assert process(raw_dir, out_dir).json["made"] == []
    assert process(raw_dir, out_dir, "--checksum").json["made"] == [TRAIN]

    colors = read_processed(out_dir / f"train/{TRAIN}.npz").colors
    assert colors[0, 0] == path.read_bytes()[red_of_first_vertex]


@pytest.mark.parametrize(("cwd", "raw"), [("raw/scans", "."), (".", "link"), (".", "raw/scans")])
def test_label_map_is_found_beside_the_scenes(
    raw_dir: Path, tmp_path: Path, cwd: str, raw: str
) -> None:
    (tmp_path / "link").symlink_to(raw_dir / "scans")

    outcome = run_main("process", raw, "-o", tmp_path / "new", "--dry-run", cwd=tmp_path / cwd)

    assert f"{LABEL_MAP}\n" in outcome.stdout


def test_label_map_with_other_line_ends_keeps_scenes(raw_dir: Path, out_dir: Path) -> None:
    path = raw_dir / LABEL_MAP
    path.write_bytes(path.read_bytes().replace(b"\r\n", b"\r\r\n"))

    assert process(raw_dir, out_dir).json["made"] == []


def test_missing_label_map_is_replaced_by_the_built_in_one(raw_dir: Path, out_dir: Path) -> None:
    (raw_dir / LABEL_MAP).unlink()

    outcome = process(raw_dir, out_dir, "--force")

    assert "label map: the built-in label map" in outcome.stderr


def test_scenes_of_the_built_in_label_map_are_kept_with_an_equal_one(
    raw_dir: Path, out_dir: Path
) -> None:
    (raw_dir / LABEL_MAP).unlink()
    process(raw_dir, out_dir, "--force")
    write_label_map(raw_dir)

    assert process(raw_dir / "scans", out_dir).json["made"] == []


def test_changed_label_map_makes_annotated_scenes_again(raw_dir: Path, out_dir: Path) -> None:
    (raw_dir / LABEL_MAP).write_text("raw_category\tid\tnyu40id\nwall\t1\t1\n")

    outcome = process(raw_dir, out_dir)

    assert outcome.json["made"] == [TRAIN, VAL]
    difference = "is missing in the label map, but ScanNet id 3, nyu40 id 2 in the built-in one"
    assert f"raw category 'floor' {difference}" in outcome.stderr


@pytest.mark.parametrize(
    ("words", "status", "severity"), [((), 0, "warning"), (("--strict",), 1, "error")]
)
def test_label_map_with_changed_id_is_a_warning_or_a_strict_error(
    raw_dir: Path, new_dir: Path, words: tuple[str, ...], status: int, severity: str
) -> None:
    path = raw_dir / LABEL_MAP
    path.write_bytes(path.read_bytes().replace(b"3\tfloor\t2", b"3\tfloor\t0"))

    outcome = run_main("process", raw_dir, "-o", new_dir, *words)

    assert outcome.status == status
    assert f"{severity}: {path}: differs from the label map of the release" in outcome.stderr
    assert (
        "in 1 raw categories: floor "
        "(for example, 'floor' is ScanNet id 3, nyu40 id 0, expected ScanNet id 3, "
    ) in outcome.stderr


def test_label_map_without_rows_is_refused(raw_dir: Path, new_dir: Path) -> None:
    path = raw_dir / LABEL_MAP
    path.write_bytes(path.read_bytes().splitlines(keepends=True)[0])

    outcome = run_main("process", raw_dir, "-o", new_dir)

    assert outcome.status == 1
    assert f"error: {path}: has a header and 0 rows, expected about 607" in outcome.stderr


def test_rows_added_to_the_label_map_label_groups_even_if_strict(
    raw_dir: Path, new_dir: Path
) -> None:
    path = raw_dir / LABEL_MAP
    path.write_bytes(path.read_bytes() + b"5\tthrone\t5\n")
    edit_json(raw_dir / f"scans/{TRAIN}/{TRAIN}.aggregation.json", rename_first_group)

    outcome = run_main("process", raw_dir, "-o", new_dir, "--strict")

    assert outcome.status == 0
    assert "warning" not in outcome.stderr
    scene = read_processed(new_dir / f"train/{TRAIN}.npz")
    group_id = scene.meta.groups[0].id
    assert set(scene.nyu40_ids[scene.instances == group_id].tolist()) == {5}


def rename_first_group(aggregation: Any) -> None:
    aggregation["segGroups"][0]["label"] = "throne"


@pytest.mark.parametrize("words", [(), ("--strict",)])
def test_scene_without_alignment_fails_and_the_hint_names_lenient(
    raw_dir: Path, new_dir: Path, words: tuple[str, ...]
) -> None:
    path = raw_dir / f"scans/{TRAIN}/{TRAIN}.txt"
    path.write_text("sceneType = Office\n")

    outcome = run_main("process", raw_dir, "-o", new_dir, *words)

    assert outcome.status == 3
    assert f"{path}: the .txt has no axisAlignment\n" in outcome.stderr
    hints = [line for line in outcome.stderr.splitlines() if line.startswith("hint: ")]
    assert "--lenient" in hints[0]


def test_hint_for_a_damaged_mesh_downloads_it_again(raw_dir: Path, new_dir: Path) -> None:
    (raw_dir / f"scans/{TRAIN}/{TRAIN}_vh_clean_2.ply").write_bytes(b"")

    outcome = run_main("process", raw_dir, "-o", new_dir)

    assert "hint: remove the file, and download it again\n" in outcome.stderr


@pytest.fixture
def truncated_path(raw_dir: Path) -> Path:
    """A truncated mesh of the val scene."""
    path = raw_dir / f"scans/{VAL}/{VAL}_vh_clean_2.ply"
    os.truncate(path, path.stat().st_size - 500)
    return path


@pytest.mark.usefixtures("truncated_path")
def test_bad_scene_does_not_stop_the_others(raw_dir: Path, out_dir: Path) -> None:
    outcome = process(raw_dir, out_dir, "--force")

    assert outcome.status == 3
    assert outcome.json["made"] == [TRAIN, TEST]


def test_failure_of_a_bad_scene_names_the_file_and_its_size(
    raw_dir: Path, out_dir: Path, truncated_path: Path
) -> None:
    outcome = process(raw_dir, out_dir, "--force")

    (failure,) = outcome.json["failures"]
    size_bytes = truncated_path.stat().st_size
    assert failure["scene_id"] == VAL
    assert failure["path"] == str(truncated_path)
    assert failure["message"].startswith(f"is damaged or truncated ({size_bytes:,} bytes): ")


@pytest.mark.usefixtures("truncated_path")
def test_bad_scene_is_a_failure_in_the_manifest(raw_dir: Path, out_dir: Path) -> None:
    process(raw_dir, out_dir, "--force")

    assert list(manifest_of(out_dir)["failures"]) == [VAL]


def test_bad_scene_loses_the_result_of_its_earlier_input(raw_dir: Path, out_dir: Path) -> None:
    path = raw_dir / f"scans/{VAL}/{VAL}_vh_clean_2.ply"
    os.truncate(path, path.stat().st_size - 500)

    process(raw_dir, out_dir, "--force")

    assert f"val/{VAL}.npz" not in digests(out_dir)
    assert list(manifest_of(out_dir)["scenes"]) == [TRAIN, TEST]


def test_repaired_scene_is_made_from_the_failed_list(raw_dir: Path, out_dir: Path) -> None:
    before = digests(out_dir)
    path = raw_dir / f"scans/{VAL}/{VAL}_vh_clean_2.ply"
    whole = path.read_bytes()
    path.write_bytes(whole[:-500])
    process(raw_dir, out_dir, "--force")
    path.write_bytes(whole)

    outcome = process(raw_dir, out_dir, "--scenes", f"@{out_dir / 'failed.txt'}")

    assert outcome.status == 0
    assert outcome.json["made"] == [VAL]
    assert digests(out_dir) == before, "failed.txt is removed, too"


def test_missing_files_of_all_scenes_lead_to_one_command(raw_dir: Path, new_dir: Path) -> None:
    for path in raw_dir.glob("scans/*/*.segs.json"):
        path.unlink()

    outcome = run_main("process", raw_dir, "-o", new_dir)

    assert outcome.status == 3
    assert outcome.stderr.count("no such file") == 2
    command = f"scannet-prep download --types seg -o {raw_dir} --scenes @{new_dir}/failed.txt"
    assert outcome.stdout.count(command) == 1


def test_stray_files_and_folders_are_ignored_and_folders_named(
    raw_dir: Path, out_dir: Path
) -> None:
    for stray in ("._scene0002_00", "tmp1234"):
        (raw_dir / "scans" / stray).write_bytes(b"")
    (raw_dir / f"scans/{TRAIN}/._{TRAIN}_vh_clean_2.ply").write_bytes(b"Mac OS X")
    # The official download script leaves such empty folders.
    (raw_dir / "scans" / TEST).mkdir()
    (raw_dir / "scans/my_room").mkdir()

    outcome = process(raw_dir, out_dir)

    assert outcome.status == 0
    assert outcome.json["kept"] == [*SCENES]
    assert "my_room is not used: it holds no file of a scene" in outcome.stderr


def test_scene_folders_directly_below_the_raw_folder_are_found(
    raw_dir: Path, out_dir: Path
) -> None:
    outcome = process(raw_dir / "scans_test", out_dir)

    assert outcome.status == 0
    assert outcome.json["kept"] == [*SCENES]
    assert outcome.json["raw_gone"] == [TRAIN, VAL]


def test_split_without_scenes_is_a_usage_error(raw_dir: Path, new_dir: Path) -> None:
    outcome = process(raw_dir / "scans_test", new_dir, "--splits", "val")

    assert outcome.json["error"] == "UsageError"
    assert "has 1 scenes, but none of val" in outcome.stderr


def test_scene_in_no_official_list_needs_a_split(raw_dir: Path, new_dir: Path) -> None:
    write_scene(make_scene(UNLISTED, vertices=600), raw_dir)

    outcome = process(raw_dir, new_dir, "--scenes", UNLISTED)

    assert outcome.status == 3
    assert f"{UNLISTED} is in none of the official split lists" in outcome.stderr


def test_scene_in_no_official_list_is_in_the_last_chosen_split_only(
    raw_dir: Path, new_dir: Path
) -> None:
    write_scene(make_scene(UNLISTED, vertices=600), raw_dir)
    for split, other in (("train", "val"), ("val", "test")):
        outcome = process(raw_dir, new_dir, "--scenes", UNLISTED, "--splits", split)
        assert outcome.status == 0
        assert outcome.json["made"] == [UNLISTED]

        # A run for other scenes leaves it in its split.
        assert process(raw_dir, new_dir, "--splits", other).status == 0
        assert [path.parent.name for path in new_dir.rglob(f"{UNLISTED}.npz")] == [split]
        assert manifest_of(new_dir)["scenes"][UNLISTED]["split"] == split


@pytest.mark.parametrize(
    ("line", "chosen"),
    [
        ("", [*SCENES]),
        ("--splits train", [TRAIN]),
        ("--splits val test", [VAL, TEST]),
        (f"--scenes {TRAIN} @list.txt", [TRAIN, VAL]),
        ("--limit 2", [TRAIN, VAL]),
    ],
)
def test_dry_run_shows_selected_scenes_and_writes_nothing(
    whole_dir: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, line: str, chosen: list[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("list.txt").write_text(f"# a comment\n{VAL}  # another\n\n")

    outcome = process(whole_dir / "raw", tmp_path / "new", "--dry-run", *line.split())

    assert sorted(outcome.json["scenes"]) == chosen
    assert not (tmp_path / "new").exists()


@pytest.mark.parametrize(
    ("line", "status", "message"),
    [
        ("--jobs -1", 2, "'-1' is not a positive whole number"),
        (
            f"--scenes {TEST} --splits train",
            2,
            f"{TEST} is in the split test, but only train was asked for",
        ),
        ("--scenes scene0900_00", 2, "is in none of the official lists, and"),
        ("--scenes @nowhere.txt", 1, "nowhere.txt: no such file"),
        ("--scenes scene0002_00", 3, "has no folder scene0002_00"),
    ],
)
def test_wrong_selection_is_refused_and_no_scene_written(
    whole_dir: Path, tmp_path: Path, line: str, status: int, message: str
) -> None:
    outcome = process(whole_dir / "raw", tmp_path, *line.split())

    assert outcome.status == status
    assert outcome.json["exit_status"] == status
    assert message in outcome.stderr
    assert not list(tmp_path.rglob("*.npz"))


def test_missing_default_raw_folder_is_an_error_with_a_hint(tmp_path: Path) -> None:
    outcome = run_main("process", cwd=tmp_path)

    assert outcome.status == 1
    assert outcome.stdout == ""
    assert outcome.stderr.startswith("error: data/ScanNet: no such folder\nhint: ")
    assert not (tmp_path / "data").exists()


@pytest.fixture
def raw_dir_with_trashcans(raw_dir: Path) -> Path:
    """Raw scenes, one of which has two groups of a category that the label map lacks."""
    groups = [
        {"id": 90, "label": "trashcan", "segments": []},
        {"id": 91, "label": "trashcan", "segments": [0]},
    ]
    path = raw_dir / f"scans/{TRAIN}/{TRAIN}.aggregation.json"
    edit_json(path, lambda value: value["segGroups"].extend(groups))
    return raw_dir


def test_unknown_category_is_one_warning_that_counts_its_groups(
    raw_dir_with_trashcans: Path, out_dir: Path
) -> None:
    outcome = process(raw_dir_with_trashcans, out_dir)

    assert outcome.status == 0
    assert outcome.stderr.count("'trashcan'") == 1
    assert "groups left unlabeled: 2" in outcome.stderr


def test_strict_run_fails_for_an_unknown_category_of_a_kept_scene(
    raw_dir_with_trashcans: Path, out_dir: Path
) -> None:
    process(raw_dir_with_trashcans, out_dir)

    for _ in range(2):
        outcome = process(raw_dir_with_trashcans, out_dir, "--strict")
        assert outcome.status == 3
        assert [failure["scene_id"] for failure in outcome.json["failures"]] == [TRAIN]
        assert f"{TRAIN}.aggregation.json: raw category 'trashcan'" in outcome.stderr


def test_full_disk_ends_the_run_without_partial_files(whole_dir: Path, tmp_path: Path) -> None:
    with limited(resource.RLIMIT_FSIZE, 6_000):
        outcome = process(whole_dir / "raw", tmp_path)

    assert outcome.status == 1
    assert outcome.json["error"] == "DiskFullError"
    names = digests(tmp_path)
    assert not [name for name in names if "npz" in Path(name).suffix or ".tmp" in name]
    assert process(whole_dir / "raw", tmp_path).status == 0


@pytest.mark.parametrize("name", [".", "scans", f"scans/{TRAIN}"])
def test_output_folder_among_the_raw_scenes_is_refused(raw_dir: Path, name: str) -> None:
    outcome = process(raw_dir, raw_dir / name)

    assert outcome.status == 2
    assert "would lie among the raw ones" in outcome.stderr
    assert not list(raw_dir.rglob("*.npz"))


def test_file_as_output_folder_is_refused(raw_dir: Path) -> None:
    outcome = process(raw_dir, raw_dir / f"scans/{TRAIN}/{TRAIN}_vh_clean_2.ply")

    assert outcome.status == 1
    assert "is not a folder" in outcome.stderr


def test_run_without_room_on_the_disk_is_refused_before_it_begins(
    raw_dir: Path, new_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("scannet_prep.base.files.RESERVE_BYTES", 1 << 60)

    outcome = process(raw_dir, new_dir)

    assert outcome.status == 1
    assert outcome.json["error"] == "DiskFullError"
    assert " and a reserve of " in outcome.stderr
    assert not list(new_dir.rglob("*.npz"))
