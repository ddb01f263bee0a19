"""Archives for tests, and other programs' ways to open them."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Mapping
from pathlib import Path

from scannet_prep.archive import Archive, open_archive, write_archive
from scannet_prep.stages.pack.contents import find_contents
from scannet_prep.stages.selection import Selection


def write_tree(folder: Path, files: Mapping[str, bytes]) -> Path:
    """Write files by name."""
    folder.mkdir(parents=True, exist_ok=True)
    for name, data in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)
    return folder


def pack_tree(folder: Path, archive_path: Path, jobs: int = 1) -> Archive:
    """Pack a folder and open the archive."""
    write_archive(find_contents(folder, archive_path, Selection()).contents, archive_path, jobs=jobs)
    return open_archive(archive_path)


def read_tree(folder: Path) -> dict[str, bytes]:
    """All files by name, without what an archive adds for itself."""
    return {
        path.relative_to(folder).as_posix(): path.read_bytes()
        for path in folder.rglob("*")
        if path.is_file() and not path.is_relative_to(folder / ".scannet-prep")
    }


def unpack_by(tool: str, archive_path: Path, folder: Path) -> dict[str, bytes]:
    """Unpack with a program that is not ours."""
    folder.mkdir()
    if tool == "tar":
        subprocess.run(["tar", "--zstd", "-xf", archive_path, "-C", folder], check=True)
    elif tool == "zstd":
        subprocess.run(f"zstd -dcq -- '{archive_path}' | tar -x -C '{folder}'", shell=True, check=True)
    else:
        subprocess.run([tool, "-xf", archive_path, "-C", folder], check=True)
    return read_tree(folder)


def has_tool(tool: str) -> bool:
    """Whether a program is there; `tar --zstd` needs zstd."""
    return all(shutil.which(name) for name in ({"tar", "zstd"} if tool in {"tar", "zstd"} else {tool}))
