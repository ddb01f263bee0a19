"""Extraction of frames: every pixel, pose and name, and what a second run makes again."""

import io
import os
import shutil
import struct
import zipfile
import zlib

import numpy as np
import pytest
from commands import TEST, TRAIN, VAL, digests, edit_json, patch, raw_file, run_main
from streams import COLOR_SIZE, DEPTH_SIZE, make_content, read_plainly

from scannet_prep.base.images import decode_gray, encode_png, resize_color, resize_nearest
from scannet_prep.errors import FileError, UnknownSceneError, UsageError
from scannet_prep.frames import FrameFolder, FrameOptions
from scannet_prep.release.label_map import builtin_label_map
from scannet_prep.release.label_sets import SCANNET20, SCANNET200

SCENES = [TRAIN, VAL, TEST]
COUNT = 7
LOST = (2, 4)
TRACKED = [0, 1, 3, 5, 6]
# Rows of the label map: chair, shower door (one of two rows of its id), and no class of ScanNet20.
CHAIR = builtin_label_map().rows["chair"].scannet_id
SCANNET_IDS = (0, CHAIR, 188, 1177)
EVERYTHING = ("--every", "1", "--with", "color", "depth", "pose", "labels", "instances")


def write(path, data):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(data)


def label_image(number):
    ids = np.random.default_rng(50 + number).integers(0, 4, COLOR_SIZE[::-1])
    return np.array(SCANNET_IDS, np.uint16)[ids]


def instance_image(number):
    return np.random.default_rng(90 + number).integers(0, 9, COLOR_SIZE[::-1], np.uint8)


def make_zip(folder, encode, method=0):
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w", method) as archive:
        for number in range(COUNT):
            archive.writestr(f"{folder}/{number}.png", encode(number))
    return file.getvalue()


LABELS_ZIP = make_zip("label-filt", lambda number: encode_png(label_image(number)))


def write_streams(raw_dir, scene_ids=SCENES, **options):
    """Write streams that differ between scenes, and zip files of 2D labels."""
    for index, scene_id in enumerate(scene_ids):
        content = make_content(COUNT, LOST, **options)
        for pose in content.poses:
            pose[0, 3] += 10 * index
        write(raw_file(raw_dir, ".sens", scene_id), content.encode())
        if scene_id != TEST:
            instances = make_zip("instance-filt", lambda n: encode_png(instance_image(n)), 8)
            write(raw_file(raw_dir, "_2d-label-filt.zip", scene_id), LABELS_ZIP)
            write(raw_file(raw_dir, "_2d-instance-filt.zip", scene_id), instances)


@pytest.fixture(scope="module")
def streams_dir(tmp_path_factory):
    """A raw tree of three scenes with streams; not to be changed."""
    raw_dir = tmp_path_factory.mktemp("streams") / "raw"
    write_streams(raw_dir)
    return raw_dir


@pytest.fixture
def raw_dir(streams_dir, tmp_path):
    return shutil.copytree(streams_dir, tmp_path / "raw")


@pytest.fixture
def out_dir(tmp_path):
    return tmp_path / "frames"


def extract(raw_dir, out_dir, *words):
    return run_main("frames", raw_dir, "-o", out_dir, "--json", *words)


def read_scene_plainly(raw_dir, scene_id=TRAIN):
    return read_plainly(raw_file(raw_dir, ".sens", scene_id).read_bytes())


def save_text(matrix):
    """Write a matrix as the official reader does."""
    file = io.StringIO()
    np.savetxt(file, matrix, fmt="%f")
    return file.getvalue()


def test_everything_equals_what_a_plain_reader_reads(streams_dir, out_dir):
    outcome = extract(streams_dir, out_dir, *EVERYTHING)

    assert (outcome.status, outcome.json["made"]) == (0, SCENES)
    assert (outcome.json["frames"], outcome.json["lost_frames"]) == (15, 6)
    folder = FrameFolder(out_dir)
    assert (folder.scene_ids, len(folder)) == (tuple(SCENES), 3)
    assert TRAIN in folder
    assert "scene0001_00" not in folder
    for scene in folder:
        plain = read_scene_plainly(streams_dir, scene.scene_id)
        assert [frame.number for frame in scene] == TRACKED == list(scene.record.frames)
        assert scene.record.lost == LOST
        assert scene.poses == pytest.approx(np.stack([plain[n][0] for n in TRACKED]), abs=1e-6)
        for frame in scene:
            pose, jpeg, depth = plain[frame.number]
            assert frame.find("color").read_bytes() == jpeg
            assert frame.find("pose").read_text() == save_text(pose)
            assert frame.depth().dtype == np.uint16
            assert np.array_equal(frame.depth(), depth)
            png = frame.find("depth").read_bytes()
            assert np.array_equal(decode_gray(png, DEPTH_SIZE), depth)
            if scene.scene_id != TEST:
                # The stored files, without decoding them.
                assert np.array_equal(frame.labels(), label_image(frame.number))
                assert frame.find("labels").read_bytes() == encode_png(label_image(frame.number))
                assert np.array_equal(frame.instances(), instance_image(frame.number))
        matrix = (scene.path / "intrinsic/intrinsic_color.txt").read_text()
        assert matrix == save_text(make_content(1).color_intrinsic)
    with pytest.raises(UsageError, match=r"has no labels, .*\nhint: test scenes have no"):
        folder[TEST][0].labels()
    with pytest.raises(UnknownSceneError, match="has no scene scene0001_00; it has scene0000_00"):
        folder["scene0001_00"]
    info = run_main("info", out_dir, "--json").json
    assert (info["kind"], info["facts"]["frames"]) == ("frames", 15)
    assert "every: 1" in info["facts"]["options"]
    verified = run_main("verify", out_dir, "--json").json
    assert (verified["kind"], verified["scenes"], verified["findings"]) == ("frames", 3, [])


OFFICIAL = """
    color/0.jpg color/6.jpg depth/0.png depth/6.png pose/0.txt pose/6.txt
    intrinsic/intrinsic_color.txt intrinsic/extrinsic_color.txt
    intrinsic/intrinsic_depth.txt intrinsic/extrinsic_depth.txt
"""
FRAMES25K = """
    pose/000000.txt pose/000006.txt label/000000.png label/000006.png
    intrinsics_color.txt intrinsics_depth.txt
"""
MMDET3D = "00000.jpg 00000.png 00000.txt 00001.jpg 00001.png 00001.txt intrinsic.txt"
LAYOUT_FILES = [
    ((), OFFICIAL),
    (("--layout", "frames25k", "--with", "pose", "labels"), FRAMES25K),
    (("--layout", "mmdet3d"), MMDET3D),
]


@pytest.mark.parametrize(("words", "names"), LAYOUT_FILES)
def test_layout_has_the_names_of_its_program(streams_dir, out_dir, words, names):
    assert extract(streams_dir, out_dir, "--every", "6", *words).status == 0

    scene = FrameFolder(out_dir)[TRAIN]
    paths = [path for path in scene.path.rglob("*") if path.is_file()]
    found = {path.relative_to(scene.path).as_posix() for path in paths}
    assert found == {*names.split(), "frames.json"}
    if "labels" not in words:
        plain = read_scene_plainly(streams_dir)[6]
        assert scene[1].find("color").read_bytes() == plain[1]
        assert np.array_equal(scene[1].depth(), plain[2])


@pytest.mark.parametrize(
    ("words", "expected", "lost"),
    [
        ([], [0], ()),
        (["--every", "2"], [0, 6], LOST),
        (["--every", "2", "--keep-lost"], [0, 2, 4, 6], LOST),
        (["--at-most", "3"], [0, 1, 5], LOST),
        (["--at-most", "300"], TRACKED, LOST),
        (["--at-most", "4", "--keep-lost"], [0, 1, 3, 5], ()),
        (["--at-most", "7", "--keep-lost"], list(range(COUNT)), LOST),
    ],
)
def test_options_select_frames_and_a_dry_run_counts_them(
    streams_dir, out_dir, words, expected, lost
):
    words = ("--with", "pose", *words)
    dry = extract(streams_dir, out_dir, *words, "--dry-run")
    assert extract(streams_dir, out_dir, *words).status == 0

    record = FrameFolder(out_dir)[TRAIN].record
    assert (list(record.frames), record.lost) == (expected, lost)
    assert dry.json["scenes"][TRAIN] == {"frames": len(expected), "lost": len(lost)}
    assert dry.json["to_make"] == {"not made yet": SCENES}
    if 2 in expected:
        assert (out_dir / TRAIN / "pose/2.txt").read_text() == "-inf -inf -inf -inf\n" * 4
        is_tracked = [number not in LOST for number in expected]
        assert FrameFolder(out_dir)[TRAIN].is_tracked.tolist() == is_tracked


def test_resized_images_have_the_size_and_matching_intrinsics(tmp_path, out_dir):
    write_streams(tmp_path / "raw", [TRAIN], is_decodable=True)

    assert extract(tmp_path / "raw", out_dir, *EVERYTHING, "--size", "8x6").status == 0

    scene = FrameFolder(out_dir)[TRAIN]
    matrix = np.loadtxt(out_dir / TRAIN / "intrinsic/intrinsic_color.txt")
    assert matrix[0, :3] == pytest.approx([30 * 8 / 32, 0, 16 * 8 / 32 - 0.5])
    assert matrix[1, :3] == pytest.approx([0, 31 * 6 / 24, 12 * 6 / 24 - 0.5])
    assert scene.color_camera.intrinsic == pytest.approx(matrix)
    assert scene[1].color().shape == (6, 8, 3)
    # Numbers are taken, not averaged.
    depth = read_scene_plainly(tmp_path / "raw")[1][2]
    assert np.array_equal(scene[1].depth(), depth[1::2, 1::2])
    assert np.array_equal(scene[1].labels(), label_image(1)[2::4, 2::4])
    assert np.array_equal(scene[1].instances(), instance_image(1)[2::4, 2::4])

    image = np.random.default_rng(0).integers(0, 256, (24, 32, 3), np.uint8)
    means = image.reshape(12, 2, 16, 2, 3).mean(axis=(1, 3))
    assert np.abs(resize_color(image, (16, 12)) - means).max() <= 1
    # Middles of rows at 1.25 and 3.75, of columns at 1.17, 3.5 and 5.83.
    resized = resize_nearest(np.arange(35, dtype=np.uint16).reshape(5, 7), (3, 2))
    assert resized.tolist() == [[8, 10, 12], [22, 24, 26]]


@pytest.mark.parametrize(
    ("label_set", "expected"),
    [
        ("raw", SCANNET_IDS),
        ("nyu40", (0, 5, 38, 39)),
        ("scannet20", (0, SCANNET20.ids.index(5) + 1, 0, SCANNET20.ids.index(39) + 1)),
        ("scannet200", (0, SCANNET200.ids.index(2) + 1, SCANNET200.ids.index(188) + 1, 0)),
    ],
)
def test_label_ids_are_converted(streams_dir, out_dir, label_set, expected):
    words = ("--every", "3", "--with", "labels", "--label-set", label_set)
    assert extract(streams_dir, out_dir, *words).status == 0

    labels = FrameFolder(out_dir)[TRAIN][1].labels()
    for scannet_id, label in zip(SCANNET_IDS, expected, strict=True):
        assert set(labels[label_image(3) == scannet_id]) == {label}


def encode_few_bits(_number):
    """Encode an image of 4 bits, which Pillow would multiply by 17."""
    header = struct.pack(">IIBBBBB", *COLOR_SIZE, 4, 0, 0, 0, 0)
    rows = zlib.compress(bytes(COLOR_SIZE[1] * (1 + COLOR_SIZE[0] // 2)))
    data = b"\x89PNG\r\n\x1a\n"
    for kind, content in ((b"IHDR", header), (b"IDAT", rows), (b"IEND", b"")):
        checksum = struct.pack(">I", zlib.crc32(kind + content))
        data += struct.pack(">I", len(content)) + kind + content + checksum
    return data


def labels_of(encode):
    return make_zip("label-filt", encode)


STRANGE = np.full(COLOR_SIZE[::-1], 9999, np.uint16)
SENS, ZIP = ".sens", "_2d-label-filt.zip"
FAULTS = [
    (SENS, lambda data: data[:-300], "is truncated or damaged within frame 6 of 7, which begins"),
    (SENS, lambda data: data.replace(b"\xff\xc0", b"\xff\xd8", 1), "frame 0 of 7 is damaged"),
    (SENS, lambda data: data[:21] + b"\xff" * 60 + data[81:], "a matrix that is not finite"),
    (
        SENS,
        lambda data: data.replace(struct.pack(">HH", 24, 32), struct.pack(">HH", 24, 33)),
        "frame 0 of 7 is damaged: color has 33 x 24 pixels, expected 32 x 24",
    ),
    (ZIP, None, "no such file"),
    (ZIP, lambda data: data[:-100], "is not a zip file, or is truncated"),
    (ZIP, lambda _: make_zip("other", encode_few_bits), "has no 'label-filt/0.png'"),
    (ZIP, lambda data: data.replace(b"IDAT", b"IDAX"), "'label-filt/0.png' in it is damaged: Bad"),
    (ZIP, lambda _: labels_of(encode_few_bits), "has 4 bits and the color type 0, expected 8 or"),
    (ZIP, lambda _: labels_of(lambda _: b"\xff\xd8\xff\xd9"), "is not a PNG image"),
    (
        ZIP,
        lambda _: labels_of(lambda n: encode_png(label_image(n))[:-12]),
        "is a truncated PNG image",
    ),
    (
        ZIP,
        lambda _: labels_of(lambda _: encode_png(np.zeros((5, 6), np.uint16))),
        "'label-filt/0.png' in it is an image of 6 x 5, expected 32 x 24",
    ),
]


@pytest.mark.parametrize(("suffix", "change", "problem"), FAULTS)
def test_damaged_source_fails_its_scene(raw_dir, out_dir, suffix, change, problem):
    path = raw_file(raw_dir, suffix)
    whole = path.read_bytes()
    path.unlink()
    if change is not None:
        path.write_bytes(change(whole))

    outcome = extract(raw_dir, out_dir, "--with", "color", "labels")

    assert (outcome.status, outcome.json["made"]) == (3, [VAL, TEST])
    (failure,) = outcome.json["failures"]
    assert (failure["scene_id"], failure["path"]) == (TRAIN, str(path))
    assert problem in failure["message"]
    assert "download it" in failure["hint"]
    assert not (out_dir / TRAIN).exists()
    if suffix == SENS:
        verified = run_main("verify", raw_dir, "--json")
        assert verified.status == 3
        assert any(problem in finding["message"] for finding in verified.json["findings"])


def test_other_faults_are_named(raw_dir, out_dir):
    write(out_dir / "thesis.tex", b"")
    foreign = extract(raw_dir, out_dir)
    assert foreign.status == 2
    assert "holds thesis.tex, and was not made by" in foreign.json["message"]
    (out_dir / "thesis.tex").unlink()

    words = ("--with", "labels", "--label-set", "nyu40")
    assert extract(raw_dir, out_dir, *words, "--scenes", VAL).status == 0
    write(raw_file(raw_dir, ZIP), labels_of(lambda _: encode_png(STRANGE)))
    raw_file(raw_dir, SENS, VAL).unlink()
    os.mkfifo(raw_file(raw_dir, SENS, VAL))
    write(out_dir / TEST, b"mine")
    outcome = extract(raw_dir, out_dir)
    problems = {failure["scene_id"]: failure for failure in outcome.json["failures"]}
    unknown = "'label-filt/0.png' in it has ScanNet ids that are not in the label map: 9999"
    assert problems[TRAIN]["message"] == unknown
    assert problems[TRAIN]["hint"].endswith("--label-set raw")
    assert problems[VAL]["message"] == "is a named pipe, expected a file"
    assert problems[TEST]["message"] == "is in the way"
    assert (out_dir / TEST).read_bytes() == b"mine"


def test_second_run_makes_what_is_missing_or_was_changed(raw_dir, out_dir):
    words = ("--every", "3", "--with", "color", "depth", "pose", "labels")
    assert extract(raw_dir, out_dir, *words).json["made"] == SCENES
    whole = digests(out_dir)
    (out_dir / TRAIN / "depth/3.png").unlink()
    os.truncate(out_dir / VAL / "color/0.jpg", 10)
    dry = extract(raw_dir, out_dir, "--dry-run")
    assert dry.json["to_make"] == {"its files were changed": [TRAIN, VAL]}

    # The options of the folder need not be repeated.
    outcome = extract(raw_dir, out_dir)
    assert (outcome.json["made"], outcome.json["kept"]) == ([TRAIN, VAL], [TEST])
    assert digests(out_dir) == whole

    # People remove streams to free the disk: the frames stay.
    for suffix in (SENS, ZIP):
        raw_file(raw_dir, suffix).unlink()
    assert extract(raw_dir, out_dir).json["kept"] == SCENES
    assert extract(raw_dir, out_dir, "--scenes", TRAIN).json["kept"] == [TRAIN]
    # Without them, a missing frame is a failure.
    (out_dir / TRAIN / "depth/3.png").unlink()
    outcome = extract(raw_dir, out_dir)
    (failure,) = outcome.json["failures"]
    assert (failure["scene_id"], failure["message"]) == (TRAIN, "no such file")

    write(raw_file(raw_dir, SENS), make_content(COUNT + 6).encode())
    write(raw_file(raw_dir, ZIP), LABELS_ZIP)
    outcome = extract(raw_dir, out_dir, "--splits", "train")
    assert outcome.status == 3  # its zip file has images of 7 frames only
    write(raw_file(raw_dir, SENS), make_content(COUNT - 1).encode())
    assert extract(raw_dir, out_dir, "--splits", "train").json["made"] == [TRAIN]
    assert len(FrameFolder(out_dir)[TRAIN]) == 2

    other_map = "raw_category\tid\tnyu40id\nchair\t2\t5\n"
    (raw_dir / "scannetv2-labels.combined.tsv").write_text(other_map)
    assert extract(raw_dir, out_dir).json["made"] == []  # raw ids do not depend on it


def test_folder_has_one_set_of_options(streams_dir, out_dir):
    words = ("--every", "3", "--scenes", TRAIN, VAL)
    assert extract(streams_dir, out_dir, *words).status == 0
    before = digests(out_dir)
    for words in (("--every", "2"), ("--at-most", "3"), ("--layout", "mmdet3d")):
        outcome = extract(streams_dir, out_dir, *words)
        assert outcome.status == 2
        assert "scene0000_00 has frames with other options: every: 3, " in outcome.json["message"]
        assert digests(out_dir) == before
    edit_json(out_dir / VAL / "frames.json", lambda record: record["options"].update(every=5))
    outcome = extract(streams_dir, out_dir)
    assert f"{VAL} has frames with other options: every: 5, " in outcome.json["message"]


def test_scenes_are_selected_and_those_without_stream_left_out(raw_dir, out_dir, whole_dir):
    for words, made in (
        (("--splits", "train", "val", "--limit", "1"), [TRAIN]),
        (("--splits", "test"), [TEST]),
    ):
        assert extract(raw_dir, out_dir, *words).json["made"] == made
    raw_file(raw_dir, SENS, VAL).unlink()
    assert extract(raw_dir, out_dir).json["without_stream"] == [VAL]
    named = extract(raw_dir, out_dir, "--scenes", TRAIN, VAL)
    assert (named.status, named.json["failures"][0]["scene_id"]) == (3, VAL)
    nothing = extract(whole_dir / "raw", out_dir.parent / "none")
    assert nothing.json["message"] == "no selected scene has a sensor stream (.sens)"
    assert "--types .sens --scenes: all of them have 1.2 TB" in nothing.json["hint"]

    write(raw_file(raw_dir, SENS, "scene0900_00"), make_content(1).encode())
    words = ("--scenes", "scene0900_00", "--splits", "train")
    assert extract(raw_dir, out_dir, *words).json["made"] == ["scene0900_00"]
    assert "scene0900_00" in extract(raw_dir, out_dir).json["kept"]


@pytest.mark.parametrize("name", ["color/0.jpg", "depth/0.png", "pose/0.txt", "frames.json", ""])
def test_verify_finds_changed_and_missing_files(streams_dir, out_dir, name):
    extract(streams_dir, out_dir, "--scenes", TRAIN, VAL)
    path = out_dir / TRAIN / (name or "frames.json")
    patch(path, -1, b"x")
    if not name:
        path.unlink()

    outcome = run_main("verify", out_dir)

    assert outcome.status == 3
    assert f"error: {path}: " in outcome.stderr
    if name:
        path.unlink()
        assert run_main("verify", out_dir).status == 3


@pytest.mark.parametrize(
    ("key", "value", "problem"),
    [
        ("kind", "other", "is damaged"),
        ("scene_id", VAL, f"is the record of {VAL}"),
        ("frames", [-1], "is damaged"),
        ("color_camera", {"size": [1, 1], "intrinsic": [], "extrinsic": []}, "is damaged"),
        ("", b"", "is not a matrix of 4 x 4"),
        ("", b"1 2 3", "is not a matrix of 4 x 4"),
        ("", b"a " * 16, "is not a matrix of 4 x 4"),
    ],
)
def test_damaged_record_and_pose_are_errors(streams_dir, out_dir, key, value, problem):
    extract(streams_dir, out_dir)
    if key:
        edit_json(out_dir / TRAIN / "frames.json", lambda record: record.update({key: value}))
    else:
        (out_dir / TRAIN / "pose/0.txt").write_bytes(value)

    with pytest.raises(FileError, match=problem):
        _ = FrameFolder(out_dir)[TRAIN].poses
    with pytest.raises(FileError, match="holds no extracted frames"):
        FrameFolder(out_dir / TRAIN)


@pytest.mark.parametrize(
    ("words", "problem"),
    [
        (["--size", "320"], "is not a size, such as 320x240"),
        (["--size", "0x240"], "images of 0 x 240 cannot be written"),
        (["--every", "0"], "is not a whole number of at least 1"),
        (["--every", "2", "--at-most", "3"], "not allowed with argument"),
        (["--layout", "mmdet3d", "--with", "labels"], "the layout mmdet3d has no place for labels"),
        (["--layout", "posed_images"], "'posed_images' is not a layout"),
        (["--label-set", "nyu40"], "is of no use without label images"),
    ],
)
def test_options_that_make_no_sense_are_wrong_usage(streams_dir, out_dir, words, problem):
    outcome = extract(streams_dir, out_dir, *words)

    assert outcome.status == 2
    assert problem in outcome.json["message"]
    with pytest.raises(UsageError, match="has no place for colour"):
        FrameOptions(contents=("colour",))
    assert FrameOptions(contents=["pose", "color", "pose"]).contents == ("color", "pose")
