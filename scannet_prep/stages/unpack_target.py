"""The folder that archives are unpacked into: writes files, and brings manifest and lists up to date."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

import msgspec

from scannet_prep.archive.groups import ArchiveSet
from scannet_prep.archive.layout import OWN_PREFIX, ArchiveKind, Member, StoredGroup, find_scene
from scannet_prep.base.errors import (
    FileError,
    MissingFileError,
    OutputError,
    ScanNetPrepError,
    UnknownSceneError,
)
from scannet_prep.base.failures import SceneFailure, list_some
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
from scannet_prep.processed import folder as lists
from scannet_prep.processed import manifest as manifests
from scannet_prep.processed.manifest import MANIFEST_NAME, Manifest, SceneEntry
from scannet_prep.processed.npz import NpzReader
from scannet_prep.processed.scene import parse_meta
from scannet_prep.raw import lock as locks
from scannet_prep.raw.lock import LOCK_NAME, LockEntry
from scannet_prep.release.files import ACCEPTANCE_NAME
from scannet_prep.release.scene import Split
from scannet_prep.release.splits import find_official_split, read_scene_list
from scannet_prep.stages.selection import Selection
from scannet_prep.tree import identify_tree

_ELSEWHERE = "unpack into another folder with -o DIR"
AGAIN_HINT = (
    "copy or fetch the archive again, then run the same command: it takes just what is missing"
)


class UnpackedFile(NamedTuple):
    """One file of an archive that is in the folder now.

    Attributes:
        outcome: `written` if it was not there, `replaced` if it had other content, `kept` if it was right already.
        digest: Size and SHA-256 of its content.
    """

    outcome: str
    digest: LockEntry


class Target:
    """A folder that archives of one kind are unpacked into.

    Nothing is written before something is found to be missing; what killed runs left is removed at once.

    Args:
        archives: What is unpacked into it.
        out_dir: The folder.
        selection: Which scenes were asked for.

    Attributes:
        files: The files that were unpacked, by name.
        scenes: The names of the files of each unpacked scene, by id.
        failures: Scenes that could not be unpacked, by id.
        spared: Scenes that are not whole in the archives but are whole in the folder, by `end`.
        damages: What else is damaged, in words.
        warnings: What is there and was not replaced, in words.

    Raises:
        OutputError: The folder holds scenes of the other kind, or an export.
        FileError: Its manifest is damaged.
        RawFileError: Its `scannet.lock` is damaged.
    """

    def __init__(self, archives: ArchiveSet, out_dir: Path, selection: Selection) -> None:
        self.files: dict[str, UnpackedFile] = {}
        self.scenes: dict[str, list[str]] = {}
        self.failures: dict[str, SceneFailure] = {}
        self.spared: set[str] = set()
        self.damages: list[str] = []
        self.warnings: list[str] = []
        # What the files of scenes that failed should be, as far as an index names them.
        self._expected_digests: dict[str, LockEntry] = {}
        self._out_dir, self._selection, self._is_raw = (
            out_dir,
            selection,
            archives.kind is ArchiveKind.RAW,
        )
        self._chosen = {group.scene_id for group in archives.chosen}
        self._has_begun = False
        self._came: Manifest | None = None
        self._came_digests = dict[str, LockEntry]()
        if is_export(out_dir):
            raise OutputError(f"{out_dir}: is an export for another program", _ELSEWHERE)
        with suppress(FileError):
            if (found := str(identify_tree(out_dir))) != archives.kind:
                raise OutputError(
                    f"{out_dir}: holds {found} scenes, and the archive {archives.kind} ones",
                    _ELSEWHERE,
                )
        self._before = None if self._is_raw else manifests.read_manifest(out_dir)
        # A folder whose manifest was removed is judged by its files.
        self._here = None if self._is_raw else self._before or lists.find_head(out_dir)
        self._digests = locks.read_locks(out_dir) if self._is_raw else {}
        # Also where nothing else is left to do.
        remove_temporaries(out_dir, *(out_dir / split for split in Split))

    @property
    def _expected(self) -> Mapping[str, SceneEntry]:
        """The scenes that the manifests of the archives name, and that were asked for."""
        scenes = {} if self._came is None else self._came.scenes
        return {
            name: entry
            for name, entry in scenes.items()
            if self._selection.wants(name, entry.split)
        }

    @property
    def _wanted(self) -> set[str]:
        """The scenes that are to be there at the end, as far as they are known."""
        return self._chosen or set(self._expected)

    def begin(self, files: Mapping[str, bytes], came: Manifest | None) -> None:
        """Record the manifest or the `scannet.lock` of an archive. Nothing is written.

        Raises:
            FileError: The folder has scenes that were made in another way, so that no dataset could read both.
        """
        if came is not None:
            self._check_same_folder(came)
            if self._came is not None:
                came = msgspec.structs.replace(
                    came,
                    scenes={**self._came.scenes, **came.scenes},
                    failures={**self._came.failures, **came.failures},
                )
            self._came = came
        if self._is_raw and LOCK_NAME in files:
            with suppress(
                FileError
            ):  # it was packed as it was; without it, verify takes the files as they are
                self._came_digests |= locks.read_lock(Path(LOCK_NAME), files[LOCK_NAME])

    def _check_same_folder(self, came: Manifest) -> None:
        """Refuse scenes that were made in another way than those of the folder, or of another archive."""
        for other, place in ((self._here, self._out_dir), (self._came, Path("another archive"))):
            if other is None:
                continue
            if other.options != came.options:
                problem = f"holds scenes that were made with {other.options.flags}, the archive {came.options.flags}"
                raise FileError(place, problem, _ELSEWHERE)
            if "" not in (other.label_map, came.label_map) and other.label_map != came.label_map:
                problem = (
                    "holds scenes that were made with another label map than those of the archive"
                )
                raise FileError(place, problem, _ELSEWHERE)

    def write_others(self, files: Mapping[str, bytes]) -> None:
        """Write the files of an archive that belong to no scene, or raise an `OutputError`."""
        own = {lists.FAILED_NAME, lists.UNFINISHED_NAME, LOCK_NAME, MANIFEST_NAME, ACCEPTANCE_NAME}
        for name, data in files.items():
            if name in own or name.startswith(OWN_PREFIX):
                continue
            path = self._out_dir / name
            if path.is_file() and not path.is_symlink() and not has_content(path, data):
                self.warnings.append(
                    f"{path}: differs from that of the archive, and stays; to replace it, remove it"
                )
                continue
            digest = LockEntry(hashlib.sha256(data).hexdigest(), len(data))
            self.files[name] = UnpackedFile(self._write_file(name, data), digest)

    def write(self, group: StoredGroup, content: memoryview) -> None:
        """Write the files of a scene, or record what is in their way; may be called in several threads.

        Args:
            group: The scene, with the digests that its files were checked by.
            content: Its tar bytes.

        Raises:
            OutputError: They cannot be written.
        """
        try:
            if self._is_raw:
                remove_temporaries((self._out_dir / group.members[0].name).parent)
            else:
                self._check_scene(group, content)
            for member in group.members:
                outcome = self._write_file(member.name, member.of(content))
                self.files[member.name] = UnpackedFile(
                    outcome, LockEntry(member.sha256, member.size_bytes)
                )
            self.scenes[group.scene_id] = [member.name for member in group.members]
        except FileError as error:
            self.fail(group.scene_id, error, expected=group.members)

    def _check_scene(self, group: StoredGroup, content: memoryview) -> None:
        """Refuse a scene that was made in another way: the manifest of its archive may be lost."""
        for member in group.members:
            path = self._out_dir / member.name
            meta = parse_meta(NpzReader(member.of(content), path), path)
            self._check_same_folder(Manifest(meta.options, meta.label_map))

    def fail(
        self, scene_id: str, error: ScanNetPrepError, *, expected: Sequence[Member] = ()
    ) -> None:
        """Record a scene that could not be unpacked; what was written before that was known is removed.

        Args:
            scene_id: The scene.
            error: Why it could not be unpacked.
            expected: Its files, as far as the archive names them.
        """
        self.failures[scene_id] = SceneFailure(
            scene_id, type(error).__name__, error.message, error.hint
        )
        for member in expected:
            self._expected_digests[member.name] = LockEntry(member.sha256, member.size_bytes)
        for name in self.scenes.pop(scene_id, []):
            if self.files.pop(name).outcome != "kept":
                (self._out_dir / name).unlink(missing_ok=True)

    def fail_missing(self, *, is_cut: bool) -> None:
        """Record scenes that did not arrive as failures.

        Args:
            is_cut: Whether the archive is cut off. If so, all scenes that it lists were expected; otherwise only those
                that were named.
        """
        expected = {*(self._selection.scene_ids or ()), *(self._expected if is_cut else ())}
        for scene_id in sorted(expected - self.scenes.keys() - self.failures.keys()):
            self.fail(
                scene_id,
                UnknownSceneError(
                    f"{scene_id}: is not in what is whole of the archive", AGAIN_HINT
                ),
            )

    def end(self) -> None:
        """Bring the manifest or `scannet.lock`, and `failed.txt`, up to date when all has been unpacked."""
        if self._is_raw:
            self._spare(filter(self._is_whole_raw, self.failures))
            self._end_raw()
        else:
            self._end_processed()

    def _end_processed(self) -> None:
        """Merge the manifests of folder and archives. A scene that is whole in the folder stays in it."""
        head = self._came or self._before or lists.find_head(self._out_dir)
        if head is None:  # no scene is there, and no manifest came
            return
        empty = Manifest(head.options, head.label_map)
        before = self._before or empty
        arrived = self._came or empty
        came = {name: entry for name, entry in arrived.scenes.items() if name in self.scenes}
        came_failures = {
            name: failure
            for name, failure in arrived.failures.items()
            if self._selection.wants(name, find_official_split(name))
        }
        failed = {**came_failures, **self.failures}
        whole = self._find_whole_entries(failed, (before, arrived))
        self._spare(whole.keys() & self.failures.keys())
        failures = {
            name: failure
            for name, failure in {**before.failures, **failed}.items()
            if name not in whole and name not in self.scenes
        }
        # The entry of a scene that was unpacked is that of its archive; without one, its file is read.
        untouched = {
            name: entry for name, entry in before.scenes.items() if name not in self.scenes
        }
        version = VERSION
        if before.scenes.keys() <= came.keys():
            version = arrived.program_version
        elif not self._has_begun:
            version = before.program_version
        scenes = {**untouched, **came, **whole}
        lists.record(
            self._out_dir, Manifest(head.options, head.label_map, scenes, failures, version)
        )
        lists.mark_finished(
            self._out_dir, self._wanted | self.scenes.keys() | self.failures.keys() | self.spared
        )

    def _find_whole_entries(
        self, scene_ids: Iterable[str], sources: Sequence[Manifest]
    ) -> dict[str, SceneEntry]:
        """Find the scenes whose file in the folder is the one that a manifest describes."""
        whole = {}
        for scene_id in scene_ids:
            for source in sources:
                entry = source.scenes.get(scene_id)
                if entry is None or scene_id in whole:
                    continue
                with suppress(FileError):
                    path = lists.processed_path(self._out_dir, entry.split, scene_id)
                    if Fingerprint.from_file(path) == entry.fingerprint:
                        whole[scene_id] = entry
        return whole

    def _spare(self, scene_ids: Iterable[str]) -> None:
        """Take scenes from the failures that are whole in the folder, although they are not in the archives."""
        self.spared = set(scene_ids)
        if self.spared:
            names = sorted(self.spared)
            problem = self.failures[names[0]].message
            self.damages.append(
                f"{list_some(names)}: whole in {self._out_dir}, and kept there; not taken from the archive: {problem}"
            )
        for scene_id in self.spared:
            del self.failures[scene_id]

    def _end_raw(self) -> None:
        """Write `scannet.lock` and `failed.txt`."""
        digests = self._merge_digests()
        if digests != self._digests:
            write_if_changed(self._out_dir / LOCK_NAME, locks.encode_lock(digests), is_durable=True)
        failed = set(self.failures)
        with suppress(MissingFileError):
            failed.update(read_scene_list(self._out_dir / lists.FAILED_NAME))
        lists.write_failed_list(
            self._out_dir / lists.FAILED_NAME, failed - self.scenes.keys() - self.spared
        )

    def _merge_digests(self) -> dict[str, LockEntry]:
        """Merge the `scannet.lock` of the tree with those of the archives.

        A file that was replaced has the entry of its new content, or none. A new file has the entry that its archive
        records, so that `verify` finds what had changed before it was packed.
        """
        digests = dict(self._digests)
        changed = []
        for name, (outcome, digest) in self.files.items():
            here = self._digests.get(name)
            came = self._came_digests.get(name)
            if came is not None and came != digest:
                changed.append(name)
            if outcome == "kept" and here is not None:
                continue
            if outcome != "replaced" and came is not None:
                digests[name] = came
            elif digest in (here, came):
                digests[name] = digest
            else:
                digests.pop(name, None)
        if changed:
            self.warnings.append(
                f"{self._out_dir}: {list_some(changed)}: not what {LOCK_NAME} of the archive records; "
                "changed or damaged before it was packed"
            )
        return digests

    def _is_whole_raw(self, scene_id: str) -> bool:
        """Whether all files of a scene that index or `scannet.lock` name are there, with a recorded digest."""
        sources = (self._expected_digests, self._came_digests, self._digests)
        for source in sources:
            # The first test is fast, the second one exact.
            names = [
                name
                for name in source
                if scene_id in name and find_scene(ArchiveKind.RAW, name) == scene_id
            ]
            if names:
                break
        try:
            for name in names:
                found = locks.digest_file(self._out_dir / name)
                if all(found != source.get(name) for source in sources):
                    return False
        except FileError:
            return False
        return bool(names)

    def _write_file(self, name: str, data: Buffer) -> str:
        path = self._out_dir / name
        for folder in path.parents[: name.count("/")]:
            if folder.is_symlink() or (folder.exists() and not folder.is_dir()):
                problem = (
                    "is a link that may lead anywhere" if folder.is_symlink() else "is not a folder"
                )
                raise FileError(folder, problem, f"remove it, or {_ELSEWHERE}")
        if (
            has_content(path, data) and not path.is_symlink()
        ):  # in this order: of what cannot be looked into, no error
            return "kept"
        if not (self._has_begun or self._is_raw):
            lists.mark_unfinished(
                self._out_dir, lists.read_unfinished(self._out_dir) | self._wanted
            )
        self._has_begun = True
        is_there = os.path.lexists(path)
        make_directory(path.parent)
        write_atomically(path, [data])
        return "replaced" if is_there else "written"
