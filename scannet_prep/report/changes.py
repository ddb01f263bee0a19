"""Describe how the same scene differs between two places, for people.

    facts of a record, or of a file      --> describe_facts
    arrays and groups of both scenes     --> describe_scenes, count_class_changes
    the changes of all scenes            --> fold_changes: a line for equal changes

`facts` finds out whether anything differs. This module only describes it.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

from scannet_prep.base.counts import count_of
from scannet_prep.base.failures import list_some
from scannet_prep.processed.annotate import AnnotatedGroup
from scannet_prep.processed.scene import ProcessedScene
from scannet_prep.release.label_sets import LabelSet
from scannet_prep.release.scene_warnings import SceneWarning
from scannet_prep.report.facts import NONE, Differences

_GROUPS = "groups"
# What matters most comes first.
_LABELS = (_GROUPS, "labels", "nyu40 ids", "ScanNet ids", "instances")
_RAW_FILE = "raw file"
# Each changed group has a line of its own, unless there are more of them.
_MAX_GROUP_LINES = 20
# Scenes are named unless there are more of them.
_MAX_NAMED_SCENES = 3
_ARRAY_NAMES = {
    "axis_alignment": "axis alignment",
    "nyu40_ids": "nyu40 ids",
    "scannet_ids": "ScanNet ids",
}
# What a row of an array is; a vertex by default.
_ROWS = {"axis_alignment": ("row", "rows"), "faces": ("face", "faces")}
_FINGERPRINT = re.compile(r"(?:^| )(size_bytes|crc32|sha256)$")
# The beginnings of names of facts, and what they are in words.
_WORDS = {
    "inputs ": f"{_RAW_FILE} ",
    "options ": "option ",
    "nyu40_counts ": "vertices of nyu40 id ",
    "scannet_counts ": "vertices of ScanNet id ",
}
_VALUE_FORMATS = {"size_bytes": "{} bytes", "crc32": "CRC-32 {}", "sha256": "SHA-256 {}"}
# Embeddings, overrides and isolates.
_BIDI_CONTROLS = re.compile("[\u202a-\u202e\u2066-\u2069]")
_DIGEST = re.compile(r"\b([0-9a-f]{16})[0-9a-f]{48}\b")


class Change(NamedTuple):
    """One way in which a scene differs.

    Attributes:
        subject: What differs, such as `axis alignment`, `groups`, `nyu40 ids`.
        detail: How it differs, such as `group 2: cloth -> table, 45 vertices`.
    """

    subject: str
    detail: str

    def __str__(self) -> str:
        """Return the change as a text; that of a group names the group itself."""
        if self.subject == _GROUPS:
            return self.detail
        return f"{self.subject}: {self.detail}"


ClassChanges: TypeAlias = Mapping[tuple[str, str], int]
"""The number of vertices by their class here and their class there, which differ."""


class SceneChanges(NamedTuple):
    """How a scene differs: the facts, and their description. All are empty for an equal scene.

    Attributes:
        differences: The facts that differ.
        changes: The same in words.
        classes: The vertices whose class differs; empty if the arrays are not compared.
    """

    differences: Differences
    changes: tuple[Change, ...]
    classes: ClassChanges


def shorten_digests(text: str) -> str:
    """Shorten each SHA-256 in a text to 16 digits."""
    return _DIGEST.sub(r"\1...", text)


def describe_facts(scene_id: str, differences: Differences) -> Iterator[Change]:
    """Describe facts that differ. Size and digest of a file are one change.

    Args:
        scene_id: The scene; empty for files that belong to no scene.
        differences: The facts.
    """
    details: dict[str, list[str]] = {}
    for name, (here, there) in differences.items():
        fingerprint = _FINGERPRINT.search(name)
        value_format = "{}"
        subject = name
        if fingerprint is not None:
            value_format = _VALUE_FORMATS[fingerprint[1]]
            subject = name[: fingerprint.start()] or "file of the scene"
        # Without the id, so that the files of all scenes have the same subject.
        if scene_id:
            subject = subject.replace(scene_id, "*")
        for start, words in _WORDS.items():
            if subject.startswith(start):
                subject = words + subject.removeprefix(start)
        values = f"{_format_value(name, here)} -> {_format_value(name, there)}"
        details.setdefault(subject, []).append(value_format.format(values))
    for subject, texts in details.items():
        yield Change(subject, ", ".join(texts))


def _format_value(name: str, value: str) -> str:
    """Format the value of a fact: counts with commas, digests shortened."""
    is_count = name.endswith("size_bytes") or "_counts " in name or name == "vertices"
    if is_count and value.isdecimal():
        return f"{int(value):,}"
    return shorten_digests(value)


def describe_warnings(
    here: Sequence[SceneWarning], there: Sequence[SceneWarning]
) -> Iterator[Change]:
    """Describe the warnings that only one place has."""
    for place, ours, others in (("here", here, there), ("there", there, here)):
        for warning in ours:
            if warning not in others:
                yield Change("warnings", f"only {place}: {warning.text}")


def describe_scenes(here: ProcessedScene, there: ProcessedScene) -> Iterator[Change]:
    """Describe how groups and arrays differ."""
    for detail in _describe_groups(here.meta.groups, there.meta.groups):
        yield Change(_GROUPS, detail)
    arrays_here = here.arrays()
    arrays_there = there.arrays()
    keys = [key for key in {**arrays_here, **arrays_there} if key != "meta"]
    # The alignment comes first: points and normals follow from it.
    keys.sort(key=lambda key: key != "axis_alignment")
    for key in keys:
        format_here = _value_format(key, here)
        format_there = _value_format(key, there)
        detail = _describe_array(
            key, arrays_here.get(key), arrays_there.get(key), format_here, format_there
        )
        if detail:
            yield Change(_ARRAY_NAMES.get(key, key), detail)


def count_class_changes(
    here: ProcessedScene, there: ProcessedScene, label_set: LabelSet
) -> ClassChanges:
    """Count the vertices whose class differs; none if the scenes have other numbers of vertices."""
    if len(here.points) != len(there.points):
        return {}
    ids_here = label_set.train_ids_from_raw_ids(getattr(here, label_set.raw_ids_key), -1)
    ids_there = label_set.train_ids_from_raw_ids(getattr(there, label_set.raw_ids_key), -1)
    is_changed = ids_here != ids_there
    pairs = np.stack([ids_here[is_changed], ids_there[is_changed]], axis=1)
    unique_pairs, counts = np.unique(pairs, axis=0, return_counts=True)
    changes = {}
    for (id_here, id_there), count in zip(unique_pairs, counts, strict=True):
        names = (_class_name(label_set, int(id_here)), _class_name(label_set, int(id_there)))
        changes[names] = int(count)
    return changes


def fold_changes(changes: Mapping[str, Sequence[Change]], compared_count: int) -> Iterator[str]:
    """Describe the changes of all scenes, with one line for what many scenes have in common.

    Args:
        changes: The changes of each scene that differs, by id.
        compared_count: The number of scenes that were compared.
    """
    by_subject: dict[str, dict[str, list[Change]]] = {}
    for scene_id, scene_changes in changes.items():
        for change in scene_changes:
            by_subject.setdefault(change.subject, {}).setdefault(scene_id, []).append(change)

    for subject in sorted(by_subject, key=_rank):
        by_scene = by_subject[subject]
        first_id, first_changes = next(iter(by_scene.items()))
        is_equal = all(scene_changes == first_changes for scene_changes in by_scene.values())
        where = _describe_scenes(list(by_scene), compared_count)
        if len(by_scene) > 1 and is_equal:
            for change in first_changes:
                yield f"{change}, {where}"
        elif _needs_one_line(subject, by_scene):
            verb = "differ" if subject.endswith("s") else "differs"
            yield f"{subject} {verb} {where}; {first_id}: {first_changes[0].detail}"
        else:
            for scene_id, scene_changes in by_scene.items():
                for change in scene_changes:
                    yield f"{scene_id}: {change}"


def _needs_one_line(subject: str, by_scene: Mapping[str, Sequence[Change]]) -> bool:
    """Whether the scenes that differ in one subject share a line, with the first as an example."""
    if subject == _GROUPS:
        return sum(map(len, by_scene.values())) > _MAX_GROUP_LINES
    return len(by_scene) > 1


def _rank(subject: str) -> int:
    """Return the place of a subject in the order of importance: labels first, causes last."""
    if subject in _LABELS:
        return _LABELS.index(subject)
    is_cause = subject.startswith(_RAW_FILE)
    return len(_LABELS) + 1 if is_cause else len(_LABELS)


def _describe_scenes(scene_ids: Sequence[str], compared_count: int) -> str:
    """Describe in which of the compared scenes something differs."""
    if len(scene_ids) == compared_count:
        return f"in all {compared_count:,} scenes"
    where = f"in {len(scene_ids):,} of {compared_count:,} scenes"
    if len(scene_ids) <= _MAX_NAMED_SCENES:
        where += f" ({list_some(scene_ids)})"
    return where


def _describe_groups(
    here: Sequence[AnnotatedGroup], there: Sequence[AnnotatedGroup]
) -> Iterator[str]:
    """Describe the groups that differ, except for their boxes, which follow from the points."""
    groups_here = {group.id: group for group in here}
    groups_there = {group.id: group for group in there}
    for group_id in sorted({**groups_here, **groups_there}):
        old = groups_here.get(group_id)
        new = groups_there.get(group_id)
        if old is None and new is not None:
            yield f"group {group_id}: none -> {_describe_group(new)}"
        elif new is None and old is not None:
            yield f"group {group_id}: {_describe_group(old)} -> none"
        elif old is not None and new is not None:
            detail = _describe_regrouping(old, new)
            if detail:
                yield f"group {group_id}: {detail}"


def _describe_group(group: AnnotatedGroup) -> str:
    return f"{_isolate(group.raw_category)}, {_count_vertices(group.vertex_count)}"


def _describe_regrouping(old: AnnotatedGroup, new: AnnotatedGroup) -> str:
    """Describe how a group differs; empty if at most its box does."""
    fields = ["object_id", "aliases", "segment_count"]
    is_renamed = old.raw_category != new.raw_category
    if is_renamed:
        name = f"{_isolate(old.raw_category)} -> {_isolate(new.raw_category)}"
    else:
        name = _isolate(old.raw_category)
        # Another raw category has other ids, which need no mention.
        fields += ["nyu40_id", "scannet_id"]

    details = []
    if old.vertex_count != new.vertex_count:
        details.append(f"{old.vertex_count:,} -> {_count_vertices(new.vertex_count)}")
    elif is_renamed:
        details.append(_count_vertices(new.vertex_count))
    for field in fields:
        value_old = getattr(old, field)
        value_new = getattr(new, field)
        if value_old != value_new:
            details.append(f"{field.replace('_', ' ')} {value_old} -> {value_new}")
    return ", ".join([name, *details]) if details else ""


def _count_vertices(count: int) -> str:
    return count_of(count, "vertex", "vertices")


def _isolate(text: str) -> str:
    """Isolate a text that is written from right to left, so that numbers beside it stay in place.

    The characters around it, FSI and PDI, are invisible. Characters in it that would change the
    direction of what follows become visible, as their escapes.
    """
    text = _BIDI_CONTROLS.sub(lambda match: f"\\u{ord(match[0]):04x}", text)
    if any(unicodedata.bidirectional(letter) in ("R", "AL") for letter in text):
        return f"\u2068{text}\u2069"
    return text


def _describe_array(
    key: str,
    here: NDArray[Any] | None,
    there: NDArray[Any] | None,
    format_here: Callable[[Any], str],
    format_there: Callable[[Any], str],
) -> str:
    """Describe how an array differs: in how many rows, and in which one first. Empty if equal."""
    if here is None or there is None or here.shape != there.shape or here.dtype != there.dtype:
        shape_here = _describe_shape(here)
        shape_there = _describe_shape(there)
        return f"{shape_here} -> {shape_there}" if shape_here != shape_there else ""
    # Compare bytes, (rows, bytes), because NaN is not equal to itself.
    bytes_here = np.ascontiguousarray(here).reshape(len(here), -1).view(np.uint8)
    bytes_there = np.ascontiguousarray(there).reshape(len(there), -1).view(np.uint8)
    changed = np.flatnonzero((bytes_here != bytes_there).any(axis=1))
    if not len(changed):
        return ""
    first = int(changed[0])
    row, rows = _ROWS.get(key, ("vertex", "vertices"))
    value_here = format_here(here[first])
    value_there = format_there(there[first])
    return (
        f"{len(changed):,} of {len(here):,} {rows}, "
        f"first {row} {first}: {value_here} -> {value_there}"
    )


def _describe_shape(array: NDArray[Any] | None) -> str:
    return NONE if array is None else f"{array.dtype} {array.shape}"


def _value_format(key: str, scene: ProcessedScene) -> Callable[[Any], str]:
    """Return the function that formats a row of an array."""
    if key == "labels":
        label_set = scene.meta.options.label_set
        # The file holds train id + 1.
        return lambda value: _class_name(label_set, int(value) - 1)
    return _format_row


def _format_row(row: Any) -> str:  # noqa: ANN401 - a number, or an array of numbers
    """Format a row of an array: a number, or several in brackets."""
    numbers = np.atleast_1d(row).tolist()
    texts = [f"{number:.6g}" if isinstance(number, float) else str(number) for number in numbers]
    if np.ndim(row) == 0:
        return texts[0]
    return f"({', '.join(texts)})"


def _class_name(label_set: LabelSet, train_id: int) -> str:
    if not 0 <= train_id < len(label_set):
        return "unlabeled"
    return label_set.names[train_id]
