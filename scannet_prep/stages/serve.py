"""A whole processed folder or archive for a browser on this machine: a list of its scenes, each opened when clicked."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from scannet_prep.archive.source import Place
from scannet_prep.errors import MissingFileError
from scannet_prep.labels import SCANNET20, SCANNET200, LabelSet
from scannet_prep.place import open_place
from scannet_prep.processed.manifest import SceneEntry
from scannet_prep.stages.predictions import Predictions, Task, find_prediction_files
from scannet_prep.stages.view import ViewPlan, choose_color, find_scenes, load_scene
from scannet_prep.view.coloring import ViewedScene
from scannet_prep.view.renderer import PictureOptions
from scannet_prep.view.server import DEFAULT_PORT, ListedScene, SceneServer


def open_server(
    words: Sequence[str],
    source: Place,
    port: int = DEFAULT_PORT,
    *,
    pred_dir: Path | None = None,
    task: Task = "semantic",
    color: str = "",
    label_set: LabelSet = SCANNET20,
    certificates: bool | Path = True,
) -> SceneServer:
    """Open a server of scenes; nothing is answered before its `serve_forever`, and scenes are read when asked for.

    Args:
        words: Scene ids, and `@FILE` with one id a line; empty for all, or for all that have a prediction.
        source: A processed folder or an archive.
        port: To listen on; 0 for any that is free.
        pred_dir: Folder with predictions of the scenes, in the forms that `evaluate` takes.
        task: What is predicted.
        color: One of `COLORINGS`, or `labels`; what there is by default, and where a scene has no such.
        label_set: Of the labels, and of the prediction.
        certificates: Of addresses, whom to trust, as `RangeSource` takes it.

    Raises:
        UsageError: The port is taken.
        UnknownSceneError: A scene is not there.
        FileError: The source cannot be used, or there are no predictions.
        TransferError: An archive is on a web server, which does not give it.
    """
    place, predictions = open_place([source], certificates=certificates), None
    names = find_scenes(words, place) if words else list(place.entries)
    if pred_dir is not None:
        predictions = Predictions(task, label_set, (), find_prediction_files(pred_dir, task), (), ())
        names = [name for name in names if name in predictions.paths]
        if not names:
            raise MissingFileError(pred_dir, f"has no predictions of scenes of {place.name}", "name their folder")
    plan = ViewPlan("html", dict.fromkeys(names, place), predictions, color, label_set, PictureOptions(), {})

    def load(scene_id: str) -> tuple[ViewedScene, str]:
        scene = load_scene(plan, scene_id)
        return scene, choose_color(plan, scene)

    return SceneServer([_list_scene(name, place.entries[name]) for name in names], load, title=place.name, port=port)


def _list_scene(scene_id: str, entry: SceneEntry) -> ListedScene:
    classes = {
        label_set.name: frozenset(item.name for item in label_set.classes if entry.counts(label_set).get(item.raw_id))
        for label_set in (SCANNET20, SCANNET200)
    }
    return ListedScene(scene_id, str(entry.split), entry.vertex_count, classes)
