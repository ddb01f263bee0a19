"""Batches in the forms that other programs want. Each function imports what it is for when it is called.

All take a batch of `collate_torch`, on any device. Colours may be as the dataset gives them (uint8) or as `Normalize`
leaves them (-1..1); these programs get them in 0..1. Others, as of `NormalizeColor`, are refused: their range cannot
be known.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from scannet_prep.base.errors import UsageError

if TYPE_CHECKING:
    from torch import Tensor

# OctFormer's `ScanNetTransform` divides metres by this, so that a cell of depth 10 is 2 cm
# (https://github.com/octree-nn/octformer, datasets/scannet.py).
OCTFORMER_SCALE = 10.24


def to_ocnn(batch: dict[str, Any], *, scale: float = OCTFORMER_SCALE) -> Any:  # noqa: ANN401 - ocnn.octree.Points
    """Make the points of ocnn, as OctFormer feeds them to its network.

    The points of all scenes, as `ocnn.octree.merge_points` joins them, with labels in OctFormer's convention: 0 stands
    for unlabeled (ignore index -1), else train id + 1. Next:
    `Octree(depth, full_depth, batch_size).build_octree(points)`.

    Args:
        batch: With `normals`, and points centred by `Normalize`.
        scale: Metres that become 1.

    Raises:
        UsageError: Points lie beyond the scale; an octree would be wrong without an error.
    """
    from ocnn.octree import Points

    extent = float(batch["points"].abs().max())
    if extent > scale:
        message = (
            f"points reach {extent:.2f} m from the origin, expected at most {scale:g} m (scale)"
        )
        raise UsageError(
            message,
            "add Normalize() after the last transform that moves points, or pass a larger scale",
        )
    points = Points(
        batch["points"] / scale, batch["normals"], _colors(batch), batch["labels"] + 1,
        batch_id=batch["batch"].unsqueeze(1), batch_size=len(batch["offset"]),
    )  # fmt: skip
    points.batch_npt = batch["offset"].diff(
        prepend=batch["offset"].new_zeros(1)
    )  # points of each scene
    return points


def to_pyg(batch: dict[str, Any]) -> Any:  # noqa: ANN401 - torch_geometric.data.Batch
    """Make the batch of torch_geometric: `pos`, `x` (colours), `normal`, `y` (labels), `batch` and `ptr`.

    It is what `Batch.from_data_list` makes of one `Data` for each scene, with `edge_index` where a transform has added
    it.
    """
    from torch_geometric.data import Batch

    others = {"edge_index": batch["edge_index"]} if "edge_index" in batch else {}
    starts = batch["offset"].new_zeros(len(batch["offset"]) + 1)
    starts[1:] = batch["offset"]
    return Batch(
        batch=batch["batch"], ptr=starts, pos=batch["points"], x=_colors(batch), normal=batch["normals"],
        y=batch["labels"], **others,
    )  # fmt: skip


def to_pointcept(batch: dict[str, Any]) -> dict[str, Tensor]:
    """Make the input dict of Pointcept's models, with the features of its ScanNet configurations.

    `coord`, `grid_coord`, `feat` (colours in 0..1, then normals, as `feat_keys=("color", "normal")` there), `segment`
    (labels), `instance`, and `offset` (https://github.com/Pointcept/Pointcept, configs/scannet and
    datasets/transform.py, where `NormalizeColor` divides by 255; it gave -1..1 in older releases).

    Raises:
        UsageError: There is no `grid`.
    """
    import torch

    if "grid" not in batch:
        raise UsageError(
            "the batch has no grid",
            "add GridSample(0.02) after the last transform that moves points",
        )
    return {
        "coord": batch["points"],
        "grid_coord": batch["grid"].long(),
        "feat": torch.cat([_colors(batch), batch["normals"]], dim=1),
        "segment": batch["labels"].long(),
        "instance": batch["instances"].long(),
        "offset": batch["offset"],
    }


def _colors(batch: dict[str, Any]) -> Tensor:
    """Colours in 0..1, float32 (N, 3); refuses floats that are not what `Normalize` makes of whole numbers."""
    colors: Tensor = batch["colors"]
    if not colors.is_floating_point():
        return colors / 255
    levels = (colors.float() + 1) * 127.5
    is_level = ((levels - levels.round()).abs() < 0.1) & (levels > -1) & (levels < 256)
    if not is_level.all():
        message = f"colors are {colors.dtype} from {colors.min():.3f} to {colors.max():.3f}, but not those of Normalize"
        raise UsageError(
            message,
            "leave them uint8, or to Normalize: this function scales them as the program wants",
        )
    return levels / 255
