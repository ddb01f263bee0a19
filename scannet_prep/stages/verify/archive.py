"""Checks archives: every byte of each, and whether the scenes are there that were asked for."""

from __future__ import annotations

from pathlib import Path

from scannet_prep.archive.groups import ArchiveSet
from scannet_prep.progress import Progress
from scannet_prep.stages.finding import Findings
from scannet_prep.stages.selection import Selection

_DAMAGED_HINT = "copy the archive again, or pack it again; the other scenes can be used, and unpack gets them out"
_WARNING_HINT = "the files here are whole; copy again what is damaged or missing, or pack it again with --force"


def check_archives(
    archives: ArchiveSet, selection: Selection, findings: Findings, jobs: int, progress: Progress
) -> dict[str, int]:
    """Check archives, each once. Whatever is wrong with their content is a finding, and the check goes on.

    Returns:
        The scenes that were checked, and how many vertices each has; 0 for those that are damaged.

    Raises:
        ScanNetPrepError: What `GroupReader.read` raises.
    """
    checked, expected = dict[str, int](), set[str](selection.scene_ids or ())
    with progress.work("verify", archives.size_bytes, "B"):
        for reader in archives.readers:
            for group, problem in reader.read(lambda *_: None, jobs, progress):
                checked[group.scene_id] = 0 if problem else group.vertex_count
                if problem:
                    message = f"is damaged (bytes {group.offset:,} to {group.end:,}): {problem}"
                    findings.error(reader.name, message, _DAMAGED_HINT, scene_id=group.scene_id)
            for problem in reader.problems:
                findings.error(reader.name, problem, _DAMAGED_HINT)
            for warning in reader.warnings:
                findings.note(reader.name, warning, _WARNING_HINT)
            manifest = findings.attempt(Path(reader.name), reader.read_manifest)
            # Of an archive that is cut off, the manifest tells what is lost.
            if manifest and not (reader.index or archives.missing_shards):
                expected |= {name for name, entry in manifest.scenes.items() if selection.wants(name, entry.split)}
            reader.source.close()
    for scene_id in sorted(expected - checked.keys()) if selection.limit is None else ():
        message = "no such scene in what is whole of the archive, and of the splits that were asked for"
        findings.error(archives.names[0], message, _DAMAGED_HINT, scene_id=scene_id)
    return checked
