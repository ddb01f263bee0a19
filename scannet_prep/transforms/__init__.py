"""Transforms for training: each takes a sample and a random generator, and returns a new sample.

    transform = Compose(RotateZ(), Scale(), Flip(), ColorJitter(), Normalize(), GridSample(0.02), CropPoints(200_000))
    dataset = ScanNet("data/processed", split="train", transform=transform)

They are values: picklable, comparable, without a state. What they are given stays as it is. An array counts as one of
the vertices where its first dimension is the number of points, whatever its name, so arrays of yours are cropped and
dropped with the others; `inverse` (see `GridSample`) is the exception. Ids of instances and segments keep their values.
Move points first, then sample: what moves points leaves out `grid`, whose cells no longer hold.
"""

from scannet_prep.transforms.colors import ColorJitter
from scannet_prep.transforms.compose import Compose
from scannet_prep.transforms.positions import Flip, Jitter, Normalize, RotateZ, Scale
from scannet_prep.transforms.selection import CropPoints, Drop, GridSample

__all__ = [
    "ColorJitter",
    "Compose",
    "CropPoints",
    "Drop",
    "Flip",
    "GridSample",
    "Jitter",
    "Normalize",
    "RotateZ",
    "Scale",
]
