"""Training pipeline of Pointcept."""

from __future__ import annotations

from scannet_prep.transforms import colors, motion, selection
from scannet_prep.transforms.steps import Compose, Sometimes

# Degrees: pi / 64.
_TILT = 180 / 64
_COLOR_CHANGE = 0.05 * 255


def pointcept(*, grid_size: float = 0.02, point_max: int = 102_400) -> Compose:
    """Return Pointcept's training pipeline for semantic segmentation of ScanNet and ScanNet200.

    The parameters are those of PTv3 (configs/scannet/semseg-pt-v3m1-0-base.py). For SpUNet
    (semseg-spunet-v1m1-0-base.py), pass `point_max=100_000`. Both mix scenes with probability 0.8:
    pass `collate_fn=Mix3D(collate_torch, step=GridSample(grid_size, has_inverse=False))` to the
    loader. The step finds the cells of the mixed points. Apply `convert.to_pointcept` to the batch;
    it makes the features.

    Differences from Pointcept at commit d74c646:

    - Colours are rounded to uint8 after each step. Pointcept keeps float32.
    - The last `CenterShift` is omitted, because it would move the points off the cells in `grid`.
      The results of these two networks depend on the cells only.
    - The vertex of a cell is drawn uniformly. Pointcept takes a random number below the size of the
      fullest cell, modulo the size of the cell, which prefers some vertices.
    - Vertices keep the order of the mesh. In Pointcept, `RandomDropout` leaves them in random
      order, `GridSample` ordered by hash, and `SphereCrop` ordered by distance; for SpUNet,
      `ShufflePoint` follows.
    - The number of dropped vertices is rounded. Pointcept rounds the number of kept ones down.

    With limited annotations (`points=` here, `la_file` in Pointcept), `Drop` and `GridSample` keep
    the annotated vertices; only those outside of the crop are removed. Differences:

    - A cell with annotated vertices keeps only these. Pointcept also keeps the vertex that was
      drawn for the cell.
    - `instances` of the other vertices are -1, like their `labels`. Pointcept keeps their
      instances.

    Args:
        grid_size: Edge of a voxel, metres.
        point_max: Largest number of points of a scene.
    """
    tilt_x = motion.Rotate(-_TILT, _TILT, "x", center=None)
    tilt_y = motion.Rotate(-_TILT, _TILT, "y", center=None)
    distortion = motion.ElasticDistortion()
    shift = colors.ColorJitter(shift=_COLOR_CHANGE, noise=0)
    noise = colors.ColorJitter(shift=0, noise=_COLOR_CHANGE)
    return Compose(
        motion.CenterShift(),
        Sometimes(selection.Drop(0.2), 0.2),
        Sometimes(motion.Rotate(), 0.5),
        Sometimes(tilt_x, 0.5),
        Sometimes(tilt_y, 0.5),
        motion.Scale(0.9, 1.1),
        motion.Flip(0.5),
        motion.Jitter(0.005, 0.02),
        Sometimes(distortion, 0.95),
        Sometimes(colors.ChromaticAutoContrast(), 0.2),
        Sometimes(shift, 0.95),
        Sometimes(noise, 0.95),
        selection.GridSample(grid_size, has_inverse=False),
        selection.CropPoints(point_max),
    )
