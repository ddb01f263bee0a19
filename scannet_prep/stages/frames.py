"""Sensor streams in, a folder of images, depth and poses out: `plan`, then `run`.

    raw tree, selection --> scenes that have a stream
    scene, frames.json  --> the reason why it has to be made, or none: its frames are kept
    task --> a worker: stream, zip files --> its folder in the hidden work folder
         --> the run itself: the folder gets its final name

A folder has one set of options; every scene records them. A scene's folder gets its final name when
it is complete.

With an address, a worker fetches the stream of a scene first, into a hidden folder of streams,
where each scene has a raw tree. The run removes it when the frames are complete. Other streams are
neither read nor removed:

    .scannet-prep-streams/<scene>/scans/<scene>/<scene>.sens

The run ends if the server serves nothing for too long.
"""

from __future__ import annotations

import os
import re
import shutil
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple, TypeAlias

import msgspec

from scannet_prep.base.files import Fingerprint
from scannet_prep.base.findings import Finding, note
from scannet_prep.base.json import encode_json
from scannet_prep.base.text import count_of, list_some
from scannet_prep.errors import (
    FileError,
    MissingFileError,
    ScanNetPrepError,
    TransferError,
    UsageError,
)
from scannet_prep.frames.extraction import extract_scene, measure_sources
from scannet_prep.frames.folder import RECORD_NAME, FramesRecord, SceneFrames, find_scenes
from scannet_prep.frames.options import LAYOUTS, STREAM, FrameOptions
from scannet_prep.processed.manifest import processed_path
from scannet_prep.raw.sensor_stream import SensorStream
from scannet_prep.raw.tree import RawListing, RawScene, list_raw, repair_hint
from scannet_prep.release.files import INFO, SPLIT_DIRS
from scannet_prep.release.label_map import LabelMap, label_map_at
from scannet_prep.release.scenes import official_splits, read_scene_list
from scannet_prep.remote.addresses import hide_secrets
from scannet_prep.stages.scene_run import WORK_NAME, RunPlan, SceneTask, Stage, run
from scannet_prep.stages.selection import Selection, select_scenes

__all__ = ["count", "plan", "run"]

FrameList: TypeAlias = Mapping[str, Sequence[int]]
"""The numbers of frames by scene, both sorted."""

# No stream has a frame of ten digits.
_LISTED = re.compile(r"\S+(\s+[0-9]{1,9})+")
_STREAMS_NAME = ".scannet-prep-streams"
_HINT_FOLDER = "choose a new folder with -o"
_HINT_STREAMS = (
    "download those of some scenes, with --types .sens --scenes: all of them take 1.2 TB, each "
    "about 0.8 GB; for 2D labels, add _2d-label-filt.zip and _2d-instance-filt.zip to --types"
)


class FramesContext(NamedTuple):
    """What all tasks of a run share.

    Attributes:
        options: What is extracted.
        label_map: The label map, for label images.
        out_dir: The folder for the frames.
        listed: The numbers of the frames by scene, if a list names them.
        base_url: The server that streams are fetched from; empty if they are there.
    """

    options: FrameOptions
    label_map: LabelMap
    out_dir: Path
    listed: FrameList
    base_url: str


class FramesManifest(msgspec.Struct, frozen=True):
    """What a folder holds: the records of its scenes, without their files."""

    scenes: Mapping[str, FramesRecord] = {}
    failures: Mapping[str, Finding] = {}
    unfinished: tuple[str, ...] = ()


def plan(
    raw_dir: Path,
    out_dir: Path,
    options: Mapping[str, Any],
    *,
    selection: Selection = Selection(),
    is_forced: bool = False,
    list_path: Path | None = None,
    base_url: str = "",
    processed_dir: Path = Path("data/processed"),
) -> RunPlan:
    """Decide which scenes to extract. Writes nothing and opens no stream.

    Args:
        raw_dir: The raw tree.
        out_dir: The folder for the frames.
        options: The fields of `FrameOptions` that are chosen; the others are those of the folder.
        selection: The scenes; by default all that have a sensor stream.
        is_forced: Make scenes again even if they are up to date.
        list_path: A list of the frames to extract, which selects their scenes: on each line, a
            scene and numbers of frames.
        base_url: Fetch each stream from this server, and remove it when its frames are complete.
            From the raw tree, only the record of the accepted terms is used.
        processed_dir: The processed scenes, for layouts with start points, if there is no mesh.

    Raises:
        UsageError: The options contradict each other or those of the folder, the folder is the raw
            tree, scenes or frames are selected beside the list, or the terms are not accepted.
        MissingFileError: There is no raw tree, or no selected scene has a sensor stream.
        FileError: A folder, a record, the list or the label map cannot be read.
        UnknownSceneError: A named scene does not exist.
    """
    listed: FrameList = {}
    digest = ""
    if list_path:
        if selection.scene_ids is not None or options.keys() & {"every", "first", "at_most"}:
            raise UsageError(
                "--frames names scenes and frames",
                "leave out --frames, or the other options that select scenes and frames",
            )
        listed = _read_frame_list(list_path)
        digest = Fingerprint.from_bytes(encode_json(listed)).crc32
        selection = replace(selection, scene_ids=tuple(listed))
    listing = _list_streams(raw_dir, out_dir) if base_url else list_raw(raw_dir)
    label_map = label_map_at(listing.label_map)
    if out_dir.exists() and out_dir.samefile(raw_dir):
        raise UsageError(f"{out_dir}: holds the raw scenes", _HINT_FOLDER)
    before = _read_manifest(out_dir)
    chosen = _choose_options({**options, "listed": digest}, label_map, out_dir, before)

    # Scenes that are not named may lack a stream: few people have all of them. After an extraction,
    # a stream may have been removed to free the disk.
    available = {
        scene_id: scene.split
        for scene_id, scene in listing.scenes.items()
        if STREAM in scene.files or scene_id in before.scenes or selection.scene_ids
    }
    previous = {scene_id: record.split for scene_id, record in before.scenes.items()}
    selected, findings = select_scenes(available, selection, raw_dir, previous)
    if not selected and not findings:
        raise MissingFileError(
            raw_dir, "no selected scene has a sensor stream (.sens)", _HINT_STREAMS
        )
    tasks = []
    kept = []
    for scene_id, split in selected:
        processed = processed_path(processed_dir, split, scene_id)
        scene = replace(listing.scenes[scene_id], processed=processed)
        task = SceneTask(scene, split, out_dir / chosen.folder_of(scene_id, split))
        reason = _find_reason(task, before.scenes.get(scene_id), chosen)
        if reason or is_forced:
            tasks.append(replace(task, reason=reason or "--force"))
        else:
            kept.append(scene_id)
    findings += listing.findings
    without_labels = [
        task.scene_id for task in tasks if {*chosen.contents} - chosen.find_names(task.split).keys()
    ]
    if without_labels:
        findings.append(note(f"test scenes have no 2D labels: {list_some(without_labels)}"))
    left_out = sorted(listing.scenes.keys() - available)
    if left_out:
        findings.append(note(f"left out, because they have no .sens: {list_some(left_out)}"))
    return RunPlan(
        stage=_FETCHING if base_url else _STAGE,
        source=hide_secrets(base_url) or raw_dir,
        out_dir=out_dir,
        about=chosen.text,
        context=FramesContext(chosen, label_map, out_dir, listed, base_url),
        before=before,
        head=FramesManifest(),
        tasks=tasks,
        kept=kept,
        findings=findings,
        has_all=selection.has_all,
    )


def _read_frame_list(path: Path) -> FrameList:
    """Read a list of frames.

    Raises:
        FileError: It cannot be read, it names nothing, or a line is something else.
    """
    frames = defaultdict[str, set[int]](set)
    for line in read_scene_list(path):
        if not _LISTED.fullmatch(line):
            raise FileError(
                path,
                f"{line!r:.80} is not a scene and numbers of frames",
                "a line looks like: scene0707_00 15 30",
            )
        scene_id, *numbers = line.split()
        frames[scene_id].update(map(int, numbers))
    return {name: sorted(numbers) for name, numbers in sorted(frames.items())}


def _list_streams(raw_dir: Path, out_dir: Path) -> RawListing:
    """Choose the places of streams that are fetched; each scene has a raw tree of its own.

    Raises:
        UsageError: The terms are not accepted.
    """
    from scannet_prep.stages.download import check_terms, has_accepted_terms

    check_terms(is_accepted=has_accepted_terms(raw_dir))
    scenes = {}
    for scene_id, split in official_splits().items():
        folder = out_dir / _STREAMS_NAME / scene_id / SPLIT_DIRS[split] / scene_id
        scenes[scene_id] = RawScene(scene_id, folder, (STREAM,), split)
    return RawListing(scenes, None, {}, ())


def _read_manifest(out_dir: Path) -> FramesManifest:
    """Read the records of all scenes of a folder."""
    return FramesManifest(
        {scene_id: _read_entry(folder) for scene_id, folder in find_scenes(out_dir).items()}
    )


def _read_entry(folder: Path) -> FramesRecord:
    """Read the record of a scene, without its files: all scenes together have millions."""
    return msgspec.structs.replace(SceneFrames(folder).record, files={})


def _choose_options(
    options: Mapping[str, Any],
    label_map: LabelMap,
    out_dir: Path,
    before: FramesManifest,
) -> FrameOptions:
    """Return the options of a run, which are those of the folder if it holds scenes.

    Raises:
        UsageError: A scene of the folder has other options.
    """
    stored = next((record.options for record in before.scenes.values()), FrameOptions())
    if options.get("layout", stored.layout) == stored.layout:
        chosen = replace(stored, **options)
    else:
        # Another layout has its own default options. An unknown one is refused with the others.
        layout = LAYOUTS.get(options["layout"], stored.form)
        chosen = FrameOptions(**{**layout.fixed, **layout.defaults, **options})
    if chosen.label_set != "raw":
        chosen = replace(chosen, label_map=label_map.digest)
    for scene_id, record in before.scenes.items():
        if record.options != chosen:
            raise UsageError(
                f"{out_dir}: {scene_id} has frames with other options: {record.options.text}",
                _HINT_FOLDER,
            )
    return chosen


def _find_reason(task: SceneTask, record: FramesRecord | None, options: FrameOptions) -> str:
    """Find the reason why a scene has to be made; empty if its frames can stay."""
    if record is None or not (task.path / RECORD_NAME).exists():
        return "not made yet"
    # A source that only one of them has does not count: it may have been removed to free the disk,
    # or be a mesh that was not needed before.
    sizes = measure_sources(task.scene, task.split, options)
    if sizes | record.sources != record.sources | sizes:
        return "its stream or labels were changed"
    return "" if SceneFrames(task.path).has_files() else "its files were changed"


def count(plan: RunPlan) -> RunPlan:
    """Add to a plan how many frames a run would extract; scenes that would fail become findings."""
    tasks = []
    findings = [*plan.findings]
    frames = 0
    lost = 0
    for task in plan.tasks:
        try:
            task.scene.check()
            with SensorStream(task.scene.path(STREAM)) as stream:
                listed = plan.context.listed.get(task.scene_id)
                numbers, omitted = plan.context.options.select(stream.is_tracked, listed)
            frames += len(numbers)
            lost += len(omitted)
            tasks.append(task)
        except ScanNetPrepError as error:
            findings.append(Finding.from_error(error, task.source, task.scene_id))
    return replace(plan, tasks=tasks, findings=[*findings, _describe(frames, lost)])


def _describe(frames: int, lost: int) -> Finding:
    """Describe how many frames all scenes have, and how many of the stream have no tracking."""
    return note(f"{count_of(frames, 'frame')}; without tracking: {lost:,}, listed in frames.json")


def _make_scene(task: SceneTask, context: FramesContext) -> tuple[dict[Path, Path], FramesRecord]:
    """Extract a scene into the work folder, in a worker; fetch its stream first, if asked to.

    Returns:
        The folder by its final name, and its record.

    Raises:
        TransferError: The server does not send a file.
        OutageError: The server has served nothing for too long.
        FileError: A source is missing or damaged, or something is in the way of its folder.
        OutputError: The folder cannot be written to.
    """
    if context.base_url:
        _fetch(task, context)
    task.scene.check()
    folder = task.path
    # Everything in the folder of a scene is replaced. Files of other programs may have taken days.
    try:
        extracted = [RECORD_NAME, *SceneFrames(folder).record.files]
        others = {*filter(Path.is_file, folder.rglob("[!.]*"))}
        others.difference_update(map(folder.joinpath, extracted))
    except FileError:  # it has no record, or does not exist
        others = {folder} if os.path.lexists(folder) else set()
    if others:
        raise FileError(min(others), "is in the way", "move it elsewhere")
    work_path = context.out_dir / WORK_NAME / os.urandom(8).hex()
    try:
        extract_scene(
            task.scene,
            task.split,
            context.options,
            context.label_map,
            context.listed.get(task.scene_id),
            work_path,
        )
    except FileError as error:
        error.hint = error.hint or repair_hint(error.path)
        raise
    return {folder: work_path}, _read_entry(work_path)


def _fetch(task: SceneTask, context: FramesContext) -> None:
    """Fetch the files of a scene.

    Its metadata come first: they show that the server is up if it does not send the first stream.

    Raises:
        TransferError: The server does not send one of them.
        OutageError: It has served nothing for too long.
        OutputError: The folder cannot be written to.
    """
    from scannet_prep.stages import download

    find = partial(download.plan, task.source.parents[1], base_url=context.base_url)
    types = [kind.suffix for kind in (INFO, *context.options.find_sources(task.split))]
    files = find(types, selection=Selection(scene_ids=(task.scene_id,)))
    # They show whether the server is up if it sends nothing of this scene.
    made = find_scenes(context.out_dir)
    known = [file for file in find([STREAM.suffix]).files if file.scene_id in made]
    report = download.run(files, jobs=1, accepts_terms=True, known=known)
    for failure in report.failures:
        # A mirror may lack the metadata.
        if not failure.subject.endswith(INFO.suffix):
            raise TransferError(str(failure), failure.hint)


def _find_fetched(task: SceneTask, outcome: Any) -> Iterator[Path]:  # noqa: ANN401 - or a Finding
    """Find the tree that was fetched for a scene, if its frames are complete."""
    if not isinstance(outcome, Finding) and SceneFrames(task.path).has_files():
        yield task.source.parents[1]


def _finish(plan: RunPlan, manifest: FramesManifest) -> list[Finding]:
    """Remove streams that a killed run has left of scenes that are kept; then count the frames."""
    streams_dir = plan.out_dir / _STREAMS_NAME
    for scene_id in plan.kept:
        shutil.rmtree(streams_dir / scene_id, ignore_errors=True)
    with suppress(OSError):  # it holds unfinished streams
        streams_dir.rmdir()
    records = manifest.scenes.values()
    frames = sum(len(record.frames) for record in records)
    lost = sum(len(record.lost) for record in records)
    notes = [_describe(frames, lost)]
    without_depth = sum(len(record.without_depth) for record in records)
    if without_depth:
        notes.append(note(f"frames without any depth: {without_depth:,}, listed in frames.json"))
    return notes


_STAGE = Stage(
    name="frames",
    make=_make_scene,
    read=_read_manifest,
    write=lambda *_: None,  # each scene has its own record
    finish=_finish,
    subfolders=frozenset(),  # folders of scenes are made in the work folder
)
_FETCHING = replace(_STAGE, find_outdated=_find_fetched)
