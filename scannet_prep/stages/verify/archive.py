"""Checks archives: every byte of each, and whether several are all the shards of a set."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from scannet_prep.archive.groups import GroupReader
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
    findings: tuple[Finding, ...]


@dataclass(frozen=True, slots=True)
class VerifyArchivesReport:
    """What `run` found.

    Attributes:
        path: Path or address of the first archive.
        paths: Of all.
        kind: `archive`.
        archive_kind: `processed` or `raw`; empty where nobody knows.
        quick: Whether no scene was read.
        scenes: How many were checked.
        vertices: Of the whole scenes; 0 where they were not counted.
        size_bytes: Size of the archives.
        content_bytes: Size of the tar bytes that were checked.
        whole_scenes: Scenes whose files are whole.
        damaged_scenes: The others, as far as they can be named.
        truncated: Whether an archive ends too early.
        findings: Errors first, then by scene.
    """

    path: str
    paths: tuple[str, ...]
    kind: str
    archive_kind: str
    quick: bool
    scenes: int
    vertices: int
    size_bytes: int
    content_bytes: int
    whole_scenes: tuple[str, ...]
    damaged_scenes: tuple[str, ...]
    truncated: bool
    findings: tuple[Finding, ...]

    @property
    def errors(self) -> tuple[Finding, ...]:
        """The findings that are wrong, not just worth knowing."""
        return tuple(finding for finding in self.findings if finding.is_error)


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
    check = _Check(plan)
    progress.start("verify", 0 if plan.is_quick else sum(item.size_bytes for item in plan.archives), "B")
    try:
        for item in plan.archives:
            check.read(item, jobs, progress)
    finally:
        progress.finish()
        for item in plan.archives:
            item.source.close()
    return check.end()


def _error(name: str, message: str, hint: str = "", scene_id: str = "") -> Finding:
    return Finding(name, scene_id, Severity.ERROR, message, hint)


def _check_set(archives: Sequence[ArchivePlan], selection: Selection, *, must_be_complete: bool) -> list[Finding]:
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


class _Check:
    """What has been found so far."""

    def __init__(self, plan: VerifyArchivesPlan) -> None:
        self._plan = plan
        self._findings = list(plan.findings)
        self._whole: dict[str, Group] = {}
        self._damaged: set[str] = set()
        self._manifest = Manifest()
        self._kind = ""
        self._content_bytes = 0
        self._is_truncated = self._has_lost_index = False

    def read(self, item: ArchivePlan, jobs: int, progress: Progress) -> None:
        """Check one archive."""

        def chooses(scene_id: str, split: str) -> bool:
            wanted = scene_id in item.chosen if item.index is not None else self._plan.selection.wants(scene_id, split)
            return wanted and not self._plan.is_quick

        reader = GroupReader(item.source, _fingerprint, chooses, jobs)
        reader.open()
        found: dict[str, Mapping[str, Fingerprint | bytes]] = {}
        groups: dict[str, Group] = {}
        for outcome in reader.read():
            group = outcome.group
            progress.advance(group.size_bytes)
            self._content_bytes += group.size_bytes
            for warning in outcome.warnings:
                self._note(item.name, warning, group.scene_id)
            if outcome.result is None:
                found.pop(group.scene_id, None)
                self._tell_damage(item.name, group, outcome.problem)
            else:
                found[group.scene_id], groups[group.scene_id] = outcome.result, group
        manifest = self._read_manifest(item.name, found.pop("", {}).get(MANIFEST_NAME, b""))
        self._manifest = replace(manifest, scenes={**self._manifest.scenes, **manifest.scenes})
        self._tell_rest(item.name, reader, len(found), len(manifest.scenes))
        index = {group.scene_id: group for group in (reader.index.groups if reader.index is not None else ())}
        for scene_id, files in sorted(found.items()):
            group = self._whole[scene_id] = index.get(scene_id, groups[scene_id])
            if manifest.scenes and (problem := _compare(group, files, manifest)):
                self._findings.append(_error(item.name, problem, _MANIFEST_HINT, scene_id))
        if self._plan.is_quick:
            self._whole |= {scene_id: index[scene_id] for scene_id in item.chosen}

    def end(self) -> VerifyArchivesReport:
        """All archives have been read: compare the scenes that they hold with those that the manifests name."""
        names = tuple(item.name for item in self._plan.archives)
        held = {group.scene_id for item in self._plan.archives if item.index for group in item.index.scenes}
        lacking = sorted(set(self._manifest.scenes) - held - set(self._whole))
        if lacking and not self._has_lost_index:
            message = f"{MANIFEST_NAME} names {len(lacking):,} scenes that are not here, for example {lacking[0]}"
            if len(names) == 1 and is_of_set(names[0]):
                self._note(names[0], message, hint="the other shards have them: name all shards to check that")
            else:
                hint = "pack again; or, if these are shards that were renamed, name all of them"
                self._findings.append(_error(names[0], message, hint))
        whole = {scene_id: group for scene_id, group in self._whole.items() if scene_id not in self._damaged}
        return VerifyArchivesReport(
            path=names[0],
            paths=names,
            kind="archive",
            archive_kind=self._kind,
            quick=self._plan.is_quick,
            scenes=len(whole) + len(self._damaged),
            vertices=sum(group.vertex_count for group in whole.values()),
            size_bytes=sum(item.source.size_bytes for item in self._plan.archives),
            content_bytes=self._content_bytes,
            whole_scenes=tuple(sorted(whole)),
            damaged_scenes=tuple(sorted(self._damaged)),
            truncated=self._is_truncated,
            findings=tuple(sorted(self._findings, key=lambda item: (item.severity, item.scene_id))),
        )

    def _read_manifest(self, name: str, data: Fingerprint | bytes) -> Manifest:
        try:
            return parse_manifest(data, MANIFEST_NAME) if data and isinstance(data, bytes) else Manifest()
        except ManifestError as error:
            self._findings.append(_error(name, f"{MANIFEST_NAME} {error.problem}", _MANIFEST_HINT))
            return Manifest()

    def _tell_damage(self, name: str, group: Group, problem: str) -> None:
        place = f"bytes {group.offset:,} to {group.end:,}"
        if group.scene_id:
            self._damaged.add(group.scene_id)
            message = f"is damaged ({place}): {problem}"
        else:
            what = "a scene that cannot be named" if group.offset else "the files that belong to no scene"
            message = f"damaged: {what} ({place}): {problem}"
        self._findings.append(_error(name, message, _DAMAGED_HINT, group.scene_id))

    def _tell_rest(self, name: str, reader: GroupReader[Any], whole_count: int, named_count: int) -> None:
        of_all = f" of {named_count:,}" if named_count else ""
        for problem in reader.problems:
            self._findings.append(_error(name, f"{problem}; whole scenes: {whole_count:,}{of_all}", _DAMAGED_HINT))
        for warning in reader.warnings:
            self._note(name, warning)
        if reader.head is not None:
            self._kind = str(reader.head.kind)
            if not reader.head.is_complete:
                hint = "run the same scannet-prep process command again, then scannet-prep pack"
                self._findings.append(_error(name, "processing had not finished when it was packed", hint))
        self._is_truncated |= reader.is_truncated
        self._has_lost_index |= reader.index is None

    def _note(self, name: str, message: str, scene_id: str = "", hint: str = _WARNING_HINT) -> None:
        self._findings.append(Finding(name, scene_id, Severity.NOTE, message, hint))


def _compare(group: Group, files: Mapping[str, Fingerprint | bytes], manifest: Manifest) -> str:
    """What the manifest says otherwise of a scene; empty where all is the same."""
    entry = manifest.scenes.get(group.scene_id)
    if entry is None:
        return f"is not in {MANIFEST_NAME}"
    if files.get(f"{entry.split}/{group.scene_id}.npz") != entry.fingerprint:
        return f"its file is not what {MANIFEST_NAME} says"
    if group.vertex_count not in (0, entry.vertex_count):
        return f"has {group.vertex_count:,} vertices in the index, {entry.vertex_count:,} in {MANIFEST_NAME}"
    return ""
