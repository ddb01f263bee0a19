"""Base classes of the transforms, and the transforms `Compose` and `Sometimes`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from inspect import get_annotations
from typing import Any, ClassVar, TypeAlias

import numpy as np
from numpy.random import Generator

from scannet_prep.base.backports import dataclass_transform
from scannet_prep.errors import UsageError
from scannet_prep.transforms import arguments
from scannet_prep.transforms.draft import AnySample, Draft

# A function of a sample, which is a dict or the TypedDict of the dataset, and a generator.
Step: TypeAlias = Callable[[Any, Generator], Any]
# The random numbers that a step has drawn for the whole scene, by name.
Parameters: TypeAlias = dict[str, Any]
# The name and the parameters of each step that was applied.
Log: TypeAlias = list[dict[str, Any]]

_HINT_COMPOSE = "Compose(RotateZ(), GridSample(0.02), record=True)"
# Boxes change if points move, and if points are removed.
_BOX_KEYS = ("instance_boxes", "instance_centers")


@dataclass_transform(frozen_default=True)
class Checked:
    """Base of frozen dataclasses whose arguments are checked and made hashable.

    Attributes:
        kinds: The kind of each argument, by name.
    """

    kinds: ClassVar[dict[str, arguments.Argument]] = {}

    def __init_subclass__(cls, **kinds: arguments.Argument) -> None:
        """Make a class with arguments a frozen dataclass, which checks them.

        Args:
            kinds: The kind of each argument, given in the class statement:
                `class Flip(Transform, probability=number(0, 1))`. Inherited kinds are kept.
        """
        cls.kinds = cls.kinds | kinds
        if get_annotations(cls):
            dataclass(frozen=True)(cls)

    def __post_init__(self) -> None:
        """Check the arguments."""
        name = type(self).__name__
        for key, kind in self.kinds.items():
            value = arguments.check(name, key, getattr(self, key), kind, hint=type(self))
            # Normal assignment would fail, because the class is frozen.
            object.__setattr__(self, key, value)


class Transform(Checked):
    """Base of the transforms of this package.

    Attributes:
        drops: Keys that no longer hold after the transform, and are removed.
    """

    drops: ClassVar[frozenset[str]] = frozenset()

    def __call__(self, sample: AnySample, generator: Generator | None = None) -> Any:  # noqa: ANN401
        """Apply the transform to a sample, and return a new one.

        Args:
            sample: A sample of `ScanNet`, or a dict of arrays. It is not changed.
            generator: Random numbers, for example `numpy.random.default_rng(0)`.

        Returns:
            A sample; from `Compose`, the result of its last step.

        Raises:
            UsageError: The generator is missing, or the transform does not fit the sample.
        """
        if not isinstance(generator, Generator):
            name = type(self).__name__
            call = "without rng" if generator is None else f"with rng={generator!r:.60}"
            raise UsageError(
                f"{name}: called {call}, "
                "expected transform(sample, rng) with a numpy.random.Generator",
                "transform(sample, numpy.random.default_rng(0))",
            )
        return _finish(self.apply(sample, generator, log=None))

    def apply(self, state: Any, generator: Generator, log: Log | None) -> Any:  # noqa: ANN401
        """Apply the transform to a sample or to a draft, and return either of the two.

        Args:
            state: A sample, or the draft of one.
            generator: Random numbers.
            log: List to which the drawn parameters are appended; None to record nothing.
        """
        draft = self._draft(state)
        parameters = self.change(draft, generator)
        _record(log, self, parameters)
        return draft

    def change(self, draft: Draft, generator: Generator) -> Parameters:
        """Change a draft, and return the random numbers drawn for the whole scene."""
        raise NotImplementedError

    def _draft(self, state: Any) -> Draft:  # noqa: ANN401
        """Return the draft, or a new draft of the sample, without the keys that no longer hold."""
        name = type(self).__name__
        draft = state if isinstance(state, Draft) else Draft(state, name)
        draft.step_name = name
        draft.leave_out(self.drops)
        return draft


class Moving(Transform):
    """A transform that moves points, after which cells, boxes and frame no longer hold."""

    drops = frozenset({"grid", "axis_alignment", *_BOX_KEYS})


class Selecting(Transform):
    """A transform that selects or reorders vertices, after which faces and boxes no longer hold."""

    drops = frozenset({"faces", *_BOX_KEYS})


class Compose(Transform):
    """Applies transforms one after the other, with the same generator.

    The transforms of this package share their work: rows are copied once, after the last selection
    of vertices, and only then are colours and normals changed. Your own callable receives a
    complete sample, the result of all steps before it.

    With `record=True`, the sample gets a `transform_log`: a list of the applied steps in order,
    each a dict such as `{"name": "RandomRotate", "parameters": {"angle": 1.3, ...}}`. The
    parameters are those that were drawn for the whole scene, as plain values. Numbers drawn for
    each vertex are not recorded, because `dataset[index, epoch]` draws the same ones again. Steps
    of nested `Compose` and `Sometimes` are part of the list. Your own callable is recorded by name,
    without parameters. `collate` makes a list of the logs of all scenes.

    Attributes:
        steps: Callables of (sample, generator), or lists of them. To be picklable, they must be
            defined at the top level of a module.
        record: Whether to add `transform_log`.

    Raises:
        UsageError: A step cannot be called as `transform(sample, rng)`.
    """

    steps: tuple[Step, ...]
    record: bool

    # A dataclass keeps a constructor that its class defines. This one takes any number of steps.
    def __init__(self, *steps: Step | Sequence[Step], record: bool = False) -> None:
        name = type(self).__name__
        flat_steps: list[Step] = []
        for step_or_list in steps:
            if isinstance(step_or_list, Sequence) and not isinstance(step_or_list, str):
                flat_steps.extend(step_or_list)
            else:
                flat_steps.append(step_or_list)
        for position, step in enumerate(flat_steps, start=1):
            arguments.check(name, f"step {position}", step, arguments.step(), _HINT_COMPOSE)
        record = arguments.check(name, "record", record, arguments.flag(), _HINT_COMPOSE)
        # The class is frozen.
        object.__setattr__(self, "steps", tuple(flat_steps))
        object.__setattr__(self, "record", record)

    @property
    def drops(self) -> frozenset[str]:  # type: ignore[override]
        """Keys that at least one step removes."""
        return frozenset().union(*(getattr(step, "drops", ()) for step in self.steps))

    def apply(self, state: Any, generator: Generator, log: Log | None) -> Any:  # noqa: ANN401
        """Apply the steps."""
        # If a log is passed, this is a step of another `Compose`, which records all steps.
        if log is not None or not self.record:
            return self._apply_steps(state, generator, log)

        own_log: Log = []
        result = self._apply_steps(state, generator, own_log)
        sample = result.sample if isinstance(result, Draft) else result
        if not isinstance(sample, dict):
            raise UsageError(
                f"{type(self).__name__}: the last step returned a {type(sample).__name__}, "
                "expected a dict that can store transform_log",
                "Compose(..., record=False)",
            )
        whole_log = sample.get("transform_log", []) + own_log
        if isinstance(result, Draft):
            sample["transform_log"] = whole_log
            return result
        return {**sample, "transform_log": whole_log}

    def _apply_steps(self, state: Any, generator: Generator, log: Log | None) -> Any:  # noqa: ANN401
        for step in self.steps:
            state = _apply(step, state, generator, log)
        return state


class Sometimes(Transform, step=arguments.step(), p=arguments.number(0, 1)):
    """Applies a transform with a probability, and otherwise does not change the arrays.

    It replaces the `p` of Pointcept's transforms. Because all samples of a batch must have the same
    keys, the keys that the transform removes (`grid`, `faces`, `axis_alignment`) are removed in
    either case. Do not use it for a transform that adds keys.

    Attributes:
        step: Any transform.
        p: Probability that the step is applied, 0..1.
    """

    step: Step
    p: float = 0.5

    @property
    def drops(self) -> frozenset[str]:  # type: ignore[override]
        """Keys that the step removes."""
        return frozenset(getattr(self.step, "drops", ()))

    def apply(self, state: Any, generator: Generator, log: Log | None) -> Any:  # noqa: ANN401
        """Apply the step with probability `p`."""
        is_applied = generator.random() < self.p
        _record(log, self, {"step": _name_of(self.step), "is_applied": is_applied})
        if is_applied:
            return _apply(self.step, state, generator, log)
        # Remove the keys that the step would have removed.
        return self._draft(state)


def _apply(step: Step, state: Any, generator: Generator, log: Log | None) -> Any:  # noqa: ANN401
    """Apply a step to a sample or to a draft, and return either of the two."""
    # A subclass may override `__call__`, which must then be called.
    if isinstance(step, Transform) and type(step).__call__ is Transform.__call__:
        return step.apply(state, generator, log)
    result = step(_finish(state), generator)
    _record(log, step, parameters={})
    return result


def _record(log: Log | None, step: Step, parameters: Parameters) -> None:
    """Append a step to a log, unless the log is None, with arrays as lists of numbers."""
    if log is None:
        return
    plain_parameters = {}
    for name, value in parameters.items():
        if isinstance(value, np.ndarray | np.generic):
            value = value.tolist()
        plain_parameters[name] = value
    log.append({"name": _name_of(step), "parameters": plain_parameters})


def _name_of(step: Step) -> str:
    """Return the name of a function, or the name of an object's class."""
    return getattr(step, "__qualname__", type(step).__name__)


def _finish(state: Any) -> Any:  # noqa: ANN401
    """Return the sample of a draft. Anything else is returned unchanged."""
    return state.finish() if isinstance(state, Draft) else state
