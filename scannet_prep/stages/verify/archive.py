"""Checks archives: every byte of each, and whether several are all the shards of a set."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from scannet_prep.archive.groups import ArchiveSet
from scannet_prep.archive.layout import Group
from scannet_prep.archive.source import Place
from scannet_prep.processed.manifest import SceneEntry
from scannet_prep.progress import Progress
from scannet_prep.scene import Split
from scannet_prep.splits import official_scenes
from scannet_prep.stages.finding import CheckReport, Findings, sort_findings
from scannet_prep.stages.selection import Selection

_DAMAGED_HINT = "copy the archive again, or pack it again; the other scenes can be used, and unpack gets them out"
_WARNING_HINT = "the files here are whole; copy again what is damaged or missing, or pack it again with --force"


@dataclass(frozen=True, slots=True)
class ArchivesReport(CheckReport):
    """What a check of archives found; the path is that of the first one, and the size that of all.

    Attributes:
        paths: Paths or addresses of all.
        whole_scenes: Scenes whose files are whole.
        damaged_scenes: The others, as far as they can be named.
    """

    paths: tuple[str, ...]
    whole_scenes: tuple[str, ...]
    damaged_scenes: tuple[str, ...]

    @property
    def counts(self) -> str:
        """How many of the scenes are whole, in words."""
        archives = f" in {len(self.paths):,} archives" if len(self.paths) > 1 else ""
        return f"whole: {len(self.whole_scenes):,}{archives}"


def check_archives(
    archives: Sequence[Place],
    selection: Selection,
    must_be_complete: bool,
    certificates: bool | Path,
    jobs: int,
    progress: Progress,
) -> ArchivesReport:
    """Check archives, as `run` says. Whatever is wrong with their content is a finding, and the check goes on.

    Raises:
        UnknownSceneError: No scene is of the splits that were asked for.
        ScanNetPrepError: What `ArchiveSet` raises.
    """
    findings = Findings()
    opened = ArchiveSet(archives, selection.wants, selection.limit, certificates)
    checked, damaged, named = dict[str, Group](), set[str](), dict[str, SceneEntry]()
    with progress.work("verify", opened.size_bytes, "B"):
        for reader in opened.readers:
            for group, problem in reader.read(lambda *_: None, jobs, progress):
                checked[group.scene_id] = group
                if problem:
                    damaged.add(group.scene_id)
                    message = f"is damaged (bytes {group.offset:,} to {group.end:,}): {problem}"
                    findings.error(reader.name, message, _DAMAGED_HINT, scene_id=group.scene_id)
            for problem in reader.problems:
                findings.error(reader.name, problem, _DAMAGED_HINT)
            for warning in reader.warnings:
                findings.note(reader.name, warning, _WARNING_HINT)
            manifest = findings.attempt(Path(reader.name), reader.read_manifest)
            named |= manifest.scenes if manifest else {}
            reader.source.close()
    # Not before: where its end is damaged, the index of an archive is found on the way.
    name, held = opened.names[0], opened.held
    for scene_id in _find_lost(opened, selection, named):
        damaged.add(scene_id)
        findings.error(name, "is not in what is whole of the archive", _DAMAGED_HINT, scene_id=scene_id)
    if selection.scene_ids is None and not (checked or damaged):  # to find nothing wrong would be no check
        selection.check_found(name, held, "choose other splits")
    unknown = set(selection.scene_ids or ()) - checked.keys() - damaged
    for scene_id in sorted(unknown) if selection.limit is None else ():
        findings.error(name, "no such scene in the splits that were asked for", scene_id=scene_id)
    wanted = selection.splits or tuple(Split) if must_be_complete else ()
    for scene_id in sorted({scene_id for split in wanted for scene_id in official_scenes(split)} - held.keys()):
        findings.error(name, "no such scene, though an official list has it", scene_id=scene_id)
    whole = {name: group for name, group in sorted(checked.items()) if name not in damaged}
    return ArchivesReport(
        path=name,
        paths=tuple(opened.names),
        kind="archive",
        scenes=len(checked),
        vertices=sum(group.vertex_count for group in whole.values()),
        size_bytes=sum(reader.source.size_bytes for reader in opened.readers),
        whole_scenes=tuple(whole),
        damaged_scenes=tuple(sorted(damaged)),
        findings=sort_findings(findings.found),
    )


def _find_lost(archives: ArchiveSet, selection: Selection, named: Mapping[str, SceneEntry]) -> list[str]:
    """The scenes that the manifests of archives name and that were asked for, where an archive is cut off; sorted."""
    if archives.has_indexes or archives.missing_shards or selection.limit is not None:
        return []
    held = archives.held
    return sorted(name for name, entry in named.items() if name not in held and selection.wants(name, entry.split))
