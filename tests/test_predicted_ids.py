"""`evaluate` and `submit` refuse ids of another label set or numbering, and accept unusual predictions."""

from __future__ import annotations

import zipfile
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from commands import Outcome, process_all_test_scenes, run_main

from scannet_prep import SCANNET20, SCANNET200, LabelSet, ScanNet, Split, official_scenes
from scannet_prep.stages import pack
from scannet_prep.synthetic import write_release

VAL = ("scene0011_00", "scene0015_00", "scene0025_00")
TEST_VERTICES = 600
LABEL_SETS = {"scannet20": SCANNET20, "scannet200": SCANNET200}


@pytest.fixture(scope="module", params=LABEL_SETS)
def place(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A processed folder of val scenes, of either label set, which is the name of its parent."""
    root = tmp_path_factory.mktemp("ids") / request.param
    write_release(root / "raw", VAL, vertices=2000)
    options = ["--scannet200"] if request.param == "scannet200" else []
    assert run_main("process", root / "raw", "-o", root / "processed", *options).status == 0
    return root / "processed"


@pytest.fixture(scope="module", params=LABEL_SETS)
def test_place(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """All processed test scenes, copies of one, of either label set."""
    root = tmp_path_factory.mktemp("submitted") / request.param
    options = ["--scannet200"] if request.param == "scannet200" else []
    return process_all_test_scenes(root, TEST_VERTICES, *options)


def label_set_of(place: Path) -> LabelSet:
    return LABEL_SETS[place.parent.name]


def predict(place: Path, label_set: LabelSet) -> dict[str, np.ndarray]:
    """Train ids of each val scene, of which a third are drawn anew."""
    generator = np.random.default_rng(0)
    predictions = {}
    for sample in ScanNet(place, split="val", labels=label_set):
        labels = sample["labels"]
        noise = generator.integers(0, len(label_set), len(labels))
        keeps = (labels >= 0) & (generator.random(len(labels)) < 0.67)
        predictions[sample["scene_id"]] = np.where(keeps, labels, noise)
    return predictions


def draw(label_set: LabelSet) -> dict[str, np.ndarray]:
    """Train ids of each test scene: half of them wall or floor, the others of any class, rare ones seldom."""
    generator = np.random.default_rng(0)
    weights = 1 / np.arange(1, len(label_set) + 1) ** 1.5
    return {
        name: generator.choice(len(label_set), TEST_VERTICES, p=weights / weights.sum())
        for name in official_scenes(Split.TEST)
    }


def write(folder: Path, form: str, predictions: dict[str, np.ndarray]) -> Path:
    folder.mkdir(exist_ok=True)
    for name, ids in predictions.items():
        if form == ".txt":
            (folder / f"{name}.txt").write_text("".join(f"{number}\n" for number in ids))
        else:
            np.save(folder / f"{name}.npy", ids)
    return folder


def to_raw(label_set: LabelSet) -> Callable[[np.ndarray], np.ndarray]:
    return lambda train_ids: np.array(label_set.ids)[train_ids]


def keep(train_ids: np.ndarray) -> np.ndarray:
    return train_ids


def add_1(train_ids: np.ndarray) -> np.ndarray:
    return train_ids + 1


# Predicted label set, its ids in the file, the file, and the words that the hint has then.
WRONG_20 = [
    (SCANNET20, add_1, ".npy", "subtract 1 from the ids"),
    (SCANNET20, to_raw(SCANNET20), ".npy", "save raw ids as .txt"),
    (SCANNET20, keep, ".txt", "save train ids as .npy"),
    (
        SCANNET20,
        add_1,
        ".txt",
        "subtract 1 from the ids, so that wall is 0, and save train ids as .npy",
    ),
]
WRONG_200 = [
    (SCANNET200, add_1, ".npy", "subtract 1 from the ids, so that wall is 0"),
    (SCANNET200, to_raw(SCANNET200), ".npy", "save raw ids as .txt"),
    (SCANNET200, keep, ".txt", "save train ids as .npy"),
    (
        SCANNET200,
        add_1,
        ".txt",
        "subtract 1 from the ids, so that wall is 0, and save train ids as .npy",
    ),
]
RIGHT_20 = [
    (SCANNET20, keep, ".npy", "pass --labels scannet20"),
    (SCANNET20, to_raw(SCANNET20), ".txt", "pass --labels scannet20"),
]
RIGHT_200 = [
    (SCANNET200, keep, ".npy", "pass --labels scannet200"),
    (SCANNET200, to_raw(SCANNET200), ".txt", "pass --labels scannet200"),
]
CASES = {
    "scannet20": [
        *WRONG_20,
        *RIGHT_200,
        *((*case[:3], "pass --labels scannet200") for case in WRONG_200),
    ],
    "scannet200": [
        *WRONG_200,
        *RIGHT_20,
        *((*case[:3], "pass --labels scannet20;") for case in WRONG_20),
    ],
}


def check_refused(outcome: Outcome, folder: Path, hint: str) -> None:
    assert outcome.status == 1, outcome.stdout
    assert outcome.stderr.startswith(f"error: {folder}: ")
    assert hint in outcome.stderr
    assert "or pass --force to accept the ids as they are" in outcome.stderr


@pytest.mark.parametrize("number", range(10))
def test_evaluate_refuses_ids_of_another_kind_and_names_it(
    place: Path, tmp_path: Path, number: int
) -> None:
    label_set, change, form, hint = CASES[place.parent.name][number]
    predictions = {name: change(ids) for name, ids in predict(place, label_set).items()}
    folder = write(tmp_path / "pred", form, predictions)
    outcome = run_main("evaluate", folder, "--gt", place, "-o", tmp_path / "scores.csv")
    check_refused(outcome, folder, hint)
    assert not (tmp_path / "scores.csv").exists()


@pytest.mark.parametrize("number", range(10))
def test_submit_refuses_ids_of_another_kind_and_names_it(
    test_place: Path, tmp_path: Path, number: int
) -> None:
    label_set, change, form, hint = CASES[test_place.parent.name][number]
    folder = write(
        tmp_path / "pred", form, {name: change(ids) for name, ids in draw(label_set).items()}
    )
    outcome = run_main("submit", folder, "--gt", test_place, "-o", tmp_path / "a.zip")
    check_refused(outcome, folder, hint)
    assert not (tmp_path / "a.zip").exists()


def test_shifted_ids_are_refused_with_the_number_of_vertices_that_show_it(
    test_place: Path, tmp_path: Path
) -> None:
    class_count = len(label_set_of(test_place))
    shifted = {
        name: np.r_[np.full(TEST_VERTICES - 1, 1), class_count]
        for name in official_scenes(Split.TEST)
    }
    outcome = run_main(
        "submit",
        write(tmp_path / "p", ".npy", shifted),
        "--gt",
        test_place,
        "-o",
        tmp_path / "x.zip",
    )
    assert outcome.status == 1
    assert f": none is 0, and 100 are {class_count}\n" in outcome.stderr


def without_wall(labels: np.ndarray, class_count: int) -> np.ndarray:
    """Wall is never predicted, and the number of classes stands for the unlabeled."""
    return np.where(labels < 0, class_count, np.where(labels == 0, 5, labels))


def nothing_where_unlabeled(labels: np.ndarray, class_count: int) -> np.ndarray:
    return np.where(labels < 0, 255, labels)


def unlabeled_for_a_tenth(labels: np.ndarray, class_count: int) -> np.ndarray:
    return np.where(np.arange(len(labels)) % 10 == 0, -1, labels)


def floor_everywhere(labels: np.ndarray, class_count: int) -> np.ndarray:
    return np.full_like(labels, 1 if class_count == 20 else 2)


def id_1_everywhere(labels: np.ndarray, class_count: int) -> np.ndarray:
    return np.ones_like(labels)


def drawn(labels: np.ndarray, class_count: int) -> np.ndarray:
    return np.random.default_rng(0).integers(0, class_count, len(labels))


def drawn_without_wall(labels: np.ndarray, class_count: int) -> np.ndarray:
    return np.random.default_rng(0).integers(1, class_count, len(labels))


def frequent_classes_only(labels: np.ndarray, class_count: int) -> np.ndarray:
    return np.clip(labels, 0, 19)


def a_few_ids_of_no_class(labels: np.ndarray, class_count: int) -> np.ndarray:
    strays = np.where(labels < 0, 0, labels)
    strays[:16] = class_count  # of at least 1,600 labeled vertices
    return strays


UNUSUAL = (
    without_wall, nothing_where_unlabeled, floor_everywhere, id_1_everywhere, drawn, drawn_without_wall,
    frequent_classes_only, unlabeled_for_a_tenth, a_few_ids_of_no_class,
)  # fmt: skip


@pytest.mark.parametrize("scenes", [VAL[:1], VAL[1:2], VAL])
@pytest.mark.parametrize("change", UNUSUAL)
def test_evaluate_accepts_unusual_predictions(
    place: Path,
    tmp_path: Path,
    change: Callable[[np.ndarray, int], np.ndarray],
    scenes: tuple[str, ...],
) -> None:
    label_set = label_set_of(place)
    dataset = ScanNet(place, split="val", labels=label_set)
    folder = write(
        tmp_path, ".npy", {name: change(dataset[name]["labels"], len(label_set)) for name in scenes}
    )
    outcome = run_main("evaluate", folder, "--gt", place, "--allow-missing")
    assert outcome.status == 0, outcome.stderr
    assert outcome.stdout.startswith(
        f"{label_set.name}, val: {len(scenes)} of 312 scenes, semantic\n"
    )


def test_evaluate_warns_of_labeled_vertices_that_are_predicted_as_unlabeled(
    place: Path, tmp_path: Path
) -> None:
    label_set = label_set_of(place)
    labels = ScanNet(place, split="val", labels=label_set)[VAL[0]]["labels"]
    folder = write(
        tmp_path, ".txt", {VAL[0]: np.array([*label_set.ids, 0])[unlabeled_for_a_tenth(labels, 0)]}
    )
    outcome = run_main("evaluate", folder, "--gt", place, "--allow-missing")
    missed = np.count_nonzero(labels[::10] >= 0)
    told = f"warning: {missed:,} of {np.count_nonzero(labels >= 0):,} labeled vertices ("
    assert (outcome.status, told in outcome.stderr) == (0, True), outcome.stderr


def test_evaluate_refuses_train_ids_that_count_from_minus_1(place: Path, tmp_path: Path) -> None:
    folder = write(
        tmp_path,
        ".npy",
        {name: ids - 1 for name, ids in predict(place, label_set_of(place)).items()},
    )
    check_refused(
        run_main("evaluate", folder, "--gt", place), folder, "add 1 to the ids, so that wall is 0"
    )


@pytest.mark.parametrize("first", [0, 1])
def test_submit_accepts_predictions_of_few_classes_and_warns_if_wall_is_not_among_them(
    test_place: Path, tmp_path: Path, first: int
) -> None:
    ids = first + np.arange(TEST_VERTICES) % 7
    folder = write(tmp_path / "pred", ".npy", dict.fromkeys(official_scenes(Split.TEST), ids))
    outcome = run_main("submit", folder, "--gt", test_place, "-o", tmp_path / "a.zip")
    assert outcome.status == 0, outcome.stderr
    assert outcome.stdout.startswith(
        f"{label_set_of(test_place).name}, test: 100 scenes, semantic\n"
    )
    assert ("no vertex of any scene is predicted as wall" in outcome.stderr) == (first == 1)


@pytest.mark.parametrize(("class_count", "status"), [(9, 0), (10, 1), (18, 1)])
def test_submit_refuses_the_other_label_set_if_half_of_its_classes_occur(
    test_place: Path, tmp_path: Path, class_count: int, status: int
) -> None:
    if label_set_of(test_place) == SCANNET20:
        pytest.skip("ids of ScanNet200 are none of the classes of ScanNet20")
    ids = np.arange(TEST_VERTICES) % class_count
    folder = write(tmp_path / "pred", ".npy", dict.fromkeys(official_scenes(Split.TEST), ids))
    outcome = run_main("submit", folder, "--gt", test_place, "-o", tmp_path / "a.zip")
    assert outcome.status == status
    assert ("pass --labels scannet20" in outcome.stderr) == (status == 1)


@pytest.mark.parametrize(("count", "status"), [(6, 0), (7, 1)])
@pytest.mark.parametrize("number", [-1, 255, 1000])
def test_submit_refuses_more_than_1_percent_of_ids_that_are_no_class(
    test_place: Path, tmp_path: Path, count: int, status: int, number: int
) -> None:
    ids = np.arange(TEST_VERTICES) % 3
    ids[:count] = number
    folder = write(tmp_path / "pred", ".npy", dict.fromkeys(official_scenes(Split.TEST), ids))
    outcome = run_main("submit", folder, "--gt", test_place, "-o", tmp_path / "a.zip")
    assert (outcome.status, (tmp_path / "a.zip").exists()) == (status, status == 0)
    if status:
        assert (
            f"{count * 100} of 60,000 vertices (1.2%) have ids that are none of the classes"
            in outcome.stderr
        )
        assert f": {number}\n" in outcome.stderr


def test_force_scores_shifted_ids_as_they_are_with_a_warning(place: Path, tmp_path: Path) -> None:
    folder = write(
        tmp_path,
        ".npy",
        {name: ids + 1 for name, ids in predict(place, label_set_of(place)).items()},
    )
    outcome = run_main("evaluate", folder, "--gt", place, "--force", "--json")
    assert outcome.json["scores"]["totals"]["accuracy"] < 0.2
    assert f"{label_set_of(place).name} train ids + 1" in outcome.json["warning"]
    assert outcome.stderr == f"warning: {outcome.json['warning']}\n"


def test_label_set_of_an_archive_is_the_default(place: Path, tmp_path: Path) -> None:
    pack.run(place, tmp_path / "all.tar.zst")
    folder = write(tmp_path / "pred", ".npy", predict(place, label_set_of(place)))
    outcome = run_main("evaluate", folder, "--gt", tmp_path / "all.tar.zst")
    assert outcome.stdout.startswith(
        f"{label_set_of(place).name}, val: 3 of 312 scenes, semantic\n"
    )


def test_view_colors_by_the_label_set_of_the_folder(place: Path, tmp_path: Path) -> None:
    outcome = run_main("view", VAL[0], "--source", place, "-o", tmp_path / "scene.png", "--json")
    assert outcome.json["colors"] == {VAL[0]: label_set_of(place).name.lower()}


def test_named_label_set_takes_the_place_of_that_of_the_folder_in_either_spelling(
    place: Path, tmp_path: Path
) -> None:
    other = SCANNET20 if label_set_of(place) is SCANNET200 else SCANNET200
    folder = write(tmp_path, ".npy", predict(place, other))
    for name in (other.name, other.name.lower()):
        assert (
            run_main("evaluate", folder, "--gt", place, "--labels", name, "--json").json[
                "label_set"
            ]
            == other.name
        )
    outcome = run_main("evaluate", folder, "--gt", place, "--labels", "scannet")
    assert (
        outcome.status,
        "'scannet' is not a label set, expected ScanNet20 or ScanNet200" in outcome.stderr,
    ) == (
        2,
        True,
    )


def predict_masks(place: Path, label_set: LabelSet) -> dict[str, dict[str, np.ndarray]]:
    """The annotated instances of each val scene, with their train ids."""
    predictions = {}
    for sample in ScanNet(place, split="val", labels=label_set):
        numbers = np.setdiff1d(sample["instances"], [-1])
        masks = sample["instances"] == numbers[:, None]
        labels = np.array([sample["labels"][mask][0] for mask in masks])
        is_class = labels >= 0
        predictions[sample["scene_id"]] = {
            "masks": masks[is_class],
            "labels": labels[is_class],
            "scores": np.full(np.count_nonzero(is_class), -2.5),
        }
    return predictions


@pytest.mark.parametrize(("shift", "status"), [(0, 0), (1, 1)])
def test_evaluate_refuses_instances_whose_labels_count_from_1(
    place: Path, tmp_path: Path, shift: int, status: int
) -> None:
    for name, arrays in predict_masks(place, label_set_of(place)).items():
        np.savez(tmp_path / f"{name}.npz", **(arrays | {"labels": arrays["labels"] + shift}))
    outcome = run_main("evaluate", tmp_path, "--gt", place, "--task", "instance")
    assert outcome.status == status
    assert ("subtract 1 from the ids" in outcome.stderr) == (shift == 1)


def test_evaluate_refuses_instances_of_the_other_label_set(place: Path, tmp_path: Path) -> None:
    other = SCANNET20 if label_set_of(place) is SCANNET200 else SCANNET200
    for name, arrays in predict_masks(place, other).items():
        np.savez(tmp_path / f"{name}.npz", **arrays)
    outcome = run_main("evaluate", tmp_path, "--gt", place, "--task", "instance")
    check_refused(outcome, tmp_path, f"hint: pass --labels {other.name.lower()};")


@pytest.mark.parametrize("words", [(), ("--min-score", "-3")])
def test_submit_keeps_masks_of_negative_confidence_by_default(
    test_place: Path, tmp_path: Path, words: tuple[str, ...]
) -> None:
    arrays = {"masks": np.ones((1, TEST_VERTICES), bool), "labels": [3], "scores": [-2.5]}
    for name in official_scenes(Split.TEST):
        np.savez(tmp_path / f"{name}.npz", **arrays)
    command = (
        "submit",
        tmp_path,
        "--gt",
        test_place,
        "--task",
        "instance",
        "-o",
        tmp_path / "a.zip",
        *words,
    )
    outcome = run_main(*command, "--json")
    assert (outcome.status, outcome.json["masks"], outcome.json["left_out"]) == (0, 100, {})
    with zipfile.ZipFile(tmp_path / "a.zip") as archive:
        raw_id = label_set_of(test_place).ids[3]
        assert (
            archive.read("scene0707_00.txt").decode()
            == f"pred_mask/scene0707_00_000.txt {raw_id} -2.5\n"
        )


@pytest.mark.parametrize(
    ("arrays", "words", "problem"),
    [
        (
            {"scores": [-2.5]},
            ("--min-score", "0"),
            "below --min-score: 100)\nhint: lower --min-score, or leave it out",
        ),
        ({"masks": np.zeros((1, TEST_VERTICES), bool)}, (), "under 100 vertices: 100)\nhint: "),
        ({"labels": [0]}, (), "wall, floor, or none of the classes: 100)\nhint: "),
        (
            {"masks": [], "labels": [], "scores": []},
            (),
            "no instance is predicted in any scene\nhint: ",
        ),
    ],
)
def test_submit_fails_if_the_zip_file_would_hold_no_mask(
    test_place: Path,
    tmp_path: Path,
    arrays: dict[str, object],
    words: tuple[str, ...],
    problem: str,
) -> None:
    whole = {"masks": np.ones((1, TEST_VERTICES), bool), "labels": [3], "scores": [0.5], **arrays}
    for name in official_scenes(Split.TEST):
        np.savez(tmp_path / f"{name}.npz", **whole)  # type: ignore[arg-type]
    command = (
        "submit",
        tmp_path,
        "--gt",
        test_place,
        "--task",
        "instance",
        "-o",
        tmp_path / "a.zip",
        *words,
    )
    outcome = run_main(*command)
    assert (outcome.status, (tmp_path / "a.zip").exists()) == (1, False)
    assert problem in outcome.stderr


def test_scores_of_octformer_for_the_other_label_set_are_refused_with_the_option(
    place: Path, tmp_path: Path
) -> None:
    other = SCANNET20 if label_set_of(place) is SCANNET200 else SCANNET200
    np.savez(tmp_path / f"{VAL[0]}.eval.npz", prob=np.zeros((2000, len(other) + 1), np.float32))
    outcome = run_main("evaluate", tmp_path, "--gt", place, "--allow-missing")
    assert outcome.status == 1
    assert f"hint: for {other.name}: --labels {other.name.lower()}\n" in outcome.stderr
