"""Reader of files that list the annotated vertices of each scene; it never executes their content.

The files of the data-efficient benchmark were written by `torch.save`. `torch.load` of PyTorch 2.6
and later refuses them if the indices are numbers or arrays of NumPy, and earlier versions execute
any code that a file contains.
"""

from __future__ import annotations

import codecs
import importlib
import io
import json
import pickle
import re
import zipfile
from collections import OrderedDict
from pathlib import Path
from typing import Any

import numpy as np

from scannet_prep.base.files import read_file
from scannet_prep.errors import FileError

_MAX_BYTES = 1 << 30
_HINT_FORMAT = (
    "write {scene id: [vertex, ...]} with torch.save, np.savez or json.dump; "
    "for a file with tensors, pass points=torch.load(FILE, weights_only=True)"
)
# A dict or a list, after a byte order mark and blanks. No pickle begins like this.
_JSON_BEGINNING = re.compile(rb"(\xef\xbb\xbf)?\s*[{\[]")
# PyTorch before 1.6 wrote this number as the first pickle of a file.
_OLD_TORCH_MAGIC = 0x1950A86A20F9469CFC6C
# Functions that make arrays of NumPy, with their modules in NumPy 1. NumPy 2 has numpy._core
# instead of numpy.core.
_ARRAY_MAKERS = {
    ("numpy.core.multiarray", "_reconstruct"),
    ("numpy.core.multiarray", "scalar"),
    ("numpy.core.numeric", "_frombuffer"),
}


def read_points(path: Path) -> dict[str, Any]:
    """Read a file of annotated vertices.

    The file was written by `torch.save` (in the current format or in that before PyTorch 1.6), or
    is a plain pickle, an `.npz` with one array per scene, or `.json`. Nothing in the file is
    executed: a pickle may only contain numbers, texts, lists, dicts and arrays of NumPy. PyTorch is
    not needed.

    Returns:
        Indices of vertices by scene id.

    Raises:
        MissingFileError: There is no such file.
        FileError: The file is damaged, or contains something else.
    """
    data = read_file(path, _MAX_BYTES)
    try:
        content = _parse_points(data)
    except MemoryError:
        raise
    except Exception as error:
        # A damaged pickle raises errors of any type.
        problem = f"is not a list of annotated points: {type(error).__name__}: {error}"
        raise FileError(path, problem, _HINT_FORMAT) from error
    if not isinstance(content, dict):
        raise FileError(
            path, f"holds a {type(content).__name__}, expected a dict by scene id", _HINT_FORMAT
        )
    return content


def _parse_points(data: bytes) -> Any:  # noqa: ANN401 - any content of a file
    """Parse the content of a file, in the format that its first bytes indicate."""
    if _JSON_BEGINNING.match(data):
        return json.loads(data)
    if data.startswith(b"PK"):
        return _parse_zip(data)

    stream = io.BytesIO(data)
    content = _PointsUnpickler(stream).load()
    # An array would be compared element by element, which gives no single bool.
    is_old_torch = isinstance(content, int) and content == _OLD_TORCH_MAGIC
    if not is_old_torch:
        return content
    # Three more pickles follow: the version of the format, a description of the machine, and the
    # content. Skip the first two.
    _PointsUnpickler(stream).load()
    _PointsUnpickler(stream).load()
    return _PointsUnpickler(stream).load()


def _parse_zip(data: bytes) -> Any:  # noqa: ANN401 - any content of a file
    """Parse a zip archive, which `torch.save` or `np.savez` wrote."""
    with zipfile.ZipFile(io.BytesIO(data)) as archive:
        # torch.save writes one pickle, NAME/data.pkl; np.savez writes none.
        pickles = [name for name in archive.namelist() if name.endswith("/data.pkl")]
        if pickles:
            return _PointsUnpickler(io.BytesIO(archive.read(pickles[0]))).load()
    with np.load(io.BytesIO(data), allow_pickle=False) as arrays:
        return dict(arrays)


class _PointsUnpickler(pickle.Unpickler):
    """Unpickler that loads only the functions and classes that make arrays and numbers of NumPy."""

    def find_class(self, module: str, name: str) -> Any:  # noqa: ANN401 - as in the base class
        """Return a function or class by its name in the pickle.

        Raises:
            UnpicklingError: The function or class is not needed to make arrays and numbers.
        """
        if (module, name) == ("collections", "OrderedDict"):
            return OrderedDict
        if (module, name) == ("_codecs", "encode"):
            # Protocols of pickle before 3 store bytes as a text and a call of this function, which
            # converts the text and executes nothing of the file.
            return codecs.encode
        if (module, name) in {("numpy", "ndarray"), ("numpy", "dtype")}:
            return getattr(np, name)
        module_in_numpy_1 = module.replace("numpy._core.", "numpy.core.")
        if (module_in_numpy_1, name) in _ARRAY_MAKERS:
            # Take the function from the installed NumPy, whichever version wrote the file.
            package = "numpy._core" if hasattr(np, "_core") else "numpy.core"
            installed_module = module_in_numpy_1.replace("numpy.core", package)
            return getattr(importlib.import_module(installed_module), name)
        raise pickle.UnpicklingError(
            f"{module}.{name} is not a number, a list, a dict or an array of NumPy"
        )
