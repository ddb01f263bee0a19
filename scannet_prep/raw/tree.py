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
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from scannet_prep.base.findings import Finding
from scannet_prep.base.text import list_some
from scannet_prep.errors import FileError, MissingFileError
from scannet_prep.release.files import (
    INFO,
    INPUT_KINDS,
    KINDS,
    LABEL_MAP,
    MESH,
    SHARED_KINDS,
    SPLIT_DIRS,
    TASKS_DIR,
    FileKind,
)
from scannet_prep.release.scenes import RELEASE_ID, SCENE_ID, Split, official_splits

# Folders, and the splits that their scenes may belong to; the first is that of own scenes.
_PLACES = {
    "scans": (Split.TRAIN, Split.VAL, Split.TEST),
    "scans_test": (Split.TEST,),
    **{str(split): (split,) for split in Split},
}
_SCENE_DIRS = set(SPLIT_DIRS.values())
# Other folders are searched down to this depth.
_MAX_DEPTH = 2
# The first match is the longest suffix: `.aggregation.json` is the end of another one.
_SUFFIXES = "|".join(map(re.escape, KINDS))
_SUFFIX = re.compile(rf"({_SUFFIXES})\Z")
# Endings of the files that a scene could be made from.
_SCENE_ENDINGS = (".ply", ".sens", ".segs.json", ".aggregation.json")
_HINT_LAYOUT = (
    "name the folder that holds scans/ and scans_test/, with scenes such as scans/scene0000_00/; "
    "a mesh of your own is scans_test/NAME/NAME_vh_clean_2.ply; "
    "to try the program without ScanNet data: scannet-prep demo"
)
_HINT_RELEASE = "move the file away if it is there, and download it: scannet-prep download"
_HINT_OWN_FILES = (
    "scenes of your own need PLY files of triangles, in metres and near the origin; in scans/ they "
    "need segments and groups, too: for a mesh alone, move the folder to scans_test/"
)
_HINT_OWN = (
    "a scene of your own lies in scans_test/NAME/NAME_vh_clean_2.ply; NAME has up to 96 letters, "
    "digits, _ and -, and does not look like a scene id of the release"
)
_NO_FOLDER = "is not a folder, or a link that leads nowhere"
_CLOSED = "cannot be listed: Permission denied"
_NOT_USED = "not used, because of the name or the place"


@dataclass(frozen=True, slots=True)
class RawScene:
    """The files of one scan.

    Attributes:
        scene_id: Its name.
        directory: The folder that holds its files.
        files: The kinds of the files that exist.
        split: The split of the official lists; for an own scene, that of its place, such as `scans`
            or `val`. None if neither determines it.
        problem: The reason why the scene cannot be used, without the folder's name; empty if it
            can be used.
        processed: The processed scene, which is used if there is no mesh.
    """

    scene_id: str
    directory: Path
    files: tuple[FileKind, ...] = ()
    split: Split | None = None
    problem: str = ""
    processed: Path | None = None

    def path(self, kind: FileKind) -> Path:
        """Return the path of the file of one kind."""
        return self.directory / f"{self.scene_id}{kind.suffix}"

    def check(self) -> None:
        """Check that the scene can be used.

        Raises:
            FileError: It cannot, for example because it lies in two folders.
        """
        if self.problem:
            raise FileError(self.directory, self.problem)

    def find_files(
        self, used: Collection[FileKind], needed: Collection[FileKind]
    ) -> dict[FileKind, Path]:
        """Find the paths of the files of some kinds.

        Args:
            used: Kinds of `INPUT_KINDS`; those without a file are left out.
            needed: Those of them that must exist.

        Raises:
            MissingFileError: A file that is needed does not exist.
            FileError: The scene cannot be used.
        """
        self.check()
        paths = {}
        for kind in INPUT_KINDS:
            path = self.path(kind)
            if kind in used and kind in self.files:
                paths[kind] = path
            elif kind in needed:
                raise MissingFileError(path, "no such file", repair_hint(path))
        return paths


@dataclass(frozen=True, slots=True)
class RawListing:
    """What a raw tree holds.

    Attributes:
        scenes: The scenes by id, sorted; those that cannot be used have a `problem`.
        label_map: The label map that lies with them; None if there is none.
        shared: The other files of no scene, by kind.
        findings: Files that have the name of an input and are not used, and remarks about places.
            They are errors if the files look like a scene and lie where scenes belong.
    """

    scenes: dict[str, RawScene]
    label_map: Path | None
    shared: dict[FileKind, Path]
    findings: tuple[Finding, ...]


def repair_hint(path: Path) -> str:
    """Return what to do about a raw file that is missing or damaged."""
    # A scene id of the release has 12 letters.
    split = official_splits().get(path.name[:12])
    suffix = path.name if split is None else path.name[12:]
    kind = (KINDS | SHARED_KINDS).get(suffix)
    is_of_release = kind is not None and (split is None or split in kind.splits)
    return _HINT_RELEASE if is_of_release else _HINT_OWN_FILES


def list_raw(
    raw_dir: Path,
    *,
    may_be_empty: bool = False,
) -> RawListing:
    """Find the scenes of a raw tree, without opening their files.

    A scene is found wherever files of its name lie together: in a folder of its own, or beside
    other scenes. In `scans`, `scans_test` and folders with the name of a split, all folders are
    searched, elsewhere two levels. A scene of the release is also found by its empty folder.

    If files of a scene lie in several folders (the official download script leaves empty ones), the
    one with a mesh is used, or else one with other files; of several, the one that is named like
    the scene.

    Args:
        raw_dir: The tree, or one of its folders.
        may_be_empty: Whether there may be no scene, as in a tree that holds only `tasks/`.

    Raises:
        MissingFileError: `raw_dir` does not exist; or it has no scene, and `may_be_empty` is false.
        FileError: A folder cannot be read.
    """
    if not raw_dir.is_dir():
        problem = "is a file, expected a folder" if raw_dir.exists() else "no such folder"
        raise MissingFileError(raw_dir, problem, _HINT_LAYOUT)
    found: dict[str, list[RawScene]] = defaultdict(list)
    unused: dict[Path, list[str]] = defaultdict(list)
    with_scenes = set()
    shared = {}
    label_maps = []
    for folder, names in _iter_folders(raw_dir):
        scenes, unused[folder] = _find_in_folder(folder, names)
        for scene in scenes:
            found[scene.scene_id].append(scene)
            with_scenes.add(folder)
        for name in SHARED_KINDS.keys() & names:
            shared[SHARED_KINDS[name]] = folder / name
        if LABEL_MAP in shared:
            label_maps.append(shared.pop(LABEL_MAP))

    chosen = {}
    for scene_id in sorted(found):
        chosen[scene_id], *others = _order_folders(found[scene_id])
        for other in others:
            unused[other.directory] += [other.path(kind).name for kind in other.files]
    label_maps = sorted(label_maps, key=lambda path: len(path.parts)) or _find_above(raw_dir)
    for path in label_maps[1:]:
        unused[path.parent].append(path.name)
    findings = sorted(_iter_unused(unused, with_scenes))
    if not chosen and not may_be_empty:
        faults = ["holds no scene folders", *map(str, findings[:1])]
        raise MissingFileError(raw_dir, "; ".join(faults), _HINT_LAYOUT)
    label_map = next(iter(label_maps), None)
    return RawListing(chosen, label_map, shared, tuple(findings))


def _iter_folders(raw_dir: Path) -> Iterator[tuple[Path, list[str]]]:
    """Iterate over the folders to search, with the names of files and unreadable scene folders.

    Raises:
        FileError: A folder cannot be read, or is not a folder.
    """

    def refuse(error: OSError) -> None:
        raise FileError(error.filename, f"cannot be listed: {error.strerror or error}") from error

    seen = set()
    for path, folders, files in os.walk(raw_dir, onerror=refuse, followlinks=True):
        folder = Path(path)
        # Links may lead to a folder twice, or back to one above.
        target = os.path.realpath(path)
        if target in seen:
            folders.clear()
            continue
        seen.add(target)
        for name in _SCENE_DIRS.intersection(files):
            raise FileError(folder / name, _NO_FOLDER)
        # A scene that this user may not read fails alone.
        form = SCENE_ID if folder.name in _PLACES else RELEASE_ID
        closed = {
            name
            for name in folders
            if form.fullmatch(name) and not os.access(folder / name, os.R_OK | os.X_OK)
        }
        visible = sorted(name for name in (*files, *closed) if not name.startswith("."))
        yield folder, visible
        inner = {name for name in folders if not name.startswith(".")}
        inner -= {"lost+found", *closed}
        depth = len(folder.parts) - len(raw_dir.parts)
        if RELEASE_ID.fullmatch(folder.name):
            # The scene may have been copied or unpacked into a folder of its own name.
            inner &= {folder.name}
        elif depth >= _MAX_DEPTH and folder.name not in _PLACES:
            inner &= _PLACES.keys()
            # Elsewhere, the same folder may be searched more deeply.
            seen.discard(target)
        folders[:] = sorted(inner)


def _find_in_folder(
    folder: Path,
    names: Sequence[str],
) -> tuple[list[RawScene], list[str]]:
    """Find the scenes whose files lie in a folder, and the names that are not used."""
    kinds: dict[str, list[FileKind]] = defaultdict(list)
    unused = []
    scenes = []
    if not names and RELEASE_ID.fullmatch(folder.name):
        scenes.append(_locate(folder.name, folder))
    for name in names:
        match = _SUFFIX.search(name)
        stem = name[: match.start()] if match else ""
        if match and (stem in kinds or SCENE_ID.fullmatch(stem)):
            kinds[stem].append(KINDS[match[0]])
        elif RELEASE_ID.fullmatch(name) or (SCENE_ID.fullmatch(name) and (folder / name).is_dir()):
            problem = _CLOSED if (folder / name).is_dir() else _NO_FOLDER
            scene = _locate(name, folder / name)
            scenes.append(replace(scene, problem=problem))
        elif name.lower().endswith((*_SCENE_ENDINGS, ".tsv")) or folder.name in _SCENE_DIRS:
            unused.append(name)
    for name, of_scene in kinds.items():
        # Many other files are named like the metadata.
        if of_scene != [INFO] or name == folder.name:
            scenes.append(_locate(name, folder, of_scene))
        elif RELEASE_ID.fullmatch(name):
            unused.append(f"{name}{INFO.suffix}")
    return scenes, [name for name in unused if name != LABEL_MAP.suffix]


def _locate(
    name: str,
    folder: Path,
    files: Sequence[FileKind] = (),
) -> RawScene:
    """Make a scene of the files of one name in a folder, whose place may determine the split."""
    scene = RawScene(name, folder, tuple(files), official_splits().get(name))
    place = folder.absolute()
    # The folder of a scene is not a place, even if the scene is named `test`.
    shared = "" if place.name == name else place.name
    splits = _PLACES.get(shared) or _PLACES.get(place.parent.name)
    if splits is None or scene.split in splits:
        return scene
    if scene.split:
        problem = f"{name} is a {scene.split} scene, but lies among {splits[0]} scenes"
        return replace(scene, problem=problem)
    if RELEASE_ID.fullmatch(name):
        return scene
    return replace(scene, split=splits[0])


def _order_folders(same: Sequence[RawScene]) -> list[RawScene]:
    """Order the folders of a scene: the one to use, with its problem if any, then the others."""
    best, *others = sorted(same, key=_rank, reverse=True)
    for other in others:
        if MESH in other.files and _rank(other) == _rank(best):
            problem = f"has the same scene as {other.directory}, and each has a mesh; move one away"
            return [replace(best, problem=problem)]
    return [best, *others]


def _rank(scene: RawScene) -> tuple[bool, bool, bool]:
    """Rank a folder of a scene by whether it has a mesh, any file, and the name of the scene."""
    # A mesh that is a link to nothing is no reason to choose its folder, so os.path.exists is used
    # here, not lexists. Unlike Path.exists, it returns False if access fails.
    has_mesh = os.path.exists(scene.path(MESH))  # noqa: PTH110
    has_files = bool(scene.files)
    return has_mesh, has_files, scene.directory.name == scene.scene_id


def _iter_unused(
    unused: Mapping[Path, Sequence[str]],
    with_scenes: Collection[Path],
) -> Iterator[Finding]:
    """Report files that are not used, and folders without a scene where one belongs."""
    for folder, names in unused.items():
        is_in_scans = folder.parent.name in _SCENE_DIRS
        is_error = False
        lacks_scenes = False
        if folder not in with_scenes and (is_in_scans or folder.name in _SCENE_DIRS):
            is_error = any(name.lower().endswith(_SCENE_ENDINGS) for name in names)
            # No scene lies in the folder or below it, although one belongs there.
            lacks_scenes = is_in_scans and not any(folder in one.parents for one in with_scenes)
        if names or lacks_scenes:
            yield Finding(
                message=f"{_NOT_USED}: {list_some(names) or 'all files'}",
                subject=str(folder),
                severity="error" if is_error else "note",
                hint=_HINT_OWN if is_error else "",
            )


def _find_above(raw_dir: Path) -> list[Path]:
    """Find label maps above a folder that is a part of a tree."""
    top = raw_dir.absolute()
    while {top.name, top.parent.name} & _PLACES.keys():
        top = top.parent
    paths = [top / LABEL_MAP.suffix, top / TASKS_DIR / LABEL_MAP.suffix]
    return [path for path in paths if os.path.lexists(path)]
