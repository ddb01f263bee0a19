"""Damaged files, thousands of them: each gives an error of ours that names the file, or a value that makes sense.

Run as a program, it reads damaged files of all kinds with bounds on memory and time, and prints what happened.
"""

from __future__ import annotations

import faulthandler
import json
import os
import random
import resource
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from itertools import chain, islice
from pathlib import Path

os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

import mutations
import numpy as np
import tiny
from tiny import Ply

from scannet_prep.compiled import compile_geometry
from scannet_prep.errors import AnnotationError, FileError
from scannet_prep.labels import builtin_label_map, read_label_map
from scannet_prep.processed.scene import (
    ProcessOptions,
    encode_processed,
    find_problems,
    parse_processed,
    read_processed,
)
from scannet_prep.raw.info import read_scan_info
from scannet_prep.raw.mesh import read_mesh
from scannet_prep.raw.segments import read_aggregation, read_segments
from scannet_prep.release import AGGREGATION, INFO, LABELS_MESH, MESH, SEGMENTS
from scannet_prep.scene import Split
from scannet_prep.stages.process.make_scene import find_raw_files, process_scene

SEED = 20
MEMORY_BYTES = 2**30
SECONDS_EACH = 20
LABELS = (0, 1, 2, 39, 40, 50)
# Files of a scene, and of how many damaged ones one is read.
KINDS = {"mesh": MESH, "labels": LABELS_MESH, "segments": SEGMENTS, "aggregation": AGGREGATION, "info": INFO}
STEPS = {"mesh": 4, "labels": 4, "processed": 4}
ROWS = ("id\traw_category\tcategory\tnyu40id\tlast", "1\twall\twall\t1\tx", "2\tchair\tchair\t5\tx")
LABEL_MAP = "".join(f"{row}\r\n" for row in ROWS).encode()


def test_damaged_files_give_errors_of_ours_or_sound_values_within_bounds() -> None:
    # -W error: a warning that escapes from a reader counts as a foreign exception.
    command = [sys.executable, "-W", "error", __file__]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    results = json.loads(done.stdout)
    assert len(results) == 8
    assert results.pop("peak_bytes") < 2**29
    for kind, result in results.items():
        faults = result["faults"]
        assert not faults, f"{len(faults)} of {result['mutations']} of {kind}:\n" + "\n".join(faults[:40])
        assert (result["mutations"] >= 190, result["errors"] >= 90) == (True, True), (kind, result)


def check_mesh(path: Path) -> None:
    mesh = read_mesh(path)
    count = mesh.vertex_count
    assert mesh.positions.shape == mesh.colors.shape == (count, 3)
    assert np.isfinite(mesh.positions).all()
    assert not mesh.faces.size or 0 <= mesh.faces.min() <= mesh.faces.max() < count
    assert mesh.labels is None or mesh.labels.shape == (count,)


def check_segments(path: Path) -> None:
    found = read_segments(path)
    assert len(found.indices) > 0
    assert (found.indices.min(), found.indices.max()) == (0, len(found.raw_ids) - 1)
    assert (np.diff(found.raw_ids) > 0).all()
    assert found.raw_ids[0] >= 0


def check_aggregation(path: Path) -> None:
    for group in read_aggregation(path).groups:
        assert isinstance(group.raw_category, str)
        assert all(type(number) is int for number in group.segment_ids)
        assert group.id is None or type(group.id) is int


def check_info(path: Path) -> None:
    alignment = read_scan_info(path).axis_alignment
    assert alignment is None or (alignment.shape == (4, 4) and np.isfinite(alignment).all())


def check_label_map(path: Path) -> None:
    rows = read_label_map(path).rows.values()
    assert all(0 <= ids.scannet_id <= 65_535 and 0 <= ids.nyu40_id <= 40 for ids in rows)


def check_processed(path: Path) -> None:
    found = read_processed(path)
    if not list(find_problems(found)):
        parse_processed(b"".join(encode_processed(found)), path)


def check_scene(scene, options: ProcessOptions) -> None:
    made = process_scene(find_raw_files(scene, Split.TRAIN, options), options, builtin_label_map())
    assert list(find_problems(made)) == []
    assert all(warning.text for warning in made.meta.warnings)
    parse_processed(b"".join(encode_processed(made)), scene.path(MESH))


def damaged_files(kind: str, folder: Path) -> tuple[Iterator[mutations.Mutation], Callable[[Path], None]]:
    dice = random.Random(SEED)
    if kind in {"mesh", "labels"}:
        mesh = Ply(labels=LABELS if kind == "labels" else None)
        return chain(mutations.mutate_bytes(mesh.encode(), dice), mutations.mutate_ply(mesh, dice)), check_mesh
    if kind == "processed":
        data = b"".join(encode_processed(tiny.process_tiny(folder / "whole", faces=True)))
        return chain(mutations.mutate_bytes(data, dice), mutations.mutate_npz(data, dice)), check_processed
    info = tiny.info_file("sceneType = Bedroom / Hotel", "colorHeight = 968")
    data, more, check = {
        "segments": (tiny.segments_file(), lambda data: mutations.mutate_json(data, dice), check_segments),
        "aggregation": (tiny.aggregation_file(), lambda data: mutations.mutate_json(data, dice), check_aggregation),
        "info": (info, lambda data: mutations.mutate_table(data, dice, " "), check_info),
        "label_map": (LABEL_MAP, lambda data: mutations.mutate_table(data, dice, "\t"), check_label_map),
    }[kind]
    return chain(mutations.mutate_bytes(data, dice), more(data)), check


def attempt(name: str, action: Callable[[], None], path: Path, result: dict) -> None:
    faulthandler.dump_traceback_later(SECONDS_EACH, exit=True)
    try:
        action()
        result["values"] += 1
    except (FileError, AnnotationError) as error:
        result["errors"] += 1
        if not str(error) or (isinstance(error, FileError) and (path.name not in str(error) or not error.problem)):
            result["faults"].append(f"{name}: does not name {path.name}: {error}")
    except BaseException as error:  # noqa: BLE001 - whatever it is, it is what this looks for
        result["faults"].append(f"{name}: {type(error).__name__}: {error}"[:300])
    finally:
        faulthandler.cancel_dump_traceback_later()


def attack(kind: str, folder: Path) -> dict:
    result: dict = {"mutations": 0, "values": 0, "errors": 0, "faults": []}
    scene = tiny.write_tiny(folder)
    options = ProcessOptions(align_axis=True, labels_from="ply" if kind == "labels" else "aggregation")
    path = folder / "damaged.file" if kind not in KINDS else scene.path(KINDS[kind])
    files, check = damaged_files(kind, folder)
    for label, data in islice(files, 0, None, STEPS.get(kind, 2)):
        result["mutations"] += 1
        path.write_bytes(data)
        attempt(label, lambda: check(path), path, result)
        if kind in KINDS and result["mutations"] % 4 == 0:  # making a scene of it takes most of the time
            attempt(f"scene: {label}", lambda: check_scene(scene, options), path, result)
    return result


def main() -> None:
    compile_geometry()
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY_BYTES, MEMORY_BYTES))
    with tempfile.TemporaryDirectory() as name:
        results: dict = {kind: attack(kind, Path(name, kind)) for kind in (*KINDS, "label_map", "processed")}
    # Of this process; what getrusage tells may be that of the process which started it.
    lines = Path("/proc/self/status").read_text().splitlines()
    results["peak_bytes"] = next(int(line.split()[1]) * 1024 for line in lines if line.startswith("VmHWM"))
    print(json.dumps(results))


if __name__ == "__main__":
    main()
