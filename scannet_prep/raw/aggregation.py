"""Reads annotated groups (`.aggregation.json`): which segments make up which group, in the annotator's words."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from scannet_prep.errors import AggregationError, ContentError
from scannet_prep.files import Buffer, read_file
from scannet_prep.raw.json_text import parse_json_object, parse_name, parse_optional_id, shorten
from scannet_prep.release import AGGREGATION

_MAX_CATEGORY_LENGTH = 1000


@dataclass(frozen=True, slots=True)
class Group:
    """One entry of `segGroups`.

    Attributes:
        id: The group's id; None where the file has null.
        object_id: The file's `objectId`, which may differ from `id`; None where it is null or missing.
        raw_category: The annotator's text, key of the label map.
        segment_ids: Raw segment ids, as the file has them, without nulls.
        null_count: How many segment ids were null.
    """

    id: int | None
    object_id: int | None
    raw_category: str
    segment_ids: tuple[int, ...]
    null_count: int = 0


@dataclass(frozen=True, slots=True)
class Aggregation:
    """The groups of one scene, in file order.

    Attributes:
        scene_id: As the file says it, without a leading `scannet.`; empty where it says nothing.
        segments_name: The file name that the ids refer to, without a leading `scannet.`; empty where it says nothing.
        groups: In file order; where groups overlap the last one wins.
    """

    scene_id: str
    segments_name: str
    groups: tuple[Group, ...]


def read_aggregation(path: Path) -> Aggregation:
    """Read annotated groups from a file.

    Raises:
        MissingFileError: There is no such file.
        AggregationError: It is damaged.
    """
    return parse_aggregation(read_file(path, AGGREGATION.max_bytes), path)


def parse_aggregation(data: Buffer, path: Path) -> Aggregation:
    """Parse the content of an `.aggregation.json` file.

    Args:
        data: The whole file.
        path: Its name, for messages.

    Raises:
        AggregationError: It is not a JSON object, or its groups are not as described.
    """
    document = parse_json_object(data, path, AggregationError)
    items = document.get("segGroups")
    if not isinstance(items, list):
        raise AggregationError(path, f"segGroups is {shorten(items)}, expected a list of groups")
    return Aggregation(
        scene_id=parse_name(document.get("sceneId")),
        segments_name=parse_name(document.get("segmentsFile")),
        groups=tuple(_parse_group(item, f"segGroups[{index}]", path) for index, item in enumerate(items)),
    )


def _parse_group(item: object, place: str, path: Path) -> Group:
    if not isinstance(item, dict):
        raise AggregationError(path, f"{place} is {shorten(item)}, expected an object")
    label, segments = item.get("label"), item.get("segments")
    if not isinstance(label, str):
        raise AggregationError(path, f"{place}.label is {shorten(label)}, expected a raw category")
    if len(label) > _MAX_CATEGORY_LENGTH:
        raise AggregationError(path, f"{place}.label has {len(label):,} characters, expected {_MAX_CATEGORY_LENGTH:,}")
    if not isinstance(segments, list):
        raise AggregationError(path, f"{place}.segments is {shorten(segments)}, expected a list of segment ids")
    ids: list[int | None] = segments
    if not all(type(value) is int for value in segments):
        ids = [_parse_id(value, f"{place}.segments[{index}]", path) for index, value in enumerate(segments)]
    known = tuple(value for value in ids if value is not None)
    return Group(
        id=_parse_id(item.get("id"), f"{place}.id", path),
        object_id=_parse_id(item.get("objectId"), f"{place}.objectId", path),
        raw_category=label,
        segment_ids=known,
        null_count=len(ids) - len(known),
    )


def _parse_id(value: object, place: str, path: Path) -> int | None:
    try:
        return parse_optional_id(value)
    except ContentError:
        raise AggregationError(path, f"{place} is {shorten(value)}, expected a whole number") from None
