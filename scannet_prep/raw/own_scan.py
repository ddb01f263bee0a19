"""Scans of your own: any triangle mesh in a PLY file, with or without colours.

A scan has the name of its file, and belongs to the split `test`, as it has no annotation. It is
turned into metres by a scale, and upright by a matrix.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from shlex import quote
from typing import Any, Literal, NoReturn, TypeAlias

import numpy as np
from numpy.typing import NDArray

from scannet_prep.base.files import Buffer, read_file
from scannet_prep.errors import ContentError, MissingFileError, RawFileError, UsageError
from scannet_prep.raw.info import find_alignment_fault, parse_matrix
from scannet_prep.raw.layout import RawScene
from scannet_prep.raw.mesh import OwnMesh, parse_own_mesh
from scannet_prep.release.files import MESH, FileKind
from scannet_prep.release.scene import SceneId

UpAxis: TypeAlias = Literal["x", "y", "z", "-x", "-y", "-z"]
"""The axis of a file that points up."""

# Rotations that turn an axis up, row by row.
_ROTATIONS: dict[UpAxis, list[list[int]]] = {
    "x": [[0, 0, -1], [0, 1, 0], [1, 0, 0]],
    "y": [[1, 0, 0], [0, 0, -1], [0, 1, 0]],
    "z": [[1, 0, 0], [0, 1, 0], [0, 0, 1]],
    "-x": [[0, 0, 1], [0, 1, 0], [-1, 0, 0]],
    "-y": [[1, 0, 0], [0, 0, 1], [0, -1, 0]],
    "-z": [[1, 0, 0], [0, -1, 0], [0, 0, -1]],
}
UP_AXES: tuple[UpAxis, ...] = tuple(_ROTATIONS)

_MAX_EXTENT_M = 100
# Beyond this distance, float32 rounds to more than half a millimetre.
_MAX_DISTANCE_M = 10_000
# The largest coordinate of a map (UTM), from which a matrix may have to shift a scan.
_MAX_SHIFT_M = 10_000_000
# The limits exclude typing errors: from nanometres to a million kilometres.
_MIN_SCALE = 1e-9
_MAX_SCALE = 1e9
_HINT_EXPORT = "export it again, for example from MeshLab, as a binary PLY file of triangles"


@dataclass(frozen=True, slots=True)
class OwnScan(RawScene):
    """A mesh that is not from the release.

    Attributes:
        file: The PLY file.
        scale: Metres per unit of the file.
        alignment: The matrix aligned <- scan, 16 numbers row by row, metres; None for none.
    """

    file: Path = Path()
    scale: float = 1.0
    alignment: tuple[float, ...] | None = None

    @property
    def directory(self) -> Path:
        """The file: it has no folder of its own."""
        return self.file

    def path(self, kind: FileKind) -> Path:
        """Return the file for the mesh; for other kinds, a path that is not used."""
        return self.file if kind is MESH else self.file.with_name(f"{self.scene_id}{kind.suffix}")

    @property
    def settings(self) -> str:
        """Scale and alignment, as a text that differs if they do."""
        return f"{self.scale} {self.alignment}"

    @property
    def axis_alignment(self) -> NDArray[np.float64] | None:
        """The matrix aligned <- scan, float64 (4, 4), metres; None for none."""
        if self.alignment is None:
            return None
        return np.array(self.alignment, np.float64).reshape(4, 4)


def find_own_scans(
    files: Sequence[Path],
    *,
    up: UpAxis | None = None,
    matrix: Path | None = None,
    scale: float = 1.0,
) -> dict[SceneId, OwnScan]:
    """Make the scans of some files, each named after its file.

    Args:
        files: PLY files.
        up: The axis of the files that points up.
        matrix: A text file with the 16 numbers of the matrix aligned <- scan, row by row, metres.
        scale: Metres per unit of the files, from 1e-9 to 1e9.

    Returns:
        Scans by name, sorted.

    Raises:
        UsageError: A name cannot be used, or occurs twice; the arguments contradict each other; or
            the scale is not positive.
        MissingFileError: A file does not exist.
        RawFileError: A file is not called `.ply`; or the matrix is not a rotation with a shift.
    """
    if up is not None and matrix is not None:
        raise UsageError("--up and --matrix contradict each other", "leave out one of them")
    if not _MIN_SCALE <= scale <= _MAX_SCALE:
        raise UsageError(
            f"scale is {scale}, expected metres per unit, from {_MIN_SCALE:g} to {_MAX_SCALE:g}",
            "for millimetres: --scale 0.001",
        )
    alignment = None
    if up is not None:
        alignment = _flatten(_rotate(up))
    elif matrix is not None:
        alignment = _flatten(_read_matrix(matrix))

    scans: dict[SceneId, OwnScan] = {}
    for file in files:
        name = _choose_name(file)
        if name in scans:
            _refuse_same_name(file, scans[name].file)
        scans[name] = OwnScan(name, file.parent, file=file, scale=scale, alignment=alignment)
    return dict(sorted(scans.items()))


def parse_own_scan(data: Buffer, scan: OwnScan) -> OwnMesh:
    """Parse the mesh of a scan, in metres, and check that it can be a room.

    Args:
        data: The bytes of the file.
        scan: The scan.

    Returns:
        The mesh in the frame of the scan, with float64 positions if the scale is not 1.

    Raises:
        RawFileError: The file is not a mesh of triangles, is larger than 100 m, or lies so far from
            the origin that float32 rounds its points, in the file or after the alignment.
    """
    try:
        mesh = parse_own_mesh(data, scan.file)
    except RawFileError as error:
        # The hints there are about downloading files of the release.
        raise RawFileError(scan.file, error.problem, _HINT_EXPORT) from None
    has_floats = mesh.positions.dtype == np.float32
    if scan.scale != 1:
        mesh = replace(mesh, positions=mesh.positions.astype(np.float64) * scan.scale)
    _check_size(mesh.positions, scan, has_floats=has_floats)
    return mesh


def _choose_name(file: Path) -> SceneId:
    """Return the name of a file's scan."""
    suffix = file.suffix.lower()
    if suffix != ".ply":
        hint = f"unpack it: gunzip -k {_quote(file)}" if suffix == ".gz" else _HINT_EXPORT
        raise RawFileError(file, "is not called .ply, expected a PLY file", hint)
    if not file.exists():
        raise MissingFileError(file, "no such file", "name PLY files, or a raw folder")
    if SceneId.is_own(file.stem):
        return SceneId(file.stem)
    problem = f"{file}: {file.stem!r} cannot be the name of a scan"
    if SceneId.is_of_release(file.stem.lower()):
        problem += ": it is that of a scene of the release"
    raise UsageError(
        problem,
        "rename the file: up to 96 letters, digits, _ and -, unlike scene0000_00; "
        f"mv {_quote(file)} {_quote(_suggest_path(file))}",
    )


def _refuse_same_name(file: Path, other: Path) -> NoReturn:
    """Raise the error for two files of one name, which may be one file under two paths."""
    if file.samefile(other):
        raise UsageError(f"{file} is named twice", "name each file once")
    raise UsageError(f"{file} and {other} have the same name", "rename one of the two")


def _suggest_path(file: Path) -> Path:
    """Suggest another name for a file, which a scan can have and no file has."""
    # Letters lose their accents.
    letters = unicodedata.normalize("NFKD", file.stem).encode("ascii", "ignore").decode()
    name = "-".join(re.findall(r"\w+", letters))[:80].strip("_")
    if not SceneId.is_own(name):
        name = f"scan-{name}" if name else "scan"
    path = file.with_name(f"{name}.ply")
    number = 2
    while path.exists():
        path = file.with_name(f"{name}-{number}.ply")
        number += 1
    return path


def _quote(file: Path) -> str:
    """Quote a path for a shell, in a form that no command takes for an option."""
    text = str(file)
    return quote(f"./{text}" if text.startswith("-") else text)


def _rotate(up: UpAxis) -> NDArray[np.float64]:
    """Return the matrix, float64 (4, 4), that turns an axis up."""
    if up not in _ROTATIONS:
        raise UsageError(f"up is {up!r}, expected one of {', '.join(UP_AXES)}", "--up y")
    matrix = np.eye(4)
    matrix[:3, :3] = _ROTATIONS[up]
    return matrix


def _read_matrix(path: Path) -> NDArray[np.float64]:
    """Read a matrix, float64 (4, 4), and check that it is a rotation with a shift."""
    try:
        text = read_file(path).decode("utf-8", "replace")
        matrix = parse_matrix(text, largest=_MAX_SHIFT_M)
    except ContentError as error:
        raise RawFileError(path, error.message, "list the matrix row by row") from None
    fault = find_alignment_fault(matrix)
    if fault:
        raise RawFileError(
            path,
            f"is not a rotation with a shift: {fault}",
            "list the matrix row by row, with 0 0 0 1 at the end; for another unit, pass --scale",
        )
    return matrix


def _flatten(matrix: NDArray[np.float64]) -> tuple[float, ...]:
    return tuple(float(number) for number in matrix.ravel())


def _check_size(positions: NDArray[np.floating[Any]], scan: OwnScan, *, has_floats: bool) -> None:
    """Check the extent of a scan, and its distance from the origin.

    Args:
        positions: In the frame of the scan, (V, 3), metres.
        scan: The scan.
        has_floats: Whether the file has floats rather than doubles.
    """
    smallest = positions.min(axis=0).astype(np.float64)
    largest = positions.max(axis=0).astype(np.float64)
    extent_m = float((largest - smallest).max())
    if extent_m > _MAX_EXTENT_M:
        raise RawFileError(
            scan.file,
            f"is {extent_m:,.0f} m long, expected at most {_MAX_EXTENT_M} m",
            "if its unit is a millimetre: --scale 0.001",
        )
    center = (smallest + largest) / 2
    distance_m = float(np.abs(center).max())
    if has_floats and distance_m > _MAX_DISTANCE_M:
        raise RawFileError(
            scan.file,
            f"lies {distance_m:,.0f} m from the origin, where its floats are rounded to "
            f"millimetres, expected at most {_MAX_DISTANCE_M:,} m",
            "export it again near the origin, or with coordinates of type double",
        )
    if scan.axis_alignment is not None:
        center = scan.axis_alignment[:3, :3] @ center + scan.axis_alignment[:3, 3]
        distance_m = float(np.abs(center).max())
    if distance_m > _MAX_DISTANCE_M:
        raise RawFileError(
            scan.file,
            f"lies {distance_m:,.0f} m from the origin, where float32 rounds to millimetres, "
            f"expected at most {_MAX_DISTANCE_M:,} m",
            "shift it to the origin: --matrix FILE",
        )
