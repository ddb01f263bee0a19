"""Every kind of damage to a processed folder gives exactly its finding; and the command as such."""

import os
import re
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from archives import flip
from commands import (
    TEST,
    TRAIN,
    VAL,
    Verify,
    check_one,
    edit_json,
    look_or_die,
    raw_file,
    relative,
    run_main,
)

from scannet_prep import official_scenes
from scannet_prep.base.files import Fingerprint
from scannet_prep.base.typed_json import to_plain
from scannet_prep.processed.manifest import SceneEntry
from scannet_prep.processed.scene import encode_processed, read_processed
from scannet_prep.release.files import INFO, MESH, SEGMENTS
from scannet_prep.release.scene import SceneId
from scannet_prep.stages.finding import CheckTask, Findings, look_at_scenes
from scannet_prep.synthetic import write_release

OTHER = str(official_scenes("train")[-1])
# Given the processed folder and the scene.
Damage = Callable[[Path, str], object]


def npz(out_dir: Path, scene_id: str = TRAIN, split: str = "train") -> Path:
    return out_dir / split / f"{scene_id}.npz"


def edit_entry(**changes: object) -> Damage:
    return lambda out_dir, scene_id: edit_json(
        out_dir / "manifest.json", lambda value: value["scenes"][scene_id].update(changes)
    )


def rewrite(key: str, change: Callable[[Any], object]) -> Damage:
    """Write a scene with one array changed, and record it as if nothing had happened."""

    def damage(out_dir: Path, scene_id: str) -> None:
        scene = read_processed(npz(out_dir, scene_id))
        array = getattr(scene, key).copy()
        change(array)
        scene = replace(scene, **{key: array})
        data = b"".join(map(bytes, encode_processed(scene)))
        npz(out_dir, scene_id).write_bytes(data)
        entry = to_plain(SceneEntry.from_scene(scene, Fingerprint.from_bytes(data)))
        edit_json(
            out_dir / "manifest.json", lambda value: value["scenes"].update({scene_id: entry})
        )

    return damage


SCENE_DAMAGES: dict[str, tuple[Damage, str]] = {
    "NaN among the points": (rewrite("points", lambda points: points[5].fill(np.nan)), "points are not all finite"),
    "normal that is too short": (rewrite("normals", lambda normals: normals[5].fill(0.5)), "normals of 1 vertices"),
    "label of another class": (
        rewrite("stored_labels", lambda labels: labels.put(5, labels[5] ^ 1)),
        "labels disagree with the raw ids at 1 vertices",
    ),
    "instance without a group": (
        rewrite("instances", lambda ids: ids.put(ids.argmax(), 32_000)), "instances hold 32000, which is no",
    ),
    "flipped bit in an array": (lambda out_dir, scene: flip(npz(out_dir, scene), 3000), "'points' is damaged.*CRC-32"),
    "truncated scene": (lambda out_dir, scene: os.truncate(npz(out_dir, scene), 5000), "is truncated"),
    "scene of another program": (
        lambda out_dir, scene: np.savez(npz(out_dir, scene), points=np.zeros((3, 3))), "another program",
    ),
    "file of another scene": (
        lambda out_dir, scene: shutil.copy(npz(out_dir, OTHER), npz(out_dir, scene)), f"holds '{OTHER}'",
    ),
    "scene in the folder of another split": (
        lambda out_dir, scene: npz(out_dir, scene).rename(npz(out_dir, scene, "val")),
        "is not in the manifest as a val scene",
    ),
    "scene that the manifest does not name": (
        lambda out_dir, scene: edit_json(out_dir / "manifest.json", lambda value: value["scenes"].pop(scene)),
        "is not in the manifest",
    ),
    "scene in two splits": (
        lambda out_dir, scene: shutil.copy(npz(out_dir, scene), npz(out_dir, scene, "val")),
        "is not in the manifest as a val scene",
    ),
    "scene that is gone": (
        lambda out_dir, scene: npz(out_dir, scene).unlink(), "no such file, though the manifest names it",
    ),
    "record of another vertex count": (
        edit_entry(vertices=601, nyu40_counts={"0": 601}, scannet_counts={"0": 601}), "600.*601",
    ),
    "record of other nyu40 ids": (edit_entry(nyu40_counts={"0": 600}), "nyu40 counts"),
    "record of another file": (edit_entry(size_bytes=1), "size bytes"),
}  # fmt: skip


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> dict[str, list[dict[str, Any]]]:
    """Findings of each damage: each is done to a scene of its own, and all are checked at once."""
    directory = tmp_path_factory.mktemp("damaged")
    scenes = dict(zip(SCENE_DAMAGES, map(str, official_scenes("train")), strict=False))
    write_release(directory / "raw", [*scenes.values(), OTHER, VAL], vertices=600)
    assert run_main("process", directory / "raw", "-o", directory / "out").status == 0
    for name, scene_id in scenes.items():
        SCENE_DAMAGES[name][0](directory / "out", scene_id)
    outcome = run_main("verify", directory / "out", "--json", "--limit", "1000")
    assert outcome.status == 3
    findings = outcome.json["findings"]
    assert {item["scene_id"] for item in findings} <= set(scenes.values())
    return {
        name: [item for item in findings if item["scene_id"] == scene]
        for name, scene in scenes.items()
    }


@pytest.mark.parametrize("name", SCENE_DAMAGES)
def test_damage_to_a_processed_scene_is_one_error(
    found: dict[str, list[dict[str, Any]]], name: str
) -> None:
    (finding,) = found[name]
    assert finding["severity"] == "error"
    folder = "val" if "split" in name else "train"
    assert finding["path"].endswith(f"out/{folder}/{finding['scene_id']}.npz")
    assert re.search(SCENE_DAMAGES[name][1], finding["message"])


def test_what_process_writes_has_no_findings_with_any_options(
    raw_dir: Path, tmp_path: Path, verify: Verify
) -> None:
    for name, line in (("a", "--labels-from ply"), ("b", "--scannet200 --align-axis --faces")):
        assert run_main("process", raw_dir, "-o", tmp_path / name, *line.split()).status == 0
        assert verify(tmp_path / name) == (0, [])
        found = [verify.value[key] for key in ("kind", "scenes", "vertices", "size_bytes")]
        assert found == [
            "processed",
            3,
            1800,
            sum(path.stat().st_size for path in (tmp_path / name).glob("*/*.npz")),
        ]


def test_a_failed_scene_and_a_lost_manifest_are_errors(
    raw_dir: Path, out_dir: Path, verify: Verify
) -> None:
    raw_file(raw_dir, MESH.suffix).write_bytes(b"")
    assert run_main("process", raw_dir, "-o", out_dir).status == 3
    check_one(verify(out_dir), "error", TRAIN, "manifest.json", "this scene failed", "empty")
    (out_dir / "manifest.json").unlink()
    assert ("error", "", "manifest.json", "no such file") in verify(out_dir)[1]


def test_people_get_findings_hints_and_what_to_type(raw_dir: Path) -> None:
    path = raw_file(raw_dir, INFO.suffix, TEST)
    path.unlink()
    outcome = run_main("verify", raw_dir)
    assert outcome.status == 3
    lines = outcome.stdout.splitlines()
    assert lines[0] == f"error: {relative(TEST, INFO.suffix)}: no such file"
    assert "hint: download it: every test scene has one" in lines
    assert any(f"scannet-prep download --types seg --verify -o {raw_dir}" in line for line in lines)
    assert "train 1 of 1,201, val 1 of 312, test 1 of 100" in lines[-2]
    assert lines[-1] == "1 error, 3 notes"
    outcome = run_main("verify", raw_dir, "-q")
    assert (outcome.status, outcome.stdout, outcome.stderr.splitlines()[0]) == (
        3,
        "",
        f"error: {path}: no such file",
    )


def test_worker_that_is_killed_is_a_finding_of_its_scene(tmp_path: Path) -> None:
    tasks = [CheckTask(SceneId(name), tmp_path / name) for name in (TRAIN, VAL, TEST)]
    findings = Findings()
    results = look_at_scenes(look_or_die, tasks, VAL, findings, title="look", jobs=2)
    assert results == {SceneId(name): name for name in (TRAIN, TEST)}
    assert [(item.scene_id, item.place) for item in findings.found] == [(VAL, str(tmp_path / VAL))]
    assert "its worker process ended with status -9" in findings.found[0].message


def test_number_of_workers_changes_nothing_in_the_report(raw_dir: Path) -> None:
    raw_file(raw_dir, MESH.suffix).write_bytes(b"")
    raw_file(raw_dir, SEGMENTS.suffix, VAL).unlink()
    one, two = (run_main("verify", raw_dir, "--json", "--jobs", jobs) for jobs in ("1", "2"))
    assert (one.status, one.json | {"seconds": 0}) == (3, two.json | {"seconds": 0})


def test_scene_that_no_manifest_lists_is_to_be_removed(out_dir: Path, verify: Verify) -> None:
    path = out_dir / "train/scene0002_00.npz"
    path.write_bytes((out_dir / f"train/{TRAIN}.npz").read_bytes())
    status, findings = verify(out_dir)
    assert (status, [finding[1] for finding in findings if finding[0] == "error"]) == (
        3,
        ["scene0002_00"],
    )
    (finding,) = [item for item in verify.value["findings"] if item["severity"] == "error"]
    assert finding["hint"] == f"remove it: rm {path}"


def test_damaged_scene_comes_with_the_command_that_makes_it_again(
    out_dir: Path, verify: Verify
) -> None:
    os.truncate(out_dir / f"train/{TRAIN}.npz", 5000)
    verify(out_dir)
    (finding,) = [item for item in verify.value["findings"] if item["severity"] == "error"]
    assert "scannet-prep process" in finding["hint"]
    assert "--checksum" in finding["hint"]
