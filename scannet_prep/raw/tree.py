"""The raw tree: its scenes, and the paths and names of their files.

The files of a scene lie together in one folder, under the names of the release:

    <raw>/scans/<scene>/<scene><suffix>         train and val scenes, and own annotated scenes
    <raw>/scans_test/<scene>/<scene><suffix>    test scenes, and own meshes
    <raw>/train/<scene><suffix>                 the layout of PointGroup; also val/ and test/
    <raw>/<scene>/<scene><suffix>               and others: see `list_raw`
    <raw>/scannetv2-labels.combined.tsv         the label map, which may also lie deeper
    <raw>/tasks/                                other files of no scene

A path that is a link to nothing counts as existing: reading the file then fails with an error that
names it, and the file is not overlooked.
"""

from __future__ import annotations

import os
import re
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path

import msgspec

from scannet_prep.base.findings import Finding, sort_findings
from scannet_prep.base.text import list_some
from scannet_prep.errors import ContentError, FileError, MissingFileError
from scannet_prep.release.files import (
    INFO,
    KINDS,
    LABEL_MAP,
    MESH,
    SHARED_KINDS,
    SPLIT_DIRS,
    TASKS_DIR,
    FileKind,
)
from scannet_prep.release.scene import SceneId, Split
from scannet_prep.release.splits import find_official_split

# The folders that say which splits their scenes belong to; that of own scenes comes first.
_PLACES = {
    "scans": (Split.TRAIN, Split.VAL, Split.TEST),
    "scans_test": (Split.TEST,),
    **{str(split): (split,) for split in Split},
}
_SCENE_DIRS = set(SPLIT_DIRS.values())
# Other folders are searched down to this depth.
_MAX_DEPTH = 2
# The first match is the longest suffix: `.aggregation.json` is the end of another one.
_SUFFIX = re.compile(f"({'|'.join(map(re.escape, KINDS))})\\Z")
# Endings of the files that a scene could be made from.
_INPUT_ENDINGS = (".ply", ".sens", ".segs.json", ".aggregation.json", ".tsv")
_HINT_LAYOUT = (
    "name the folder that holds scans/ and scans_test/, for example scans/scene0000_00/; "
    "to try the program without ScanNet data: scannet-prep demo"
)
_HINT_RELEASE = "remove the file if it is there, and download it: scannet-prep download"
_HINT_OWN_FILES = (
    "scenes of your own need binary PLY files of triangles, in metres; in scans/ they need "
    "segments and groups, too: for a mesh alone, move the folder to scans_test/"
)
_HINT_OWN = (
    "a scene of your own lies in scans_test/NAME/NAME_vh_clean_2.ply; NAME has up to 96 letters, "
    "digits, _ and -, and does not look like a scene id of the release"
)
_NO_FOLDER = "is not a folder, or a link that leads nowhere"
_NOT_USED = "not used, as files of a scene have other names or another place"


@dataclass(frozen=True, slots=True)
class RawScene:
    """The files of one scan.

    Attributes:
        scene_id: Its name.
        directory: The folder that holds its files.
        files: Those that are there, by kind.
        problem: The reason why the scene cannot be used, without the folder's name; empty if it
            can be used.
    """

    scene_id: SceneId
    directory: Path
    files: Mapping[FileKind, Path] = field(default_factory=dict, hash=False)
    problem: str = ""

    @property
    def is_own(self) -> bool:
        """Whether the scene is not from the release: none of the official lists contains it."""
        return find_official_split(self.scene_id) is None

    @property
    def split(self) -> Split | None:
        """The split of the official lists; for a scene of one's own, that of its place.

        None for a scene that has the form of the release's, and that no list contains; and for one
        whose place is of no split.
        """
        if self.is_own and SceneId.is_own(self.scene_id):
            return next(iter(self.place_splits), None)
        return find_official_split(self.scene_id)

    @property
    def place_splits(self) -> tuple[Split, ...]:
        """The splits of the scenes in a place such as `scans`; empty for any other folder."""
        folder = self.directory.absolute()
        names = [name for name in (folder.name, folder.parent.name) if name != self.scene_id]
        return next((_PLACES[name] for name in names if name in _PLACES), ())

    def path(self, kind: FileKind) -> Path:
        """Return the path of the file of one kind."""
        return self.directory / f"{self.scene_id}{kind.suffix}"


@dataclass(frozen=True, slots=True)
class RawListing:
    """What a raw tree holds.

    Attributes:
        scenes: The scenes by id, sorted; those that cannot be used have a `problem`.
        label_map: The label map that lies with them; None if there is none.
        findings: Files that have the name of an input and are not used, and remarks about places.
            An error if they look like a scene in a place of scenes.
    """

    scenes: dict[SceneId, RawScene]
    label_map: Path | None
    findings: tuple[Finding, ...]


def repair_hint(path: Path) -> str:
    """Return what to do about a raw file that is missing or damaged."""
    # A scene id of the release has 12 letters.
    split = find_official_split(path.name[:12])
    kind = (KINDS | SHARED_KINDS).get(path.name if split is None else path.name[12:])
    is_of_release = kind is not None and (split is None or split in kind.splits)
    return _HINT_RELEASE if is_of_release else _HINT_OWN_FILES


@contextmanager
def naming_file(path: Path) -> Iterator[None]:
    """Turn a ContentError of the enclosed code into a FileError of this file."""
    try:
        yield
    except ContentError as error:
        raise FileError(path, error.message, repair_hint(path)) from None


def list_raw(raw_dir: Path, *, may_be_empty: bool = False) -> RawListing:
    """Find the scenes of a raw tree, without opening their files.

    A scene is found wherever files of its name lie together: in a folder of its own, or beside
    other scenes. In `scans`, `scans_test` and folders with the name of a split, all folders are
    searched, elsewhere two levels. A scene of the release is also found by its empty folder.

    If files of a scene lie in several folders (the official download script leaves empty ones), the
    one with a mesh is used; of several, the one that is named like the scene.

    Args:
        raw_dir: The tree, or one of its folders.
        may_be_empty: Whether there may be no scene, as in a tree that holds only `tasks/`.

    Raises:
        MissingFileError: `raw_dir` does not exist. It holds no scene, unless `may_be_empty`.
        FileError: A folder of scenes cannot be read.
    """
    if not raw_dir.is_dir():
        raise MissingFileError(raw_dir, "no such folder", _HINT_LAYOUT)
    found: dict[SceneId, list[RawScene]] = defaultdict(list)
    label_maps = []
    findings = []
    for folder, names in _iter_folders(raw_dir):
        scenes, unused = _find_in_folder(folder, names)
        is_for_scene = folder.parent.name in _SCENE_DIRS
        is_usual = is_for_scene or folder.parent == raw_dir
        if not scenes and is_usual and SceneId.is_of_release(folder.name):
            scenes = [RawScene(SceneId(folder.name), folder)]
        if unused or (is_for_scene and not scenes):
            findings.append(_report_unused(folder, unused, has_scenes=bool(scenes)))
        for scene in scenes:
            found[scene.scene_id].append(scene)
        if LABEL_MAP.suffix in names:
            label_maps.append(folder / LABEL_MAP.suffix)

    chosen = {scene_id: _choose(found[scene_id], findings) for scene_id in sorted(found)}
    if not chosen and not may_be_empty:
        problem = "; ".join(["holds no scene folders", *map(str, findings[:1])])
        raise MissingFileError(raw_dir, problem, _HINT_LAYOUT)
    label_maps = sorted(label_maps, key=lambda path: len(path.parts)) or _find_above(raw_dir)
    label_map = label_maps[0] if label_maps else None
    findings += [_note(path, f"not used: the label map is {label_map}") for path in label_maps[1:]]
    return RawListing(chosen, label_map, sort_findings(findings))


def find_shared_files(raw_dir: Path) -> dict[FileKind, Path]:
    """Find the files in `tasks/`, which belong to no scene. The label map is not among them."""
    paths = {}
    for kind in SHARED_KINDS.values():
        path = raw_dir / TASKS_DIR / kind.suffix
        if kind is not LABEL_MAP and os.path.lexists(path):
            paths[kind] = path
    return paths


def _iter_folders(raw_dir: Path) -> Iterator[tuple[Path, list[str]]]:
    """Iterate over the folders to search, with the names in them that are not of folders.

    Raises:
        FileError: A folder of scenes cannot be read, or is not a folder.
    """

    def check_place(error: OSError) -> None:
        folder = Path(error.filename)
        # Other folders, such as `lost+found`, may be closed.
        if folder == raw_dir or {folder.name, folder.parent.name} & _PLACES.keys():
            raise FileError(folder, f"cannot be listed: {error.strerror or error}") from error

    for path, folders, files in os.walk(raw_dir, onerror=check_place, followlinks=True):
        folder = Path(path)
        for name in _PLACES.keys() & files:
            raise FileError(folder / name, _NO_FOLDER)
        yield folder, sorted(name for name in files if not name.startswith("."))
        is_deep = len(folder.parts) - len(raw_dir.parts) >= _MAX_DEPTH
        inner = set(folders)
        if SceneId.is_of_release(folder.name):
            inner.clear()
        elif is_deep and folder.name not in _PLACES:
            inner &= _PLACES.keys()
        folders[:] = sorted(name for name in inner if not name.startswith("."))


def _find_in_folder(folder: Path, names: Iterable[str]) -> tuple[list[RawScene], list[str]]:
    """Find the scenes whose files lie in a folder, and the names that are not used."""
    files: dict[str, dict[FileKind, Path]] = defaultdict(dict)
    unused = []
    scenes = []
    for name in names:
        match = _SUFFIX.search(name)
        if match is not None and SceneId.is_valid(name[: match.start()]):
            files[name[: match.start()]][KINDS[match[0]]] = folder / name
        elif SceneId.is_of_release(name):
            scenes.append(RawScene(SceneId(name), folder / name, problem=_NO_FOLDER))
        elif name.endswith(_INPUT_ENDINGS) or folder.name in _SCENE_DIRS:
            unused.append(name)
    for name, of_scene in files.items():
        # Many other files are named like the metadata.
        if of_scene.keys() != {INFO} or name == folder.name:
            scenes.append(RawScene(SceneId(name), folder, of_scene))
        elif SceneId.is_of_release(name):
            unused.append(of_scene[INFO].name)
    return scenes, [name for name in unused if name != LABEL_MAP.suffix]


def _choose(same: Sequence[RawScene], findings: list[Finding]) -> RawScene:
    """Choose one of the folders of a scene, and note those that are not used."""
    chosen, *others = sorted(same, key=_rank, reverse=True)
    problem = chosen.problem
    for other in others:
        if MESH in other.files and _rank(other) == _rank(chosen):
            problem = f"has the same scene as {other.directory}, and both have a mesh; remove one"
        elif other.files:
            message = f"not used: {chosen.scene_id} is taken from {chosen.directory}"
            findings.append(_note(other.directory, message))
    official = find_official_split(chosen.scene_id)
    splits = chosen.place_splits
    if official and splits and official not in splits:
        problem = f"{chosen.scene_id} is a {official} scene, but lies among {splits[0]} scenes"
    if official is Split.TEST and Split.TRAIN in splits:
        findings.append(_note(chosen.directory, "lies in scans/, but is a scene of the test split"))
    return replace(chosen, problem=problem)


def _rank(scene: RawScene) -> tuple[bool, bool]:
    """Rank a folder of a scene by whether it has a mesh, and the name of the scene."""
    # A mesh that is a link to nothing is no reason to choose its folder, so os.path.exists is used
    # here, not lexists. Unlike Path.exists, it returns False if access fails.
    has_mesh = os.path.exists(scene.path(MESH))  # noqa: PTH110
    return has_mesh, scene.directory.name == scene.scene_id


def _report_unused(folder: Path, names: Sequence[str], *, has_scenes: bool) -> Finding:
    """Report the files of a folder that are not used; all of them if no names are given."""
    finding = _note(folder, f"{_NOT_USED}: {list_some(names) or 'all files'}")
    is_in_place = not _SCENE_DIRS.isdisjoint((folder.name, folder.parent.name))
    if is_in_place and not has_scenes and any(name.endswith(_INPUT_ENDINGS) for name in names):
        return msgspec.structs.replace(finding, severity="error", hint=_HINT_OWN)
    return finding


def _note(path: Path, message: str) -> Finding:
    return Finding(message=message, subject=str(path), severity="note")


def _find_above(raw_dir: Path) -> list[Path]:
    """Find label maps above a folder that is a part of a tree."""
    top = raw_dir.absolute()
    while {top.name, top.parent.name} & _PLACES.keys():
        top = top.parent
    paths = [top / LABEL_MAP.suffix, top / TASKS_DIR / LABEL_MAP.suffix]
    return [path for path in paths if os.path.lexists(path)]
