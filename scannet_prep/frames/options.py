"""What is extracted from each scene."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, TypeAlias

import numpy as np
from numpy.typing import NDArray

from scannet_prep.base.json import to_plain
from scannet_prep.errors import UsageError
from scannet_prep.frames.layouts import LAYOUTS, FrameContent
from scannet_prep.release.files import KINDS, FileKind
from scannet_prep.release.scene import Split

LabelIds: TypeAlias = Literal["raw", "nyu40", "scannet20", "scannet200"]

STREAM = KINDS[".sens"]
# The zip files of 2D labels that an extraction reads, by content.
LABEL_KINDS: dict[FrameContent, FileKind] = {
    "labels": KINDS["_2d-label-filt.zip"],
    "instances": KINDS["_2d-instance-filt.zip"],
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
        label_map: The digest of the label map, if label images depend on it; otherwise empty.

    Raises:
        UsageError: There is no such layout, or it has no place for a content.
    """

    every: int = 20
    at_most: int | None = None
    size: tuple[int, int] | None = None
    contents: tuple[FrameContent, ...] = ("color", "depth", "pose")
    label_set: LabelIds = "raw"
    layout: str = "official"
    keeps_lost: bool = False
    label_map: str = ""

    def __post_init__(self) -> None:
        """Check the layout, and sort the contents as it does."""
        if self.layout not in LAYOUTS:
            problem = f"{self.layout!r} is not a layout"
            raise UsageError(problem, f"there are: {', '.join(LAYOUTS)}")
        known = LAYOUTS[self.layout].of_frame
        for content in self.contents:
            if content not in known:
                problem = f"the layout {self.layout} has no place for {content}"
                raise UsageError(problem, "choose another layout, or leave it out of --with")
        contents = tuple(name for name in known if name in self.contents)
        object.__setattr__(self, "contents", contents)

    @property
    def text(self) -> str:
        """The options in words."""
        options = to_plain(self)
        return ", ".join(
            f"{name.replace('_', ' ')}: {value}"
            for name, value in options.items()
            if value not in (None, "")
        )

    def contents_of(self, split: Split) -> tuple[FrameContent, ...]:
        """Return what is written of the scenes of a split: those of test have no 2D labels."""
        without = LABEL_KINDS if split is Split.TEST else {}
        return tuple(name for name in self.contents if name not in without)

    def select(self, is_tracked: NDArray[np.bool_]) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """Select the frames of a stream.

        Args:
            is_tracked: bool (N,), whether each frame has a usable pose.

        Returns:
            The numbers of the frames to extract; and of those without tracking. These are omitted,
            or are among the others, as the options demand.
        """
        numbers = np.arange(0, len(is_tracked), self.every)
        is_wanted = is_tracked[numbers] | self.keeps_lost
        omitted = numbers[~is_wanted]
        numbers = numbers[is_wanted]
        if self.at_most is not None and self.at_most < len(numbers):
            # Evenly spaced.
            numbers = numbers[np.arange(self.at_most) * len(numbers) // self.at_most]
        lost = [*omitted, *numbers[~is_tracked[numbers]]]
        return tuple(numbers.tolist()), tuple(map(int, lost))
