"""Damaged copies of good files, seeded: what disks, networks, editors and other programs do to them."""

from __future__ import annotations

import copy
import json
import random
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import tiny

from scannet_prep.processed.npz import NpzReader, encode_npz

Mutation = tuple[str, bytes]

HTML = b"<!DOCTYPE html>\n<html><head><title>404</title></head><body>Not Found</body></html>\n"
FORMATS = ("binary_little_endian", "binary_big_endian", "ascii")
COUNTS = [
    "0", "1", "5", "7", "-1", "3.5", "1e9", "abc", "", "\u0663", "65536", str(2**31), str(2**32 - 1),
    str(10**14), str(10**15),
]  # fmt: skip
PLY_TYPES = [
    "char", "uchar", "short", "ushort", "int", "uint", "float", "double", "list uchar int", "list uint double",
    "real",
]  # fmt: skip
WRONG_VALUES = [
    None, True, -1, 1.5, 10**30, -(10**30), float("nan"), float("inf"), "", "x", "12", "\u0663", "\ud800", "a\x00b",
    [], {}, [[]], [None], {"a": 1}, "9" * 5000, 40_000,
]  # fmt: skip
WRONG_CELLS = [
    "", "x", "-1", "1.5", "99999999999", "41", "70000", "\u0663", "NaN", "\ufeff1", "1\t1", "1\n1", "\x00", 5000 * "9",
]  # fmt: skip


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
    cuts = {size - 1, size - 2, size // 2, *rng.sample(range(size), 8), *rng.sample(breaks, min(len(breaks), 8))}
    for cut in sorted(cut for cut in cuts if 0 < cut < size):
        yield f"cut at {cut}", data[:cut]
        yield f"NULs from {cut}", data[:cut] + bytes(size - cut)
    for _ in range(20):
        place, value = rng.randrange(size), rng.choice(b'\0\t",[]{\x80\xff')
        for kind, byte in (("flipped", data[place] ^ 1 << rng.randrange(8)), ("replaced", value)):
            yield f"byte {place} {kind}", data[:place] + bytes([byte]) + data[place + 1 :]
        yield f"without {place}+64", data[:place] + data[place + 64 :]


def mutate_ply(mesh: tiny.Ply, rng: random.Random) -> Iterator[Mutation]:
    """What can be wrong in a header, or disagree with it."""
    # A second list sends a binary file the way of text files.
    for kind, near in (*((kind, "") for kind in FORMATS), (FORMATS[1], "near")):
        data = tiny.Ply(labels=mesh.labels, format=kind, vertex_list=near).encode()
        yield from ((f"{kind} {near} {name}", damaged) for name, damaged in mutate_header(data))
        body = data.index(b"end_header\n") + 11
        for _ in range(30):
            place, value = rng.randrange(body, len(data)), rng.randrange(256)
            yield f"{kind} {near} byte {place} is {value}", data[:place] + bytes([value]) + data[place + 1 :]
        for cut in rng.sample(range(body, len(data)), 10):
            yield f"{kind} {near} cut at {cut}", data[:cut]
    text = tiny.Ply(labels=mesh.labels, format="ascii").encode()
    body = text.index(b"end_header\n") + 11
    numbers = b"nan inf -inf 1e39 1e400 -1 256 99999999999999999999 0x10 1_0".split()
    for word in (*numbers, b"", b"\xff"):
        for _ in range(8):
            words = text[body:].split(b" ")
            words[rng.randrange(len(words))] = word
            yield f"the word {word!r}", text[:body] + b" ".join(words)


def mutate_header(data: bytes) -> Iterator[Mutation]:
    body = data.index(b"end_header\n")
    lines = data[:body].decode().split("\n")[:-1]

    def joined(changed: list[str]) -> bytes:
        return "\n".join([*changed, ""]).encode() + data[body:]

    for index, line in enumerate(lines):
        yield f"without line {line}", joined(lines[:index] + lines[index + 1 :])
        yield f"twice line {line}", joined([*lines[: index + 1], *lines[index:]])
        yield f"last line {line}", joined([*lines[:index], *lines[index + 1 :], line])
        words = line.split()
        if words[0] == "element":
            for count in COUNTS:
                yield f"{line} is {count}", joined([*lines[:index], f"element {words[1]} {count}", *lines[index + 1 :]])
        if words[0] == "property":
            for kind in PLY_TYPES:
                yield f"{line} is {kind}", joined([*lines[:index], f"property {kind} {words[-1]}", *lines[index + 1 :]])
    holes = ("element hole 3", "element hole 0", "element end 99\nproperty double d")
    for extra in (*holes, "property", "property list", "format"):
        yield f"more: {extra}", joined([*lines, extra])
    yield "long header", joined([lines[0], "comment " + "x" * 70_000, *lines[1:]])


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
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, item in items:
        yield from iter_places(item, (*place, key))


def changed_json(document: Any, place: tuple, change: Callable[[Any], Any] | None) -> bytes:
    """A copy with one value changed, or left out where `change` is None."""
    result = holder = copy.deepcopy(document)
    for key in place[:-1]:
        holder = holder[key]
    if change is None:
        del holder[place[-1]]
    else:
        holder[place[-1]] = change(holder[place[-1]])
    return json.dumps(result).encode()


def mutate_table(data: bytes, rng: random.Random, separator: str) -> Iterator[Mutation]:
    """Wrong cells, lines that are missing or doubled, values that are too many or too few."""
    lines = data.decode().split("\r\n")

    def joined(*changed: list[str]) -> bytes:
        return "\r\n".join(line for part in changed for line in part).encode()

    for index, line in enumerate(lines):
        before, after = lines[:index], lines[index + 1 :]
        yield f"without line {index}", joined(before, after)
        yield f"line {index} twice", joined(before, [line, line], after)
        cells = line.split(separator)
        for place in range(len(cells)):
            for cell in rng.sample(WRONG_CELLS, 4):
                damaged = separator.join([*cells[:place], cell, *cells[place + 1 :]])
                yield f"line {index} cell {place} is {cell!r:.20}", joined(before, [damaged], after)


def mutate_npz(data: bytes, rng: random.Random) -> Iterator[Mutation]:
    """Files with the right checksums and wrong content, and damaged zip structures."""
    reader = NpzReader(data, tiny.Path("whole.npz"))
    arrays = {key: reader.read(key) for key in reader.keys}

    def encode(changed: dict[str, np.ndarray]) -> bytes:
        return b"".join(encode_npz(changed, frozenset({"labels", "meta"})))

    for key, array in arrays.items():
        others = [array[..., None], array.astype("<f8") if key != "meta" else np.array(5)]
        others += [np.array(0, array.dtype), array.astype("U9")]
        if array.ndim:
            others += [array[:0], array[:2], array.astype("<i8")]
        else:
            others += [np.array(text) for text in ("", "{}", "[]", "x")]
        for other in others:
            yield f"{key} is {other.dtype} {other.shape}", encode(arrays | {key: other})
        yield f"no {key}", encode({name: item for name, item in arrays.items() if name != key})
        yield f"other {key}", encode({f"{name}{name == key:d}": item for name, item in arrays.items()})
    beyond_unicode = np.full(8, 0x7FFFFFFF, "<u4").view("<U8").reshape(())
    yield "text beyond Unicode", encode(arrays | {"meta": beyond_unicode})
    for name, text in mutate_json(str(arrays["meta"]).encode(), rng):
        yield f"meta {name}", encode(arrays | {"meta": np.array(text.decode())})
    directory = data.index(b"PK\x01\x02")
    for place in range(directory, len(data), 5):
        for value in (0, 0xFF, data[place] ^ 1):
            yield f"directory byte {place} is {value}", data[:place] + bytes([value]) + data[place + 1 :]
