"""The scenes of a report: processed scenes are read, raw scenes are processed."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from scannet_prep.base.errors import FileError, TransferError
from scannet_prep.base.files import Fingerprint
from scannet_prep.base.progress import Progress
from scannet_prep.processed.make_scene import process_scene
from scannet_prep.processed.manifest import SceneEntry
from scannet_prep.processed.scene import ProcessedScene, ProcessOptions, check_meta, parse_processed
from scannet_prep.raw.layout import RawScene, find_raw_scenes
from scannet_prep.release.findings import Finding, Findings
from scannet_prep.release.label_map import (
    LABEL_MAP_NAME,
    LabelMap,
    builtin_label_map,
    describe_differences,
    find_label_map,
    read_label_map,
)
from scannet_prep.release.scene import SceneId, Split
from scannet_prep.source import Place, SceneSource, SourceKind, identify, open_processed
from scannet_prep.stages.scene_checks import Check, CheckTask, check_scenes
from scannet_prep.stages.selection import Selection, select_scenes

Context = TypeVar("Context")
Result = TypeVar("Result")


@dataclass(frozen=True, slots=True)
class Reading:
    """The options for reading places.

    Attributes:
        certificates: The certificates to trust for addresses, as `RangeSource` takes them.
        jobs: Number of worker processes.
        progress: Advanced by each scene.
    """

    certificates: bool | Path = True
    jobs: int = 1
    progress: Progress | None = None

    def check_scenes(
        self,
        check: Check[Context, Result],
        scene_ids: Iterable[str],
        context: Context,
        findings: Findings,
    ) -> dict[str, Result]:
        """Call a function for each scene in worker processes.

        This is `scene_checks.check_scenes` with the options for reading. Findings name the id of
        the scene if the function raises an error that names no file.
        """
        # A scene in an archive has no path of its own, so the id is given instead.
        tasks = [CheckTask(SceneId(scene_id), path=Path(scene_id)) for scene_id in scene_ids]
        results = check_scenes(
            check,
            tasks,
            context,
            findings,
            title="report",
            jobs=self.jobs,
            progress=self.progress,
        )
        return {str(scene_id): result for scene_id, result in results.items()}


@dataclass(frozen=True, slots=True)
class Source:
    """Raw or processed scenes. Picklable.

    Attributes:
        scenes: The processed scenes. For a raw tree, a stand-in without scenes, which has the name
            of the tree, and a failure for each raw scene that belongs to no split.
        raw: The scenes of a raw tree and their splits, by id; None for processed scenes.
        label_map: The label map of the raw scenes; None for the built-in one.
    """

    scenes: SceneSource
    raw: Mapping[str, tuple[RawScene, Split]] | None = None
    label_map: LabelMap | None = None

    @property
    def kind(self) -> str:
        """`raw`, `processed` or `archive`."""
        if self.raw is not None:
            return "raw"
        if self.scenes.folder is not None:
            return "processed"
        return "archive"

    @property
    def scene_ids(self) -> list[str]:
        """The ids of all scenes."""
        if self.raw is not None:
            return list(self.raw)
        return list(self.scenes.entries)

    def load(self, scene_id: str) -> tuple[ProcessedScene, SceneEntry]:
        """Read a processed scene or process a raw one, and make its entry in a manifest.

        In the entry of a raw scene, the size is that of all its files, and the CRC-32 is empty.

        Raises:
            FileError: A file of the scene cannot be read, or is damaged.
            AnnotationError: Its raw files contradict each other.
        """
        if self.raw is not None:
            raw_scene, split = self.raw[scene_id]
            return self._process_raw(raw_scene, split)
        path = self.scenes.file_path(scene_id)
        try:
            data = self.scenes.read(scene_id)
        except TransferError as error:
            raise FileError(self.scenes.name, error.message, error.hint) from error
        scene = parse_processed(data, path)
        recorded_split = self.scenes.entries[scene_id].split
        check_meta(scene.meta, path, scene_id, recorded_split, self.scenes.options)
        return scene, SceneEntry.from_scene(scene, Fingerprint.from_bytes(data))

    def _process_raw(self, raw: RawScene, split: Split) -> tuple[ProcessedScene, SceneEntry]:
        """Process a scene of a raw tree, and make its entry."""
        label_map = self.label_map or builtin_label_map()
        scene = process_scene(raw, split, ProcessOptions(), label_map)
        files = [path for path in raw.directory.iterdir() if path.is_file()]
        size_bytes = sum(path.stat().st_size for path in files)
        fingerprint = Fingerprint(size_bytes, crc32="")
        return scene, SceneEntry.from_scene(scene, fingerprint)


class _NoProcessedScenes(SceneSource):
    """A stand-in for the processed scenes of a raw tree: a `SceneSource` without scenes."""

    def read_entries(self) -> Mapping[str, SceneEntry]:
        """Return no entries."""
        return {}

    def file_path(self, scene_id: str) -> Path:
        """Raise an error, because there is no file of a processed scene."""
        raise NotImplementedError(scene_id)

    def read(self, scene_id: str) -> memoryview:
        """Raise an error, because there is no file of a processed scene."""
        raise NotImplementedError(scene_id)


def open_source(places: Sequence[Place], reading: Reading, findings: Findings) -> Source:
    """Open a place, and collect findings about it.

    The findings are the faults of the place as a whole, and the scenes that it should have but that
    could not be made. In a raw tree, they also concern the label map.

    Raises:
        ScanNetPrepError: Any error of `identify` and `open_processed`.
    """
    kind, folder = identify(places)
    # A raw tree is always a folder; the type checker cannot infer that from the kind.
    if kind is SourceKind.RAW and folder is not None:
        source = _open_raw_tree(folder, findings)
    else:
        # Open even a folder that must not be used: its faults become findings below.
        scenes = open_processed(places, certificates=reading.certificates, must_be_usable=False)
        source = Source(scenes)
    name = source.scenes.name
    findings.found += [Finding.from_exception(fault, name) for fault in source.scenes.faults]
    for scene_id, failure in source.scenes.failures.items():
        findings.error(name, failure.message, failure.hint, scene_id=scene_id)
    return source


def _open_raw_tree(raw_dir: Path, findings: Findings) -> Source:
    """Find the scenes of a raw tree, and read its label map."""
    raw_scenes = find_raw_scenes(raw_dir)
    selected, failures = select_scenes(raw_scenes, Selection(), raw_dir)
    raw = {}
    for scene_id, split in selected:
        raw[str(scene_id)] = (raw_scenes[scene_id], split)
    stand_in = _NoProcessedScenes(
        place=str(raw_dir),
        options=ProcessOptions(),
        held={},
        failures={failure.scene_id: failure for failure in failures},
        split=None,
        command_end="",
    )
    return Source(stand_in, raw, _read_label_map(raw_dir, findings))


def _read_label_map(raw_dir: Path, findings: Findings) -> LabelMap | None:
    """Read the label map of a raw tree, and note how it differs from that of the release.

    Returns:
        The label map. None if there is none, which adds a note, or if it is damaged, which adds an
        error; the built-in one is then used.
    """
    path = find_label_map(raw_dir)
    if path is None:
        message = "no such file: the built-in label map is used"
        findings.note(raw_dir / LABEL_MAP_NAME, message)
        return None
    label_map = findings.attempt(raw_dir, read_label_map, path)
    if label_map is None:
        return None
    difference = describe_differences(label_map)
    if difference:
        findings.note(label_map.source, difference)
    return label_map
