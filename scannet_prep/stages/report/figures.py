"""The figures of a report: tables of scenes and classes, and which scenes stand out."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from scannet_prep.base.disk import format_bytes
from scannet_prep.base.failures import list_some
from scannet_prep.processed.manifest import SceneEntry
from scannet_prep.processed.scene import ProcessOptions
from scannet_prep.release.label_sets import SCANNET20, SCANNET200
from scannet_prep.release.scene import Split
from scannet_prep.release.scene_warnings import WarningSummary, summarize_warnings
from scannet_prep.release.splits import official_scenes
from scannet_prep.stages.finding import Finding
from scannet_prep.stages.info import count_by_split
from scannet_prep.stages.report.measures import SceneMeasures
from scannet_prep.stages.report.source import Source, Table
from scannet_prep.tables import Records, distribution, scenes

if TYPE_CHECKING:
    import pandas as pd


class Measure(NamedTuple):
    """What is measured of a scene.

    Attributes:
        title: What it is called, with its unit.
        section: Of the page.
        is_log: Whether its axis is logarithmic.
        shown: What the axis has to reach.
        limit: A scene stands out beyond it, up or down. None where it is compared with the others: then a scene stands
            out that is farther from the middle half of all than three times its width (Tukey's outer
            fences), taken as a tenth of the median at least.
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
"""What is measured, by column of the table of scenes."""

_MIN_COMPARED = 8
_SHOWN = 4
_UNKNOWN = SceneMeasures(math.nan, math.nan, math.nan, math.nan)


@dataclass(frozen=True, slots=True)
class Report:
    """What a place holds.

    Attributes:
        place: Path or address.
        kind: `processed`, `archive` or `raw`.
        options: The options that the scenes were processed with; None for a raw tree, and for a folder whose manifest
            cannot be read.
        splits: By split, and of `all`: `scenes`, `vertices`, `size_bytes` of the files of scenes (of an archive,
            unpacked); and vertices of train and val (`annotated`), and those of them that have a group (`labeled`).
        label_sets: A row for each class of each label set, as `tables.distribution` has them.
        measures: Of each thing that is measured, `min`, `median` and `max`; without those that no scene has.
        odd: Scenes that stand out, the oddest first, and why.
        gallery: Scenes that are worth a look, and why: the largest, the smallest, the oddest.
        warnings: What was odd about the raw files, each oddity once.
        findings: What could not be read or made, and what is worth knowing.
        table: A row for each scene: `tables.scenes` and what was measured.
    """

    place: str
    kind: str
    options: ProcessOptions | None
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
        return f"{self.kind} scenes, {self.options.label_set.name}, {frame}"

    @property
    def errors(self) -> tuple[Finding, ...]:
        """The findings that are wrong, not just worth knowing."""
        return tuple(finding for finding in self.findings if finding.is_error)

    def tables(self) -> Iterator[Table]:
        """The figures that are few enough to be read one by one."""
        rows = [
            [f"{item.severity}: {item.place}", item.message, item.hint] for item in self.findings
        ]
        yield Table("Errors and notes", ["where", "what", "what to do"], rows)
        header = ["split", "scenes", "official", "vertices", "size", "labeled"]
        yield Table(
            "Splits", header, [_tell(*item) for item in self.splits.items()], frozenset(range(1, 6))
        )
        rows = [
            [MEASURES[name].title, *map(format_measure, row.values())]
            for name, row in self.measures.items()
        ]
        yield Table(
            "Measures", ["of a scene", "min", "median", "max"], rows, frozenset(range(1, 4))
        )
        rows = [[item.text, list_some(item.scenes), item.kind.advice] for item in self.warnings]
        yield Table(
            "Irregular scenes", ["what is odd about the raw files", "scenes", "what to do"], rows
        )
        yield Table("Scenes that stand out", ["scene", "why"], list(self.odd.items()))


def make_report(
    source: Source,
    looked: Mapping[str, tuple[SceneEntry, SceneMeasures]],
    findings: tuple[Finding, ...],
) -> Report:
    """Put the figures together.

    Args:
        source: What they are about.
        looked: What a manifest would say of the scenes that were read, and their measures.
        findings: What was found on the way.
    """
    import pandas as pd

    entries: dict[str, SceneEntry] = {
        **source.place.entries,
        **{name: entry for name, (entry, _) in looked.items()},
    }
    records = Records(source.place, entries)
    measures = [asdict(looked[name][1] if name in looked else _UNKNOWN) for name in entries]
    table = scenes(records)
    table = table.join(pd.DataFrame(measures, table.index, list(asdict(_UNKNOWN)), float))
    table["labeled"] = table.labeled.where(table.split != "test").astype(float).round(4)
    numbers = table[list(MEASURES)].astype(float)
    odd = dict(_find_odd(numbers))
    warnings = summarize_warnings(
        (name, item) for name, entry in entries.items() for item in entry.warnings
    )
    return Report(
        place=source.place.name,
        kind=source.kind,
        options=source.place.options if source.raw is None and entries else None,
        splits=count_by_split((entry.split, _count(entry)) for entry in entries.values()),
        label_sets={
            item.name: _to_rows(distribution(records, item)) for item in (SCANNET20, SCANNET200)
        },
        measures=numbers.agg(["min", "median", "max"])
        .round(4)
        .dropna(axis="columns", how="all")
        .to_dict(),
        odd=odd,
        gallery=_choose_gallery(numbers, odd),
        warnings=tuple(warnings),
        findings=findings,
        table=_to_rows(table),
    )


def _count(entry: SceneEntry) -> dict[str, int]:
    annotated = 0 if entry.split is Split.TEST else entry.vertex_count
    labeled = annotated and annotated - entry.nyu40_counts.get(0, 0)
    return {
        "vertices": entry.vertex_count,
        "size_bytes": entry.size_bytes,
        "annotated": annotated,
        "labeled": labeled,
    }


def _tell(split: str, row: Mapping[str, int]) -> list[str]:
    official = sum(len(official_scenes(item)) for item in Split if split in (item, "all"))
    numbers = [f"{number:,}" for number in (row["scenes"], official, row["vertices"])]
    labeled = f"{row['labeled'] / row['annotated']:.1%}" if row["annotated"] else "-"
    return [split, *numbers, format_bytes(row["size_bytes"]), labeled]


def _find_odd(numbers: pd.DataFrame) -> Iterator[tuple[str, str]]:
    """The scenes that stand out, the oddest first, and why."""
    scores, reasons = numbers[[]].copy(), {}
    for name, measure in MEASURES.items():
        column = numbers[name]
        low, middle, high = column.quantile([0.25, 0.5, 0.75])
        if measure.limit is not None:
            scores[name], reasons[name] = column.abs() / measure.limit, f"limit: {measure.limit:g}"
        elif column.count() >= _MIN_COMPARED:
            scores[name] = np.maximum(low - column, column - high) / (
                3 * max(high - low, middle / 10)
            )
            reasons[name] = f"half of all: {format_measure(low)} to {format_measure(high)}"
    most = scores.max(axis="columns").sort_values(ascending=False, kind="stable")
    for scene_id in most.index[most > 1]:
        own = [name for name in scores if scores.at[scene_id, name] > 1]
        texts = (
            f"{MEASURES[name].title}: {format_measure(numbers.at[scene_id, name])} ({reasons[name]})"
            for name in own
        )
        yield scene_id, "; ".join(texts)


def _choose_gallery(numbers: pd.DataFrame, odd: Mapping[str, str]) -> dict[str, str]:
    sizes = numbers.vertices.sort_values(kind="stable")
    chosen = {name: f"large: {sizes[name]:,.0f} vertices" for name in sizes.index[::-1][:_SHOWN]}
    chosen |= {
        name: f"small: {sizes[name]:,.0f} vertices"
        for name in sizes.index[:_SHOWN]
        if name not in chosen
    }
    return chosen | {name: f"odd: {odd[name]}" for name in list(odd)[:_SHOWN]}


def format_measure(value: float) -> str:
    """A number with four digits, or whole: `0.1234`, `12.34`, `124,000`."""
    return f"{value + 0:.4g}" if abs(value) < 1000 else f"{value:,.0f}"


def _to_rows(table: pd.DataFrame) -> list[dict[str, Any]]:
    """A table as values for JSON: None for what is missing."""
    rows: list[dict[str, Any]] = json.loads(table.reset_index().to_json(orient="records"))
    return rows
