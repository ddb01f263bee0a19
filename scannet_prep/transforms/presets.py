"""The training pipelines of other programs, with their parameters, and Pointcept's test-time augmentation."""

from __future__ import annotations

from scannet_prep.transforms import arguments, colors, motion, selection
from scannet_prep.transforms.steps import Compose, Sometimes, Step

_ORIGIN = (0.0, 0.0, 0.0)
# In metres; (0.05, 0.1) to (0.4, 0.8) in units of 10.24 m (OctFormer, datasets/scannet.py).
_OCTFORMER_PAIRS = ((0.512, 1.024), (1.024, 2.048), (2.048, 4.096), (4.096, 8.192))


def pointcept(
    *, grid_size: float = 0.02, point_max: int = 102_400, shuffle: bool = False
) -> Compose:
    """Make the training pipeline of Pointcept for semantic segmentation of ScanNet and ScanNet200.

    As configs/scannet/semseg-pt-v3m1-0-base.py (PTv3) has it. For SpUNet
    (semseg-spunet-v1m1-0-base.py), pass `point_max=100_000, shuffle=True`. Both mix with probability
    0.8 (`Mix3D(collate_torch)`). Next is `convert.to_pointcept`, which makes the features.

    Differences from Pointcept at commit d74c646:

    - Colours are rounded to uint8 after each step; there they are float32.
    - The last `CenterShift` is left out, because it would move the points off the cells in `grid`.
      What these two networks compute depends on the cells only.
    - The vertex of a cell is drawn with equal chances. There, a random number below the size of the
      fullest cell is taken modulo the size of the cell, which prefers some vertices.
    - Vertices stay in the order of the mesh, unless shuffled. There, they come in random order from
      `RandomDropout`, by hash from `GridSample`, and by distance from `SphereCrop`.
    - The number of dropped vertices is rounded; there, the number of kept ones is rounded down.
    - Normal noise is cut at 4.3 times its standard deviation.

    With limited annotations (`points=`), as with `la_file` there, annotated vertices are kept by
    `Drop` and `GridSample`, and only lost outside of the crop. Differences:

    - In a cell with annotated vertices, only these stay. There, the vertex that was drawn for the
      cell stays beside them.
    - `instances` of all other vertices are -1, as `labels` are; there, instances stay.

    Args:
        grid_size: Edge of a voxel, metres.
        point_max: Points that a scene may have.
        shuffle: Whether the points get another order.
    """
    is_shuffled = arguments.check("pointcept", "shuffle", shuffle, arguments.flag(), hint=pointcept)
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
        [selection.ShufflePoint()] if is_shuffled else [],
    )


def octformer(*, max_npt: int = 120_000, crop_ratio: float = 0.8) -> Compose:
    """Make the training pipeline of OctFormer for ScanNet and ScanNet200.

    As configs/seg_scannet.yaml and seg_scannet200.yaml, datasets/scannet.py and `Transform` of ocnn
    have it, in metres: lengths that are given there in units of 10.24 m are multiplied. Next is
    `convert.to_ocnn` with its scale of 10.24, and an octree of depth 11.

    Differences:

    - Angles are not whole degrees.
    - Colours are rounded to uint8 after each step.
    - The lowest point, and not the middle of the height, is at z = 0 before the scene is turned,
      which is no difference after the last step.

    Args:
        max_npt: Points that a scene may have.
        crop_ratio: Share of the points that stays at most.
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
    """Make the training pipeline of Mask3D for ScanNet and ScanNet200, as far as it is of one scene.

    As datasets/semseg.py, conf/augmentation/volumentations_aug.yaml and albumentations_aug.yaml, and
    conf/data have it. Colours come normalized (`NormalizeColor`), for `InstanceTargets(label_set)`
    next.

    Differences:

    - Normals are reflected and scaled with the points.
    - A reflection is about the origin, and not about the middle.
    - Rotations are about the origin.
    - Colours are rounded after `RandomBrightnessContrast` and after `ColorJitter`. albumentations
      1.2.1, which Mask3D requires, rounds them down in both steps
      (albumentations/augmentations/functional.py): there, colours are darker by half a level of 255
      after each step, on average.
    - Colours are normalized with the mean and deviation in its code. Its configuration reads them
      from a file that its preprocessing makes.

    Args:
        voxel_size: Edge of a voxel, metres.
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
    """Make the 13 views of Pointcept's test-time augmentation, none of them random.

    Four right angles about z at scales 1, 0.95 and 1.05, then both reflections (`aug_transform` of
    configs/scannet/semseg-pt-v3m1-0-base.py). Center the scene before (`CenterShift`), and divide each view into
    `fragments`.
    """
    turned = (
        Compose(motion.RandomRotate((angle, angle), "z", _ORIGIN), motion.Scale(scale, scale))
        for scale in (1.0, 0.95, 1.05)
        for angle in (0.0, 0.5, 1.0, 1.5)
    )
    return (*turned, motion.Flip(1.0))
