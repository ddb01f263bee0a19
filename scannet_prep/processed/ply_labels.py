"""The labels of a scene's vertices in its `labels.ply`.

The release made this file and the groups from the same annotation: in ScanNet v2, they are equal
except for overlaps of groups. In ScanNet v1, the file holds ScanNet ids instead of nyu40 ids.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from scannet_prep.errors import FileError
from scannet_prep.processed.annotate import Annotation, index_segments
from scannet_prep.raw.files import Aggregation, Segmentation
from scannet_prep.release.irregularities import SceneWarning, WarningKind
from scannet_prep.release.label_map import MAX_NYU40_ID, builtin_label_map

# Labels of the release that are not nyu40 ids: 50 in scene0270_00 and scene0270_02, and 149 in
# scene0384_00.
_KNOWN_OUTSIDE_NYU40 = {50, 149}
# A segment, the smallest unit of both files, has at least 20 vertices, so a single wrong label of a
# segment exceeds this number.
_MAX_CONTRADICTIONS = 10
_V1_CAUSE = "a labels.ply of ScanNet v1 holds ScanNet ids, not nyu40 ids"
_HINT_V1 = (
    "if it is from the release, download it again; "
    "or take the labels from the groups: --labels-from aggregation"
)


def take_ply_labels(
    annotation: Annotation,
    labels: NDArray[np.uint16],
    path: Path,
    groups: tuple[Segmentation, Aggregation] | None,
) -> Annotation:
    """Replace the nyu40 ids of an annotation by those of a `labels.ply`.

    Ids 50 and 149 become 0 (unannotated). They are a warning, and so are contradictions to the
    groups at a few vertices.

    Args:
        annotation: The annotation by the groups.
        labels: The labels, (V,).
        path: The file, for messages.
        groups: The segments and groups of the scene; None if it has no groups.

    Raises:
        FileError: The file has other ids that are not nyu40 ids, or contradicts the groups.
    """
    warnings = list(annotation.warnings)
    is_outside = labels > MAX_NYU40_ID
    count = int(np.count_nonzero(is_outside))
    outside_ids = np.unique(labels[is_outside]).tolist()
    listed = ", ".join(map(str, outside_ids[:5]))
    if not _KNOWN_OUTSIDE_NYU40.issuperset(outside_ids):
        problem = (
            f"{count:,} of {len(labels):,} labels are not nyu40 ids (0 to {MAX_NYU40_ID}), "
            f"for example {listed}: {_V1_CAUSE}"
        )
        raise FileError(path, problem, _HINT_V1)
    if count:
        warnings.append(SceneWarning(WarningKind.LABELS_OUTSIDE_NYU40, listed, count))

    if groups is not None:
        contradicts = _find_contradictions(labels, *groups)
        count = int(np.count_nonzero(contradicts))
        if count > _MAX_CONTRADICTIONS:
            vertex = int(np.argmax(contradicts))
            problem = (
                f"the groups contradict {count:,} of {len(labels):,} labels, "
                f"for example that of vertex {vertex}: "
                f"{labels[vertex]}, by the groups {annotation.nyu40_ids[vertex]}: {_V1_CAUSE}"
            )
            raise FileError(path, problem, _HINT_V1)
        if count:
            warnings.append(SceneWarning(WarningKind.LABELS_CONTRADICT_GROUPS, count=count))
    nyu40_ids = np.where(is_outside, 0, labels).astype(np.uint8)
    return replace(annotation, nyu40_ids=nyu40_ids, warnings=tuple(warnings))


def _find_contradictions(
    labels: NDArray[np.integer],
    segmentation: Segmentation,
    aggregation: Aggregation,
) -> NDArray[np.bool_]:
    """Find the vertices of groups whose label in `labels.ply` cannot come from the groups.

    The release made both from the same annotation: a label is the nyu40 id of a group that contains
    the segment of the vertex. If groups overlap, the id of each of them is right. If the release's
    label map lacks the category of a group, any label is right. Labels beyond nyu40, and those of
    vertices in no group, are not compared: they show at most that a group is missing.

    Args:
        labels: (V,), non-negative; the labels of a `labels.ply`.
        segmentation: The segments of the same mesh.
        aggregation: The groups.

    Returns:
        bool (V,).
    """
    release_rows = builtin_label_map().rows
    # Which nyu40 ids (columns) fit each segment (rows); bool (S, 41).
    fits = np.zeros((len(segmentation.raw_ids), MAX_NYU40_ID + 1), np.bool_)
    groups = aggregation.groups
    for group, indices in zip(groups, index_segments(segmentation, groups), strict=True):
        row = release_rows.get(group.raw_category)
        if row is None:
            fits[indices] = True
        else:
            fits[indices, row.nyu40_id] = True
    fits[~fits.any(axis=1)] = True

    is_nyu40 = labels <= MAX_NYU40_ID
    columns = np.where(is_nyu40, labels, 0)
    is_contradiction: NDArray[np.bool_] = is_nyu40 & ~fits[segmentation.indices, columns]
    return is_contradiction
