"""Extraction of frames: every pixel, pose and name, and folders that are whole or not there."""

from __future__ import annotations

import io
import json
import os
import re
import resource
import shutil
import signal
import struct
import time
import zipfile
import zlib
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from commands import (
    TEST,
    TRAIN,
    VAL,
    Outcome,
    digests,
    limited,
    raw_file,
    run_main,
    start_command,
    wait_until_gone,
)
from numpy.typing import NDArray
from streams import COLOR_SIZE, DEPTH_SIZE, make_content, read_plainly

from scannet_prep.base.images import decode_gray, encode_png, resize_color, resize_nearest
from scannet_prep.base.progress import Progress
from scannet_prep.errors import FileError, UnknownSceneError, UsageError
from scannet_prep.frames import FrameFolder, FrameOptions
from scannet_prep.release.label_map import builtin_label_map
from scannet_prep.release.label_sets import SCANNET20, SCANNET200
from scannet_prep.stages import frames
from scannet_prep.stages.frames.scene_worker import extract_frames

SCENES = (TRAIN, VAL, TEST)
LOST_FRAMES = (2, 4)
FRAME_COUNT = 7
TRACKED_FRAMES = [0, 1, 3, 5, 6]
# Rows of the label map: chair, shower door (one of two rows of its id), and no class of ScanNet20.
CHAIR = builtin_label_map().rows["chair"]
SCANNET_IDS = (0, CHAIR.scannet_id, 188, 1177)


def write(path: Path, data: bytes) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(data)


def make_label_image(number: int) -> NDArray[np.uint16]:
    rng = np.random.default_rng(50 + number)
    ids = np.array(SCANNET_IDS, np.uint16)
    return ids[rng.integers(0, len(ids), (COLOR_SIZE[1], COLOR_SIZE[0]))]


def make_instance_image(number: int) -> NDArray[np.uint8]:
    rng = np.random.default_rng(90 + number)
    return rng.integers(0, 9, (COLOR_SIZE[1], COLOR_SIZE[0]), np.uint8)


def make_zip(folder: str, make_image: Callable[[int], Any], *, method: int = 8) -> bytes:
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w", method) as archive:
        for number in range(FRAME_COUNT):
            archive.writestr(f"{folder}/{number}.png", encode_png(make_image(number)))
    return file.getvalue()


def write_streams(raw_dir: Path, scene_ids: tuple[str, ...] = SCENES, **options: Any) -> None:
    """Write streams that differ between scenes, and zip files of 2D labels."""
    for index, scene_id in enumerate(scene_ids):
        content = make_content(FRAME_COUNT, LOST_FRAMES, **options)
        for pose in content.poses:
            pose[0, 3] += 10 * index
        write(raw_file(raw_dir, ".sens", scene_id), content.encode())
        if scene_id != TEST:
            labels = make_zip("label-filt", make_label_image)
            instances = make_zip("instance-filt", make_instance_image)
            write(raw_file(raw_dir, "_2d-label-filt.zip", scene_id), labels)
            write(raw_file(raw_dir, "_2d-instance-filt.zip", scene_id), instances)


@pytest.fixture(scope="module")
def streams_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A raw tree of three scenes with streams; not to be changed."""
    raw_dir = tmp_path_factory.mktemp("streams") / "raw"
    write_streams(raw_dir)
    return raw_dir


@pytest.fixture
def raw_dir(streams_dir: Path, tmp_path: Path) -> Path:
    """A copy of the raw tree."""
    return Path(shutil.copytree(streams_dir, tmp_path / "raw"))


@pytest.fixture
def out_dir(tmp_path: Path) -> Path:
    return tmp_path / "frames"


def extract(raw_dir: Path, out_dir: Path, *words: str) -> Outcome:
    return run_main("frames", raw_dir, "-o", out_dir, "--jobs", "1", *words)


def read_scene_plainly(raw_dir: Path, scene_id: str = TRAIN) -> list[Any]:
    return read_plainly(raw_file(raw_dir, ".sens", scene_id).read_bytes())


def names_in(folder: Path) -> list[str]:
    return sorted(
        path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file()
    )


# The official layout.


def test_images_and_poses_equal_those_of_a_plain_reader(streams_dir: Path, out_dir: Path) -> None:
    assert extract(streams_dir, out_dir, "--every", "1").status == 0

    for scene_id in SCENES:
        plain = read_scene_plainly(streams_dir, scene_id)
        for number in TRACKED_FRAMES:
            pose, jpeg, depth = plain[number]
            assert (out_dir / scene_id / f"color/{number}.jpg").read_bytes() == jpeg
            depth_png = (out_dir / scene_id / f"depth/{number}.png").read_bytes()
            assert (out_dir / scene_id / f"pose/{number}.txt").read_text() == save_text(pose)
            decoded = decode_gray(depth_png, DEPTH_SIZE)
            assert decoded.dtype == np.uint16
            assert np.array_equal(decoded, depth)


def save_text(matrix: NDArray[Any]) -> str:
    """Write a matrix as the official reader does."""
    file = io.StringIO()
    np.savetxt(file, matrix, fmt="%f")
    return file.getvalue()


def test_official_layout_has_the_names_of_the_official_reader(
    streams_dir: Path, out_dir: Path
) -> None:
    extract(streams_dir, out_dir, "--every", "3")

    assert names_in(out_dir / TRAIN) == [
        "color/0.jpg",
        "color/3.jpg",
        "color/6.jpg",
        "depth/0.png",
        "depth/3.png",
        "depth/6.png",
        "frames.json",
        "intrinsic/extrinsic_color.txt",
        "intrinsic/extrinsic_depth.txt",
        "intrinsic/intrinsic_color.txt",
        "intrinsic/intrinsic_depth.txt",
        "pose/0.txt",
        "pose/3.txt",
        "pose/6.txt",
    ]


def test_intrinsics_without_size_are_those_of_the_stream(streams_dir: Path, out_dir: Path) -> None:
    extract(streams_dir, out_dir, "--every", "1")

    expected = save_text(make_content(1).color_intrinsic)
    assert (out_dir / TRAIN / "intrinsic/intrinsic_color.txt").read_text() == expected


def test_frames_25k_layout_pads_numbers_and_has_two_matrices(
    streams_dir: Path, out_dir: Path
) -> None:
    extract(
        streams_dir, out_dir, "--every", "6", "--layout", "frames25k", "--with", "pose", "labels"
    )

    assert names_in(out_dir / TRAIN) == [
        "frames.json",
        "intrinsics_color.txt",
        "intrinsics_depth.txt",
        "label/000000.png",
        "label/000006.png",
        "pose/000000.txt",
        "pose/000006.txt",
    ]


def test_mmdet3d_layout_counts_the_frames_that_are_kept(streams_dir: Path, out_dir: Path) -> None:
    extract(streams_dir, out_dir, "--every", "3", "--layout", "mmdet3d")

    assert names_in(out_dir / TRAIN) == [
        "00000.jpg",
        "00000.png",
        "00000.txt",
        "00001.jpg",
        "00001.png",
        "00001.txt",
        "00002.jpg",
        "00002.png",
        "00002.txt",
        "frames.json",
        "intrinsic.txt",
    ]
    jpeg = read_scene_plainly(streams_dir)[6][1]
    assert (out_dir / TRAIN / "00002.jpg").read_bytes() == jpeg


# Selection of frames.


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        ([], [0]),
        (["--every", "1"], TRACKED_FRAMES),
        (["--every", "2"], [0, 6]),
        (["--every", "2", "--keep-lost"], [0, 2, 4, 6]),
        (["--at-most", "3"], [0, 1, 5]),
        (["--at-most", "300"], TRACKED_FRAMES),
        (["--at-most", "7", "--keep-lost"], list(range(FRAME_COUNT))),
    ],
)
def test_options_select_frames(
    streams_dir: Path, out_dir: Path, words: list[str], expected: list[int]
) -> None:
    assert extract(streams_dir, out_dir, "--with", "pose", *words).status == 0

    assert list(FrameFolder(out_dir)[TRAIN].record.frames) == expected


def test_frames_without_tracking_are_counted_and_listed(streams_dir: Path, out_dir: Path) -> None:
    outcome = extract(streams_dir, out_dir, "--every", "1", "--json")

    assert outcome.json["frames"] == 3 * len(TRACKED_FRAMES)
    assert outcome.json["lost_frames"] == 3 * len(LOST_FRAMES)
    record = json.loads((out_dir / TRAIN / "frames.json").read_text())
    assert record["lost"] == list(LOST_FRAMES)


def test_lost_frames_that_are_kept_are_counted_if_they_are_written(
    streams_dir: Path, out_dir: Path
) -> None:
    words = ("--at-most", "4", "--keep-lost", "--with", "pose", "--scenes", TRAIN)

    outcome = extract(streams_dir, out_dir, *words)

    # Of the frames 0, 1, 3 and 5.
    assert "without tracking" not in outcome.stdout
    assert FrameFolder(out_dir)[TRAIN].record.lost == ()


def test_kept_lost_frame_has_the_pose_of_the_official_reader(
    streams_dir: Path, out_dir: Path
) -> None:
    extract(streams_dir, out_dir, "--every", "2", "--keep-lost", "--with", "pose")

    assert (out_dir / TRAIN / "pose/2.txt").read_text() == "-inf -inf -inf -inf\n" * 4
    assert FrameFolder(out_dir)[TRAIN].is_tracked.tolist() == [True, False, False, True]


# Sizes and labels.


def test_resized_images_have_the_size_and_matching_intrinsics(
    tmp_path: Path, out_dir: Path
) -> None:
    write_streams(tmp_path / "raw", (TRAIN,), is_decodable=True)

    assert extract(tmp_path / "raw", out_dir, "--every", "3", "--size", "16x10").status == 0

    scene = FrameFolder(out_dir)[TRAIN]
    assert scene[1].color().shape == (10, 16, 3)
    assert scene[1].depth().shape == (10, 16)
    matrix = np.loadtxt(out_dir / TRAIN / "intrinsic/intrinsic_color.txt")
    assert matrix[0, :3] == pytest.approx([30 * 16 / 32, 0, 16 * 16 / 32 - 0.5])
    assert matrix[1, :3] == pytest.approx([0, 31 * 10 / 24, 12 * 10 / 24 - 0.5])
    assert scene.color_camera.intrinsic == pytest.approx(matrix)


def test_resized_color_is_the_mean_of_the_pixels_that_it_covers() -> None:
    rng = np.random.default_rng(0)
    image = rng.integers(0, 256, (24, 32, 3), np.uint8)

    means = image.reshape(12, 2, 16, 2, 3).mean(axis=(1, 3))
    assert np.abs(resize_color(image, (16, 12)) - means).max() <= 1


def test_nearest_pixel_is_the_one_that_contains_the_middle() -> None:
    image = np.arange(35, dtype=np.uint16).reshape(5, 7)

    resized = resize_nearest(image, (3, 2))

    # Middles of rows at 1.25 and 3.75, of columns at 1.17, 3.5 and 5.83.
    assert resized.tolist() == [[8, 10, 12], [22, 24, 26]]


def test_resized_depth_has_only_stored_values(tmp_path: Path, out_dir: Path) -> None:
    write_streams(tmp_path / "raw", (TRAIN,))
    extract(tmp_path / "raw", out_dir, "--every", "3", "--size", "8x6", "--with", "depth")

    depth = read_scene_plainly(tmp_path / "raw")[3][2]
    assert np.array_equal(FrameFolder(out_dir)[TRAIN][1].depth(), depth[1::2, 1::2])


def test_labels_of_unchanged_size_are_the_stored_files(streams_dir: Path, out_dir: Path) -> None:
    extract(streams_dir, out_dir, "--every", "3", "--with", "labels", "instances")

    for content, folder in (("label", "label-filt"), ("instance", "instance-filt")):
        with zipfile.ZipFile(raw_file(streams_dir, f"_2d-{folder}.zip")) as archive:
            stored = archive.read(f"{folder}/3.png")
        assert (out_dir / TRAIN / f"{content}/3.png").read_bytes() == stored


def test_test_scenes_have_no_label_images(streams_dir: Path, out_dir: Path) -> None:
    assert extract(streams_dir, out_dir, "--with", "pose", "labels").status == 0

    assert not (out_dir / TEST / "label").exists()
    with pytest.raises(UsageError, match="has no labels, only pose\nhint: test scenes have no"):
        FrameFolder(out_dir)[TEST][0].labels()


@pytest.mark.parametrize(
    ("label_set", "expected"),
    [
        ("raw", SCANNET_IDS),
        ("nyu40", (0, 5, 38, 39)),
        ("scannet20", (0, SCANNET20.ids.index(5) + 1, 0, SCANNET20.ids.index(39) + 1)),
        (
            "scannet200",
            (0, SCANNET200.ids.index(2) + 1, SCANNET200.ids.index(188) + 1, 0),
        ),
    ],
)
def test_label_ids_are_converted(
    streams_dir: Path, out_dir: Path, label_set: str, expected: tuple[int, ...]
) -> None:
    outcome = extract(
        streams_dir, out_dir, "--every", "3", "--with", "labels", "--label-set", label_set
    )

    assert outcome.status == 0
    stored = make_label_image(3)
    labels = FrameFolder(out_dir)[TRAIN][1].labels()
    for scannet_id, label in zip(SCANNET_IDS, expected, strict=True):
        assert set(labels[stored == scannet_id]) == {label}


def test_resized_labels_have_only_stored_ids(streams_dir: Path, out_dir: Path) -> None:
    words = ("--every", "3", "--size", "8x6", "--with", "labels", "instances")
    assert extract(streams_dir, out_dir, *words).status == 0

    frame = FrameFolder(out_dir)[TRAIN][1]
    assert np.array_equal(frame.labels(), make_label_image(3)[2::4, 2::4])
    assert np.array_equal(frame.instances(), make_instance_image(3)[2::4, 2::4])


def test_test_scene_of_a_folder_of_labels_has_only_cameras(
    streams_dir: Path, out_dir: Path
) -> None:
    extract(streams_dir, out_dir, "--with", "labels")

    with pytest.raises(UsageError, match=r"has no color, only cameras\nhint: extract"):
        FrameFolder(out_dir)[TEST][0].color()


def test_id_that_the_label_map_lacks_fails_the_scene(raw_dir: Path, out_dir: Path) -> None:
    strange = np.full((COLOR_SIZE[1], COLOR_SIZE[0]), 9999, np.uint16)
    write(raw_file(raw_dir, "_2d-label-filt.zip"), make_zip("label-filt", lambda _number: strange))

    outcome = extract(raw_dir, out_dir, "--with", "labels", "--label-set", "nyu40")

    assert outcome.status == 3
    assert "'label-filt/0.png' in it has ScanNet ids that are not in the label map: 9999" in (
        outcome.stderr
    )
    assert "hint: to extract the ids as they are stored: --label-set raw" in outcome.stderr


# Faults.


@pytest.fixture
def damaged_raw_dir(raw_dir: Path) -> Path:
    """A raw tree in which the stream of the train scene is truncated."""
    path = raw_file(raw_dir, ".sens")
    os.truncate(path, path.stat().st_size - 300)
    return raw_dir


def test_bad_scene_stops_no_other(damaged_raw_dir: Path, out_dir: Path) -> None:
    outcome = extract(damaged_raw_dir, out_dir, "--json")

    assert outcome.status == 3
    assert outcome.json["made"] == [VAL, TEST]
    assert [failure["scene_id"] for failure in outcome.json["failures"]] == [TRAIN]


def test_scene_with_a_damaged_stream_is_not_there(damaged_raw_dir: Path, out_dir: Path) -> None:
    extract(damaged_raw_dir, out_dir)

    assert not (out_dir / TRAIN).exists()
    assert not list(out_dir.glob(".scannet-prep-work"))


def test_damaged_stream_is_named_with_frame_byte_and_command(
    damaged_raw_dir: Path, out_dir: Path
) -> None:
    outcome = extract(damaged_raw_dir, out_dir)

    assert "is truncated or damaged within frame 6 of 7, which begins at byte" in outcome.stderr
    assert "hint: remove the file if it is there, and download it" in outcome.stderr


def test_failed_scenes_are_a_list_for_the_next_command(
    damaged_raw_dir: Path, streams_dir: Path, out_dir: Path
) -> None:
    extract(damaged_raw_dir, out_dir)
    shutil.copy(raw_file(streams_dir, ".sens"), raw_file(damaged_raw_dir, ".sens"))

    outcome = extract(damaged_raw_dir, out_dir, "--scenes", f"@{out_dir / 'failed.txt'}", "--json")

    assert outcome.json["made"] == [TRAIN]
    assert not (out_dir / "failed.txt").exists()


@pytest.mark.parametrize(
    ("suffix", "change", "problem"),
    [
        ("_2d-label-filt.zip", None, "no such file"),
        ("_2d-label-filt.zip", lambda data: data[:-100], "is not a zip file, or is truncated"),
        (
            "_2d-label-filt.zip",
            lambda _data: make_zip("other", make_label_image),
            "has no 'label-filt/0.png'",
        ),
        (
            "_2d-label-filt.zip",
            lambda data: data.replace(b"IDAT", b"IDAX"),
            "'label-filt/0.png' in it is damaged: Bad CRC-32",
        ),
        (
            "_2d-label-filt.zip",
            lambda _data: make_zip("label-filt", lambda _: np.zeros((5, 6), np.uint16)),
            "'label-filt/0.png' in it is an image of 6 x 5, expected 32 x 24",
        ),
        (".sens", lambda data: data.replace(b"\xff\xc0", b"\xff\xd8", 1), "frame 0 of 7 is damag"),
        (".sens", lambda data: data[:21] + b"\xff" * 60 + data[81:], "a matrix that is not finite"),
    ],
)
def test_damaged_source_fails_its_scene(
    raw_dir: Path,
    out_dir: Path,
    suffix: str,
    change: Callable[[bytes], bytes] | None,
    problem: str,
) -> None:
    path = raw_file(raw_dir, suffix)
    if suffix.endswith(".zip") and change is not None:
        # Stored members, whose bytes can be changed.
        path.write_bytes(change(make_zip("label-filt", make_label_image, method=0)))
    elif change is not None:
        path.write_bytes(change(path.read_bytes()))
    else:
        path.unlink()

    outcome = extract(raw_dir, out_dir, "--with", "color", "labels")

    assert outcome.status == 3
    assert problem in outcome.stderr
    assert "download it" in outcome.stderr


@pytest.mark.filterwarnings("ignore:Duplicate name")
def test_label_image_that_is_there_twice_fails_its_scene(raw_dir: Path, out_dir: Path) -> None:
    with zipfile.ZipFile(raw_file(raw_dir, "_2d-label-filt.zip"), "a") as archive:
        archive.writestr("label-filt/0.png", encode_png(make_label_image(1)))

    outcome = extract(raw_dir, out_dir, "--with", "labels")

    assert outcome.status == 3
    assert "has 2 'label-filt/0.png'" in outcome.stderr


def test_error_of_a_zip_file_names_no_other_file(raw_dir: Path, out_dir: Path) -> None:
    path = raw_file(raw_dir, "_2d-label-filt.zip")
    path.unlink()

    outcome = extract(raw_dir, out_dir, "--with", "labels")

    assert f"error: {path}: no such file" in outcome.stderr


def test_files_of_a_failed_scene_are_removed_before_the_next_one(
    raw_dir: Path, out_dir: Path
) -> None:
    write(raw_file(raw_dir, ".sens", TRAIN), make_content(1).encode()[:-300])
    plan = frames.plan(raw_dir, out_dir)
    out_dir.mkdir()

    with pytest.raises(FileError, match="is truncated"):
        extract_frames(plan.tasks[0], plan.context)

    assert list(plan.context.work_dir.iterdir()) == []


def test_fifo_in_place_of_a_stream_fails_its_scene(raw_dir: Path, out_dir: Path) -> None:
    raw_file(raw_dir, ".sens").unlink()
    os.mkfifo(raw_file(raw_dir, ".sens"))

    outcome = extract(raw_dir, out_dir)

    assert outcome.status == 3
    assert "is a named pipe, expected a file" in outcome.stderr


def test_full_disk_ends_the_run_and_leaves_no_part_of_a_scene(
    streams_dir: Path, out_dir: Path
) -> None:
    with limited(resource.RLIMIT_FSIZE, 250):
        outcome = extract(streams_dir, out_dir, "--every", "1")

    assert outcome.status == 1
    assert "cannot be written" in outcome.stderr
    assert list(out_dir.glob("scene*")) == []


def test_file_in_the_way_of_a_scene_fails_it(streams_dir: Path, out_dir: Path) -> None:
    extract(streams_dir, out_dir, "--scenes", VAL)
    write(out_dir / TRAIN, b"mine")

    outcome = extract(streams_dir, out_dir)

    assert outcome.status == 3
    assert f"error: {out_dir / TRAIN}: is in the way" in outcome.stderr
    assert (out_dir / TRAIN).read_bytes() == b"mine"


def encode_few_bits() -> bytes:
    """Encode an image of 4 bits, which Pillow would multiply by 17."""
    header = struct.pack(">IIBBBBB", *COLOR_SIZE, 4, 0, 0, 0, 0)
    rows = zlib.compress(bytes(COLOR_SIZE[1] * (1 + COLOR_SIZE[0] // 2)))
    data = b"\x89PNG\r\n\x1a\n"
    for kind, content in ((b"IHDR", header), (b"IDAT", rows), (b"IEND", b"")):
        checksum = struct.pack(">I", zlib.crc32(kind + content))
        data += struct.pack(">I", len(content)) + kind + content + checksum
    return data


@pytest.mark.parametrize(
    ("image", "problem"),
    [
        (encode_few_bits(), "has 4 bits and the color type 0, expected 8 or 16 bits of gray"),
        (
            encode_png(np.zeros((COLOR_SIZE[1], COLOR_SIZE[0], 3), np.uint8)),
            "has 8 bits and the color type 2",
        ),
        (b"\xff\xd8\xff\xd9", "is not a PNG image"),
        (encode_png(np.zeros(COLOR_SIZE[::-1], np.uint16))[:-12], "is a truncated PNG image"),
    ],
    ids=["4 bits", "color", "JPEG", "truncated"],
)
def test_label_image_of_another_kind_fails_its_scene(
    raw_dir: Path, out_dir: Path, image: bytes, problem: str
) -> None:
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w") as archive:
        archive.writestr("label-filt/0.png", image)
    write(raw_file(raw_dir, "_2d-label-filt.zip"), file.getvalue())

    outcome = extract(raw_dir, out_dir, "--with", "labels")

    assert outcome.status == 3
    assert problem in outcome.stderr


# Folders.


def test_second_run_keeps_all_scenes(streams_dir: Path, out_dir: Path) -> None:
    extract(streams_dir, out_dir)
    before = digests(out_dir)

    outcome = extract(streams_dir, out_dir, "--json")

    assert outcome.json["kept"] == list(SCENES)
    assert outcome.json["made"] == []
    assert digests(out_dir) == before


def test_options_that_are_not_given_are_those_of_the_folder(
    streams_dir: Path, out_dir: Path
) -> None:
    extract(streams_dir, out_dir, "--every", "3", "--with", "pose", "--scenes", TRAIN)

    outcome = extract(streams_dir, out_dir, "--json")

    assert outcome.json["options"]["every"] == 3
    assert outcome.json["made"] == [VAL, TEST]


def test_folder_with_other_options_is_refused(streams_dir: Path, out_dir: Path) -> None:
    extract(streams_dir, out_dir, "--every", "3", "--scenes", TRAIN)
    before = digests(out_dir)

    outcome = extract(streams_dir, out_dir, "--every", "2")

    assert outcome.status == 2
    assert "holds frames with other options (--every 3 --with color depth pose" in outcome.stderr
    assert "not those of this command (--every 2 --with color depth pose" in outcome.stderr
    assert digests(out_dir) == before


def test_order_of_contents_does_not_matter() -> None:
    options = FrameOptions(contents=["pose", "color", "pose"])  # type: ignore[arg-type]

    assert options == FrameOptions(contents=("color", "pose"))


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        ({"contents": ("colour",)}, "contents: unknown 'colour', expected color, depth, pose"),
        ({"label_set": "nyu"}, "label_set: unknown 'nyu', expected raw, nyu40, scannet20"),
        ({"layout": "posed_images"}, "layout: unknown 'posed_images', expected official"),
    ],
)
def test_unknown_value_of_an_option_is_wrong_usage(options: Any, problem: str) -> None:
    with pytest.raises(UsageError, match=problem):
        FrameOptions(**options)


@pytest.mark.parametrize(
    ("first", "second"),
    [(("--at-most", "3"), ("--every", "1")), (("--every", "1"), ("--at-most", "3"))],
)
def test_every_and_at_most_replace_each_other(
    streams_dir: Path, out_dir: Path, first: tuple[str, ...], second: tuple[str, ...]
) -> None:
    extract(streams_dir, out_dir, *first)

    outcome = extract(streams_dir, out_dir, *second)

    assert outcome.status == 2
    assert f"not those of this command ({' '.join(second)} --with" in outcome.stderr


def test_scene_is_extracted_again_if_its_stream_changes(raw_dir: Path, out_dir: Path) -> None:
    extract(raw_dir, out_dir, "--every", "1")
    longer = make_content(FRAME_COUNT + 1)
    write(raw_file(raw_dir, ".sens"), longer.encode())

    outcome = extract(raw_dir, out_dir, "--json")

    assert outcome.json["made"] == [TRAIN]
    assert len(FrameFolder(out_dir)[TRAIN]) == FRAME_COUNT + 1


def test_scene_whose_stream_was_removed_keeps_its_frames(raw_dir: Path, out_dir: Path) -> None:
    """People remove streams to free the disk, then extract the next scenes."""
    extract(raw_dir, out_dir, "--with", "pose", "labels", "--scenes", TRAIN)
    raw_file(raw_dir, ".sens").unlink()
    raw_file(raw_dir, "_2d-label-filt.zip").unlink()

    outcome = extract(raw_dir, out_dir, "--json")

    assert outcome.json["kept"] == [TRAIN]
    assert outcome.json["made"] == sorted([VAL, TEST])


def test_scene_of_no_official_list_keeps_its_split(tmp_path: Path, out_dir: Path) -> None:
    write(raw_file(tmp_path / "raw", ".sens", "scene0900_00"), make_content(1).encode())
    assert extract(tmp_path / "raw", out_dir, "--splits", "train").status == 0

    assert extract(tmp_path / "raw", out_dir, "--json").json["kept"] == ["scene0900_00"]


def test_named_scene_whose_stream_was_removed_keeps_its_frames(
    raw_dir: Path, out_dir: Path
) -> None:
    extract(raw_dir, out_dir)
    raw_file(raw_dir, ".sens").unlink()

    assert extract(raw_dir, out_dir, "--scenes", TRAIN).status == 0


def test_folder_of_something_else_is_refused(streams_dir: Path, out_dir: Path) -> None:
    write(out_dir / "thesis.tex", b"")

    outcome = extract(streams_dir, out_dir)

    assert outcome.status == 2
    assert "holds thesis.tex, and was not made by scannet-prep frames" in outcome.stderr


def test_raw_tree_is_refused_as_output(raw_dir: Path) -> None:
    before = digests(raw_dir)

    outcome = extract(raw_dir, raw_dir / "scans")

    assert outcome.status == 2
    assert digests(raw_dir) == before


def test_dry_run_counts_frames_and_bytes_and_writes_nothing(
    streams_dir: Path, out_dir: Path
) -> None:
    words = ("--every", "1", "--with", "color", "depth", "pose", "labels")
    outcome = extract(streams_dir, out_dir, *words, "--dry-run", "--json")

    assert not out_dir.exists()
    extract(streams_dir, out_dir, *words)
    for scene in FrameFolder(out_dir):
        # The scene has few frames, all of which were encoded.
        expected = {"frames": 5, "lost": 2, "size_bytes": scene.record.size_bytes}
        assert outcome.json["scenes"][scene.scene_id] == expected


def test_dry_run_estimates_the_bytes_of_many_resized_frames(tmp_path: Path, out_dir: Path) -> None:
    content = make_content(60, is_decodable=True)
    write(raw_file(tmp_path / "raw", ".sens"), content.encode())
    words = ("--every", "1", "--size", "16x12")

    outcome = extract(tmp_path / "raw", out_dir, *words, "--dry-run", "--json")

    extract(tmp_path / "raw", out_dir, *words)
    written_bytes = FrameFolder(out_dir)[TRAIN].record.size_bytes
    assert outcome.json["scenes"][TRAIN]["size_bytes"] == pytest.approx(written_bytes, rel=0.05)


def test_dry_run_lists_the_scenes_that_are_up_to_date(streams_dir: Path, out_dir: Path) -> None:
    extract(streams_dir, out_dir, "--scenes", TRAIN)

    outcome = extract(streams_dir, out_dir, "--dry-run")

    assert "dry run: 2 frames of 2 scenes" in outcome.stdout
    assert f"1: up to date ({TRAIN})" in outcome.stdout


def test_dry_run_reports_a_damaged_label_image(raw_dir: Path, out_dir: Path) -> None:
    write(raw_file(raw_dir, "_2d-label-filt.zip"), make_zip("other", make_label_image))

    outcome = extract(raw_dir, out_dir, "--with", "labels", "--dry-run")

    assert outcome.status == 3
    assert "has no 'label-filt/0.png'" in outcome.stderr


def test_dry_run_reports_a_damaged_stream(damaged_raw_dir: Path, out_dir: Path) -> None:
    outcome = extract(damaged_raw_dir, out_dir, "--dry-run")

    assert outcome.status == 3
    assert "within frame 6 of 7" in outcome.stderr


def test_tree_without_streams_shows_the_command_and_the_size(
    whole_dir: Path, out_dir: Path
) -> None:
    outcome = extract(whole_dir / "raw", out_dir)

    assert outcome.status == 1
    assert "no selected scene has a sensor stream" in outcome.stderr
    assert f"scannet-prep download --types .sens -o {whole_dir / 'raw'} --scenes" in outcome.stderr
    assert "1.2 TB for all scenes" in outcome.stderr


def test_split_without_streams_shows_a_command_for_that_split(raw_dir: Path, out_dir: Path) -> None:
    raw_file(raw_dir, ".sens", TEST).unlink()

    outcome = extract(raw_dir, out_dir, "--splits", "test")

    assert f"download --types .sens -o {raw_dir} --splits test --limit 10 (1.2 TB" in outcome.stderr


def test_many_scenes_without_streams_are_not_all_named(raw_dir: Path, out_dir: Path) -> None:
    scene_ids = [f"scene{number:04}_00" for number in range(300, 330)]
    for scene_id in scene_ids:
        write(raw_file(raw_dir, ".txt", scene_id), b"")

    outcome = extract(raw_dir, out_dir, "--scenes", *scene_ids)

    assert "--scenes @FILE (1.2 TB" in outcome.stderr


def test_scenes_without_stream_are_left_out_unless_named(raw_dir: Path, out_dir: Path) -> None:
    raw_file(raw_dir, ".sens", VAL).unlink()

    outcome = extract(raw_dir, out_dir, "--json")

    assert outcome.status == 0
    assert outcome.json["without_stream"] == [VAL]


def test_named_scene_without_stream_fails(raw_dir: Path, out_dir: Path) -> None:
    raw_file(raw_dir, ".sens", VAL).unlink()

    outcome = extract(raw_dir, out_dir, "--scenes", TRAIN, VAL)

    assert outcome.status == 3
    assert f"download --types .sens -o {raw_dir} --scenes {VAL}" in outcome.stderr


def test_splits_and_limit_select_scenes(streams_dir: Path, out_dir: Path) -> None:
    outcome = extract(streams_dir, out_dir, "--splits", "train", "val", "--limit", "1", "--json")

    assert outcome.json["made"] == [TRAIN]


def test_output_is_the_same_with_two_workers(streams_dir: Path, tmp_path: Path) -> None:
    for jobs in ("1", "2"):
        words = ("--every", "1", "--with", "color", "depth", "pose", "labels", "--jobs", jobs)
        assert run_main("frames", streams_dir, "-o", tmp_path / jobs, *words).status == 0

    assert digests(tmp_path / "1") == digests(tmp_path / "2")


def test_executor_of_the_caller_gives_the_same_files(streams_dir: Path, tmp_path: Path) -> None:
    extract(streams_dir, tmp_path / "command", "--every", "3")
    plan = frames.plan(streams_dir, tmp_path / "executor", FrameOptions(every=3))
    with ThreadPoolExecutor(2) as executor:
        frames.run(plan, executor=executor)

    assert digests(tmp_path / "command") == digests(tmp_path / "executor")


def test_killed_run_is_completed_by_the_next_one(tmp_path: Path) -> None:
    """Scenes are whole or not there, and the work folder of the killed run is removed."""
    raw_dir = tmp_path / "raw"
    stream = make_content(40).encode()
    for number in range(20):
        write(raw_dir / f"scans/scene{number:04}_00/scene{number:04}_00.sens", stream)
    words = ("--every", "1")
    assert extract(raw_dir, tmp_path / "expected", *words).status == 0
    out_dir = tmp_path / "killed"

    for scene_count in (1, 6, 12):
        process = start_command("frames", raw_dir, "-o", out_dir, *words, "--jobs", "2")
        while len(list(out_dir.glob("scene*"))) < scene_count and process.poll() is None:
            time.sleep(0.001)
        process.send_signal(signal.SIGKILL)
        process.communicate(timeout=30)
        wait_until_gone(process.pid)
        assert run_main("verify", out_dir, "--jobs", "1").status == 0

    assert extract(raw_dir, out_dir, *words).status == 0
    expected = digests(tmp_path / "expected")
    # The lock of a killed run stays: the next run locks it again, and removes it.
    assert digests(out_dir) == expected


# Reading a folder, verify and info.


def test_folder_lists_scenes_and_frames(streams_dir: Path, out_dir: Path) -> None:
    extract(streams_dir, out_dir, "--every", "3")
    folder = FrameFolder(out_dir)

    assert folder.scene_ids == SCENES
    assert [frame.number for frame in folder[TRAIN]] == [0, 3, 6]
    assert len(list(folder)) == len(folder) == 3


def test_poses_of_a_folder_are_those_of_the_stream(streams_dir: Path, out_dir: Path) -> None:
    extract(streams_dir, out_dir, "--every", "1")

    expected = [read_scene_plainly(streams_dir)[number][0] for number in TRACKED_FRAMES]
    assert FrameFolder(out_dir)[TRAIN].poses == pytest.approx(np.stack(expected), abs=1e-6)


def test_depth_of_a_folder_is_that_of_the_stream(streams_dir: Path, out_dir: Path) -> None:
    extract(streams_dir, out_dir, "--every", "3", "--layout", "mmdet3d")

    depth = FrameFolder(out_dir)[VAL][1].depth()
    assert np.array_equal(depth, read_scene_plainly(streams_dir, VAL)[3][2])


def test_folder_contains_the_ids_of_its_scenes(streams_dir: Path, out_dir: Path) -> None:
    extract(streams_dir, out_dir, "--scenes", TRAIN)
    folder = FrameFolder(out_dir)

    assert TRAIN in folder
    assert VAL not in folder


def test_progress_shows_frames_and_failures(damaged_raw_dir: Path, out_dir: Path) -> None:
    statuses = []

    class Recorder(Progress):
        def status(self, text: str) -> None:
            statuses.append(text)

    frames.run(frames.plan(damaged_raw_dir, out_dir), progress=Recorder())

    assert re.fullmatch(r"2 frames, \d+ MB/s, 1 failed", statuses[-1])


def test_unknown_scene_of_a_folder_names_those_that_it_has(
    streams_dir: Path, out_dir: Path
) -> None:
    extract(streams_dir, out_dir, "--scenes", TRAIN)

    with pytest.raises(UnknownSceneError, match=f"has no scene {VAL}; it has {TRAIN}"):
        FrameFolder(out_dir)[VAL]


def test_folder_without_frames_shows_the_command(tmp_path: Path) -> None:
    with pytest.raises(FileError, match="holds no extracted frames"):
        FrameFolder(tmp_path)


@pytest.mark.parametrize(
    ("key", "value", "problem"),
    [
        ("kind", "other", "expected 'scannet_prep frames'"),
        ("scene_id", VAL, f"is the record of {VAL}"),
        ("frames", [-1], "is damaged"),
        ("files", {"../x": {"size_bytes": 1, "crc32": "00000000"}}, "it names the file"),
    ],
)
def test_damaged_record_is_an_error(
    streams_dir: Path, out_dir: Path, key: str, value: object, problem: str
) -> None:
    extract(streams_dir, out_dir)
    path = out_dir / TRAIN / "frames.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {key: value}))

    with pytest.raises(FileError, match=problem):
        FrameFolder(out_dir)[TRAIN]


@pytest.mark.parametrize("text", [b"", b"1 2 3", b"a " * 16, b"\xff" * 16])
def test_damaged_pose_file_is_an_error(streams_dir: Path, out_dir: Path, text: bytes) -> None:
    extract(streams_dir, out_dir)
    (out_dir / TRAIN / "pose/0.txt").write_bytes(text)

    with pytest.raises(FileError, match="is not a matrix of 4 x 4"):
        _ = FrameFolder(out_dir)[TRAIN].poses


def test_verify_accepts_a_folder_of_frames(streams_dir: Path, out_dir: Path) -> None:
    extract(streams_dir, out_dir)

    outcome = run_main("verify", out_dir, "--json")

    assert outcome.status == 0
    assert outcome.json["kind"] == "frames"
    assert (outcome.json["scenes"], outcome.json["findings"]) == (len(SCENES), [])


@pytest.mark.parametrize("name", ["color/0.jpg", "depth/0.png", "pose/0.txt", "frames.json"])
def test_verify_finds_a_changed_file(streams_dir: Path, out_dir: Path, name: str) -> None:
    extract(streams_dir, out_dir)
    path = out_dir / TRAIN / name
    path.write_bytes(path.read_bytes()[:-1] + b"x")

    outcome = run_main("verify", out_dir)

    assert outcome.status == 3
    assert f"error: {out_dir}/{TRAIN}/{name}: " in outcome.stderr


def test_verify_finds_a_missing_file(streams_dir: Path, out_dir: Path) -> None:
    extract(streams_dir, out_dir)
    (out_dir / TRAIN / "depth/0.png").unlink()

    assert run_main("verify", out_dir).status == 3


def test_verify_finds_a_scene_without_its_record(streams_dir: Path, out_dir: Path) -> None:
    extract(streams_dir, out_dir)
    (out_dir / TRAIN / "frames.json").unlink()

    outcome = run_main("verify", out_dir)

    assert outcome.status == 3
    assert f"error: {out_dir}/{TRAIN}/frames.json: no such file" in outcome.stderr


def test_info_counts_frames(streams_dir: Path, out_dir: Path) -> None:
    extract(streams_dir, out_dir, "--every", "3")

    outcome = run_main("info", out_dir, "--json")

    assert outcome.json["kind"] == "frames"
    assert outcome.json["facts"]["frames"] == 9
    assert "--every 3" in outcome.json["facts"]["options"]


# Options.


@pytest.mark.parametrize(
    ("words", "problem"),
    [
        (["--size", "320"], "is not a size, such as 320x240"),
        (["--size", "0x240"], "images of 0 x 240 cannot be written"),
        (["--every", "0"], "is not a whole number of at least 1"),
        (["--every", "2", "--at-most", "3"], "not allowed with argument"),
        (["--layout", "mmdet3d", "--with", "labels"], "the layout mmdet3d has no place for labels"),
        (["--label-set", "nyu40"], "hint: --with color depth pose labels --label-set nyu40"),
    ],
)
def test_options_that_make_no_sense_are_wrong_usage(
    streams_dir: Path, out_dir: Path, words: list[str], problem: str
) -> None:
    outcome = extract(streams_dir, out_dir, *words)

    assert outcome.status == 2
    assert problem in outcome.stderr
