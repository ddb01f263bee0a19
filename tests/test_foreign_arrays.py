"""Arrays of other programs in each form that NumPy writes, whole and damaged."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from scannet_prep.errors import FileError
from scannet_prep.predictions.arrays import load_arrays, load_scores

NAME = "scene0011_00.eval.npz"
CLASS_COUNT = 20
SCORES = np.random.default_rng(0).random((9000, CLASS_COUNT + 1))

ONE_NAN = SCORES.copy()
ONE_NAN[8571, 9] = np.nan


@pytest.mark.parametrize("save", [np.savez, np.savez_compressed])
@pytest.mark.parametrize("scores", [SCORES, SCORES[:0], SCORES[:4096], np.asfortranarray(SCORES)])
@pytest.mark.parametrize("kind", ["<f2", "<f4", ">f4", "<f8"])
def test_loaded_scores_equal_the_saved_ones(
    tmp_path: Path, save: Any, scores: np.ndarray, kind: str
) -> None:
    saved = scores.astype(kind)
    save(tmp_path / NAME, other=np.zeros(3), prob=saved)

    loaded = load_scores(tmp_path / NAME, CLASS_COUNT)

    assert np.array_equal(loaded, saved)


@pytest.mark.parametrize("save", [np.savez, np.savez_compressed])
@pytest.mark.parametrize("order", ["C", "F"])
def test_damaged_scores_raise_an_error_that_names_the_file(
    tmp_path: Path, save: Any, order: Any
) -> None:
    buffer = io.BytesIO()
    save(buffer, prob=SCORES[:50].astype(np.float32, order=order))
    data = buffer.getvalue()

    damaged = [data[: len(data) // 2], data[:-30], b"", b"\x93NUMPY"]
    for position in range(70, len(data) - 120, 101):
        flipped = bytearray(data)
        flipped[position] ^= 64
        damaged.append(bytes(flipped))

    for content in damaged:
        (tmp_path / NAME).write_bytes(content)
        with pytest.raises(FileError, match=NAME):
            load_scores(tmp_path / NAME, CLASS_COUNT)


@pytest.mark.parametrize(
    ("array", "problem"),
    [
        (SCORES[:, 1:], r"prob: found float64 \(9000, 20\), expected floats \(vertices, 21\)"),
        (SCORES > 1, r"prob: found bool \(9000, 21\)"),
        (SCORES[0], r"prob: found float64 \(21,\)"),
        (ONE_NAN, "prob: found NaN"),
        (np.array([{}]), "Object arrays cannot be loaded"),
    ],
)
def test_array_other_than_scores_raises_an_error_with_its_shape(
    tmp_path: Path, array: np.ndarray, problem: str
) -> None:
    np.savez(tmp_path / NAME, prob=array)

    with pytest.raises(FileError, match=problem):
        load_scores(tmp_path / NAME, CLASS_COUNT)


def test_missing_array_raises_an_error_with_the_names_of_the_others(tmp_path: Path) -> None:
    np.savez(tmp_path / NAME, labels=np.zeros(3), scores=np.zeros(3))

    with pytest.raises(FileError, match=r"has no array 'prob', only: labels, scores$"):
        load_scores(tmp_path / NAME, CLASS_COUNT)


def test_npz_file_named_npy_raises_an_error_that_names_both_kinds(tmp_path: Path) -> None:
    path = tmp_path / "scene0011_00.npy"
    with path.open("wb") as file:
        np.savez(file, labels=np.zeros(3))

    with pytest.raises(FileError, match=r"is an \.npz file, expected an \.npy file$"):
        load_arrays(path)


def test_npy_file_named_npz_raises_an_error_that_names_both_kinds(tmp_path: Path) -> None:
    path = tmp_path / "scene0011_00.npz"
    with path.open("wb") as file:
        np.save(file, np.zeros(3))

    with pytest.raises(FileError, match=r"is an \.npy file, expected an \.npz file$"):
        load_arrays(path, "masks")
