"""Mix3D: two scenes in one, as a step of the collation."""

from __future__ import annotations

import zlib
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from scannet_prep.base.errors import UsageError
from scannet_prep.transforms import arguments
from scannet_prep.transforms.draft import AnySample, vertex_keys
from scannet_prep.transforms.steps import Checked, Step

_IDS = ("instances", "segments")


class Mix3D(
    Checked,
    collate=arguments.collate_function(),
    mix_prob=arguments.number(0, 1),
    step=arguments.optional(arguments.step()),
    seed=arguments.whole_number(0),
):
    """Mixes the scenes of a batch in pairs with a probability, and collates.

    `collate_fn=Mix3D(collate_torch)`. Of an odd number, the last stays alone. The `mix_prob` of
    Pointcept (`point_collate_fn`, pointcept/datasets/utils.py), 0.8 in most of its configurations
    for ScanNet; Nekrasov et al., Mix3D, 3DV 2021. All scenes should have their middle at the origin
    (`CenterShift`, `Normalize`).

    A collate function gets no generator. Random numbers come from (seed, first points of the batch)
    alone, which do not depend on workers, and differ from epoch to epoch.

    Attributes:
        collate: `collate`, `collate_torch`, or another.
        mix_prob: Probability that a batch is mixed, 0..1.
        step: A transform for each scene before it is collated, mixed or not. Put `GridSample` here:
            points of two scenes may share a voxel, which Pointcept leaves so.
        seed: Of the random numbers.
    """

    collate: Callable[[Sequence[AnySample]], Any]
    mix_prob: float = 0.8
    step: Step | None = None
    seed: int = 0

    def __call__(self, samples: Sequence[AnySample]) -> Any:  # noqa: ANN401 - what collate returns
        """Mix, and collate."""
        checksum = 0
        for sample in samples:
            first_points = np.ascontiguousarray(sample["points"][:64])
            checksum = zlib.crc32(first_points.tobytes(), checksum)
        generator = np.random.default_rng([self.seed, checksum])
        if generator.random() < self.mix_prob:
            samples = [mix(samples[start : start + 2]) for start in range(0, len(samples), 2)]
        if self.step is not None:
            samples = [self.step(sample, generator) for sample in samples]
        return self.collate(samples)


def mix(samples: Sequence[AnySample]) -> dict[str, Any]:
    """Join scenes into one.

    Args:
        samples: At least one, with the same keys.

    Returns:
        The arrays of the vertices, one scene after the other. Ids of instances and segments stay
        apart: those of a scene follow those of the scene before, and -1 stays -1. `scene_id` is that
        of all, joined by `+`; `label_set` stays. `transform_log` has one entry, with the scene ids
        and the logs of all. Everything else (`grid`, `inverse`, `faces`, `axis_alignment`, boxes of
        instances) does not hold for both, and is left out.

    Raises:
        UsageError: There are no scenes; their labels are of two label sets; or their arrays are not
            the same, by name, type and shape of a row.
    """
    if not samples:
        raise UsageError("mix: there are no scenes, expected at least one", "mix([first, second])")
    _check_label_sets(samples)
    result: dict[str, Any] = {}
    for key in vertex_keys(samples[0]):
        if key == "grid":
            continue
        arrays = [np.asarray(sample.get(key)) for sample in samples]
        if len({(array.dtype, array.shape[1:]) for array in arrays}) > 1:
            raise UsageError(
                f"scenes cannot be mixed: {key!r} differs in type or shape, or is missing in one",
                'ScanNet(..., keys=["points", "colors", "labels"]) for both, with the same transform',
            )
        if key in _IDS:
            arrays = _number_apart(arrays)
        result[key] = np.concatenate(arrays)
    if "label_set" in samples[0]:
        result["label_set"] = samples[0]["label_set"]
    if "scene_id" in samples[0]:
        result["scene_id"] = "+".join(sample["scene_id"] for sample in samples)
    logs = [sample["transform_log"] for sample in samples if "transform_log" in sample]
    if logs:
        scene_ids = [sample.get("scene_id") for sample in samples]
        parameters = {"scene_ids": scene_ids, "transform_logs": logs}
        result["transform_log"] = [{"name": "mix", "parameters": parameters}]
    return result


def _number_apart(arrays: Sequence[NDArray[Any]]) -> list[NDArray[Any]]:
    """Let the ids of each array follow those of the array before; -1 stays -1."""
    result = []
    start = 0
    for array in arrays:
        shift = np.where(array < 0, 0, start).astype(array.dtype)
        result.append(array + shift)
        start += int(array.max(initial=-1)) + 1
    return result


def _check_label_sets(samples: Sequence[AnySample]) -> None:
    """Check that the labels of all samples are of the same label set, as far as it is recorded."""
    names = {sample["label_set"] for sample in samples if "label_set" in sample}
    if len(names) > 1:
        raise UsageError(
            f"scenes cannot be mixed: their labels are of {' and '.join(sorted(names))}",
            "ScanNet(..., labels=SCANNET20) for all of them",
        )
