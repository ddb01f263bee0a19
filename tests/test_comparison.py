"""tools/compare, with small stand-ins for the other programs."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from commands import PYTHON

REPOSITORY_DIR = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(REPOSITORY_DIR / "tools"))

from comparison import __main__, irregular, measure, page, trials  # noqa: E402 - see the path above
from comparison.outputs import (  # noqa: E402
    DamagedOutputError,
    describe_difference,
    list_fields,
    read_arrays,
)
from comparison.programs import PROGRAMS, Job, Program, find_obstacle  # noqa: E402
from comparison.run import run_program  # noqa: E402

OURS = PROGRAMS[0]
OCTFORMER = PROGRAMS[1]

# Labels each vertex with the length of its raw category, and leaves categories `no ...` unlabeled.
STAND_IN = """
import json, pathlib, sys
import numpy as np
raw_dir, out_dir, mode = pathlib.Path(sys.argv[1]), pathlib.Path(sys.argv[2]), sys.argv[3]
out_dir.mkdir(exist_ok=True)
for scene_dir in sorted(raw_dir.glob("scans/*")):
    scene, start = scene_dir.name, scene_dir / scene_dir.name
    path = out_dir / f"{scene}.npz"
    if mode == "skips" and path.exists():
        continue
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
    np.savez(path, labels=labels, instances=instances)
"""


def make_job(folder: Path) -> Job:
    return Job(
        raw_dir=folder / "raw", folder=folder / "run", clones_dir=folder / "clones", python=PYTHON
    )


def make_stand_in(folder: Path, mode: str) -> Program:
    script_path = folder / "stand_in.py"
    script_path.write_text(STAND_IN)

    def prepare(job: Job) -> list[str]:
        return [PYTHON, str(script_path), str(job.raw_dir), str(job.out_dir), mode]

    contents = {"labels": "labels", "instances": "instances"}
    return Program(name="stand-in", prepare=prepare, contents=contents, remark="")


def try_input(program: Program, folder: Path, title: str) -> trials.Verdict:
    """Run a program on the irregular input whose title contains the words."""
    irregularity = next(entry for entry in irregular.IRREGULARITIES if title in entry.title)
    return trials.Trials(program, make_job(folder)).try_input(irregularity)


def test_lost_labels_without_a_message_are_silent(tmp_path: Path) -> None:
    verdict = try_input(make_stand_in(tmp_path, "ignores"), tmp_path, "not in the label map")

    assert verdict == trials.Verdict("silent", "labels: 64 of 2,000 differ; status 0")


def test_lost_labels_with_a_message_are_reported(tmp_path: Path) -> None:
    verdict = try_input(make_stand_in(tmp_path, "reports"), tmp_path, "not in the label map")

    assert verdict.kind == "reported"
    assert verdict.details.endswith("`warning: scene0191_01: unknown category no such category`")


def test_run_that_ends_at_the_irregular_scene_is_stopped(tmp_path: Path) -> None:
    verdict = try_input(make_stand_in(tmp_path, "stops"), tmp_path, "not in the label map")

    assert verdict.kind == "stopped"
    assert verdict.details == "2 of 4 others made; status 1; `KeyError: 'no such category'`"


def test_groups_under_new_ids_are_the_same_instances(tmp_path: Path) -> None:
    verdict = try_input(make_stand_in(tmp_path, "ignores"), tmp_path, "every group twice")

    assert verdict.kind == "right"


def test_our_program_reports_an_unknown_category(tmp_path: Path) -> None:
    verdict = try_input(OURS, tmp_path, "not in the label map")

    assert verdict.kind == "reported"
    assert "raw category 'no such category' is not in the label map" in verdict.details


def test_program_that_makes_nothing_shows_its_last_line(tmp_path: Path) -> None:
    def prepare(_: Job) -> list[str]:
        return [PYTHON, "-c", "import no_such_package"]

    program = replace(make_stand_in(tmp_path, ""), prepare=prepare)

    with pytest.raises(trials.NothingMadeError, match="No module named 'no_such_package'"):
        trials.Trials(program, make_job(tmp_path))


def test_there_are_twelve_irregular_inputs() -> None:
    assert len({entry.title for entry in irregular.IRREGULARITIES}) == 12


@pytest.fixture(scope="module")
def measurement(tmp_path_factory: pytest.TempPathFactory) -> measure.Measurement:
    """Figures of a program that writes everything again in a second run."""
    return measure_stand_in(tmp_path_factory.mktemp("measurement"), "ignores")


def measure_stand_in(folder: Path, mode: str) -> measure.Measurement:
    return measure.measure_program(
        make_stand_in(folder, mode),
        make_job(folder),
        scene_count=2,
        vertex_count=600,
        least_cpu_s=0.1,
    )


def test_measurement_lists_the_fields_that_were_written(measurement: measure.Measurement) -> None:
    assert measurement.fields == "labels, instances"


def test_measurement_counts_the_bytes_of_files(measurement: measure.Measurement) -> None:
    # Two int64 arrays, and the headers of the file.
    assert 16 < measurement.bytes_per_vertex < 18


def test_measurement_counts_files_that_a_second_run_writes(
    measurement: measure.Measurement,
) -> None:
    assert measurement.rewritten_share == 1


def test_measurement_leaves_out_files_that_a_second_run_skips(tmp_path: Path) -> None:
    assert measure_stand_in(tmp_path, "skips").rewritten_share == 0


def test_memory_of_a_run_is_without_that_of_this_process(tmp_path: Path) -> None:
    def prepare(_: Job) -> list[str]:
        return [PYTHON, "-S", "-c", "pass"]

    program = replace(make_stand_in(tmp_path, ""), prepare=prepare)
    large = np.ones(100_000_000, np.uint8)

    run = run_program(program, make_job(tmp_path))

    assert run.peak_bytes < large.nbytes / 2


def test_memory_of_a_run_is_that_of_its_largest_process(tmp_path: Path) -> None:
    code = "import subprocess, sys; subprocess.run([sys.executable, '-c', 'b\"x\" * 100_000_000'])"

    def prepare(_: Job) -> list[str]:
        return [PYTHON, "-c", code]

    run = run_program(replace(make_stand_in(tmp_path, ""), prepare=prepare), make_job(tmp_path))

    assert 100e6 < run.peak_bytes < 200e6


def test_matrix_of_floats_is_compared_column_by_column(tmp_path: Path) -> None:
    np.save(tmp_path / "0191_00.npy", np.zeros((5, 4), np.float32))
    arrays = read_arrays(tmp_path, "scene0191_00")
    expected = {**arrays, "matrix 3": np.array([0, 0, 7, 7, 0], np.float32)}

    difference = describe_difference(arrays, expected, {"matrix 0": "points", "matrix 3": "ids"})

    assert difference == "ids: 2 of 5 differ"


def test_array_that_is_missing_is_a_difference() -> None:
    difference = describe_difference({}, {"labels": np.zeros(5)}, {"labels": "labels"})

    assert difference == "labels: missing"


def test_contents_of_several_arrays_are_listed_once() -> None:
    arrays = {"x": np.zeros(5), "y": np.zeros(5)}

    assert list_fields(arrays, {"x": "points", "y": "points"}) == "points"


def test_file_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    (tmp_path / "scene0191_00.npz").write_bytes(b"half")

    with pytest.raises(DamagedOutputError, match=r"scene0191_00\.npz"):
        read_arrays(tmp_path, "scene0191_00")


def test_missing_clone_names_the_commands_to_type(tmp_path: Path) -> None:
    obstacle = find_obstacle(OCTFORMER, tmp_path)

    assert f"git clone https://github.com/octree-nn/octformer {tmp_path}/octformer" in obstacle
    assert f"git -C {tmp_path}/octformer checkout {OCTFORMER.commit}" in obstacle


@pytest.fixture
def cloned(tmp_path: Path) -> Program:
    """A program whose clone has one commit."""
    clone_dir = tmp_path / "octformer"
    (clone_dir / "tools").mkdir(parents=True)
    (clone_dir / "tools/seg_scannet.py").write_text("pass\n")
    git = ["git", "-C", str(clone_dir), "-c", "user.name=a", "-c", "user.email=a@example.org"]
    for words in (["init", "-q"], ["add", "."], ["commit", "-q", "-m", "first"]):
        subprocess.run([*git, *words], check=True, capture_output=True)
    commit = subprocess.run([*git, "rev-parse", "HEAD"], check=True, capture_output=True, text=True)
    return replace(OCTFORMER, commit=commit.stdout.strip())


def test_clone_at_the_stated_commit_has_no_obstacle(cloned: Program, tmp_path: Path) -> None:
    assert find_obstacle(cloned, tmp_path) == ""


def test_clone_at_another_commit_names_both(cloned: Program, tmp_path: Path) -> None:
    obstacle = find_obstacle(replace(cloned, commit="1" * 40), tmp_path)

    assert f"is at {cloned.commit[:12]}, expected 111111111111" in obstacle


def test_clone_with_changed_script_is_refused(cloned: Program, tmp_path: Path) -> None:
    (tmp_path / "octformer/tools/seg_scannet.py").write_text("changed\n")

    assert "has changed scripts" in find_obstacle(cloned, tmp_path)


def test_clone_with_files_of_earlier_runs_has_no_obstacle(cloned: Program, tmp_path: Path) -> None:
    (tmp_path / "octformer/tools/seg_scannet.pyc").write_bytes(b"")

    assert find_obstacle(cloned, tmp_path) == ""


def test_program_that_was_not_run_has_its_reason_in_the_page() -> None:
    results = [page.Result(OURS), page.Result(OCTFORMER, "No module named 'wget'")]

    text = page.make_page(results, machine={}, scene_count=2, vertex_count=600)

    assert "- OctFormer was not run: No module named 'wget'\n" in text


def test_one_run_writes_page_and_summary(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "docs").mkdir()
    (tmp_path / "README.md").write_text("a\n\n| | scannet_prep | old |\n| old |\n\nb\n")
    programs = (make_stand_in(tmp_path, "ignores"), OCTFORMER)
    words = ["--repositories", str(tmp_path), "-o", str(tmp_path)]
    monkeypatch.setattr(__main__, "PROGRAMS", programs)
    monkeypatch.setattr(__main__, "_LEAST_CPU_S", 0.1)
    monkeypatch.setattr(sys, "argv", ["compare", *words, "--scenes", "2", "--vertices", "600"])

    __main__.main()

    text = (tmp_path / "docs/comparison.md").read_text()
    summary = text.partition("## Summary\n\n")[2].partition("\n\n")[0]
    assert "| a mesh that is truncated | right | not run |" in text
    assert (tmp_path / "README.md").read_text() == f"a\n\n{summary}\n\nb\n"


@pytest.fixture(scope="module")
def comparison_page() -> str:
    return (REPOSITORY_DIR / "docs/comparison.md").read_text()


@pytest.mark.parametrize("program", PROGRAMS, ids=lambda program: program.name)
def test_page_states_what_was_run(comparison_page: str, program: Program) -> None:
    assert page.describe_program(program) in comparison_page


def test_page_has_every_irregular_input(comparison_page: str) -> None:
    titles = [entry.title for entry in irregular.IRREGULARITIES]

    assert [title for title in titles if f"\n| {title} |" not in comparison_page] == []


def test_readme_has_the_summary_of_the_page(comparison_page: str) -> None:
    summary = comparison_page.partition("## Summary\n\n")[2].partition("\n\n")[0]
    readme = (REPOSITORY_DIR / "README.md").read_text()

    assert summary.startswith("| | scannet_prep | OctFormer |")
    assert summary in readme
