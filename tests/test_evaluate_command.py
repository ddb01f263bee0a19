"""The commands `evaluate` and `submit`: formats of predictions, faults, and output files."""

from __future__ import annotations

import csv
import shutil
import xml.etree.ElementTree as ET
import zipfile
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from commands import Outcome, process_all_test_scenes, run_main

from scannet_prep import (
    SCANNET20,
    SCANNET200,
    LabelSet,
    ScanNet,
    Split,
    official_scenes,
    read_processed,
)
from scannet_prep.evaluation import (
    InstancePrediction,
    InstanceScores,
    InstanceTruth,
    ScoreTable,
    SemanticScores,
)
from scannet_prep.processed.scene import encode_processed
from scannet_prep.stages import pack
from scannet_prep.synthetic import write_release

VAL = ("scene0011_00", "scene0011_01", "scene0015_00")
SCENE = VAL[0]
LABEL_SETS = {"scannet20": SCANNET20, "scannet200": SCANNET200}


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("evaluation")
    write_release(root / "raw", VAL, vertices=2500)
    assert run_main("process", root / "raw", "-o", root / "processed").status == 0
    pack.run(root / "processed", root / "all.tar.zst")
    return root / "processed"


def predict(place: Path, label_set: LabelSet = SCANNET20) -> dict[str, np.ndarray]:
    """Predict the labels of each scene, with 30 % of them drawn anew, some of them no class."""
    generator = np.random.default_rng(0)
    predictions = {}
    for sample in ScanNet(place, split="val", labels=label_set):
        labels = sample["labels"]
        noise = generator.integers(-1, len(label_set) + 3, len(labels))
        is_noise = generator.random(len(labels)) < 0.3
        predictions[sample["scene_id"]] = np.where(is_noise, noise, labels)
    return predictions


def predict_instances(place: Path) -> dict[str, InstancePrediction]:
    """Predict the true masks with 1 % of the vertices flipped, and 10 % of the classes wrong."""
    generator = np.random.default_rng(0)
    predictions = {}
    for sample in ScanNet(place, split="val"):
        numbers = np.setdiff1d(sample["instances"], [-1])
        true_masks = sample["instances"] == numbers[:, None]
        masks = true_masks ^ (generator.random(true_masks.shape) < 0.01)
        labels = np.array([sample["labels"][mask][0] for mask in true_masks])
        is_wrong = generator.random(len(labels)) < 0.1
        labels = np.where(is_wrong, generator.integers(0, 20, len(labels)), labels)
        scores = generator.random(len(labels)).round(1)
        predictions[sample["scene_id"]] = InstancePrediction(masks, labels, scores)
    return predictions


def raw_ids(labels: Any, label_set: LabelSet) -> list[int]:
    return [label_set.ids[label] if 0 <= label < len(label_set) else 0 for label in labels]


def write_semantic(
    folder: Path, ending: str, scene_id: str, labels: np.ndarray, label_set: LabelSet
) -> None:
    """Write a prediction in a format. Lines of texts end in CR LF, except the last one."""
    path = folder / f"{scene_id}{ending}"
    if ending == ".txt":
        unlabeled_id = -1 if label_set is SCANNET20 else 0
        numbers = [number or unlabeled_id for number in raw_ids(labels, label_set)]
        path.write_text("\r\n".join(map(str, numbers)))
    elif ending == ".eval.npz":
        is_class = (labels >= 0) & (labels < len(label_set))
        columns = np.where(is_class, labels + 1, 0)
        scores = np.full((len(labels), len(label_set) + 1), 0.25, np.float32)
        scores[np.arange(len(labels)), columns] = 0.5
        np.savez(path, prob=scores)
    else:
        np.save(path, labels.astype(np.int16))


def write_list(folder: Path, scene_id: str, prediction: InstancePrediction) -> None:
    """Write the benchmark's list of instances, and their masks."""
    lines = []
    for number, (mask, label, score) in enumerate(zip(*prediction, strict=True)):
        mask_name = f"pred_mask/{scene_id}_{number}.txt"
        mask_text = "".join(f"{value:d}\n" for value in mask)
        (folder / mask_name).write_text(mask_text)
        lines.append(f"{mask_name} {raw_ids([label], SCANNET20)[0]} {score}\n")
    (folder / f"{scene_id}.txt").write_text("".join(lines))


@pytest.fixture
def folder(place: Path, tmp_path: Path) -> Path:
    """Write semantic predictions of all scenes as arrays."""
    folder = tmp_path / "pred"
    folder.mkdir()
    for scene_id, labels in predict(place).items():
        np.save(folder / f"{scene_id}.npy", labels)
    return folder


@pytest.fixture
def lists(place: Path, tmp_path: Path) -> Path:
    """Write predicted instances of all scenes as lists and masks."""
    folder = tmp_path / "lists"
    (folder / "pred_mask").mkdir(parents=True)
    for scene_id, prediction in predict_instances(place).items():
        write_list(folder, scene_id, prediction)
    return folder


# Formats.


@dataclass(frozen=True)
class SemanticEvaluation:
    """An evaluation of predicted labels, and what is expected of it.

    Attributes:
        report: The JSON object of `evaluate`.
        table: The scores of the same labels as arrays.
        unknown_count: How many labels are none of the classes.
    """

    report: Any
    table: ScoreTable
    unknown_count: int


@pytest.fixture(scope="module", params=LABEL_SETS)
def label_set_name(request: pytest.FixtureRequest) -> str:
    return request.param


@pytest.fixture(scope="module", params=[".txt", ".npy", "_pred.npy", ".eval.npz"])
def semantic_evaluation(
    request: pytest.FixtureRequest,
    label_set_name: str,
    place: Path,
    tmp_path_factory: pytest.TempPathFactory,
) -> SemanticEvaluation:
    """The evaluation of predictions in each format."""
    directory = tmp_path_factory.mktemp("semantic")
    label_set = LABEL_SETS[label_set_name]
    predictions = predict(place, label_set)
    scores = SemanticScores(label_set)
    for sample in ScanNet(place, split="val", labels=label_set):
        labels = predictions[sample["scene_id"]]
        scores.add(labels, sample["labels"])
        write_semantic(directory, request.param, sample["scene_id"], labels, label_set)

    words = ("evaluate", directory, "--gt", place, "--labels", label_set_name, "--force", "--json")
    all_labels = np.concatenate(list(predictions.values()))
    return SemanticEvaluation(
        report=run_main(*words).json,
        table=scores.result(),
        unknown_count=np.count_nonzero((all_labels < 0) | (all_labels >= len(label_set))),
    )


def test_semantic_files_of_any_format_score_like_the_arrays(
    semantic_evaluation: SemanticEvaluation,
) -> None:
    table = semantic_evaluation.table

    assert semantic_evaluation.report["scores"] == {
        "totals": table.totals,
        "means": table.means,
        "classes": table.classes,
    }


def test_accuracy_of_a_partly_right_prediction_is_in_between(
    semantic_evaluation: SemanticEvaluation,
) -> None:
    assert 0.3 < semantic_evaluation.report["scores"]["totals"]["accuracy"] < 0.9


def test_labels_of_no_class_are_counted_in_any_format(
    semantic_evaluation: SemanticEvaluation,
) -> None:
    counts = semantic_evaluation.report["unknown_ids"]

    assert sum(counts.values()) == semantic_evaluation.unknown_count


def test_evaluated_scenes_are_counted_by_split(semantic_evaluation: SemanticEvaluation) -> None:
    assert semantic_evaluation.report["splits"] == {"val": {"scenes": 3, "official": 312}}


@pytest.fixture(scope="module")
def instance_table(place: Path) -> ScoreTable:
    """Score the predicted instances as arrays."""
    scores = InstanceScores(SCANNET20)
    dataset = ScanNet(place, split="val")
    for scene_id, prediction in predict_instances(place).items():
        sample = dataset[scene_id]
        truth = InstanceTruth(labels=sample["labels"], instances=sample["instances"])
        scores.add(prediction, truth)
    return scores.result()


@pytest.mark.parametrize("ground_truth", ["processed", "all.tar.zst"])
def test_lists_of_instances_score_like_the_arrays(
    place: Path, lists: Path, instance_table: ScoreTable, ground_truth: str
) -> None:
    words = ("--gt", place.with_name(ground_truth), "--task", "instance", "--force", "--json")

    scores = run_main("evaluate", lists, *words).json["scores"]

    assert scores["classes"] == instance_table.classes
    assert scores["means"] == instance_table.means


def test_precision_of_partly_right_instances_is_in_between(instance_table: ScoreTable) -> None:
    assert 0.1 < instance_table.means["all"]["ap"] < 1


def test_archives_of_instances_score_like_the_arrays(
    place: Path, tmp_path: Path, instance_table: ScoreTable
) -> None:
    for scene_id, prediction in predict_instances(place).items():
        np.savez(tmp_path / f"{scene_id}.npz", **prediction._asdict())
    words = ("--gt", place, "--task", "instance", "--force", "--json")

    scores = run_main("evaluate", tmp_path, *words).json["scores"]

    assert scores["classes"] == instance_table.classes
    assert scores["means"] == instance_table.means


def test_class_of_an_instance_is_that_of_its_group_not_of_its_vertices(
    place: Path, tmp_path: Path
) -> None:
    path = tmp_path / f"processed/val/{SCENE}.npz"
    path.parent.mkdir(parents=True)
    scene = read_processed(place / f"val/{SCENE}.npz")
    only_wall = replace(scene, nyu40_ids=np.full_like(scene.nyu40_ids, 1))
    path.write_bytes(b"".join(encode_processed(only_wall)))
    np.savez(tmp_path / f"{SCENE}.npz", **predict_instances(place)[SCENE]._asdict())
    words = ("evaluate", tmp_path, "--task", "instance", "--force", "--json", "--gt")

    of_wall = run_main(*words, tmp_path / "processed").json["scores"]
    of_groups = run_main(*words, place, "--allow-missing").json["scores"]

    assert of_wall == of_groups
    assert of_wall["totals"]["instances"] > 0


# Output files.


@dataclass(frozen=True)
class Written:
    """The output of an evaluation with both tables.

    Attributes:
        folder: The predictions.
        stdout: What was printed.
        rows: The table of scenes.
        confusion: The confusion matrix, as rows of a table.
    """

    folder: Path
    stdout: str
    rows: list[dict[str, str]]
    confusion: list[dict[str, str]]

    @property
    def counts(self) -> np.ndarray:
        """The confusion matrix as an array (20, 21)."""
        return np.array(
            [[int(value) for value in list(row.values())[1:]] for row in self.confusion]
        )


def read_table(path: Path) -> list[dict[str, str]]:
    return [*csv.DictReader(path.read_text().splitlines())]


@pytest.fixture
def written(place: Path, folder: Path) -> Written:
    scores_path = folder / "new/scores.csv"
    confusion_path = folder / "confusion.csv"
    options = ("-o", scores_path, "--confusion", confusion_path)
    outcome = run_main("evaluate", folder, "--gt", place, "--force", *options)
    assert outcome.status == 0
    return Written(folder, outcome.stdout, read_table(scores_path), read_table(confusion_path))


def test_table_of_scenes_and_confusion_agree(written: Written) -> None:
    counts = written.counts

    assert sorted(row["scene"] for row in written.rows) == [*VAL]
    assert counts.sum() == sum(int(row["vertices"]) for row in written.rows)
    correct = sum(float(row["accuracy"]) * int(row["vertices"]) for row in written.rows)
    assert correct == pytest.approx(np.trace(counts))


def test_confusion_has_the_names_of_the_classes(written: Written) -> None:
    assert list(written.confusion[0]) == ["ground truth", *SCANNET20.names, "(none)"]
    assert [row["ground truth"] for row in written.confusion] == list(SCANNET20.names)


def test_printed_accuracy_is_that_of_the_confusion(written: Written) -> None:
    counts = written.counts

    assert f"accuracy {np.trace(counts) / counts.sum():.4f}" in written.stdout


def test_printed_means_have_a_column_for_each_kind(written: Written) -> None:
    assert "mean over  over all  over union  over ground truth" in written.stdout


def test_printed_report_lists_ids_of_no_class(written: Written) -> None:
    assert "ids that are none of the classes: 4\n  -1: " in written.stdout


def test_printed_report_names_the_written_files(written: Written) -> None:
    folder = written.folder

    assert f"written: {folder}/new/scores.csv, {folder}/confusion.csv\n" in written.stdout


@pytest.fixture
def quiet(place: Path, written: Written) -> Outcome:
    """The outcome of a quiet run that draws the confusion of `written`."""
    path = written.folder / "new/one/confusion.svg"
    words = ("--gt", place, "--force", "--confusion", path, "-q")
    return run_main("evaluate", written.folder, *words)


@pytest.fixture
def picture(quiet: Outcome, written: Written) -> ET.Element:
    assert quiet.status == 0
    return ET.fromstring((written.folder / "new/one/confusion.svg").read_text())


def test_quiet_evaluate_prints_nothing(quiet: Outcome) -> None:
    assert quiet.stdout == ""


def test_picture_of_the_confusion_has_the_counts_of_its_table(
    picture: ET.Element, written: Written
) -> None:
    titles = [element.text for element in picture.iter("{http://www.w3.org/2000/svg}title")]

    counts = written.counts
    walls = counts[0, 0]
    assert len(titles) == np.count_nonzero(counts)
    assert f"wall as wall: {walls / counts[0].sum():.1%} ({walls:,} vertices)" in titles


def test_picture_of_the_confusion_names_all_classes(picture: ET.Element) -> None:
    texts = [element.text for element in picture.iter("{http://www.w3.org/2000/svg}text")]

    assert texts == ["prediction", "ground truth", *SCANNET20.names, *SCANNET20.names, "(none)"]


def test_perfect_scenes_score_1_in_every_mean_of_the_table(place: Path, tmp_path: Path) -> None:
    for sample in ScanNet(place, split="val"):
        np.save(tmp_path / f"{sample['scene_id']}.npy", sample["labels"])

    outcome = run_main("evaluate", tmp_path, "--gt", place, "-o", tmp_path / "scores.csv")

    assert outcome.status == 0
    for row in read_table(tmp_path / "scores.csv"):
        means = {name: value for name, value in row.items() if name.startswith("over_")}
        assert means == {"over_union": "1.0", "over_ground_truth": "1.0"}


def test_table_of_semantic_scenes_begins_with_the_worst(place: Path, tmp_path: Path) -> None:
    wrong_shares = dict(zip(VAL, (0.1, 0.6, 0.3), strict=True))
    for sample in ScanNet(place, split="val"):
        labels = sample["labels"]
        wrong_count = int(wrong_shares[sample["scene_id"]] * len(labels))
        labels[:wrong_count] = 19
        np.save(tmp_path / f"{sample['scene_id']}.npy", labels)

    outcome = run_main("evaluate", tmp_path, "--gt", place, "-o", tmp_path / "scores.csv")

    assert outcome.status == 0
    rows = read_table(tmp_path / "scores.csv")
    assert [row["scene"] for row in rows] == [VAL[1], VAL[2], VAL[0]]
    scores = [float(row["over_ground_truth"]) for row in rows]
    assert scores == sorted(scores)


def test_table_of_instance_scenes_begins_with_the_worst(place: Path, tmp_path: Path) -> None:
    missing_shares = dict(zip(VAL, (0.0, 0.8, 0.4), strict=True))
    for sample in ScanNet(place, split="val"):
        numbers = np.setdiff1d(sample["instances"], [-1])
        masks = sample["instances"] == numbers[:, None]
        labels = np.array([sample["labels"][mask].max() for mask in masks])
        # Leave out every instance of the last classes, so that these score 0.
        order = np.argsort(labels, kind="stable")
        kept_count = round((1 - missing_shares[sample["scene_id"]]) * len(order))
        kept = order[:kept_count]
        scores = np.ones(kept_count)
        path = tmp_path / f"{sample['scene_id']}.npz"
        np.savez(path, masks=masks[kept], labels=labels[kept], scores=scores)
    words = ("--gt", place, "--task", "instance", "-o", tmp_path / "scores.csv", "--force")

    outcome = run_main("evaluate", tmp_path, *words)

    assert outcome.status == 0
    rows = read_table(tmp_path / "scores.csv")
    assert [row["scene"] for row in rows] == [VAL[1], VAL[2], VAL[0]]
    scores = [float(row["ap"]) for row in rows]
    assert scores == sorted(scores)


# Missing predictions.


@pytest.fixture
def incomplete_folder(folder: Path) -> Path:
    """Predictions of all scenes but one, and of a scene that is not in the ground truth."""
    (folder / f"{SCENE}.npy").rename(folder / "scene0025_00.npy")
    return folder


def test_missing_prediction_is_an_error(place: Path, incomplete_folder: Path) -> None:
    outcome = run_main("evaluate", incomplete_folder, "--gt", place)

    assert outcome.status == 1
    problem = f"{incomplete_folder}: has no predictions of 1 of 3 scenes: {SCENE}\n"
    hint = "hint: predict these scenes, or add --allow-missing"
    assert problem + hint in outcome.stderr


@pytest.fixture
def allowed(place: Path, incomplete_folder: Path) -> Outcome:
    """The outcome with `--allow-missing`."""
    return run_main("evaluate", incomplete_folder, "--gt", place, "--force", "--allow-missing")


def test_allow_missing_evaluates_the_other_scenes(allowed: Outcome) -> None:
    assert allowed.status == 0
    assert "val: 2 of 312 scenes" in allowed.stdout


def test_allow_missing_warns_of_skipped_scenes(allowed: Outcome) -> None:
    assert f"warning: skipped without a prediction: 1 scene ({SCENE})" in allowed.stderr


def test_scene_that_is_not_in_the_ground_truth_is_listed(allowed: Outcome) -> None:
    assert "scenes that are not in the ground truth: 1\n  scene0025_00" in allowed.stdout


def test_report_lists_missing_and_left_out_scenes(place: Path, incomplete_folder: Path) -> None:
    words = ("--gt", place, "--force", "--allow-missing", "--json")

    report = run_main("evaluate", incomplete_folder, *words).json

    assert report["missing"] == [SCENE]
    assert report["left_out"] == ["scene0025_00"]


def test_allow_missing_needs_one_prediction(place: Path, incomplete_folder: Path) -> None:
    for scene_id in VAL[1:]:
        (incomplete_folder / f"{scene_id}.npy").unlink()

    outcome = run_main("evaluate", incomplete_folder, "--gt", place, "--allow-missing")

    assert outcome.status == 1
    assert "has no predictions of 3 of 3 scenes" in outcome.stderr


def test_folder_without_predictions_for_the_task_is_an_error(place: Path, folder: Path) -> None:
    outcome = run_main("evaluate", folder, "--gt", place, "--task", "instance")

    assert outcome.status == 1
    assert "has no instance predictions\nhint: expected <scene>.txt or" in outcome.stderr


def test_missing_folder_is_an_error(place: Path, tmp_path: Path) -> None:
    outcome = run_main("evaluate", tmp_path / "none", "--gt", place)

    assert outcome.status == 1
    assert f"{tmp_path}/none: no such folder" in outcome.stderr


# Faults.


SEMANTIC_FAULTS = (
    (".txt", b"1\n2\n", "prediction: found 2 vertices, expected 2,500"),
    (".txt", b"1\nchair\n", "line 2: found 'chair', expected a whole number"),
    (".txt", b"1.0e+00\n" * 2500, "line 1: found '1.0e+00', expected a whole number"),
    (
        ".npy",
        np.zeros((2500, 1), int),
        "prediction: found int64 (2500, 1), expected integers in one dimension",
    ),
    (".npy", np.zeros(2500), "prediction: found float64 (2500,), expected integers"),
    (".npy", np.array([{}]), "cannot be read as .npy"),
    (".npy", b"junk", "cannot be read as .npy"),
    (".eval.npz", {"scores": np.zeros(3)}, "has no array 'prob', only: scores"),
    (
        ".eval.npz",
        {"prob": np.zeros((2500, 20))},
        "prob: found float64 (2500, 20), expected floats (vertices, 21)",
    ),
    (".eval.npz", {"prob": np.full((2500, 21), np.nan)}, "prob: found NaN"),
    (".eval.npz", b"PK\x03\x04junk", "cannot be read as .npz"),
)
INSTANCE_FAULTS = (
    (
        ".txt",
        b"a.txt 5\n",
        "line 1: found 'a.txt 5', expected path, id and confidence, separated by single blanks",
    ),
    (".txt", b"a.txt 5  0.5\n", "line 1: found 'a.txt 5  0.5', expected path, id and confidence"),
    (".txt", b"a.txt 5 nan\n", "line 1: found 'a.txt 5 nan', expected path, id and confidence"),
    (
        ".txt",
        b"/etc/passwd 5 0.5\n",
        "line 1: found '/etc/passwd 5 0.5', expected the path of another mask, inside",
    ),
    (
        ".txt",
        b"a/../../b 5 0.5\n",
        "line 1: found 'a/../../b 5 0.5', expected the path of another mask, inside",
    ),
    (
        ".txt",
        b"a.txt 5 0.5\na.txt 6 0.5",
        "line 2: found 'a.txt 6 0.5', expected the path of another mask",
    ),
    (
        ".txt",
        b"a.txt 5 0.5\n.//a.txt 6 0.5",
        "line 2: found './/a.txt 6 0.5', expected the path of another mask",
    ),
    (
        ".txt",
        b"a\0.txt 5 0.5\n",
        "line 1: found 'a\\x00.txt 5 0.5', expected path, id and confidence",
    ),
    (".txt", b"a.txt 5 1e999\n", "scores: found float64 (1,), expected 1 finite numbers"),
    ("_0.txt", b"1\n2\n", "mask: found 2 vertices, expected 2,500"),
    ("_0.txt", b"1\nx\n", "line 2: found 'x', expected a whole number"),
    (
        ".npz",
        {"masks": np.ones((2, 2500)), "labels": [3, 4]},
        "has no array 'scores', only: masks, labels",
    ),
    (
        ".npz",
        {"masks": np.ones((2, 9)), "labels": [3, 4], "scores": [1, 1]},
        "masks: found float64 (2, 9), expected",
    ),
)


def replace_prediction(folder: Path, path: Path, content: Any) -> None:
    """Write the content as the only prediction of the scene."""
    if not path.exists():
        for old_path in folder.glob(f"{SCENE}.*"):
            old_path.unlink()
    if isinstance(content, bytes):
        path.write_bytes(content)
    elif isinstance(content, dict):
        np.savez(path, **content)
    else:
        np.save(path, content)


@pytest.mark.parametrize(("ending", "content", "problem"), SEMANTIC_FAULTS)
def test_damaged_semantic_prediction_is_named_with_its_content(
    place: Path, folder: Path, ending: str, content: Any, problem: str
) -> None:
    path = folder / f"{SCENE}{ending}"
    replace_prediction(folder, path, content)

    outcome = run_main("evaluate", folder, "--gt", place)

    assert outcome.status == 1
    assert f"error: {path}: {problem}" in outcome.stderr
    assert "Traceback" not in outcome.stderr


@pytest.mark.parametrize(("ending", "content", "problem"), INSTANCE_FAULTS)
def test_damaged_instance_prediction_is_named_with_its_content(
    place: Path, lists: Path, ending: str, content: Any, problem: str
) -> None:
    # A mask, for the lists that name it.
    (lists / "a.txt").write_text("1\n" * 2500)
    is_mask = ending == "_0.txt"
    path = (lists / "pred_mask" if is_mask else lists) / f"{SCENE}{ending}"
    replace_prediction(lists, path, content)

    outcome = run_main("evaluate", lists, "--gt", place, "--task", "instance")

    assert outcome.status == 1
    assert f"error: {path}: {problem}" in outcome.stderr
    assert "Traceback" not in outcome.stderr


@pytest.mark.parametrize(
    ("words", "problem"),
    [
        (["--splits", "test"], "invalid choice: 'test'"),
        (["--task", "instance", "--confusion", "c.svg"], "instances have no confusion matrix"),
        (["--confusion", "c.png"], "'c.png' does not end in .csv or .svg"),
        (["-o", "scores.txt"], "'scores.txt' does not end in .csv"),
    ],
)
def test_invalid_option_of_evaluate_is_wrong_usage(
    place: Path, tmp_path: Path, words: list[str], problem: str
) -> None:
    outcome = run_main("evaluate", tmp_path, "--gt", place, *words)

    assert outcome.status == 2
    assert problem in outcome.stderr


def test_two_predictions_of_a_scene_are_wrong_usage(place: Path, folder: Path) -> None:
    shutil.copy(folder / f"{SCENE}.npy", folder / f"{SCENE}_pred.npy")

    outcome = run_main("evaluate", folder, "--gt", place)

    assert outcome.status == 2
    assert f"has {SCENE}.npy and {SCENE}_pred.npy, expected one" in outcome.stderr


# Submissions.


@pytest.fixture(scope="module")
def submission_place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return process_all_test_scenes(tmp_path_factory.mktemp("submission"), 500)


# Train ids of ScanNet200 and, for some vertices, -1.
SUBMITTED_IDS = np.arange(500) % 23 - 1


@pytest.fixture
def submitted(tmp_path: Path) -> Path:
    """Write a prediction of each test scene."""
    for scene_id in official_scenes(Split.TEST):
        np.save(tmp_path / f"{scene_id}_pred.npy", SUBMITTED_IDS)
    return tmp_path


def submit(folder: Path, submission_place: Path, output_name: str, *words: str) -> Outcome:
    options = ("--gt", submission_place, "--labels", "scannet200", "--force")
    return run_main("submit", folder, *options, "-o", folder / output_name, *words)


# The text of each scene in a submission of these ids.
SUBMITTED_TEXT = "".join(f"{number}\n" for number in raw_ids(SUBMITTED_IDS, SCANNET200))


def test_submission_has_the_raw_ids_of_all_test_scenes_at_its_root(
    submission_place: Path, submitted: Path
) -> None:
    submit(submitted, submission_place, "a.zip")

    with zipfile.ZipFile(submitted / "a.zip") as archive:
        texts = {name: archive.read(name).decode() for name in archive.namelist()}
    names = [f"{scene_id}.txt" for scene_id in sorted(official_scenes(Split.TEST))]
    assert list(texts) == names
    assert set(texts.values()) == {SUBMITTED_TEXT}


def test_submit_counts_scenes_and_unpacked_bytes(submission_place: Path, submitted: Path) -> None:
    report = submit(submitted, submission_place, "a.zip", "--json").json

    assert report["scenes"] == 100
    assert report["unpacked_bytes"] == 100 * len(SUBMITTED_TEXT)


def test_submission_is_the_same_bytes_again(submission_place: Path, submitted: Path) -> None:
    submit(submitted, submission_place, "a.zip")
    submit(submitted, submission_place, "b.zip")

    assert (submitted / "a.zip").read_bytes() == (submitted / "b.zip").read_bytes()


def test_submit_prints_the_unpacked_size(submission_place: Path, submitted: Path) -> None:
    outcome = submit(submitted, submission_place, "a.zip")

    unpacked_bytes = 100 * len(SUBMITTED_TEXT)
    assert f"{unpacked_bytes / 1000:.1f} kB unpacked" in outcome.stdout


def test_submit_warns_of_ids_of_no_class(submission_place: Path, submitted: Path) -> None:
    outcome = submit(submitted, submission_place, "a.zip")

    warning = (
        "warning: 2,200 of 50,000 vertices (4.4%) have ids "
        "that are none of the classes of ScanNet200: -1\n"
    )
    assert warning in outcome.stderr


def test_submit_refuses_a_prediction_of_another_length(
    submission_place: Path, submitted: Path
) -> None:
    np.save(submitted / "scene0707_00_pred.npy", SUBMITTED_IDS[1:])

    outcome = submit(submitted, submission_place, "a.zip")

    assert outcome.status == 1
    problem = "scene0707_00_pred.npy: prediction: found 499 vertices, expected 500"
    assert problem in outcome.stderr
    assert not (submitted / "a.zip").exists()


def test_submit_refuses_a_missing_prediction(submission_place: Path, submitted: Path) -> None:
    (submitted / "scene0707_00_pred.npy").unlink()

    outcome = submit(submitted, submission_place, "a.zip")

    assert outcome.status == 1
    assert "has no predictions of 1 of 100 scenes: scene0707_00" in outcome.stderr
    assert not (submitted / "a.zip").exists()


def test_submit_to_a_file_other_than_zip_is_wrong_usage(
    submission_place: Path, tmp_path: Path
) -> None:
    assert submit(tmp_path, submission_place, "a.tar").status == 2


def test_submit_refuses_a_missing_processed_test_scene(
    submission_place: Path, tmp_path: Path
) -> None:
    one_scene = submission_place.with_name("one")
    np.save(tmp_path / "scene0707_00.npy", np.zeros(500, int))

    outcome = run_main("submit", tmp_path, "--gt", one_scene, "-o", tmp_path / "a.zip")

    missing_id = official_scenes(Split.TEST)[1]
    assert outcome.status == 2
    assert f"{one_scene}: has no test scene '{missing_id}'\nhint: make it" in outcome.stderr


def submit_instances(folder: Path, submission_place: Path, path: Path) -> Any:
    """Submit instances with a confidence of at least 0.01, and return the report."""
    options = ("--gt", submission_place, "--task", "instance", "--min-score", "0.01")
    return run_main("submit", folder, *options, "-o", path, "--json").json


@dataclass(frozen=True)
class InstanceSubmission:
    """A submission of instances; not to be changed."""

    report: Any
    path: Path


@pytest.fixture(scope="module")
def submission(
    submission_place: Path, tmp_path_factory: pytest.TempPathFactory
) -> InstanceSubmission:
    """Submit five instances of each test scene, of which the first and the last count."""
    directory = tmp_path_factory.mktemp("instances")
    masks = np.zeros((5, 500), int)
    for mask, size in zip(masks, (100, 99, 300, 300, 300), strict=True):
        mask[:size] = 1
    labels = [2, 2, 3, 1, 19]
    scores = [0.5, 0.9, 0.001, 0.9, 0.25]
    for scene_id in official_scenes(Split.TEST):
        np.savez(directory / f"{scene_id}.npz", masks=masks, labels=labels, scores=scores)
    path = directory / "a.zip"
    return InstanceSubmission(submit_instances(directory, submission_place, path), path)


def test_submission_leaves_out_instances_that_do_not_count(submission: InstanceSubmission) -> None:
    assert submission.report["left_out"] == {"small": 100, "score": 100, "other": 100}


def test_submit_counts_scenes_and_masks(submission: InstanceSubmission) -> None:
    assert submission.report["scenes"] == 100
    assert submission.report["masks"] == 200


def test_submission_has_a_list_and_its_masks_for_each_scene(submission: InstanceSubmission) -> None:
    with zipfile.ZipFile(submission.path) as archive:
        assert len(archive.namelist()) == 300


def test_unpacked_bytes_are_those_of_all_members(submission: InstanceSubmission) -> None:
    with zipfile.ZipFile(submission.path) as archive:
        unpacked_bytes = sum(info.file_size for info in archive.infolist())

    assert submission.report["unpacked_bytes"] == unpacked_bytes


def test_list_of_a_submission_names_mask_class_and_score(submission: InstanceSubmission) -> None:
    with zipfile.ZipFile(submission.path) as archive:
        lines = archive.read("scene0707_00.txt").decode().splitlines()

    assert lines == [
        f"pred_mask/scene0707_00_000.txt {SCANNET20.ids[2]} 0.5",
        f"pred_mask/scene0707_00_001.txt {SCANNET20.ids[19]} 0.25",
    ]


def test_mask_of_a_submission_has_a_line_per_vertex(submission: InstanceSubmission) -> None:
    with zipfile.ZipFile(submission.path) as archive:
        mask = archive.read("pred_mask/scene0707_00_000.txt").decode()

    assert mask == "1\n" * 100 + "0\n" * 400


def test_unpacked_submission_can_be_submitted_again(
    submission_place: Path, submission: InstanceSubmission, tmp_path: Path
) -> None:
    unpacked = tmp_path / "unpacked"
    with zipfile.ZipFile(submission.path) as archive:
        archive.extractall(unpacked)

    report = submit_instances(unpacked, submission_place, tmp_path / "a.zip")

    assert report["left_out"] == {}
    assert report["masks"] == 200
