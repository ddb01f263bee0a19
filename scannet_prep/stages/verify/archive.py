"""Checks archives: every byte of each, and whether several are all the shards of a set."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import msgspec

from scannet_prep.archive.groups import GroupReader, Outcome
from scannet_prep.archive.index import Group
from scannet_prep.archive.shards import find_missing_shards, is_of_set
from scannet_prep.archive.source import ByteSource, open_sources
from scannet_prep.errors import ManifestError, UnknownSplitError, UsageError
from scannet_prep.files import Fingerprint
from scannet_prep.processed.manifest import MANIFEST_NAME, Manifest, parse_manifest
from scannet_prep.progress import NoProgress, Progress
from scannet_prep.scene import Split
from scannet_prep.splits import official_scenes
from scannet_prep.stages.finding import CheckReport, Findings, sort_findings
from scannet_prep.stages.selection import Selection

_DAMAGED_HINT = "copy the archive again, or pack it again; the other scenes can be used, and unpack gets them out"
_WARNING_HINT = "the files are whole; to mend the archive, copy it again, or pack it again with --force"
_MANIFEST_HINT = "scannet-prep pack did not make the archive so: pack it again"

_Files = Mapping[str, "Fingerprint | bytes"]


@dataclass(frozen=True, slots=True)
class ArchivesReport(CheckReport):
    """What a check of archives found; the path is that of the first one, and the size that of all.

    Attributes:
        paths: Paths or addresses of all.
        archive_kind: `processed` or `raw`; empty where nobody knows.
        quick: Whether no scene was read.
        content_bytes: Size of the tar bytes that were checked.
        whole_scenes: Scenes whose files are whole.
        damaged_scenes: The others, as far as they can be named.
        truncated: Whether an archive ends too early.
    """

    paths: tuple[str, ...]
    archive_kind: str
    quick: bool
    content_bytes: int
    whole_scenes: tuple[str, ...]
    damaged_scenes: tuple[str, ...]
    truncated: bool


@dataclass(slots=True)
class _Opened:
    """An archive, and the scenes of it that are checked: none where its index cannot be read at the beginning."""

    name: str
    reader: GroupReader[_Files]
    chosen: frozenset[str] = frozenset()

    @property
    def scenes(self) -> Sequence[Group]:
        """The scenes that it holds, as far as its index has been read."""
        return self.reader.index.scenes if self.reader.index is not None else ()


@dataclass(slots=True)
class _Check:
    """What has been found so far."""

    findings: Findings = field(default_factory=Findings)
    whole: dict[str, Group] = field(default_factory=dict)
    damaged: set[str] = field(default_factory=set)
    manifest: Manifest = field(default_factory=Manifest)
    content_bytes: int = 0


def run(
    archives: Sequence[str | Path | ByteSource],
    *,
    selection: Selection | None = None,
    is_quick: bool = False,
    must_be_complete: bool = False,
    certificates: bool | Path = True,
    jobs: int = 1,
    progress: Progress | None = None,
) -> ArchivesReport:
    """Check archives. Whatever is wrong with their content is a finding, and the check goes on.

    Args:
        archives: Paths, addresses, or objects that read the bytes; several count as the shards of one.
        selection: Which scenes; all by default.
        is_quick: Whether to read no scene: only the index, the seek table, and the files that belong to no scene.
        must_be_complete: Whether a scene of the official lists that is not there is an error.
        certificates: Of addresses, whom to trust: True for the system's authorities, a file with others, False to
            accept any certificate.
        jobs: Number of threads.
        progress: Told of tar bytes.

    Raises:
        MissingFileError: There is no such file.
        ArchiveError: It cannot be read, is not an archive of this program, or holds what no archive of it does.
        UnknownSplitError: No scene is of the splits that were asked for.
        UsageError: Some scenes only, and yet complete; the same archive twice; or not an address.
        TransferError: An archive is on a web server, which does not give it.
    """
    selection, progress, check = selection or Selection(), progress or NoProgress(), _Check()
    if must_be_complete and not selection.has_whole_splits:
        raise UsageError("a part of the scenes cannot be complete", "leave out --complete, or --scenes and --limit")
    sources = open_sources(archives, certificates=certificates)
    try:
        opened = [_open(source, selection, is_quick=is_quick, jobs=jobs) for source in sources]
        _check_set(opened, selection, check.findings, must_be_complete=must_be_complete)
        groups = [(group, item) for item in opened if item.reader.index for group in item.reader.index.groups]
        total = sum(group.size_bytes for group, item in groups if group.scene_id in {"", *item.chosen})
        progress.start("verify", 0 if is_quick else total, "B")
        try:
            for item in opened:
                _read(item, check, progress, is_quick=is_quick)
        finally:
            progress.finish()
    finally:
        for source in sources:
            source.close()
    _compare_manifest(opened, check)
    whole = {scene_id: group for scene_id, group in check.whole.items() if scene_id not in check.damaged}
    heads = [item.reader.head for item in opened if item.reader.head is not None]
    return ArchivesReport(
        path=opened[0].name,
        paths=tuple(item.name for item in opened),
        kind="archive",
        archive_kind=str(heads[-1].kind) if heads else "",
        quick=is_quick,
        scenes=len(whole) + len(check.damaged),
        vertices=sum(group.vertex_count for group in whole.values()),
        size_bytes=sum(source.size_bytes for source in sources),
        content_bytes=check.content_bytes,
        whole_scenes=tuple(sorted(whole)),
        damaged_scenes=tuple(sorted(check.damaged)),
        truncated=any(item.reader.is_truncated for item in opened),
        findings=sort_findings(check.findings.found),
    )


def _open(source: ByteSource, selection: Selection, *, is_quick: bool, jobs: int) -> _Opened:
    """Read the index of an archive, and choose its scenes; without an index each is asked about when it comes."""
    opened = _Opened(source.name, GroupReader(source, _fingerprint, selection.wants, jobs))
    if opened.reader.open() is not None:
        wanted = [scene.scene_id for scene in opened.scenes if selection.wants(scene.scene_id, scene.split)]
        opened.chosen = chosen = frozenset(wanted[: selection.limit])
        opened.reader.chooses = lambda scene_id, _split: scene_id in chosen
    if is_quick:
        opened.reader.chooses = lambda _scene_id, _split: False
    return opened


def _fingerprint(group: Group, contents: list[memoryview]) -> _Files:
    """What the check needs of each file: of the manifest the content, of others size and CRC-32."""
    return {
        member.name: bytes(data) if member.name == MANIFEST_NAME else Fingerprint.from_bytes(data)
        for member, data in zip(group.members, contents, strict=True)
    }


def _check_set(
    archives: Sequence[_Opened], selection: Selection, findings: Findings, *, must_be_complete: bool
) -> None:
    """Check what concerns several archives together: missing shards, scenes that are there twice or not at all."""
    for name in find_missing_shards([item.name for item in archives]) if len(archives) > 1 else ():
        findings.error(name, "is missing in the set of shards", "copy or download it too")
    holders: dict[str, str] = {}
    for item in archives:
        for scene in item.scenes:
            holder = holders.setdefault(scene.scene_id, item.name)
            if holder != item.name:
                hint = "are these shards of different sets? Leave one out"
                findings.error(item.name, f"is also in {Path(holder).name}", hint, scene_id=scene.scene_id)
    if all(item.reader.index is not None for item in archives):
        _check_selection(archives, selection, set(holders), findings, must_be_complete=must_be_complete)


def _check_selection(
    archives: Sequence[_Opened], selection: Selection, held: set[str], findings: Findings, *, must_be_complete: bool
) -> None:
    """Check that the archives hold what was asked for."""
    name, chosen = archives[0].name, {scene_id for item in archives for scene_id in item.chosen}
    if selection.splits and selection.scene_ids is None and not chosen:
        # To check nothing and find nothing wrong would be no check.
        raise UnknownSplitError(f"{name}: holds no scenes of {', '.join(selection.splits)}", "choose other splits")
    if selection.limit is None:
        for scene_id in sorted(set(selection.scene_ids or ()) - chosen):
            where = f"is not in {', '.join(selection.splits)}" if scene_id in held else "is not in the archive"
            findings.error(name, where, scene_id=scene_id)
    for split in (selection.splits or tuple(Split)) if must_be_complete else ():
        for scene_id in official_scenes(split):
            if scene_id not in held:
                findings.error(name, f"no such scene, though the official list of {split} has it", scene_id=scene_id)


def _read(item: _Opened, check: _Check, progress: Progress, *, is_quick: bool) -> None:
    """Check one archive."""
    name, reader, findings = item.name, item.reader, check.findings
    found: dict[str, tuple[Group, _Files]] = {}
    for outcome in reader.read():
        group = outcome.group
        progress.advance(group.size_bytes)
        check.content_bytes += group.size_bytes
        for warning in outcome.warnings:
            findings.note(name, warning, _WARNING_HINT, scene_id=group.scene_id)
        if outcome.result is None:
            found.pop(group.scene_id, None)
            _tell_damage(name, outcome, check)
        else:
            found[group.scene_id] = group, outcome.result
    shared = found.pop("", None)
    manifest = _parse_manifest(name, shared[1].get(MANIFEST_NAME, b"") if shared else b"", findings)
    check.manifest = msgspec.structs.replace(manifest, scenes={**check.manifest.scenes, **manifest.scenes})
    of_all = f" of {len(manifest.scenes):,}" if manifest.scenes else ""
    for problem in reader.problems:
        findings.error(name, f"{problem}; whole scenes: {len(found):,}{of_all}", _DAMAGED_HINT)
    for warning in reader.warnings:
        findings.note(name, warning, _WARNING_HINT)
    if reader.head is not None and not reader.head.is_complete:
        hint = "run the same scannet-prep process command again, then scannet-prep pack"
        findings.error(name, "processing had not finished when it was packed", hint)
    index = {group.scene_id: group for group in item.scenes}
    for scene_id, (group, files) in sorted(found.items()):
        check.whole[scene_id] = index.get(scene_id, group)
        if manifest.scenes and (problem := _compare_entry(check.whole[scene_id], files, manifest)):
            findings.error(name, problem, _MANIFEST_HINT, scene_id=scene_id)
    if is_quick:
        check.whole |= {scene_id: index[scene_id] for scene_id in item.chosen}


def _tell_damage(name: str, outcome: Outcome[_Files], check: _Check) -> None:
    group = outcome.group
    place = f"bytes {group.offset:,} to {group.end:,}"
    if group.scene_id:
        check.damaged.add(group.scene_id)
        message = f"is damaged ({place}): {outcome.problem}"
    else:
        what = "a scene that cannot be named" if group.offset else "the files that belong to no scene"
        message = f"damaged: {what} ({place}): {outcome.problem}"
    check.findings.error(name, message, _DAMAGED_HINT, scene_id=group.scene_id)


def _parse_manifest(name: str, data: Fingerprint | bytes, findings: Findings) -> Manifest:
    try:
        return parse_manifest(data, MANIFEST_NAME) if data and isinstance(data, bytes) else Manifest()
    except ManifestError as error:
        findings.error(name, f"{MANIFEST_NAME} {error.problem}", _MANIFEST_HINT)
        return Manifest()


def _compare_entry(group: Group, files: _Files, manifest: Manifest) -> str:
    """What the manifest says otherwise of a scene; empty where all is the same."""
    entry = manifest.scenes.get(group.scene_id)
    if entry is None:
        return f"is not in {MANIFEST_NAME}"
    if files.get(f"{entry.split}/{group.scene_id}.npz") != entry.fingerprint:
        return f"its file is not what {MANIFEST_NAME} says"
    if group.vertex_count not in (0, entry.vertex_count):
        return f"has {group.vertex_count:,} vertices in the index, {entry.vertex_count:,} in {MANIFEST_NAME}"
    return ""


def _compare_manifest(archives: Sequence[_Opened], check: _Check) -> None:
    """Compare the scenes that all archives hold with those that their manifests name."""
    held = {scene.scene_id for item in archives for scene in item.scenes}
    lacking = sorted(set(check.manifest.scenes) - held - set(check.whole))
    if lacking and all(item.reader.index is not None for item in archives):
        name = archives[0].name
        message = f"{MANIFEST_NAME} names {len(lacking):,} scenes that are not here, for example {lacking[0]}"
        if len(archives) == 1 and is_of_set(name):
            check.findings.note(name, message, "the other shards have them: name all shards to check that")
        else:
            hint = "pack again; or, if these are shards that were renamed, name all of them"
            check.findings.error(name, message, hint)
