"""Packs a folder of scenes into one archive, or into several shards.

folder -- find_contents: names, sizes and the manifest -> Contents
-- _divide: one archive, or shards
-- archive.writer: iter_archive, in threads -> the bytes of each
-- archive.output: find_same compares them, or write_archives writes them
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from functools import partial
from operator import attrgetter
from pathlib import Path
from shlex import quote

import msgspec

from scannet_prep.archive import layout, open_archive
from scannet_prep.archive.checksum import CHECKSUM_SUFFIX
from scannet_prep.archive.contents import Contents, SourceFile, SourceGroup
from scannet_prep.archive.layout import DEFAULT_LEVEL, MAX_CONTENT_BYTES, ArchiveKind, Head
from scannet_prep.archive.output import (
    PIPE_NAME,
    WrittenArchive,
    find_same,
    locked_folder_of,
    write_archives,
)
from scannet_prep.archive.shards import SUFFIX, find_shards, shard_path
from scannet_prep.archive.writer import iter_archive
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
from scannet_prep.processed.manifest import MANIFEST_NAME, Manifest, SceneEntry, encode_manifest
from scannet_prep.processed.scene import FORMAT_VERSION, ProcessOptions
from scannet_prep.raw.layout import RawScene, find_raw_scenes
from scannet_prep.raw.mesh import count_elements
from scannet_prep.release.files import ACCEPTANCE_NAME, MESH, SPLIT_DIRS
from scannet_prep.release.scene import Split
from scannet_prep.release.splits import find_official_split
from scannet_prep.source import SourceKind, identify_folder
from scannet_prep.stages.selection import Selection

# Names that begin with these are left out without a remark: files that tar unpacks from an archive,
# the lock of a run, and the record that one person has accepted the terms.
_SILENTLY_OMITTED = (layout.OWN_PREFIX.rstrip("/"), ACCEPTANCE_NAME)
_MADE_BY_PROGRAMS = (SUFFIX, CHECKSUM_SUFFIX, ".aria2")
_PROGRAM = f"scannet-prep {VERSION}"


@dataclass(frozen=True, slots=True)
class PackReport:
    """The result of `run`.

    Attributes:
        archives: Sizes of the archive or of the shards, written or up to date, by path.
        sha256: Their SHA-256, by path.
        has_checksum_files: Whether `PATH.sha256` is beside each archive; False for a pipe or a
            bucket.
        kind: The kind of the scenes.
        options: The options of processed scenes; None for raw ones.
        scenes: Number of scenes in all archives.
        splits: Number of scenes in each split.
        size_bytes: Size of the contents before compression.
        up_to_date: Whether nothing was written, because the archive already equals the folder.
        oversized: Sizes of the archives that exceed the size of a shard because of a single scene,
            by its id.
        missing: Why scenes that failed in processing are missing, by id.
        left_out: Files and folders that were not packed, because their names do not belong in a
            tree of that kind; sorted.
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
    """Pack a folder. The archive gets its name when it is complete and on the disk.

    Args:
        source: A processed folder or a raw tree.
        target: The archive, `*.tar.zst`: a path, or an address in a bucket, such as
            `s3://BUCKET/NAME.tar.zst`; None for a pipe.
        selection: The scenes to pack; all by default.
        level: Compression level of zstd, 1..22; 0 stores.
        shard_bytes: Maximum size of a file, for several shards; None for one file.
        is_forced: Whether to pack even if the archive is up to date or holds more scenes.
        jobs: Number of threads that compress.
        progress: Receives the number of tar bytes.
        pipe: Open file descriptor that takes the archive if there is no target.

    Raises:
        UsageError: The arguments contradict each other, or an archive that holds more would be
            replaced.
        FileError: The folder does not exist, contains no selected scenes, or cannot be packed; or
            one of its files cannot be read, or has changed since it was found.
        OutputError: The archive cannot be written. An earlier one stays in place.
        LockedError: Another run is writing into the same folder.
        TransferError: The bucket cannot be read.
    """
    progress = progress or Progress()
    has_shards = shard_bytes is not None
    target = _check_target(target, has_shards=has_shards)
    contents = find_contents(source, selection or Selection(), level=level)
    if not contents.scenes:
        hint = "check --scenes and --splits, or name another folder"
        raise FileError(source, "contains none of the selected scenes", hint)
    if not is_forced:
        for path in _find_replaced(target, has_shards=has_shards):
            _check_replaced(path, contents)

    parts = _divide(contents, target, shard_bytes)
    make = partial(iter_archive, jobs=jobs, progress=progress)
    # None also for shards and for --force, without a comparison.
    same: WrittenArchive | None = None
    with ExitStack() as stack:
        stack.enter_context(_translated_os_errors(target))
        if isinstance(target, Path):
            stack.enter_context(locked_folder_of(target))
        if target is not None and not has_shards and not is_forced:
            same = find_same(contents, target, make, progress)
        if same is not None:
            written = {str(target): same}
        else:
            stack.enter_context(progress.work("pack", contents.size_bytes, "B"))
            written = write_archives(parts, target, make, pipe=pipe, has_shards=has_shards)
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


@contextmanager
def _translated_os_errors(target: Path | str | None) -> Iterator[None]:
    """Translate errors of writing the target into an `OutputError`."""
    try:
        yield
    except ScanNetPrepError:  # some of them are OSErrors, too
        raise
    except BrokenPipeError:
        problem = "the program reading the pipe has stopped"
        raise OutputError(problem, "check its error message") from None
    except OSError as error:
        raise output_error(Path(target or PIPE_NAME), error) from error


def _check_target(target: Path | str | None, *, has_shards: bool) -> Path | str | None:
    """Refuse a target that cannot become an archive.

    Returns:
        The target. For a link, the file that it leads to, which is replaced while the link stays.

    Raises:
        UsageError: Its name is not that of an archive, or it cannot take shards.
        OutputError: It exists, and is not a regular file.
    """
    if target is None:
        if has_shards:
            hint = "write shards to files: -o FILE, or leave out --shard-size"
            raise UsageError("a pipe takes one archive", hint)
        return None
    if isinstance(target, str):
        from scannet_prep.remote.bucket import parse_address

        parse_address(target)  # refuses other addresses, without showing secrets in them
        if has_shards:
            raise UsageError(
                "shards are not written to a bucket, where they could not appear all at once",
                "pack the shards into a folder (-o FILE) and copy them, or leave out --shard-size",
            )
    if not str(target).endswith(SUFFIX):
        hint = f"use -o {quote(f'{target}{SUFFIX}')}"
        raise UsageError(f"{target}: an archive is a {SUFFIX} file", hint)
    if isinstance(target, str):
        return target
    if target.is_symlink():
        target = target.resolve()
    if target.exists() and not target.is_file():
        command = f"scannet-prep pack - > {quote(str(target))}"
        raise OutputError(
            f"{target}: is not a regular file",
            f"name another one (-o FILE), or write to it: {command}",
        )
    return target


def _find_replaced(target: Path | str | None, *, has_shards: bool) -> Sequence[Path | str]:
    """Find the archives that the new one would replace."""
    if target is None:
        return ()
    if isinstance(target, Path) and has_shards:
        return find_shards(target)
    return (target,)


def _check_replaced(path: Path | str, contents: Contents) -> None:
    """Refuse to replace an archive of more scenes or of another kind.

    A damaged archive may be replaced.

    Raises:
        UsageError: Scenes, or a file of another program, would be lost.
    """
    hint = "write to another file with -o FILE, or pass --force to replace this one"
    try:
        index = open_archive(path).index
    except ForeignFileError as error:
        raise UsageError(f"{path}: {error.problem}, and would be replaced", hint) from None
    except (FileError, NotOnServerError):
        return
    if index.head.kind is not contents.head.kind:
        problem = f"holds {index.head.kind} scenes, and would be replaced by another kind"
        raise UsageError(f"{path}: {problem}", hint)
    packed = {scene.scene_id for scene in contents.scenes}
    lost = [scene.scene_id for scene in index.scenes if scene.scene_id not in packed]
    if lost:
        count = f"{len(lost):,} scenes that the new archive would not"
        raise UsageError(f"{path}: holds {count}, for example {lost[0]}", hint)


def _divide(
    contents: Contents, target: Path | str | None, shard_bytes: int | None
) -> dict[str, Contents]:
    """Divide the contents into archives.

    Returns:
        The contents of each archive, by its path or address.
    """
    if not isinstance(target, Path) or shard_bytes is None:
        return {str(target or PIPE_NAME): contents}
    shards = contents.split(shard_bytes)
    parts = {}
    for number, shard in enumerate(shards):
        parts[str(shard_path(target, number, len(shards)))] = shard
    return parts


def _find_oversized(
    parts: Mapping[str, Contents], written: Mapping[str, WrittenArchive], shard_bytes: int | None
) -> dict[str, int]:
    """Find the archives that exceed the size of a shard.

    Returns:
        The size of each, by its only scene: `Contents.split` keeps several scenes within the size.
    """
    oversized = {}
    for name, part in parts.items():
        size_bytes = written[name].size_bytes
        if shard_bytes is not None and size_bytes > shard_bytes:
            oversized[part.scenes[0].scene_id] = size_bytes
    return oversized


def find_contents(source: Path, selection: Selection, *, level: int = DEFAULT_LEVEL) -> Contents:
    """Find the files to pack. Names, sizes and headers are read, but no scene.

    Args:
        source: A processed folder or a raw tree.
        selection: The scenes to pack.
        level: Compression level, which the archive records.

    Raises:
        MissingFileError: The folder does not exist, or contains no scenes.
        FileError: A file cannot be packed; or a processed folder is damaged or incomplete.
        UnknownSceneError: A selected scene does not exist.
    """
    if identify_folder(source) is SourceKind.RAW:
        contents = _find_raw(source, selection, level)
    else:
        contents = _find_processed(source, selection, level)
    for group in contents.groups:
        _check_fits_frame(group)
    return contents


def _check_fits_frame(group: SourceGroup) -> None:
    """Refuse files that are too large for one frame; the error names the largest one."""
    if group.size_bytes <= MAX_CONTENT_BYTES:
        return
    largest = max(group.files, key=attrgetter("size_bytes"))
    raise FileError(
        largest.path,
        f"has {largest.size_bytes:,} bytes; "
        f"all files of a scene may have {MAX_CONTENT_BYTES:,} together",
        "move it out of the folder, then run the same command again",
    )


def _find_processed(source: Path, selection: Selection, level: int) -> Contents:
    """Find the files to pack in a processed folder."""
    state = folder.find_state(source)
    if state.faults:
        raise state.faults[0]
    manifest = _select_entries(source, state.manifest, selection)
    # Without a manifest, the archive gets one that this version of the program makes.
    if not state.has_manifest:
        manifest = msgspec.structs.replace(manifest, program_version=VERSION)

    # Left out: foreign names, and files of scenes that the manifest does not list.
    split_folders = {source / split for split in Split}
    files, left_out = _sort_files(source, ArchiveKind.PROCESSED, split_folders)
    others = files.pop("")
    listed = set()
    for scene_id, entry in state.manifest.scenes.items():
        listed.add(folder.processed_path(source, entry.split, scene_id))
    for paths in files.values():
        left_out += [_archive_name(source, path) for path in paths if path not in listed]

    groups = []
    for scene_id, entry in manifest.scenes.items():
        path = folder.processed_path(source, entry.split, scene_id)
        file = SourceFile.from_path(path, source, entry.fingerprint)
        groups.append(SourceGroup(scene_id, str(entry.split), entry.vertex_count, (file,)))
    head = Head(
        kind=ArchiveKind.PROCESSED,
        notice=folder.TERMS_TEXT,
        options=manifest.options,
        scene_format=FORMAT_VERSION,
        program=_PROGRAM,
        level=level,
    )
    # The manifest and failed.txt name only the scenes that are packed. For a whole folder, they
    # equal those on the disk.
    failed_list = None
    if manifest.failures:
        failed_list = folder.encode_failed_list(manifest.failures)
    made = {MANIFEST_NAME: encode_manifest(manifest), folder.FAILED_NAME: failed_list}
    first = _group_others(source, head, others, made)
    failures = {scene_id: failure.message for scene_id, failure in manifest.failures.items()}
    return Contents(head, (first, *groups), failures, tuple(sorted(left_out)))


def _select_entries(source: Path, manifest: Manifest, selection: Selection) -> Manifest:
    """Reduce a manifest to the selected scenes and failures, sorted by id.

    Raises:
        UnknownSceneError: A selected scene is not in the folder.
    """
    splits: dict[str, str | None] = {}
    for scene_id in manifest.failures:
        splits[scene_id] = find_official_split(scene_id)
    for scene_id, entry in manifest.scenes.items():
        splits[scene_id] = entry.split
    command = f"scannet-prep process -o {quote(str(source))}"
    selection.check_found(source, splits, f"leave it out of --scenes, or make it: {command}")

    scenes: dict[str, SceneEntry] = {}
    failures = {}
    for scene_id, split in sorted(splits.items()):
        if not selection.wants(scene_id, split):
            continue
        if scene_id in manifest.failures:
            failures[scene_id] = manifest.failures[scene_id]
        is_within_limit = selection.limit is None or len(scenes) < selection.limit
        if scene_id in manifest.scenes and is_within_limit:
            scenes[scene_id] = manifest.scenes[scene_id]
    return msgspec.structs.replace(manifest, scenes=scenes, failures=failures)


def _find_raw(source: Path, selection: Selection, level: int) -> Contents:
    """Find the files to pack in a raw tree."""
    scenes = find_raw_scenes(source)
    for scene_id, scene in scenes.items():
        if scene.problem and selection.wants(scene_id, find_official_split(scene_id)):
            hint = "fix or remove it, then run the same command again"
            raise FileError(scene.directory, scene.problem, hint)

    scene_folders = {scene.directory for scene in scenes.values()}
    split_folders = {source / name for name in SPLIT_DIRS.values()}
    files, left_out = _sort_files(source, ArchiveKind.RAW, scene_folders | split_folders)
    others = files.pop("")
    groups = []
    splits: dict[str, str | None] = {}
    for scene_id, scene in scenes.items():
        paths = files.get(scene_id)
        if not paths:
            continue
        # For scenes of no official list, the name of the folder may reveal the split.
        scene_file = layout.identify_scene(_archive_name(source, paths[0]))
        split = scene_file.split if scene_file is not None else ""
        splits[scene_id] = split
        if selection.wants(scene_id, split):
            packed = tuple(SourceFile.from_path(path, source) for path in paths)
            groups.append(SourceGroup(scene_id, split, _count_vertices(scene), packed))
    hint = "leave it out of --scenes, or download it: scannet-prep download --scenes ID"
    selection.check_found(source, splits, hint)

    head = Head(kind=ArchiveKind.RAW, notice=folder.TERMS_TEXT, program=_PROGRAM, level=level)
    first = _group_others(source, head, others, made={})
    scene_groups = groups[: selection.limit]
    return Contents(head, (first, *scene_groups), failures={}, left_out=tuple(sorted(left_out)))


def _count_vertices(scene: RawScene) -> int:
    """Read V from the header of the mesh; 0 if it is damaged, which `verify` reports."""
    with suppress(FileError):
        vertex_count, _ = count_elements(scene.path(MESH))
        return vertex_count
    return 0


def _group_others(
    source: Path, head: Head, paths: Iterable[Path], made: Mapping[str, bytes | None]
) -> SourceGroup:
    """Make the group of the files that belong to no scene.

    Args:
        source: The folder.
        head: The head of the archive, which becomes the first file.
        paths: The files in the folder.
        made: Content that replaces files of the folder, by name; None to leave a file out.
    """
    files = [SourceFile.from_path(path, source) for path in paths if path.name not in made]
    for name, data in made.items():
        if data is not None:
            files.append(SourceFile.from_content(name, data))
    files.sort(key=attrgetter("name"))
    format_file = SourceFile.from_content(layout.FORMAT_NAME, encode_json(head) + b"\n")
    return SourceGroup(scene_id="", split="", vertex_count=0, files=(format_file, *files))


def _sort_files(
    source: Path, kind: ArchiveKind, folders: Collection[Path]
) -> tuple[dict[str, list[Path]], list[str]]:
    """Sort the files of a tree by scene.

    Args:
        source: The tree.
        kind: Its kind.
        folders: Its folders to search, beside the top level and `tasks`.

    Returns:
        The files by scene id, which is empty for those that belong to no scene; and the names of
        files and folders that do not belong in a tree of that kind.

    Raises:
        FileError: A folder cannot be read.
    """
    searched = {source, source / "tasks", *folders}
    files: dict[str, list[Path]] = {"": []}
    left_out = []
    for path in _list_folders(source, searched):
        name = _archive_name(source, path)
        if path in searched or name.startswith(_SILENTLY_OMITTED):
            continue
        scene_id = layout.find_scene(kind, name)
        is_made_by_programs = path.name.endswith(_MADE_BY_PROGRAMS)
        is_omitted = is_made_by_programs or is_hidden_or_temporary(path.name)
        is_other_folder = scene_id == "" and path.is_dir()
        if scene_id is None or is_omitted or is_other_folder:
            left_out.append(name)
        else:
            files.setdefault(scene_id, []).append(path)
    return files, left_out


def _list_folders(source: Path, folders: Iterable[Path]) -> Iterator[Path]:
    """List the content of folders of a tree, in order."""
    try:
        for parent in sorted(folders):
            if parent.is_dir():
                yield from sorted(parent.iterdir())
    except OSError as error:
        raise FileError(source, f"cannot be read: {error}") from error


def _archive_name(source: Path, path: Path) -> str:
    """Return the name of a file in the archive."""
    return path.relative_to(source).as_posix()
