"""`evaluate` and `submit`: every form of predictions, what is missing or damaged, and what lands in files."""

from __future__ import annotations

import csv
import shutil
import xml.etree.ElementTree as ET
import zipfile
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from commands import process_all_test_scenes, run_main

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
    """Labels of which a third is drawn anew, some of them no class."""
    generator, found = np.random.default_rng(0), {}
    for sample in ScanNet(place, split="val", labels=label_set):
        noise = generator.integers(-1, len(label_set) + 3, len(sample["labels"]))
        found[sample["scene_id"]] = np.where(
            generator.random(len(noise)) < 0.3, noise, sample["labels"]
        )
    return found


def predict_instances(place: Path) -> dict[str, InstancePrediction]:
    """The true masks, each with some vertices more and less, of which some have the wrong class."""
    generator, found = np.random.default_rng(0), {}
    for sample in ScanNet(place, split="val"):
        numbers = np.setdiff1d(sample["instances"], [-1])
        masks = (sample["instances"] == numbers[:, None]) ^ (
            generator.random((len(numbers), 2500)) < 0.01
        )
        labels = [sample["labels"][sample["instances"] == number][0] for number in numbers]
        labels = np.where(
            generator.random(len(labels)) < 0.1, generator.integers(0, 20, len(labels)), labels
        )
        found[sample["scene_id"]] = InstancePrediction(
            masks, labels, generator.random(len(labels)).round(1)
        )
    return found


def raw_ids(labels: Any, label_set: LabelSet) -> list[int]:
    return [label_set.ids[label] if 0 <= label < len(label_set) else 0 for label in labels]


def write_semantic(
    folder: Path, form: str, name: str, labels: np.ndarray, label_set: LabelSet
) -> None:
    path = folder / f"{name}{form}"
    if form == ".txt":
        none = -1 if label_set is SCANNET20 else 0
        path.write_text("\r\n".join(str(number or none) for number in raw_ids(labels, label_set)))
    elif form == ".eval.npz":
        scores = np.full((len(labels), len(label_set) + 1), 0.25, np.float32)
        scores[
            np.arange(len(labels)),
            np.where((labels >= 0) & (labels < len(label_set)), labels + 1, 0),
        ] = 0.5
        np.savez(path, prob=scores)
    else:
        np.save(path, labels.astype(np.int16))


@pytest.fixture
def folder(place: Path, tmp_path: Path) -> Path:
    """Semantic predictions of all scenes as arrays."""
    (tmp_path / "pred").mkdir()
    for name, labels in predict(place).items():
        np.save(tmp_path / f"pred/{name}.npy", labels)
    return tmp_path / "pred"


@pytest.fixture
def lists(place: Path, tmp_path: Path) -> Path:
    """Predicted instances of all scenes as lists and masks."""
    (tmp_path / "lists/pred_mask").mkdir(parents=True)
    for name, prediction in predict_instances(place).items():
        with (tmp_path / f"lists/{name}.txt").open("w") as file:
            for number, (mask, label, score) in enumerate(zip(*prediction, strict=True)):
                mask_name = f"pred_mask/{name}_{number}.txt"
                (tmp_path / "lists" / mask_name).write_text(
                    "".join(f"{value:d}\n" for value in mask)
                )
                file.write(f"{mask_name} {raw_ids([label], SCANNET20)[0]} {score}\n")
    return tmp_path / "lists"


@pytest.mark.parametrize("labels", LABEL_SETS)
@pytest.mark.parametrize("form", [".txt", ".npy", "_pred.npy", ".eval.npz"])
def test_every_form_of_semantic_predictions_gives_the_scores_of_the_arrays(
    place: Path, tmp_path: Path, form: str, labels: str
) -> None:
    label_set = LABEL_SETS[labels]
    predicted, scores = predict(place, label_set), SemanticScores(label_set)
    for sample in ScanNet(place, split="val", labels=label_set):
        scores.add(predicted[sample["scene_id"]], sample["labels"])
        write_semantic(tmp_path, form, sample["scene_id"], predicted[sample["scene_id"]], label_set)
    found = run_main(
        "evaluate", tmp_path, "--gt", place, "--labels", labels, "--force", "--json"
    ).json
    table = scores.result()
    assert found["scores"] == {
        "totals": table.totals,
        "means": table.means,
        "classes": table.classes,
    }
    assert 0.3 < found["scores"]["totals"]["accuracy"] < 0.9
    unknown = sum(
        int(((labels < 0) | (labels >= len(label_set))).sum()) for labels in predicted.values()
    )
    assert sum(found["unknown_ids"].values()) == unknown
    assert found["splits"] == {"val": {"scenes": 3, "official": 312}}


def test_both_forms_of_instances_give_the_scores_of_the_arrays_from_a_folder_and_an_archive(
    place: Path, tmp_path: Path, lists: Path
) -> None:
    scores = InstanceScores(SCANNET20)
    for name, prediction in predict_instances(place).items():
        sample = ScanNet(place, split="val")[name]
        scores.add(
            prediction, InstanceTruth(labels=sample["labels"], instances=sample["instances"])
        )
        np.savez(tmp_path / f"{name}.npz", **prediction._asdict())
    outcomes = [
        run_main("evaluate", folder, "--task", "instance", "--gt", gt, "--force", "--json").json
        for folder, gt in ((lists, place), (tmp_path, place.with_name("all.tar.zst")))
    ]
    table = scores.result()
    assert [outcome["scores"]["classes"] for outcome in outcomes] == [table.classes] * 2
    assert outcomes[0]["scores"]["means"] == table.means
    assert 0.1 < outcomes[0]["scores"]["means"]["all"]["ap"] < 1


def test_class_of_an_instance_is_that_of_its_group_where_labels_are_from_the_mesh(
    place: Path, tmp_path: Path
) -> None:
    path = tmp_path / f"processed/val/{SCENE}.npz"
    path.parent.mkdir(parents=True)
    scene = read_processed(place / f"val/{SCENE}.npz")
    path.write_bytes(
        b"".join(encode_processed(replace(scene, nyu40_ids=np.full_like(scene.nyu40_ids, 1))))
    )
    np.savez(tmp_path / f"{SCENE}.npz", **predict_instances(place)[SCENE]._asdict())
    words = ("evaluate", tmp_path, "--task", "instance", "--force", "--json", "--gt")
    mesh = run_main(*words, tmp_path / "processed").json["scores"]
    assert mesh["totals"]["instances"] > 0
    assert mesh == run_main(*words, place, "--allow-missing").json["scores"]


def test_tables_of_scenes_and_of_the_confusion_tell_the_same_as_the_report(
    place: Path, folder: Path
) -> None:
    paths = [folder / name for name in ("new/scores.csv", "confusion.csv", "new/one/confusion.svg")]
    words = ("evaluate", folder, "--gt", place, "--force", "--confusion")
    outcome = run_main(*words, paths[1], "-o", paths[0])
    assert outcome.status == 0
    assert f"written: {paths[0]}, {paths[1]}\n" in outcome.stdout
    assert run_main(*words, paths[2], "-q").stdout == ""
    rows, confusion = ([*csv.DictReader(path.read_text().splitlines())] for path in paths[:2])
    assert sorted(row["scene"] for row in rows) == [*VAL]
    assert list(confusion[0]) == ["ground truth", *SCANNET20.names, "(none)"]
    counts = np.array([[int(row[name]) for name in list(row)[1:]] for row in confusion])
    assert counts.sum() == sum(int(row["vertices"]) for row in rows)
    right = sum(float(row["accuracy"]) * int(row["vertices"]) for row in rows)
    assert right == pytest.approx(np.trace(counts))
    assert f"accuracy {right / counts.sum():.4f}" in outcome.stdout
    assert "mean over  over all  over union  over ground truth" in outcome.stdout
    assert "ids that are none of the classes: 4\n  -1: " in outcome.stdout
    picture = ET.fromstring(paths[2].read_text())
    titles = [element.text or "" for element in picture.iter("{http://www.w3.org/2000/svg}title")]
    assert len(titles) == np.count_nonzero(counts)
    wall = counts[0, 0] / counts[0].sum()
    assert f"wall as wall: {wall:.1%} ({counts[0, 0]:,} vertices)" in titles
    texts = [element.text for element in picture.iter("{http://www.w3.org/2000/svg}text")]
    assert texts == ["prediction", "ground truth", *SCANNET20.names, *SCANNET20.names, "(none)"]


def read_scene_scores(path: Path) -> list[dict[str, str]]:
    return [*csv.DictReader(path.read_text().splitlines())]


def test_scenes_without_an_error_score_1_in_every_mean_of_the_table(
    place: Path, tmp_path: Path
) -> None:
    for sample in ScanNet(place, split="val"):
        np.save(tmp_path / f"{sample['scene_id']}.npy", sample["labels"])
    assert run_main("evaluate", tmp_path, "--gt", place, "-o", tmp_path / "scores.csv").status == 0
    for row in read_scene_scores(tmp_path / "scores.csv"):
        means = {name: value for name, value in row.items() if name.startswith("over_")}
        assert means == {"over_union": "1.0", "over_ground_truth": "1.0"}


@pytest.mark.parametrize("task", ["semantic", "instance"])
def test_table_of_scenes_begins_with_the_worst(place: Path, tmp_path: Path, task: str) -> None:
    shares = dict(
        zip(VAL, (0.1, 0.6, 0.3), strict=True)
    )  # of the vertices that are predicted wrongly
    for sample in ScanNet(place, split="val"):
        name = sample["scene_id"]
        if task == "semantic":
            labels = sample["labels"]
            labels[: int(shares[name] * len(labels))] = 19
            np.save(tmp_path / f"{name}.npy", labels)
        else:
            prediction = predict_instances(place)[name]
            is_kept = np.arange(len(prediction.labels)) >= shares[name] * len(prediction.labels)
            labels = [
                sample["labels"][mask & (sample["labels"] >= 0)][0]
                for mask in prediction.masks[is_kept]
            ]
            np.savez(
                tmp_path / f"{name}.npz",
                masks=prediction.masks[is_kept],
                labels=labels,
                scores=labels,
            )
    words = ("evaluate", tmp_path, "--gt", place, "--task", task, "-o", tmp_path / "scores.csv")
    assert run_main(*words).status == 0
    rows = read_scene_scores(tmp_path / "scores.csv")
    assert [row["scene"] for row in rows] == [VAL[1], VAL[2], VAL[0]]
    scores = [float(row["over_ground_truth" if task == "semantic" else "ap"]) for row in rows]
    assert scores == sorted(scores)


def test_missing_scenes_are_an_error_unless_allowed_and_strangers_are_told(
    place: Path, folder: Path
) -> None:
    (folder / f"{SCENE}.npy").rename(folder / "scene0025_00.npy")
    outcome = run_main("evaluate", folder, "--gt", place)
    assert outcome.status == 1
    assert (
        f"{folder}: has no predictions of 1 of 3 scenes: {SCENE}\nhint: predict these scenes, or add --allow-m"
        in outcome.stderr
    )
    words = ("evaluate", folder, "--gt", place, "--force", "--allow-missing")
    outcome = run_main(*words)
    assert outcome.status == 0
    assert (
        f"warning: skipped without a prediction: 1 scene ({SCENE})"
        in outcome.stderr
    )
    assert "val: 2 of 312 scenes" in outcome.stdout
    assert "scenes that are not in the ground truth: 1\n  scene0025_00" in outcome.stdout
    found = run_main(*words, "--json").json
    assert (found["missing"], found["left_out"]) == ([SCENE], ["scene0025_00"])
    for name in VAL[1:]:
        (folder / f"{name}.npy").unlink()
    assert run_main(*words).status == 1
    assert (
        "has no instance predictions\nhint: expected <scene>.txt or"
        in run_main(*words, "--task", "instance").stderr
    )
    assert (
        f"{folder}/none: no such folder"
        in run_main("evaluate", folder / "none", "--gt", place).stderr
    )


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
    (".eval.npz", {"scores": np.zeros(3)}, "has no array 'prob"),
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
    (".npz", {"masks": np.ones((2, 2500)), "labels": [3, 4]}, "has no array 'scores"),
    (
        ".npz",
        {"masks": np.ones((2, 9)), "labels": [3, 4], "scores": [1, 1]},
        "masks: found float64 (2, 9), expected",
    ),
)


@pytest.mark.parametrize(
    ("task", "ending", "content", "words"),
    [("semantic", *fault) for fault in SEMANTIC_FAULTS]
    + [("instance", *fault) for fault in INSTANCE_FAULTS],
)
def test_damaged_prediction_is_named_with_what_was_found(
    place: Path, folder: Path, lists: Path, task: str, ending: str, content: Any, words: str
) -> None:
    root = folder if task == "semantic" else lists
    (root / "a.txt").write_text("1\n" * 2500)
    path = (
        root / "pred_mask" / f"{SCENE}{ending}" if ending == "_0.txt" else root / f"{SCENE}{ending}"
    )
    for old in () if path.exists() else root.glob(f"{SCENE}.*"):
        old.unlink()
    if isinstance(content, bytes):
        path.write_bytes(content)
    elif isinstance(content, dict):
        np.savez(path, **content)
    else:
        np.save(path, content)
    outcome = run_main("evaluate", root, "--gt", place, "--task", task)
    assert (outcome.status, "Traceback" in outcome.stderr) == (1, False)
    assert f"error: {path}: {words}" in outcome.stderr


def test_what_makes_no_sense_is_wrong_usage(place: Path, folder: Path) -> None:
    for words, problem in (
        (["--splits", "test"], "invalid choice: 'test'"),
        (["--task", "instance", "--confusion", "c.svg"], "instances have no confusion matrix"),
        (["--confusion", "c.png"], "'c.png' does not end in .csv or .svg"),
        (["-o", "scores.txt"], "'scores.txt' does not end in .csv"),
    ):
        outcome = run_main("evaluate", folder, "--gt", place, *words)
        assert (outcome.status, problem in outcome.stderr) == (2, True), outcome.stderr
    shutil.copy(folder / f"{SCENE}.npy", folder / f"{SCENE}_pred.npy")
    outcome = run_main("evaluate", folder, "--gt", place)
    assert (
        outcome.status,
        f"has {SCENE}.npy and {SCENE}_pred.npy, expected one" in outcome.stderr,
    ) == (2, True)


@pytest.fixture(scope="module")
def test_place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return process_all_test_scenes(tmp_path_factory.mktemp("submission"), 500)


def test_submission_has_the_raw_ids_of_all_test_scenes_at_its_root_and_the_same_bytes_again(
    test_place: Path, tmp_path: Path
) -> None:
    ids = np.arange(500) % 23 - 1
    for name in official_scenes(Split.TEST):
        np.save(tmp_path / f"{name}_pred.npy", ids)
    words = ("submit", tmp_path, "--gt", test_place, "--labels", "scannet200", "--force", "-o")
    found = run_main(*words, tmp_path / "a.zip", "--json").json
    outcome = run_main(*words, tmp_path / "b.zip")
    assert (tmp_path / "a.zip").read_bytes() == (tmp_path / "b.zip").read_bytes()
    with zipfile.ZipFile(tmp_path / "a.zip") as archive:
        assert archive.namelist() == [f"{name}.txt" for name in sorted(official_scenes(Split.TEST))]
        text = "".join(f"{number}\n" for number in raw_ids(ids, SCANNET200))
        assert {archive.read(name).decode() for name in archive.namelist()} == {text}
    assert (found["scenes"], found["unpacked_bytes"]) == (100, 100 * len(text))
    assert f"{100 * len(text) / 1000:.1f} kB unpacked" in outcome.stdout
    assert (
        "warning: 2,200 of 50,000 vertices (4.4%) have ids that are none of the classes of ScanNet200: -1\n"
        in outcome.stderr
    )
    np.save(tmp_path / "scene0707_00_pred.npy", ids[1:])
    outcome = run_main(*words, tmp_path / "c.zip")
    assert "scene0707_00_pred.npy: prediction: found 499 vertices, expected 500" in outcome.stderr
    (tmp_path / "scene0707_00_pred.npy").unlink()
    outcome = run_main(*words, tmp_path / "c.zip")
    assert "has no predictions of 1 of 100 scenes: scene0707_00" in outcome.stderr
    assert (outcome.status, (tmp_path / "c.zip").exists()) == (1, False)
    assert run_main(*words, tmp_path / "c.tar").status == 2


def test_submission_needs_all_processed_test_scenes(test_place: Path, tmp_path: Path) -> None:
    one = test_place.with_name("one")
    np.save(tmp_path / "scene0707_00.npy", np.zeros(500, int))
    outcome = run_main("submit", tmp_path, "--gt", one, "-o", tmp_path / "a.zip")
    missing = official_scenes(Split.TEST)[1]
    assert (
        outcome.status,
        f"{one}: has no test scene '{missing}'\nhint: make it" in outcome.stderr,
    ) == (2, True)


def test_submission_of_instances_has_the_lists_at_its_root_and_leaves_out_what_does_not_count(
    test_place: Path, tmp_path: Path
) -> None:
    masks = np.zeros((5, 500), int)
    for row, size in zip(masks, (100, 99, 300, 300, 300), strict=True):
        row[:size] = 1
    arrays = {"masks": masks, "labels": [2, 2, 3, 1, 19], "scores": [0.5, 0.9, 0.001, 0.9, 0.25]}
    for name in official_scenes(Split.TEST):
        np.savez(tmp_path / f"{name}.npz", **arrays)
    words = (
        "--gt",
        test_place,
        "--task",
        "instance",
        "--min-score",
        "0.01",
        "-o",
        tmp_path / "a.zip",
        "--json",
    )
    found = run_main("submit", tmp_path, *words).json
    assert found["left_out"] == {"small": 100, "score": 100, "other": 100}
    with zipfile.ZipFile(tmp_path / "a.zip") as archive:
        archive.extractall(tmp_path / "unpacked")
        assert len(archive.namelist()) == 300 == found["scenes"] + found["masks"]
        assert found["unpacked_bytes"] == sum(info.file_size for info in archive.infolist())
    mask_names = [f"pred_mask/scene0707_00_{number:03d}.txt" for number in range(2)]
    lines = (tmp_path / "unpacked/scene0707_00.txt").read_text().splitlines()
    assert lines == [
        f"{mask_names[0]} {SCANNET20.ids[2]} 0.5",
        f"{mask_names[1]} {SCANNET20.ids[19]} 0.25",
    ]
    assert (tmp_path / "unpacked" / mask_names[0]).read_text() == "1\n" * 100 + "0\n" * 400
    again = run_main("submit", tmp_path / "unpacked", *words)
    assert again.json["left_out"] == {}
