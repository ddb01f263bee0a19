"""Checks archives: every byte of each, and whether several are all the shards of a set."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from scannet_prep.archive.groups import ArchiveSet
from scannet_prep.archive.layout import find_twice
from scannet_prep.archive.source import Place
from scannet_prep.errors import UsageError
from scannet_prep.files import Fingerprint
from scannet_prep.processed.manifest import MANIFEST_NAME
from scannet_prep.progress import Progress
from scannet_prep.scene import Split
from scannet_prep.splits import official_scenes
from scannet_prep.stages.finding import CheckReport, Findings, sort_findings
from scannet_prep.stages.selection import Selection

_DAMAGED_HINT = "copy the archive again, or pack it again; the other scenes can be used, and unpack gets them out"
_WARNING_HINT = "the files are whole; to mend the archive, copy it again, or pack it again with --force"

_MANIFEST_HINT = (
    "pack the processed folder again with --force; if it is gone: unpack, then scannet-prep process --checksum"
)


@dataclass(frozen=True, slots=True)
class ArchivesReport(CheckReport):
    """What a check of archives found; the path is that of the first one, and the size that of all.

    Attributes:
        paths: Paths or addresses of all.
        archive_kind: `processed` or `raw`.
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


def run(
    archives: Sequence[Place],
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
        is_quick: Whether to read no scene, where there is an index: only that, the seek table, and the files that
            belong to no scene.
        must_be_complete: Whether a scene of the official lists that is not there is an error.
        certificates: Of addresses, whom to trust, as `RangeSource` takes it.
        jobs: Number of threads.
        progress: Told of tar bytes.

    Raises:
        UnknownSceneError: No scene is of the splits that were asked for.
        UsageError: Some scenes only, and yet complete.
        ScanNetPrepError: What `ArchiveSet` raises.
    """
    selection, progress, findings = selection or Selection(), progress or Progress(), Findings()
    if must_be_complete and not selection.has_whole_splits:
        raise UsageError("a part of the scenes cannot be complete", "leave out --complete, or --scenes and --limit")
    opened = ArchiveSet(archives, selection.wants, selection.limit, certificates)
    checked, damaged, crcs = dict[str, int](), set[str](), dict[str, str]()

    def note_crc(scene_id: str, contents: Mapping[str, memoryview]) -> None:
        crcs[scene_id] = Fingerprint.from_bytes(*contents.values()).crc32

    with progress.work("verify", 0 if is_quick else opened.size_bytes, "B"):
        for reader in opened.readers:
            if is_quick and reader.index is not None:
                checked |= {scene.scene_id: scene.vertex_count for scene in reader.chosen}
            else:
                for group, problem in reader.read(note_crc, jobs, progress):
                    checked[group.scene_id] = 0 if problem else group.vertex_count
                    if problem:
                        damaged.add(group.scene_id)
                        message = f"is damaged (bytes {group.offset:,} to {group.end:,}): {problem}"
                        findings.error(reader.name, message, _DAMAGED_HINT, scene_id=group.scene_id)
            for problem in reader.problems:
                findings.error(reader.name, problem, _DAMAGED_HINT)
            for warning in reader.warnings:
                findings.note(reader.name, warning, _WARNING_HINT)
            if not reader.head.is_complete:
                hint = "run the same scannet-prep process command again, then scannet-prep pack"
                findings.error(reader.name, "processing had not finished when it was packed", hint)
            reader.source.close()
    # Not before: where its end is damaged, the index of an archive is found on the way.
    _check_set(opened, set(checked), selection, findings, must_be_complete=must_be_complete)
    whole = {name: vertex_count for name, vertex_count in checked.items() if name not in damaged}
    _check_manifests(opened, whole, crcs, findings)
    return ArchivesReport(
        path=opened.names[0],
        paths=tuple(opened.names),
        kind="archive",
        archive_kind=str(opened.readers[0].head.kind),
        quick=is_quick,
        scenes=len(checked),
        vertices=sum(checked.values()),
        size_bytes=sum(reader.source.size_bytes for reader in opened.readers),
        content_bytes=sum(reader.content_bytes for reader in opened.readers),
        whole_scenes=tuple(sorted(whole)),
        damaged_scenes=tuple(sorted(damaged)),
        truncated=any(reader.is_truncated for reader in opened.readers),
        findings=sort_findings(findings.found),
    )


def _check_set(
    archives: ArchiveSet, checked: set[str], selection: Selection, findings: Findings, *, must_be_complete: bool
) -> None:
    """Check what concerns several archives together: missing shards, scenes that are there twice or not at all."""
    names, missing, held = archives.names, archives.missing_shards, archives.held
    if missing:
        tell = findings.error if len(names) > 1 else findings.note
        message = f"of its set of shards, {len(missing):,} were not given, for example {missing[0]}"
        tell(names[0], message, "copy or download them too, and name all of them")
    for scene_id, holder, name in find_twice((reader.name, reader.held) for reader in archives.readers):
        hint = "are these shards of different sets? Leave one out"
        findings.error(name, f"is also in {Path(holder).name}", hint, scene_id=scene_id)
    if selection.scene_ids is None and not checked:  # to find nothing wrong would be no check
        selection.check_found(names[0], held, "choose other splits")
    for scene_id in sorted(set(selection.scene_ids or ()) - checked) if selection.limit is None else ():
        where = f"is not in {', '.join(selection.splits)}" if scene_id in held else "is not in the archive"
        findings.error(names[0], where, scene_id=scene_id)
    for split in (selection.splits or tuple(Split)) if must_be_complete else ():
        message = f"no such scene, though the official list of {split} has it"
        for scene_id in sorted(set(official_scenes(split)) - held.keys()):
            findings.error(names[0], message, scene_id=scene_id)


def _check_manifests(
    archives: ArchiveSet, vertex_counts: Mapping[str, int], crcs: Mapping[str, str], findings: Findings
) -> None:
    """Check whole scenes against the manifests in the archives; tables, class weights and unpacked folders use them."""
    wrong, held, words = dict[str, str](), archives.held, "{}, {:,} vertices, CRC-32 {}"
    has_all = archives.has_indexes and not archives.missing_shards
    for reader in archives.readers:
        manifest = findings.attempt(Path(reader.name), reader.read_manifest)
        for name, entry in manifest.scenes.items() if manifest is not None else ():
            expected = str(entry.split), entry.vertex_count, entry.crc32
            if name not in held and has_all:
                wrong[name] = "is not in the archive"
            elif name in vertex_counts:  # what was not read, or has no index, is not known
                found = held[name], vertex_counts[name] or entry.vertex_count, crcs.get(name, entry.crc32)
                if found != expected:
                    wrong[name] = f"is {words.format(*found)}; the manifest says {words.format(*expected)}"
        if manifest is not None:
            unnamed = (reader.held.keys() & vertex_counts) - manifest.scenes.keys()
            wrong |= dict.fromkeys(unnamed, "is not in the manifest")
    if wrong:
        name, problem = min(wrong.items())
        message = f"{MANIFEST_NAME} does not fit the scenes, {len(wrong):,} of them; for example {name} {problem}"
        findings.error(archives.names[0], message, _MANIFEST_HINT)
