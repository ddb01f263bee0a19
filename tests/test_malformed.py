"""Damaged files, more than a thousand: each gives an error of ours that names the file, or a value that makes sense.

They are seeded copies of good files: what disks, networks, editors and other programs do to them.
"""

import copy
import json
import random
import signal
from collections.abc import Callable, Iterator, Sequence
from functools import reduce
from itertools import chain, islice
from operator import getitem
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tiny
from commands import limited_memory
from tiny import Ply

from scannet_prep.base.errors import AnnotationError, FileError
from scannet_prep.processed.npz import NpzReader, encode_npz
from scannet_prep.processed.scene import (
    ProcessOptions,
    encode_processed,
    find_problems,
    parse_processed,
    read_processed,
)
from scannet_prep.release.files import AGGREGATION, INFO, LABELS_MESH, MESH, SEGMENTS
from scannet_prep.release.label_map import builtin_label_map, read_label_map
from scannet_prep.release.scene import Split
from scannet_prep.stages.process.make_scene import process_scene

LABELS = (0, 1, 2, 39, 40, 50)
# Files of a scene, and of how many damaged ones one is read.
KINDS = {
    "mesh": MESH,
    "labels": LABELS_MESH,
    "segments": SEGMENTS,
    "aggregation": AGGREGATION,
    "info": INFO,
}
STEPS = {"mesh": 8, "labels": 8, "processed": 5}
ROWS = ("id\traw_category\tcategory\tnyu40id\tlast", "1\twall\twall\t1\tx", "2\tchair\tchair\t5\tx")
LABEL_MAP = "".join(f"{row}\r\n" for row in ROWS).encode()

Mutation = tuple[str, bytes]
HTML = b"<!DOCTYPE html>\n<html><head><title>404</title></head><body>Not Found</body></html>\n"
FORMATS = ("binary_little_endian", "binary_big_endian", "ascii")
WRONG_VALUES = [
    None, True, -1, 1.5, 10**30, -(10**30), float("nan"), float("inf"), "", "x", "12", "\u0663", "\ud800", "a\x00b",
    [], {}, [[]], [None], {"a": 1}, "9" * 5000, 40_000,
]  # fmt: skip
WRONG_WORDS = [
    "", "x", "0", "1", "5", "7", "-1", "1.5", "41", "256", "65536", "70000", "99999999999", str(10**14), str(10**15),
    str(2**31), str(2**32 - 1), "9" * 5000, "1e9", "1e39", "1e400", "nan", "NaN", "inf", "-inf", "0x10", "1_0",
    "\u0663", "\ufeff1", "1\t1", "1\n1", "\x00", "\xff", "char", "uchar", "short", "ushort", "int", "uint", "float",
    "double", "list uchar int", "list uint double", "real",
]  # fmt: skip


@pytest.fixture
def bounds() -> Iterator[None]:
    """512 MB more than are used already, and an interrupt for what takes longer than `signal.alarm` allows it."""
    previous = signal.signal(signal.SIGALRM, signal.default_int_handler)
    with limited_memory(2**29):
        yield
    signal.signal(signal.SIGALRM, previous)


@pytest.mark.parametrize("kind", [*KINDS, "label_map", "processed"])
def test_damaged_files_give_our_errors_or_sound_values_within_bounds(
    kind: str, tmp_path: Path, bounds: None
) -> None:
    scene, faults, tried, errors = tiny.write_tiny(tmp_path), list[str](), 0, 0
    options = ProcessOptions(
        align_axis=True, faces=True, labels_from="ply" if kind == "labels" else "aggregation"
    )
    path = scene.path(KINDS[kind]) if kind in KINDS else tmp_path / "damaged.file"
    checks = {"label_map": check_label_map, "processed": check_processed}
    check = checks.get(kind, lambda _: check_scene(scene, options))
    for label, data in islice(damaged_files(kind, tmp_path), 0, None, STEPS.get(kind, 1)):
        tried += 1
        path.write_bytes(data)
        signal.alarm(20)
        try:
            check(path)
        except (FileError, AnnotationError) as error:
            errors += 1
            if isinstance(error, FileError) and (path.name not in str(error) or not error.problem):
                faults.append(f"{label}: does not name {path.name}: {error}")
            if not str(error) or "memory" in str(error) or "allocate" in str(error):
                faults.append(f"{label}: {error}")
        except BaseException as error:  # noqa: BLE001 - whatever it is, it is what this looks for
            faults.append(f"{label}: {type(error).__name__}: {error}"[:300])
        finally:
            signal.alarm(0)
    assert not faults, f"{len(faults)} of {tried}:\n" + "\n".join(faults[:40])
    assert (tried > 170, errors >= 90) == (True, True), (tried, errors)


def check_label_map(path: Path) -> None:
    rows = read_label_map(path).rows.values()
    assert all(0 <= ids.scannet_id <= 65_535 and 0 <= ids.nyu40_id <= 40 for ids in rows)


def check_processed(path: Path) -> None:
    found = read_processed(path)
    if not list(find_problems(found)):
        parse_processed(b"".join(encode_processed(found)), path)


def check_scene(scene, options: ProcessOptions) -> None:
    made = process_scene(scene, Split.TRAIN, options, builtin_label_map())
    assert list(find_problems(made)) == []
    assert all(warning.text for warning in made.meta.warnings)
    parse_processed(b"".join(encode_processed(made)), scene.path(MESH))


def damaged_files(kind: str, folder: Path) -> Iterator[Mutation]:
    dice, labels = random.Random(20), LABELS if kind == "labels" else None
    if kind in {"mesh", "labels"}:
        return chain(mutate_bytes(Ply(labels=labels).encode(), dice), mutate_ply(labels, dice))
    if kind == "processed":
        data = b"".join(encode_processed(tiny.process_tiny(folder / "whole", faces=True)))
        return chain(mutate_bytes(data, dice), mutate_npz(data, dice))
    if kind in {"segments", "aggregation"}:
        data = tiny.segments_file() if kind == "segments" else tiny.aggregation_file()
        return chain(mutate_bytes(data, dice), mutate_json(data, dice))
    data = (
        tiny.info_file("sceneType = Bedroom / Hotel", "colorHeight = 968")
        if kind == "info"
        else LABEL_MAP
    )
    return chain(
        mutate_bytes(data, dice), mutate_lines(data, dice, " " if kind == "info" else "\t")
    )


def mutate_bytes(data: bytes, rng: random.Random) -> Iterator[Mutation]:
    """What can happen to any file."""
    size = len(data)
    yield from (
        ("empty", b""), ("HTML", HTML), ("HTML after a blank", b"\n " + HTML), ("one byte", data[:1]),
        ("NULs", bytes(size)), ("noise", rng.randbytes(size)), ("doubled", data + data), ("reversed", data[::-1]),
        ("UTF-16", data.decode("latin-1").encode("utf-16")), ("byte order mark", b"\xef\xbb\xbf" + data),
        ("a byte more", data + b"x"), ("a NUL more", data + b"\x00"), ("CR for LF", data.replace(b"\n", b"\r")),
        ("CRLF for LF", data.replace(b"\n", b"\r\n")),
    )  # fmt: skip
    breaks = [index + 1 for index, byte in enumerate(data) if byte in b'\n ,:=[]{}"\t']
    cuts = {
        size - 1,
        size - 2,
        size // 2,
        *rng.sample(range(size), 8),
        *rng.sample(breaks, min(len(breaks), 8)),
    }
    for cut in sorted(cut for cut in cuts if 0 < cut < size):
        yield f"cut at {cut}", data[:cut]
        yield f"NULs from {cut}", data[:cut] + bytes(size - cut)
    for _ in range(20):
        place, value = rng.randrange(size), rng.choice(b'\0\t",[]{\x80\xff')
        for kind, byte in (("flipped", data[place] ^ 1 << rng.randrange(8)), ("replaced", value)):
            yield f"byte {place} {kind}", data[:place] + bytes([byte]) + data[place + 1 :]
        yield f"without {place}+64", data[:place] + data[place + 64 :]


def mutate_ply(labels: Sequence[int] | None, rng: random.Random) -> Iterator[Mutation]:
    """What can be wrong in a header, or disagree with it; and the same in the body of a text file."""
    # A second list sends a binary file the way of text files.
    for kind, near in (*((kind, "") for kind in FORMATS), (FORMATS[1], "near")):
        data = Ply(labels=labels, format=kind, vertex_list=near).encode()
        body = data.index(b"end_header\n") + 11
        end = len(data) if kind == "ascii" else body
        for name, damaged in mutate_lines(data[:end], rng, " ", "\n"):
            yield f"{kind} {near} {name}", damaged + data[end:]
        for more in (b"element hole 3", b"element hole 0", b"element end 99\nproperty double d"):
            yield f"{kind} {near} {more!r}", data[: body - 11] + more + b"\n" + data[body - 11 :]
        for place in rng.sample(range(body, len(data)), 40):
            yield f"{kind} {near} byte {place}", data[:place] + rng.randbytes(1) + data[place + 1 :]
            yield f"{kind} {near} cut at {place}", data[:place]


def mutate_json(data: bytes, rng: random.Random) -> Iterator[Mutation]:
    """Values of wrong types in every place, names that are missing, deep nesting."""
    document = json.loads(data)
    for place in list(iter_places(document)):
        marked = changed_json(document, place, lambda _: "MARK")
        for value in rng.sample(WRONG_VALUES, 8):
            yield f"{place} is {value!r:.20}", marked.replace(b'"MARK"', json.dumps(value).encode())
        yield f"{place} is missing", changed_json(document, place, None)
        yield f"{place} twice", changed_json(document, place, lambda old: [old, old])
        for opening, closing in (("[", "]"), ('{"a":', "}")):
            depth = rng.choice([10, 500, 900, 940, 960, 970, 980, 985, 990, 995, 1000, 100_000])
            deep = (opening * depth + "0" + closing * depth).encode()
            yield f"{place} is {depth} x {opening}", marked.replace(b'"MARK"', deep)
    for depth in (*range(900, 1001, 4), 100_000):
        yield f"{depth} lists", b"[" * depth + b"]" * depth
        yield f"{depth} open objects", b'{"a":' * depth


def iter_places(value: Any, place: tuple = ()) -> Iterator[tuple]:
    if place:
        yield place
    items = (
        value.items()
        if isinstance(value, dict)
        else enumerate(value)
        if isinstance(value, list)
        else ()
    )
    for key, item in items:
        yield from iter_places(item, (*place, key))


def changed_json(document: Any, place: tuple, change: Callable[[Any], Any] | None) -> bytes:
    """A copy with one value changed, or left out where `change` is None."""
    result = copy.deepcopy(document)
    holder = reduce(getitem, place[:-1], result)
    old = holder.pop(place[-1])
    if change is not None:
        holder.insert(place[-1], change(old)) if isinstance(holder, list) else holder.update(
            {place[-1]: change(old)}
        )
    return json.dumps(result).encode()


def mutate_lines(
    data: bytes, rng: random.Random, separator: str, end: str = "\r\n"
) -> Iterator[Mutation]:
    """Wrong words, lines that are missing, doubled or the last, values that are too many or too few."""
    lines = data.decode().split(end)
    for index, line in enumerate(lines):
        words = line.split(separator)
        others = {"none": [], "twice": [line, line]}
        for place, word in (
            (place, word) for place in range(len(words)) for word in rng.sample(WRONG_WORDS, 5)
        ):
            others[f"word {place} is {word!r:.20}"] = [
                separator.join([*words[:place], word, *words[place + 1 :]])
            ]
        for name, other in others.items():
            yield (
                f"line {index} {name}",
                end.join([*lines[:index], *other, *lines[index + 1 :]]).encode(),
            )
        yield (
            f"line {index} last",
            end.join([*lines[:index], *lines[index + 1 : -1], line, lines[-1]]).encode(),
        )


def mutate_npz(data: bytes, rng: random.Random) -> Iterator[Mutation]:
    """Files with the right checksums and wrong content, and damaged zip structures."""
    reader = NpzReader(data, Path("whole.npz"))
    arrays = {key: reader.read(key) for key in reader.keys}

    def encode(changed: dict[str, np.ndarray]) -> bytes:
        return b"".join(encode_npz(changed, frozenset({"labels", "meta"})))

    for key, array in arrays.items():
        others = [array[..., None], np.array(0, array.dtype), array.astype("U9"), np.array(5)]
        others += (
            [array[:0], array[:2], array.astype("<i8"), array.astype("<f8")] if array.ndim else []
        )
        others += map(np.array, ("", "{}", "[]", "x"))
        for other in others:
            yield f"{key} is {other.dtype} {other.shape}", encode(arrays | {key: other})
        yield f"no {key}", encode({name: item for name, item in arrays.items() if name != key})
        yield (
            f"other {key}",
            encode({f"{name}{name == key:d}": item for name, item in arrays.items()}),
        )
    beyond_unicode = np.full(8, 0x7FFFFFFF, "<u4").view("<U8").reshape(())
    yield "text beyond Unicode", encode(arrays | {"meta": beyond_unicode})
    for name, text in mutate_json(str(arrays["meta"]).encode(), rng):
        yield f"meta {name}", encode(arrays | {"meta": np.array(text.decode())})
    directory = data.index(b"PK\x01\x02")
    for place in range(directory, len(data), 5):
        for value in (0, 0xFF, data[place] ^ 1):
            yield (
                f"directory byte {place} is {value}",
                data[:place] + bytes([value]) + data[place + 1 :],
            )
