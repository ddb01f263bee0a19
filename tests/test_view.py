"""Tests of the command `view`: the files that it writes, and the errors that keep it from it."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from commands import TEST, TRAIN, VAL, count_reads_in_new_process, edit_json, run_main
from test_renderer import decode_png

from scannet_prep import SCANNET20, read_processed
from scannet_prep.processed.scene import ProcessedScene, encode_processed
from scannet_prep.raw.check import read_raw_file
from scannet_prep.release.files import MESH
from scannet_prep.stages import pack
from scannet_prep.synthetic import write_release
from scannet_prep.view.camera import Camera
from scannet_prep.view.coloring import view_scene
from scannet_prep.view.predicted import RIGHT_COLOR
from scannet_prep.view.renderer import PictureOptions, render_scene

VERTICES = 2000
GRAY = (100, 100, 100)


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A processed folder, a scene with faces, and an archive."""
    root = tmp_path_factory.mktemp("view")
    raw_dir = root / "raw"
    write_release(raw_dir, (TRAIN, VAL, TEST), vertices=VERTICES)
    assert run_main("process", raw_dir, "-o", root / "data/processed").status == 0
    words = ("process", raw_dir, "-o", root / "faces", "--faces", "--scenes", VAL)
    assert run_main(*words).status == 0
    pack.run(root / "data/processed", root / "all.tar.zst")
    return root


@pytest.fixture
def folder(root: Path, tmp_path: Path) -> Path:
    """A folder with only the processed scenes, under their default name."""
    (tmp_path / "data").symlink_to(root / "data")
    return tmp_path


@pytest.fixture(scope="module")
def scene(root: Path) -> ProcessedScene:
    """The validation scene."""
    return read_processed(root / f"data/processed/val/{VAL}.npz")


def list_files(folder: Path) -> list[str]:
    """List the files of a folder, without the processed scenes."""
    names = []
    for path in folder.rglob("*"):
        name = path.relative_to(folder)
        if path.is_file() and "data" not in name.parts:
            names.append(str(name))
    return sorted(names)


# Reading.


def test_pages_of_several_scenes_read_each_once(root: Path, tmp_path: Path) -> None:
    place = root / "data/processed"
    words = ("view", TRAIN, VAL, TEST, "--source", place, "-o", tmp_path / "pages")
    counts = count_reads_in_new_process(*words)

    names = [path.name for path in place.glob("*/*.npz")]
    assert {name: counts.get(name) for name in names} == dict.fromkeys(names, 1)


# Output files.


@pytest.mark.parametrize(
    ("words", "files", "magic"),
    [
        ([VAL, "--png"], [f"{VAL}.png"], b"\x89PNG"),
        ([VAL, "-o", "new/x.png"], ["new/x.png"], b"\x89PNG"),
        ([VAL, TRAIN, "--png", "-o", "new"], [f"new/{TRAIN}.png", f"new/{VAL}.png"], b"\x89PNG"),
        ([VAL, TEST, "--export", "ply"], [f"{VAL}.ply", f"{TEST}.ply"], b"ply\n"),
        ([VAL], [f"{VAL}.html"], b"<!do"),
        ([VAL, TRAIN], [f"{TRAIN}.html", f"{VAL}.html"], b"<!do"),
        ([VAL, "-o", "some/page.html"], ["some/page.html"], b"<!do"),
    ],
    ids=[
        "picture by option",
        "picture by ending",
        "pictures in a folder",
        "meshes",
        "page",
        "pages",
        "page by ending",
    ],
)
def test_option_or_ending_determines_form_and_place_of_the_files(
    folder: Path, words: list[str], files: list[str], magic: bytes
) -> None:
    outcome = run_main("view", *words, "--json", cwd=folder)

    assert outcome.status == 0, outcome.stderr
    assert list_files(folder) == files
    assert outcome.json["files"] == {name: (folder / name).stat().st_size for name in files}
    for name in files:
        assert (folder / name).read_bytes().startswith(magic)


@pytest.mark.parametrize("source", ["data/processed", "all.tar.zst"])
def test_picture_from_a_folder_or_an_archive_is_that_of_python(
    root: Path, tmp_path: Path, scene: ProcessedScene, source: str
) -> None:
    options = ("--color", "instances", "--view", "top", "--size", "320x200")
    path = tmp_path / "x.png"

    outcome = run_main("view", VAL, "--source", root / source, *options, "-o", path)

    picture_options = PictureOptions(320, 200, Camera.parse("top"), samples=3, has_edges=True)
    expected = render_scene(view_scene(scene), "instances", picture_options)
    assert outcome.status == 0
    assert np.array_equal(decode_png(path.read_bytes()), expected)


def test_mesh_has_the_colours_and_the_triangles_of_the_scene(root: Path, tmp_path: Path) -> None:
    path = tmp_path / "x.ply"
    words = ("view", "--source", root / "faces", "--color", "scannet200", "-o", path)
    assert run_main(*words).status == 0

    mesh = read_raw_file(MESH, path)

    scene = read_processed(root / f"faces/val/{VAL}.npz")
    assert np.array_equal(mesh.positions, scene.points)
    assert np.array_equal(mesh.colors, view_scene(scene).colorings["scannet200"].colors)
    assert np.array_equal(mesh.faces, scene.faces)


# Default colourings and label sets.


@pytest.mark.parametrize(
    ("words", "color"),
    [
        ([VAL], "scannet20"),
        ([VAL, "--label-set", "scannet200"], "scannet200"),
        ([TEST], "rgb"),
        ([VAL, "--pred", "."], "prediction"),
        ([VAL, "--pred", ".", "--color", "labels"], "scannet20"),
    ],
    ids=["labels", "label set", "test scene", "prediction", "labels with prediction"],
)
def test_default_colouring_is_prediction_labels_or_rgb(
    folder: Path, words: list[str], color: str
) -> None:
    np.save(folder / f"{VAL}.npy", np.zeros(VERTICES, int))
    outcome = run_main("view", *words, "--export", "ply", "--json", cwd=folder)

    assert list(outcome.json["colors"].values()) == [color], outcome.stderr


@pytest.fixture(scope="module")
def scannet200_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with one scene that was processed with ScanNet200."""
    root = tmp_path_factory.mktemp("scannet200")
    write_release(root / "raw", [VAL], vertices=600)
    words = ("process", "raw", "-o", "data/processed", "--scannet200")
    assert run_main(*words, cwd=root).status == 0
    return root


@pytest.mark.parametrize(
    ("words", "name"),
    [((), "ScanNet200"), (("--label-set", "scannet20"), "ScanNet20")],
    ids=["default", "option"],
)
def test_first_line_names_the_label_set_of_the_folder_or_the_option(
    scannet200_dir: Path, words: tuple[str, ...], name: str
) -> None:
    outcome = run_main("view", *words, "--png", cwd=scannet200_dir)
    line = f"data/processed: 1 scene, {name}, coloured by {name.lower()}"

    assert outcome.status == 0, outcome.stderr
    assert outcome.stdout.splitlines()[0] == line


# Predictions.


def write_probabilities(folder: Path, train_ids: np.ndarray) -> None:
    """Write the scores of each class, where column 0 is for unlabeled."""
    scores = np.zeros((len(train_ids), 21), np.float32)
    scores[np.arange(len(train_ids)), train_ids + 1] = 1
    np.savez(folder / f"{VAL}.eval.npz", prob=scores)


def write_raw_ids(folder: Path, train_ids: np.ndarray) -> None:
    raw_ids = [*SCANNET20.ids, 0]
    lines = [str(raw_ids[train_id]) for train_id in train_ids]
    (folder / f"{VAL}.txt").write_text("\n".join(lines))


@pytest.mark.parametrize("write", [write_probabilities, write_raw_ids])
def test_perfect_prediction_in_any_form_is_right_or_unlabeled(
    folder: Path, scene: ProcessedScene, write: Callable[[Path, np.ndarray], None]
) -> None:
    (folder / "pred").mkdir()
    write(folder / "pred", SCANNET20.train_ids_from_raw_ids(scene.nyu40_ids, -1))
    words = ("view", VAL, "--pred", "pred", "--color", "error", "-o", "x.ply")
    assert run_main(*words, cwd=folder).status == 0

    colors = read_raw_file(MESH, folder / "x.ply").colors

    assert {tuple(color) for color in colors.tolist()} == {RIGHT_COLOR, GRAY}


@pytest.fixture
def two_predictions(folder: Path) -> Path:
    """A folder with two folders of predictions, `a` and `b`."""
    for number, name in enumerate("ab"):
        (folder / name).mkdir()
        np.save(folder / name / f"{VAL}.npy", np.full(VERTICES, number))
    return folder


COMPARE = ("view", VAL, "--pred", "a", "--pred", "b")


def read_description(page: Path) -> Any:
    """Read the description of a page, and of its scenes."""
    match = re.search(r'id="data">(.*?)</script>', page.read_text(encoding="utf-8"))
    assert match is not None
    return json.loads(match[1])


def test_page_of_two_predictions_shows_them_side_by_side(two_predictions: Path) -> None:
    outcome = run_main(*COMPARE, "-o", "x.html", cwd=two_predictions)

    page = read_description(two_predictions / "x.html")
    assert outcome.status == 0, outcome.stderr
    assert page["color"] == "prediction"
    assert page["beside"] == "prediction-2"


def test_page_shows_the_colours_of_beside(two_predictions: Path) -> None:
    options = ("--color", "labels", "--beside", "error")
    assert run_main(*COMPARE, *options, "-o", "x.html", cwd=two_predictions).status == 0

    page = read_description(two_predictions / "x.html")

    assert page["color"] == "scannet20"
    assert page["beside"] == "error"


def titles_of_colorings(page: Path) -> dict[str, str]:
    colorings = read_description(page)["colorings"]
    return {coloring["name"]: coloring["title"] for coloring in colorings}


def test_two_predictions_are_named_after_their_folders(two_predictions: Path) -> None:
    assert run_main(*COMPARE, "-o", "x.html", cwd=two_predictions).status == 0
    titles = titles_of_colorings(two_predictions / "x.html")

    assert titles["prediction"] == "prediction, ScanNet20: a"
    assert titles["difference"] == "difference of a and b"


def test_folders_of_the_same_name_are_named_in_full(two_predictions: Path) -> None:
    shutil.copytree(two_predictions / "b", two_predictions / "other/a")
    words = ("view", VAL, "--pred", "a", "--pred", "other/a", "-o", "x.html")
    assert run_main(*words, cwd=two_predictions).status == 0

    titles = titles_of_colorings(two_predictions / "x.html")

    assert titles["difference"] == f"difference of a and {Path('other/a')}"


def test_picture_shows_the_difference_of_two_predictions(two_predictions: Path) -> None:
    options = ("--color", "difference", "-o", "x.ply", "--json")
    outcome = run_main(*COMPARE, *options, cwd=two_predictions)

    assert outcome.json["colors"] == {VAL: "difference"}


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--pred", "a", "--pred", "a"], "a: a prediction cannot be compared with itself"),
        (["--pred", "a", "--pred", "b", "--pred", "a"], "3 predictions are given"),
        (["--pred", "a", "--color", "difference"], "without a second prediction"),
        (["--beside", "error"], "without a prediction, there is no colouring by error"),
        (["--beside", "rgb", "--png"], "only pages have several panes"),
    ],
    ids=["same folder", "three", "one", "none", "picture"],
)
def test_wrong_comparison_is_refused(two_predictions: Path, words: list[str], message: str) -> None:
    outcome = run_main("view", VAL, *words, cwd=two_predictions)

    assert outcome.status == 2
    assert message in outcome.stderr


def test_scene_without_the_second_prediction_is_refused(two_predictions: Path) -> None:
    (two_predictions / f"b/{VAL}.npy").rename(two_predictions / f"b/{TRAIN}.npy")
    outcome = run_main(*COMPARE, cwd=two_predictions)

    assert outcome.status == 1
    assert f"b: has no predictions of 1 of 1 scene: {VAL}" in outcome.stderr


VIEW_INSTANCES = ("view", VAL, "--pred", ".", "--task", "instance", "--export", "ply")


def test_predicted_instances_have_a_colour_each(folder: Path) -> None:
    masks = np.zeros((2, VERTICES), bool)
    masks[0, :500] = True
    masks[1, 400:900] = True
    np.savez(folder / f"{VAL}.npz", masks=masks, labels=[3, -1], scores=[0.25, 0.75])

    outcome = run_main(*VIEW_INSTANCES, cwd=folder)

    colors = read_raw_file(MESH, folder / f"{VAL}.ply").colors
    assert outcome.status == 0
    assert outcome.stderr == ""
    assert len(np.unique(colors, axis=0)) == 3


def test_prediction_without_instances_is_gray(folder: Path) -> None:
    arrays = {"masks": np.zeros((0, VERTICES)), "labels": np.zeros(0, int), "scores": np.zeros(0)}
    np.savez(folder / f"{VAL}.npz", **arrays)

    outcome = run_main(*VIEW_INSTANCES, cwd=folder)

    colors = read_raw_file(MESH, folder / f"{VAL}.ply").colors
    assert outcome.status == 0
    assert np.unique(colors, axis=0).tolist() == [list(GRAY)]


VIEW_PREDICTION = ("view", VAL, "--pred", ".", "--png")


def test_train_id_outside_the_label_set_is_refused_with_hints(folder: Path) -> None:
    np.save(folder / f"{VAL}.npy", np.repeat([0, 20, -1], [1000, 700, 300]))

    outcome = run_main(*VIEW_PREDICTION, cwd=folder)

    assert outcome.status == 1
    assert f"{VAL}.npy: 562 of 1,431 predicted ids are no class" in outcome.stderr
    assert outcome.stderr.splitlines()[0].endswith("(ScanNet20 train ids): 20")
    assert not (folder / f"{VAL}.png").exists()


def test_train_ids_of_the_label_set_are_accepted(folder: Path) -> None:
    np.save(folder / f"{VAL}.npy", np.repeat([0, 19, -1], [1000, 700, 300]))
    outcome = run_main(*VIEW_PREDICTION, cwd=folder)

    assert outcome.status == 0
    assert outcome.stderr == ""


def test_raw_ids_of_no_class_are_refused(folder: Path) -> None:
    """`evaluate` refuses them, too. 22 is ceiling, which is none of the 20 classes."""
    (folder / f"{VAL}.txt").write_text("0\n39\n41\n22\n" * 500)
    outcome = run_main(*VIEW_PREDICTION, cwd=folder)

    assert outcome.status == 1
    assert "(nyu40 ids): 22, 41\n" in outcome.stderr


# Wrong usage, and files that cannot be shown.


@pytest.mark.parametrize(
    ("words", "status", "message"),
    [
        (["scene0001_00"], 2, "data/processed: has no scene scene0001_00"),
        (["scene0011"], 2, "'scene0011' is not a scene id"),
        ([], 2, "data/processed: holds 3 scenes; which of them?"),
        ([VAL, "--source", "nowhere"], 1, "nowhere"),
        ([VAL, TRAIN, "-o", "x.png"], 2, "x.png is one file, but 2 scenes are to be shown"),
        ([VAL, "--png", "-o", "x.ply"], 2, "x.ply does not end in .png"),
        ([VAL, "-o", "x.PNG"], 2, "x.PNG does not end in .html, .png or .ply"),
        (
            [VAL, "--png", "--color", "error"],
            2,
            "without a prediction, there is no colouring by error",
        ),
        (
            [VAL, TEST, "--png", "--color", "labels"],
            2,
            f"{TEST}: cannot be coloured by 'scannet20'",
        ),
        ([VAL, "--png", "--color", "hue"], 2, "invalid choice: 'hue'"),
        ([VAL, "--png", "--view", "sideways"], 2, "'sideways' is not a view"),
        ([VAL, "--png", "--size", "800"], 2, "'800' is not a size in pixels"),
        ([VAL, "--png", "--size", "99999x99999"], 2, "99999 x 99999 pixels"),
        (
            [VAL, "--view", "top"],
            2,
            "a view and a size are for pictures, but a .html file is to be written",
        ),
        (
            [VAL, "-o", "x.ply", "--size", "80x60"],
            2,
            "a view and a size are for pictures, but a .ply file",
        ),
        ([VAL, "--png", "--pred", "nowhere"], 1, "nowhere: no such folder"),
        ([VAL, "--png", "--pred", "pred"], 1, f"has no predictions of 1 of 1 scene: {VAL}"),
        ([TRAIN, "--png", "--pred", "pred"], 1, f"{TRAIN}.npy: prediction: "),
        ([VAL, "--png", "-o", "data/processed/manifest.json/x.png"], 1, "is not a folder"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_wrong_arguments_are_refused_before_a_file_is_written(
    folder: Path, words: list[str], status: int, message: str
) -> None:
    (folder / "pred").mkdir()
    np.save(folder / f"pred/{TRAIN}.npy", np.zeros(VERTICES - 1, int))

    outcome = run_main("view", *words, "--json", cwd=folder)

    assert outcome.status == status
    assert outcome.json["exit_status"] == status
    assert message in outcome.stderr
    assert "Traceback" not in outcome.stderr
    assert list_files(folder) == [f"pred/{TRAIN}.npy"]


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ([f"data/processed/val/{VAL}.npz"], "is the file of a scene"),
        (["--source", f"data/processed/val/{VAL}.npz"], "is the file of a scene"),
        (["data/processed"], "data/processed is not a scene id, but a place"),
        ([], "which of them?"),
        (["scene0001_00"], "has no scene scene0001_00"),
    ],
    ids=["file of a scene", "file as source", "folder", "no scene", "missing scene"],
)
def test_refused_scene_comes_with_a_hint(folder: Path, words: list[str], message: str) -> None:
    outcome = run_main("view", *words, cwd=folder)

    error, hint = outcome.stderr.splitlines()
    assert outcome.status == 2
    assert message in error
    assert hint.startswith("hint: name ")


def test_scene_that_failed_in_processing_is_refused_with_the_reason(
    folder: Path, root: Path
) -> None:
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


@pytest.mark.parametrize("words", [[], ["--png"], ["--serve", "0"]], ids=str)
def test_place_without_scenes_is_refused(root: Path, tmp_path: Path, words: list[str]) -> None:
    (tmp_path / "none").mkdir()
    manifest_path = tmp_path / "none/manifest.json"
    shutil.copy(root / "data/processed/manifest.json", manifest_path)
    edit_json(manifest_path, lambda value: value["scenes"].clear())

    outcome = run_main("view", "--source", "none", *words, cwd=tmp_path)

    assert outcome.status == 1
    assert outcome.stderr.splitlines()[0] == "error: none: holds no scenes"


def points_with_nan(points: np.ndarray) -> dict[str, Any]:
    return {"points": np.where(points > 1, np.nan, points)}


def half_of_the_points(points: np.ndarray) -> dict[str, Any]:
    return {"points": points[: VERTICES // 2]}


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (points_with_nan, "points are not all finite"),
        (
            half_of_the_points,
            "array 'normals' is float16 (2000, 3), expected float16 (1000, 3)",
        ),
    ],
)
def test_damaged_scene_is_refused_and_no_other_picture_is_written(
    folder: Path, change: Callable[[np.ndarray], dict[str, Any]], message: str
) -> None:
    shutil.copytree(folder / "data/processed", folder / "damaged")
    path = folder / f"damaged/val/{VAL}.npz"
    scene = read_processed(path)
    path.write_bytes(b"".join(encode_processed(replace(scene, **change(scene.points)))))

    words = ("view", TRAIN, VAL, "--source", "damaged", "--png", "-o", "pictures")
    outcome = run_main(*words, cwd=folder)

    assert outcome.status == 1
    assert "Traceback" not in outcome.stderr
    assert f"{VAL}.npz: " in outcome.stderr
    assert message in outcome.stderr
    assert not (folder / "pictures").exists()
