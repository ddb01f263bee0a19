"""Identify paths and open the scenes they hold, for all commands and for training.

`identify` determines whether a path, an address or a list of them is a raw tree, a processed
folder, an export, a folder of extracted frames, or archives. `open_processed` returns its scenes
as `FolderScenes` or `ArchiveScenes`. `RawScenes` processes those of a raw tree.
"""

from __future__ import annotations

from scannet_prep.archive.byte_source import Place
from scannet_prep.source.identify import (
    Identity,
    SourceKind,
    describe_file,
    find_folder,
    identify,
    identify_folder,
)
from scannet_prep.source.scenes import SceneSource, open_processed

__all__ = [
    "Identity",
    "Place",
    "SceneSource",
    "SourceKind",
    "describe_file",
    "find_folder",
    "identify",
    "identify_folder",
    "open_processed",
]
