"""One check for each kind of file of the release."""

import pytest
import tiny
from tiny import make_stream, make_zip

from scannet_prep.errors import FileError
from scannet_prep.raw.files import read_raw_file
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


@pytest.mark.parametrize("name", ALL_KINDS)
def test_whole_files_are_accepted_and_cut_empty_or_foreign_ones_refused(tmp_path, name):
    kind = ALL_KINDS[name]
    data = WHOLE[name]
    path = tmp_path / "any name"
    path.write_bytes(data)

    read_raw_file(kind, path)

    with pytest.raises(FileError, match="no such file"):
        read_raw_file(kind, tmp_path / "missing")
    damaged = {b"", b"<!DOCTYPE html><p>Not found", bytes(100), data[: len(data) // 2], b"{" * 5000}
    for content in damaged:
        path.write_bytes(content)
        with pytest.raises(FileError, match=r"any name: "):
            read_raw_file(kind, path)
