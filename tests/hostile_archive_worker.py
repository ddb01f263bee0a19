"""Opens, checks, describes and reads hostile archives in a process of its own, with bounds on memory and time.

Usage: hostile_archive_worker.py ARCHIVE SEED
"""

from __future__ import annotations

import faulthandler
import json
import os
import random
import resource
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

os.environ["OPENBLAS_NUM_THREADS"] = "1"

import zstandard
from archive_parts import Parts, hostile_rows
from mutations import mutate_bytes, mutate_json

from scannet_prep.archive import open_archive
from scannet_prep.archive.frames import checksum_of, compress_frame
from scannet_prep.archive.index import INDEX_NAME
from scannet_prep.archive.seek_table import encode_seek_table
from scannet_prep.archive.tar import encode_header
from scannet_prep.errors import ScanNetPrepError
from scannet_prep.stages import info
from scannet_prep.stages.verify import archive as verify_archive

MORE_BYTES = 400 << 20  # threads take 72 MB of addresses each, and use little of them
SECONDS_EACH = 20
EMPTY_FRAME_HEAD = zstandard.compress(b"", 3)[:4]


def hostile_files(parts: Parts, rng: random.Random) -> Iterator[tuple[str, bytes]]:
    whole = parts.joined()
    for name, tail in mutate_bytes(whole[len(parts.groups) :], rng):
        if parts.groups + tail != whole:
            yield f"tail: {name}", parts.groups + tail
    cases = list(mutate_json(parts.index, rng))
    for name, index in rng.sample(cases, min(len(cases), 600)):
        yield f"index: {name}", parts.with_index(index)
    for name, rows in hostile_rows(parts.rows):
        yield f"table: {name}", replace(parts, rows=rows).joined()
    yield "keys twice", parts.with_index(parts.index.replace(b'"id"', b'"id":"scene0000_00","id"'))
    yield "numbers with a point", parts.with_index(parts.index.replace(b'"offset":0', b'"offset":0.0'))
    yield "huge numbers", parts.with_index(parts.index.replace(b'"offset":0', b'"offset":' + b"9" * 5000))
    yield "no end of lists", parts.with_index(b"[" * 5_000_000)
    yield "many groups", parts.with_index(parts.index.replace(b'"scenes": [', b'"scenes": [' + b"{}," * 100_000))
    for name, content in (("zeros", bytes(900 << 20)), ("lists", b"[" + b"[]," * (80 << 20))):
        # A small file whose index would fill the memory, were it decompressed.
        bomb = compress_frame(encode_header(INDEX_NAME, len(content)) + content + bytes(-len(content) % 512), 1)
        size = 512 + len(content) + -len(content) % 512
        del content
        end = whole[parts.bounds[-2][1] : parts.bounds[-2][2]]
        rows = [*parts.rows, (len(bomb), size, checksum_of(bomb)), (len(end), 1024, checksum_of(end))]
        yield f"bomb of {name}", parts.groups + bomb + end + encode_seek_table(rows)
    # Frames within frames, each of which looks whole for a while: searching all of them would take hours.
    head = EMPTY_FRAME_HEAD + b"\x20\x09"
    yield "frames without end", (head + (9 << 3).to_bytes(3, "little")) * 200_000
    yield "frames without end in the tail", parts.groups + (head + (6 << 3).to_bytes(3, "little")) * 100_000


def use(path: Path) -> None:
    """All that reads archives; what one of them refuses, the others must survive."""
    errors = []
    for action in (read_all, check, check_quickly, describe):
        try:
            action(path)
        except ScanNetPrepError as error:
            errors.append(error)
    assert all(str(path) in str(error) for error in errors), errors
    if errors:
        raise errors[0]


def read_all(path: Path) -> None:
    with open_archive(path) as archive:
        for group in archive.index.groups:
            for member in group.members:
                try:
                    assert len(archive.read_member(group, member)) == member.size_bytes
                except ScanNetPrepError:
                    continue


def check(path: Path) -> None:
    report = verify_archive.run(verify_archive.plan([path]))
    json.dumps(report.to_json(), allow_nan=False)
    assert report.errors, "nothing is found to be wrong"


def check_quickly(path: Path) -> None:
    verify_archive.run(verify_archive.plan([path], is_quick=True))


def describe(path: Path) -> None:
    json.dumps(info.run([path]).to_json(), allow_nan=False)


def used_bytes() -> int:
    return int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()


def main(archive_path: Path, seed: int) -> None:
    parts, path = Parts.of(archive_path), archive_path.with_name("hostile.tar.zst")
    assert parts.joined() == archive_path.read_bytes()
    result: dict = {"files": 0, "refused": 0, "faults": []}
    for name, data in hostile_files(parts, random.Random(seed)):
        path.write_bytes(data)
        del data
        limits = resource.getrlimit(resource.RLIMIT_AS)
        resource.setrlimit(resource.RLIMIT_AS, (used_bytes() + MORE_BYTES, limits[1]))
        faulthandler.dump_traceback_later(SECONDS_EACH, exit=True)
        result["files"] += 1
        try:
            use(path)
        except ScanNetPrepError:
            result["refused"] += 1
        except BaseException as error:  # noqa: BLE001 - whatever it is, it is what this looks for
            result["faults"].append(f"{name}: {type(error).__name__}: {error}"[:300])
        finally:
            faulthandler.cancel_dump_traceback_later()
            resource.setrlimit(resource.RLIMIT_AS, limits)
    print(json.dumps(result))


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]))
