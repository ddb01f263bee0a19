"""Own scans: any triangle mesh in a PLY file, processed, read, viewed and sampled."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from archives import flip_middle, unpack_file, unpack_pipe
from commands import PYTHON, Outcome, digests, run_main, run_words

import scannet_prep
from scannet_prep import ScanNet, read_processed, sample_from_mesh
from scannet_prep.processed.folder import mark_unfinished
from scannet_prep.raw.own_scan import UP_AXES, UpAxis, find_own_scans
from scannet_prep.release.scene import SceneId
from scannet_prep.superpoints import segment_mesh
from scannet_prep.synthetic import write_release

# A square of two triangles in the plane y = 0, and a triangle that stands on its edge.
POSITIONS = [(0, 0, 0), (2, 0, 0), (2, 0, 3), (0, 0, 3), (1, 4, 3)]
FACES = [(0, 2, 1), (0, 3, 2), (3, 4, 2)]
COLORS = [(255, 0, 0), (0, 255, 0), (0, 0, 255), (51, 102, 153), (0, 0, 0)]


def write_ply(
    path: Path,
    positions: Sequence[Sequence[float]] = POSITIONS,
    colors: Sequence[Sequence[float]] | None = COLORS,
    color_type: str = "uchar",
    faces: Sequence[Sequence[int]] = FACES,
    coordinate_type: str = "float",
) -> Path:
    """Write a mesh as a PLY file of text."""
    header = ["ply", "format ascii 1.0", f"element vertex {len(positions)}"]
    header += [f"property {coordinate_type} {axis}" for axis in "xyz"]
    rows = [list(position) for position in positions]
    if colors is not None:
        header += [f"property {color_type} {name}" for name in ("red", "green", "blue")]
        rows = [[*row, *color] for row, color in zip(rows, colors, strict=True)]
    header += [f"element face {len(faces)}", "property list uchar int vertex_indices"]
    rows += [[len(face), *face] for face in faces]
    lines = [*header, "end_header", *(" ".join(map(str, row)) for row in rows)]
    path.write_text("\n".join(lines) + "\n")
    return path


def process(*words: str | Path) -> Outcome:
    return run_main("process", *words, "--json")


@pytest.fixture
def room(tmp_path: Path) -> Path:
    return write_ply(tmp_path / "room.ply")


@pytest.fixture
def own_dir(tmp_path: Path) -> Path:
    return tmp_path / "own"


def read_scene(own_dir: Path, name: str = "room") -> Any:
    return read_processed(own_dir / "test" / f"{name}.npz")


# Names and files.


def test_scans_are_named_after_their_files(room: Path, own_dir: Path) -> None:
    other = write_ply(room.with_name("Other-room_2.PLY"))

    assert process(room, other, "-o", own_dir).json["made"] == ["Other-room_2", "room"]

    assert sorted(path.name for path in (own_dir / "test").iterdir()) == [
        "Other-room_2.npz",
        "room.npz",
    ]


def test_folder_of_own_scans_has_no_notice_of_scannet(room: Path, own_dir: Path) -> None:
    process(room, "-o", own_dir)

    assert not (own_dir / "TERMS.txt").exists()


@pytest.mark.parametrize("name", ["my room", "scene0000_00", "Scene0011", "0011_00", "r\u00e4um"])
def test_name_that_cannot_be_used_is_refused_with_a_command(
    tmp_path: Path, own_dir: Path, name: str
) -> None:
    path = write_ply(tmp_path / f"{name}.ply")

    outcome = process(path, "-o", own_dir)

    assert outcome.status == 2
    assert str(path) in outcome.json["message"]
    assert "mv " in outcome.json["hint"]
    assert not own_dir.exists()


def test_two_files_of_one_name_are_refused(room: Path, own_dir: Path) -> None:
    folder = room.with_name("upstairs")
    folder.mkdir()
    other = write_ply(folder / "room.ply")

    outcome = process(room, other, "-o", own_dir)

    assert outcome.status == 2
    assert "have the same name" in outcome.json["message"]


@pytest.mark.parametrize("runs", ["one run", "two runs"])
def test_names_that_differ_only_in_case_are_refused(room: Path, own_dir: Path, runs: str) -> None:
    folder = room.with_name("upstairs")
    folder.mkdir()
    files = [room, write_ply(folder / "Room.ply")]
    if runs == "two runs":
        process(files.pop(0), "-o", own_dir)

    outcome = process(*files, "-o", own_dir)

    assert outcome.status == 2
    assert "Room and room differ only in case" in outcome.json["message"]


def test_missing_file_is_named_before_anything_is_made(room: Path, own_dir: Path) -> None:
    outcome = process(room, room.with_name("no.ply"), "-o", own_dir)

    assert outcome.status == 1
    assert "no.ply: no such file" in outcome.json["message"]
    assert not own_dir.exists()


def test_file_of_another_suffix_is_refused(room: Path, own_dir: Path) -> None:
    path = room.rename(room.with_suffix(".obj"))

    outcome = process(path, "-o", own_dir)

    assert outcome.status == 1
    assert "expected a PLY file" in outcome.json["message"]


def test_folder_among_files_is_refused(room: Path, own_dir: Path) -> None:
    outcome = process(room, room.parent, "-o", own_dir)

    assert outcome.status == 2
    assert "is a folder" in outcome.json["message"]


@pytest.mark.parametrize(
    "words", [["--scenes", "scene0000_00"], ["--limit", "1"], ["--strict"], ["--splits", "test"]]
)
def test_option_of_the_release_is_refused(room: Path, own_dir: Path, words: list[str]) -> None:
    outcome = process(room, "-o", own_dir, *words)

    assert outcome.status == 2
    assert outcome.json["message"].startswith(words[0])


def test_scale_is_refused_for_the_release(tmp_path: Path) -> None:
    outcome = process(tmp_path, "--scale", "2")

    assert outcome.status == 2
    assert "--scale is for own scans" in outcome.json["message"]


# Contents.


def test_points_are_those_of_the_file(room: Path, own_dir: Path) -> None:
    process(room, "-o", own_dir, "--faces")

    scene = read_scene(own_dir)
    assert scene.points.tolist() == [list(position) for position in POSITIONS]
    assert scene.faces.tolist() == [list(face) for face in FACES]
    assert scene.colors.tolist() == [list(color) for color in COLORS]


def test_nothing_of_an_own_scan_is_annotated(room: Path, own_dir: Path) -> None:
    process(room, "-o", own_dir)

    scene = read_scene(own_dir)
    assert not scene.nyu40_ids.any()
    assert not scene.scannet_ids.any()
    assert (scene.instances == -1).all()


def test_own_scan_belongs_to_the_test_split(room: Path, own_dir: Path) -> None:
    process(room, "-o", own_dir)

    assert ScanNet(own_dir, split="test").scene_ids == ["room"]


def test_float_colors_become_bytes(tmp_path: Path, own_dir: Path) -> None:
    shares = [[number / 255 for number in color] for color in COLORS]
    path = write_ply(tmp_path / "room.ply", colors=shares, color_type="float")

    process(path, "-o", own_dir)

    assert read_scene(own_dir).colors.tolist() == [list(color) for color in COLORS]


def test_float_colors_beyond_1_are_refused(tmp_path: Path, own_dir: Path) -> None:
    path = write_ply(tmp_path / "room.ply", color_type="float")

    outcome = process(path, "-o", own_dir)

    assert outcome.status == 3
    assert "vertex 0 has the colour [255.0, 0.0, 0.0]" in outcome.json["failures"][0]["message"]


def test_mesh_without_colors_is_grey_with_a_warning(tmp_path: Path, own_dir: Path) -> None:
    path = write_ply(tmp_path / "room.ply", colors=None)

    outcome = process(path, "-o", own_dir)

    assert (read_scene(own_dir).colors == 128).all()
    assert outcome.json["warnings"][0]["kind"] == "no_colors"


def test_normals_follow_the_faces(room: Path, own_dir: Path) -> None:
    process(room, "-o", own_dir)

    # Vertices 0 and 1 belong to the square only, whose triangles turn from z to x.
    assert read_scene(own_dir).normals[:2].tolist() == [[0, 1, 0], [0, 1, 0]]


def test_bad_file_does_not_stop_the_others(room: Path, own_dir: Path) -> None:
    bad = room.with_name("bad.ply")
    bad.write_bytes(room.read_bytes()[:-20])

    outcome = process(room, bad, "-o", own_dir)

    assert outcome.status == 3
    assert outcome.json["made"] == ["room"]
    assert not (own_dir / "test/bad.npz").exists()


def test_hint_of_a_bad_file_is_not_to_download_it(room: Path, own_dir: Path) -> None:
    room.write_bytes(room.read_bytes()[:-20])

    (failure,) = process(room, "-o", own_dir).json["failures"]

    assert "MeshLab" in failure["hint"]
    assert "download" not in failure["hint"]


def test_scan_that_failed_is_forgotten_by_the_next_run(room: Path, own_dir: Path) -> None:
    bad = room.with_name("bad.ply")
    bad.write_bytes(b"")
    process(room, bad, "-o", own_dir)

    process(room, "-o", own_dir)

    assert run_main("verify", own_dir).status == 0
    assert not (own_dir / "failed.txt").exists()


def test_list_of_failed_scans_does_not_suggest_scenes(room: Path, own_dir: Path) -> None:
    room.write_bytes(b"")

    process(room, "-o", own_dir)

    assert "--scenes" not in (own_dir / "failed.txt").read_text()


def test_polygons_are_refused(tmp_path: Path, own_dir: Path) -> None:
    path = write_ply(tmp_path / "room.ply", faces=[(0, 1, 2, 3)])

    (failure,) = process(path, "-o", own_dir).json["failures"]

    assert "face 0 is not a triangle" in failure["message"]


# Units and alignment.


def test_scale_converts_to_metres(tmp_path: Path, own_dir: Path) -> None:
    millimetres = [[1000 * number for number in position] for position in POSITIONS]
    path = write_ply(tmp_path / "room.ply", millimetres)

    process(path, "-o", own_dir, "--scale", "0.001")

    np.testing.assert_array_equal(read_scene(own_dir).points, np.array(POSITIONS, np.float32))


def test_extent_above_100_m_is_refused_with_the_scale(tmp_path: Path, own_dir: Path) -> None:
    millimetres = [[1000 * number for number in position] for position in POSITIONS]
    path = write_ply(tmp_path / "room.ply", millimetres)

    (failure,) = process(path, "-o", own_dir).json["failures"]

    assert "is 4,000 m long, expected at most 100 m" in failure["message"]
    assert "--scale 0.001" in failure["hint"]


def test_extent_of_100_m_is_accepted(tmp_path: Path, own_dir: Path) -> None:
    path = write_ply(tmp_path / "room.ply", [[25 * n for n in position] for position in POSITIONS])

    assert process(path, "-o", own_dir).status == 0


def test_scan_far_from_the_origin_is_refused(tmp_path: Path, own_dir: Path) -> None:
    far = [[x + 400_000, y, z] for x, y, z in POSITIONS]
    path = write_ply(tmp_path / "room.ply", far, coordinate_type="double")

    (failure,) = process(path, "-o", own_dir).json["failures"]

    assert "lies 400,001 m from the origin" in failure["message"]


@pytest.mark.parametrize("unit", [1, 0.001])
def test_matrix_shifts_a_scan_in_coordinates_of_a_map_exactly(
    tmp_path: Path, own_dir: Path, unit: float
) -> None:
    far = [[(x + 400_000.25) / unit, (y + 5_800_000.5) / unit, z / unit] for x, y, z in POSITIONS]
    path = write_ply(tmp_path / "room.ply", far, coordinate_type="double")
    matrix = tmp_path / "shift.txt"
    matrix.write_text("1 0 0 -400000.25\n0 1 0 -5800000.5\n0 0 1 0\n0 0 0 1\n")

    process(path, "-o", own_dir, "--matrix", matrix, "--scale", str(unit))

    np.testing.assert_allclose(read_scene(own_dir).points, POSITIONS, atol=1e-8)


def test_far_scan_with_floats_is_refused_whatever_the_matrix(tmp_path: Path, own_dir: Path) -> None:
    far = [[x + 400_000, y, z] for x, y, z in POSITIONS]
    path = write_ply(tmp_path / "room.ply", far)
    matrix = tmp_path / "shift.txt"
    matrix.write_text("1 0 0 -400000\n0 1 0 0\n0 0 1 0\n0 0 0 1\n")

    (failure,) = process(path, "-o", own_dir, "--matrix", matrix).json["failures"]

    assert "its floats are rounded to millimetres" in failure["message"]


@pytest.mark.parametrize("scale", ["0", "-1", "nan", "inf", "1e-300"])
def test_scale_that_is_no_unit_is_refused(room: Path, own_dir: Path, scale: str) -> None:
    outcome = process(room, "-o", own_dir, "--scale", scale)

    assert outcome.status == 2
    assert "metres per unit" in outcome.json["message"]


@pytest.mark.parametrize("up", UP_AXES)
def test_up_axis_becomes_z(tmp_path: Path, own_dir: Path, up: UpAxis) -> None:
    sign = -1 if up.startswith("-") else 1
    direction = [0.0, 0.0, 0.0]
    direction["xyz".index(up[-1])] = sign * 3
    path = write_ply(tmp_path / "room.ply", [(0, 0, 0), tuple(direction), (1, 1, 1)], colors=None,
                     faces=[(0, 1, 2)])  # fmt: skip

    process(path, "-o", own_dir, f"--up={up}")

    assert read_scene(own_dir).points[1].tolist() == [0, 0, 3]


@pytest.mark.parametrize("up", UP_AXES)
def test_up_axis_is_a_rotation(tmp_path: Path, up: UpAxis) -> None:
    path = write_ply(tmp_path / "room.ply")

    (scan,) = find_own_scans([path], up=up).values()

    matrix = np.array(scan.alignment).reshape(4, 4)
    assert np.linalg.det(matrix[:3, :3]) == 1
    np.testing.assert_array_equal(matrix @ matrix.T, np.eye(4))


def test_alignment_is_stored(room: Path, own_dir: Path) -> None:
    process(room, "-o", own_dir, "--up", "y")

    scene = read_scene(own_dir)
    assert scene.meta.options.align_axis
    assert scene.axis_alignment.tolist() == [
        [1, 0, 0, 0],
        [0, 0, -1, 0],
        [0, 1, 0, 0],
        [0, 0, 0, 1],
    ]


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("1 2 3", "has 3 values, expected 16"),
        ("2 0 0 0 0 2 0 0 0 0 2 0 0 0 0 1", "is not a rotation with a shift: it deviates by 3"),
        ("1 0 0 0 0 1 0 0 0 0 -1 0 0 0 0 1", "it mirrors the points"),
        ("nan " * 16, "has 'nan' among them"),
    ],
)
def test_matrix_that_is_no_alignment_is_refused(
    room: Path, own_dir: Path, text: str, problem: str
) -> None:
    matrix = room.with_name("matrix.txt")
    matrix.write_text(text)

    outcome = process(room, "-o", own_dir, "--matrix", matrix)

    assert outcome.status == 1
    assert problem in outcome.json["message"]


def test_align_axis_without_an_alignment_is_refused(room: Path, own_dir: Path) -> None:
    outcome = process(room, "-o", own_dir, "--align-axis")

    assert outcome.status == 2
    assert "--up z" in outcome.json["hint"]


def test_scan_without_alignment_is_refused_beside_aligned_ones(room: Path, own_dir: Path) -> None:
    process(room, "-o", own_dir, "--up", "y")
    other = write_ply(room.with_name("other.ply"))

    outcome = process(other, "-o", own_dir)

    assert outcome.status == 2
    assert f"{own_dir} has --align-axis" in outcome.json["message"]
    assert "--up z" in outcome.json["hint"]


# One folder.


def test_second_run_keeps_scans_that_are_up_to_date(room: Path, own_dir: Path) -> None:
    process(room, "-o", own_dir)

    assert process(room, "-o", own_dir).json["kept"] == ["room"]


def test_rerun_with_checksums_keeps_scans(room: Path, own_dir: Path) -> None:
    process(room, "-o", own_dir, "--up", "y")

    assert process(room, "-o", own_dir, "--up", "y", "--checksum").json["kept"] == ["room"]


@pytest.mark.parametrize("words", [["--scale", "2"], ["--checksum", "--scale", "2"]])
def test_scan_with_another_scale_is_made_again(room: Path, own_dir: Path, words: list[str]) -> None:
    process(room, "-o", own_dir)

    assert process(room, "-o", own_dir, *words).json["made"] == ["room"]

    assert read_scene(own_dir).points[1].tolist() == [4, 0, 0]


def test_scan_with_another_alignment_is_made_again(room: Path, own_dir: Path) -> None:
    process(room, "-o", own_dir, "--up", "y")

    assert process(room, "-o", own_dir, "--up", "z").json["made"] == ["room"]


def test_changed_file_is_made_again(room: Path, own_dir: Path) -> None:
    process(room, "-o", own_dir)
    write_ply(room, colors=None)

    assert process(room, "-o", own_dir).json["made"] == ["room"]


def test_scans_that_are_not_named_stay(room: Path, own_dir: Path) -> None:
    process(room, "-o", own_dir)
    other = write_ply(room.with_name("other.ply"))

    assert process(other, "-o", own_dir).json["made"] == ["other"]

    assert list(json.loads((own_dir / "manifest.json").read_text())["scenes"]) == ["other", "room"]


def test_other_options_are_refused(room: Path, own_dir: Path) -> None:
    process(room, "-o", own_dir)
    before = digests(own_dir)

    outcome = process(room, "-o", own_dir, "--faces")

    assert outcome.status == 2
    assert digests(own_dir) == before


def test_folder_in_which_all_scans_failed_takes_other_options(room: Path, own_dir: Path) -> None:
    room.write_bytes(b"")
    process(room, "-o", own_dir)
    write_ply(room)

    outcome = process(room, "-o", own_dir, "--faces")

    assert outcome.json["made"] == ["room"]


def test_forced_options_are_refused_for_some_of_the_scans(room: Path, own_dir: Path) -> None:
    other = write_ply(room.with_name("other.ply"))
    process(room, other, "-o", own_dir)

    outcome = process(room, "-o", own_dir, "--faces", "--force")

    assert outcome.status == 2
    assert "name the files of all its scans" in outcome.json["hint"]


def test_own_scans_are_refused_in_a_folder_of_the_release(room: Path, out_dir: Path) -> None:
    before = digests(out_dir)

    outcome = process(room, "-o", out_dir)

    assert outcome.status == 2
    assert "do not mix" in outcome.json["message"]
    assert digests(out_dir) == before


def test_release_is_refused_in_a_folder_of_own_scans(
    room: Path, own_dir: Path, raw_dir: Path
) -> None:
    process(room, "-o", own_dir)

    outcome = process(raw_dir, "-o", own_dir)

    assert outcome.status == 2
    assert "do not mix" in outcome.json["message"]


@pytest.mark.parametrize("unpack", [unpack_file, unpack_pipe])
def test_own_scans_are_not_unpacked_into_a_folder_of_the_release(
    room: Path, own_dir: Path, out_dir: Path, tmp_path: Path, unpack: Callable[..., Outcome]
) -> None:
    process(room, "-o", own_dir)
    archive = tmp_path / "own.tar.zst"
    run_main("pack", own_dir, "-o", archive)
    before = digests(out_dir)

    outcome = unpack(archive, "-o", out_dir)

    assert outcome.status == 2
    assert "do not mix" in outcome.stderr
    assert digests(out_dir) == before


def test_own_scans_of_a_damaged_archive_are_not_unpacked_into_a_folder_of_the_release(
    room: Path, own_dir: Path, out_dir: Path, tmp_path: Path
) -> None:
    process(room, "-o", own_dir)
    archive = tmp_path / "own.tar.zst"
    run_main("pack", own_dir, "-o", archive)
    # The manifest is lost, and a pipe shows the index only at its end.
    flip_middle(archive, "files")

    outcome = unpack_pipe(archive, "-o", out_dir)

    assert outcome.status == 2
    assert not (out_dir / "test/room.npz").exists()


def test_release_and_own_scans_are_not_unpacked_together(
    room: Path, own_dir: Path, out_dir: Path, tmp_path: Path
) -> None:
    process(room, "-o", own_dir)
    archives = [tmp_path / "own.tar.zst", tmp_path / "release.tar.zst"]
    run_main("pack", own_dir, "-o", archives[0])
    run_main("pack", out_dir, "-o", archives[1])

    outcome = run_main("unpack", *archives, "-o", tmp_path / "both")

    assert outcome.status == 2
    assert not list((tmp_path / "both").rglob("*.npz"))


def test_dry_run_writes_nothing(room: Path, own_dir: Path) -> None:
    assert process(room, "-o", own_dir, "--dry-run").json["to_process"] == ["room"]

    assert not own_dir.exists()


# What reads the folder.


def test_folder_of_own_scans_is_whole(room: Path, own_dir: Path) -> None:
    process(room, "-o", own_dir, "--compute-segments")

    assert run_main("verify", own_dir).status == 0


def test_info_counts_own_scans(room: Path, own_dir: Path) -> None:
    process(room, "-o", own_dir)

    assert run_main("info", own_dir, "--json").json["splits"]["test"]["scenes"] == 1


def test_folder_of_the_split_of_own_scans_suggests_the_one_above(room: Path, own_dir: Path) -> None:
    process(room, "-o", own_dir)

    outcome = run_main("info", own_dir / "test")

    assert f"give the folder above it, {own_dir}, and choose test" in outcome.stderr


def test_own_scan_can_be_viewed_by_its_name(room: Path, own_dir: Path, tmp_path: Path) -> None:
    process(room, "-o", own_dir, "--faces")

    outcome = run_main("view", "room", "--source", own_dir, "-o", tmp_path / "page.html")

    assert outcome.status == 0
    assert (tmp_path / "page.html").stat().st_size > 10_000


@pytest.mark.parametrize("ending", [".txt", ".npy", "_pred.npy"])
def test_predictions_of_an_own_scan_can_be_viewed(
    room: Path, own_dir: Path, tmp_path: Path, ending: str
) -> None:
    process(room, "-o", own_dir)
    pred_dir = tmp_path / "pred"
    pred_dir.mkdir()
    if ending == ".txt":
        (pred_dir / "room.txt").write_text("3\n" * 5)
    else:
        np.save(pred_dir / f"room{ending}", np.full(5, 2))

    outcome = run_main(
        "view", "room", "--source", own_dir, "--pred", pred_dir, "-o", tmp_path / "page.html"
    )

    assert outcome.status == 0, outcome.stderr


def test_own_scans_can_be_packed_and_read(room: Path, own_dir: Path, tmp_path: Path) -> None:
    process(room, "-o", own_dir, "--compute-segments")
    archive = tmp_path / "own.tar.zst"

    assert run_main("pack", own_dir, "-o", archive).status == 0

    assert ScanNet(archive, split="test").scene_ids == ["room"]


@pytest.fixture
def own_dir_with_failure(room: Path, own_dir: Path) -> Path:
    """A folder of one own scan, in which another one has failed."""
    broken = room.with_name("broken.ply")
    broken.write_bytes(b"ply\n")
    assert process(room, broken, "-o", own_dir).status == 3
    return own_dir


def test_failed_own_scan_is_reported_if_its_split_is_packed(
    own_dir_with_failure: Path, tmp_path: Path
) -> None:
    archive = tmp_path / "own.tar.zst"

    outcome = run_main("pack", own_dir_with_failure, "-o", archive, "--splits", "test", "--json")

    assert list(outcome.json["missing"]) == ["broken"]


def test_failed_own_scan_is_listed_if_its_split_is_unpacked(
    own_dir_with_failure: Path, tmp_path: Path
) -> None:
    archive = tmp_path / "own.tar.zst"
    run_main("pack", own_dir_with_failure, "-o", archive)

    run_main("unpack", archive, "-o", tmp_path / "copy", "--splits", "test")

    assert "broken" in (tmp_path / "copy" / "failed.txt").read_text().splitlines()


def test_archive_of_own_scans_has_no_notice_of_scannet(
    room: Path, own_dir: Path, tmp_path: Path
) -> None:
    process(room, "-o", own_dir)
    archive = tmp_path / "own.tar.zst"
    run_main("pack", own_dir, "-o", archive)

    assert run_main("info", archive, "--json").json["head"]["notice"] == ""


def test_own_scan_can_be_named_for_subsets(room: Path, own_dir: Path) -> None:
    process(room, write_ply(room.with_name("other.ply")), "-o", own_dir)

    assert ScanNet(own_dir, split="test", scenes="room").scene_ids == ["room"]


# Computed segments.


def test_segments_of_own_scans_are_computed(room: Path, own_dir: Path) -> None:
    process(room, "-o", own_dir, "--compute-segments")

    scene = read_scene(own_dir)
    expected = segment_mesh(np.array(POSITIONS, np.float32), np.array(FACES))
    assert scene.segments.tolist() == expected.tolist()
    assert scene.meta.segments_source == "computed"


# Samples without a folder.


@pytest.mark.parametrize(
    ("words", "options"),
    [
        ([], {}),
        (["--faces", "--compute-segments"], {"faces": True, "compute_segments": True}),
        (["--up", "y", "--scale", "0.5"], {"up": "y", "scale": 0.5}),
        (["--scannet200"], {"labels": "ScanNet200"}),
    ],
)
def test_sample_from_mesh_is_that_of_a_dataset(
    room: Path, own_dir: Path, words: list[str], options: dict[str, Any]
) -> None:
    process(room, "-o", own_dir, *words)
    expected: dict[str, Any] = dict(ScanNet(own_dir, split="test")[0])

    sample = sample_from_mesh(room, **options)

    assert list(sample) == list(expected)
    for key, value in expected.items():
        np.testing.assert_array_equal(sample[key], value)
        assert getattr(sample[key], "dtype", None) == getattr(value, "dtype", None)


def test_sample_from_mesh_applies_a_transform_as_a_dataset_does(room: Path, own_dir: Path) -> None:
    process(room, "-o", own_dir)

    def jitter(sample: Any, generator: np.random.Generator) -> Any:
        sample["points"] = sample["points"] + generator.random(sample["points"].shape)
        return sample

    expected = ScanNet(own_dir, split="test", transform=jitter, seed=3)[0]
    sample = sample_from_mesh(room, transform=jitter, seed=3)

    np.testing.assert_array_equal(sample["points"], expected["points"])


def test_sample_from_mesh_names_a_missing_file(tmp_path: Path) -> None:
    with pytest.raises(scannet_prep.ScanNetPrepError, match=r"no.ply: no such file"):
        sample_from_mesh(tmp_path / "no.ply")


# Names.


@pytest.mark.parametrize("name", ["room", "a", "scene0000_00_vh_clean_2", "B-2_c", "scene11"])
def test_own_name_is_a_scene_id_without_space(name: str) -> None:
    assert SceneId(name).space is None


@pytest.mark.parametrize("name", ["", "a.b", "_a", "a/b", "..", "a" * 97, "scene0011", "\u0663"])
def test_text_that_is_no_name_is_no_scene_id(name: str) -> None:
    assert not SceneId.is_valid(name)


def test_mesh_of_the_release_processed_as_own_scan_has_equal_arrays(
    tmp_path: Path, own_dir: Path
) -> None:
    write_release(tmp_path / "raw", ["scene0707_00"], vertices=1000)
    mesh = tmp_path / "raw/scans_test/scene0707_00/scene0707_00_vh_clean_2.ply"
    process(tmp_path / "raw", "-o", tmp_path / "out")
    process(mesh, "-o", own_dir)

    own = read_scene(own_dir, "scene0707_00_vh_clean_2")
    released = read_processed(tmp_path / "out/test/scene0707_00.npz")
    for key in ("points", "normals", "colors", "labels", "instances"):
        np.testing.assert_array_equal(getattr(own, key), getattr(released, key))


# The page.


def test_page_leads_from_a_mesh_to_a_picture_of_the_predictions(tmp_path: Path) -> None:
    text = (Path(__file__).parent.parent / "docs/own-scans.md").read_text()
    section = text.partition("## From a mesh to a picture of the predictions")[2]
    (program,) = re.findall(r"^```python\n(.*?)^```$", section, re.DOTALL | re.MULTILINE)
    (commands,) = re.findall(r"^```sh\n(.*?)^```$", section, re.DOTALL | re.MULTILINE)

    outcome = run_words(PYTHON, "-W", "error", "-c", program, cwd=tmp_path)
    assert outcome.status == 0, outcome.stderr
    for line in commands.splitlines():
        outcome = run_main(*line.split()[1:], cwd=tmp_path)
        assert outcome.status == 0, outcome.stderr

    assert (tmp_path / "room.png").read_bytes().startswith(b"\x89PNG")


# Segments that are computed again.


def test_verify_computes_segments_of_own_scans_again(room: Path, own_dir: Path) -> None:
    process(room, "-o", own_dir, "--compute-segments", "--up", "y", "--scale", "0.3")

    outcome = run_main("verify", own_dir, "--checksum")

    assert outcome.status == 0, outcome.stdout
    assert "segments computed: 1 scene" in outcome.stdout


# Long names.

LONGEST_NAME = "a" * 96


def test_dataset_reads_scans_with_long_names(room: Path, own_dir: Path) -> None:
    names = ["living-room-upstairs", "living-room-upstairs-2"]
    process(*[write_ply(room.with_name(f"{name}.ply")) for name in names], "-o", own_dir)

    dataset = ScanNet(own_dir, split="test")

    assert dataset.scene_ids == names
    assert [sample["scene_id"] for sample in dataset] == names


def test_dataset_finds_scan_by_long_name(room: Path, own_dir: Path) -> None:
    process(room.rename(room.with_name("living-room-upstairs.ply")), "-o", own_dir)

    sample = ScanNet(own_dir, split="test")["living-room-upstairs"]

    assert sample["scene_id"] == "living-room-upstairs"


def test_scan_with_longest_name_can_be_packed(room: Path, own_dir: Path, tmp_path: Path) -> None:
    process(room.rename(room.with_name(f"{LONGEST_NAME}.ply")), "-o", own_dir)
    archive = tmp_path / "own.tar.zst"

    assert run_main("pack", own_dir, "-o", archive).status == 0

    assert ScanNet(archive, split="test").scene_ids == [LONGEST_NAME]


def test_longer_name_is_refused(room: Path, own_dir: Path) -> None:
    outcome = process(room.rename(room.with_name(f"{LONGEST_NAME}a.ply")), "-o", own_dir)

    assert outcome.status == 2
    assert "cannot be the name of a scan" in outcome.json["message"]


# Exports.


def test_mask3d_keeps_scans_apart_whose_names_differ_by_scene(
    room: Path, own_dir: Path, tmp_path: Path
) -> None:
    process(room, write_ply(room.with_name("sceneroom.ply")), "-o", own_dir, "--compute-segments")

    run_main("export", own_dir, "--format", "mask3d", "-o", tmp_path / "mask3d")

    matrices = sorted(path.name for path in (tmp_path / "mask3d/test").iterdir())
    assert matrices == ["room.npy", "sceneroom.npy"]


@pytest.mark.parametrize(
    ("words", "expected"),
    [([], [0, 0, 3]), (["--aligned"], [0, 0, 3]), (["--unaligned"], [0, 3, 0])],
)
def test_export_keeps_own_scans_upright(
    tmp_path: Path, own_dir: Path, words: list[str], expected: list[float]
) -> None:
    path = write_ply(tmp_path / "room.ply", [(0, 0, 0), (0, 3, 0), (1, 1, 1)], None,
                     faces=[(0, 1, 2)])  # fmt: skip
    process(path, "-o", own_dir, "--up", "y", "--compute-segments")

    run_main("export", own_dir, "--format", "mask3d", "-o", tmp_path / "mask3d", *words)

    assert np.load(tmp_path / "mask3d/test/room.npy")[1, :3].tolist() == expected


# Far from the origin.


def write_far_wall(path: Path, shift: float) -> Path:
    """Write two walls of small triangles that meet at a right angle, with doubles."""
    positions = []
    for column in range(21):
        x = min(column, 10) / 100 + shift
        y = max(column - 10, 0) / 100
        positions += [(x, y, row / 100) for row in range(11)]
    faces = []
    for column in range(20):
        for row in range(10):
            a = 11 * column + row
            faces += [(a, a + 11, a + 1), (a + 1, a + 11, a + 12)]
    return write_ply(path, positions, colors=None, faces=faces, coordinate_type="double")


@pytest.fixture
def far_dir(tmp_path: Path, own_dir: Path) -> Path:
    """A folder with a scan that a matrix moves to the origin."""
    matrix = tmp_path / "shift.txt"
    matrix.write_text("1 0 0 -400000\n0 1 0 0\n0 0 1 0\n0 0 0 1\n")
    path = write_far_wall(tmp_path / "far.ply", shift=400_000)
    process(path, "-o", own_dir, "--matrix", matrix, "--compute-segments")
    return own_dir


def test_segments_of_a_far_scan_are_those_of_a_near_one(far_dir: Path, tmp_path: Path) -> None:
    near = write_far_wall(tmp_path / "near.ply", shift=0)
    process(near, "-o", far_dir, "--up", "z")

    far_scene = read_scene(far_dir, "far")

    np.testing.assert_array_equal(far_scene.segments, read_scene(far_dir, "near").segments)


def test_verify_computes_segments_of_a_far_scan_again(far_dir: Path) -> None:
    outcome = run_main("verify", far_dir, "--checksum")

    assert outcome.status == 0, outcome.stdout


# Messages.


def test_suggested_name_is_that_of_no_file(room: Path, own_dir: Path) -> None:
    write_ply(room.with_name("my-room.ply"))
    path = write_ply(room.with_name("my r\u00f6om.ply")).rename(room.with_name("my room.ply"))

    outcome = process(path, "-o", own_dir)

    assert outcome.json["hint"].endswith(f"{room.with_name('my-room-2.ply')}")


@pytest.mark.parametrize(
    ("name", "suggestion"),
    [
        ("r\u00e4um", "raum"),
        ("scene0011_00", "scan-scene0011_00"),
        (".hidden", "hidden"),
        ("a.b (1)", "a-b-1"),
        ("\u623f", "scan"),
        ("a" * 120, "a" * 80),
    ],
)
def test_suggested_name_resembles_the_file(
    tmp_path: Path, own_dir: Path, name: str, suggestion: str
) -> None:
    outcome = process(write_ply(tmp_path / f"{name}.ply"), "-o", own_dir)

    assert outcome.json["hint"].endswith(f" {tmp_path / suggestion}.ply")


def test_suggested_command_takes_no_file_for_an_option(
    room: Path, own_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    room.rename(room.with_name("-x.ply"))
    monkeypatch.chdir(room.parent)

    outcome = process("./-x.ply", "-o", own_dir)

    assert outcome.json["hint"].endswith("mv ./-x.ply x.ply")


def test_file_that_is_named_twice_is_refused(room: Path, own_dir: Path) -> None:
    outcome = process(room, room, "-o", own_dir)

    assert outcome.json["message"].endswith("room.ply is named twice")


def test_file_that_is_named_by_two_paths_is_refused_as_one(room: Path, own_dir: Path) -> None:
    same = room.parent / "own/.." / "room.ply"
    own_dir.mkdir()

    outcome = process(room, same, "-o", own_dir)

    assert outcome.json["message"].endswith("room.ply is named twice")


def test_folder_of_meshes_gets_the_command_that_names_them(room: Path, own_dir: Path) -> None:
    outcome = process(room.parent, "-o", own_dir)

    assert outcome.json["hint"].endswith(f"scannet-prep process {room.parent}/*.ply")


def test_compressed_file_gets_the_command_that_unpacks_it(room: Path, own_dir: Path) -> None:
    path = room.rename(room.with_name("room.ply.gz"))

    outcome = process(path, "-o", own_dir)

    assert outcome.json["hint"] == f"unpack it: gunzip -k {path}"


def test_line_ends_of_cr_alone_are_named(room: Path, own_dir: Path) -> None:
    room.write_bytes(room.read_bytes().replace(b"\n", b"\r"))

    (failure,) = process(room, "-o", own_dir).json["failures"]

    assert "expected a line of ply, ended by LF or CR LF" in failure["message"]


@pytest.mark.parametrize("encoding", ["utf-8", "latin-1"])
@pytest.mark.parametrize("word", ["comment", "obj_info"])
def test_comments_need_not_be_ascii(room: Path, own_dir: Path, word: str, encoding: str) -> None:
    comment = f"{word} TextureFile K\u00fcche.png\nelement vertex"
    text = room.read_text().replace("element vertex", comment)
    room.write_bytes(text.encode(encoding))

    process(room, "-o", own_dir)

    assert read_scene(own_dir).points.tolist() == [list(position) for position in POSITIONS]


def test_strips_of_triangles_are_refused(room: Path, own_dir: Path) -> None:
    text = room.read_text().replace("element face", "element tristrips")
    room.write_text(text)

    (failure,) = process(room, "-o", own_dir).json["failures"]

    assert "has strips of triangles" in failure["message"]


def test_mesh_with_labels_is_refused_as_such(room: Path, own_dir: Path) -> None:
    room.write_text(room.read_text().replace("property float x", "property uchar label"))

    (failure,) = process(room, "-o", own_dir).json["failures"]

    assert "has labels" in failure["message"]


def test_dataset_of_another_split_names_that_of_own_scans(room: Path, own_dir: Path) -> None:
    process(room, "-o", own_dir)

    with pytest.raises(scannet_prep.ScanNetPrepError, match="belong to the split test"):
        ScanNet(own_dir, split="train")


def test_submit_does_not_suggest_to_add_the_release(
    room: Path, own_dir: Path, tmp_path: Path
) -> None:
    process(room, "-o", own_dir)
    np.save(tmp_path / "room.npy", np.full(5, 2))

    outcome = run_main("submit", tmp_path, "--gt", own_dir, "-o", tmp_path / "x.zip", "--json")

    assert outcome.json["hint"] == "choose a folder of the release: this one is for own scans"


# Runs that were interrupted.


def test_own_scans_are_refused_where_the_release_is_unfinished(room: Path, own_dir: Path) -> None:
    own_dir.mkdir()
    mark_unfinished(own_dir, ["scene0000_00"])

    outcome = process(room, "-o", own_dir)

    assert outcome.status == 2
    assert "scenes of the release (scene0000_00) do not mix" in outcome.json["message"]


def test_release_is_refused_where_own_scans_are_unfinished(raw_dir: Path, own_dir: Path) -> None:
    own_dir.mkdir()
    mark_unfinished(own_dir, ["room"])

    outcome = process(raw_dir, "-o", own_dir)

    assert outcome.status == 2
    assert "own scans (room)" in outcome.json["message"]


def test_unfinished_scan_whose_file_is_gone_can_be_left_out(room: Path, own_dir: Path) -> None:
    own_dir.mkdir()
    mark_unfinished(own_dir, ["lost", "room"])

    outcome = run_main("process", room, "-o", own_dir)

    assert f"rm {own_dir / 'unfinished.txt'}" in outcome.stdout


def test_release_forgets_own_scans_that_failed(room: Path, own_dir: Path, raw_dir: Path) -> None:
    room.write_bytes(b"")
    process(room, "-o", own_dir)

    process(raw_dir, "-o", own_dir, "--limit", "1")

    assert json.loads((own_dir / "manifest.json").read_text())["failures"] == {}
