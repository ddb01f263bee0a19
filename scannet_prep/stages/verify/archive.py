"""Checks archives: every byte of each, and whether several are all the shards of a set."""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from scannet_prep.archive.group_check import GroupCheck, check_gaps
from scannet_prep.archive.layout import Layout, Place, find_layout
from scannet_prep.archive.shards import find_missing_shards, is_of_set
from scannet_prep.archive.source import ByteSource, open_sources
from scannet_prep.archive.tail_check import Part, check_tail
from scannet_prep.errors import UnknownSplitError, UsageError
from scannet_prep.processed.manifest import MANIFEST_NAME
from scannet_prep.progress import NoProgress, Progress
from scannet_prep.remote.address import is_url
from scannet_prep.scene import Split
from scannet_prep.splits import official_scenes
from scannet_prep.stages.finding import Severity
from scannet_prep.stages.selection import Selection
from scannet_prep.stages.verify.archive_findings import ArchiveFinding, ArchiveFindings
from scannet_prep.stages.verify.archive_groups import check_groups
from scannet_prep.stages.verify.archive_manifest import check_manifest
from scannet_prep.stages.verify.archive_report import ArchiveReport, VerifyArchivesReport

_MANIFEST_HINT = "the archive was not made by scannet-prep pack from one processed folder: pack again"
_MEND_HINT = "get those scenes again: scannet-prep pack, or copy the archive again; the others can be used as they are"
_TAIL_HINT = "the scenes can still be had: scannet-prep unpack --salvage, then pack again; or copy the archive again"


@dataclass(frozen=True, slots=True)
class ArchivePlan:
    """One archive that is going to be checked.

    Attributes:
        source: Its bytes.
        layout: Its parts.
        chosen: Which of its groups are checked, by number; None for all.
        findings: What is known before a group is read.
    """

    source: ByteSource
    layout: Layout
    chosen: frozenset[int] | None = None
    findings: tuple[ArchiveFinding, ...] = ()

    @property
    def name(self) -> str:
        """Path or address."""
        return self.source.name

    @property
    def places(self) -> tuple[Place, ...]:
        """The groups that are checked."""
        places = self.layout.groups
        return places if self.chosen is None else tuple(places[number] for number in sorted(self.chosen))

    @property
    def scene_count(self) -> int:
        """Number of scenes that are checked, as far as it is known."""
        return sum(place.offset > 0 for place in self.places)


@dataclass(frozen=True, slots=True)
class VerifyArchivesPlan:
    """What `run` is going to check; making it reads no scene.

    Attributes:
        archives: One or several.
        is_quick: Whether only the structure is looked at.
        findings: About the archives as a set.
    """

    archives: tuple[ArchivePlan, ...]
    is_quick: bool
    findings: tuple[ArchiveFinding, ...]


def plan(
    archives: Sequence[str | Path | ByteSource],
    *,
    selection: Selection | None = None,
    is_quick: bool = False,
    must_be_complete: bool = False,
    certificates: bool | Path = True,
) -> VerifyArchivesPlan:
    """Decide what to check.

    Args:
        archives: Paths, addresses, or objects that read the bytes; several count as the shards of one.
        selection: Which scenes; all by default.
        is_quick: Whether to look at the structure only: the ends of the archives, the headers of all frames and blocks,
            the first tar header of each scene.
        must_be_complete: Whether a scene of the official lists that is not there is an error.
        certificates: Of addresses, whom to trust: True for the system's authorities, a file with others, False to
            accept any certificate.

    Raises:
        MissingFileError: There is no such file.
        ArchiveError: It cannot be read, or is no archive of this program.
        UsageError: Some scenes only, and yet complete; the same archive twice; or no address.
        TransferError: An archive is on a web server, which does not give it.
    """
    selection = selection or Selection()
    has_all_scenes = selection.scene_ids is None and selection.limit is None
    if must_be_complete and not has_all_scenes:
        raise UsageError("a part of the scenes cannot be complete", "leave out --complete, or --scenes and --limit")
    sources = open_sources(archives, certificates=certificates)
    plans = [_choose(ArchivePlan(source, find_layout(source)), selection) for source in sources]
    findings = _check_set(plans, selection)
    if must_be_complete:
        findings += _check_completeness(plans, selection)
    return VerifyArchivesPlan(tuple(plans), is_quick, tuple(findings))


def run(plan: VerifyArchivesPlan, *, jobs: int = 1, progress: Progress | None = None) -> VerifyArchivesReport:
    """Check the archives of a plan. Whatever is wrong is a finding, and the check goes on.

    Args:
        plan: From `plan`.
        jobs: Number of threads.
        progress: Told of bytes of the archives.

    Raises:
        TransferError: A web server does not give an archive any more.
    """
    progress = progress or NoProgress()
    progress.start("verify", sum(place.stored_bytes for item in plan.archives for place in item.places), "B")
    try:
        reports = [_check_archive(item, jobs, progress, is_quick=plan.is_quick) for item in plan.archives]
    finally:
        progress.finish()
        for item in plan.archives:
            item.source.close()
    findings = (*plan.findings, *_check_manifests(reports))
    return VerifyArchivesReport(tuple(reports), plan.is_quick, findings)


def _choose(plan: ArchivePlan, selection: Selection) -> ArchivePlan:
    """Choose among the groups; without an index nobody knows which is which, so that all are checked."""
    if selection == Selection() or plan.layout.index is None:
        return plan
    chosen = [
        number
        for number, scene in enumerate(plan.layout.index.scenes, start=1)
        if (selection.scene_ids is None or scene.scene_id in selection.scene_ids)
        and (not selection.splits or scene.split in selection.splits)
    ]
    return replace(plan, chosen=frozenset({0, *chosen[: selection.limit]}))


def _check_set(archives: list[ArchivePlan], selection: Selection) -> list[ArchiveFinding]:
    """Check what concerns several archives together: shards that are missing, scenes that are there twice."""
    found: dict[str, str] = {}
    findings = list[ArchiveFinding]()
    missing = find_missing_shards([item.name for item in archives]) if len(archives) > 1 else ()
    for name in missing:
        problem = "is missing in the set of shards"
        findings.append(ArchiveFinding(name, "", Severity.ERROR, problem, "copy or download it too"))
    for item in archives:
        for scene in () if item.layout.index is None else item.layout.index.scenes:
            if scene.scene_id in found:
                problem = f"is also in {Path(found[scene.scene_id]).name}"
                hint = "are these shards of different sets? Leave one out"
                findings.append(ArchiveFinding(item.name, scene.scene_id, Severity.ERROR, problem, hint))
            found.setdefault(scene.scene_id, item.name)
    if all(item.layout.index is not None for item in archives):
        findings += _check_selection(archives, selection, found)
    return findings


def _check_selection(
    archives: list[ArchivePlan], selection: Selection, found: Mapping[str, str]
) -> list[ArchiveFinding]:
    if selection.splits and selection.scene_ids is None and not any(item.scene_count for item in archives):
        # To check nothing and find nothing wrong would be no check.
        hint = "leave out --splits, or choose others"
        raise UnknownSplitError(
            f"{archives[0].name}: holds no scenes of the splits {', '.join(selection.splits)}", hint
        )
    checked = {place.entry.scene_id for item in archives for place in item.places if place.entry is not None}
    findings = ArchiveFindings(archives[0].name)
    for scene_id in selection.scene_ids or ():
        if scene_id not in found:
            findings.error("does not hold this scene", scene_id=scene_id)
        elif scene_id not in checked and selection.limit is None:
            findings.error(f"is not in {', '.join(selection.splits)}", scene_id=scene_id)
    return findings.found


def _check_completeness(archives: list[ArchivePlan], selection: Selection) -> list[ArchiveFinding]:
    findings = ArchiveFindings(archives[0].name)
    present = {scene.scene_id for item in archives if item.layout.index for scene in item.layout.index.scenes}
    for split in selection.splits or tuple(Split):
        for scene_id in official_scenes(split):
            if scene_id not in present:
                findings.error(f"no such scene, though the official list of {split} has it", scene_id=scene_id)
    return findings.found


def _check_archive(plan: ArchivePlan, jobs: int, progress: Progress, *, is_quick: bool) -> ArchiveReport:
    source, layout = plan.source, plan.layout
    head = None if layout.index is None else layout.index.head
    checks = check_groups(source, plan.places, head, is_quick=is_quick, jobs=jobs, progress=progress)
    by_offset = {check.place.offset: check for check in checks}
    tail = check_tail(source, layout, [by_offset.get(place.offset) for place in layout.groups])
    findings = ArchiveFindings(plan.name)
    checks = sorted([*checks, *check_gaps(source, layout)], key=lambda check: check.place.offset)
    for check in checks:
        if not check.is_whole:
            _tell_group(check, findings)
    for part, problem in tail.problems:
        findings.error(f"the {part} {problem}", _TAIL_HINT, part=part)
    _check_twice(checks, findings)
    whole = tuple(sorted({check.scene_id for check in checks if check.is_whole} - {""}))
    manifest = check_manifest(source, layout, checks)
    for scene_id, problem in manifest.problems:
        findings.error(problem, _MANIFEST_HINT, scene_id=scene_id, part=None if scene_id else Part.FILES)
    resume_offset = _find_resume_offset(layout, checks, tail.whole_end)
    if tail.cut_off_part is not None:
        _tell_truncation(plan, len(whole), manifest.scene_count, resume_offset, findings)
    damaged = tuple(sorted({check.scene_id for check in checks if not check.is_whole} - {""}))
    parts = [part for part, _ in tail.problems]
    if any(not check.is_whole and check.place.offset == 0 for check in checks):
        parts.insert(0, Part.FILES)
    has_end = tail.cut_off_part is None and Part.INDEX not in parts
    return ArchiveReport(
        name=plan.name,
        index=layout.index,
        size_bytes=source.size_bytes,
        content_bytes=sum(check.size_bytes for check in checks),
        whole_scenes=tuple(name for name in whole if name not in damaged),
        damaged_scenes=damaged,
        damaged_parts=tuple(parts),
        is_truncated=tail.cut_off_part is not None,
        resume_offset=None if has_end else resume_offset,
        unheld=manifest.unheld,
        findings=tuple(sorted((*plan.findings, *findings.found), key=lambda item: (item.severity, item.scene_id))),
    )


def _tell_group(check: GroupCheck, findings: ArchiveFindings) -> None:
    place = f"bytes {check.place.offset:,} to {check.place.end:,}"
    if check.place.offset == 0:
        message = f"the files that belong to no scene are damaged ({place}): {check.problem}"
        findings.error(message, _MEND_HINT, part=Part.FILES)
    elif check.scene_id:
        findings.error(f"is damaged ({place}): {check.problem}", _MEND_HINT, scene_id=check.scene_id)
    else:
        findings.error(f"a scene is damaged ({place}), and cannot be named: {check.problem}", _MEND_HINT)


def _tell_truncation(
    plan: ArchivePlan, whole_count: int, expected_count: int | None, resume_offset: int, findings: ArchiveFindings
) -> None:
    expected_count = len(plan.layout.index.scenes) if plan.layout.index is not None else expected_count
    of_all = "" if expected_count is None else f" of {expected_count:,}"
    path = shlex.quote(plan.name)
    go_on = (
        f"to go on with the transfer: truncate -s {resume_offset} {path}; then curl -C - -o {path} URL, or "
        f"rsync --append-verify SOURCE {path}."
    )
    if is_url(plan.name):
        go_on = "whoever put it on the server has to do it again."
    findings.error(
        f"is truncated at byte {plan.source.size_bytes:,}; whole scenes: {whole_count:,}{of_all}; "
        f"go on from byte {resume_offset:,}",
        f"{go_on} To get out what is whole: scannet-prep unpack --salvage {path}",
    )


def _find_resume_offset(layout: Layout, checks: list[GroupCheck], whole_end: int) -> int:
    """Where the part ends that is whole from the beginning on."""
    end = 0
    for check in checks:
        if not check.is_whole or (check.place.offset != end and layout.index is None):
            return end
        end = check.place.end
    return max(end, whole_end)


def _check_twice(checks: list[GroupCheck], findings: ArchiveFindings) -> None:
    names: set[str] = set()
    scene_ids: set[str] = set()
    for check in checks:
        for member in check.members:
            if member.name in names:
                findings.error(f"holds {member.name[:80]!r} twice", scene_id=check.scene_id)
            names.add(member.name)
        if check.scene_id and check.scene_id in scene_ids:
            findings.error("is there twice", scene_id=check.scene_id)
        scene_ids.add(check.scene_id)


def _check_manifests(reports: list[ArchiveReport]) -> list[ArchiveFinding]:
    """Check that the scenes that a manifest names are there, in the same archive or in another shard."""
    findings = ArchiveFindings(reports[0].name)
    held = {
        name for item in reports if item.index is not None for name in (scene.scene_id for scene in item.index.scenes)
    }
    unheld = sorted({name for item in reports for name in item.unheld} - held)
    if not unheld:
        return []
    message = f"{MANIFEST_NAME} names {len(unheld):,} scenes that are not here, for example {unheld[0]}"
    if len(reports) == 1 and is_of_set(reports[0].name):
        findings.note(message, "the other shards have them: name all shards to check that")
    else:
        findings.error(message, "pack again; or, if these are shards that were renamed, name all of them")
    return findings.found
