"""More than a thousand damaged files: each raises an error that names it, or is read as sound data.

They are copies of intact files, damaged with a fixed seed as disks, networks, editors and other
programs damage them.
"""

import copy
import json
import random
import signal
from functools import reduce
from itertools import chain, islice
from operator import getitem
from pathlib import Path

import numpy as np
import pytest
import tiny
from commands import limited_memory
from scene_problems import find_problems
from tiny import Ply

from scannet_prep.errors import AnnotationError, FileError
from scannet_prep.processed.make_scene import process_scene
from scannet_prep.processed.npz import NpzReader, encode_npz
from scannet_prep.processed.scene import (
    ProcessOptions,
    encode_processed,
    parse_processed,
    read_processed,
)
from scannet_prep.release.files import AGGREGATION, INFO, LABELS_MESH, MESH, SEGMENTS
from scannet_prep.release.label_map import builtin_label_map, read_label_map
from scannet_prep.release.scene import Split

RAW_KINDS = {
    "mesh": MESH,
    "labels": LABELS_MESH,
    "segments": SEGMENTS,
    "aggregation": AGGREGATION,
    "info": INFO,
}
# Of so many damaged files of a kind, one is read; of other kinds, each.
STEPS = {"mesh": 8, "labels": 8, "processed": 5}

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
WRONG_WORDS = [
    *("", "x", "0", "1", "5", "7", "-1", "1.5", "41", "256", "65536", "70000", "99999999999"),
    *(str(10**14), str(10**15), str(2**31), str(2**32 - 1), "9" * 5000),
    *("1e9", "1e39", "1e400", "nan", "NaN", "inf", "-inf", "0x10", "1_0"),
    *("\u0663", "\ufeff1", "1\t1", "1\n1", "\x00", "\xff"),
    *("char", "uchar", "short", "ushort", "int", "uint", "float", "double"),
    *("list uchar int", "list uint double", "real"),
]


@pytest.fixture
def _bounds():
    """Limit memory to 512 MB more than is used now, and raise KeyboardInterrupt at an alarm."""
    previous = signal.signal(signal.SIGALRM, signal.default_int_handler)
    with limited_memory(2**29):
        yield
    signal.signal(signal.SIGALRM, previous)


@pytest.mark.usefixtures("_bounds")
@pytest.mark.parametrize("kind", [*RAW_KINDS, "label_map", "processed"])
def test_damaged_files_raise_named_errors_or_are_read_as_sound_data(kind, tmp_path):
    path, check = prepare(kind, tmp_path)
    faults = []
    file_count = 0
    error_count = 0

    for description, data in islice(damaged_files(kind, tmp_path), 0, None, STEPS.get(kind, 1)):
        file_count += 1
        path.write_bytes(data)
        signal.alarm(20)
        try:
            check(path)
        except (FileError, AnnotationError) as error:
            error_count += 1
            text = str(error)
            is_named = path.name in text or isinstance(error, AnnotationError)
            if not is_named or "memory" in text or "allocate" in text:
                faults.append(f"{description}: {error}")
        except BaseException as error:  # noqa: BLE001 - every other exception is a fault
            faults.append(f"{description}: {type(error).__name__}: {error}"[:300])
        finally:
            signal.alarm(0)

    assert not faults, f"{len(faults)} of {file_count}:\n" + "\n".join(faults[:40])
    # Most of the damage was noticed: the files are damaged indeed.
    assert file_count > 170
    assert error_count >= 90


def prepare(kind, folder):
    """Return the path of the file to be damaged, and a function that reads and checks it."""
    if kind == "label_map":
        return folder / "damaged.file", check_label_map
    if kind == "processed":
        return folder / "damaged.file", check_processed
    scene = tiny.write_tiny(folder)
    labels_from = "ply" if kind == "labels" else "aggregation"
    options = ProcessOptions(align_axis=True, faces=True, labels_from=labels_from)

    def check_scene(path):
        made = process_scene(scene, Split.TRAIN, options, builtin_label_map())
        assert list(find_problems(made)) == []
        assert all(warning.text for warning in made.meta.warnings)
        parse_processed(NpzReader(b"".join(encode_processed(made)), path))

    return scene.path(RAW_KINDS[kind]), check_scene


def check_label_map(path):
    for ids in read_label_map(path).rows.values():
        assert 0 <= ids.scannet_id <= 65_535
        assert 0 <= ids.nyu40_id <= 40


def check_processed(path):
    scene = read_processed(path)
    if not list(find_problems(scene)):
        parse_processed(NpzReader(b"".join(encode_processed(scene)), path))


def damaged_files(kind, folder):
    """Iterate over descriptions and contents of all damaged files of a kind."""
    rng = random.Random(20)
    if kind in {"mesh", "labels"}:
        labels = LABELS if kind == "labels" else None
        return chain(mutate_bytes(Ply(labels=labels).encode(), rng), mutate_ply(labels, rng))
    if kind == "processed":
        data = b"".join(encode_processed(tiny.process_tiny(folder / "whole", faces=True)))
        return chain(mutate_bytes(data, rng), mutate_npz(data, rng))
    if kind in {"segments", "aggregation"}:
        data = tiny.segments_file() if kind == "segments" else tiny.aggregation_file()
        return chain(mutate_bytes(data, rng), mutate_json(data, rng))
    if kind == "info":
        data = tiny.info_file("sceneType = Bedroom / Hotel", "colorHeight = 968")
        return chain(mutate_bytes(data, rng), mutate_lines(data, rng, separator=" "))
    return chain(mutate_bytes(LABEL_MAP, rng), mutate_lines(LABEL_MAP, rng, separator="\t"))


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

    for _ in range(20):
        offset = rng.randrange(size)
        value = rng.choice(b'\0\t",[]{\x80\xff')
        flipped = data[offset] ^ 1 << rng.randrange(8)
        yield f"byte {offset} flipped", replace_byte(data, offset, flipped)
        yield f"byte {offset} replaced", replace_byte(data, offset, value)
        yield f"without 64 bytes from {offset}", data[:offset] + data[offset + 64 :]


def replace_byte(data, offset, value):
    return data[:offset] + bytes([value]) + data[offset + 1 :]


def mutate_ply(labels, rng):
    """Damage the header of a mesh, so that it contradicts the body, and the body of text files."""
    end_header = b"end_header\n"
    # A binary file whose vertices contain a list is read in the same way as a text file.
    for format_, vertex_list in [*((format_, "") for format_ in FORMATS), (FORMATS[1], "near")]:
        title = f"{format_} {vertex_list}"
        data = Ply(labels=labels, format=format_, vertex_list=vertex_list).encode()
        header_end = data.index(end_header)
        body = header_end + len(end_header)
        lines_end = len(data) if format_ == "ascii" else body
        for name, damaged in mutate_lines(data[:lines_end], rng, separator=" ", end="\n"):
            yield f"{title} {name}", damaged + data[lines_end:]
        for line in (b"element hole 3", b"element hole 0", b"element end 99\nproperty double d"):
            yield f"{title} {line!r}", data[:header_end] + line + b"\n" + data[header_end:]
        for offset in rng.sample(range(body, len(data)), 40):
            (value,) = rng.randbytes(1)
            yield f"{title} byte {offset}", replace_byte(data, offset, value)
            yield f"{title} cut at {offset}", data[:offset]


def mutate_json(data, rng):
    """Damage JSON: wrong types everywhere, missing and repeated values, deep nesting."""
    document = json.loads(data)
    for path in list(iter_json_paths(document)):
        marked = change_json(document, path, lambda _: "MARK")
        for value in rng.sample(WRONG_VALUES, 8):
            replaced = marked.replace(b'"MARK"', json.dumps(value).encode())
            yield f"{path} is {value!r:.20}", replaced
        yield f"{path} is missing", change_json(document, path, change=None)
        yield f"{path} twice", change_json(document, path, lambda old: [old, old])
        for opening, closing in (("[", "]"), ('{"a":', "}")):
            depth = rng.choice([10, 500, 900, 940, 960, 970, 980, 985, 990, 995, 1000, 100_000])
            deep = (opening * depth + "0" + closing * depth).encode()
            yield f"{path} is {depth} x {opening}", marked.replace(b'"MARK"', deep)
    for depth in (*range(900, 1001, 4), 100_000):
        yield f"{depth} lists", b"[" * depth + b"]" * depth
        yield f"{depth} open objects", b'{"a":' * depth


def iter_json_paths(value, path=()):
    """Iterate over the keys that lead to each value in a JSON document."""
    if path:
        yield path
    if isinstance(value, dict | list):
        keys = value if isinstance(value, dict) else range(len(value))
        for key in keys:
            yield from iter_json_paths(value[key], (*path, key))


def change_json(document, path, change):
    """Encode a copy of a document with one value changed, or removed if `change` is None."""
    result = copy.deepcopy(document)
    *parents, last = path
    holder = reduce(getitem, parents, result)
    if change is None:
        del holder[last]
    elif isinstance(holder, list):
        holder[last] = change(holder[last])
    else:
        # The changed value moves to the end of its object.
        holder[last] = change(holder.pop(last))
    return json.dumps(result).encode()


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
        moved = [*before, *after[:-1], line, lines[-1]]
        yield f"line {index} last", end.join(moved).encode()


def mutate_npz(data, rng):
    """Damage the content of an .npz with valid checksums, and its zip directory."""
    reader = NpzReader(data, Path("whole.npz"))
    arrays = {key: reader.read(key) for key in reader.keys}

    def encode(changed):
        return b"".join(encode_npz(changed, frozenset({"labels", "meta"})))

    for key, array in arrays.items():
        others = [array[..., None], np.array(0, array.dtype), array.astype("U9"), np.array(5)]
        if array.ndim:
            others += [array[:0], array[:2], array.astype("<i8"), array.astype("<f8")]
        others += [np.array(text) for text in ("", "{}", "[]", "x")]
        for other in others:
            yield f"{key} is {other.dtype} {other.shape}", encode(arrays | {key: other})
        without = {name: value for name, value in arrays.items() if name != key}
        yield f"no {key}", encode(without)
        renamed = {f"{name}{name == key:d}": value for name, value in arrays.items()}
        yield f"other {key}", encode(renamed)

    beyond_unicode = np.full(8, 0x7FFFFFFF, "<u4").view("<U8").reshape(())
    yield "text beyond Unicode", encode(arrays | {"meta": beyond_unicode})
    for name, text in mutate_json(str(arrays["meta"]).encode(), rng):
        yield f"meta {name}", encode(arrays | {"meta": np.array(text.decode())})

    directory = data.index(b"PK\x01\x02")
    for offset in range(directory, len(data), 5):
        for value in (0, 0xFF, data[offset] ^ 1):
            yield f"directory byte {offset} is {value}", replace_byte(data, offset, value)
