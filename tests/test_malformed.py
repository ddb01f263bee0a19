"""Damaged files, more than a thousand: each gives an error of ours that names the file, or a value that makes sense."""

from __future__ import annotations

import random
import signal
from collections.abc import Callable, Iterator
from itertools import chain, islice
from pathlib import Path

import mutations
import numpy as np
import pytest
import tiny
from commands import limited_memory
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

LABELS = (0, 1, 2, 39, 40, 50)
# Files of a scene, and of how many damaged ones one is read.
KINDS = {"mesh": MESH, "labels": LABELS_MESH, "segments": SEGMENTS, "aggregation": AGGREGATION, "info": INFO}
STEPS = {"mesh": 5, "labels": 5, "processed": 5}
ROWS = ("id\traw_category\tcategory\tnyu40id\tlast", "1\twall\twall\t1\tx", "2\tchair\tchair\t5\tx")
LABEL_MAP = "".join(f"{row}\r\n" for row in ROWS).encode()


@pytest.fixture
def bounds() -> Iterator[None]:
    """512 MB more than are used already, and an interrupt for what takes longer than `signal.alarm` allows it."""
    compile_geometry()
    previous = signal.signal(signal.SIGALRM, signal.default_int_handler)
    with limited_memory(2**29):
        yield
    signal.signal(signal.SIGALRM, previous)


@pytest.mark.parametrize("kind", [*KINDS, "label_map", "processed"])
def test_damaged_files_give_errors_of_ours_or_sound_values_within_bounds(
    kind: str, tmp_path: Path, bounds: None
) -> None:
    scene, faults, errors = tiny.write_tiny(tmp_path), list[str](), 0
    options = ProcessOptions(align_axis=True, labels_from="ply" if kind == "labels" else "aggregation")
    path = scene.path(KINDS[kind]) if kind in KINDS else tmp_path / "damaged.file"
    files, check = damaged_files(kind, tmp_path)
    for number, (label, data) in enumerate(islice(files, 0, None, STEPS.get(kind, 1))):
        path.write_bytes(data)
        actions = [lambda: check(path)]
        if kind in KINDS and number % 4 == 0:  # making a scene of it takes most of the time
            actions.append(lambda: check_scene(scene, options))
        for action in actions:
            signal.alarm(20)
            try:
                action()
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
    assert not faults, f"{len(faults)} of {number + 1}:\n" + "\n".join(faults[:40])
    assert (number >= 170, errors >= 90) == (True, True), (number, errors)


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
    dice = random.Random(20)
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
