"""The commands `evaluate` and `submit`: formats of predictions, faults, and output files."""

import csv
import shutil
import zipfile
from dataclasses import replace

import numpy as np
import pytest
from commands import process_all_test_scenes, run_main, write_processed

from scannet_prep import (
    SCANNET20,
    SCANNET200,
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
from scannet_prep.synthetic import write_release

VAL = ("scene0011_00", "scene0011_01", "scene0015_00")
SCENE = VAL[0]
LABEL_SETS = {"scannet20": SCANNET20, "scannet200": SCANNET200}


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    root = tmp_path_factory.mktemp("evaluation")
    write_release(root / "raw", VAL, vertices=2500)
    assert run_main("process", root / "raw", "-o", root / "processed").status == 0
    archive_path = root / "all.tar.zst"
    assert run_main("pack", root / "processed", "-o", archive_path).status == 0
    return root / "processed"


def predict(place, label_set=SCANNET20):
    """Predict the labels of each scene, with 30 % of them drawn anew, some of them no class."""
    generator = np.random.default_rng(0)
    predictions = {}
    for sample in ScanNet(place, split="val", labels=label_set):
        labels = sample["labels"]
        noise = generator.integers(-1, len(label_set) + 3, len(labels))
        is_noise = generator.random(len(labels)) < 0.3
        predictions[sample["scene_id"]] = np.where(is_noise, noise, labels)
    return predictions


def predict_instances(place):
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


def raw_ids(labels, label_set):
    return [label_set.ids[label] if 0 <= label < len(label_set) else 0 for label in labels]


def write_semantic(folder, ending, scene_id, labels, label_set):
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


def write_list(folder, scene_id, prediction):
    """Write the benchmark's list of instances, and their masks."""
    lines = []
    for number, (mask, label, score) in enumerate(zip(*prediction, strict=True)):
        mask_name = f"pred_mask/{scene_id}_{number}.txt"
        # Any number but 0 is inside.
        mask_text = "".join(f"{value * (1 + number % 2):d}\n" for value in mask)
        (folder / mask_name).write_text(mask_text)
        lines.append(f"{mask_name} {raw_ids([label], SCANNET20)[0]} {score}\n")
    (folder / f"{scene_id}.txt").write_text("".join(lines))


def read_table(path):
    return [*csv.DictReader(path.read_text().splitlines())]


@pytest.fixture
def folder(place, tmp_path):
    """Semantic predictions of all scenes as arrays."""
    folder = tmp_path / "pred"
    folder.mkdir()
    for scene_id, labels in predict(place).items():
        np.save(folder / f"{scene_id}.npy", labels)
    return folder


@pytest.fixture
def lists(place, tmp_path):
    """Predicted instances of all scenes as lists and masks."""
    folder = tmp_path / "lists"
    (folder / "pred_mask").mkdir(parents=True)
    for scene_id, prediction in predict_instances(place).items():
        write_list(folder, scene_id, prediction)
    return folder


@pytest.mark.parametrize("label_set_name", LABEL_SETS)
@pytest.mark.parametrize("ending", [".txt", ".npy", "_pred.npy", ".eval.npz"])
def test_semantic_files_of_any_format_score_like_the_arrays(
    ending, label_set_name, place, tmp_path
):
    label_set = LABEL_SETS[label_set_name]
    predictions = predict(place, label_set)
    scores = SemanticScores(label_set)
    for sample in ScanNet(place, split="val", labels=label_set):
        labels = predictions[sample["scene_id"]]
        scores.add(labels, sample["labels"])
        write_semantic(tmp_path, ending, sample["scene_id"], labels, label_set)
    words = ("--gt", place, "--label-set", label_set_name, "--force", "--json")

    report = run_main("evaluate", tmp_path, *words).json

    table = scores.result()
    assert report["scores"] == {
        "totals": table.totals,
        "means": table.means,
        "classes": table.classes,
    }
    assert 0.3 < report["scores"]["totals"]["accuracy"] < 0.9
    assert report["splits"] == {"val": {"scenes": 3, "official": 312}}


def test_instances_of_any_format_score_like_the_arrays(place, lists, tmp_path):
    expected = InstanceScores(SCANNET20)
    dataset = ScanNet(place, split="val")
    (tmp_path / "arrays").mkdir()
    for scene_id, prediction in predict_instances(place).items():
        sample = dataset[scene_id]
        truth = InstanceTruth(labels=sample["labels"], instances=sample["instances"])
        expected.add(prediction, truth)
        np.savez(tmp_path / f"arrays/{scene_id}.npz", **prediction._asdict())
    table = expected.result()
    assert 0.1 < table.means["all"]["ap"] < 1

    for predictions, ground_truth in (
        (lists, place),
        (lists, place.with_name("all.tar.zst")),
        (tmp_path / "arrays", place),
    ):
        words = ("--gt", ground_truth, "--task", "instance", "--force", "--json")
        scores = run_main("evaluate", predictions, *words).json["scores"]
        assert scores["classes"] == table.classes
        assert scores["means"] == table.means


def test_class_of_an_instance_is_that_of_its_group_not_of_its_vertices(place, tmp_path):
    scene = read_processed(place / f"val/{SCENE}.npz")
    only_wall = replace(scene, nyu40_ids=np.full_like(scene.nyu40_ids, 1))
    write_processed(tmp_path / "processed", [only_wall])
    np.savez(tmp_path / f"{SCENE}.npz", **predict_instances(place)[SCENE]._asdict())
    words = ("evaluate", tmp_path, "--task", "instance", "--force", "--json", "--gt")

    of_wall = run_main(*words, tmp_path / "processed").json["scores"]
    of_groups = run_main(*words, place, "--allow-missing").json["scores"]

    assert of_wall == of_groups
    assert of_wall["totals"]["instances"] > 0


def test_report_table_of_scenes_and_confusion_agree(place, folder):
    scores_path = folder / "new/scores.csv"
    confusion_path = folder / "confusion.csv"
    options = ("-o", scores_path, "--confusion", confusion_path)

    outcome = run_main("evaluate", folder, "--gt", place, "--force", *options)

    assert outcome.status == 0
    rows = read_table(scores_path)
    confusion = read_table(confusion_path)
    counts = np.array([[int(value) for value in list(row.values())[1:]] for row in confusion])
    assert sorted(row["scene"] for row in rows) == [*VAL]
    assert counts.sum() == sum(int(row["vertices"]) for row in rows)
    correct = sum(float(row["accuracy"]) * int(row["vertices"]) for row in rows)
    assert correct == pytest.approx(np.trace(counts))
    assert list(confusion[0]) == ["ground truth", *SCANNET20.names, "(none)"]
    assert [row["ground truth"] for row in confusion] == list(SCANNET20.names)
    assert f"accuracy {np.trace(counts) / counts.sum():.4f}" in outcome.stdout
    assert "mean over  over all  over union  over ground truth" in outcome.stdout
    assert run_main("evaluate", folder, "--gt", place, "--force", "-q").stdout == ""


def test_perfect_scenes_score_1_in_every_mean_of_the_table(place, tmp_path):
    for sample in ScanNet(place, split="val"):
        np.save(tmp_path / f"{sample['scene_id']}.npy", sample["labels"])

    outcome = run_main("evaluate", tmp_path, "--gt", place, "-o", tmp_path / "scores.csv")

    assert outcome.status == 0
    for row in read_table(tmp_path / "scores.csv"):
        means = {name: value for name, value in row.items() if name.startswith("over_")}
        assert means == {"over_union": "1.0", "over_ground_truth": "1.0"}


@pytest.mark.parametrize(("task", "score"), [("semantic", "over_ground_truth"), ("instance", "ap")])
def test_table_of_scenes_begins_with_the_worst(task, score, place, tmp_path):
    wrong_shares = dict(zip(VAL, (0.0, 0.8, 0.4), strict=True))
    for sample in ScanNet(place, split="val"):
        scene_id = sample["scene_id"]
        labels = sample["labels"]
        if task == "semantic":
            labels[: int(wrong_shares[scene_id] * len(labels))] = 19
            np.save(tmp_path / f"{scene_id}.npy", labels)
            continue
        numbers = np.setdiff1d(sample["instances"], [-1])
        masks = sample["instances"] == numbers[:, None]
        mask_labels = np.array([labels[mask].max() for mask in masks])
        # Leave out every instance of the last classes, so that these score 0.
        order = np.argsort(mask_labels, kind="stable")
        kept = order[: round((1 - wrong_shares[scene_id]) * len(order))]
        np.savez(
            tmp_path / f"{scene_id}.npz",
            masks=masks[kept],
            labels=mask_labels[kept],
            scores=np.ones(len(kept)),
        )
    words = ("--gt", place, "--task", task, "-o", tmp_path / "scores.csv", "--force")

    outcome = run_main("evaluate", tmp_path, *words)

    assert outcome.status == 0
    rows = read_table(tmp_path / "scores.csv")
    assert [row["scene"] for row in rows] == [VAL[1], VAL[2], VAL[0]]
    scores = [float(row[score]) for row in rows]
    assert scores == sorted(scores)


def test_scenes_without_prediction_are_an_error_unless_allowed(place, folder):
    (folder / f"{SCENE}.npy").rename(folder / "scene0025_00.npy")
    words = ("evaluate", folder, "--gt", place, "--force")

    outcome = run_main(*words)
    assert outcome.status == 1
    problem = f"error: {folder}: has no predictions of 1 of 3 scenes: {SCENE}\n"
    assert f"{problem}hint: predict these scenes, or add --allow-missing" in outcome.stderr

    outcome = run_main(*words, "--allow-missing")
    assert outcome.status == 0
    assert "val: 2 of 312 scenes" in outcome.stdout
    assert f"warning: skipped without a prediction: 1 scene ({SCENE})" in outcome.stderr
    assert "scenes that are not in the ground truth: 1\n  scene0025_00" in outcome.stdout
    report = run_main(*words, "--allow-missing", "--json").json
    assert report["missing"] == [SCENE]
    assert report["left_out"] == ["scene0025_00"]

    for scene_id in VAL[1:]:
        (folder / f"{scene_id}.npy").unlink()
    outcome = run_main(*words, "--allow-missing")
    assert outcome.status == 1
    assert "has no predictions of 3 of 3 scenes" in outcome.stderr


FAULTS = [
    ("semantic", ".txt", b"1\n2\n", "prediction: found 2 vertices, expected 2,500"),
    ("semantic", ".txt", b"1\nchair\n", "line 2: found 'chair', expected a whole number"),
    ("semantic", ".txt", b"1.0e+00\n" * 2500, "line 1: found '1.0e+00', expected a whole number"),
    (
        "semantic",
        ".npy",
        np.zeros((2500, 1), int),
        "prediction: found int64 (2500, 1), expected integers in one dimension",
    ),
    ("semantic", ".npy", np.zeros(2500), "prediction: found float64 (2500,), expected integers"),
    ("semantic", ".npy", np.array([{}]), "cannot be read as .npy"),
    ("semantic", ".npy", b"junk", "cannot be read as .npy"),
    ("semantic", ".eval.npz", {"scores": np.zeros(3)}, "has no array prob, only: scores"),
    (
        "semantic",
        ".eval.npz",
        {"prob": np.zeros((2500, 20))},
        "prob: found float64 (2500, 20), expected floats (vertices, 21)",
    ),
    ("semantic", ".eval.npz", {"prob": np.full((2500, 21), np.nan)}, "prob: found NaN"),
    ("semantic", ".eval.npz", b"PK\x03\x04junk", "cannot be read as .npz"),
    (
        "instance",
        ".txt",
        b"a.txt 5\n",
        "line 1: found 'a.txt 5', expected path, id and confidence, separated by single blanks",
    ),
    (
        "instance",
        ".txt",
        b"a.txt 5  0.5\n",
        "line 1: found 'a.txt 5  0.5', expected path, id and confidence",
    ),
    (
        "instance",
        ".txt",
        b"a.txt 5 nan\n",
        "line 1: found 'a.txt 5 nan', expected path, id and confidence",
    ),
    (
        "instance",
        ".txt",
        b"/etc/passwd 5 0.5\n",
        "line 1: found '/etc/passwd 5 0.5', expected the path of another mask, inside",
    ),
    (
        "instance",
        ".txt",
        b"a/../../b 5 0.5\n",
        "line 1: found 'a/../../b 5 0.5', expected the path of another mask, inside",
    ),
    (
        "instance",
        ".txt",
        b"a.txt 5 0.5\na.txt 6 0.5",
        "line 2: found 'a.txt 6 0.5', expected the path of another mask",
    ),
    (
        "instance",
        ".txt",
        b"a.txt 5 0.5\n.//a.txt 6 0.5",
        "line 2: found './/a.txt 6 0.5', expected the path of another mask",
    ),
    (
        "instance",
        ".txt",
        b"a\0.txt 5 0.5\n",
        "line 1: found 'a\\x00.txt 5 0.5', expected path, id and confidence",
    ),
    (
        "instance",
        ".txt",
        b"a.txt 5 1e999\n",
        "scores: found float64 (1,), expected 1 finite",
    ),
    ("instance", "_0.txt", b"1\n2\n", "mask: found 2 vertices, expected 2,500"),
    ("instance", "_0.txt", b"1\nx\n", "line 2: found 'x', expected a whole number"),
    (
        "instance",
        ".npz",
        {"masks": np.ones((2, 2500)), "labels": [3, 4]},
        "has no array scores, only: masks, labels",
    ),
    (
        "instance",
        ".npz",
        {"masks": np.ones((2, 9)), "labels": [3, 4], "scores": [1, 1]},
        "masks: found float64 (2, 9), expected",
    ),
]


@pytest.mark.parametrize(("task", "ending", "content", "problem"), FAULTS)
def test_damaged_prediction_is_named_with_its_content(
    task, ending, content, problem, place, tmp_path
):
    folder = tmp_path
    (folder / "pred_mask").mkdir()
    # A mask, for the lists that name it.
    (folder / "a.txt").write_text("1\n" * 2500)
    # The others have the same form: raw ids in texts, train ids in arrays.
    is_text = ending.endswith(".txt")
    for scene_id in VAL:
        if task == "semantic" and is_text:
            np.savetxt(folder / f"{scene_id}.txt", np.ones(2500), fmt="%d")
        elif task == "semantic":
            np.save(folder / f"{scene_id}.npy", np.zeros(2500, int))
        elif is_text:
            write_list(folder, scene_id, predict_instances(place)[scene_id])
        else:
            arrays = predict_instances(place)[scene_id]._asdict()
            np.savez(folder / f"{scene_id}.npz", **arrays)
    path = folder / f"{SCENE}{ending}"
    if ending == "_0.txt":
        path = folder / "pred_mask" / path.name
    else:
        for old_path in folder.glob(f"{SCENE}.*"):
            old_path.unlink()
    if isinstance(content, bytes):
        path.write_bytes(content)
    elif isinstance(content, dict):
        np.savez(path, **content)
    else:
        np.save(path, content)

    outcome = run_main("evaluate", folder, "--gt", place, "--task", task)

    assert outcome.status == 1
    assert f"error: {path}: {problem}" in outcome.stderr
    assert "Traceback" not in outcome.stderr


@pytest.mark.parametrize(
    ("words", "status", "problem"),
    [
        ("evaluate pred --splits test", 2, "invalid choice: 'test'"),
        (
            "evaluate pred --task instance --confusion c.csv",
            2,
            "instances have no confusion matrix",
        ),
        ("evaluate pred --confusion c.png", 2, "'c.png' does not end in .csv"),
        ("evaluate pred -o scores.txt", 2, "'scores.txt' does not end in .csv"),
        ("evaluate twice", 2, f"twice: has {SCENE}.npy and {SCENE}_pred.npy, expected one"),
        (
            "evaluate pred --task instance",
            1,
            "has no instance predictions\nhint: expected a file in this folder for each scene",
        ),
        ("evaluate none", 1, "none: no such folder"),
        ("submit pred -o a.tar", 2, "'a.tar' does not end in .zip"),
        ("submit pred", 2, "required: -o/--output"),
    ],
)
def test_wrong_arguments_are_refused(words, status, problem, place, folder):
    shutil.copytree(folder, folder.with_name("twice"))
    shutil.copy(folder / f"{SCENE}.npy", folder.parent / f"twice/{SCENE}_pred.npy")
    before = sorted(folder.parent.rglob("*"))

    outcome = run_main(*words.split(), "--gt", place, cwd=folder.parent)

    assert outcome.status == status
    assert problem in outcome.stderr
    assert sorted(folder.parent.rglob("*")) == before


@pytest.fixture(scope="module")
def submission_place(tmp_path_factory):
    return process_all_test_scenes(tmp_path_factory.mktemp("submission"), 500)


# Train ids of ScanNet200 and, for some vertices, -1.
SUBMITTED_IDS = np.arange(500) % 23 - 1


def submit(folder, place, output_name, *words):
    options = ("--gt", place, "--label-set", "scannet200", "--force")
    return run_main("submit", folder, *options, "-o", folder / output_name, *words)


def test_submission_has_the_raw_ids_of_all_test_scenes(submission_place, tmp_path):
    for scene_id in official_scenes(Split.TEST):
        np.save(tmp_path / f"{scene_id}_pred.npy", SUBMITTED_IDS)
    expected = "".join(f"{number}\n" for number in raw_ids(SUBMITTED_IDS, SCANNET200))

    outcome = submit(tmp_path, submission_place, "a.zip")

    assert outcome.status == 0
    assert "warning: 2,200 of 50,000 vertices are unlabeled\n" in outcome.stderr
    assert f"{100 * len(expected) / 1000:.1f} kB unpacked" in outcome.stdout
    with zipfile.ZipFile(tmp_path / "a.zip") as archive:
        texts = {name: archive.read(name).decode() for name in archive.namelist()}
    assert list(texts) == [f"{scene_id}.txt" for scene_id in sorted(official_scenes(Split.TEST))]
    assert set(texts.values()) == {expected}

    report = submit(tmp_path, submission_place, "b.zip", "--json").json
    assert report["scenes"] == 100
    assert report["left_out"] == {"unlabeled": 2_200}
    assert report["unpacked_bytes"] == 100 * len(expected)
    assert (tmp_path / "a.zip").read_bytes() == (tmp_path / "b.zip").read_bytes()

    np.save(tmp_path / "scene0707_00_pred.npy", SUBMITTED_IDS[1:])
    outcome = submit(tmp_path, submission_place, "c.zip")
    assert outcome.status == 1
    problem = "scene0707_00_pred.npy: prediction: found 499 vertices, expected 500"
    assert problem in outcome.stderr

    (tmp_path / "scene0707_00_pred.npy").unlink()
    outcome = submit(tmp_path, submission_place, "c.zip")
    assert outcome.status == 1
    assert "has no predictions of 1 of 100 scenes: scene0707_00" in outcome.stderr
    assert not (tmp_path / "c.zip").exists()


def test_submission_needs_all_processed_test_scenes(submission_place, tmp_path):
    one_scene = submission_place.with_name("one")
    np.save(tmp_path / "scene0707_00.npy", np.zeros(500, int))

    outcome = run_main("submit", tmp_path, "--gt", one_scene, "-o", tmp_path / "a.zip")

    missing_id = official_scenes(Split.TEST)[1]
    assert outcome.status == 2
    assert f"{one_scene}: has no scene {missing_id} in test (99 are missing)" in outcome.stderr


def test_submission_of_instances_has_those_that_count(submission_place, tmp_path):
    masks = np.zeros((5, 500), int)
    for mask, size in zip(masks, (100, 99, 300, 300, 300), strict=True):
        mask[:size] = 1
    labels = [2, 2, 3, 1, 19]
    scores = [0.5, 0.9, 0.001, 0.9, 0.25]
    for scene_id in official_scenes(Split.TEST):
        np.savez(tmp_path / f"{scene_id}.npz", masks=masks, labels=labels, scores=scores)
    path = tmp_path / "a.zip"
    words = ("--gt", submission_place, "--task", "instance", "--min-score", "0.01", "-o", path)
    # An instance network predicts no floor.
    refused = run_main("submit", tmp_path, *words)
    assert refused.status == 1
    assert "100 of 500 predicted ids are no class that networks for instance" in refused.stderr
    words = (*words, "--force")

    report = run_main("submit", tmp_path, *words, "--json").json

    assert report["left_out"] == {"small": 100, "score": 100, "other": 100}
    assert report["scenes"] == 100
    assert report["masks"] == 200
    with zipfile.ZipFile(path) as archive:
        assert len(archive.namelist()) == 300
        assert report["unpacked_bytes"] == sum(info.file_size for info in archive.infolist())
        lines = archive.read("scene0707_00.txt").decode().splitlines()
        mask = archive.read("pred_mask/scene0707_00_000.txt").decode()
        archive.extractall(tmp_path / "unpacked")
    assert lines == [
        f"pred_mask/scene0707_00_000.txt {SCANNET20.ids[2]} 0.5",
        f"pred_mask/scene0707_00_001.txt {SCANNET20.ids[19]} 0.25",
    ]
    assert mask == "1\n" * 100 + "0\n" * 400

    # What was unpacked can be submitted again.
    report = run_main("submit", tmp_path / "unpacked", *words, "--json").json
    assert report["left_out"] == {}
    assert report["masks"] == 200

    # Nothing is left of instances without confidence.
    outcome = run_main("submit", tmp_path / "unpacked", *words, "--min-score", "2")
    assert outcome.status == 1
    assert "the zip file would have no mask (left out: " in outcome.stderr
    assert "below --min-score: 200" in outcome.stderr
