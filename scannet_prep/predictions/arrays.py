"""Arrays in `.npy` and `.npz` files and in texts of a number a line, as other programs write them."""

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

from scannet_prep.base.errors import ContentError, FileError, ScanNetPrepError
from scannet_prep.base.files import open_file
from scannet_prep.base.number_lists import parse_plain_list

_MAX_BYTES = 1 << 36
_NUMBER = re.compile(rb"[ \t]*(-?[0-9]{1,18})[ \t]*")
# By the number of scores of a vertex: one for each class, and one for unlabeled.
_LABELS_HINTS = {
    21: "for ScanNet20: --labels scannet20",
    201: "for ScanNet200: --labels scannet200",
}


def load_arrays(path: Path, *keys: str) -> dict[str, NDArray[Any]]:
    """Read arrays of an `.npz` by their keys, or the one of an `.npy` under an empty key.

    Raises:
        FileError: It cannot be read, or has none of that name.
    """
    with _translate_errors(path), open_file(path, _MAX_BYTES) as file:
        found: Any = np.load(file, allow_pickle=False)
        return {key: found[key] for key in keys} if keys else {"": found[:]}


def load_scores(path: Path, class_count: int) -> NDArray[np.floating[Any]]:
    """Read the scores of all vertices, the array `prob` of OctFormer's `<scene>.eval.npz`.

    Returns:
        Floats (V, K + 1); the first column stands for unlabeled.

    Raises:
        FileError: The file cannot be read, does not hold scores, or holds NaN.
    """
    scores = load_arrays(path, "prob")["prob"]
    if scores.ndim != 2 or scores.shape[1] != class_count + 1 or scores.dtype.kind != "f":
        problem = f"prob: found {scores.dtype} {scores.shape}, expected floats (vertices, {class_count + 1})"
        column_count = scores.shape[-1] if scores.ndim else 0
        raise FileError(path, problem, _LABELS_HINTS.get(column_count, ""))
    # The maximum is NaN if one of the scores is.
    if np.isnan(scores.max(initial=0)):
        raise FileError(path, "prob: found NaN, expected numbers")
    return scores


@contextmanager
def _translate_errors(path: Path) -> Iterator[None]:
    try:
        yield
    except ScanNetPrepError:
        raise
    except KeyError as error:
        raise FileError(path, f"has no array {error}") from None
    except (
        ValueError, EOFError, IndexError, TypeError, MemoryError, OSError, RuntimeError, NotImplementedError,
        struct.error, zipfile.BadZipFile, zlib.error,
    ) as error:  # fmt: skip
        raise FileError(path, f"cannot be read as {path.suffix}: {error}") from None


def parse_lines(text: bytes) -> NDArray[np.int64]:
    """Read whole numbers, one a line. Lines may end in CR LF, and the last one in nothing.

    Returns:
        int64 (lines,).

    Raises:
        ContentError: A line is something else; the message says which.
    """
    text = text.replace(b"\r\n", b"\n").rstrip(b"\n")
    if not text:
        return np.zeros(0, np.int64)
    if (values := parse_plain_list(text, b"\n")) is not None:
        return values
    lines = text.split(b"\n")
    matches = [_NUMBER.fullmatch(line) for line in lines]
    if None in matches:
        number = matches.index(None)
        raise ContentError(
            f"line {number + 1:,}: found {str(lines[number])[1:42]}, expected a whole number"
        )
    return np.array([int(match[1]) for match in matches if match], np.int64)
