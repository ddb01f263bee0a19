"""Figures of a processed folder, an archive or a raw tree, and a page that shows them.

source        open the place; read or process each scene, in worker processes
measures      measure each scene, in the worker
figures       combine the measures of all scenes
page          the page, with pictures of a few scenes
comparison    the differences from another place
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from shlex import quote

import numpy as np

from scannet_prep.base.errors import FileError
from scannet_prep.base.files import make_directory, write_atomically
from scannet_prep.processed.manifest import SceneEntry
from scannet_prep.release.findings import Findings, sort_findings
from scannet_prep.release.scene import Split
from scannet_prep.source import Place
from scannet_prep.stages.report.comparison import Comparison, compare
from scannet_prep.stages.report.figures import Report, make_report
from scannet_prep.stages.report.measures import SceneMeasures, measure_scene
from scannet_prep.stages.report.page import make_report_page
from scannet_prep.stages.report.source import Reading, Source, open_source
from scannet_prep.stages.scene_checks import CheckTask
from scannet_prep.view.coloring import view_scene
from scannet_prep.view.png import encode_png
from scannet_prep.view.renderer import PictureOptions, render_scene

__all__ = ["Reading", "Report", "compare", "run"]

_THUMBNAIL = PictureOptions(width=360, height=270, has_legend=False)


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
    findings = Findings()
    source = open_source(places, reading, findings)
    measured = reading.check_scenes(_measure, source.scene_ids, source, findings)
    report = make_report(source, measured, sort_findings(findings.found))
    if page_path is not None:
        gallery = [scene_id for scene_id in report.gallery if scene_id in measured]
        pictures = reading.check_scenes(_draw, gallery, source, findings)
        # Drawing may have added findings.
        report = replace(report, findings=sort_findings(findings.found))
        make_directory(page_path.parent)
        write_atomically(page_path, [make_report_page(report, pictures, comparison)])
    return report


def _measure(
    task: CheckTask, source: Source, findings: Findings
) -> tuple[SceneEntry, SceneMeasures]:
    """Measure one scene, in a worker."""
    scene, entry = source.load(task.scene_id)
    is_finite = np.isfinite(scene.points).all() and np.isfinite(scene.axis_alignment).all()
    if not is_finite:
        raise FileError(source.scenes.name, "points or the axis alignment are not all finite")
    if source.raw is None and entry != source.scenes.entries[task.scene_id]:
        hint = f"to list the differences: scannet-prep verify {quote(source.scenes.name)}"
        findings.error(source.scenes.name, "differs from its record in the manifest", hint)
    aligned_from_points = scene.axis_alignment
    if scene.meta.options.align_axis:
        aligned_from_points = np.eye(4)
    measures = measure_scene(scene.points, scene.normals, scene.nyu40_ids, aligned_from_points)
    return entry, measures


def _draw(task: CheckTask, source: Source, _findings: Findings) -> bytes:
    """Draw the points of a scene as PNG, in a worker.

    Test scenes have no labels and are drawn in the colours of the scan.
    """
    scene, entry = source.load(task.scene_id)
    color = "rgb" if entry.split is Split.TEST else "scannet20"
    viewed = view_scene(replace(scene, faces=None))
    return encode_png(render_scene(viewed, color, _THUMBNAIL))
