"""Tests of `report`: the figures, the page, and the comparison of two places."""

from __future__ import annotations

import hashlib
import json
import re
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
from archives import flip_middle
from commands import (
    Outcome,
    count_reads_in_new_process,
    edit_json,
    patch,
    raw_file,
    run_main,
)
from tiny import SCENE_ID, write_tiny

from scannet_prep import SCANNET20, read_processed, tables
from scannet_prep.base.progress import Progress
from scannet_prep.errors import FileError
from scannet_prep.processed.scene import encode_processed
from scannet_prep.raw.lock import LOCK_NAME, LockEntry, digest_file, encode_lock
from scannet_prep.release.label_map import LABEL_MAP_NAME
from scannet_prep.report.changes import Change, fold_changes
from scannet_prep.report.figures import MEASURES
from scannet_prep.report.measures import SceneMeasures, measure_scene
from scannet_prep.stages import report as stages_report
from scannet_prep.synthetic import write_release
from scannet_prep.view.charts import AxisScale, draw_bars, draw_histogram

TRAIN = "scene0000_00"
VAL = "scene0011_00"
TEST = "scene0707_00"

FLOOR_ID = 2
WALL_ID = 1
CHAIR_ID = 5
IDENTITY = np.eye(4)


def report(*words: str | Path) -> Outcome:
    return run_main("report", *words)


def report_json(place: Path) -> Any:
    return report(place, "--json").json["report"]


# Reading.


def test_report_reads_each_processed_scene_once(whole_dir: Path) -> None:
    counts = count_reads_in_new_process("report", whole_dir / "processed")

    names = [path.name for path in whole_dir.glob("processed/*/*.npz")]
    assert {name: counts.get(name) for name in names} == dict.fromkeys(names, 1)


def test_report_reads_each_raw_file_once(whole_dir: Path) -> None:
    counts = count_reads_in_new_process("report", whole_dir / "raw")

    paths = whole_dir.glob("raw/*/*/scene*.*")
    names = [path.name for path in paths if "labels.ply" not in path.name]
    assert {name: counts.get(name) for name in names} == dict.fromkeys(names, 1)


class CountingProgress(Progress):
    """Counts the scenes of a run."""

    def __init__(self) -> None:
        self.count = 0

    def advance(self, count: int = 1) -> None:
        self.count += count


def test_damaged_manifest_of_an_archive_ends_the_report_before_reading(
    whole_dir: Path, tmp_path: Path
) -> None:
    archive = tmp_path / "scannet.tar.zst"
    run_main("pack", whole_dir / "processed", "-o", archive)
    flip_middle(archive, "files")
    progress = CountingProgress()

    with pytest.raises(FileError):
        stages_report.run([archive], stages_report.Reading(progress=progress))

    assert progress.count == 0


# Measures of a scene.


class Room(NamedTuple):
    """A floor and a wall of 30 x 30 vertices each.

    Attributes:
        points: float32 (1800, 3), the floor first.
        normals: float16 (1800, 3).
        nyu40_ids: uint8 (1800,).
    """

    points: np.ndarray
    normals: np.ndarray
    nyu40_ids: np.ndarray


def make_room(*, tilt_deg: float = 0, turn_deg: float = 0, height_m: float = 0) -> Room:
    """Make a floor of 4 x 4 m, which is tilted, and a wall; then turn both about z."""
    side = np.linspace(-2, 2, 30)
    grid_x, grid_y = np.meshgrid(side, side)
    x = grid_x.ravel()
    y = grid_y.ravel()
    floor = np.stack([x, y, np.tan(np.radians(tilt_deg)) * x + height_m], axis=1)
    wall = np.stack([x, np.full_like(x, 2), y + 2], axis=1)

    cos = np.cos(np.radians(turn_deg))
    sin = np.sin(np.radians(turn_deg))
    turn = np.array([[cos, -sin, 0], [sin, cos, 0], [0, 0, 1]])
    points = np.concatenate([floor, wall]) @ turn.T
    normals = np.repeat([[0, 0, 1], [0, -1, 0]], 900, axis=0) @ turn.T
    nyu40_ids = np.repeat([FLOOR_ID, WALL_ID], 900)
    return Room(points.astype(np.float32), normals.astype(np.float16), nyu40_ids.astype(np.uint8))


@pytest.mark.parametrize(
    ("tilt_deg", "turn_deg", "height_m"),
    [(0, 0, 0), (4, 0, 0.3), (1.5, 7, -1), (30, -20, 0)],
)
def test_measured_tilt_turn_and_height_are_those_of_the_room(
    tilt_deg: float, turn_deg: float, height_m: float
) -> None:
    room = make_room(tilt_deg=tilt_deg, turn_deg=turn_deg, height_m=height_m)

    measures = measure_scene(*room, IDENTITY)

    assert measures.floor_tilt_deg == pytest.approx(tilt_deg, abs=0.01)
    assert measures.wall_turn_deg == pytest.approx(turn_deg, abs=0.02)
    assert measures.floor_height_m == pytest.approx(height_m, abs=0.001)


def make_room_with_raised_vertices() -> Room:
    """Make a room in which vertices on one side are labeled as floor, but lie above it."""
    room = make_room()
    room.points[:60, 2] += np.linspace(0.3, 1.5, 60, dtype=np.float32)
    return room


def test_vertices_off_the_floor_do_not_change_its_tilt() -> None:
    measures = measure_scene(*make_room_with_raised_vertices(), IDENTITY)
    assert measures.floor_tilt_deg == pytest.approx(0, abs=0.05)


def test_floor_is_measured_in_the_aligned_frame() -> None:
    aligned_from_scan = np.array([[0.8, 0, -0.6, 0], [0, 1, 0, 0], [0.6, 0, 0.8, 2], [0, 0, 0, 1]])
    room = make_room_with_raised_vertices()
    homogeneous = np.c_[room.points, np.ones(len(room.points))]
    scan_points = (homogeneous @ np.linalg.inv(aligned_from_scan).T)[:, :3].astype(np.float32)
    scan_normals = room.normals @ aligned_from_scan[:3, :3]

    measures = measure_scene(scan_points, scan_normals, room.nyu40_ids, aligned_from_scan)

    assert measures.floor_tilt_deg == pytest.approx(0, abs=0.05)
    assert measures.floor_height_m == pytest.approx(0, abs=0.02)


def test_extents_and_area_are_those_counted_by_hand() -> None:
    points = np.array([[0, 0, 0], [0.05, 0.05, 3], [0.25, 0, 1], [1.01, 2.01, -1]], np.float32)
    nyu40_ids = np.full(4, FLOOR_ID, np.uint8)

    measures = measure_scene(points, np.zeros((4, 3)), nyu40_ids, IDENTITY)

    # Four vertices are too few for a floor.
    assert measures == SceneMeasures(x_m=1.01, y_m=2.01, z_m=4.0, area_m2=0.03)


def test_floor_of_vertices_on_a_line_has_no_tilt() -> None:
    points = np.zeros((500, 3), np.float32)
    points[:, 0] = np.linspace(0, 5, 500)
    nyu40_ids = np.full(500, FLOOR_ID, np.uint8)

    measures = measure_scene(points, np.zeros((500, 3)), nyu40_ids, IDENTITY)

    assert measures.floor_tilt_deg is None


# Figures of a place.


@pytest.fixture(scope="module")
def tiny_report(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """The report of a scene of six vertices: three of wall, two of floor, one unlabeled."""
    root = tmp_path_factory.mktemp("tiny")
    write_tiny(root)
    return report_json(root)


def test_counts_of_a_split_are_those_counted_by_hand(tiny_report: Any) -> None:
    row = tiny_report["splits"]["train"]

    assert row["scenes"] == 1
    assert row["vertices"] == 6
    assert row["annotated"] == 6
    assert row["labeled"] == 5


def test_counts_of_classes_are_those_counted_by_hand(tiny_report: Any) -> None:
    classes = {row["name"]: row for row in tiny_report["label_sets"]["ScanNet20"]}
    expected_wall = {"train_id": 0, "raw_id": 1, "train": 3, "val": 0, "scenes": 1, "share": 0.5}
    expected_floor = {"train": 2, "val": 0, "scenes": 1}

    assert expected_wall.items() <= classes["wall"].items()
    assert expected_floor.items() <= classes["floor"].items()


def test_instances_of_a_class_are_those_counted_by_hand(whole_dir: Path) -> None:
    count = 0
    for split, scene_id in (("train", TRAIN), ("val", VAL)):
        scene = read_processed(whole_dir / f"processed/{split}/{scene_id}.npz")
        chairs = {group.id for group in scene.meta.groups if group.nyu40_id == CHAIR_ID}
        count += len(chairs & set(scene.instances.tolist()))

    rows = report_json(whole_dir / "processed")["label_sets"]["ScanNet20"]

    (chair,) = [row for row in rows if row["name"] == "chair"]
    assert chair["instances"] == count > 0


def test_counts_of_scannet200_add_up_to_the_labeled_vertices(tiny_report: Any) -> None:
    rows = tiny_report["label_sets"]["ScanNet200"]
    assert sum(row["train"] + row["val"] for row in rows) == 5


def test_row_of_a_scene_has_the_measures_counted_by_hand(tiny_report: Any) -> None:
    (row,) = tiny_report["table"]

    expected = {
        "scene": SCENE_ID,
        "vertices": 6,
        "x_m": 1,
        "y_m": 1,
        "z_m": 1,
        "area_m2": 0.04,
        "floor_tilt_deg": None,
    }
    assert expected.items() <= row.items()


def test_summary_of_a_measure_has_minimum_median_and_maximum(tiny_report: Any) -> None:
    assert tiny_report["measures"]["labeled"] == {"min": 0.8333, "median": 0.8333, "max": 0.8333}


@pytest.mark.parametrize("split", ["train", "val"])
def test_distribution_counts_the_vertices_of_each_class(whole_dir: Path, split: str) -> None:
    scene = read_processed(next((whole_dir / "processed" / split).glob("*.npz")))
    expected = [np.count_nonzero(scene.labels == train_id) for train_id in range(20)]

    distribution = tables.distribution(whole_dir / "processed", SCANNET20)

    assert distribution[split].tolist() == expected


def test_shares_of_a_distribution_leave_out_test_scenes(whole_dir: Path) -> None:
    labeled_count = 0
    for split in ("train", "val"):
        scene = read_processed(next((whole_dir / "processed" / split).glob("*.npz")))
        labeled_count += np.count_nonzero(scene.labels >= 0)

    distribution = tables.distribution(whole_dir / "processed", SCANNET20)

    assert distribution.share.sum() == pytest.approx(labeled_count / 1200)


@pytest.fixture(scope="module")
def folder_report(whole_dir: Path) -> Any:
    return report_json(whole_dir / "processed")


def test_report_has_a_row_for_each_scene(folder_report: Any) -> None:
    assert [row["scene"] for row in folder_report["table"]] == [TRAIN, VAL, TEST]


def test_report_of_a_raw_tree_has_the_figures_of_its_processed_folder(
    whole_dir: Path, folder_report: Any
) -> None:
    raw_report = report_json(whole_dir / "raw")

    def without_sizes(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
        return [row | {"size_bytes": 0} for row in rows]

    assert raw_report["label_sets"] == folder_report["label_sets"]
    assert without_sizes(raw_report["table"]) == without_sizes(folder_report["table"])


@pytest.mark.parametrize("key", ["label_sets", "splits", "table"])
def test_report_of_an_archive_has_the_figures_of_its_folder(
    packed_dir: Path, folder_report: Any, key: str
) -> None:
    archive_report = report_json(packed_dir / "processed.tar.zst")
    assert archive_report[key] == folder_report[key]


def test_scene_with_a_tilted_floor_stands_out_with_the_reason(tmp_path: Path) -> None:
    write_release(tmp_path, [TRAIN], vertices=2000)
    cos = np.cos(np.radians(8))
    sin = np.sin(np.radians(8))
    tilted = np.array([[1, 0, 0, 0], [0, cos, -sin, 0], [0, sin, cos, 0], [0, 0, 0, 1]])
    alignment = " ".join(f"{number:.6f}" for number in tilted.ravel())
    path = raw_file(tmp_path, ".txt")
    path.write_text(re.sub("axisAlignment = .*", f"axisAlignment = {alignment}", path.read_text()))

    result = report_json(tmp_path)

    assert list(result["odd"]) == [TRAIN]
    assert re.search(r"floor tilt, degrees: (8|7\.9)", result["odd"][TRAIN])
    assert "limit: 3" in result["odd"][TRAIN]
    assert result["gallery"][TRAIN].startswith("odd: ")


# The page.


class Written(NamedTuple):
    """The outcome of a report, and the page that it wrote."""

    outcome: Outcome
    page: str


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> Written:
    """The report of a raw tree with markup in names, a damaged scene and no label map."""
    root = tmp_path_factory.mktemp("page")
    raw_dir = root / "<raw>"
    write_release(raw_dir, [TRAIN, VAL, TEST], vertices=600)
    edit_json(raw_file(raw_dir, ".aggregation.json"), _write_markup)
    damaged = raw_file(raw_dir, "_vh_clean_2.ply", VAL)
    damaged.write_bytes(damaged.read_bytes()[:-100])
    (raw_dir / LABEL_MAP_NAME).unlink()
    outcome = report(raw_dir, "-o", root / "report.html")
    return Written(outcome, (root / "report.html").read_text(encoding="utf-8"))


def _write_markup(value: Any) -> None:
    value["segGroups"][0]["label"] = "<script>alert('&quot;')</script>"


def test_report_of_a_damaged_tree_names_the_scene_and_has_status_3(written: Written) -> None:
    assert written.outcome.status == 3
    assert VAL in written.outcome.stdout


def test_report_notes_a_missing_label_map(written: Written) -> None:
    assert "the built-in label map is used" in written.outcome.stdout


def test_page_has_no_element_that_runs_or_loads_anything(written: Written) -> None:
    tags = set(re.findall(r"<([a-z]+)", written.page))
    assert not tags & {"script", "iframe", "object", "a"}


def test_page_has_a_policy_that_allows_only_embedded_images(written: Written) -> None:
    assert "default-src 'none'; img-src data:; style-src 'sha256-" in written.page


def test_page_embeds_its_pictures(written: Written) -> None:
    sources = re.findall(r' src="([^"]*)"', written.page)

    assert len(sources) == 2
    assert all(source.startswith("data:image/png;base64,iVBOR") for source in sources)


def test_page_has_no_handlers_inline_styles_or_links(written: Written) -> None:
    tags = " ".join(re.findall(r"<[a-z][^>]*>", written.page))

    assert not re.search(r" (on[a-z]+|style)=", tags)
    assert re.findall(r" href=\"([^\"]*)\"", tags) == ["data:,"]
    assert "url(" not in written.page


def test_page_escapes_raw_categories(written: Written) -> None:
    assert "&lt;script&gt;alert('&amp;quot;')" in written.page


def test_page_escapes_the_name_of_the_folder(written: Written) -> None:
    assert "<raw>" not in written.page
    assert "&lt;raw&gt;" in written.page


@pytest.mark.parametrize("words", [f"{VAL}_vh_clean_2.ply", "download it again", "errors: 1;"])
def test_page_names_the_damaged_scene_with_advice(written: Written, words: str) -> None:
    assert words in written.page


@pytest.mark.parametrize("words", [TRAIN, TEST, "ScanNet200", "vertices", "degrees"])
def test_page_shows_the_other_scenes_and_their_figures(written: Written, words: str) -> None:
    assert words in written.page


def test_page_describes_the_label_coverage_by_nyu40_ids(written: Written) -> None:
    assert "vertices of a train or val scene that have a nyu40 id" in written.page


# The page of a processed folder.


@pytest.fixture(scope="module")
def folder_page(whole_dir: Path, tmp_path_factory: pytest.TempPathFactory) -> str:
    path = tmp_path_factory.mktemp("folder") / "report.html"
    assert report(whole_dir / "processed", "-o", path).status == 0
    return path.read_text(encoding="utf-8")


def test_pictures_link_to_scenes_of_a_server_with_the_default_port(folder_page: str) -> None:
    links = re.findall(r'<a href="([^"]*)"', folder_page)

    assert f"http://127.0.0.1:8808/scene/{TRAIN}" in links
    assert all(link.startswith("http://127.0.0.1:8808/scene/") for link in links)


def test_page_names_the_command_that_serves_its_links(folder_page: str, whole_dir: Path) -> None:
    command = f"scannet-prep view --serve --source {whole_dir / 'processed'}"
    assert f"<code>{command}</code>" in folder_page


def test_page_of_raw_scenes_which_view_cannot_show_has_no_links(written: Written) -> None:
    assert "view --serve" not in written.page


def test_class_has_its_vertices_scenes_and_instances(folder_page: str, folder_report: Any) -> None:
    wall = folder_report["label_sets"]["ScanNet20"][0]
    texts = [f"{wall[key]:,}" for key in ("train", "val", "scenes", "instances")]
    cells = "".join(f'<td class="number">{text}</td>' for text in texts)

    assert re.search(rf'<th scope="row">wall</th><td>.*?</td>{cells}', folder_page)


def test_scenes_that_stand_out_are_folded_at_the_end(tmp_path: Path) -> None:
    write_release(tmp_path / "raw", [TRAIN], vertices=2000)
    path = raw_file(tmp_path / "raw", ".txt")
    # A shift of a metre along z.
    alignment = "1 0 0 0 0 1 0 0 0 0 1 1 0 0 0 1"
    path.write_text(re.sub("axisAlignment = .*", f"axisAlignment = {alignment}", path.read_text()))
    report(tmp_path / "raw", "-o", tmp_path / "report.html")

    page = (tmp_path / "report.html").read_text(encoding="utf-8")

    end = page[page.index("<h2>Gallery") :]
    assert re.search("<h2>Scenes that stand out</h2>.*<details><summary>1 scene</summary>", end)


# Charts.


def test_axis_has_round_ticks_around_all_values() -> None:
    assert AxisScale.over([3, 97], 100).ticks == [0, 20, 40, 60, 80, 100]


def test_axis_of_equal_values_includes_them() -> None:
    ticks = AxisScale.over([5, 5], 100).ticks
    assert ticks[0] <= 5 < ticks[-1]


def test_logarithmic_axis_has_powers_of_ten_as_ticks() -> None:
    assert AxisScale.over([20, 3000], 300, is_log=True).ticks == [10, 100, 1000, 10000]


def test_logarithmic_axis_gives_equal_factors_equal_lengths() -> None:
    scale = AxisScale.over([20, 3000], 300, is_log=True)
    assert scale(100) == 100


def test_bars_of_a_histogram_count_all_values() -> None:
    histogram = draw_histogram([1, 2, 3, 10, 100], "things", is_log=True)
    titles = [title.text or "" for title in histogram.iter("title")]

    counts = [int(title.split(": ")[1].split(" ")[0]) for title in titles]
    assert sum(counts) == 5


def test_histogram_of_one_scene_counts_1_scene() -> None:
    assert draw_histogram([3], "things").get("aria-label") == "things: 1 scene"


def test_bar_is_as_long_as_the_logarithm_of_its_count() -> None:
    scale = AxisScale.over([1, 5000], 100, is_log=True)
    bars = draw_bars([100, 0], ["train", "val"], scale).findall("rect")

    # The axis ends at 10,000. A count of 0 has no bar.
    assert [bar.get("width") for bar in bars] == ["50.0%"]


def test_bar_has_its_text_on_hover() -> None:
    scale = AxisScale.over([1, 5000], 100, is_log=True)
    (bar,) = draw_bars([100], ["wall, train: 100 vertices"], scale).findall("rect")

    assert bar.findtext("title") == "wall, train: 100 vertices"


# The comparison of processed scenes.


@pytest.fixture
def other_dir(whole_dir: Path, tmp_path: Path) -> Path:
    """A copy of the processed folder."""
    return Path(shutil.copytree(whole_dir / "processed", tmp_path / "other"))


def compare(here: Path, there: Path) -> tuple[int, Any]:
    """Compare two places, and return the exit status and the comparison."""
    outcome = report(here, "--against", there, "--json")
    return outcome.status, outcome.json.get("comparison", outcome.json)


@pytest.mark.parametrize(
    ("here_name", "there_name"),
    [
        ("folder", "archive"),
        ("folder", "manifest"),
        ("folder", "copy"),
        ("manifest", "archive"),
        ("manifest", "manifest"),
    ],
)
def test_copies_archives_and_manifests_of_a_folder_are_the_same(
    whole_dir: Path, packed_dir: Path, other_dir: Path, here_name: str, there_name: str
) -> None:
    places = {
        "folder": whole_dir / "processed",
        "copy": other_dir,
        "manifest": other_dir / "manifest.json",
        "archive": packed_dir / "processed.tar.zst",
    }

    status, comparison = compare(places[here_name], places[there_name])

    assert status == 0
    assert comparison["same"] == 3
    assert comparison["differences"] == {}


@pytest.fixture(scope="module")
def changed_dir(whole_dir: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with other options, made from raw files of which one differs."""
    root = tmp_path_factory.mktemp("changed")
    raw_dir = Path(shutil.copytree(whole_dir / "raw", root / "raw"))
    info_path = raw_file(raw_dir, ".txt")
    info_path.write_text(info_path.read_text() + "note = 1\n")
    options = ("--align-axis", "--faces")
    assert run_main("process", raw_dir, "-o", root / "processed", *options).status == 0
    return root / "processed"


def test_comparison_lists_every_scene_that_differs(whole_dir: Path, changed_dir: Path) -> None:
    status, comparison = compare(whole_dir / "processed", changed_dir)

    assert status == 3
    assert comparison["same"] == 0
    assert list(comparison["differences"]) == [TRAIN, VAL, TEST]


def test_comparison_lists_the_options_and_arrays_that_differ(
    whole_dir: Path, changed_dir: Path
) -> None:
    _, comparison = compare(whole_dir / "processed", changed_dir)
    differences = comparison["differences"][VAL]

    assert differences["options align_axis"] == ["False", "True"]
    assert {"array points", "array normals", "array faces"} <= set(differences)
    assert not {"array labels", "array colors"} & set(differences)


def test_comparison_lists_the_inputs_that_differ(whole_dir: Path, changed_dir: Path) -> None:
    _, comparison = compare(whole_dir / "processed", changed_dir)
    differences = comparison["differences"]
    inputs = {f"inputs {TRAIN}.txt size_bytes", f"inputs {TRAIN}.txt crc32"}

    assert set(differences[TRAIN]) - set(differences[VAL]) == inputs


def test_comparison_with_a_manifest_lists_its_options_and_digests(
    whole_dir: Path, changed_dir: Path
) -> None:
    _, comparison = compare(whole_dir / "processed", changed_dir / "manifest.json")
    differences = comparison["differences"][VAL]

    assert {"crc32", "options align_axis", "options faces"} <= set(differences)


def test_scene_that_only_the_first_place_has_is_named(whole_dir: Path, other_dir: Path) -> None:
    edit_json(other_dir / "manifest.json", lambda value: value["scenes"].pop(TEST))

    status, comparison = compare(whole_dir / "processed", other_dir)

    assert status == 3
    assert comparison["only_here"] == [TEST]
    assert comparison["only_there"] == []
    assert comparison["same"] == 2


def test_scene_that_only_the_second_place_has_is_named(whole_dir: Path, other_dir: Path) -> None:
    edit_json(other_dir / "manifest.json", lambda value: value["scenes"].pop(TEST))
    _, comparison = compare(other_dir / "manifest.json", whole_dir / "processed")

    assert comparison["only_there"] == [TEST]


def test_scene_of_only_one_place_is_named_with_the_place(whole_dir: Path, other_dir: Path) -> None:
    edit_json(other_dir / "manifest.json", lambda value: value["scenes"].pop(TEST))
    place = whole_dir / "processed"

    outcome = report(place, "--against", other_dir)

    assert f"  only in {place}: 1 scene: {TEST}\n" in outcome.stdout


def test_comparison_ignores_the_version_of_the_program(whole_dir: Path, other_dir: Path) -> None:
    path = other_dir / f"train/{TRAIN}.npz"
    scene = read_processed(path)
    scene = replace(scene, meta=replace(scene.meta, program_version="9.9"))
    path.write_bytes(b"".join(encode_processed(scene)))

    outcome = report(whole_dir / "processed", "--against", other_dir)

    assert outcome.status == 0
    assert "the same data; same: 3" in outcome.stdout


@pytest.fixture
def damaged_dir(other_dir: Path) -> Path:
    """A folder with a damaged scene, and with a wrong CRC-32 on record for another one."""
    path = other_dir / f"val/{VAL}.npz"
    patch(path, path.stat().st_size // 2, b"\xff\x00\xff")
    edit_json(
        other_dir / "manifest.json", lambda value: value["scenes"][TRAIN].update(crc32="00000000")
    )
    return other_dir


def test_comparison_of_folders_reads_the_files_and_not_their_records(
    whole_dir: Path, damaged_dir: Path
) -> None:
    status, comparison = compare(whole_dir / "processed", damaged_dir)

    assert status == 3
    assert [finding["scene_id"] for finding in comparison["findings"]] == [VAL]
    assert comparison["same"] == 2
    assert comparison["differences"] == {}


def test_comparison_names_the_damaged_file_and_counts_the_errors(
    whole_dir: Path, damaged_dir: Path
) -> None:
    text = report(whole_dir / "processed", "--against", damaged_dir).stdout

    first_line = text.splitlines()[0]
    assert f"  error: {VAL}: {damaged_dir}/val/{VAL}.npz: " in text
    assert first_line.endswith("same: 2, different: 0, only here: 0, only there: 0, errors: 1")


def test_comparison_with_a_manifest_reads_its_records(whole_dir: Path, damaged_dir: Path) -> None:
    _, comparison = compare(whole_dir / "processed", damaged_dir / "manifest.json")
    names = {scene_id: list(facts) for scene_id, facts in comparison["differences"].items()}

    assert names == {TRAIN: ["crc32"]}


def test_report_counts_damage_and_wrong_records_as_errors(damaged_dir: Path) -> None:
    outcome = report(damaged_dir)

    assert outcome.status == 3
    assert outcome.stdout.count("error: ") == 2, outcome.stdout


# The differences in words.


@pytest.fixture(scope="module")
def relabeled_dir(whole_dir: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of the folder in which the third group of a scene is a refrigerator."""
    root = tmp_path_factory.mktemp("relabeled")
    raw_dir = Path(shutil.copytree(whole_dir / "raw", root / "raw"))
    edit_json(raw_file(raw_dir, ".aggregation.json", VAL), _relabel)
    assert run_main("process", raw_dir, "-o", root / "processed").status == 0
    return root / "processed"


def _relabel(value: Any) -> None:
    value["segGroups"][2]["label"] = "refrigerator"


def changes(here: Path, there: Path) -> list[str]:
    """Return the differences of two places in words."""
    _, comparison = compare(here, there)
    return list(comparison["changes"])


def test_changed_group_is_described_with_both_categories_and_its_size(
    whole_dir: Path, relabeled_dir: Path
) -> None:
    scene = read_processed(whole_dir / f"processed/val/{VAL}.npz")
    group = scene.meta.groups[2]
    size = np.count_nonzero(scene.instances == group.id)

    first = changes(whole_dir / "processed", relabeled_dir)[0]

    line = f"{VAL}: group {group.id}: {group.raw_category} -> refrigerator, {size} vertices"
    assert first == line


def test_category_from_right_to_left_is_isolated_from_the_size_beside_it(
    whole_dir: Path, other_dir: Path
) -> None:
    path = other_dir / f"train/{TRAIN}.npz"
    scene = read_processed(path)
    first, *others = scene.meta.groups
    arabic = "\u0643\u0631\u0633\u064a"
    groups = (replace(first, raw_category=arabic), *others)
    scene = replace(scene, meta=replace(scene.meta, groups=groups))
    path.write_bytes(b"".join(encode_processed(scene)))

    (line,) = changes(whole_dir / "processed", other_dir)

    assert f"{first.raw_category} -> \u2068{arabic}\u2069, {first.vertex_count} vertices" in line


def test_character_in_a_category_that_reverses_the_line_becomes_visible(
    whole_dir: Path, other_dir: Path
) -> None:
    path = other_dir / f"train/{TRAIN}.npz"
    scene = read_processed(path)
    first, *others = scene.meta.groups
    groups = (replace(first, raw_category="chair\u202e"), *others)
    scene = replace(scene, meta=replace(scene.meta, groups=groups))
    path.write_bytes(b"".join(encode_processed(scene)))

    (line,) = changes(whole_dir / "processed", other_dir)

    assert f"-> chair\\u202e, {first.vertex_count} vertices" in line


def test_changed_array_is_described_with_the_first_differing_index(
    whole_dir: Path, relabeled_dir: Path
) -> None:
    here = read_processed(whole_dir / f"processed/val/{VAL}.npz").nyu40_ids
    there = read_processed(relabeled_dir / f"val/{VAL}.npz").nyu40_ids
    changed = np.flatnonzero(here != there)
    first = changed[0]

    lines = changes(whole_dir / "processed", relabeled_dir)

    assert (
        f"{VAL}: nyu40 ids: {len(changed)} of 600 vertices, "
        f"first vertex {first}: {here[first]} -> {there[first]}"
    ) in lines


def test_vertices_of_another_class_are_counted_by_both_classes(
    whole_dir: Path, relabeled_dir: Path
) -> None:
    here = read_processed(whole_dir / f"processed/val/{VAL}.npz").labels
    there = read_processed(relabeled_dir / f"val/{VAL}.npz").labels
    changed = here != there

    _, comparison = compare(whole_dir / "processed", relabeled_dir)

    (row,) = comparison["classes"]
    assert row["here"] == SCANNET20.name_of(int(here[changed][0]))
    assert row["there"] == "refrigerator"
    assert row["vertices"] == np.count_nonzero(changed)
    assert row["scenes"] == 1


def test_what_differs_equally_in_all_scenes_takes_one_line(
    whole_dir: Path, changed_dir: Path
) -> None:
    lines = changes(whole_dir / "processed", changed_dir)
    assert [line for line in lines if "align_axis" in line] == [
        "option align_axis: False -> True, in all 3 scenes"
    ]


def test_what_differs_in_another_way_in_each_scene_takes_one_line(
    whole_dir: Path, changed_dir: Path
) -> None:
    (line,) = [
        line for line in changes(whole_dir / "processed", changed_dir) if line.startswith("points")
    ]
    # The test scene has no axis alignment.
    assert line.startswith("points differ in 2 of 3 scenes")


def make_changes(subject: str, scene_count: int) -> dict[str, list[Change]]:
    """Make a change of one subject in each scene, with another detail in each."""
    changes = {}
    for number in range(scene_count):
        changes[f"scene{number:04d}_00"] = [Change(subject, f"group 2: {number} -> x")]
    return changes


def test_subject_that_differs_in_all_scenes_takes_one_line_with_an_example() -> None:
    (line,) = fold_changes(make_changes("axis alignment", 20), 20)
    assert line == "axis alignment differs in all 20 scenes; scene0000_00: group 2: 0 -> x"


def test_few_changed_groups_have_a_line_each() -> None:
    lines = list(fold_changes(make_changes("groups", 2), 20))
    assert lines == ["scene0000_00: group 2: 0 -> x", "scene0001_00: group 2: 1 -> x"]


def test_many_changed_groups_take_one_line() -> None:
    (line,) = fold_changes(make_changes("groups", 300), 1513)
    assert line == "groups differ in 300 of 1,513 scenes; scene0000_00: group 2: 0 -> x"


def test_changed_groups_come_before_other_changes() -> None:
    changes = {TRAIN: [Change("points", "here"), Change("groups", "group 1: there")]}
    assert next(fold_changes(changes, 1)) == f"{TRAIN}: group 1: there"


def test_equal_folders_have_no_changes(whole_dir: Path, other_dir: Path) -> None:
    assert changes(whole_dir / "processed", other_dir) == []


def test_moved_box_of_a_group_without_other_changes_is_a_change(
    whole_dir: Path, other_dir: Path
) -> None:
    path = other_dir / f"train/{TRAIN}.npz"
    scene = read_processed(path)
    first, *others = scene.meta.groups
    groups = (replace(first, box=(0.0, 0.0, 0.0, 9.0, 9.0, 9.0)), *others)
    scene = replace(scene, meta=replace(scene.meta, groups=groups))
    path.write_bytes(b"".join(encode_processed(scene)))

    (line,) = changes(whole_dir / "processed", other_dir)

    assert line.startswith(f"{TRAIN}: boxes of groups: ")


def test_size_and_digest_of_a_file_are_one_change(whole_dir: Path, changed_dir: Path) -> None:
    lines = changes(whole_dir / "processed", changed_dir)
    (line,) = [line for line in lines if "raw file" in line]

    assert re.fullmatch(
        rf"{TRAIN}: raw file \*\.txt: [\d,]+ -> [\d,]+ bytes, CRC-32 \w{{8}} -> \w{{8}}", line
    )


def test_result_of_a_comparison_comes_first_in_the_terminal(
    whole_dir: Path, relabeled_dir: Path
) -> None:
    outcome = report(whole_dir / "processed", "--against", relabeled_dir)
    assert outcome.stdout.startswith("not the same data; same: 2, different: 1,")


def test_result_comes_before_the_figures_of_a_page(
    whole_dir: Path, relabeled_dir: Path, tmp_path: Path
) -> None:
    place = whole_dir / "processed"
    outcome = report(place, "--against", relabeled_dir, "-o", tmp_path / "report.html")

    assert outcome.stdout.index("not the same data") < outcome.stdout.index(f"{place}: processed")


def test_page_lists_changes_and_folds_the_facts(
    whole_dir: Path, relabeled_dir: Path, tmp_path: Path
) -> None:
    path = tmp_path / "report.html"
    report(whole_dir / "processed", "--against", relabeled_dir, "-o", path)
    page = path.read_text(encoding="utf-8")

    link = f'<a href="http://127.0.0.1:8808/scene/{VAL}">{VAL}</a>'
    assert re.search(rf"<li>{link}: group \d+: .* -&gt; refrigerator, \d+ vertices</li>", page)
    assert "<details><summary>All facts that differ: " in page


# The comparison of raw trees.


def write_lock(path: Path, files: dict[str, bytes], raw_dir: Path) -> Path:
    """Write a record of a raw tree, with other content for some of its files."""
    entries = {}
    for file in raw_dir.rglob("*"):
        if file.is_file():
            entries[file.relative_to(raw_dir).as_posix()] = digest_file(file)
    for name, content in files.items():
        entries[name] = LockEntry(hashlib.sha256(content).hexdigest(), len(content))
    path.write_bytes(encode_lock(entries))
    return path


def test_raw_tree_and_its_lock_are_the_same(whole_dir: Path, tmp_path: Path) -> None:
    lock = write_lock(tmp_path / LOCK_NAME, {}, whole_dir / "raw")
    status, _ = compare(whole_dir / "raw", lock)

    assert status == 0


def test_comparison_of_raw_trees_lists_files_that_differ_or_are_missing(
    raw_dir: Path, tmp_path: Path
) -> None:
    lock = write_lock(tmp_path / LOCK_NAME, {}, raw_dir)
    mesh = raw_file(raw_dir, "_vh_clean_2.ply", TEST)
    patch(mesh, -1, b"\x07")
    (raw_dir / LABEL_MAP_NAME).unlink()
    labels_mesh = raw_file(raw_dir, "_vh_clean_2.labels.ply")
    labels_mesh.unlink()

    status, comparison = compare(raw_dir, lock)

    differences = comparison["differences"]
    assert status == 3
    assert comparison["same"] == 1
    assert list(differences) == [TRAIN, TEST, "label map"]
    assert list(differences[TEST]) == [f"{mesh.name} sha256"]
    assert differences[TRAIN][f"{labels_mesh.name} sha256"][0] == "-"


def test_stream_that_differs_from_the_record_is_named(raw_dir: Path, tmp_path: Path) -> None:
    stream = raw_file(raw_dir, ".sens")
    stream.write_bytes(b"here")
    name = stream.relative_to(raw_dir).as_posix()
    lock = write_lock(tmp_path / "their.lock", {name: b"there"}, raw_dir)

    status, comparison = compare(raw_dir, lock)

    differences = comparison["differences"]
    assert status == 3
    assert list(differences) == [TRAIN]
    assert set(differences[TRAIN]) == {f"{stream.name} sha256", f"{stream.name} size_bytes"}


def test_stream_that_only_one_place_has_is_no_difference(raw_dir: Path, tmp_path: Path) -> None:
    name = raw_file(raw_dir, ".sens").relative_to(raw_dir).as_posix()
    lock = write_lock(tmp_path / "their.lock", {name: b"there"}, raw_dir)
    status, _ = compare(raw_dir, lock)

    assert status == 0


def test_file_in_tasks_that_differs_from_the_record_is_named(raw_dir: Path, tmp_path: Path) -> None:
    name = "tasks/limited-bboxes.zip"
    (raw_dir / "tasks").mkdir()
    (raw_dir / name).write_bytes(b"here")
    lock = write_lock(tmp_path / "their.lock", {name: b"there"}, raw_dir)

    status, comparison = compare(raw_dir, lock)

    assert status == 3
    assert list(comparison["differences"]["tasks"]) == [name]


# Places that cannot be compared or described.


@pytest.mark.parametrize(
    ("content", "words"),
    [
        ("# nothing\n", "names no scene: there is nothing to compare"),
        (
            '{"format": "scannet_prep processed folder", "format_version": 2, "options": {}}',
            "names no scene",
        ),
        (
            '{"format": "scannet_prep processed folder", "format_version": 1}',
            "has format 1, expected 2",
        ),
        (
            '{"format": "other", "format_version": 1}',
            "not the manifest of a processed folder: Invalid enum value 'other'",
        ),
        ("hello", "line 1 reads 'hello', expected digest, size and path"),
    ],
    ids=["empty lock", "empty manifest", "old manifest", "foreign manifest", "text"],
)
def test_record_that_names_no_scene_is_refused(tmp_path: Path, content: str, words: str) -> None:
    path = tmp_path / "record"
    path.write_text(content)

    outcome = report(path, "--against", path)

    assert outcome.status == 1
    assert words in outcome.stderr


def test_raw_scenes_against_processed_scenes_are_wrong_usage(whole_dir: Path) -> None:
    outcome = report(whole_dir / "raw", "--against", whole_dir / "processed")

    assert outcome.status == 2
    assert "they cannot be compared" in outcome.stderr


def make_unusable_place(kind: str, whole_dir: Path, tmp_path: Path) -> Path:
    """Make a place that has neither raw nor processed scenes."""
    path = tmp_path / kind
    if kind == "empty":
        path.mkdir()
    elif kind == "export":
        words = ("--format", "octformer", "-o", path)
        assert run_main("export", whole_dir / "processed", *words).status == 0
    return path


@pytest.mark.parametrize("is_compared", [False, True], ids=["report", "comparison"])
@pytest.mark.parametrize(
    ("kind", "words"),
    [
        ("nowhere", "no such folder"),
        ("empty", "holds neither raw nor processed scenes"),
        ("export", "is an export, expected raw or processed scenes"),
    ],
)
def test_unusable_place_is_refused_before_a_page_is_written(
    whole_dir: Path, tmp_path: Path, kind: str, words: str, is_compared: bool
) -> None:
    place = make_unusable_place(kind, whole_dir, tmp_path)
    page = tmp_path / "page/report.html"
    options = ("--against", whole_dir / "processed") if is_compared else ()

    outcome = report(place, "-o", page, *options)

    assert outcome.status == 1
    assert words in outcome.stderr
    assert "hint: " in outcome.stderr
    assert not page.parent.exists()


def test_page_that_does_not_end_in_html_is_wrong_usage(whole_dir: Path, tmp_path: Path) -> None:
    assert report(whole_dir / "processed", "-o", tmp_path / "page.pdf").status == 2


def test_unfinished_folder_is_described_with_its_errors(other_dir: Path) -> None:
    (other_dir / "unfinished.txt").write_text("")
    (other_dir / f"train/{TRAIN}.npz").unlink()

    outcome = report(other_dir, "--json")

    result = outcome.json["report"]
    messages = [finding["message"] for finding in result["findings"]]
    assert outcome.status == 3
    assert len(result["table"]) == 3
    assert any("processing has not finished" in message for message in messages)
    assert any("no such file" in message for message in messages)
    assert all(finding["hint"] for finding in result["findings"])


def test_report_of_an_older_folder_names_no_label_set(other_dir: Path) -> None:
    edit_json(other_dir / "manifest.json", lambda value: value.update(format_version=1))

    outcome = report(other_dir)

    assert outcome.status == 3
    assert outcome.stdout.startswith(f"{other_dir}: processed scenes\n")
    assert "it has format 1, expected 2" in outcome.stdout


# The output of the command.


def test_report_prints_contents_and_splits_as_text(whole_dir: Path) -> None:
    place = whole_dir / "processed"

    outcome = run_main("report", place, "--no-progress")

    assert outcome.status == 0
    assert outcome.stderr == ""
    heading = f"{place}: processed scenes, ScanNet20, frame of the scan\n"
    assert outcome.stdout.startswith(heading)
    assert "train       1     1,201" in outcome.stdout


def test_report_json_is_one_object_with_a_row_per_scene(whole_dir: Path) -> None:
    (line,) = report(whole_dir / "processed", "--json").stdout.splitlines()
    value = json.loads(line)

    assert set(value) == {"exit_status", "command", "report", "comparison", "output"}
    assert set(MEASURES) <= set(value["report"]["table"][0])
