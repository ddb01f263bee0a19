"""Times the steps of the program's own code while it runs, by wrapping the functions that it calls."""

from __future__ import annotations

import functools
import inspect
import time
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from scannet_prep.files import Fingerprint
from scannet_prep.labels import LabelSet
from scannet_prep.processed.manifest import SceneEntry
from scannet_prep.raw.segments import Segmentation
from scannet_prep.stages.process import make_scene, scene_worker

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

# A function is wrapped where it is looked up. One that is no longer there is an AttributeError: mend this table then.
_STEPS: dict[str, tuple[tuple[object, str], ...]] = {
    "find": ((scene_worker, "find_raw_files"), (scene_worker, "_see_inputs")),
    "fingerprints": ((make_scene, "read_file"), (Fingerprint, "from_bytes")),
    "mesh": ((make_scene, "read_mesh"),),
    "geometry": ((make_scene, "points_and_normals"),),
    "segments": ((make_scene, "read_segments"), (Segmentation, "compact_indices")),
    "labels": (
        (make_scene, "read_scan_info"),
        (make_scene, "read_aggregation"),
        (make_scene, "annotate"),
        (LabelSet, "labels_from_raw_ids"),
    ),
    "encode": ((scene_worker, "encode_processed"),),
    "write": ((scene_worker, "write_temporary"),),
    "manifest entry": ((SceneEntry, "from_scene"),),
}
STEPS = (*_STEPS, "rest")


class StepTimer:
    """Sums up the time spent in each step, without the steps within it."""

    def __init__(self) -> None:
        self._seconds = dict.fromkeys(_STEPS, 0.0)
        self._inner = [0.0]

    def call(self, function: Callable[[], object]) -> dict[str, float]:
        """Call a function and time it.

        Returns:
            Seconds by step, the `rest` that is in none, and `total`.
        """
        self._seconds = dict.fromkeys(_STEPS, 0.0)
        start = time.perf_counter()
        function()
        total = time.perf_counter() - start
        return {**self._seconds, "rest": total - sum(self._seconds.values()), "total": total}

    @contextmanager
    def installed(self) -> Iterator[None]:
        """Wrap the functions of all steps."""
        originals: list[tuple[object, str, object]] = []
        try:
            for step, places in _STEPS.items():
                for owner, name in places:
                    originals.append((owner, name, inspect.getattr_static(owner, name)))
                    setattr(owner, name, self._wrap(step, owner, name))
            yield
        finally:
            for owner, name, original in originals:
                setattr(owner, name, original)

    def _wrap(self, step: str, owner: object, name: str) -> object:
        function: Callable[..., Any] = getattr(owner, name)

        @functools.wraps(function)
        def timed(*args: Any, **kwargs: Any) -> Any:  # noqa: ANN401 - any function
            self._inner.append(0.0)
            start = time.perf_counter()
            try:
                return function(*args, **kwargs)
            finally:
                elapsed = time.perf_counter() - start
                self._seconds[step] += elapsed - self._inner.pop()
                self._inner[-1] += elapsed

        # A class method is bound already.
        return staticmethod(timed) if isinstance(inspect.getattr_static(owner, name), classmethod) else timed
