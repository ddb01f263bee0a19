"""One processed scene, in memory and as `<split>/<scene>.npz`."""

from __future__ import annotations

import json
import mmap
import os
import sys
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, get_args

import msgspec
import numpy as np
from numpy.typing import NDArray

from scannet_prep.base.errors import ContentError, ProcessedFileError, UsageError
from scannet_prep.base.files import Buffer, Fingerprint, open_file, read_file
from scannet_prep.base.memory import find_worker
from scannet_prep.base.typed_json import make_decoder, parse_json, to_plain
from scannet_prep.processed.annotate import MAX_GROUPS, AnnotatedGroup, measure_groups
from scannet_prep.processed.npz import FORCE_HINT, NpzReader, again_hint, encode_npz
from scannet_prep.release.label_map import MAX_NYU40_ID
from scannet_prep.release.label_sets import SCANNET20, SCANNET200, LabelSet
from scannet_prep.release.scene import SceneId, Split
from scannet_prep.release.scene_warnings import SceneWarning

# Raised whenever the bytes of a processed folder, or their interpretation, change.
FORMAT_VERSION: Literal[2] = 2
MAX_FILE_BYTES = 1 << 31
_FLOATS_BY_HALF = np.arange(1 << 16, dtype=np.uint16).view(np.float16).astype(np.float32)

LabelsFrom = Literal["aggregation", "ply"]
_LABELS_FROM = get_args(LabelsFrom)

# Types and shapes of the arrays, in the order in which they are stored.
_SHAPES = {
    "points": (["<f4"], ("V", 3)),
    "normals": (["<f2"], ("V", 3)),
    "colors": (["|u1"], ("V", 3)),
    "faces": (["<i4"], ("F", 3)),
    "labels": (["|u1"], ("V",)),
    "nyu40_ids": (["|u1"], ("V",)),
    "scannet_ids": (["<u2"], ("V",)),
    "instances": (["<i2"], ("V",)),
    "segments": (["<u2", "<u4"], ("V",)),
    "axis_alignment": (["<f8"], (4, 4)),
}
_OPTIONAL = {"segments", "faces"}
# Arrays whose field of `ProcessedScene` has another name: the file holds train ids + 1.
_FIELDS = {"labels": "stored_labels"}
_DEFLATED = frozenset({"labels", "nyu40_ids", "scannet_ids", "instances", "segments", "meta"})


@dataclass(frozen=True, slots=True)
class ProcessOptions:
    """Everything that changes the bytes of a processed scene, other than the raw files.

    Attributes:
        scannet200: Whether `labels` holds ScanNet200 (else ScanNet20); the raw ids of both are always there.
        align_axis: Whether `points` and `normals` are in the axis-aligned frame (else in the frame of the scan).
        faces: Whether the triangles are kept.
        labels_from: `aggregation`, or `ply` for the nyu40 ids of `labels.ply`, as OctFormer and PointGroup take them.

    Raises:
        UsageError: The options contradict each other.
    """

    scannet200: bool = False
    align_axis: bool = False
    faces: bool = False
    labels_from: LabelsFrom = "aggregation"

    def __post_init__(self) -> None:
        """Check the combination."""
        if self.labels_from not in _LABELS_FROM:
            raise UsageError(f"labels_from is {self.labels_from!r}, expected one of {_LABELS_FROM}")

    @property
    def label_set(self) -> LabelSet:
        """The label set of the array `labels`."""
        return SCANNET200 if self.scannet200 else SCANNET20

    @property
    def flags(self) -> str:
        """The options as arguments of `scannet-prep process`, all of them stated."""
        switches = {
            "scannet200": self.scannet200,
            "align-axis": self.align_axis,
            "faces": self.faces,
        }
        words = [f"--{name}" if is_on else f"--no-{name}" for name, is_on in switches.items()]
        return " ".join([*words, "--labels-from", self.labels_from])


@dataclass(frozen=True, slots=True)
class SceneMeta:
    """The facts of a processed scene beside its arrays; stored as JSON.

    The first three fields come first in the JSON, so that a reader can compare them without parsing the rest.

    Attributes:
        format_version: Version of this file format.
        scene_id: Its name.
        options: The options that it was made with.
        split: The split it was filed under.
        scene_type: Free text of the release, for example `Bedroom / Hotel`; None where it has none.
        groups: Annotated groups, in file order.
        segment_ids: Raw id of each segment: `segment_ids[segments[v]]` is the release's id at vertex v.
        warnings: What was odd about the raw files.
        inputs: Fingerprints of the raw files it was made from, by file name.
        label_map: Which label map was used (of its content; see `LabelMap.digest`).
        program_version: Version of this package.
    """

    format_version: Literal[2]
    scene_id: SceneId
    options: ProcessOptions
    split: Split
    scene_type: str | None
    groups: tuple[AnnotatedGroup, ...]
    segment_ids: tuple[int, ...]
    warnings: tuple[SceneWarning, ...]
    inputs: Mapping[str, Fingerprint] = field(hash=False)
    label_map: str
    program_version: str

    def to_json(self) -> dict[str, Any]:
        """A dict of plain values, with what follows from them, for those who read the file without this package."""
        plain: dict[str, Any] = to_plain(self)
        return plain | {
            "label_set": self.options.label_set.name,
            "aligned": self.options.align_axis,
            "warnings": [to_plain(item) | {"text": item.text} for item in self.warnings],
        }


@dataclass(frozen=True, slots=True, eq=False)
class ProcessedScene:
    """One scene, ready for training. V vertices, exactly those of the mesh and in its order.

    Attributes:
        points: float32 (V, 3), metres; in the axis-aligned frame if `meta.options.align_axis`, else in the scan's.
        normals: float16 (V, 3), area-weighted unit normals in the frame of `points`; (0, 0, 0) where undefined.
        colors: uint8 (V, 3), red, green, blue, 0..255.
        stored_labels: uint8 (V,), the array `labels` of the file, of `meta.options.label_set`: 0 unlabeled, else
            train id + 1. `labels` has the train ids.
        nyu40_ids: uint8 (V,), 0 unannotated.
        scannet_ids: uint16 (V,), 0 unannotated.
        instances: int16 (V,), group id, -1 where there is no group.
        segments: uint16 or uint32 (V,), contiguous index of the segment (superpoint); None where the release has none.
        faces: int32 (F, 3), indices of vertices; None unless asked for.
        axis_alignment: float64 (4, 4), aligned <- scan; identity where the release has none.
        meta: Everything else.
    """

    points: NDArray[np.float32]
    normals: NDArray[np.float16]
    colors: NDArray[np.uint8]
    stored_labels: NDArray[np.uint8]
    nyu40_ids: NDArray[np.uint8]
    scannet_ids: NDArray[np.uint16]
    instances: NDArray[np.int16]
    segments: NDArray[np.uint16] | NDArray[np.uint32] | None
    faces: NDArray[np.int32] | None
    axis_alignment: NDArray[np.float64]
    meta: SceneMeta

    @property
    def labels(self) -> NDArray[np.int64]:
        """Train ids of `meta.options.label_set`, int64 (V,), a new array; -1 where unlabeled.

        The same numbers as `labels` in a sample of `ScanNet`. The file holds train id + 1: see `stored_labels`.
        """
        return self.stored_labels.astype(np.int64) - 1

    def arrays(self) -> dict[str, NDArray[Any]]:
        """The arrays by key, in the order in which they are stored; `meta` as a text array."""
        found: dict[str, NDArray[Any] | None] = {
            key: getattr(self, _FIELDS.get(key, key)) for key in _SHAPES
        }
        found["meta"] = np.array(json.dumps(self.meta.to_json(), separators=(",", ":")))
        return {key: array for key, array in found.items() if array is not None}


def encode_processed(scene: ProcessedScene) -> list[Buffer]:
    """Encode a scene as the bytes of its `.npz`; the same scene always gives the same bytes."""
    return encode_npz(scene.arrays(), _DEFLATED)


def read_processed(path: str | Path) -> ProcessedScene:
    """Read a processed scene and check its structure; `~` is the home folder.

    Raises:
        MissingFileError: There is no such file.
        ProcessedFileError: It is truncated, damaged, or was written by another program.
    """
    path = Path(path).expanduser()
    return parse_processed(read_file(path, MAX_FILE_BYTES), path)


def parse_processed(data: Buffer, path: Path | str) -> ProcessedScene:
    """Parse the content of a processed scene's file and check its structure.

    Args:
        data: The whole file.
        path: Its name, for messages.

    Raises:
        ProcessedFileError: It is truncated, damaged, or was written by another program.
    """
    reader = NpzReader(data, path)
    arrays = {key: reader.read(key) for key in reader.keys if key != "meta"}
    meta = parse_meta(reader, path)
    for problem in _find_structural_problems(arrays):
        raise ProcessedFileError(path, problem, again_hint(path))
    fields: dict[str, Any] = dict.fromkeys(_OPTIONAL)
    fields |= {_FIELDS.get(key, key): array for key, array in arrays.items()}
    return ProcessedScene(**fields, meta=meta)


def read_meta(path: Path, scene_id: str, split: Split, options: ProcessOptions) -> SceneMeta:
    """Read the facts of a scene beside its arrays; only a few pages of its file are read.

    Raises:
        FileError: It cannot be read.
        ProcessedFileError: It is damaged, was written by another program, or is of another scene, split or folder.
    """
    with open_file(path, MAX_FILE_BYTES) as file:
        size_bytes = file.seek(0, os.SEEK_END)
        data: mmap.mmap | bytes = b""
        if size_bytes:  # an empty file cannot be mapped
            data = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
    meta = parse_meta(NpzReader(memoryview(data), path), path)
    check_meta(meta, path, scene_id, split, options)
    return meta


def check_meta(
    meta: SceneMeta, path: Path | str, scene_id: str, split: Split, options: ProcessOptions
) -> None:
    """Check that a file belongs to the scene, split and folder that it is taken for.

    Raises:
        ProcessedFileError: It is of another scene or split, or was made with other options than the folder's.
    """
    if (meta.scene_id, meta.split) != (scene_id, split):
        problem = f"holds {meta.scene_id!r} of {meta.split}, expected {scene_id} of {split}"
        raise ProcessedFileError(path, problem, again_hint(path))
    if meta.options != options:
        problem = f"was made with {meta.options.flags}, expected {options.flags}"
        hint = f"if the folder was processed with other options, open it again; else {again_hint(path)}"
        raise ProcessedFileError(path, problem, hint)


class _VersionOnly(msgspec.Struct):
    """The version of a description, whatever else it holds."""

    format_version: int


_META = make_decoder(SceneMeta)
_VERSION_ONLY = make_decoder(_VersionOnly)


def parse_meta(reader: NpzReader, path: Path | str) -> SceneMeta:
    """Read only the facts of a scene beside its arrays.

    Raises:
        ProcessedFileError: They are missing, damaged, or in the format of another version.
    """
    text = str(reader.read("meta")).encode("utf-8", "surrogatepass")
    try:
        return parse_json(text, _META)
    except ContentError as error:
        with suppress(ContentError):
            version = parse_json(text, _VERSION_ONLY).format_version
            if version != FORMAT_VERSION:
                raise ProcessedFileError(path, describe_other_format(version), FORCE_HINT) from None
        raise ProcessedFileError(
            path, f"has a damaged or foreign description: {error}", again_hint(path)
        ) from error


def describe_other_format(version: int) -> str:
    """Describe a file in another format than this version reads."""
    age = "an older" if version < FORMAT_VERSION else "a newer"
    return f"was made by {age} scannet-prep: it has format {version}, expected {FORMAT_VERSION}"


def check_identity(
    reader: NpzReader, path: Path | str, scene_id: str, vertex_count: int, options: ProcessOptions
) -> None:
    """Check that a file belongs to the scene and the folder that it is taken for; cheaper than to parse all of it.

    Args:
        reader: Of the file.
        path: Its name, for messages.
        scene_id: The expected scene.
        vertex_count: V, as the manifest or the index records it.
        options: The options of its folder or archive.

    Raises:
        ProcessedFileError: It is of another scene, mesh, folder or format, or has arrays that no processed scene has.
    """
    unknown = set(reader.keys) - {*_SHAPES, "meta"}
    if unknown:
        raise ProcessedFileError(path, f"has an unknown array {min(unknown)!r}", again_hint(path))
    head = {"format_version": FORMAT_VERSION, "scene_id": scene_id, "options": to_plain(options)}
    expected_start = json.dumps(head, separators=(",", ":")).removesuffix("}")
    if not str(reader.read("meta")).startswith(expected_start):
        meta = parse_meta(reader, path)
        check_meta(meta, path, scene_id, meta.split, options)
        raise ProcessedFileError(path, "has a description in a foreign order", again_hint(path))
    points = reader.read("points")
    if points.shape != (vertex_count, 3):
        problem = f"has points of shape {points.shape}, expected ({vertex_count}, 3) as recorded"
        raise ProcessedFileError(path, problem, again_hint(path))


def find_problems(scene: ProcessedScene) -> Iterator[str]:
    """Find values that no correct scene has."""
    label_set, groups, faces = scene.meta.options.label_set, scene.meta.groups, scene.faces
    source = scene.nyu40_ids if label_set.raw_ids_key == "nyu40_ids" else scene.scannet_ids
    labels = int(np.count_nonzero(scene.stored_labels != label_set.labels_from_raw_ids(source)))
    squared = np.square(scene.normals.astype(np.float32)).sum(axis=1)
    # Half precision has 11 bits: each component is off by at most 2**-12 relative, the squared length by 2**-11.
    normals = int(np.count_nonzero(~((np.abs(squared - 1) < 2**-10) | (squared == 0))))
    segments = [] if scene.segments is None else np.unique(scene.segments).tolist()
    described = len(scene.meta.segment_ids)
    is_finite, is_numbered = (
        np.isfinite(scene.points).all(),
        all(0 <= item.id <= MAX_GROUPS for item in groups),
    )
    strangers = np.setdiff1d(scene.instances, [-1, *(item.id for item in groups)])
    can_measure = is_finite and is_numbered and not len(strangers)
    for is_wrong, problem in (
        (not is_finite, "points are not all finite"),
        (not is_numbered, f"group ids are not all within 0..{MAX_GROUPS}"),
        (
            is_numbered and len(strangers),
            f"instances hold {max(strangers, default=0)}, which is not a group",
        ),
        (
            can_measure and groups != measure_groups(groups, scene.instances, scene.points),
            "vertex counts or boxes of groups are not those of their vertices",
        ),
        (normals, f"normals of {normals:,} vertices are neither of unit length nor zero"),
        (labels, f"labels disagree with the raw ids at {labels:,} vertices"),
        (
            scene.nyu40_ids.max() > MAX_NYU40_ID,
            f"nyu40_ids hold {scene.nyu40_ids.max()}, expected up to {MAX_NYU40_ID}",
        ),
        (
            segments != [*range(described)],
            f"segments hold {len(segments):,} numbers, but {described:,} are described",
        ),
        (not np.isfinite(scene.axis_alignment).all(), "axis_alignment is not finite"),
        (
            faces is not None and not ((faces >= 0) & (faces < len(scene.points))).all(),
            f"faces refer to vertices that are not there: there are {len(scene.points):,}",
        ),
    ):
        if is_wrong:
            yield problem


def _find_structural_problems(arrays: Mapping[str, NDArray[Any]]) -> Iterator[str]:
    vertex_count = len(arrays["points"]) if "points" in arrays and arrays["points"].ndim else 0
    for key, (types, shape) in _SHAPES.items():
        array = arrays.get(key)
        if array is None:
            if key not in _OPTIONAL:
                yield f"has no array {key!r}"
            continue
        sizes: dict[object, int] = {"V": vertex_count, "F": len(array) if array.ndim else 0}
        expected = tuple(sizes.get(item, item) for item in shape)
        if array.dtype.str not in types or array.shape != expected:
            found = f"{array.dtype} {array.shape}"
            yield f"array {key!r} is {found}, expected {' or '.join(str(np.dtype(t)) for t in types)} {expected}"
    if unknown := set(arrays) - set(_SHAPES):
        yield f"has an unknown array {min(unknown)!r}"
    if not vertex_count:
        yield "has no points"


def widen_normals(halves: NDArray[np.float16], out: NDArray[np.float32]) -> None:
    """float16 to float32. NumPy converts one number at a time; a table takes half as long, PyTorch a twentieth.

    PyTorch only in its own workers, which have one thread: several would hang in a process that was forked.
    """
    if find_worker() is not None:
        torch = sys.modules["torch"]
        torch.from_numpy(out).copy_(torch.from_numpy(halves))
    else:
        _FLOATS_BY_HALF.take(halves.view(np.uint16), out=out, mode="clip")
