"""Exports that go wrong: what is there is whole, the next run completes it, and nothing foreign is touched."""

from __future__ import annotations

import os
import random
import resource
import shlex
import shutil
import time
from pathlib import Path

import numpy as np
import pytest
import tiny
from archives import pack_shards
from commands import (
    NO_BYTECODE,
    TEST,
    TRAIN,
    VAL,
    Outcome,
    Verify,
    digests,
    edit_json,
    patch,
    run_command,
    run_main,
    start_command,
    wait_until_gone,
)

from scannet_prep import official_scenes
from scannet_prep.base.run_lock import run_lock
from scannet_prep.export.manifest import read_export
from scannet_prep.processed.folder import mark_unfinished
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
    """What a loader of another program finds."""
    return [
        path
        for split in Split
        if (out_dir / split).is_dir()
        for path in (out_dir / split).iterdir()
    ]


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


@pytest.mark.parametrize("name", ["octformer", "pointcept"])
def test_killed_at_random_moments_it_shows_whole_scenes_and_the_next_run_completes_them(
    many_dir: Path, tmp_path: Path, name: str
) -> None:
    dice, out_dir = random.Random(1), tmp_path / "out"
    words = ("export", many_dir, "--format", name, "--labels", "scannet200")
    assert run_main(*words, "-o", tmp_path / "expected").status == 0
    expected = digests(tmp_path / "expected")
    for _ in range(2):
        process = start_command(*words, "-o", out_dir, "--jobs", "2")
        enough = len(find_visible(out_dir)) + dice.randrange(1, 5)
        while len(find_visible(out_dir)) < enough and process.poll() is None:
            time.sleep(0.001)
        time.sleep(dice.random() * 0.02)
        process.kill()
        process.communicate()
        wait_until_gone(process.pid)
        visible = {
            key: value
            for key, value in digests(out_dir).items()
            if "/scene" in key and key[0] != "."
        }
        assert visible.items() <= expected.items()
        if name == "pointcept":  # its loader takes every folder there is for a scene
            for folder in find_visible(out_dir):
                whole = tmp_path / "expected" / folder.relative_to(out_dir)
                assert {path.name for path in folder.iterdir()} == {
                    path.name for path in whole.iterdir()
                }
    before = read_export(out_dir)
    assert before is not None
    assert Verify()(out_dir)[0] == (3 if (out_dir / "unfinished.txt").exists() else 0)
    outcome = run_main(*words, "-o", out_dir, "--json")
    assert (outcome.status, len(outcome.json["made"]) + len(outcome.json["kept"])) == (0, len(MANY))
    assert set(before.scenes) <= set(outcome.json["kept"])
    assert digests(out_dir) == expected  # hidden work folders would show up here


def test_killed_forced_run_loses_no_scene_of_the_earlier_export(
    many_dir: Path, tmp_path: Path
) -> None:
    out_dir = tmp_path / "out"
    words = ("export", many_dir, "--format", "octformer")
    assert run_main(*words, "-o", out_dir).status == 0
    expected = digests(out_dir)

    process = start_command(*words, "-o", out_dir, "--force", "--jobs", "1")
    while not (out_dir / "unfinished.txt").exists() and process.poll() is None:
        time.sleep(0.001)
    process.kill()
    process.communicate()
    wait_until_gone(process.pid)
    assert run_main(*words, "-o", out_dir, "--splits", "val").status == 0
    assert digests(out_dir) == expected


def test_rerun_changes_nothing_and_makes_only_what_is_missing_or_outdated(
    raw_dir: Path, out_dir: Path, made: Path
) -> None:
    before = {path: path.stat().st_mtime_ns for path in made.rglob("*")}
    outcome = run_export(out_dir, made, "--format", "pointcept")
    assert (outcome.json["made"], outcome.json["kept"]) == ([], [TRAIN, VAL, TEST])
    assert {path: path.stat().st_mtime_ns for path in made.rglob("*")} == before
    (made / "train" / TRAIN / "coord.npy").unlink()
    assert run_export(out_dir, made, "--format", "pointcept").json["made"] == [TRAIN]
    write_release(raw_dir, [VAL], vertices=650, seed=3)
    assert run_main("process", raw_dir, "-o", out_dir).status == 0
    outcome = run_export(out_dir, made, "--format", "pointcept")
    assert (outcome.json["made"], outcome.json["kept"]) == ([VAL], [TRAIN, TEST])
    source_path = out_dir / "train" / f"{TRAIN}.npz"
    source = source_path.read_bytes()
    patch(source_path, 200, b"walls")
    assert run_export(out_dir, made, "--format", "pointcept", "--force").json["made"] == [VAL, TEST]
    assert (
        made / "train" / TRAIN / "coord.npy"
    ).exists()  # what is whole stays until there is another one
    source_path.write_bytes(source)
    assert run_export(out_dir, made, "--format", "pointcept", "--force").json["made"] == [
        TRAIN,
        VAL,
        TEST,
    ]
    assert Verify()(made) == (0, [])


def test_lists_name_all_scenes_that_are_there_whichever_run_made_them(
    out_dir: Path, tmp_path: Path
) -> None:
    words = ("--format", "octformer")
    assert run_export(out_dir, tmp_path / "a", *words, "--splits", "val").json["made"] == [VAL]
    outcome = run_export(out_dir, tmp_path / "a", *words, "--scenes", TRAIN, TEST)
    assert (outcome.json["made"], outcome.json["kept"]) == ([TRAIN, TEST], [])
    assert run_export(out_dir, tmp_path / "b", *words).status == 0
    assert digests(tmp_path / "a") == digests(tmp_path / "b")


def test_folder_in_the_way_of_a_file_is_a_failure_of_its_scene_alone(
    out_dir: Path, tmp_path: Path
) -> None:
    blocked = tmp_path / "made/train" / f"{VAL}.npz"
    assert (
        run_export(out_dir, tmp_path / "made", "--format", "octformer", "--scenes", TRAIN).status
        == 0
    )
    (blocked / "mine").mkdir(parents=True)

    outcome = run_export(out_dir, tmp_path / "made", "--format", "octformer")

    assert outcome.status == 3
    assert (outcome.json["made"], outcome.json["kept"]) == ([TEST], [TRAIN])
    assert outcome.json["failures"][0]["message"].endswith(f": {blocked}: is in the way")
    assert outcome.json["failures"][0]["hint"] == "remove or rename it"


def test_bad_scene_does_not_stop_the_others_and_leaves_nothing_of_its_older_version(
    raw_dir: Path, out_dir: Path, made: Path
) -> None:
    write_release(raw_dir, [VAL], vertices=650, seed=3)
    assert run_main("process", raw_dir, "-o", out_dir).status == 0
    good = (out_dir / "val" / f"{VAL}.npz").read_bytes()
    patch(out_dir / "val" / f"{VAL}.npz", 200, b"walls")
    outcome = run_export(out_dir, made, "--format", "pointcept")
    assert (outcome.status, outcome.json["made"], outcome.json["kept"]) == (3, [], [TRAIN, TEST])
    assert (
        f"{VAL}.npz: is not the file that the manifest records"
        in outcome.json["failures"][0]["message"]
    )
    assert (made / "failed.txt").read_text().splitlines()[1:] == [VAL]
    assert not (made / "val" / VAL).exists()
    assert [(row[0], row[1]) for row in Verify()(made)[1]] == [("error", VAL)]
    (out_dir / "val" / f"{VAL}.npz").write_bytes(good)
    assert (
        run_export(
            out_dir, made, "--format", "pointcept", "--scenes", f"@{made / 'failed.txt'}"
        ).status
        == 0
    )
    assert not (made / "failed.txt").exists()
    assert Verify()(made) == (0, [])


def test_verify_names_what_is_damaged_or_missing_and_force_mends_it(
    out_dir: Path, tmp_path: Path
) -> None:
    made, verify, words = (
        tmp_path / "made",
        Verify(),
        ("--format", "octformer", "--labels", "scannet200"),
    )
    assert run_export(out_dir, made, *words).status == 0
    expected = digests(made)
    patch(made / "train" / f"{VAL}.npz", -3, b"\1")
    (made / "train" / f"{TRAIN}.txt").unlink()
    (made / "scannetv2_val_npz.txt").unlink()
    status, findings = verify(made)
    assert (status, [row[:3] for row in findings]) == (
        3,
        [
            ("error", "", "scannetv2_val_npz.txt"),
            ("error", TRAIN, f"train/{TRAIN}.txt"),
            ("error", VAL, f"train/{VAL}.npz"),
        ],
    )
    assert "CRC-32" in findings[2][3]
    assert "again with --force" in verify.value["findings"][2]["hint"]
    assert run_export(out_dir, made, *words).json["made"] == [TRAIN]  # sizes tell
    assert run_export(out_dir, made, *words, "--force").json["made"] == [TRAIN, VAL, TEST]
    assert verify(made) == (0, [])
    assert digests(made) == expected
    (made / "export.json").write_text('{"settings": 3}')
    assert verify(made)[1][0][3].startswith("is damaged, or not of an export")
    outcome = run_export(out_dir, made, *words)
    assert (outcome.status, "export.json: is damaged" in outcome.json["message"]) == (1, True)


def test_linked_scene_outlives_the_processed_folder(
    raw_dir: Path, out_dir: Path, tmp_path: Path
) -> None:
    assert run_export(out_dir, tmp_path / "made", "--format", "octformer").status == 0
    assert (tmp_path / "made/train" / f"{TRAIN}.npz").samefile(out_dir / "train" / f"{TRAIN}.npz")
    assert (
        run_main("process", raw_dir, "-o", out_dir, "--faces", "--force").status == 0
    )  # replaces files
    assert Verify()(tmp_path / "made") == (0, [])


@pytest.mark.skipif(not os.access("/dev/shm", os.W_OK), reason="needs another file system")
def test_processed_file_is_copied_to_another_file_system(out_dir: Path, tmp_path: Path) -> None:
    other = Path("/dev/shm") / f"scannet-prep-test-{os.getpid()}"
    if other.parent.stat().st_dev == tmp_path.stat().st_dev:
        pytest.skip("the same file system")
    try:
        assert run_export(out_dir, other, "--format", "octformer").status == 0
        assert (other / f"train/{VAL}.npz").read_bytes() == (
            out_dir / f"val/{VAL}.npz"
        ).read_bytes()
    finally:
        shutil.rmtree(other, ignore_errors=True)


def test_foreign_folders_other_formats_and_other_options_are_refused_and_left_alone(
    out_dir: Path, made: Path, tmp_path: Path
) -> None:
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "thesis.tex").write_text("x")
    for folder, words, message in (
        (
            tmp_path / "mine",
            ("pointcept",),
            "holds thesis.tex, and was not made by scannet-prep export",
        ),
        (out_dir, ("octformer",), "holds TERMS.txt, and was not made by scannet-prep export"),
        (
            made,
            ("octformer",),
            "holds an export with other options (format: pointcept -> octformer",
        ),
        (
            made,
            ("pointcept", "--aligned"),
            "holds an export with other options (aligned: False -> True)",
        ),
    ):
        before = digests(folder)
        outcome = run_export(out_dir, folder, "--format", *words)
        assert (outcome.status, digests(folder)) == (2, before)
        assert message in outcome.json["message"]
        assert "choose a new folder with -o" in outcome.json["hint"]
    outcome = run_export(out_dir, made, "--format", "pointcept", "--labels", "scannet200")
    assert outcome.json["kept"] == [TRAIN, VAL, TEST]  # both label sets are in it
    # As OctFormer's tool has it: the processed scenes lie in the root.
    shutil.copytree(out_dir, tmp_path / "root/processed")
    assert (
        run_export(tmp_path / "root/processed", tmp_path / "root", "--format", "octformer").status
        == 0
    )


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


def test_other_commands_do_not_take_an_export_for_processed_scenes(
    raw_dir: Path, out_dir: Path, made: Path, tmp_path: Path
) -> None:
    archive, predictions, before = tmp_path / "a.tar.zst", tmp_path / "pred", digests(made)
    predictions.mkdir()
    (predictions / "scene0568_00.txt").write_text("1\n")
    assert run_main("pack", out_dir, "-o", archive).status == 0
    for words, message in (
        (("info", made), "is an export, expected raw or processed scenes"),
        (
            ("pack", made, "-o", tmp_path / "b.tar.zst"),
            "is an export, expected raw or processed scenes",
        ),
        (("process", raw_dir, "-o", made), "processed scenes would lie among those of an export"),
        (("unpack", archive, "-o", made), "is an export for another program"),
        (
            ("export", made, "--format", "ply", "-o", tmp_path / "c"),
            "is an export, expected raw or processed scenes",
        ),
        (("evaluate", predictions, "--gt", made), "is an export, expected raw or processed scenes"),
    ):
        outcome = run_main(*words, "--json")
        assert (outcome.status > 0, digests(made)) == (True, before)
        assert message in outcome.json["message"]


def test_disk_that_takes_no_more_ends_the_export_and_leaves_no_half_scene(
    out_dir: Path, tmp_path: Path
) -> None:
    def limit_file_size() -> None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (6_000, 6_000))

    words = [
        "export",
        out_dir,
        "-o",
        tmp_path / "made",
        "--format",
        "pointcept",
        "--json",
        "--jobs",
        "1",
    ]
    outcome = run_command(*words, environment=NO_BYTECODE, preexec_fn=limit_file_size)
    assert (outcome.status, outcome.json["error"]) == (1, "DiskFullError")
    assert not list((tmp_path / "made").glob("*/scene*"))
    assert run_main(*words).status == 0
    assert Verify()(tmp_path / "made") == (0, [])


def test_selection_that_leaves_nothing_is_an_error_and_writes_nothing(
    out_dir: Path, tmp_path: Path
) -> None:
    for words, message in (
        (("benchmark-gt", "--splits", "test"), "nothing to export: test scenes have no annotation"),
        (("pointcept", "--scenes", "scene0009_00"), "has no scene scene0009_00"),
    ):
        outcome = run_export(out_dir, tmp_path / "none", "--format", *words)
        assert (outcome.status, (tmp_path / "none").exists()) == (2, False)
        assert message in outcome.json["message"]
    outcome = run_main(
        "export", out_dir, "-o", tmp_path / "none", "--format", "benchmark-gt", "--dry-run"
    )
    assert (outcome.status, (tmp_path / "none").exists()) == (0, False)
    assert (
        "left out: test (test scenes have no annotation)\ndry run: nothing was done"
        in outcome.stdout
    )


def test_only_one_run_works_in_a_folder(out_dir: Path, made: Path) -> None:
    with run_lock(made):
        outcome = run_export(out_dir, made, "--format", "pointcept", "--force")
    assert (outcome.status, outcome.json["error"]) == (1, "LockedError")


def test_interrupted_export_stays_unfinished_until_its_scenes_are_made(
    out_dir: Path, made: Path
) -> None:
    shutil.rmtree(made / "val")
    edit_json(made / "export.json", lambda value: value.update(scenes={}))
    mark_unfinished(made, [TRAIN, VAL])
    verify = Verify()
    assert verify(made)[1][0][3].endswith(f"have still to be made: {TRAIN}, {VAL}")
    assert verify.value["findings"][0]["hint"] == "run the same scannet-prep export command again"
    outcome = run_export(out_dir, made, "--format", "pointcept", "--scenes", TRAIN)
    assert (outcome.status, outcome.json["unfinished"]) == (0, [VAL])
    assert run_export(out_dir, made, "--format", "pointcept").json["unfinished"] == []


def test_scenes_without_aggregation_are_named_as_they_have_no_instances_and_no_scannet_ids(
    raw_dir: Path, tmp_path: Path
) -> None:
    shutil.copytree(raw_dir, tmp_path / "bare")
    for path in (tmp_path / "bare").rglob(f"{VAL}*.json"):
        path.unlink()
    place, predictions = tmp_path / "processed", tmp_path / "pred"
    assert run_main("process", tmp_path / "bare", "-o", place, "--labels-from", "ply").status == 0
    outcome = run_export(place, tmp_path / "out", "--format", "octformer", "--labels", "scannet200")
    told = (
        f"no instances and no ScanNet ids, because processing found no aggregation: 1 scene ({VAL})"
    )
    assert (outcome.status, told in outcome.stderr) == (0, True), outcome.stderr
    predictions.mkdir()
    with np.load(place / f"val/{VAL}.npz") as scene:
        np.save(predictions / f"{VAL}.npy", scene["labels"].astype(int) - 1)
    words = ("evaluate", predictions, "--gt", place, "--allow-missing", "--labels")
    for labels, is_warned in (("scannet200", True), ("scannet20", False)):
        outcome = run_main(*words, labels)
        assert (outcome.status, "the ground truth has no vertices" in outcome.stderr) == (
            0,
            is_warned,
        )


def test_folder_of_segments_that_is_not_there_is_told_before_anything_is_made(
    out_dir: Path, tmp_path: Path
) -> None:
    outcome = run_export(
        out_dir, tmp_path / "out", "--format", "mask3d", "--test-segments", tmp_path / "no"
    )
    assert (outcome.status, f"{tmp_path / 'no'}: no such folder" in outcome.stderr) == (1, True)
    assert not (tmp_path / "out").exists()


def test_commands_in_hints_can_be_typed_also_where_folders_have_blanks(
    out_dir: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    shutil.copytree(out_dir, tmp_path / "my scenes")
    patch(tmp_path / "my scenes" / f"val/{VAL}.npz", 200, b"walls")
    words = ("export", "my scenes", "--format", "pointcept", "-o", "my export")
    outcome = run_main(*words)
    assert outcome.status == 3
    assert "hint: to learn more: scannet-prep verify 'my scenes'\n" in outcome.stderr
    assert "to try the failed ones again, run the same command again" in outcome.stdout
    outcome = run_main(*words, "--scenes", "scene0191_00")
    assert "scannet-prep info 'my scenes' --scenes\n" in outcome.stderr
    shards = pack_shards(out_dir, tmp_path / "all.tar.zst", 20_000)
    outcome = run_main(
        "export", *shards, "--format", "ply", "-o", "ply", "--scenes", "scene0191_00"
    )
    command = outcome.stderr.splitlines()[-1].partition("scannet-prep ")[2]
    assert run_main(*shlex.split(command)).status == 0


@pytest.mark.parametrize("words", [("mask3d",), ("mmdet3d", "--for", "oneformer3d")])
def test_scene_is_made_again_when_the_file_of_its_test_segments_has_changed(
    out_dir: Path, tmp_path: Path, words: tuple[str, ...]
) -> None:
    path = tmp_path / f"segments/{TEST}_vh_clean_2.0.010000.segs.json"
    path.parent.mkdir()
    words = ("--format", *words, "--test-segments", str(path.parent))
    for order, made in ((1, 3), (1, 0), (-1, 1), (-1, 0)):
        path.write_bytes(tiny.segments_file(tuple(range(1000, 1600))[::order]))
        outcome = run_export(out_dir, tmp_path / "made", *words)
        assert (outcome.status, len(outcome.json["made"])) == (0, made), outcome.stderr
    path.unlink()  # what was made of it stays
    assert len(run_export(out_dir, tmp_path / "made", *words).json["kept"]) == 3
