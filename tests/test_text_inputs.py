"""Text files that people write are read in one way; names of other programs are recognized."""

from functools import partial

import pytest
from commands import TEST, TRAIN, VAL

from scannet_prep import ScanNet
from scannet_prep.errors import FileError, UnknownSceneError
from scannet_prep.raw.files import read_raw_file
from scannet_prep.raw.lock import read_tree_lock
from scannet_prep.release.files import INFO
from scannet_prep.release.label_map import read_label_map
from scannet_prep.release.scenes import read_scene_list
from scannet_prep.stages.selection import parse_scene_ids

READERS = {
    "list": (read_scene_list, [TRAIN, VAL]),
    "info": (
        partial(read_raw_file, INFO),
        ["axisAlignment = 1 0 0 0 0 1 0 0 0 0 1 0 0 0 0 1", "sceneType = a"],
    ),
    "label map": (read_label_map, ["id\traw_category \tnyu40id ", " 1\twall #1\t 1"]),
    "scannet.lock": (lambda path: read_tree_lock(path.parent), [f"{'0' * 64}  1  scans/a#b"]),
}


def plain(value):
    """Make values of all readers comparable."""
    if hasattr(value, "axis_alignment"):
        return value.axis_alignment.tolist(), value.scene_type
    return getattr(value, "rows", value)


@pytest.mark.parametrize("name", READERS)
def test_text_is_read_with_any_mark_line_ends_blank_lines_and_comments(tmp_path, name):
    read, lines = READERS[name]
    path = tmp_path / name
    path.write_text("\n".join([*lines, ""]))
    expected = plain(read(path))

    for mark in ("", "\ufeff"):
        for end in ("\n", "\r\n", "\r\r\n", "\r"):
            for before in ((), ("  # by hand: a = b", ""), ("",)):
                path.write_bytes((mark + end.join([*before, *lines, " ", "# end", ""])).encode())
                assert plain(read(path)) == expected, (mark, end, before)
    path.write_bytes("\n".join(lines).encode("utf-16"))
    with pytest.raises(FileError, match=f"{name}: is not UTF-8 text: byte 0 is 0xff"):
        read(path)


@pytest.mark.parametrize(
    "line",
    [
        f"{TRAIN}.npz",
        f"{TRAIN}_vh_clean_2.ply",
        f"scans/{TRAIN}",
        TRAIN.removeprefix("scene"),
        f"{TRAIN},{VAL}",
        f'["{TRAIN}"]',
        TRAIN.upper(),
    ],
)
def test_names_of_other_programs_are_refused_with_the_scene_that_is_meant(
    whole_dir, tmp_path, line
):
    listed = tmp_path / "list.txt"
    listed.write_text(f"{line}\n")

    def open_scenes(scenes):
        return ScanNet(whole_dir / "processed", split="train", scenes=scenes)

    ways = ((parse_scene_ids, [f"@{listed}"]), (open_scenes, listed))
    for select, scenes in ways:
        with pytest.raises(UnknownSceneError) as caught:
            select(scenes)
        assert caught.value.hint == f"did you mean {TRAIN}?"
    listed.write_text("\n# none\n")
    for select, scenes in ways:
        with pytest.raises(FileError, match=r"list\.txt: names no scene"):
            select(scenes)
    for name in (TEST, "scene9999_00", "room", "123456_00.npz"):
        with pytest.raises(UnknownSceneError) as caught:
            open_scenes([name])
        assert "did you mean" not in caught.value.hint
