"""Every kind of damage to a raw tree gives exactly its finding; what is whole gives none."""

import os
import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from commands import (
    TEST,
    TRAIN,
    VAL,
    VERTEX_BYTES,
    Verify,
    check_one,
    header_size,
    raw_file,
    relative,
    run_main,
)
from commands import edit_json as edit
from commands import patch as overwrite

from scannet_prep import official_scenes
from scannet_prep.release.files import (
    AGGREGATION,
    INFO,
    LABELS_MESH,
    MESH,
    SEGMENTATION_KINDS,
    SEGMENTS,
    FileKind,
)
from scannet_prep.release.label_map import LABEL_MAP_NAME
from scannet_prep.synthetic import make_scene, write_release, write_scene

FOLDER = f"scans/{TRAIN}"
Damage = Callable[[Path], object]


def write(content: str) -> Damage:
    return lambda path: path.write_text(content)


def edit_value(change: Callable[[Any], object]) -> Damage:
    return lambda path: edit(path, change)


def edit_group(change: Callable[[Any], object]) -> Damage:
    return edit_value(lambda value: change(value["segGroups"][0]))


def set_ply_label(label: int, *vertices: int) -> Damage:
    """Write an id into labels.ply; 31 is a person, which no synthetic scene has."""
    places = [vertex * VERTEX_BYTES + 16 for vertex in vertices]
    return lambda path: [
        overwrite(path, header_size(path) + place, bytes([label, 0])) for place in places
    ]


# What is damaged (None: the folder of the scene) and how; severity, whether the file is named, pattern of the message.
DAMAGES: dict[str, tuple[FileKind | None, Damage, str, bool, str]] = {
    **{
        f"truncated {kind.content}": (
            kind, lambda path: os.truncate(path, path.stat().st_size // 2), "error", True, "truncated|JSON",
        ) for kind in (MESH, LABELS_MESH, SEGMENTS, AGGREGATION)
    },
    "alignment that stretches": (
        INFO, write("axisAlignment = 2 0 0 0 0 1 0 0 0 0 1 0 0 0 0 1\n"), "error", False, "not a rotation",
    ),
    "no alignment": (INFO, write("sceneType = Office\n"), "error", False, "no axisAlignment"),
    "no group": (
        AGGREGATION, edit_value(lambda value: value["segGroups"].clear()), "error", False, "segGroups is empty",
    ),
    "folder that is a dangling link": (
        None, lambda path: (shutil.rmtree(path), path.symlink_to("nowhere")), "error", False, "link that leads nowhere",
    ),
    "pipe for a folder": (
        None, lambda path: (shutil.rmtree(path), os.mkfifo(path)), "error", False, "is a named pipe, expected a folder",
    ),
    "link to labels.ply under the name of the mesh": (
        MESH, lambda path: (path.unlink(), path.symlink_to(f"{path.name[:12]}{LABELS_MESH.suffix}")), "error", True,
        r"labels\.ply under the name of the mesh",
    ),
    "segments for another mesh": (
        SEGMENTS, edit_value(lambda value: value["segIndices"].pop()), "error", False,
        rf"\d{SEGMENTS.suffix}: is for 599 vertices.* has 600",
    ),
    "group with unknown segments": (
        AGGREGATION, edit_group(lambda group: group["segments"].extend([700, 701])), "error", False,
        "segment ids of groups that no vertex has.* 2",
    ),
    "labels.ply with other coordinates": (
        LABELS_MESH, lambda path: overwrite(path, header_size(path), b"\x01"), "error", True, "vertices lie elsewhere",
    ),
    "labels.ply that differs from the groups": (
        LABELS_MESH, set_ply_label(31, 7, 11), "error", True, "at 2 of 600 vertices.*vertex 7: nyu40 id 31",
    ),
    "labels.ply with an id outside nyu40": (
        LABELS_MESH, set_ply_label(50, 7), "note", True, r"outside nyu40.*\(50\)",
    ),
    **{
        f"{kind.content} of another scene": (
            kind, edit_value(lambda value: value.update(sceneId="scannet.scene0707_00")), "note", False,
            f"{kind.suffix} says.*'scene0707_00'",
        ) for kind in (SEGMENTS, AGGREGATION)
    },
    "null among the segment ids": (
        AGGREGATION, edit_group(lambda group: group["segments"].append(None)), "note", False, "null",
    ),
    "unknown raw category": (
        AGGREGATION,
        edit_value(lambda value: value["segGroups"].append({"id": 99, "label": "dishrack", "segments": []})),
        "note", False, "'dishrack'",
    ),
    "no labels.ply": (LABELS_MESH, Path.unlink, "note", True, "needed only to take the labels from it"),
    "scene in two folders": (
        None, lambda path: shutil.copytree(path, path.parents[1] / "scans_test" / path.name), "error", False,
        "has the same scene as.*scans_test",
    ),
    **{
        f"no {kind.content} in {split}": (kind, Path.unlink, "error", True, "no such file")
        for split, kinds in (("val", (MESH, SEGMENTS, AGGREGATION, INFO)), ("test", (MESH, INFO))) for kind in kinds
    },
    **{
        f"{word} as {kind.content}": (kind, write(content), "error", True, word)
        for kind in SEGMENTATION_KINDS for word, content in (("empty", ""), ("page", "<html><body>404</body></html>"))
    },
}  # fmt: skip


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> dict[str, tuple[str, list[dict[str, Any]]]]:
    """Scene and findings of each damage: each is done to a scene of its own, and all are checked at once."""
    raw_dir = tmp_path_factory.mktemp("damaged")
    unused = {split: iter(official_scenes(split)) for split in ("train", "val", "test")}
    scenes = {
        name: str(next(unused.get(name.rpartition(" in ")[2], unused["train"]))) for name in DAMAGES
    }
    write_release(raw_dir, list(scenes.values()), vertices=600)
    for name, scene_id in scenes.items():
        kind, damage, *_ = DAMAGES[name]
        (directory,) = raw_dir.glob(f"*/{scene_id}")
        damage(directory / f"{scene_id}{kind.suffix}" if kind else directory)
    outcome = run_main("verify", raw_dir, "--json", "--limit", "1000")
    assert (outcome.status, outcome.json["scenes"]) == (3, len(scenes))
    findings = outcome.json["findings"]
    assert {item["scene_id"] for item in findings} <= set(scenes.values())
    return {
        name: (scene, [item for item in findings if item["scene_id"] == scene])
        for name, scene in scenes.items()
    }


@pytest.mark.parametrize("name", DAMAGES)
def test_damage_to_a_scene_is_one_finding(
    found: dict[str, tuple[str, list[dict[str, Any]]]], name: str
) -> None:
    kind, _, severity, is_file_named, pattern = DAMAGES[name]
    scene_id, (finding,) = found[name]
    assert finding["severity"] == severity
    assert Path(finding["path"]).name == scene_id + (kind.suffix if kind and is_file_named else "")
    assert re.search(pattern, finding["message"])


def test_damage_to_the_label_map_is_one_finding(raw_dir: Path, verify: Verify) -> None:
    path = raw_dir / LABEL_MAP_NAME
    whole = path.read_text()
    copies = whole.replace("\tcrate\t", "\tcreate\t").replace(
        "\tstick\t", "\tobject\t"
    )  # as people have them
    for text, words in (
        (copies, "2 raw categories: crate, stick"),
        (
            whole.replace("3\tfloor\t2", "3\tfloor\t0"),
            "'floor' is ScanNet id 3, nyu40 id 0, expected ScanNet id 3, nyu40 id 2",
        ),
        (whole.splitlines()[0] + "\n", "a header and 0 rows, expected about 607"),
        (whole + "5\twall\t7\n", "row 609: 'wall' has"),
    ):
        path.write_text(text)
        check_one(verify(raw_dir), "error", "", LABEL_MAP_NAME, words)
    path.unlink()
    check_one(verify(raw_dir), "note", "", LABEL_MAP_NAME, "built-in")


def test_whole_raw_tree_has_no_findings_and_its_scans_folder_neither(
    raw_dir: Path, verify: Verify
) -> None:
    for name in (f"._{TRAIN}.txt", ".DS_Store", f"{TRAIN}_notes.txt"):
        (raw_dir / FOLDER / name).touch()
    assert verify(raw_dir) == (0, [])
    assert verify.value["kind"] == "raw"
    assert (verify.value["scenes"], verify.value["vertices"]) == (3, 1800)
    assert verify(raw_dir / "scans", "--splits", "train", "val", "--limit", "9")[0] == 0
    assert verify.value["scenes"] == 2


def test_high_resolution_groups_count_alone_and_are_parsed_beside_others(
    raw_dir: Path, verify: Verify
) -> None:
    path, other = (
        raw_file(raw_dir, name) for name in ("_vh_clean.aggregation.json", AGGREGATION.suffix)
    )
    shutil.copy(other, path)
    edit(path, lambda value: value["segGroups"][0]["segments"].append(1_000_000))
    assert verify(raw_dir) == (0, [])
    other.unlink()
    status, findings = verify(raw_dir)
    assert (status, [item[2] for item in findings]) == (
        3,
        [FOLDER, relative(TRAIN, AGGREGATION.suffix)],
    )
    assert "is for the high-resolution mesh: 1 of its segment ids" in findings[0][3]
    for damaged in (path, other):
        damaged.write_text("{}")
    assert [item[2] for item in verify(raw_dir)[1]] == [
        str(item.relative_to(raw_dir)) for item in (other, path)
    ]


def test_what_was_asked_for_is_checked_and_others_need_a_split(
    raw_dir: Path, out_dir: Path, verify: Verify
) -> None:
    unlisted = write_scene(make_scene("scene0900_00", vertices=600), raw_dir)
    check_one(verify(raw_dir), "error", "scene0900_00", ".", "none of the official split lists")
    assert verify(raw_dir, "--scenes", "scene0900_00", "--splits", "val") == (0, [])
    shutil.rmtree(unlisted)
    raw_file(raw_dir, MESH.suffix, VAL).unlink()
    (out_dir / "val" / f"{VAL}.npz").unlink()
    for path, words in ((raw_dir, "has no folder"), (out_dir, "is not here")):
        check_one(
            verify(path, "--scenes", TRAIN, "scene0002_00"), "error", "scene0002_00", ".", words
        )
        assert (verify(path, "--scenes", TRAIN, TEST), verify.value["scenes"]) == ((0, []), 2)
        assert (verify(path, "--splits", "test", "--limit", "5"), verify.value["scenes"]) == (
            (0, []),
            1,
        )
        assert verify(path, "--scenes", TRAIN, "--splits", "test")[0] == (
            2 if path == raw_dir else 3
        )
    shutil.rmtree(raw_dir / "scans_test")
    assert (verify(raw_dir, "--splits", "test")[0], "splits test" in verify.value["message"]) == (
        2,
        True,
    )


def test_subset_of_a_split_is_a_note_unless_it_has_to_be_complete(
    raw_dir: Path, out_dir: Path, verify: Verify
) -> None:
    for path in (raw_dir, out_dir):
        status, findings = verify(path, "--splits", "train", "val")
        assert (status, [item[:3] for item in findings]) == (0, [("note", "", ".")] * 2)
        assert [item[3] for item in findings] == [
            "holds 1 of the 1,201 train scenes",
            "holds 1 of the 312 val scenes",
        ]
        assert verify.value["splits"]["train"] == {"present": 1, "official": 1201}
        status, findings = verify(path, "--splits", "val", "--complete")
        assert (status, len({item[1] for item in findings})) == (3, 311)
        assert {(item[0], item[3]) for item in findings} == {("error", "no such scene")}
    assert verify(raw_dir, "--complete", "--limit", "3")[0] == 2


def test_a_missing_or_changed_file_is_one_error_with_a_hint_for_its_scene_alone(
    raw_dir: Path, verify: Verify
) -> None:
    names = [
        relative(TRAIN, suffix)
        for suffix in (".sens", INFO.suffix, LABELS_MESH.suffix, MESH.suffix)
    ]
    (raw_dir / "scannet.lock").write_text("".join(f"{'0' * 64}  3  {name}\n" for name in names))
    for name in names[1::2]:
        (raw_dir / name).unlink()
    os.mkfifo(raw_dir / names[1])
    status, findings = verify(raw_dir)
    assert (status, [item[2] for item in findings]) == (3, names)
    words = [
        "though scannet.lock records it",
        "named pipe",
        "not the file that scannet.lock records",
        "no such file",
    ]
    assert all(word in item[3] for word, item in zip(words, findings, strict=True))
    assert (
        f"--types seg .sens --verify -o {raw_dir} --scenes {TRAIN}\n"
        in run_main("verify", raw_dir).stdout
    )
    (raw_dir / "scannet.lock").write_text("x")
    assert f"--types seg --verify -o {raw_dir}\n" in run_main("verify", raw_dir).stdout
