"""What an export holds already, and what of it is up to date."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

from scannet_prep.errors import UsageError
from scannet_prep.export import is_export
from scannet_prep.export.format import JoinedFormat
from scannet_prep.export.manifest import ExportEntry, ExportManifest, read_export
from scannet_prep.files import Fingerprint
from scannet_prep.place import ProcessedPlace

if TYPE_CHECKING:
    from scannet_prep.stages.export import ExportPlan


def _is_whole(out_dir: Path, files: Mapping[str, Fingerprint]) -> bool:
    """Whether files are as the manifest records them, by their sizes."""
    with suppress(OSError):
        return all((out_dir / name).stat().st_size == known.size_bytes for name, known in files.items())
    return False


def find_current(plan: ExportPlan, previous: ExportManifest) -> dict[str, ExportEntry]:
    """The scenes that the export has, whole, and made from the version of the scene that is there now."""
    found = {}
    for name in plan.scene_ids:
        entry, now = previous.scenes.get(name), plan.place.entries[name]
        if entry is None or (entry.split, entry.source) != (now.split, now.fingerprint):
            continue
        inputs = plan.format.other_inputs(name, now.split)
        if inputs.items() <= entry.record.items() and _is_whole(plan.out_dir, entry.files):
            found[name] = entry
    if isinstance(plan.format, JoinedFormat):
        parts = {name: entry for name, entry in found.items() if entry.files}
        if parts or len(found) < len(plan.scene_ids) or not _is_whole(plan.out_dir, previous.shared):
            return parts  # what has been joined has no part any more, and is made again to be joined with the others
    return found


def read_previous(out_dir: Path, place: ProcessedPlace, settings: Mapping[str, bool | str]) -> ExportManifest:
    """Read what the folder holds; refuse one that holds something else.

    Raises:
        UsageError: It is another export, or none.
        FileError: Its manifest is damaged.
    """
    hint = "choose a new folder with -o"
    manifest = read_export(out_dir)
    if manifest is None:
        found = sorted(out_dir.iterdir()) if out_dir.exists() else []  # before it is asked whether a shard has begun
        for path in found if not is_export(out_dir) else ():
            is_source = place.folder is not None and place.folder.resolve().is_relative_to(path.resolve())
            if not (path.name.startswith(".") or is_source):
                raise UsageError(f"{out_dir}: holds {path.name}, and was not made by scannet-prep export", hint)
        return ExportManifest(settings, place.name)
    before = manifest.settings
    if changes := [f"{key}: {before.get(key)} -> {now}" for key, now in settings.items() if before.get(key) != now]:
        raise UsageError(f"{out_dir}: holds an export with other options ({', '.join(changes)})", hint)
    return manifest
