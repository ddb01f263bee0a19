"""Options of an extraction, and the names of files in the layouts of other programs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import Literal, TypeAlias, get_args

import numpy as np
from numpy.typing import NDArray

from scannet_prep.errors import UsageError
from scannet_prep.release.files import KINDS, FileKind
from scannet_prep.release.scene import Split

FrameContent: TypeAlias = Literal["color", "depth", "pose", "labels", "instances"]
LabelIds: TypeAlias = Literal["raw", "nyu40", "scannet20", "scannet200"]
_CONTENTS: tuple[FrameContent, ...] = get_args(FrameContent)

STREAM = KINDS[".sens"]
# The zip files of 2D labels that an extraction reads, by content.
LABEL_KINDS: dict[FrameContent, FileKind] = {
    "labels": KINDS["_2d-label-filt.zip"],
    "instances": KINDS["_2d-instance-filt.zip"],
}
_MAX_SIDE = 8192


@dataclass(frozen=True, slots=True)
class FrameLayout:
    """The names of the files of a scene.

    Attributes:
        paths: The path of a file of each content, with `{}` for the name of the frame.
        matrices: The path of each matrix of the cameras that the layout has: `intrinsic_color`,
            `extrinsic_color`, `intrinsic_depth`, `extrinsic_depth`.
        digits: The name of a frame is padded to this number of digits.
        counts_kept: Whether frames are named by their position among those that were extracted,
            instead of their number in the stream.
    """

    paths: Mapping[FrameContent, str] = field(hash=False)
    matrices: Mapping[str, str] = field(hash=False)
    digits: int = 1
    counts_kept: bool = False

    def path(self, content: FrameContent, position: int, number: int) -> str:
        """Return the path of a file in the folder of its scene.

        Args:
            content: Its content.
            position: The position of the frame among those that were extracted, from 0.
            number: The number of the frame in the stream.
        """
        name = position if self.counts_kept else number
        return self.paths[content].format(f"{name:0{self.digits}}")


_FOLDERS: dict[FrameContent, str] = {
    "color": "color/{}.jpg",
    "depth": "depth/{}.png",
    "pose": "pose/{}.txt",
    "labels": "label/{}.png",
    "instances": "instance/{}.png",
}
LAYOUTS = {
    # reader.py of ScanNet's SensReader.
    "official": FrameLayout(
        paths=_FOLDERS,
        matrices={
            "intrinsic_color": "intrinsic/intrinsic_color.txt",
            "extrinsic_color": "intrinsic/extrinsic_color.txt",
            "intrinsic_depth": "intrinsic/intrinsic_depth.txt",
            "extrinsic_depth": "intrinsic/extrinsic_depth.txt",
        },
    ),
    # scannet_frames_25k.zip of the release.
    "frames25k": FrameLayout(
        paths=_FOLDERS,
        matrices={
            "intrinsic_color": "intrinsics_color.txt",
            "intrinsic_depth": "intrinsics_depth.txt",
        },
        digits=6,
    ),
    # The folder `posed_images` of mmdetection3d.
    "mmdet3d": FrameLayout(
        paths={"color": "{}.jpg", "depth": "{}.png", "pose": "{}.txt"},
        matrices={"intrinsic_color": "intrinsic.txt"},
        digits=5,
        counts_kept=True,
    ),
}


@dataclass(frozen=True, slots=True)
class FrameOptions:
    """What is extracted from each scene. All scenes of a folder have the same options.

    Attributes:
        every: Every n-th frame of the stream, beginning with the first.
        at_most: At most so many of them, evenly spaced; None for all.
        size: Width and height of all images; None to leave them as they are.
        contents: What is written of each frame; sorted, and each once.
        label_set: The ids in label images: ScanNet ids (`raw`), nyu40 ids, or train id + 1 of a
            label set. 0 is unlabeled in all of them.
        layout: The names of the files, one of `LAYOUTS`.
        keeps_lost: Whether frames without tracking are written, too.

    Raises:
        UsageError: An option has an unknown value, or two of them contradict each other.
    """

    every: int = 20
    at_most: int | None = None
    size: tuple[int, int] | None = None
    contents: tuple[FrameContent, ...] = ("color", "depth", "pose")
    label_set: LabelIds = "raw"
    layout: str = "official"
    keeps_lost: bool = False

    def __post_init__(self) -> None:
        """Sort the contents, and check the options."""
        if self.layout not in LAYOUTS:
            problem = f"{self.layout!r} is not a layout"
            raise UsageError(problem, f"there are: {', '.join(LAYOUTS)}")
        for content in self.contents:
            if content not in LAYOUTS[self.layout].paths:
                problem = f"the layout {self.layout} has no place for {content}"
                raise UsageError(problem, "choose another layout, or leave it out of --with")
        contents = tuple(name for name in _CONTENTS if name in self.contents)
        object.__setattr__(self, "contents", contents)
        if self.size is not None and not all(1 <= side <= _MAX_SIDE for side in self.size):
            width, height = self.size
            raise UsageError(
                f"images of {width} x {height} cannot be written: expected 1 to {_MAX_SIDE:,} "
                "pixels in both directions"
            )
        if self.label_set != "raw" and "labels" not in self.contents:
            problem = f"the label set {self.label_set} is of no use without label images"
            raise UsageError(problem, "add labels to --with")

    @property
    def text(self) -> str:
        """The options in words."""
        words = []
        for option in fields(self):
            value = getattr(self, option.name)
            if isinstance(value, tuple):
                value = " ".join(map(str, value))
            if value is not None:
                words.append(f"{option.name.replace('_', ' ')}: {value}")
        return ", ".join(words)

    def contents_of(self, split: Split) -> tuple[FrameContent, ...]:
        """Return what is written of the scenes of a split: those of test have no 2D labels."""
        return tuple(
            name
            for name in self.contents
            if name not in LABEL_KINDS or split in LABEL_KINDS[name].splits
        )

    def select(self, is_tracked: NDArray[np.bool_]) -> tuple[list[int], list[int]]:
        """Select the frames of a stream.

        Args:
            is_tracked: bool (N,), whether each frame has a usable pose.

        Returns:
            The numbers of the frames to extract; and of those without tracking. These are omitted,
            or are among the others, as the options demand.
        """
        numbers = np.arange(0, len(is_tracked), self.every)
        if self.keeps_lost:
            numbers = self._thin(numbers)
            lost = numbers[~is_tracked[numbers]]
        else:
            lost = numbers[~is_tracked[numbers]]
            numbers = self._thin(numbers[is_tracked[numbers]])
        return numbers.tolist(), lost.tolist()

    def _thin(self, numbers: NDArray[np.int64]) -> NDArray[np.int64]:
        """Choose at most `at_most` numbers, evenly spaced."""
        if self.at_most is None or len(numbers) <= self.at_most:
            return numbers
        positions = np.arange(self.at_most) * len(numbers) // self.at_most
        return numbers[positions]
