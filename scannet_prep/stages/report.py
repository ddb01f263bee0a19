"""Measure the scenes of a place and make a page, or compare two places scene by scene.

run        open the place --> measure each scene, in worker processes --> figures
           --> draw a few scenes, in worker processes --> page
compare    open both places --> compare each scene, in worker processes --> differences

The room `report` measures, combines and compares.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from shlex import quote
from typing import TypeVar

import numpy as np

from scannet_prep.base.files import make_directory, write_atomically
from scannet_prep.base.findings import Findings, sort_findings
from scannet_prep.base.progress import Progress
from scannet_prep.errors import FileError
from scannet_prep.release.label_sets import SCANNET20, SCANNET200
from scannet_prep.release.scene import SceneId, Split
from scannet_prep.report.changes import SceneChanges
from scannet_prep.report.comparison import Comparison, ProcessedOrRawSides, open_sides
from scannet_prep.report.figures import MeasuredScene, Report, make_report
from scannet_prep.report.measures import count_instances, measure_scene
from scannet_prep.report.page import make_report_page
from scannet_prep.report.scenes import ReportedScenes, open_scenes
from scannet_prep.source import Place, SceneSource
from scannet_prep.stages.scene_checks import Check, CheckTask, Inspection
from scannet_prep.view.coloring import view_scene
from scannet_prep.view.png import encode_png
from scannet_prep.view.renderer import PictureOptions, render_scene

__all__ = ["Reading", "Report", "compare", "run"]

_THUMBNAIL = PictureOptions(width=360, height=270, has_legend=False)

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


def run(
    places: Sequence[Place],
    reading: Reading,
    page_path: Path | None = None,
    comparison: Comparison | None = None,
) -> Report:
    """Measure the scenes of a place, and make a page of the figures.

    Args:
        places: A processed folder, a raw tree, an archive, or all shards of an archive: paths,
            addresses, or objects that read the bytes.
        reading: How to read the scenes.
        page_path: The file for the page; None for none.
        comparison: The comparison with another place, to show on the page.

    Raises:
        MissingFileError: The place is none of these.
        FileError: The place cannot be read.
        UsageError: There are several folders.
        TransferError: An archive on a web server cannot be read.
        WorkerDiedError: Worker processes cannot be started.
        OutputError: The page cannot be written.
    """
    inspection = _make_inspection(reading)
    findings = inspection.findings
    scenes = open_scenes(places, reading.certificates, findings)
    # This reads the manifest of an archive, which the workers then get with the scenes.
    recorded = scenes.entries
    measured = _check_scenes(inspection, _measure, recorded or scenes.scene_ids, scenes)
    report = make_report(scenes, measured, sort_findings(findings.found))
    if page_path is not None:
        # A scene that could not be measured cannot be drawn either, and the page leaves it out.
        gallery = [scene_id for scene_id in report.gallery if scene_id in measured]
        pictures = _check_scenes(inspection, _draw, gallery, scenes)
        # Drawing may have added findings.
        report = replace(report, findings=sort_findings(findings.found))
        make_directory(page_path.parent)
        page = make_report_page(report, pictures, comparison, _find_source(scenes))
        write_atomically(page_path, [page])
    return report


def compare(here: Sequence[Place], there: Sequence[Place], reading: Reading) -> Comparison:
    """Compare two places.

    Args:
        here: Processed scenes: a folder, an archive, all shards of an archive, or only a
            `manifest.json`. Or raw scenes: a raw tree, or only a `scannet.lock`.
        there: Another place of the same kind.
        reading: How to read them.

    Raises:
        UsageError: One holds raw scenes and the other processed ones.
        FileError: A place cannot be read, or names no scene.
        TransferError: An archive on a web server cannot be read.
        WorkerDiedError: Worker processes cannot be started.
    """
    inspection = _make_inspection(reading)
    sides = open_sides(here, there, reading.certificates, inspection.findings)
    results = _check_scenes(inspection, _compare, sides.common, sides)
    return sides.make_comparison(results, inspection.findings)


def _find_source(scenes: ReportedScenes) -> str:
    """Return the place as `view --source` takes it; empty if `view` cannot show its scenes."""
    if isinstance(scenes, SceneSource) and isinstance(scenes.place, str):
        return scenes.place
    return ""


def _make_inspection(reading: Reading) -> Inspection:
    """Return an inspection of all scenes, with no findings yet."""
    return Inspection("report", jobs=reading.jobs, progress=reading.progress or Progress())


def _check_scenes(
    inspection: Inspection,
    check: Check[Context, Result],
    scene_ids: Iterable[str],
    context: Context,
) -> dict[str, Result]:
    """Call a function for each scene in worker processes.

    Errors of the function become findings.
    """
    # The path names the scene in a finding whose error names no file. A scene in an archive has
    # no path of its own, so its id takes this place.
    tasks = [CheckTask(SceneId(scene_id), path=Path(scene_id)) for scene_id in scene_ids]
    results = inspection.check_scenes(check, tasks, context)
    return {str(scene_id): result for scene_id, result in results.items()}


def _measure(task: CheckTask, scenes: ReportedScenes, findings: Findings) -> MeasuredScene:
    """Measure one scene, in a worker."""
    scene, entry = scenes.load(task.scene_id)
    is_finite = np.isfinite(scene.points).all() and np.isfinite(scene.axis_alignment).all()
    if not is_finite:
        raise FileError(scenes.name, "points or the axis alignment are not all finite")
    recorded = scenes.entries.get(task.scene_id)  # None for a raw scene
    if recorded is not None and recorded != entry:
        hint = f"to list the differences: scannet-prep verify {quote(scenes.name)}"
        findings.error(scenes.name, "differs from its record in the manifest", hint)
    # If the points are aligned already, nothing is left to do.
    aligned_from_points = scene.axis_alignment
    if scene.meta.options.align_axis:
        aligned_from_points = np.eye(4)
    measures = measure_scene(scene.points, scene.normals, scene.nyu40_ids, aligned_from_points)
    instances = {}
    for label_set in (SCANNET20, SCANNET200):
        instances[label_set.name] = count_instances(scene.meta.groups, label_set)
    return MeasuredScene(entry, measures, instances)


def _draw(task: CheckTask, scenes: ReportedScenes, _findings: Findings) -> bytes:
    """Draw the points of a scene as PNG, in a worker.

    Test scenes have no labels and are drawn in the colours of the scan.
    """
    scene, entry = scenes.load(task.scene_id)
    color = "rgb" if entry.split is Split.TEST else "scannet20"
    viewed = view_scene(replace(scene, faces=None))
    return encode_png(render_scene(viewed, color, _THUMBNAIL))


def _compare(task: CheckTask, sides: ProcessedOrRawSides, _findings: Findings) -> SceneChanges:
    """Compare a scene between two places, in a worker."""
    return sides.compare_scene(task.scene_id)
