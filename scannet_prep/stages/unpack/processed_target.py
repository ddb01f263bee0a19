"""A processed folder that archives are unpacked into, with its manifest and its lists."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path

import msgspec

from scannet_prep.archive.archive_set import ArchiveSet
from scannet_prep.archive.groups import GroupReader
from scannet_prep.archive.layout import ArchiveKind, StoredGroup
from scannet_prep.base.files import Fingerprint
from scannet_prep.base.version import VERSION
from scannet_prep.errors import FileError
from scannet_prep.processed import folder as processed_folder
from scannet_prep.processed.manifest import Manifest, SceneEntry
from scannet_prep.processed.npz import NpzReader
from scannet_prep.processed.scene import parse_meta
from scannet_prep.release.scene import Split
from scannet_prep.release.splits import find_known_split
from scannet_prep.stages.selection import Selection
from scannet_prep.stages.unpack.target import HINT_OTHER_FOLDER, UnpackTarget


class ProcessedTarget(UnpackTarget):
    """A processed folder that archives are unpacked into.

    It takes the arguments of `UnpackTarget`.

    Raises:
        OutputError: The folder holds raw scenes, or an export.
        FileError: Its manifest is damaged.
    """

    kind = ArchiveKind.PROCESSED
    default_dir = Path("data/processed")

    def __init__(self, archives: ArchiveSet, out_dir: Path, selection: Selection) -> None:
        super().__init__(archives, out_dir, selection)
        # The manifest that the folder has now.
        self._before = processed_folder.find_manifest(out_dir)
        # The options and the label map of its scenes.
        self._head = self._before
        # The manifests of the archives, merged and reduced to the selection.
        self._arrived: Manifest | None = None

    def begin(self, reader: GroupReader) -> None:
        """Record the manifest of an archive. Writes nothing.

        Raises:
            FileError: The manifest is damaged; or the folder, or another archive, has scenes of
                other options or another label map, so that no dataset could read both.
        """
        manifest = reader.read_manifest()
        wants = self._selection.wants
        scenes = {}
        if manifest is not None:
            scenes = {
                scene_id: entry
                for scene_id, entry in manifest.scenes.items()
                if wants(scene_id, entry.split)
            }
        self._listed |= scenes.keys()
        if manifest is None:
            return
        self._check_belongs_here(manifest)
        failures = {
            scene_id: failure
            for scene_id, failure in manifest.failures.items()
            if wants(scene_id, find_known_split(scene_id))
        }
        if self._arrived is not None:
            scenes = {**self._arrived.scenes, **scenes}
            failures = {**self._arrived.failures, **failures}
        self._arrived = msgspec.structs.replace(manifest, scenes=scenes, failures=failures)

    def write(self, group: StoredGroup, content: memoryview) -> None:
        """Write a scene, after a check of its options.

        `begin` has compared those of the manifest, but an archive may have lost its manifest.
        """
        for member in group.members:
            path = self._out_dir / member.name
            meta = parse_meta(NpzReader(member.of(content), path), path)
            head = Manifest(meta.options, meta.label_map)
            self._check_belongs_here(head)
            if self._head is None:
                self._head = head
        super().write(group, content)

    def end(self) -> None:
        """Merge the manifests of the folder and the archives, and write the result.

        A scene that could not be unpacked is no failure if the folder has an intact file of it.
        """
        head = self._arrived or self._head
        if head is None:
            # The folder holds no scene, and no manifest arrived.
            return
        empty = Manifest(head.options, head.label_map)
        before = self._before or empty
        arrived = self._arrived or empty

        # Scenes that failed when the archives were processed, or in this run. The folder may have
        # an intact file of them.
        failed = {**arrived.failures, **self.failures}
        intact = self._find_intact_entries(failed, (before, arrived))
        self._spare(intact.keys() & self.failures.keys())
        present = intact.keys() | self.scenes.keys()
        failures = {
            scene_id: failure
            for scene_id, failure in {**before.failures, **failed}.items()
            if scene_id not in present
        }

        # The entry of an unpacked scene is that of its archive. If the archive has none, `record`
        # makes it from the file.
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
            scenes={**untouched, **unpacked, **intact},
            failures=failures,
            program_version=self._choose_version(before, arrived, unpacked),
        )
        # The scenes that were announced at the beginning, and those that only appeared on the way.
        appeared = self.scenes.keys() | self.failures.keys() | self.spared
        unfinished = set(before.unfinished) - self._wanted - appeared
        splits = {
            scene_id: Split(Path(names[0]).parent.name) for scene_id, names in self.scenes.items()
        }
        processed_folder.record(
            self._out_dir,
            msgspec.structs.replace(manifest, unfinished=tuple(sorted(unfinished))),
            splits,
        )

    @property
    def _wanted(self) -> set[str]:
        """The scenes that the folder is to hold at the end, as far as they are known."""
        # If the index of an archive is lost, no scene was chosen from it. The manifest lists them.
        return self._chosen or self._listed

    def _begin_writing(self) -> None:
        """Mark the folder: readers refuse it if the run is killed."""
        unfinished = set(self._before.unfinished) if self._before else set()
        head = self._arrived or self._head
        if head is not None:
            processed_folder.set_unfinished(self._out_dir, unfinished | self._wanted, head)

    def _check_belongs_here(self, manifest: Manifest) -> None:
        """Refuse scenes of other options or another label map than the folder or another archive.

        Args:
            manifest: Their manifest.

        Raises:
            FileError: The options or the label maps differ.
        """
        # Errors name a path, and that of the other archive is no longer known.
        others = ((self._head, self._out_dir), (self._arrived, Path("another archive")))
        for other, place in others:
            if other is None:
                continue
            if other.options != manifest.options:
                problem = (
                    f"holds scenes that were made with {other.options.flags}, "
                    f"but those of the archive with {manifest.options.flags}"
                )
                raise FileError(place, problem, HINT_OTHER_FOLDER)
            # Scenes without annotation depend on no label map: theirs is empty.
            has_label_maps = other.label_map != "" and manifest.label_map != ""
            if has_label_maps and other.label_map != manifest.label_map:
                problem = (
                    "holds scenes that were made with another label map than those of the archive"
                )
                raise FileError(place, problem, HINT_OTHER_FOLDER)

    def _choose_version(
        self, before: Manifest, arrived: Manifest, unpacked: Mapping[str, SceneEntry]
    ) -> str:
        """Choose the program version of the manifest: of the archives, of the folder, or this one.

        It is that of the archives if all scenes come from there, and that of the folder if no file
        was written. Otherwise this version of the program has merged two manifests.
        """
        if before.scenes.keys() <= unpacked.keys():
            return arrived.program_version
        if not self._has_written:
            return before.program_version
        return VERSION

    def _find_intact_entries(
        self, scene_ids: Iterable[str], sources: Sequence[Manifest]
    ) -> dict[str, SceneEntry]:
        """Find the scenes whose file in the folder is the one that a manifest records."""
        intact: dict[str, SceneEntry] = {}
        for scene_id in scene_ids:
            for source in sources:
                entry = source.scenes.get(scene_id)
                if entry is None or scene_id in intact:
                    continue
                path = processed_folder.processed_path(self._out_dir, entry.split, scene_id)
                with suppress(FileError):
                    if Fingerprint.from_file(path) == entry.fingerprint:
                        intact[scene_id] = entry
        return intact
