"""Base class of the transforms, and the transforms `Compose` and `Sometimes`."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeAlias

from numpy.random import Generator

from scannet_prep.errors import UsageError
from scannet_prep.transforms.draft import AnySample, Draft

# A function of a sample, which is a dict or the TypedDict of the dataset, and a generator.
Step: TypeAlias = Callable[[Any, Generator], Any]

# Boxes change if points move, and if points are removed.
_BOX_KEYS = frozenset({"instance_boxes", "instance_centers"})
_MOVED_KEYS = _BOX_KEYS | {"grid", "axis_alignment"}
SELECTED_KEYS = _BOX_KEYS | {"faces"}


@dataclass(frozen=True)
class Transform:
    """Base of the transforms of this package."""

    def __call__(self, sample: AnySample, generator: Generator) -> Any:  # noqa: ANN401
        """Apply the transform to a sample, and return a new one.

        Args:
            sample: A sample of `ScanNet`, or a dict of arrays. It is not changed.
            generator: Random numbers, for example `numpy.random.default_rng(0)`.

        Returns:
            A sample; from `Compose`, the result of its last step.

        Raises:
            UsageError: The transform does not fit the sample.
        """
        return _finish(self.apply(sample, generator))

    def apply(self, state: Any, generator: Generator) -> Any:  # noqa: ANN401
        """Apply the transform to a sample or to a draft, and return either of the two."""
        draft = self._draft(state)
        self.change(draft, generator)
        return draft

    def change(self, draft: Draft, generator: Generator) -> None:
        """Change a draft."""
        raise NotImplementedError

    def _draft(self, state: Any) -> Draft:  # noqa: ANN401
        """Return the draft, or a new draft of the sample, without the keys that no longer hold."""
        name = type(self).__name__
        draft = state if isinstance(state, Draft) else Draft(state, name)
        draft.step_name = name
        draft.leave_out(_find_dropped_keys(self))
        return draft


class Moving(Transform):
    """A transform that moves points, after which cells, boxes and frame no longer hold."""


class Selecting(Transform):
    """A transform that selects vertices, after which faces and boxes no longer hold."""


@dataclass(frozen=True, init=False)
class Compose(Transform):
    """Applies transforms one after the other, with the same generator.

    The transforms of this package share their work: rows are copied once, after the last selection
    of vertices, and only then are colours and normals changed. Your own callable receives a
    complete sample, the result of all steps before it.

    Attributes:
        steps: Callables of (sample, generator). To be picklable, they must be defined at the top
            level of a module.

    Raises:
        UsageError: A step cannot be called, such as a list of steps.
    """

    steps: tuple[Step, ...]

    def __init__(self, *steps: Step) -> None:
        if not all(map(callable, steps)):
            raise UsageError(
                f"Compose: steps are {steps!r:.80}, expected transforms",
                "pass one after the other: Compose(Rotate(), Flip())",
            )
        # The class is frozen.
        object.__setattr__(self, "steps", steps)

    def apply(self, state: Any, generator: Generator) -> Any:  # noqa: ANN401
        """Apply the steps."""
        for step in self.steps:
            state = _apply(step, state, generator)
        return state


@dataclass(frozen=True)
class Sometimes(Transform):
    """Applies a transform with a probability, and otherwise does not change the arrays.

    It replaces the `p` of Pointcept's transforms. Because all samples of a batch must have the same
    keys, the keys that the transform removes (`grid`, `faces`, `axis_alignment`) are removed in
    either case. Do not use it for a transform that adds keys.

    Attributes:
        step: Any transform.
        p: Probability that the step is applied, 0..1.

    Raises:
        UsageError: It is not in 0..1.
    """

    step: Step
    p: float = 0.5

    def __post_init__(self) -> None:
        """Check the probability."""
        check_share("Sometimes: p", self.p)

    def apply(self, state: Any, generator: Generator) -> Any:  # noqa: ANN401
        """Apply the step with probability `p`."""
        if generator.random() < self.p:
            return _apply(self.step, state, generator)
        # Remove the keys that the step would have removed.
        return self._draft(state)


def check_share(name: str, value: float) -> None:
    """Check that a probability or a share is not, for example, a percentage.

    Raises:
        UsageError: It is not in 0..1.
    """
    if not 0 <= value <= 1:
        raise UsageError(f"{name} is {value}, expected a number from 0 to 1")


def _apply(step: Step, state: Any, generator: Generator) -> Any:  # noqa: ANN401
    """Apply a step to a sample or to a draft, and return either of the two."""
    if isinstance(step, Transform):
        return step.apply(state, generator)
    return step(_finish(state), generator)


def _find_dropped_keys(step: Step) -> frozenset[str]:
    """Find the keys that a step, or one of its steps, removes because they no longer hold."""
    if isinstance(step, Compose):
        return frozenset().union(*map(_find_dropped_keys, step.steps))
    if isinstance(step, Sometimes):
        return _find_dropped_keys(step.step)
    if isinstance(step, Moving):
        return _MOVED_KEYS
    return SELECTED_KEYS if isinstance(step, Selecting) else frozenset()


def _finish(state: Any) -> Any:  # noqa: ANN401
    """Return the sample of a draft. Anything else is returned unchanged."""
    return state.finish() if isinstance(state, Draft) else state
