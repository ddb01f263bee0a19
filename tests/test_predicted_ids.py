"""The check of predicted ids in `evaluate` and `submit`: what it refuses, and what it accepts."""

from __future__ import annotations

import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

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
    """Process val scenes for either label set, whose name is that of the parent folder."""
    root = tmp_path_factory.mktemp("ids") / request.param
    write_release(root / "raw", VAL, vertices=2000)
    options = ["--scannet200"] if request.param == "scannet200" else []
    assert run_main("process", root / "raw", "-o", root / "processed", *options).status == 0
    return root / "processed"


@pytest.fixture(scope="module", params=LABEL_SETS)
def submission_place(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Path:
    """Process all test scenes, copies of a single one, for either label set."""
    root = tmp_path_factory.mktemp("submitted") / request.param
    options = ["--scannet200"] if request.param == "scannet200" else []
    return process_all_test_scenes(root, TEST_VERTICES, *options)


def label_set_of(place: Path) -> LabelSet:
    return LABEL_SETS[place.parent.name]


def other_label_set(place: Path) -> LabelSet:
    return SCANNET20 if label_set_of(place) is SCANNET200 else SCANNET200


def predict(place: Path, label_set: LabelSet) -> dict[str, np.ndarray]:
    """Predict the train ids of each val scene, with a third of them drawn anew."""
    generator = np.random.default_rng(0)
    predictions = {}
    for sample in ScanNet(place, split="val", labels=label_set):
        labels = sample["labels"]
        noise = generator.integers(0, len(label_set), len(labels))
        is_kept = (labels >= 0) & (generator.random(len(labels)) < 0.67)
        predictions[sample["scene_id"]] = np.where(is_kept, labels, noise)
    return predictions


def draw_test_predictions(label_set: LabelSet) -> dict[str, np.ndarray]:
    """Draw the train ids of each test scene: half of them wall or floor, rare classes seldom."""
    generator = np.random.default_rng(0)
    weights = 1 / np.arange(1, len(label_set) + 1) ** 1.5
    weights /= weights.sum()
    return {
        scene_id: generator.choice(len(label_set), TEST_VERTICES, p=weights)
        for scene_id in official_scenes(Split.TEST)
    }


def write(folder: Path, ending: str, predictions: dict[str, np.ndarray]) -> Path:
    folder.mkdir(exist_ok=True)
    for scene_id, ids in predictions.items():
        if ending == ".txt":
            text = "".join(f"{number}\n" for number in ids)
            (folder / f"{scene_id}.txt").write_text(text)
        else:
            np.save(folder / f"{scene_id}.npy", ids)
    return folder


def write_for_all_test_scenes(folder: Path, ids: np.ndarray) -> Path:
    return write(folder, ".npy", dict.fromkeys(official_scenes(Split.TEST), ids))


def to_raw(label_set: LabelSet) -> Callable[[np.ndarray], np.ndarray]:
    return lambda train_ids: np.array(label_set.ids)[train_ids]


def keep(train_ids: np.ndarray) -> np.ndarray:
    return train_ids


def add_1(train_ids: np.ndarray) -> np.ndarray:
    return train_ids + 1


class Case(NamedTuple):
    """Predictions with ids of a kind, in files that are read as another kind.

    Attributes:
        label_set: The label set of the predictions.
        change: Converts train ids to the ids in the files.
        ending: Ending of the files.
        hint: Part of the hint of the expected error.
    """

    label_set: LabelSet
    change: Callable[[np.ndarray], np.ndarray]
    ending: str
    hint: str


def wrong_numbering_cases(label_set: LabelSet) -> list[Case]:
    shift_hint = "subtract 1 from the ids, so that wall is 0"
    return [
        Case(label_set, add_1, ".npy", shift_hint),
        Case(label_set, to_raw(label_set), ".npy", "save raw ids as .txt"),
        Case(label_set, keep, ".txt", "save train ids as .npy"),
        Case(label_set, add_1, ".txt", f"{shift_hint}, and save train ids as .npy"),
    ]


def other_label_set_cases(label_set: LabelSet) -> list[Case]:
    """Make cases of the other label set, in the right and in every wrong numbering."""
    other = SCANNET20 if label_set is SCANNET200 else SCANNET200
    hint = f"pass --label-set {other.name.lower()};"
    right_cases = [
        Case(other, keep, ".npy", hint),
        Case(other, to_raw(other), ".txt", hint),
    ]
    wrong_cases = [case._replace(hint=hint) for case in wrong_numbering_cases(other)]
    return right_cases + wrong_cases


CASES = {
    name: wrong_numbering_cases(label_set) + other_label_set_cases(label_set)
    for name, label_set in LABEL_SETS.items()
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
    case = CASES[place.parent.name][number]
    predictions = predict(place, case.label_set)
    changed = {scene_id: case.change(ids) for scene_id, ids in predictions.items()}
    folder = write(tmp_path / "pred", case.ending, changed)

    outcome = run_main("evaluate", folder, "--gt", place, "-o", tmp_path / "scores.csv")

    check_refused(outcome, folder, case.hint)
    assert not (tmp_path / "scores.csv").exists()


@pytest.mark.parametrize("number", range(10))
def test_submit_refuses_ids_of_another_kind_and_names_it(
    submission_place: Path, tmp_path: Path, number: int
) -> None:
    case = CASES[submission_place.parent.name][number]
    predictions = draw_test_predictions(case.label_set)
    changed = {scene_id: case.change(ids) for scene_id, ids in predictions.items()}
    folder = write(tmp_path / "pred", case.ending, changed)

    outcome = run_main("submit", folder, "--gt", submission_place, "-o", tmp_path / "a.zip")

    check_refused(outcome, folder, case.hint)
    assert not (tmp_path / "a.zip").exists()


def test_error_about_shifted_ids_has_the_number_of_the_largest_id(
    submission_place: Path, tmp_path: Path
) -> None:
    class_count = len(label_set_of(submission_place))
    ids = np.ones(TEST_VERTICES, int)
    ids[-1] = class_count
    folder = write_for_all_test_scenes(tmp_path / "pred", ids)

    outcome = run_main("submit", folder, "--gt", submission_place, "-o", tmp_path / "a.zip")

    assert outcome.status == 1
    assert f": none is 0, and 100 are {class_count}\n" in outcome.stderr


def test_evaluate_refuses_train_ids_that_count_from_minus_1(place: Path, tmp_path: Path) -> None:
    predictions = predict(place, label_set_of(place))
    shifted = {scene_id: ids - 1 for scene_id, ids in predictions.items()}
    folder = write(tmp_path, ".npy", shifted)

    outcome = run_main("evaluate", folder, "--gt", place)

    check_refused(outcome, folder, "add 1 to the ids, so that wall is 0")


def replace_wall(labels: np.ndarray, class_count: int) -> np.ndarray:
    """Predict no wall, and the number of classes for unlabeled vertices."""
    return np.where(labels < 0, class_count, np.where(labels == 0, 5, labels))


def keep_unlabeled(labels: np.ndarray, class_count: int) -> np.ndarray:
    return np.where(labels < 0, 255, labels)


def leave_out_a_tenth(labels: np.ndarray, class_count: int) -> np.ndarray:
    return np.where(np.arange(len(labels)) % 10 == 0, -1, labels)


def predict_only_floor(labels: np.ndarray, class_count: int) -> np.ndarray:
    return np.full_like(labels, 1 if class_count == 20 else 2)


def predict_only_1(labels: np.ndarray, class_count: int) -> np.ndarray:
    return np.ones_like(labels)


def draw_all_classes(labels: np.ndarray, class_count: int) -> np.ndarray:
    return np.random.default_rng(0).integers(0, class_count, len(labels))


def draw_all_classes_but_wall(labels: np.ndarray, class_count: int) -> np.ndarray:
    return np.random.default_rng(0).integers(1, class_count, len(labels))


def predict_frequent_classes(labels: np.ndarray, class_count: int) -> np.ndarray:
    return np.clip(labels, 0, 19)


def predict_few_unknown_ids(labels: np.ndarray, class_count: int) -> np.ndarray:
    predicted = np.where(labels < 0, 0, labels)
    # Less than 1 % of the labeled vertices, of which there are at least 1,600.
    predicted[:16] = class_count
    return predicted


UNUSUAL_PREDICTORS = (
    replace_wall,
    keep_unlabeled,
    predict_only_floor,
    predict_only_1,
    draw_all_classes,
    draw_all_classes_but_wall,
    predict_frequent_classes,
    leave_out_a_tenth,
    predict_few_unknown_ids,
)


@pytest.mark.parametrize("scene_ids", [VAL[:1], VAL[1:2], VAL])
@pytest.mark.parametrize("predictor", UNUSUAL_PREDICTORS)
def test_evaluate_accepts_unusual_predictions(
    place: Path,
    tmp_path: Path,
    predictor: Callable[[np.ndarray, int], np.ndarray],
    scene_ids: tuple[str, ...],
) -> None:
    label_set = label_set_of(place)
    dataset = ScanNet(place, split="val", labels=label_set)
    predictions = {
        scene_id: predictor(dataset[scene_id]["labels"], len(label_set)) for scene_id in scene_ids
    }
    folder = write(tmp_path, ".npy", predictions)

    outcome = run_main("evaluate", folder, "--gt", place, "--allow-missing")

    assert outcome.status == 0, outcome.stderr
    first_line = f"{label_set.name}, val: {len(scene_ids)} of 312 scenes, semantic\n"
    assert outcome.stdout.startswith(first_line)


def test_evaluate_warns_about_labeled_vertices_predicted_as_unlabeled(
    place: Path, tmp_path: Path
) -> None:
    label_set = label_set_of(place)
    labels = ScanNet(place, split="val", labels=label_set)[VAL[0]]["labels"]
    raw_ids = np.array([*label_set.ids, 0])[leave_out_a_tenth(labels, len(label_set))]
    folder = write(tmp_path, ".txt", {VAL[0]: raw_ids})

    outcome = run_main("evaluate", folder, "--gt", place, "--allow-missing")

    missed = np.count_nonzero(labels[::10] >= 0)
    total = np.count_nonzero(labels >= 0)
    assert outcome.status == 0, outcome.stderr
    assert f"warning: {missed:,} of {total:,} labeled vertices (" in outcome.stderr


@pytest.mark.parametrize("first_id", [0, 1])
def test_submit_accepts_predictions_of_few_classes(
    submission_place: Path, tmp_path: Path, first_id: int
) -> None:
    folder = write_for_all_test_scenes(tmp_path, first_id + np.arange(TEST_VERTICES) % 7)

    outcome = run_main("submit", folder, "--gt", submission_place, "-o", tmp_path / "a.zip")

    assert outcome.status == 0, outcome.stderr
    first_line = f"{label_set_of(submission_place).name}, test: 100 scenes, semantic\n"
    assert outcome.stdout.startswith(first_line)
    has_warning = "no vertex of any scene is predicted as wall" in outcome.stderr
    assert has_warning == (first_id == 1)


@pytest.mark.parametrize(("class_count", "status"), [(9, 0), (10, 1), (18, 1)])
def test_submit_refuses_half_of_the_classes_of_the_other_label_set(
    submission_place: Path, tmp_path: Path, class_count: int, status: int
) -> None:
    if label_set_of(submission_place) == SCANNET20:
        pytest.skip("this label set has none of the classes of ScanNet20 as ids")
    folder = write_for_all_test_scenes(tmp_path, np.arange(TEST_VERTICES) % class_count)

    outcome = run_main("submit", folder, "--gt", submission_place, "-o", tmp_path / "a.zip")

    assert outcome.status == status
    assert ("pass --label-set scannet20" in outcome.stderr) == (status == 1)


UNKNOWN_IDS = (-1, 255, 1000)


@pytest.mark.parametrize("unknown_id", UNKNOWN_IDS)
def test_submit_accepts_1_percent_of_unknown_ids(
    submission_place: Path, tmp_path: Path, unknown_id: int
) -> None:
    ids = np.arange(TEST_VERTICES) % 3
    ids[:6] = unknown_id
    folder = write_for_all_test_scenes(tmp_path / "pred", ids)

    outcome = run_main("submit", folder, "--gt", submission_place, "-o", tmp_path / "a.zip")

    assert outcome.status == 0, outcome.stderr
    assert (tmp_path / "a.zip").exists()


@pytest.mark.parametrize("unknown_id", UNKNOWN_IDS)
def test_submit_refuses_more_than_1_percent_of_unknown_ids(
    submission_place: Path, tmp_path: Path, unknown_id: int
) -> None:
    ids = np.arange(TEST_VERTICES) % 3
    ids[:7] = unknown_id
    folder = write_for_all_test_scenes(tmp_path / "pred", ids)

    outcome = run_main("submit", folder, "--gt", submission_place, "-o", tmp_path / "a.zip")

    assert outcome.status == 1
    assert not (tmp_path / "a.zip").exists()
    problem = "700 of 60,000 vertices (1.2%) have ids that are none of the classes"
    assert problem in outcome.stderr
    assert f": {unknown_id}\n" in outcome.stderr


def test_force_scores_shifted_ids_with_a_warning(place: Path, tmp_path: Path) -> None:
    label_set = label_set_of(place)
    shifted = {scene_id: ids + 1 for scene_id, ids in predict(place, label_set).items()}
    folder = write(tmp_path, ".npy", shifted)

    outcome = run_main("evaluate", folder, "--gt", place, "--force", "--json")

    assert outcome.json["scores"]["totals"]["accuracy"] < 0.2
    assert f"{label_set.name} train ids + 1" in outcome.json["warning"]
    assert outcome.stderr == f"warning: {outcome.json['warning']}\n"


def test_default_label_set_is_that_of_the_archive(place: Path, tmp_path: Path) -> None:
    label_set = label_set_of(place)
    pack.run(place, tmp_path / "all.tar.zst")
    folder = write(tmp_path / "pred", ".npy", predict(place, label_set))

    outcome = run_main("evaluate", folder, "--gt", tmp_path / "all.tar.zst")

    assert outcome.stdout.startswith(f"{label_set.name}, val: 3 of 312 scenes, semantic\n")


def test_view_colors_by_the_label_set_of_the_folder(place: Path, tmp_path: Path) -> None:
    outcome = run_main("view", VAL[0], "--source", place, "-o", tmp_path / "scene.png", "--json")

    assert outcome.json["colors"] == {VAL[0]: label_set_of(place).name.lower()}


def test_option_overrides_the_label_set_of_the_folder_in_either_case(
    place: Path, tmp_path: Path
) -> None:
    other = other_label_set(place)
    folder = write(tmp_path, ".npy", predict(place, other))

    for name in (other.name, other.name.lower()):
        outcome = run_main("evaluate", folder, "--gt", place, "--label-set", name, "--json")
        assert outcome.json["label_set"] == other.name


def test_unknown_label_set_is_wrong_usage(place: Path, tmp_path: Path) -> None:
    outcome = run_main("evaluate", tmp_path, "--gt", place, "--label-set", "scannet")

    assert outcome.status == 2
    assert "invalid choice: 'scannet'" in outcome.stderr


def predict_masks(place: Path, label_set: LabelSet) -> dict[str, dict[str, np.ndarray]]:
    """Predict the annotated instances of each val scene, with their train ids."""
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
    for scene_id, arrays in predict_masks(place, label_set_of(place)).items():
        arrays["labels"] += shift
        np.savez(tmp_path / f"{scene_id}.npz", **arrays)  # type: ignore[arg-type]

    outcome = run_main("evaluate", tmp_path, "--gt", place, "--task", "instance")

    assert outcome.status == status
    assert ("subtract 1 from the ids" in outcome.stderr) == (shift == 1)


def test_evaluate_refuses_instances_of_the_other_label_set(place: Path, tmp_path: Path) -> None:
    other = other_label_set(place)
    for scene_id, arrays in predict_masks(place, other).items():
        np.savez(tmp_path / f"{scene_id}.npz", **arrays)  # type: ignore[arg-type]

    outcome = run_main("evaluate", tmp_path, "--gt", place, "--task", "instance")

    check_refused(outcome, tmp_path, f"hint: pass --label-set {other.name.lower()};")


def submit_instances(
    submission_place: Path, folder: Path, arrays: dict[str, Any], *words: str
) -> Outcome:
    """Write the same instances for all test scenes, and submit them as `a.zip`."""
    for scene_id in official_scenes(Split.TEST):
        np.savez(folder / f"{scene_id}.npz", **arrays)
    options = ("--gt", submission_place, "--task", "instance", "-o", folder / "a.zip")
    return run_main("submit", folder, *options, *words)


ONE_INSTANCE = {"masks": np.ones((1, TEST_VERTICES), bool), "labels": [3], "scores": [0.5]}


@pytest.mark.parametrize("words", [(), ("--min-score", "-3")])
def test_submit_keeps_masks_of_negative_confidence_by_default(
    submission_place: Path, tmp_path: Path, words: tuple[str, ...]
) -> None:
    arrays = ONE_INSTANCE | {"scores": [-2.5]}

    outcome = submit_instances(submission_place, tmp_path, arrays, "--json", *words)

    assert outcome.status == 0
    assert outcome.json["masks"] == 100
    assert outcome.json["left_out"] == {}
    with zipfile.ZipFile(tmp_path / "a.zip") as archive:
        line = archive.read("scene0707_00.txt").decode()
    raw_id = label_set_of(submission_place).ids[3]
    assert line == f"pred_mask/scene0707_00_000.txt {raw_id} -2.5\n"


@pytest.mark.parametrize(
    ("changes", "words", "problem"),
    [
        (
            {"scores": [-2.5]},
            ("--min-score", "0"),
            "below --min-score: 100)",
        ),
        (
            {"masks": np.zeros((1, TEST_VERTICES), bool)},
            (),
            "under 100 vertices: 100)",
        ),
        (
            {"labels": [0]},
            (),
            "wall, floor, or none of the classes: 100)\nhint: labels are train ids from 0",
        ),
        (
            {"masks": [], "labels": [], "scores": []},
            (),
            "no instance is predicted in any scene",
        ),
    ],
)
def test_submit_fails_if_the_zip_file_would_have_no_mask(
    submission_place: Path,
    tmp_path: Path,
    changes: dict[str, Any],
    words: tuple[str, ...],
    problem: str,
) -> None:
    outcome = submit_instances(submission_place, tmp_path, ONE_INSTANCE | changes, *words)

    assert outcome.status == 1
    assert problem in outcome.stderr
    assert not (tmp_path / "a.zip").exists()


def test_octformer_scores_of_the_other_label_set_are_refused_with_a_hint(
    place: Path, tmp_path: Path
) -> None:
    other = other_label_set(place)
    scores = np.zeros((2000, len(other) + 1), np.float32)
    np.savez(tmp_path / f"{VAL[0]}.eval.npz", prob=scores)

    outcome = run_main("evaluate", tmp_path, "--gt", place, "--allow-missing")

    assert outcome.status == 1
    assert f"hint: for {other.name}: --label-set {other.name.lower()}\n" in outcome.stderr
