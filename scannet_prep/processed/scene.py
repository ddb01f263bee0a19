"""A processed scene, in memory and as `<split>/<scene>.npz`."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, TypeAlias

import msgspec
import numpy as np
from numpy.typing import NDArray

from scannet_prep.base.files import Buffer, Fingerprint, read_file
from scannet_prep.base.json import Value, parse_record, to_plain
from scannet_prep.errors import FileError, UsageError
from scannet_prep.processed.annotate import AnnotatedGroup
from scannet_prep.processed.npz import HINT_DAMAGED, NpzReader, encode_npz
from scannet_prep.release.files import (
    AGGREGATION,
    GROUPS_KINDS,
    INFO,
    LABELS_MESH,
    MESH,
    SEGMENTS,
    FileKind,
)
from scannet_prep.release.irregularities import SceneWarning
from scannet_prep.release.label_sets import SCANNET20, SCANNET200, LabelSet
from scannet_prep.release.scenes import OWN_ID_PATTERN, Split, official_splits

if TYPE_CHECKING:
    from scannet_prep.raw.tree import RawScene

# Increased whenever the bytes of a processed folder, or their interpretation, change.
FORMAT_VERSION: Literal[2] = 2
MAX_FILE_BYTES = 1 << 31

# The scene ids of the release have this form, too.
SceneIdText: TypeAlias = Annotated[str, msgspec.Meta(pattern=rf"^{OWN_ID_PATTERN}\Z")]
LabelsFrom = Literal["aggregation", "ply"]
SegmentsSource = Literal["release", "beside the mesh", "computed"]

# The types that each array may have, and the lengths of its axes, in the order of the file.
_LAYOUTS = {
    "points": ("<f4", "V3"),
    "normals": ("<f2", "V3"),
    "colors": ("|u1", "V3"),
    "faces": ("<i4", "F3"),
    "labels": ("|u1", "V"),
    "nyu40_ids": ("|u1", "V"),
    "scannet_ids": ("<u2", "V"),
    "instances": ("<i2", "V"),
    "segments": ("<u2 <u4", "V"),
    "axis_alignment": ("<f8", "44"),
}
_OPTIONAL_ARRAYS = {"segments", "faces"}
# The field of `ProcessedScene` for the array `labels` of the file, which are train ids + 1: its
# `labels` are train ids.
_STORED_LABELS = "stored_labels"
_DEFLATED = frozenset({"labels", "nyu40_ids", "scannet_ids", "instances", "segments", "meta"})


@dataclass(frozen=True, slots=True)
class ProcessOptions:
    """Everything that changes the bytes of a processed scene, other than the raw files.

    Attributes:
        scannet200: Whether `labels` holds ScanNet200 (else ScanNet20). The raw ids of both are
            always stored.
        align_axis: Whether `points` and `normals` are in the axis-aligned frame (else in the frame
            of the scan).
        faces: Whether the triangles are stored.
        labels_from: The source of the nyu40 ids: `aggregation`, or `ply` for `labels.ply`, which
            OctFormer and PointGroup use.
        compute_segments: Whether scenes without segments in the release, such as test scenes, get
            computed ones.
    """

    scannet200: bool = False
    align_axis: bool = False
    faces: bool = False
    labels_from: LabelsFrom = "aggregation"
    compute_segments: bool = False

    def updated(self, options: ProcessOptions | Mapping[str, Any]) -> ProcessOptions:
        """Return these options with some, or all, of them replaced.

        Raises:
            UsageError: There is no such option, or a value has another type.
        """
        if isinstance(options, ProcessOptions):
            options = asdict(options)
        try:
            values = asdict(replace(self, **options))
            return msgspec.convert(values, ProcessOptions)
        except (TypeError, msgspec.ValidationError) as error:
            raise UsageError(f"options {options}: {error}") from None

    def find_raw_files(self, scene: RawScene, split: Split) -> dict[FileKind, Path]:
        """Find the files that a scene is made from, by kind; groups from one file at most.

        Train and val scenes need their annotation, and those of the release their metadata if
        points are aligned. Test scenes need a mesh. Groups need segments, and labels.ply if labels
        come from it. A file that is not needed is used if it exists.

        Raises:
            MissingFileError: A required file is missing.
            FileError: The scene cannot be used, for example because it exists twice.
        """
        groups_kind = next((kind for kind in GROUPS_KINDS if kind in scene.files), AGGREGATION)
        used = {MESH, INFO, SEGMENTS, groups_kind}
        if self.labels_from == "ply":
            used.add(LABELS_MESH)
        needed = {MESH}
        if split is not Split.TEST:
            needed |= used
        if scene.scene_id not in official_splits() or not self.align_axis:
            needed.discard(INFO)
        # With labels from labels.ply, a scene may lack groups: it then has no instances, and no
        # ScanNet ids.
        if groups_kind in scene.files:
            needed |= used - {INFO}
        elif LABELS_MESH in used and not self.scannet200:
            needed -= {SEGMENTS, groups_kind}
        return scene.find_files(used, needed)

    @property
    def label_set(self) -> LabelSet:
        """The label set of the array `labels`."""
        return SCANNET200 if self.scannet200 else SCANNET20

    @property
    def flags(self) -> str:
        """The options as arguments of `scannet-prep process`.

        Those that are off are listed, too, except `--no-compute-segments`.
        """
        words = []
        for name, value in self.to_json().items():
            option = name.replace("_", "-")
            if isinstance(value, bool):
                words.append(f"--{option}" if value else f"--no-{option}")
            else:
                words += [f"--{option}", value]
        return " ".join(words)

    def to_json(self) -> dict[str, Any]:
        """Return a dict of plain values, as it is stored in manifests and scenes.

        `compute_segments` is left out if it is off.
        """
        plain = asdict(self)
        if not self.compute_segments:
            del plain["compute_segments"]
        return plain


@dataclass(frozen=True, slots=True)
class SceneHead:
    """The beginning of the description of a processed scene, which identifies it.

    Attributes:
        format_version: Version of this file format.
        scene_id: Its name.
        options: The options that it was made with.
        split: The split that it belongs to.
    """

    format_version: Literal[2]
    scene_id: SceneIdText
    options: ProcessOptions
    split: Split


@dataclass(frozen=True, slots=True)
class SceneMeta(SceneHead):
    """The description of a processed scene beside its arrays, stored as JSON.

    Attributes:
        scene_type: Free text of the release, for example `Bedroom / Hotel`; None if it has none.
        groups: Annotated groups, in file order.
        segment_ids: Raw id of each segment: `segment_ids[segments[v]]` is the release's id at
            vertex v. Empty for computed segments.
        warnings: Oddities of the raw files.
        inputs: Fingerprints of the raw files it was made from, by file name.
        label_map: `LabelMap.digest` of the label map; empty if the scene does not depend on one.
        program_version: Version of this package.
        segments_source: Where `segments` is from: the release, a file beside the mesh of a test
            or own scene, or the mesh. Left out of the JSON for the release.
    """

    scene_type: str | None
    groups: tuple[AnnotatedGroup, ...]
    segment_ids: tuple[int, ...]
    warnings: tuple[SceneWarning, ...]
    inputs: Mapping[str, Fingerprint]
    label_map: str
    program_version: str
    segments_source: SegmentsSource = "release"

    def to_json(self) -> dict[str, Any]:
        """Return a dict of plain values.

        It also has values that follow from others, for programs that read the file without this
        package.
        """
        plain: dict[str, Any] = to_plain(self)
        plain["options"] = self.options.to_json()
        if self.segments_source == "release":
            del plain["segments_source"]
        plain["label_set"] = self.options.label_set.name
        plain["aligned"] = self.options.align_axis
        plain["warnings"] = [
            to_plain(warning) | {"text": warning.text} for warning in self.warnings
        ]
        return plain


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class ProcessedScene:
    """One scene, ready for training, with the V vertices of the mesh in their order.

    Attributes:
        points: float32 (V, 3), metres; in the axis-aligned frame if `meta.options.align_axis`, else
            in the frame of the scan.
        normals: float16 (V, 3), area-weighted unit normals in the frame of `points`; (0, 0, 0) if
            undefined.
        colors: uint8 (V, 3), red, green, blue, 0..255.
        stored_labels: uint8 (V,), train id of `meta.options.label_set` + 1; 0 unlabeled. The file
            stores it as `labels`; the property `labels` returns the train ids.
        nyu40_ids: uint8 (V,), 0 unannotated.
        scannet_ids: uint16 (V,), 0 unannotated.
        instances: int16 (V,), group id, -1 for no group.
        segments: uint16 or uint32 (V,), contiguous index of the segment (superpoint); None if the
            release has none, and none were computed.
        faces: int32 (F, 3), indices of vertices; None if they are not stored.
        axis_alignment: float64 (4, 4), aligned <- scan; identity if the release has none.
        meta: The description.
    """

    points: NDArray[np.float32]
    normals: NDArray[np.float16]
    colors: NDArray[np.uint8]
    stored_labels: NDArray[np.uint8]
    nyu40_ids: NDArray[np.uint8]
    scannet_ids: NDArray[np.uint16]
    instances: NDArray[np.int16]
    segments: NDArray[np.uint16] | NDArray[np.uint32] | None = None
    faces: NDArray[np.int32] | None = None
    axis_alignment: NDArray[np.float64]
    meta: SceneMeta

    @property
    def labels(self) -> NDArray[np.int64]:
        """Train ids of `meta.options.label_set`, int64 (V,), in a new array; -1 unlabeled.

        They equal `labels` in a sample of `ScanNet`. The file holds train id + 1: see
        `stored_labels`.
        """
        return self.stored_labels.astype(np.int64) - 1

    def arrays(self) -> dict[str, NDArray[Any]]:
        """Return the arrays by key, in the order of the file, with `meta` as an array of text."""
        arrays: dict[str, NDArray[Any]] = {}
        for key in _LAYOUTS:
            array = getattr(self, _STORED_LABELS if key == "labels" else key)
            if array is not None:
                arrays[key] = array
        text = json.dumps(self.meta.to_json(), separators=(",", ":"))
        arrays["meta"] = np.array(text)
        return arrays


def read_train_ids(
    scene: ProcessedScene,
    label_set: LabelSet,
    vertices: Any = ...,  # noqa: ANN401 - any index of NumPy
) -> NDArray[np.int64]:
    """Return the train ids of some vertices in any label set, int64; -1 where unlabeled.

    Args:
        scene: The scene.
        label_set: The label set.
        vertices: Indices of the vertices; by default, all.
    """
    raw_ids = getattr(scene, label_set.raw_ids_key)[vertices]
    return label_set.train_ids_from_raw_ids(raw_ids, ignore_index=-1)


def encode_processed(scene: ProcessedScene) -> list[Buffer]:
    """Encode a scene as the bytes of its `.npz`. Equal scenes give equal bytes."""
    return encode_npz(scene.arrays(), _DEFLATED)


def read_processed(path: str | Path) -> ProcessedScene:
    """Read a processed scene and check its structure.

    Args:
        path: The file; `~` is the home folder.

    Raises:
        MissingFileError: There is no such file.
        FileError: It is truncated, damaged, or was written by another program.
    """
    path = Path(os.path.expanduser(path))
    return parse_processed(NpzReader(read_file(path, MAX_FILE_BYTES), path))


def parse_processed(reader: NpzReader) -> ProcessedScene:
    """Parse the content of a processed scene's file and check its structure.

    Raises:
        FileError: It is damaged, or was written by another program.
    """
    arrays = {key: reader.read(key) for key in reader.keys if key != "meta"}
    meta = parse_meta(reader)
    problem = _find_structural_problem(arrays)
    if problem:
        raise FileError(reader.path, problem, HINT_DAMAGED)
    arrays[_STORED_LABELS] = arrays.pop("labels")
    return ProcessedScene(**arrays, meta=meta)


_META_DECODER = msgspec.json.Decoder(SceneMeta)
_HEAD_DECODER = msgspec.json.Decoder(SceneHead)


def parse_meta(reader: NpzReader) -> SceneMeta:
    """Parse the description of a scene.

    Raises:
        FileError: It is missing, damaged, or in the format of another version.
    """
    return _parse(reader, _META_DECODER)


def parse_head(reader: NpzReader) -> SceneHead:
    """Parse the beginning of the description only; errors are those of `parse_meta`."""
    return _parse(reader, _HEAD_DECODER)


def _parse(reader: NpzReader, decoder: msgspec.json.Decoder[Value]) -> Value:
    text = str(reader.read("meta"))
    return parse_record(text, reader.path, decoder, HINT_DAMAGED)


def _find_structural_problem(arrays: Mapping[str, NDArray[Any]]) -> str:
    """Describe an array that is missing, unknown, or of the wrong type or shape; empty if none."""
    wrong_keys = (arrays.keys() ^ _LAYOUTS.keys()) - _OPTIONAL_ARRAYS
    if wrong_keys:
        found = ", ".join(arrays)
        expected = ", ".join(_LAYOUTS)
        return f"has the arrays {found}, expected {expected}"
    vertex_count = arrays["points"].size // 3
    lengths = {"3": 3, "4": 4, "V": vertex_count}
    if "faces" in arrays:
        lengths["F"] = arrays["faces"].size // 3
    for key, array in arrays.items():
        listed_types, axes = _LAYOUTS[key]
        types = listed_types.split()
        shape = tuple(lengths[axis] for axis in axes)
        if array.dtype.str not in types or array.shape != shape:
            names = " or ".join(np.dtype(code).name for code in types)
            found = f"{array.dtype} {array.shape}"
            return f"array {key!r} is {found}, expected {names} {shape}"
    return ""
