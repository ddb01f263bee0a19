"""One scene as the dataset gives it: a dict of arrays."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

import numpy as np

from scannet_prep.base.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from numpy.typing import NDArray

    # What a DataLoader of PyTorch takes, where that is installed; at run time, anything with a length and items.
    from torch.utils.data import Dataset as Dataset  # noqa: PLC0414
    from typing_extensions import NotRequired, TypedDict, TypeVar

    class Sample(TypedDict):
        """One scene; without what was not asked for; see `ScanNet`."""

        points: NDArray[np.float32]
        normals: NDArray[np.float32]
        colors: NDArray[np.uint8]
        labels: NDArray[np.int64]
        instances: NDArray[np.int32]
        segments: NDArray[np.int32]
        axis_alignment: NDArray[np.float64]
        faces: NotRequired[NDArray[np.int32]]
        annotated: NotRequired[NDArray[np.bool_]]
        label_set: str
        scene_id: str

    # What `dataset[i]` gives: a sample, or the result of the transform.
    SampleT_co = TypeVar("SampleT_co", covariant=True, default=Sample)

else:
    from typing import Generic, TypeVar

    SampleT_co = TypeVar("SampleT_co", covariant=True)

    class Dataset(Generic[SampleT_co]):
        """Stands for PyTorch's class, which is not imported."""

    class Sample(dict):
        """A dict that shows types and shapes of its arrays, not their content; in a notebook, a picture, too."""

        @property
        def label_set_name(self) -> str:
            """Name of the label set of `labels`: the key `label_set`, which copies and plain dicts keep; else empty."""
            return str(self.get("label_set", ""))

        @label_set_name.setter
        def label_set_name(self, name: str) -> None:
            self["label_set"] = name

        def __repr__(self) -> str:
            """One line a key."""
            shown = (
                f"{key!r}: {value.dtype} {value.shape}"
                if isinstance(value, np.ndarray)
                else f"{key!r}: {value!r}"
                for key, value in self.items()
            )
            return "{" + ",\n ".join(shown) + "}"

        def _repr_png_(self) -> bytes | None:
            """For notebooks: a picture."""
            from scannet_prep.view.sample import draw_sample

            return draw_sample(self)

        def _repr_html_(self) -> str:
            """For notebooks: the text and a picture."""
            from scannet_prep.view.sample import describe_sample

            return describe_sample(self)


def refuse_wrapper(dataset: object) -> None:
    """Refuse the datasets that PyTorch puts around others: they have no `lengths`, and take plain indices only.

    Raises:
        UsageError: It is PyTorch's `Subset` or `ConcatDataset`.
    """
    if hasattr(dataset, "lengths"):
        return
    problem = f"a {type(dataset).__name__} of PyTorch has no lengths"
    if hasattr(dataset, "dataset") and hasattr(dataset, "indices"):
        raise UsageError(
            problem,
            "take a part of the scenes with dataset.subset(indices), which is a dataset too",
        )
    if hasattr(dataset, "datasets"):
        raise UsageError(
            problem,
            "join the datasets with scannet_prep.ConcatDataset([train, val]), or train + val",
        )


def refuse_default_collation() -> None:
    """Let PyTorch's default collate function name `collate_torch` for samples that it cannot stack.

    Does nothing unless PyTorch is loaded. PyTorch documents with `default_collate` the table to
    which packages add functions for their own types.
    """
    torch_collate: Any = sys.modules.get("torch.utils.data._utils.collate")
    if torch_collate is not None:
        torch_collate.default_collate_fn_map.setdefault(Sample, _stack)


def _stack(samples: Sequence[Mapping[str, Any]], **_options: object) -> Any:  # noqa: ANN401 - PyTorch's
    """Stack samples as PyTorch stacks dicts.

    Raises:
        UsageError: Two samples have arrays of different shapes.
    """
    first_shapes: dict[str, Any] = {}
    for sample in samples:
        for key, value in sample.items():
            shape = getattr(value, "shape", None)
            first_shape = first_shapes.setdefault(key, shape)
            if shape != first_shape:
                raise UsageError(
                    "PyTorch's default collate function stacks arrays of equal shape, but "
                    f"{key!r} has the shapes {first_shape} and {shape}",
                    "from scannet_prep import collate_torch; DataLoader(..., collate_fn=collate_torch)",
                )
    torch_data: Any = sys.modules["torch.utils.data"]
    return torch_data.default_collate([dict(sample) for sample in samples])
