"""Where the scenes of a report come from: processed ones are read, raw ones are made."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple, TypeVar

from scannet_prep.archive.layout import ArchiveKind
from scannet_prep.archive.source import Place
from scannet_prep.base.errors import FileError, TransferError
from scannet_prep.base.files import Fingerprint
from scannet_prep.base.progress import Progress
from scannet_prep.place import ProcessedPlace, open_place
from scannet_prep.processed.manifest import SceneEntry
from scannet_prep.processed.scene import ProcessedScene, ProcessOptions, check_meta, parse_processed
from scannet_prep.raw.layout import RawScene, find_raw_scenes
from scannet_prep.release.label_map import (
    LABEL_MAP_NAME,
    LabelMap,
    builtin_label_map,
    describe_differences,
    find_label_map,
    label_map_for,
)
from scannet_prep.release.scene import SceneId, Split
from scannet_prep.stages.finding import CheckTask, Finding, Findings, look_at_scenes
from scannet_prep.stages.process.make_scene import process_scene
from scannet_prep.stages.selection import Selection, select_scenes
from scannet_prep.tree import identify_tree, is_archive

Context = TypeVar("Context")
Result = TypeVar("Result")


@dataclass(frozen=True, slots=True)
class Reading:
    """How places are read.

    Attributes:
        certificates: Of addresses, whom to trust, as `RangeSource` takes it.
        jobs: Number of worker processes.
        progress: Told of every scene.
    """

    certificates: bool | Path = True
    jobs: int = 1
    progress: Progress | None = None

    def look(
        self,
        look: Callable[[CheckTask, Context, Findings], Result],
        names: Iterable[str],
        context: Context,
        found: Findings,
    ) -> dict[str, Result]:
        """Look at scenes in worker processes, as `look_at_scenes` does."""
        tasks = [CheckTask(SceneId(name), Path(name)) for name in names]
        looked = look_at_scenes(
            look, tasks, context, found, title="report", jobs=self.jobs, progress=self.progress
        )
        return {str(name): result for name, result in looked.items()}


class Table(NamedTuple):
    """Rows of words, for the page and for a terminal; columns in `right` are numbers."""

    title: str
    header: Sequence[str]
    rows: Sequence[Sequence[str]]
    right: frozenset[int] = frozenset()


@dataclass(frozen=True, slots=True)
class Source:
    """Raw or processed scenes. Picklable.

    Attributes:
        place: The processed scenes; of a raw tree, only its name and what cannot be made.
        raw: The scenes of a raw tree and their splits, by id; None for processed scenes.
        label_map: For the raw scenes.
    """

    place: ProcessedPlace
    raw: Mapping[str, tuple[RawScene, Split]] | None = None
    label_map: LabelMap | None = None

    @property
    def kind(self) -> str:
        """`raw`, `processed` or `archive`."""
        return "raw" if self.raw is not None else "processed" if self.place.folder else "archive"

    @property
    def scene_ids(self) -> list[str]:
        """All scenes."""
        return list(self.place.entries if self.raw is None else self.raw)

    def load(self, scene_id: str) -> tuple[ProcessedScene, SceneEntry]:
        """Read or make a scene, and what a manifest would say of it; the size of a raw one is that of all its files.

        Raises:
            FileError: A file of it cannot be read, or is damaged.
            AnnotationError: Its raw files do not fit together.
        """
        if self.raw is not None:
            (raw, split), options = self.raw[scene_id], ProcessOptions()
            scene = process_scene(raw, split, options, self.label_map or builtin_label_map())
            size_bytes = sum(
                path.stat().st_size for path in raw.directory.iterdir() if path.is_file()
            )
            return scene, SceneEntry.from_scene(scene, Fingerprint(size_bytes, ""))
        path = self.place.file_path(scene_id)
        try:
            data = self.place.read(scene_id)
        except TransferError as error:
            raise FileError(self.place.name, error.message, error.hint) from error
        scene = parse_processed(data, path)
        check_meta(
            scene.meta, path, scene_id, self.place.entries[scene_id].split, self.place.options
        )
        return scene, SceneEntry.from_scene(scene, Fingerprint.from_bytes(data))


def open_source(places: Sequence[Place], reading: Reading, findings: Findings) -> Source:
    """Find out what a place is; what is wrong with it as a whole is a finding.

    Raises:
        ScanNetPrepError: What `open_place` and `identify_tree` raise.
    """
    path = Path(str(places[0])).expanduser()
    if len(places) == 1 and not is_archive(places[0]) and identify_tree(path) is ArchiveKind.RAW:
        scenes = find_raw_scenes(path)
        chosen, failures = select_scenes(scenes, Selection(), path)
        if find_label_map(path) is None:
            findings.note(path / LABEL_MAP_NAME, "no such file: the built-in label map is used")
        label_map = findings.attempt(path, label_map_for, path)
        if label_map is not None and (difference := describe_differences(label_map)):
            findings.note(Path(label_map.source), difference)
        place = ProcessedPlace(
            name=str(path),
            options=ProcessOptions(),
            folder=None,
            entries={},
            failures={failure.scene_id: failure for failure in failures},
        )
        source = Source(place, {name: (scenes[name], split) for name, split in chosen}, label_map)
    else:
        source = Source(open_place(places, certificates=reading.certificates, must_be_usable=False))
    findings.found += [
        Finding.from_exception(fault, source.place.name) for fault in source.place.faults
    ]
    for name, item in source.place.failures.items():
        findings.error(source.place.name, item.message, item.hint, scene_id=name)
    return source
