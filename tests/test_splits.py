"""The official lists, scene ids and split names."""

import pytest

from scannet_prep.errors import UnknownSceneError, UnknownSplitError
from scannet_prep.scene import SceneId, Split
from scannet_prep.splits import find_official_split, official_scenes


def test_the_official_lists_have_1201_312_and_100_scenes_of_different_spaces() -> None:
    lists = [official_scenes(split) for split in Split]
    assert [len(scenes) for scenes in lists] == [1201, 312, 100]
    assert len({scene for scenes in lists for scene in scenes}) == 1613
    train, val, test = ({scene.space for scene in scenes} for scenes in lists)
    assert len(train | val) == 707
    assert not any((train & val, train & test, val & test))
    assert {find_official_split(name) for name in ("scene0807_00", "scene9999_99", "", "scene0000_00 ")} == {None}
    for split, scenes in zip(Split, lists, strict=True):
        assert {find_official_split(scene) for scene in scenes} == {split}
    assert official_scenes(Split.TEST) == tuple(f"scene{space:04d}_00" for space in range(707, 807))
    firsts = [official_scenes(split)[0] for split in (Split.TRAIN, Split.VAL)]
    assert firsts == ["scene0191_00", "scene0568_00"], "they are not sorted"


def test_a_split_of_the_official_lists_may_be_a_word_and_must_be_one_of_three() -> None:
    assert official_scenes("val") == official_scenes(Split.VAL)
    with pytest.raises(UnknownSplitError, match="'training' is not a split"):
        official_scenes("training")


@pytest.mark.parametrize(
    "text",
    [
        "", "scene0000", "scene000_00", "scene0000_000", "Scene0000_00", "scene0000_00\n", "../scene0000_00",
        "scene\u0660\u0660\u0660\u0660_\u0660\u0660",
    ],
)  # fmt: skip
def test_other_texts_are_no_scene_ids(text: str) -> None:
    assert not SceneId.is_valid(text)
    with pytest.raises(UnknownSceneError, match="is not a scene id"):
        SceneId(text)
