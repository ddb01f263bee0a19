"""Extraction of frames: every pixel, pose and name, and what a second run makes again."""

import io
import json
import os
import shutil
import struct
import zipfile

import numpy as np
import pytest
from commands import (
    PYTHON,
    TEST,
    TRAIN,
    VAL,
    digests,
    edit_json,
    extract,
    fail,
    patch,
    raw_file,
    run_main,
    run_words,
    succeed,
)
from PIL import Image
from tiny import COLOR_SIZE, encode_stream, make_frames

from scannet_prep.base.images import encode_png, resize_color, resize_nearest
from scannet_prep.errors import FileError, UnknownSceneError, UsageError
from scannet_prep.frames import FrameFolder
from scannet_prep.release.label_map import builtin_label_map
from scannet_prep.release.label_sets import SCANNET20, SCANNET200
from scannet_prep.stages.frames import plan

SCENES = [TRAIN, VAL, TEST]
COUNT = 7
LOST = (2, 4)
LOST_POSE = np.full(16, -np.inf, np.float32).tobytes()
TRACKED = [0, 1, 3, 5, 6]
SENS, ZIP = ".sens", "_2d-label-filt.zip"
# Rows of the label map: chair, shower door (one of two rows of its id), and no class of ScanNet20.
CHAIR = builtin_label_map().rows["chair"].scannet_id
SCANNET_IDS = (0, CHAIR, 188, 1177)
EVERYTHING = ("--every", "1", "--with", "color", "depth", "pose", "--with", "labels", "instances")


def label_image(number):
    ids = np.random.default_rng(50 + number).integers(0, 4, COLOR_SIZE[::-1])
    return np.array(SCANNET_IDS, np.uint16)[ids]


def make_zip(images, folder="label-filt", method=0):
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w", method) as archive:
        for number, image in enumerate(images):
            archive.writestr(f"{folder}/{number}.png", image)
    return file.getvalue()


LABELS = [encode_png(label_image(number)) for number in range(COUNT)]
INSTANCES = [encode_png(label_image(number).astype(np.uint8)) for number in range(COUNT)]


def frames_of(scene_id):
    """Make frames that differ between scenes: bytes may follow a JPEG image."""
    frames = make_frames(COUNT, LOST)
    return [(pose, jpeg + bytes(SCENES.index(scene_id)), depth) for pose, jpeg, depth in frames]


@pytest.fixture(scope="module")
def streams_dir(tmp_path_factory):
    """A raw tree of three scenes with streams and zip files of 2D labels; not to be changed."""
    raw_dir = tmp_path_factory.mktemp("streams") / "raw"
    for scene_id in SCENES:
        path = raw_file(raw_dir, SENS, scene_id)
        path.parent.mkdir(parents=True)
        # The release has poses of 0, too.
        path.write_bytes(encode_stream(frames_of(scene_id)).replace(LOST_POSE, bytes(64), 1))
        if scene_id != TEST:
            raw_file(raw_dir, ZIP, scene_id).write_bytes(make_zip(LABELS))
            path = raw_file(raw_dir, "_2d-instance-filt.zip", scene_id)
            path.write_bytes(make_zip(INSTANCES, "instance-filt", zipfile.ZIP_DEFLATED))
    return raw_dir


@pytest.fixture
def raw_dir(streams_dir, tmp_path):
    return shutil.copytree(streams_dir, tmp_path / "raw")


@pytest.fixture
def out_dir(tmp_path):
    return tmp_path / "frames"


def test_frames_without_depth_and_streams_without_usable_frames_are_named(raw_dir, out_dir):
    frames = [
        (pose, jpeg, depth * (number not in (0, 6)))
        for number, (pose, jpeg, depth) in enumerate(make_frames(COUNT, LOST))
    ]
    raw_file(raw_dir, SENS).write_bytes(encode_stream(frames))
    data = raw_file(raw_dir, SENS, VAL).read_bytes()
    png = data.replace(struct.pack("<2i", 2, 1), struct.pack("<2i", 1, 1), 1)
    raw_file(raw_dir, SENS, VAL).write_bytes(png)
    raw_file(raw_dir, SENS, TEST).write_bytes(encode_stream(make_frames(2, (0,))))

    dry = extract(raw_dir, out_dir, "--every", "2", "--dry-run")
    outcome = extract(raw_dir, out_dir, "--every", "2")

    assert dry.status == 3
    assert [failure["scene_id"] for failure in dry.json["failures"]] == [VAL, TEST]
    assert dry.json["to_make"] == {"not made yet": [TRAIN]}
    assert dry.json["notes"][0]["message"].startswith("2 frames; without tracking: 2, ")
    assert outcome.status == 3
    assert outcome.json["made"] == [TRAIN]
    messages = [note["message"] for note in outcome.json["notes"]]
    assert messages[-1] == "frames without any depth: 2, listed in frames.json"
    assert FrameFolder(out_dir)[TRAIN].record.without_depth == [0, 6]
    failure, lost = outcome.json["failures"]
    assert "color compression 1" in failure["message"]
    assert "another recorder" in failure["hint"]
    assert lost["message"] == "has no frame to extract; without tracking: 1 of 1"


def test_everything_equals_what_the_streams_hold(streams_dir, out_dir):
    outcome = succeed(streams_dir, out_dir, *EVERYTHING, run=extract)

    assert outcome.json["made"] == SCENES
    assert [note["message"] for note in outcome.json["notes"]] == [
        f"test scenes have no 2D labels: {TEST}",
        "15 frames; without tracking: 6, listed in frames.json",
    ]
    folder = FrameFolder(out_dir)
    assert folder.scene_ids == tuple(SCENES)
    for scene in folder:
        expected = frames_of(scene.scene_id)
        assert [frame.number for frame in scene] == TRACKED
        assert scene.record.lost == LOST
        assert np.array_equal(scene.poses, [expected[number][0] for number in TRACKED])
        for frame in scene:
            pose, jpeg, depth = expected[frame.number]
            assert scene.read_file(frame.names["color"]) == jpeg
            # As the official reader does.
            text = "".join(f"{a:f} {b:f} {c:f} {d:f}\n" for a, b, c, d in pose)
            assert scene.read_file(frame.names["pose"]).decode() == text
            assert np.array_equal(frame.read("depth"), depth)
            if scene.scene_id != TEST:
                # The stored files, without decoding them.
                assert scene.read_file(frame.names["labels"]) == LABELS[frame.number]
                assert np.array_equal(frame.read("labels"), label_image(frame.number))
                assert np.array_equal(frame.read("instances"), label_image(frame.number) % 256)
    with pytest.raises(UsageError, match=r"has no labels\nhint: test scenes have no 2D"):
        folder[TEST][0].read("labels")
    with pytest.raises(UnknownSceneError, match="has no scene scene0001_00; it has scene0000_00"):
        folder["scene0001_00"]
    verified = run_main("verify", out_dir, "--json").json
    assert verified["scenes"] == 3
    assert verified["findings"] == []


OFFICIAL = """
    color/0.jpg color/6.jpg depth/0.png depth/6.png pose/0.txt pose/6.txt
    intrinsic/intrinsic_color.txt intrinsic/extrinsic_color.txt
    intrinsic/intrinsic_depth.txt intrinsic/extrinsic_depth.txt
"""
FRAMES25K = """
    color/000000.jpg color/000006.jpg depth/000000.png depth/000006.png
    label/000000.png label/000006.png intrinsics_color.txt intrinsics_depth.txt
"""
MMDET3D = "00000.jpg 00000.png 00000.txt 00001.jpg 00001.png 00001.txt intrinsic.txt"


WITH_LABELS = "--layout frames25k --with color depth labels"


@pytest.mark.parametrize(
    ("words", "names"), [("", OFFICIAL), (WITH_LABELS, FRAMES25K), ("--layout mmdet3d", MMDET3D)]
)
def test_layout_has_the_names_of_its_program(streams_dir, out_dir, words, names):
    assert extract(streams_dir, out_dir, "--every", "6", *words.split()).status == 0

    scene = FrameFolder(out_dir)[TRAIN]
    found = {path.relative_to(scene.path).as_posix() for path in scene.path.rglob("*.*")}
    assert found == {*names.split(), "frames.json"}
    assert scene.read_file(scene[-1].names["color"]) == frames_of(TRAIN)[6][1]


@pytest.mark.parametrize(
    ("words", "expected", "lost"),
    [
        ("", [0], ()),
        ("--every 2", [0, 6], LOST),
        ("--every 2 --first 3 --keep-lost", [0, 2, 4], LOST),
        ("--at-most 3", [0, 1, 5], LOST),
        ("--at-most 4 --keep-lost", [0, 1, 3, 5], ()),
        ("--at-most 7 --keep-lost", list(range(COUNT)), LOST),
    ],
)
def test_options_select_frames_and_a_dry_run_counts_them(
    streams_dir, out_dir, words, expected, lost
):
    words = ("--with", "pose", *words.split())
    dry = extract(streams_dir, out_dir, *words, "--dry-run")
    assert extract(streams_dir, out_dir, *words).status == 0
    assert extract(streams_dir, out_dir, "--every", "1").status == 2

    scene = FrameFolder(out_dir)[TRAIN]
    assert scene.record.frames == tuple(expected)
    assert scene.record.lost == lost
    counts = f"{3 * len(expected)} frames; without tracking: {3 * len(lost)}, listed"
    assert dry.json["notes"][0]["message"].startswith(counts)
    assert scene.is_tracked.tolist() == [number not in LOST for number in expected]
    if 2 in expected:
        assert (out_dir / TRAIN / "pose/2.txt").read_text() == "-inf -inf -inf -inf\n" * 4


def test_resized_images_have_the_size_and_matching_intrinsics(streams_dir, out_dir):
    outcome = succeed(streams_dir, out_dir, *EVERYTHING, "--size", "8x6", run=extract)
    options = "every: 1, size: 8x6, with: color depth pose labels instances, label-set: raw, layout"
    assert f"{options}: official\n" in outcome.stderr

    scene = FrameFolder(out_dir)[TRAIN]
    matrix = np.loadtxt(out_dir / TRAIN / "intrinsic/intrinsic_color.txt")
    # Whole numbers are the middles of pixels.
    assert matrix[0, :3] == pytest.approx([30 * 8 / 32, 0, 16 * 8 / 32 - 0.5])
    assert scene.color_camera.intrinsic == pytest.approx(matrix)
    assert scene[1].read("color").shape == (6, 8, 3)
    # Numbers are taken, not averaged.
    _, _, depth = frames_of(TRAIN)[1]
    assert np.array_equal(scene[1].read("depth"), depth[1::2, 1::2])
    assert np.array_equal(scene[1].read("labels"), label_image(1)[2::4, 2::4])

    image = np.random.default_rng(0).integers(0, 256, (24, 32, 3), np.uint8)
    means = image.reshape(12, 2, 16, 2, 3).mean(axis=(1, 3))
    assert np.abs(resize_color(image, (16, 12)) - means).max() <= 1
    # Middles of rows at 1.25 and 3.75, of columns at 1.17, 3.5 and 5.83.
    resized = resize_nearest(np.arange(35, dtype=np.uint16).reshape(5, 7), (3, 2))
    assert resized.tolist() == [[8, 10, 12], [22, 24, 26]]


@pytest.mark.parametrize(
    ("label_set", "expected"),
    [
        ("nyu40", (0, 5, 38, 39)),
        ("scannet20", (0, SCANNET20.ids.index(5) + 1, 0, SCANNET20.ids.index(39) + 1)),
        ("scannet200", (0, SCANNET200.ids.index(2) + 1, SCANNET200.ids.index(188) + 1, 0)),
    ],
)
def test_label_ids_are_converted(streams_dir, out_dir, label_set, expected):
    words = ("--every", "3", "--with", "labels", "--label-set", label_set)
    assert extract(streams_dir, out_dir, *words).status == 0

    labels = FrameFolder(out_dir)[TRAIN][1].read("labels")
    converted = np.array(expected)[np.searchsorted(SCANNET_IDS, label_image(3))]
    assert np.array_equal(labels, converted)


# Pillow would multiply an image of 1 bit by 255.
ONE_BIT = io.BytesIO()
Image.new("1", COLOR_SIZE).save(ONE_BIT, "PNG")
SMALL = encode_png(np.zeros((5, 6), np.uint16))
FAULTS = [
    (SENS, lambda data: data.replace(b"\xff\xc0", b"\xff\xd8", 1), "frame 0 of 7 is damaged"),
    # After the depth shift, the header counts fewer frames than there are.
    (SENS, lambda data: data.replace(b"zD\7", b"zD\2"), " bytes follow the frames, expected "),
    (ZIP, lambda data: data[:-100], "is not a zip file, or is truncated"),
    (ZIP, lambda _: make_zip(LABELS, "other"), "has no 'label-filt/0.png'"),
    (ZIP, lambda data: data.replace(b"IDAT", b"IDAX"), "'label-filt/0.png' in it is damaged: Bad"),
    (ZIP, lambda _: make_zip([ONE_BIT.getvalue()]), "has 1 bits and the colour type 0, expected 8"),
    (ZIP, lambda _: make_zip([LABELS[0][:-12]]), "is a truncated PNG image"),
    (ZIP, lambda _: make_zip([SMALL]), "0.png' in it is an image of 6 x 5, expected 32 x 24"),
]


@pytest.mark.parametrize(("suffix", "change", "problem"), FAULTS)
def test_damaged_source_fails_its_scene(raw_dir, out_dir, suffix, change, problem):
    path = raw_file(raw_dir, suffix)
    path.write_bytes(change(path.read_bytes()))

    outcome = extract(raw_dir, out_dir, "--with", "color", "labels")

    assert outcome.status == 3
    assert outcome.json["made"] == [VAL, TEST]
    (failure,) = outcome.json["failures"]
    assert failure["scene_id"] == TRAIN
    assert failure["path"] == str(path)
    assert problem in failure["message"]
    assert "download it" in failure["hint"]
    assert not (out_dir / TRAIN).exists()


def test_unknown_ids_and_what_is_in_the_way_are_named(raw_dir, out_dir):
    words = ("--with", "labels", "--label-set", "nyu40")
    strange = encode_png(np.full(COLOR_SIZE[::-1], 9999, np.uint16))
    raw_file(raw_dir, ZIP).write_bytes(make_zip([strange]))
    extract(raw_dir, out_dir, *words, "--scenes", TEST)
    mine = [out_dir / VAL, out_dir / TEST / "output"]
    for path in mine:
        path.write_bytes(b"mine")

    unknown, *in_the_way = extract(raw_dir, out_dir, *words, "--force").json["failures"]

    assert unknown["message"].endswith("in it has ScanNet ids that are not in the label map: 9999")
    for path, failure in zip(mine, in_the_way, strict=True):
        assert (failure["path"], failure["message"]) == (str(path), "is in the way")
        assert path.read_bytes() == b"mine"
    other_map = "raw_category\tid\tnyu40id\nchair\t2\t5\n"
    (raw_dir / "scannetv2-labels.combined.tsv").write_text(other_map)
    assert "has frames with other options" in extract(raw_dir, out_dir).json["message"]


def test_second_run_makes_what_is_missing_or_was_changed(raw_dir, out_dir):
    words = ("--every", "3", "--with", "color", "depth", "pose", "labels")
    assert extract(raw_dir, out_dir, *words).json["made"] == SCENES
    whole = digests(out_dir)
    missing = out_dir / TRAIN / "depth/3.png"
    missing.unlink()
    os.truncate(out_dir / VAL / "color/0.jpg", 10)
    dry = extract(raw_dir, out_dir, "--dry-run")
    assert dry.json["to_make"] == {"its files were changed": [TRAIN, VAL]}

    # Those of all scenes would take gigabytes.
    assert not plan(raw_dir, out_dir, {}).before.scenes[VAL].files
    # The options of the folder need not be repeated.
    outcome = extract(raw_dir, out_dir)
    assert outcome.json["made"] == [TRAIN, VAL]
    assert outcome.json["kept"] == [TEST]
    message = extract(raw_dir, out_dir, "--layout", "sens").json["message"]
    assert f"{TRAIN} has frames with other options: every: 3, " in message
    # People remove streams to free the disk: the frames stay.
    raw_file(raw_dir, SENS).unlink()
    raw_file(raw_dir, ZIP).unlink()
    assert extract(raw_dir, out_dir).json["kept"] == SCENES
    assert digests(out_dir) == whole
    missing.unlink()
    (failure,) = extract(raw_dir, out_dir).json["failures"]
    assert failure["message"] == "no such file"

    raw_file(raw_dir, ZIP).write_bytes(make_zip(LABELS))
    for scene_id in (TRAIN, VAL):
        raw_file(raw_dir, SENS, scene_id).write_bytes(encode_stream(make_frames(COUNT - 1)))
    assert extract(raw_dir, out_dir).json["made"] == [TRAIN, VAL]
    assert len(FrameFolder(out_dir)[TRAIN]) == 2
    edit_json(out_dir / VAL / "frames.json", lambda record: record["options"].update(every=5))
    message = extract(raw_dir, out_dir).json["message"]
    assert f"{VAL} has frames with other options: every: 5, " in message


def test_scenes_without_stream_are_left_out_and_named(raw_dir, out_dir):
    for scene_id in (VAL, TEST):
        raw_file(raw_dir, SENS, scene_id).unlink()
    nothing = extract(raw_dir, out_dir, "--splits", "test")
    assert nothing.json["message"] == "no selected scene has a sensor stream (.sens)"
    outcome = extract(raw_dir, out_dir)
    assert outcome.json["made"] == [TRAIN]
    left_out = outcome.json["notes"][0]["message"]
    assert left_out == f"left out, because they have no .sens: {VAL}, {TEST}"
    named = extract(raw_dir, out_dir, "--scenes", TRAIN, VAL)
    assert named.json["failures"][0]["scene_id"] == VAL
    assert "left out" not in named.stderr

    # A scan that is not in the release stays in the split that the first run has named.
    path = raw_file(raw_dir, SENS, "scene0900_00")
    path.parent.mkdir()
    path.write_bytes(encode_stream(make_frames(1)))
    words = ("--scenes", "scene0900_00", "--splits", "train")
    assert extract(raw_dir, out_dir, *words).json["made"] == ["scene0900_00"]
    assert "scene0900_00" in extract(raw_dir, out_dir).json["kept"]
    raw_file(raw_dir, SENS).parent.rename(raw_dir / "scans_test" / TRAIN)
    dry = extract(raw_dir, out_dir, "--force", "--dry-run")
    assert dry.json["failures"][0]["message"].endswith(" scene, but lies among test scenes")
    path.rename(path.with_suffix(".SENS"))
    (failure,) = extract(raw_dir, out_dir).json["failures"]
    assert failure["message"].endswith(": scene0900_00.SENS")


def test_frames_of_a_list_are_extracted_and_those_that_are_not_there_named(
    streams_dir, out_dir, tmp_path
):
    path = tmp_path / "list.txt"

    def extract_list(text, *words):
        path.write_text(text)
        options = ("--with", "pose", "--keep-lost", "--frames", f"@{path}")
        return extract(streams_dir, out_dir, *options, *words)

    outcome = extract_list(f"# ScanNet-1500\n{TEST} 3\n{TRAIN} 2 0\n{TEST} 1\n")
    assert outcome.json["made"] == [TRAIN, TEST]
    options = "with: pose, layout: official, keep-lost: yes, frames: "
    assert outcome.json["options"].startswith(options)
    folder = FrameFolder(out_dir)
    assert folder[TRAIN].record.frames == (0, 2)
    assert folder[TEST].record.frames == (1, 3)
    # The same frames, listed in another way.
    assert extract_list(f"{TRAIN} 0 2\n{TEST} 1 3\n").json["kept"] == [TRAIN, TEST]
    assert "has frames with other options" in extract(streams_dir, out_dir).json["message"]

    outcome = extract_list(f"{TRAIN} 0 7 9\n{VAL} 0\n", "-o", tmp_path / "other")
    (failure,) = outcome.json["failures"]
    assert outcome.json["made"] == [VAL]
    assert failure["message"] == "has no frame 7, only 7 frames"
    for text, words, problem in (
        (f"{TRAIN} -1", (), "is not a scene and numbers of frames"),
        (f"{TRAIN} {'1' * 5000}", (), "is not a scene and numbers of frames"),
        (f"{TRAIN} 1\n{VAL}", (), "is not a scene and numbers of frames"),
        (f"{TRAIN}/color/1.jpg", (), "is not a scene and numbers of frames"),
        (f"{TRAIN} 1", ("--scenes", TRAIN), "names scenes and frames"),
        (f"{TRAIN} 1", ("--layout", "neuralrecon"), "needs frames: none, not frames: "),
    ):
        assert problem in extract_list(text, *words).json["message"]
    for name in ("every", "first", "at_most"):
        with pytest.raises(UsageError, match="names scenes and frames"):
            plan(streams_dir, out_dir, {name: 1}, list_path=path)


def test_verify_finds_changed_and_missing_files(streams_dir, out_dir):
    extract(streams_dir, out_dir, "--scenes", TRAIN, VAL)
    (out_dir / VAL / "pose/0.txt").unlink()
    names = [f"{TRAIN}/{name}" for name in ("color/0.jpg", "depth/0.png", "pose/0.txt")]
    for name in names:
        patch(out_dir / name, -1, b"x")

    def verify():
        outcome = run_main("verify", out_dir, "--json")
        assert outcome.status == 3
        return {finding["path"] for finding in outcome.json["findings"]}

    assert verify() == {str(out_dir / name) for name in (*names, f"{VAL}/pose/0.txt")}
    record_path = out_dir / TRAIN / "frames.json"
    record = json.loads(record_path.read_bytes())
    for changed in (
        {"kind": "other"},
        {"options": {"layout": "of a later version"}},
        {"poses": record["poses"][:-4]},
        {"poses": ""},
        {"depth_camera": record["depth_camera"] | {"intrinsic": None}},
    ):
        record_path.write_text(json.dumps(record | changed))
        assert str(record_path) in verify()
        with pytest.raises(FileError, match="is damaged"):
            FrameFolder(out_dir)[TRAIN]
    # Other folders beside that of the frames would not be verified.
    with pytest.raises(FileError, match="holds no extracted frames"):
        FrameFolder(out_dir.parent)


def test_folders_of_scenes_are_found_without_listing_them(streams_dir, out_dir):
    extract(streams_dir, out_dir)
    code = f"""
import sys
from scannet_prep.frames import FrameFolder
sys.addaudithook(lambda event, values: event == "os.scandir" and print(*values))
FrameFolder({str(out_dir)!r})
"""
    listed = run_words(PYTHON, "-c", code).stdout
    assert str(out_dir) in listed
    assert TRAIN not in listed


def test_folder_of_the_streams_is_refused(streams_dir):
    fail(2, "holds the raw scenes\n", streams_dir, streams_dir, run=extract)
