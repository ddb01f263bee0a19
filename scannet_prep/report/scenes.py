"""The scenes of a report: processed scenes are read, raw scenes are processed."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TypeAlias

from scannet_prep.base.findings import Finding, Findings
from scannet_prep.release.label_map import check_label_map
from scannet_prep.source import Place, SceneSource, SourceKind, identify, open_processed
from scannet_prep.source.raw_scenes import RawScenes

ReportedScenes: TypeAlias = SceneSource | RawScenes
"""The scenes of a place; `load` returns each as a processed scene, with its entry."""


def open_scenes(
    places: Sequence[Place], certificates: bool | Path, findings: Findings
) -> ReportedScenes:
    """Open a place, and collect findings about it.

    The findings are the faults of the place as a whole, and the scenes that it should have but that
    could not be made. In a raw tree, they also concern the label map.

    Args:
        places: A processed folder, a raw tree, an archive, or all shards of an archive.
        certificates: The certificates to trust for addresses, as `RangeSource` takes them.
        findings: Receives the findings.

    Raises:
        ScanNetPrepError: Any error of `identify` and `open_processed`.
    """
    kind, folder = identify(places)
    scenes: ReportedScenes
    # A raw tree is always a folder; the type checker cannot infer that from the kind.
    if kind is SourceKind.RAW and folder is not None:
        label_map = check_label_map(folder, findings, must_match=False)
        scenes = RawScenes(folder, label_map)
    else:
        # Open even a folder that must not be used: its faults become findings below.
        scenes = open_processed(places, certificates=certificates, must_be_usable=False)
    findings.found += [Finding.from_exception(fault, scenes.name) for fault in scenes.faults]
    for scene_id, failure in scenes.failures.items():
        findings.error(scenes.name, failure.message, failure.hint, scene_id=scene_id)
    return scenes
