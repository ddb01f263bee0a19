"""Arrays in the files of other programs: `.npy`, `.npz`, and texts of one number per line."""

from __future__ import annotations

import re
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from scannet_prep.base.files import open_file
from scannet_prep.errors import ContentError, FileError, ScanNetPrepError
from scannet_prep.evaluation.scores import IntArray, describe_array

_MAX_BYTES = 1 << 36
_NUMBER = re.compile(rb"[ \t]*-?[0-9]{1,18}[ \t]*")
# Hints by the number of columns of scores: one column for each class, and one for unlabeled.
_LABEL_SET_HINTS = {
    21: "for ScanNet20: --label-set scannet20",
    201: "for ScanNet200: --label-set scannet200",
}


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
    keys = keys or ("",)
    try:
        with open_file(path, _MAX_BYTES) as file:
            # An `.npy` file is read as an array, an `.npz` file as a mapping, whatever its name.
            loaded: Any = np.load(file, allow_pickle=False)
            if isinstance(loaded, np.ndarray):
                loaded = {"": loaded}
            names = ", ".join(loaded) or "none"
            there = [key for key in keys if key in loaded]
            arrays = {key: loaded[key] for key in there}
    except ScanNetPrepError:
        raise
    except Exception as error:  # noqa: BLE001 - damaged files make NumPy raise errors of any kind
        raise FileError(path, f"cannot be read as {path.suffix}: {error}") from None
    for key in keys:
        if key not in arrays:
            name = key or "of an .npy file"
            raise FileError(path, f"has no array {name}, only: {names:.200}")
    return arrays


def load_scores(path: Path, class_count: int) -> NDArray[np.floating[Any]]:
    """Read the scores of all vertices, the array `prob` of OctFormer's `<scene>.eval.npz`.

    Returns:
        Floats (V, K + 1); the first column is for unlabeled.

    Raises:
        FileError: The file cannot be read, does not contain scores of this shape, or contains NaN.
    """
    scores = load_arrays(path, "prob")["prob"]
    column_count = 0
    if scores.ndim == 2:
        column_count = scores.shape[1]
    expected_count = class_count + 1
    if column_count != expected_count or scores.dtype.kind != "f":
        found = describe_array(scores)
        problem = f"prob: found {found}, expected floats (vertices, {expected_count})"
        hint = _LABEL_SET_HINTS.get(column_count, "")
        raise FileError(path, problem, hint)
    # The maximum is NaN if one of the scores is; this needs no array of V x (K + 1) bools.
    largest = scores.max(initial=0)
    if np.isnan(largest):
        raise FileError(path, "prob: found NaN, expected numbers")
    return scores


def parse_lines(text: bytes) -> IntArray:
    """Parse a text of one whole number per line.

    Lines may end in CR LF. The last line needs no end of line.

    Returns:
        int64 (lines,).

    Raises:
        ContentError: A line is not a whole number. The message contains its line number.
    """
    text = text.replace(b"\r\n", b"\n").rstrip(b"\n")
    # A shortcut for numbers of one digit each, as in masks: digits and ends of lines alternate.
    codes = np.frombuffer(text, np.uint8)
    digits = codes[::2] - ord("0")
    ends = codes[1::2]
    has_ends = len(digits) > len(ends) and (ends == ord("\n")).all()
    if has_ends and digits.max() < 10:
        return digits.astype(np.int64)
    numbers = np.zeros(0, np.int64)
    with suppress(ValueError, DeprecationWarning):
        numbers = np.fromstring(text, np.int64, sep="\n")
    lines = text.split(b"\n") if text else []
    if len(numbers) == len(lines):
        return numbers
    for line_number, line in enumerate(lines, start=1):
        if not _NUMBER.fullmatch(line):
            # 40 letters of b'...', without the b.
            shown = repr(line)[1:42]
            found = f"line {line_number:,}: found {shown}"
            raise ContentError(f"{found}, expected a whole number")
    return numbers
