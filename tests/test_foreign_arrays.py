"""Arrays of other programs in each form that NumPy writes, whole and damaged."""

import io

import numpy as np
import pytest

from scannet_prep.errors import FileError
from scannet_prep.predictions.reader import load_arrays

NAME = "scene0011_00.npz"
ARRAY = np.random.default_rng(0).random((9000, 21))
BOTH_KINDS = pytest.mark.parametrize("save", [np.savez, np.savez_compressed])


@BOTH_KINDS
@pytest.mark.parametrize("kind", ["<f2", "<f4", ">f4", "<f8"])
def test_loaded_arrays_equal_the_saved_ones(tmp_path, save, kind):
    for array in (ARRAY, ARRAY[:0], ARRAY[:4096], np.asfortranarray(ARRAY)):
        saved = array.astype(kind)
        save(tmp_path / NAME, other=np.zeros(3), prob=saved)
        other, loaded = load_arrays(tmp_path / NAME, "other", "prob")
        assert np.array_equal(loaded, saved)
        assert other.tolist() == [0, 0, 0]


@BOTH_KINDS
@pytest.mark.parametrize("order", ["C", "F"])
def test_damaged_arrays_raise_an_error_that_names_the_file(tmp_path, save, order):
    buffer = io.BytesIO()
    save(buffer, prob=ARRAY[:50].astype(np.float32, order=order))
    data = buffer.getvalue()
    damaged = [data[: len(data) // 2], data[:-30], b"", b"\x93NUMPY"]
    for position in range(70, len(data) - 120, 101):
        flipped = bytearray(data)
        flipped[position] ^= 64
        damaged.append(flipped)

    for content in damaged:
        (tmp_path / NAME).write_bytes(content)
        with pytest.raises(FileError, match=NAME):
            load_arrays(tmp_path / NAME, "prob")


def test_other_arrays_and_files_are_refused_with_what_was_found(tmp_path):
    np.savez(tmp_path / NAME, masks=np.array([{}]))
    np.save(tmp_path / "a.npy", ARRAY)
    (tmp_path / "a.npy").rename(tmp_path / "a.npz")
    cases = {NAME: "Object arrays cannot be loaded", "a.npz": "'masks'"}
    for name, problem in cases.items():
        with pytest.raises(FileError, match=f"{name}: cannot be read as .npz: {problem}"):
            load_arrays(tmp_path / name, "masks")
    with pytest.raises(FileError, match="'labels is not a file in the archive'"):
        load_arrays(tmp_path / NAME, "labels")
