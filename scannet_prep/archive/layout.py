"""Which names an archive may hold: those of a processed or of a raw tree, and no others."""

from __future__ import annotations

import re

from scannet_prep.backports import StrEnum
from scannet_prep.errors import ContentError
from scannet_prep.scene import Split
from scannet_prep.splits import find_official_split

OWN_PREFIX = ".scannet-prep/"
FORMAT_NAME = f"{OWN_PREFIX}format.json"
INDEX_NAME = f"{OWN_PREFIX}index.json"

_ID = r"(?P<scene>scene\d{4}_\d{2})"
_OTHER_NAME = re.compile(
    r"(?:tasks/)?(?!(?:train|val|test|scans|scans_test|tasks)$|scene\d{4}_\d{2}$)\w[\w.+-]{0,80}", re.ASCII
)


class ArchiveKind(StrEnum):
    """What an archive was made from."""

    PROCESSED = "processed"
    RAW = "raw"


_SCENE_NAMES = {
    ArchiveKind.PROCESSED: re.compile(rf"(?P<folder>train|val|test)/{_ID}\.npz", re.ASCII),
    # The scenes of a raw tree may also lie directly in it.
    ArchiveKind.RAW: re.compile(rf"(?:(?P<folder>scans|scans_test)/)?{_ID}/(?P=scene)[_.][\w.+-]{{0,80}}", re.ASCII),
}


def find_scene(kind: ArchiveKind, name: str) -> str | None:
    """The scene that a file belongs to, by its name.

    Args:
        kind: What the archive is made from.
        name: Path below the folder, with `/`.

    Returns:
        The scene's id; empty for a file that belongs to none; None for a name that such an archive does not hold.
    """
    match = _SCENE_NAMES[kind].fullmatch(name)
    if match is not None:
        return match["scene"]
    return "" if _OTHER_NAME.fullmatch(name) else None


def find_split(kind: ArchiveKind, name: str) -> str:
    """The split of a file's scene: its folder, or what the official lists say; empty where neither tells."""
    match = _SCENE_NAMES[kind].fullmatch(name)
    if match is None:
        return ""
    if kind is ArchiveKind.PROCESSED:
        return match["folder"]
    return find_official_split(match["scene"]) or (Split.TEST if match["folder"] == "scans_test" else "")


def check_names(kind: ArchiveKind, scene_id: str, names: list[str]) -> None:
    """Check the names of one group.

    Args:
        kind: What the archive is made from.
        scene_id: The scene; empty for the files that belong to none.
        names: Of all its files, in order.

    Raises:
        ContentError: One is not that of a file of the scene, is there twice, or the files lie in several folders.
    """
    for name in names:
        if find_scene(kind, name) != scene_id and not (not scene_id and name == FORMAT_NAME == names[0]):
            of = f"of {scene_id}" if scene_id else "that belongs to no scene"
            raise ContentError(f"{name[:100]!a} is not the name of a file {of} in a {kind} tree")
    if len(set(names)) != len(names):
        raise ContentError(f"{max(names, key=names.count)!a} is there twice")
    if scene_id and len({name.rpartition("/")[0] for name in names}) != 1:
        raise ContentError(f"the files of {scene_id} do not lie in one folder")
