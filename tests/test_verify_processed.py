"""Tests of `verify` on processed folders, and of the command as a whole."""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
from archives import flip
from commands import (
    TEST,
    TRAIN,
    VAL,
    Outcome,
    Verify,
    check_one,
    check_or_die,
    edit_json,
    raw_file,
    relative,
    run_main,
)

from scannet_prep import official_scenes
from scannet_prep.base.files import Fingerprint
from scannet_prep.base.json import to_plain
from scannet_prep.processed.manifest import SceneEntry
from scannet_prep.processed.scene import encode_processed, read_processed
from scannet_prep.release.files import INFO, MESH, SEGMENTS
from scannet_prep.release.scene import SceneId
from scannet_prep.stages.scene_checks import CheckTask, Inspection
from scannet_prep.synthetic import write_release

OTHER = str(official_scenes("train")[-1])

FoundFindings = dict[str, list[dict[str, Any]]]


# Damage to one scene of a processed folder.


class Damage(NamedTuple):
    """Damage to a scene, and the finding that it causes.

    Attributes:
        apply: Damages a scene, given the folder and the scene id.
        pattern: Matches the message of the finding.
        split: The folder of the file that the finding names.
    """

    apply: Callable[[Path, str], object]
    pattern: str
    split: str = "train"


def scene_file(out_dir: Path, scene_id: str, split: str = "train") -> Path:
    return out_dir / split / f"{scene_id}.npz"


def edit_array(key: str, change: Callable[[Any], object]) -> Callable[[Path, str], None]:
    """Change one array of a scene, with the record that belongs to the changed file."""

    def apply(out_dir: Path, scene_id: str) -> None:
        path = scene_file(out_dir, scene_id)
        scene = read_processed(path)
        array = getattr(scene, key).copy()
        change(array)
        scene = replace(scene, **{key: array})
        data = b"".join(map(bytes, encode_processed(scene)))
        path.write_bytes(data)
        entry = to_plain(SceneEntry.from_scene(scene, Fingerprint.from_bytes(data)))
        edit_json(
            out_dir / "manifest.json", lambda value: value["scenes"].update({scene_id: entry})
        )

    return apply


def edit_entry(**changes: object) -> Callable[[Path, str], None]:
    """Change the record of a scene in the manifest."""

    def apply(out_dir: Path, scene_id: str) -> None:
        edit_json(
            out_dir / "manifest.json", lambda value: value["scenes"][scene_id].update(changes)
        )

    return apply


def set_one_point_to_nan(points: np.ndarray) -> None:
    points[5] = np.nan


def shorten_one_normal(normals: np.ndarray) -> None:
    normals[5] = 0.5


def change_one_label(labels: np.ndarray) -> None:
    labels[5] ^= 1


def add_instance_without_group(instances: np.ndarray) -> None:
    instances[instances.argmax()] = 32_000


def flip_one_bit(out_dir: Path, scene_id: str) -> None:
    flip(scene_file(out_dir, scene_id), 3000)


def truncate(out_dir: Path, scene_id: str) -> None:
    os.truncate(scene_file(out_dir, scene_id), 5000)


def write_foreign_file(out_dir: Path, scene_id: str) -> None:
    np.savez(scene_file(out_dir, scene_id), points=np.zeros((3, 3)))


def copy_other_scene(out_dir: Path, scene_id: str) -> None:
    shutil.copy(scene_file(out_dir, OTHER), scene_file(out_dir, scene_id))


def move_to_val(out_dir: Path, scene_id: str) -> None:
    scene_file(out_dir, scene_id).rename(scene_file(out_dir, scene_id, "val"))


def copy_to_val(out_dir: Path, scene_id: str) -> None:
    shutil.copy(scene_file(out_dir, scene_id), scene_file(out_dir, scene_id, "val"))


def remove_entry(out_dir: Path, scene_id: str) -> None:
    edit_json(out_dir / "manifest.json", lambda value: value["scenes"].pop(scene_id))


def remove_file(out_dir: Path, scene_id: str) -> None:
    scene_file(out_dir, scene_id).unlink()


DAMAGES = {
    "point that is NaN": Damage(
        edit_array("points", set_one_point_to_nan), "points are not all finite"
    ),
    "normal that is too short": Damage(
        edit_array("normals", shorten_one_normal), "normals of 1 vertices"
    ),
    "label of another class": Damage(
        edit_array("stored_labels", change_one_label),
        "labels disagree with the raw ids at 1 vertices",
    ),
    "instance without a group": Damage(
        edit_array("instances", add_instance_without_group), "instances hold 32000, which is no"
    ),
    "flipped bit in an array": Damage(flip_one_bit, "'points' is damaged.*CRC-32"),
    "truncated file": Damage(truncate, "is truncated"),
    "file of another program": Damage(write_foreign_file, "has no array"),
    "file of another scene": Damage(copy_other_scene, f"holds '{OTHER}'"),
    "scene in the folder of another split": Damage(
        move_to_val, "is not in the manifest as a val scene", split="val"
    ),
    "scene in the folders of two splits": Damage(
        copy_to_val, "is not in the manifest as a val scene", split="val"
    ),
    "scene without an entry": Damage(remove_entry, "is not in the manifest"),
    "missing file": Damage(remove_file, "no such file, though the manifest names it"),
    "entry with another vertex count": Damage(
        edit_entry(vertices=601, nyu40_counts={"0": 601}, scannet_counts={"0": 601}), "600.*601"
    ),
    "entry with other nyu40 ids": Damage(edit_entry(nyu40_counts={"0": 600}), "nyu40 counts"),
    "entry of another file": Damage(edit_entry(size_bytes=1), "size bytes"),
}


@pytest.fixture(scope="module")
def findings_by_damage(tmp_path_factory: pytest.TempPathFactory) -> FoundFindings:
    """The findings of each damage, where each is applied to a scene of its own."""
    directory = tmp_path_factory.mktemp("damaged")
    out_dir = directory / "out"
    scene_ids = dict(zip(DAMAGES, map(str, official_scenes("train")), strict=False))
    write_release(directory / "raw", [*scene_ids.values(), OTHER, VAL], vertices=600)
    assert run_main("process", directory / "raw", "-o", out_dir).status == 0
    for name, scene_id in scene_ids.items():
        DAMAGES[name].apply(out_dir, scene_id)

    outcome = run_main("verify", out_dir, "--json", "--limit", "1000")

    assert outcome.status == 3
    findings = {name: [] for name in DAMAGES}
    names = {scene_id: name for name, scene_id in scene_ids.items()}
    for finding in outcome.json["findings"]:
        findings[names[finding["scene_id"]]].append(finding)
    return findings


@pytest.mark.parametrize("name", DAMAGES)
def test_damage_to_a_processed_scene_is_one_error(
    findings_by_damage: FoundFindings, name: str
) -> None:
    damage = DAMAGES[name]
    (finding,) = findings_by_damage[name]

    assert finding["severity"] == "error"
    assert finding["path"].endswith(f"out/{damage.split}/{finding['scene_id']}.npz")
    assert re.search(damage.pattern, finding["message"])


# Processed folders as a whole.


@pytest.fixture(
    scope="module", params=["--labels-from ply", "--scannet200 --align-axis --faces"], ids=str
)
def made_dir(
    request: pytest.FixtureRequest, whole_dir: Path, tmp_path_factory: pytest.TempPathFactory
) -> Path:
    """A folder made with other options; not to be changed."""
    out_dir = tmp_path_factory.mktemp("made") / "out"
    options = request.param.split()
    assert run_main("process", whole_dir / "raw", "-o", out_dir, *options).status == 0
    return out_dir


def test_output_of_process_has_no_findings(made_dir: Path, verify: Verify) -> None:
    assert verify(made_dir) == (0, [])


def test_verify_counts_scenes_vertices_and_bytes_of_a_folder(
    made_dir: Path, verify: Verify
) -> None:
    verify(made_dir)

    expected = {
        "kind": "processed",
        "scenes": 3,
        "vertices": 1800,
        "size_bytes": sum(path.stat().st_size for path in made_dir.glob("*/*.npz")),
    }
    assert {key: verify.value[key] for key in expected} == expected


@pytest.fixture
def failed_dir(raw_dir: Path, out_dir: Path) -> Path:
    """A processed folder of a run in which one scene failed."""
    raw_file(raw_dir, MESH.suffix).write_bytes(b"")
    assert run_main("process", raw_dir, "-o", out_dir).status == 3
    return out_dir


def test_scene_that_failed_in_processing_is_an_error(failed_dir: Path, verify: Verify) -> None:
    check_one(verify(failed_dir), "error", TRAIN, "manifest.json", "this scene failed", "empty")


def test_missing_manifest_is_an_error(failed_dir: Path, verify: Verify) -> None:
    (failed_dir / "manifest.json").unlink()
    _, findings = verify(failed_dir)

    assert ("error", "", "manifest.json", "no such file") in findings


def find_error(verify: Verify) -> dict[str, Any]:
    """Return the only error of the last check."""
    findings = verify.value["findings"]
    (error,) = [finding for finding in findings if finding["severity"] == "error"]
    return error


def test_unlisted_scene_is_an_error_with_the_command_to_remove_it(
    out_dir: Path, verify: Verify
) -> None:
    path = out_dir / "train/scene0002_00.npz"
    shutil.copy(out_dir / f"train/{TRAIN}.npz", path)

    status, _ = verify(out_dir)

    error = find_error(verify)
    assert status == 3
    assert error["scene_id"] == "scene0002_00"
    assert error["hint"] == f"remove it: rm {path}"


def test_damaged_scene_is_an_error_with_the_hint_to_make_it_again(
    out_dir: Path, verify: Verify
) -> None:
    os.truncate(out_dir / f"train/{TRAIN}.npz", 5000)

    verify(out_dir)

    assert "process again" in find_error(verify)["hint"]


# The text of the command.


@pytest.fixture
def incomplete_dir(raw_dir: Path) -> Path:
    """A raw tree in which one file is missing."""
    raw_file(raw_dir, INFO.suffix, TEST).unlink()
    return raw_dir


@pytest.fixture
def incomplete_outcome(incomplete_dir: Path) -> Outcome:
    return run_main("verify", incomplete_dir)


def test_verify_prints_errors_first_with_hints(incomplete_outcome: Outcome) -> None:
    lines = incomplete_outcome.stdout.splitlines()

    assert incomplete_outcome.status == 3
    assert lines[0] == f"error: {relative(TEST, INFO.suffix)}: no such file"
    assert "hint: download it: every test scene has one" in lines


def test_verify_prints_the_command_that_downloads_again(
    incomplete_outcome: Outcome, incomplete_dir: Path
) -> None:
    command = f"scannet-prep download --types seg -o {incomplete_dir}"
    assert command in incomplete_outcome.stdout


def test_verify_prints_the_counts_last(incomplete_outcome: Outcome) -> None:
    *_, summary, counts = incomplete_outcome.stdout.splitlines()

    assert "train 1 of 1,201, val 1 of 312, test 1 of 100" in summary
    assert counts == "1 error, 3 notes"


def test_quiet_verify_prints_errors_on_standard_error_only(incomplete_dir: Path) -> None:
    outcome = run_main("verify", incomplete_dir, "-q")

    path = raw_file(incomplete_dir, INFO.suffix, TEST)
    assert outcome.status == 3
    assert outcome.stdout == ""
    assert outcome.stderr.splitlines()[0] == f"error: {path}: no such file"


# Worker processes.


def test_killed_worker_becomes_a_finding_of_its_scene(tmp_path: Path) -> None:
    tasks = [CheckTask(SceneId(name), tmp_path / name) for name in (TRAIN, VAL, TEST)]
    inspection = Inspection("check", jobs=2)

    results = inspection.check_scenes(check_or_die, tasks, VAL)

    (finding,) = inspection.findings.found
    assert results == {SceneId(name): name for name in (TRAIN, TEST)}
    assert finding.scene_id == VAL
    assert finding.place == str(tmp_path / VAL)
    assert "its process ended with status -9" in finding.message


def test_report_of_verify_is_identical_for_any_number_of_workers(raw_dir: Path) -> None:
    raw_file(raw_dir, MESH.suffix).write_bytes(b"")
    raw_file(raw_dir, SEGMENTS.suffix, VAL).unlink()

    one = run_main("verify", raw_dir, "--json", "--jobs", "1")
    two = run_main("verify", raw_dir, "--json", "--jobs", "2")

    assert one.status == 3
    assert one.json | {"seconds": 0} == two.json | {"seconds": 0}
