"""Names of scenes, and their official division into train, val and test.

The lists are those of the ScanNet benchmark (`scannetv2_train.txt` and so on, in the ScanNet
repository under `Tasks/Benchmark`): 1201, 312 and 100 scenes. No space is in two lists.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from enum import Enum
from functools import cache
from pathlib import Path

from scannet_prep.errors import FileError, UnknownSceneError, UsageError

# The form of the scene ids of the release.
RELEASE_ID = re.compile(r"scene(\d{4})_(\d{2})", re.ASCII)
# At most 96 characters: in an archive, a tar header has room for 100, which include `.npz`.
OWN_ID_PATTERN = r"[A-Za-z0-9][A-Za-z0-9_-]{0,95}"
# Names that are easily taken for a scene of the release, such as `scene00_00`, `Scene0011_00_copy`
# and `0011_00`.
_LIKE_RELEASE_ID = r"(?i:scene[_-]*\d.*|\d{3,5}(_\d{1,3})?)"
# The form of all scene ids, of the release and of own scenes.
SCENE_ID = re.compile(rf"{RELEASE_ID.pattern}|(?!{_LIKE_RELEASE_ID}\Z){OWN_ID_PATTERN}", re.ASCII)
_NUMBERS = re.compile(r"(?<!\d)\d{4}_\d{2}(?!\d)", re.ASCII)


class SceneId(str):
    """The name of one scan.

    Scenes of the release have names such as `scene0011_01`: scan 01 of the space 0011. Scans of one
    space show the same rooms. An own scene has the name of its folder, such as `living-room`: up to
    96 letters, digits, `_` and `-`, of ASCII, that do not look like the name of a scene of the
    release.

    Raises:
        UnknownSceneError: The text has neither form.
    """

    __slots__ = ()

    def __new__(cls, text: str) -> SceneId:
        """Check the form of the text."""
        if not SCENE_ID.fullmatch(text):
            raise UnknownSceneError(
                f"{text!r} is not a scene id", "scene ids look like scene0011_00"
            )
        return super().__new__(cls, text)

    @property
    def space(self) -> int | None:
        """Number of the space, 11 for `scene0011_01`; None for an own scene."""
        return int(self[5:9]) if RELEASE_ID.fullmatch(self) else None

    @property
    def scan(self) -> int | None:
        """Number of the scan within its space, 1 for `scene0011_01`; None for an own scene."""
        return int(self[10:]) if RELEASE_ID.fullmatch(self) else None


def suggest_scene_id(text: str) -> str:
    """Suggest the scene of the release that a text such as `scene0011_00.npz` or `0011_00` means.

    Returns:
        A hint; empty if the text is a scene id, or contains none.
    """
    match = _NUMBERS.search(text)
    if match is None or SCENE_ID.fullmatch(text):
        return ""
    return f"did you mean scene{match[0]}?"


class Split(str, Enum):
    """A part of the benchmark's official division. Test scenes have no public annotation.

    A member is its text, also in f-strings. `Split("val")` finds a member by its text.

    Raises:
        UsageError: There is no split of this name.
    """

    __str__ = str.__str__

    TRAIN = "train"
    VAL = "val"
    TEST = "test"

    @classmethod
    def _missing_(cls, value: object) -> Split:
        raise UsageError(f"{value!r} is not a split", f"splits are {', '.join(cls)}")


@cache
def official_scenes(split: str) -> tuple[SceneId, ...]:
    """Return the scenes of a split in the order of the official list, which is not sorted.

    Args:
        split: `train`, `val` or `test`, also as a `Split`.

    Raises:
        UsageError: There is no such split.
    """
    from importlib import resources  # imported here: `--help` does not need it

    name = f"assets/scannetv2_{Split(split)}.txt"
    text = resources.files("scannet_prep").joinpath(name).read_text(encoding="ascii")
    return tuple(map(SceneId, text.split()))


@cache
def official_splits() -> Mapping[str, Split]:
    """Return the split of each scene in the official lists, by its id."""
    return {scene_id: split for split in Split for scene_id in official_scenes(split)}


def read_scene_list(path: Path) -> list[str]:
    """Read a list of scene ids, one per line, without checking them; `#` begins a comment.

    Raises:
        MissingFileError: There is no such file.
        FileError: It cannot be read, is not text, or names nothing.
    """
    # Imported here: `--help` lists splits, and needs no files.
    from scannet_prep.base.files import read_text

    lines = [line.partition("#")[0].strip() for line in read_text(path).splitlines()]
    names = [line for line in lines if line]
    if not names:
        raise FileError(path, "names no scene", "name one scene on each line")
    return names
