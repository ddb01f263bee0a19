"""A raw tree that archives are unpacked into, with its `scannet.lock`."""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path

from scannet_prep.archive.archive_set import ArchiveSet
from scannet_prep.archive.groups import GroupReader
from scannet_prep.archive.layout import ArchiveKind, StoredGroup, find_scene
from scannet_prep.base.files import remove_temporaries, write_if_changed
from scannet_prep.base.text import list_some
from scannet_prep.errors import FileError, MissingFileError
from scannet_prep.processed.folder import FAILED_NAME, write_failed_list
from scannet_prep.raw.lock import (
    LOCK_NAME,
    LockEntry,
    digest_file,
    encode_lock,
    read_lock,
    read_tree_lock,
)
from scannet_prep.release.splits import read_scene_list
from scannet_prep.stages.selection import Selection
from scannet_prep.stages.unpack.target import UnpackTarget


class RawTarget(UnpackTarget):
    """A raw tree that archives are unpacked into.

    It takes the arguments of `UnpackTarget`.

    Raises:
        OutputError: The folder holds processed scenes, or an export.
        RawFileError: Its `scannet.lock` is damaged.
    """

    kind = ArchiveKind.RAW
    default_dir = Path("data/ScanNet")

    def __init__(self, archives: ArchiveSet, out_dir: Path, selection: Selection) -> None:
        super().__init__(archives, out_dir, selection)
        # The entries of the `scannet.lock` of the tree, and of the archives.
        self._before_digests = read_tree_lock(out_dir)
        self._arrived_digests: dict[str, LockEntry] = {}

    def begin(self, reader: GroupReader) -> None:
        """Record the `scannet.lock` of an archive. Writes nothing."""
        if LOCK_NAME in reader.files:
            # A damaged `scannet.lock` was packed as it was. The files are then unpacked without it.
            with suppress(FileError):
                self._arrived_digests |= read_lock(Path(LOCK_NAME), reader.files[LOCK_NAME])

    def write(self, group: StoredGroup, content: memoryview) -> None:
        """Write a scene, and remove temporary files of killed runs from its folder."""
        remove_temporaries((self._out_dir / group.members[0].name).parent)
        super().write(group, content)

    def end(self) -> None:
        """Write `scannet.lock` and `failed.txt`, after everything else."""
        self._spare(filter(self._is_intact, self.failures))
        digests = self._merge_digests()
        if digests != self._before_digests:
            write_if_changed(self._out_dir / LOCK_NAME, encode_lock(digests), is_durable=True)
        failed_path = self._out_dir / FAILED_NAME
        failed = set(self.failures)
        with suppress(MissingFileError):
            failed.update(read_scene_list(failed_path))
        write_failed_list(failed_path, failed - self.scenes.keys() - self.spared)

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
            # One of the two has recorded the new content, or none has.
            elif digest in (here, arrived):
                digests[name] = digest
            else:
                digests.pop(name, None)
        if changed:
            self.warnings.append(
                f"{self._out_dir}: {list_some(changed)}: "
                f"not what {LOCK_NAME} of the archive records: "
                "changed or damaged before it was packed"
            )
        return digests

    def _is_intact(self, scene_id: str) -> bool:
        """Whether the tree has all known files of a scene, each with a recorded digest.

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
                digest = digest_file(self._out_dir / name)
                if digest not in [source.get(name) for source in sources]:
                    return False
        except FileError:
            return False
        return bool(names)


def _find_names(digests: Iterable[str], scene_id: str) -> list[str]:
    """Find the names of the files of a raw scene."""
    # The first test is fast; the second one, with a regular expression, is exact.
    candidates = [name for name in digests if scene_id in name]
    return [name for name in candidates if find_scene(ArchiveKind.RAW, name) == scene_id]
