"""HDF5: all scenes in one file, with our array names, through h5py.

/<split>/<scene>/points, normals, colors, ...  the arrays of the processed scene
/<split>/<scene>                               attribute `meta`: its description, JSON
"""

from __future__ import annotations

import errno
import re
from collections.abc import Mapping, Sequence
from importlib.util import find_spec
from pathlib import Path

from scannet_prep.errors import UsageError
from scannet_prep.export.arrays import as_asked_for
from scannet_prep.export.format import ExportedScene, ExportOptions, JoinedFormat
from scannet_prep.processed.folder import TERMS_TEXT
from scannet_prep.processed.npz import encode_npz
from scannet_prep.processed.scene import ProcessedScene, read_processed
from scannet_prep.scene import Split

_FILE_NAME = "scannet.h5"


class Hdf5(JoinedFormat):
    """One file, a group a scene; nothing is compressed, so that arrays are read in parts at full speed."""

    name = "hdf5"

    def __init__(self, options: ExportOptions) -> None:
        super().__init__(options)
        if find_spec("h5py") is None:
            raise UsageError("h5py is not installed, which writes HDF5", "pip install 'scannet-prep[hdf5]'")

    def encode_scene(self, scene: ProcessedScene) -> ExportedScene:
        """Make the part of a scene: an `.npz`, which one process then copies into the file."""
        content = encode_npz(as_asked_for(scene, self.options).arrays(), frozenset())
        return ExportedScene({f"{scene.meta.scene_id}.npz": content})

    def plan_files(self, parts: Mapping[str, tuple[Split, int]]) -> Mapping[str, Sequence[str]]:
        """All scenes go into one file."""
        return {_FILE_NAME: list(parts)}

    def join(self, path: Path, parts: Mapping[str, Path]) -> None:
        """Write the file."""
        import h5py

        try:
            with h5py.File(path, "w") as file:
                file.attrs["terms"] = TERMS_TEXT
                for scene_id, part in parts.items():
                    scene = read_processed(part)
                    group = file.create_group(f"{scene.meta.split}/{scene_id}")
                    arrays = scene.arrays()
                    group.attrs["meta"] = str(arrays.pop("meta"))
                    for key, array in arrays.items():
                        group.create_dataset(key, data=array)
        except RuntimeError as error:  # what h5py makes of a file that cannot be closed, for example on a full disk
            number = re.search(r"errno = (\d+)", str(error))
            raise OSError(int(number[1]) if number else errno.EIO, str(error)) from error
