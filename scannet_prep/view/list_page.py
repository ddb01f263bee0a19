"""The page that lists all scenes of a server, and the description of the scenes for its script."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping

from scannet_prep.processed.manifest import SceneEntry
from scannet_prep.release.label_sets import SCANNET20, SCANNET200, LabelSet
from scannet_prep.release.scene import Split
from scannet_prep.view.markup import embed_data, make_page, read_asset, read_fragment

THUMBNAIL_SIZE = (320, 240)
"""Width and height of the picture of a scene, in pixels."""

# Each script uses only those before it.
_SCRIPTS = ("page/request.js", "page/filter.js", "page/grid.js", "page/scenes.js")


def make_list_page(title: str) -> bytes:
    """Make the page. Its script requests the scenes, which `encode_scenes` describes.

    Args:
        title: The name of the place that holds the scenes.
    """
    return make_page(
        title,
        # The children of the fragment's <body>.
        list(read_fragment("page/scenes.html")),
        embed_data("application/json", {"data-title": json.dumps(title).replace("<", "\\u003c")}),
        style=read_asset("page/scenes.css"),
        script=read_asset(*_SCRIPTS),
        is_served=True,
    )


def encode_scenes(entries: Mapping[str, SceneEntry], label_set: LabelSet, score: str) -> bytes:
    """Describe the scenes as JSON, for filtering and sorting in a browser.

    Args:
        entries: The scenes by id, in the order of the list.
        label_set: The label set whose classes are counted.
        score: The name of the score of predictions; empty if there are none.
    """
    class_names: dict[str, int] = {}
    scenes = []
    for scene_id, entry in entries.items():
        names = list(_name_classes(entry))
        prefix = f"{label_set.name}: "
        scenes.append(
            {
                "id": scene_id,
                "split": str(entry.split),
                "vertices": entry.vertex_count,
                "labeled": _labeled_share(entry),
                "classCount": sum(name.startswith(prefix) for name in names),
                # Numbers of class names, which are given in the order of their first use.
                "classes": [class_names.setdefault(name, len(class_names)) for name in names],
            }
        )
    value = {"score": score, "classNames": list(class_names), "scenes": scenes}
    return json.dumps(value, separators=(",", ":")).encode()


def _labeled_share(entry: SceneEntry) -> float | None:
    """Return the share of vertices that have a nyu40 id; None for test scenes."""
    if entry.split is Split.TEST:
        return None
    return round(1 - entry.nyu40_counts.get(0, 0) / entry.vertex_count, 4)


def _name_classes(entry: SceneEntry) -> Iterator[str]:
    """Return the names of the classes in a scene, such as `ScanNet20: wall`."""
    for label_set in (SCANNET20, SCANNET200):
        counts = entry.counts(label_set)
        for label_class in label_set.classes:
            if counts.get(label_class.raw_id):
                yield f"{label_set.name}: {label_class.name}"
