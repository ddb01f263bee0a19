"""How far a sampler has come, as plain values for a checkpoint."""

from __future__ import annotations

import zlib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from scannet_prep.errors import UsageError

_VERSION = 1
_FRESH = "to begin an epoch afresh, leave the state out and call set_epoch(epoch)"


@dataclass(frozen=True, slots=True)
class Settings:
    """What plans depend on, beside epoch and number of ranks; the same when an epoch goes on as when it began.

    Attributes:
        seed: Of the order.
        shuffle: Whether there is one.
        max_points: Vertices in a batch.
        max_scenes: Scenes in a batch; None for any number.
        scene_count: Number of scenes.
        lengths_crc32: CRC-32 of their vertex counts, little-endian int64.
    """

    seed: int
    shuffle: bool
    max_points: int
    max_scenes: int | None
    scene_count: int
    lengths_crc32: int

    @classmethod
    def from_lengths(
        cls, lengths: NDArray[np.int64], *, seed: int, shuffle: bool, max_points: int, max_scenes: int | None
    ) -> Self:
        """Take the digest of the lengths."""
        return cls(seed, shuffle, max_points, max_scenes, len(lengths), zlib.crc32(lengths.astype("<i8").tobytes()))


@dataclass(frozen=True, slots=True)
class Progress:
    """How far an epoch has come.

    Attributes:
        epoch: The epoch.
        stretches: Number of ranks and steps done, for each stretch between which the number of ranks has changed.
    """

    epoch: int = 0
    stretches: tuple[tuple[int, int], ...] = ()

    def add(self, world_size: int, steps: int) -> Progress:
        """So many steps further."""
        if not steps:
            return self
        *before, last = self.stretches or ((world_size, 0),)
        if last[0] == world_size:
            return Progress(self.epoch, (*before, (world_size, last[1] + steps)))
        return Progress(self.epoch, (*self.stretches, (world_size, steps)))


def state_to_json(settings: Settings, progress: Progress) -> dict[str, Any]:
    """Plain values, for `torch.save` or JSON."""
    return {
        "version": _VERSION,
        "epoch": progress.epoch,
        "stretches": [list(stretch) for stretch in progress.stretches],
        **{name: getattr(settings, name) for name in Settings.__slots__},
    }


def progress_from_json(state: Mapping[str, Any], settings: Settings) -> Progress:
    """Read what `state_to_json` gave.

    Raises:
        UsageError: It is something else, or of a sampler with other settings, whose batches were different ones.
    """
    try:
        version = state["version"]
        found = {name: state[name] for name in Settings.__slots__}
        stretches = tuple((int(world_size), int(steps)) for world_size, steps in state["stretches"])
        progress = Progress(int(state["epoch"]), stretches)
    except (KeyError, TypeError, ValueError):
        version = None
    if version != _VERSION or progress.epoch < 0 or any(min(stretch) < 1 for stretch in stretches):
        raise UsageError(f"this is no state of a PointBudgetBatchSampler: {state!r:.200}", _FRESH)
    for name, value in found.items():
        if value != getattr(settings, name):
            raise _make_mismatch(name, value, getattr(settings, name))
    return progress


def _make_mismatch(name: str, old: object, new: object) -> UsageError:
    if name in {"scene_count", "lengths_crc32"}:
        what = f"{old} scenes then, {new} now" if name == "scene_count" else "as many, but of other lengths"
        return UsageError(f"the sampler's state was saved with other scenes: {what}", _FRESH)
    return UsageError(
        f"the sampler's state was saved with {name}={old!r}, this sampler has {name}={new!r}: "
        "the rest of the epoch cannot be known",
        f"make the sampler with {name}={old!r}; {_FRESH}",
    )
