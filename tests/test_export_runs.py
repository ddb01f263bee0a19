"""Runs of `export`: again, interrupted, with bad scenes, and refused."""

import json
import shutil

import pytest
from commands import TEST, TRAIN, VAL, digests, patch, run_main

from scannet_prep.synthetic import write_release

ALL = [TRAIN, VAL, TEST]


def export(place, out_dir, *words):
    return run_main("export", place, "-o", out_dir, "--json", "--format", *words)


@pytest.fixture
def made(out_dir, tmp_path):
    """An export for Pointcept of the three scenes of `out_dir`."""
    assert export(out_dir, tmp_path / "made", "pointcept").status == 0
    return tmp_path / "made"


def test_second_run_makes_only_what_is_missing_or_was_changed(raw_dir, out_dir, made):
    whole = digests(made)
    (made / f"train/{TRAIN}/coord.npy").unlink()
    patch(made / f"val/{VAL}/color.npy", -1, b"more")
    dry = export(out_dir, made, "pointcept", "--dry-run")
    assert dry.json["to_make"] == {"its files were changed": [TRAIN, VAL]}
    assert export(out_dir, made, "pointcept").json["made"] == [TRAIN, VAL]
    assert digests(made) == whole

    # A change that keeps the size is repaired by force.
    patch(made / f"val/{VAL}/color.npy", -1, b"m")
    assert export(out_dir, made, "pointcept", "--force").json["made"] == ALL
    assert digests(made) == whole

    write_release(raw_dir, [VAL], vertices=650, seed=3)
    assert run_main("process", raw_dir, "-o", out_dir).status == 0
    dry = export(out_dir, made, "pointcept", "--dry-run")
    assert dry.json["to_make"] == {"processed again": [VAL]}
    assert digests(made) == whole
    outcome = export(out_dir, made, "pointcept")
    assert (outcome.json["made"], outcome.json["kept"]) == ([VAL], [TRAIN, TEST])
    assert export(out_dir, made.parent / "new", "pointcept").status == 0
    assert digests(made) == digests(made.parent / "new")


def test_scenes_of_several_runs_make_the_export_of_one(out_dir, tmp_path):
    for name in ("octformer", "mask3d", "mmdet3d"):
        for words in (("--splits", "val"), ("--scenes", TRAIN, TEST)):
            expected = ALL[1:2] if words[0] == "--splits" else [TRAIN, TEST]
            outcome = export(out_dir, tmp_path / name / "a", name, *words)
            assert outcome.json["made"] == [s for s in expected if name != "mask3d" or s != TEST]
        assert export(out_dir, tmp_path / name / "b", name, "--jobs", "2").status == 0
        assert digests(tmp_path / name / "a") == digests(tmp_path / name / "b")


def test_bad_scene_fails_alone_and_is_made_when_it_is_repaired(raw_dir, out_dir, made):
    write_release(raw_dir, [VAL], vertices=650, seed=3)
    assert run_main("process", raw_dir, "-o", out_dir).status == 0
    path = out_dir / f"val/{VAL}.npz"
    whole = path.read_bytes()
    patch(path, 5000, b"walls")
    (made / f"train/{TRAIN}/coord.npy").unlink()

    outcome = export(out_dir, made, "pointcept")

    assert outcome.status == 3
    assert (outcome.json["made"], outcome.json["kept"]) == ([TRAIN], [TEST])
    (failure,) = outcome.json["failures"]
    assert (failure["scene_id"], failure["path"]) == (VAL, str(path))
    assert (made / "failed.txt").read_text().splitlines()[1:] == [VAL]
    # The older version does not count any more.
    assert VAL not in json.loads((made / "export.json").read_text())["scenes"]

    path.write_bytes(whole)
    outcome = export(out_dir, made, "pointcept", "--scenes", f"@{made / 'failed.txt'}")
    assert (outcome.status, outcome.json["made"]) == (0, [VAL])
    assert not (made / "failed.txt").exists()
    assert export(out_dir, made.parent / "new", "pointcept").status == 0
    assert digests(made) == digests(made.parent / "new")


def test_forced_run_keeps_a_scene_that_it_cannot_make(out_dir, made):
    patch(out_dir / f"train/{TRAIN}.npz", 5000, b"walls")

    outcome = export(out_dir, made, "pointcept", "--force")

    assert (outcome.status, outcome.json["made"]) == (3, [VAL, TEST])
    assert (made / f"train/{TRAIN}/coord.npy").exists()
    assert TRAIN in json.loads((made / "export.json").read_text())["scenes"]


def test_folder_in_the_way_of_a_file_fails_its_scene(out_dir, tmp_path):
    assert export(out_dir, tmp_path / "a", "octformer", "--scenes", TRAIN).status == 0
    path = tmp_path / f"a/train/{VAL}.npz"
    path.mkdir()

    outcome = export(out_dir, tmp_path / "a", "octformer")

    assert (outcome.status, outcome.json["made"]) == (3, [TEST])
    (failure,) = outcome.json["failures"]
    assert failure["path"] == str(path)
    assert "is not a regular file" in failure["message"]


@pytest.fixture
def others(raw_dir, out_dir, made, tmp_path):
    """Folders that no export for Pointcept may be written into, by name, and other scenes."""
    words = ("process", raw_dir, "-o", tmp_path / "faces", "--faces")
    assert run_main(*words).status == 0
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine/thesis.tex").write_text("x")
    shutil.copytree(made, tmp_path / "damaged")
    (tmp_path / "damaged/export.json").write_text('{"settings": 3}')
    shutil.copytree(out_dir, tmp_path / "around/processed")
    return tmp_path


REFUSALS = [
    ("processed", "made", "octformer", 2, "holds an export with other options (format: pointcept"),
    ("processed", "made", "pointcept --aligned", 2, "options (is_aligned: False -> True)"),
    ("faces", "made", "pointcept", 2, "holds an export with other options (processed_with: "),
    ("processed", "mine", "pointcept", 2, "holds thesis.tex, and was not made by scannet-prep"),
    ("processed", "processed", "pointcept", 2, "holds TERMS.txt, and was not made by"),
    ("processed", "damaged", "pointcept", 1, "is damaged, or not of an export"),
    ("made", "new", "ply", 1, "is an export for another program"),
    ("processed", "new", "benchmark-gt --splits test", 2, "nothing to export: test scenes have"),
    ("processed", "new", "mask3d --splits test", 2, "has no segments of test scenes"),
    ("processed", "new", "pointcept --scenes scene0009_00", 2, "has no scene scene0009_00"),
    ("processed", "new", "votenet --points 0", 2, "'0' is not a whole number of at least 1"),
]


def test_export_is_refused_and_nothing_changes(others):
    before = digests(others)
    for place, folder, words, status, message in REFUSALS:
        outcome = export(others / place, others / folder, *words.split())
        assert outcome.status == status, (words, outcome.stderr)
        assert message in outcome.json["message"]
        assert digests(others) == before
        assert not (others / "new").exists()

    around = others / "around"
    assert export(around / "processed", around, "octformer").status == 0


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("info made", "is an export for another program"),
        ("pack made -o b.tar.zst", "is an export for another program"),
        ("process raw -o made", "holds other files than processed scenes"),
        ("unpack a.tar.zst -o made", "is an export for another program"),
        ("evaluate pred --gt made", "is an export for another program"),
    ],
)
@pytest.mark.usefixtures("raw_dir")
def test_other_commands_refuse_an_export(out_dir, made, tmp_path, line, message):
    (tmp_path / "pred").mkdir()
    (tmp_path / "pred/scene0568_00.txt").write_text("1\n")
    assert run_main("pack", out_dir, "-o", tmp_path / "a.tar.zst").status == 0
    before = digests(made)

    outcome = run_main(*line.split(), "--json", cwd=tmp_path)

    assert outcome.status > 0
    assert message in outcome.json["message"]
    assert digests(made) == before


def test_first_lines_say_what_is_exported_and_what_is_left_out(out_dir, tmp_path):
    words = ("export", out_dir, "-o", tmp_path / "new", "--format", "benchmark-gt", "--dry-run")

    outcome = run_main(*words)

    scenes = f"export: {out_dir} -> {tmp_path / 'new'}: 2 scenes\n"
    settings = "format: benchmark-gt, label set: ScanNet20, processed with: "
    assert outcome.stderr.startswith(scenes + settings)
    assert "left out: test scenes have no annotation" in outcome.stderr
    assert outcome.stdout.startswith("dry run: 2 scenes would be made; nothing was written\n")
    assert f"  2: not made yet ({TRAIN}, {VAL})" in outcome.stdout
    assert not (tmp_path / "new").exists()
