"""Files of a download that do not fit together, although each is whole."""

from __future__ import annotations

from pathlib import Path

import pytest

from scannet_prep.errors import FileError
from scannet_prep.raw.layout import AGGREGATION_SUFFIX, SEGMENTS_SUFFIX
from scannet_prep.release import KINDS
from scannet_prep.remote.catalog import RemoteFile, list_files
from scannet_prep.scene import SceneId, Split
from scannet_prep.stages.download import checks as check_download
from scannet_prep.stages.download.checks import check_file
from scannet_prep.synthetic import write_release

SCENE = SceneId("scene0000_00")


@pytest.fixture
def raw_dir(tmp_path: Path) -> Path:
    write_release(tmp_path, [SCENE], vertices=600)
    return tmp_path


def files_of(raw_dir: Path) -> tuple[RemoteFile, RemoteFile, Path]:
    kinds = [KINDS[SEGMENTS_SUFFIX], KINDS[AGGREGATION_SUFFIX]]
    segments, aggregation = list_files([(SCENE, Split.TRAIN)], kinds)
    return segments, aggregation, raw_dir / segments.local_path


def check(file: RemoteFile, raw_dir: Path) -> None:
    check_file(file, raw_dir / file.local_path, raw_dir)


def test_segments_are_read_once_for_their_own_check_and_that_of_the_aggregation(raw_dir: Path) -> None:
    segments, aggregation, path = files_of(raw_dir)
    arrived = path.with_name(".arrived")
    path.rename(arrived)
    check_download._read_segment_ids.cache_clear()
    check_file(segments, arrived, raw_dir)
    arrived.rename(path)
    check(aggregation, raw_dir)
    assert check_download._read_segment_ids.cache_info().misses == 1


def test_segments_that_have_changed_are_read_again(raw_dir: Path) -> None:
    segments, aggregation, path = files_of(raw_dir)
    check(segments, raw_dir)
    text = path.read_text()
    start = text.index("[") + 1
    count = text.count(",", start, text.index("]")) + 1
    path.write_text(f"{text[:start]}{','.join(['987654321'] * count)}{text[text.index(']') :]}")
    check(segments, raw_dir)
    with pytest.raises(FileError, match=r"none of which is in scene0000_00_vh_clean_2\.0\.010000\.segs\.json"):
        check(aggregation, raw_dir)
