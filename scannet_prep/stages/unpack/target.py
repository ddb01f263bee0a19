"""The folder that archives are unpacked into.

begin                 refuses scenes that do not belong together; nothing is written yet
write_others, write   files -> the folder
fail, fail_missing    scenes that are damaged, cannot be written, or have not arrived
end                   manifest or scannet.lock, and failed.txt -> the folder

`unpack.run` calls them in this order, `write` in several threads. `ProcessedTarget` and `RawTarget`
know the records of the two kinds of folders, and call down to what both share.
"""

from __future__ import annotations

import hashlib
import os
from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import ClassVar, NamedTuple

from scannet_prep.archive.archive_set import ArchiveSet
from scannet_prep.archive.groups import GroupReader
from scannet_prep.archive.layout import OWN_PREFIX, ArchiveKind, StoredGroup
from scannet_prep.archive.tar import Member
from scannet_prep.base.files import (
    Buffer,
    has_content,
    make_directory,
    remove_temporaries,
    write_atomically,
)
from scannet_prep.base.findings import Finding
from scannet_prep.base.text import list_some
from scannet_prep.errors import FileError, OutputError, ScanNetPrepError, UnknownSceneError
from scannet_prep.export import is_export
from scannet_prep.processed.folder import FAILED_NAME
from scannet_prep.processed.manifest import MANIFEST_NAME
from scannet_prep.raw.lock import LOCK_NAME, LockEntry
from scannet_prep.release.files import ACCEPTANCE_NAME
from scannet_prep.release.scene import Split
from scannet_prep.source.place import find_kind
from scannet_prep.stages.selection import Selection

HINT_COPY_AGAIN = (
    "copy or fetch the archive again, then run the same command: it takes just what is missing"
)
HINT_OTHER_FOLDER = "unpack into another folder with -o DIR"

# These describe a folder, not its content: each folder has its own.
_NAMES_OF_THE_FOLDER = frozenset({FAILED_NAME, LOCK_NAME, MANIFEST_NAME, ACCEPTANCE_NAME})


class UnpackedFile(NamedTuple):
    """One file of an archive that is in the folder now.

    Attributes:
        outcome: `written` if it is new, `replaced` if it had other content, `kept` if its content
            was the same already.
        digest: Size and SHA-256 of its content.
    """

    outcome: str
    digest: LockEntry


class UnpackTarget(ABC):
    """A folder that archives of one kind are unpacked into.

    Files are written only if they are missing or differ. Temporary files of killed runs are
    removed at once.

    Args:
        archives: The archives.
        out_dir: The folder.
        selection: The selected scenes.

    Attributes:
        kind: The kind of the archives.
        default_dir: The folder for archives of this kind if none is named.
        files: The files that were unpacked, by name.
        scenes: The names of the files of each unpacked scene, by id.
        failures: Scenes that could not be unpacked, by id.
        spared: Scenes that are damaged in the archives but not in the folder; set by `end`.
        damages: Other damage, in words.
        warnings: Files that were not replaced, and other remarks, in words.

    Raises:
        OutputError: The folder holds scenes of the other kind, or an export.
    """

    kind: ClassVar[ArchiveKind]
    default_dir: ClassVar[Path]

    def __init__(self, archives: ArchiveSet, out_dir: Path, selection: Selection) -> None:
        self.files: dict[str, UnpackedFile] = {}
        self.scenes: dict[str, list[str]] = {}
        self.failures: dict[str, Finding] = {}
        self.spared: set[str] = set()
        self.damages: list[str] = []
        self.warnings: list[str] = []
        self._out_dir = out_dir
        self._selection = selection
        # The scenes to unpack, as far as the indexes of the archives name them.
        self._chosen = {group.scene_id for group in archives.chosen}
        # The selected scenes that the manifests of the archives list; `begin` adds them.
        self._listed = set[str]()
        # Whether a file of the folder has been written, or is about to be.
        self._has_written = False
        # Digests of the files of scenes that failed, as far as an index names them.
        self._expected_digests: dict[str, LockEntry] = {}
        self._check_kind()
        remove_temporaries(out_dir, *(out_dir / split for split in Split))

    @abstractmethod
    def begin(self, reader: GroupReader) -> None:
        """Record the manifest or the `scannet.lock` of an archive. Writes nothing.

        Raises:
            FileError: The folder, or another archive, has scenes of other options or another label
                map, so that no dataset could read both.
        """

    @abstractmethod
    def end(self) -> None:
        """Update the manifest or `scannet.lock`, and `failed.txt`, after everything else."""

    def _begin_writing(self) -> None:  # noqa: B027 - a raw tree needs no mark
        """Mark the folder before its first file changes."""

    def write_others(self, files: Mapping[str, bytes]) -> None:
        """Write the files of an archive that belong to no scene. Existing files are not replaced.

        Raises:
            OutputError: A file cannot be written.
        """
        for name, data in files.items():
            if name in _NAMES_OF_THE_FOLDER or name.startswith(OWN_PREFIX):
                continue
            path = self._out_dir / name
            # A link is not kept: `_write_file` replaces it by a file.
            is_file = path.is_file() and not path.is_symlink()
            if is_file and not has_content(path, data):
                self.warnings.append(
                    f"{path}: differs from that of the archive, and stays; to replace it, remove it"
                )
                continue
            self._write_file(name, data, hashlib.sha256(data).hexdigest())

    def write(self, group: StoredGroup, content: memoryview) -> None:
        """Write the files of a scene. May be called in several threads.

        Args:
            group: The scene; its files have been checked by their SHA-256.
            content: Its tar bytes.

        Raises:
            FileError: It does not belong in the folder, or something else is in its place.
            OutputError: The files cannot be written.
        """
        for member in group.members:
            self._write_file(member.name, member.of(content), member.sha256)
        self.scenes[group.scene_id] = [member.name for member in group.members]

    def fail(
        self, scene_id: str, error: ScanNetPrepError, *, expected: Sequence[Member] = ()
    ) -> None:
        """Record a scene that could not be unpacked, and remove its files that were written.

        Args:
            scene_id: The scene.
            error: Why it could not be unpacked.
            expected: Its files, as far as the archive names them.
        """
        self.failures[scene_id] = Finding(
            scene_id=scene_id, error=type(error).__name__, message=error.message, hint=error.hint
        )
        for member in expected:
            self._expected_digests[member.name] = LockEntry(member.sha256, member.size_bytes)
        for name in self.scenes.pop(scene_id, []):
            if self.files.pop(name).outcome != "kept":
                (self._out_dir / name).unlink(missing_ok=True)

    def fail_missing(self, *, is_cut: bool) -> None:
        """Record the scenes that were expected and have not arrived as failures.

        Args:
            is_cut: Whether an archive is truncated. Then all selected scenes of its manifest were
                expected, otherwise only those that the selection names.
        """
        expected = set[str](self._selection.scene_ids or ())
        if is_cut:
            expected |= self._listed
        for scene_id in sorted(expected - self.scenes.keys() - self.failures.keys()):
            problem = f"{scene_id}: is not among the intact scenes of the archive"
            self.fail(scene_id, UnknownSceneError(problem, HINT_COPY_AGAIN))

    def _spare(self, scene_ids: Iterable[str]) -> None:
        """Remove the failures of scenes that are intact in the folder, and note the damage."""
        self.spared = set(scene_ids)
        if self.spared:
            names = sorted(self.spared)
            problem = self.failures[names[0]].message
            self.damages.append(
                f"{list_some(names)}: intact in {self._out_dir}, and kept there; "
                f"not taken from the archive: {problem}"
            )
        for scene_id in self.spared:
            del self.failures[scene_id]

    def _write_file(self, name: str, data: Buffer, sha256: str) -> None:
        """Write a file unless it is there already, and record it.

        Raises:
            FileError: A folder on its way is a link, or is not a folder.
            OutputError: It cannot be written.
        """
        path = self._out_dir / name
        # The folders between the file and `_out_dir`, which itself may be a link.
        for folder in path.parents[: name.count("/")]:
            problem = ""
            if folder.is_symlink():
                problem = "is a link that may lead anywhere"
            elif folder.exists() and not folder.is_dir():
                problem = "is not a folder"
            if problem:
                raise FileError(folder, problem, f"remove it, or {HINT_OTHER_FOLDER}")

        # `has_content` comes first: it is False if the path cannot be accessed, but `is_symlink`
        # raises.
        if has_content(path, data) and not path.is_symlink():
            outcome = "kept"
        else:
            if not self._has_written:
                self._begin_writing()
            self._has_written = True
            # A link counts, too, even one that leads nowhere: it is replaced by the file.
            outcome = "replaced" if os.path.lexists(path) else "written"
            make_directory(path.parent)
            write_atomically(path, [data])
        self.files[name] = UnpackedFile(outcome, LockEntry(sha256, len(data)))

    def _check_kind(self) -> None:
        """Refuse a folder that holds an export, or scenes of the other kind.

        Raises:
            OutputError: It does.
        """
        if is_export(self._out_dir):
            problem = f"{self._out_dir}: is an export for another program"
            raise OutputError(problem, HINT_OTHER_FOLDER)
        try:
            folder_kind = find_kind(self._out_dir)
        except FileError:  # it does not exist, or holds no scenes
            return
        if folder_kind != self.kind:
            problem = (
                f"{self._out_dir}: holds {folder_kind} scenes, and the archive {self.kind} ones"
            )
            raise OutputError(problem, HINT_OTHER_FOLDER)
