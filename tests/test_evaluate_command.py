"""The commands `evaluate` and `submit`: formats of predictions, faults, and output files."""

import shutil
import zipfile
from dataclasses import asdict

import numpy as np
import pandas as pd
import pytest
from commands import TEST, copy_scene, fail, make_processed, run_main, succeed, write_processed

from scannet_prep import SCANNET20, SCANNET200, ScanNet, Split, official_scenes, read_processed
from scannet_prep.evaluation import (
    InstancePrediction,
    InstanceScores,
    InstanceTruth,
    SemanticScores,
)

VAL = ("scene0011_00", "scene0011_01", "scene0015_00")
SCENE = VAL[0]
VERTICES = 2500
# How much of each scene is wrong in a prediction.
WRONG_SHARES = dict(zip(VAL, (0.0, 0.8, 0.4), strict=True))


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    return make_processed(tmp_path_factory.mktemp("evaluation"), VAL, vertices=VERTICES)


@pytest.fixture
def folder(place, tmp_path):
    """Semantic predictions as arrays: one scene is perfect."""
    folder = tmp_path / "pred"
    folder.mkdir()
    for sample in ScanNet(place, split="val"):
        labels = sample["labels"]
        labels[: int(WRONG_SHARES[sample["scene_id"]] * VERTICES)] = 19
        np.save(folder / f"{sample['scene_id']}.npy", labels)
    return folder


def true_instances(place):
    """Yield the id of each scene, the masks of its instances, and their labels."""
    for sample in ScanNet(place, split="val"):
        numbers = np.setdiff1d(sample["instances"], [-1])
        masks = sample["instances"] == numbers[:, None]
        labels = np.array([sample["labels"][mask].max() for mask in masks])
        yield sample["scene_id"], masks, labels


def save_instances(folder, scene_id, masks, labels, scores):
    folder.mkdir(exist_ok=True)
    np.savez(folder / f"{scene_id}.npz", masks=masks, labels=labels, scores=scores)


def raw_ids(labels, label_set):
    return [label_set.ids[label] if 0 <= label < len(label_set) else 0 for label in labels]


@pytest.mark.parametrize("label_set", [SCANNET20, SCANNET200], ids=str)
@pytest.mark.parametrize("ending", [".txt", ".npy", "_pred.npy", ".eval.npz"])
def test_semantic_files_of_any_format_score_like_the_arrays(ending, label_set, place, tmp_path):
    generator = np.random.default_rng(0)
    scores = SemanticScores(label_set)
    for sample in ScanNet(place, split="val", labels=label_set):
        # Draw 30 % of the labels anew, some of them no class.
        noise = generator.integers(-1, len(label_set) + 3, VERTICES)
        labels = np.where(generator.random(VERTICES) < 0.3, noise, sample["labels"])
        scores.add(labels, sample["labels"])
        path = tmp_path / f"{sample['scene_id']}{ending}"
        if ending == ".txt":
            unlabeled_id = -1 if label_set is SCANNET20 else 0
            numbers = [number or unlabeled_id for number in raw_ids(labels, label_set)]
            # As other programs write them: byte order mark, comment, CR LF, an empty line.
            text = "\r\n".join(["\ufeff# raw ids", *map(str, numbers), "", ""])
            path.write_text(text, newline="")
        elif ending == ".eval.npz":
            columns = np.where((labels >= 0) & (labels < len(label_set)), labels + 1, 0)
            # Scores may be whole numbers, such as votes.
            dtype = np.float32 if label_set is SCANNET20 else np.uint8
            np.savez(path, prob=np.eye(len(label_set) + 1, dtype=dtype)[columns])
        else:
            np.save(path, labels.astype(np.int16))
    words = ("--gt", place, "--label-set", label_set.name.lower(), "--force", "--json")

    report = run_main("evaluate", tmp_path, *words).json

    assert report["scores"] == asdict(scores.result())
    assert (report["splits"], report["scenes"], report["official"]) == (["val"], 3, 312)


def test_instances_of_any_format_score_like_the_arrays(place, tmp_path):
    generator = np.random.default_rng(0)
    expected = InstanceScores(SCANNET20)
    (tmp_path / "lists/pred_mask").mkdir(parents=True)
    for scene_id, true_masks, true_labels in true_instances(place):
        masks = true_masks ^ (generator.random(true_masks.shape) < 0.01)
        is_wrong = generator.random(len(masks)) < 0.1
        labels = np.where(is_wrong, generator.integers(0, 20, len(masks)), true_labels)
        prediction = InstancePrediction(masks, labels, generator.random(len(masks)).round(1))
        sample = ScanNet(place, split="val")[scene_id]
        truth = InstanceTruth(labels=sample["labels"], instances=sample["instances"])
        expected.add(prediction, truth)
        save_instances(tmp_path / "arrays", scene_id, *prediction)
        lines = []
        for number, (mask, label, score) in enumerate(zip(*prediction, strict=True)):
            name = f"pred_mask/{scene_id}_{number}.txt"
            # Any number but 0 is inside.
            np.savetxt(tmp_path / "lists" / name, mask * (1 + number % 2), fmt="%d")
            lines.append(f"{name} \t{raw_ids([label], SCANNET20)[0]}.00  {score}\r\n\r\n")
        (tmp_path / f"lists/{scene_id}.txt").write_text("\ufeff" + "".join(lines))
    table = expected.result()
    assert 0.1 < table.means["all"]["ap"] < 1

    def evaluate(name, key, value):
        """Compare with scenes that have this value in all places of an array."""
        scenes = [read_processed(path) for path in place.glob("val/*.npz")]
        for scene in scenes:
            getattr(scene, key)[:] = value
        words = (
            "--gt",
            write_processed(tmp_path / "truth", scenes),
            "--task",
            "instance",
            "--json",
        )
        return run_main(
            "evaluate", tmp_path / name, *words, "--force", "-o", tmp_path / "a.csv"
        ).json

    assert evaluate("lists", "segments", 0)["scores"] == asdict(table)
    # The class of an instance is that of its group, not of its vertices.
    assert evaluate("arrays", "nyu40_ids", 1)["scores"] == asdict(table)
    # The worst scene comes first.
    rows = pd.read_csv(tmp_path / "a.csv")
    assert rows.ap.is_monotonic_increasing
    assert [*rows.scene] != [*VAL]
    assert "(instances: 0, " in evaluate("arrays", "instances", -1)["message"]


def test_table_begins_with_the_worst_scene_and_missing_ones_are_allowed_by_option(place, folder):
    words = ("evaluate", folder, "--gt", place, "--force")
    all_scenes = run_main(*words, "-o", folder / "new/scores.csv")
    rows = pd.read_csv(folder / "new/scores.csv")
    (folder / f"{SCENE}.npy").rename(folder / "scene0025_00.npy")
    refused = run_main(*words)
    allowed = run_main(*words, "--allow-missing", "--splits", "val", "--splits", "train")
    for scene_id in VAL[1:]:
        (folder / f"{scene_id}.npy").unlink()
    empty = run_main(*words, "--allow-missing")

    assert [outcome.status for outcome in (all_scenes, refused, allowed, empty)] == [0, 1, 0, 1]
    assert [*rows.scene] == [VAL[1], VAL[2], VAL[0]]
    assert rows.over_union[2] == rows.over_ground_truth[2] == 1
    accuracy = np.average(rows.accuracy, weights=rows.vertices)
    assert f"accuracy {accuracy:.4f}" in all_scenes.stdout
    problem = f"error: {folder}: has no semantic predictions of {SCENE} (1 of 3)\n"
    assert f"{problem}hint: predict these scenes, or add --allow-missing" in refused.stderr
    assert "val, train: 2 of 1,513 scenes" in allowed.stdout
    assert f"warning: skipped without a prediction: 1 scene ({SCENE})" in allowed.stderr
    assert "not in the ground truth of val, train: 1 scene (scene0025_00)" in allowed.stderr
    assert "(3 of 3)\nhint: " in empty.stderr


TEXT, ARRAYS = f"{SCENE}.txt", f"{SCENE}.npz"
TRAIN_IDS, SCORES = f"{SCENE}.npy", f"{SCENE}.eval.npz"
NO_SCORES = "prob: found float64 (2500, 21), expected numbers (vertices, classes + 1)"
NO_NUMBER = "found '5.0', expected whole numbers, one per line\nhint: np.savetxt writes"
NO_SCORE = (
    "cannot be read as .npz: 'scores is not a file in the archive'\nhint: docs/evaluation.md lists"
)
NO_MASK = "expected a path, id and confidence"
FAULTS = [
    ("semantic", TEXT, b"1\n2\n", "prediction: found 2 vertices, expected 2,500"),
    # NumPy takes a sign at the end for 0.
    ("semantic", TEXT, b"1\n" * 2499 + b"-", "found '1\\n1\\n"),
    ("semantic", TRAIN_IDS, None, "is a link that leads nowhere"),
    ("semantic", TEXT, b"3\n5.0\n", NO_NUMBER),
    ("semantic", TRAIN_IDS, np.array([{}]), "cannot be read as .npy: Object arrays cannot be"),
    ("semantic", SCORES, {"prob": np.full((2500, 21), np.nan)}, NO_SCORES),
    ("semantic", SCORES, {"prob": np.zeros((2500, 20))}, "prob: found float64 (2500, 20), exp"),
    ("instance", TEXT, b"a.txt 5 nan\n", "scores: found float64 (1,), expected 1 finite numbers"),
    ("instance", TEXT, b"a.txt 5.5 1\n", f"found 'a.txt 5.5 1', {NO_MASK}"),
    (
        "instance",
        TEXT,
        b"a.txt 5 .5\n.//a.txt 6 .5",
        f"found './/a.txt 6 .5', {NO_MASK} of another mask",
    ),
    ("instance", TEXT, b"b.txt 5 0.5\n", "mask b.txt: found 2 vertices, expected 2,500"),
    ("instance", ARRAYS, {"masks": 1, "labels": [3]}, NO_SCORE),
    ("instance", ARRAYS, b"PK\3\4 cut off", "cannot be read as .npz: File is not a zip file"),
]


@pytest.mark.parametrize(("task", "name", "content", "problem"), FAULTS)
def test_damaged_prediction_is_named_with_its_content(
    task, name, content, problem, place, tmp_path
):
    # A whole mask, and one that is too short.
    (tmp_path / "a.txt").write_text("\n".join("1" * VERTICES))
    (tmp_path / "b.txt").write_text("1\n" * 2)
    if content is None:
        (tmp_path / name).symlink_to("nowhere")
    elif isinstance(content, bytes):
        (tmp_path / name).write_bytes(content)
    elif isinstance(content, dict):
        np.savez(tmp_path / name, **content)
    else:
        np.save(tmp_path / name, content)

    words = ("evaluate", tmp_path, "--gt", place, "--task", task, "--allow-missing")
    fail(1, f"error: {tmp_path / name}: {problem}", *words)


@pytest.mark.parametrize(
    ("words", "status", "problem"),
    [
        ("evaluate pred --class-agnostic", 2, "only instances are scored without classes"),
        ("evaluate twice", 2, f"twice: has {SCENE}.npy and {SCENE}_pred.npy, expected one"),
        ("evaluate mixed", 2, "has .txt files, which hold raw ids, and arrays"),
        (
            "evaluate pred --task instance",
            1,
            "skip them; a file name is a scene id, then .txt or .npz",
        ),
        ("evaluate missed", 1, "nothing can be scored (vertices:"),
        ("evaluate small --task instance", 1, "small: 3"),
        ("evaluate none --task instance", 1, "predictions: 0"),
        ("evaluate pred -o .", 1, "error: .: is not a regular file"),
    ],
)
def test_commands_that_cannot_be_carried_out_write_nothing(words, status, problem, place, folder):
    root = folder.parent
    shutil.copytree(folder, root / "twice")
    shutil.copy(folder / f"{SCENE}.npy", root / f"twice/{SCENE}_pred.npy")
    shutil.copytree(folder, root / "mixed")
    (root / "mixed/scene0025_00.txt").touch()
    (root / "missed").mkdir()
    for scene_id in VAL:
        np.save(root / f"missed/{scene_id}.npy", np.full(VERTICES, -1))
        save_instances(root / "small", scene_id, np.arange(VERTICES)[None] < 50, [5], [1.0])
        save_instances(root / "none", scene_id, [], [], [])
    before = sorted(root.rglob("*"))

    fail(status, problem, *words.split(), "--gt", place, cwd=root)
    assert sorted(root.rglob("*")) == before


def test_evaluate_and_view_name_the_numbering_of_instances_without_wall_and_floor(place, tmp_path):
    for scene_id, masks, labels in true_instances(place):
        counted = np.flatnonzero(labels > 1)
        scores = np.full(len(counted), 0.5)
        save_instances(tmp_path / "pred", scene_id, masks[counted], labels[counted] - 2, scores)
        save_instances(tmp_path / "one", scene_id, masks[counted], scores.astype(int) + 4, scores)
    options = ("--gt", place, "--task", "instance")

    name = "ScanNet20 classes counted without wall and floor"
    problem = f" as {name}\nhint: the ids are probably {name}: "

    outcome = fail(1, problem, "evaluate", tmp_path / "pred", *options)

    assert f"error: {tmp_path / 'pred'}: " in outcome.stderr
    forced = succeed("evaluate", tmp_path / "pred", *options, "--force")
    assert (
        "warning: read as ScanNet20 train ids, 0 of the compared vertices agree, but "
        in forced.stderr
    )
    # Masks alone are perfect in either numbering.
    agnostic = run_main("evaluate", tmp_path / "pred", *options, "--class-agnostic", "--json")
    assert agnostic.json["scores"]["means"]["all"]["ap"] == 1
    one_class = succeed("evaluate", tmp_path / "one", *options)
    note = "warning: all predictions have the class chair: --class-agnostic scores masks alone\n"
    assert one_class.stderr == note
    page = ("-o", tmp_path / "page.html", "--source", place, "--task", "instance")
    refused = run_main("view", SCENE, "--pred", tmp_path / "pred", *page)
    assert refused.stderr.startswith(f"error: {tmp_path / 'pred' / f'{SCENE}.npz'}: ")
    assert name in refused.stderr


@pytest.fixture(scope="module")
def submission_place(tmp_path_factory):
    """A processed folder of all test scenes, which have the same content."""
    one = make_processed(tmp_path_factory.mktemp("submission"), [TEST], vertices=500)
    scene = read_processed(one / f"test/{TEST}.npz")
    return write_processed(one.with_name("all"), copy_scene(scene, official_scenes("test")))


def test_submission_has_the_raw_ids_of_all_test_scenes_at_the_root_or_in_four_folders(
    submission_place, tmp_path
):
    # Train ids of ScanNet200 and, for as many vertices as walls, -1.
    train_ids = np.arange(500) % 23 - 1
    expected = "".join(f"{number}\n" for number in raw_ids(train_ids, SCANNET200))
    scene_ids = sorted(official_scenes(Split.TEST))
    (tmp_path / "pred").mkdir()
    for scene_id in [*scene_ids, SCENE]:
        np.save(tmp_path / f"pred/{scene_id}_pred.npy", train_ids)
    # One folder for each number of annotated points of the data-efficient benchmark.
    folders = ["100", "20", "200", "50"]
    for name in folders:
        shutil.copytree(tmp_path / "pred", tmp_path / "limited" / name)
    (tmp_path / "limited/logs").mkdir()
    # Pointcept writes its predictions once more, into a folder in the folder.
    (tmp_path / "pred/submit").mkdir()
    (tmp_path / f"pred/submit/{scene_ids[0]}.txt").touch()

    def submit(folder, place=submission_place, *options):
        words = ("--gt", place, "--label-set", "scannet200", "--force", "--json", *options)
        return run_main("submit", tmp_path / folder, *words, "-o", tmp_path / f"{folder}.zip")

    def read(folder):
        with zipfile.ZipFile(tmp_path / f"{folder}.zip") as archive:
            return {name: archive.read(name).decode() for name in archive.namelist()}

    outcome = submit("pred")
    assert (
        "warning: 2,200 vertices are wall, and 2,200 of no class; "
        "2,200 are floor, and 2,200 chair; expected more walls, and more floors\n" in outcome.stderr
    )
    assert read("pred") == dict.fromkeys([f"{name}.txt" for name in scene_ids], expected)
    report = submit("limited").json
    assert report["folders"] == [f"{name}/" for name in folders]
    assert (report["scenes"], report["masks"]) == (100, 0)
    assert report["left_out"] == {"scenes": 4, "unlabeled": 8_800}
    names = [f"{folder}/{name}.txt" for folder in folders for name in scene_ids]
    assert read("limited") == dict.fromkeys(names, expected)
    assert submit("limited", submission_place, "--min-score", "0").status == 2
    # All scenes but one.
    (tmp_path / f"pred/{scene_ids[0]}_pred.npy").unlink()
    assert f": has predictions in {tmp_path}/pred, {tmp_path}/pred/submit" in submit("pred").stderr

    (tmp_path / "limited.zip").unlink()
    path = tmp_path / "limited/20/scene0707_00_pred.npy"

    def check_refused(status, problem, place=submission_place):
        outcome = submit("limited", place)
        assert outcome.status == status
        assert problem in outcome.stderr
        assert not (tmp_path / "limited.zip").exists()

    np.save(path, train_ids[1:])
    check_refused(1, f"{path}: prediction: found 499 vertices, expected 500")
    problem = f"{path.parent}: has no semantic predictions of scene0707_00 (1 of 100)"
    renamed = path.rename(path.with_name("SCENE0707_00.npy"))
    check_refused(1, f"{problem}\nhint: ")
    problem = f"processed: has no scene {official_scenes(Split.TEST)[1]} and 98 more in test"
    check_refused(2, problem, submission_place.with_name("processed"))
    # In a fifth folder.
    renamed.rename(tmp_path / "limited/logs/scene0707_00.npy")
    check_refused(1, f"has predictions in {tmp_path}/limited/100, {tmp_path}/limited/20, ")


def test_submission_of_instances_has_those_that_count(submission_place, tmp_path):
    path = tmp_path / "a.zip"
    words = ("--gt", submission_place, "--task", "instance", "-o", path)

    def submit(sizes, labels, scores, *more_words):
        masks = np.arange(500) < np.array(sizes)[:, None]
        for scene_id in official_scenes(Split.TEST):
            save_instances(tmp_path / "pred", scene_id, masks, labels, scores)
        return run_main("submit", tmp_path / "pred", *words, *more_words)

    # Without wall and floor, from 0: an instance network predicts none of these two.
    outcome = submit([500] * 18, np.arange(18), [1.0] * 18)
    assert outcome.status == 1
    assert "200 of 1,800 instances are wall or floor" in outcome.stderr
    assert not path.exists()
    # Negative confidences are kept, unless there is a limit.
    negative = ([500] * 18, np.arange(2, 20), [-2.5] * 18)
    outcome = submit(*negative, "--min-score", "0")
    assert outcome.status == 1
    assert "no mask (left out: {'score': 1800})" in outcome.stderr
    report = submit(*negative, "--json").json
    assert (report["masks"], report["left_out"]) == (1800, {})

    scores = (0.5, 0.9, 0.001, 0.9, 0.25)
    options = ("--min-score", "0.25", "--force", "--json")
    report = submit((100, 99, 300, 300, 300), [2, 2, 3, 1, 19], scores, *options).json

    assert report["left_out"] == {"small": 100, "score": 100, "other": 100}
    assert (report["scenes"], report["masks"]) == (100, 200)
    unpacked = tmp_path / "unpacked"
    shutil.unpack_archive(path, unpacked)
    total = sum(file.stat().st_size for file in unpacked.rglob("*.txt"))
    assert report["size_bytes"] < report["unpacked_bytes"] == total
    assert (unpacked / "scene0707_00.txt").read_text().splitlines() == [
        f"pred_mask/scene0707_00_000.txt {SCANNET20.ids[2]} 0.5",
        f"pred_mask/scene0707_00_001.txt {SCANNET20.ids[19]} 0.25",
    ]
    assert (unpacked / "pred_mask/scene0707_00_000.txt").read_text() == "1\n" * 100 + "0\n" * 400
    # What was unpacked can be submitted again.
    report = run_main("submit", unpacked, *words, *options).json
    assert (report["masks"], report["left_out"]) == (200, {})
