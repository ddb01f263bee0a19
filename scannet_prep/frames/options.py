"""Layouts (the names of the files that programs read), and the options of an extraction.

Layouts are records: a new program is a new record. The ending of a name selects the encoding of the
file.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple, TypeAlias, get_args

import numpy as np
from numpy.typing import NDArray

from scannet_prep.errors import UsageError
from scannet_prep.release.files import INFO, KINDS, MESH, SPLIT_DIRS, FileKind
from scannet_prep.release.scenes import Split

LabelIds: TypeAlias = Literal["raw", "nyu40", "scannet20", "scannet200"]
FrameContent: TypeAlias = Literal[
    "color", "depth", "pose", "labels", "instances", "vertices", "correspondences"
]

FRAME_CONTENTS = get_args(FrameContent)
STREAM = KINDS[".sens"]
# The files that other contents than those of the stream come from.
SOURCE_KINDS = {
    "labels": KINDS["_2d-label-filt.zip"],
    "instances": KINDS["_2d-instance-filt.zip"],
    "points": MESH,
    "vertices": MESH,
    "correspondences": MESH,
    "scan_info": INFO,
}


class Layout(NamedTuple):
    """The names of the files of a scene, and the options that its readers need.

    Attributes:
        table: On each line, a content, which is an attribute of `SceneContents`, and the name of
            its file. Each frame has a file of every `FrameContent`; the other contents concern all
            frames. `{number}` is the number of the frame in the stream, `{position}` counts the
            frames that are extracted, from 0, and `{first}` is the option.
        folder: The folder of a scene in the output folder; `{scene}` is its name, `{scans}` is
            `scans`, or `scans_test` for scenes of test, `{split}` is its split, and `{part}` is
            `train` or `test`.
        defaults: The options whose defaults differ from those of `FrameOptions`.
        fixed: The options that cannot be chosen: with any other value, readers would stop, or take
            one frame for another.
        crop: Side of the square that is cut from the middle of colour images, in pixels; 0 to keep
            whole images.
        aligns_depth: Whether depth images have the pixels of the colour images. If so, colour
            images are always written.
        uses_depth_camera: Whether colour images have the size of the depth camera, and the file of
            a pose has its intrinsics, too.
    """

    table: str
    folder: str = "{scene}"
    defaults: Mapping[str, Any] = {}
    fixed: Mapping[str, Any] = {}
    crop: int = 0
    aligns_depth: bool = False
    uses_depth_camera: bool = False

    @property
    def files(self) -> dict[str, str]:
        """The names of the files, by content."""
        return dict(map(str.split, self.table.strip().splitlines()))


# The words of the command line for options and values, where they differ from those of Python.
_WORDS = {"contents": "with", "keeps_lost": "keep-lost", "listed": "frames"}
_VALUES = {"None": "none", "": "none", "True": "yes", "False": "no"}
# For programs that read the numbers and the cameras of all frames from other files.
_EXACT = {"first": None, "at_most": None, "size": None, "keeps_lost": True}
_EVERY_FRAME = {"listed": "", "every": 1, **_EXACT}
_OFFICIAL = """
    color                          color/{number}.jpg
    depth                          depth/{number}.png
    pose                           pose/{number}.txt
    labels                         label/{number}.png
    instances                      instance/{number}.png
    vertices                       vertices/{number}.npy
    record.color_camera.intrinsic  intrinsic/intrinsic_color.txt
    record.color_camera.extrinsic  intrinsic/extrinsic_color.txt
    record.depth_camera.intrinsic  intrinsic/intrinsic_depth.txt
    record.depth_camera.extrinsic  intrinsic/extrinsic_depth.txt
"""
LAYOUTS = {
    # reader.py of ScanNet's SensReader.
    "official": Layout(_OFFICIAL),
    # NeuralRecon counts the frames, and takes every name beside a scene for another scene.
    "neuralrecon": Layout(
        _OFFICIAL,
        folder="{scans}/{scene}",
        fixed=_EVERY_FRAME,
    ),
    # scannet_frames_25k.zip of the release.
    "frames25k": Layout(
        """
        color                          color/{number:06}.jpg
        depth                          depth/{number:06}.png
        pose                           pose/{number:06}.txt
        labels                         label/{number:06}.png
        instances                      instance/{number:06}.png
        record.color_camera.intrinsic  intrinsics_color.txt
        record.depth_camera.intrinsic  intrinsics_depth.txt
        """,
    ),
    # The folder `posed_images` of mmdetection3d.
    "mmdet3d": Layout(
        """
        color                          {position:05}.jpg
        depth                          {position:05}.png
        pose                           {position:05}.txt
        record.color_camera.intrinsic  intrinsic.txt
        """,
    ),
    # The folder `posed_images` of EmbodiedScan, whose infos name frames and the cameras of stored
    # images.
    "embodiedscan": Layout(
        """
        color                          {number:05}.jpg
        depth                          {number:05}.png
        pose                           {number:05}.txt
        record.color_camera.intrinsic  intrinsic.txt
        record.depth_camera.intrinsic  depth_intrinsic.txt
        """,
        folder="posed_images/{scene}",
        defaults={"every": 10},
        fixed=_EXACT,
    ),
    # The folder `images` of Concerto and Utonia, in Pointcept.
    "concerto": Layout(
        """
        color                          color/{number}.png
        depth                          depth/{number}.png
        pose                           pose/{number}.npy
        correspondences                correspondence/{number}.npy
        record.color_camera.intrinsic  intrinsic/intrinsic.npy
        """,
        folder="{split}/{scene}",
        defaults={
            "every": 75,
            "contents": ("color", "pose", "correspondences"),
            "keeps_lost": True,
        },
    ),
    # A model of COLMAP, as 3D Gaussian splatting reads it. gsplat 1.5 cannot read one in text.
    "colmap": Layout(
        """
        color          images/{number:06}.jpg
        depth          depths/{number:06}.png
        colmap_camera  sparse/0/cameras.bin
        colmap_images  sparse/0/images.bin
        colmap_points  sparse/0/points3D.bin
        points         sparse/0/points3D.ply
        """,
        defaults={"contents": ("color",)},
        fixed={"keeps_lost": False},
        aligns_depth=True,
    ),
    "nerfstudio": Layout(
        """
        color       images/{number:06}.jpg
        depth       depths/{number:06}.png
        transforms  transforms.json
        points      points3D.ply
        """,
        fixed={"keeps_lost": False},
        aligns_depth=True,
    ),
    # The evaluation of poses of MonST3R, CUT3R and TTT3R.
    "relpose": Layout(
        """
        color  color_{first}/frame_{position:04}.jpg
        depth  depth_{first}/frame_{position:04}.png
        poses  pose_{first}.txt
        """,
        defaults={"every": 3, "first": 90},
        fixed={"at_most": None, "keeps_lost": True},
    ),
    # The training of CUT3R, StreamVGGT and TTT3R. Each frame has a file with pose and intrinsics.
    "cut3r": Layout(
        """
        color  color/{number:05}.jpg
        depth  depth/{number:05}.png
        pose   cam/{number:05}.npz
        names  new_scene_metadata.npz
        """,
        folder="scans_{part}/{scene}",
        defaults={"every": 1},
        fixed={"size": None, "keeps_lost": False},
        uses_depth_camera=True,
    ),
    "openeqa": Layout(
        """
        color                          {number:06}-rgb.png
        depth                          {number:06}-depth.png
        pose                           {number:06}.txt
        record.color_camera.intrinsic  intrinsic_color.txt
        record.color_camera.extrinsic  extrinsic_color.txt
        record.depth_camera.intrinsic  intrinsic_depth.txt
        record.depth_camera.extrinsic  extrinsic_depth.txt
        """,
        defaults={"every": 1, "first": 600, "keeps_lost": True},
    ),
    # The files that ScanNet's SensReader for C++ writes; SuperGlue's ScanNet-1500 lists them.
    "sens": Layout(
        """
        color        sens/frame-{number:06}.color.jpg
        depth        sens/frame-{number:06}.depth.pgm
        pose         sens/frame-{number:06}.pose.txt
        stream_info  sens/_info.txt
        """,
        folder="{scans}/{scene}",
        defaults={"every": 1},
        fixed={"at_most": None, "size": None, "keeps_lost": True},
    ),
    "simplerecon": Layout(
        """
        color                          sensor_data/frame-{number:06}.color.jpg
        depth                          sensor_data/frame-{number:06}.depth.png
        pose                           sensor_data/frame-{number:06}.pose.txt
        record.color_camera.intrinsic  intrinsic/intrinsic_color.txt
        record.color_camera.extrinsic  intrinsic/extrinsic_color.txt
        record.depth_camera.intrinsic  intrinsic/intrinsic_depth.txt
        record.depth_camera.extrinsic  intrinsic/extrinsic_depth.txt
        scan_info                      {scene}.txt
        """,
        folder="{scans}/{scene}",
        fixed=_EVERY_FRAME,
    ),
    # Depth in metres. Its trainer reads maps of depth and normals that a network makes of `image`.
    "monosdf": Layout(
        """
        color        image/{position:06}.png
        depth        depth/{position:06}.npy
        projections  cameras.npz
        """,
        defaults={"every": 10},
        fixed={"size": (384, 384), "keeps_lost": False},
        crop=768,
        aligns_depth=True,
    ),
}


@dataclass(frozen=True, slots=True)
class FrameOptions:
    """The frames and images that are extracted. All scenes of a folder have the same options.

    Attributes:
        every: Every n-th frame of the stream, beginning with the first.
        first: Only the first n of these; None for all.
        at_most: At most n of them, evenly spaced; None for all.
        size: Width and height of all images; None to leave them as they are.
        contents: What is written of each frame; sorted, and each once. Empty for colour, depth and
            pose, if the layout has them.
        label_set: The ids in label images: ScanNet ids (`raw`), nyu40 ids, or train id + 1 of a
            label set. 0 is unlabeled in all of them.
        layout: The names of the files, one of `LAYOUTS`.
        keeps_lost: Whether frames without tracking are written, too.
        label_map: The digest of the label map, if label images depend on it; otherwise empty.
        listed: The digest of the list of frames that replaces `every`, `first` and `at_most`; empty
            without one.

    Raises:
        UsageError: There is no such layout, it has no place for a content, or its readers need
            another value of an option; or there are no images for the label set.
    """

    every: int = 20
    first: int | None = None
    at_most: int | None = None
    size: tuple[int, int] | None = None
    contents: tuple[FrameContent, ...] = ()
    label_set: LabelIds = "raw"
    layout: str = "official"
    keeps_lost: bool = False
    label_map: str = ""
    listed: str = ""

    def __post_init__(self) -> None:
        """Check the options, and sort the contents as the layout does."""
        if self.layout not in LAYOUTS:
            raise UsageError(f"{self.layout!r} is not a layout", f"there are: {', '.join(LAYOUTS)}")
        layout = self.form
        possible = [content for content in FRAME_CONTENTS if content in layout.files]
        for content in self.contents:
            if content not in possible:
                raise UsageError(
                    f"the layout {self.layout} has no place for {content}",
                    f"choose another layout, or contents that it has: {' '.join(possible)}",
                )
        chosen = self.contents or ("color", "depth", "pose")
        if layout.aligns_depth:
            chosen = ("color", *chosen)
        contents = tuple(content for content in possible if content in chosen)
        object.__setattr__(self, "contents", contents)
        if self.label_set != "raw" and "labels" not in contents:
            raise UsageError(
                f"{_describe('label_set', self.label_set)} is for images of labels",
                "add labels to --with, or leave this option out",
            )
        for name, needed in layout.fixed.items():
            value = getattr(self, name)
            if value != needed:
                raise UsageError(
                    f"the layout {self.layout} needs {_describe(name, needed)}, "
                    f"not {_describe(name, value)}",
                    "leave this option out, or choose another layout",
                )

    @property
    def form(self) -> Layout:
        """The layout."""
        return LAYOUTS[self.layout]

    @property
    def text(self) -> str:
        """The options in the words of the command line; those that are not used are left out."""
        is_used = {"every": not self.listed, "label_set": "labels" in self.contents}
        return ", ".join(
            _describe(name, value)
            for name in self.__slots__
            if (value := getattr(self, name)) and is_used.get(name, True)
        )

    def find_names(self, split: Split) -> dict[str, str]:
        """Find the names of the files of a scene, by content; test scenes have no 2D labels.

        In a name, `{number}` and so on stand for what `Layout.table` describes.
        """
        return {
            content: name
            for content, name in self.form.files.items()
            if content in self.contents or content not in FRAME_CONTENTS
            if split in SOURCE_KINDS.get(content, STREAM).splits
        }

    def folder_of(self, scene_id: str, split: Split) -> str:
        """Return the folder of a scene in the output folder."""
        part = "test" if split == Split.TEST else "train"
        return self.form.folder.format(
            scene=scene_id, scans=SPLIT_DIRS[split], split=split, part=part
        )

    def find_sources(self, split: Split) -> list[FileKind]:
        """Return the kinds of the files that scenes of a split are extracted from, by content."""
        return [SOURCE_KINDS.get(content, STREAM) for content in self.find_names(split)]

    def select(
        self, is_tracked: NDArray[np.bool_], listed: Sequence[int] | None = None
    ) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """Select the frames of a stream.

        Args:
            is_tracked: bool (N,), whether each frame has a usable pose.
            listed: The numbers of the frames to choose, ascending; None to choose by the options.

        Returns:
            The numbers of the frames to extract; and of those without tracking. These are omitted,
            or are among the others, as the options demand.

        Raises:
            UsageError: The stream does not have a frame that is listed, or has none to extract.
        """
        count = len(is_tracked)
        # Programs with this layout round the number of frames down.
        end = count - count % self.every if self.layout == "relpose" else count
        chosen = listed or range(0, end, self.every)[: self.first]
        for number in chosen:
            if number >= count:
                raise UsageError(
                    f"has no frame {number}, only {count:,} frames",
                    "correct the list of --frames",
                )
        kept = [number for number in chosen if self.keeps_lost or is_tracked[number]]
        # Evenly spaced.
        kept_count = min(self.at_most or count, len(kept))
        kept = [kept[index * len(kept) // kept_count] for index in range(kept_count)]
        searched = kept if self.keeps_lost else chosen
        lost = [number for number in searched if not is_tracked[number]]
        if not kept:
            raise UsageError(
                f"has no frame to extract; without tracking: {len(lost):,} of {len(chosen):,}"
            )
        return tuple(kept), tuple(lost)


def _describe(name: str, value: object) -> str:
    """Describe an option in the words of the command line."""
    if isinstance(value, tuple):
        value = ("x" if name == "size" else " ").join(map(str, value))
    word = _WORDS.get(name, name.replace("_", "-"))
    return f"{word}: {_VALUES.get(str(value), value)}"
