"""The archive: a `.tar.zst` that any tar opens, with random access to each scene.

    frame 0       .scannet-prep/index.json     the index, which lists the scenes
                  the files of no scene        such as manifest.json
    frame 1..     the files of a scene         scenes sorted by id; of extracted frames, one each
    last frame    1,024 zeros                  the end of the tar stream
    skippable     the seek table               sizes and checksums of the frames above

The contents of all frames together are one tar file.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, TypeAlias

import msgspec

from scannet_prep.archive.frames import (
    HINT_DAMAGED,
    PipedFrames,
    SeekableFrames,
    iter_members,
    open_source,
)
from scannet_prep.base.json import Count
from scannet_prep.base.version import VERSION
from scannet_prep.errors import ArchiveError, ContentError
from scannet_prep.processed.scene import SceneIdText
from scannet_prep.release.scenes import OWN_ID_PATTERN

INDEX_NAME = ".scannet-prep/index.json"

TreeKind: TypeAlias = Literal["processed", "raw", "frames"]
"""The kind of the tree that was packed."""

# The names of the files of a scene, by the kind of the tree.
_SCENE_FILES: dict[TreeKind, re.Pattern[str]] = {
    "processed": re.compile(rf"(?:train|val|test)/({OWN_ID_PATTERN})\.npz"),
    # Scenes of the release may also lie at the top of a raw tree. In the header of a tar file, the
    # name of a file in its folder has at most 100 letters.
    "raw": re.compile(
        rf"(?:scans/|scans_test/|(?=scene\d{{4}}_\d\d/))({OWN_ID_PATTERN})/"
        r"(?=.{1,100}\Z)\1[_.][\w.+-]*",
        re.ASCII,
    ),
    # Some layouts have a folder above those of the scenes.
    "frames": re.compile(
        r"(?:(?:posed_images|scans(?:_train|_test)?|train|val|test)/)?"
        rf"({OWN_ID_PATTERN})/(?:\w+/){{0,2}}\w[\w.+-]{{0,80}}",
        re.ASCII,
    ),
}
# Files of no scene lie at the top, or in `tasks`.
_OTHER_FILE = re.compile(r"(?:tasks/)?\w[\w.+-]{0,80}", re.ASCII)


def find_owner(kind: TreeKind, name: str) -> str | None:
    """Find the scene that a file belongs to by its name, which becomes a path when it is unpacked.

    Returns:
        Its id; empty for a file of no scene; None if no file of such a tree has the name.
    """
    match = _SCENE_FILES[kind].fullmatch(name)
    if match:
        return match[1]
    return "" if _OTHER_FILE.fullmatch(name) else None


@dataclass(frozen=True, slots=True)
class PackedScene:
    """A scene in an archive, whose files form one frame, or one frame each.

    Attributes:
        scene_id: The scene.
        split: Its split; empty if it has none.
        size_bytes: Size of its files.
        frames: Number of its frames.
    """

    scene_id: SceneIdText
    split: str
    size_bytes: Count
    frames: Count = 1


@dataclass(frozen=True)
class Index:
    """The content of an archive.

    Attributes:
        kind: The kind of the tree.
        scenes: The scenes, sorted by id, in the order of their frames.
        options: The options of extracted frames; empty for other kinds.
        program: Name and version of the program that packed it.
    """

    kind: TreeKind
    scenes: tuple[PackedScene, ...] = ()
    options: str = ""
    program: str = f"scannet-prep {VERSION}"
    version: Literal[2] = 2


_DECODER = msgspec.json.Decoder(Index)


class Archive:
    """An archive whose index has been read.

    Args:
        frames: Its frames.

    Attributes:
        name: Path or address, for messages.
        index: Its index.
        others: The files of no scene, by name.

    Raises:
        ArchiveError: Its first frame is damaged, or another version of this program made it.
        FileError, TransferError: It cannot be read.
    """

    def __init__(self, frames: SeekableFrames | PipedFrames) -> None:
        self.name = frames.name
        self._frames = frames
        # The numbers of the frames of each scene.
        self._numbers = {}
        self._end = 1
        with self._naming_damage():
            self.others = {name: bytes(data) for name, data in iter_members(frames.read(0))}
            self.index = _DECODER.decode(self.others.pop(INDEX_NAME, b""))
            for name in self.others:
                self._check_owner(name, "")
            for scene in self.index.scenes:
                start = self._end
                self._end += scene.frames
                self._numbers[scene.scene_id] = range(start, self._end)
            if frames.count not in (None, self._end + 1):
                raise ContentError("its index lists other frames than its seek table")

    def iter_files(
        self, scene_id: str, selected: slice = slice(None)
    ) -> Iterator[tuple[str, memoryview]]:
        """Iterate over the names and contents of the files of a scene.

        Args:
            scene_id: The scene.
            selected: Which of its frames to read; each file of extracted frames has its own.

        Raises:
            ArchiveError: They are damaged, or the archive was replaced since it was opened.
            TransferError: The server does not send them.
        """
        with self._naming_damage(scene_id):
            for number in self._numbers[scene_id][selected]:
                for name, data in iter_members(self._frames.read(number)):
                    self._check_owner(name, scene_id)
                    yield name, data

    def check_end(self) -> None:
        """Check the end of the tar stream, which comes after the last scene.

        Raises:
            ArchiveError: It is damaged.
        """
        with self._naming_damage():
            self._frames.read(self._end)

    def is_followed(self) -> bool:
        """Whether another archive follows in the same pipe; reads the pipe beyond the end."""
        with suppress(ContentError):
            # After the end of the tar stream and the seek table.
            self._frames.read(self._end + 2)
            return True
        return False

    def _check_owner(self, name: str, scene_id: str) -> None:
        """Check that a file in the frame of a scene has the name of one of its files.

        Raises:
            ContentError: It has another name.
        """
        if find_owner(self.index.kind, name) != scene_id:
            raise ContentError(f"{name[:200]!a} is not the name of one of its files")

    @contextmanager
    def _naming_damage(self, scene_id: str = "") -> Iterator[None]:
        """Name the archive and the scene in the errors of the enclosed code."""
        try:
            yield
        except (ContentError, msgspec.MsgspecError, RecursionError) as error:
            problem = f"{scene_id}: is damaged: {error}"
            if not scene_id:
                problem = f"is damaged, or this version of scannet-prep did not make it: {error}"
            raise ArchiveError(self.name, problem, HINT_DAMAGED) from None


def open_archive(place: str | Path) -> Archive:
    """Open an archive on a disk or at an address; picklable, and safe under fork and in threads.

    Args:
        place: Its path or address.

    Raises:
        ArchiveError: It is truncated, its first frame is damaged, or it is something else.
        FileError, TransferError: It cannot be read.
    """
    return Archive(SeekableFrames(open_source(place)))
