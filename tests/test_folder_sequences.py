"""Any sequence of runs and accidents leaves a processed folder with one set of options."""

from __future__ import annotations

import json
import shutil
import tempfile
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from commands import SCENES, TEST
from hypothesis import given, settings
from hypothesis import strategies as st

from scannet_prep.errors import ScanNetPrepError
from scannet_prep.processed.folder import find_state
from scannet_prep.release.scene import SceneId
from scannet_prep.stages import process
from scannet_prep.stages.selection import Selection

LABEL_MAP = "scannetv2-labels.combined.tsv"

named_options = st.fixed_dictionaries(
    {}, optional={"scannet200": st.booleans(), "align_axis": st.booleans(), "faces": st.booleans()}
)
selections = st.sampled_from(
    [Selection()] * 4
    + [Selection(scene_ids=(SceneId(name),)) for name in SCENES]
    + [Selection(limit=1)]
)
runs = st.tuples(st.just("run"), named_options, st.booleans(), selections)
accidents = st.tuples(
    st.sampled_from(
        ["lose mesh", "lose folder", "damage mesh", "restore", "lose manifest", "lose output"]
    ),
    st.sampled_from(SCENES),
)
label_maps = st.tuples(st.just("label map"), st.sampled_from([b"wall", b"vall"]))


@pytest.fixture(scope="module")
def whole_raw_dir(whole_dir: Path) -> Path:
    return whole_dir / "raw"


def cause(accident: str, scene_id: str, whole_raw_dir: Path, work_dir: Path) -> None:
    """Damage or restore the raw files or the output of a scene."""
    raw_dir = work_dir / "raw"
    out_dir = work_dir / "out"
    folder = raw_dir / ("scans_test" if scene_id == TEST else "scans") / scene_id
    mesh_path = folder / f"{scene_id}_vh_clean_2.ply"
    if accident == "lose mesh":
        mesh_path.unlink(missing_ok=True)
    elif accident == "lose folder":
        shutil.rmtree(folder, ignore_errors=True)
    elif accident == "damage mesh" and mesh_path.exists():
        mesh_path.write_bytes(mesh_path.read_bytes()[:-100])
    elif accident == "restore":
        shutil.rmtree(folder, ignore_errors=True)
        shutil.copytree(whole_raw_dir / folder.relative_to(raw_dir), folder)
    elif accident == "lose manifest":
        (out_dir / "manifest.json").unlink(missing_ok=True)
    elif accident == "lose output":
        for path in out_dir.glob(f"*/{scene_id}.npz"):
            path.unlink()


def run(work_dir: Path, options: dict[str, bool], is_forced: bool, selection: Selection) -> bool:
    """Plan and run `process`. Return whether the run was accepted."""
    with suppress(ScanNetPrepError), ThreadPoolExecutor(1) as executor:
        plan = process.plan(
            work_dir / "raw", work_dir / "out", options, selection=selection, is_forced=is_forced
        )
        process.run(plan, executor=executor)
        return True
    return False


def iter_metas(out_dir: Path) -> Iterator[dict[str, Any]]:
    """Read the metadata of all processed scenes."""
    for path in out_dir.glob("*/*.npz"):
        with np.load(path) as arrays:
            yield json.loads(str(arrays["meta"]))


def check_no_mixture(out_dir: Path) -> None:
    """Check that all scenes have the same options and the same label map."""
    metas = list(iter_metas(out_dir))
    assert len({json.dumps(meta["options"]) for meta in metas}) <= 1
    assert len({meta["label_map"] for meta in metas if meta["split"] != "test"}) <= 1


def check_manifest(out_dir: Path) -> None:
    """Check that the manifest describes the scenes, and that none of them has failed."""
    state = find_state(out_dir)
    assert state.has_manifest
    assert not state.faults
    manifest = state.manifest
    metas = {meta["scene_id"]: meta for meta in iter_metas(out_dir)}
    assert manifest.scenes.keys() <= metas.keys()
    assert not manifest.scenes.keys() & manifest.failures.keys()
    for meta in metas.values():
        assert meta["options"] == manifest.options.to_json()
        if meta["split"] != "test":
            assert meta["label_map"] == manifest.label_map


@settings(max_examples=25)
@given(st.lists(st.one_of(runs, runs, accidents, label_maps), min_size=2, max_size=8))
def test_any_sequence_of_runs_leaves_one_set_of_options(
    whole_raw_dir: Path, steps: list[tuple]
) -> None:
    with tempfile.TemporaryDirectory() as folder:
        work_dir = Path(folder)
        shutil.copytree(whole_raw_dir, work_dir / "raw")
        for name, *arguments in steps:
            if name == "run":
                has_run = run(work_dir, *arguments)
                check_no_mixture(work_dir / "out")
                if has_run:
                    check_manifest(work_dir / "out")
            elif name == "label map":
                original = (whole_raw_dir / LABEL_MAP).read_bytes()
                changed = original.replace(b"\twall\t", b"\t" + arguments[0] + b"\t", 1)
                (work_dir / "raw" / LABEL_MAP).write_bytes(changed)
            else:
                cause(name, arguments[0], whole_raw_dir, work_dir)
