"""An `.npz` of this package is an ordinary one with the same bytes each time; damage is refused."""

import hashlib
import io
import json
import struct
import zipfile
import zlib
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tiny
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from training_sources import check_same

from scannet_prep.errors import ProcessedFileError
from scannet_prep.processed.npz import NpzReader, encode_npz
from scannet_prep.processed.scene import FORMAT_VERSION, encode_processed, parse_processed

PATH = Path("train/scene0000_00.npz")

DTYPES = st.sampled_from(["<f4", "<f2", "<f8", "|u1", "<u2", "<u4", "<i2", "<i4", "<i8", "|b1"])
SHAPES = hnp.array_shapes(min_dims=0, max_dims=3, min_side=0, max_side=9)
ARRAYS = DTYPES.flatmap(lambda dtype: hnp.arrays(dtype, SHAPES))
ANY_ORDER = st.builds(lambda array, order: array.copy(order), ARRAYS, st.sampled_from("CF"))
KEYS = st.text("abcdefgh_", min_size=1, max_size=12)


@st.composite
def contents(draw: Any) -> tuple[dict[str, np.ndarray], frozenset[str]]:
    """Draw arrays, and the keys of those to be deflated."""
    arrays = draw(st.dictionaries(KEYS, ANY_ORDER, max_size=6))
    deflated = draw(st.sets(st.sampled_from(sorted(arrays)))) if arrays else set()
    return arrays, frozenset(deflated)


def encode(arrays: dict[str, np.ndarray], deflated: frozenset[str] = frozenset()) -> bytes:
    return b"".join(encode_npz(arrays, deflated))


@given(contents())
@settings(max_examples=25)
def test_any_arrays_survive_round_trip(content: Any) -> None:
    arrays, deflated = content

    reader = NpzReader(encode(arrays, deflated), PATH)

    check_same({key: reader.read(key) for key in reader.keys}, arrays)


@given(contents())
@settings(max_examples=25)
def test_any_arrays_are_read_by_numpy(content: Any) -> None:
    arrays, deflated = content

    with np.load(io.BytesIO(encode(arrays, deflated)), allow_pickle=False) as loaded:
        check_same({key: loaded[key] for key in loaded.files}, arrays)


@given(contents())
@settings(max_examples=25)
def test_any_arrays_give_the_same_bytes_each_time(content: Any) -> None:
    arrays, deflated = content

    assert encode(arrays, deflated) == encode(arrays, deflated)


@given(contents())
@settings(max_examples=25)
def test_any_arrays_are_deflated_or_stored_as_asked(content: Any) -> None:
    arrays, deflated = content

    with zipfile.ZipFile(io.BytesIO(encode(arrays, deflated))) as archive:
        assert archive.testzip() is None
        methods = {member.filename: member.compress_type for member in archive.infolist()}

    expected = {}
    for key in arrays:
        method = zipfile.ZIP_DEFLATED if key in deflated else zipfile.ZIP_STORED
        expected[f"{key}.npy"] = method
    assert methods == expected


@given(contents())
@settings(max_examples=25)
def test_stored_arrays_are_aligned_so_that_they_can_be_mapped(content: Any) -> None:
    arrays, deflated = content

    data = encode(arrays, deflated)

    with zipfile.ZipFile(io.BytesIO(data)) as archive:
        members = archive.infolist()
    for member in members:
        key = member.filename.removesuffix(".npy")
        if key in deflated:
            continue
        # The local header of zip: 30 bytes, then the name and the extra field.
        name_bytes, extra_bytes = struct.unpack_from("<2H", data, member.header_offset + 26)
        npy_start = member.header_offset + 30 + name_bytes + extra_bytes
        # The header of npy: 10 bytes, the last two of which are the length of the rest.
        rest_bytes = int.from_bytes(data[npy_start + 8 : npy_start + 10], "little")
        array_start = npy_start + 10 + rest_bytes
        expected = arrays[key].tobytes()
        assert npy_start % 64 == 0
        assert array_start % 64 == 0
        assert data[array_start : array_start + len(expected)] == expected


def craft(header: str) -> bytes:
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


@pytest.mark.parametrize(
    ("descr", "shape"),
    [
        ("|a5", "(0,)"),
        ("<U0", "(4,)"),
        ("|V0", "(2,)"),
        ("<U0", "()"),
        ("<f4", f"(0, {10**30})"),
        ("|S0", "(3,)"),
        ("|V9999999999", "(0,)"),
        ("<c8", "(0,)"),
        ("|O8", "(0,)"),
        ("<i3", "(0,)"),
        ("<f4", "(0, 9999999999, 9999999999)"),
        ("<M8[s]", "(0,)"),
        (">f4", "(0,)"),
        pytest.param(
            "<U9999999999",
            "(0,)",
            marks=pytest.mark.skipif(np.__version__[0] == "1", reason="needs NumPy 2"),
        ),
        ("<i4", "(-1, 0)"),
    ],
)
def test_header_with_unusual_type_or_shape_is_refused(descr: str, shape: str) -> None:
    header = f"{{'descr': '{descr}', 'fortran_order': False, 'shape': {shape}, }}"
    reader = NpzReader(craft(header), PATH)

    with pytest.raises(ProcessedFileError) as caught:
        reader.read("a")

    assert caught.value.path == PATH


def test_header_of_record_array_is_refused() -> None:
    content = encode({"array": np.zeros(3, [("a", "<i4")])})

    with pytest.raises(ProcessedFileError, match="has a header of another program"):
        NpzReader(content, PATH).read("array")


@pytest.fixture(scope="module")
def scene_bytes(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    return b"".join(encode_processed(tiny.process_tiny(tmp_path_factory.mktemp("tiny"))))


def test_scene_cut_at_any_byte_is_refused(scene_bytes: bytes) -> None:
    for size_bytes in range(len(scene_bytes)):
        with pytest.raises(ProcessedFileError):
            parse_processed(scene_bytes[:size_bytes], PATH)


def test_scene_with_any_flipped_bit_in_a_member_name_is_refused(scene_bytes: bytes) -> None:
    name = b"segments.npy"
    # The name is in the local header and in the directory.
    for start in (scene_bytes.index(name), scene_bytes.rindex(name)):
        for offset in range(start, start + len(name)):
            for bit in range(8):
                damaged = bytearray(scene_bytes)
                damaged[offset] ^= 1 << bit
                with pytest.raises(ProcessedFileError):
                    parse_processed(bytes(damaged), PATH)


# Digest of the content of the tiny scene, by format version. If a change of the program changes
# the digest, raise FORMAT_VERSION: older files must not be taken for current ones.
CONTENT_DIGESTS = {2: "cb05c925ae53fd17"}


def test_content_of_a_scene_changes_only_with_the_format_version(tmp_path: Path) -> None:
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
