"""Cameras of extracted frames in a page."""

from __future__ import annotations

import io
import json
import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from browsers import Shown, needs_browser
from commands import TEST, TRAIN, Outcome, run_main
from PIL import Image

from scannet_prep import read_processed
from scannet_prep.frames import FrameFolder, SensorStream
from scannet_prep.stages.view_frames import view_cameras
from scannet_prep.synthetic import write_release


@pytest.fixture(scope="module")
def data_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Raw scenes with streams, processed in both frames, and their extracted frames."""
    folder = tmp_path_factory.mktemp("view_frames")
    raw_dir = folder / "raw"
    write_release(raw_dir, [TRAIN, TEST], vertices=600, frames=6)
    run_main("process", raw_dir, "-o", folder / "scan")
    run_main("process", raw_dir, "-o", folder / "aligned", "--align-axis")
    run_main("frames", raw_dir, "-o", folder / "frames", "--every", "1")
    run_main("frames", raw_dir, "-o", folder / "poses", "--every", "1", "--with", "pose")
    return folder


def poses_of(data_dir: Path) -> Any:
    """Return number and pose of each frame with tracking."""
    with SensorStream(data_dir / f"raw/scans/{TRAIN}/{TRAIN}.sens") as stream:
        return [(n, stream.poses[n]) for n in np.flatnonzero(stream.is_tracked).tolist()]


def cameras_of(data_dir: Path, processed: str = "scan", frames: str = "frames") -> Any:
    scene = read_processed(data_dir / processed / f"train/{TRAIN}.npz")
    return view_cameras(FrameFolder(data_dir / frames), scene)


def view(data_dir: Path, *words: str | Path) -> Outcome:
    return run_main("view", TRAIN, "--source", data_dir / "scan", *words)


def test_cameras_are_those_of_the_frames_with_tracking(data_dir: Path) -> None:
    numbers = [camera.number for camera in cameras_of(data_dir)]

    assert numbers == [number for number, _ in poses_of(data_dir)]


def test_eyes_are_the_positions_of_the_poses(data_dir: Path) -> None:
    eyes = [camera.corners[0] for camera in cameras_of(data_dir)]

    expected = [pose[:3, 3] for _, pose in poses_of(data_dir)]
    np.testing.assert_allclose(eyes, expected, atol=1e-5)


def test_eyes_are_aligned_with_the_points(data_dir: Path) -> None:
    matrix = read_processed(data_dir / f"aligned/train/{TRAIN}.npz").axis_alignment
    eyes = [camera.corners[0] for camera in cameras_of(data_dir, "aligned")]

    expected = [(matrix @ pose)[:3, 3] for _, pose in poses_of(data_dir)]
    np.testing.assert_allclose(eyes, expected, atol=1e-5)


def test_corners_project_to_the_corners_of_the_image(data_dir: Path) -> None:
    scene_frames = FrameFolder(data_dir / "frames")[TRAIN]
    camera = cameras_of(data_dir)[0]
    width, height = camera.size

    inverse = np.linalg.inv(scene_frames[0].pose)
    seen = camera.corners[1:] @ inverse[:3, :3].T + inverse[:3, 3]
    pixels = seen @ scene_frames.color_camera.intrinsic[:3, :3].T
    pixels = pixels[:, :2] / pixels[:, 2:]

    expected = np.array([(0, 0), (width, 0), (width, height), (0, height)]) - 0.5
    np.testing.assert_allclose(pixels, expected, atol=1e-3)


def test_images_fit_into_320_by_240(data_dir: Path) -> None:
    for camera in cameras_of(data_dir):
        width, height = Image.open(io.BytesIO(camera.jpeg)).size
        assert width <= 320
        assert height <= 240


def test_cameras_need_no_images(data_dir: Path) -> None:
    assert [camera.jpeg for camera in cameras_of(data_dir, frames="poses")] == [b""] * len(
        poses_of(data_dir)
    )


def test_at_most_40_cameras_are_evenly_spaced(data_dir: Path, tmp_path: Path) -> None:
    raw_dir = tmp_path / "raw"
    write_release(raw_dir, [TRAIN], vertices=600, frames=90)
    run_main("frames", raw_dir, "-o", tmp_path / "frames", "--every", "1", "--with", "pose")
    scene = read_processed(data_dir / f"scan/train/{TRAIN}.npz")

    numbers = [camera.number for camera in view_cameras(FrameFolder(tmp_path / "frames"), scene)]

    tracked = [frame.number for frame in FrameFolder(tmp_path / "frames")[TRAIN]]
    assert len(numbers) == 40
    assert numbers[0] == tracked[0]
    assert numbers[-1] == tracked[-1]
    steps = np.diff([tracked.index(number) for number in numbers])
    assert set(steps.tolist()) <= {2, 3}


def test_page_describes_its_cameras(data_dir: Path, tmp_path: Path) -> None:
    page = tmp_path / "page.html"
    assert view(data_dir, "--frames", data_dir / "frames", "-o", page).status == 0

    text = page.read_text()
    data = json.loads(
        re.findall(r'<script type="application/json" id="data">(.*?)</script>', text)[0]
    )
    assert [frame["number"] for frame in data["scenes"][0]["frames"]] == [
        number for number, _ in poses_of(data_dir)
    ]


def test_page_without_frames_has_no_cameras(data_dir: Path, tmp_path: Path) -> None:
    view(data_dir, "-o", tmp_path / "page.html")

    assert '"frames":' not in (tmp_path / "page.html").read_text()


def test_command_reports_the_size_of_the_page(data_dir: Path, tmp_path: Path) -> None:
    page = tmp_path / "page.html"

    outcome = view(data_dir, "--frames", data_dir / "frames", "-o", page)

    assert f"{page}: " in outcome.stdout
    assert "kB" in outcome.stdout


def test_picture_with_frames_is_refused(data_dir: Path, tmp_path: Path) -> None:
    outcome = view(data_dir, "--frames", data_dir / "frames", "-o", tmp_path / "scene.png")

    assert outcome.status == 2
    assert "leave out --frames" in outcome.stderr


def test_folder_without_frames_is_refused(data_dir: Path, tmp_path: Path) -> None:
    outcome = view(data_dir, "--frames", tmp_path)

    assert outcome.status == 1
    assert "the command frames extracts them" in outcome.stderr


def test_scene_without_frames_is_named(data_dir: Path, tmp_path: Path) -> None:
    shutil.copytree(data_dir / "frames" / TEST, tmp_path / "frames" / TEST)

    outcome = view(data_dir, "--frames", tmp_path / "frames", "-o", tmp_path / "page.html")

    assert outcome.status != 0
    assert f"has no scene {TRAIN}" in outcome.stderr
    assert not (tmp_path / "page.html").exists()


# In the browser.


@pytest.fixture(scope="module")
def page_path(data_dir: Path) -> Path:
    path = data_dir / "page.html"
    view(data_dir, "--frames", data_dir / "frames", "-o", path)
    return path


@pytest.fixture
def page(show: Callable[..., Shown], page_path: Path) -> Shown:
    shown = show(page_path)
    shown.wait()
    return shown


@needs_browser
def test_page_draws_a_mark_for_each_camera(page: Shown, data_dir: Path) -> None:
    assert page.page.locator("#frames .camera").count() == len(poses_of(data_dir))


@needs_browser
def test_marks_lie_where_the_picture_shows_their_corners(page: Shown) -> None:
    places = page.page.evaluate(
        """() => {
            const [x, y, z] = viewer.scene.frames[0].corners[1];
            const m = viewer.camera.clipFromScene;
            const w = m[3] * x + m[7] * y + m[11] * z + m[15];
            const right = (m[0] * x + m[4] * y + m[8] * z + m[12]) / w;
            const up = (m[1] * x + m[5] * y + m[9] * z + m[13]) / w;
            const box = viewer.canvas.getBoundingClientRect();
            const area = document.querySelector("#frames .camera .area");
            const corner = area.points[1].matrixTransform(area.getScreenCTM());
            return [
                box.left + (1 + right) / 2 * box.width, box.top + (1 - up) / 2 * box.height,
                corner.x, corner.y,
            ];
        }"""
    )

    np.testing.assert_allclose(places[:2], places[2:], atol=1)


@needs_browser
def test_marks_follow_the_view(page: Shown) -> None:
    outline = page.page.locator("#frames .frustum").first
    before = outline.get_attribute("d")

    page.press("ArrowLeft")
    page.wait()

    page.page.wait_for_function(
        "before => document.querySelector('#frames .frustum').getAttribute('d') !== before",
        arg=before,
    )


@needs_browser
def test_click_on_a_camera_shows_its_image(page: Shown) -> None:
    page.page.locator("#frames .area").first.dispatch_event("click")

    image = page.page.locator("#frame-image")
    image.wait_for(state="visible")
    assert image.evaluate("image => image.decode().then(() => image.naturalWidth)") > 0
    assert page.text("#frame-caption").startswith("frame ")


@needs_browser
def test_arrow_key_shows_the_next_image(page: Shown) -> None:
    page.page.locator("#frames .area").first.dispatch_event("click")
    first = page.text("#frame-caption")

    page.page.keyboard.press("ArrowRight")

    assert page.text("#frame-caption") != first


@needs_browser
def test_key_j_hides_the_cameras(page: Shown) -> None:
    page.press("j")

    page.page.locator("#frames").wait_for(state="hidden")
    assert "cameras=false" in page.link


@needs_browser
def test_page_without_frames_has_no_button_for_cameras(
    show: Callable[..., Shown], data_dir: Path, tmp_path: Path
) -> None:
    view(data_dir, "-o", tmp_path / "page.html")
    shown = show(tmp_path / "page.html")
    shown.wait()

    assert not shown.page.locator("#cameras").is_visible()
