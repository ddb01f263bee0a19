"""The mesh reader: what it makes of good, odd and wrong files in each of the three formats."""

from pathlib import Path

import numpy as np
import pytest
import tiny
from tiny import Ply

from scannet_prep.errors import MeshError
from scannet_prep.raw.mesh import MAX_UNMAPPED_BYTES, Mesh, count_elements, read_mesh

LITTLE, BIG, TEXT = "binary_little_endian", "binary_big_endian", "ascii"
FORMATS = [LITTLE, BIG, TEXT]
QUAD = ((0, 1, 2, 3), (3, 2, 5))


def read(data: bytes) -> Mesh:
    return tiny.read_bytes(read_mesh, data)


def assert_is_tiny(mesh) -> None:
    assert mesh.vertex_count == 6
    assert (mesh.positions == np.array(tiny.POSITIONS)).all()
    assert mesh.colors.tolist() == [list(color) for color in tiny.COLORS]
    assert mesh.faces.tolist() == [list(face) for face in tiny.FACES]
    assert (mesh.colors.dtype, mesh.faces.dtype) == (np.uint8, np.int32)
    assert all(array.flags.c_contiguous for array in (mesh.positions, mesh.colors, mesh.faces))


@pytest.mark.parametrize("format_name", FORMATS)
@pytest.mark.parametrize(
    "knobs",
    [
        {},
        {"newline": "\r\n"},
        {"comments": ("comment", "obj_info a b", "comment twice")},
        {"extra_before": (("double", "quality"), ("uchar", "flags"))},
        {"face_list": "vertex_index"},
        {"count_type": "int", "index_type": "uint"},
        {"index_type": "uchar"},
        {"face_extra": (("uchar", "flags"), ("float", "area"))},
        {"vertex_list": "neighbours"},
        {"last_element": "camera"},
        {"position_type": "double"},
        *({"labels": (0, 1, 40, 50, 100, 39), "label_type": kind} for kind in ("ushort", "uchar", "int", "short")),
    ],
    ids=str,
)
def test_a_mesh_is_read_by_name_whatever_else_the_file_holds(format_name: str, knobs: dict) -> None:
    mesh = read(Ply(format=format_name, **knobs).encode())
    assert_is_tiny(mesh)
    assert (mesh.labels is None) == ("labels" not in knobs)
    if mesh.labels is not None:
        assert (mesh.labels.dtype, tuple(mesh.labels)) == (np.uint16, knobs["labels"])
    assert mesh.positions.dtype == (np.float64 if "position_type" in knobs else np.float32)


@pytest.mark.parametrize("format_name", FORMATS)
def test_a_mesh_without_faces_and_one_of_a_single_vertex_are_meshes(format_name: str) -> None:
    for faces in (None, ()):
        mesh = read(Ply(positions=((1, 2, 3),), colors=((4, 5, 6),), faces=faces, format=format_name).encode())
        assert (mesh.positions.tolist(), mesh.faces.shape) == ([[1, 2, 3]], (0, 3))


@pytest.mark.parametrize("format_name", FORMATS)
@pytest.mark.parametrize(
    ("knobs", "problem"),
    [
        ({"faces": QUAD}, "face 0 is not a triangle|is damaged"),
        ({"faces": ((0, 1, 6),)}, "refers to vertex 6, but there are 6 vertices"),
        ({"face_list": "corners"}, "no list vertex_indices or vertex_index"),
        ({"index_type": "float"}, "expected a list of whole numbers"),
        ({"positions": ((float("nan"), 0, 0), *tiny.POSITIONS[1:])}, "vertex 0 has the coordinates"),
        (
            {"positions": ((1e39, 0, 0), *tiny.POSITIONS[1:]), "position_type": "double"},
            "vertex 0 has the coordinates .* up to 1,000,000",
        ),
        ({"position_type": "int"}, "x, y, z have type .*expected float"),
        ({"color_type": "ushort"}, "red, green, blue have type .*expected uchar"),
        ({"labels": (0, 0, -1, 0, 0, 0), "label_type": "short"}, "label has type .* from -1 to 0"),
        ({"labels": (0,) * 6, "label_type": "float"}, "label has type"),
        ({"extra_before": (("float", "x"),)}, "two properties with same name"),
        ({"positions": (), "colors": (), "faces": ()}, "has no vertices"),
    ],
    ids=lambda value: str(value)[:40],
)
def test_a_mesh_that_cannot_be_right_is_refused(format_name: str, knobs: dict, problem: str) -> None:
    with pytest.raises(MeshError, match=f"scene0000_00.*: .*({problem})"):
        read(Ply(format=format_name, **knobs).encode())


@pytest.mark.parametrize(
    ("data", "problem"),
    [
        (b"", "is empty"),
        (b"<html><body>Not found</body></html>", "is a web page, expected a PLY file"),
        (b"plane", "is not a PLY file: it begins with b'plane'"),
        (Ply().encode()[:60], "has no line end_header in its first 60 bytes"),
        (Ply().encode()[:-1], "truncated .SIZE-1 bytes.: element 'face'"),
        (Ply().encode()[:300], "truncated .300 bytes.: element 'vertex'"),
        (Ply(tail=b"\n").encode(), "has SIZE+1 bytes, but its header accounts for SIZE"),
        (Ply(counts={"vertex": 10**15}).encode(), "its header counts 1000000000000000 x vertex, but it has SIZE"),
        (Ply(comments=("element vertex 2",)).encode(), "two elements with same name"),
        (Ply().encode().replace(b"float z", b"float w"), "no property z; they have x, y, w"),
        (Ply(format=TEXT).encode().replace(b"130", b"13O"), "is damaged"),
        (Ply(format=TEXT).encode()[:-3], "is damaged"),
        (Ply().encode().replace(b"end_header\n", b"end_headerX\n"), "has no line end_header in"),
        (Ply(format=TEXT).encode().replace(b"\n3 0 1 2", b"\n-3 0 1 2"), "is damaged|is not a triangle"),
        (Ply(count_type="char").encode().replace(b"\x03\0\0\0\0\1", b"\xfd\0\0\0\0\1"), "face 0 is not a triangle"),
        (Ply(comments=("comment " + "x" * 70_000,)).encode(), "has no line end_header in its first 65,536 bytes"),
        (b"ply\nformat binary_little_endian 1.0\nelement vertex 5\nend_header\n", "without any property"),
        (
            Ply().encode().replace(b"end_header", b"property list uchar int vertex_index\nend_header"),
            "has two lists of faces",
        ),
        (Ply(format=TEXT, tail=b" " * MAX_UNMAPPED_BYTES).encode(), "PLY file of text .* at most 10,000,000"),
        (Ply(vertex_list="near", tail=b" " * MAX_UNMAPPED_BYTES).encode(), "lists other than .* at most 10,000,000"),
        (
            Ply(format=TEXT, counts={"vertex": 500_000}, tail=b"1\n" * 500_000).encode(),
            "and 500,004 rows, expected at most 10,000,000 and 500,000",
        ),
    ],
    ids=lambda value: str(value)[:30],
)
def test_a_damaged_mesh_is_refused_with_the_numbers(data: bytes, problem: str) -> None:
    size = len(Ply().encode())
    for name, value in (("SIZE-1", size - 1), ("SIZE+1", size + 1), ("SIZE", size)):
        problem = problem.replace(name, f"{value:,}" if "counts" not in problem else r"[\d,]+")
    with pytest.raises(MeshError, match=problem):
        read(data)


def test_a_whole_file_is_told_from_a_cut_one_without_looking_at_its_content(tmp_path: Path) -> None:
    path = tmp_path / "a.ply"
    path.write_bytes(Ply(labels=(0,) * 6, positions=((float("nan"),) * 3,) * 6).encode())
    assert count_elements(path) == (6, 4)
    path.write_bytes(Ply().encode()[:-1])
    with pytest.raises(MeshError, match="truncated"):
        count_elements(path)
