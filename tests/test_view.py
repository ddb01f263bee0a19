"""Tests of the command `view`: the files that it writes, and the errors that keep it from it."""

import json
import re
import shutil

import numpy as np
import pytest
from commands import TEST, TRAIN, VAL, edit_json, fail, run_main, succeed
from PIL import Image

from scannet_prep import read_processed
from scannet_prep.raw.files import read_raw_file
from scannet_prep.release.files import MESH
from scannet_prep.stages import pack
from scannet_prep.synthetic import write_release
from scannet_prep.view.coloring import view_scene
from scannet_prep.view.picture import PictureOptions, View, draw_scene
from scannet_prep.view.predictions import RIGHT_COLOR

VERTICES = 2000
NAMED = "prediction, ScanNet20"


@pytest.fixture(scope="module")
def root(tmp_path_factory):
    """Processed scenes of ScanNet20, with faces and ScanNet200, and an archive."""
    root = tmp_path_factory.mktemp("view")
    write_release(root / "raw", (TRAIN, VAL, TEST), vertices=VERTICES)
    succeed("process", root / "raw", "-o", root / "data/processed")
    succeed(
        "process", root / "raw", "-o", root / "faces", "--faces", "--scannet200", "--scenes", VAL
    )
    pack.run(root / "data/processed", root / "all.tar.zst")
    return root


@pytest.fixture
def folder(root, tmp_path):
    """A folder with only the processed scenes, under their default name."""
    (tmp_path / "data").symlink_to(root / "data")
    return tmp_path


@pytest.fixture
def predictions(folder):
    """The folder, with predictions of the validation scene, and in `b` of the test scene, too.

    Those in `ids` are texts with ids that are not classes.
    """
    for number, name in enumerate(("a", "b", "c/a")):
        (folder / name).mkdir(parents=True)
        np.save(folder / name / f"{VAL}.npy", np.full(VERTICES, number % 2))
    np.save(folder / f"b/{TEST}.npy", np.zeros(VERTICES, int))
    (folder / "ids").mkdir()
    np.savetxt(folder / f"ids/{VAL}.txt", np.arange(VERTICES) % 23, fmt="%d")
    return folder


def list_files(folder):
    found = [*folder.glob("*.*"), *folder.glob("new/*"), *folder.glob("data/processed/*/x.png")]
    return sorted(str(path.relative_to(folder)) for path in found)


def read_page(path):
    """Read the colourings that a page shows first, and the titles of all."""
    data = json.loads(re.search(r'id="data"[^>]*>(.*?)</script>', path.read_text())[1])
    titles = {each["name"]: each["title"] for each in data["colorings"]}
    return f"{data['color']} {data['beside']}".split(), titles


@pytest.mark.parametrize(
    ("words", "files", "magic"),
    [
        (VAL, f"{VAL}.html", b"<!do"),
        (f"{VAL} -o new/page.html", "new/page.html", b"<!do"),
        (f"{VAL} -o new/x.png", "new/x.png", b"\x89PNG"),
        (f"{VAL} {TEST} --png -o new", f"new/{VAL}.png new/{TEST}.png", b"\x89PNG"),
    ],
)
def test_option_or_ending_determines_form_and_place_of_the_files(folder, words, files, magic):
    outcome = run_main("view", *words.split(), "--json", cwd=folder)

    files = files.split()
    assert list_files(folder) == files, outcome.stderr
    assert outcome.json["files"] == {name: (folder / name).stat().st_size for name in files}
    assert all((folder / name).read_bytes().startswith(magic) for name in files)


def test_picture_from_a_folder_or_an_archive_is_that_of_python(root, tmp_path):
    scene = read_processed(root / f"data/processed/val/{VAL}.npz")
    options = PictureOptions(View.parse("top"), (320, 200), ("chair", "desk"), has_legend=False)
    expected = draw_scene(view_scene(scene), "instances", options)
    words = "--hide chair --color instances --view top --size 320x200 --no-legend --hide desk"
    path = tmp_path / "x.png"
    for source in ("data/processed", "all.tar.zst"):
        path.unlink(missing_ok=True)
        run_main("view", VAL, "--source", root / source, "-o", path, *words.split())
        assert np.array_equal(np.array(Image.open(path)), expected)


def test_mesh_has_the_colours_and_the_triangles_of_the_scene(root, tmp_path):
    path = tmp_path / "x.ply"
    run_main("view", "--source", root / "faces", "--color", "scannet200", "-o", path)

    mesh = read_raw_file(MESH, path)

    scene = read_processed(root / f"faces/val/{VAL}.npz")
    assert np.array_equal(mesh.positions, scene.points)
    assert np.array_equal(mesh.colors, view_scene(scene).colorings["scannet200"].colors)
    assert np.array_equal(mesh.faces, scene.faces)


@pytest.mark.parametrize(
    ("words", "end"),
    [
        (f"{VAL}", "20, coloured by scannet20"),
        (f"{VAL} --label-set scannet200", "200, coloured by scannet200"),
        ("--source faces", "200, coloured by scannet200"),
        (f"{TEST}", "20, coloured by rgb"),
        ("--pred a --pred b", "20, coloured by prediction"),
    ],
)
def test_default_colouring_is_prediction_labels_or_rgb(predictions, root, words, end):
    (predictions / "faces").symlink_to(root / "faces")
    outcome = run_main("view", *words.split(), "-o", "x.ply", cwd=predictions)

    assert f": 1 scene, ScanNet{end}\n" in outcome.stdout, outcome.stderr


def view_prediction(folder, *words):
    """Return the colours of the vertices as those of a mesh."""
    run_main("view", VAL, "--pred", ".", "-o", "x.ply", *words, cwd=folder)
    return set(map(tuple, read_raw_file(MESH, folder / "x.ply").colors.tolist()))


def test_perfect_prediction_is_right_or_unlabeled(folder, root):
    scene = read_processed(root / f"data/processed/val/{VAL}.npz")
    raw_ids = np.where(scene.labels >= 0, scene.nyu40_ids, 0)
    np.savetxt(folder / f"{VAL}.txt", raw_ids, fmt="%d")

    assert view_prediction(folder, "--color", "error") == {RIGHT_COLOR, (100, 100, 100)}


def test_predicted_instances_have_a_colour_each(folder):
    masks = np.arange(VERTICES) // 500 == np.arange(2)[:, np.newaxis]
    for count in (2, 0):
        labels = [3, -1][:count]
        np.savez(folder / f"{VAL}.npz", masks=masks[:count], labels=labels, scores=labels)
        assert len(view_prediction(folder, "--task", "instance")) == count + 1


@pytest.mark.parametrize(
    ("words", "panes", "title"),
    [
        ("a", ["prediction"], f"{NAMED}: a"),
        ("a --beside labels", ["prediction", "scannet20"], "ScanNet20"),
        ("a --pred b --color error", ["error", "error-2"], "right or wrong: b"),
        ("a --pred b --color rgb", ["rgb"], "colours of the scan"),
        ("a --pred c/a", ["prediction", "prediction-2"], f"{NAMED}: c/a"),
        ("ids --force -q", ["prediction"], f"{NAMED}: ids"),
    ],
)
def test_page_shows_a_prediction_or_two_side_by_side(predictions, words, panes, title):
    outcome = succeed("view", VAL, "-o", "x.html", "--pred", *words.split(), cwd=predictions)

    assert ("warning: ids/" in outcome.stderr) is ("--force" in words)
    found, titles = read_page(predictions / "x.html")
    assert found == panes
    assert titles[panes[-1]] == title


@pytest.mark.parametrize(
    ("words", "status", "problem"),
    [
        ("scene0001_00", 2, "data/processed: has no scene scene0001_00"),
        ("", 2, "data/processed: 3 scenes can be shown, but none is named"),
        (f"{VAL} {TRAIN} -o x.png", 2, "x.png is one file, but 2 scenes are to be shown"),
        (f"{VAL} --png -o x.ply", 2, "x.ply does not end in .png"),
        (f"{TEST} --pred b --color error", 2, f"{TEST}: cannot be coloured by 'error'"),
        (f"{VAL} --png --view sideways", 2, "'sideways' is not a view"),
        (f"{VAL} --png --size 0x600", 2, "'0x600' is not a size in pixels"),
        (f"{VAL} --png --size 99999x99999", 2, "99,999 x 99,999 pixels"),
        (f"{VAL} --png --hide cieling", 2, "there is no class 'cieling' to hide"),
        (f"{VAL} --view top", 2, "are for pictures, not for a .html file"),
        (f"{VAL} --png --beside rgb", 2, "only a page shows two colourings"),
        (f"{TRAIN} --pred a", 1, f"a: has no semantic predictions of {TRAIN} (1 of 1)"),
        (f"{VAL} --pred a --pred a --pred a", 2, "3 predictions are given"),
        (f"{VAL} --task instance", 2, "a task is given, but no predictions"),
        (f"{VAL} --pred ids", 1, f"ids/{VAL}.txt: 695 of 2,000 predicted ids are not classes"),
    ],
)
def test_wrong_arguments_are_refused_before_a_file_is_written(predictions, words, status, problem):
    outcome = run_main("view", *words.split(), "--json", cwd=predictions)

    assert outcome.status == outcome.json["exit_status"] == status
    assert problem in outcome.stderr
    assert "hint: " in outcome.stderr or status == 1
    assert list_files(predictions) == []


def test_damaged_scene_and_empty_place_are_refused(folder, root):
    (folder / "data").unlink()
    shutil.copytree(root / "data", folder / "data")
    path = f"data/processed/val/{VAL}.npz"
    (folder / path).write_bytes(b"PK")
    fail(1, path, "view", VAL, TRAIN, "-o", "new", cwd=folder)
    assert list_files(folder) == []

    edit_json(folder / "data/processed/manifest.json", lambda value: value["scenes"].clear())
    fail(1, "error: data/processed: holds no scenes\n", "view", cwd=folder)
