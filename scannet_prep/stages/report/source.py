"""The scenes of a report: processed scenes are read, raw scenes are processed."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple, TypeVar

from scannet_prep.base.errors import FileError, TransferError
from scannet_prep.base.files import Fingerprint
from scannet_prep.base.progress import Progress
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
    label_map_for,
)
from scannet_prep.release.scene import SceneId, Split
from scannet_prep.source import Place, SceneSource, SourceKind, identify, open_processed
from scannet_prep.stages.process.make_scene import process_scene
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

    def check(
        self,
        check: Check[Context, Result],
        scene_ids: Iterable[str],
        context: Context,
        findings: Findings,
    ) -> dict[str, Result]:
        """Call a function for each scene in worker processes, as `check_scenes` does."""
        tasks = [CheckTask(SceneId(name), Path(name)) for name in scene_ids]
        results = check_scenes(
            check,
            tasks,
            context,
            findings,
            title="report",
            jobs=self.jobs,
            progress=self.progress,
        )
        return {str(name): result for name, result in results.items()}


class Table(NamedTuple):
    """A table of texts, for the page and for a terminal.

    Attributes:
        title: The title.
        header: The names of the columns.
        rows: The cells of each row.
        right: The indices of the columns that hold numbers.
    """

    title: str
    header: Sequence[str]
    rows: Sequence[Sequence[str]]
    right: frozenset[int] = frozenset()


@dataclass(frozen=True, slots=True)
class Source:
    """Raw or processed scenes. Picklable.

    Attributes:
        place: The processed scenes; for a raw tree, only its name and the scenes that cannot be
            processed.
        raw: The scenes of a raw tree and their splits, by id; None for processed scenes.
        label_map: The label map of the raw scenes.
    """

    place: SceneSource
    raw: Mapping[str, tuple[RawScene, Split]] | None = None
    label_map: LabelMap | None = None

    @property
    def kind(self) -> str:
        """`raw`, `processed` or `archive`."""
        if self.raw is not None:
            return "raw"
        if self.place.folder is not None:
            return "processed"
        return "archive"

    @property
    def scene_ids(self) -> list[str]:
        """The ids of all scenes."""
        if self.raw is not None:
            return list(self.raw)
        return list(self.place.entries)

    def load(self, scene_id: str) -> tuple[ProcessedScene, SceneEntry]:
        """Read or process a scene, and make its entry in a manifest.

        The size in the entry of a raw scene is that of all its files.

        Raises:
            FileError: A file of the scene cannot be read, or is damaged.
            AnnotationError: Its raw files contradict each other.
        """
        if self.raw is not None:
            return self._process_raw(*self.raw[scene_id])
        path = self.place.file_path(scene_id)
        try:
            data = self.place.read(scene_id)
        except TransferError as error:
            raise FileError(self.place.name, error.message, error.hint) from error
        scene = parse_processed(data, path)
        split = self.place.entries[scene_id].split
        check_meta(scene.meta, path, scene_id, split, self.place.options)
        return scene, SceneEntry.from_scene(scene, Fingerprint.from_bytes(data))

    def _process_raw(self, raw: RawScene, split: Split) -> tuple[ProcessedScene, SceneEntry]:
        """Process a scene of a raw tree, and make its entry."""
        label_map = self.label_map or builtin_label_map()
        scene = process_scene(raw, split, ProcessOptions(), label_map)
        files = [path for path in raw.directory.iterdir() if path.is_file()]
        size_bytes = sum(path.stat().st_size for path in files)
        return scene, SceneEntry.from_scene(scene, Fingerprint(size_bytes, ""))


class _UnmadeScenes(SceneSource):
    """The processed scenes of a raw tree, which has none."""

    def read_entries(self) -> Mapping[str, SceneEntry]:
        """Return no entries."""
        return {}

    def file_path(self, scene_id: str) -> Path:
        """Refuse to read, because raw scenes are processed."""
        raise NotImplementedError(scene_id)

    def read(self, scene_id: str) -> memoryview:
        """Refuse to read, because raw scenes are processed."""
        raise NotImplementedError(scene_id)


def open_source(places: Sequence[Place], reading: Reading, findings: Findings) -> Source:
    """Open a place. A fault of the place as a whole becomes a finding.

    Raises:
        ScanNetPrepError: Any error of `identify` and `open_processed`.
    """
    kind, folder = identify(places)
    if kind is SourceKind.RAW and folder is not None:
        source = _open_raw_tree(folder, findings)
    else:
        place = open_processed(places, certificates=reading.certificates, must_be_usable=False)
        source = Source(place)
    name = source.place.name
    findings.found += [Finding.from_exception(fault, name) for fault in source.place.faults]
    for scene_id, failure in source.place.failures.items():
        findings.error(name, failure.message, failure.hint, scene_id=scene_id)
    return source


def _open_raw_tree(path: Path, findings: Findings) -> Source:
    """Find the scenes of a raw tree, and its label map."""
    scenes = find_raw_scenes(path)
    chosen, failures = select_scenes(scenes, Selection(), path)
    if find_label_map(path) is None:
        message = "no such file: the built-in label map is used"
        findings.note(path / LABEL_MAP_NAME, message)
    # The first path is the subject of a finding, the second the argument of the function.
    label_map = findings.attempt(path, label_map_for, path)
    if label_map is not None:
        difference = describe_differences(label_map)
        if difference:
            findings.note(label_map.source, difference)
    place = _UnmadeScenes(
        place=str(path),
        options=ProcessOptions(),
        held={},
        failures={failure.scene_id: failure for failure in failures},
        split=None,
        command_end="",
    )
    raw = {str(scene_id): (scenes[scene_id], split) for scene_id, split in chosen}
    return Source(place, raw, label_map)
