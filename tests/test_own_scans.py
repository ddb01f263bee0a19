"""Scenes that are not from the release: processed, read, packed, verified and sampled."""

import re
import shutil
from pathlib import Path

import numpy as np
import pytest
import tiny
from commands import PYTHON, digests, run_main, run_words
from tiny import Ply

from scannet_prep import ScanNet, read_processed, sample_from_mesh
from scannet_prep.errors import FileError
from scannet_prep.raw.mesh import read_mesh
from scannet_prep.release.scene import SceneId
from scannet_prep.release.splits import find_official_split

LONGEST_NAME = "a" * 96
ANNOTATION = {
    "_vh_clean_2.0.010000.segs.json": tiny.segments_file(scene_id="plot_01"),
    ".aggregation.json": tiny.aggregation_file(scene_id="plot_01"),
}


def write_own(raw_dir, name, files, folder="scans_test"):
    """Write the files of an own scene: suffixes and contents."""
    directory = raw_dir / folder / name
    directory.mkdir(parents=True)
    for suffix, content in files.items():
        (directory / f"{name}{suffix}").write_bytes(content)
    return directory


@pytest.fixture
def raw_dir(tmp_path):
    """Two scenes of the release, an annotated own scene, and own meshes without anything else."""
    raw_dir = tmp_path / "raw"
    tiny.write_tiny(raw_dir)
    no_annotation = {"_vh_clean_2.0.010000.segs.json": None, ".aggregation.json": None}
    tiny.write_tiny(raw_dir, no_annotation, tiny.TEST_SCENE_ID)
    annotated = {"_vh_clean_2.ply": Ply().encode(), **ANNOTATION}
    write_own(raw_dir, "plot_01", annotated, "scans")
    write_own(raw_dir, LONGEST_NAME, {"_vh_clean_2.ply": Ply(position_type="double").encode()})
    room = {"_vh_clean_2.ply": Ply(format="ascii").encode().replace(b"red", b"r")}
    room["_vh_clean_2.ply"] = room["_vh_clean_2.ply"].replace(b"green", b"g").replace(b"blue", b"b")
    room[".txt"] = tiny.info_file()
    write_own(raw_dir, "room", room)
    return raw_dir


def test_own_scenes_are_processed_packed_and_read_like_those_of_the_release(raw_dir, tmp_path):
    out_dir = tmp_path / "out"
    words = ("process", raw_dir, "-o", out_dir, "--align-axis", "--faces", "--compute-segments")
    outcome = run_main(*words, "--json")
    assert outcome.status == 0, outcome.stderr

    names = {split: ScanNet(out_dir, split=split).scene_ids for split in ("train", "test")}
    assert names == {
        "train": ["plot_01", "scene0000_00"],
        "test": [LONGEST_NAME, "room", "scene0707_00"],
    }

    # The annotated scene has the arrays of the same scene of the release, but for the alignment.
    plot = read_processed(out_dir / "train/plot_01.npz")
    assert plot.points.tolist() == [list(position) for position in tiny.POSITIONS]
    assert plot.labels.tolist() == [label - 1 for label in tiny.LABELS20]
    assert plot.instances.tolist() == list(tiny.INSTANCES)
    assert plot.segments.tolist() == [0, 0, 1, 1, 2, 3]
    assert plot.axis_alignment.tolist() == np.eye(4).tolist()
    assert [warning.kind for warning in plot.meta.warnings] == ["no_info"]

    # The mesh alone has no annotation; segments are computed, points are aligned by the .txt.
    room = read_processed(out_dir / "test/room.npz")
    of_release = read_processed(out_dir / "train/scene0000_00.npz")
    assert (room.labels == -1).all()
    assert (room.instances == -1).all()
    assert room.meta.segments_source == "computed"
    for name in ("points", "normals", "colors", "faces", "axis_alignment"):
        np.testing.assert_array_equal(getattr(room, name), getattr(of_release, name))

    assert run_main("verify", out_dir).status == 0
    assert run_main("verify", raw_dir).status == 0
    assert run_main("info", raw_dir).status == 0
    again = run_main(*words, "--json")
    assert (again.json["made"], again.status) == ([], 0)

    archive = tmp_path / "own.tar.zst"
    assert run_main("pack", out_dir, "-o", archive).status == 0
    dataset = ScanNet(archive, split="test")
    assert dataset.scene_ids == names["test"]
    np.testing.assert_array_equal(dataset[1]["points"], room.points)


def test_folder_of_own_scenes_tells_their_split_and_other_folders_need_a_selection(tmp_path):
    mesh = {"_vh_clean_2.ply": Ply().encode()}
    for folder in ("val", "test", "scans_test", "mine"):
        files = mesh | (ANNOTATION if folder == "val" else {})
        write_own(tmp_path / "raw", f"room-{folder}", files, folder)
    words = ("process", tmp_path / "raw", "-o", tmp_path / "out", "--json")

    outcome = run_main(*words)
    named = run_main(*words, "--scenes", "room-mine", "--splits", "test")

    assert sorted(outcome.json["made"]) == ["room-scans_test", "room-test", "room-val"]
    (failure,) = outcome.json["failures"]
    assert failure["scene_id"] == "room-mine"
    assert "nor in a folder of its split" in failure["message"]
    assert named.json["made"] == ["room-mine"]
    assert ScanNet(tmp_path / "out", split="val").scene_ids == ["room-val"]
    test_scenes = ["room-mine", "room-scans_test", "room-test"]
    assert ScanNet(tmp_path / "out", split="test").scene_ids == test_scenes


def test_what_looks_like_a_scene_and_is_none_fails_by_name_without_stopping_the_others(
    raw_dir, tmp_path
):
    mesh = {"_vh_clean_2.ply": Ply().encode()}
    write_own(raw_dir, "scene00_00", mesh, "scans")
    write_own(raw_dir, "Scene0000_00", mesh, "scans")
    write_own(raw_dir, "attic", {"_mesh.ply": Ply().encode()})
    write_own(raw_dir, "unannotated", mesh, "scans")
    write_own(raw_dir, "broken", {"_vh_clean_2.ply": b"ply\n"})
    (raw_dir / "scans/notes").mkdir()
    (raw_dir / "scans_test/loose.ply").write_bytes(Ply().encode())

    outcome = run_main("process", raw_dir, "-o", tmp_path / "out", "--json")

    assert outcome.status == 3
    text = outcome.stdout + outcome.stderr
    for name in ("scans/scene00_00", "scans/Scene0000_00", "attic", "loose.ply", "scans/notes"):
        assert name in text
    for failure in outcome.json["failures"]:
        assert "download" not in failure["hint"]
    hints = {failure["scene_id"]: failure["hint"] for failure in outcome.json["failures"]}
    assert "move the folder to scans_test/" in hints["unannotated"]
    assert "need binary PLY files" in hints["broken"]
    # What is none is no dataset either.
    assert {path.stem for path in (tmp_path / "out").rglob("*.npz")} == {
        *("plot_01", "scene0000_00", "scene0707_00", "room", LONGEST_NAME)
    }


BIG = 60 * np.array(tiny.POSITIONS)
OWN_MESHES = {
    "plain": (Ply(), []),
    "big endian": (Ply(format="binary_big_endian"), []),
    "doubles as text": (Ply(format="ascii", position_type="double"), []),
    "other names": (("red", "diffuse_red", "green", "diffuse_green", "blue", "diffuse_blue"), []),
    "short names": (("red", "r", "green", "g", "blue", "b"), []),
    "names with more": (("red", "color_R_8", "green", "color_G_8", "blue", "color_B_8"), []),
    "other letters": (("red", "Red", "green", "Green", "blue", "Blue"), []),
    "floats": (Ply(color_type="float", colors=(np.array(tiny.COLORS) - 0.4) / 255), []),
    "no colours": (
        ("red", "x1", "green", "x2", "blue", "x3"),
        ["no_colors", "unused_properties: the mesh has x1, x2, x3"],
    ),
    "two colours": (
        ("red", "a_red", "green", "a_green", "blue", "a_blue"),
        ["no_colors", "unused_properties: the mesh has b_red, b_green, b_blue, a_red"],
    ),
    "no faces": (Ply(faces=None), ["no_faces"]),
    "no faces but normals": (
        Ply(faces=None, extra_before=(("float", "nx"), ("float", "ny"), ("float", "nz"))),
        ["file_normals"],
    ),
    "more": (
        Ply(
            extra_before=(("float", "s"), ("float", "nx")),
            face_extra=(("uchar", "flags"),),
            last_element="camera",
            comments=("comment TextureFile room.png",),
        ),
        ["unused_properties: the mesh has TextureFile room.png, s, nx, flags, element camera"],
    ),
    "path in a comment": (Ply(comments=("comment C:/Büro/Räume",)), []),
    "large": (Ply(positions=3 * BIG), ["large_mesh: the mesh is 180 m long"]),
    "100 m": (Ply(positions=BIG / 60 * 100), []),
}


@pytest.mark.parametrize("name", OWN_MESHES)
def test_meshes_of_other_programs_are_read_with_notes_of_what_is_missing_or_unused(tmp_path, name):
    made, expected = OWN_MESHES[name]
    data = Ply().encode() if isinstance(made, tuple) else made.encode()
    if name == "two colours":
        more = [("uchar", f"b_{color}") for color in ("red", "green", "blue")]
        data = Ply(extra_before=more).encode()
    if isinstance(made, tuple):
        for old, new in zip(made[::2], made[1::2], strict=True):
            data = data.replace(f"uchar {old}\n".encode(), f"uchar {new}\n".encode())
    (tmp_path / "room.ply").write_bytes(data)

    mesh = read_mesh(tmp_path / "room.ply")

    notes = [f"{note.kind.value}: {note.fault}" for note in mesh.notes]
    assert len(notes) == len(expected)
    for note, start in zip(notes, expected, strict=True):
        assert note.startswith(start)
    is_grey = name in {"no colours", "two colours"}
    assert mesh.colors.tolist() == ([[128] * 3] * 6 if is_grey else [list(c) for c in tiny.COLORS])
    assert len(mesh.faces) == (0 if name.startswith("no faces") else 4)


@pytest.mark.parametrize(
    ("ply", "problem"),
    [
        (Ply(faces=((0, 1, 2, 3),)), "not of triangles .*element 'face': row 0"),
        (Ply(labels=(0,) * 6), r"is a labels\.ply"),
        (Ply(position_type="int"), "x, y, z have type int32, expected float"),
        (Ply(color_type="ushort"), r"have type uint16 and values from 10 to 255, expected uchar"),
        (Ply(color_type="ushort", colors=[(0, 1, 1)] * 6), "type uint16 and values from 0 to 1"),
        (Ply(color_type="float"), r"have type float32 and values from 10\.0 to 255\.0"),
        (Ply(color_type="float", colors=[(0, 0, float("nan"))] * 6), "values from nan to nan"),
        (Ply(positions=BIG * 20), "coordinates from 0 to 1,200, expected metres"),
        (Ply(positions=BIG - 2_000), "expected metres, finite and up to 1,000"),
        (Ply(positions=BIG * float("nan")), "coordinates from nan to nan, expected metres, finite"),
    ],
)
def test_meshes_that_cannot_be_used_are_refused_with_the_reason(tmp_path, ply, problem):
    (tmp_path / "room.ply").write_bytes(ply.encode())

    with pytest.raises(FileError, match=problem) as caught:
        read_mesh(tmp_path / "room.ply")

    assert "scenes of your own need binary PLY files" in caught.value.hint
    assert "download" not in caught.value.hint


def test_names_of_own_scenes_are_unlike_those_of_the_release():
    for name in ("room", "a", "B-2_c", "plot_01", "scene-kitchen", "7", LONGEST_NAME):
        assert SceneId(name).space is None
        assert SceneId.is_own(name)
    taken = ("scene0000_0", "scene00_00", "Scene0000_00", "scene1", "scene-0011_00", "0011_00")
    for name in (
        *taken,
        "scene0000_00_vh_clean_2",
        "",
        "a.b",
        "_a",
        "a/b",
        "..",
        "a" * 97,
        "\u0663",
    ):
        assert not SceneId.is_valid(name)
    assert not SceneId.is_own("scene0000_00")


TURN = np.array([[1, 0, 0, 0], [0, 0, -1, 0], [0, 1, 0, 0.5], [0, 0, 0, 1]])


@pytest.mark.parametrize("matrix", [None, TURN])
def test_sample_from_mesh_is_that_of_a_dataset_with_the_same_mesh(raw_dir, tmp_path, matrix):
    directory = raw_dir / "scans_test/room"
    lines = tiny.info_file(alignment=None if matrix is None else matrix.ravel().tolist())
    (directory / "room.txt").write_bytes(lines)
    words = ["--faces", "--compute-segments", *(() if matrix is None else ("--align-axis",))]
    run_main("process", raw_dir, "-o", tmp_path / "out", "--scannet200", *words)
    file = tmp_path / "room.ply"
    file.write_bytes((directory / "room_vh_clean_2.ply").read_bytes())

    expected = ScanNet(tmp_path / "out", split="test")["room"]
    options = {"axis_alignment": matrix, "compute_segments": True}
    sample = sample_from_mesh(file, labels="ScanNet200", **options)

    assert list(sample) == list(expected)
    for key in sample:
        np.testing.assert_array_equal(sample[key], expected[key])
        assert getattr(sample[key], "dtype", None) == getattr(expected[key], "dtype", None)


def test_sample_from_mesh_names_a_missing_file(tmp_path):
    with pytest.raises(FileNotFoundError, match=r"no\.ply: no such file"):
        sample_from_mesh(tmp_path / "no.ply")


def test_page_leads_from_a_mesh_to_a_picture_of_the_predictions(tmp_path):
    text = (Path(__file__).parent.parent / "docs/own-scans.md").read_text()
    section = text.partition("## From a mesh to a picture of the predictions")[2]
    (program,) = re.findall(r"^```python\n(.*?)^```$", section, re.DOTALL | re.MULTILINE)
    (commands,) = re.findall(r"^```sh\n(.*?)^```$", section, re.DOTALL | re.MULTILINE)

    outcome = run_words(PYTHON, "-W", "error", "-c", program, cwd=tmp_path)
    assert outcome.status == 0, outcome.stderr
    for line in commands.splitlines():
        if line.startswith("scannet-prep"):
            outcome = run_main(*line.split()[1:], cwd=tmp_path)
        else:
            outcome = run_words(*line.split(), cwd=tmp_path)
        assert outcome.status == 0, outcome.stderr

    assert (tmp_path / "room.png").read_bytes().startswith(b"\x89PNG")


@pytest.mark.parametrize("scene_id", [tiny.SCENE_ID, tiny.TEST_SCENE_ID])
@pytest.mark.parametrize("lacks", ["colours", "faces"])
def test_mesh_of_the_release_that_lacks_what_all_have_fails(tmp_path, scene_id, lacks):
    mesh = Ply(faces=None if lacks == "faces" else tiny.FACES).encode()
    if lacks == "colours":
        mesh = mesh.replace(b"red", b"Rot")
    annotation = {"_vh_clean_2.0.010000.segs.json": None, ".aggregation.json": None}
    files = annotation if scene_id == tiny.TEST_SCENE_ID else {}
    tiny.write_tiny(tmp_path / "raw", files | {"_vh_clean_2.ply": mesh}, scene_id)

    outcome = run_main("process", tmp_path / "raw", "-o", tmp_path / "out")

    assert outcome.status == 3
    assert lacks in outcome.stderr
    assert "download its files again" in outcome.stderr


def test_points_without_faces_have_the_normals_of_their_file(tmp_path):
    normals = [(0, 0, 3), (0, 0, 3), (3, 4, 0), (0, 0, 0), (float("nan"), 0, 0), (0, -1, 0)]
    rows = zip(tiny.POSITIONS, normals, strict=True)
    lines = ["ply", "format ascii 1.0", "element vertex 6"]
    lines += [f"property float {name}" for name in ("x", "y", "z", "nx", "ny", "nz")]
    lines += ["end_header", *(" ".join(map(str, (*row, *normal))) for row, normal in rows)]
    file = tmp_path / "cloud.ply"
    file.write_text("\n".join([*lines, ""]))

    sample = sample_from_mesh(file)
    turned = sample_from_mesh(file, axis_alignment=TURN)

    expected = np.array([(0, 0, 1), (0, 0, 1), (0.6, 0.8, 0), (0, 0, 0), (0, 0, 0), (0, -1, 0)])
    np.testing.assert_allclose(sample["normals"], expected, atol=1e-3)
    np.testing.assert_allclose(turned["normals"], expected @ TURN[:3, :3].T, atol=1e-3)
    with pytest.raises(FileError, match=r"cloud\.ply: its 0 faces join few of its 6 vertices"):
        sample_from_mesh(file, compute_segments=True)


def copy_in_layout(raw, out, place):
    """Copy the files of all scenes into the layout that `place` names."""
    for folder in (*(raw / "scans").iterdir(), *(raw / "scans_test").iterdir()):
        split = find_official_split(folder.name) or "train"
        target = out / place.format(split=split, scene=folder.name)
        target.mkdir(parents=True, exist_ok=True)
        for path in folder.iterdir():
            shutil.copy(path, target)


@pytest.mark.parametrize(
    "place", ["{split}", "scannetv2/{split}", "{split}/{scene}", "v2/{scene}", "."]
)
def test_scenes_in_any_layout_have_the_arrays_of_those_in_the_layout_of_the_release(
    whole_dir, tmp_path, place
):
    copy_in_layout(whole_dir / "raw", tmp_path / "raw", place)
    shutil.copy(whole_dir / "raw/scannetv2-labels.combined.tsv", tmp_path / "raw")

    outcome = run_main("process", tmp_path / "raw", "-o", tmp_path / "out")

    assert outcome.status == 0, outcome.stderr
    assert f"label map: {tmp_path}/raw/scannetv2-labels.combined.tsv" in outcome.stderr
    assert digests(tmp_path / "out") == digests(whole_dir / "processed")
    packed = run_main("pack", tmp_path / "raw", "-o", tmp_path / "raw.tar.zst")
    assert packed.status == 1
    assert "lies outside of scans/ and scans_test/" in packed.stderr


def test_scenes_in_folders_of_another_split_fail_and_hints_name_no_download_of_what_is_own(
    tmp_path,
):
    mesh = {"_vh_clean_2.ply": Ply().encode()}
    write_own(tmp_path / "raw", tiny.SCENE_ID, mesh)
    write_own(tmp_path / "raw", "scene0900_00", mesh, "scans")
    write_own(
        tmp_path / "raw", tiny.TEST_SCENE_ID, mesh | {".aggregation.json": tiny.aggregation_file()}
    )
    outcome = run_main("process", tmp_path / "raw", "-o", tmp_path / "out", "--json")
    named = run_main(
        "process",
        tmp_path / "raw",
        "-o",
        tmp_path / "named",
        "--json",
        "--scenes",
        "scene0900_00",
        "--splits",
        "train",
    )

    assert (outcome.status, named.status) == (3, 3)
    failures = {one["scene_id"]: one for one in outcome.json["failures"]}
    assert "is a train scene, but lies among test scenes" in failures[tiny.SCENE_ID]["message"]
    assert failures[tiny.TEST_SCENE_ID]["path"].endswith(".segs.json")
    for one in (*outcome.json["failures"], *named.json["failures"]):
        assert "download" not in one["hint"]


def test_copies_of_scenes_and_test_scenes_in_scans_are_one_note_each(whole_dir, tmp_path):
    raw = tmp_path / "raw"
    shutil.copytree(whole_dir / "raw/scans", raw / "scans")
    shutil.copytree(whole_dir / "raw/scans_test", raw / "scans", dirs_exist_ok=True)
    copy_in_layout(whole_dir / "raw", raw, "copies")

    outcome = run_main("process", raw, "-o", tmp_path / "out", "--json")

    assert outcome.status == 0
    messages = [note["message"] for note in outcome.json["notes"]]
    assert [message for message in messages if "lies in scans/, but is a test scene" in message]
    (copies,) = (note for note in outcome.json["notes"] if note["path"] == str(raw / "copies"))
    assert "and 9 more" in copies["message"]
