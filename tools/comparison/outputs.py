"""The arrays that a run wrote, and how they differ from expected ones."""

from __future__ import annotations

import zipfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import plyfile
from numpy.typing import NDArray

Array: TypeAlias = NDArray[Any]
Arrays: TypeAlias = dict[str, Array]

# Coordinates, in metres, and normals that differ less are equal.
_TOLERANCE = 1e-3
_DAMAGE = (OSError, ValueError, KeyError, EOFError, zipfile.BadZipFile, plyfile.PlyParseError)


class DamagedOutputError(Exception):
    """A program wrote a file that cannot be read."""


def find_files(out_dir: Path, scene_id: str) -> list[Path]:
    """Find the files of a scene: their paths contain its id, or its id without `scene`."""
    number = scene_id.removeprefix("scene")
    paths = sorted(path for path in out_dir.rglob("*") if path.is_file())
    return [path for path in paths if number in str(path.relative_to(out_dir))]


def read_arrays(out_dir: Path, scene_id: str) -> Arrays:
    """Read all arrays of a scene.

    The name of an array is that of the member of an `.npz`, of the property of a `.ply`, or of the
    file without the scene. A text file has the name of its folder before that: `train txt`. A
    matrix of float32 that has more than three columns is split: `matrix 0`.

    Raises:
        DamagedOutputError: A file cannot be read.
    """
    arrays: Arrays = {}
    for path in find_files(out_dir, scene_id):
        try:
            for name, array in _read_file(path, scene_id):
                arrays |= _split_columns(name, array)
        except _DAMAGE as error:
            raise DamagedOutputError(f"{path.name}: {type(error).__name__}") from error
    return arrays


def _read_file(path: Path, scene_id: str) -> Iterator[tuple[str, Array]]:
    if path.suffix == ".npz":
        with np.load(path) as content:
            for name in content.files:
                if content[name].dtype.kind != "U":
                    yield name, content[name]
    elif path.suffix == ".npy":
        name = path.stem.replace(scene_id, "").replace(scene_id.removeprefix("scene"), "")
        yield name.strip("_") or "matrix", np.load(path)
    elif path.suffix == ".txt":
        yield f"{path.parent.name} txt", np.loadtxt(path, dtype=np.int64, ndmin=1)
    elif path.suffix == ".ply":
        mesh = plyfile.PlyData.read(path)
        for name in mesh["vertex"].data.dtype.names:
            yield name, np.asarray(mesh["vertex"][name])
        yield "faces", np.vstack(mesh["face"]["vertex_indices"])


def _split_columns(name: str, array: Array) -> Arrays:
    is_matrix = array.ndim == 2 and array.shape[1] > 3 and array.dtype == np.float32
    if not is_matrix:
        return {name: array}
    return {f"{name} {column}": array[:, column] for column in range(array.shape[1])}


def list_fields(arrays: Arrays, contents: Mapping[str, str]) -> str:
    """List what the arrays of a scene contain, without repetition."""
    return ", ".join(dict.fromkeys(contents[name] for name in contents if name in arrays))


def describe_difference(arrays: Arrays, expected: Arrays, contents: Mapping[str, str]) -> str:
    """Describe how arrays of a scene differ from the expected ones.

    Args:
        arrays: The arrays.
        expected: The expected arrays.
        contents: What the arrays contain, by name. Others are not compared.

    Returns:
        The difference of each kind of content. It is empty if there is none.
    """
    differences: dict[str, str] = {}
    for name, content in contents.items():
        if name not in expected or content in differences:
            continue
        difference = _compare(arrays.get(name), expected[name], is_instance="instance" in content)
        if difference:
            differences[content] = difference
    return "; ".join(f"{content}: {difference}" for content, difference in differences.items())


def _compare(array: Array | None, expected: Array, *, is_instance: bool) -> str:
    if array is None:
        return "missing"
    if array.shape != expected.shape:
        return f"{len(array):,} rows instead of {len(expected):,}"
    if is_instance:
        # The same instances may have other ids.
        array = _number_by_appearance(array)
        expected = _number_by_appearance(expected)
    if expected.dtype.kind == "f":
        is_different = ~np.isclose(array, expected, rtol=0, atol=_TOLERANCE, equal_nan=True)
    else:
        is_different = array != expected
    count = int(is_different.reshape(len(expected), -1).any(axis=1).sum())
    return f"{count:,} of {len(expected):,} differ" if count else ""


def _number_by_appearance(ids: Array) -> Array:
    """Number ids in the order in which they appear."""
    _, first_indices, inverse = np.unique(ids, return_index=True, return_inverse=True)
    return np.argsort(np.argsort(first_indices))[inverse.reshape(-1)]
