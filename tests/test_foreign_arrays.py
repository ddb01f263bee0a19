"""Scores of OctFormer in each form that NumPy writes, whole and damaged."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from scannet_prep.base.errors import FileError
from scannet_prep.predictions.arrays import load_scores

NAME = "scene0011_00.eval.npz"
SCORES = np.random.default_rng(0).random((9000, 21))


def read(path: Path) -> np.ndarray:
    return load_scores(path, 20)


@pytest.mark.parametrize("save", [np.savez, np.savez_compressed])
@pytest.mark.parametrize("scores", [SCORES, SCORES[:0], SCORES[:4096], np.asfortranarray(SCORES)])
@pytest.mark.parametrize("kind", ["<f2", "<f4", ">f4", "<f8"])
def test_scores_are_those_that_numpy_reads(
    tmp_path: Path, save: Any, scores: np.ndarray, kind: str
) -> None:
    save(tmp_path / NAME, other=np.zeros(3), prob=scores.astype(kind))
    with np.load(tmp_path / NAME) as expected:
        assert np.array_equal(read(tmp_path / NAME), expected["prob"])


@pytest.mark.parametrize("save", [np.savez, np.savez_compressed])
@pytest.mark.parametrize("is_by_column", [False, True])
def test_every_damaged_part_of_scores_is_an_error_that_names_the_file(
    tmp_path: Path, save: Any, is_by_column: bool
) -> None:
    buffer = io.BytesIO()
    save(buffer, prob=SCORES[:50].astype(np.float32, order="F" if is_by_column else "C"))
    data = buffer.getvalue()
    flipped = [
        data[:at] + bytes([data[at] ^ 64]) + data[at + 1 :]
        for at in range(70, len(data) - 120, 101)
    ]
    faults = [*flipped, data[: len(data) // 2], data[:-30], b"", b"\x93NUMPY"]
    for fault in faults:
        (tmp_path / NAME).write_bytes(fault)
        with pytest.raises(FileError, match=NAME):
            read(tmp_path / NAME)


@pytest.mark.parametrize(
    ("array", "problem"),
    [
        (SCORES[:, 1:], r"prob: found float64 \(9000, 20\), expected floats \(vertices, 21\)"),
        (SCORES > 1, r"prob: found bool \(9000, 21\)"),
        (SCORES[0], r"prob: found float64 \(21,\)"),
        (
            np.where(np.arange(21 * 9000).reshape(9000, 21) == 180_000, np.nan, SCORES),
            "prob: found NaN",
        ),
        (np.array([{}]), "Object arrays cannot be loaded"),
    ],
)
def test_array_that_does_not_hold_scores_is_an_error(
    tmp_path: Path, array: np.ndarray, problem: str
) -> None:
    np.savez(tmp_path / NAME, prob=array)
    with pytest.raises(FileError, match=problem):
        read(tmp_path / NAME)
