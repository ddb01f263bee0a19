"""Several transforms as one."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeAlias

import numpy as np

Sample: TypeAlias = dict[str, Any]
Step: TypeAlias = Callable[[Sample, np.random.Generator], Any]


class Compose:
    """Applies transforms one after the other, with the same generator.

    Args:
        steps: Callables of (sample, generator). They pickle if they stand at the top level of a module.

    Attributes:
        steps: As given.
    """

    def __init__(self, *steps: Step) -> None:
        self.steps = steps

    def __call__(self, sample: Sample, generator: np.random.Generator) -> Any:  # noqa: ANN401 - what the last returns
        """Apply them."""
        for step in self.steps:
            sample = step(sample, generator)
        return sample

    def __eq__(self, other: object) -> bool:
        """Whether the other applies equal transforms."""
        return isinstance(other, Compose) and self.steps == other.steps

    def __hash__(self) -> int:
        """Of the transforms."""
        return hash(self.steps)

    def __repr__(self) -> str:
        """As it is made."""
        return f"Compose({', '.join(map(repr, self.steps))})"
