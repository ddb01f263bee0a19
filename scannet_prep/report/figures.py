"""The figures of a report: tables of scenes and classes, and the scenes that stand out."""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from scannet_prep.base.counts import count_of
from scannet_prep.base.disk import format_bytes
from scannet_prep.base.failures import list_some
from scannet_prep.base.findings import Finding
from scannet_prep.processed.manifest import SceneEntry
from scannet_prep.processed.scene import ProcessOptions
from scannet_prep.release.label_sets import SCANNET20, SCANNET200
from scannet_prep.release.scene import SceneId, Split
from scannet_prep.release.scene_warnings import WarningSummary, summarize_warnings
from scannet_prep.release.splits import count_by_split, official_scenes
from scannet_prep.report.measures import SceneMeasures
from scannet_prep.report.scenes import ReportedScenes
from scannet_prep.report.table import Table
from scannet_prep.source import SourceKind
from scannet_prep.tables import count_distribution, list_scenes

if TYPE_CHECKING:
    import pandas as pd


class Measure(NamedTuple):
    """A quantity that is measured of each scene.

    Attributes:
        title: Its title, with its unit.
        section: Its section of the page.
        is_log: Whether its axis is logarithmic.
        shown: Values that the axis must include. An axis ends at the tick above its greatest
            value, so 0.99 makes it end at 1.
        limit: A scene stands out if its absolute value is greater than this number. With infinity,
            no scene stands out. With None, scenes are compared with each other: a scene stands out
            if its distance from the middle half of all scenes is more than three times the width
            of that half (Tukey's outer fences). The width counts as at least a tenth of the median.
    """

    title: str
    section: str = "Sizes"
    is_log: bool = False
    shown: tuple[float, ...] = ()
    limit: float | None = None


MEASURES = {
    "vertices": Measure("vertices", is_log=True),
    "area_m2": Measure("area, m²", is_log=True),
    "x_m": Measure("extent along x, m", shown=(0,), limit=math.inf),
    "y_m": Measure("extent along y, m", shown=(0,), limit=math.inf),
    "z_m": Measure("height, m", shown=(0,)),
    "labeled": Measure("labeled share", "Label coverage", shown=(0, 0.99)),
    "floor_tilt_deg": Measure("floor tilt, degrees", "Floor and walls", shown=(0, 2.9), limit=3),
    "floor_height_m": Measure(
        "floor above z = 0, m", "Floor and walls", shown=(-0.2, 0.2), limit=0.25
    ),
    "wall_turn_deg": Measure(
        "walls off the axes, degrees", "Floor and walls", shown=(-5, 4.9), limit=5
    ),
}
"""The measures, by column of the table of scenes."""

_MIN_COMPARED_SCENES = 8
# How many of the largest, the smallest and the oddest scenes are in the gallery.
_GALLERY_COUNT = 4
_UNKNOWN = SceneMeasures(x_m=math.nan, y_m=math.nan, z_m=math.nan, area_m2=math.nan)


@dataclass(frozen=True, slots=True)
class Report:
    """The figures of a place.

    Attributes:
        place: Path or address.
        kind: `processed`, `archive` or `raw`.
        options: The options that the scenes were processed with; None for a raw tree, and for a
            folder whose manifest cannot be read.
        computed_segments: The number of scenes whose segments are computed.
        splits: For each split, and for `all`: number of `scenes` and `vertices`; `size_bytes` of
            the files of scenes (unpacked, in an archive); vertices of train and val (`annotated`),
            and those of them that have a nyu40 id (`labeled`).
        label_sets: A row for each class of each label set, as in `tables.distribution`, and the
            number of its `instances`.
        measures: `min`, `median` and `max` of each measure, without those that no scene has.
        odd: The reason why each scene stands out, the oddest scene first.
        gallery: The reason why each scene is in the gallery: it is large, small or odd.
        warnings: The oddities of the raw files, each once.
        findings: The errors of scenes that could not be read or processed, and notes.
        table: A row for each scene: `tables.scenes` and the measures.
    """

    place: str
    kind: str
    options: ProcessOptions | None
    computed_segments: int
    splits: dict[str, dict[str, int]] = field(hash=False)
    label_sets: dict[str, list[dict[str, Any]]] = field(hash=False)
    measures: dict[str, dict[str, float]] = field(hash=False)
    odd: dict[str, str] = field(hash=False)
    gallery: dict[str, str] = field(hash=False)
    warnings: tuple[WarningSummary, ...]
    findings: tuple[Finding, ...]
    table: list[dict[str, Any]] = field(hash=False)

    @property
    def contents(self) -> str:
        """Kind of the scenes, and for processed scenes their label set and frame."""
        if self.options is None:
            return f"{self.kind} scenes"
        frame = "axis-aligned" if self.options.align_axis else "frame of the scan"
        contents = f"{self.kind} scenes, {self.options.label_set.name}, {frame}"
        if self.computed_segments:
            contents += f", scenes with computed segments: {self.computed_segments:,}"
        return contents

    @property
    def _has_own_scans(self) -> bool:
        """Whether the scenes are own scans, of which there is no official list."""
        return any(SceneId.is_own(row["scene"]) for row in self.table)

    @property
    def errors(self) -> tuple[Finding, ...]:
        """The findings that are errors, not notes."""
        return tuple(finding for finding in self.findings if finding.is_error)

    def tables(self) -> list[Table]:
        """Return the figures that are shown as tables rather than charts."""
        findings = []
        for finding in self.findings:
            subject = f"{finding.severity}: {finding.place}"
            findings.append([subject, finding.message, finding.hint])
        has_official = not self._has_own_scans
        splits = [
            _format_split(split, counts, has_official=has_official)
            for split, counts in self.splits.items()
        ]
        measures = []
        for name, row in self.measures.items():
            measures.append([MEASURES[name].title, *map(format_measure, row.values())])
        warnings = [
            [
                warning.text,
                list_some(warning.scenes),
                warning.kind.advise(is_own=self._has_own_scans),
            ]
            for warning in self.warnings
        ]
        return [
            Table("Errors and notes", ["where", "what", "what to do"], findings),
            Table(
                "Splits",
                ["split", "scenes", "official", "vertices", "size", "labeled"],
                splits,
                number_columns=frozenset(range(1, 6)),
            ),
            Table(
                "Measures",
                ["of a scene", "min", "median", "max"],
                measures,
                number_columns=frozenset(range(1, 4)),
            ),
            Table(
                "Irregular scenes",
                ["what is odd about the raw files", "scenes", "what to do"],
                warnings,
            ),
            Table("Scenes that stand out", ["scene", "why"], list(self.odd.items())),
        ]


class MeasuredScene(NamedTuple):
    """The measurements of one scene.

    Attributes:
        entry: Its entry in a manifest.
        measures: Its measures.
        instances: The number of instances by train id, for each label set by its name.
    """

    entry: SceneEntry
    measures: SceneMeasures
    instances: Mapping[str, Mapping[int, int]]


def make_report(
    reported: ReportedScenes,
    measured: Mapping[str, MeasuredScene],
    findings: tuple[Finding, ...],
) -> Report:
    """Combine the figures of all scenes.

    Args:
        reported: The scenes.
        measured: The scenes that could be read, by id.
        findings: The findings of reading and measuring.
    """
    import pandas as pd

    # A scene that could not be read only has its entry in the manifest.
    entries: dict[str, SceneEntry] = dict(reported.entries)
    entries.update({scene_id: scene.entry for scene_id, scene in measured.items()})
    measures = []
    for scene_id in entries:
        scene_measures = measured[scene_id].measures if scene_id in measured else _UNKNOWN
        measures.append(asdict(scene_measures))

    # A row for each scene.
    table = list_scenes(entries, reported.options)
    table = table.join(pd.DataFrame(measures, table.index, list(asdict(_UNKNOWN)), float))
    table["labeled"] = table.labeled.where(table.split != "test").astype(float).round(4)

    numbers = table[list(MEASURES)].astype(float)
    summary = numbers.agg(["min", "median", "max"]).round(4).dropna(axis="columns", how="all")
    odd = dict(_find_odd(numbers))
    warnings = []
    for scene_id, entry in entries.items():
        warnings += [(scene_id, warning) for warning in entry.warnings]
    label_sets = {}
    for label_set in (SCANNET20, SCANNET200):
        rows = _to_rows(count_distribution(entries.values(), label_set))
        instances: Counter[int] = Counter()
        for scene in measured.values():
            instances.update(scene.instances[label_set.name])
        for train_id, row in enumerate(rows):
            row["instances"] = instances[train_id]
        label_sets[label_set.name] = rows
    # Without entries, the manifest could not be read.
    has_options = entries and reported.kind is not SourceKind.RAW
    return Report(
        place=reported.name,
        kind=str(reported.kind),
        options=reported.options if has_options else None,
        computed_segments=sum(entry.segments_source == "computed" for entry in entries.values()),
        splits=count_by_split((entry.split, _count(entry)) for entry in entries.values()),
        label_sets=label_sets,
        measures=summary.to_dict(),
        odd=odd,
        gallery=_choose_gallery(numbers, odd),
        warnings=tuple(summarize_warnings(warnings)),
        findings=findings,
        table=_to_rows(table),
    )


def format_measure(value: float) -> str:
    """Format a number with four digits, or as a whole number: `0.1234`, `12.34`, `124,000`."""
    if abs(value) < 1000:
        # Adding 0 turns -0 into 0.
        return f"{value + 0:.4g}"
    return f"{value:,.0f}"


def _count(entry: SceneEntry) -> dict[str, int]:
    """Return the numbers of a scene that are summed by split."""
    annotated = 0
    labeled = 0
    if entry.split is not Split.TEST:
        annotated = entry.vertex_count
        labeled = annotated - entry.nyu40_counts.get(0, 0)
    return {
        "vertices": entry.vertex_count,
        "size_bytes": entry.size_bytes,
        "annotated": annotated,
        "labeled": labeled,
    }


def _format_split(split: str, row: Mapping[str, int], *, has_official: bool) -> list[str]:
    """Format the numbers of a split, or of `all`."""
    official = "-"
    if has_official:
        official = f"{_count_official(split):,}"
    labeled = "-"
    if row["annotated"]:
        labeled = f"{row['labeled'] / row['annotated']:.1%}"
    return [
        split,
        f"{row['scenes']:,}",
        official,
        f"{row['vertices']:,}",
        format_bytes(row["size_bytes"]),
        labeled,
    ]


def _count_official(split: str) -> int:
    """Count the scenes of the official list of a split, or of the lists of `all` splits."""
    count = 0
    for known in Split:
        if split in (known, "all"):
            count += len(official_scenes(known))
    return count


def _find_odd(numbers: pd.DataFrame) -> Iterator[tuple[str, str]]:
    """Find the scenes that stand out, with the reason, the oddest first."""
    # A row for each scene, and no column yet. A column for each measure follows; a scene stands out
    # if its score is above 1.
    scores = numbers[[]].copy()
    reasons = {}
    for name, measure in MEASURES.items():
        column = numbers[name]
        low, middle, high = column.quantile([0.25, 0.5, 0.75])
        if measure.limit is not None:
            scores[name] = column.abs() / measure.limit
            reasons[name] = f"limit: {measure.limit:g}"
        elif column.count() >= _MIN_COMPARED_SCENES:
            width = max(high - low, middle / 10)
            scores[name] = np.maximum(low - column, column - high) / (3 * width)
            reasons[name] = f"half of all: {format_measure(low)} to {format_measure(high)}"

    highest = scores.max(axis="columns").sort_values(ascending=False, kind="stable")
    for scene_id in highest.index[highest > 1]:
        texts = []
        for name in scores:
            if scores.at[scene_id, name] > 1:
                value = format_measure(numbers.at[scene_id, name])
                texts.append(f"{MEASURES[name].title}: {value} ({reasons[name]})")
        yield scene_id, "; ".join(texts)


def _choose_gallery(numbers: pd.DataFrame, odd: Mapping[str, str]) -> dict[str, str]:
    """Choose the largest, the smallest and the oddest scenes, each with its reason."""
    sizes = numbers.vertices.sort_values(kind="stable")
    chosen = {}
    for scene_id in sizes.index[::-1][:_GALLERY_COUNT]:
        size = count_of(int(sizes[scene_id]), "vertex", "vertices")
        chosen[scene_id] = f"large: {size}"
    for scene_id in sizes.index[:_GALLERY_COUNT]:
        size = count_of(int(sizes[scene_id]), "vertex", "vertices")
        chosen.setdefault(scene_id, f"small: {size}")
    # The reason why a scene is odd replaces `large` and `small`.
    for scene_id in list(odd)[:_GALLERY_COUNT]:
        chosen[scene_id] = f"odd: {odd[scene_id]}"
    return chosen


def _to_rows(table: pd.DataFrame) -> list[dict[str, Any]]:
    """Turn a table into rows for JSON, with None for missing values."""
    text = table.reset_index().to_json(orient="records")
    rows: list[dict[str, Any]] = json.loads(text)
    return rows
