"""Compare two places scene by scene, and list the differences.

What is compared depends on the places:

    two places with processed scenes   arrays and metadata, except the version of the program
    a manifest.json on either side     entries of manifests: size and CRC-32 of the scene's file,
                                       vertices per class, warnings; and the options
    raw trees, or their scannet.lock   size and SHA-256 of the files

Raw files that scenes are processed from must exist on both sides. All others, such as sensor
streams, are compared only if both sides have them.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Generic, TypeAlias, TypeVar

from scannet_prep.base.counts import count_of
from scannet_prep.base.failures import list_some
from scannet_prep.base.files import read_file
from scannet_prep.base.findings import Finding, Findings, sort_findings
from scannet_prep.errors import FileError, UsageError
from scannet_prep.processed.manifest import parse_manifest
from scannet_prep.report.changes import (
    SceneChanges,
    describe_facts,
    fold_changes,
    shorten_digests,
)
from scannet_prep.report.facts import NONE, Differences
from scannet_prep.report.processed_side import ProcessedSide
from scannet_prep.report.raw_side import RawSide
from scannet_prep.report.scenes import ReportedScenes, open_scenes
from scannet_prep.report.table import Table
from scannet_prep.source import Place, describe_file
from scannet_prep.source.raw_scenes import RawScenes

Side = TypeVar("Side", ProcessedSide, RawSide)


@dataclass(frozen=True, slots=True)
class ClassChange:
    """Vertices that have one class in the first place, and another one in the second.

    Attributes:
        here: The class in the first place, or `unlabeled`.
        there: The class in the second place.
        vertices: The number of vertices.
        scenes: The number of scenes that have such vertices.
    """

    here: str
    there: str
    vertices: int
    scenes: int


@dataclass(frozen=True, slots=True)
class Comparison:
    """The result of a comparison.

    Attributes:
        here: The name of the first place.
        there: The name of the second place.
        same: Number of scenes that are the same in both places.
        only_here: Scenes that only the first place has.
        only_there: Scenes that only the second place has.
        differences: The differences of each scene that both places have, by scene id. For raw
            scenes, the keys `label map` and `tasks` may follow, with the differences of the label
            map and of the files in `tasks/`.
        findings: The errors of scenes that cannot be read.
        changes: The differences in words, with one line for what many scenes have in common.
        classes: The vertices whose class differs, summed over all scenes, the most frequent change
            first; empty unless the arrays of processed scenes are compared.
    """

    here: str
    there: str
    same: int
    only_here: tuple[str, ...]
    only_there: tuple[str, ...]
    differences: Mapping[str, Differences] = field(hash=False)
    findings: tuple[Finding, ...]
    changes: tuple[str, ...] = ()
    classes: tuple[ClassChange, ...] = ()

    @property
    def is_same(self) -> bool:
        """Whether both places hold the same data."""
        return not (self.only_here or self.only_there or self.differences or self.findings)

    @property
    def summary(self) -> str:
        """The result in one sentence."""
        verdict = "the same data" if self.is_same else "not the same data"
        counts = [
            f"same: {self.same:,}",
            f"different: {len(self.differences):,}",
            f"only here: {len(self.only_here):,}",
            f"only there: {len(self.only_there):,}",
        ]
        if self.findings:
            counts.append(f"errors: {len(self.findings):,}")
        return f"{verdict}; {', '.join(counts)}"

    @property
    def lines(self) -> list[str]:
        """Errors, scenes of one place only, and all changes, the most important first."""
        lines = []
        for finding in self.findings:
            text = f"error: {finding.scene_id}: {finding.subject}: {finding.message}"
            lines.append(f"{text}; {finding.hint}" if finding.hint else text)
        for name, scene_ids in ((self.here, self.only_here), (self.there, self.only_there)):
            if scene_ids:
                scenes = count_of(len(scene_ids), "scene")
                lines.append(f"only in {name}: {scenes}: {list_some(scene_ids)}")
        return [*lines, *self.changes]

    @property
    def class_table(self) -> Table:
        """The vertices whose class differs."""
        rows = [
            [change.here, change.there, f"{change.vertices:,}", f"{change.scenes:,}"]
            for change in self.classes
        ]
        return Table(
            "Vertices of another class",
            ["here", "there", "vertices", "scenes"],
            rows,
            number_columns=frozenset([2, 3]),
        )

    @property
    def table(self) -> Table:
        """All facts that differ, by scene, with shortened digests."""
        rows = []
        for scene_id, differences in self.differences.items():
            for name, values in differences.items():
                rows.append([scene_id, name, *map(shorten_digests, values)])
        rows += [[scene_id, "scene", "present", NONE] for scene_id in self.only_here]
        rows += [[scene_id, "scene", NONE, "present"] for scene_id in self.only_there]
        return Table("All facts that differ", ["scene", "what", "here", "there"], rows)


@dataclass(frozen=True, slots=True)
class Sides(Generic[Side]):
    """Two places of the same kind to compare. Picklable."""

    here: Side
    there: Side

    @property
    def common(self) -> list[str]:
        """The ids of the scenes that both places have, sorted."""
        return sorted(self.here.scene_ids & self.there.scene_ids)

    def compare_scene(self, scene_id: str) -> SceneChanges:
        """Compare a scene that both places have.

        Raises:
            FileError: A file of the scene cannot be read, or is damaged.
        """
        return self.here.compare_scene(self.there, scene_id)

    def make_comparison(
        self, compared: Mapping[str, SceneChanges], findings: Findings
    ) -> Comparison:
        """Combine the results of all scenes.

        Args:
            compared: The differences of each scene that was compared.
            findings: The findings of opening the places and of reading the scenes.
        """
        here = self.here
        there = self.there
        differences = {}
        changes = {}
        for scene_id, result in compared.items():
            if result.differences:
                differences[scene_id] = result.differences
                changes[scene_id] = result.changes
        same = len(compared) - len(differences)
        lines = list(fold_changes(changes, len(compared)))
        # These are not scenes, and do not count as such: they are added after `same` is computed.
        shared = here.compare_shared_files(there)
        differences |= shared
        for name, facts in shared.items():
            lines += [f"{name}: {change}" for change in describe_facts("", facts)]
        return Comparison(
            here=here.name,
            there=there.name,
            same=same,
            only_here=tuple(sorted(here.scene_ids - there.scene_ids)),
            only_there=tuple(sorted(there.scene_ids - here.scene_ids)),
            differences=differences,
            findings=sort_findings(finding for finding in findings.found if finding.is_error),
            changes=tuple(lines),
            classes=_sum_class_changes(compared.values()),
        )


ProcessedOrRawSides: TypeAlias = Sides[ProcessedSide] | Sides[RawSide]
"""Two places, both with processed scenes or both with raw ones."""


def _sum_class_changes(compared: Iterable[SceneChanges]) -> tuple[ClassChange, ...]:
    """Sum the vertices whose class differs over all scenes, the most frequent change first."""
    vertices: Counter[tuple[str, str]] = Counter()
    scenes: Counter[tuple[str, str]] = Counter()
    for result in compared:
        vertices.update(result.classes)
        scenes.update(result.classes.keys())
    changes = []
    for (here, there), count in vertices.most_common():
        changes.append(ClassChange(here, there, count, scenes[here, there]))
    return tuple(changes)


def open_sides(
    here: Sequence[Place],
    there: Sequence[Place],
    certificates: bool | Path,
    findings: Findings,
) -> ProcessedOrRawSides:
    """Open two places, or read their records.

    Args:
        here: A processed folder, an archive or all its shards, or a `manifest.json`; or a raw tree
            or a `scannet.lock`.
        there: Another place of the same kind.
        certificates: The certificates to trust for addresses, as `RangeSource` takes them.
        findings: Receives the faults of the places.

    Raises:
        UsageError: One holds raw scenes and the other processed ones.
        FileError: A place cannot be read, or names no scene.
        TransferError: An archive on a web server cannot be read.
    """
    side_here = _open_side(here, certificates, findings)
    side_there = _open_side(there, certificates, findings)
    if isinstance(side_here, RawSide) and isinstance(side_there, RawSide):
        return Sides(side_here, side_there)
    if isinstance(side_here, ProcessedSide) and isinstance(side_there, ProcessedSide):
        return Sides(side_here, side_there)
    raise UsageError(
        f"{side_here.name} holds {side_here.kind} scenes, "
        f"{side_there.name} holds {side_there.kind} scenes: they cannot be compared",
        "name two raw folders, or two processed folders or archives",
    )


def _open_side(
    places: Sequence[Place], certificates: bool | Path, findings: Findings
) -> ProcessedSide | RawSide:
    """Open a place, or read the record of one.

    Raises:
        FileError: The place names no scene.
    """
    path = Path(str(places[0])).expanduser()
    if len(places) == 1 and _is_record(path):
        side = _read_record(path)
    else:
        side = _make_side(open_scenes(places, certificates, findings))
    if not side.scene_ids:
        # A comparison of nothing must not report that the data are the same.
        raise FileError(
            side.name,
            "names no scene: there is nothing to compare",
            "name a folder or an archive that holds scenes",
        )
    return side


def _is_record(path: Path) -> bool:
    """Whether a path is a file but not an archive: a `manifest.json` or a `scannet.lock`."""
    return path.is_file() and path.suffix != ".zst" and describe_file(path) != "a zstd file"


def _read_record(path: Path) -> ProcessedSide | RawSide:
    """Read a `manifest.json` or a `scannet.lock`."""
    data = read_file(path)
    if not data.lstrip().startswith(b"{"):
        return RawSide.from_lock(data, path)
    manifest = parse_manifest(data, path)
    return ProcessedSide(str(path), manifest.scenes, manifest.options)


def _make_side(scenes: ReportedScenes) -> ProcessedSide | RawSide:
    """Make the side of a place that holds the scenes themselves."""
    if isinstance(scenes, RawScenes):
        return RawSide.from_tree(scenes)
    return ProcessedSide(scenes.name, scenes.entries, scenes.options, scenes)
