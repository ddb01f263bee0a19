"""Training pipelines of other programs, and the test-time augmentation of Pointcept."""

from __future__ import annotations

from scannet_prep.transforms import arguments, colors, motion, selection
from scannet_prep.transforms.steps import Compose, Sometimes, Step

_ORIGIN = (0.0, 0.0, 0.0)
# Metres. In OctFormer's unit of 10.24 m, these are (0.05, 0.1) to (0.4, 0.8) (datasets/scannet.py).
_OCTFORMER_PAIRS = ((0.512, 1.024), (1.024, 2.048), (2.048, 4.096), (4.096, 8.192))


def pointcept(
    *, grid_size: float = 0.02, point_max: int = 102_400, shuffle: bool = False
) -> Compose:
    """Return Pointcept's training pipeline for semantic segmentation of ScanNet and ScanNet200.

    The parameters are those of PTv3 (configs/scannet/semseg-pt-v3m1-0-base.py). For SpUNet
    (semseg-spunet-v1m1-0-base.py), pass `point_max=100_000, shuffle=True`. Both mix scenes with
    probability 0.8 (`Mix3D(collate_torch)`). Apply `convert.to_pointcept` to the batch; it makes
    the features.

    Differences from Pointcept at commit d74c646:

    - Colours are rounded to uint8 after each step. Pointcept keeps float32.
    - The last `CenterShift` is omitted, because it would move the points off the cells in `grid`.
      The results of these two networks depend on the cells only.
    - The vertex of a cell is drawn uniformly. Pointcept takes a random number below the size of the
      fullest cell, modulo the size of the cell, which prefers some vertices.
    - Vertices keep the order of the mesh, unless shuffled. In Pointcept, `RandomDropout` leaves
      them in random order, `GridSample` ordered by hash, and `SphereCrop` ordered by distance.
    - The number of dropped vertices is rounded. Pointcept rounds the number of kept ones down.
    - Normal noise is clipped at 4.3 standard deviations.

    With limited annotations (`points=` here, `la_file` in Pointcept), `Drop` and `GridSample` keep
    the annotated vertices; only those outside of the crop are removed. Differences:

    - A cell with annotated vertices keeps only these. Pointcept also keeps the vertex that was
      drawn for the cell.
    - `instances` of the other vertices are -1, like their `labels`. Pointcept keeps their
      instances.

    Args:
        grid_size: Edge of a voxel, metres.
        point_max: Largest number of points of a scene.
        shuffle: Whether to shuffle the points.

    Raises:
        UsageError: An argument is not accepted.
    """
    is_shuffled = arguments.check("pointcept", "shuffle", shuffle, arguments.flag(), hint=pointcept)
    last_steps = [selection.ShufflePoint()] if is_shuffled else []
    return Compose(
        motion.CenterShift(),
        Sometimes(selection.Drop(0.2), 0.2),
        Sometimes(motion.RandomRotate((-1, 1), "z", _ORIGIN), 0.5),
        Sometimes(motion.RandomRotate((-1 / 64, 1 / 64), "x"), 0.5),
        Sometimes(motion.RandomRotate((-1 / 64, 1 / 64), "y"), 0.5),
        motion.Scale(0.9, 1.1),
        motion.Flip(0.5),
        motion.Jitter(0.005, 0.02),
        Sometimes(motion.ElasticDistortion(((0.2, 0.4), (0.8, 1.6))), 0.95),
        Sometimes(colors.ChromaticAutoContrast(), 0.2),
        Sometimes(colors.ColorJitter(shift=0.05 * 255, noise=0), 0.95),
        Sometimes(colors.ColorJitter(shift=0, noise=0.05 * 255), 0.95),
        selection.GridSample(grid_size, has_inverse=False),
        selection.CropPoints(point_max),
        last_steps,
    )


def octformer(*, max_npt: int = 120_000, crop_ratio: float = 0.8) -> Compose:
    """Return OctFormer's training pipeline for ScanNet and ScanNet200.

    The steps and parameters are those of configs/seg_scannet.yaml, configs/seg_scannet200.yaml,
    datasets/scannet.py and ocnn's `Transform`. Lengths are in metres here; OctFormer's unit is
    10.24 m. Apply `convert.to_ocnn`, with its scale of 10.24, to the batch, and build an octree of
    depth 11.

    Differences from OctFormer:

    - Angles are not rounded to whole degrees.
    - Colours are rounded to uint8 after each step.
    - While the scene is rotated, its lowest point is at z = 0. In OctFormer, the middle of its
      height is. The last step removes this difference.

    Args:
        max_npt: Largest number of points of a scene.
        crop_ratio: Largest share of the points that a crop keeps.

    Raises:
        UsageError: An argument is not accepted.
    """
    return Compose(
        motion.CenterShift(),
        colors.ChromaticAutoContrast(),
        Sometimes(colors.ColorJitter(shift=0.1 * 255, noise=0), 0.95),
        Sometimes(colors.ColorJitter(shift=0, noise=0.05 * 255), 0.95),
        Sometimes(motion.ElasticDistortion(_OCTFORMER_PAIRS), 0.95),
        motion.Flip(0.5),
        motion.RandomRotate((-5 / 180, 5 / 180), "x", _ORIGIN),
        motion.RandomRotate((-5 / 180, 5 / 180), "y", _ORIGIN),
        motion.RandomRotate((-1, 1), "z", _ORIGIN),
        motion.RandomShift(((-1.024, 1.024),) * 3),
        motion.Scale(0.8, 1.2, anisotropic=True),
        selection.CropBox(0.99 * 10.24),
        selection.CropPoints(max_npt, crop_ratio),
        motion.CenterShift(apply_xy=False),
    )


def mask3d(*, voxel_size: float = 0.02) -> Compose:
    """Return Mask3D's training pipeline for ScanNet and ScanNet200, without its mixing of scenes.

    The steps and parameters are those of datasets/semseg.py, conf/data, and
    conf/augmentation/volumentations_aug.yaml and albumentations_aug.yaml. Colours are normalized by
    `NormalizeColor`. Add `InstanceTargets(label_set)` as the next step.

    Differences from Mask3D:

    - Normals are reflected and scaled with the points.
    - Reflections are about the origin, not about the middle.
    - Rotations are about the origin.
    - Colours are rounded after `RandomBrightnessContrast` and after `ColorJitter`. albumentations
      1.2.1, which Mask3D requires, rounds down in both steps
      (albumentations/augmentations/functional.py). On average, that makes colours darker by half a
      level of 255 in each step.
    - Colours are normalized with the mean and deviation in Mask3D's code. Its configuration reads
      them from a file that its preprocessing writes.

    Args:
        voxel_size: Edge of a voxel, metres.

    Raises:
        UsageError: The argument is not accepted.
    """
    return Compose(
        motion.RandomShift(),
        motion.Flip(0.5),
        Sometimes(motion.ElasticDistortion(((0.2, 0.4), (0.8, 1.6))), 0.95),
        motion.Scale(0.9, 1.1, anisotropic=True),
        motion.RandomRotate((-1, 1), "z", _ORIGIN),
        motion.RandomRotate((-1 / 24, 1 / 24), "y", _ORIGIN),
        motion.RandomRotate((-1 / 24, 1 / 24), "x", _ORIGIN),
        colors.RandomBrightnessContrast(0.2, 0.2),
        colors.ColorJitter(shift=20, noise=0),
        colors.NormalizeColor(),
        selection.GridSample(voxel_size),
    )


def views_for_testing() -> tuple[Step, ...]:
    """Return the 13 views of Pointcept's test-time augmentation, none of them random.

    The views are the four right angles about z at scales 1, 0.95 and 1.05, and both reflections
    together (`aug_transform` of configs/scannet/semseg-pt-v3m1-0-base.py). Centre the scene before
    (`CenterShift`), and divide each view into `fragments`.
    """
    views: list[Step] = []
    for scale in (1.0, 0.95, 1.05):
        for angle in (0.0, 0.5, 1.0, 1.5):
            rotation = motion.RandomRotate((angle, angle), "z", _ORIGIN)
            views.append(Compose(rotation, motion.Scale(scale, scale)))
    return (*views, motion.Flip(1.0))
