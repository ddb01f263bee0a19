"""Arrays in the files of other programs: `.npy`, `.npz`, and texts of one number per line."""

from __future__ import annotations

import re
import struct
import zipfile
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from scannet_prep.base.files import open_file
from scannet_prep.errors import ContentError, FileError, ScanNetPrepError
from scannet_prep.predictions.plain_numbers import parse_plain_list

_MAX_BYTES = 1 << 36
_NUMBER = re.compile(rb"[ \t]*(-?[0-9]{1,18})[ \t]*")
# Hints by the number of columns of scores: one column for each class, and one for unlabeled.
_LABEL_SET_HINTS = {
    21: "for ScanNet20: --label-set scannet20",
    201: "for ScanNet200: --label-set scannet200",
}

# Damaged files make `np.load` and the modules that it calls raise any of these.
_LOAD_ERRORS = (
    EOFError,
    IndexError,
    KeyError,
    MemoryError,
    NotImplementedError,
    OSError,
    RuntimeError,
    TypeError,
    ValueError,
    struct.error,
    zipfile.BadZipFile,
    zlib.error,
)


def load_arrays(path: Path, *keys: str) -> dict[str, NDArray[Any]]:
    """Read arrays of an `.npz` file by their keys, or the array of an `.npy` file.

    Args:
        path: The file.
        keys: Names of the arrays to read from an `.npz` file; none for an `.npy` file.

    Returns:
        The arrays by name. The array of an `.npy` file has an empty name.

    Raises:
        FileError: The file cannot be read, or does not contain one of the arrays.
    """
    with _translated_errors(path), open_file(path, _MAX_BYTES) as file:
        # An `.npy` file is read as an array, an `.npz` file as a mapping, whatever its name.
        loaded: Any = np.load(file, allow_pickle=False)
        is_array = isinstance(loaded, np.ndarray)
        if not keys:
            if not is_array:
                raise FileError(path, "is an .npz file, expected an .npy file")
            return {"": loaded}
        if is_array:
            raise FileError(path, "is an .npy file, expected an .npz file")
        for key in keys:
            if key not in loaded:
                names = ", ".join(loaded) or "none"
                raise FileError(path, f"has no array {key!r}, only: {names:.200}")
        return {key: loaded[key] for key in keys}


def load_scores(path: Path, class_count: int) -> NDArray[np.floating[Any]]:
    """Read the scores of all vertices, the array `prob` of OctFormer's `<scene>.eval.npz`.

    Returns:
        Floats (V, K + 1); the first column is for unlabeled.

    Raises:
        FileError: The file cannot be read, does not contain scores of this shape, or contains NaN.
    """
    scores = load_arrays(path, "prob")["prob"]
    has_shape = scores.ndim == 2 and scores.shape[1] == class_count + 1
    if not has_shape or scores.dtype.kind != "f":
        problem = (
            f"prob: found {scores.dtype} {scores.shape}, "
            f"expected floats (vertices, {class_count + 1})"
        )
        column_count = scores.shape[-1] if scores.ndim else 0
        raise FileError(path, problem, _LABEL_SET_HINTS.get(column_count, ""))
    # The maximum is NaN if one of the scores is; this needs no array of V x (K + 1) bools.
    if np.isnan(scores.max(initial=0)):
        raise FileError(path, "prob: found NaN, expected numbers")
    return scores


@contextmanager
def _translated_errors(path: Path) -> Iterator[None]:
    """Translate the errors of `np.load` into FileError."""
    try:
        yield
    except ScanNetPrepError:
        raise
    except _LOAD_ERRORS as error:
        raise FileError(path, f"cannot be read as {path.suffix}: {error}") from None


def parse_lines(text: bytes) -> NDArray[np.int64]:
    """Parse a text of one whole number per line.

    Lines may end in CR LF. The last line needs no end of line.

    Returns:
        int64 (lines,).

    Raises:
        ContentError: A line is not a whole number. The message contains its line number.
    """
    text = text.replace(b"\r\n", b"\n").rstrip(b"\n")
    if not text:
        return np.zeros(0, np.int64)
    plain_numbers = parse_plain_list(text, b"\n")
    if plain_numbers is not None:
        return plain_numbers

    # Slower, for lines that contain blanks or something other than a number.
    numbers = []
    for line_number, line in enumerate(text.split(b"\n"), start=1):
        match = _NUMBER.fullmatch(line)
        if match is None:
            # 40 letters of b'...', without the b.
            shown = repr(line)[1:42]
            raise ContentError(f"line {line_number:,}: found {shown}, expected a whole number")
        numbers.append(int(match[1]))
    return np.array(numbers, np.int64)
