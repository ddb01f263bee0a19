"""Transforms for training: each takes a sample and a random generator, and returns a new sample.

    transform = Compose(RotateZ(), Scale(), Flip(), ColorJitter(), Normalize(), GridSample(0.02), CropPoints(200_000))
    dataset = ScanNet("data/processed", split="train", transform=transform)

They are values: picklable, comparable, without a state. What they are given stays as it is. An array counts as one of
the vertices where its first dimension is the number of points, whatever its name, so arrays of yours are cropped and
dropped with the others; `inverse` (see `GridSample`) is the exception. Ids of instances and segments keep their values.
Move points first, then sample: what moves points leaves out `grid`, whose cells no longer hold, and boxes and centres
of instances. What other programs call theirs, and with which parameters, stands in each docstring.
"""

from scannet_prep.transforms.colors import (
    ChromaticAutoContrast,
    ColorJitter,
    Normalize,
    NormalizeColor,
    RandomBrightnessContrast,
)
from scannet_prep.transforms.mixing import Mix3D, mix
from scannet_prep.transforms.motion import (
    CenterShift,
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
    "CenterShift", "ChromaticAutoContrast", "ColorJitter", "Compose", "CropBox", "CropPoints", "Drop",
    "ElasticDistortion", "Flip", "GridSample", "InstanceTargets", "Jitter",
    "Mix3D", "Normalize", "NormalizeColor", "RandomBrightnessContrast", "RandomRotate", "RandomShift", "RotateZ",
    "Scale", "ShufflePoint", "Sometimes", "fragments", "instance_masks", "mask3d", "merge_fragments", "mix",
    "octformer", "pointcept", "pool_segments", "unique_segments", "views_for_testing",
]  # fmt: skip
