"""What a path is, and the processed scenes it holds: one answer for all commands and for training.

path, address or list -- identify ----> a raw tree, a processed folder, an export, or archives
-- open_processed -> SceneSource: FolderScenes or ArchiveScenes
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
