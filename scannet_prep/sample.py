"""One scene as the dataset gives it: a dict of arrays."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypedDict

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from numpy.typing import NDArray

    class _Arrays(TypedDict):
        points: NDArray[np.float32]
        normals: NDArray[np.float32]
        colors: NDArray[np.uint8]
        labels: NDArray[np.int64]
        instances: NDArray[np.int32]
        segments: NDArray[np.int32]
        axis_alignment: NDArray[np.float64]
        scene_id: str

    class Sample(_Arrays, total=False):
        """One scene; without what was not asked for; see `ScanNet`."""

        faces: NDArray[np.int32]

else:

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

    Attributes:
        joined: These arrays by key; those of what does not come from a sample, such as `batch`, are still to be filled.
    """

    def __init__(self, samples: Iterable[Any], joined: Mapping[str, NDArray[Any]] | None = None) -> None:
        super().__init__(samples)
        self.joined = joined or {}

    def __reduce__(self) -> tuple[Any, ...]:
        """The samples, without what is joined."""
        return list, (), None, iter(self)
