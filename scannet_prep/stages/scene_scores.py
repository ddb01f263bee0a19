"""The scores of single scenes, computed in the background while a server runs.

    start    a thread: read each scene and its prediction --> a score, or the reason for none
    encode   the scores so far, for the list of scenes in a browser

The score of a scene is the one that `evaluate -o` writes.
"""

from __future__ import annotations

import json
import threading

from scannet_prep.base.findings import Finding
from scannet_prep.predictions.reader import Predictions
from scannet_prep.release.scene import Split
from scannet_prep.stages.evaluate import SCENE_SCORES, SCORES, read_truth
from scannet_prep.stages.viewing import Viewing, read_prediction

_NAMES = {"semantic": "mIoU", "instance": "AP"}


class SceneScores:
    """The scores of all scenes of a `Viewing` that have a ground truth, one after the other.

    Args:
        viewing: The scenes.
        predictions: Their predictions.

    Attributes:
        name: `mIoU`, over the classes in the ground truth of the scene; or `AP`, for instances.
    """

    def __init__(self, viewing: Viewing, predictions: Predictions) -> None:
        self.name = _NAMES[predictions.task]
        self._viewing = viewing
        self._predictions = predictions
        entries = viewing.place.entries
        self._scene_ids = [
            scene_id for scene_id in viewing.scene_ids if entries[scene_id].split is not Split.TEST
        ]
        self._scores: dict[str, float | None] = {}
        self._failures: dict[str, str] = {}
        self._must_end = threading.Event()
        self._thread = threading.Thread(target=self._score_all, name="scores", daemon=True)

    def start(self) -> None:
        """Start to compute the scores."""
        self._thread.start()

    def stop(self) -> None:
        """Stop after the scene that is being scored."""
        self._must_end.set()

    def encode(self) -> bytes:
        """Encode the scores so far as JSON.

        `scores` has a number from 0 to 1 by scene id, or null for the mean over no class;
        `failures` has the reason for each scene that cannot be scored; `total` counts the scenes
        that will be in one of these.
        """
        # Copies, because the thread adds to both.
        value = {
            "total": len(self._scene_ids),
            "scores": self._scores.copy(),
            "failures": self._failures.copy(),
        }
        return json.dumps(value).encode()

    def _score_all(self) -> None:
        """Score all scenes. A scene that cannot be scored does not stop the others."""
        for scene_id in self._scene_ids:
            if self._must_end.is_set():
                return
            try:
                self._scores[scene_id] = self._score(scene_id)
            except Exception as error:  # noqa: BLE001 - the page shows the reason
                self._failures[scene_id] = str(Finding.from_error(error))

    def _score(self, scene_id: str) -> float | None:
        """Score a scene.

        Raises:
            FileError: The scene or the prediction is damaged, has invalid values, or they do not
                match.
        """
        task = self._predictions.task
        scene = self._viewing.read(scene_id)
        prediction = read_prediction(self._predictions, scene)
        label_set = prediction.label_set
        scores = SCORES[task](label_set)
        scores.add(prediction.values, read_truth(scene, task, label_set))
        mean: float | None = scores.result().means["all"][SCENE_SCORES[task]]
        return mean
