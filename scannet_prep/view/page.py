"""HTML pages that show scenes in a browser, without network, server or installation.

The journey of a scene:

    coloring   all its colourings
    page       vertices sorted by cells along a Z-order curve
               --> arrays as blocks: <script type="application/octet-stream">, base64 of deflate
               --> descriptions as JSON, in one <script type="application/json">
    markup     one file of blocks, descriptions, style sheet and script

Positions are whole multiples of a step. 65,535 steps are the longest side of the scene's box, so
a step is about 0.1 mm in a room. Neighbours on a Z-order curve are similar. The blocks hold the
differences between neighbours, byte by byte, which compress to half the size. Vertices of the same
cell stay in the order of the mesh, so that their numbers compress, too.
"""

from __future__ import annotations

import base64
import json
import math
from collections.abc import Iterable, Sequence
from dataclasses import asdict
from typing import Any

import deflate
import numpy as np
from numpy.typing import NDArray

from scannet_prep.view.boxes import WITHOUT_BOX
from scannet_prep.view.camera import FIELD_OF_VIEW, FILLED, NEAR, Camera
from scannet_prep.view.categories import Category, Coloring
from scannet_prep.view.coloring import ViewedCamera, ViewedScene
from scannet_prep.view.markup import (
    element,
    embed_data,
    embed_png,
    make_page,
    read_asset,
    read_fragment,
)
from scannet_prep.view.raster import SPREAD, estimate_spacing
from scannet_prep.view.renderer import BACKGROUNDS, LIGHT
from scannet_prep.view.visibility import find_floor

# Each script uses only those before it.
_SCRIPTS = (
    "page/data.js",
    "page/camera.js",
    "page/shaders.js",
    "page/splats.js",
    "page/finishing.js",
    "page/drawing.js",
    "page/picking.js",
    "page/overlay.js",
    "page/pane.js",
    "page/visibility.js",
    "page/explanations.js",
    "page/legend.js",
    "page/tooltip.js",
    "page/frames.js",
    "page/clip.js",
    "page/link.js",
    "page/figure.js",
    "page/saving.js",
    "page/selection.js",
    "page/flight.js",
    "page/controls.js",
    "page/panes.js",
    "page/viewer.js",
)
# Only pages from a server have a next and a previous scene to request.
_SERVED_SCRIPTS = ("page/request.js", "page/filter.js", "page/neighbours.js")
_GRID_STEPS = 65_535
_GRID_BITS = 16
# A cell is 1,024 steps wide, about 0.1 m. In larger cells, positions compress worse, and numbers of
# vertices better.
_CELL_BITS = 10
_DEFLATE_LEVEL = 7


def make_scene_page(
    scenes: Iterable[ViewedScene],
    *,
    color: str = "",
    beside: Sequence[str] = (),
    is_served: bool = False,
    command: str = "scannet-prep view",
    picture: bytes = b"",
) -> bytes:
    """Make a page that shows scenes.

    Args:
        scenes: The scenes, at least one; they are encoded one after the other.
        color: The initial colouring, if a scene has it; by default `rgb`.
        beside: The initial colourings of up to two panes beside the first one, which show the same
            scene from the same side.
        is_served: Whether the page comes from a server of scenes: it then links to the list of all
            scenes, and to the next and the previous scene of the list.
        command: The command that reads the same scenes and predictions; the page adds the view.
        picture: PNG to show where scripts are disabled; none by default.

    Returns:
        The whole file, UTF-8. The same scenes always give the same bytes.
    """
    blocks = _Blocks()
    descriptions = [_describe_scene(scene, blocks) for scene in scenes]
    title: str = descriptions[0]["name"]
    if len(descriptions) > 1:
        title += f" and {len(descriptions) - 1:,} more"
    data = {
        "title": title,
        "color": color,
        "isServed": is_served,
        "command": command,
        "beside": list(beside),
        **_describe_view(),
        "scenes": descriptions,
    }
    # Escape "<", so that no name can end the element.
    without_script = []
    if picture:
        image = element("img", src=embed_png(picture), alt=title, class_="still")
        without_script.append(element("noscript", image))
    text = json.dumps(data, separators=(",", ":")).replace("<", "\\u003c")
    scripts = (*_SERVED_SCRIPTS, *_SCRIPTS) if is_served else _SCRIPTS
    return make_page(
        title,
        # The children of the fragment's <body>.
        list(read_fragment("page/page.html")),
        without_script,
        embed_data("application/json", {"data": text}),
        embed_data("application/octet-stream", blocks.texts),
        style=read_asset("page/page.css", "page/print.css"),
        script=read_asset(*scripts),
        is_served=is_served,
    )


def _describe_view() -> dict[str, Any]:
    """Return the constants of the renderer, so that pages and pictures look the same."""
    camera = Camera()
    backgrounds = {}
    for name, (color, _) in BACKGROUNDS.items():
        backgrounds[name] = [part / 255 for part in color]
    return {
        "camera": {
            "azimuth": math.radians(camera.azimuth),
            "elevation": math.radians(camera.elevation),
            "slope": math.tan(FIELD_OF_VIEW / 2),
            "filled": FILLED,
            "near": NEAR,
        },
        "light": LIGHT.tolist(),
        "backgrounds": backgrounds,
        "withoutBox": WITHOUT_BOX,
    }


class _Blocks:
    """The arrays of a page.

    Attributes:
        texts: Base64 of deflate of each array, by id.
    """

    def __init__(self) -> None:
        self.texts: dict[str, str] = {}

    def add_image(self, data: bytes) -> str:
        """Add an image as it is, and return its id."""
        block = f"image-{len(self.texts)}"
        self.texts[block] = base64.b64encode(data).decode()
        return block

    def add(self, array: NDArray[np.unsignedinteger[Any]]) -> dict[str, Any]:
        """Encode an array, (rows,) or (rows, columns).

        Returns:
            The description from which `data.js` decodes it.
        """
        columns = np.ascontiguousarray(array.reshape(len(array), -1).T)
        # Differences of unsigned numbers wrap around, and so do the sums that undo them.
        differences = np.diff(columns, axis=1, prepend=columns.dtype.type(0))
        value_bytes = columns.dtype.itemsize
        # (columns, bytes, rows): the first byte of all rows, then the second, and so on.
        planes = differences.astype(f"<u{value_bytes}").view(np.uint8)
        planes = planes.reshape(*columns.shape, value_bytes).transpose(0, 2, 1)
        packed = deflate.deflate_compress(np.ascontiguousarray(planes).data, _DEFLATE_LEVEL)

        name = f"block-{len(self.texts)}"
        self.texts[name] = base64.b64encode(packed).decode()
        return {
            "block": name,
            "rows": len(array),
            "columns": len(columns),
            "bytes": value_bytes,
        }


def _describe_scene(scene: ViewedScene, blocks: _Blocks) -> dict[str, Any]:
    """Describe a scene for the script; its arrays are added to the blocks."""
    colorings = list(scene.colorings.values())
    spacing = estimate_spacing(scene.points)

    # Positions as steps from the lowest corner of the scene's box.
    points = scene.points.astype(np.float64)
    origin = points.min(axis=0)
    longest = float((points - origin).max())
    # A scene of one point has no extent.
    step = (longest or 1.0) / _GRID_STEPS
    grid = np.rint((points - origin) / step).astype(np.uint16)

    order = _z_order(grid)
    arrays = {
        "positions": blocks.add(grid[order]),
        "order": blocks.add(order.astype(np.uint32)),
    }
    face_count = 0
    if scene.faces is not None and len(scene.faces):
        face_count = len(scene.faces)
        arrays["faces"] = blocks.add(_pack_faces(scene.faces, order))
    return {
        "name": scene.scene_id,
        "split": scene.split,
        "frame": scene.frame,
        "vertices": len(points),
        "triangles": face_count,
        "origin": origin.tolist(),
        "step": step,
        "grid": grid.max(axis=0).tolist(),
        "floor": find_floor(scene.points),
        "pointSize": spacing * SPREAD,
        "arrays": arrays,
        "colorings": [_describe_coloring(coloring, order, blocks) for coloring in colorings],
        **_describe_cameras(scene.cameras, blocks),
    }


def _describe_cameras(cameras: Sequence[ViewedCamera], blocks: _Blocks) -> dict[str, Any]:
    """Describe the cameras of a scene; nothing for a scene without cameras."""
    if not cameras:
        return {}
    descriptions = []
    for camera in cameras:
        width, height = camera.size
        descriptions.append(
            {
                "number": camera.number,
                "corners": camera.corners.round(4).tolist(),
                "size": f"{width} x {height}",
                "image": blocks.add_image(camera.jpeg) if camera.jpeg else "",
            }
        )
    return {"frames": descriptions}


def _describe_coloring(
    coloring: Coloring, order: NDArray[np.int64], blocks: _Blocks
) -> dict[str, Any]:
    """Describe a colouring: indices of categories, or colours if it has no categories."""
    values: NDArray[np.unsignedinteger[Any]] = coloring.colors
    if coloring.indices is not None:
        values = coloring.indices
        if len(coloring.categories) <= 1 << 8:
            values = values.astype(np.uint8)
    return {
        "name": coloring.name,
        "title": coloring.title,
        "values": blocks.add(values[order]),
        "isPerScene": coloring.is_per_scene,
        "categories": [_describe_category(category) for category in coloring.categories],
        "tables": [asdict(table) for table in coloring.tables],
    }


def _describe_category(category: Category) -> dict[str, Any]:
    """Describe a category."""
    description = {
        "name": category.name,
        "color": "#{:02x}{:02x}{:02x}".format(*category.color),
        "count": category.count,
        "ambient": round(category.ambient, 3),
    }
    if category.raw_category:
        description["raw"] = category.raw_category
    if category.note:
        description["note"] = category.note
    if category.object_id is not None:
        description["object"] = category.object_id
    return description


def _z_order(grid: NDArray[np.uint16]) -> NDArray[np.int64]:
    """Sort points by cells along a Z-order curve (Morton, 1966), and in their order within a cell.

    The key of a cell interleaves the bits of x, y and z.
    """
    keys = np.zeros(len(grid), np.uint64)
    for bit in range(_CELL_BITS, _GRID_BITS):
        for axis in range(3):
            bits = ((grid[:, axis] >> bit) & 1).astype(np.uint64)
            keys |= bits << np.uint64(3 * bit + axis)
    return np.argsort(keys, kind="stable")


def _pack_faces(faces: NDArray[np.int32], order: NDArray[np.int64]) -> NDArray[np.uint32]:
    """Pack triangles of the sorted vertices, (F, 3).

    Returns:
        Sorted rows of the lowest corner, and of the two others as differences from it, each added
        to those of all rows before, modulo 2**32. A block stores differences between rows, so it
        stores these differences as they are: they are small, and rows are not alike in them.
    """
    new_indices = np.empty(len(order), np.int64)
    new_indices[order] = np.arange(len(order))
    corners = new_indices[faces]
    # Rotate each triangle to its lowest corner, which does not turn it over.
    rotations = (corners.argmin(axis=1)[:, np.newaxis] + np.arange(3)) % 3
    corners = np.take_along_axis(corners, rotations, axis=1)
    # Sort by the lowest corner, then by the two others: the last key of `lexsort` comes first.
    corners = corners[np.lexsort(corners.T[::-1])]
    corners[:, 1:] -= corners[:, :1]
    corners[:, 1:] = np.cumsum(corners[:, 1:], axis=0)
    return corners.astype(np.uint32)
