"""tools/compare, with a small stand-in for the other programs."""

import re
import subprocess
import sys
from collections import Counter

import pytest
from commands import PAGES, PYTHON, REPOSITORY_DIR

sys.path.insert(0, str(REPOSITORY_DIR / "tools"))

import comparison

OURS, OCTFORMER, *_ = comparison.PROGRAMS
UNKNOWN = "a raw category that is not in the label map"
REPEATED = "every group twice, with new ids, as in scene0217_00"

# Labels each vertex with the length of its raw category, and leaves categories `no ...` unlabeled.
STAND_IN = """
import json, pathlib, sys
import numpy as np
raw_dir, out_dir, mode = pathlib.Path(sys.argv[1]), pathlib.Path(sys.argv[2]), sys.argv[3]
out_dir.mkdir(exist_ok=True)
for scene_dir in sorted(raw_dir.glob("scans/*")):
    scene, start = scene_dir.name, scene_dir / scene_dir.name
    segments = json.loads(start.with_name(f"{scene}_vh_clean_2.0.010000.segs.json").read_text())
    groups = json.loads(start.with_name(f"{scene}.aggregation.json").read_text())["segGroups"]
    vertex_segments = np.array(segments["segIndices"])
    labels = np.zeros(len(vertex_segments), np.int64)
    instances = np.full(len(vertex_segments), -1)
    for group in groups:
        is_inside = np.isin(vertex_segments, group["segments"])
        instances[is_inside] = group["id"]
        if not group["label"].startswith("no "):
            labels[is_inside] = len(group["label"])
        elif mode == "stops":
            raise KeyError(group["label"])
        elif mode == "reports":
            print(f"warning: {scene}: unknown category {group['label']}")
    np.savez(out_dir / f"{scene}.npz", labels=labels, instances=instances)
"""


def make_job(folder):
    return comparison.Job(folder / "raw", folder / "run", folder / "clones", PYTHON)


def make_stand_in(folder, mode):
    script = folder / "stand_in.py"
    script.write_text(STAND_IN)
    contents = {"labels": "labels", "instances": "instances"}
    return comparison.Program(
        "stand-in", lambda job: [PYTHON, script, job.raw_dir, job.out_dir, mode], contents
    )


@pytest.mark.parametrize(
    ("mode", "verdict", "facts"),
    [
        ("ignores", "silent", "labels: 64 of 2,000 differ; status 0"),
        ("reports", "reported", "warning: scene0191_01: unknown category no such category"),
        ("stops", "stopped", "KeyError: 'no such category'"),
    ],
)
def test_each_reaction_to_an_irregular_input_is_told_apart(
    tmp_path, monkeypatch, capsys, mode, verdict, facts
):
    inputs = {title: comparison.IRREGULARITIES[title] for title in (UNKNOWN, REPEATED)}
    monkeypatch.setattr(comparison, "IRREGULARITIES", inputs)

    verdicts = comparison.try_inputs(make_stand_in(tmp_path, mode), make_job(tmp_path))

    # The same instances under new ids are no difference.
    assert verdicts == {UNKNOWN: verdict, REPEATED: "right"}
    assert facts in capsys.readouterr().err


def test_our_program_gets_all_irregular_inputs_right_or_reports_them(tmp_path):
    verdicts = comparison.try_inputs(OURS, make_job(tmp_path))

    assert Counter(verdicts.values()) == {"right": 5, "reported": 7}
    assert verdicts[UNKNOWN] == "reported"


def test_measurement_and_tables_have_the_figures_of_each_program(tmp_path, monkeypatch):
    monkeypatch.setattr(comparison, "_REPEATS", 1)
    measured = comparison.measure(make_stand_in(tmp_path, "ignores"), make_job(tmp_path), 3, 600)
    verdicts = dict.fromkeys(comparison.IRREGULARITIES, "silent")
    table = comparison.format_table({"stand-in": measured | comparison.count_verdicts(verdicts)})

    # Two arrays of 8 bytes, and about 250 bytes for each member.
    assert 16 < float(measured["bytes per vertex"]) < 18
    assert 10 < float(measured["memory"].removesuffix(" MB")) < 200
    assert table.startswith("|  | stand-in |\n| --- | --- |\n| CPU time per scene | ")
    assert "| fields | labels, instances |" in table
    assert "| silently wrong | 12 |" in table


def test_clone_is_used_only_at_the_stated_commit_and_unchanged(tmp_path):
    clones_dir = tmp_path / "my clones"
    clone_dir = clones_dir / "octformer"
    missing = comparison.find_obstacle(OCTFORMER, clones_dir)
    clone_dir.mkdir(parents=True)
    script = clone_dir / "seg_scannet.py"
    script.write_text("pass\n")
    git = ["git", "-C", clone_dir, "-c", "user.name=x", "-c", "user.email=x"]
    for words in (["init", "-q"], ["add", "."], ["commit", "-qm", "x"]):
        subprocess.check_call([*git, *words])
    commit = subprocess.check_output([*git, "rev-parse", "HEAD"], text=True).strip()
    at_commit = OCTFORMER._replace(commit=commit)

    assert "found no clone" in missing
    assert f"git clone https://github.com/octree-nn/octformer '{clone_dir}'" in missing
    assert f"found {commit}, expected" in comparison.find_obstacle(OCTFORMER, clones_dir)
    assert comparison.find_obstacle(at_commit, clones_dir) == ""
    script.write_text("changed\n")
    assert f"found {commit}-dirty" in comparison.find_obstacle(at_commit, clones_dir)


def test_page_states_what_was_run_and_readme_has_its_figures():
    page = PAGES["docs/comparison.md"]

    for program in comparison.PROGRAMS:
        assert program.commit in page
        assert program.repository in page
    for title in comparison.IRREGULARITIES:
        assert f"| {title} |" in page
    (table,) = re.findall(r"(?s)(\| \| scannet_prep \| OctFormer .*?)\n\n", PAGES["README.md"])
    for row in table.splitlines()[2:]:
        assert row in page
