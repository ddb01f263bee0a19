"""Mix3D: joins scenes in pairs while a batch is collated."""

from __future__ import annotations

import zlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from scannet_prep.errors import UsageError
from scannet_prep.transforms.draft import AnySample, Columns, vertex_keys
from scannet_prep.transforms.steps import Step, check_share

# Arrays of ids that are unique within a scene only.
_ID_KEYS = ("instances", "segments")


@dataclass(frozen=True)
class Mix3D:
    """Mixes the scenes of a batch in pairs, with a probability, and collates the batch.

    Pass it to a loader: `collate_fn=Mix3D(collate_torch)`. If the number of scenes is odd, the last
    one stays alone. All scenes should have their middle at the origin (`CenterShift`, `Normalize`).

    Mix3D is from Nekrasov et al., 3DV 2021. Pointcept mixes in `point_collate_fn`
    (pointcept/datasets/utils.py), with `mix_prob` 0.8 in most of its configurations for ScanNet.

    A collate function receives no generator, so the random numbers depend on the seed and the first
    points of the batch only. They are the same for any number of workers, and differ between
    epochs.

    Attributes:
        collate: `collate`, `collate_torch`, or another function of a list of samples.
        mix_prob: Probability that a batch is mixed, 0..1.
        step: A transform that is applied to each scene before collation, mixed or not. Put
            `GridSample` here, because mixed scenes have no `grid`, and points of two scenes may
            share a voxel. Pointcept leaves such points in the batch.
        seed: Seed of the random numbers.

    Raises:
        UsageError: The probability is not in 0..1.
    """

    collate: Callable[[Sequence[AnySample]], Any]
    mix_prob: float = 0.8
    step: Step | None = None
    seed: int = 0

    def __post_init__(self) -> None:
        """Check the probability."""
        check_share("Mix3D: mix_prob", self.mix_prob)

    def __call__(self, samples: Sequence[AnySample]) -> Any:  # noqa: ANN401 - what collate returns
        """Mix the samples, apply the step, and collate."""
        checksum = 0
        for sample in samples:
            first_points = np.ascontiguousarray(sample["points"][:64])
            checksum = zlib.crc32(first_points.tobytes(), checksum)
        generator = np.random.default_rng([self.seed, checksum])

        if generator.random() < self.mix_prob:
            starts = range(0, len(samples), 2)
            samples = [mix(samples[start : start + 2]) for start in starts]
        if self.step is not None:
            samples = [self.step(sample, generator) for sample in samples]
        return self.collate(samples)


def mix(samples: Sequence[AnySample]) -> dict[str, Any]:
    """Join scenes into one.

    Args:
        samples: One or more samples with the same keys.

    Returns:
        A sample with

        - the arrays of the vertices, scene after scene. Ids of instances and segments are
          renumbered, so that no two scenes share an id; -1 stays -1;
        - `scene_id`: all scene ids, joined by `+`;
        - `label_set` and `vertex_keys`, as in the samples.

        Other keys (`grid`, `inverse`, `faces`, `axis_alignment`, boxes of instances) are removed,
        because they would not hold for all scenes.

    Raises:
        UsageError: The labels of the scenes belong to different label sets, or their arrays differ
            in name, type or shape of a row.
    """
    first = samples[0]
    label_sets = {sample.get("label_set") for sample in samples}
    if len(label_sets) > 1:
        raise UsageError(
            f"scenes cannot be mixed: their labels are of {sorted(map(str, label_sets))}",
            "choose one label set for all of them: ScanNet(..., labels=...)",
        )

    result: dict[str, Any] = {}
    # The keys of all samples, in the order of the first.
    keys = dict.fromkeys(key for sample in samples for key in vertex_keys(sample))
    for key in keys:
        if key == "grid":
            continue
        # A missing array becomes an array of None, whose type differs from all others.
        arrays = []
        row_types = set()
        for sample in samples:
            array = np.asarray(sample.get(key))
            arrays.append(array)
            row_types.add((array.dtype, array.shape[1:]))
        if len(row_types) > 1:
            raise UsageError(
                f"scenes cannot be mixed: {key!r} differs in type or shape, or is missing in one",
                "read all scenes with the same keys and the same transform",
            )
        if key in _ID_KEYS:
            arrays = _make_ids_distinct(arrays)
        result[key] = np.concatenate(arrays)

    for key in ("label_set", "vertex_keys"):
        if key in first:
            result[key] = first[key]
    if "scene_id" in first:
        result["scene_id"] = "+".join(sample["scene_id"] for sample in samples)
    return result


def _make_ids_distinct(arrays: Sequence[Columns]) -> list[Columns]:
    """Shift the ids of each array above those of the array before; -1 stays -1."""
    result = []
    start = 0
    for array in arrays:
        # Small integers, such as those of the files, would overflow.
        shifted = array.astype(np.result_type(array, np.int32))
        shifted[shifted >= 0] += start
        result.append(shifted)
        start = int(shifted.max(initial=start - 1)) + 1
    return result
