"""Tests of the command `view`: the files that it writes, and the errors that keep it from it."""

import io
import json
import re
import shutil
from dataclasses import replace

import numpy as np
import pytest
from commands import TEST, TRAIN, VAL, count_reads_in_new_process, edit_json, run_main
from PIL import Image

from scannet_prep import SCANNET20, read_processed
from scannet_prep.processed.scene import encode_processed
from scannet_prep.raw.check import read_raw_file
from scannet_prep.release.files import MESH
from scannet_prep.stages import pack
from scannet_prep.synthetic import write_release
from scannet_prep.view.coloring import view_scene
from scannet_prep.view.picture import PictureOptions, View, draw_scene
from scannet_prep.view.predictions import RIGHT_COLOR

VERTICES = 2000
GRAY = (100, 100, 100)
NAMED = "prediction, ScanNet20"


@pytest.fixture(scope="module")
def root(tmp_path_factory):
    """Processed scenes of ScanNet20, with faces and ScanNet200, and an archive."""
    root = tmp_path_factory.mktemp("view")
    write_release(root / "raw", (TRAIN, VAL, TEST), vertices=VERTICES)
    assert run_main("process", root / "raw", "-o", root / "data/processed").status == 0
    words = ("--faces", "--scannet200", "--scenes", VAL)
    assert run_main("process", root / "raw", "-o", root / "faces", *words).status == 0
    pack.run(root / "data/processed", root / "all.tar.zst")
    return root


@pytest.fixture
def folder(root, tmp_path):
    """A folder with only the processed scenes, under their default name."""
    (tmp_path / "data").symlink_to(root / "data")
    return tmp_path


@pytest.fixture
def predictions(folder):
    """The folder, with predictions of the validation scene, and in `b` of the test scene, too."""
    for number, name in enumerate(("a", "b", "c/a")):
        (folder / name).mkdir(parents=True)
        np.save(folder / name / f"{VAL}.npy", np.full(VERTICES, number % 2))
    np.save(folder / f"b/{TEST}.npy", np.zeros(VERTICES, int))
    return folder


def list_files(folder):
    found = [path.relative_to(folder) for path in folder.rglob("*") if path.is_file()]
    return sorted(str(path) for path in found if path.parts[0] not in {"data", "a", "b", "c"})


def read_page(path):
    """Read the colourings that a page shows first, and the titles of all."""
    text = path.read_text(encoding="utf-8")
    data = json.loads(re.search(r'id="data"[^>]*>(.*?)</script>', text)[1])
    return [data["color"], *filter(None, [data["beside"]])], {
        each["name"]: each["title"] for each in data["colorings"]
    }


@pytest.mark.parametrize(
    ("words", "files", "magic"),
    [
        ([VAL], [f"{VAL}.html"], b"<!do"),
        ([VAL, TRAIN, "-o", "new"], [f"new/{TRAIN}.html", f"new/{VAL}.html"], b"<!do"),
        ([VAL, "-o", "some/page.html"], ["some/page.html"], b"<!do"),
        ([VAL, "--png"], [f"{VAL}.png"], b"\x89PNG"),
        ([VAL, "-o", "new/x.png"], ["new/x.png"], b"\x89PNG"),
        ([VAL, TEST, "--png", "-o", "new"], [f"new/{VAL}.png", f"new/{TEST}.png"], b"\x89PNG"),
        ([VAL, "-o", "x.ply"], ["x.ply"], b"ply\n"),
    ],
)
def test_option_or_ending_determines_form_and_place_of_the_files(folder, words, files, magic):
    outcome = run_main("view", *words, "--json", cwd=folder)

    assert outcome.status == 0, outcome.stderr
    assert list_files(folder) == files
    assert outcome.json["files"] == {name: (folder / name).stat().st_size for name in files}
    for name in files:
        assert (folder / name).read_bytes().startswith(magic)


def test_picture_from_a_folder_or_an_archive_is_that_of_python(root, tmp_path):
    scene = read_processed(root / f"data/processed/val/{VAL}.npz")
    options = PictureOptions(View.parse("top"), (320, 200), ("chair",), has_legend=False)
    expected = draw_scene(view_scene(scene), "instances", options)
    words = ("--color", "instances", "--view", "top", "--size", "320x200", "--no-legend")
    for source in ("data/processed", "all.tar.zst"):
        path = tmp_path / "x.png"
        outcome = run_main(
            "view", VAL, "--source", root / source, "-o", path, *words, "--hide", "chair"
        )
        assert outcome.status == 0, outcome.stderr
        assert np.array_equal(np.array(Image.open(io.BytesIO(path.read_bytes()))), expected)


def test_mesh_has_the_colours_and_the_triangles_of_the_scene(root, tmp_path):
    path = tmp_path / "x.ply"
    words = ("view", "--source", root / "faces", "--color", "scannet200", "-o", path)
    assert run_main(*words).status == 0

    mesh = read_raw_file(MESH, path)

    scene = read_processed(root / f"faces/val/{VAL}.npz")
    assert np.array_equal(mesh.positions, scene.points)
    assert np.array_equal(mesh.colors, view_scene(scene).colorings["scannet200"].colors)
    assert np.array_equal(mesh.faces, scene.faces)


def test_each_scene_is_read_once(root, tmp_path):
    place = root / "data/processed"
    counts = count_reads_in_new_process(
        "view", TRAIN, VAL, TEST, "--source", place, "-o", tmp_path / "out"
    )

    names = [path.name for path in place.glob("*/*.npz")]
    assert {name: counts.get(name) for name in names} == dict.fromkeys(names, 1)


@pytest.mark.parametrize(
    ("words", "color", "label_set"),
    [
        ([VAL], "scannet20", "ScanNet20"),
        ([VAL, "--label-set", "scannet200"], "scannet200", "ScanNet200"),
        (["--source", "faces"], "scannet200", "ScanNet200"),
        ([TEST], "rgb", "ScanNet20"),
        ([VAL, "--pred", "a"], "prediction", "ScanNet20"),
        (["--pred", "a"], "prediction", "ScanNet20"),
        ([VAL, "--pred", "a", "--color", "labels"], "scannet20", "ScanNet20"),
    ],
)
def test_default_colouring_is_prediction_labels_or_rgb(predictions, root, words, color, label_set):
    (predictions / "faces").symlink_to(root / "faces")
    outcome = run_main("view", *words, "-o", "x.ply", cwd=predictions)

    assert outcome.status == 0, outcome.stderr
    line = outcome.stdout.splitlines()[0]
    assert line.endswith(f": 1 scene, {label_set}, coloured by {color}")


@pytest.mark.parametrize("form", ["scores", "raw ids"])
def test_perfect_prediction_in_any_form_is_right_or_unlabeled(folder, root, form):
    scene = read_processed(root / f"data/processed/val/{VAL}.npz")
    train_ids = SCANNET20.train_ids_from_raw_ids(scene.nyu40_ids, -1)
    (folder / "a").mkdir()
    if form == "scores":
        # Column 0 is for unlabeled.
        np.savez(folder / f"a/{VAL}.eval.npz", prob=np.eye(21, dtype=np.float32)[train_ids + 1])
    else:
        raw_ids = np.array([*SCANNET20.ids, 0])[train_ids]
        (folder / f"a/{VAL}.txt").write_text("\n".join(map(str, raw_ids)))
    words = ("view", VAL, "--pred", "a", "--color", "error", "-o", "x.ply")
    assert run_main(*words, cwd=folder).status == 0

    colors = read_raw_file(MESH, folder / "x.ply").colors

    assert {tuple(color) for color in colors.tolist()} == {RIGHT_COLOR, GRAY}


def test_predicted_instances_have_a_colour_each(folder):
    masks = np.zeros((2, VERTICES), bool)
    masks[0, :500] = True
    masks[1, 400:900] = True
    words = ("view", VAL, "--pred", ".", "--task", "instance", "-o", "x.ply")
    for count in (2, 0):
        np.savez(
            folder / f"{VAL}.npz",
            masks=masks[:count],
            labels=[3, -1][:count],
            scores=[1, 2][:count],
        )
        outcome = run_main(*words, cwd=folder)
        colors = read_raw_file(MESH, folder / "x.ply").colors
        assert (outcome.status, outcome.stderr) == (0, "")
        assert len(np.unique(colors, axis=0)) == count + 1


@pytest.mark.parametrize(
    ("words", "panes", "title"),
    [
        (["--pred", "a"], ["prediction"], f"{NAMED}: a"),
        (["--pred", "a", "--beside", "labels"], ["prediction", "scannet20"], None),
        (["--pred", "a", "--pred", "b"], ["prediction", "prediction-2"], f"{NAMED}: a"),
        (["--pred", "a", "--pred", "b", "--color", "error"], ["error", "error-2"], None),
        (["--pred", "a", "--pred", "b", "--color", "rgb"], ["rgb"], None),
        (["--pred", "a", "--pred", "c/a"], ["prediction", "prediction-2"], f"{NAMED}: a"),
    ],
)
def test_page_shows_a_prediction_or_two_side_by_side(predictions, words, panes, title):
    outcome = run_main("view", VAL, *words, "-o", "x.html", cwd=predictions)

    found, titles = read_page(predictions / "x.html")
    assert outcome.status == 0, outcome.stderr
    assert found == panes
    assert title in (None, titles["prediction"])
    if "c/a" in words:
        assert titles["prediction-2"] == f"{NAMED}: c/a"


@pytest.mark.parametrize(
    ("words", "status", "problem"),
    [
        (["scene0001_00"], 2, "data/processed: has no scene scene0001_00"),
        (["scene0011"], 2, "'scene0011' is not a scene id"),
        (["data/processed"], 2, "'data/processed' is not a scene id"),
        ([], 2, "data/processed: holds 3 scenes; which of them?"),
        ([VAL, "--source", "nowhere"], 1, "nowhere"),
        ([VAL, TRAIN, "-o", "x.png"], 2, "x.png is one file, but 2 scenes are to be shown"),
        ([VAL, "--png", "-o", "x.ply"], 2, "x.ply does not end in .png"),
        ([VAL, "-o", "x.PNG"], 2, "x.PNG does not end in .html or .png or .ply"),
        ([VAL, "--color", "error"], 2, f"{VAL}: cannot be coloured by 'error'"),
        ([VAL, "--beside", "error"], 2, f"{VAL}: cannot be coloured by 'error'"),
        ([TEST, "--pred", "b", "--color", "error"], 2, f"{TEST}: cannot be coloured by 'error'"),
        ([TEST, "--color", "labels"], 2, f"{TEST}: cannot be coloured by 'labels'"),
        ([VAL, "--color", "hue"], 2, "invalid choice: 'hue'"),
        ([VAL, "--png", "--view", "sideways"], 2, "'sideways' is not a view"),
        ([VAL, "--png", "--size", "800"], 2, "'800' is not a size in pixels"),
        ([VAL, "--png", "--size", "99999x99999"], 2, "99,999 x 99,999 pixels"),
        ([VAL, "--png", "--hide", "cieling"], 2, "there is no class 'cieling' to hide"),
        ([VAL, "--view", "top"], 2, "are for pictures, not for a .html file"),
        ([VAL, "-o", "x.ply", "--size", "80x60"], 2, "are for pictures, not for a .ply file"),
        ([VAL, "--png", "--beside", "rgb"], 2, "only a page shows two colourings"),
        ([VAL, "--pred", "nowhere"], 1, "nowhere: no such folder"),
        ([TRAIN, "--pred", "a"], 1, f"a: has no predictions of 1 of 1 scene: {TRAIN}"),
        ([VAL, *["--pred", "a"] * 3], 2, "3 predictions are given"),
        ([VAL, "--png", "-o", "data/processed/manifest.json/x.png"], 1, "manifest.json"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_wrong_arguments_are_refused_before_a_file_is_written(predictions, words, status, problem):
    outcome = run_main("view", *words, "--json", cwd=predictions)

    assert outcome.status == status
    assert outcome.json["exit_status"] == status
    assert problem in outcome.stderr
    assert "hint: " in outcome.stderr or status == 1
    assert "Traceback" not in outcome.stderr
    assert list_files(predictions) == []


@pytest.mark.parametrize(
    ("ending", "content", "problem"),
    [
        # 22 is ceiling, which is none of the 20 classes.
        (".txt", b"0\n39\n41\n22\n" * 500, "(nyu40 ids): 22, 41"),
        (".npy", np.repeat([0, 20, -1], [1000, 700, 300]), "(ScanNet20 train ids): 20"),
        (".npy", np.zeros(VERTICES - 1, int), ".npy: prediction: "),
        (".npy", b"\x93NUMPY", ".npy: "),
    ],
)
def test_damaged_prediction_is_refused_by_name(folder, ending, content, problem):
    path = folder / f"{VAL}{ending}"
    if isinstance(content, bytes):
        path.write_bytes(content)
    else:
        np.save(path, content)

    outcome = run_main("view", VAL, "--pred", ".", "--png", cwd=folder)

    assert outcome.status == 1
    assert problem in outcome.stderr
    assert f"{VAL}{ending}" in outcome.stderr
    assert "Traceback" not in outcome.stderr
    assert not (folder / f"{VAL}.png").exists()


def test_scene_that_is_damaged_or_has_failed_is_refused_with_the_reason(folder, root):
    (folder / "data").unlink()
    shutil.copytree(root / "data", folder / "data")
    failure = {
        "scene_id": "scene0001_00",
        "error": "FileError",
        "message": "a.ply: is empty",
        "hint": "download it",
    }
    edit_json(
        folder / "data/processed/manifest.json",
        lambda value: value["failures"].update(scene0001_00=failure),
    )
    outcome = run_main("view", "scene0001_00", cwd=folder)
    assert outcome.status == 2
    assert "scene0001_00 failed in processing: " in outcome.stderr
    assert "a.ply: is empty" in outcome.stderr

    path = folder / f"data/processed/val/{VAL}.npz"
    scene = read_processed(path)
    points = np.where(scene.points > 1, np.nan, scene.points)
    path.write_bytes(b"".join(encode_processed(replace(scene, points=points))))
    outcome = run_main("view", VAL, TRAIN, "-o", "out", cwd=folder)
    assert outcome.status == 1
    assert f"{VAL}.npz: points are not all finite" in outcome.stderr
    path.write_bytes(path.read_bytes()[:5000])
    outcome = run_main("view", VAL, TRAIN, "-o", "out", cwd=folder)
    assert outcome.status == 1
    assert str(path.relative_to(folder)) in outcome.stderr
    assert list_files(folder) == []

    edit_json(folder / "data/processed/manifest.json", lambda value: value["scenes"].clear())
    for words in ([], ["--png"], ["--serve", "0"]):
        outcome = run_main("view", *words, cwd=folder)
        assert outcome.status == 1
        assert outcome.stderr.splitlines()[0] == "error: data/processed: holds no scenes"
