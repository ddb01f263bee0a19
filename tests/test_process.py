"""`process`: what it makes, keeps, records and refuses."""

import os
import re
import shutil
from concurrent.futures import ThreadPoolExecutor

import pytest
from commands import (
    SCENES,
    TEST,
    TRAIN,
    VAL,
    digests,
    edit_json,
    fail,
    raw_file,
    run_main,
    succeed,
    write_tree,
)

from scannet_prep import ScanNet, read_processed
from scannet_prep.base.files import Fingerprint
from scannet_prep.base.progress import Progress
from scannet_prep.errors import FileError, OutputError, UsageError
from scannet_prep.processed.manifest import read_manifest
from scannet_prep.processed.npz import encode_npz
from scannet_prep.processed.scene import ProcessOptions
from scannet_prep.release.label_map import read_label_map
from scannet_prep.stages import process as stage
from scannet_prep.stages import scene_run
from scannet_prep.synthetic import write_label_map, write_release

UNLISTED = "scene9000_00"
LABEL_MAP = "scannetv2-labels.combined.tsv"
MESH = "_vh_clean_2.ply"
FLAGS = ("--scannet200", "--align-axis")


def process(raw_dir, out_dir, *words):
    return run_main("process", raw_dir, "-o", out_dir, "--json", *words)


def check_folder(out_dir):
    """Check that each scene is the recorded one, and has the options of the folder."""
    manifest = read_manifest(out_dir)
    for scene_id, entry in manifest.scenes.items():
        path = out_dir / entry.split / f"{scene_id}.npz"
        assert Fingerprint.from_file(path) == entry.fingerprint
        assert read_processed(path).meta.options == manifest.options
    return manifest


@pytest.fixture
def aligned_dir(raw_dir, tmp_path):
    """A folder made as in README: ScanNet200, axis-aligned."""
    assert process(raw_dir, tmp_path / "aligned", *FLAGS).status == 0
    return tmp_path / "aligned"


def test_new_folder_has_scenes_manifest_and_terms_and_force_makes_them_again(raw_dir, tmp_path):
    out_dir = tmp_path / "new"
    first = process(raw_dir, out_dir)
    files = digests(out_dir)
    times = {path: path.stat().st_mtime_ns for path in out_dir.rglob("*.npz")}

    assert first.json["made"] == process(raw_dir, out_dir, "--force").json["made"] == [*SCENES]
    names = [f"test/{TEST}.npz", f"train/{TRAIN}.npz", f"val/{VAL}.npz"]
    assert sorted(files) == ["TERMS.txt", "manifest.json", *names]
    assert digests(out_dir) == files
    assert all(path.stat().st_mtime_ns > time for path, time in times.items())
    assert '"complete":true' in (out_dir / "manifest.json").read_text()


def test_scene_is_made_again_if_its_file_or_a_raw_file_changes(raw_dir, aligned_dir):
    files = digests(aligned_dir)
    train, val, test = (next(aligned_dir.glob(f"*/{name}.npz")) for name in SCENES)

    def reasons():
        return process(raw_dir, aligned_dir, "--dry-run").json["to_make"]

    assert reasons() == {}
    train.write_bytes(train.read_bytes()[:-100])
    val.unlink()
    test.write_bytes(b"".join(encode_npz(read_processed(test).arrays(), deflated=frozenset())))
    assert reasons() == {"its file was changed": [TRAIN, TEST], "its file is gone": [VAL]}
    assert process(raw_dir, aligned_dir).json["made"] == [*SCENES]
    assert digests(aligned_dir) == files
    os.utime(raw_file(raw_dir, MESH), ns=(2**61, 2**61))
    # A raw file that is older than its scene, but has another size, as from a backup.
    info = raw_file(raw_dir, ".txt", VAL)
    info.write_text(info.read_text() + "note = other\n")
    os.utime(info, ns=(1, 1))
    assert reasons() == {"its raw files were changed": [TRAIN, VAL]}
    assert process(raw_dir, aligned_dir).json["made"] == [TRAIN, VAL]
    check_folder(aligned_dir)
    # A folder without manifest is made again.
    (aligned_dir / "manifest.json").unlink()
    assert process(raw_dir, aligned_dir, *FLAGS).json["made"] == [*SCENES]


def test_folder_keeps_its_options_until_all_of_it_is_made_again(raw_dir, aligned_dir):
    before = digests(aligned_dir)
    kept = process(raw_dir, aligned_dir)
    named = process(raw_dir, aligned_dir, *FLAGS, "--no-faces", "--labels-from", "aggregation")

    assert kept.json["kept"] == named.json["kept"] == [*SCENES]
    made_with = "--scannet200 --align-axis --no-faces --labels-from aggregation"
    assert kept.json["options"].startswith(made_with)
    for line in [
        "--no-scannet200",
        "--no-align-axis",
        "--faces",
        "--labels-from=ply",
        "--compute-segments",
        f"--faces --force --scenes {TRAIN}",
        "--faces --force --splits val",
        "--faces --force --limit 1",
    ]:
        refused = fail(2, made_with, raw_dir, aligned_dir, *line.split(), run=process)
        assert "choose another output folder; or process all of this one again" in refused.stderr
    assert digests(aligned_dir) == before

    dataset = ScanNet(aligned_dir, split="train")
    os.truncate(raw_file(raw_dir, MESH, VAL), 5_000)
    changed = process(raw_dir, aligned_dir, "--faces", "--force")
    assert changed.status == 3
    assert changed.json["made"] == [TRAIN, TEST]
    assert not (aligned_dir / f"val/{VAL}.npz").exists(), "it had other options"
    manifest = check_folder(aligned_dir)
    assert [*manifest.failures] == [VAL]
    assert manifest.options.faces
    assert manifest.options.align_axis
    with pytest.raises(FileError, match="was made with --scannet200") as caught:
        dataset[0]
    assert "open the place again" in caught.value.hint


def test_other_label_map_is_refused_until_all_scenes_are_made_again(raw_dir, aligned_dir):
    path = raw_dir / LABEL_MAP
    # The same rows with other line ends, and the built-in label map, which is the same, too.
    path.write_bytes(path.read_bytes().replace(b"\r\n", b"\r\r\n"))
    assert process(raw_dir, aligned_dir).json["made"] == []
    path.unlink()
    path.symlink_to("nowhere")
    assert "is a link that leads nowhere" in process(raw_dir, aligned_dir).json["message"]
    path.unlink()
    built_in = process(raw_dir, aligned_dir)
    assert built_in.json["made"] == []
    assert "label map: the built-in label map" in built_in.stderr
    # Rows for categories of one's own are no difference from the release.
    write_label_map(raw_dir)
    whole = path.read_bytes()
    path.write_bytes(whole + b"5\tthrone\t5\n")
    aggregation = raw_file(raw_dir, ".aggregation.json")
    edit_json(aggregation, lambda value: value["segGroups"][0].update(label="throne"))
    out_dir = aligned_dir.parent / "added"
    added = succeed(raw_dir / "scans", out_dir, "--strict", run=process)
    assert added.json["notes"] == []
    scene = read_processed(out_dir / f"train/{TRAIN}.npz")
    assert set(scene.nyu40_ids[scene.instances == scene.meta.groups[0].id].tolist()) == {5}

    path.write_bytes(whole.replace(b"3\tfloor\t2", b"3\tfloor\t0"))
    folders = (raw_dir, aligned_dir)
    fail(2, f"was made with another label map than {path}", *folders, run=process)
    problem = f"{path}: differs from the label map of the release: floor"
    fail(1, f"error: {problem}", *folders, "--force", "--strict", run=process)
    forced = process(*folders, "--force")
    assert f"note: {problem}" in forced.stderr
    assert forced.json["made"] == [*SCENES]
    assert check_folder(aligned_dir).label_map == read_label_map(path).digest


@pytest.mark.parametrize("words", [(), ("--force",), ("--scenes", TRAIN, VAL)])
def test_scene_whose_raw_files_are_gone_stays(raw_dir, aligned_dir, words):
    before = digests(aligned_dir)
    shutil.rmtree(raw_dir / f"scans/{VAL}")
    raw_file(raw_dir, ".aggregation.json").unlink()

    outcome = succeed(raw_dir, aligned_dir, *words, run=process)

    gone = f"raw files are gone or cannot be used: {TRAIN}, {VAL}"
    assert f"note: kept, although their {gone}" in outcome.stderr
    assert set(outcome.json["kept"]) >= {TRAIN, VAL}
    fail(2, gone, raw_dir, aligned_dir, "--faces", "--force", run=process)
    assert digests(aligned_dir) == before

    # With their files gone, too, they fail; nothing else is lost.
    for split in ("train", "val"):
        shutil.rmtree(aligned_dir / split)
    failures = process(raw_dir, aligned_dir).json["failures"]
    assert [failure["scene_id"] for failure in failures] == [TRAIN, VAL]
    assert {failure["error"] for failure in failures} == {"MissingFileError"}
    assert check_folder(aligned_dir).scenes.keys() == {TEST}


def test_scenes_stay_while_the_disk_that_their_raw_files_are_linked_to_is_away(
    raw_dir, aligned_dir, tmp_path
):
    before = digests(aligned_dir)
    folder = raw_dir / f"scans/{VAL}"
    mesh = raw_file(raw_dir, MESH)
    for path in (folder, mesh):
        path.rename(tmp_path / path.name)
        path.symlink_to("nowhere")

    outcome = process(raw_dir, aligned_dir)

    assert outcome.status == 3
    assert len(outcome.json["failures"]) == 1
    assert "although not in" not in outcome.stderr
    # Errors come before notes, of which there may be many.
    assert f"error: {folder}: " in outcome.stderr.partition("note: ")[0]
    problem = f"raw files are gone or cannot be used: {TRAIN}, {VAL}"
    fail(2, problem, raw_dir, aligned_dir, "--faces", "--force", run=process)
    # The failure is recorded, and nothing else changes.
    assert check_folder(aligned_dir).failures.keys() == {VAL}
    (aligned_dir / "failed.txt").unlink()
    assert digests(aligned_dir) | {"manifest.json": before["manifest.json"]} == before


def test_files_stay_if_the_raw_files_vanish_during_a_forced_run(raw_dir, out_dir):
    before = digests(out_dir)
    plan = stage.plan(raw_dir, out_dir, is_forced=True)
    shutil.rmtree(raw_dir)

    with ThreadPoolExecutor(1) as executor:
        report = stage.run(plan, executor=executor)

    assert {failure.error for failure in report.failures} == {"MissingFileError"}
    assert digests(out_dir / "val") == {f"{VAL}.npz": before[f"val/{VAL}.npz"]}


def test_temporary_files_of_killed_runs_are_removed_but_not_those_of_other_programs(
    raw_dir, out_dir
):
    lost, foreign = (out_dir / name / ".a.npz.1-0123abcd.tmp" for name in ("val", "mine"))
    foreign.parent.mkdir()
    for path in (lost, foreign):
        path.touch()

    process(raw_dir, out_dir)

    assert not lost.exists()
    assert foreign.exists()


def test_scene_that_lies_twice_keeps_its_file_and_is_listed_until_it_lies_once(raw_dir, out_dir):
    before = digests(out_dir)
    copy = raw_dir / f"copies/{VAL}"
    list_path = out_dir / "failed.txt"
    shutil.copytree(raw_dir / f"scans/{VAL}", copy)

    outcome = process(raw_dir, out_dir)

    assert outcome.status == 3
    (failure,) = outcome.json["failures"]
    assert failure["scene_id"] == VAL
    assert "each has a mesh; move one away" in failure["message"]
    assert outcome.json["kept"] == [TRAIN, TEST]
    assert list_path.read_text().endswith(f"\n{VAL}\n")
    assert process(raw_dir, out_dir, "--scenes", TRAIN).status == 0
    assert list_path.exists()

    shutil.rmtree(copy)
    again = succeed(raw_dir, out_dir, "--scenes", f"@{list_path}", run=process)
    assert again.json["kept"] == [VAL]
    assert again.json["notes"] == []
    assert not list_path.exists()
    assert digests(out_dir) == before


def test_scenes_that_fail_lose_their_old_files_and_are_remembered_until_they_are_made(
    raw_dir, out_dir
):
    before = digests(out_dir)
    path = raw_file(raw_dir, MESH, VAL)
    whole = path.read_bytes()
    path.write_bytes(whole[:-500])
    link = raw_dir / "scans/scene0002_00"
    link.symlink_to("nowhere")

    failed = process(raw_dir, out_dir, "--force")
    manifest = check_folder(out_dir)

    assert failed.status == 3
    messages = [(failure["path"], failure["message"]) for failure in failed.json["failures"]]
    assert [name for name, _ in messages] == [str(link), str(path)]
    assert "a link that leads nowhere" in messages[0][1]
    assert f"({len(whole) - 500:,} bytes): " in messages[1][1]
    assert [*manifest.failures] == ["scene0002_00", VAL]
    assert [*manifest.scenes, *manifest.unfinished] == [TRAIN, TEST]
    assert not (out_dir / f"val/{VAL}.npz").exists(), "its raw file was whole then"
    # A run for other scenes remembers the failures.
    assert process(raw_dir, out_dir, "--scenes", TRAIN).status == 0
    assert [*read_manifest(out_dir).failures] == ["scene0002_00", VAL]

    path.write_bytes(whole)
    link.unlink()
    assert process(raw_dir, out_dir, "--scenes", VAL).json["made"] == [VAL]
    assert [*read_manifest(out_dir).failures] == ["scene0002_00"]
    assert process(raw_dir, out_dir).json["made"] == []
    assert not (out_dir / "failed.txt").exists()
    assert digests(out_dir) == before


def test_pipe_in_place_of_a_scene_fails_it_once_without_waiting_for_a_writer(raw_dir, out_dir):
    path = out_dir / f"val/{VAL}.npz"
    path.unlink()
    os.mkfifo(path)

    (failure,) = process(raw_dir, out_dir).json["failures"]
    assert failure["path"] == str(path)
    assert "is not a regular file" in failure["message"]
    assert process(raw_dir, out_dir).json["made"] == [VAL]


@pytest.mark.parametrize("name", [VAL, "room"])
@pytest.mark.parametrize("mode", [0o000, 0o100, 0o400])
def test_scene_folder_without_permission_fails_one_scene(raw_dir, out_dir, name, mode):
    folder = raw_dir / f"scans/{name}"
    folder.mkdir(exist_ok=True)
    folder.chmod(mode)
    if os.access(folder, os.R_OK | os.X_OK):
        pytest.skip("this user may read everything")

    for words in (("process", raw_dir, "-o", out_dir), ("verify", raw_dir)):
        outcome = run_main(*words, "--json")
        assert outcome.status == 3
        assert name in outcome.stdout
        assert "Permission denied" in outcome.stdout
    assert name in run_main("info", raw_dir, "--json").json["scene_ids"]


def test_failure_with_undecodable_path_is_recorded_in_manifest(raw_dir, tmp_path):
    raw_dir = raw_dir.rename(tmp_path / os.fsdecode(b"raw\xe9"))
    raw_file(raw_dir, MESH).write_bytes(b"ply\n")
    # It fails, too, but there is no scene to make again.
    write_tree(raw_dir, {f"scans/scene00_00/scene00_00{MESH}": b""})

    assert process(raw_dir, tmp_path / "out").status == 3

    failures = read_manifest(tmp_path / "out").failures
    assert failures.keys() == {TRAIN}
    assert "udce9" in str(failures)


def test_scenes_without_data_that_all_have_fail(raw_dir, tmp_path):
    raw_file(raw_dir, ".txt").write_text("sceneType = Office\n")
    raw_file(raw_dir, ".aggregation.json", VAL).write_text('{"segGroups": []}')

    outcome = process(raw_dir, tmp_path / "out")

    assert outcome.status == 3
    for failure, fault in zip(
        outcome.json["failures"], ("has no axisAlignment", "segGroups is empty"), strict=True
    ):
        assert fault in failure["message"]
        assert "download" in failure["hint"]


def test_doubts_about_labels_are_warnings_or_errors_of_a_strict_run(raw_dir, out_dir):
    groups = [
        {"id": 90, "label": "trashcan", "segments": []},
        {"id": 91, "label": "trashcan", "segments": [0]},
    ]
    path = raw_file(raw_dir, ".aggregation.json")
    edit_json(path, lambda value: value["segGroups"].extend(groups))

    # Kept scenes count, too.
    for _ in range(2):
        outcome = process(raw_dir, out_dir)
        assert outcome.status == 0
        note = outcome.json["notes"][0]
        assert "raw category 'trashcan' (did you mean 'trash can'?) is not in" in note["message"]
        assert f"groups left unlabeled: 2 ({TRAIN})" in note["message"]
    for _ in range(2):
        outcome = process(raw_dir, out_dir, "--strict")
        assert outcome.status == 3
        (failure,) = outcome.json["failures"]
        assert failure["scene_id"] == TRAIN
        assert "raw category 'trashcan'" in failure["message"]


def test_dry_run_shows_the_selected_scenes_whose_files_are_there(raw_dir, tmp_path):
    (tmp_path / "list.txt").write_text(f"# a comment\n{VAL}  # another\n\n")
    raw_file(raw_dir, MESH, TEST).unlink()
    lines = {
        "": (TRAIN, VAL),
        f"--scenes {TRAIN} --scenes @list.txt": (TRAIN, VAL),
        "--limit 1": (TRAIN,),
    }
    for line, chosen in lines.items():
        words = ("process", raw_dir, "-o", "new", "--dry-run", *line.split())
        text = run_main(*words, cwd=tmp_path).stdout
        assert f"{len(chosen)}: not made yet ({', '.join(chosen)})" in text


def test_scene_of_no_official_list_is_in_the_last_chosen_split_only(raw_dir, tmp_path):
    out_dir = tmp_path / "new"
    write_release(raw_dir, [UNLISTED], vertices=600)

    problem = f"{UNLISTED}: is in none of the official split lists"
    words = (raw_dir, out_dir, "--scenes", UNLISTED, "--splits", "train", "val")
    fail(3, problem, *words, run=process)
    for split, other in (("train", "val"), ("val", "test")):
        outcome = process(raw_dir, out_dir, "--scenes", UNLISTED, "--splits", split)
        assert outcome.json["made"] == [UNLISTED]
        # A run for other scenes leaves it in its split.
        assert process(raw_dir, out_dir, "--splits", other).status == 0
        assert [path.parent.name for path in out_dir.rglob(f"{UNLISTED}.npz")] == [split]
        assert check_folder(out_dir).scenes[UNLISTED].split == split
        # A file in the folder of another split does not count.
        shutil.copytree(out_dir / split, out_dir / other, dirs_exist_ok=True)


@pytest.mark.parametrize(
    ("words", "status", "message"),
    [
        (["RAW", "--scenes", TEST, "--splits", "train"], 2, f"{TEST} is in the split test"),
        (["RAW", "--scenes", "scene0900_00"], 2, "has no scene scene0900_00"),
        (["RAW", "--scenes", "list.txt"], 2, "write @FILE for a file"),
        (["RAW/scans_test", "--splits", "val"], 2, "has no scenes of val"),
        (["RAW", "-o", "RAW/scans/.."], 2, "the raw tree, expected a folder for processed"),
        (["RAW", "-o", "list.txt"], 2, "list.txt: is a file, an export or the raw tree"),
        (["RAW", "-o", ""], 2, "'' is empty, expected a path"),
        ([], 1, "error: data/ScanNet: no such folder\nhint: "),
    ],
)
def test_command_that_cannot_be_carried_out_is_refused(raw_dir, tmp_path, words, status, message):
    (tmp_path / "list.txt").write_text(TRAIN)
    before = digests(tmp_path)

    words = [word.replace("RAW", str(raw_dir)) for word in words]
    fail(status, message, "process", *words, cwd=tmp_path)
    assert digests(tmp_path).keys() == before.keys()


class Stop(Progress):
    """Interrupts a run after its first scene, and keeps the manifest that a kill would leave."""

    def __init__(self, out_dir):
        self.path = out_dir / "manifest.json"

    def advance(self, count=1):
        if count:
            self.manifest = self.path.read_bytes()
            raise KeyboardInterrupt


@pytest.mark.parametrize(("is_killed", "interval_s"), [(False, 5), (True, 5), (True, 0)])
def test_run_that_stopped_is_unfinished_until_the_same_command_continues_it_with_its_options(
    raw_dir, out_dir, monkeypatch, is_killed, interval_s
):
    # How often the manifest is written, of which a kill leaves the last.
    monkeypatch.setattr(scene_run, "_SAVE_INTERVAL_S", interval_s)
    stop = Stop(out_dir)
    plan = stage.plan(raw_dir, out_dir, {"faces": True}, is_forced=True)
    assert plan.needed_bytes == 0
    with pytest.raises(KeyboardInterrupt), ThreadPoolExecutor(1) as executor:
        stage.run(plan, executor=executor, progress=stop)
    assert b'"complete":false' in stop.manifest
    if is_killed:
        stop.path.write_bytes(stop.manifest)
    else:
        assert [*check_folder(out_dir).scenes] == [TRAIN]

    # A run for other scenes leaves it unfinished.
    assert process(raw_dir, out_dir, "--scenes", VAL).status == 0
    missing = 2 if is_killed and interval_s else 1
    with pytest.raises(FileError, match=f"has not finished; missing scenes: {missing}"):
        ScanNet(out_dir, split="train")
    assert len(process(raw_dir, out_dir).json["made"]) == missing
    manifest = check_folder(out_dir)
    assert manifest.options.faces
    assert [*manifest.scenes] == [*SCENES]


def test_unfinished_scene_whose_raw_files_are_gone_fails_and_is_no_longer_unfinished(
    raw_dir, out_dir
):
    edit_json(out_dir / "manifest.json", lambda value: value.update(scenes={}, unfinished=[TEST]))
    raw_file(raw_dir, MESH, TEST).unlink()

    assert process(raw_dir, out_dir, "--scenes", TEST).status == 3
    assert read_manifest(out_dir).unfinished == ()


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        ({"faces": 1}, "Expected `bool`, got `int` - at `$.faces`"),
        ({"labels_from": "mesh"}, "Invalid enum value 'mesh' - at `$.labels_from`"),
        (ProcessOptions(labels_from="mesh"), "Invalid enum value 'mesh' - at `$.labels_from`"),
        ({"align": True}, "unexpected keyword argument 'align'"),
    ],
)
def test_options_that_no_folder_can_have_are_refused(raw_dir, tmp_path, options, problem):
    with pytest.raises(UsageError, match=re.escape(problem)):
        stage.plan(raw_dir, tmp_path / "out", options)


def test_plan_of_a_folder_that_another_run_has_changed_is_refused(raw_dir, out_dir):
    plan = stage.plan(raw_dir, out_dir)
    process(raw_dir, out_dir, "--align-axis", "--force")
    before = digests(out_dir)

    with pytest.raises(OutputError, match="another run has changed it"):
        stage.run(plan)

    assert digests(out_dir) == before


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ('"vertices":600', '"vertices":601'),
        ('"split":"train"', '"split":["train"]'),
        ('"nyu40_counts":{"0":', '"nyu40_counts":{"0":1'),
        ('"scannet_counts":{"0":', '"scannet_counts":{"0":1'),
        ('"crc32":"', '"crc32":"-'),
        ('"scene0000_00":', '"../scene0000_00":'),
        ('"failures":{', '"failures":{"scene0001_00":{"error":[]}'),
        ('"format_version":2', '"format_version":3'),
        ('"format":"scannet_prep processed folder"', '"format":"other"'),
    ],
)
def test_manifest_with_a_wrong_value_is_damaged(out_dir, raw_dir, old, new):
    path = out_dir / "manifest.json"
    text = path.read_text()
    assert old in text
    path.write_text(text.replace(old, new, 1))

    with pytest.raises(FileError, match=r"manifest.json: is damaged"):
        ScanNet(out_dir, split="train")
    assert process(raw_dir, out_dir).status == 1
