"""One check for each kind of file of the release."""

from pathlib import Path

import pytest
import tiny
from large_files import make_stream, make_zip

from scannet_prep.base.progress import Progress
from scannet_prep.errors import FileError
from scannet_prep.raw.check import check_file
from scannet_prep.release.files import KINDS, SHARED_KINDS

HIGH = tiny.Ply(positions=(*tiny.POSITIONS, (5, 5, 5)), colors=(*tiny.COLORS, (1, 2, 3)))
LABELS_MESH = tiny.Ply(labels=tiny.NYU40_IDS)
LABEL_MAP = b"raw_category\tid\tnyu40id\nwall\t1\t1\n"
ZIP_BYTES = make_zip()
WHOLE = {
    "_vh_clean_2.ply": tiny.Ply().encode(),
    "_vh_clean_2.labels.ply": LABELS_MESH.encode(),
    "_vh_clean_2.0.010000.segs.json": tiny.segments_file(),
    ".aggregation.json": tiny.aggregation_file(),
    ".txt": tiny.info_file(),
    "_vh_clean.aggregation.json": tiny.aggregation_file(),
    "_vh_clean.segs.json": tiny.segments_file(ids=[0] * 7),
    "_vh_clean.ply": HIGH.encode(),
    ".sens": make_stream(),
    "_2d-instance.zip": ZIP_BYTES,
    "_2d-instance-filt.zip": ZIP_BYTES,
    "_2d-label.zip": ZIP_BYTES,
    "_2d-label-filt.zip": ZIP_BYTES,
    "scannetv2-labels.combined.tsv": LABEL_MAP,
    "scannet_frames_25k.zip": ZIP_BYTES,
    "scannet_frames_test.zip": ZIP_BYTES,
    "limited-reconstruction-scenes.zip": ZIP_BYTES,
    "limited-annotation-points.zip": ZIP_BYTES,
    "limited-bboxes.zip": ZIP_BYTES,
}
ALL_KINDS = KINDS | SHARED_KINDS


class Sum(Progress):
    """Adds up what is advanced."""

    def __init__(self):
        self.total = 0

    def advance(self, count=1):
        self.total += count


@pytest.mark.parametrize("name", ALL_KINDS)
def test_whole_files_are_accepted_and_cut_empty_or_foreign_ones_refused(tmp_path, name):
    kind = ALL_KINDS[name]
    data = WHOLE[name]
    path = tmp_path / "any name"
    path.write_bytes(data)
    progress = Sum()

    check_file(kind, path, tiny.SCENE_ID, progress)

    # The names and the directory of a zip file and the header of a stream are not counted.
    assert len(data) * 0.3 < progress.total <= len(data)
    with pytest.raises(FileError, match="no such file"):
        check_file(kind, Path(tmp_path / "missing"))
    damaged = {b"", b"<!DOCTYPE html><p>Not found", bytes(100), data[: len(data) // 2], b"{" * 5000}
    if kind.content == "aggregation":
        damaged.add(b'{"segGroups": [{"label": 5, "segments": []}]}')
    for content in damaged:
        path.write_bytes(content)
        with pytest.raises(FileError, match=r"any name: "):
            check_file(kind, path, tiny.SCENE_ID)


@pytest.mark.parametrize(
    ("suffix", "data", "message"),
    [
        (
            "_vh_clean_2.0.010000.segs.json",
            tiny.segments_file(scene_id="scene0001_00"),
            "sceneId is 'scene0001_00', expected scene0000_00",
        ),
        (
            ".aggregation.json",
            tiny.aggregation_file(scene_id="scene0001_00"),
            "sceneId is 'scene0001_00', expected scene0000_00",
        ),
        (".txt", tiny.info_file(alignment=None), "has no axisAlignment"),
    ],
)
def test_files_of_another_scene_are_refused_only_if_the_scene_is_given(
    tmp_path, suffix, data, message
):
    path = tmp_path / "file"
    path.write_bytes(data)

    check_file(KINDS[suffix], path)
    if suffix == ".txt":
        check_file(KINDS[suffix], path, tiny.TEST_SCENE_ID)
        check_file(KINDS[suffix], path, "room")
    with pytest.raises(FileError, match=message):
        check_file(KINDS[suffix], path, tiny.SCENE_ID)
