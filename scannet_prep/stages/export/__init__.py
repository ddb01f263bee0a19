"""Processed scenes in, the folder that another program reads out.

A scene is made in a hidden folder beside the others and moved in when it is whole. `export.json` is there from the
first moment on and names the scenes that are still to be made, so that a run that ends early, however it ends, leaves
whole scenes, and the next one goes on from there. What was made from another version of a scene is removed before.
"""

from __future__ import annotations

import shlex
import shutil
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import Executor
from contextlib import nullcontext, suppress
from dataclasses import dataclass, field, replace
from pathlib import Path

from scannet_prep.archive.source import Place
from scannet_prep.errors import FileError, MissingFileError, OutputError, UnknownSplitError, WorkerDiedError
from scannet_prep.export import EXPORT_NAME, make_format
from scannet_prep.export.format import ExportFormat, ExportOptions, JoinedFormat
from scannet_prep.export.manifest import ExportManifest, encode_export, shards_of, write_export
from scannet_prep.failures import SceneFailure
from scannet_prep.files import (
    Fingerprint,
    check_is_folder,
    make_directory,
    output_error,
    remove_file,
    remove_temporaries,
    run_lock,
    write_if_changed,
)
from scannet_prep.place import ProcessedPlace, open_place
from scannet_prep.processed.folder import FAILED_NAME, prepare_folder, write_failed_list
from scannet_prep.progress import Progress
from scannet_prep.scene import Split
from scannet_prep.scene_warnings import WarningKind
from scannet_prep.shards import Shard, Share
from scannet_prep.stages.export.present import find_current, read_previous
from scannet_prep.stages.export.scene_worker import (
    PARTS_NAME,
    ExportContext,
    MadeScene,
    export_scene,
    find_place,
    find_unit,
    move,
    put_in_place,
)
from scannet_prep.stages.pool import run_tasks
from scannet_prep.stages.selection import Selection

_WRITE_INTERVAL_S = 2.0


@dataclass(frozen=True, slots=True)
class ExportPlan:
    """What `run` is going to do; making it touches nothing.

    Attributes:
        place: Where the processed scenes are.
        out_dir: Where the export goes.
        format: How it is made.
        scene_ids: Scenes to make, or to keep where they are up to date; sorted.
        left_out: Why a split that was asked for is left out, by split.
        is_forced: Whether scenes are made again even where they are up to date.
        share: The shard that `scene_ids` fall to; None where they are all that was asked for.
    """

    place: ProcessedPlace
    out_dir: Path
    format: ExportFormat
    scene_ids: tuple[str, ...]
    left_out: Mapping[Split, str] = field(hash=False)
    is_forced: bool
    share: Share | None = None

    @property
    def without_groups(self) -> list[str]:
        """The scenes that were processed without an aggregation: they have no instances and no ScanNet ids."""
        kinds = {name: {item.kind for item in self.place.entries[name].warnings} for name in self.scene_ids}
        return [name for name, found in kinds.items() if WarningKind.NO_AGGREGATION in found]


@dataclass(frozen=True, slots=True)
class ExportReport:
    """What `run` did.

    Attributes:
        out_dir: The export.
        settings: How it is made.
        made: Scenes that were made.
        kept: Scenes that were up to date.
        failures: Scenes that could not be made.
        left_out: Why a split is left out, by split.
        files: How many files the export has.
        size_bytes: Their size.
        unfinished: Scenes that an interrupted run had still to make and that were not asked for now.
    """

    out_dir: Path
    settings: Mapping[str, bool | str] = field(hash=False)
    made: tuple[str, ...]
    kept: tuple[str, ...]
    failures: tuple[SceneFailure, ...]
    left_out: Mapping[Split, str] = field(hash=False)
    files: int
    size_bytes: int
    unfinished: tuple[str, ...]


def plan(
    places: Sequence[Place],
    out_dir: Path,
    format_name: str,
    options: ExportOptions | None = None,
    *,
    selection: Selection | None = None,
    is_forced: bool = False,
    certificates: bool | Path = True,
    shard: Shard | None = None,
) -> ExportPlan:
    """Decide what to export; nothing is written, and no scene is read.

    Args:
        places: A processed folder; or an archive, or all shards of one.
        out_dir: Where the export goes: a new or an empty folder, or an export of the same kind.
        format_name: One of `FORMATS`.
        options: What the format leaves to choose.
        selection: Which scenes; all by default.
        is_forced: Make scenes again even where they are up to date.
        certificates: Of addresses, whom to trust, as `RangeSource` takes it.
        shard: Which part of all that to do; other runs do the others, and a run without it merges, and joins files.

    Raises:
        UsageError: The format cannot do that, or the folder holds something else, or other shards.
        FileError: The place cannot be used, or the manifest of the export is damaged.
        UnknownSceneError: A scene was asked for that is not there.
        MissingFileError: There is no folder of segments of test scenes where one is named.
        UnknownSplitError: There is nothing to export of the splits that were asked for.
        OutputError: `out_dir` is not a folder.
        TransferError: An archive is on a web server, which does not give it.
    """
    selection, options = selection or Selection(), options or ExportOptions()
    exporter = make_format(format_name, options)
    if options.test_segments is not None and not options.test_segments.is_dir():
        raise MissingFileError(options.test_segments, "no such folder", "name the one that the Segmentator wrote to")
    place = open_place(places, certificates=certificates)
    if exporter.options.is_aligned is None and place.entries:  # as they are stored, which is the same for all
        is_stored_aligned = next(iter(place.entries.values())).options.align_axis
        exporter = make_format(format_name, replace(options, is_aligned=is_stored_aligned))
    held = {name: entry.split for name, entry in place.entries.items()}
    hint = f"to see what is there: scannet-prep info {shlex.join(map(str, places))} --scenes"
    selection.check_found(place.name, held, hint)
    wanted = {name: split for name, split in held.items() if selection.wants(name, split)}
    left_out = {split: reason for split in sorted(set(wanted.values())) if (reason := exporter.why_left_out(split))}
    chosen = [name for name, split in wanted.items() if split not in left_out][: selection.limit]
    if not chosen:
        reason = "; ".join(left_out.values()) or f"has no scenes of {', '.join(selection.splits) or 'any split'}"
        raise UnknownSplitError(f"{place.name}: nothing to export: {reason}", "" if left_out else hint)
    check_is_folder(out_dir)
    previous = read_previous(out_dir, place, exporter.settings)
    sizes = {name: place.entries[name].size_bytes for name in chosen}
    is_part = selection != Selection()
    if share := shards_of(out_dir).take(shard, sizes, exporter.settings, is_restricted=is_part):
        chosen = [name for name in chosen if name in share.names]
    elif isinstance(exporter, JoinedFormat):  # its files are made anew from all scenes that are in them
        chosen = sorted({*chosen, *(name for name in previous.scenes if name in place.entries)})
    return ExportPlan(
        place=place,
        out_dir=out_dir,
        format=exporter,
        scene_ids=tuple(chosen),
        left_out=left_out,
        is_forced=is_forced,
        share=share,
    )


def run(
    plan: ExportPlan, *, jobs: int = 1, progress: Progress | None = None, executor: Executor | None = None
) -> ExportReport:
    """Make the export of a plan. What is up to date is kept; one bad scene never stops the others.

    Args:
        plan: From `plan`. A shard takes no lock.
        jobs: Number of worker processes.
        progress: Told of every scene.
        executor: Does the work instead of worker processes; its workers see the same folders under the same names.

    Raises:
        OutputError: The folder cannot be written to, or the disk is full.
        LockedError: Another run is writing into the folder.
        UsageError: The folder holds something else by now.
        WorkerDiedError: Worker processes cannot be started, or the executor takes no more tasks.
    """
    progress = progress or Progress()
    make_directory(plan.out_dir)
    with run_lock(plan.out_dir) if plan.share is None else nullcontext():
        with progress.work("export", len(plan.scene_ids), "scenes"):
            work = _ExportRun(plan)
            work.begin()
            work.make(jobs, progress, executor)
        manifest = work.end()
    files = list(manifest.files())
    return ExportReport(
        out_dir=plan.out_dir,
        settings=plan.format.settings,
        made=tuple(sorted(work.made)),
        kept=tuple(name for name in plan.scene_ids if name not in work.made and name not in work.failures),
        failures=tuple(item for _, item in sorted(work.failures.items())),
        left_out=plan.left_out,
        files=len(files),
        size_bytes=sum(item.size_bytes for _, item in files),
        unfinished=manifest.unfinished,
    )


class _ExportRun:
    """One run, which holds the lock of the folder.

    Attributes:
        entries: What the export holds by now.
        made: Scenes that this run has made.
        failures: Scenes that it could not make.
    """

    def __init__(self, plan: ExportPlan) -> None:
        self._plan, self._out_dir = plan, plan.out_dir
        self._share = plan.share
        self._path = plan.share.path() if plan.share else plan.out_dir / EXPORT_NAME
        self._context = ExportContext(
            plan.place, plan.format, plan.out_dir, plan.share.shard.name if plan.share else ""
        )
        self._work_dir = self._context.work_dir
        self._previous = read_previous(plan.out_dir, plan.place, plan.format.settings)
        self._is_merged = plan.share is not None and plan.share.is_covered_by(self._previous.scenes)
        if plan.share is not None:
            self._previous = self._previous.restrict(plan.share.names)
        current = find_current(plan, self._previous)
        self._outdated = [name for name in plan.scene_ids if name not in current]
        self._to_make = list(plan.scene_ids) if plan.is_forced else self._outdated
        self._unfinished = {*self._previous.unfinished, *self._to_make}
        self.entries = {name: item for name, item in self._previous.scenes.items() if name not in self._outdated}
        self.made: set[str] = set()
        self.failures: dict[str, SceneFailure] = {}

    def begin(self) -> None:
        """Remove what is outdated, so that nobody takes it for what it is not, and say what is made."""
        shutil.rmtree(self._work_dir, ignore_errors=True)
        if self._share is None:
            remove_temporaries(self._out_dir)
        elif self._to_make or not self._is_merged:
            self._share.begin()
        if not self._to_make:
            return
        make_directory(self._work_dir)
        for name in self._outdated:  # moved away, so that nobody sees half of it
            if (entry := self._previous.scenes.get(name)) is not None:
                for unit in {find_unit(name, file) for file in entry.files}:
                    move(self._out_dir / unit, find_place(self._work_dir))
        write_export(self._path, self._describe())
        prepare_folder(self._out_dir, set())

    def make(self, jobs: int, progress: Progress, executor: Executor | None) -> None:
        """Make the scenes; what is done is on record from time to time."""
        place = self._plan.place
        context = replace(self._context, place=replace(place, entries={}, failures={}))
        progress.advance(len(self._plan.scene_ids) - len(self._to_make))
        written_s = 0.0
        tasks = [(name, place.entries[name]) for name in self._to_make]
        works = run_tasks(export_scene, tasks, context, jobs=jobs, executor=executor)
        try:
            for (name, _), outcome in works:
                if isinstance(outcome, OutputError):
                    raise outcome
                if isinstance(outcome, MadeScene):
                    try:
                        put_in_place(outcome, context)
                        self.entries[name] = outcome.entry
                        self.made.add(name)
                    except FileError as error:
                        outcome = SceneFailure.from_exception(name, error, place.file_path(name))
                if isinstance(outcome, WorkerDiedError):
                    outcome = SceneFailure.from_exception(name, outcome, place.file_path(name))
                if isinstance(outcome, SceneFailure):
                    self.failures[name] = outcome
                    progress.status(f"{len(self.failures):,} failed")
                progress.advance()
                if self.made and time.monotonic() > written_s + _WRITE_INTERVAL_S:
                    write_export(self._path, self._describe())
                    written_s = time.monotonic()
        finally:
            works.close()
            if self.made:
                with suppress(OutputError):  # another error is on its way
                    write_export(self._path, self._describe())

    def end(self) -> ExportManifest:
        """Put parts together, write what tells of all scenes, and the manifest; of a shard, only its part."""
        if self._share is not None:
            return self._end_shard(self._share)
        exporter, shared = self._plan.format, dict[str, Fingerprint]()
        if isinstance(exporter, JoinedFormat):
            has_parts = any(entry.files for entry in self.entries.values())
            shared = self._join(exporter) if has_parts else dict(self._previous.shared)
        records = {name: (entry.split, entry.record) for name, entry in sorted(self.entries.items())}
        for name, data in exporter.encode_shared(records).items():
            make_directory((self._out_dir / name).parent)
            write_if_changed(self._out_dir / name, data)
            shared[name] = Fingerprint.from_bytes(data)
        for name in self._previous.shared.keys() - shared.keys():
            remove_file(self._out_dir / name)
        open_ids = self._plan.place.entries.keys() - self.entries.keys()  # of others, nobody can make anything
        failures = {name: item for name, item in self._previous.failures.items() if name in open_ids} | self.failures
        self._unfinished &= open_ids - failures.keys()
        manifest = replace(self._describe(), shared=shared, failures=failures)
        write_export(self._path, manifest, is_durable=True)
        shards_of(self._out_dir).remove()
        write_failed_list(self._out_dir / FAILED_NAME, manifest.failures)
        for folder in (self._work_dir, self._out_dir / PARTS_NAME):
            shutil.rmtree(folder, ignore_errors=True)
        return manifest

    def _end_shard(self, share: Share) -> ExportManifest:
        manifest = replace(self._describe(), failures=self.failures, unfinished=())
        if self._to_make or not self._is_merged:
            write_failed_list(share.path(f".{FAILED_NAME}"), self.failures)
            share.finish(encode_export(manifest))
        shutil.rmtree(self._work_dir, ignore_errors=True)
        return manifest

    def _describe(self) -> ExportManifest:
        """The manifest of an export that is being made."""
        return ExportManifest(
            settings=self._plan.format.settings,
            place=self._plan.place.name,
            shared=self._previous.shared,
            scenes=dict(sorted(self.entries.items())),
            failures=self._previous.failures,
            unfinished=tuple(sorted(self._unfinished)),
        )

    def _join(self, exporter: JoinedFormat) -> dict[str, Fingerprint]:
        parts = {name: next(iter(entry.files.items())) for name, entry in self.entries.items() if entry.files}
        sizes = {name: (self.entries[name].split, part.size_bytes) for name, (_, part) in sorted(parts.items())}
        files = {}
        make_directory(self._work_dir)
        for name, scene_ids in exporter.plan_files(sizes).items():
            path = find_place(self._work_dir)
            try:
                exporter.join(path, {scene_id: self._out_dir / parts[scene_id][0] for scene_id in scene_ids})
            except OSError as error:
                raise output_error(self._out_dir / name, error) from error
            files[name] = Fingerprint.from_file(path)
            make_directory((self._out_dir / name).parent)
            move(path, self._out_dir / name)
        self.entries = {name: replace(self.entries[name], files={}) for name in parts}
        return files
