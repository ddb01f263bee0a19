"""Scenes as one HTML file that shows them in a browser: no network, no server, nothing to install.

    policy      the page may run its one script and use its one style sheet, by their hashes, and ask for nothing else
    data        JSON of titles, categories and descriptions of arrays; every `<` in it is escaped
    blocks      one `<script type="application/octet-stream">` an array: base64 of raw deflate
    script      the files of `assets/page`, one after the other

Positions are whole multiples of a step, 65,535 of which are the longest side of the scene's box: 0.1 mm in a room.
Vertices are sorted along a Z-order curve, so that neighbours are alike; stored are the differences of neighbours, byte
by byte, which halves what deflate makes of them. The order of vertices is not that of the mesh, for which a page has no
use.
"""

from __future__ import annotations

import base64
import hashlib
import json
import math
from collections.abc import Iterable
from html import escape
from importlib import resources
from string import Template
from typing import Any

import deflate
import numpy as np
from numpy.typing import NDArray

from scannet_prep.view.camera import FIELD_OF_VIEW, FILLED, NEAR, Camera
from scannet_prep.view.coloring import Coloring, ViewedScene
from scannet_prep.view.raster import SPREAD, estimate_spacing
from scannet_prep.view.renderer import AMBIENT, BACKGROUNDS, LIGHT, find_floor

_SCRIPTS = (  # each uses only those before it
    "data", "camera", "drawing", "picking", "legend", "tooltip", "link", "controls", "viewer",
)  # fmt: skip
_GRID_STEPS = 65_535
_DEFLATE_LEVEL = 7


def make_page(scenes: Iterable[ViewedScene], *, color: str = "", home: str = "") -> bytes:
    """Make a page that shows scenes.

    Args:
        scenes: At least one; they are encoded one after the other.
        color: The colouring that is shown first, where a scene has it; by default `rgb`.
        home: Address of a list of scenes that the page leads back to; none by default.

    Returns:
        The whole file, UTF-8. The same scenes always give the same bytes.
    """
    described, blocks = list[dict[str, Any]](), list[str]()
    for scene in scenes:
        described.append(_describe_scene(scene, blocks))
    title = described[0]["name"] + (
        f" and {len(described) - 1:,} more" if len(described) > 1 else ""
    )
    data = {"title": title, "color": color, "home": home, **_describe_view(), "scenes": described}
    script = "\n".join(read_asset(f"{name}.js") for name in _SCRIPTS)
    style = read_asset("page.css")
    policy = f"default-src 'none'; script-src {hash_source(script)}; style-src {hash_source(style)}; img-src data:; "
    policy += "base-uri 'none'; form-action 'none'"
    text = json.dumps(data, separators=(",", ":")).replace(
        "<", "\\u003c"
    )  # so that no name can end the element
    embedded = "\n".join([f'<script type="application/json" id="data">{text}</script>', *blocks])
    page = Template(read_asset("page.html"))
    return page.substitute(
        policy=policy, title=escape(title), style=style, script=script, data=embedded
    ).encode()


def _describe_view() -> dict[str, Any]:
    """The numbers of the software renderer, so that pages and pictures look the same."""
    camera = Camera()
    return {
        "camera": {
            "azimuth": math.radians(camera.azimuth),
            "elevation": math.radians(camera.elevation),
            "slope": math.tan(FIELD_OF_VIEW / 2),
            "filled": FILLED,
            "near": NEAR,
        },
        "light": {"direction": LIGHT.tolist(), "ambient": AMBIENT},
        "backgrounds": {
            name: [part / 255 for part in color] for name, (color, _) in BACKGROUNDS.items()
        },
    }


def _describe_scene(scene: ViewedScene, blocks: list[str]) -> dict[str, Any]:
    """What the script is told of a scene; its arrays are added to the blocks."""
    points = scene.points.astype(np.float64)
    origin = points.min(axis=0)
    step = float((points - origin).max()) / _GRID_STEPS or 1.0 / _GRID_STEPS
    grid = np.rint((points - origin) / step).astype(np.uint16)
    order = _z_order(grid)
    arrays = {"positions": _add_block(grid[order], blocks)}
    if scene.faces is not None and len(scene.faces):
        arrays["faces"] = _add_block(_pack_faces(scene.faces, order), blocks)
    return {
        "name": scene.scene_id,
        "split": scene.split,
        "frame": scene.frame,
        "vertices": len(points),
        "triangles": 0 if scene.faces is None else len(scene.faces),
        "origin": origin.tolist(),
        "step": step,
        "grid": grid.max(axis=0).tolist(),
        "floor": find_floor(scene.points),
        "pointSize": estimate_spacing(scene.points) * SPREAD,
        "arrays": arrays,
        "colorings": [_describe_coloring(item, order, blocks) for item in scene.colorings.values()],
    }


def _describe_coloring(
    coloring: Coloring, order: NDArray[np.int64], blocks: list[str]
) -> dict[str, Any]:
    values: NDArray[np.unsignedinteger[Any]] = coloring.colors
    indices, categories = coloring.indices, list[dict[str, Any]]()
    if indices is not None:
        values = indices.astype(np.uint8) if len(coloring.categories) <= 1 << 8 else indices
        categories = [
            {
                "name": item.name,
                "color": "#{:02x}{:02x}{:02x}".format(*item.color),
                "count": item.count,
            }
            | ({"raw": item.raw_category} if item.raw_category else {})
            for item in coloring.categories
        ]
    array = _add_block(values[order], blocks)
    return {
        "name": coloring.name,
        "title": coloring.title,
        "values": array,
        "categories": categories,
    }


def _z_order(grid: NDArray[np.uint16]) -> NDArray[np.int64]:
    """The order of points along a Z-order curve (Morton, 1966): the bits of x, y and z in turns, as one number."""
    keys = np.zeros(len(grid), np.uint64)
    for bit in range(16):
        for axis in range(3):
            keys |= (grid[:, axis] >> bit & 1).astype(np.uint64) << np.uint64(3 * bit + axis)
    return np.argsort(keys, kind="stable")


def _pack_faces(faces: NDArray[np.int32], order: NDArray[np.int64]) -> NDArray[np.uint32]:
    """Triangles of the sorted vertices, sorted: the lowest corner, and how far the two others are from it."""
    places = np.empty(len(order), np.int64)
    places[order] = np.arange(len(order))
    corners = places[faces]
    turns = (
        corners.argmin(axis=1)[:, np.newaxis] + np.arange(3)
    ) % 3  # the side that is seen stays the same
    corners = np.take_along_axis(corners, turns, axis=1)
    corners = corners[np.lexsort(corners.T[::-1])]
    corners[:, 1:] -= corners[:, :1]
    return corners.astype(np.uint32)


def _add_block(array: NDArray[np.unsignedinteger[Any]], blocks: list[str]) -> dict[str, Any]:
    """Encode an array, (rows,) or (rows, columns); `data.js` decodes it."""
    columns = np.ascontiguousarray(array.reshape(len(array), -1).T)
    differences = np.diff(
        columns, axis=1, prepend=columns.dtype.type(0)
    )  # of unsigned numbers: they wrap
    item_bytes = columns.dtype.itemsize
    planes = (
        differences.astype(f"<u{item_bytes}").view(np.uint8).reshape(*columns.shape, item_bytes)
    )
    packed = deflate.deflate_compress(
        np.ascontiguousarray(planes.transpose(0, 2, 1)).data, _DEFLATE_LEVEL
    )
    name = f"block-{len(blocks)}"
    text = base64.b64encode(packed).decode()
    blocks.append(f'<script type="application/octet-stream" id="{name}">{text}</script>')
    return {"block": name, "rows": len(array), "columns": len(columns), "bytes": item_bytes}


def hash_source(text: str) -> str:
    """Name a script or a style sheet in a Content-Security-Policy."""
    return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"


def read_asset(name: str) -> str:
    """One of the files that pages are made of."""
    return (
        resources.files("scannet_prep").joinpath(f"assets/page/{name}").read_text(encoding="utf-8")
    )
