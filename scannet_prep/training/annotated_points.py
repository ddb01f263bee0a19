"""Reader of files that list the annotated vertices of each scene, without executing anything in them.

The files of the data-efficient benchmark are what `torch.save` wrote. `torch.load` of PyTorch 2.6 and later refuses
them if the indices are numbers or arrays of NumPy, and earlier versions execute any code that a file contains.
"""

from __future__ import annotations

import codecs
import importlib
import io
import json
import pickle
import zipfile
from collections import OrderedDict
from pathlib import Path
from typing import Any

import numpy as np

from scannet_prep.base.errors import FileError
from scannet_prep.base.files import read_file

_MAX_BYTES = 1 << 30
_HINT = (
    "expected what torch.save, np.savez or json.dump writes of {scene id: [vertex, ...]}; "
    "of a file with tensors: points=torch.load(FILE, weights_only=True)"
)
_OLD_TORCH_MAGIC = 0x1950A86A20F9469CFC6C  # the first pickle of a file of PyTorch before 1.6
_ARRAY_MAKERS = {
    ("numpy.core.multiarray", "_reconstruct"),
    ("numpy.core.multiarray", "scalar"),
    ("numpy.core.numeric", "_frombuffer"),
}


def read_points(path: Path) -> dict[str, Any]:
    """Read a file of annotated vertices: a dict from scene id to indices of vertices.

    It is what `torch.save` wrote (in its format of today or the older one), a plain pickle, `.npz` with an array for
    each scene, or `.json`. Nothing in the file is executed: of a pickle, only numbers, texts, lists, dicts and arrays
    of NumPy are accepted. PyTorch is not needed.

    Raises:
        MissingFileError: There is no such file.
        FileError: It is damaged, or holds something else.
    """
    data = read_file(path, _MAX_BYTES)
    try:
        content = _parse_points(data)
    except MemoryError:
        raise
    except Exception as error:  # a damaged pickle raises errors of any type
        problem = f"is not a list of annotated points: {type(error).__name__}: {error}"
        raise FileError(path, problem, _HINT) from error
    if not isinstance(content, dict):
        raise FileError(
            path, f"holds a {type(content).__name__}, expected a dict by scene id", _HINT
        )
    return content


def _parse_points(data: bytes) -> Any:  # noqa: ANN401 - whatever the file holds
    if data.startswith(b"{"):
        return json.loads(data)
    stream = io.BytesIO(data)
    if data.startswith(b"PK"):
        with zipfile.ZipFile(stream) as archive:
            pickles = [name for name in archive.namelist() if name.endswith("/data.pkl")]
            if pickles:
                return _PointsUnpickler(io.BytesIO(archive.read(pickles[0]))).load()
        stream.seek(0)
        with np.load(stream, allow_pickle=False) as arrays:
            return dict(arrays)
    content = _PointsUnpickler(stream).load()
    if (
        content == _OLD_TORCH_MAGIC
    ):  # followed by a version and a description of the machine, each a pickle
        for _ in range(3):
            content = _PointsUnpickler(stream).load()
    return content


class _PointsUnpickler(pickle.Unpickler):
    """Unpickler that finds nothing but what arrays and numbers of NumPy are made of."""

    def find_class(self, module: str, name: str) -> Any:  # noqa: ANN401 - as of the base
        """Return a function or class by the name that the pickle has for it.

        Raises:
            UnpicklingError: It is not needed for arrays of numbers.
        """
        if (module, name) == ("collections", "OrderedDict"):
            return OrderedDict
        if (module, name) == ("_codecs", "encode"):
            return codecs.encode  # bytes in the older protocols of pickle
        if (module, name) in {("numpy", "ndarray"), ("numpy", "dtype")}:
            return getattr(np, name)
        # NumPy 1 writes numpy.core, NumPy 2 numpy._core.
        if (module.replace("._core.", ".core."), name) in _ARRAY_MAKERS:
            package = "numpy._core" if hasattr(np, "_core") else "numpy.core"
            return getattr(importlib.import_module(f"{package}.{module.rpartition('.')[2]}"), name)
        raise pickle.UnpicklingError(
            f"{module}.{name} is not a number, a list, a dict or an array of NumPy"
        )
