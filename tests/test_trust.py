"""Nothing on disk is believed: damage is an error of its scene, never a wrong result, a hang or the end of a run."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import tiny
from commands import digests, start_command
from tiny import Ply, aggregation_file, info_file, process_tiny, write_tiny

from scannet_prep.errors import (
    AnnotationError,
    FileError,
    LockedError,
    ManifestError,
    MeshError,
    MissingFileError,
    ProcessedFileError,
    SegmentsError,
)
from scannet_prep.files import read_file, run_lock
from scannet_prep.labels import builtin_label_map, find_label_map, read_label_map
from scannet_prep.processed.manifest import parse_manifest, read_manifest
from scannet_prep.processed.npz import NpzReader
from scannet_prep.processed.options import ProcessOptions
from scannet_prep.processed.scene import check_identity, encode_processed, parse_processed
from scannet_prep.processed.state import find_state
from scannet_prep.raw.mesh import MAX_UNMAPPED_BYTES, read_mesh
from scannet_prep.raw.segments import parse_segments
from scannet_prep.release import KINDS
from scannet_prep.scene import SceneId, Split
from scannet_prep.scene_warnings import SceneWarning, WarningKind, summarize_warnings
from scannet_prep.stages.process import ProcessReport, plan, run
from scannet_prep.stages.process.make_scene import find_raw_files, process_scene
from scannet_prep.stages.selection import Selection

TRAIN, OTHER, UNLISTED = tiny.SCENE_ID, "scene0001_00", "scene9000_00"
MESH, SEGMENTS, AGGREGATION, INFO = "_vh_clean_2.ply", "_vh_clean_2.0.010000.segs.json", ".aggregation.json", ".txt"
PATH = Path("train/scene0000_00.npz")


def process(folder: Path, *, splits: tuple[Split, ...] = (), align_axis: bool = False, **options: Any) -> ProcessReport:
    """Process `folder/raw` into `folder/out`."""
    chosen = ProcessOptions(align_axis=align_axis)
    return run(plan(folder / "raw", folder / "out", chosen, selection=Selection(splits), **options))


def write_two(folder: Path) -> None:
    write_tiny(folder / "raw")
    write_tiny(folder / "raw", {AGGREGATION: aggregation_file(scene_id=OTHER)}, OTHER)


def encode(folder: Path) -> bytes:
    return b"".join(encode_processed(process_tiny(folder)))


def flip(data: bytes, bit: int) -> bytes:
    return data[: bit // 8] + bytes([data[bit // 8] ^ 1 << bit % 8]) + data[bit // 8 + 1 :]


# Processed scenes


def test_a_flipped_bit_in_any_name_of_a_directory_is_refused(tmp_path: Path) -> None:
    data = encode(tmp_path)
    for start in (data.index(b"segments.npy"), data.rindex(b"segments.npy")):
        for bit in range(8 * start, 8 * (start + len("segments.npy"))):
            with pytest.raises(ProcessedFileError):
                parse_processed(flip(data, bit), PATH)


def test_a_scene_under_another_name_or_of_another_size_is_told_from_the_one_that_is_meant(tmp_path: Path) -> None:
    reader = NpzReader(encode(tmp_path), PATH)
    check_identity(reader, PATH, TRAIN, 6)
    with pytest.raises(ProcessedFileError, match=r"holds 'scene0000_00', expected scene0001_00"):
        check_identity(reader, PATH, OTHER, 6)
    with pytest.raises(ProcessedFileError, match=r"points of shape \(6, 3\), expected \(7, 3\)"):
        check_identity(reader, PATH, TRAIN, 7)


@pytest.mark.parametrize("has_manifest", [True, False])
def test_every_damaged_file_is_made_again_also_where_numpy_still_reads_it(tmp_path: Path, has_manifest: bool) -> None:
    write_tiny(tmp_path / "raw")
    process(tmp_path)
    path = tmp_path / "out/train/scene0000_00.npz"
    whole = path.read_bytes()
    padding = whole.index(b"\x35\xd9") + 6  # zeros that nobody reads
    for bit in (8 * padding, 8 * whole.rindex(b"PK\x01\x02") + 40, 8 * whole.index(b"points.npy"), 8 * len(whole) - 30):
        path.write_bytes(flip(whole, bit))
        if not has_manifest:
            (tmp_path / "out/manifest.json").unlink()
        assert process(tmp_path).made == (TRAIN,)
        assert path.read_bytes() == whole


def test_an_orphaned_worker_renames_nothing(tmp_path: Path) -> None:
    program = (
        "import os, sys, time; from pathlib import Path; from scannet_prep.files import write_atomically\n"
        "leader = os.getpid()\n"
        "if os.fork(): time.sleep(0.2); os.kill(leader, 9)\n"
        "try: write_atomically(Path(sys.argv[1]), (time.sleep(0.6) or b'late' for _ in '1'), run_pid=leader)\n"
        "except Exception as error: Path(sys.argv[1] + '.error').write_text(str(error))\n"
    )
    subprocess.run([sys.executable, "-c", program, tmp_path / "file"], check=False)
    deadline = time.monotonic() + 20
    while not (tmp_path / "file.error").exists() and time.monotonic() < deadline:
        time.sleep(0.05)
    assert "the run that it was made for has ended" in (tmp_path / "file.error").read_text()
    assert [path.name for path in tmp_path.iterdir()] == ["file.error"]


# Raw scenes


@pytest.mark.parametrize(
    ("files", "file", "problem"),
    [
        ({INFO: info_file().replace(b"axisAlignment", b"axisAlignmenu")}, INFO, "has no axisAlignment"),
        ({AGGREGATION: aggregation_file([])}, AGGREGATION, "segGroups is empty"),
        ({MESH: Ply().encode().replace(b"element face", b"element fade")}, MESH, "the mesh has no faces"),
    ],
)
def test_what_every_annotated_scene_has_may_be_missing_only_where_that_is_allowed(
    tmp_path: Path, files: dict[str, bytes | None], file: str, problem: str
) -> None:
    write_tiny(tmp_path / "raw", files)
    for _ in range(2):
        (failure,) = process(tmp_path, align_axis=True).failures
        assert f"{TRAIN}{file}: " in failure.message
        assert problem in failure.message
    report = process(tmp_path, align_axis=True, is_lenient=True)
    assert (report.made, report.failures) == ((TRAIN,), ())
    assert problem in report.warnings[0].text
    assert process(tmp_path, align_axis=True).failures  # an up-to-date file does not excuse it


def test_metadata_in_utf16_is_not_taken_for_metadata_without_alignment(tmp_path: Path) -> None:
    for text in (info_file().decode().encode("utf-16"), info_file().decode().encode("utf-16-le")):
        write_tiny(tmp_path / f"{len(text)}", {INFO: text})
        with pytest.raises(FileError, match="is not text"):
            process_tiny(tmp_path / f"{len(text)}x", {INFO: text})


def test_metadata_is_needed_only_where_points_are_aligned(tmp_path: Path) -> None:
    scene = process_tiny(tmp_path / "a", {INFO: None})
    assert scene.meta.warnings == (SceneWarning(WarningKind.NO_INFO),)
    with pytest.raises(MissingFileError, match=r"scene0000_00\.txt: no such file"):
        process_tiny(tmp_path / "b", {INFO: None}, align_axis=True)


MAKERS: dict[str, Callable[[Path], None]] = {
    "is a link that leads nowhere": lambda path: path.symlink_to("nowhere"),
    "cannot be looked at: Too many levels of symbolic links": lambda path: path.symlink_to(path.name),
    "is a named pipe": os.mkfifo,
    "is a file": Path.touch,
}


@pytest.mark.parametrize("problem", MAKERS)
def test_a_scene_that_is_not_a_folder_is_a_failure_with_its_name(tmp_path: Path, problem: str) -> None:
    write_tiny(tmp_path / "raw")
    MAKERS[problem](tmp_path / "raw/scans" / OTHER)
    report = process(tmp_path)
    assert report.made == (TRAIN,)
    assert [(item.scene_id, f"{OTHER}: {problem}" in item.message) for item in report.failures] == [(OTHER, True)]


@pytest.mark.parametrize("suffix", [MESH, SEGMENTS, AGGREGATION, INFO])
@pytest.mark.parametrize("kind", ["pipe", "device", "folder"])
def test_what_is_not_a_regular_file_is_a_failure_at_once(tmp_path: Path, suffix: str, kind: str) -> None:
    scene = write_tiny(tmp_path, {suffix: None})
    make = {"pipe": os.mkfifo, "device": lambda path: path.symlink_to("/dev/zero"), "folder": Path.mkdir}[kind]
    make(scene.path(KINDS[suffix]))
    files = find_raw_files(scene, Split.TRAIN, ProcessOptions())
    with pytest.raises(FileError, match=rf"{suffix}: is a (named pipe|device|folder), expected a file"):
        process_scene(files, ProcessOptions(), builtin_label_map())


def test_a_file_beyond_the_size_of_its_kind_is_refused_before_it_is_read(tmp_path: Path) -> None:
    with (tmp_path / "huge").open("wb") as file:
        file.truncate(1 << 40)
    with pytest.raises(FileError, match=r"has 1,099,511,627,776 bytes, expected at most 1,000"):
        read_file(tmp_path / "huge", 1000)


def test_a_folder_under_the_name_of_a_scene_costs_only_that_scene(tmp_path: Path) -> None:
    write_two(tmp_path)
    (tmp_path / "out/train/scene0000_00.npz").mkdir(parents=True)
    for is_forced in (False, True):
        report = process(tmp_path, is_forced=is_forced)
        assert [item.scene_id for item in report.failures] == [TRAIN]
        assert "is a folder, so that no file can be written there" in report.failures[0].message


def test_a_label_map_that_is_a_link_to_nothing_is_not_passed_over(tmp_path: Path) -> None:
    (tmp_path / "scannetv2-labels.combined.tsv").symlink_to("nowhere")
    path = find_label_map(tmp_path)
    assert path is not None
    with pytest.raises(MissingFileError, match="is a link that leads nowhere"):
        read_label_map(path)


@pytest.mark.parametrize("ids", ["[00,1]", "[0,01]", "[1,007]", "[0,1,00]"])
def test_numbers_with_leading_zeros_are_refused_as_every_json_parser_does(ids: str) -> None:
    with pytest.raises(SegmentsError, match="is not JSON"):
        parse_segments(f'{{"segIndices": {ids}}}'.encode(), PATH)


@pytest.mark.parametrize(
    ("data", "problem"),
    [
        (Ply().encode().replace(b"end_header\n", b"end_headerX\n"), "has no line end_header in"),
        (Ply(format="ascii").encode().replace(b"\n3 0 1 2", b"\n-3 0 1 2"), "is damaged|is not a triangle"),
        (Ply(count_type="char").encode().replace(b"\x03\0\0\0\0\1", b"\xfd\0\0\0\0\1"), "face 0 is not a triangle"),
        (Ply(comments=("comment " + "x" * 70_000,)).encode(), "has no line end_header in its first 65,536 bytes"),
        (b"ply\nformat binary_little_endian 1.0\nelement vertex 5\nend_header\n", "without any property"),
        (
            Ply().encode().replace(b"end_header", b"property list uchar int vertex_index\nend_header"),
            "has two lists of faces",
        ),
        (Ply(format="ascii", tail=b" " * MAX_UNMAPPED_BYTES).encode(), "PLY file of text .* at most 10,000,000"),
        (Ply(vertex_list="near", tail=b" " * MAX_UNMAPPED_BYTES).encode(), "lists other than .* at most 10,000,000"),
    ],
    ids=lambda value: str(value)[:30],
)  # fmt: skip
def test_meshes_that_a_lax_reader_would_take_or_choke_on_are_refused(tmp_path: Path, data: bytes, problem: str) -> None:
    (tmp_path / "a.ply").write_bytes(data)
    with pytest.raises(MeshError, match=problem):
        read_mesh(tmp_path / "a.ply")


def test_an_absurdly_long_category_and_too_many_groups_name_the_file(tmp_path: Path) -> None:
    with pytest.raises(FileError, match=r"aggregation\.json: segGroups\[0\]\.label has 100,000 characters"):
        process_tiny(tmp_path / "a", {AGGREGATION: aggregation_file([tiny.group(0, [0], "x" * 100_000)])})
    groups = [tiny.group(number, [number], "chair") for number in range(32_768)]
    with pytest.raises(AnnotationError, match=r"scene0000_00\.aggregation\.json: has 32,768 groups"):
        process_tiny(tmp_path / "b", {AGGREGATION: aggregation_file(groups)})


def test_strict_doubts_name_the_file(tmp_path: Path) -> None:
    write_tiny(tmp_path / "raw", {AGGREGATION: aggregation_file([tiny.group(0, [0], "trashcan")])})
    (failure,) = process(tmp_path, is_strict=True).failures
    assert f"{TRAIN}.aggregation.json: raw category 'trashcan'" in failure.message


# The folder


def test_one_answer_says_whether_a_folder_is_usable(tmp_path: Path) -> None:
    write_two(tmp_path)
    process(tmp_path)
    out_dir = tmp_path / "out"
    state = find_state(out_dir)
    assert state.fault is None
    assert {name: (item.split, item.vertex_count) for name, item in state.scenes.items()} == {
        TRAIN: ("train", 6), OTHER: ("train", 6),
    }  # fmt: skip
    (out_dir / "unfinished.txt").touch()
    assert "unfinished.txt: says that processing has not finished" in str(find_state(out_dir).fault)
    (out_dir / "unfinished.txt").unlink()
    (out_dir / "manifest.json").write_text((out_dir / "manifest.json").read_text().replace("true,", "false,", 1))
    assert "manifest.json: says that processing has not finished" in str(find_state(out_dir).fault)
    (out_dir / "manifest.json").unlink()
    assert find_state(out_dir).fault is None
    assert find_state(out_dir).scenes == state.scenes
    process(tmp_path, align_axis=True, splits=(Split.TRAIN,))
    (out_dir / "manifest.json").unlink()
    path = out_dir / f"train/{TRAIN}.npz"
    path.write_bytes(b"".join(encode_processed(process_tiny(tmp_path / "other"))))
    assert "made with different options" in str(find_state(out_dir).fault)
    path.rename(out_dir / f"train/{OTHER}.npz")
    assert "holds 'scene0000_00', expected scene0001_00" in str(find_state(out_dir).fault)


def test_what_an_interrupted_run_left_is_not_taken_for_what_the_manifest_says(tmp_path: Path) -> None:
    write_two(tmp_path)
    process(tmp_path)
    other = process_tiny(tmp_path / "other", scene_id=OTHER, align_axis=True)
    (tmp_path / f"out/train/{OTHER}.npz").write_bytes(b"".join(encode_processed(other)))
    (tmp_path / "out/unfinished.txt").touch()
    run(plan(tmp_path / "raw", tmp_path / "out", ProcessOptions(), selection=Selection(scene_ids=(SceneId(TRAIN),))))
    assert "made with different options" in str(find_state(tmp_path / "out").fault)


def test_a_scene_put_into_another_split_leaves_the_first_one(tmp_path: Path) -> None:
    write_tiny(tmp_path / "raw", scene_id=UNLISTED)
    for split in (Split.TRAIN, Split.VAL):
        assert process(tmp_path, splits=(split,)).made == (UNLISTED,)
        assert [path.parent.name for path in (tmp_path / "out").rglob("scene*.npz")] == [split]
    manifest = read_manifest(tmp_path / "out")
    assert manifest is not None
    assert manifest.scenes[UNLISTED].split is Split.VAL
    assert (tmp_path / "out/scannetv2_train_npz.txt").read_text() == ""


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ('"complete": true', '"complete": "false"'),
        ('"vertices": 6', '"vertices": 0'),
        ('"vertices": 6', f'"vertices": {10**30}'),
        ('"vertices": 6', '"vertices": Infinity'),
        ('"vertices": 6', '"vertices": true'),
        ('"split": "train"', '"split": ["train"]'),
        ('"scannet200": false', '"scannet200": 0'),
        ('"nyu40_counts": {"', '"nyu40_counts": {"x'),
        ('"crc32": "', '"crc32": "-'),
        ('"scene0000_00": ', '"../scene0000_00": '),
        ('"failures": {}', '"failures": {"scene0001_00": {"error": []}}'),
        ('"format_version": 1', '"format_version": 1.0'),
    ],
)
def test_a_manifest_with_a_value_of_another_kind_is_damaged_and_process_rebuilds_it(
    tmp_path: Path, old: str, new: str
) -> None:
    write_tiny(tmp_path / "raw")
    process(tmp_path)
    path = tmp_path / "out/manifest.json"
    text = path.read_text()
    assert text.count(old) >= 1
    with pytest.raises(ManifestError, match="is damaged"):
        parse_manifest(text.replace(old, new, 1).encode(), path)
    if new in ('"complete": "false"', '"vertices": 0'):
        path.write_text(text.replace(old, new, 1))
        assert process(tmp_path).kept == (TRAIN,)
        assert path.read_text() == text


def test_a_second_run_in_the_same_folder_says_who_is_at_work_and_a_killed_one_holds_no_lock(tmp_path: Path) -> None:
    write_tiny(tmp_path / "raw")
    (tmp_path / "out").mkdir()
    with run_lock(tmp_path / "out"), pytest.raises(LockedError, match=rf"process {os.getpid()} on .*, started 20"):
        process(tmp_path)
    child = start_command("process", tmp_path / "raw", "-o", tmp_path / "out", "-q")
    while not (tmp_path / "out/.scannet-prep.lock").exists() and child.poll() is None:
        time.sleep(0.001)
    child.send_signal(signal.SIGKILL)
    child.communicate()
    process(tmp_path)
    assert ".scannet-prep.lock" not in digests(tmp_path / "out")


def test_a_run_that_changes_nothing_writes_nothing_and_starts_no_worker(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_two(tmp_path)
    process(tmp_path)

    def refuse(*_arguments: object, **_options: object) -> None:
        raise AssertionError("nothing is to be done")

    monkeypatch.setattr("scannet_prep.files.write_atomically", refuse)
    monkeypatch.setattr("scannet_prep.stages.pool.subprocess.Popen", refuse)
    assert process(tmp_path).kept == (TRAIN, OTHER)


def test_a_file_of_another_inode_or_time_is_read_again_and_kept(tmp_path: Path) -> None:
    write_two(tmp_path)
    process(tmp_path)
    path = tmp_path / f"out/train/{TRAIN}.npz"
    os.utime(path, ns=(1, 1))
    os.utime(tmp_path / f"raw/scans/{OTHER}/{OTHER}.txt", ns=(1, 1))
    before = digests(tmp_path / "out")
    assert process(tmp_path).kept == (TRAIN, OTHER)
    assert digests(tmp_path / "out") == before
    assert path.stat().st_mtime_ns == 1


def test_what_one_warning_says_of_very_many_scenes_is_summed_up_in_one_pass() -> None:
    warning = SceneWarning(WarningKind.NO_FACES)
    (summary,) = summarize_warnings((f"scene{number}", warning) for number in range(100_000))
    assert (summary.count, len(summary.scenes)) == (100_000, 100_000)
