"""Runs of `export`: again, with other scenes, with bad ones, and refused."""

import shutil

import pytest
from commands import TEST, TRAIN, VAL, digests, fail, patch, raw_file, run_main, succeed

from scannet_prep.synthetic import write_release


def export(place, out_dir, *words):
    return run_main("export", place, "-o", out_dir, "--json", "--format", *words)


@pytest.fixture
def made(out_dir, tmp_path):
    """An export for Pointcept of the three scenes of `out_dir`."""
    assert export(out_dir, tmp_path / "made", "pointcept").status == 0
    return tmp_path / "made"


def test_later_runs_make_what_is_missing_changed_or_processed_again(raw_dir, out_dir, made):
    def run(*words):
        return export(out_dir, made, "pointcept", *words)

    (made / "mine").touch()
    whole = digests(made)
    (made / f"train/{TRAIN}/coord.npy").unlink()
    patch(made / f"val/{VAL}/color.npy", -1, b"more")
    assert run("--dry-run").json["to_make"] == {"its files were changed": [TRAIN, VAL]}
    assert run().json["made"] == [TRAIN, VAL]
    assert digests(made) == whole
    # A change that keeps the size is repaired by force.
    patch(made / f"val/{VAL}/color.npy", -1, b"m")
    assert run("--force").json["made"] == [TRAIN, VAL, TEST]
    assert digests(made) == whole
    (made / "mine").unlink()

    write_release(raw_dir, [VAL], vertices=650, seed=3)
    succeed("process", raw_dir, "-o", out_dir)
    assert run("--dry-run").json["to_make"] == {"processed again": [VAL]}
    # If it is damaged, the older version does not count any more.
    path = out_dir / f"val/{VAL}.npz"
    processed = path.read_bytes()
    patch(path, 5000, b"walls")
    (failure,) = run().json["failures"]
    assert (failure["scene_id"], failure["path"]) == (VAL, str(path))
    assert run("--dry-run").json["to_make"] == {"not made yet": [VAL]}
    path.write_bytes(processed)
    assert run("--scenes", f"@{made / 'failed.txt'}").json["made"] == [VAL]
    assert export(out_dir, made.parent / "new", "pointcept").status == 0
    assert digests(made) == digests(made.parent / "new")

    # A scene that a forced run cannot make has to be made again.
    patch(path, 5000, b"walls")
    assert run("--force").json["made"] == [TRAIN, TEST]
    path.write_bytes(processed)
    assert run().json["made"] == [VAL]

    # One that the source does not have any more stays, and is named.
    raw_file(raw_dir, "_vh_clean_2.ply", VAL).write_text("ply")
    run_main("process", raw_dir, "-o", out_dir)
    assert [note["message"] for note in run().json["notes"]] == [
        f"not made, because they failed in processing: {VAL}",
        f"kept, although not in {out_dir}: {VAL}",
    ]
    # Scenes that were not named are not left out.
    assert run("--scenes", TEST).json["notes"] == []


def test_scenes_of_several_runs_make_the_export_of_one(out_dir, tmp_path):
    for name in ("octformer", "mask3d", "mmdet3d"):
        folder = tmp_path / name
        assert export(out_dir, folder / "a", name, "--limit", "1").json["made"] == [TRAIN]
        assert export(out_dir, folder / "a", name, "--scenes", VAL, TEST).status == 0
        assert export(out_dir, folder / "b", name).status == 0
        assert digests(folder / "a") == digests(folder / "b")


REFUSALS = [
    ("export processed -o made --format ply", 2, "holds an export with other options (format: poi"),
    ("export processed -o made --format pointcept --aligned", 2, "run has format: pointcept, "),
    ("export faces -o made --format pointcept", 2, "processed with: --no-scannet200"),
    ("export processed -o mine --format ply", 2, "holds thesis.tex, and was not made by"),
    ("export processed -o damaged --format pointcept", 1, "is damaged, or not a file of this"),
    ("export processed -o edited --format mmdet3d", 1, "records of another format"),
    ("export raw -o new --format ply", 1, "expected processed scenes"),
    ("export processed -o new --format votenet --splits test", 2, "test scenes have no annotation"),
    ("export processed -o new --format mask3d --splits test", 2, "test scenes have no segments"),
    ("export processed -o new --format ply --scenes scene0009_00", 2, "has no scene scene0009_00"),
    ("export processed --format pointcept --label-set scannet200", 2, "no choice of a label set"),
    ("export processed --format benchmark-gt --aligned", 2, "gt has no choice of a frame"),
    # Other commands do not take an export.
    ("process raw -o made", 2, "is a file, an export or the raw tree"),
]


def test_what_export_cannot_do_and_other_commands_to_an_export_are_refused(
    raw_dir, out_dir, made, tmp_path
):
    succeed("process", raw_dir, "-o", tmp_path / "faces", "--faces")
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine/thesis.tex").touch()
    shutil.copytree(made, tmp_path / "damaged")
    (tmp_path / "damaged/export.json").write_text('{"options": 3}')
    edited = shutil.copytree(made, tmp_path / "edited") / "export.json"
    edited.write_text(edited.read_text().replace("pointcept", "mmdet3d"))
    before = digests(tmp_path)

    for words, status, message in REFUSALS:
        fail(status, message, *words.split(), cwd=tmp_path)
    assert digests(tmp_path) == before
    assert not (tmp_path / "new").exists()


def test_scenes_that_lack_what_a_format_needs_are_named(raw_dir, out_dir, tmp_path):
    for suffix in ("_vh_clean_2.0.010000.segs.json", ".aggregation.json"):
        raw_file(raw_dir, suffix).unlink()
    raw_file(raw_dir, ".txt", TEST).unlink()
    succeed("process", raw_dir, "-o", tmp_path / "ply", "--labels-from", "ply")

    outcome = export(tmp_path / "ply", tmp_path / "out", "mask3d")

    (failure,) = outcome.json["failures"]
    assert f"{TRAIN} has no segments" in failure["message"]
    (note,) = outcome.json["notes"]
    assert "--compute-segments" in note["message"]
    # Test scenes need no axis alignment.
    words = ("ply", "--aligned", "--scenes", TEST)
    assert export(tmp_path / "ply", tmp_path / "one", *words).json["made"] == [TEST]


def test_scene_that_moves_to_another_split_leaves_no_file_in_the_first(raw_dir, out_dir, tmp_path):
    name = "scene9000_00"
    write_release(raw_dir, [name], vertices=600)
    for split in ("train", "val"):
        succeed("process", raw_dir, "-o", out_dir, "--scenes", name, "--splits", split)
        assert export(out_dir, tmp_path / "out", "ply").status == 0
        assert [path.parent.name for path in tmp_path.glob(f"out/*/{name}.ply")] == [split]
