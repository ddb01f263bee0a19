"""The processed folder: where each scene lies, and the lists and notices beside the split folders."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from scannet_prep.files import make_directory, remove_file, write_atomically, write_if_changed
from scannet_prep.processed.manifest import Manifest
from scannet_prep.release import TERMS_URL
from scannet_prep.scene import SceneId, Split
from scannet_prep.splits import official_scenes

TERMS_NAME = "TERMS.txt"
FAILED_NAME = "failed.txt"
UNFINISHED_NAME = "unfinished.txt"

TERMS_TEXT = f"""\
The files in this folder derive from the ScanNet dataset (http://www.scan-net.org) and remain under the
ScanNet Terms of Use, which allow non-commercial research and education and forbid redistribution:
{TERMS_URL}
Give them only to people who have accepted those terms.
"""


_UNFINISHED_TEXT = b"""\
Scenes of this folder are being made or unpacked, or a run was interrupted: scenes may be missing, of two kinds, or
outdated. Run the same scannet-prep command again: it goes on where it stopped, and removes this file at its end.
"""


def mark_unfinished(out_dir: Path, run_pid: int | None = None) -> None:
    """Put a file into the folder that says that scenes are being made; readers then refuse it.

    Args:
        out_dir: The processed folder.
        run_pid: The process that leads this run, as for `write_atomically`.

    Raises:
        OutputError: The folder cannot be written to.
    """
    path = out_dir / UNFINISHED_NAME
    if not path.exists():
        write_atomically(path, [_UNFINISHED_TEXT], run_pid=run_pid)


def mark_finished(out_dir: Path) -> None:
    """Remove the file of `mark_unfinished`.

    Raises:
        OutputError: It cannot be removed.
    """
    remove_file(out_dir / UNFINISHED_NAME)


def is_unfinished(out_dir: Path) -> bool:
    """Whether the folder is marked by `mark_unfinished`."""
    return (out_dir / UNFINISHED_NAME).exists()


def processed_path(out_dir: Path, split: Split, scene_id: str) -> Path:
    """Where a processed scene lies."""
    return out_dir / split / f"{scene_id}.npz"


def find_processed_scenes(out_dir: Path) -> dict[SceneId, tuple[Split, Path]]:
    """Find the scenes of a processed folder by their names, without opening them.

    Returns:
        Split and path by scene id, sorted; the first split where a scene lies in two.
    """
    found: dict[SceneId, tuple[Split, Path]] = {}
    for split in Split:
        for path in (out_dir / split).glob("scene*.npz"):
            if SceneId.is_valid(path.stem):
                found.setdefault(SceneId(path.stem), (split, path))
    return dict(sorted(found.items()))


def prepare_folder(out_dir: Path, splits: set[Split]) -> None:
    """Create the folder with the terms notice, and the folders of the splits.

    Raises:
        OutputError: They cannot be created.
    """
    for folder in (out_dir, *(out_dir / split for split in splits)):
        make_directory(folder)
    path = out_dir / TERMS_NAME
    if not path.exists():
        write_atomically(path, [TERMS_TEXT.encode()])


def write_lists(out_dir: Path, manifest: Manifest) -> None:
    """Write the lists beside the split folders: OctFormer's file lists, and the scenes that failed.

    OctFormer's loader reads `scannetv2_<split>_npz.txt`, its result writer `scannetv2_test.txt`: one path a line,
    relative to this folder, in the order of the official lists. `failed.txt` exists only while something has failed.

    Raises:
        OutputError: A list cannot be written.
    """
    for name, data in encode_lists(manifest).items():
        write_if_changed(out_dir / name, data)
    if not manifest.failures:
        remove_file(out_dir / FAILED_NAME)


def encode_lists(manifest: Manifest) -> dict[str, bytes]:
    """Encode the lists that `write_lists` writes, by name."""
    lists = {}
    for split in Split:
        present = {scene_id for scene_id, entry in manifest.scenes.items() if entry.split == split}
        ordered: list[str] = [scene_id for scene_id in official_scenes(split) if scene_id in present]
        ordered += sorted(present.difference(ordered))
        text = "".join(f"{split}/{scene_id}.npz\n" for scene_id in ordered).encode()
        lists[f"scannetv2_{split}_npz.txt"] = text
        if split is Split.TEST:
            lists["scannetv2_test.txt"] = text
    if manifest.failures:
        lists[FAILED_NAME] = _encode_failed_list(list(manifest.failures))
    return lists


def write_failed_list(out_dir: Path, scene_ids: Sequence[str]) -> None:
    """Write `failed.txt`, usable as `--scenes @failed.txt`, or remove it where nothing has failed.

    Raises:
        OutputError: It cannot be written.
    """
    if scene_ids:
        write_if_changed(out_dir / FAILED_NAME, _encode_failed_list(scene_ids))
    else:
        remove_file(out_dir / FAILED_NAME)


def _encode_failed_list(scene_ids: Sequence[str]) -> bytes:
    lines = ["# scenes that failed; to try them again, add --scenes @failed.txt (this file) to the same command\n"]
    return "".join([*lines, *(f"{scene_id}\n" for scene_id in sorted(scene_ids))]).encode()
