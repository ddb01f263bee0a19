"""Tests of `verify` on raw trees."""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from commands import (
    TEST,
    TRAIN,
    VAL,
    VERTEX_BYTES,
    Verify,
    check_one,
    edit_json,
    header_size,
    patch,
    raw_file,
    relative,
    run_main,
)

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

SCENE_FOLDER = f"scans/{TRAIN}"
UNLISTED = "scene0900_00"
HIGH_RESOLUTION_GROUPS = "_vh_clean.aggregation.json"

# A page that a server sends in place of a file.
WEB_PAGE = "<html><body>404</body></html>"

FoundFindings = dict[str, list[dict[str, Any]]]


# Damage to one scene of a raw tree.


class Damage(NamedTuple):
    """Damage to a scene, and the finding that it causes.

    Attributes:
        kind: The file that is damaged; None for the folder of the scene.
        apply: Damages the file or folder at a path.
        pattern: Matches the message of the finding.
        severity: Severity of the finding.
        names_file: Whether the finding names the file, rather than the folder of the scene.
        split: The split of the scene.
    """

    kind: FileKind | None
    apply: Callable[[Path], object]
    pattern: str
    severity: str = "error"
    names_file: bool = True
    split: str = "train"


def write(content: str) -> Callable[[Path], object]:
    return lambda path: path.write_text(content)


def edit(change: Callable[[Any], object]) -> Callable[[Path], object]:
    """Change the value in a JSON file."""
    return lambda path: edit_json(path, change)


def edit_first_group(change: Callable[[Any], object]) -> Callable[[Path], object]:
    return edit(lambda value: change(value["segGroups"][0]))


def set_ply_label(label: int, *vertices: int) -> Callable[[Path], object]:
    """Write a nyu40 id into labels.ply, for some vertices."""

    def apply(path: Path) -> None:
        for vertex in vertices:
            label_offset = vertex * VERTEX_BYTES + 16
            patch(path, header_size(path) + label_offset, bytes([label, 0]))

    return apply


def halve(path: Path) -> None:
    os.truncate(path, path.stat().st_size // 2)


def move_first_vertex(path: Path) -> None:
    patch(path, header_size(path), b"\x01")


def replace_by_dangling_link(folder: Path) -> None:
    shutil.rmtree(folder)
    folder.symlink_to("nowhere")


def replace_by_pipe(folder: Path) -> None:
    shutil.rmtree(folder)
    os.mkfifo(folder)


def replace_by_link_to_labels_mesh(path: Path) -> None:
    path.unlink()
    path.symlink_to(f"{path.name[:12]}{LABELS_MESH.suffix}")


def copy_to_scans_test(folder: Path) -> None:
    shutil.copytree(folder, folder.parents[1] / "scans_test" / folder.name)


def iter_damages() -> Iterator[tuple[str, Damage]]:
    """Iterate over all kinds of damage, by name."""
    # Damage to a file.
    for kind in (MESH, LABELS_MESH, SEGMENTS, AGGREGATION):
        yield f"truncated {kind.content}", Damage(kind, halve, "truncated|JSON")
    for kind in SEGMENTATION_KINDS:
        yield f"empty {kind.content}", Damage(kind, write(""), "empty")
        yield f"web page as {kind.content}", Damage(kind, write(WEB_PAGE), "page")
    for kind in (MESH, SEGMENTS, AGGREGATION, INFO):
        yield f"no {kind.content} in val", Damage(kind, Path.unlink, "no such file", split="val")
    for kind in (MESH, INFO):
        yield f"no {kind.content} in test", Damage(kind, Path.unlink, "no such file", split="test")
    yield (
        "no labels.ply",
        Damage(
            LABELS_MESH,
            Path.unlink,
            "needed only to take the labels from it",
            severity="note",
        ),
    )
    yield (
        "link to labels.ply under the name of the mesh",
        Damage(MESH, replace_by_link_to_labels_mesh, r"labels\.ply under the name of the mesh"),
    )

    # Damage to the folder.
    yield (
        "folder that is a dangling link",
        Damage(None, replace_by_dangling_link, "link that leads nowhere"),
    )
    yield (
        "pipe in place of the folder",
        Damage(None, replace_by_pipe, "is not a folder, or a link that leads nowhere"),
    )
    yield (
        "scene in two folders",
        Damage(None, copy_to_scans_test, "has the same scene as.*scans_test"),
    )

    # Contradictions within a file, and between files.
    yield (
        "alignment that stretches",
        Damage(
            INFO,
            write("axisAlignment = 2 0 0 0 0 1 0 0 0 0 1 0 0 0 0 1\n"),
            "not a rotation",
            names_file=False,
        ),
    )
    yield (
        "no alignment",
        Damage(INFO, write("sceneType = Office\n"), "no axisAlignment", names_file=False),
    )
    yield (
        "no group",
        Damage(
            AGGREGATION,
            edit(lambda value: value["segGroups"].clear()),
            "segGroups is empty",
            names_file=False,
        ),
    )
    yield (
        "segments of another mesh",
        Damage(
            SEGMENTS,
            edit(lambda value: value["segIndices"].pop()),
            "is for 599 vertices.* has 600",
        ),
    )
    yield (
        "group with unknown segments",
        Damage(
            AGGREGATION,
            edit_first_group(lambda group: group["segments"].extend([700, 701])),
            "segment ids of groups that no vertex has.* 2",
            names_file=False,
        ),
    )
    yield (
        "labels.ply with other coordinates",
        Damage(LABELS_MESH, move_first_vertex, "vertices lie elsewhere"),
    )
    yield (
        "labels.ply that differs from the groups",
        Damage(
            LABELS_MESH,
            # A person, which no synthetic scene has.
            set_ply_label(31, 7, 11),
            r"contradicts the groups: \d",
            names_file=False,
        ),
    )

    # Oddities.
    yield (
        "labels.ply with an id outside nyu40",
        Damage(
            LABELS_MESH,
            set_ply_label(50, 7),
            r"outside nyu40.*\(50\)",
            severity="note",
            names_file=False,
        ),
    )
    for kind in (SEGMENTS, AGGREGATION):
        yield (
            f"{kind.content} of another scene",
            Damage(
                kind,
                edit(lambda value: value.update(sceneId="scannet.scene0707_00")),
                f"{kind.suffix} says.*'scene0707_00'",
                severity="note",
                names_file=False,
            ),
        )
    yield (
        "null among the segment ids",
        Damage(
            AGGREGATION,
            edit_first_group(lambda group: group["segments"].append(None)),
            "null",
            severity="note",
            names_file=False,
        ),
    )
    new_group = {"id": 99, "label": "dishrack", "segments": []}
    yield (
        "unknown raw category",
        Damage(
            AGGREGATION,
            edit(lambda value: value["segGroups"].append(new_group)),
            "'dishrack'",
            severity="note",
            names_file=False,
        ),
    )


DAMAGES = dict(iter_damages())


@pytest.fixture(scope="module")
def findings_by_damage(tmp_path_factory: pytest.TempPathFactory) -> FoundFindings:
    """The findings of each damage, where each is applied to a scene of its own."""
    raw_dir = tmp_path_factory.mktemp("damaged")
    unused = {split: iter(official_scenes(split)) for split in ("train", "val", "test")}
    scene_ids = {name: str(next(unused[damage.split])) for name, damage in DAMAGES.items()}
    write_release(raw_dir, list(scene_ids.values()), vertices=600)
    for name, scene_id in scene_ids.items():
        kind = DAMAGES[name].kind
        (path,) = raw_dir.glob(f"*/{scene_id}")
        if kind is not None:
            path /= f"{scene_id}{kind.suffix}"
        DAMAGES[name].apply(path)

    outcome = run_main("verify", raw_dir, "--json", "--limit", "1000")

    assert outcome.status == 3
    assert outcome.json["scenes"] == len(scene_ids)
    findings = {name: [] for name in DAMAGES}
    names = {scene_id: name for name, scene_id in scene_ids.items()}
    for finding in outcome.json["findings"]:
        findings[names[finding["scene_id"]]].append(finding)
    return findings


@pytest.mark.parametrize("name", DAMAGES)
def test_damage_to_a_raw_scene_is_one_finding(findings_by_damage: FoundFindings, name: str) -> None:
    damage = DAMAGES[name]
    (finding,) = findings_by_damage[name]
    file_name = finding["scene_id"]
    if damage.kind is not None and damage.names_file:
        file_name += damage.kind.suffix

    assert finding["severity"] == damage.severity
    assert Path(finding["path"]).name == file_name
    assert re.search(damage.pattern, finding["message"])


# The label map.


def edit_label_map(*replacements: tuple[str, str]) -> Callable[[str], str]:
    def change(text: str) -> str:
        for old, new in replacements:
            text = text.replace(old, new)
        return text

    return change


@pytest.mark.parametrize(
    ("change", "words"),
    [
        # Copies with these errors are in use.
        (
            edit_label_map(("\tcrate\t", "\tcreate\t"), ("\tstick\t", "\tobject\t")),
            "2 raw categories: crate, stick",
        ),
        (
            edit_label_map(("3\tfloor\t2", "3\tfloor\t0")),
            "'floor' is ScanNet id 3, nyu40 id 0, expected ScanNet id 3, nyu40 id 2",
        ),
        (
            lambda text: text.splitlines()[0] + "\n",
            "a header and 0 rows, expected about 607",
        ),
        (lambda text: text + "5\twall\t7\n", "row 609 has 'wall'"),
    ],
    ids=["misspelled categories", "wrong id", "no rows", "short row"],
)
def test_damage_to_the_label_map_is_one_error(
    raw_dir: Path, verify: Verify, change: Callable[[str], str], words: str
) -> None:
    path = raw_dir / LABEL_MAP_NAME
    path.write_text(change(path.read_text()))

    check_one(verify(raw_dir), "error", "", LABEL_MAP_NAME, words)


def test_missing_label_map_is_a_note(raw_dir: Path, verify: Verify) -> None:
    (raw_dir / LABEL_MAP_NAME).unlink()
    check_one(verify(raw_dir), "note", "", LABEL_MAP_NAME, "built-in")


# Intact trees.


def test_intact_raw_tree_has_no_findings(raw_dir: Path, verify: Verify) -> None:
    for name in (f"._{TRAIN}.txt", ".DS_Store", f"{TRAIN}_notes.txt"):
        (raw_dir / SCENE_FOLDER / name).touch()

    assert verify(raw_dir) == (0, [])


def test_verify_counts_scenes_and_vertices_of_a_raw_tree(whole_dir: Path, verify: Verify) -> None:
    verify(whole_dir / "raw")

    expected = {"kind": "raw", "scenes": 3, "vertices": 1800}
    assert {key: verify.value[key] for key in expected} == expected


def test_scans_folder_of_an_intact_tree_has_no_errors(raw_dir: Path, verify: Verify) -> None:
    status, _ = verify(raw_dir / "scans", "--splits", "train", "val", "--limit", "9")

    assert status == 0
    assert verify.value["scenes"] == 2


# Groups for the high-resolution mesh.


@pytest.fixture
def high_resolution_dir(raw_dir: Path) -> Path:
    """A raw tree in which one scene also has groups for the high-resolution mesh."""
    path = raw_file(raw_dir, HIGH_RESOLUTION_GROUPS)
    shutil.copy(raw_file(raw_dir, AGGREGATION.suffix), path)
    edit_json(path, lambda value: value["segGroups"][0]["segments"].append(1_000_000))
    return raw_dir


def test_high_resolution_groups_beside_others_have_no_findings(
    high_resolution_dir: Path, verify: Verify
) -> None:
    assert verify(high_resolution_dir) == (0, [])


def test_high_resolution_groups_alone_are_an_error(
    high_resolution_dir: Path, verify: Verify
) -> None:
    raw_file(high_resolution_dir, AGGREGATION.suffix).unlink()

    status, findings = verify(high_resolution_dir)

    files = [file for _, _, file, _ in findings]
    assert status == 3
    assert files == [relative(TRAIN, AGGREGATION.suffix), relative(TRAIN, HIGH_RESOLUTION_GROUPS)]
    assert "is for the high-resolution mesh: 1 of its segment ids" in findings[1][3]


def test_damaged_group_files_are_an_error_each(high_resolution_dir: Path, verify: Verify) -> None:
    for suffix in (AGGREGATION.suffix, HIGH_RESOLUTION_GROUPS):
        raw_file(high_resolution_dir, suffix).write_text("{}")

    _, findings = verify(high_resolution_dir)

    files = [file for _, _, file, _ in findings]
    assert files == [relative(TRAIN, AGGREGATION.suffix), relative(TRAIN, HIGH_RESOLUTION_GROUPS)]


# The selection of scenes.


def test_scene_outside_the_split_lists_is_an_error(raw_dir: Path, verify: Verify) -> None:
    write_scene(make_scene(UNLISTED, vertices=600), raw_dir)
    check_one(verify(raw_dir), "error", UNLISTED, ".", "none of the official split lists")


def test_scene_outside_the_split_lists_is_checked_with_a_split(
    raw_dir: Path, verify: Verify
) -> None:
    write_scene(make_scene(UNLISTED, vertices=600), raw_dir)
    assert verify(raw_dir, "--scenes", UNLISTED, "--splits", "val") == (0, [])


class DamagedTree(NamedTuple):
    """A raw or processed tree whose validation scene is damaged.

    Attributes:
        path: The tree.
        missing_words: Words of the message about a scene that is not in the tree.
        contradiction_status: Exit status if the selected scene is not in the selected split.
    """

    path: Path
    missing_words: str
    contradiction_status: int


@pytest.fixture(params=["raw", "processed"])
def damaged_tree(request: pytest.FixtureRequest, raw_dir: Path, out_dir: Path) -> DamagedTree:
    if request.param == "raw":
        raw_file(raw_dir, MESH.suffix, VAL).unlink()
        return DamagedTree(raw_dir, "has no folder", contradiction_status=2)
    (out_dir / "val" / f"{VAL}.npz").unlink()
    return DamagedTree(out_dir, "is not here", contradiction_status=3)


def test_selected_scene_that_is_missing_is_an_error(
    damaged_tree: DamagedTree, verify: Verify
) -> None:
    result = verify(damaged_tree.path, "--scenes", TRAIN, "scene0002_00")
    check_one(result, "error", "scene0002_00", ".", damaged_tree.missing_words)


def test_only_selected_scenes_are_checked(damaged_tree: DamagedTree, verify: Verify) -> None:
    assert verify(damaged_tree.path, "--scenes", TRAIN, TEST) == (0, [])
    assert verify.value["scenes"] == 2


def test_only_selected_splits_are_checked(damaged_tree: DamagedTree, verify: Verify) -> None:
    assert verify(damaged_tree.path, "--splits", "test", "--limit", "5") == (0, [])
    assert verify.value["scenes"] == 1


def test_selected_scene_of_another_split_is_refused(
    damaged_tree: DamagedTree, verify: Verify
) -> None:
    status, _ = verify(damaged_tree.path, "--scenes", TRAIN, "--splits", "test")
    assert status == damaged_tree.contradiction_status


def test_selected_split_without_scenes_is_wrong_usage(raw_dir: Path, verify: Verify) -> None:
    shutil.rmtree(raw_dir / "scans_test")
    status, _ = verify(raw_dir, "--splits", "test")

    assert status == 2
    assert "splits test" in verify.value["message"]


# The official splits.


@pytest.fixture(params=["raw", "processed"])
def tree_path(request: pytest.FixtureRequest, raw_dir: Path, out_dir: Path) -> Path:
    return raw_dir if request.param == "raw" else out_dir


def test_incomplete_splits_are_a_note_each(tree_path: Path, verify: Verify) -> None:
    status, findings = verify(tree_path, "--splits", "train", "val")

    assert status == 0
    assert findings == [
        ("note", "", ".", "holds 1 of the 1,201 train scenes"),
        ("note", "", ".", "holds 1 of the 312 val scenes"),
    ]
    assert verify.value["splits"]["train"] == {"present": 1, "official": 1201}


def test_complete_makes_every_missing_scene_an_error(tree_path: Path, verify: Verify) -> None:
    status, findings = verify(tree_path, "--splits", "val", "--complete")

    assert status == 3
    assert len({scene_id for _, scene_id, _, _ in findings}) == 311
    assert {(severity, message) for severity, _, _, message in findings} == {
        ("error", "no such scene")
    }


def test_complete_with_a_limit_is_wrong_usage(raw_dir: Path, verify: Verify) -> None:
    status, _ = verify(raw_dir, "--complete", "--limit", "3")
    assert status == 2


# Records in scannet.lock.

# Files of a scene in the order of the findings, and words of the message about each.
_RECORDED_FILES = {
    relative(TRAIN, ".sens"): "though scannet.lock records it",
    relative(TRAIN, INFO.suffix): "named pipe",
    relative(TRAIN, LABELS_MESH.suffix): "not the file that scannet.lock records",
    relative(TRAIN, MESH.suffix): "no such file",
}


@pytest.fixture
def recorded_dir(raw_dir: Path) -> Path:
    """A raw tree with records of four files: one changed, two missing, and one a named pipe."""
    lines = [f"{'0' * 64}  3  {name}\n" for name in _RECORDED_FILES]
    (raw_dir / "scannet.lock").write_text("".join(lines))
    raw_file(raw_dir, MESH.suffix).unlink()
    info_path = raw_file(raw_dir, INFO.suffix)
    info_path.unlink()
    os.mkfifo(info_path)
    return raw_dir


def test_missing_and_changed_recorded_files_are_an_error_each(
    recorded_dir: Path, verify: Verify
) -> None:
    status, findings = verify(recorded_dir)

    assert status == 3
    assert [file for _, _, file, _ in findings] == list(_RECORDED_FILES)
    for _, _, file, message in findings:
        assert _RECORDED_FILES[file] in message


def test_download_command_names_types_and_the_damaged_scene(recorded_dir: Path) -> None:
    outcome = run_main("verify", recorded_dir)
    options = f"--types seg .sens -o {recorded_dir} --scenes {TRAIN}\n"

    assert options in outcome.stdout


def test_download_command_names_no_scene_if_the_lock_is_damaged(recorded_dir: Path) -> None:
    (recorded_dir / "scannet.lock").write_text("x")
    outcome = run_main("verify", recorded_dir)

    assert f"--types seg -o {recorded_dir}\n" in outcome.stdout
