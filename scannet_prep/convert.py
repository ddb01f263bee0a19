"""Conversion of batches to the inputs of other programs.

Each function takes a batch of `collate_torch`, on any device, and imports the other program when it
is called.

Colours may be uint8, as in the dataset, or the result of `Normalize` (-1..1). They are converted to
0..1. Other floats are refused because their range is unknown.
"""

from __future__ import annotations

from copy import copy
from operator import itemgetter
from typing import TYPE_CHECKING, Any

from scannet_prep.errors import UsageError

if TYPE_CHECKING:
    from torch import Tensor

# OctFormer's `ScanNetTransform` divides metres by this number, so that an octree cell of depth 10
# is 2 cm (https://github.com/octree-nn/octformer, datasets/scannet.py).
OCTFORMER_SCALE = 10.24


def to_ocnn(batch: dict[str, Any], *, scale: float = OCTFORMER_SCALE) -> Any:  # noqa: ANN401
    """Convert a batch to the points of ocnn, which are the input of OctFormer.

    The points of all scenes are joined, as by `ocnn.octree.merge_points`. Labels follow OctFormer's
    convention: train id + 1, and 0 for unlabeled (ignore index -1). Next, call
    `Octree(depth, full_depth, batch_size).build_octree(points)`.

    Args:
        batch: A batch with `normals`, and with points centred by `Normalize`.
        scale: Length in metres that becomes 1.

    Returns:
        An `ocnn.octree.Points`.

    Raises:
        UsageError: Points are farther from the origin than `scale`. The octree would be wrong.
    """
    from ocnn.octree import Points

    extent = float(batch["points"].abs().max())
    if extent > scale:
        raise UsageError(
            f"points reach {extent:.2f} m from the origin, expected at most {scale:g} m (scale)",
            "add Normalize() after the last transform that moves points, or pass a larger scale",
        )
    # The number of points up to the end of each scene, (scenes,).
    ends = batch["offset"]
    points = Points(
        batch["points"] / scale,
        batch["normals"],
        _unit_colors(batch),
        batch["labels"] + 1,
        batch_id=batch["batch"].unsqueeze(1),
        batch_size=len(ends),
    )
    # The number of points of each scene.
    points.batch_npt = ends.diff(prepend=ends.new_zeros(1))
    return points


def to_pyg(batch: dict[str, Any]) -> Any:  # noqa: ANN401
    """Convert a batch to a batch of torch_geometric.

    The result is that of `Batch.from_data_list` with one `Data` per scene.

    Args:
        batch: A batch with `normals`.

    Returns:
        A `torch_geometric.data.Batch` with `pos`, `x` (colours), `normal`, `y` (labels), `batch`
        and `ptr`.
    """
    from torch_geometric.data import Batch, Data

    points = Data(
        pos=batch["points"],
        x=_unit_colors(batch),
        normal=batch["normals"],
        y=batch["labels"],
    )
    # Not by `subgraph`, which needs edges before torch_geometric 2.5.
    return Batch.from_data_list(
        [
            copy(points).apply(itemgetter(batch["batch"] == number))
            for number in range(len(batch["offset"]))
        ]
    )


def to_pointcept(batch: dict[str, Any]) -> dict[str, Tensor]:
    """Convert a batch to the input of Pointcept's models, with the features of its configurations.

    The features and keys are those of configs/scannet (https://github.com/Pointcept/Pointcept).
    Pointcept's `NormalizeColor` (datasets/transform.py) divides colours by 255; in older releases,
    it scaled them to -1..1.

    Args:
        batch: A batch with `grid` and `normals`.

    Returns:
        A dict with `coord`, `grid_coord`, `feat` (colours in 0..1 and normals, as by
        `feat_keys=("color", "normal")`), `segment` (labels), `instance` and `offset`.

    Raises:
        UsageError: The batch has no `grid`.
    """
    import torch

    if "grid" not in batch:
        raise UsageError(
            "the batch has no grid",
            "add GridSample(0.02) after the last transform that moves points, or as step of Mix3D",
        )
    return {
        "coord": batch["points"],
        "grid_coord": batch["grid"].long(),
        "feat": torch.cat([_unit_colors(batch), batch["normals"]], dim=1),
        "segment": batch["labels"].long(),
        "instance": batch["instances"].long(),
        "offset": batch["offset"],
    }


def _unit_colors(batch: dict[str, Any]) -> Tensor:
    """Return the colours of a batch in 0..1, float32 (N, 3).

    Raises:
        UsageError: The colours are floats, but not the result of `Normalize`.
    """
    colors: Tensor = batch["colors"]
    if not colors.is_floating_point():
        return colors / 255

    # Undo `Normalize`, from -1..1 to 0..255. Its results become nearly whole numbers. Other floats,
    # such as colours in 0..1, are recognized by their fractions.
    levels = (colors.float() + 1) * 127.5
    nearest = levels.round().clamp(0, 255)
    if not ((levels - nearest).abs() < 0.1).all():
        raise UsageError(
            f"colors are {colors.dtype} from {colors.min():.3f} to {colors.max():.3f}, "
            "but not those of Normalize, and not uint8",
            "leave colours as they are: this function scales them as the other program expects",
        )
    return levels / 255
