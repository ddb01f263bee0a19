"""The output folder before a run of `process`, and the one set of options of its scenes."""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from scannet_prep.errors import FileError, OldFormatError, UsageError
from scannet_prep.export import is_export
from scannet_prep.processed import folder
from scannet_prep.processed.manifest import Manifest, read_manifest, read_old_options
from scannet_prep.processed.scene import ProcessOptions
from scannet_prep.release.label_map import LabelMap
from scannet_prep.release.scene import SceneId, Split

HINT_OTHER_FOLDER = "choose another output folder with -o"


@dataclass(frozen=True, slots=True)
class FolderBefore:
    """A processed folder before a run.

    Attributes:
        head: Options and label map, without scenes; None if no file shows them, as in a new folder.
        manifest: The manifest. It has no scenes if it is missing or damaged, so that files are read
            instead.
        held: The split of each scene whose file lies in the folder.
        is_old: Whether the folder has the format of an older version.
    """

    head: Manifest | None
    manifest: Manifest
    held: Mapping[SceneId, Split] = field(hash=False)
    is_old: bool = False

    def differs_from(self, options: ProcessOptions, label_map: LabelMap) -> bool:
        """Whether options and label map have to be written before any scene is made."""
        # A head that is missing, as in a new folder, differs, too.
        return self.is_old or self.head != Manifest(options, label_map.digest)


def check_no_export(out_dir: Path) -> None:
    """Refuse to write into an export."""
    if is_export(out_dir):
        raise UsageError(
            f"{out_dir}: processed scenes would lie among those of an export", HINT_OTHER_FOLDER
        )


def read_folder(out_dir: Path, *, is_forced: bool) -> FolderBefore:
    """Read the options and the manifest of the output folder.

    Args:
        out_dir: The folder; it need not exist.
        is_forced: Whether it may have the format of an older version.

    Raises:
        OldFormatError: It has the format of an older version, and the run is not forced.
    """
    held = {scene_id: split for scene_id, split, _ in folder.iter_processed_scenes(out_dir)}
    try:
        manifest = read_manifest(out_dir)
    except OldFormatError:
        if not is_forced:
            raise
        head = Manifest(read_old_options(out_dir) or ProcessOptions())
        return FolderBefore(head=head, manifest=head, held=held, is_old=True)
    except FileError:
        # It is damaged, and is rebuilt from the files of the scenes, as if it were missing.
        manifest = None
    if manifest is None:
        head_of_files = folder.find_head(out_dir)
        manifest = head_of_files or Manifest(ProcessOptions())
        return FolderBefore(head=head_of_files, manifest=manifest, held=held)
    head = Manifest(manifest.options, manifest.label_map)
    return FolderBefore(head=head, manifest=manifest, held=held)


def read_before_run(out_dir: Path, raw: Sequence[Path], *, is_forced: bool) -> FolderBefore:
    """Read the folder as it is before the run.

    Args:
        out_dir: The folder.
        raw: The raw folder, for the hint.
        is_forced: Whether the folder may have the format of an older version.

    Raises:
        OldFormatError: As for `read_folder`, with the command as the hint.
    """
    try:
        return read_folder(out_dir, is_forced=is_forced)
    except OldFormatError as error:
        words = ["scannet-prep", "process", "--force", "-o", str(out_dir), *map(str, raw)]
        raise OldFormatError(
            error.path, error.problem, f"process the folder again: {shlex.join(words)}"
        ) from None


def name_options(
    options: ProcessOptions | Mapping[str, bool | str] | None,
) -> dict[str, Any]:
    """Return the options that a caller sets, by name."""
    if isinstance(options, ProcessOptions):
        return asdict(options)
    return dict(options or {})


def choose_options(
    out_dir: Path, before: FolderBefore, named: Mapping[str, Any], *, is_forced: bool
) -> tuple[ProcessOptions, str]:
    """Complete the options that a command names by those of the folder.

    Args:
        out_dir: The folder.
        before: Its state.
        named: The options that the command sets, by the name of the field of `ProcessOptions`.
        is_forced: Whether the options of the folder may change.

    Returns:
        The options, and where they come from, in words.

    Raises:
        UsageError: The folder holds scenes, or is to hold those of an interrupted run; it has other
            options, or nothing shows its options; and the run is not forced.
    """
    if before.head is None:
        if before.held and not named and not is_forced:
            raise UsageError(
                f"{out_dir}: holds scenes, but neither a manifest nor an intact scene "
                "of this format shows their options",
                "name them, for example --scannet200 --align-axis; "
                "or write to another folder with -o DIR",
            )
        return ProcessOptions(**named), "the command" if named else "the defaults"

    old_options = before.head.options
    chosen = replace(old_options, **named)
    if chosen == old_options:
        return chosen, str(out_dir)
    # If all scenes have failed, for example because of a wrong option, the folder holds none.
    if folder.find_scene_ids(out_dir) and not is_forced:
        raise UsageError(
            f"{out_dir}: was made with {old_options.flags}; this command asks for {chosen.flags}",
            "write to another folder with -o DIR; or process the whole folder again with --force",
        )
    return chosen, "the command"
