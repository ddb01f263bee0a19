"""What `pack` puts into an archive, leaves out, replaces and refuses."""

import hashlib
import json
import os
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
from archives import find_parts, flip, flip_middle, write_tree
from commands import COMMAND, SCENES, TEST, TRAIN, VAL, leave_unfinished, run_main

from scannet_prep import ScanNet
from scannet_prep.archive import open_archive
from scannet_prep.errors import FileError
from scannet_prep.processed.manifest import read_manifest
from scannet_prep.stages import pack as pack_stage


def pack(*words: str | Path) -> tuple[int, dict[str, Any]]:
    """Run `pack`, and return the exit status and the JSON object."""
    outcome = run_main("pack", *words, "--json")
    return outcome.status, outcome.json


def pack_well(*words: str | Path) -> dict[str, Any]:
    """Run `pack`, which must succeed, and return the JSON object."""
    status, value = pack(*words)
    assert status == 0, value
    return value


def scenes_in(path: Path) -> list[str]:
    return [scene.scene_id for scene in open_archive(path).index.scenes]


class TestBytes:
    @pytest.fixture
    def expected(self, tree: Path, tmp_path: Path) -> bytes:
        """The archive of the tree, packed with one job."""
        pack_well(tree, "-o", tmp_path / "one.tar.zst", "--jobs", "1")
        return (tmp_path / "one.tar.zst").read_bytes()

    def test_bytes_do_not_depend_on_the_number_of_jobs(
        self, expected: bytes, tree: Path, tmp_path: Path
    ) -> None:
        pack_well(tree, "-o", tmp_path / "two.tar.zst", "--jobs", "2")

        assert (tmp_path / "two.tar.zst").read_bytes() == expected

    def test_bytes_do_not_depend_on_times_and_modes(
        self, expected: bytes, tree: Path, tmp_path: Path
    ) -> None:
        for path in tree.rglob("*"):
            os.utime(path, (1, 1))
        (tree / "empty").chmod(0o600)

        pack_well(tree, "-o", tmp_path / "later.tar.zst")

        assert (tmp_path / "later.tar.zst").read_bytes() == expected

    def test_pipe_receives_the_same_bytes(
        self, expected: bytes, tree: Path, tmp_path: Path
    ) -> None:
        with (tmp_path / "pipe.tar.zst").open("wb") as file:
            pack_stage.run(tree, None, pipe=file.fileno())

        assert (tmp_path / "pipe.tar.zst").read_bytes() == expected


class TestArchiveOfTwoSplits:
    @pytest.fixture
    def path(self, tmp_path: Path) -> Path:
        return tmp_path / "a b.tar.zst"

    @pytest.fixture
    def stdout(self, whole_dir: Path, path: Path) -> str:
        """The output of the run that packs val and test."""
        words = ("--splits", "val", "test")
        return run_main("pack", whole_dir / "processed", "-o", path, *words).stdout

    def test_printed_line_of_python_opens_the_archive(self, stdout: str) -> None:
        line = stdout.partition("in Python: ")[2].replace("\n", "")

        assert eval(line, {"ScanNet": ScanNet}).scene_ids == [VAL]

    @pytest.mark.usefixtures("stdout")
    def test_index_describes_only_the_packed_scenes(self, whole_dir: Path, path: Path) -> None:
        manifest = read_manifest(whole_dir / "processed")
        assert manifest is not None
        expected = []
        for scene_id in (VAL, TEST):
            entry = manifest.scenes[scene_id]
            expected.append((scene_id, str(entry.split), entry.vertex_count))

        scenes = open_archive(path).index.scenes

        described = [(scene.scene_id, scene.split, scene.vertex_count) for scene in scenes]
        assert described == expected

    @pytest.mark.usefixtures("stdout")
    def test_head_records_the_options(self, whole_dir: Path, path: Path) -> None:
        manifest = read_manifest(whole_dir / "processed")
        assert manifest is not None

        head = open_archive(path).index.head

        assert head.options == manifest.options

    @pytest.mark.usefixtures("stdout")
    def test_head_names_the_terms_of_use(self, path: Path) -> None:
        assert "Terms of Use" in open_archive(path).index.head.notice

    @pytest.mark.usefixtures("stdout")
    def test_packed_manifest_lists_only_the_packed_scenes(self, path: Path) -> None:
        archive = open_archive(path)
        others = archive.index.groups[0]
        (member,) = [member for member in others.members if member.name == "manifest.json"]

        manifest = json.loads(bytes(archive.read_member(others, member)))

        assert list(manifest["scenes"]) == [VAL, TEST]


class TestUpToDate:
    @pytest.fixture
    def target(self, out_dir: Path, tmp_path: Path) -> Path:
        """The archive of the processed folder."""
        assert pack_well(out_dir, "-o", tmp_path / "a.tar.zst")["up_to_date"] is False
        return tmp_path / "a.tar.zst"

    def test_unchanged_archive_is_kept(self, out_dir: Path, target: Path) -> None:
        before = target.stat().st_ino

        assert pack_well(out_dir, "-o", target)["up_to_date"] is True

        assert target.stat().st_ino == before

    def test_unchanged_archive_is_packed_again_with_force(
        self, out_dir: Path, target: Path
    ) -> None:
        assert pack_well(out_dir, "-o", target, "--force")["up_to_date"] is False

    def test_archive_with_a_flip_in_any_part_is_packed_again(
        self, out_dir: Path, target: Path
    ) -> None:
        """Also with a flip that damages no file, such as one in the seek table."""
        expected = target.read_bytes()
        for part in find_parts(target):
            flip_middle(target, part)

            assert pack_well(out_dir, "-o", target)["up_to_date"] is False, part

            assert target.read_bytes() == expected

    def test_archive_of_a_changed_folder_is_packed_again(self, out_dir: Path, target: Path) -> None:
        (out_dir / "TERMS.txt").write_text("other terms")

        assert pack_well(out_dir, "-o", target)["up_to_date"] is False

    @pytest.mark.parametrize(
        "content", [None, b"", b"0" * 64 + b"  a.tar.zst\n"], ids=["missing", "empty", "wrong"]
    )
    def test_unchanged_archive_regains_its_checksum_file(
        self, content: bytes | None, out_dir: Path, target: Path
    ) -> None:
        path = target.with_name("a.tar.zst.sha256")
        expected = path.read_bytes()
        path.unlink()
        if content is not None:
            path.write_bytes(content)

        value = pack_well(out_dir, "-o", target)

        assert value["up_to_date"] is True
        assert value["sha256"] == {str(target): hashlib.sha256(target.read_bytes()).hexdigest()}
        assert path.read_bytes() == expected


class TestReplacing:
    @pytest.fixture
    def target(self, whole_dir: Path, tmp_path: Path) -> Path:
        """An archive of all processed scenes."""
        pack_well(whole_dir / "processed", "-o", tmp_path / "a.tar.zst")
        return tmp_path / "a.tar.zst"

    @pytest.mark.parametrize(
        ("folder", "words", "message"),
        [
            (
                "processed",
                ["--splits", "val"],
                "holds 2 scenes that the new archive would not, for example scene0000",
            ),
            ("raw", [], "would be replaced by another kind"),
        ],
    )
    def test_archive_of_more_scenes_or_another_kind_is_not_replaced(
        self, folder: str, words: list[str], message: str, whole_dir: Path, target: Path
    ) -> None:
        before = target.read_bytes()

        status, value = pack(whole_dir / folder, "-o", target, *words)

        assert status == 2
        assert value["error"] == "UsageError"
        assert message in value["message"]
        assert target.read_bytes() == before

    def test_foreign_file_is_not_replaced(self, whole_dir: Path, tmp_path: Path) -> None:
        foreign = tmp_path / "b.tar.zst"
        foreign.write_bytes(b"PK\x03\x04 something of value")

        status, value = pack(whole_dir / "processed", "-o", foreign)

        assert status == 2
        assert value["error"] == "UsageError"
        assert "is a zip file" in value["message"]
        assert foreign.read_bytes() == b"PK\x03\x04 something of value"

    def test_archive_of_more_scenes_is_replaced_with_force(
        self, whole_dir: Path, target: Path
    ) -> None:
        pack_well(whole_dir / "processed", "-o", target, "--limit", "1", "--force")

        assert scenes_in(target) == [TRAIN]


class TestNamesThatAreLeftOut:
    def test_foreign_file_of_a_raw_scene_is_left_out_and_named(
        self, raw_dir: Path, tmp_path: Path
    ) -> None:
        (raw_dir / "scans" / TRAIN / "tmpabc").write_bytes(b"left by the official script")

        outcome = run_main("pack", raw_dir, "-o", tmp_path / "a.tar.zst", "--scenes", TRAIN)

        message = f"left out, because raw trees have no such names: 1 (scans/{TRAIN}/tmpabc)"
        assert message in outcome.stderr

    def test_index_of_a_raw_scene_has_split_and_vertex_count(
        self, raw_dir: Path, tmp_path: Path
    ) -> None:
        pack_well(raw_dir, "-o", tmp_path / "a.tar.zst", "--scenes", TRAIN)

        (scene,) = open_archive(tmp_path / "a.tar.zst").index.scenes
        assert scene.split == "train"
        assert scene.vertex_count == 600

    def test_foreign_files_of_a_processed_folder_are_left_out_and_named(
        self, out_dir: Path, tmp_path: Path
    ) -> None:
        not_utf8 = os.fsdecode(b"odd\xff")
        names = ["train/notes.txt", "own/data.bin", "val/extra.npz", ".DS_Store", not_utf8]
        write_tree(out_dir, dict.fromkeys(names, b"x"))

        report = pack_stage.run(out_dir, tmp_path / "a.tar.zst")

        assert scenes_in(tmp_path / "a.tar.zst") == [*SCENES]
        expected = {"train/notes.txt", "own", "val/extra.npz", ".DS_Store", not_utf8}
        assert set(report.left_out) == expected

    def test_file_in_tasks_named_like_the_manifest_is_packed(
        self, out_dir: Path, tmp_path: Path
    ) -> None:
        write_tree(out_dir, {"tasks/manifest.json": b"of a task"})

        pack_stage.run(out_dir, tmp_path / "a.tar.zst")

        first = open_archive(tmp_path / "a.tar.zst").index.groups[0]
        assert "tasks/manifest.json" in [member.name for member in first.members]

    @pytest.mark.parametrize(
        ("kind", "stem"), [("raw", f"scans/{TRAIN}/{TRAIN}"), ("processed", TRAIN)]
    )
    def test_archives_locks_and_temporary_files_are_never_packed(
        self, kind: str, stem: str, whole_dir: Path, tmp_path: Path
    ) -> None:
        source = Path(shutil.copytree(whole_dir / kind, tmp_path / kind))
        (source / f"{stem}_vh_clean_2.ply.aria2").write_bytes(b"of a download that is under way")
        (source / ".scannet-prep.lock").write_bytes(b"process 1")
        target = source / "x.tar.zst"

        # The first round makes archives inside the tree. The second one must not pack them.
        for is_up_to_date in (False, True):
            assert pack_well(source, "-o", target)["up_to_date"] is is_up_to_date
            pack_well(source, "-o", source / f"{stem}.tar.zst")
            pack_well(source, "-o", target, "--shard-size", "1MB")

        names = []
        for group in open_archive(target).index.groups:
            names += [member.name for member in group.members]
        assert not [name for name in names if ".tar.zst" in name]
        assert not [name for name in names if name.endswith((".aria2", ".lock"))]


FOURTEEN_IDS = [f"scene{number:04}_00" for number in range(14)]


@pytest.fixture(scope="module")
def large_tree(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A raw tree of 2.8 MB that does not compress."""
    files = {"notes.txt": b"notes"}
    for scene_id in FOURTEEN_IDS:
        files[f"scans/{scene_id}/{scene_id}.txt"] = os.urandom(200_000)
    return write_tree(tmp_path_factory.mktemp("shards") / "tree", files)


class TestShards:
    @pytest.mark.parametrize(("size_mb", "count"), [(1, 4), (2, 2)])
    def test_shards_are_not_larger_than_the_limit(
        self, size_mb: int, count: int, large_tree: Path, tmp_path: Path
    ) -> None:
        words = ("-o", tmp_path / "a.tar.zst", "--shard-size", f"{size_mb}MB")
        value = pack_well(large_tree, *words)

        paths = sorted(tmp_path.glob(f"a-*-of-0000{count}.tar.zst"))
        assert [str(path) for path in paths] == list(value["archives"])
        assert len(paths) == count
        assert max(path.stat().st_size for path in paths) <= size_mb * 1_000_000

    def test_shards_hold_every_scene_once(self, large_tree: Path, tmp_path: Path) -> None:
        pack_well(large_tree, "-o", tmp_path / "a.tar.zst", "--shard-size", "1MB")

        scene_ids = []
        for path in sorted(tmp_path.glob("a-*.tar.zst")):
            scene_ids += scenes_in(path)
        assert scene_ids == FOURTEEN_IDS

    def test_each_shard_holds_the_files_that_belong_to_no_scene(
        self, large_tree: Path, tmp_path: Path
    ) -> None:
        value = pack_well(large_tree, "-o", tmp_path / "a.tar.zst", "--shard-size", "1MB")

        for path in value["archives"]:
            assert open_archive(path).index.groups[0].members[1].name == "notes.txt"

    def test_shards_replace_an_earlier_set(self, large_tree: Path, tmp_path: Path) -> None:
        pack_well(large_tree, "-o", tmp_path / "a.tar.zst", "--shard-size", "1MB")
        value = pack_well(large_tree, "-o", tmp_path / "a.tar.zst", "--shard-size", "2MB")

        checksums = [f"{path}.sha256" for path in value["archives"]]
        assert {str(path) for path in tmp_path.iterdir()} == {*value["archives"], *checksums}

    def test_scene_larger_than_a_shard_is_reported_with_its_size(self, tmp_path: Path) -> None:
        small, large, larger = FOURTEEN_IDS[:3]
        sizes = {small: 100_000, large: 1_200_000, larger: 1_500_000}
        files = {f"scans/{name}/{name}.txt": os.urandom(size) for name, size in sizes.items()}
        tree = write_tree(tmp_path / "tree", files)
        words = ("pack", tree, "-o", tmp_path / "a.tar.zst", "--shard-size", "1MB")

        outcome = run_main(*words)

        assert outcome.status == 0
        assert "2 archives larger than --shard-size" in outcome.stderr
        assert f"{large} (1.2 MB), {larger} (1.5 MB)" in outcome.stderr
        paths = sorted(tmp_path.glob("a-*.tar.zst"))
        assert run_main(*words, "--json").json["oversized"] == {
            large: paths[1].stat().st_size,
            larger: paths[2].stat().st_size,
        }

    def test_archive_within_the_shard_size_is_not_reported(
        self, tree: Path, tmp_path: Path
    ) -> None:
        outcome = run_main("pack", tree, "-o", tmp_path / "a.tar.zst", "--shard-size", "3MB")

        assert outcome.status == 0
        assert outcome.stderr == ""


def run_sha256sum(folder: Path, files: str) -> int:
    """Run `sha256sum -c` in a folder, and return its exit status."""
    words = ["sh", "-c", f"sha256sum --strict --status -c {files}"]
    return subprocess.run(words, cwd=folder, check=False).returncode


def printed_files(stdout: str) -> str:
    """Return the checksum files of the command that `pack` prints."""
    return stdout.partition("sha256sum -c ")[2].rstrip("\n")


class TestChecksumFile:
    @pytest.mark.parametrize("name", ["a.tar.zst", "two words.tar.zst", "back\\slash.tar.zst"])
    def test_printed_sha256sum_command_accepts_the_archive(
        self, name: str, tree: Path, tmp_path: Path
    ) -> None:
        target = tmp_path / "out" / name

        outcome = run_main("pack", tree, "-o", target)

        assert f"sha256: {hashlib.sha256(target.read_bytes()).hexdigest()}" in outcome.stdout
        assert run_sha256sum(target.parent, printed_files(outcome.stdout)) == 0

    @pytest.mark.parametrize("name", ["a.tar.zst", "two words.tar.zst", "back\\slash.tar.zst"])
    def test_printed_sha256sum_command_refuses_a_damaged_archive(
        self, name: str, tree: Path, tmp_path: Path
    ) -> None:
        target = tmp_path / "out" / name
        outcome = run_main("pack", tree, "-o", target)

        flip(target, 100)

        assert run_sha256sum(target.parent, printed_files(outcome.stdout)) == 1

    def test_one_sha256sum_command_checks_all_shards(self, tree: Path, tmp_path: Path) -> None:
        target = tmp_path / "out/a b.tar.zst"
        outcome = run_main("pack", tree, "-o", target, "--shard-size", "3kB")
        files = printed_files(outcome.stdout)
        paths = sorted(target.parent.glob("a b-*.tar.zst"))
        assert len(paths) > 1
        assert run_sha256sum(target.parent, files) == 0

        for path in paths:
            flip(path, 100)
            assert run_sha256sum(target.parent, files) == 1
            flip(path, 100)

    def test_sha256_of_a_pipe_is_printed_on_stderr(self, tree: Path) -> None:
        done = subprocess.run([*COMMAND, "pack", tree, "-"], capture_output=True, check=True)

        stderr = done.stderr.decode()
        assert f"sha256: {hashlib.sha256(done.stdout).hexdigest()}" in stderr
        assert "sha256sum" not in stderr


class TestVerifyOfChecksumFile:
    @pytest.fixture
    def target(self, out_dir: Path, tmp_path: Path) -> Path:
        pack_well(out_dir, "-o", tmp_path / "a.tar.zst")
        return tmp_path / "a.tar.zst"

    @pytest.fixture
    def flipped(self, target: Path) -> Path:
        """An archive with a flip in the end of the tar stream, which damages no file."""
        return flip(target, find_parts(target)["end"][0] + 5)

    def test_verify_accepts_the_archive_and_its_checksum_file(self, target: Path) -> None:
        assert run_main("verify", target).status == 0

    def test_verify_of_harmless_damage_succeeds_without_the_checksum_file(
        self, flipped: Path
    ) -> None:
        flipped.with_name("a.tar.zst.sha256").unlink()

        assert run_main("verify", flipped).status == 0


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        ([], 'split="train")  # 1 scene, ScanNet20, not axis-aligned'),
        (["--scannet200", "--align-axis"], 'split="train")  # 1 scene, ScanNet200, axis-aligned'),
    ],
)
def test_line_for_python_names_scenes_label_set_and_frame(
    words: list[str], expected: str, raw_dir: Path, tmp_path: Path
) -> None:
    assert run_main("process", raw_dir, "-o", tmp_path / "out", *words).status == 0

    outcome = run_main("pack", tmp_path / "out", "-o", tmp_path / "a.tar.zst")

    assert expected in outcome.stdout


class TestLinks:
    def test_scene_behind_a_link_is_packed(self, tree: Path, tmp_path: Path) -> None:
        shutil.move(tree / "scans" / TRAIN, tmp_path / "elsewhere")
        (tree / "scans" / TRAIN).symlink_to(tmp_path / "elsewhere")

        pack_well(tree, "-o", tmp_path / "a.tar.zst")

        assert TRAIN in scenes_in(tmp_path / "a.tar.zst")

    def test_target_of_a_link_is_replaced_and_the_link_stays(
        self, tree: Path, tmp_path: Path
    ) -> None:
        target = write_tree(tmp_path / "nas", {}) / "b.tar.zst"
        pack_well(tree, "-o", target)
        link = tmp_path / "link.tar.zst"
        link.symlink_to(target)
        (tree / "empty").write_bytes(b"not any more")

        assert pack_well(tree, "-o", link)["up_to_date"] is False

        assert link.is_symlink()
        assert pack_well(tree, "-o", target)["up_to_date"] is True


class TestFailedScene:
    """A processed folder in which the train scene has failed."""

    @pytest.fixture
    def folder(self, raw_dir: Path, tmp_path: Path) -> Path:
        (raw_dir / "scans" / TRAIN / f"{TRAIN}_vh_clean_2.ply").write_bytes(b"ply\n")
        assert run_main("process", raw_dir, "-o", tmp_path / "out").status == 3
        return tmp_path / "out"

    def test_failed_scene_is_reported(self, folder: Path, tmp_path: Path) -> None:
        outcome = run_main("pack", folder, "-o", tmp_path / "a.tar.zst")

        assert outcome.status == 3
        assert f"missing, because processing failed: {TRAIN}" in outcome.stderr

    def test_failed_scene_is_recorded_and_the_others_are_packed(
        self, folder: Path, tmp_path: Path
    ) -> None:
        run_main("pack", folder, "-o", tmp_path / "a.tar.zst")

        assert scenes_in(tmp_path / "a.tar.zst") == [VAL, TEST]
        assert list(open_archive(tmp_path / "a.tar.zst").index.failures) == [TRAIN]

    def test_failed_scene_of_another_split_is_not_reported(
        self, folder: Path, tmp_path: Path
    ) -> None:
        assert pack(folder, "-o", tmp_path / "a.tar.zst", "--splits", "val")[0] == 0

    @pytest.mark.parametrize("name", ["manifest.json", "failed.txt"])
    def test_failed_scene_is_listed_after_unpacking(
        self, name: str, folder: Path, tmp_path: Path
    ) -> None:
        assert run_main("pack", folder, "-o", tmp_path / "a.tar.zst").status == 3

        assert run_main("unpack", tmp_path / "a.tar.zst", "-o", tmp_path / "new").status == 0

        assert TRAIN in (tmp_path / "new" / name).read_text()


def test_failed_list_that_is_a_dangling_link_is_not_read(out_dir: Path, tmp_path: Path) -> None:
    (out_dir / "failed.txt").symlink_to("nowhere")

    assert pack(out_dir, "-o", tmp_path / "a.tar.zst")[0] == 0


def test_unfinished_folder_is_refused(out_dir: Path, tmp_path: Path) -> None:
    leave_unfinished(out_dir, TRAIN)

    status, value = pack(out_dir, "-o", tmp_path / "a.tar.zst")

    assert status == 1
    assert value["error"] == "FileError"
    assert not (tmp_path / "a.tar.zst").exists()


def test_file_that_differs_from_the_manifest_is_refused(out_dir: Path, tmp_path: Path) -> None:
    flip(out_dir / "train" / f"{TRAIN}.npz", 1000)

    status, value = pack(out_dir, "-o", tmp_path / "a.tar.zst")

    assert status == 1
    assert value["error"] == "FileError"
    assert "is not the file that the manifest records" in value["message"]
    assert list(tmp_path.glob("*.tar.zst*")) == []
    assert list(tmp_path.glob(".*")) == []


@pytest.mark.parametrize("name", [f"scans/{TRAIN}/{TRAIN}.aggregation.json", "scannet.lock"])
class TestEntryThatIsNotAFile:
    def test_named_pipe_is_refused_by_name(self, name: str, tree: Path, tmp_path: Path) -> None:
        os.mkfifo(tree / name)

        outcome = run_main("pack", tree, "-o", tmp_path / "a.tar.zst")

        assert outcome.status == 1
        assert name in outcome.stderr

    def test_dangling_link_is_refused_by_name(self, name: str, tree: Path, tmp_path: Path) -> None:
        (tree / name).symlink_to("nowhere")

        outcome = run_main("pack", tree, "-o", tmp_path / "a.tar.zst")

        assert outcome.status == 1
        assert name in outcome.stderr


def test_folder_with_the_name_of_a_scene_file_is_refused(tree: Path, tmp_path: Path) -> None:
    name = f"scans/{TRAIN}/{TRAIN}.aggregation.json"
    (tree / name).mkdir()

    outcome = run_main("pack", tree, "-o", tmp_path / "a.tar.zst")

    assert outcome.status == 1
    assert name in outcome.stderr


def test_folder_with_the_name_of_another_file_is_left_out(tree: Path, tmp_path: Path) -> None:
    (tree / "scannet.lock").mkdir()

    outcome = run_main("pack", tree, "-o", tmp_path / "a.tar.zst")

    assert outcome.status == 0
    assert "scannet.lock" in outcome.stderr


def test_scene_of_more_than_1_gib_is_refused_by_its_largest_file(
    tree: Path, tmp_path: Path
) -> None:
    with (tree / "scans" / VAL / f"{VAL}.sens").open("wb") as file:
        file.truncate(1 << 30)

    with pytest.raises(FileError, match=rf"{VAL}\.sens: has 1,073,741,824 bytes"):
        pack_stage.run(tree, tmp_path / "a.tar.zst")
