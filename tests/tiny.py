"""Raw files small enough to check by hand: a scene of six vertices, sensor streams, zip files.

The scene has two unit squares of two triangles each, which share the edge between vertices 2 and 3:

    floor (z = 0): 0 (0,0,0)  1 (1,0,0)  2 (1,1,0)  3 (0,1,0)
    wall (y = 1):  3          2          5 (1,1,1)  4 (0,1,1)

Segment 0 has vertices 0 and 1, segment 2 has 2 and 3, segments 4 and 5 one vertex each. The floor
(id 0) consists of segments 0 and 2, the wall (id 1) of 2 and 4, so that they overlap in segment 2.
Segment 5 is in no group.
"""

from __future__ import annotations

import io
import json
import struct
import tempfile
import zipfile
import zlib
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

import numpy as np

from scannet_prep.base.images import encode_jpeg
from scannet_prep.processed.make_scene import process_scene
from scannet_prep.processed.npz import NpzReader
from scannet_prep.processed.scene import ProcessOptions, encode_processed, parse_processed
from scannet_prep.raw.files import read_raw_file
from scannet_prep.raw.tree import list_raw
from scannet_prep.release.label_map import builtin_label_map
from scannet_prep.release.scenes import Split

SCENE_ID = "scene0000_00"
TEST_SCENE_ID = "scene0707_00"

POSITIONS = ((0, 0, 0), (1, 0, 0), (1, 1, 0), (0, 1, 0), (0, 1, 1), (1, 1, 1))
COLORS = (
    (10, 20, 30),
    (40, 50, 60),
    (70, 80, 90),
    (100, 110, 120),
    (130, 140, 150),
    (160, 170, 255),
)
FACES = ((0, 1, 2), (0, 2, 3), (3, 2, 5), (3, 5, 4))
SEGMENT_IDS = (0, 0, 2, 2, 4, 5)
GROUPS = (
    {"id": 0, "objectId": 0, "segments": [0, 2], "label": "floor"},
    {"id": 1, "objectId": 2, "segments": [2, 4], "label": "wall"},
)
# A quarter turn about z, then a shift.
ALIGNMENT = (0.0, -1.0, 0.0, 3.0, 1.0, 0.0, 0.0, -2.0, 0.0, 0.0, 1.0, -0.5, 0.0, 0.0, 0.0, 1.0)

NYU40_IDS = (2, 2, 1, 1, 1, 0)
SCANNET_IDS = (3, 3, 1, 1, 1, 0)
INSTANCES = (0, 0, 1, 1, 1, -1)
LABELS20 = (2, 2, 1, 1, 1, 0)
S = 5**-0.5
NORMALS = ((0, 0, 1), (0, 0, 1), (0, -S, 2 * S), (0, -2 * S, S), (0, -1, 0), (0, -1, 0))

_TYPES = ("char", "uchar", "short", "ushort", "int", "uint", "float", "double")
_CODES = dict(zip(_TYPES, "bBhHiIfd", strict=True))


@dataclass(frozen=True)
class Ply:
    """A mesh file; each attribute changes one detail of it."""

    positions: Sequence[Sequence[float]] = POSITIONS
    colors: Sequence[Sequence[int]] = COLORS
    faces: Sequence[Sequence[int]] | None = FACES
    labels: Sequence[int] | None = None
    format: str = "binary_little_endian"
    newline: str = "\n"
    position_type: str = "float"
    color_type: str = "uchar"
    label_type: str = "ushort"
    extra_before: tuple[tuple[str, str], ...] = ()
    vertex_list: str = ""
    face_list: str = "vertex_indices"
    count_type: str = "uchar"
    index_type: str = "int"
    face_extra: tuple[tuple[str, str], ...] = ()
    last_element: str = ""
    comments: tuple[str, ...] = ("comment VCGLIB generated",)
    counts: dict[str, object] = field(default_factory=dict)
    tail: bytes = b""

    def properties(self):
        """List type and name of each property of a vertex."""
        properties = [*self.extra_before]
        properties += [(self.position_type, name) for name in "xyz"]
        properties += [(self.color_type, name) for name in ("red", "green", "blue", "alpha")]
        if self.labels is not None:
            properties.append((self.label_type, "label"))
        return properties

    def header(self):
        """Encode the header."""
        lines = ["ply", f"format {self.format} 1.0", *self.comments]
        lines.append(f"element vertex {self.counts.get('vertex', len(self.positions))}")
        lines += [f"property {kind} {name}" for kind, name in self.properties()]
        if self.vertex_list:
            lines.append(f"property list uchar int {self.vertex_list}")
        if self.faces is not None:
            lines.append(f"element face {self.counts.get('face', len(self.faces))}")
            lines.append(f"property list {self.count_type} {self.index_type} {self.face_list}")
            lines += [f"property {kind} {name}" for kind, name in self.face_extra]
        if self.last_element:
            lines += [f"element {self.last_element} 1", "property int number"]
        return self.newline.join([*lines, "end_header", ""]).encode()

    def records(self):
        """List type and value of each number in the body, record by record."""
        types = [kind for kind, _ in self.properties()]
        records = []
        for index, (position, color) in enumerate(zip(self.positions, self.colors, strict=True)):
            values = [7] * len(self.extra_before)
            values += [*position, *color, 255]
            if self.labels is not None:
                values.append(self.labels[index])
            record = [*zip(types, values, strict=True)]
            if self.vertex_list:
                record += [("uchar", 2), ("int", 5), ("int", 6)]
            records.append(record)
        for face in self.faces or ():
            record = [(self.count_type, len(face))]
            record += [(self.index_type, vertex) for vertex in face]
            record += [(kind, 9) for kind, _ in self.face_extra]
            records.append(record)
        if self.last_element:
            records.append([("int", 1)])
        return records

    def encode(self):
        """Encode the whole file."""
        if self.format == "ascii":
            body = self._encode_as_text()
        else:
            body = self._encode_as_binary()
        return self.header() + body + self.tail

    def _encode_as_text(self):
        text = ""
        for record in self.records():
            words = [repr(_cast(kind, value)) for kind, value in record]
            text += " ".join(words) + self.newline
        return text.encode()

    def _encode_as_binary(self):
        layout = "<" if self.format == "binary_little_endian" else ">"
        values = []
        for record in self.records():
            for kind, value in record:
                layout += _CODES[kind]
                values.append(_cast(kind, value))
        return struct.pack(layout, *values)


def _cast(kind, value):
    if kind in {"float", "double"}:
        return float(value)
    return int(value)


def segments_file(ids=SEGMENT_IDS, newline="\r\n", scene_id=SCENE_ID, space=""):
    """Encode a `.segs.json`.

    Args:
        ids: Value of `segIndices`.
        newline: End of a line.
        scene_id: The scene.
        space: Put after each comma of the ids; the release has none there.
    """
    text = json.dumps(ids, separators=("," + space, ":"))
    lines = [
        "{",
        '"params": {',
        '\t"kThresh": "0.0001"',
        "}",
        ",",
        f'"sceneId": "{scene_id}",',
        f'"segIndices": {text}',
        "}",
        "",
    ]
    return newline.join(lines).encode()


def aggregation_file(groups=GROUPS, scene_id=SCENE_ID):
    """Encode an `.aggregation.json`."""
    document = {
        "sceneId": f"scannet.{scene_id}",
        "appId": "Aggregator.v2",
        "segGroups": groups,
        "segmentsFile": f"scannet.{scene_id}_vh_clean_2.0.010000.segs.json",
    }
    return json.dumps(document, separators=(",\r\n", ": ")).encode()


def info_file(*lines, alignment=ALIGNMENT):
    """Encode a `.txt` with these lines at its end; `alignment=None` leaves `axisAlignment` out."""
    all_lines = ["numDepthFrames = 12", *lines]
    if alignment:
        numbers = "".join(f"{number:.6f} " for number in alignment)
        all_lines.insert(0, f"axisAlignment = {numbers}")
    return "".join(f"{line}\r\n" for line in all_lines).encode()


def group(number, segments, label, object_id=None):
    """Make an entry of `segGroups`."""
    return {
        "id": number,
        "objectId": number if object_id is None else object_id,
        "segments": segments,
        "label": label,
    }


_DEFAULT = {
    "_vh_clean_2.ply": Ply().encode(),
    "_vh_clean_2.0.010000.segs.json": segments_file(),
    ".aggregation.json": aggregation_file(),
    ".txt": info_file("sceneType = Bedroom / Hotel"),
}


def read_bytes(read, data):
    """Call a reader with a temporary file that has this content."""
    with tempfile.NamedTemporaryFile(prefix="scene0000_00.") as file:
        Path(file.name).write_bytes(data)
        return read(Path(file.name))


def read_raw(kind, data):
    """Read a raw file of one kind that has this content."""
    return read_bytes(partial(read_raw_file, kind), data)


def write_tiny(raw_dir, files=None, scene_id=SCENE_ID):
    """Write the tiny scene.

    Args:
        raw_dir: The raw tree.
        files: Content of files to be replaced or added, by suffix; None for those to be left out.
        scene_id: The scene.
    """
    scans_name = "scans_test" if scene_id == TEST_SCENE_ID else "scans"
    directory = raw_dir / scans_name / scene_id
    directory.mkdir(parents=True)
    for suffix, data in (_DEFAULT | (files or {})).items():
        if data is not None:
            (directory / f"{scene_id}{suffix}").write_bytes(data)
    return list_raw(raw_dir).scenes[scene_id]


def process_tiny(raw_dir, files=None, scene_id=SCENE_ID, **options):
    """Write the tiny scene as `write_tiny` does, and process it as `process_written` does."""
    return process_written(write_tiny(raw_dir, files, scene_id), **options)


def process_written(scene, split=Split.TRAIN, **options):
    """Process a scene with these `ProcessOptions`, and read it from its encoded form."""
    made = process_scene(scene, split, ProcessOptions(**options), builtin_label_map())
    parsed = parse_processed(NpzReader(b"".join(encode_processed(made)), f"{scene.scene_id}.npz"))
    assert parsed.meta == made.meta
    return parsed


WIDTH = 8
HEIGHT = 6
DEPTH = zlib.compress(bytes(range(WIDTH * HEIGHT)) * 2)
# The frame header of a JPEG image: its size, and no components.
FRAME_HEADER = struct.pack(">2sHBHHB", b"\xff\xc0", 8, 8, HEIGHT, WIDTH, 0)
# Start, a comment, the frame header, the start of a scan, its data (with an escaped 0xFF and a
# restart marker), end.
JPEG = b"\xff\xd8\xff\xfe\x00\x05abc" + FRAME_HEADER
JPEG += b"\xff\xda\x00\x03\x01da\xff\x00ta\xff\xd0!\xff\xd9"


def make_zip(compression=zipfile.ZIP_DEFLATED):
    """Make a zip file of two members, of 2,560 and 6 bytes."""
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w", compression) as archive:
        archive.writestr("label-filt/0.png", bytes(range(256)) * 10)
        archive.writestr("label-filt/1.png", b"second")
    return file.getvalue()


COLOR_SIZE = (32, 24)
DEPTH_SIZE = (16, 12)
LOST = np.full((4, 4), -np.inf, np.float32)


def make_intrinsic(fx, fy, cx, cy):
    matrix = np.eye(4, dtype=np.float32)
    matrix[:2, :3] = [[fx, 0, cx], [0, fy, cy]]
    return matrix


COLOR_INTRINSIC = make_intrinsic(30, 31, 15.5, 11.5)
DEPTH_INTRINSIC = make_intrinsic(15, 16, 7.5, 5.5)


def make_pose(number):
    """Make any rotation, and a shift."""
    rng = np.random.default_rng(number)
    orthogonal, _ = np.linalg.qr(rng.normal(size=(3, 3)))
    pose = np.eye(4, dtype=np.float32)
    pose[:3, :3] = orthogonal * np.linalg.det(orthogonal)
    pose[:3, 3] = rng.uniform(-2, 2, 3)
    return pose


def make_jpeg(number):
    """Make a JPEG image of noise."""
    width, height = COLOR_SIZE
    pixels = np.random.default_rng(number).integers(0, 256, (height, width, 3), np.uint8)
    return encode_jpeg(pixels)


def make_depth(number):
    """Make a depth image of noise, with some 0."""
    rng = np.random.default_rng(1000 + number)
    shape = DEPTH_SIZE[::-1]
    return rng.integers(0, 3000, shape, np.uint16) * rng.integers(0, 3, shape, np.uint16)


def make_frames(count, lost=()):
    """Make pose, colour image and depth image of each frame; those `lost` have poses of -inf."""
    return [
        (LOST if number in lost else make_pose(number), make_jpeg(number), make_depth(number))
        for number in range(count)
    ]


COLOR_CAMERA = (COLOR_SIZE, COLOR_INTRINSIC)
DEPTH_CAMERA = (DEPTH_SIZE, DEPTH_INTRINSIC)


def encode_stream(frames, depth_shift=1000.0, color=COLOR_CAMERA, depth=DEPTH_CAMERA, imu_frames=0):
    """Encode a stream of cameras of a size and intrinsics, with empty inertial records.

    A frame is its pose, its colour image, and its depth image, an array or compressed already.
    """
    sizes = (*color[0], *depth[0])
    data = struct.pack("<IQ9s", 4, 9, b"StructSen")
    for _, intrinsic in (color, depth):
        data += intrinsic.tobytes() + np.eye(4, dtype=np.float32).tobytes()
    data += struct.pack("<2i4IfQ", 2, 1, *sizes, depth_shift, len(frames))
    for pose, jpeg, image in frames:
        compressed = image if isinstance(image, bytes) else zlib.compress(image.tobytes())
        head = struct.pack("<4Q", 0, 0, len(jpeg), len(compressed))
        data += pose.tobytes() + head + jpeg + compressed
    return data + struct.pack("<Q", imu_frames) + bytes(128 * imu_frames)


def make_stream(frames=3, imu_frames=0, *, color=JPEG, depth=DEPTH):
    """Make a sensor stream of equal frames."""
    camera = ((WIDTH, HEIGHT), np.eye(4, dtype=np.float32))
    return encode_stream([(LOST, color, depth)] * frames, 1e3, camera, camera, imu_frames)
