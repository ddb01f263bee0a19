"""Arrays of other programs in each form that NumPy writes, whole and damaged."""

import io

import numpy as np
import pytest

from scannet_prep.errors import FileError
from scannet_prep.predictions.arrays import load_arrays, load_scores

NAME = "scene0011_00.eval.npz"
CLASS_COUNT = 20
SCORES = np.random.default_rng(0).random((9000, CLASS_COUNT + 1))
ONE_NAN = SCORES.copy()
ONE_NAN[8571, 9] = np.nan
BOTH_KINDS = pytest.mark.parametrize("save", [np.savez, np.savez_compressed])


@BOTH_KINDS
@pytest.mark.parametrize("kind", ["<f2", "<f4", ">f4", "<f8"])
def test_loaded_scores_equal_the_saved_ones(tmp_path, save, kind):
    for scores in (SCORES, SCORES[:0], SCORES[:4096], np.asfortranarray(SCORES)):
        saved = scores.astype(kind)
        save(tmp_path / NAME, other=np.zeros(3), prob=saved)
        assert np.array_equal(load_scores(tmp_path / NAME, CLASS_COUNT), saved)


@BOTH_KINDS
@pytest.mark.parametrize("order", ["C", "F"])
def test_damaged_scores_raise_an_error_that_names_the_file(tmp_path, save, order):
    buffer = io.BytesIO()
    save(buffer, prob=SCORES[:50].astype(np.float32, order=order))
    data = buffer.getvalue()
    damaged = [data[: len(data) // 2], data[:-30], b"", b"\x93NUMPY"]
    for position in range(70, len(data) - 120, 101):
        flipped = bytearray(data)
        flipped[position] ^= 64
        damaged.append(flipped)

    for content in damaged:
        (tmp_path / NAME).write_bytes(content)
        with pytest.raises(FileError, match=NAME):
            load_scores(tmp_path / NAME, CLASS_COUNT)


def test_other_arrays_and_files_are_refused_with_what_was_found_and_expected(tmp_path):
    cases = [
        ({"prob": SCORES[:, 1:]}, r"found float64 \(9000, 20\), expected floats \(vertices, 21\)"),
        ({"prob": SCORES > 1}, r"prob: found bool \(9000, 21\)"),
        ({"prob": SCORES[0]}, r"prob: found float64 \(21,\)"),
        ({"prob": ONE_NAN}, "prob: found NaN"),
        ({"prob": np.array([{}])}, "Object arrays cannot be loaded"),
        ({"labels": SCORES[0], "scores": SCORES[0]}, "no array prob, only: labels, scores$"),
    ]
    for arrays, problem in cases:
        np.savez(tmp_path / NAME, **arrays)
        with pytest.raises(FileError, match=problem):
            load_scores(tmp_path / NAME, CLASS_COUNT)

    with (tmp_path / "a.npy").open("wb") as file:
        np.savez(file, labels=np.zeros(3))
    with pytest.raises(FileError, match=r"has no array of an \.npy file, only: labels$"):
        load_arrays(tmp_path / "a.npy")
    with (tmp_path / "a.npz").open("wb") as file:
        np.save(file, np.zeros(3))
    with pytest.raises(FileError, match=r"has no array masks, only: none$"):
        load_arrays(tmp_path / "a.npz", "masks")
