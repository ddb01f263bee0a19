"""Files changed at random: every reader reads them, or raises an error with a message."""

import os
from functools import partial
from pathlib import Path

import pytest
from commands import limited_memory
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from plyfile import PlyData

from scannet_prep import sample_from_mesh
from scannet_prep.errors import ScanNetPrepError
from scannet_prep.frames import SensorStream
from scannet_prep.processed.manifest import read_manifest
from scannet_prep.processed.scene import ProcessOptions
from scannet_prep.raw.lock import read_tree_lock
from scannet_prep.source.place import open_place
from scannet_prep.stages import pack, process
from scannet_prep.synthetic import make_scene, write_label_map, write_scene

SCENE = "scene0191_00"
# CI tries more when it has time.
EXAMPLES = int(os.environ.get("SCANNET_PREP_FUZZ_EXAMPLES", "60"))


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


@pytest.fixture(scope="module")
def readers(tmp_path_factory):
    """An intact file of each kind, and its reader; test_malformed.py has the other kinds."""
    folder = tmp_path_factory.mktemp("fuzz")
    scene_dir = write_scene(make_scene(SCENE, vertices=500), folder / "raw", frames=3)
    write_label_map(folder / "raw")
    (folder / "scannet.lock").write_text(f"{'0' * 64}  12  scans/{SCENE}/{SCENE}.txt\n")
    plan = process.plan(folder / "raw", folder / "processed", ProcessOptions(align_axis=True))
    process.run(plan)
    pack.run(folder / "processed", folder / "scannet.tar.zst")
    mesh = PlyData.read(scene_dir / f"{SCENE}_vh_clean_2.ply")
    PlyData(mesh.elements, text=True).write(folder / "room.ply")
    return {
        "own mesh": (folder / "room.ply", partial(sample_from_mesh, compute_segments=True)),
        "lock": (folder / "scannet.lock", lambda path: read_tree_lock(path.parent)),
        "manifest": (folder / "processed/manifest.json", lambda path: read_manifest(path.parent)),
        "archive": (folder / "scannet.tar.zst", read_archive),
        "sensor stream": (scene_dir / f"{SCENE}.sens", read_stream),
    }


@pytest.mark.parametrize("kind", ["own mesh", "lock", "manifest", "archive", "sensor stream"])
def test_file_changed_at_random_is_read_or_raises_an_error_with_a_message(readers, kind):
    path, read = readers[kind]
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
        try:
            read(Path(path))
        except ScanNetPrepError as error:
            assert error.message  # noqa: PT017 - most files raise none

    with limited_memory(2**30):
        read_changed()
