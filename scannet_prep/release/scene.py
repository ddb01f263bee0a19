"""Names of scenes and splits."""

from __future__ import annotations

import re

from scannet_prep.base.backports import StrEnum
from scannet_prep.base.errors import UnknownSceneError, UsageError

_SCENE_ID = re.compile(r"scene(\d{4})_(\d{2})", re.ASCII)


class SceneId(str):
    """The name of one scan, for example `scene0011_01`: scan 01 of the space 0011.

    The space has four digits, the scan two. Scans of one space show the same rooms.

    Raises:
        UnknownSceneError: The text does not have this form.
    """

    __slots__ = ()

    def __new__(cls, text: str) -> SceneId:
        """Check the form of the text."""
        if not cls.is_valid(text):
            raise UnknownSceneError(
                f"{text!r} is not a scene id", "scene ids look like scene0011_00"
            )
        return super().__new__(cls, text)

    @staticmethod
    def is_valid(text: str) -> bool:
        """Whether a text has the form of a scene id."""
        return _SCENE_ID.fullmatch(text) is not None

    @property
    def space(self) -> int:
        """Number of the space, 11 for `scene0011_01`."""
        return int(self[5:9])

    @property
    def scan(self) -> int:
        """Number of the scan within its space, 1 for `scene0011_01`."""
        return int(self[10:])


class Split(StrEnum):
    """A part of the benchmark's official division. Test scenes have no public annotation."""

    TRAIN = "train"
    VAL = "val"
    TEST = "test"

    @classmethod
    def parse(cls, text: str) -> Split:
        """Find a split by its name.

        Raises:
            UsageError: There is no split of this name.
        """
        try:
            return cls(text)
        except ValueError:
            raise UsageError(f"{text!r} is not a split", f"splits are {', '.join(cls)}") from None
