"""Transforms for training: each takes a sample and a random generator, and returns a new sample.

    transform = Compose(
        Rotate(), Scale(), Flip(), ColorJitter(), Normalize(),
        GridSample(0.02), CropPoints(200_000),
    )
    dataset = ScanNet("data/processed", split="train", transform=transform)

Transforms are values: picklable, comparable and without state. They do not change their input.

Arrays of the vertices are known by name: those of `ScanNet`, and those that `sample["vertex_keys"]`
lists, so that your own arrays are cropped and dropped with the others. An array of unknown name
with a row for each vertex is refused. Ids of instances and segments keep their values.

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

from scannet_prep.transforms.colors import ChromaticAutoContrast, ColorJitter, Normalize
from scannet_prep.transforms.mixing import Mix3D, mix
from scannet_prep.transforms.motion import (
    CenterShift,
    ElasticDistortion,
    Flip,
    Jitter,
    Rotate,
    Scale,
)
from scannet_prep.transforms.presets import pointcept
from scannet_prep.transforms.selection import CropPoints, Drop, GridSample
from scannet_prep.transforms.steps import Compose, Sometimes
from scannet_prep.transforms.targets import InstanceTargets
from scannet_prep.transforms.testing import fragments, merge_fragments, views_for_testing

__all__ = [
    "CenterShift", "ChromaticAutoContrast", "ColorJitter", "Compose", "CropPoints", "Drop",
    "ElasticDistortion", "Flip", "GridSample", "InstanceTargets", "Jitter", "Mix3D", "Normalize",
    "Rotate", "Scale", "Sometimes", "fragments", "merge_fragments", "mix", "pointcept",
    "views_for_testing",
]  # fmt: skip
