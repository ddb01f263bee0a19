"""Several runs that share a job without locks: who does what, what they leave, and what becomes of it."""

import os
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from commands import digests, run_main, start_command
from downloads import fetched, words
from hypothesis import given, settings
from hypothesis import strategies as st
from launches import LAUNCHES
from release_server import ReleaseServer, Status, at

from scannet_prep import ScanNet, official_scenes
from scannet_prep.errors import ManifestError, OutputError, ScanNetPrepError, UsageError
from scannet_prep.processed.manifest import shards_of
from scannet_prep.processed.scene import ProcessOptions
from scannet_prep.raw import lock
from scannet_prep.release import BASE_URL
from scannet_prep.scene import Split
from scannet_prep.shards import Shard, ShardFolder
from scannet_prep.stages import download, export, process
from scannet_prep.stages.selection import Selection
from scannet_prep.synthetic import write_release

SCENES = [*official_scenes(Split.TRAIN)[:5], *official_scenes(Split.VAL)[:2], *official_scenes(Split.TEST)[:1]]


@pytest.fixture(scope="module")
def raw(tmp_path_factory: pytest.TempPathFactory) -> Path:
    raw_dir = tmp_path_factory.mktemp("shards") / "raw"
    write_release(raw_dir, SCENES, vertices=500)
    return raw_dir


@pytest.fixture(scope="module")
def expected(raw: Path) -> Path:
    """What one run makes of all."""
    make(raw, raw.parent / "expected")
    return raw.parent / "expected"


def make(raw_dir: Path, out_dir: Path, shard: str = "", *splits: Split, **options: bool) -> process.ProcessReport:
    """Run one shard, or all, in a thread of this process."""
    chosen, part = Selection(splits), Shard.parse(shard) if shard else None
    plan = process.plan(raw_dir, out_dir, ProcessOptions(**options), selection=chosen, shard=part)
    with ThreadPoolExecutor(1) as executor:
        return process.run(plan, executor=executor)


def times(folder: Path) -> dict[Path, int]:
    return {path: path.stat().st_mtime_ns for path in folder.rglob("*") if path.is_file()}


@settings(max_examples=25)
@given(st.lists(st.integers(0, 1 << 40), max_size=60), st.integers(1, 20))
def test_every_scene_falls_to_one_shard_and_shards_are_of_equal_size(numbers: list[int], count: int) -> None:
    sizes = {str(place): number for place, number in enumerate(numbers)}
    shards = [Shard(index, count).choose(sizes) for index in range(count)]
    assert sorted(name for chosen in shards for name in chosen) == sorted(sizes)
    backwards = dict(reversed(sizes.items()))
    assert [Shard(index, count).choose(backwards) for index in range(count)] == shards
    loads = [sum(sizes[name] for name in chosen) for chosen in shards]
    assert max(loads) - min(loads) <= max(sizes.values(), default=0)


def test_100_000_scenes_are_dealt_and_their_parts_merged_with_one_reading_of_each(tmp_path: Path) -> None:
    sizes = {str(number): 5_000_000 + number % 999 for number in range(100_000)}
    assert [len(Shard(index, 4).choose(sizes)) for index in (0, 3)] == [25_000, 25_000]
    for index in range(4):
        share = shards_of(tmp_path).take(Shard(index, 4), dict.fromkeys("abcd", 1), {}, is_restricted=False)
        assert share is not None
        share.begin()
        share.finish(b'{"format": "scannet_prep processed folder", "format_version": 1, "scenes": {}}')
    program = (
        "import collections, sys\nfrom pathlib import Path\nfrom scannet_prep.processed.manifest import read_manifest\n"
        "events = []\nread_manifest(Path(sys.argv[1]))\nsys.addaudithook(lambda *event: events.append(event))\n"
        "read_manifest(Path(sys.argv[1]))\n"
        "opened = collections.Counter(args[0] for name, args in events if (name, type(args[0])) == ('open', str))\n"
        "print(max(opened.values()), len(opened))\n"
    )
    done = subprocess.run([sys.executable, "-c", program, tmp_path], capture_output=True, text=True, check=True)
    assert done.stdout == "1 5\n"  # the part of each shard, and the manifest that is not there


@pytest.mark.parametrize(
    "text", ["0/0", "5/4", "4/4", "-1/4", "1/-4", "0/10000", "1", "a/b", "1/2/3", "", "1.0/2", "²/3"]
)
def test_a_shard_that_cannot_be_is_refused_and_the_hint_says_how_they_are_counted(text: str, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="shard") as caught:
        Shard.parse(text)
    assert "counted from 0" in caught.value.hint
    for command in ("process", "export --format ply", "download --types seg") if text == "4/4" else ():
        ended = run_main(*command.split(), f"--shard={text}", "-o", tmp_path / "out", cwd=tmp_path)
        assert (ended.status, list(tmp_path.iterdir())) == (2, []), ended.stderr


@pytest.mark.parametrize(
    ("environ", "shard"),
    [
        ("SLURM_PROCID=1 SLURM_NTASKS=4 RANK=1 WORLD_SIZE=4", "1/4"),
        ("SLURM_PROCID=1 SLURM_NTASKS=4", "1/4"),  # what a container is given, without the rest
        ("RANK=0 WORLD_SIZE=1", "0/1"),
        ("SLURM_ARRAY_TASK_ID=3 SLURM_ARRAY_TASK_COUNT=16 RANK= WORLD_SIZE= SLURM_ARRAY_TASK_MIN=", "3/16"),
        ("", "names no task; looked for SLURM_ARRAY_TASK_ID"),
        ("RANK=1", "names no task"),
        ("RANK= WORLD_SIZE=", "names no task"),
        ("RANK=one WORLD_SIZE=2", "RANK=one and WORLD_SIZE=2: 'one/2' is not a shard"),
        ("RANK=-1 WORLD_SIZE=2", "RANK=-1 and WORLD_SIZE=2: there is no shard -1/2"),
        ("RANK=2 WORLD_SIZE=2", "RANK=2 and WORLD_SIZE=2: there is no shard 2/2"),
        ("RANK=0 WORLD_SIZE=0", "there is no shard 0/0"),
        ("SLURM_ARRAY_TASK_ID=one SLURM_ARRAY_TASK_COUNT=2", "SLURM_ARRAY_TASK_ID is 'one', which is not a number"),
        ("SLURM_ARRAY_TASK_ID=1 SLURM_ARRAY_TASK_COUNT=2 SLURM_ARRAY_TASK_MAX=no", "TASK_MAX is 'no', which is not"),
        ("SLURM_ARRAY_TASK_ID=3 SLURM_ARRAY_TASK_COUNT=16 RANK=1 WORLD_SIZE=4", "is shard 3/16; .*is shard 1/4"),
        ("RANK=1 WORLD_SIZE=4 SLURM_PROCID=2 SLURM_NTASKS=4", "contradicts itself"),
    ],
)
def test_the_environment_says_which_shard_this_is_or_why_that_cannot_be_known(environ: str, shard: str) -> None:
    check_shard(dict(word.split("=", 1) for word in environ.split()), shard)


def test_the_shard_is_found_in_what_launchers_really_tell() -> None:
    for launch in LAUNCHES:
        error = check_shard(launch.environ, launch.shard)
        if error is not None and launch.shard == "names no task":
            assert ("SLURM_NTASKS" in error.message, "with srun or mpirun" in error.hint) == (False, True), launch.name


def check_shard(environ: Mapping[str, str], expected: str) -> UsageError | None:
    if re.fullmatch(r"\d+/\d+", expected):
        assert str(Shard.from_environment(environ)) == expected, environ
        return None
    with pytest.raises(UsageError, match=expected) as caught:
        Shard.from_environment(environ)
    assert "/16" in caught.value.hint  # an example
    return caught.value


@pytest.mark.parametrize("count", [3, len(SCENES) + 2])
def test_merged_shards_are_byte_for_byte_as_one_run(raw: Path, expected: Path, tmp_path: Path, count: int) -> None:
    for index in reversed(range(count)):
        assert make(raw, tmp_path, f"{index}/{count}").kept == ()
    assert len(ScanNet(tmp_path, split="train")) == 5  # before anybody merges
    merged = make(raw, tmp_path)
    assert (merged.made, len(merged.kept)) == ((), len(SCENES))
    assert digests(tmp_path) == digests(expected)
    make(raw, tmp_path, f"0/{count}")  # of a whole folder: there is nothing to do, and nothing to say
    assert digests(tmp_path) == digests(expected)


def test_a_missing_shard_is_named_by_every_reader_with_what_to_type(raw: Path, expected: Path, tmp_path: Path) -> None:
    out_dir = tmp_path / "out"
    make(raw, out_dir, "1/3")
    found = "is not there, or not whole: shards that have not come to their end: 0/3, 2/3"
    named = f"{out_dir}/manifest.d/0000-of-0003.json: {found}"
    with pytest.raises(ManifestError, match=re.escape(named)) as caught:
        ScanNet(out_dir, split="train")
    assert "run shard 0/3 again; or the same scannet-prep process command without a shard" in caught.value.hint
    assert run_main("pack", expected, "-o", tmp_path / "whole.tar.zst").status == 0
    (written := out_dir / "train/.scene0000_00.npz.1-0123abcd.tmp").touch()  # by a worker of another shard
    for command in (
        ("pack", out_dir, "-o", tmp_path / "a.tar.zst"),
        ("export", out_dir, "--format", "ply", "-o", tmp_path / "ply"),
        ("unpack", tmp_path / "whole.tar.zst", "-o", out_dir),
        ("process", raw, "-o", out_dir, "--scenes", SCENES[0]),
    ):
        ended = run_main(*command)
        assert (ended.status in {1, 2}, "not come to their end: 0/3, 2/3" in ended.stderr) == (True, True), ended
    assert written.exists()
    verified = run_main("verify", out_dir, "--json")
    assert (verified.status, verified.stdout.count("not come to their end")) == (3, 1)
    assert run_main("info", out_dir, "--json").json["is_complete"] is False
    make(raw, out_dir, "0/3")
    make(raw, out_dir, "2/3")
    # Nobody has to merge.
    assert run_main("verify", out_dir).status == 0
    assert run_main("info", out_dir, "--json").json["is_complete"] is True
    assert run_main("pack", out_dir, "-o", tmp_path / "a.tar.zst").status == 0
    assert (tmp_path / "a.tar.zst").read_bytes() == (tmp_path / "whole.tar.zst").read_bytes()
    (out_dir / "manifest.d/0001-of-0003.json").unlink()
    (out_dir / "manifest.d/0002-of-0003.begun").touch()  # it is at work again
    with pytest.raises(ManifestError, match=r"0001-of-0003.json: is not there, .* 1/3, 2/3"):
        ScanNet(out_dir, split="train")


def test_a_killed_shard_is_named_and_does_what_it_lacks_next_time(raw: Path, expected: Path, tmp_path: Path) -> None:
    make(raw, tmp_path, "1/2")
    process = start_command("process", raw, "-o", tmp_path, "--shard", "0/2", "--jobs", "1")
    while len(list(tmp_path.rglob("*.npz"))) <= len(SCENES) // 2 and process.poll() is None:
        time.sleep(0.002)
    process.kill()
    process.communicate()
    if len(list(tmp_path.rglob("*.npz"))) < len(SCENES):
        with pytest.raises(ManifestError, match=r"0000-of-0002.json: .*, or not whole: .*: 0/2") as caught:
            ScanNet(tmp_path, split="train")
        assert "run shard 0/2 again" in caught.value.hint
    before = times(tmp_path / "train")
    report = make(raw, tmp_path, "0/2")
    assert len(report.kept) + len(report.made) == len(SCENES) // 2
    assert {path: time for path, time in times(tmp_path / "train").items() if path in before} == before
    make(raw, tmp_path)
    assert digests(tmp_path) == digests(expected)


def test_a_run_for_the_same_scenes_finishes_what_shards_for_some_scenes_left(raw: Path, tmp_path: Path) -> None:
    kept = make(raw, tmp_path, "1/2", Split.TRAIN).made
    with pytest.raises(UsageError, match=r"not come to their end: 0/2; a run for other scenes cannot merge that"):
        make(raw, tmp_path, "", Split.VAL)
    assert make(raw, tmp_path, "", Split.TRAIN).kept == kept
    assert (len(ScanNet(tmp_path, split="train")), shards_of(tmp_path).exists()) == (5, False)


def test_shards_that_do_not_go_together_are_refused_at_once(raw: Path, expected: Path, tmp_path: Path) -> None:
    make(raw, tmp_path / "1", "0/3")
    before = times(tmp_path)
    with pytest.raises(UsageError, match="shard 0/3 was run of 3 shards; this is shard 1/2"):
        make(raw, tmp_path / "1", "1/2")
    with pytest.raises(UsageError, match="shard 0/3 was run with other options, or for other"):
        make(raw, tmp_path / "1", "1/3", align_axis=True)
    with pytest.raises(UsageError, match="shard 0/3 was run with other options, or for other scenes"):
        make(raw, tmp_path / "1", "1/3", Split.VAL)
    assert times(tmp_path) == before
    # Those of two jobs that began at once are no dataset until they are merged, and who is still at work says so.
    share = process.plan(raw, tmp_path / "1", ProcessOptions(), shard=Shard(1, 3)).share
    assert share is not None
    share.begin()
    make(raw, tmp_path / "2", "0/2")
    shutil.copytree(tmp_path / "2", tmp_path / "1", dirs_exist_ok=True)
    with pytest.raises(ManifestError, match="do not go together: some were run of 2 and of 3 shards"):
        ScanNet(tmp_path / "1", split="train")
    make(raw, tmp_path / "1")
    with pytest.raises(OutputError, match=r"0001-of-0003.json: cannot be written"):
        share.finish(b"{}")
    assert digests(tmp_path / "1") == digests(expected)


def test_a_shard_that_could_not_begin_keeps_those_with_other_options_from_nothing(raw: Path, tmp_path: Path) -> None:
    (in_the_way := tmp_path / "manifest.d/0000-of-0002.begun").mkdir(parents=True)
    with pytest.raises(ScanNetPrepError, match="is a folder"):
        make(raw, tmp_path, "0/2")
    in_the_way.rmdir()
    for shard in ("0/2", "1/2"):
        assert make(raw, tmp_path, shard, align_axis=True).made


def test_scenes_that_fail_in_a_shard_are_listed_by_it_and_by_the_run_that_merges(raw: Path, tmp_path: Path) -> None:
    raw_dir, out_dir = Path(shutil.copytree(raw, tmp_path / "raw")), tmp_path / "out"
    segments = next(raw_dir.glob(f"scans/{SCENES[0]}/*.segs.json"))
    whole = segments.read_bytes()
    segments.write_bytes(b"{")
    failed = {}
    for index in range(2):
        ended = run_main("process", raw_dir, "-o", out_dir, "--shard", f"{index}/2", "--json")
        failed[ended.status] = [failure["scene_id"] for failure in ended.json["failures"]]
    assert failed == {0: [], 3: [SCENES[0]]}
    lists = list(out_dir.glob("manifest.d/*.failed.txt"))
    assert [path.read_text().splitlines()[1:] for path in lists] == [[SCENES[0]]]
    with pytest.warns(UserWarning, match=f"scenes that failed in processing are missing: 1, for example {SCENES[0]}"):
        assert len(ScanNet(out_dir, split="train")) == 4
    assert run_main("process", raw_dir, "-o", out_dir).status == 3
    assert (out_dir / "failed.txt").read_text().splitlines()[1:] == [SCENES[0]]
    segments.write_bytes(whole)
    assert make(raw_dir, out_dir).made == (SCENES[0],)


@pytest.mark.parametrize("name", ["pointcept", "webdataset"])
def test_exports_made_in_shards_are_what_one_run_makes(expected: Path, tmp_path: Path, name: str) -> None:
    def run(out_dir: Path, shard: Shard | None = None) -> export.ExportReport:
        plan = export.plan([expected], out_dir, name, shard=shard)
        with ThreadPoolExecutor(1) as executor:
            return export.run(plan, executor=executor)

    run(tmp_path / "one")
    made = run(tmp_path / "shards", Shard(1, 2)).made
    if name == "pointcept":
        assert run_main("verify", tmp_path / "shards").stdout.count("1 error") == 1
    with pytest.raises(UsageError, match="this is shard 0/3"):
        run(tmp_path / "shards", Shard(0, 3))
    with pytest.raises(ScanNetPrepError, match="other options"):
        export.plan([expected], tmp_path / "shards", "ply", shard=Shard(0, 2))
    made += run(tmp_path / "shards", Shard(0, 2)).made
    assert sorted(made) == sorted(SCENES)
    assert run(tmp_path / "shards", Shard(0, 2)).made == ()
    if name == "pointcept":
        assert "has not been merged" in run_main("verify", tmp_path / "shards").stdout
    assert run(tmp_path / "shards").made == ()
    assert digests(tmp_path / "shards") == digests(tmp_path / "one")


def test_a_download_in_shards_is_what_one_run_brings_and_half_is_told(server: ReleaseServer, tmp_path: Path) -> None:
    def run(name: str, *more: str) -> int:
        return run_main(*words(server.base_url, tmp_path / name, *more)).status

    archive, half = tmp_path / "a.tar.zst", tmp_path / "shards"
    assert (run("one"), run_main("pack", server.root, "-o", archive).status) == (0, 0)
    server.forget()
    first = run_main(*words(server.base_url, half, "--shard", "0/2", "--json"))
    assert (first.status, first.json["shard"], run("shards", "--shard", "0/3")) == (0, "0/2", 2)
    missing = "0001-of-0002.lock: is not there, or not whole: shards that have not come to their end: 1/2"
    for status, reading in (
        (0, ("process", half, "-o", tmp_path / "processed")),
        (3, ("verify", half)),
        (3, ("info", half)),
        (1, ("pack", half, "-o", tmp_path / "half.tar.zst")),
        (1, ("unpack", archive, "-o", half)),
    ):
        ended = run_main(*reading)
        assert (ended.status, missing in ended.stdout + ended.stderr) == (status, True), ended
    assert (run("shards", "--shard", "1/2"), run_main("verify", half).status) == (0, 0)
    shutil.copytree(half, tmp_path / "whole")
    asked = len(server.requests())
    assert run("shards") == 0
    assert len(server.requests()) == asked == len(fetched(tmp_path / "one"))
    assert run("shards", "--shard", "0/2") == 0  # of a whole folder: there is nothing to do, and nothing to say
    terms = "terms_accepted.txt"  # holds the time
    assert {**digests(half), terms: ""} == {**digests(tmp_path / "one"), terms: ""}
    assert run_main("unpack", archive, "-o", tmp_path / "whole").status == 0  # merges them too
    assert not (tmp_path / "whole/scannet.lock.d").exists()
    locked = lock.read_lock(tmp_path / "whole/scannet.lock")
    assert len(locked) == len(fetched(tmp_path / "whole"))
    # After the merge, a shard has something to do only where a file is damaged.
    name = min(name for name in locked if name.endswith("_vh_clean_2.ply"))
    (half / name).write_bytes(b"ply")
    (half / "scannet.lock").write_bytes(lock.encode_lock(locked | {name: lock.digest_file(half / name)}))
    ended = [run_main(*words(server.base_url, half, "--shard", f"{index}/2", "--verify")) for index in range(2)]
    assert sorted((it.status, "1 fetched" in it.stdout) for it in ended) == [(0, False), (0, True)]
    assert lock.digest_file(half / name) == locked[name]


def test_only_a_run_for_all_says_how_to_fetch_what_failed_alone(server: ReleaseServer, tmp_path: Path) -> None:
    server.faults = [at(lambda path: path.endswith(".txt"), then=Status(404))]
    for more in (["--shard", "0/2"], ["--shard", "1/2"], []):
        ended = run_main(*words(server.base_url, tmp_path, *more))
        assert (ended.status, "run the same command" in ended.stdout) == (3, True)
        assert (f"--scenes @{tmp_path}/failed.txt for these only" in ended.stdout) == (not more)


def test_all_shards_of_a_download_together_are_polite_to_the_university_but_not_to_a_mirror(tmp_path: Path) -> None:
    plan, mirrored = (
        download.plan(tmp_path, [".txt"], shard=Shard(0, 4), base_url=base_url)
        for base_url in (BASE_URL, "http://127.0.0.1:9/public/")
    )
    impolite = "3 connections at a time in each of 4 shards, expected 1 to 8 in all"
    for chosen, jobs, problem in ((plan, 2, "Terms of Use"), (mirrored, 3, "Terms of Use"), (plan, 3, impolite)):
        with pytest.raises(UsageError, match=problem):  # the terms are asked for after it
            download.run(chosen, jobs=jobs)


def test_the_scripts_of_the_page_run_an_array_and_the_merge_after_it(raw: Path, tmp_path: Path) -> None:
    page = (Path(__file__).parent.parent / "docs/cluster.md").read_text()
    process_script, merge_script = re.findall(r"^```sh\n(#!/bin/bash\n.*?)^```$", page, re.DOTALL | re.MULTILINE)[:2]
    (tmp_path / "data").mkdir()
    (tmp_path / "data/ScanNet").symlink_to(raw)
    command = tmp_path / "bin/scannet-prep"
    command.parent.mkdir()
    command.write_text(f'#!/bin/sh\nexec "{sys.executable}" -W error -m scannet_prep "$@"\n')
    command.chmod(0o755)
    environ = os.environ | {"PATH": f"{command.parent}:{os.environ['PATH']}", "SLURM_CPUS_PER_TASK": "1"}

    def sbatch(script: str, **more: str) -> subprocess.Popen[str]:
        command = ["bash", "-c", script]
        return subprocess.Popen(command, cwd=tmp_path, env=environ | more, stderr=subprocess.PIPE, text=True)

    array = {"SLURM_ARRAY_TASK_COUNT": "2", "SLURM_ARRAY_TASK_MIN": "0", "SLURM_ARRAY_TASK_MAX": "1"}
    tasks = [sbatch(process_script, SLURM_ARRAY_TASK_ID=str(index), **array) for index in range(2)]
    told = [task.communicate()[1] for task in tasks]
    assert [task.returncode for task in tasks] == [0, 0], told
    merge = sbatch(merge_script)
    told = merge.communicate()[1]
    assert merge.returncode == 0, told
    make(raw, tmp_path / "one", scannet200=True, align_axis=True)
    assert digests(tmp_path / "data/processed") == digests(tmp_path / "one")
    assert len(ScanNet(tmp_path / "data/scannet.tar.zst", split="train")) == 5


def test_parts_go_all_at_once_and_what_keeps_them_from_going_is_said(tmp_path: Path) -> None:
    folder = ShardFolder(tmp_path / "manifest.d", "process")
    share = folder.take(Shard(0, 2), {"a": 1, "b": 1}, {}, is_restricted=False)
    assert share is not None
    share.begin()
    (blocker := tmp_path / ".scannet-prep-merged").write_bytes(b"")  # a file, which no folder can replace
    with pytest.raises(OutputError, match=r"manifest\.d: cannot be written: Not a directory"):
        folder.remove()
    assert len(list(folder.path.iterdir())) == 2
    blocker.unlink()
    folder.remove()
    assert not list(tmp_path.iterdir())
