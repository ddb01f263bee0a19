"""Figures of a processed folder, an archive or a raw tree, and a page that shows them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from shlex import quote

import numpy as np

from scannet_prep.archive.source import Place
from scannet_prep.base.errors import FileError
from scannet_prep.base.files import make_directory, write_atomically
from scannet_prep.processed.manifest import SceneEntry
from scannet_prep.release.scene import Split
from scannet_prep.stages.finding import CheckTask, Findings, sort_findings
from scannet_prep.stages.report.comparison import Comparison, compare
from scannet_prep.stages.report.figures import Report, make_report
from scannet_prep.stages.report.measures import SceneMeasures, measure_scene
from scannet_prep.stages.report.page import make_page
from scannet_prep.stages.report.source import Reading, Source, open_source
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
    """Find out what is there, and make a page of it.

    Args:
        places: A processed folder or a raw tree; or an archive, or all shards of one: paths, addresses, or objects that
            read the bytes.
        reading: How to read it.
        page_path: Where the page goes; None for none.
        comparison: With another place, to be shown on the page.

    Raises:
        MissingFileError: It is none of these.
        FileError: It cannot be looked into.
        UsageError: Several folders.
        TransferError: An archive is on a web server, which does not give it.
        WorkerDiedError: Worker processes cannot be started.
        OutputError: The page cannot be written.
    """
    findings = Findings()
    source = open_source(places, reading, findings)
    looked = reading.look(_measure, source.scene_ids, source, findings)
    report = make_report(source, looked, sort_findings(findings.found))
    if page_path is not None:
        pictures = reading.look(
            _draw, [name for name in report.gallery if name in looked], source, findings
        )
        report = replace(report, findings=sort_findings(findings.found))
        make_directory(page_path.parent)
        page = make_page(report, pictures, comparison)
        write_atomically(page_path, [page.encode("utf-8", "backslashreplace")])
    return report


def _measure(
    task: CheckTask, source: Source, findings: Findings
) -> tuple[SceneEntry, SceneMeasures]:
    """Measure one scene, in a worker."""
    scene, entry = source.load(task.scene_id)
    if not (np.isfinite(scene.points).all() and np.isfinite(scene.axis_alignment).all()):
        raise FileError(source.place.name, "points or the axis alignment are not all finite")
    hint = f"to list the differences: scannet-prep verify {quote(source.place.name)}"
    if source.kind != "raw" and entry != source.place.entries[task.scene_id]:
        findings.error(source.place.name, "is not what the manifest records", hint)
    moves = np.eye(4) if scene.meta.options.align_axis else scene.axis_alignment
    return entry, measure_scene(scene.points, scene.normals, scene.nyu40_ids, moves)


def _draw(task: CheckTask, source: Source, findings: Findings) -> bytes:  # noqa: ARG001
    """Draw the points of a scene as a PNG, in a worker: in the colours of labels, or its own where it has none."""
    scene, entry = source.load(task.scene_id)
    color = "rgb" if entry.split is Split.TEST else "scannet20"
    return encode_png(
        render_scene(view_scene(replace(scene, faces=None), only=color), color, _THUMBNAIL)
    )
