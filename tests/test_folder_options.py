"""The options of a processed folder: the first run sets them, and later runs must agree."""

from __future__ import annotations

import json
import os
import shutil
import signal
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from commands import (
    SCENES,
    TEST,
    TRAIN,
    VAL,
    Outcome,
    Verify,
    digests,
    edit_json,
    run_main,
    start_command,
)

from scannet_prep import ScanNet, official_scenes
from scannet_prep.errors import (
    FileError,
    OldFormatError,
    ProcessedFileError,
    ScanNetPrepError,
)
from scannet_prep.processed.scene import ProcessOptions
from scannet_prep.stages import process as process_stage
from scannet_prep.synthetic import write_release

LABEL_MAP = "scannetv2-labels.combined.tsv"
README_FLAGS = ("--scannet200", "--align-axis")


def process(raw_dir: Path, out_dir: Path, *words: str | Path) -> Outcome:
    return run_main("process", raw_dir, "-o", out_dir, "--json", *words)


def options_of(out_dir: Path) -> dict[str, Any]:
    """Read the options of every scene, which must be the same, and the same as in the manifest."""
    recorded = json.loads((out_dir / "manifest.json").read_text())["options"]
    for path in out_dir.glob("*/*.npz"):
        meta = json.loads(str(np.load(path)["meta"]))
        assert meta["options"] == recorded
    return recorded


def change_label_map(raw_dir: Path) -> None:
    path = raw_dir / LABEL_MAP
    path.write_bytes(path.read_bytes().replace(b"\twall\t", b"\tvall\t", 1))


@pytest.fixture
def aligned_dir(raw_dir: Path, tmp_path: Path) -> Path:
    """A folder made as in README: ScanNet200, axis-aligned."""
    aligned_dir = tmp_path / "aligned"
    assert process(raw_dir, aligned_dir, *README_FLAGS).status == 0
    return aligned_dir


def make_old(out_dir: Path) -> None:
    """Turn a folder into one of format 1: the version, and options per scene."""

    def change(manifest: dict[str, Any]) -> None:
        options = manifest.pop("options")
        manifest["format_version"] = 1
        manifest["complete"] = True
        for entry in manifest["scenes"].values():
            entry["options"] = options

    edit_json(out_dir / "manifest.json", change)


class TestWithoutOptions:
    def test_process_without_options_keeps_the_folder(
        self, raw_dir: Path, aligned_dir: Path
    ) -> None:
        before = digests(aligned_dir)

        outcome = process(raw_dir, aligned_dir)

        assert outcome.status == 0
        assert outcome.json["kept"] == [*SCENES]
        assert digests(aligned_dir) == before

    def test_changed_raw_file_is_processed_with_the_options_of_the_folder(
        self, raw_dir: Path, aligned_dir: Path
    ) -> None:
        path = raw_dir / f"scans/{TRAIN}/{TRAIN}.txt"
        path.write_text(path.read_text() + "note = changed\n")

        assert process(raw_dir, aligned_dir).json["made"] == [TRAIN]

        assert options_of(aligned_dir)["align_axis"] is True

    def test_first_line_shows_the_options_and_the_folder(
        self, raw_dir: Path, aligned_dir: Path
    ) -> None:
        first_line = run_main("process", raw_dir, "-o", aligned_dir).stderr.splitlines()[0]

        assert "--scannet200 --align-axis --no-faces --labels-from aggregation" in first_line
        assert f"from {aligned_dir}" in first_line

    def test_first_line_of_a_new_folder_names_the_defaults(
        self, raw_dir: Path, tmp_path: Path
    ) -> None:
        first_line = run_main("process", raw_dir, "-o", tmp_path / "new").stderr.splitlines()[0]

        assert "--no-scannet200 --no-align-axis --no-faces" in first_line
        assert "from the defaults" in first_line

    def test_failed_list_is_retried_with_the_options_of_the_folder(
        self, raw_dir: Path, aligned_dir: Path
    ) -> None:
        path = raw_dir / f"scans/{VAL}/{VAL}_vh_clean_2.ply"
        whole = path.read_bytes()
        path.write_bytes(whole[:-500])
        assert process(raw_dir, aligned_dir).status == 3
        path.write_bytes(whole)

        outcome = process(raw_dir, aligned_dir, "--scenes", f"@{aligned_dir}/failed.txt")

        assert outcome.json["made"] == [VAL]
        assert options_of(aligned_dir)["scannet200"] is True

    def test_interrupted_first_run_is_continued_with_its_options(self, tmp_path: Path) -> None:
        write_release(tmp_path / "raw", official_scenes("train")[:30], vertices=2_000)
        run = start_command(
            "process", tmp_path / "raw", "-o", tmp_path / "out", *README_FLAGS, "--jobs", "1"
        )
        while not (tmp_path / "out/unfinished.txt").exists():
            assert run.poll() is None
            time.sleep(0.001)
        run.send_signal(signal.SIGKILL)
        run.communicate()

        assert run_main("process", tmp_path / "raw", "-o", tmp_path / "out").status == 0

        options = options_of(tmp_path / "out")
        assert options["scannet200"] is True
        assert options["align_axis"] is True


class TestOtherOptions:
    @pytest.mark.parametrize(
        "flag", ["--no-scannet200", "--no-align-axis", "--faces", "--labels-from=ply"]
    )
    def test_other_options_are_refused_before_anything_is_written(
        self, raw_dir: Path, aligned_dir: Path, flag: str
    ) -> None:
        before = digests(aligned_dir)

        outcome = process(raw_dir, aligned_dir, flag)

        assert outcome.status == 2
        assert digests(aligned_dir) == before

    def test_refusal_shows_the_options_of_folder_and_command(
        self, raw_dir: Path, aligned_dir: Path
    ) -> None:
        text = process(raw_dir, aligned_dir, "--faces", "--no-align-axis").stderr

        assert "--scannet200 --align-axis --no-faces --labels-from aggregation" in text
        assert "--scannet200 --no-align-axis --faces --labels-from aggregation" in text

    def test_refusal_shows_two_ways_out(self, raw_dir: Path, aligned_dir: Path) -> None:
        text = process(raw_dir, aligned_dir, "--faces", "--no-align-axis").stderr

        assert "-o DIR" in text
        assert "--force" in text

    def test_naming_the_options_of_the_folder_is_accepted(
        self, raw_dir: Path, aligned_dir: Path
    ) -> None:
        words = (*README_FLAGS, "--no-faces", "--labels-from", "aggregation")

        assert process(raw_dir, aligned_dir, *words).json["kept"] == [*SCENES]

    def test_force_with_other_options_processes_the_whole_folder(
        self, raw_dir: Path, aligned_dir: Path
    ) -> None:
        outcome = process(raw_dir, aligned_dir, "--faces", "--force")

        assert outcome.json["made"] == [*SCENES]
        assert options_of(aligned_dir)["faces"] is True

    @pytest.mark.parametrize("words", [("--scenes", TRAIN), ("--splits", "val"), ("--limit", "1")])
    def test_force_with_other_options_is_refused_for_some_scenes(
        self, raw_dir: Path, aligned_dir: Path, words: tuple[str, str]
    ) -> None:
        before = digests(aligned_dir)

        outcome = process(raw_dir, aligned_dir, "--faces", "--force", *words)

        assert outcome.status == 2
        assert "leave out --scenes, --splits and --limit" in outcome.stderr
        assert digests(aligned_dir) == before

    def test_force_with_other_options_is_refused_while_raw_files_are_gone(
        self, raw_dir: Path, aligned_dir: Path
    ) -> None:
        shutil.rmtree(raw_dir / f"scans/{VAL}")
        (raw_dir / f"scans/{TRAIN}/{TRAIN}_vh_clean_2.ply").unlink()
        before = digests(aligned_dir)

        outcome = process(raw_dir, aligned_dir, "--faces", "--force")

        assert outcome.status == 2
        assert f"the raw files are gone for 2 of its scenes: {TRAIN}, {VAL}" in outcome.stderr
        assert f"rm {aligned_dir}/train/{TRAIN}.npz {aligned_dir}/val/{VAL}.npz" in outcome.stderr
        assert digests(aligned_dir) == before

    def test_removing_the_named_scenes_lets_the_folder_be_processed(
        self, raw_dir: Path, aligned_dir: Path
    ) -> None:
        shutil.rmtree(raw_dir / f"scans/{VAL}")
        (aligned_dir / f"val/{VAL}.npz").unlink()

        outcome = process(raw_dir, aligned_dir, "--faces", "--force")

        assert outcome.json["made"] == [TRAIN, TEST]
        manifest = json.loads((aligned_dir / "manifest.json").read_text())
        assert list(manifest["scenes"]) == [TRAIN, TEST]

    def test_scene_that_fails_under_other_options_leaves_no_old_file(
        self, raw_dir: Path, aligned_dir: Path
    ) -> None:
        os.truncate(raw_dir / f"scans/{VAL}/{VAL}_vh_clean_2.ply", 5_000)

        assert process(raw_dir, aligned_dir, "--faces", "--force").status == 3

        assert not (aligned_dir / f"val/{VAL}.npz").exists()
        assert options_of(aligned_dir)["faces"] is True

    def test_killed_change_of_options_is_continued_with_the_new_ones(
        self, raw_dir: Path, aligned_dir: Path
    ) -> None:
        run = start_command(
            "process", raw_dir, "-o", aligned_dir, "--faces", "--force", "--jobs", "1"
        )
        while not (aligned_dir / "unfinished.txt").exists() and run.poll() is None:
            time.sleep(0.001)
        run.send_signal(signal.SIGKILL)
        run.communicate()

        assert process(raw_dir, aligned_dir).status == 0

        # The kill may come between the mark and the new manifest: then nothing has changed yet.
        assert options_of(aligned_dir)["align_axis"] is True
        assert len(ScanNet(aligned_dir, split="train")) == 1

    def test_plan_of_a_folder_that_another_run_has_changed_is_refused(
        self, raw_dir: Path, tmp_path: Path
    ) -> None:
        plan = process_stage.plan(raw_dir, tmp_path / "out", ProcessOptions(align_axis=True))
        assert process(raw_dir, tmp_path / "out").status == 0
        before = digests(tmp_path / "out")

        with pytest.raises(ScanNetPrepError, match="another run has changed the folder"):
            process_stage.run(plan)

        assert digests(tmp_path / "out") == before

    def test_strict_and_lenient_together_are_refused(self, raw_dir: Path, tmp_path: Path) -> None:
        assert process(raw_dir, tmp_path / "out", "--strict", "--lenient").status == 2


class TestMissingRawFiles:
    @pytest.mark.parametrize("words", [(), ("--force",), ("--checksum",), ("--scenes", TRAIN, VAL)])
    def test_scene_without_raw_files_stays(
        self, raw_dir: Path, aligned_dir: Path, words: tuple[str, ...]
    ) -> None:
        before = digests(aligned_dir)
        shutil.rmtree(raw_dir / f"scans/{VAL}")
        (raw_dir / f"scans/{TRAIN}/{TRAIN}_vh_clean_2.0.010000.segs.json").unlink()

        outcome = process(raw_dir, aligned_dir, *words)

        assert outcome.status == 0, outcome.stderr
        assert digests(aligned_dir) == before
        assert outcome.json["raw_gone"] == [TRAIN, VAL]

    @pytest.mark.parametrize("words", [(), ("--force",), ("--checksum",)])
    @pytest.mark.parametrize("manifest", [None, b"{"])
    def test_scene_without_raw_files_stays_without_a_valid_manifest(
        self, raw_dir: Path, aligned_dir: Path, manifest: bytes | None, words: tuple[str, ...]
    ) -> None:
        before = digests(aligned_dir)
        (raw_dir / f"scans/{TRAIN}/{TRAIN}.aggregation.json").unlink()
        (aligned_dir / "manifest.json").unlink()
        if manifest is not None:
            (aligned_dir / "manifest.json").write_bytes(manifest)

        outcome = process(raw_dir, aligned_dir, *words)

        assert outcome.status == 0, outcome.stderr
        assert outcome.json["raw_gone"] == [TRAIN]
        assert digests(aligned_dir) == before

    @pytest.mark.parametrize(
        "removed", [f"scans/{TRAIN}", f"scans/{TRAIN}/{TRAIN}.aggregation.json"]
    )
    def test_scene_of_another_label_map_fails_if_its_raw_files_are_gone(
        self, raw_dir: Path, aligned_dir: Path, tmp_path: Path, removed: str
    ) -> None:
        # As if a run had been killed after the label map changed, before this scene was made again.
        outdated = (aligned_dir / f"train/{TRAIN}.npz").read_bytes()
        change_label_map(raw_dir)
        assert process(raw_dir, aligned_dir).status == 0
        (aligned_dir / f"train/{TRAIN}.npz").write_bytes(outdated)
        (aligned_dir / "manifest.json").unlink()
        words = (*README_FLAGS, "--splits", "val", "test")
        assert process(raw_dir, tmp_path / "rest", *words).status == 0
        shutil.copy(tmp_path / "rest/manifest.json", aligned_dir)
        path = raw_dir / removed
        if path.is_dir():
            shutil.rmtree(path)
        else:
            path.unlink()

        outcome = process(raw_dir, aligned_dir)

        assert outcome.status == 3
        assert "another label map than the folder, and its raw files are gone" in outcome.stderr
        assert TRAIN not in json.loads((aligned_dir / "manifest.json").read_text())["scenes"]

    def test_scene_whose_raw_folder_is_a_dangling_link_stays(
        self, raw_dir: Path, aligned_dir: Path
    ) -> None:
        shutil.rmtree(raw_dir / f"scans/{VAL}")
        (raw_dir / f"scans/{VAL}").symlink_to("unmounted")

        assert process(raw_dir, aligned_dir).json["raw_gone"] == [VAL]

    @pytest.mark.parametrize("words", [(), ("--scenes", TRAIN)])
    @pytest.mark.parametrize("removed", [f"scans/{TRAIN}", f"scans/{TRAIN}/{TRAIN}_vh_clean_2.ply"])
    def test_damaged_scene_without_raw_files_fails_and_stays(
        self, raw_dir: Path, aligned_dir: Path, removed: str, words: tuple[str, ...]
    ) -> None:
        (raw_dir / removed).rename(raw_dir / "removed")
        os.truncate(aligned_dir / f"train/{TRAIN}.npz", 5_000)

        outcome = process(raw_dir, aligned_dir, *words)

        assert outcome.status == 3
        assert "its raw files are gone" in outcome.json["failures"][0]["message"]
        assert "remove the processed scene" in outcome.json["failures"][0]["hint"]
        assert (aligned_dir / f"train/{TRAIN}.npz").exists()

    def test_removed_scene_without_raw_folder_fails_if_it_is_named(
        self, raw_dir: Path, aligned_dir: Path
    ) -> None:
        shutil.rmtree(raw_dir / f"scans/{VAL}")
        (aligned_dir / f"val/{VAL}.npz").unlink()

        outcome = process(raw_dir, aligned_dir, "--scenes", VAL)

        assert outcome.status == 3
        assert outcome.json["kept"] == []

    def test_named_scene_without_raw_folder_stays_without_a_manifest(
        self, raw_dir: Path, aligned_dir: Path
    ) -> None:
        shutil.rmtree(raw_dir / f"scans/{VAL}")
        (aligned_dir / "manifest.json").unlink()

        outcome = process(raw_dir, aligned_dir, "--scenes", VAL)

        assert outcome.status == 0
        assert outcome.json["raw_gone"] == [VAL]

    def test_dry_run_names_scenes_whose_raw_folder_is_gone(
        self, raw_dir: Path, aligned_dir: Path
    ) -> None:
        shutil.rmtree(raw_dir / f"scans/{VAL}")

        outcome = process(raw_dir, aligned_dir, "--dry-run")

        assert outcome.json["reasons"]["raw files are gone, so it stays as it is"] == [VAL]

    def test_scene_that_was_never_processed_fails_without_raw_files(
        self, raw_dir: Path, tmp_path: Path
    ) -> None:
        (raw_dir / f"scans/{TRAIN}/{TRAIN}_vh_clean_2.ply").unlink()

        assert process(raw_dir, tmp_path / "out").status == 3


class TestFailures:
    def test_scene_whose_raw_files_became_damaged_loses_its_old_file(
        self, raw_dir: Path, out_dir: Path
    ) -> None:
        os.truncate(raw_dir / f"scans/{VAL}/{VAL}_vh_clean_2.ply", 5_000)

        assert process(raw_dir, out_dir).status == 3

        assert not (out_dir / f"val/{VAL}.npz").exists()

    def test_old_file_of_a_failed_scene_is_reported_by_verify(
        self, raw_dir: Path, out_dir: Path, verify: Verify
    ) -> None:
        data = (out_dir / f"val/{VAL}.npz").read_bytes()
        os.truncate(raw_dir / f"scans/{VAL}/{VAL}_vh_clean_2.ply", 5_000)
        process(raw_dir, out_dir)
        (out_dir / f"val/{VAL}.npz").write_bytes(data)

        _, findings = verify(out_dir)

        assert ("error", VAL, f"val/{VAL}.npz", "is not in the manifest as a val scene") in findings


class TestLabelMap:
    def test_changed_label_map_processes_all_annotated_scenes(
        self, raw_dir: Path, aligned_dir: Path
    ) -> None:
        change_label_map(raw_dir)

        assert process(raw_dir, aligned_dir).json["made"] == [TRAIN, VAL]

    @pytest.mark.parametrize("words", [("--scenes", TRAIN), ("--splits", "test"), ("--limit", "1")])
    def test_changed_label_map_is_refused_for_some_scenes(
        self, raw_dir: Path, aligned_dir: Path, words: tuple[str, str]
    ) -> None:
        change_label_map(raw_dir)
        before = digests(aligned_dir)

        outcome = process(raw_dir, aligned_dir, *words)

        assert outcome.status == 2
        assert "the label map has changed" in outcome.stderr
        assert digests(aligned_dir) == before

    def test_changed_label_map_is_refused_while_raw_files_are_gone(
        self, raw_dir: Path, aligned_dir: Path
    ) -> None:
        change_label_map(raw_dir)
        shutil.rmtree(raw_dir / f"scans/{VAL}")

        outcome = process(raw_dir, aligned_dir)

        assert outcome.status == 2
        assert f"the raw files are gone for 1 of its scenes: {VAL}" in outcome.stderr

    def test_changed_label_map_is_found_without_a_manifest(
        self, raw_dir: Path, tmp_path: Path
    ) -> None:
        # The first scene has no groups, so that it does not depend on the label map.
        (raw_dir / f"scans/{TRAIN}/{TRAIN}.aggregation.json").unlink()
        assert process(raw_dir, tmp_path / "out", "--labels-from", "ply").status == 0
        (tmp_path / "out/manifest.json").unlink()
        change_label_map(raw_dir)

        outcome = process(raw_dir, tmp_path / "out", "--limit", "1")

        assert outcome.status == 2
        assert "the label map has changed" in outcome.stderr

    def test_dry_run_counts_the_scenes_that_depend_on_the_label_map(
        self, raw_dir: Path, aligned_dir: Path
    ) -> None:
        change_label_map(raw_dir)

        outcome = process(raw_dir, aligned_dir, "--dry-run")

        assert outcome.json["reasons"] == {
            "the label map changed": [TRAIN, VAL],
            "up to date": [TEST],
        }
        assert outcome.json["to_process"] == [TRAIN, VAL]


class TestDryRun:
    def test_dry_run_of_a_new_folder_processes_all(self, raw_dir: Path, tmp_path: Path) -> None:
        assert process(raw_dir, tmp_path / "new", "--dry-run").json["reasons"] == {
            "not processed yet": [*SCENES]
        }

    def test_dry_run_names_changed_raw_and_processed_files(
        self, raw_dir: Path, aligned_dir: Path
    ) -> None:
        os.utime(raw_dir / f"scans/{TRAIN}/{TRAIN}_vh_clean_2.ply", ns=(1, 1))
        os.utime(aligned_dir / f"val/{VAL}.npz", ns=(1, 1))
        shutil.rmtree(aligned_dir / "test")

        outcome = process(raw_dir, aligned_dir, "--dry-run")

        assert outcome.json["reasons"] == {
            "not processed yet": [TEST],
            "raw files changed": [TRAIN],
            "the processed file changed": [VAL],
        }

    def test_dry_run_of_other_options_names_them(self, raw_dir: Path, aligned_dir: Path) -> None:
        outcome = process(raw_dir, aligned_dir, "--faces", "--force", "--dry-run")

        assert outcome.json["reasons"] == {"other options, or an older format": [*SCENES]}

    def test_dry_run_shows_counts_in_words(self, raw_dir: Path, aligned_dir: Path) -> None:
        outcome = run_main("process", raw_dir, "-o", aligned_dir, "--dry-run")

        assert "no scenes would be processed" in outcome.stdout
        assert f"3: up to date ({TRAIN}, {VAL}, {TEST})" in outcome.stdout


class TestReaders:
    def test_open_dataset_refuses_a_scene_of_other_options(
        self, raw_dir: Path, aligned_dir: Path
    ) -> None:
        dataset = ScanNet(aligned_dir, split="train")
        assert process(raw_dir, aligned_dir, "--no-align-axis", "--force").status == 0

        with pytest.raises(ProcessedFileError, match="was made with --scannet200 --no-align-axis"):
            dataset[0]

    def test_open_dataset_refuses_the_counts_of_other_options(
        self, raw_dir: Path, aligned_dir: Path
    ) -> None:
        dataset = ScanNet(aligned_dir, split="train")
        assert process(raw_dir, aligned_dir, "--labels-from", "ply", "--force").status == 0

        problem = "has the options --scannet200 --align-axis --no-faces --labels-from ply"
        with pytest.raises(FileError, match=problem):
            dataset.class_counts()

    def test_scene_of_another_folder_is_refused_by_the_dataset(
        self, out_dir: Path, aligned_dir: Path
    ) -> None:
        shutil.copy(out_dir / f"train/{TRAIN}.npz", aligned_dir / f"train/{TRAIN}.npz")

        with pytest.raises(ProcessedFileError, match="expected --scannet200 --align-axis"):
            ScanNet(aligned_dir, split="train")[0]

    def test_scene_of_another_folder_is_an_error_for_verify(
        self, out_dir: Path, aligned_dir: Path, verify: Verify
    ) -> None:
        shutil.copy(out_dir / f"train/{TRAIN}.npz", aligned_dir / f"train/{TRAIN}.npz")

        status, findings = verify(aligned_dir)

        assert status == 3
        assert "was made with --no-scannet200" in findings[0][3]

    def test_folder_of_two_kinds_without_manifest_is_refused(
        self, out_dir: Path, aligned_dir: Path
    ) -> None:
        shutil.copy(out_dir / f"val/{VAL}.npz", aligned_dir / f"val/{VAL}.npz")
        (aligned_dir / "manifest.json").unlink()

        with pytest.raises(ProcessedFileError, match="was made with --no-scannet200"):
            ScanNet(aligned_dir, split="train")

    def test_folder_without_manifest_keeps_the_options_of_its_files(
        self, raw_dir: Path, aligned_dir: Path
    ) -> None:
        before = digests(aligned_dir)
        (aligned_dir / "manifest.json").unlink()

        outcome = process(raw_dir, aligned_dir)

        assert outcome.json["kept"] == [*SCENES]
        assert digests(aligned_dir) == before

    def test_archives_of_different_options_are_refused_together(
        self, out_dir: Path, aligned_dir: Path, tmp_path: Path
    ) -> None:
        paths = []
        for folder, split in ((out_dir, "train"), (aligned_dir, "val")):
            path = tmp_path / f"{split}.tar.zst"
            assert run_main("pack", folder, "-o", path, "--splits", split).status == 0
            paths.append(path)

        with pytest.raises(ValueError, match="were made with"):
            ScanNet(paths, split="train")

    def test_unpack_refuses_a_folder_of_other_options(
        self, out_dir: Path, aligned_dir: Path, tmp_path: Path
    ) -> None:
        archive = tmp_path / "a.tar.zst"
        assert run_main("pack", out_dir, "-o", archive).status == 0
        before = digests(aligned_dir)

        outcome = run_main("unpack", archive, "-o", aligned_dir)

        assert outcome.status == 1
        assert "--scannet200 --align-axis" in outcome.stderr
        assert digests(aligned_dir) == before


class TestOldFormat:
    @pytest.mark.parametrize(
        "words",
        [("process", "RAW", "-o", "OUT"), ("verify", "OUT"), ("pack", "OUT", "-o", "new.tar.zst")],
    )
    def test_old_folder_is_refused_with_the_command_to_type(
        self, raw_dir: Path, aligned_dir: Path, tmp_path: Path, words: tuple[str, ...]
    ) -> None:
        make_old(aligned_dir)
        paths = {"RAW": str(raw_dir), "OUT": str(aligned_dir)}
        arguments = [paths.get(word, word) for word in words]

        outcome = run_main(*arguments, cwd=tmp_path)

        assert outcome.status != 0
        output = outcome.stdout + outcome.stderr
        assert "has format 1, expected 2" in output
        assert f"scannet-prep process --force -o {aligned_dir}" in output

    def test_old_folder_is_refused_by_the_dataset(self, aligned_dir: Path) -> None:
        make_old(aligned_dir)

        with pytest.raises(OldFormatError, match="has format 1, expected 2"):
            ScanNet(aligned_dir, split="train")

    def test_forced_process_renews_an_old_folder_with_its_own_options(
        self, raw_dir: Path, aligned_dir: Path
    ) -> None:
        before = digests(aligned_dir)
        make_old(aligned_dir)

        outcome = process(raw_dir, aligned_dir, "--force")

        assert outcome.json["made"] == [*SCENES]
        assert digests(aligned_dir) == before

    def test_damaged_manifest_is_not_taken_for_an_old_one(self, aligned_dir: Path) -> None:
        edit_json(aligned_dir / "manifest.json", lambda value: value.update(format_version="2"))

        with pytest.raises(FileError, match="is damaged") as caught:
            ScanNet(aligned_dir, split="train")

        assert not isinstance(caught.value, OldFormatError)


def test_hint_for_a_scene_of_other_options_is_to_open_the_folder_again(
    raw_dir: Path, aligned_dir: Path
) -> None:
    dataset = ScanNet(aligned_dir, split="train")
    assert process(raw_dir, aligned_dir, "--faces", "--force").status == 0

    with pytest.raises(ProcessedFileError) as caught:
        dataset[0]

    assert "open the folder again" in caught.value.hint


class TestScenesThatShowNoOptions:
    @pytest.fixture
    def foreign_dir(self, aligned_dir: Path) -> Path:
        """A folder without manifest, whose scenes are files of another program."""
        (aligned_dir / "manifest.json").unlink()
        for path in aligned_dir.glob("*/*.npz"):
            path.write_bytes(b"of another program")
        return aligned_dir

    def test_foreign_scenes_are_not_replaced_with_the_defaults(
        self, raw_dir: Path, foreign_dir: Path
    ) -> None:
        before = digests(foreign_dir)

        assert process(raw_dir, foreign_dir).status == 2

        assert digests(foreign_dir) == before

    def test_foreign_scenes_are_replaced_with_given_options(
        self, raw_dir: Path, foreign_dir: Path
    ) -> None:
        assert process(raw_dir, foreign_dir, *README_FLAGS).status == 0

        assert options_of(foreign_dir)["align_axis"] is True

    def test_processing_a_part_of_foreign_scenes_is_refused(
        self, raw_dir: Path, foreign_dir: Path
    ) -> None:
        before = digests(foreign_dir)

        outcome = process(raw_dir, foreign_dir, *README_FLAGS, "--limit", "1")

        assert outcome.status == 2
        problem = "nothing shows the options of its scenes, but 2 of its scenes are not selected"
        assert problem in outcome.stderr
        assert digests(foreign_dir) == before


def test_hint_for_an_older_format_names_the_raw_folder(raw_dir: Path, aligned_dir: Path) -> None:
    make_old(aligned_dir)

    outcome = process(raw_dir, aligned_dir)

    assert f"scannet-prep process --force -o {aligned_dir} {raw_dir}" in outcome.stderr
