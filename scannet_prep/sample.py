"""One scene as the dataset gives it: a dict of arrays."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from numpy.typing import NDArray

    # What a DataLoader of PyTorch takes, where that is installed; at run time, anything with a length and items.
    from torch.utils.data import Dataset as Dataset  # noqa: PLC0414
    from typing_extensions import NotRequired, TypedDict

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
        scene_id: str

else:
    Dataset = object

    class Sample(dict):
        """A dict that shows types and shapes of its arrays, not their content; in a notebook, a picture, too.

        Attributes:
            label_set_name: Of the classes in `labels`; empty where nobody knows.
        """

        label_set_name = ""

        def __repr__(self) -> str:
            """One line a key."""
            shown = (
                f"{key!r}: {value.dtype} {value.shape}" if isinstance(value, np.ndarray) else f"{key!r}: {value!r}"
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


class Scenes(list[Any]):
    """Samples for a batch. Their arrays may lie one after the other in arrays that `collate` then need not make.

    Copied, or sent to another process, it is a list.
    """

    def __init__(self, samples: Iterable[Any], joined: Mapping[str, NDArray[Any]] | None = None) -> None:
        super().__init__(samples)
        self._joined = joined or {}
        self._parts = [dict(sample) for sample in self] if joined else []

    def take_joined(self) -> Mapping[str, NDArray[Any]]:
        """These arrays by key, for one batch only; none where a sample has others than it had.

        Those of what does not come from a sample, such as `batch`, are still to be filled.
        """
        now, then = (
            [{key: id(value) for key, value in one.items()} for one in some if isinstance(one, dict)]
            for some in (self, self._parts)
        )
        joined, self._joined = self._joined if now == then else {}, {}
        return joined

    def __reduce__(self) -> tuple[Any, ...]:
        """The samples, without what is joined."""
        return list, (), None, iter(self)
