"""What `info` says is what the scenes hold."""

import json
import os
import shutil
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from verifying import Verify

from scannet_prep import ScanNet
from scannet_prep.cli.main import main
from scannet_prep.errors import ManifestError
from scannet_prep.labels import LABEL_MAP_NAME, SCANNET20, SCANNET200
from scannet_prep.processed.scene import ProcessedScene, read_processed
from scannet_prep.synthetic import SyntheticScene, make_scene, write_release, write_scene

TRAIN, VAL, TEST = ("scene0000_00", "scene0001_00"), "scene0011_00", "scene0707_00"
SCENES = (*TRAIN, VAL, TEST)


@pytest.fixture(scope="session")
def synthetic(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[SyntheticScene]]:
    directory = tmp_path_factory.mktemp("info")
    scenes = write_release(directory / "raw", SCENES, vertices=600, irregular=[TRAIN[1]])
    argv = ["process", str(directory / "raw"), "-o", str(directory / "processed"), "--scannet200", "-q", "--jobs", "1"]
    assert main(argv) == 0
    return directory, scenes


@pytest.fixture
def raw_dir(synthetic: tuple[Path, list[SyntheticScene]], tmp_path: Path) -> Path:
    return Path(shutil.copytree(synthetic[0] / "raw", tmp_path / "raw"))


@pytest.fixture
def out_dir(synthetic: tuple[Path, list[SyntheticScene]], tmp_path: Path) -> Path:
    return Path(shutil.copytree(synthetic[0] / "processed", tmp_path / "processed"))


class Info:
    """Runs the command and gives exit status and what it says."""

    def __init__(self, capsys: pytest.CaptureFixture[str]) -> None:
        self._capsys = capsys
        self.errors = ""

    def _run(self, path: Path, *arguments: str) -> tuple[int, str]:
        self._capsys.readouterr()
        status = main(["info", str(path), "--jobs", "1", *arguments])
        captured = self._capsys.readouterr()
        self.errors = captured.err
        return status, captured.out

    def json(self, path: Path) -> tuple[int, dict[str, Any]]:
        status, output = self._run(path, "--json")
        assert len(output.splitlines()) == 1
        value: dict[str, Any] = json.loads(output)
        assert value["exit_status"] == status
        return status, value

    def text(self, path: Path, *arguments: str, expected_status: int = 0) -> list[str]:
        status, output = self._run(path, *arguments)
        assert status == expected_status
        return output.splitlines()


@pytest.fixture
def info(capsys: pytest.CaptureFixture[str]) -> Info:
    return Info(capsys)


def annotated_scenes(out_dir: Path) -> list[ProcessedScene]:
    return [read_processed(path) for path in (*out_dir.glob("train/*.npz"), *out_dir.glob("val/*.npz"))]


def check_classes(label_sets: dict[str, Any], scenes: list[ProcessedScene]) -> None:
    """Compare the class tables with counts made scene by scene and class by class."""
    for label_set, key in ((SCANNET20, "nyu40_ids"), (SCANNET200, "scannet_ids")):
        table = label_sets[label_set.name]
        labels = [label_set.labels_from_raw_ids(getattr(scene, key)) for scene in scenes]
        total = sum(map(len, labels))
        assert (table["scenes"], table["vertices"]) == (len(scenes), total)
        assert len(table["classes"]) == len(label_set)
        assert sum(row["vertices"] for row in table["classes"]) > 0
        for expected, row in zip(label_set.classes, table["classes"], strict=True):
            counts = [int((found == expected.train_id + 1).sum()) for found in labels]
            assert (row["train_id"], row["raw_id"]) == (expected.train_id, expected.raw_id)
            assert (row["name"], row["frequency"]) == (expected.name, expected.frequency)
            assert (row["vertices"], row["scenes"]) == (sum(counts), sum(count > 0 for count in counts))
            assert row["share"] == pytest.approx(sum(counts) / total, abs=1e-7)
        unlabeled = [int((found == 0).sum()) for found in labels]
        found = table["unlabeled"]["vertices"], table["unlabeled"]["scenes"]
        assert found == (sum(unlabeled), sum(count > 0 for count in unlabeled))


# Processed trees


def test_processed_tree_is_described_by_its_manifest_alone(out_dir: Path, info: Info) -> None:
    scenes = annotated_scenes(out_dir)
    sizes = {
        split: sum(path.stat().st_size for path in (out_dir / split).iterdir()) for split in ("train", "val", "test")
    }
    for path in out_dir.glob("*/*.npz"):
        path.write_bytes(b"")  # nobody looks
    status, value = info.json(out_dir)
    assert status == 0
    assert (value["kind"], value["has_manifest"], value["is_complete"]) == ("processed", True, True)
    assert value["splits"] == {
        "train": {"scenes": 2, "vertices": 1200, "size_bytes": sizes["train"]},
        "val": {"scenes": 1, "vertices": 600, "size_bytes": sizes["val"]},
        "test": {"scenes": 1, "vertices": 600, "size_bytes": sizes["test"]},
        "all": {"scenes": 4, "vertices": 2400, "size_bytes": sum(sizes.values())},
    }
    options = {"scannet200": True, "align_axis": False, "faces": False, "labels_from": "aggregation"}
    assert value["options"] == [{"options": options, "scenes": 4}]
    assert value["program_versions"]
    assert [(item["kind"], item["scenes"]) for item in value["warnings"]] == [("repeated_groups", [TRAIN[1]])]
    assert (value["failures"], value["unreadable"]) == ([], [])
    check_classes(value["label_sets"], scenes)


@pytest.mark.parametrize("damage", [None, "{}"])
def test_without_a_manifest_the_files_say_the_same(out_dir: Path, info: Info, damage: str | None) -> None:
    _, expected = info.json(out_dir)
    (out_dir / "manifest.json").unlink()
    if damage is not None:
        (out_dir / "manifest.json").write_text(damage)
    status, value = info.json(out_dir)
    assert status == (0 if damage is None else 3)
    assert [item["path"] for item in value["unreadable"]] == (
        [] if damage is None else [str(out_dir / "manifest.json")]
    )
    assert (value["has_manifest"], value["is_complete"]) == (False, None)
    changing = {"has_manifest", "is_complete", "exit_status", "unreadable"}
    assert {key: value[key] for key in value.keys() - changing} == {
        key: expected[key] for key in value.keys() - changing
    }


def test_scene_file_that_cannot_be_read_is_listed(out_dir: Path, info: Info) -> None:
    (out_dir / "manifest.json").unlink()
    path = out_dir / "train" / f"{TRAIN[0]}.npz"
    os.truncate(path, 5000)
    status, value = info.json(out_dir)
    assert status == 3
    assert [(item["scene_id"], item["path"]) for item in value["unreadable"]] == [(TRAIN[0], str(path))]
    assert "truncated" in value["unreadable"][0]["message"]
    assert value["splits"]["train"]["scenes"] == 1
    assert str(path) in info.errors
    assert "Traceback" not in info.errors


def test_scenes_that_failed_and_a_run_that_has_not_ended_are_told(raw_dir: Path, tmp_path: Path, info: Info) -> None:
    (raw_dir / "scans" / VAL / f"{VAL}_vh_clean_2.ply").write_bytes(b"")
    assert main(["process", str(raw_dir), "-o", str(tmp_path / "out"), "-q", "--jobs", "1"]) == 3
    path = tmp_path / "out" / "manifest.json"
    path.write_text(path.read_text().replace('"complete": true', '"complete": false'))
    status, value = info.json(tmp_path / "out")
    assert status == 3
    assert value["is_complete"] is False
    assert [item["scene_id"] for item in value["failures"]] == [VAL]
    text = "\n".join(info.text(tmp_path / "out", expected_status=3))
    assert "processing has not finished" in info.errors
    assert "scenes failed: 1" in text
    assert "empty" in text


def test_different_options_are_told_with_their_numbers_of_scenes(raw_dir: Path, out_dir: Path, info: Info) -> None:
    options = ["--align-axis", "--faces", "--scenes", VAL, "-q", "--jobs", "1"]
    assert main(["process", str(raw_dir), "-o", str(out_dir), *options]) == 0
    lines = info.text(out_dir, expected_status=3)
    assert "different options" in info.errors
    assert "labels: ScanNet200 from aggregation, frame of the scan, without faces; scenes: 3" in lines
    assert "labels: ScanNet20 from aggregation, axis-aligned, with faces; scenes: 1" in lines


@pytest.mark.parametrize("fault", ["unfinished", "incomplete", "mixed", "damaged manifest"])
def test_unusable_folder_is_told_alike_by_info_verify_and_the_dataset(
    raw_dir: Path, out_dir: Path, info: Info, verify: Verify, fault: str
) -> None:
    path = out_dir / "manifest.json"
    if fault == "unfinished":
        (out_dir / "unfinished.txt").touch()
    elif fault == "incomplete":
        path.write_text(path.read_text().replace('"complete": true', '"complete": false'))
    elif fault == "damaged manifest":
        path.write_text(path.read_text().replace('"complete": true', '"complete": "false"'))
    else:
        path.write_text(path.read_text().replace('"align_axis": false', '"align_axis": true', 1))
    with pytest.raises(ManifestError) as caught:
        ScanNet(out_dir, split="train")
    status, value = info.json(out_dir)
    assert status == 3
    assert caught.value.problem in [item["message"] for item in value["unreadable"]]
    status, findings = verify(out_dir)
    assert status == 3
    assert caught.value.problem in [item[3] for item in findings]


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ('"vertices": 600', '"vertices": 0'),
        ('"vertices": 600', '"vertices": Infinity'),
        ('"vertices": 600', '"vertices": 1e400'),
        ('"vertices": 600', '"vertices": ' + 5000 * "9"),
        ('"split": "train"', '"split": ["train"]'),
        ('"options": {', '"options": [], "more": {'),
        ('"warnings": []', '"warnings": {}'),
        ('"failures": {}', '"failures": {"scene0000_00": []}'),
    ],
)
def test_odd_manifest_is_an_error_of_the_manifest(
    out_dir: Path, info: Info, verify: Verify, old: str, new: str
) -> None:
    path = out_dir / "manifest.json"
    text = path.read_text()
    assert old in text
    path.write_text(text.replace(old, new, 1))
    status, value = info.json(out_dir)
    assert (status, value["has_manifest"]) == (3, False)
    assert [item["path"] for item in value["unreadable"]] == [str(path)]
    assert (verify(out_dir)[0], verify.value["findings"][0]["path"]) == (3, str(path))


# Raw trees


def test_raw_tree_is_counted_by_split_file_and_class(
    raw_dir: Path, out_dir: Path, info: Info, synthetic: tuple[Path, list[SyntheticScene]]
) -> None:
    status, value = info.json(raw_dir)
    assert status == 0
    assert (value["kind"], value["label_map"]) == ("raw", str(raw_dir / LABEL_MAP_NAME))
    faces = {scene.scene_id: len(scene.faces) for scene in synthetic[1]}
    # scene0001_00 lists every group twice.
    groups = {scene.scene_id: len({group.segments for group in scene.groups}) for scene in synthetic[1]}
    train = {"scenes": 2, "annotated": 2, "vertices": 1200, "faces": sum(faces[name] for name in TRAIN)}
    del value["splits"]["all"]
    assert value["splits"] == {
        "train": {**train, "groups": sum(groups[name] for name in TRAIN)},
        "val": {"scenes": 1, "annotated": 1, "vertices": 600, "faces": faces[VAL], "groups": groups[VAL]},
        "test": {"scenes": 1, "annotated": 0, "vertices": 600, "faces": faces[TEST], "groups": 0},
    }
    sizes: Counter[str] = Counter()
    for path in raw_dir.glob("scans*/*/*"):
        sizes[path.name[len(path.parent.name) :]] += path.stat().st_size
    assert {name: item["size_bytes"] for name, item in value["files"].items()} == sizes
    assert value["files"]["_vh_clean_2.ply"]["files"] == 4
    assert value["files"]["_vh_clean_2.labels.ply"]["files"] == 3
    check_classes(value["label_sets"], annotated_scenes(out_dir))


def test_scenes_without_annotation_and_without_a_split_are_counted_apart(raw_dir: Path, info: Info) -> None:
    (raw_dir / "scans" / VAL / f"{VAL}.aggregation.json").unlink()
    write_scene(make_scene("scene0900_00", vertices=600), raw_dir)
    status, value = info.json(raw_dir)
    assert status == 0
    assert (value["splits"]["val"]["scenes"], value["splits"]["val"]["annotated"]) == (1, 0)
    assert (value["splits"]["none"]["scenes"], value["splits"]["none"]["annotated"]) == (1, 1)


@pytest.mark.parametrize(
    ("suffix", "content", "words"),
    [
        ("_vh_clean_2.ply", b"", "empty"),
        ("_vh_clean_2.0.010000.segs.json", b"{", "JSON"),
        ("_vh_clean_2.0.010000.segs.json", b'{"segIndices": [1, 1]}', "is for 2 vertices"),
        (".aggregation.json", b"{}", "segGroups is None"),
    ],
)
def test_scenes_that_cannot_be_read_are_listed(
    raw_dir: Path, info: Info, suffix: str, content: bytes, words: str
) -> None:
    (raw_dir / "scans" / VAL / f"{VAL}{suffix}").write_bytes(content)
    status, value = info.json(raw_dir)
    assert status == 3
    assert [item["scene_id"] for item in value["unreadable"]] == [VAL]
    assert words in value["unreadable"][0]["message"]
    assert value["splits"]["val"]["annotated"] == 0
    assert value["splits"]["train"]["annotated"] == 2
    assert "Traceback" not in info.errors


def test_damaged_label_map_is_told_and_the_built_in_one_used(raw_dir: Path, info: Info) -> None:
    _, expected = info.json(raw_dir)
    (raw_dir / LABEL_MAP_NAME).write_bytes(b"\xff")
    status, value = info.json(raw_dir)
    assert status == 3
    assert [item["path"] for item in value["unreadable"]] == [str(raw_dir / LABEL_MAP_NAME)]
    assert value["label_map"] == "the built-in label map"
    assert value["label_sets"] == expected["label_sets"]


def test_groups_of_the_high_resolution_mesh_count_only_if_their_segments_are_there(raw_dir: Path, info: Info) -> None:
    _, expected = info.json(raw_dir)
    path = raw_dir / "scans" / VAL / f"{VAL}_vh_clean.aggregation.json"
    (raw_dir / "scans" / VAL / f"{VAL}.aggregation.json").rename(path)
    status, value = info.json(raw_dir)
    assert status == 0
    assert value["label_sets"] == expected["label_sets"]
    content = json.loads(path.read_text())
    content["segGroups"][0]["segments"].append(1_000_000)
    path.write_text(json.dumps(content))
    status, value = info.json(raw_dir)
    assert status == 3
    assert "high-resolution mesh: 1 of its segment ids" in value["unreadable"][0]["message"]


def test_scene_folder_that_is_a_dangling_link_is_listed(raw_dir: Path, info: Info) -> None:
    (raw_dir / "scans" / "scene0002_00").symlink_to("nowhere")
    status, value = info.json(raw_dir)
    assert (status, value["splits"]["all"]["scenes"]) == (3, len(SCENES))
    assert [item["scene_id"] for item in value["unreadable"]] == ["scene0002_00"]


# The command


@pytest.mark.parametrize("command", ["verify", "info", "process"])
def test_path_inside_a_tree_gives_a_hint_to_the_folder_above(
    command: str, raw_dir: Path, out_dir: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "x.gz").write_bytes(b"\x1f\x8b")
    cases = [
        (raw_dir / "scans" / VAL, f"{raw_dir / 'scans'} --scenes {VAL}"),
        (out_dir / "train", f"{out_dir} --splits train"),
        (tmp_path / "x.gz", "give the folder"),
    ]
    for path, hint in cases:
        output = ["-o", str(tmp_path / "new")] if command == "process" else []
        assert main([command, str(path), *output]) == 1
        errors = capsys.readouterr().err
        assert errors.startswith(f"error: {path}: ")
        assert hint in errors


@pytest.mark.parametrize("kind", ["raw", "processed"])
@pytest.mark.parametrize("columns", [100, 60])
def test_tables_of_train_ids_fit_the_terminal(
    raw_dir: Path, out_dir: Path, info: Info, kind: str, columns: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", str(columns))
    path = raw_dir if kind == "raw" else out_dir
    _, value = info.json(path)
    lines, all_lines = info.text(path), info.text(path, "-v")
    # The first line has the path, which may be long.
    tables = [line for line in all_lines[1:] if "  " in line]
    assert max(map(len, tables)) <= columns
    if columns == 60:
        return
    for name, table in value["label_sets"].items():
        (start,) = [index for index, line in enumerate(lines) if line.startswith(f"{name}: ")]
        occurring = [row for row in table["classes"] if row["vertices"]]
        assert 0 < len(occurring) < len(table["classes"])
        rows = lines[start + 3 : start + 3 + len(occurring) + 1]
        for row, line in zip(occurring, rows, strict=False):
            assert line.split()[0] == str(row["train_id"])
            assert row["name"] in line
            assert f"{row['vertices']:,}" in line
        assert rows[-1].split()[:2] == ["-", "(unlabeled)"]
    assert len(all_lines) - len(lines) == sum(
        not row["vertices"] for table in value["label_sets"].values() for row in table["classes"]
    )
    assert any(line.endswith(" head") for line in lines)


@pytest.mark.parametrize("kind", ["raw", "processed"])
def test_scenes_lists_the_ids_one_a_line(raw_dir: Path, out_dir: Path, info: Info, kind: str) -> None:
    path = raw_dir if kind == "raw" else out_dir
    assert info.text(path, "--scenes") == sorted(SCENES)
    assert info.json(path)[1]["scene_ids"] == sorted(SCENES)


def test_path_without_scenes_stops_info_with_a_hint(tmp_path: Path, info: Info) -> None:
    status, value = info.json(tmp_path / "nowhere")
    assert (status, value["error"]) == (1, "MissingFileError")
    assert value["hint"]


def test_number_of_workers_changes_nothing_in_info(raw_dir: Path) -> None:
    (raw_dir / "scans" / VAL / f"{VAL}_vh_clean_2.ply").unlink()
    outputs = []
    for jobs in ("1", "3"):
        argv = [sys.executable, "-m", "scannet_prep", "info", str(raw_dir), "--json", "--jobs", jobs]
        result = subprocess.run(argv, capture_output=True, text=True, check=False)
        assert result.returncode == 3, result.stderr
        assert "Traceback" not in result.stderr
        outputs.append(json.loads(result.stdout))
    assert outputs[0] == outputs[1]


def test_file_of_another_program_does_not_stop_info(out_dir: Path, info: Info) -> None:
    (out_dir / "manifest.json").unlink()
    np.savez(out_dir / "val" / f"{VAL}.npz", points=np.zeros((3, 3)))
    status, value = info.json(out_dir)
    assert status == 3
    assert value["splits"]["all"]["scenes"] == 3
