"""Decide what a run of `process` has to do with own scans, as `planning` does for the release."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from scannet_prep.base.files import check_is_folder
from scannet_prep.errors import UsageError
from scannet_prep.processed import folder
from scannet_prep.processed.scene import ProcessOptions
from scannet_prep.raw.own_scan import OwnScan
from scannet_prep.release.label_map import builtin_label_map
from scannet_prep.release.scene import SceneId, Split
from scannet_prep.stages.process.folder_before import (
    check_no_export,
    choose_options,
    name_options,
    read_before_run,
)
from scannet_prep.stages.process.planning import ProcessPlan
from scannet_prep.stages.process.reasons import check_none_left_behind, plan_tasks
from scannet_prep.stages.process.scene_worker import ProcessContext


def plan_own_scans(
    scans: Mapping[SceneId, OwnScan],
    out_dir: Path,
    options: ProcessOptions | Mapping[str, bool | str] | None = None,
    *,
    is_forced: bool = False,
    compares_bytes: bool = False,
) -> ProcessPlan:
    """Decide what to do with own scans, which go into the split `test`; nothing is written.

    Other scans of the folder stay as they are. The points are aligned if the scans have an
    alignment.

    Args:
        scans: From `find_own_scans`; at least one.
        out_dir: Folder for the processed scenes.
        options: As for `plan`.
        is_forced: As for `plan`.
        compares_bytes: As for `plan`.

    Raises:
        OutputError: `out_dir` is not a folder.
        UsageError: `out_dir` holds scenes of the release, or is an export, or was made with other
            options; or two names differ only in case; or only its scans, or only these, are
            aligned.
        OldFormatError: `out_dir` has the format of an older version, and the run is not forced.
    """
    files = [scan.file for scan in scans.values()]
    check_is_folder(out_dir)
    check_no_export(out_dir)
    scene_ids = folder.find_scene_ids(out_dir) | scans.keys()
    folder.check_unmixed(out_dir, scene_ids)
    folder.check_apart_without_case(out_dir, scene_ids)
    before = read_before_run(out_dir, files, is_forced=is_forced)
    named = name_options(options)
    is_aligned = all(scan.alignment is not None for scan in scans.values())
    if is_aligned:
        named = {"align_axis": True} | named
    chosen_options, options_source = choose_options(out_dir, before, named, is_forced=is_forced)
    if chosen_options.align_axis and not is_aligned:
        raise UsageError(
            f"{files[0]}: {options_source} has --align-axis, "
            "for which own scans need --up or --matrix",
            "--up z if z points up in the file, --up y if y does; or --matrix FILE",
        )
    if is_aligned and not chosen_options.align_axis:
        raise UsageError(
            "--up and --matrix align the points, --no-align-axis forbids it", "leave out one"
        )
    label_map = builtin_label_map()
    context = ProcessContext(
        options=chosen_options,
        label_map=label_map,
        is_forced=is_forced,
        compares_bytes=compares_bytes,
    )
    check_none_left_behind(
        out_dir, before, context, scans, how_to_select_all="name the files of all its scans"
    )
    return ProcessPlan(
        raw_dir=files[0].parent,
        out_dir=out_dir,
        context=context,
        options_source=options_source,
        before=before.head,
        tasks=plan_tasks(out_dir, before, context, scans, dict.fromkeys(scans, Split.TEST)),
        failures=(),
        notes=(),
        # Scans of the folder that are not named stay.
        is_restricted=True,
        starts_anew=before.differs_from(chosen_options, label_map),
    )
