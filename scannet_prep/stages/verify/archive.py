"""Checks archives: every byte of each, and whether several are all the shards of a set."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from scannet_prep.archive.groups import GroupReader, Outcome
from scannet_prep.archive.index import Group, Index
from scannet_prep.archive.shards import find_missing_shards, is_of_set
from scannet_prep.archive.source import ByteSource, open_sources
from scannet_prep.errors import ManifestError, UnknownSplitError, UsageError
from scannet_prep.files import Fingerprint
from scannet_prep.processed.manifest import MANIFEST_NAME, Manifest, parse_manifest
from scannet_prep.progress import NoProgress, Progress
from scannet_prep.scene import Split
from scannet_prep.splits import official_scenes
from scannet_prep.stages.finding import Finding, Severity
from scannet_prep.stages.selection import Selection

_DAMAGED_HINT = "copy the archive again, or pack it again; the other scenes can be used, and unpack gets them out"
_WARNING_HINT = "the files are whole; to mend the archive, copy it again, or pack it again with --force"
_MANIFEST_HINT = "scannet-prep pack did not make the archive so: pack it again"


@dataclass(frozen=True, slots=True)
class ArchiveFinding(Finding):
    """One thing that a check found in an archive."""

    @property
    def place(self) -> str:
        """Where it was found, in words."""
        return f"{self.path}: {self.scene_id}" if self.scene_id else str(self.path)


@dataclass(frozen=True, slots=True)
class ArchivePlan:
    """One archive that is going to be checked.

    Attributes:
        source: Its bytes.
        index: What is in it; None where its end is damaged.
        chosen: The scenes that are checked; empty where nobody knows yet.
    """

    source: ByteSource
    index: Index | None
    chosen: frozenset[str]

    @property
    def name(self) -> str:
        """Path or address."""
        return self.source.name

    @property
    def scene_count(self) -> int:
        """Number of scenes that are checked, as far as it is known."""
        return len(self.chosen)

    @property
    def size_bytes(self) -> int:
        """Tar bytes of the groups that are checked; 0 where nobody knows."""
        groups = self.index.groups if self.index is not None else ()
        return sum(group.size_bytes for group in groups if group.scene_id in {"", *self.chosen})


@dataclass(frozen=True, slots=True)
class VerifyArchivesPlan:
    """What `run` is going to check; making it reads no scene.

    Attributes:
        archives: One or several.
        selection: Which scenes.
        is_quick: Whether only the ends are looked at, and the files that belong to no scene.
        findings: About the archives as a set.
    """

    archives: tuple[ArchivePlan, ...]
    selection: Selection
    is_quick: bool
    findings: tuple[ArchiveFinding, ...]


@dataclass(frozen=True, slots=True)
class ArchiveReport:
    """What was found about one archive.

    Attributes:
        name: Its path or address.
        index: What it says about itself; None where that is lost.
        size_bytes: Size of the file.
        content_bytes: Size of the tar bytes that were checked.
        whole_scenes: Scenes whose files are whole.
        damaged_scenes: The others, as far as they can be named.
        is_truncated: Whether the file ends too early.
        manifest: The manifest of a processed archive; empty where there is none.
        findings: Errors first, then by scene.
    """

    name: str
    index: Index | None
    size_bytes: int
    content_bytes: int
    whole_scenes: tuple[str, ...]
    damaged_scenes: tuple[str, ...]
    is_truncated: bool
    manifest: Manifest
    findings: tuple[ArchiveFinding, ...]

    @property
    def scene_count(self) -> int:
        """Scenes that were checked."""
        return len(self.whole_scenes) + len(self.damaged_scenes)

    @property
    def vertex_count(self) -> int:
        """Vertices of the whole scenes; 0 where they were not counted."""
        whole = set(self.whole_scenes)
        return sum(scene.vertex_count for scene in (self.index.scenes if self.index else ()) if scene.scene_id in whole)

    def to_json(self) -> dict[str, Any]:
        """A dict of plain values."""
        return {
            "path": self.name,
            "archive_kind": None if self.index is None else str(self.index.head.kind),
            "scenes": self.scene_count,
            "vertices": self.vertex_count,
            "size_bytes": self.size_bytes,
            "content_bytes": self.content_bytes,
            "whole_scenes": list(self.whole_scenes),
            "damaged_scenes": list(self.damaged_scenes),
            "truncated": self.is_truncated,
        }


@dataclass(frozen=True, slots=True)
class VerifyArchivesReport:
    """What `run` found.

    Attributes:
        archives: One or several.
        is_quick: Whether no scene was read.
        set_findings: About the archives as a set.
    """

    archives: tuple[ArchiveReport, ...]
    is_quick: bool
    set_findings: tuple[ArchiveFinding, ...]

    @property
    def findings(self) -> tuple[ArchiveFinding, ...]:
        """About all of them."""
        return (*self.set_findings, *(finding for archive in self.archives for finding in archive.findings))

    @property
    def errors(self) -> tuple[ArchiveFinding, ...]:
        """The findings that are wrong, not just worth knowing."""
        return tuple(finding for finding in self.findings if finding.is_error)

    def to_json(self) -> dict[str, Any]:
        """A dict of plain values; of a single archive flat, of several with their sums and each under `archives`."""
        values = [archive.to_json() for archive in self.archives]
        top = values[0]
        if len(values) > 1:
            top = {
                key: sum(value[key] for value in values)
                for key in ("scenes", "vertices", "size_bytes", "content_bytes")
            }
            for key in ("whole_scenes", "damaged_scenes"):
                top[key] = sorted({name for value in values for name in value[key]})
            top["archives"] = values
        return {
            "kind": "archive",
            "quick": self.is_quick,
            **top,
            "errors": len(self.errors),
            "notes": len(self.findings) - len(self.errors),
            "findings": self.findings,
        }


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
        is_quick: Whether to read no scene: only the index, the seek table, and the files that belong to no scene.
        must_be_complete: Whether a scene of the official lists that is not there is an error.
        certificates: Of addresses, whom to trust: True for the system's authorities, a file with others, False to
            accept any certificate.

    Raises:
        MissingFileError: There is no such file.
        ArchiveError: It cannot be read, or is not an archive of this program.
        UnknownSplitError: No scene is of the splits that were asked for.
        UsageError: Some scenes only, and yet complete; the same archive twice; or not an address.
        TransferError: An archive is on a web server, which does not give it.
    """
    selection = selection or Selection()
    if must_be_complete and (selection.scene_ids is not None or selection.limit is not None):
        raise UsageError("a part of the scenes cannot be complete", "leave out --complete, or --scenes and --limit")
    plans = []
    for source in open_sources(archives, certificates=certificates):
        index = GroupReader(source, _fingerprint).open()
        scenes = index.scenes if index is not None else ()
        chosen = [scene.scene_id for scene in scenes if selection.wants(scene.scene_id, scene.split)]
        plans.append(ArchivePlan(source, index, frozenset(chosen[: selection.limit])))
    findings = _check_set(plans, selection, must_be_complete=must_be_complete)
    return VerifyArchivesPlan(tuple(plans), selection, is_quick, tuple(findings))


def run(plan: VerifyArchivesPlan, *, jobs: int = 1, progress: Progress | None = None) -> VerifyArchivesReport:
    """Check the archives of a plan. Whatever is wrong is a finding, and the check goes on.

    Args:
        plan: From `plan`.
        jobs: Number of threads.
        progress: Told of tar bytes.

    Raises:
        ArchiveError: An archive holds what no archive of this program does.
        TransferError: A web server does not give an archive any more.
    """
    progress = progress or NoProgress()
    progress.start("verify", 0 if plan.is_quick else sum(item.size_bytes for item in plan.archives), "B")
    try:
        reports = [_check_archive(item, plan, jobs, progress) for item in plan.archives]
    finally:
        progress.finish()
        for item in plan.archives:
            item.source.close()
    return VerifyArchivesReport(tuple(reports), plan.is_quick, (*plan.findings, *_check_manifests(reports)))


def _error(name: str, message: str, hint: str = "", scene_id: str = "") -> ArchiveFinding:
    return ArchiveFinding(name, scene_id, Severity.ERROR, message, hint)


def _check_set(
    archives: Sequence[ArchivePlan], selection: Selection, *, must_be_complete: bool
) -> list[ArchiveFinding]:
    """Check what concerns several archives together: missing shards, scenes that are there twice or not at all."""
    missing = find_missing_shards([item.name for item in archives]) if len(archives) > 1 else ()
    findings = [_error(name, "is missing in the set of shards", "copy or download it too") for name in missing]
    holders: dict[str, str] = {}
    for item in archives:
        for scene in item.index.scenes if item.index is not None else ():
            holder = holders.setdefault(scene.scene_id, item.name)
            if holder != item.name:
                hint = "are these shards of different sets? Leave one out"
                findings.append(_error(item.name, f"is also in {Path(holder).name}", hint, scene.scene_id))
    if any(item.index is None for item in archives):
        return findings
    name, chosen = archives[0].name, {scene_id for item in archives for scene_id in item.chosen}
    if selection.splits and selection.scene_ids is None and not chosen:
        # To check nothing and find nothing wrong would be no check.
        raise UnknownSplitError(f"{name}: holds no scenes of {', '.join(selection.splits)}", "choose other splits")
    if selection.limit is None:
        for scene_id in sorted(set(selection.scene_ids or ()) - chosen):
            where = f"is not in {', '.join(selection.splits)}" if scene_id in holders else "is not in the archive"
            findings.append(_error(name, where, scene_id=scene_id))
    for split in (selection.splits or tuple(Split)) if must_be_complete else ():
        absent = [scene_id for scene_id in official_scenes(split) if scene_id not in holders]
        message = f"no such scene, though the official list of {split} has it"
        findings += [_error(name, message, scene_id=scene_id) for scene_id in absent]
    return findings


def _fingerprint(group: Group, contents: list[memoryview]) -> dict[str, Fingerprint | bytes]:
    """What the check needs of each file: of the manifest the content, of others size and CRC-32."""
    return {
        member.name: bytes(data) if member.name == MANIFEST_NAME else Fingerprint.from_bytes(data)
        for member, data in zip(group.members, contents, strict=True)
    }


def _check_archive(plan: ArchivePlan, whole_plan: VerifyArchivesPlan, jobs: int, progress: Progress) -> ArchiveReport:
    def chooses(scene_id: str, split: str) -> bool:
        wanted = scene_id in plan.chosen if plan.index is not None else whole_plan.selection.wants(scene_id, split)
        return wanted and not whole_plan.is_quick

    reader = GroupReader(plan.source, _fingerprint, chooses, jobs)
    reader.open()
    check = _ArchiveCheck(plan.name)
    for outcome in reader.read():
        progress.advance(outcome.group.size_bytes)
        check.take(outcome)
    check.end(reader)
    return ArchiveReport(
        name=plan.name,
        index=reader.index,
        size_bytes=plan.source.size_bytes,
        content_bytes=check.content_bytes,
        whole_scenes=tuple(sorted(plan.chosen if whole_plan.is_quick else check.found.keys() - check.damaged)),
        damaged_scenes=tuple(sorted(check.damaged)),
        is_truncated=reader.is_truncated,
        manifest=check.manifest,
        findings=tuple(sorted(check.findings, key=lambda finding: (finding.severity, finding.scene_id))),
    )


class _ArchiveCheck:
    """What is found in one archive.

    Args:
        name: Its path or address.
    """

    def __init__(self, name: str) -> None:
        self._name = name
        self.findings: list[ArchiveFinding] = []
        self.content_bytes = 0
        self.manifest = Manifest()
        self.found: dict[str, Mapping[str, Fingerprint | bytes]] = {}
        self.damaged: set[str] = set()

    def take(self, outcome: Outcome[dict[str, Fingerprint | bytes]]) -> None:
        """Take note of one group."""
        group = outcome.group
        self.content_bytes += group.size_bytes
        for warning in outcome.warnings:
            self._note(warning, group.scene_id)
        if outcome.result is None:
            self._tell_damage(group, outcome.problem)
        elif group.scene_id:
            self.found[group.scene_id] = outcome.result
        elif isinstance(data := outcome.result.get(MANIFEST_NAME), bytes):
            try:
                self.manifest = parse_manifest(data, MANIFEST_NAME)
            except ManifestError as error:
                self._error(f"{MANIFEST_NAME} {error.problem}", _MANIFEST_HINT)

    def end(self, reader: GroupReader[dict[str, Fingerprint | bytes]]) -> None:
        """All groups have come: tell what concerns the whole archive, and compare the scenes with the manifest."""
        of_all = f" of {len(self.manifest.scenes):,}" if self.manifest.scenes else ""
        for problem in reader.problems:
            self._error(f"{problem}; whole scenes: {len(self.found):,}{of_all}", _DAMAGED_HINT)
        for warning in reader.warnings:
            self._note(warning)
        if reader.head is not None and not reader.head.is_complete:
            hint = "run the same scannet-prep process command again, then scannet-prep pack"
            self._error("processing had not finished when it was packed", hint)
        counts = {group.scene_id: group.vertex_count for group in (reader.index.scenes if reader.index else ())}
        for scene_id in sorted(self.found.keys() - self.damaged) if self.manifest.scenes else ():
            entry = self.manifest.scenes.get(scene_id)
            if entry is None:
                self._error(f"is not in {MANIFEST_NAME}", _MANIFEST_HINT, scene_id)
            elif self.found[scene_id].get(f"{entry.split}/{scene_id}.npz") != entry.fingerprint:
                self._error(f"its file is not what {MANIFEST_NAME} says", _MANIFEST_HINT, scene_id)
            elif counts.get(scene_id, entry.vertex_count) != entry.vertex_count:
                message = f"has {counts[scene_id]:,} vertices in the index, {entry.vertex_count:,} in {MANIFEST_NAME}"
                self._error(message, _MANIFEST_HINT, scene_id)

    def _tell_damage(self, group: Group, problem: str) -> None:
        place = f"bytes {group.offset:,} to {group.end:,}"
        if group.scene_id:
            self.damaged.add(group.scene_id)
            self._error(f"is damaged ({place}): {problem}", _DAMAGED_HINT, group.scene_id)
        else:
            what = "a scene that cannot be named" if group.offset else "the files that belong to no scene"
            self._error(f"damaged: {what} ({place}): {problem}", _DAMAGED_HINT)

    def _error(self, message: str, hint: str, scene_id: str = "") -> None:
        self.findings.append(_error(self._name, message, hint, scene_id))

    def _note(self, message: str, scene_id: str = "") -> None:
        self.findings.append(ArchiveFinding(self._name, scene_id, Severity.NOTE, message, _WARNING_HINT))


def _check_manifests(reports: Sequence[ArchiveReport]) -> list[ArchiveFinding]:
    """Check that the scenes that a manifest names are there, in the same archive or in another shard."""
    if any(item.index is None for item in reports):
        return []
    held = {scene.scene_id for item in reports if item.index is not None for scene in item.index.scenes}
    lacking = sorted({name for item in reports for name in item.manifest.scenes} - held)
    if not lacking:
        return []
    message = f"{MANIFEST_NAME} names {len(lacking):,} scenes that are not here, for example {lacking[0]}"
    if len(reports) == 1 and is_of_set(reports[0].name):
        hint = "the other shards have them: name all shards to check that"
        return [ArchiveFinding(reports[0].name, "", Severity.NOTE, message, hint)]
    return [_error(reports[0].name, message, "pack again; or, if these are shards that were renamed, name all of them")]
