"""Samples of a few random vertices, and random generators, for transforms and batches."""

import numpy as np


def make_sample(count=40, seed=0):
    """Make a sample in which the label of a vertex is its index.

    `height` is a user's array of the vertices, and `boxes` one that has other rows.
    """
    generator = np.random.default_rng(seed)
    normals = generator.normal(size=(count, 3))
    return {
        "points": generator.uniform(-1, 2, (count, 3)).astype(np.float32),
        "normals": (normals / np.linalg.norm(normals, axis=1, keepdims=True)).astype(np.float32),
        "colors": generator.integers(0, 256, (count, 3), dtype=np.uint8),
        "labels": np.arange(count),
        "instances": generator.integers(-1, 3, count),
        "segments": generator.integers(0, 9, count),
        "height": np.arange(count) / 7,
        "vertex_keys": ["height"],
        "boxes": np.ones((count + 1, 6)),
        "scene_id": "scene0000_00",
    }


def rng(seed=0):
    return np.random.default_rng(seed)
