"""Reads annotated groups (`.aggregation.json`): which segments make up which group, in the annotator's words."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import msgspec

from scannet_prep.errors import AggregationError
from scannet_prep.files import Buffer, read_file
from scannet_prep.raw.json_text import Id, parse_document, parse_id, parse_name
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
    document = parse_document(data, path, AggregationError, _Document)
    return Aggregation(
        scene_id=parse_name(document.sceneId),
        segments_name=parse_name(document.segmentsFile),
        groups=tuple(_make_group(item, f"segGroups[{index}]", path) for index, item in enumerate(document.segGroups)),
    )


class _Group(msgspec.Struct):
    """An entry of `segGroups` as it is written."""

    label: Annotated[str, msgspec.Meta(max_length=_MAX_CATEGORY_LENGTH)]
    segments: list[Id]
    id: Id = None
    objectId: Id = None  # noqa: N815 - the file's name for it


class _Document(msgspec.Struct):
    """The file as it is written."""

    segGroups: list[_Group]  # noqa: N815
    sceneId: Any = None  # noqa: N815
    segmentsFile: Any = None  # noqa: N815


def _make_group(item: _Group, place: str, path: Path) -> Group:
    def read(value: Id, name: str) -> int | None:
        return parse_id(value, f"{place}.{name}", path, AggregationError)

    ids = [read(value, f"segments[{index}]") for index, value in enumerate(item.segments)]
    known = tuple(value for value in ids if value is not None)
    return Group(read(item.id, "id"), read(item.objectId, "objectId"), item.label, known, len(ids) - len(known))
