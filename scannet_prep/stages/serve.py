"""A whole processed folder or archive for a browser on this machine: a list of its scenes, each opened when clicked."""

from __future__ import annotations

from scannet_prep.labels import SCANNET20, SCANNET200
from scannet_prep.stages.view import Viewing
from scannet_prep.view.coloring import ViewedScene
from scannet_prep.view.server import ListedScene, SceneServer


def open_server(viewing: Viewing, port: int) -> SceneServer:
    """Open a server of scenes; nothing is answered before its `serve_forever`, and scenes are read when asked for.

    Args:
        viewing: The scenes.
        port: To listen on; 0 for any that is free.

    Raises:
        UsageError: The port is taken.
    """

    def load(scene_id: str) -> tuple[ViewedScene, str]:
        scene = viewing.load(scene_id)
        return scene, viewing.color_of(scene)

    def list_scene(scene_id: str) -> ListedScene:
        entry = viewing.place.entries[scene_id]
        classes = (
            f"{label_set.name}: {item.name}"
            for label_set in (SCANNET20, SCANNET200)
            for item in label_set.classes
            if entry.counts(label_set).get(item.raw_id)
        )
        return ListedScene(scene_id, str(entry.split), entry.vertex_count, frozenset(classes))

    return SceneServer(list(map(list_scene, viewing.scene_ids)), load, title=viewing.place.name, port=port)
