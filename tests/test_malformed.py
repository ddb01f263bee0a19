"""Damaged files of every kind: each raises an error that names it, or is read as sound data.

They are copies of intact files, damaged with a fixed seed as disks, networks, editors and other
programs damage them, or changed at random.
"""

import json
import os
import random
import signal
import warnings
from functools import partial
from itertools import chain, islice
from pathlib import Path

import numpy as np
import pytest
import tiny
from commands import limited_memory, write_processed
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from oracles import find_problems
from tiny import Ply

from scannet_prep import sample_from_mesh
from scannet_prep.errors import FileError
from scannet_prep.frames import SensorStream
from scannet_prep.processed.make_scene import process_scene
from scannet_prep.processed.manifest import read_manifest
from scannet_prep.processed.npz import NpzReader, encode_npz
from scannet_prep.processed.scene import (
    ProcessOptions,
    encode_processed,
    parse_processed,
    read_processed,
)
from scannet_prep.raw.lock import read_tree_lock
from scannet_prep.release.files import AGGREGATION, INFO, LABELS_MESH, MESH, SEGMENTS
from scannet_prep.release.label_map import builtin_label_map, read_label_map
from scannet_prep.release.scenes import Split
from scannet_prep.source.place import open_place
from scannet_prep.stages import pack
from scannet_prep.synthetic import make_scene, write_scene

# Notes about a mesh.
pytestmark = pytest.mark.filterwarnings("ignore::UserWarning")

# CI tries more when it has time.
EXAMPLES = int(os.environ.get("SCANNET_PREP_FUZZ_EXAMPLES", "60"))

LABELS = (0, 1, 2, 39, 40, 50)
LABEL_MAP = (
    b"id\traw_category\tcategory\tnyu40id\tlast\r\n1\twall\twall\t1\tx\r\n2\tchair\tchair\t5\tx\r\n"
)
HTML = b"<!DOCTYPE html>\n<html><head><title>404</title></head><body>Not Found</body></html>\n"
FORMATS = ("binary_little_endian", "binary_big_endian", "ascii")

WRONG_VALUES = [
    *(None, True, -1, 1.5, 10**30, -(10**30), float("nan"), float("inf"), 40_000),
    *("", "x", "12", "\u0663", "\ud800", "a\x00b", "9" * 5000),
    *([], {}, [[]], [None], {"a": 1}),
]
PLAIN_WORDS = """
x 0 1 5 7 -1 1.5 41 256 65536 70000 99999999999 100000000000000 1000000000000000 2147483648
4294967295 1e9 1e39 1e400 nan NaN inf -inf 0x10 1_0
char uchar short ushort int uint float double real
"""
WRONG_WORDS = [
    *PLAIN_WORDS.split(),
    *("", "9" * 5000, "\u0663", "\ufeff1", "1\t1", "1\n1", "\x00", "\xff"),
    *("list uchar int", "list uint double"),
]


# Readers of intact files: each returns or raises what reading and checking a file gives.


def read_scene(scene, labels_from, path):
    options = ProcessOptions(align_axis=True, faces=True, labels_from=labels_from)
    made = process_scene(scene, Split.TRAIN, options, builtin_label_map())
    assert list(find_problems(made)) == []
    assert all(warning.text for warning in made.meta.warnings)
    parse_processed(NpzReader(b"".join(encode_processed(made)), path))


def read_scene_file(path):
    scene = read_processed(path)
    if not list(find_problems(scene)):
        parse_processed(NpzReader(b"".join(encode_processed(scene)), path))


def read_map(path):
    for ids in read_label_map(path).rows.values():
        assert 0 <= ids.scannet_id <= 65_535
        assert 0 <= ids.nyu40_id <= 40


def read_archive(path):
    place = open_place(path)
    for scene_id in place.scenes:
        place.verify(scene_id)


def read_stream(path):
    with SensorStream(path) as stream:
        for frame in stream:
            frame.checked_jpeg()
            frame.depth()
            frame.color()


def write_raw(kind, labels_from, folder):
    scene = tiny.write_tiny(folder, {LABELS_MESH.suffix: Ply(labels=LABELS).encode()})
    return scene.path(kind), partial(read_scene, scene, labels_from)


def write_file(name, data, read, folder):
    (folder / name).write_bytes(data)
    return folder / name, read


def write_folder(name, read, folder):
    write_processed(folder / "out", [tiny.process_tiny(folder / "raw", faces=True)])
    pack.run(folder / "out", folder / "a.tar.zst")
    return folder / name, read


def write_stream(folder):
    directory = write_scene(make_scene(tiny.SCENE_ID, vertices=500), folder, frames=2)
    return directory / f"{tiny.SCENE_ID}.sens", read_stream


def mutate_bytes(data, rng):
    """Damage a file in ways that any file can be damaged."""
    size = len(data)
    yield "empty", b""
    yield "HTML", HTML
    yield "HTML after a blank", b"\n " + HTML
    yield "one byte", data[:1]
    yield "NULs", bytes(size)
    yield "noise", rng.randbytes(size)
    yield "doubled", data + data
    yield "reversed", data[::-1]
    yield "UTF-16", data.decode("latin-1").encode("utf-16")
    yield "byte order mark", b"\xef\xbb\xbf" + data
    yield "a byte more", data + b"x"
    yield "a NUL more", data + b"\x00"
    yield "CR for LF", data.replace(b"\n", b"\r")
    yield "CRLF for LF", data.replace(b"\n", b"\r\n")

    # Cut at the end, in the middle, at random, and after punctuation.
    breaks = [index + 1 for index, byte in enumerate(data) if byte in b'\n ,:=[]{}"\t']
    cuts = {size - 1, size - 2, size // 2, *rng.sample(range(size), 8)}
    cuts.update(rng.sample(breaks, min(len(breaks), 8)))
    for cut in sorted(cuts):
        yield f"cut at {cut}", data[:cut]
        yield f"NULs from {cut}", data[:cut] + bytes(size - cut)

    for _ in range(40):
        offset = rng.randrange(size)
        value = rng.choice(b'\0\t",[]{\x80\xff')
        flipped = data[offset] ^ 1 << rng.randrange(8)
        yield f"byte {offset} flipped", replace_byte(data, offset, flipped)
        yield f"byte {offset} replaced", replace_byte(data, offset, value)
        yield f"without 64 bytes from {offset}", data[:offset] + data[offset + 64 :]


def replace_byte(data, offset, value):
    return data[:offset] + bytes([value]) + data[offset + 1 :]


def mutate_ply(labels, _data, rng):
    """Damage the header of a mesh, so that it contradicts the body, and the body of text files."""
    end_header = b"end_header\n"
    # A binary file whose vertices contain a list is read in the same way as a text file.
    for format_, vertex_list in [*((format_, "") for format_ in FORMATS), (FORMATS[1], "near")]:
        title = f"{format_} {vertex_list}"
        data = Ply(labels=labels, format=format_, vertex_list=vertex_list).encode()
        header_end = data.index(end_header)
        lines_end = len(data) if format_ == "ascii" else header_end + len(end_header)
        for name, damaged in mutate_lines(data[:lines_end], rng, separator=" ", end="\n"):
            yield f"{title} {name}", damaged + data[lines_end:]
        for line in (b"element hole 3", b"element hole 0", b"element end 99\nproperty double d"):
            yield f"{title} {line!r}", data[:header_end] + line + b"\n" + data[header_end:]
        for name, damaged in mutate_bytes(data, rng):
            yield f"{title} {name}", damaged


def mutate_json(data, rng):
    """Damage JSON: wrong types everywhere, missing and repeated values, deep nesting."""
    document = json.loads(data)
    for number, (holder, key) in enumerate(list(iter_json_holders(document))):
        title = f"value {number}, {key}"
        old = holder.pop(key)
        yield f"{title} is missing", json.dumps(document).encode()
        # In an object, the value moves to the end.
        put = holder.insert if isinstance(holder, list) else holder.__setitem__
        put(key, [old, old])
        yield f"{title} twice", json.dumps(document).encode()
        holder[key] = "MARK"
        marked = json.dumps(document).encode()
        holder[key] = old
        for value in rng.sample(WRONG_VALUES, 8):
            yield f"{title} is {value!r:.20}", marked.replace(b'"MARK"', json.dumps(value).encode())
        for opening, closing in (("[", "]"), ('{"a":', "}")):
            depth = rng.choice([10, *range(900, 1001, 10), 100_000])
            deep = (opening * depth + "0" + closing * depth).encode()
            yield f"{title} is {depth} x {opening}", marked.replace(b'"MARK"', deep)
    for depth in (*range(900, 1001, 4), 100_000):
        yield f"{depth} lists", b"[" * depth + b"]" * depth
        yield f"{depth} open objects", b'{"a":' * depth


def iter_json_holders(value):
    """Iterate over all values in a JSON document: the list or object of each, and its key there."""
    if isinstance(value, dict | list):
        for key in value if isinstance(value, dict) else range(len(value)):
            yield value, key
            yield from iter_json_holders(value[key])


def mutate_lines(data, rng, *, separator, end="\r\n"):
    """Damage lines: wrong words, lines that are missing, repeated or moved to the end."""
    lines = data.decode().split(end)
    for index, line in enumerate(lines):
        before = lines[:index]
        after = lines[index + 1 :]
        words = line.split(separator)
        replacements = {"none": [], "twice": [line, line]}
        for word_index in range(len(words)):
            for word in rng.sample(WRONG_WORDS, 5):
                changed = [*words[:word_index], word, *words[word_index + 1 :]]
                replacements[f"word {word_index} is {word!r:.20}"] = [separator.join(changed)]
        for name, replacement in replacements.items():
            yield f"line {index} {name}", end.join([*before, *replacement, *after]).encode()
        yield f"line {index} last", end.join([*before, *after[:-1], line, lines[-1]]).encode()


def mutate_npz(data, rng):
    """Damage the content of an .npz, with valid checksums."""
    reader = NpzReader(data, Path("whole.npz"))
    arrays = {key: reader.read(key) for key in reader.keys}

    def encode(changed):
        return b"".join(encode_npz(changed, frozenset({"labels", "meta"})))

    for key, array in arrays.items():
        others = [array[..., None], np.array(0, array.dtype), array.astype("U9"), np.array("{}")]
        if array.ndim:
            others += [array[:0], array[:2], array.astype("<i8"), array.astype("<f8")]
        for other in others:
            yield f"{key} is {other.dtype} {other.shape}", encode(arrays | {key: other})
        renamed = {f"{name}{name == key:d}": value for name, value in arrays.items()}
        yield f"other {key}", encode(renamed)

    beyond_unicode = np.full(8, 0x7FFFFFFF, "<u4").view("<U8").reshape(())
    yield "text beyond Unicode", encode(arrays | {"meta": beyond_unicode})
    for name, text in mutate_json(str(arrays["meta"]).encode(), rng):
        yield f"meta {name}", encode(arrays | {"meta": np.array(text.decode())})


LOCK = b"".join(b"%064x  %d  scans/%d/x.txt\n" % (number, number, number) for number in range(5))
SCENE_FILE = f"out/train/{tiny.SCENE_ID}.npz"


def read_own(path):
    with warnings.catch_warnings():
        # Warnings name what is missing or not used; the rest is sound.
        warnings.simplefilter("ignore", UserWarning)
        sample_from_mesh(path, compute_segments=True)


write_text = partial(write_file, "a.ply", Ply(format="ascii").encode())
# By kind of file: what writes an intact one, what damages it, and n: every n-th damage is tried.
KINDS = {
    "mesh": (partial(write_raw, MESH, "aggregation"), partial(mutate_ply, None), 8),
    "labels": (partial(write_raw, LABELS_MESH, "ply"), partial(mutate_ply, LABELS), 8),
    "segments": (partial(write_raw, SEGMENTS, "aggregation"), mutate_json, 1),
    "aggregation": (partial(write_raw, AGGREGATION, "aggregation"), mutate_json, 1),
    "info": (partial(write_raw, INFO, "aggregation"), partial(mutate_lines, separator=" "), 1),
    "label map": (
        partial(write_file, "map.tsv", LABEL_MAP, read_map),
        partial(mutate_lines, separator="\t"),
        1,
    ),
    "processed": (partial(write_folder, SCENE_FILE, read_scene_file), mutate_npz, 5),
    "own mesh": (partial(write_text, read_own), partial(mutate_ply, None), 8),
    "lock": (
        partial(write_file, "scannet.lock", LOCK, lambda path: read_tree_lock(path.parent)),
        partial(mutate_lines, separator="  ", end="\n"),
        1,
    ),
    "manifest": (
        partial(write_folder, "out/manifest.json", lambda path: read_manifest(path.parent)),
        mutate_json,
        3,
    ),
    "archive": (partial(write_folder, "a.tar.zst", read_archive), None, 1),
    "sensor stream": (write_stream, None, 1),
}


@pytest.fixture
def _bounds():
    """Limit memory to 512 MB more than is used now, and raise KeyboardInterrupt at an alarm."""
    previous = signal.signal(signal.SIGALRM, signal.default_int_handler)
    with limited_memory(2**29):
        yield
    signal.signal(signal.SIGALRM, previous)


def find_fault(path, read):
    """Read a damaged file; return whether an error was raised, and what was wrong with it."""
    signal.alarm(20)
    try:
        read(path)
    except FileError as error:
        text = str(error)
        is_fault = path.name not in text or "memory" in text or "allocate" in text
        return True, text if is_fault else ""
    except BaseException as error:  # noqa: BLE001 - every other exception is a fault
        return True, f"{type(error).__name__}: {error}"[:300]
    finally:
        signal.alarm(0)
    return False, ""


@pytest.mark.usefixtures("_bounds")
@pytest.mark.parametrize("kind", KINDS)
def test_damaged_files_raise_named_errors_or_are_read_as_sound_data(kind, tmp_path):
    write, mutate, step = KINDS[kind]
    path, read = write(tmp_path)
    whole = path.read_bytes()
    rng = random.Random(20)
    faults = []
    file_count = 0
    error_count = 0
    damaged = mutate_bytes(whole, rng)
    if mutate is not None:
        damaged = chain(damaged, mutate(whole, rng))
    for description, data in islice(damaged, 0, None, step):
        path.write_bytes(data)
        is_error, fault = find_fault(path, read)
        file_count += 1
        error_count += is_error
        if fault:
            faults.append(f"{description}: {fault}")

    assert not faults, f"{len(faults)} of {file_count}:\n" + "\n".join(faults[:40])
    # Most of the damage was noticed: the files are damaged indeed.
    assert file_count > 170
    assert error_count >= 90


@pytest.mark.usefixtures("_bounds")
@pytest.mark.parametrize("kind", KINDS)
def test_files_changed_at_random_raise_named_errors_or_are_read(kind, tmp_path):
    write, _, _ = KINDS[kind]
    path, read = write(tmp_path)
    whole = path.read_bytes()
    # An edit: first byte, number of bytes removed, bytes added in their place.
    edits = st.tuples(st.integers(0, len(whole)), st.integers(0, 40), st.binary(max_size=12))

    @settings(max_examples=EXAMPLES, suppress_health_check=list(HealthCheck))
    @given(st.lists(edits, min_size=1, max_size=5))
    def read_changed(drawn):
        data = whole
        for start, removed_bytes, added in drawn:
            data = data[:start] + added + data[start + removed_bytes :]
        path.write_bytes(data)
        assert find_fault(path, read)[1] == ""

    read_changed()
