"""Reads damaged files of one kind in a process of its own, with bounds on memory and time; prints what happened.

Usage: malformed_worker.py KIND SEED
"""

from __future__ import annotations

import faulthandler
import json
import os
import random
import resource
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

os.environ["OPENBLAS_NUM_THREADS"] = "1"

import mutations
import numpy as np
import tiny
from tiny import Ply

from scannet_prep.errors import AnnotationError, FileError, ScanNetPrepError
from scannet_prep.geometry import load_compiled_loop
from scannet_prep.labels import builtin_label_map, read_label_map
from scannet_prep.processed.options import ProcessOptions
from scannet_prep.processed.scene import (
    ProcessedScene,
    encode_processed,
    find_problems,
    parse_processed,
    read_processed,
)
from scannet_prep.raw.aggregation import read_aggregation
from scannet_prep.raw.info import read_scan_info
from scannet_prep.raw.mesh import read_mesh
from scannet_prep.raw.segments import read_segments
from scannet_prep.release import AGGREGATION, INFO, LABELS_MESH, MESH, SEGMENTS
from scannet_prep.scene import Split
from scannet_prep.stages.process.make_scene import find_raw_files, process_scene

MEMORY_BYTES = 2**30
SECONDS_EACH = 20
LABELS = (0, 1, 2, 39, 40, 50)
STEPS = {"mesh": 2, "labels": 4, "processed": 2}  # of so many damaged files, one is read
KINDS = {"mesh": MESH, "labels": LABELS_MESH, "segments": SEGMENTS, "aggregation": AGGREGATION, "info": INFO}


def check_mesh(path: Path) -> None:
    mesh = read_mesh(path)
    count = mesh.vertex_count
    assert mesh.positions.shape == mesh.colors.shape == (count, 3)
    assert count > 0
    assert np.isfinite(mesh.positions).all()
    assert mesh.faces.ndim == 2
    assert mesh.faces.shape[1] == 3
    assert not mesh.faces.size or 0 <= mesh.faces.min() <= mesh.faces.max() < count
    assert mesh.labels is None or mesh.labels.shape == (count,)


def check_segments(path: Path) -> None:
    found = read_segments(path)
    assert len(found.indices) > 0
    assert found.indices.min() == 0
    assert found.indices.max() == len(found.raw_ids) - 1
    assert (np.diff(found.raw_ids) > 0).all()
    assert found.raw_ids[0] >= 0


def check_aggregation(path: Path) -> None:
    found = read_aggregation(path)
    for group in found.groups:
        assert isinstance(group.raw_category, str)
        assert all(type(number) is int for number in group.segment_ids)
        assert group.id is None or type(group.id) is int


def check_info(path: Path) -> None:
    found = read_scan_info(path)
    assert found.axis_alignment is None or found.axis_alignment.shape == (4, 4)
    assert found.axis_alignment is None or np.isfinite(found.axis_alignment).all()


def check_label_map(path: Path) -> None:
    found = read_label_map(path)
    assert all(0 <= ids.scannet_id <= 65_535 and 0 <= ids.nyu40_id <= 40 for ids in found.rows.values())
    assert len(found.digest) == 16


def check_processed(path: Path) -> None:
    found = read_processed(path)
    problems = list(find_problems(found))
    if not problems:
        parse_processed(b"".join(encode_processed(found)), path)


def check_scene(scene, options: ProcessOptions) -> None:
    made = process_scene(find_raw_files(scene, Split.TRAIN, options), options, builtin_label_map())
    assert isinstance(made, ProcessedScene)
    assert list(find_problems(made)) == []
    assert all(warning.text for warning in made.meta.warnings)
    parse_processed(b"".join(encode_processed(made)), scene.path(MESH))


def damaged_files(
    kind: str, folder: Path, rng: random.Random
) -> tuple[Iterator[mutations.Mutation], Callable[[Path], None]]:
    if kind in {"mesh", "labels"}:
        mesh = Ply(labels=LABELS if kind == "labels" else None)
        return chain(mutations.mutate_bytes(mesh.encode(), rng), mutations.mutate_ply(mesh, rng)), check_mesh
    if kind in {"segments", "aggregation"}:
        data = tiny.segments_file() if kind == "segments" else tiny.aggregation_file()
        check = check_segments if kind == "segments" else check_aggregation
        return chain(mutations.mutate_bytes(data, rng), mutations.mutate_json(data, rng)), check
    if kind == "info":
        data = tiny.info_file("sceneType = Bedroom / Hotel", "colorHeight = 968")
        return chain(mutations.mutate_bytes(data, rng), mutations.mutate_table(data, rng, " ")), check_info
    if kind == "label_map":
        rows = [
            "id\traw_category\tcategory\tnyu40id\tlast",
            "1\twall\twall\t1\tx",
            "2\tchair\tchair\t5\ty",
            "3\tfloor\tfloor\t2\tz",
            "",
        ]
        data = "\r\n".join(rows).encode()
        return chain(mutations.mutate_bytes(data, rng), mutations.mutate_table(data, rng, "\t")), check_label_map
    data = b"".join(encode_processed(tiny.process_tiny(folder / "whole", faces=True)))
    return chain(mutations.mutate_bytes(data, rng), mutations.mutate_npz(data, rng)), check_processed


def chain(*parts: Iterator[mutations.Mutation]) -> Iterator[mutations.Mutation]:
    for part in parts:
        yield from part


def attempt(name: str, action: Callable[[], None], path: Path, result: dict) -> None:
    faulthandler.dump_traceback_later(SECONDS_EACH, exit=True)
    try:
        action()
        result["values"] += 1
    except FileError as error:
        result["errors"] += 1
        if path.name not in str(error) or not error.problem:
            result["faults"].append(f"{name}: does not name {path.name}: {error}")
    except AnnotationError as error:
        result["errors"] += 1
        if not str(error):
            result["faults"].append(f"{name}: says nothing")
    except ScanNetPrepError as error:
        result["faults"].append(f"{name}: {type(error).__name__} instead of an error of a file: {error}")
    except BaseException as error:  # noqa: BLE001 - whatever it is, it is what this looks for
        result["faults"].append(f"{name}: {type(error).__name__}: {error}"[:300])
    finally:
        faulthandler.cancel_dump_traceback_later()


def peak_bytes() -> int:
    """Peak memory of this process; what getrusage tells may be that of the process which started it."""
    try:
        lines = Path("/proc/self/status").read_text().splitlines()
    except OSError:
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith("VmHWM"))


def main(kind: str, seed: int) -> None:
    load_compiled_loop()
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY_BYTES, MEMORY_BYTES))
    result: dict = {"kind": kind, "mutations": 0, "values": 0, "errors": 0, "faults": []}
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        scene = tiny.write_tiny(folder)
        options = ProcessOptions(align_axis=True, labels_from="ply" if kind == "labels" else "aggregation")
        path = folder / "damaged.file" if kind not in KINDS else scene.path(KINDS[kind])
        files, check = damaged_files(kind, folder, random.Random(seed))
        for number, (label, data) in enumerate(files):
            if number % STEPS.get(kind, 1):
                continue
            result["mutations"] += 1
            path.write_bytes(data)
            attempt(label, lambda: check(path), path, result)
            if kind in KINDS and result["mutations"] % 4 == 0:  # making a scene of it takes most of the time
                attempt(f"scene: {label}", lambda: check_scene(scene, options), path, result)
    result["peak_bytes"] = peak_bytes()
    print(json.dumps(result))


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]))
