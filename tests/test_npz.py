"""An `.npz` of this package is an ordinary one with the same bytes each time; damage is refused."""

import hashlib
import io
import json
import zipfile
import zlib
from pathlib import Path

import numpy as np
import pytest
import tiny
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from oracles import check_same

from scannet_prep.errors import FileError
from scannet_prep.processed.npz import NpzReader, encode_npz, widen_normals
from scannet_prep.processed.scene import (
    FORMAT_VERSION,
    encode_processed,
    parse_processed,
)

PATH = Path("train/scene0000_00.npz")

DTYPES = st.sampled_from(["<f4", "<f2", "<f8", "|u1", "<u2", "<u4", "<i2", "<i4", "<i8", "|b1"])
SHAPES = hnp.array_shapes(min_dims=0, max_dims=3, min_side=0, max_side=9)
ARRAYS = DTYPES.flatmap(lambda dtype: hnp.arrays(dtype, SHAPES))
ANY_ORDER = st.builds(lambda array, order: array.copy(order), ARRAYS, st.sampled_from("CF"))
KEYS = st.text("abcdefgh_", min_size=1, max_size=12)


def encode(arrays, deflated=frozenset()):
    return b"".join(encode_npz(arrays, deflated))


@given(arrays=st.dictionaries(KEYS, ANY_ORDER, max_size=6), data=st.data())
@settings(max_examples=60)
def test_any_arrays_are_read_back_by_this_package_and_by_numpy_and_stored_ones_are_aligned(
    arrays, data
):
    # As the labels of a test scene: equal numbers, which are compressed most.
    arrays["equal"] = np.zeros(1 << 16, np.uint8)
    deflated = {key for key in arrays if data.draw(st.booleans())}

    content = encode(arrays, deflated)

    assert encode(arrays, deflated) == content
    reader = NpzReader(content, PATH)
    check_same({key: reader.read(key) for key in reader.keys}, arrays)
    assert reader.keys == tuple(arrays)
    with np.load(io.BytesIO(content), allow_pickle=False) as loaded:
        check_same({key: loaded[key] for key in loaded.files}, arrays)
    with zipfile.ZipFile(io.BytesIO(content)) as archive:
        assert archive.testzip() is None
        members = {member.filename.removesuffix(".npy"): member for member in archive.infolist()}
    for key, member in members.items():
        if key in deflated:
            assert member.compress_type == zipfile.ZIP_DEFLATED
            continue
        assert member.compress_type == zipfile.ZIP_STORED
        # Both parts are aligned; the header of npy has 128 bytes.
        npy_start = content.index(b"\x93NUMPY", member.header_offset)
        expected = arrays[key].tobytes()
        assert npy_start % 64 == 0
        assert content[npy_start + 128 : npy_start + 128 + len(expected)] == expected


def test_container_has_the_same_bytes_on_every_machine():
    numbers = np.arange(3000) % 7

    content = encode(
        {"points": numbers.astype("<f4"), "labels": numbers.astype("|u1")}, frozenset({"labels"})
    )

    assert hashlib.sha256(content).hexdigest()[:16] == "0d7bf5bdf5eed911"


def craft(header):
    """Encode a file with one member, `a`, that has this header and no data.

    The CRC-32 is right, as if the file had been made on purpose or by another program.
    """
    content = bytearray(encode({"a": np.zeros(0, np.uint8)}))
    # The member begins at byte 64; its header is 10 bytes and 118 bytes of text.
    start = 64
    end = start + 128
    content[start + 10 : end] = header.ljust(117).encode() + b"\n"
    crc32 = zlib.crc32(content[start:end]).to_bytes(4, "little")
    content[14:18] = crc32
    directory = content.index(b"PK\x01\x02")
    content[directory + 16 : directory + 20] = crc32
    return bytes(content)


UNUSUAL = [
    ("|a5", "(0,)"), ("<U0", "(4,)"), ("|V0", "(2,)"), ("<U0", "()"), ("<f4", f"(0, {10**30})"),
    ("<c8", "(0,)"), ("|O8", "(0,)"), ("<i3", "(0,)"),
    ("<f4", "(0, 9999999999, 9999999999)"), ("<M8[s]", "(0,)"), (">f4", "(0,)"), ("<i4", "(-1, 0)"),
]  # fmt: skip


def test_header_with_unusual_type_or_shape_is_refused():
    for descr, shape in UNUSUAL:
        header = f"{{'descr': '{descr}', 'fortran_order': False, 'shape': {shape}, }}"
        with pytest.raises(FileError, match=r"scene0000_00\.npz: array 'a' is damaged"):
            NpzReader(craft(header), PATH).read("a")


def test_files_of_other_programs_are_refused():
    saved = io.BytesIO()
    np.savez(saved, points=np.zeros(3))
    with zipfile.ZipFile(saved, "a") as archive, pytest.warns(match="Duplicate name"):
        archive.writestr("points.npy", b"the same name again")
    contents = {
        b"": "is truncated, damaged, or not an .npz file: File is not a zip file",
        b"<html>no such page</html>": "not an .npz file",
        b"PK\x05\x06" + bytes(18): "has no array 'meta'",
        saved.getvalue(): "it has 1 members, expected 2",
        encode(
            {"a": np.zeros(3, [("a", "<i4")])}
        ): "array 'a' is damaged: it has a header of another program",
        encode({"meta": np.array("{}")}): "is damaged, or not a file of this version: .* missing",
        encode({"meta": np.array("\ud800")}): "is damaged, or not a file of this version: ",
    }

    for content, problem in contents.items():
        with pytest.raises(FileError, match=problem):
            parse_processed(NpzReader(content, PATH))


@pytest.fixture(scope="module")
def scene(tmp_path_factory):
    return tiny.process_tiny(tmp_path_factory.mktemp("tiny"), faces=True)


def test_scene_cut_at_any_byte_is_refused_and_any_flipped_bit_is_refused_or_harmless(scene):
    content = b"".join(encode_processed(scene))
    expected = {key: array.tobytes() for key, array in scene.arrays().items()}

    for size_bytes in range(len(content)):
        with pytest.raises(FileError):
            NpzReader(content[:size_bytes], PATH)
    refused_count = 0
    for position in range(8 * len(content)):
        damaged = bytearray(content)
        damaged[position // 8] ^= 1 << position % 8
        try:
            reader = NpzReader(damaged, PATH)
        except FileError:
            refused_count += 1
            continue
        assert reader.keys == tuple(expected)
        has_refused = False
        for key, value in expected.items():
            try:
                assert reader.read(key).tobytes() == value
            except FileError:
                has_refused = True
        refused_count += has_refused

    # Each bit of the arrays is protected, and so is more than half of the rest.
    assert refused_count > 8 * sum(map(len, expected.values())) // 2


@pytest.mark.parametrize(
    ("key", "change", "problem"),
    [
        ("labels", None, "has the arrays .*, expected .* labels"),
        ("walls", lambda _: np.zeros(6, np.uint8), "has the arrays .* walls, expected"),
        (
            "points",
            lambda array: array[:5],
            "array 'normals' is float16 .6, 3., expected .* .5, 3.",
        ),
        ("faces", lambda array: array[:, :2], r"array 'faces' is int32 \(4, 2\), expected"),
        ("segments", lambda array: array.astype(np.int16), "expected uint16 or uint32"),
        ("axis_alignment", lambda array: array[:3], r"float64 \(3, 4\), expected float64 \(4, 4\)"),
    ],
)
def test_scene_with_other_arrays_than_it_should_have_is_refused(scene, key, change, problem):
    arrays = scene.arrays()
    array = arrays.pop(key, None)
    if change is not None:
        arrays[key] = change(array)

    with pytest.raises(FileError, match=problem):
        parse_processed(NpzReader(encode(arrays), PATH))


def test_normals_are_widened_exactly():
    halves = np.arange(1 << 16, dtype=np.uint16).view(np.float16).reshape(-1, 1)
    halves = halves[np.isfinite(halves).all(axis=1)]

    floats = widen_normals(halves)

    assert floats.dtype == np.float32
    assert floats.tobytes() == halves.astype(np.float32).tobytes()


# Digest of the content of the tiny scene, by format version. If a change of the program changes
# the digest, raise FORMAT_VERSION: older files must not be taken for current ones.
CONTENT_DIGESTS = {2: "cb05c925ae53fd17"}


def test_content_of_a_scene_changes_only_with_the_format_version(tmp_path):
    arrays = tiny.process_tiny(tmp_path, align_axis=True, faces=True).arrays()
    meta = json.loads(str(arrays["meta"]))
    # These change without a change of the format.
    for key in ("format_version", "program_version", "label_map", "inputs"):
        del meta[key]

    digest = hashlib.sha256()
    for key, array in arrays.items():
        if key != "meta":
            digest.update(f"{key} {array.dtype.str} {array.shape}".encode())
            digest.update(array.tobytes())
    digest.update(json.dumps(meta, sort_keys=True).encode())

    assert digest.hexdigest()[:16] == CONTENT_DIGESTS[FORMAT_VERSION]
