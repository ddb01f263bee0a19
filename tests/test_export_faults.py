"""Tests of exports that fail, are interrupted, run again, or are refused."""

from __future__ import annotations

import os
import random
import resource
import shutil
import time
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest
import tiny
from commands import (
    NO_BYTECODE,
    TEST,
    TRAIN,
    VAL,
    Outcome,
    digests,
    edit_json,
    patch,
    run_command,
    run_main,
    start_command,
    wait_until_gone,
)

from scannet_prep import official_scenes
from scannet_prep.base.files import Fingerprint
from scannet_prep.base.lock import run_lock
from scannet_prep.export.manifest import read_export
from scannet_prep.release.scene import Split
from scannet_prep.synthetic import write_release

MANY = [
    *official_scenes(Split.TRAIN)[:8],
    *official_scenes(Split.VAL)[:2],
    *official_scenes(Split.TEST)[:2],
]


def run_export(place: Path, out_dir: Path, *words: str) -> Outcome:
    return run_main("export", place, "-o", out_dir, "--json", *words)


def find_visible(out_dir: Path) -> list[Path]:
    """Find the files and folders that the loader of another program finds."""
    return [path for split in Split for path in (out_dir / split).glob("*")]


def names_in_folders(out_dir: Path) -> dict[str, set[str]]:
    """Return the names in each visible folder of a scene, by its path."""
    return {
        str(folder.relative_to(out_dir)): {path.name for path in folder.iterdir()}
        for folder in find_visible(out_dir)
        if folder.is_dir()
    }


def export_and_kill(out_dir: Path, words: tuple[str | Path, ...], dice: random.Random) -> None:
    """Start an export, and kill it when a random number of scenes has become visible."""
    process = start_command(*words, "-o", out_dir, "--jobs", "2")
    enough = len(find_visible(out_dir)) + dice.randrange(1, 5)
    while len(find_visible(out_dir)) < enough and process.poll() is None:
        time.sleep(0.001)
    time.sleep(dice.random() * 0.02)
    process.kill()
    process.communicate()
    wait_until_gone(process.pid)


@pytest.fixture
def made(out_dir: Path, tmp_path: Path) -> Path:
    """An export for Pointcept of the three small scenes of `out_dir`."""
    assert run_export(out_dir, tmp_path / "made", "--format", "pointcept").status == 0
    return tmp_path / "made"


@pytest.fixture(scope="module")
def many_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("many")
    write_release(directory / "raw", MANY, vertices=4_000)
    assert run_main("process", directory / "raw", "-o", directory / "processed").status == 0
    return directory / "processed"


@dataclass(frozen=True)
class KilledExport:
    """An export that was killed twice, and then completed.

    Attributes:
        expected: The digests of the files of a run that is not killed, by path.
        expected_folders: The names in its folders of scenes, by path.
        visible: After each of the kills, the digests of the visible files of scenes, by path.
        visible_folders: After each of the kills, the names in the folders of scenes, by path.
        recorded: The scenes in the manifest after both kills.
        is_unfinished: Whether the manifest named unfinished scenes then.
        outcome: The outcome of the run that completes the export.
        made: The digests of the files after it, by path.
    """

    expected: dict[str, str]
    expected_folders: dict[str, set[str]]
    visible: list[dict[str, str]]
    visible_folders: list[dict[str, set[str]]]
    recorded: set[str]
    is_unfinished: bool
    outcome: Outcome
    made: dict[str, str]


@pytest.fixture(scope="module", params=["pointcept", "octformer"])
def killed(
    request: pytest.FixtureRequest, many_dir: Path, tmp_path_factory: pytest.TempPathFactory
) -> KilledExport:
    dice = random.Random(1)
    directory = tmp_path_factory.mktemp("killed")
    out_dir = directory / "out"
    words = ("export", many_dir, "--format", request.param, "--label-set", "scannet200")
    assert run_main(*words, "-o", directory / "expected").status == 0

    visible = []
    visible_folders = []
    for _ in range(2):
        export_and_kill(out_dir, words, dice)
        visible_folders.append(names_in_folders(out_dir))
        files = digests(out_dir)
        visible.append(
            {path: files[path] for path in files if "/scene" in path and not path.startswith(".")}
        )

    manifest = read_export(out_dir)
    assert manifest is not None
    outcome = run_main(*words, "-o", out_dir, "--json")
    return KilledExport(
        expected=digests(directory / "expected"),
        expected_folders=names_in_folders(directory / "expected"),
        visible=visible,
        visible_folders=visible_folders,
        recorded=set(manifest.scenes),
        is_unfinished=manifest.unfinished != (),
        outcome=outcome,
        made=digests(out_dir),
    )


def find_damaged(folder: Path) -> list[str]:
    """Find the files of an export that are not as its manifest records them."""
    manifest = read_export(folder)
    assert manifest is not None
    return [
        name
        for name, fingerprint in manifest.files()
        if Fingerprint.from_file(folder / name) != fingerprint
    ]


def test_killed_export_shows_whole_files_only(killed: KilledExport) -> None:
    for visible in killed.visible:
        assert visible.items() <= killed.expected.items()


@pytest.mark.parametrize("killed", ["pointcept"], indirect=True)
def test_killed_export_shows_whole_folders_of_scenes_only(killed: KilledExport) -> None:
    # The loader of Pointcept takes every folder for a scene.
    for folders in killed.visible_folders:
        assert folders.items() <= killed.expected_folders.items()


def test_run_after_a_killed_export_makes_or_keeps_all_scenes(killed: KilledExport) -> None:
    assert killed.outcome.status == 0
    assert len(killed.outcome.json["made"]) + len(killed.outcome.json["kept"]) == len(MANY)


def test_run_after_a_killed_export_keeps_the_recorded_scenes(killed: KilledExport) -> None:
    assert killed.recorded <= set(killed.outcome.json["kept"])


def test_run_after_a_killed_export_leaves_the_files_of_a_whole_one(killed: KilledExport) -> None:
    # Hidden work folders are removed, too.
    assert killed.made == killed.expected


def test_killed_forced_run_loses_no_scene_of_the_earlier_export(
    many_dir: Path, tmp_path: Path
) -> None:
    out_dir = tmp_path / "out"
    words = ("export", many_dir, "--format", "octformer")
    assert run_main(*words, "-o", out_dir).status == 0
    expected = digests(out_dir)

    process = start_command(*words, "-o", out_dir, "--force", "--jobs", "1")
    while b'"unfinished": []' in (out_dir / "export.json").read_bytes():
        assert process.poll() is None
        time.sleep(0.001)
    process.kill()
    process.communicate()
    wait_until_gone(process.pid)
    assert run_main(*words, "-o", out_dir, "--splits", "val").status == 0
    assert digests(out_dir) == expected


def test_second_export_changes_nothing(out_dir: Path, made: Path) -> None:
    before = {path: path.stat().st_mtime_ns for path in made.rglob("*")}

    outcome = run_export(out_dir, made, "--format", "pointcept")

    assert outcome.json["made"] == []
    assert outcome.json["kept"] == [TRAIN, VAL, TEST]
    assert {path: path.stat().st_mtime_ns for path in made.rglob("*")} == before


def test_scene_with_a_missing_file_is_exported_again(out_dir: Path, made: Path) -> None:
    (made / "train" / TRAIN / "coord.npy").unlink()

    assert run_export(out_dir, made, "--format", "pointcept").json["made"] == [TRAIN]

    assert find_damaged(made) == []


def test_scene_that_was_processed_again_is_exported_again(
    raw_dir: Path, out_dir: Path, made: Path
) -> None:
    write_release(raw_dir, [VAL], vertices=650, seed=3)
    assert run_main("process", raw_dir, "-o", out_dir).status == 0

    outcome = run_export(out_dir, made, "--format", "pointcept")

    assert outcome.json["made"] == [VAL]
    assert outcome.json["kept"] == [TRAIN, TEST]
    assert find_damaged(made) == []


def test_forced_export_keeps_a_whole_scene_until_it_can_be_replaced(
    out_dir: Path, made: Path
) -> None:
    patch(out_dir / "train" / f"{TRAIN}.npz", 200, b"walls")

    outcome = run_export(out_dir, made, "--format", "pointcept", "--force")

    assert outcome.json["made"] == [VAL, TEST]
    assert (made / "train" / TRAIN / "coord.npy").exists()


def test_forced_export_replaces_a_scene_whose_source_was_repaired(
    out_dir: Path, made: Path
) -> None:
    source_path = out_dir / "train" / f"{TRAIN}.npz"
    source = source_path.read_bytes()
    patch(source_path, 200, b"walls")
    run_export(out_dir, made, "--format", "pointcept", "--force")
    source_path.write_bytes(source)

    outcome = run_export(out_dir, made, "--format", "pointcept", "--force")

    assert outcome.json["made"] == [TRAIN, VAL, TEST]
    assert find_damaged(made) == []


def test_lists_contain_the_scenes_of_all_runs(out_dir: Path, tmp_path: Path) -> None:
    words = ("--format", "octformer")
    assert run_export(out_dir, tmp_path / "a", *words, "--splits", "val").json["made"] == [VAL]

    outcome = run_export(out_dir, tmp_path / "a", *words, "--scenes", TRAIN, TEST)

    assert outcome.json["made"] == [TRAIN, TEST]
    assert outcome.json["kept"] == []
    assert run_export(out_dir, tmp_path / "b", *words).status == 0
    assert digests(tmp_path / "a") == digests(tmp_path / "b")


@pytest.fixture
def blocked_path(out_dir: Path, tmp_path: Path) -> Path:
    """A folder of the user at the path of a file of an incomplete export."""
    made = tmp_path / "made"
    assert run_export(out_dir, made, "--format", "octformer", "--scenes", TRAIN).status == 0
    path = made / "train" / f"{VAL}.npz"
    (path / "mine").mkdir(parents=True)
    return path


def test_folder_in_the_way_of_a_file_fails_its_scene_only(
    out_dir: Path, blocked_path: Path
) -> None:
    outcome = run_export(out_dir, blocked_path.parent.parent, "--format", "octformer")

    assert outcome.status == 3
    assert outcome.json["made"] == [TEST]
    assert outcome.json["kept"] == [TRAIN]


def test_folder_in_the_way_of_a_file_is_named_with_a_hint(
    out_dir: Path, blocked_path: Path
) -> None:
    outcome = run_export(out_dir, blocked_path.parent.parent, "--format", "octformer")

    (failure,) = outcome.json["failures"]
    assert failure["path"] == str(blocked_path)
    assert failure["message"] == "is in the way"
    assert failure["hint"] == "remove or rename it"


@pytest.fixture
def bad_path(raw_dir: Path, out_dir: Path, made: Path) -> Path:
    """The damaged file of a scene that was processed again after it was exported."""
    write_release(raw_dir, [VAL], vertices=650, seed=3)
    assert run_main("process", raw_dir, "-o", out_dir).status == 0
    path = out_dir / "val" / f"{VAL}.npz"
    shutil.copy(path, made.parent / "good.npz")
    patch(path, 200, b"walls")
    return path


@pytest.mark.usefixtures("bad_path")
def test_bad_scene_fails_and_the_others_are_kept(out_dir: Path, made: Path) -> None:
    outcome = run_export(out_dir, made, "--format", "pointcept")

    assert outcome.status == 3
    assert outcome.json["made"] == []
    assert outcome.json["kept"] == [TRAIN, TEST]


def test_file_of_a_bad_scene_is_named(out_dir: Path, made: Path, bad_path: Path) -> None:
    outcome = run_export(out_dir, made, "--format", "pointcept")

    (failure,) = outcome.json["failures"]
    assert failure["path"] == str(bad_path)
    assert failure["message"] == "is not the file that the manifest records"


@pytest.mark.usefixtures("bad_path")
def test_bad_scene_is_in_the_failed_list(out_dir: Path, made: Path) -> None:
    run_export(out_dir, made, "--format", "pointcept")

    assert (made / "failed.txt").read_text().splitlines()[1:] == [VAL]


@pytest.mark.usefixtures("bad_path")
def test_older_version_of_a_bad_scene_is_removed(out_dir: Path, made: Path) -> None:
    run_export(out_dir, made, "--format", "pointcept")

    assert not (made / "val" / VAL).exists()
    assert find_damaged(made) == []


def test_repaired_scene_is_exported_from_the_failed_list(
    out_dir: Path, made: Path, bad_path: Path
) -> None:
    run_export(out_dir, made, "--format", "pointcept")
    shutil.copy(made.parent / "good.npz", bad_path)
    failed_list = f"@{made / 'failed.txt'}"

    outcome = run_export(out_dir, made, "--format", "pointcept", "--scenes", failed_list)

    assert outcome.status == 0
    assert not (made / "failed.txt").exists()
    assert find_damaged(made) == []


OCTFORMER = ("--format", "octformer", "--label-set", "scannet200")


@pytest.fixture
def damaged(out_dir: Path, tmp_path: Path) -> Path:
    """An export for OctFormer with a damaged and a missing file of scenes, and without a list."""
    path = tmp_path / "damaged"
    assert run_export(out_dir, path, *OCTFORMER).status == 0
    shutil.copytree(path, tmp_path / "whole")
    patch(path / "train" / f"{VAL}.npz", -3, b"\1")
    (path / "train" / f"{TRAIN}.txt").unlink()
    (path / "scannetv2_val_npz.txt").unlink()
    return path


def test_forced_export_repairs_damage_that_keeps_the_size(out_dir: Path, damaged: Path) -> None:
    assert run_export(out_dir, damaged, *OCTFORMER).json["made"] == [TRAIN]

    outcome = run_export(out_dir, damaged, *OCTFORMER, "--force")

    assert outcome.json["made"] == [TRAIN, VAL, TEST]
    assert find_damaged(damaged) == []
    assert digests(damaged) == digests(damaged.parent / "whole")


def test_damaged_manifest_is_refused(out_dir: Path, made: Path) -> None:
    (made / "export.json").write_text('{"settings": 3}')

    outcome = run_export(out_dir, made, "--format", "pointcept")

    assert outcome.status == 1
    assert "export.json: is damaged" in outcome.stderr


def test_linked_scene_survives_a_new_version_of_its_source(
    raw_dir: Path, out_dir: Path, tmp_path: Path
) -> None:
    made = tmp_path / "made"
    assert run_export(out_dir, made, "--format", "octformer").status == 0
    assert (made / "train" / f"{TRAIN}.npz").samefile(out_dir / "train" / f"{TRAIN}.npz")

    assert run_main("process", raw_dir, "-o", out_dir, "--faces", "--force").status == 0

    assert find_damaged(made) == []


@pytest.mark.skipif(not os.access("/dev/shm", os.W_OK), reason="this machine has no /dev/shm")
def test_processed_file_is_copied_to_another_file_system(out_dir: Path, tmp_path: Path) -> None:
    other = Path("/dev/shm") / f"scannet-prep-test-{os.getpid()}"
    if other.parent.stat().st_dev == tmp_path.stat().st_dev:
        pytest.skip("this machine has one file system for both")
    try:
        assert run_export(out_dir, other, "--format", "octformer").status == 0
        source = (out_dir / f"val/{VAL}.npz").read_bytes()
        assert (other / f"train/{VAL}.npz").read_bytes() == source
    finally:
        shutil.rmtree(other, ignore_errors=True)


def test_folder_of_another_origin_is_refused(out_dir: Path, tmp_path: Path) -> None:
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "thesis.tex").write_text("x")
    for folder, name in ((tmp_path / "mine", "thesis.tex"), (out_dir, "TERMS.txt")):
        before = digests(folder)

        outcome = run_export(out_dir, folder, "--format", "octformer")

        assert outcome.status == 2
        assert f"holds {name}, and was not made by scannet-prep export" in outcome.json["message"]
        assert "choose a new folder with -o" in outcome.json["hint"]
        assert digests(folder) == before


@pytest.mark.parametrize(
    ("words", "change"),
    [
        (("octformer",), "(format: pointcept -> octformer"),
        (("pointcept", "--aligned"), "(aligned: False -> True)"),
    ],
)
def test_export_with_other_format_or_options_is_refused(
    out_dir: Path, made: Path, words: tuple[str, ...], change: str
) -> None:
    before = digests(made)

    outcome = run_export(out_dir, made, "--format", *words)

    assert outcome.status == 2
    assert f"holds an export with other options {change}" in outcome.json["message"]
    assert "choose a new folder with -o" in outcome.json["hint"]
    assert digests(made) == before


def test_label_set_is_ignored_by_a_format_that_holds_both(out_dir: Path, made: Path) -> None:
    outcome = run_export(out_dir, made, "--format", "pointcept", "--label-set", "scannet200")

    assert outcome.json["kept"] == [TRAIN, VAL, TEST]


def test_processed_scenes_may_lie_in_the_folder_of_the_export(
    out_dir: Path, tmp_path: Path
) -> None:
    processed_dir = tmp_path / "root/processed"
    shutil.copytree(out_dir, processed_dir)

    assert run_export(processed_dir, tmp_path / "root", "--format", "octformer").status == 0


@pytest.mark.parametrize(
    ("name", "flags", "change"),
    [
        ("pointcept", ["--labels-from", "ply"], "processed_labels_from: aggregation -> ply"),
        ("pointcept", ["--align-axis"], "processed_align_axis: False -> True"),
        ("benchmark-gt", ["--labels-from", "ply"], "processed_labels_from: aggregation -> ply"),
        ("ply", ["--faces"], "processed_faces: False -> True"),
        ("octformer", ["--faces"], "processed_faces: False -> True"),
    ],
)
def test_export_refuses_scenes_processed_with_other_options(
    raw_dir: Path, out_dir: Path, tmp_path: Path, name: str, flags: list[str], change: str
) -> None:
    export_dir = tmp_path / "export"
    assert run_export(out_dir, export_dir, "--format", name).status == 0
    before = digests(export_dir)
    assert run_main("process", raw_dir, "-o", out_dir, *flags, "--force").status == 0

    outcome = run_export(out_dir, export_dir, "--format", name, "--scenes", VAL)

    assert outcome.status == 2
    assert change in outcome.json["message"]
    assert "choose a new folder with -o" in outcome.json["hint"]
    assert digests(export_dir) == before


@pytest.mark.parametrize(
    ("name", "flags"),
    [("pointcept", ["--faces"]), ("benchmark-gt", ["--align-axis", "--faces"])],
)
def test_export_continues_when_other_options_leave_its_files_unchanged(
    raw_dir: Path, out_dir: Path, tmp_path: Path, name: str, flags: list[str]
) -> None:
    export_dir = tmp_path / "export"
    assert run_export(out_dir, export_dir, "--format", name).status == 0
    before = digests(export_dir)
    assert run_main("process", raw_dir, "-o", out_dir, *flags, "--force").status == 0

    outcome = run_export(out_dir, export_dir, "--format", name, "--scenes", VAL)

    assert outcome.json["made"] == [VAL]
    del before["export.json"]
    after = digests(export_dir)
    del after["export.json"]
    assert after == before


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("info made", "is an export for another program"),
        ("pack made -o b.tar.zst", "is an export for another program"),
        ("process raw -o made", "holds other files than processed scenes"),
        ("unpack a.tar.zst -o made", "is an export for another program"),
        ("export made --format ply -o c", "is an export for another program"),
        ("evaluate pred --gt made", "is an export for another program"),
    ],
)
@pytest.mark.usefixtures("raw_dir")
def test_other_commands_refuse_an_export_as_processed_scenes(
    out_dir: Path, made: Path, tmp_path: Path, line: str, message: str
) -> None:
    (tmp_path / "pred").mkdir()
    (tmp_path / "pred/scene0568_00.txt").write_text("1\n")
    assert run_main("pack", out_dir, "-o", tmp_path / "a.tar.zst").status == 0
    before = digests(made)

    outcome = run_main(*line.split(), "--json", cwd=tmp_path)

    assert outcome.status > 0
    assert message in outcome.json["message"]
    assert digests(made) == before


def test_full_disk_ends_the_export_without_partial_scenes(out_dir: Path, tmp_path: Path) -> None:
    def limit_file_size() -> None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (6_000, 6_000))

    made = tmp_path / "made"
    words = ["export", out_dir, "-o", made, "--format", "pointcept", "--json", "--jobs", "1"]

    outcome = run_command(*words, environment=NO_BYTECODE, preexec_fn=limit_file_size)

    assert outcome.status == 1
    assert outcome.json["error"] == "DiskFullError"
    assert not list(made.glob("*/scene*"))
    assert run_main(*words).status == 0
    assert find_damaged(made) == []


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("benchmark-gt", "--splits", "test"), "nothing to export: test scenes have no annotation"),
        (("pointcept", "--scenes", "scene0009_00"), "has no scene scene0009_00"),
    ],
)
def test_selection_without_scenes_is_refused_and_nothing_written(
    out_dir: Path, tmp_path: Path, words: tuple[str, ...], message: str
) -> None:
    outcome = run_export(out_dir, tmp_path / "none", "--format", *words)

    assert outcome.status == 2
    assert message in outcome.json["message"]
    assert not (tmp_path / "none").exists()


def test_dry_run_names_left_out_splits_and_writes_nothing(out_dir: Path, tmp_path: Path) -> None:
    words = ("--format", "benchmark-gt", "--dry-run")

    outcome = run_main("export", out_dir, "-o", tmp_path / "none", *words)

    assert outcome.status == 0
    lines = "left out: test (test scenes have no annotation)\ndry run: nothing was done"
    assert lines in outcome.stdout
    assert not (tmp_path / "none").exists()


def test_second_run_in_a_locked_folder_is_refused(out_dir: Path, made: Path) -> None:
    with run_lock(made):
        outcome = run_export(out_dir, made, "--format", "pointcept", "--force")

    assert outcome.status == 1
    assert outcome.json["error"] == "OutputError"


@pytest.fixture
def interrupted(made: Path) -> Path:
    """An export that was interrupted before its manifest listed a scene."""
    shutil.rmtree(made / "val")
    change = {"scenes": {}, "unfinished": [TRAIN, VAL]}
    edit_json(made / "export.json", lambda value: value.update(change))
    return made


def test_export_of_some_scenes_leaves_an_interrupted_one_unfinished(
    out_dir: Path, interrupted: Path
) -> None:
    outcome = run_export(out_dir, interrupted, "--format", "pointcept", "--scenes", TRAIN)

    assert outcome.status == 0
    assert outcome.json["unfinished"] == [VAL]


def test_export_of_all_scenes_finishes_an_interrupted_one(out_dir: Path, interrupted: Path) -> None:
    run_export(out_dir, interrupted, "--format", "pointcept", "--scenes", TRAIN)

    outcome = run_export(out_dir, interrupted, "--format", "pointcept")

    assert outcome.json["unfinished"] == []


@pytest.fixture
def without_groups(raw_dir: Path, tmp_path: Path) -> Path:
    """Processed scenes, one of which has neither segments nor groups."""
    for path in raw_dir.rglob(f"{VAL}*.json"):
        path.unlink()
    place = tmp_path / "without_groups"
    assert run_main("process", raw_dir, "-o", place, "--labels-from", "ply").status == 0
    return place


def test_export_names_scenes_without_aggregation(without_groups: Path, tmp_path: Path) -> None:
    words = ("--format", "octformer", "--label-set", "scannet200")

    outcome = run_export(without_groups, tmp_path / "out", *words)

    assert outcome.status == 0, outcome.stderr
    cause = "because processing found no aggregation"
    assert f"no instances and no ScanNet ids, {cause}: 1 scene ({VAL})" in outcome.stderr


@pytest.mark.parametrize(("labels", "is_refused"), [("scannet200", True), ("scannet20", False)])
def test_evaluate_refuses_ground_truth_without_scannet_ids(
    without_groups: Path, tmp_path: Path, labels: str, is_refused: bool
) -> None:
    predictions = tmp_path / "pred"
    predictions.mkdir()
    with np.load(without_groups / f"val/{VAL}.npz") as scene:
        np.save(predictions / f"{VAL}.npy", scene["labels"].astype(int) - 1)
    words = ("--gt", without_groups, "--allow-missing", "--label-set", labels)

    outcome = run_main("evaluate", predictions, *words)

    assert outcome.status == int(is_refused)
    assert ("the ground truth has no vertices" in outcome.stderr) == is_refused


def test_missing_folder_of_test_segments_is_refused_before_the_export(
    out_dir: Path, tmp_path: Path
) -> None:
    words = ("--format", "mask3d", "--test-segments", tmp_path / "no")

    outcome = run_export(out_dir, tmp_path / "out", *words)

    assert outcome.status == 1
    assert f"{tmp_path / 'no'}: no such folder" in outcome.stderr
    assert not (tmp_path / "out").exists()


def test_damaged_and_missing_scenes_come_with_a_hint(out_dir: Path, tmp_path: Path) -> None:
    patch(out_dir / f"val/{VAL}.npz", 200, b"walls")
    words = ("export", out_dir, "--format", "pointcept", "-o", tmp_path / "export")

    outcome = run_main(*words)
    assert outcome.status == 3
    assert "hint: verify shows what else is wrong" in outcome.stderr
    assert "to try the failed ones again, run the same command again" in outcome.stdout

    outcome = run_main(*words, "--scenes", "scene0191_00")
    assert "hint: info lists the scenes that are there\n" in outcome.stderr


@pytest.mark.parametrize("words", [("mask3d",), ("mmdet3d", "--for", "oneformer3d")])
def test_scene_with_changed_test_segments_is_exported_again(
    out_dir: Path, tmp_path: Path, words: tuple[str, ...]
) -> None:
    path = tmp_path / f"segments/{TEST}_vh_clean_2.0.010000.segs.json"
    path.parent.mkdir()
    words = ("--format", *words, "--test-segments", str(path.parent))
    for order, made_count in ((1, 3), (1, 0), (-1, 1), (-1, 0)):
        path.write_bytes(tiny.segments_file(tuple(range(1000, 1600))[::order]))
        outcome = run_export(out_dir, tmp_path / "made", *words)
        assert outcome.status == 0, outcome.stderr
        assert len(outcome.json["made"]) == made_count

    # A scene whose segments are gone is kept.
    path.unlink()
    assert len(run_export(out_dir, tmp_path / "made", *words).json["kept"]) == 3
