"""Transforms for training: each takes a sample and a random generator, and returns a new sample.

    transform = Compose(
        RotateZ(), Scale(), Flip(), ColorJitter(), Normalize(),
        GridSample(0.02), CropPoints(200_000),
    )
    dataset = ScanNet("data/processed", split="train", transform=transform)

Transforms are values: picklable, comparable and without state. They do not change their input.

An array belongs to the vertices if its first dimension is the number of points, whatever its name,
so that your own arrays are cropped and dropped with the others. `inverse` (see `GridSample`) is the
exception. Ids of instances and segments keep their values.

Move points first, then sample. Transforms that move points remove the keys that no longer hold:
`grid`, the boxes and centres of instances, and `axis_alignment`, because moved points are in
neither of its two frames.

Two keys of the sample change what transforms do:

- `annotated`, bool (V,), marks the vertices of limited annotations (`ScanNet(points=...)`).
  `GridSample` and `Drop` keep all of them. A crop keeps those inside.
- `label_set` is the name of the label set of `labels`. Transforms that depend on classes
  (`InstanceTargets`, `CropPoints(classes=...)`) refuse labels of the other label set. A dict
  without this key is accepted.

The docstrings name the same transforms in other programs, with their parameters.
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
    "CenterShift", "ChromaticAutoContrast", "ClipGaussianJitter", "ColorJitter", "Compose",
    "CropBox", "CropPoints", "Drop", "ElasticDistortion", "Flip", "GridSample",
    "HueSaturationTranslation", "InstanceTargets", "Jitter", "Mix3D", "Normalize", "NormalizeColor",
    "RandomBrightnessContrast", "RandomColorGrayScale", "RandomDropColor", "RandomDropNormal",
    "RandomRotate", "RandomShift", "RotateZ", "Scale", "ShufflePoint", "Sometimes", "fragments",
    "instance_masks", "mask3d", "merge_fragments", "mix", "octformer", "pointcept", "pool_segments",
    "unique_segments", "views_for_testing",
]  # fmt: skip
