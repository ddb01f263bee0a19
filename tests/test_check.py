"""One check for each kind of file of the release."""

import pytest
import tiny
from tiny import make_stream, make_zip

from scannet_prep.errors import FileError
from scannet_prep.raw.files import read_raw_file
from scannet_prep.release.files import KINDS, SHARED_KINDS

# By the format of a file.
WHOLE = {
    "mesh": tiny.Ply().encode(),
    "labels mesh": tiny.Ply(labels=tiny.NYU40_IDS).encode(),
    "segments": tiny.segments_file(),
    "aggregation": tiny.aggregation_file(),
    "info": tiny.info_file(),
    "label map": b"raw_category\tid\tnyu40id\nwall\t1\t1\n",
    "zip": make_zip(),
    "sensor stream": make_stream(),
}
ALL_KINDS = KINDS | SHARED_KINDS


@pytest.mark.parametrize("name", ALL_KINDS)
def test_whole_files_are_accepted_and_cut_empty_or_foreign_ones_refused(tmp_path, name):
    kind = ALL_KINDS[name]
    data = WHOLE[kind.content]
    path = tmp_path / "any name"
    path.write_bytes(data)

    read_raw_file(kind, path)

    damaged = {b"", b"<!DOCTYPE html><p>Not found", bytes(100), data[: len(data) // 2], b"{" * 5000}
    for content in damaged:
        path.write_bytes(content)
        with pytest.raises(FileError, match=r"any name: "):
            read_raw_file(kind, path)
