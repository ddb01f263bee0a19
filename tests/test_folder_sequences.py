"""Any sequence of runs and accidents leaves a processed folder with one set of options."""

import json
import shutil
import tempfile
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path

from commands import SCENES, TEST
from hypothesis import given, settings
from hypothesis import strategies as st

from scannet_prep import read_processed
from scannet_prep.base.files import Fingerprint
from scannet_prep.errors import ScanNetPrepError
from scannet_prep.processed.manifest import read_manifest
from scannet_prep.stages import process
from scannet_prep.stages.selection import Selection

LABEL_MAP = "scannetv2-labels.combined.tsv"

named_options = st.fixed_dictionaries(
    {}, optional={"scannet200": st.booleans(), "align_axis": st.booleans(), "faces": st.booleans()}
)
selections = st.sampled_from(
    [Selection()] * 4 + [Selection(scene_ids=(name,)) for name in SCENES] + [Selection(limit=1)]
)
runs = st.tuples(st.just("run"), named_options, st.booleans(), selections)
accidents = st.tuples(
    st.sampled_from(
        ["lose mesh", "lose folder", "damage mesh", "restore", "lose manifest", "lose output"]
    ),
    st.sampled_from(SCENES),
)
label_maps = st.tuples(st.just("label map"), st.sampled_from([b"wall", b"vall"]))


def cause(accident, scene_id, whole_raw_dir, work_dir):
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


def run(work_dir, options, is_forced, selection):
    """Plan and run `process`. Return the report, or None if the run was refused."""
    with suppress(ScanNetPrepError), ThreadPoolExecutor(1) as executor:
        plan = process.plan(
            work_dir / "raw", work_dir / "out", options, selection=selection, is_forced=is_forced
        )
        return process.run(plan, executor=executor)
    return None


def check_record(before, report, out_dir):
    """Check the manifest after a run, and that the run has lost no scene without a reason."""
    manifest = read_manifest(out_dir)
    assert json.loads((out_dir / "manifest.json").read_text())["complete"]
    assert not manifest.unfinished
    assert not manifest.scenes.keys() & manifest.failures.keys()
    failed = {failure.scene_id for failure in report.failures}
    assert before.scenes.keys() <= manifest.scenes.keys() | failed
    for name in [*report.made, *manifest.scenes.keys() - set(report.kept)]:
        entry = manifest.scenes[name]
        path = out_dir / entry.split / f"{name}.npz"
        if path.exists():  # it may have been lost before a run for other scenes
            assert Fingerprint.from_file(path) == entry.fingerprint
            meta = read_processed(path).meta
            assert meta.options == manifest.options
            assert meta.label_map in ("", manifest.label_map)


@settings(max_examples=25)
@given(st.lists(st.one_of(runs, runs, accidents, label_maps), min_size=2, max_size=8))
def test_any_sequence_of_runs_leaves_one_set_of_options(whole_dir, steps):
    whole_raw_dir = whole_dir / "raw"
    with tempfile.TemporaryDirectory() as folder:
        work_dir = Path(folder)
        shutil.copytree(whole_raw_dir, work_dir / "raw")
        for name, *arguments in steps:
            if name == "run":
                before = read_manifest(work_dir / "out", may_be_missing=True)
                report = run(work_dir, *arguments)
                if report is None:
                    assert read_manifest(work_dir / "out", may_be_missing=True) == before
                else:
                    check_record(before, report, work_dir / "out")
            elif name == "label map":
                original = (whole_raw_dir / LABEL_MAP).read_bytes()
                changed = original.replace(b"\twall\t", b"\t" + arguments[0] + b"\t", 1)
                (work_dir / "raw" / LABEL_MAP).write_bytes(changed)
            else:
                cause(name, arguments[0], whole_raw_dir, work_dir)
