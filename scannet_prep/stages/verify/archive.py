"""Checks archives: every byte of each, and whether several are all the shards of a set."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import astuple, dataclass
from pathlib import Path

from scannet_prep.archive.groups import GroupReader, open_readers
from scannet_prep.archive.layout import find_twice
from scannet_prep.archive.source import Place, find_missing_shards
from scannet_prep.errors import UnknownSplitError, UsageError
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
        UnknownSplitError: No scene is of the splits that were asked for.
        UsageError: Some scenes only, and yet complete.
        ScanNetPrepError: What `open_readers` raises.
    """
    selection, progress, findings = selection or Selection(), progress or Progress(), Findings()
    if must_be_complete and not selection.has_whole_splits:
        raise UsageError("a part of the scenes cannot be complete", "leave out --complete, or --scenes and --limit")
    readers = open_readers(archives, selection.wants, selection.limit, certificates)
    checked, damaged, fingerprints = dict[str, int](), set[str](), dict[str, Fingerprint]()

    def note_content(scene_id: str, contents: Mapping[str, memoryview]) -> None:
        fingerprints[scene_id] = Fingerprint.from_bytes(*contents.values())

    with progress.work("verify", 0 if is_quick else sum(reader.size_bytes for reader in readers), "B"):
        for reader in readers:
            if is_quick and reader.index is not None:
                checked |= {scene.scene_id: scene.vertex_count for scene in reader.chosen}
            else:
                for group, problem in reader.read(note_content, jobs, progress):
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
    _check_set(readers, set(checked), selection, findings, must_be_complete=must_be_complete)
    whole = {name: vertex_count for name, vertex_count in checked.items() if name not in damaged}
    _check_manifests(readers, whole, fingerprints, findings)
    return ArchivesReport(
        path=readers[0].name,
        paths=tuple(reader.name for reader in readers),
        kind="archive",
        archive_kind=str(readers[0].head.kind),
        quick=is_quick,
        scenes=len(checked),
        vertices=sum(checked.values()),
        size_bytes=sum(reader.source.size_bytes for reader in readers),
        content_bytes=sum(reader.content_bytes for reader in readers),
        whole_scenes=tuple(sorted(checked.keys() - damaged)),
        damaged_scenes=tuple(sorted(damaged)),
        truncated=any(reader.is_truncated for reader in readers),
        findings=sort_findings(findings.found),
    )


def _check_set(
    readers: Sequence[GroupReader],
    checked: set[str],
    selection: Selection,
    findings: Findings,
    *,
    must_be_complete: bool,
) -> None:
    """Check what concerns several archives together: missing shards, scenes that are there twice or not at all."""
    names = [reader.name for reader in readers]
    if missing := find_missing_shards(names):
        tell = findings.error if len(names) > 1 else findings.note
        message = f"of its set of shards, {len(missing):,} were not given, for example {missing[0]}"
        tell(names[0], message, "copy or download them too, and name all of them")
    for scene_id, holder, name in find_twice((reader.name, reader.held) for reader in readers):
        hint = "are these shards of different sets? Leave one out"
        findings.error(name, f"is also in {Path(holder).name}", hint, scene_id=scene_id)
    held = checked.union(*(reader.held for reader in readers))
    if selection.splits and selection.scene_ids is None and not checked:
        # To check nothing and find nothing wrong would be no check.
        raise UnknownSplitError(f"{names[0]}: holds no scenes of {', '.join(selection.splits)}", "choose other splits")
    for scene_id in sorted(set(selection.scene_ids or ()) - checked) if selection.limit is None else ():
        where = f"is not in {', '.join(selection.splits)}" if scene_id in held else "is not in the archive"
        findings.error(names[0], where, scene_id=scene_id)
    for split in (selection.splits or tuple(Split)) if must_be_complete else ():
        message = f"no such scene, though the official list of {split} has it"
        for scene_id in sorted(set(official_scenes(split)) - held):
            findings.error(names[0], message, scene_id=scene_id)


def _check_manifests(
    readers: Sequence[GroupReader],
    vertex_counts: Mapping[str, int],
    fingerprints: Mapping[str, Fingerprint],
    findings: Findings,
) -> None:
    """Check whole scenes against the manifests in the archives; tables, class weights and unpacked folders use them."""
    wrong, held = dict[str, str](), {name: split for reader in readers for name, split in reader.held.items()}
    has_all = all(reader.index is not None for reader in readers) and not find_missing_shards(r.name for r in readers)
    for reader in readers:
        manifest = findings.attempt(Path(reader.name), reader.read_manifest)
        if manifest is None:
            continue
        if has_all:
            wrong |= dict.fromkeys(manifest.scenes.keys() - held, "is not in the archive")
        for name in reader.held.keys() & vertex_counts.keys():
            entry = manifest.scenes.get(name)
            if entry is None:
                wrong[name] = "is not in the manifest"
                continue
            found = held[name], vertex_counts[name], *astuple(fingerprints.get(name, entry.fingerprint))
            expected = str(entry.split), vertex_counts[name] and entry.vertex_count, *astuple(entry.fingerprint)
            if found != expected:
                words = "{}, {:,} vertices, {:,} bytes, CRC-32 {}"
                wrong[name] = f"is {words.format(*found)}; the manifest says {words.format(*expected)}"
    if wrong:
        name, problem = min(wrong.items())
        message = f"{MANIFEST_NAME} does not fit the scenes, {len(wrong):,} of them; for example {name} {problem}"
        findings.error(readers[0].name, message, _MANIFEST_HINT)
