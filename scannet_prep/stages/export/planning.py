"""Decide what a run of `export` has to do: the format and its options, and the scenes.

    format name + options --> format, with the label set and the frame of the scenes by default
    selection             --> scenes, without the splits that the format cannot hold
    target folder         --> new, empty, or an export with the same settings; else refused

Nothing is written here; `running` does the work.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

from scannet_prep.base.files import check_is_folder
from scannet_prep.errors import MissingFileError, UsageError
from scannet_prep.export import Setting, make_format
from scannet_prep.export.format import ExportFormat, ExportOptions
from scannet_prep.export.manifest import ExportManifest, read_export
from scannet_prep.release.irregularities import WarningKind
from scannet_prep.release.scene import SceneId, Split
from scannet_prep.source.place import open_processed
from scannet_prep.source.scenes import ProcessedScenes
from scannet_prep.stages.selection import Selection

_HINT_NEW_FOLDER = "choose a new folder with -o"
_HINT_SCENES = "info lists the scenes that are there"


@dataclass(frozen=True, slots=True)
class ExportPlan:
    """The work of one run; making the plan writes nothing.

    Attributes:
        place: The folder or archive of the processed scenes.
        out_dir: The folder of the export.
        format: The format, with its options.
        scene_ids: The scenes to export, sorted; those that are up to date are kept.
        left_out: The reason why a selected split is left out, by split.
        is_forced: Whether scenes are made again even if they are up to date.
    """

    place: ProcessedScenes
    out_dir: Path
    format: ExportFormat
    scene_ids: tuple[str, ...]
    left_out: Mapping[Split, str] = field(hash=False)
    is_forced: bool

    @property
    def settings(self) -> dict[str, Setting]:
        """The settings that all scenes of the export share, those of the processed scenes included.

        Scenes that were processed with other options must not be mixed in one export.
        """
        return {
            **self.format.settings,
            **self.format.inherited_settings(self.place.options),
        }

    @property
    def without_groups(self) -> list[str]:
        """The scenes without an aggregation. They have no instances and no ScanNet ids."""
        scene_ids = []
        for scene_id in self.scene_ids:
            warnings = self.place.entries[scene_id].warnings
            if any(warning.kind is WarningKind.NO_AGGREGATION for warning in warnings):
                scene_ids.append(scene_id)
        return scene_ids


def plan(
    place: str | Path,
    out_dir: Path,
    format_name: str,
    options: ExportOptions | None = None,
    *,
    selection: Selection | None = None,
    is_forced: bool = False,
) -> ExportPlan:
    """Decide what to export. Writes nothing and reads no scene.

    Args:
        place: A processed folder, or the path or address of an archive.
        out_dir: The folder of the export: new, empty, or an export with the same settings.
        format_name: One of `FORMATS`.
        options: The options of the format.
        selection: The scenes to export; all by default.
        is_forced: Make scenes again even if they are up to date.

    Raises:
        UsageError: The format does not support the options, `out_dir` holds something else, or
            there is nothing to export of the selected splits.
        FileError: The processed scenes cannot be used, or the manifest of the export is damaged.
        UnknownSceneError: A selected scene does not exist.
        MissingFileError: The folder of test segments does not exist.
        OutputError: `out_dir` is not a folder.
        TransferError: A web server does not send an archive.
    """
    selection = selection or Selection()
    options = options or ExportOptions()
    # Wrong options are refused before the scenes are opened, which may take a while on a server.
    make_format(format_name, options)
    if options.test_segments is not None and not options.test_segments.is_dir():
        raise MissingFileError(
            options.test_segments,
            "no such folder",
            "name the folder that the Segmentator wrote to: --test-segments DIR",
        )

    opened = open_processed(place)
    exporter = _make_format_for(opened, format_name, options)
    scene_ids, left_out = _select_scenes(opened, exporter, selection)
    export_plan = ExportPlan(
        place=opened,
        out_dir=out_dir,
        format=exporter,
        scene_ids=scene_ids,
        left_out=left_out,
        is_forced=is_forced,
    )
    check_target(out_dir, opened.folder, export_plan.settings)
    return export_plan


def _make_format_for(place: ProcessedScenes, name: str, options: ExportOptions) -> ExportFormat:
    """Make the format. Options that are not chosen depend on how the scenes were processed."""
    exporter = make_format(name, options)
    # `exporter.options` always has a label set; only `options` shows whether the user chose it.
    if options.label_set is None:
        label_set = exporter.default_label_set(place.options.label_set)
        options = replace(options, label_set=label_set)
        exporter = make_format(name, options)
    # `exporter.options` has the user's frame, or else the one that the other program expects. It
    # is None if there is neither; the points then stay in the frame of the processed scenes.
    is_aligned = exporter.options.is_aligned
    # Programs that do not align points rely on the release, where z points up in the frame of the
    # scan. In the file of an own scene, any axis may.
    if options.is_aligned is None and not is_aligned and any(map(SceneId.is_own, place.scenes)):
        is_aligned = None
    if is_aligned is None:
        options = replace(options, is_aligned=place.options.align_axis)
        exporter = make_format(name, options)
    return exporter


def _select_scenes(
    place: ProcessedScenes, exporter: ExportFormat, selection: Selection
) -> tuple[tuple[str, ...], dict[Split, str]]:
    """Select the scenes to export.

    The limit applies after the splits that the format cannot hold are left out.

    Returns:
        The scenes, sorted by id; and the reason why a selected split is left out, by split.

    Raises:
        UnknownSceneError: A selected scene does not exist.
        UsageError: No scene is left.
    """
    # Sorted by id, as `place.entries` is; the lists made from it keep this order.
    splits = {scene_id: entry.split for scene_id, entry in place.entries.items()}
    selection.check_found(place.name, splits, _HINT_SCENES)
    selected = [scene_id for scene_id, split in splits.items() if selection.wants(scene_id, split)]
    left_out = {}
    for split in sorted({splits[scene_id] for scene_id in selected}):
        reason = exporter.exclusion_reason(split, place.options)
        if reason:
            left_out[split] = reason

    scene_ids = [scene_id for scene_id in selected if splits[scene_id] not in left_out]
    scene_ids = scene_ids[: selection.limit]
    if scene_ids:
        return tuple(scene_ids), left_out
    if left_out:
        reasons = "; ".join(left_out.values())
        raise UsageError(f"{place.name}: nothing to export: {reasons}")
    names = ", ".join(selection.splits) or "any split"
    raise UsageError(f"{place.name}: nothing to export: has no scenes of {names}", _HINT_SCENES)


def check_target(
    out_dir: Path, processed_dir: Path | None, settings: Mapping[str, Setting]
) -> ExportManifest | None:
    """Check that an export with these settings may be written into a folder.

    Args:
        out_dir: The folder; it need not exist.
        processed_dir: The processed scenes, which may lie in `out_dir`; they need not exist yet.
        settings: `ExportPlan.settings`, or those of them that are known.

    Returns:
        The manifest of the export in the folder; None if the folder is new or empty.

    Raises:
        UsageError: The folder holds an export with other settings, or something else.
        FileError: The manifest is damaged.
        OutputError: `out_dir` is not a folder.
    """
    check_is_folder(out_dir)
    manifest = read_export(out_dir)
    if manifest is not None:
        _check_settings(out_dir, manifest.settings, settings)
        return manifest

    # Without a manifest, the folder may hold only hidden files and the processed scenes.
    paths = sorted(out_dir.iterdir()) if out_dir.exists() else []
    for path in paths:
        if path.name.startswith("."):
            continue
        holds_processed_scenes = False
        if processed_dir is not None:
            holds_processed_scenes = processed_dir.resolve().is_relative_to(path.resolve())
        if not holds_processed_scenes:
            problem = f"{out_dir}: holds {path.name}, and was not made by scannet-prep export"
            raise UsageError(problem, _HINT_NEW_FOLDER)
    return None


def _check_settings(
    out_dir: Path,
    before: Mapping[str, Setting],
    settings: Mapping[str, Setting],
) -> None:
    """Raise UsageError if an export was made with other settings."""
    changes = []
    for key, value in settings.items():
        if before.get(key) != value:
            changes.append(f"{key}: {before.get(key)} -> {value}")
    if changes:
        problem = f"{out_dir}: holds an export with other options ({', '.join(changes)})"
        raise UsageError(problem, _HINT_NEW_FOLDER)
