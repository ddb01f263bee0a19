"""A folder of scenes in, one archive or several shards out."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Mapping
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field
from functools import partial
from itertools import chain
from operator import attrgetter
from pathlib import Path
from shlex import quote

import msgspec

from scannet_prep.archive import layout
from scannet_prep.archive.checksum import CHECKSUM_SUFFIX
from scannet_prep.archive.layout import DEFAULT_LEVEL, MAX_CONTENT_BYTES, ArchiveKind, Head
from scannet_prep.archive.output import PIPE_NAME, WrittenArchive, find_same, working_beside, write
from scannet_prep.archive.reader import Archive
from scannet_prep.archive.source import SUFFIX, find_shards, shard_path
from scannet_prep.archive.writer import Contents, SourceFile, SourceGroup, iter_archive
from scannet_prep.base.errors import (
    FileError,
    ForeignFileError,
    NotOnServerError,
    OutputError,
    ScanNetPrepError,
    UsageError,
)
from scannet_prep.base.files import is_hidden_or_temporary, output_error
from scannet_prep.base.progress import Progress
from scannet_prep.base.typed_json import encode_json
from scannet_prep.base.version import VERSION
from scannet_prep.processed import folder
from scannet_prep.processed.manifest import MANIFEST_NAME, encode_manifest
from scannet_prep.processed.scene import FORMAT_VERSION, ProcessOptions
from scannet_prep.raw.layout import find_raw_scenes
from scannet_prep.raw.mesh import count_elements
from scannet_prep.release.files import ACCEPTANCE_NAME, MESH, SPLIT_DIRS
from scannet_prep.release.scene import Split
from scannet_prep.release.splits import find_official_split
from scannet_prep.stages.selection import Selection
from scannet_prep.tree import identify_tree

_PASSED_OVER = (layout.OWN_PREFIX.rstrip("/"), ACCEPTANCE_NAME)
_PROGRAM = f"scannet-prep {VERSION}"


@dataclass(frozen=True, slots=True)
class PackReport:
    """What `run` did.

    Attributes:
        archives: Sizes of the archive or the shards that were written, or are up to date, by path.
        sha256: Their SHA-256, by path.
        has_checksum_files: Whether `PATH.sha256` is beside each archive: not in a pipe or a bucket.
        kind: What they were made from.
        options: The options that processed scenes were made with; None for raw ones.
        scenes: How many scenes are in all archives.
        splits: Number of scenes in each split.
        size_bytes: Size of what was packed, before compression.
        up_to_date: Whether nothing had to be done: the archive was read, and holds just what the folder does.
        oversized: Sizes of the archives that are larger than a shard may be because of a single scene, by its id.
        missing: Why scenes are not there that failed in processing, by id.
        left_out: Files and folders that did not go in, because a tree of that kind has no such names; sorted.
    """

    archives: Mapping[str, int] = field(hash=False)
    sha256: Mapping[str, str] = field(hash=False)
    has_checksum_files: bool
    kind: ArchiveKind
    options: ProcessOptions | None
    scenes: int
    splits: Mapping[str, int] = field(hash=False)
    size_bytes: int
    up_to_date: bool
    oversized: Mapping[str, int] = field(hash=False)
    missing: Mapping[str, str] = field(hash=False)
    left_out: tuple[str, ...]


def run(
    source: Path,
    target: Path | str | None,
    *,
    selection: Selection | None = None,
    level: int = DEFAULT_LEVEL,
    shard_bytes: int | None = None,
    is_forced: bool = False,
    jobs: int = 1,
    progress: Progress | None = None,
    pipe: int = 1,
) -> PackReport:
    """Pack a folder. The archive gets its name when it is whole and on the disk.

    Args:
        source: A processed folder or a raw tree.
        target: The archive, `*.tar.zst`: a path, or an address in a bucket, such as `s3://BUCKET/NAME.tar.zst`; None
            for a pipe.
        selection: Which scenes; all by default.
        level: Compression level of zstd, 1..22; 0 stores.
        shard_bytes: Largest size of a file, for several shards; None for one file.
        is_forced: Whether to pack again what is up to date, and to replace an archive that holds more scenes.
        jobs: How many threads compress.
        progress: Told of tar bytes.
        pipe: Number of the open file that takes the archive, where there is no target.

    Raises:
        UsageError: What was asked for contradicts itself, or would replace an archive that holds more.
        FileError: The folder does not exist, holds no scenes, or cannot be packed; or a file of it cannot be read, or
            changed since it was found.
        OutputError: The archive cannot be written; then there is none, or still the older one.
        LockedError: Another run is writing into the same folder.
        TransferError: It cannot be found out what is in the bucket.
    """
    target, progress = _check_target(target, shard_bytes), progress or Progress()
    contents = find_contents(source, selection or Selection(), level=level)
    if not contents.scenes:
        raise FileError(
            source,
            "contains none of the selected scenes",
            "check --scenes and --splits, or name another folder",
        )
    if target is not None and not is_forced:
        for path in (
            (target,) if isinstance(target, str) or shard_bytes is None else find_shards(target)
        ):
            _check_replaced(path, contents)
    parts = _divide(contents, target, shard_bytes)
    make = partial(iter_archive, jobs=jobs, progress=progress)
    same: WrittenArchive | None = None
    try:
        with ExitStack() as stack:
            if isinstance(target, Path):
                stack.enter_context(working_beside(target))
            if target is not None and shard_bytes is None and not is_forced:
                same = find_same(contents, target, make, progress)
            if same is not None:
                written = {str(target): same}
            else:
                with progress.work("pack", contents.size_bytes, "B"):
                    written = write(parts, target, make, pipe, has_shards=shard_bytes is not None)
    except ScanNetPrepError:
        raise
    except BrokenPipeError:
        raise OutputError(
            "the program reading the pipe has stopped", "check its error message"
        ) from None
    except OSError as error:
        raise output_error(Path(target or PIPE_NAME), error) from error
    return PackReport(
        archives={name: archive.size_bytes for name, archive in written.items()},
        sha256={name: archive.sha256 for name, archive in written.items()},
        has_checksum_files=isinstance(target, Path),
        kind=contents.head.kind,
        options=contents.head.options,
        scenes=len(contents.scenes),
        splits=Counter(scene.split for scene in contents.scenes),
        size_bytes=contents.size_bytes,
        up_to_date=same is not None,
        oversized=_find_oversized(parts, written, shard_bytes),
        missing=contents.failures,
        left_out=contents.left_out,
    )


def _check_target(target: Path | str | None, shard_bytes: int | None) -> Path | str | None:
    """Refuse what cannot be an archive; follow a link to the file that is going to be replaced, so that it stays."""
    if target is None and shard_bytes is not None:
        raise UsageError(
            "a pipe takes one archive", "write shards to files: -o FILE, or leave out --shard-size"
        )
    if isinstance(target, str):
        from scannet_prep.remote.bucket import parse_address

        parse_address(target)  # refuses other addresses, and does not show what is secret
        if shard_bytes is not None:
            hint = (
                "pack the shards into a folder (-o FILE) and copy them, or leave out --shard-size"
            )
            raise UsageError(
                "shards are not written to a bucket, where they could not appear all at once", hint
            )
    if target is not None and not str(target).endswith(SUFFIX):
        raise UsageError(
            f"{target}: an archive is a {SUFFIX} file", f"use -o {quote(f'{target}{SUFFIX}')}"
        )
    if not isinstance(target, Path):
        return target
    if target.is_symlink():
        target = target.resolve()
    if target.exists() and not target.is_file():
        raise OutputError(
            f"{target}: is not a regular file",
            f"name another one (-o FILE), or write to it: scannet-prep pack - > {quote(str(target))}",
        )
    return target


def _check_replaced(path: Path | str, contents: Contents) -> None:
    """Refuse to replace an archive by one that holds less, or something else; a damaged one is made anew."""
    hint = "write to another file with -o FILE, or pass --force to replace this one"
    try:
        index = Archive(path).index
    except ForeignFileError as error:
        raise UsageError(f"{path}: {error.problem}, and would be replaced", hint) from None
    except (FileError, NotOnServerError):
        return
    if index.head.kind is not contents.head.kind:
        raise UsageError(
            f"{path}: holds {index.head.kind} scenes, and would be replaced by another kind", hint
        )
    if lost := sorted(
        {scene.scene_id for scene in index.scenes} - {scene.scene_id for scene in contents.scenes}
    ):
        problem = f"{path}: holds {len(lost):,} scenes that the new archive would not, for example {lost[0]}"
        raise UsageError(problem, hint)


def _divide(
    contents: Contents, target: Path | str | None, shard_bytes: int | None
) -> dict[str, Contents]:
    """Divide what is packed into the archives that are written, by their names."""
    if not isinstance(target, Path) or shard_bytes is None:
        return {str(target or PIPE_NAME): contents}
    shards = contents.split(shard_bytes)
    return {
        str(shard_path(target, number, len(shards))): shard for number, shard in enumerate(shards)
    }


def _find_oversized(
    parts: Mapping[str, Contents], written: Mapping[str, WrittenArchive], shard_bytes: int | None
) -> dict[str, int]:
    """Find the archives that are larger than a shard may be; each of them has a single scene, whose id names it."""
    oversized = {}
    for name, part in parts.items():
        if shard_bytes is not None and written[name].size_bytes > shard_bytes:
            oversized[part.scenes[0].scene_id] = written[name].size_bytes
    return oversized


def find_contents(source: Path, selection: Selection, *, level: int = DEFAULT_LEVEL) -> Contents:
    """Find out what is to be packed. Names, sizes and headers are read, and no scene.

    Args:
        source: A processed folder or a raw tree.
        selection: Which scenes.
        level: Compression level, for the record.

    Raises:
        MissingFileError: There is no such folder, or it holds no scenes.
        FileError: Something in it cannot be packed; or a processed folder is damaged or incomplete.
        UnknownSceneError: A scene that was asked for is not there.
    """
    find = _find_raw if identify_tree(source) is ArchiveKind.RAW else _find_processed
    contents = find(source, selection, level)
    for group in contents.groups:
        if group.size_bytes > MAX_CONTENT_BYTES:  # too large for a frame
            largest = max(group.files, key=lambda file: file.size_bytes)
            problem = f"has {largest.size_bytes:,} bytes; all files of a scene may have {MAX_CONTENT_BYTES:,} together"
            raise FileError(
                largest.path, problem, "move it out of the folder, then run the same command again"
            )
    return contents


def _find_processed(source: Path, selection: Selection, level: int) -> Contents:
    state = folder.find_state(source)
    if state.faults:
        raise state.faults[0]
    whole = state.manifest
    held = {name: find_official_split(name) for name in whole.failures}
    held |= {name: entry.split for name, entry in whole.scenes.items()}
    selection.check_found(
        source,
        held,
        f"leave it out of --scenes, or make it: scannet-prep process -o {quote(str(source))}",
    )
    wanted = [name for name, split in sorted(held.items()) if selection.wants(name, split)]
    paths = {
        name: folder.processed_path(source, entry.split, name)
        for name, entry in whole.scenes.items()
    }
    failures = {name: whole.failures[name] for name in wanted if name in whole.failures}
    scenes = {
        name: whole.scenes[name]
        for name in [name for name in wanted if name in paths][: selection.limit]
    }
    found, left_out = _look_through(
        source, ArchiveKind.PROCESSED, {source / split for split in Split}
    )
    others, known = found.pop(""), set(paths.values())
    left_out += [
        _name(source, path) for path in chain.from_iterable(found.values()) if path not in known
    ]
    groups = list[SourceGroup]()
    for name, entry in scenes.items():
        file = SourceFile.from_path(paths[name], source, entry.fingerprint)
        groups.append(SourceGroup(name, str(entry.split), entry.vertex_count, (file,)))
    manifest = msgspec.structs.replace(
        whole,
        scenes=scenes,
        failures=failures,
        program_version=whole.program_version if state.has_manifest else VERSION,
    )
    # They name just the scenes that are packed. For a whole folder, these are the bytes that lie there.
    failed = folder.encode_failed_list(failures) if failures else None
    made = {MANIFEST_NAME: encode_manifest(manifest), folder.FAILED_NAME: failed}
    messages = {name: failure.message for name, failure in failures.items()}
    head = Head(
        kind=ArchiveKind.PROCESSED,
        notice=folder.TERMS_TEXT,
        options=whole.options,
        scene_format=FORMAT_VERSION,
        program=_PROGRAM,
        level=level,
    )
    return Contents(
        head,
        (_group_others(source, head, others, made), *groups),
        messages,
        tuple(sorted(left_out)),
    )


def _find_raw(source: Path, selection: Selection, level: int) -> Contents:
    groups, splits, scenes = [], dict[str, str](), find_raw_scenes(source)
    for scene_id, scene in scenes.items():
        if scene.problem and selection.wants(scene_id, find_official_split(scene_id)):
            raise FileError(
                scene.directory, scene.problem, "fix or remove it, then run the same command again"
            )
    folders = {scene.directory for scene in scenes.values()} | {
        source / name for name in SPLIT_DIRS.values()
    }
    paths, left_out = _look_through(source, ArchiveKind.RAW, folders)
    for scene_id in [scene_id for scene_id in scenes if scene_id in paths]:
        identified = layout.identify_scene(_name(source, paths[scene_id][0]))
        splits[scene_id] = split = identified[2] if identified else ""
        if selection.wants(scene_id, split):
            vertex_count = 0  # which `verify` is there to explain
            with suppress(FileError):
                vertex_count = count_elements(scenes[scene_id].path(MESH))[0]
            files = tuple(SourceFile.from_path(path, source) for path in paths[scene_id])
            groups.append(SourceGroup(scene_id, split, vertex_count, files))
    selection.check_found(
        source,
        splits,
        "leave it out of --scenes, or download it: scannet-prep download --scenes ID",
    )
    head = Head(kind=ArchiveKind.RAW, notice=folder.TERMS_TEXT, program=_PROGRAM, level=level)
    first = _group_others(source, head, paths[""], made={})
    return Contents(head, (first, *groups[: selection.limit]), {}, tuple(sorted(left_out)))


def _group_others(
    source: Path, head: Head, paths: Iterable[Path], made: Mapping[str, bytes | None]
) -> SourceGroup:
    """The files that belong to no scene: those that lie there, but for what is made anew, or left out where None."""
    files = [SourceFile.from_path(path, source) for path in paths if path.name not in made]
    files += [
        SourceFile.from_content(name, data) for name, data in made.items() if data is not None
    ]
    format_file = SourceFile.from_content(layout.FORMAT_NAME, encode_json(head) + b"\n")
    return SourceGroup("", "", 0, (format_file, *sorted(files, key=attrgetter("name"))))


def _look_through(
    source: Path, kind: ArchiveKind, folders: Collection[Path]
) -> tuple[dict[str, list[Path]], list[str]]:
    """Sort what lies in a tree and in those of its folders: files by scene id (empty for none), and foreign names."""
    paths: dict[str, list[Path]] = {"": []}
    left_out: list[str] = []
    folders = {source, source / "tasks", *folders}
    try:
        found = [
            path
            for parent in sorted(folders)
            if parent.is_dir()
            for path in sorted(parent.iterdir())
        ]
    except OSError as error:
        raise FileError(source, f"cannot be read: {error}") from error
    for path in found:
        name = _name(source, path)
        # The lock of a run, what tar unpacks, parts of what is packed as one, and one person's acceptance of the terms.
        if name.startswith(_PASSED_OVER) or path in folders:
            continue
        scene_id = layout.find_scene(kind, name)
        is_made_by_programs = is_hidden_or_temporary(path.name) or path.name.endswith(
            (SUFFIX, CHECKSUM_SUFFIX, ".aria2")
        )
        if scene_id is None or is_made_by_programs or (not scene_id and path.is_dir()):
            left_out.append(name)
        else:
            paths.setdefault(scene_id, []).append(path)
    return paths, left_out


def _name(source: Path, path: Path) -> str:
    return path.relative_to(source).as_posix()
