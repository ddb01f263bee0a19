"""The container is an ordinary `.npz`, with the same bytes each time, and a damaged one is never read."""

import hashlib
import io
import json
import struct
import zipfile
import zlib
from pathlib import Path

import numpy as np
import pytest
import tiny
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from training_sources import check_same

from scannet_prep.base.errors import ProcessedFileError
from scannet_prep.processed.npz import NpzReader, encode_npz
from scannet_prep.processed.scene import FORMAT_VERSION, encode_processed, parse_processed

PATH = Path("train/scene0000_00.npz")

DTYPES = st.sampled_from(["<f4", "<f2", "<f8", "|u1", "<u2", "<u4", "<i2", "<i4", "<i8", "|b1"])
ARRAYS = DTYPES.flatmap(
    lambda dtype: hnp.arrays(
        dtype, hnp.array_shapes(min_dims=0, max_dims=3, min_side=0, max_side=9)
    )
)
ANY_ORDER = st.builds(lambda array, order: array.copy(order), ARRAYS, st.sampled_from("CF"))
KEYS = st.text("abcdefgh_", min_size=1, max_size=12)


def encode(arrays: dict[str, np.ndarray], deflated: frozenset[str] = frozenset()) -> bytes:
    return b"".join(encode_npz(arrays, deflated))


@given(arrays=st.dictionaries(KEYS, ANY_ORDER, max_size=6), data=st.data())
@settings(max_examples=25)
def test_any_arrays_survive_a_round_trip_and_stored_ones_are_aligned_in_the_file(
    arrays, data: st.DataObject
) -> None:
    deflated = frozenset(data.draw(st.sets(st.sampled_from(sorted(arrays)))) if arrays else ())
    content = encode(arrays, deflated)
    reader = NpzReader(content, PATH)
    check_same({key: reader.read(key) for key in reader.keys}, arrays)
    with np.load(io.BytesIO(content), allow_pickle=False) as found:
        check_same({key: found[key] for key in found.files}, arrays)
    with zipfile.ZipFile(io.BytesIO(content)) as archive:
        assert archive.testzip() is None
        assert {item.filename: item.compress_type for item in archive.infolist()} == {
            f"{key}.npy": zipfile.ZIP_DEFLATED if key in deflated else zipfile.ZIP_STORED
            for key in arrays
        }
        for item in archive.infolist():
            key = item.filename.removesuffix(".npy")
            start = (
                item.header_offset
                + 30
                + sum(struct.unpack_from("<2H", content, item.header_offset + 26))
            )
            if key not in deflated:  # can be mapped: header and data begin at multiples of 64 bytes
                data_start = start + 10 + int.from_bytes(content[start + 8 : start + 10], "little")
                assert (start % 64, data_start % 64) == (0, 0)
                expected = arrays[key].tobytes()
                assert content[data_start : data_start + len(expected)] == expected
    assert encode(arrays, deflated) == content


@pytest.mark.parametrize(
    ("descr", "shape"),
    [("|a5", "(0,)"), ("<U0", "(4,)"), ("|V0", "(2,)"), ("<U0", "()"), ("<f4", f"(0, {10**30})"), ("|S0", "(3,)"),
     ("|V9999999999", "(0,)"), ("<c8", "(0,)"), ("|O8", "(0,)"), ("<i3", "(0,)"),
     ("<f4", "(0, 9999999999, 9999999999)"), ("<M8[s]", "(0,)"), (">f4", "(0,)"),
     pytest.param("<U9999999999", "(0,)", marks=pytest.mark.skipif(np.__version__[0] == "1", reason="of NumPy 2")),
     ("<i4", "(-1, 0)")],
)  # fmt: skip
def test_headers_that_numpy_itself_would_stumble_over_are_refused(descr: str, shape: str) -> None:
    """The CRC-32 is right: such a file was made on purpose, or by another program."""
    reader = NpzReader(
        craft(f"{{'descr': '{descr}', 'fortran_order': False, 'shape': {shape}, }}"), PATH
    )
    with pytest.raises(ProcessedFileError) as caught:
        reader.read("a")
    assert caught.value.path == PATH
    record = encode({"array": np.zeros(3, [("a", "<i4")])})
    with pytest.raises(ProcessedFileError, match="has a header of another program"):
        NpzReader(record, PATH).read("array")


def craft(header: str) -> bytes:
    """A file whose only member has this header, 118 bytes with blanks, and no data."""
    content = bytearray(encode({"a": np.zeros(0, np.uint8)}))
    start, end = 64, 64 + 128
    content[start + 10 : end] = header.ljust(117).encode() + b"\n"
    crc32 = zlib.crc32(content[start:end]).to_bytes(4, "little")
    content[14:18] = crc32
    central = content.index(b"PK\x01\x02")
    content[central + 16 : central + 20] = crc32
    return bytes(content)


def test_every_truncation_and_every_flipped_bit_in_a_name_is_refused(tmp_path: Path) -> None:
    content = b"".join(encode_processed(tiny.process_tiny(tmp_path)))
    damaged = [content[:size] for size in range(len(content))]
    for start in (content.index(b"segments.npy"), content.rindex(b"segments.npy")):
        for place in range(start, start + len("segments.npy")):
            flipped = (bytes([content[place] ^ 1 << bit]) for bit in range(8))
            damaged += [content[:place] + byte + content[place + 1 :] for byte in flipped]
    for data in damaged:
        with pytest.raises(ProcessedFileError):
            parse_processed(data, PATH)


# What a file holds of the tiny scene, by format version. If a change of the program changes the
# digest, raise FORMAT_VERSION: files of before must not be taken for files of now.
CONTENT_DIGESTS = {2: "cb05c925ae53fd17"}


def test_content_of_a_scene_changes_only_with_the_format_version(tmp_path: Path) -> None:
    scene = tiny.process_tiny(tmp_path, align_axis=True, faces=True)
    digest = hashlib.sha256()
    for key, array in scene.arrays().items():
        if key != "meta":
            digest.update(f"{key} {array.dtype.str} {array.shape}".encode())
            digest.update(array.tobytes())
    meta = json.loads(str(scene.arrays()["meta"]))
    # These change without a change of the format.
    for key in ("format_version", "program_version", "label_map", "inputs"):
        del meta[key]
    digest.update(json.dumps(meta, sort_keys=True).encode())
    assert digest.hexdigest()[:16] == CONTENT_DIGESTS[FORMAT_VERSION]
