"""Options of an extraction: the content, number and form of the frames."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias

import numpy as np
from numpy.typing import NDArray

from scannet_prep.base.json import to_plain
from scannet_prep.errors import UsageError
from scannet_prep.frames.layouts import LAYOUTS, FrameContent, find_layout
from scannet_prep.release.files import INFO, KINDS, MESH, SPLIT_DIRS, FileKind
from scannet_prep.release.scenes import Split

LabelIds: TypeAlias = Literal["raw", "nyu40", "scannet20", "scannet200"]

STREAM = KINDS[".sens"]
# The files that other contents than those of the stream come from.
SOURCE_KINDS = {
    "labels": KINDS["_2d-label-filt.zip"],
    "instances": KINDS["_2d-instance-filt.zip"],
    "colmap_points": MESH,
    "points": MESH,
    "vertices": MESH,
    "correspondences": MESH,
    "scan_info": INFO,
}


@dataclass(frozen=True, slots=True)
class FrameOptions:
    """The frames and images that are extracted. All scenes of a folder have the same options.

    Attributes:
        every: Every n-th frame of the stream, beginning with the first.
        first: Only so many of these, the first ones; None for all.
        at_most: At most so many of them, evenly spaced; None for all.
        size: Width and height of all images; None to leave them as they are.
        contents: What is written of each frame; sorted, and each once. Empty for color, depth and
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
            another value of an option.
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

    @classmethod
    def of_layout(cls, layout: str = "official", **options: Any) -> FrameOptions:  # noqa: ANN401 - as declared
        """Return the options of a layout, but for those that are chosen.

        Raises:
            UsageError: There is no such layout.
        """
        chosen = find_layout(layout)
        return cls(layout=layout, **{**chosen.fixed, **chosen.defaults, **options})

    def __post_init__(self) -> None:
        """Check the options, and sort the contents as the layout does."""
        layout = find_layout(self.layout)
        for content in self.contents:
            if content not in layout.of_frame:
                problem = f"the layout {self.layout} has no place for {content}"
                raise UsageError(problem, "choose another layout, or leave it out of --with")
        chosen = self.contents or ("color", "depth", "pose")
        contents = tuple(name for name in layout.of_frame if name in chosen)
        object.__setattr__(self, "contents", contents)
        for name, needed in layout.fixed.items():
            value = getattr(self, name)
            if value != needed:
                problem = f"the layout {self.layout} needs {name}: {needed}, not {value}"
                raise UsageError(problem, "leave this option out, or choose another layout")

    @property
    def text(self) -> str:
        """The options in words; those that are not used are left out."""
        options = to_plain(self)
        options["size"] = "x".join(map(str, self.size or ()))
        options["contents"] = " ".join(self.contents)
        return ", ".join(f"{name}: {value}" for name, value in options.items() if value)

    def names_of(self, split: Split) -> dict[FrameContent, str]:
        """Return the names of the files of a frame, by content; test scenes have no 2D labels."""
        names = LAYOUTS[self.layout].of_frame
        return {
            content: names[content]
            for content in self.contents
            if split in SOURCE_KINDS.get(content, STREAM).splits
        }

    def folder_of(self, scene_id: str, split: Split) -> str:
        """Return the folder of a scene in the output folder."""
        part = "test" if split is Split.TEST else "train"
        folder = LAYOUTS[self.layout].folder
        return folder.format(scene=scene_id, scans=SPLIT_DIRS[split], split=split, part=part)

    def find_sources(self, split: Split) -> list[FileKind]:
        """Return the kinds of the files that scenes of a split are extracted from."""
        contents = (*self.names_of(split), *LAYOUTS[self.layout].of_scene.values())
        kinds = [SOURCE_KINDS.get(content, STREAM) for content in contents]
        return [*dict.fromkeys([STREAM, *kinds])]

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
            UsageError: The stream does not have a frame that is listed.
        """
        count = len(is_tracked)
        # Programs that take every third frame round the number of frames down.
        end = count if self.first is None else count - count % self.every
        chosen = listed or range(0, end, self.every)[: self.first]
        for number in chosen:
            if number >= count:
                problem = f"has no frame {number}, only {count:,} frames"
                raise UsageError(problem, "correct the list of --frames")
        kept = [number for number in chosen if self.keeps_lost or is_tracked[number]]
        # Evenly spaced.
        kept_count = min(self.at_most or count, len(kept))
        kept = [kept[index * len(kept) // kept_count] for index in range(kept_count)]
        searched = kept if self.keeps_lost else chosen
        lost = [number for number in searched if not is_tracked[number]]
        return tuple(kept), tuple(lost)
