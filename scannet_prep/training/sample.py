"""Sample: one scene as a dict of arrays."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

import numpy as np

from scannet_prep.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from numpy.typing import NDArray

    # Type checkers see PyTorch's class, which is what its DataLoader accepts. At run time, a
    # DataLoader accepts any class with a length and items, so PyTorch is not imported.
    from torch.utils.data import Dataset as Dataset  # noqa: PLC0414
    from typing_extensions import NotRequired, TypedDict, TypeVar

    from scannet_prep.view.notebook import NotebookPage

    class Sample(TypedDict):
        """One scene, with the keys that `ScanNet(keys=...)` selects; `ScanNet` documents them."""

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

    # The type of `dataset[i]`: a sample, or the result of the transform.
    SampleT_co = TypeVar("SampleT_co", covariant=True, default=Sample)

else:
    # At run time, a sample is a dict with its own repr, and PyTorch's class has a stand-in.
    from typing import Generic, TypeVar

    SampleT_co = TypeVar("SampleT_co", covariant=True)

    class Dataset(Generic[SampleT_co]):
        """Stand-in for PyTorch's class, which is not imported."""

    class Sample(dict):
        """A dict whose repr shows types and shapes of arrays; notebooks also show a picture.

        Attributes:
            is_aligned: Whether the points are axis-aligned; None if a transform has made the
                sample.
        """

        is_aligned: bool | None = None

        def __repr__(self) -> str:
            """Show one line per key."""
            lines = []
            for key, value in self.items():
                is_array = isinstance(value, np.ndarray)
                shown = f"{value.dtype} {value.shape}" if is_array else repr(value)
                lines.append(f"{key!r}: {shown}")
            return "{" + ",\n ".join(lines) + "}"

        def show(self, predictions: Any = None, **options: Any) -> NotebookPage:  # noqa: ANN401
            """Show the sample in a notebook; `scannet_prep.show` documents the arguments."""
            from scannet_prep.view.notebook import show

            return show(self, predictions, **options)

        def _repr_png_(self) -> bytes | None:
            """Draw a picture, for notebooks."""
            from scannet_prep.view.sample import draw_sample

            return draw_sample(self)

        def _repr_html_(self) -> str:
            """Return the repr and a picture, for notebooks."""
            from scannet_prep.view.sample import describe_sample

            return describe_sample(self)


def refuse_wrapper(dataset: object) -> None:
    """Refuse PyTorch's wrappers of datasets.

    They have no `lengths`, and can be indexed by plain numbers only.

    Raises:
        UsageError: The dataset is PyTorch's `Subset` or `ConcatDataset`.
    """
    if hasattr(dataset, "lengths"):
        return
    problem = f"a {type(dataset).__name__} of PyTorch has no lengths"
    # PyTorch may not be imported, so its classes are recognized by their attributes.
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


def advise_default_collation() -> None:
    """Make PyTorch's default collate function recommend `collate_torch` if it cannot stack samples.

    Does nothing unless PyTorch is loaded. `torch.utils.data.default_collate` documents the table to
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
            # The first sample with this key stores its shape here.
            first_shape = first_shapes.setdefault(key, shape)
            if shape != first_shape:
                raise UsageError(
                    "PyTorch's default collate function stacks arrays of equal shape, but "
                    f"{key!r} has the shapes {first_shape} and {shape}",
                    "from scannet_prep import collate_torch; "
                    "DataLoader(..., collate_fn=collate_torch)",
                )
    torch_data: Any = sys.modules["torch.utils.data"]
    # Plain dicts, because for `Sample` PyTorch would call this function again.
    return torch_data.default_collate([dict(sample) for sample in samples])
