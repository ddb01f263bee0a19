"""Frames in the layouts of other programs, read as these programs read them.

Each image shows a dot where a known point is. The reading code of each program, written from what
it expects, gives images and cameras: the point must be projected onto the dot.
"""

import json
import shutil
import struct

import numpy as np
import pytest
from commands import TEST, TRAIN, VAL, extract, patch, raw_file, run_main, succeed
from PIL import Image
from plyfile import PlyData
from tiny import LOST, encode_stream, make_intrinsic, make_pose

from scannet_prep.base.images import encode_jpeg
from scannet_prep.errors import FileError
from scannet_prep.frames import FrameFolder
from scannet_prep.synthetic import write_release

SCENES = [TRAIN, VAL, TEST]
COUNT = 13
COLOR_SIZE = (160, 120)
COLOR_INTRINSIC = make_intrinsic(150, 155, 81.25, 57.5)
DEPTH_SIZE = (128, 96)
DEPTH_INTRINSIC = make_intrinsic(118, 121, 66, 44.5)
LOST_NUMBER = 3
# The point that each frame shows, in the frame of its camera.
POINTS = np.random.default_rng(0).uniform((-0.4, -0.2, 1.5), (0.4, 0.2, 2.5), (COUNT, 3))


def rotation_from(quaternion):
    """Make the rotation of a unit quaternion, w, x, y, z, as COLMAP's loaders do."""
    w, *vector = quaternion
    cross = np.cross(vector, np.eye(3)).T
    return np.eye(3) + 2 * w * cross + 2 * cross @ cross


POSES = [LOST if number == LOST_NUMBER else make_pose(number) for number in range(COUNT)]
# In the frame of the scan.
WORLD = [(pose @ [*point, 1])[:3] for pose, point in zip(POSES, POINTS, strict=True)]


def draw_dot(point, intrinsic, size):
    """Draw a soft dot of 0 to 1 where a camera sees a point: whole numbers are middles."""
    u, v, _ = intrinsic[:3, :3] @ point / point[2]
    columns, rows = np.meshgrid(*map(np.arange, size))
    return np.exp(-((columns - u) ** 2 + (rows - v) ** 2) / 40)


def make_frame(number, color=(COLOR_SIZE, COLOR_INTRINSIC), depth=(DEPTH_SIZE, DEPTH_INTRINSIC)):
    dot = draw_dot(POINTS[number], *reversed(color))
    jpeg = encode_jpeg(np.repeat((255 * dot).astype(np.uint8)[:, :, np.newaxis], 3, axis=2))
    is_near = draw_dot(POINTS[number], *reversed(depth)) > 0.3
    image = (is_near * POINTS[number, 2] * 1000).astype(np.uint16)
    return POSES[number], jpeg, image


@pytest.fixture(scope="module")
def raw_dir(tmp_path_factory):
    """A raw tree of three scenes with meshes, and streams of dots."""
    raw_dir = tmp_path_factory.mktemp("dots") / "raw"
    write_release(raw_dir, SCENES, vertices=600)
    for scene_id in SCENES:
        frames = [make_frame(number) for number in range(COUNT)]
        cameras = ((COLOR_SIZE, COLOR_INTRINSIC), (DEPTH_SIZE, DEPTH_INTRINSIC))
        raw_file(raw_dir, ".sens", scene_id).write_bytes(encode_stream(frames, 1000.0, *cameras))
    return raw_dir


def load(path):
    return np.array(Image.open(path))


def locate(image):
    """Find the middle of the dot in an image, in columns and rows."""
    weights = image.reshape(*image.shape[:2], -1).mean(axis=2)
    weights = weights * (weights > weights.max() / 3)
    columns, rows = np.meshgrid(*map(np.arange, weights.shape[::-1]))
    return np.array([(weights * axis).sum() for axis in (columns, rows)]) / weights.sum()


def check(image, number, intrinsic, camera_from_scan):
    """Check that a camera sees the point of a frame where its image shows the dot."""
    point = camera_from_scan[:3, :3] @ WORLD[number] + camera_from_scan[:3, 3]
    u, v, _ = intrinsic[:3, :3] @ point / point[2]
    # Half a pixel is the difference between the ways to count them.
    is_color = image.ndim == 3
    assert locate(image) == pytest.approx([u, v], abs=0.25 if is_color else 0.5)
    assert is_color or image.max() == pytest.approx(1000 * POINTS[number, 2], abs=1)


NUMBERS = [number for number in range(COUNT) if number != LOST_NUMBER]


def read_posed(folder, names, intrinsics, numbers=NUMBERS):
    """Read colour and depth of frames; the names of images and poses have their numbers."""
    *images, pose = names
    for number in numbers:
        camera_from_scan = np.linalg.inv(np.loadtxt(folder / pose.format(number)))
        for name, intrinsic in zip(images, intrinsics, strict=True):
            yield load(folder / name.format(number)), number, intrinsic, camera_from_scan
    if numbers is NUMBERS:
        assert not np.isfinite(np.loadtxt(folder / pose.format(LOST_NUMBER))).any()


def read_embodiedscan(out_dir):
    """The infos name frames by their numbers; Video-3D-LLM reads each pose beside its image."""
    # Video-3D-LLM looks every name in this folder up in the infos.
    assert sorted(path.name for path in (out_dir / "posed_images").iterdir()) == SCENES
    folder = out_dir / "posed_images" / TRAIN
    intrinsics = [np.loadtxt(folder / name) for name in ("intrinsic.txt", "depth_intrinsic.txt")]
    return read_posed(folder, ("{:05}.jpg", "{:05}.png", "{:05}.txt"), intrinsics, (0, 10))


def load_intrinsics(folder):
    return [np.loadtxt(folder / f"intrinsic_{name}.txt") for name in ("color", "depth")]


def read_openeqa(out_dir):
    """An episode is the colour images, sorted by name, from the first frame on."""
    folder = out_dir / TEST
    names = sorted(path.name for path in folder.glob("*-rgb.png"))
    assert names == [f"{number:06}-rgb.png" for number in range(COUNT)]
    names = ("{:06}-rgb.png", "{:06}-depth.png", "{:06}.txt")
    return read_posed(folder, names, load_intrinsics(folder))


def read_simplerecon(out_dir):
    """Sizes are those of the metadata of the release."""
    folder = out_dir / "scans" / TRAIN
    lines = (folder / f"{TRAIN}.txt").read_text().splitlines()
    metadata = dict(line.split(" = ") for line in lines)
    assert {"depthWidth", "depthHeight", "numColorFrames"} <= metadata.keys()
    names = ("frame-{:06}.color.jpg", "frame-{:06}.depth.png", "frame-{:06}.pose.txt")
    return read_posed(folder / "sensor_data", names, load_intrinsics(folder / "intrinsic"))


def read_sens(out_dir):
    """The header is in _info.txt, and depth is PGM, which has the high byte first."""
    folder = out_dir / "scans_test" / TEST / "sens"
    lines = [line.split(" = ") for line in (folder / "_info.txt").read_text().splitlines()]
    info = {name.removeprefix("m_"): words.split() for name, words in lines}
    sizes = [int(*info[f"color{side}"]) for side in ("Width", "Height")]
    assert (sizes, info["frames.size"]) == ([*COLOR_SIZE], [str(COUNT)])
    assert (info["sensorName"], info["depthShift"], len(lines)) == (["StructSen"], ["1000"], 12)
    assert (folder / "frame-000000.depth.pgm").read_bytes().startswith(b"P5\n# ")
    matrices = [info[f"calibration{name}Intrinsic"] for name in ("Color", "Depth")]
    intrinsics = [np.array([*map(float, matrix)]).reshape(4, 4) for matrix in matrices]
    names = ("frame-{:06}.color.jpg", "frame-{:06}.depth.pgm", "frame-{:06}.pose.txt")
    return read_posed(folder, names, intrinsics)


def read_neuralrecon(out_dir):
    """Everything beside the folders of scenes would be taken for one."""
    assert {path.name for path in (out_dir / "scans").iterdir()} == {TRAIN, VAL}
    folder = out_dir / "scans" / TRAIN
    names = ("color/{}.jpg", "depth/{}.png", "pose/{}.txt")
    return read_posed(folder, names, load_intrinsics(folder / "intrinsic"))


def read_points(path):
    """Read points with normals and colours, as 3DGS does."""
    points = PlyData.read(path)["vertex"].data
    assert not points["nx"].any()
    return points


def read_colmap(out_dir):
    """Read a model as 3DGS and gsplat do: it is binary, as in gsplat 1.5, and pixels begin at 0."""
    folder = out_dir / TRAIN
    cameras, images, points = (
        (folder / f"sparse/0/{name}.bin").read_bytes() for name in ("cameras", "images", "points3D")
    )
    *head, fx, fy, cx, cy = struct.unpack("<QIiQQ4d", cameras)
    assert head == [1, 1, 1, *COLOR_SIZE]
    intrinsic = make_intrinsic(fx, fy, cx - 0.5, cy - 0.5)
    assert images[:8] == struct.pack("<Q", len(NUMBERS))
    for index, row in enumerate(struct.iter_unpack("<I7dI11sQ", images[8:]), start=1):
        image_index, *numbers, camera, name, count = row
        assert (image_index, camera, name[6:], count) == (index, 1, b".jpg\0", 0)
        pose = np.eye(4)
        pose[:3, :3] = rotation_from(numbers[:4])
        pose[:3, 3] = numbers[4:]
        assert np.abs(pose[:3, :3] @ pose[:3, :3].T - np.eye(3)).max() < 1e-6
        number = int(name[:6])
        yield load(folder / f"images/{number:06}.jpg"), number, intrinsic, pose
        yield load(folder / f"depths/{number:06}.png"), number, intrinsic, pose
    stored = read_points(folder / "sparse/0/points3D.ply")
    # Index, place, colour, error; and how many images have matched it.
    rows = [
        struct.pack("<Q3d3B16x", index, *[*point][:6])
        for index, point in enumerate(stored, start=1)
    ]
    assert points == struct.pack("<Q", len(rows)) + b"".join(rows)


def read_nerfstudio(out_dir):
    """Read transforms.json: cameras look along -z, y points up, and pixel 0 is seen at 0.5."""
    folder = out_dir / TRAIN
    value = json.loads((folder / "transforms.json").read_text())
    assert (value["w"], value["h"]) == COLOR_SIZE
    assert len(read_points(folder / value["ply_file_path"])) > 500
    assert value["orientation_override"] == "none"
    intrinsic = make_intrinsic(value["fl_x"], value["fl_y"], value["cx"] - 0.5, value["cy"] - 0.5)
    paths = [frame["file_path"] for frame in value["frames"]]
    assert paths == sorted(paths)
    for frame in value["frames"]:
        camera_from_scan = np.diag([1, -1, -1, 1]) @ np.linalg.inv(frame["transform_matrix"])
        number = int(frame["file_path"][-10:-4])
        for name in ("file_path", "depth_file_path"):
            yield load(folder / frame[name]), number, intrinsic, camera_from_scan


def read_relpose(out_dir):
    """Read frames as the evaluation of poses does: images by position, and lines of 16 numbers."""
    folder = out_dir / TEST
    poses = np.loadtxt(folder / "pose_90.txt").reshape(-1, 4, 4)
    paths = sorted((folder / "color_90").iterdir())
    assert [path.name for path in paths] == [f"frame_{index:04}.jpg" for index in range(4)]
    assert len(poses) == len(paths)
    assert not np.isfinite(poses[1]).any()
    for index in (0, 2, 3):
        depth_path = folder / f"depth_90/frame_{index:04}.png"
        camera_from_scan = np.linalg.inv(poses[index])
        yield load(paths[index]), 3 * index, COLOR_INTRINSIC, camera_from_scan
        yield load(depth_path), 3 * index, DEPTH_INTRINSIC, camera_from_scan


def read_cut3r(out_dir):
    """Read frames as the training of CUT3R does: colour has the size and the camera of depth."""
    assert {path.name for path in (out_dir / "scans_train").iterdir()} == {TRAIN, VAL}
    folder = out_dir / "scans_train" / TRAIN
    names = np.load(folder / "new_scene_metadata.npz")["images"]
    assert names.tolist() == [f"{number:05}" for number in NUMBERS]
    for name in names:
        assert load(folder / f"color/{name}.jpg").shape == (*DEPTH_SIZE[::-1], 3)
        camera = np.load(folder / f"cam/{name}.npz")
        assert {camera[name].dtype for name in ("intrinsics", "pose")} == {np.dtype(np.float32)}
        depth = load(folder / f"depth/{name}.png")
        yield depth, int(name), camera["intrinsics"], np.linalg.inv(camera["pose"])


# Colour and depth of all frames with a pose.
IMAGE_COUNT = 2 * (COUNT - 1)
PROGRAMS = [
    ("embodiedscan", read_embodiedscan, 2 * 2),
    ("colmap --every 1 --with color depth", read_colmap, IMAGE_COUNT),
    ("nerfstudio --every 1 --with depth", read_nerfstudio, IMAGE_COUNT),
    ("relpose", read_relpose, 2 * 3),
    ("cut3r", read_cut3r, COUNT - 1),
    ("openeqa", read_openeqa, IMAGE_COUNT),
    ("sens", read_sens, IMAGE_COUNT),
    ("simplerecon", read_simplerecon, IMAGE_COUNT),
    ("neuralrecon", read_neuralrecon, IMAGE_COUNT),
]


@pytest.mark.parametrize(("layout", "read", "count"), PROGRAMS)
def test_program_sees_known_points_where_images_show_them(raw_dir, tmp_path, layout, read, count):
    succeed("frames", raw_dir, "-o", tmp_path, "--layout", *layout.split())

    views = [*read(tmp_path)]
    assert len(views) == count
    # The camera of `FrameFolder` belongs to the images as they were written, too.
    views += [
        (frame.read(content), frame.number, camera.intrinsic, np.linalg.inv(frame.pose))
        for scene in FrameFolder(tmp_path)
        for frame in scene
        for content, camera in (("color", scene.color_camera), ("depth", scene.depth_camera))
        if frame.number != LOST_NUMBER
    ]
    for view in views:
        check(*view)
    assert extract(raw_dir, tmp_path).json["kept"] == SCENES
    succeed("verify", tmp_path)


def test_monosdf_projects_known_points_into_the_middle_of_large_images(raw_dir, tmp_path):
    color = ((1297, 971), make_intrinsic(1170.25, 1172.5, 647.75, 484))
    depth = ((640, 480), make_intrinsic(577.5, 578.75, 318.75, 242.5))
    data = encode_stream(
        [make_frame(number, color, depth) for number in range(6)], 1000.0, color, depth
    )
    stream = raw_file(tmp_path / "raw", ".sens")
    stream.parent.mkdir(parents=True)
    stream.write_bytes(data)
    out_dir = tmp_path / "out"
    succeed("frames", tmp_path / "raw", "-o", out_dir, "--layout", "monosdf", "--every", "1")

    cameras = np.load(out_dir / TRAIN / "cameras.npz")
    for position, number in enumerate((0, 1, 2, 4, 5)):
        frame = FrameFolder(out_dir)[TRAIN][position]
        matrix = cameras[f"world_mat_{position}"]
        image = load(out_dir / TRAIN / f"image/{position:06}.png")
        metres = np.load(out_dir / TRAIN / f"depth/{position:06}.npy")
        assert (image.shape, metres.shape, metres.dtype) == ((384, 384, 3), (384, 384), np.float32)
        check(image, number, np.eye(3), matrix)
        check(frame.read("depth"), number, np.eye(3), matrix)
        assert np.array_equal(frame.read("depth"), np.rint(1000 * metres))
        # Cameras lie within the box from -1 to 1, and those of the border 1.5 m within.
        in_box = np.linalg.inv(cameras[f"scale_mat_{position}"]) @ POSES[number]
        assert np.abs(in_box[:3, 3]).max() < 1
        intrinsic = frame.scene.color_camera.intrinsic
        check(frame.read("color"), number, intrinsic, np.linalg.inv(frame.pose))

    (frame.scene.path / frame.names["depth"]).write_bytes(b"")
    with pytest.raises(FileError, match=r"depth/000004\.npy: "):
        frame.read("depth")
    patch(frame.scene.path / frame.names["color"], 0, b"?")
    with pytest.raises(FileError, match=r"image/000004\.png: is not a JPEG or PNG image that can"):
        frame.read("color")
    small = extract(raw_dir, tmp_path / "small", "--layout", "monosdf").json["failures"]
    assert small[0]["message"].endswith(" pixels of colour, too few for a square of 768")
    assert small[0]["hint"] == "choose another layout for this scene"


@pytest.mark.parametrize(
    ("layout", "name", "align"),
    [
        ("colmap", "sparse/0/points3D.ply", "--align-axis"),
        ("nerfstudio", "points3D.ply", "--no-align-axis"),
    ],
)
def test_processed_scenes_give_start_points_in_the_frame_of_the_poses(
    raw_dir, tmp_path, layout, name, align
):
    copied = shutil.copytree(raw_dir, tmp_path / "raw")
    run_main("process", copied, "-o", tmp_path / "processed", align)
    raw_file(copied, "_vh_clean_2.ply").unlink()
    words = ("--layout", layout, "--every", "1", "--processed", tmp_path / "processed")
    assert extract(raw_dir, tmp_path / "from_mesh", *words[:4]).status == 0
    assert extract(copied, tmp_path / "out", *words).status == 0
    points = read_points(tmp_path / "out" / TRAIN / name)
    expected = read_points(tmp_path / "from_mesh" / TRAIN / name)
    for axis in ("x", "y", "z", "red"):
        assert points[axis] == pytest.approx(expected[axis], abs=2e-6)
    (failure,) = extract(copied, tmp_path / "none", *words[:4]).json["failures"]
    assert "_vh_clean_2.ply" in failure["path"]
    raw_file(copied, "_vh_clean_2.ply").touch()
    assert extract(copied, tmp_path / "out", *words).json["kept"] == SCENES
    # They may be of another tree, so a mesh beside the stream comes first.
    for scene_path in (tmp_path / "processed").glob("*/*.npz"):
        scene_path.write_bytes(b"")
    assert extract(raw_dir, tmp_path / "beside", *words).status == 0


@pytest.mark.parametrize(("layout", "content"), [("nerfstudio", "depth"), ("official", "vertices")])
def test_depth_is_not_compared_between_cameras_at_different_places(
    raw_dir, tmp_path, layout, content
):
    copied = shutil.copytree(raw_dir, tmp_path / "raw")
    # The extrinsic of the depth camera begins after the name, and 3 matrices of 64 bytes.
    patch(raw_file(copied, ".sens"), 21 + 3 * 64 + 12, struct.pack("<f", 0.1))

    words = (copied, tmp_path / "out", "--scenes", TRAIN, "--layout", layout, "--with", "color")
    (failure,) = extract(*words, content).json["failures"]
    assert failure["message"] == "its colour camera and its depth camera are not at the same place"
    assert extract(*words).status == 0


@pytest.mark.parametrize(
    ("words", "problem"),
    [
        ("embodiedscan --at-most 5", "needs at-most: none, not at-most: 5"),
        ("embodiedscan --no-keep-lost", "needs keep-lost: yes, not keep-lost: no"),
        ("embodiedscan --first 2", "needs first: none, not first: 2"),
        ("colmap --keep-lost", "needs keep-lost: no, not keep-lost: yes"),
        ("relpose --at-most 5", "needs at-most: none, not at-most: 5"),
        ("cut3r --size 8x6", "needs size: none, not size: 8x6"),
        ("sens --size 8x6", "needs size: none, not size: 8x6"),
        ("simplerecon --size 8x6", "needs size: none, not size: 8x6"),
        ("simplerecon --every 2", "needs every: 1, not every: 2"),
        ("monosdf --size 8x6", "needs size: 384x384, not size: 8x6"),
        ("official --label-set nyu40", "label-set: nyu40 is for images of labels"),
        ("official --with colour", "the layout official has no place for colour"),
        ("official --size 320", "argument --size: '320' is not a size in pixels, such as 320x240"),
        ("posed_images", "'posed_images' is not a layout"),
    ],
)
def test_options_that_make_no_sense_or_would_break_a_reader_are_refused(
    raw_dir, tmp_path, words, problem
):
    outcome = extract(raw_dir, tmp_path / "out", "--layout", *words.split())
    assert outcome.status == 2
    assert problem in outcome.json["message"]
