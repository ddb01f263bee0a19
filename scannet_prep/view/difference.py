"""The colouring of the difference of two predictions.

With annotation, it shows which of the two is right. Without it, it shows where they agree: the
first prediction takes the place of the annotation.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray

from scannet_prep.errors import UsageError
from scannet_prep.evaluation.instance import InstancePrediction
from scannet_prep.evaluation.verdicts import Judgement, Verdict
from scannet_prep.view.categories import Coloring, categorize
from scannet_prep.view.explanations import (
    list_class_pairs,
    list_instance_pairs,
    list_verdicts,
)
from scannet_prep.view.predicted import (
    RIGHT_COLOR,
    VERDICT_COLORS,
    WRONG_COLOR,
    Prediction,
    Truth,
    as_reference,
    judge,
    name_masks,
)

_NAME = "difference"
# Both right, only the first one, only the second one, neither. No colour is that of a verdict with
# another meaning: a page may show both.
_COLORS = (RIGHT_COLOR, (220, 120, 190), (190, 240, 160), WRONG_COLOR)


def color_difference(first: Prediction, second: Prediction, truth: Truth | None) -> Coloring:
    """Colour vertices by which of two predictions is right; without annotation, where they agree.

    Instances are right if they match, as in `color_error`.

    Args:
        first: A prediction.
        second: Another one, of the same task and label set.
        truth: The annotation; None if there is none.

    Raises:
        UsageError: The predictions are of different tasks or label sets, or have the same name.
    """
    if first.name == second.name:
        raise UsageError(
            f"both predictions are named {first.name!r}", "give each a name of its own"
        )
    if first.label_set != second.label_set:
        raise UsageError(
            f"{first.name} is of {first.label_set.name}, "
            f"and {second.name} of {second.label_set.name}",
            "compare predictions of the same label set",
        )
    one = first.values
    other = second.values
    if isinstance(one, InstancePrediction) and isinstance(other, InstancePrediction):
        if truth is None:
            return _compare_instances(first, second, as_reference(one, first.label_set), other)
        judgements = {
            first.name: judge(one, truth, first.label_set),
            second.name: judge(other, truth, first.label_set),
        }
        return _compare_matches(judgements, truth)
    if isinstance(one, InstancePrediction) or isinstance(other, InstancePrediction):
        raise UsageError(
            "one prediction has classes, and the other one has instances",
            "compare predictions of the same task",
        )
    columns = {first.name: one, second.name: other}
    if truth is None:
        return _compare_classes(columns, first)
    return _compare_right_classes(columns, truth, first)


def _compare_right_classes(
    columns: Mapping[str, NDArray[np.int64]], truth: Truth, first: Prediction
) -> Coloring:
    """Colour vertices by which of two predicted classes is right."""
    is_right = [truth.labels == values for values in columns.values()]
    numbers = np.where(truth.labels < 0, -1, _number_cases(*is_right))
    names = _name_cases(columns)
    tables = []
    for number, category in enumerate(names):
        if number > 0:
            all_columns = {"class": truth.labels, **columns}
            is_case = numbers == number
            tables += list_class_pairs(all_columns, is_case, first.label_set, category=category)
    return categorize(
        _NAME,
        numbers,
        title=_title(columns),
        name_of=names.__getitem__,
        color_of=_COLORS.__getitem__,
        tables=tuple(tables),
    )


def _compare_matches(judgements: Mapping[str, Judgement], truth: Truth) -> Coloring:
    """Colour vertices by which of two predictions matches their instance."""
    verdicts = [judgement.instances for judgement in judgements.values()]
    instances = np.array(list(verdicts[0]), np.int64)
    is_matched = []
    for of_instances in verdicts:
        matches = [of_instances[number] == Verdict.MATCHED for number in instances.tolist()]
        is_matched.append(np.array(matches, np.bool_))
    cases = _number_cases(*is_matched)

    numbers = np.full(len(truth.instances), -1, np.int64)
    for instance, case in zip(instances.tolist(), cases.tolist(), strict=True):
        numbers[truth.instances == instance] = case
    names = _name_cases(judgements)
    tables = []
    for number, category in enumerate(names):
        listed = instances[cases == number].tolist()
        tables += list_verdicts(judgements, listed, truth.name_of, category=category)
    return categorize(
        _NAME,
        numbers,
        title=_title(judgements),
        name_of=names.__getitem__,
        color_of=_COLORS.__getitem__,
        tables=tuple(tables),
    )


def _compare_classes(columns: Mapping[str, NDArray[np.int64]], first: Prediction) -> Coloring:
    """Colour vertices by whether two predicted classes are the same."""
    one, other = columns.values()
    names = ("same class", "different classes")
    differs = one != other
    return categorize(
        _NAME,
        differs.astype(np.int64),
        title=_title(columns),
        name_of=names.__getitem__,
        color_of=(RIGHT_COLOR, WRONG_COLOR).__getitem__,
        tables=tuple(list_class_pairs(columns, differs, first.label_set, category=names[1])),
    )


def _compare_instances(
    first: Prediction, second: Prediction, reference: Truth, masks: InstancePrediction
) -> Coloring:
    """Colour vertices by whether the masks of the second prediction match those of the first."""
    judgement = judge(masks, reference, first.label_set)
    names = {
        Verdict.MATCHED: "in both",
        Verdict.WRONG_CLASS: "different classes",
        Verdict.MISSED: f"only in {first.name}",
        Verdict.FALSE_POSITIVE: f"only in {second.name}",
        Verdict.MERGED: f"merged in {second.name}",
        Verdict.SPLIT: f"split in {second.name}",
    }
    tables = list_instance_pairs(
        judgement,
        columns=(first.name, second.name),
        instance_name=reference.name_of,
        mask_name=name_masks(masks, first.label_set).__getitem__,
        verdict_name=names.__getitem__,
    )
    return categorize(
        _NAME,
        judgement.vertices,
        title=_title((first.name, second.name)),
        name_of=lambda verdict: names[Verdict(verdict)],
        color_of=lambda verdict: VERDICT_COLORS[Verdict(verdict)],
        tables=tuple(tables),
    )


def _number_cases(
    is_first_right: NDArray[np.bool_], is_second_right: NDArray[np.bool_]
) -> NDArray[np.int64]:
    """Return 0 where both are right, 1 and 2 where only the first or second one is, otherwise 3."""
    return 3 - 2 * is_first_right.astype(np.int64) - is_second_right


def _name_cases(names: Mapping[str, object]) -> tuple[str, str, str, str]:
    """Name the cases of `_number_cases`."""
    first, second = names
    return "both right", f"only {first} right", f"only {second} right", "neither right"


def _title(names: Mapping[str, object] | tuple[str, str]) -> str:
    """Return the title of the colouring."""
    return f"difference of {' and '.join(names)}"
