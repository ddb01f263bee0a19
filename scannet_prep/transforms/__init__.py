"""Transforms for training: each takes a sample and a random generator, and returns a new sample.

    transform = Compose(RotateZ(), Scale(), Flip(), ColorJitter(), Normalize(), GridSample(0.02), CropPoints(200_000))
    dataset = ScanNet("data/processed", split="train", transform=transform)

They are values: picklable, comparable, without a state. They do not change the sample that they are
given. An array counts as one of the vertices if its first dimension is the number of points,
whatever its name, so arrays of yours are cropped and dropped with the others; `inverse` (see
`GridSample`) is the exception. Ids of instances and segments keep their values.

Move points first, then sample: transforms that move points leave out `grid`, whose cells no longer
hold, boxes and centres of instances, and `axis_alignment`, because points that were moved are in
neither of its two frames.

`annotated`, bool (V,), marks the vertices of limited annotations (`ScanNet(points=...)`): `GridSample`
and `Drop` keep all of them. A crop keeps those inside.

`label_set` is the name of the label set of `labels`: transforms that depend on classes
(`InstanceTargets`, `CropPoints(classes=...)`) refuse labels of the other one. A dict without this key
is accepted.

The docstrings give the names and parameters of the same transforms in other programs.
"""

from scannet_prep.transforms.colors import (
    ChromaticAutoContrast,
    ColorJitter,
    HueSaturationTranslation,
    Normalize,
    NormalizeColor,
    RandomBrightnessContrast,
    RandomColorGrayScale,
    RandomDropColor,
    RandomDropNormal,
)
from scannet_prep.transforms.mixing import Mix3D, mix
from scannet_prep.transforms.motion import (
    CenterShift,
    ClipGaussianJitter,
    ElasticDistortion,
    Flip,
    Jitter,
    RandomRotate,
    RandomShift,
    RotateZ,
    Scale,
)
from scannet_prep.transforms.presets import mask3d, octformer, pointcept, views_for_testing
from scannet_prep.transforms.selection import (
    CropBox,
    CropPoints,
    Drop,
    GridSample,
    ShufflePoint,
    fragments,
    merge_fragments,
)
from scannet_prep.transforms.steps import Compose, Sometimes
from scannet_prep.transforms.targets import (
    InstanceTargets,
    instance_masks,
    pool_segments,
    unique_segments,
)

__all__ = [
    "CenterShift", "ChromaticAutoContrast", "ClipGaussianJitter", "ColorJitter", "Compose", "CropBox", "CropPoints",
    "Drop", "ElasticDistortion", "Flip", "GridSample", "HueSaturationTranslation", "InstanceTargets", "Jitter",
    "Mix3D", "Normalize", "NormalizeColor", "RandomBrightnessContrast", "RandomColorGrayScale", "RandomDropColor",
    "RandomDropNormal", "RandomRotate", "RandomShift", "RotateZ", "Scale", "ShufflePoint", "Sometimes", "fragments",
    "instance_masks", "mask3d", "merge_fragments", "mix", "octformer", "pointcept", "pool_segments",
    "unique_segments", "views_for_testing",
]  # fmt: skip
