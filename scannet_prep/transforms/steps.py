"""Base classes of the transforms, and the two that apply others: `Compose` and `Sometimes`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from inspect import get_annotations
from typing import Any, ClassVar, TypeAlias

import numpy as np
from numpy.random import Generator

from scannet_prep.base.backports import dataclass_transform
from scannet_prep.base.errors import UsageError
from scannet_prep.transforms import arguments
from scannet_prep.transforms.draft import AnySample, Draft

Step: TypeAlias = Callable[[Any, Generator], Any]  # of a dict, or of the TypedDict of the dataset
Parameters: TypeAlias = dict[str, Any]  # what a step has drawn for the whole scene
Log: TypeAlias = list[dict[str, Any]]  # of each step that was applied, its name and its parameters

_EXAMPLE = "Compose(RotateZ(), GridSample(0.02), record=True)"
# These are computed from where the points are, and from which points there are.
_BOX_KEYS = ("instance_boxes", "instance_centers")


@dataclass_transform(frozen_default=True)
class Checked:
    """Base of frozen dataclasses whose arguments are checked and made hashable.

    Attributes:
        kinds: What each argument accepts, by name.
    """

    kinds: ClassVar[dict[str, arguments.Argument]] = {}

    def __init_subclass__(cls, **kinds: arguments.Argument) -> None:
        """Take the kinds from the class statement; a class with arguments becomes a dataclass."""
        cls.kinds = cls.kinds | kinds
        if get_annotations(cls):
            dataclass(frozen=True)(cls)

    def __post_init__(self) -> None:
        """Check the arguments."""
        name = type(self).__name__
        for key, kind in self.kinds.items():
            value = arguments.check(name, key, getattr(self, key), kind, hint=type(self))
            object.__setattr__(self, key, value)


class Transform(Checked):
    """Base of the transforms of this package, which change a sample.

    Attributes:
        drops: Keys that no longer hold, and are left out.
    """

    drops: ClassVar[frozenset[str]] = frozenset()

    def __call__(self, sample: AnySample, generator: Generator | None = None) -> Any:  # noqa: ANN401 - what the last step returns
        """Apply it to a sample, and return another one.

        Args:
            sample: A sample of `ScanNet`, or a dict of arrays. It is not changed.
            generator: Random numbers, for example `numpy.random.default_rng(0)`.

        Raises:
            UsageError: There is no generator, or the transform does not fit the sample.
        """
        if not isinstance(generator, Generator):
            name = type(self).__name__
            given = "without rng" if generator is None else f"with rng={generator!r:.60}"
            raise UsageError(
                f"{name}: called {given}, expected transform(sample, rng) with a numpy.random.Generator",
                "transform(sample, numpy.random.default_rng(0))",
            )
        return _finish(self.apply(sample, generator, log=None))

    def apply(self, state: Any, generator: Generator, log: Log | None) -> Any:  # noqa: ANN401 - a sample or a draft
        """Apply it to a sample, or to the draft of one; returns either.

        Args:
            state: The sample, or its draft.
            generator: Random numbers.
            log: A list to which the drawn parameters are appended; None to record nothing.
        """
        draft = self._draft(state)
        parameters = self.change(draft, generator)
        _record(log, self, parameters)
        return draft

    def change(self, draft: Draft, generator: Generator) -> Parameters:
        """Change a draft, and return the random numbers that were drawn for the whole scene."""
        raise NotImplementedError

    def _draft(self, state: Any) -> Draft:  # noqa: ANN401
        """Make the draft of a sample, without the keys that no longer hold."""
        name = type(self).__name__
        draft = state if isinstance(state, Draft) else Draft(state, name)
        draft.step_name = name
        draft.leave_out(self.drops)
        return draft


class Moving(Transform):
    """A transform that moves points: their cells, boxes and frame no longer hold."""

    drops = frozenset({"grid", "axis_alignment", *_BOX_KEYS})


class Selecting(Transform):
    """A transform that chooses among the points."""

    drops = frozenset({"faces", *_BOX_KEYS})


class Compose(Transform):
    """Applies transforms one after the other, with the same generator.

    Those of this package share the work: rows are copied once, after the last selection of
    vertices, and colours and normals are changed after that. A callable of yours gets the sample
    as all steps before it leave it.

    With `record=True` the sample gets `transform_log`: a list with a dict of each step that was
    applied, in order, such as `{"name": "RandomRotate", "parameters": {"angle": 1.3, ...}}`. The
    parameters are those that were drawn for the whole scene, as plain values. Numbers drawn for
    each vertex are not in it: `dataset[index, epoch]` draws them again. Steps of nested `Compose`
    and `Sometimes` are part of the list; a callable of yours has its name and no parameters.
    `collate` makes a list with the log of each scene.

    Attributes:
        steps: Callables of (sample, generator), or a list of them. They pickle if they stand at the
            top level of a module.
        record: Whether the drawn parameters are stored.

    Raises:
        UsageError: A step cannot be called as `transform(sample, rng)`.
    """

    steps: tuple[Step, ...]
    record: bool

    def __init__(self, *steps: Step | Sequence[Step], record: bool = False) -> None:
        name = type(self).__name__
        flat: list[Step] = []
        for one_or_more in steps:
            is_group = isinstance(one_or_more, Sequence) and not isinstance(one_or_more, str)
            flat.extend(one_or_more if is_group else [one_or_more])  # type: ignore[arg-type,list-item]
        for position, one in enumerate(flat, start=1):
            arguments.check(name, f"step {position}", one, arguments.step(), _EXAMPLE)
        is_recorded = arguments.check(name, "record", record, arguments.flag(), _EXAMPLE)
        object.__setattr__(self, "steps", tuple(flat))
        object.__setattr__(self, "record", is_recorded)

    @property
    def drops(self) -> frozenset[str]:  # type: ignore[override]
        """Keys that a step leaves out."""
        return frozenset().union(*(getattr(step, "drops", ()) for step in self.steps))

    def apply(self, state: Any, generator: Generator, log: Log | None) -> Any:  # noqa: ANN401
        """Apply the steps."""
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
        log_before = sample.get("transform_log", [])
        if isinstance(result, Draft):
            sample["transform_log"] = log_before + own_log
            return result
        return {**sample, "transform_log": log_before + own_log}

    def _apply_steps(self, state: Any, generator: Generator, log: Log | None) -> Any:  # noqa: ANN401
        for one in self.steps:
            state = _apply(one, state, generator, log)
        return state


class Sometimes(Transform, step=arguments.step(), p=arguments.number(0, 1)):
    """Applies a transform with a probability, and leaves the sample as it is otherwise.

    It stands for the `p` of Pointcept's transforms. Samples of one batch must have the same keys:
    those that the transforms of this package leave out (`grid`, `faces`, `axis_alignment`) are left
    out in either case. A transform that adds keys does not belong here.

    Attributes:
        step: Any transform.
        p: Probability, 0..1.
    """

    step: Step
    p: float = 0.5

    @property
    def drops(self) -> frozenset[str]:  # type: ignore[override]
        """Keys that the step leaves out."""
        return frozenset(getattr(self.step, "drops", ()))

    def apply(self, state: Any, generator: Generator, log: Log | None) -> Any:  # noqa: ANN401
        """Apply the step, or not."""
        is_applied = generator.random() < self.p
        _record(log, self, {"step": _name_of(self.step), "is_applied": is_applied})
        if is_applied:
            return _apply(self.step, state, generator, log)
        return self._draft(state)


def _apply(step: Step, state: Any, generator: Generator, log: Log | None) -> Any:  # noqa: ANN401
    """Apply a step to a sample, or to the draft of one; returns either."""
    # A subclass may have a call of its own.
    if isinstance(step, Transform) and type(step).__call__ is Transform.__call__:
        return step.apply(state, generator, log)
    result = step(_finish(state), generator)
    _record(log, step, parameters={})
    return result


def _record(log: Log | None, step: Step, parameters: Parameters) -> None:
    """Append an entry to a log, if there is one, with arrays as lists of numbers."""
    if log is None:
        return
    plain = {}
    for name, value in parameters.items():
        plain[name] = value.tolist() if isinstance(value, np.ndarray | np.generic) else value
    log.append({"name": _name_of(step), "parameters": plain})


def _name_of(step: Step) -> str:
    """Return the name of a function, or of the class of an object."""
    return getattr(step, "__qualname__", type(step).__name__)


def _finish(state: Any) -> Any:  # noqa: ANN401
    return state.finish() if isinstance(state, Draft) else state
