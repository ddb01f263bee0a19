"""`view`, and samples in notebooks: which colours a scene has, what is written, and what is refused before that."""

from __future__ import annotations

import html
import pickle
import shutil
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from commands import edit_json, run_main
from test_renderer import decode_png
from tiny import COLORS, aggregation_file, group, process_tiny

from scannet_prep import SCANNET20, SCANNET200, ScanNet, read_processed, render
from scannet_prep.base.errors import UsageError
from scannet_prep.evaluation import InstancePrediction
from scannet_prep.processed.scene import encode_processed
from scannet_prep.raw.mesh import read_mesh
from scannet_prep.stages import pack
from scannet_prep.synthetic import write_release
from scannet_prep.view.camera import Camera
from scannet_prep.view.coloring import COLORINGS, Category, Prediction, color_numbers, view_scene
from scannet_prep.view.renderer import PictureOptions, render_scene

TRAIN, VAL, TEST = "scene0000_00", "scene0011_00", "scene0707_00"
GRAY = (100, 100, 100)


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("view")
    write_release(root / "raw", (TRAIN, VAL, TEST), vertices=2000)
    assert run_main("process", root / "raw", "-o", root / "data/processed").status == 0
    assert (
        run_main("process", root / "raw", "-o", root / "faces", "--faces", "--scenes", VAL).status
        == 0
    )
    pack.run(root / "data/processed", root / "all.tar.zst")
    return root


@pytest.fixture
def folder(root: Path, tmp_path: Path) -> Path:
    """An empty folder with processed scenes under their default name."""
    (tmp_path / "data").symlink_to(root / "data")
    return tmp_path


def written(folder: Path) -> list[str]:
    return sorted(
        str(path.relative_to(folder))
        for path in folder.rglob("*")
        if path.is_file() and "data" not in path.parts
    )


def processed(root: Path, scene_id: str = VAL) -> Any:
    return read_processed(next((root / "data/processed").glob(f"*/{scene_id}.npz")))


# What can be shown.


def test_colourings_of_a_scene_by_hand(tmp_path: Path) -> None:
    scene = view_scene(process_tiny(tmp_path))
    assert list(scene.colorings) == [
        "rgb",
        "scannet20",
        "scannet200",
        "instances",
        "segments",
        "normals",
    ]
    assert scene.colorings["rgb"].colors.tolist() == [list(color) for color in COLORS]
    wall, floor = SCANNET20.colors[0], SCANNET20.colors[1]
    labels = scene.colorings["scannet20"]
    assert labels.categories == (
        Category("wall", wall, 3),
        Category("floor", floor, 2),
        Category("unlabeled", GRAY, 1),
    )
    assert labels.indices is not None
    assert (labels.indices.tolist(), labels.indices.dtype) == ([1, 1, 0, 0, 0, 2], np.uint16)
    assert labels.colors.tolist() == [
        list(color) for color in (floor, floor, wall, wall, wall, GRAY)
    ]
    numbers = color_numbers(np.array([1, 0]))
    assert [(item.name, item.count) for item in scene.colorings["instances"].categories] == [
        ("wall 1", 3), ("floor 0", 2), ("unlabeled", 1),
    ]  # fmt: skip
    assert [
        list(item.color) for item in scene.colorings["instances"].categories[:2]
    ] == numbers.tolist()
    assert [item.name for item in scene.colorings["segments"].categories] == [
        f"segment {item}" for item in range(4)
    ]
    assert scene.colorings["normals"].colors[[0, 4]].tolist() == [[128, 128, 255], [128, 0, 128]]
    assert (scene.scene_id, scene.split, scene.frame) == (TRAIN, "train", "frame of the scan")
    assert [item.raw_category for item in scene.colorings["instances"].categories] == [
        "wall",
        "floor",
        "",
    ]


def test_every_colouring_is_its_categories(root: Path) -> None:
    scene = processed(root)
    predicted = Prediction(
        SCANNET200, np.random.default_rng(0).integers(-1, 200, len(scene.points))
    )
    viewed = view_scene(scene, prediction=predicted)
    assert tuple(viewed.colorings) == COLORINGS
    for name, coloring in viewed.colorings.items():
        assert (coloring.name, coloring.colors.shape, coloring.colors.dtype) == (
            name,
            (2000, 3),
            np.uint8,
        )
        assert (
            (coloring.indices is None) == (not coloring.categories) == (name in {"rgb", "normals"})
        )
        if coloring.indices is not None:
            colors = np.array([item.color for item in coloring.categories])
            assert np.array_equal(colors[coloring.indices], coloring.colors)
            assert np.bincount(coloring.indices).tolist() == [
                item.count for item in coloring.categories
            ]
            order = [(item.name == "unlabeled", -item.count) for item in coloring.categories]
            assert order == sorted(order)


def test_test_scenes_have_colours_normals_and_predictions_but_no_errors(root: Path) -> None:
    scene = processed(root, TEST)
    assert list(view_scene(scene).colorings) == ["rgb", "normals"]
    viewed = view_scene(scene, prediction=Prediction(SCANNET20, np.zeros(2000, np.int64)))
    assert list(viewed.colorings) == ["rgb", "normals", "prediction"]


def test_names_of_instances_tell_class_and_raw_category(tmp_path: Path) -> None:
    groups = [
        group(0, [0], "office chair"),
        group(1, [2], "wall"),
        group(2, [4], "<script>alert(1)</script>"),
    ]
    scene = process_tiny(tmp_path, {".aggregation.json": aggregation_file(groups)})
    names = {item.name for item in view_scene(scene).colorings["instances"].categories}
    assert names == {"chair 0 (office chair)", "wall 1", "<script>alert(1)</script> 2", "unlabeled"}


def test_error_is_right_wrong_or_unknown(tmp_path: Path) -> None:
    scene = process_tiny(tmp_path)  # floor, floor, wall, wall, wall, unlabeled
    viewed = view_scene(scene, prediction=Prediction(SCANNET20, np.array([1, 0, 0, -1, 0, 0])))
    error, prediction = viewed.colorings["error"], viewed.colorings["prediction"]
    assert [item.name for item in error.categories] == ["right", "wrong", "unlabeled"]
    assert error.indices is not None
    assert error.indices.tolist() == [0, 1, 0, 1, 0, 2]
    assert [(item.name, item.count) for item in prediction.categories] == [
        ("wall", 4),
        ("floor", 1),
        ("unlabeled", 1),
    ]


def test_of_masks_that_overlap_the_most_confident_is_shown_and_of_equal_ones_the_first(
    tmp_path: Path,
) -> None:
    masks = np.array(
        [[1, 1, 0, 0, 0, 0], [0, 1, 1, 0, 0, 0], [0, 0, 1, 1, 0, 0], [0, 0, 0, 1, 0, 0]], bool
    )
    found = InstancePrediction(masks, np.array([1, 2, 3, -1]), np.array([0.5, 0.9, 0.5, 0.5]))
    groups = [group(0, [0], "cabinet"), group(1, [2, 4], "bed")]
    scene = process_tiny(tmp_path, {".aggregation.json": aggregation_file(groups)})
    viewed = view_scene(scene, prediction=Prediction(SCANNET20, found))
    coloring = viewed.colorings["prediction"]
    assert coloring.indices is not None
    names = [coloring.categories[item].name for item in coloring.indices]
    assert names == [
        "floor 0 (0.50)",
        "cabinet 1 (0.90)",
        "cabinet 1 (0.90)",
        "bed 2 (0.50)",
        *["unlabeled"] * 2,
    ]
    error = viewed.colorings["error"]
    assert error.indices is not None
    verdicts = [error.categories[item].name for item in error.indices]
    assert verdicts == ["wrong", "right", "wrong", "right", "wrong", "unlabeled"]


def test_instances_of_wall_and_floor_are_neither_right_nor_wrong(tmp_path: Path) -> None:
    found = InstancePrediction(np.ones((1, 6), bool), np.array([3]), np.array([1.0]))
    error = view_scene(process_tiny(tmp_path), prediction=Prediction(SCANNET20, found)).colorings[
        "error"
    ]
    assert [(item.name, item.count) for item in error.categories] == [("unlabeled", 6)]


# Notebooks.


def test_samples_give_the_pictures_of_their_scenes(root: Path) -> None:
    for label_set in (SCANNET20, SCANNET200):
        sample = ScanNet(root / "data/processed", split="val", labels=label_set)[0]
        for color in ("labels", "rgb", "segments", "normals"):
            image = render(sample, color, size=(160, 120))
            assert (image.shape, image.dtype) == ((120, 160, 3), np.uint8)
            name = label_set.name.lower() if color == "labels" else color
            expected = render_scene(view_scene(processed(root)), name, PictureOptions(160, 120))
            assert np.array_equal(image, expected)
    plain = render({**sample}, labels=SCANNET200, view="top", size=(90, 60), legend=False)
    assert plain.shape == (60, 90, 3)


def test_notebooks_show_samples_as_text_and_picture(root: Path) -> None:
    for split, key in (("train", "labels"), ("test", "rgb")):
        sample = ScanNet(root / "data/processed", split=split)[0]  # type: ignore[arg-type]
        data = sample._repr_png_()
        assert np.array_equal(decode_png(data), render(sample, key, size=(640, 480)))
        assert sample._repr_html_().startswith(
            f"<pre>{html.escape(repr(sample), quote=False)}</pre><img alt="
        )
        assert pickle.loads(pickle.dumps(sample))._repr_png_() == data


@pytest.mark.parametrize("keys", ["labels", ("colors", "labels"), ()])
def test_samples_without_points_are_shown_as_text(root: Path, keys: Any) -> None:
    sample = ScanNet(root / "data/processed", split="val", keys=keys)[0]
    assert sample._repr_png_() is None
    assert sample._repr_html_() == f"<pre>{html.escape(repr(sample), quote=False)}</pre>"


def test_what_transforms_leave_in_a_sample_is_shown_or_passed_over(root: Path) -> None:
    sample = ScanNet(root / "data/processed", split="val")[0]
    sample["points"] = sample["points"].astype(np.float64) + 1
    sample["colors"] = sample["colors"] / 255
    sample["scene_id"] = "<script>"
    assert sample._repr_png_()
    assert "<script>" not in sample._repr_html_()
    plain = render(dict(sample), color="instances", legend=False)
    sample["instances"] = sample["instances"].astype(np.int64) + (sample["instances"] >= 0) * (
        1 << 40
    )
    assert np.array_equal(render(dict(sample), color="instances", legend=False), plain)
    sample["labels"] = sample["labels"][:5]
    sample["normals"] = sample["normals"][:5]
    assert sample._repr_png_() is None
    sample["points"][0, 0] = np.nan
    assert sample._repr_png_() is None


@pytest.mark.parametrize(
    ("changes", "color", "words"),
    [
        ({"points": None}, "labels", "the sample has no 'points'"),
        (
            {"points": np.zeros((0, 3)), "colors": np.zeros((0, 3), np.uint8)},
            "rgb",
            "points: there are none",
        ),
        ({"points": np.full((2000, 3), np.nan)}, "rgb", "points: not all are finite"),
        (
            {"points": np.zeros((2000, 2))},
            "rgb",
            r"points: found float64 \(2000, 2\), expected floats \(any number, 3\)",
        ),
        (
            {"colors": np.zeros((2000, 3))},
            "rgb",
            r"colors: found float64 \(2000, 3\), expected uint8 \(2000, 3\)",
        ),
        (
            {"labels": np.zeros(5, int)},
            "labels",
            r"labels: found int64 \(5,\), expected integers \(2000,\)",
        ),
        (
            {"faces": np.array([[0, 1, 2000]])},
            "labels",
            "faces: refer to vertices 0..2000, but there are 2,000",
        ),
        ({"normals": np.full((2000, 3), np.inf)}, "labels", "normals: not all are finite"),
        ({}, "error", "a sample cannot be coloured by 'error'"),
    ],
)
def test_samples_that_cannot_be_drawn_say_why(
    root: Path, changes: Any, color: str, words: str
) -> None:
    keys = ("points", "colors", "labels")
    sample = ScanNet(root / "data/processed", split="val", keys=keys)[0] | changes
    with pytest.raises(UsageError, match=words):
        render(
            {key: value for key, value in sample.items() if value is not None},
            color,
            labels=SCANNET20,
        )


def test_a_sample_without_its_label_set_is_drawn_only_with_labels_given(root: Path) -> None:
    sample = dict(ScanNet(root / "data/processed", split="val")[0])
    assert render(sample).any()
    del sample["label_set"]
    with pytest.raises(UsageError, match="label set of the labels is not known") as caught:
        render(sample)
    assert caught.value.hint == "render(..., labels=SCANNET20)"
    assert np.array_equal(render(sample, labels="scannet20"), render(sample, labels=SCANNET20))
    with pytest.raises(UsageError, match="'20' is not a label set"):
        render({}, labels="20")


def test_render_refuses_another_label_set_than_that_of_the_sample(root: Path) -> None:
    sample = ScanNet(root / "data/processed", split="val", labels=SCANNET20)[0]
    with pytest.raises(
        UsageError, match="labels is ScanNet200, but the labels of the sample are of ScanNet20"
    ):
        render(sample, labels=SCANNET200)


def test_importing_the_dataset_loads_nothing_that_draws() -> None:
    code = "import sys, scannet_prep.training.dataset\nprint([name for name in sys.modules if 'scannet_prep.view' in name])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"


# The command.


@pytest.mark.parametrize(
    ("words", "files"),
    [
        ([VAL, "--png"], [f"{VAL}.png"]),
        ([VAL, "-o", "new/x.png"], ["new/x.png"]),
        ([VAL, TRAIN, "--png", "-o", "new"], [f"new/{TRAIN}.png", f"new/{VAL}.png"]),
        ([VAL, TEST, "--export", "ply"], [f"{VAL}.ply", f"{TEST}.ply"]),
        ([VAL], [f"{VAL}.html"]),
        ([VAL, TRAIN], ["scenes.html"]),
        ([VAL, "-o", "some/page.html"], ["some/page.html"]),
    ],
)
def test_ending_or_option_says_what_is_written_and_where(
    folder: Path, words: list[str], files: list[str]
) -> None:
    outcome = run_main("view", *words, "--json", cwd=folder)
    assert (outcome.status, written(folder)) == (0, files), outcome.stderr
    assert outcome.json["files"] == {
        name: (folder / name).stat().st_size for name in outcome.json["files"]
    }
    assert sorted(outcome.json["files"]) == files
    for name in files:
        assert (folder / name).read_bytes()[:4] in {b"\x89PNG", b"ply\n", b"<!do"}


def test_pictures_from_a_folder_an_archive_and_in_python_are_the_same(
    root: Path, folder: Path
) -> None:
    for source in ("data/processed", root / "all.tar.zst"):
        options = ("--source", source, "--color", "instances", "--view", "top", "--size", "320x200")
        assert run_main("view", VAL, *options, "-o", "x.png", cwd=folder).status == 0
        options = PictureOptions(320, 200, Camera.parse("top"))
        expected = render_scene(view_scene(processed(root)), "instances", options)
        assert np.array_equal(decode_png((folder / "x.png").read_bytes()), expected)


def test_colours_that_are_shown_by_default(folder: Path) -> None:
    np.save(folder / f"{VAL}.npy", np.zeros(2000, int))
    for words, color in (
        ([VAL], "scannet20"),
        ([VAL, "--labels", "scannet200"], "scannet200"),
        ([TEST], "rgb"),
        ([VAL, "--pred", "."], "prediction"),
        ([VAL, "--pred", ".", "--color", "labels"], "scannet20"),
    ):
        outcome = run_main("view", *words, "--export", "ply", "--json", cwd=folder)
        assert list(outcome.json["colors"].values()) == [color], outcome.stderr


@pytest.mark.parametrize(
    ("words", "name"), [((), "ScanNet200"), (("--labels", "scannet20"), "ScanNet20")]
)
def test_label_set_is_that_of_the_folder_by_default_and_in_the_first_line(
    tmp_path: Path, words: tuple[str, ...], name: str
) -> None:
    write_release(tmp_path / "raw", [VAL], vertices=600)
    assert (
        run_main("process", "raw", "-o", "data/processed", "--scannet200", cwd=tmp_path).status == 0
    )
    outcome = run_main("view", *words, "--png", cwd=tmp_path)
    assert outcome.status == 0, outcome.stderr
    assert (
        outcome.stdout.splitlines()[0]
        == f"data/processed: 1 scene, {name}, coloured by {name.lower()}"
    )


def test_ply_has_the_colours_and_the_mesh_that_are_seen(root: Path, folder: Path) -> None:
    out = folder / "x.ply"
    assert (
        run_main("view", "--source", root / "faces", "--color", "scannet200", "-o", out).status == 0
    )
    scene = read_processed(root / f"faces/val/{VAL}.npz")
    mesh = read_mesh(out)
    assert np.array_equal(mesh.positions, scene.points)
    assert np.array_equal(mesh.colors, view_scene(scene).colorings["scannet200"].colors)
    assert np.array_equal(mesh.faces, scene.faces)


def test_predictions_are_read_in_every_form_that_evaluate_takes(root: Path, folder: Path) -> None:
    truth = SCANNET20.train_ids_from_raw_ids(processed(root).nyu40_ids, -1)
    scores = np.zeros((2000, 21), np.float32)
    scores[np.arange(2000), truth + 1] = 1
    (folder / "a").mkdir()
    (folder / "b").mkdir()
    np.savez(folder / f"a/{VAL}.eval.npz", prob=scores)
    (folder / f"b/{VAL}.txt").write_text(
        "\n".join(str([*SCANNET20.ids, 0][item]) for item in truth)
    )
    for name in ("a", "b"):
        out = folder / f"{name}.ply"
        assert (
            run_main("view", VAL, "--pred", name, "--color", "error", "-o", out, cwd=folder).status
            == 0
        )
        assert {tuple(color) for color in read_mesh(out).colors.tolist()} == {(60, 160, 75), GRAY}


def test_predicted_instances_are_shown(folder: Path) -> None:
    masks = np.zeros((2, 2000), bool)
    masks[0, :500], masks[1, 400:900] = True, True
    np.savez(folder / f"{VAL}.npz", masks=masks, labels=[3, -1], scores=[0.25, 0.75])
    outcome = run_main(
        "view", VAL, "--pred", ".", "--task", "instance", "--export", "ply", cwd=folder
    )
    assert (outcome.status, outcome.stderr) == (0, "")
    assert len(np.unique(read_mesh(folder / f"{VAL}.ply").colors, axis=0)) == 3
    np.savez(
        folder / f"{VAL}.npz",
        masks=np.zeros((0, 2000)),
        labels=np.zeros(0, int),
        scores=np.zeros(0),
    )
    assert (
        run_main(
            "view", VAL, "--pred", ".", "--task", "instance", "--export", "ply", cwd=folder
        ).status
        == 0
    )
    assert np.unique(read_mesh(folder / f"{VAL}.ply").colors, axis=0).tolist() == [list(GRAY)]


def test_predicted_ids_that_the_label_set_does_not_have_are_refused(folder: Path) -> None:
    np.save(folder / f"{VAL}.npy", np.repeat([0, 20, -1], [1000, 700, 300]))
    outcome = run_main("view", VAL, "--pred", ".", "--png", cwd=folder)
    assert outcome.status == 1
    assert (
        f"{VAL}.npy: has ids that ScanNet20 does not have, expected -1..19: 20\n" in outcome.stderr
    )
    assert "subtract 1 if train ids count from 1" in outcome.stderr
    assert not (folder / f"{VAL}.png").exists()
    (folder / "raw").mkdir()
    (folder / f"raw/{VAL}.txt").write_text("0\n39\n41\n22\n" * 500)
    outcome = run_main("view", VAL, "--pred", "raw", "--png", cwd=folder)
    assert (outcome.status, "expected 0..40: 41\n" in outcome.stderr) == (1, True)
    (folder / f"raw/{VAL}.txt").write_text(
        "0\n39\n22\n22\n" * 500
    )  # 22, ceiling, is none of the 20 classes
    assert (
        run_main("view", VAL, "--pred", "raw", "--png", cwd=folder).status == 0
    )  # evaluate takes it, too
    np.save(folder / f"{VAL}.npy", np.repeat([0, 19, -1], [1000, 700, 300]))
    outcome = run_main("view", VAL, "--pred", ".", "--png", cwd=folder)
    assert (outcome.status, outcome.stderr) == (0, "")


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
        ([VAL, "--png", "--pred", "pred"], 1, f"has no predictions of 1 of 1 scenes: {VAL}"),
        ([TRAIN, "--png", "--pred", "pred"], 1, f"{TRAIN}.npy: prediction: "),
        ([VAL, "--png", "-o", "data/processed/manifest.json/x.png"], 1, "is not a folder"),
    ],
)
def test_what_cannot_be_shown_is_refused_before_anything_is_written(
    folder: Path, words: list[str], status: int, message: str
) -> None:
    (folder / "pred").mkdir()
    np.save(folder / f"pred/{TRAIN}.npy", np.zeros(1999, int))
    outcome = run_main("view", *words, "--json", cwd=folder)
    assert (outcome.status, outcome.json["exit_status"]) == (status, status)
    assert message in outcome.json["message"]
    assert "Traceback" not in outcome.stderr
    assert written(folder) == [f"pred/{TRAIN}.npy"]


@pytest.mark.parametrize(
    ("words", "message", "command"),
    [
        ([f"data/processed/val/{VAL}.npz"], "is the file of a scene", f"scannet-prep view {VAL}"),
        (
            [f"other/val/{VAL}.npz"],
            "is the file of a scene",
            f"scannet-prep view {VAL} --source other",
        ),
        (
            ["--source", f"other/val/{VAL}.npz"],
            "is the file of a scene",
            f"scannet-prep view {VAL} --source other",
        ),
        (
            ["data/processed"],
            "data/processed is not a scene id, but a place",
            "scannet-prep view SCENE",
        ),
        (
            ["other"],
            "other is not a scene id, but a place",
            "scannet-prep view SCENE --source other",
        ),
        ([], "which of them?", f"scannet-prep view {TRAIN};"),
        (
            ["scene0001_00"],
            "has no scene scene0001_00",
            f"scannet-prep view {TRAIN}; to list the scenes: scannet-prep",
        ),
    ],
)
def test_refused_scene_comes_with_the_command_to_type(
    folder: Path, words: list[str], message: str, command: str
) -> None:
    shutil.copytree(folder / "data/processed", folder / "other")
    outcome = run_main("view", *words, cwd=folder)
    error, hint = outcome.stderr.splitlines()
    assert (outcome.status, message in error) == (2, True), error
    assert f": {command}" in hint + ";"


def test_scene_that_failed_in_processing_is_refused_with_the_reason(folder: Path) -> None:
    failure = {
        "scene_id": "scene0001_00",
        "error": "RawFileError",
        "message": "a.ply: is empty",
        "hint": "download it",
    }
    manifest = folder / "data/processed/manifest.json"
    edit_json(manifest, lambda value: value["failures"].update(scene0001_00=failure))
    outcome = run_main("view", "scene0001_00", cwd=folder)
    assert outcome.status == 2
    assert "scene0001_00 failed in processing: a.ply: is empty" in outcome.stderr
    assert "hint: download it" in outcome.stderr


@pytest.mark.parametrize("words", [[], ["--png"], ["--serve", "0"]])
def test_place_without_scenes_is_an_error(root: Path, tmp_path: Path, words: list[str]) -> None:
    (tmp_path / "none").mkdir()
    shutil.copy(root / "data/processed/manifest.json", tmp_path / "none")
    edit_json(tmp_path / "none/manifest.json", lambda value: value["scenes"].clear())
    outcome = run_main("view", "--source", "none", *words, cwd=tmp_path)
    assert (outcome.status, outcome.stderr.splitlines()[0]) == (1, "error: none: holds no scenes")


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (
            lambda points: {"points": np.where(points > 1, np.nan, points)},
            "points are not all finite",
        ),
        (
            lambda points: {"points": points[:1000]},
            "array 'normals' is float16 (2000, 3), expected float16 (1000, 3)",
        ),
    ],
)
def test_damaged_scenes_are_refused_before_another_is_written(
    folder: Path, make: Any, message: str
) -> None:
    shutil.copytree(folder / "data/processed", folder / "damaged")
    path = folder / f"damaged/val/{VAL}.npz"
    scene = read_processed(path)
    path.write_bytes(b"".join(encode_processed(replace(scene, **make(scene.points)))))
    outcome = run_main(
        "view", TRAIN, VAL, "--source", "damaged", "--png", "-o", "pictures", cwd=folder
    )
    assert (outcome.status, outcome.stderr.count("Traceback")) == (1, 0)
    assert f"{VAL}.npz: " in outcome.stderr
    assert message in outcome.stderr
    assert not (folder / "pictures").exists()
