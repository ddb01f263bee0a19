"""The folder that archives are unpacked into, with its manifest and its lists.

    begin                 refuses scenes that do not belong together; nothing is written yet
    write_others, write   files -> the folder; scenes that cannot be written -> failures
    end                   manifest or scannet.lock, and failed.txt -> the folder

`unpack` calls them in this order, `write` in several threads.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

import msgspec

from scannet_prep.archive.archive_set import ArchiveSet
from scannet_prep.archive.layout import OWN_PREFIX, ArchiveKind, StoredGroup, find_scene
from scannet_prep.archive.tar import Member
from scannet_prep.base.errors import (
    FileError,
    MissingFileError,
    OutputError,
    ScanNetPrepError,
    UnknownSceneError,
)
from scannet_prep.base.failures import list_some
from scannet_prep.base.files import (
    Buffer,
    Fingerprint,
    has_content,
    make_directory,
    remove_temporaries,
    write_atomically,
    write_if_changed,
)
from scannet_prep.base.version import VERSION
from scannet_prep.export import is_export
from scannet_prep.processed import folder as processed_folder
from scannet_prep.processed.manifest import MANIFEST_NAME, Manifest, SceneEntry, read_manifest
from scannet_prep.processed.npz import NpzReader
from scannet_prep.processed.scene import parse_meta
from scannet_prep.raw import lock as locks
from scannet_prep.raw.lock import LOCK_NAME, LockEntry
from scannet_prep.release.files import ACCEPTANCE_NAME
from scannet_prep.release.findings import Finding
from scannet_prep.release.scene import Split
from scannet_prep.release.splits import find_official_split, read_scene_list
from scannet_prep.source import identify_folder
from scannet_prep.stages.selection import Selection

HINT_COPY_AGAIN = (
    "copy or fetch the archive again, then run the same command: it takes just what is missing"
)
_HINT_OTHER_FOLDER = "unpack into another folder with -o DIR"

# These describe a folder, not its content: each folder has its own.
_NAMES_OF_THE_FOLDER = frozenset(
    {
        processed_folder.FAILED_NAME,
        processed_folder.UNFINISHED_NAME,
        LOCK_NAME,
        MANIFEST_NAME,
        ACCEPTANCE_NAME,
    }
)


class UnpackedFile(NamedTuple):
    """One file of an archive that is in the folder now.

    Attributes:
        outcome: `written` if it is new, `replaced` if it had other content, `kept` if its content
            was the same already.
        digest: Size and SHA-256 of its content.
    """

    outcome: str
    digest: LockEntry


class Target:
    """A folder that archives of one kind are unpacked into.

    Files are written only if they are missing or differ. Temporary files of killed runs are
    removed at once.

    Args:
        archives: The archives.
        out_dir: The folder.
        selection: The selected scenes.

    Attributes:
        files: The files that were unpacked, by name.
        scenes: The names of the files of each unpacked scene, by id.
        failures: Scenes that could not be unpacked, by id.
        spared: Scenes that are damaged in the archives but whole in the folder; set by `end`.
        damages: Other damage, in words.
        warnings: Files that were not replaced, and other remarks, in words.

    Raises:
        OutputError: The folder holds scenes of the other kind, or an export.
        FileError: Its manifest is damaged.
        RawFileError: Its `scannet.lock` is damaged.
    """

    def __init__(self, archives: ArchiveSet, out_dir: Path, selection: Selection) -> None:
        self.files: dict[str, UnpackedFile] = {}
        self.scenes: dict[str, list[str]] = {}
        self.failures: dict[str, Finding] = {}
        self.spared: set[str] = set()
        self.damages: list[str] = []
        self.warnings: list[str] = []
        self._out_dir = out_dir
        self._selection = selection
        self._is_raw = archives.kind is ArchiveKind.RAW
        self._chosen = {group.scene_id for group in archives.chosen}
        self._has_begun = False
        # The manifests of the archives, merged; and the entries of their `scannet.lock`.
        self._arrived: Manifest | None = None
        self._arrived_digests: dict[str, LockEntry] = {}
        # Digests of the files of scenes that failed, as far as an index names them.
        self._expected_digests: dict[str, LockEntry] = {}

        _check_kind(out_dir, archives.kind)
        # The manifest that the folder has now.
        self._before: Manifest | None = None
        # The options and the label map of its scenes: from the manifest or, if that is lost, from
        # the files.
        self._head: Manifest | None = None
        # The entries of its `scannet.lock`.
        self._before_digests: dict[str, LockEntry] = {}
        if self._is_raw:
            self._before_digests = locks.read_locks(out_dir)
        else:
            self._before = read_manifest(out_dir)
            self._head = self._before or processed_folder.find_head(out_dir)
        remove_temporaries(out_dir, *(out_dir / split for split in Split))

    @property
    def _expected(self) -> Mapping[str, SceneEntry]:
        """The selected scenes that the manifests of the archives list."""
        if self._arrived is None:
            return {}
        return {
            scene_id: entry
            for scene_id, entry in self._arrived.scenes.items()
            if self._selection.wants(scene_id, entry.split)
        }

    @property
    def _wanted(self) -> set[str]:
        """The scenes that the folder is to hold at the end, as far as they are known."""
        # Without an index, no scene had been chosen yet; the manifest still names them.
        return self._chosen or set(self._expected)

    def begin(self, files: Mapping[str, bytes], manifest: Manifest | None) -> None:
        """Record the manifest or the `scannet.lock` of an archive. Writes nothing.

        Args:
            files: The files of the archive that belong to no scene, by name.
            manifest: Its manifest; None if it has none.

        Raises:
            FileError: The folder, or another archive, has scenes of other options or another label
                map, so that no dataset could read both.
        """
        if manifest is not None:
            self._check_belongs_here(manifest)
            if self._arrived is not None:
                manifest = msgspec.structs.replace(
                    manifest,
                    scenes={**self._arrived.scenes, **manifest.scenes},
                    failures={**self._arrived.failures, **manifest.failures},
                )
            self._arrived = manifest
        if self._is_raw and LOCK_NAME in files:
            # A damaged `scannet.lock` was packed as it was. The files are then unpacked without it.
            with suppress(FileError):
                self._arrived_digests |= locks.read_lock(Path(LOCK_NAME), files[LOCK_NAME])

    def _check_belongs_here(self, manifest: Manifest) -> None:
        """Refuse scenes of other options or another label map than the folder or another archive.

        Args:
            manifest: Their manifest.

        Raises:
            FileError: The options or the label maps differ.
        """
        # Errors name a path. That of the other archive is not known any more.
        others = ((self._head, self._out_dir), (self._arrived, Path("another archive")))
        for other, place in others:
            if other is None:
                continue
            if other.options != manifest.options:
                problem = (
                    f"holds scenes that were made with {other.options.flags}, "
                    f"the archive {manifest.options.flags}"
                )
                raise FileError(place, problem, _HINT_OTHER_FOLDER)
            # Scenes without annotation depend on no label map: theirs is empty.
            has_label_maps = other.label_map != "" and manifest.label_map != ""
            if has_label_maps and other.label_map != manifest.label_map:
                problem = (
                    "holds scenes that were made with another label map than those of the archive"
                )
                raise FileError(place, problem, _HINT_OTHER_FOLDER)

    def write_others(self, files: Mapping[str, bytes]) -> None:
        """Write the files of an archive that belong to no scene. Existing files are not replaced.

        Raises:
            OutputError: A file cannot be written.
        """
        for name, data in files.items():
            if name in _NAMES_OF_THE_FOLDER or name.startswith(OWN_PREFIX):
                continue
            path = self._out_dir / name
            is_file = path.is_file() and not path.is_symlink()
            if is_file and not has_content(path, data):
                self.warnings.append(
                    f"{path}: differs from that of the archive, and stays; to replace it, remove it"
                )
                continue
            digest = LockEntry(hashlib.sha256(data).hexdigest(), len(data))
            self.files[name] = UnpackedFile(self._write_file(name, data), digest)

    def write(self, group: StoredGroup, content: memoryview) -> None:
        """Write the files of a scene, or record why it failed. May be called in several threads.

        Args:
            group: The scene; its files have been checked by their SHA-256.
            content: Its tar bytes.

        Raises:
            OutputError: The files cannot be written.
        """
        try:
            if self._is_raw:
                remove_temporaries((self._out_dir / group.members[0].name).parent)
            else:
                self._check_scene(group, content)
            for member in group.members:
                outcome = self._write_file(member.name, member.of(content))
                digest = LockEntry(member.sha256, member.size_bytes)
                self.files[member.name] = UnpackedFile(outcome, digest)
            self.scenes[group.scene_id] = [member.name for member in group.members]
        except FileError as error:
            self.fail(group.scene_id, error, expected=group.members)

    def _check_scene(self, group: StoredGroup, content: memoryview) -> None:
        """Refuse a scene of other options by its own file: its archive may have lost its manifest.

        Raises:
            FileError: It does not belong in the folder.
        """
        for member in group.members:
            path = self._out_dir / member.name
            meta = parse_meta(NpzReader(member.of(content), path), path)
            self._check_belongs_here(Manifest(meta.options, meta.label_map))

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
        expected: set[str] = set(self._selection.scene_ids or ())
        if is_cut:
            expected.update(self._expected)
        for scene_id in sorted(expected - self.scenes.keys() - self.failures.keys()):
            problem = f"{scene_id}: is not among the undamaged scenes of the archive"
            self.fail(scene_id, UnknownSceneError(problem, HINT_COPY_AGAIN))

    def end(self) -> None:
        """Update the manifest or `scannet.lock`, and `failed.txt`, after everything else."""
        if self._is_raw:
            self._spare(filter(self._is_whole_raw, self.failures))
            self._end_raw()
        else:
            self._end_processed()

    def _end_processed(self) -> None:
        """Merge the manifests of folder and archives. A scene that is whole in the folder stays."""
        head = self._arrived or self._before or processed_folder.find_head(self._out_dir)
        if head is None:
            # The folder holds no scene, and no manifest arrived.
            return
        empty = Manifest(head.options, head.label_map)
        before = self._before or empty
        arrived = self._arrived or empty

        # Scenes that failed for the archives or in this run may be whole in the folder.
        failed = {**self._arrived_failures(arrived), **self.failures}
        whole = self._find_whole_entries(failed, (before, arrived))
        self._spare(whole.keys() & self.failures.keys())
        present = whole.keys() | self.scenes.keys()
        failures = {
            scene_id: failure
            for scene_id, failure in {**before.failures, **failed}.items()
            if scene_id not in present
        }

        # An unpacked scene has the entry of its archive; without one, `record` reads its file.
        untouched = {
            scene_id: entry
            for scene_id, entry in before.scenes.items()
            if scene_id not in self.scenes
        }
        unpacked = {
            scene_id: entry for scene_id, entry in arrived.scenes.items() if scene_id in self.scenes
        }
        manifest = Manifest(
            options=head.options,
            label_map=head.label_map,
            scenes={**untouched, **unpacked, **whole},
            failures=failures,
            program_version=self._choose_version(before, arrived, unpacked),
        )
        processed_folder.record(self._out_dir, manifest)
        finished = self._wanted | self.scenes.keys() | self.failures.keys() | self.spared
        processed_folder.mark_finished(self._out_dir, finished)

    def _arrived_failures(self, arrived: Manifest) -> dict[str, Finding]:
        """Return the selected scenes that failed when the archives were processed."""
        return {
            scene_id: failure
            for scene_id, failure in arrived.failures.items()
            if self._selection.wants(scene_id, find_official_split(scene_id))
        }

    def _choose_version(
        self, before: Manifest, arrived: Manifest, unpacked: Mapping[str, SceneEntry]
    ) -> str:
        """Choose the program version of the manifest: of the archives, of the folder, or this one.

        It is that of the archives if all scenes come from there, and that of the folder if no file
        was written. Otherwise this version of the program has merged two manifests.
        """
        if before.scenes.keys() <= unpacked.keys():
            return arrived.program_version
        if not self._has_begun:
            return before.program_version
        return VERSION

    def _find_whole_entries(
        self, scene_ids: Iterable[str], sources: Sequence[Manifest]
    ) -> dict[str, SceneEntry]:
        """Find the scenes whose file in the folder is the one that a manifest records."""
        whole: dict[str, SceneEntry] = {}
        for scene_id in scene_ids:
            for source in sources:
                entry = source.scenes.get(scene_id)
                if entry is None or scene_id in whole:
                    continue
                path = processed_folder.processed_path(self._out_dir, entry.split, scene_id)
                with suppress(FileError):
                    if Fingerprint.from_file(path) == entry.fingerprint:
                        whole[scene_id] = entry
        return whole

    def _spare(self, scene_ids: Iterable[str]) -> None:
        """Turn failures of scenes that are whole in the folder into a remark about the damage."""
        self.spared = set(scene_ids)
        if self.spared:
            names = sorted(self.spared)
            problem = self.failures[names[0]].message
            self.damages.append(
                f"{list_some(names)}: whole in {self._out_dir}, and kept there; "
                f"not taken from the archive: {problem}"
            )
        for scene_id in self.spared:
            del self.failures[scene_id]

    def _end_raw(self) -> None:
        """Write `scannet.lock` and `failed.txt`."""
        digests = self._merge_digests()
        if digests != self._before_digests:
            write_if_changed(self._out_dir / LOCK_NAME, locks.encode_lock(digests), is_durable=True)
        failed_path = self._out_dir / processed_folder.FAILED_NAME
        failed = set(self.failures)
        with suppress(MissingFileError):
            failed.update(read_scene_list(failed_path))
        processed_folder.write_failed_list(failed_path, failed - self.scenes.keys() - self.spared)

    def _merge_digests(self) -> dict[str, LockEntry]:
        """Merge the `scannet.lock` of the tree and of the archives.

        A replaced file has the entry of its new content, or none. A new file has the entry of its
        archive, so that `verify` reports it if it had changed before it was packed.
        """
        digests = dict(self._before_digests)
        changed = []
        for name, (outcome, digest) in self.files.items():
            here = self._before_digests.get(name)
            arrived = self._arrived_digests.get(name)
            if arrived is not None and arrived != digest:
                changed.append(name)
            # A kept file keeps its entry, even one that differs: `verify` then reports the file.
            if outcome == "kept" and here is not None:
                continue
            if outcome != "replaced" and arrived is not None:
                digests[name] = arrived
            elif digest in (here, arrived):
                digests[name] = digest
            else:
                digests.pop(name, None)
        if changed:
            self.warnings.append(
                f"{self._out_dir}: {list_some(changed)}: "
                f"not what {LOCK_NAME} of the archive records; "
                "changed or damaged before it was packed"
            )
        return digests

    def _is_whole_raw(self, scene_id: str) -> bool:
        """Whether all known files of a scene are in the tree, each with a recorded digest.

        The index names the files. If it is lost, the `scannet.lock` of the archive or of the tree
        names them.
        """
        sources = (self._expected_digests, self._arrived_digests, self._before_digests)
        names: list[str] = []
        for source in sources:
            names = _find_names(source, scene_id)
            if names:
                break
        try:
            for name in names:
                digest = locks.digest_file(self._out_dir / name)
                if digest not in [source.get(name) for source in sources]:
                    return False
        except FileError:
            return False
        return bool(names)

    def _write_file(self, name: str, data: Buffer) -> str:
        """Write a file unless it is there already.

        Returns:
            The outcome, see `UnpackedFile`.

        Raises:
            FileError: A folder on its way is a link, or is not a folder.
            OutputError: It cannot be written.
        """
        path = self._out_dir / name
        # The folders between the file and `_out_dir`, which itself may be a link.
        for folder in path.parents[: name.count("/")]:
            if folder.is_symlink():
                hint = f"remove it, or {_HINT_OTHER_FOLDER}"
                raise FileError(folder, "is a link that may lead anywhere", hint)
            if folder.exists() and not folder.is_dir():
                hint = f"remove it, or {_HINT_OTHER_FOLDER}"
                raise FileError(folder, "is not a folder", hint)

        # In this order: `has_content` is False if the file cannot be accessed, `is_symlink` raises.
        if has_content(path, data) and not path.is_symlink():
            return "kept"
        # Before the first file changes: a killed run leaves a folder that readers refuse.
        if not self._has_begun and not self._is_raw:
            unfinished = processed_folder.read_unfinished(self._out_dir) | self._wanted
            processed_folder.mark_unfinished(self._out_dir, unfinished)
        self._has_begun = True
        # A link counts, too, even one that leads nowhere: it is replaced by the file.
        exists = os.path.lexists(path)
        make_directory(path.parent)
        write_atomically(path, [data])
        return "replaced" if exists else "written"


def _check_kind(out_dir: Path, kind: ArchiveKind) -> None:
    """Refuse a folder that holds an export, or scenes of the other kind.

    Raises:
        OutputError: It does.
    """
    if is_export(out_dir):
        raise OutputError(f"{out_dir}: is an export for another program", _HINT_OTHER_FOLDER)
    try:
        folder_kind = str(identify_folder(out_dir))
    except FileError:  # it does not exist, or holds no scenes
        return
    if folder_kind != kind:
        problem = f"{out_dir}: holds {folder_kind} scenes, and the archive {kind} ones"
        raise OutputError(problem, _HINT_OTHER_FOLDER)


def _find_names(digests: Iterable[str], scene_id: str) -> list[str]:
    """Find the names of the files of a raw scene."""
    # The first test is fast; the second one, with a regular expression, is exact.
    candidates = [name for name in digests if scene_id in name]
    return [name for name in candidates if find_scene(ArchiveKind.RAW, name) == scene_id]
