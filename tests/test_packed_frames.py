"""Archives of extracted frames: one image is one frame of zstd, and nothing is compressed twice."""

import pickle
import shutil

import numpy as np
import pytest
from commands import (
    SCENES,
    TEST,
    TRAIN,
    VAL,
    fail,
    flip,
    patch,
    read_tree,
    run_main,
    succeed,
    unpack_file,
    unpack_pipe,
)
from release_server import ReleaseServer

from scannet_prep.archive.frames import FileSource, read_seek_table
from scannet_prep.errors import ArchiveError, MissingFileError
from scannet_prep.frames import FrameFolder
from scannet_prep.synthetic import write_release


def extract(raw_dir, out_dir, *words):
    succeed("frames", raw_dir, "-o", out_dir, *words)
    return out_dir


@pytest.fixture(scope="module")
def root(tmp_path_factory):
    """Streams, their frames, and an archive of these; not to be changed."""
    root = tmp_path_factory.mktemp("frames")
    write_release(root / "raw", SCENES, vertices=600, frames=3)
    extract(root / "raw", root / "frames", "--every", "1")
    outcome = succeed("pack", root / "frames", "-o", root / "a.tar.zst", "--json")
    assert outcome.json["splits"] == {"train": 1, "val": 1, "test": 1}
    return root


@pytest.fixture
def archive(root, tmp_path):
    return shutil.copy(root / "a.tar.zst", tmp_path / "a.tar.zst")


@pytest.mark.parametrize("unpack", [unpack_file, unpack_pipe])
def test_unpacked_frames_equal_the_packed_ones(unpack, root, tmp_path):
    expected = read_tree(root / "frames")
    outcome = unpack(root / "a.tar.zst", cwd=tmp_path)
    assert (outcome.status, read_tree(tmp_path / "data/frames")) == (0, expected), outcome.stderr
    assert unpack(root / "a.tar.zst", "-o", tmp_path / "part", "--scenes", VAL).status == 0
    assert FrameFolder(tmp_path / "part").scene_ids == (VAL,)
    assert unpack(root / "a.tar.zst", "-o", tmp_path / "part").status == 0
    assert read_tree(tmp_path / "part") == expected


def test_scenes_in_folders_of_splits_are_sorted_by_id(root, tmp_path):
    out_dir = extract(root / "raw", tmp_path / "out", "--layout", "concerto", "--every", "3")
    # As a scene of one's own.
    (out_dir / "train" / TRAIN).rename(out_dir / "train/room")
    # No scene has this name.
    (out_dir / "my notes").mkdir()
    (out_dir / "my notes/frames.json").touch()
    (out_dir / "test" / TEST / "notes").touch()
    (out_dir / "test" / TEST / "others").symlink_to(out_dir / "train")
    outcome = succeed("pack", out_dir, "-o", tmp_path / "a.tar.zst", "--json")
    assert outcome.json["left_out"] == ["my notes/frames.json", f"test/{TEST}/notes"]
    for place in (out_dir, tmp_path / "a.tar.zst"):
        assert FrameFolder(place).scene_ids == ("room", VAL, TEST)


def test_each_file_has_a_frame_and_images_are_stored(root):
    files = read_tree(root / "frames")
    images = [len(data) for name, data in files.items() if name.endswith((".jpg", ".png"))]
    rows = read_seek_table(FileSource(root / "a.tar.zst")).tolist()
    # The index and the only file of no scene have one; so has the end of the tar stream.
    assert len(rows) == len(files) + 1
    stored = sorted(row[0] for row in rows)[-len(images) :]
    assert len(images) == 12
    assert sum(images) < sum(stored) < sum(images) + 1100 * len(images)


def check_equal(packed, folder):
    assert packed.scene_ids == folder.scene_ids == SCENES
    for scene, expected in zip(packed, folder, strict=True):
        assert scene.read_file("frames.json") == expected.read_file("frames.json")
        assert len(scene) == 2
        for frame, expected_frame in zip(scene, expected, strict=True):
            for content in ("color", "depth"):
                assert np.array_equal(frame.read(content), expected_frame.read(content))
            name = f"pose/{frame.number}.txt"
            assert frame.scene.read_file(name) == expected.read_file(name)


def test_packed_frames_are_read_from_a_disk_and_from_a_server(root, monkeypatch):
    monkeypatch.setenv("HOME", str(root))
    folder = FrameFolder("~/frames")
    check_equal(pickle.loads(pickle.dumps(FrameFolder("~/a.tar.zst"))), folder)
    with ReleaseServer(root / "raw") as server:
        server.files["/a.tar.zst"] = root / "a.tar.zst"
        packed = FrameFolder(f"{server.origin}/a.tar.zst?s3cret")
        check_equal(packed, folder)
    assert "s3cret" not in packed.path


def test_reading_one_image_reads_one_frame(root, monkeypatch):
    frame = FrameFolder(root / "a.tar.zst")[VAL][1]
    size_bytes = (root / f"frames/{VAL}/color/2.jpg").stat().st_size
    sizes = []
    read = FileSource.read

    def count(source, offset, size):
        sizes.append(size)
        return read(source, offset, size)

    monkeypatch.setattr(FileSource, "read", count)
    frame.read("color")
    assert len(sizes) == 1
    assert size_bytes < sizes[0] < size_bytes + 1100


def test_info_knows_the_archive(root):
    info = run_main("info", root / "a.tar.zst", "--json").json
    assert info["scene_ids"] == [*SCENES]
    size_bytes = sum(map(len, read_tree(root / "frames" / VAL).values()))
    assert info["splits"]["val"] == {"scenes": 1, "size_bytes": size_bytes}
    assert info["facts"]["content"] == "frames"
    assert "layout: official" in info["facts"]["options"]


def test_damaged_image_costs_its_scene_until_an_intact_archive_completes_it(
    root, archive, tmp_path
):
    image = (root / f"frames/{VAL}/color/2.jpg").read_bytes()
    flip(archive, archive.read_bytes().index(image) + 300)
    outcome = run_main("verify", archive, "--json")
    assert outcome.status == 3
    assert outcome.json["damaged_scenes"] == [VAL]
    scene = FrameFolder(archive)[VAL]
    assert scene[0].read("color").any()
    with pytest.raises(ArchiveError, match=f"{VAL}: is damaged"):
        scene[1].read("color")

    out_dir = tmp_path / "out"
    fail(3, f"{VAL}: is damaged", archive, "-o", out_dir, run=unpack_file)
    assert run_main("verify", out_dir).status == 3
    assert unpack_file(root / "a.tar.zst", "-o", out_dir).status == 0
    assert read_tree(out_dir) == read_tree(root / "frames")
    (out_dir / f"{VAL}/frames.json").unlink()
    problem = f"{VAL}/frames.json: no such file"
    fail(3, problem, "pack", out_dir, "-o", tmp_path / "b.tar.zst")
    assert problem in run_main("info", out_dir).stdout
    (out_dir / f"{TRAIN}/frames.json").write_text("{}")
    outcome = run_main("verify", out_dir, "--json")
    assert outcome.json["damaged_scenes"] == [TRAIN, VAL]
    assert problem in outcome.stderr


def test_frames_of_other_options_and_changed_files_are_refused(root, tmp_path):
    other = extract(root / "raw", tmp_path / "other", "--every", "2")
    fail(1, "holds frames (every: 2, ", root / "a.tar.zst", "-o", other, run=unpack_file)
    patch(other / f"{VAL}/depth/0.png", 50, b"?")
    problem = f"{VAL}/depth/0.png: is not the file that was recorded"
    fail(1, problem, "pack", other, "-o", tmp_path / "b.tar.zst")
    run_main("pack", root / "raw", "-o", tmp_path / "c.tar.zst")
    with pytest.raises(MissingFileError, match="holds no extracted frames"):
        FrameFolder(tmp_path / "c.tar.zst")


@pytest.mark.parametrize("layout", ["official", "mmdet3d", "simplerecon"])
def test_run_that_stopped_in_its_first_scenes_is_continued_in_any_layout(layout, root, tmp_path):
    frames = extract(root / "raw", tmp_path / "frames", "--layout", layout)
    archive = tmp_path / "a.tar.zst"
    out_dir = tmp_path / "out"
    succeed("pack", frames, "-o", archive)
    # A run that is killed before its first file leaves a folder that looks like a raw scene.
    (out_dir / TRAIN).mkdir(parents=True)
    cut = tmp_path / "cut"
    cut.write_bytes(archive.read_bytes()[: archive.stat().st_size // 6])
    assert unpack_pipe(cut, "-o", out_dir).status == 3
    assert unpack_file(archive, "-o", out_dir).status == 0
    assert read_tree(out_dir) == read_tree(frames)
