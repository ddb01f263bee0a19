"""HTML pages that show scenes in a browser, without network, server or installation.

A page is one file: style, script, a description as JSON, and arrays as base64 of deflate.

Positions are steps of a grid, each stored as the difference from the vertex before. Triangles begin
with their lowest corner and are sorted by it: it is stored as the difference from that of the
triangle before, and the other corners as differences from it. Of numbers of several bytes, the
first bytes of all are stored first, then the second bytes, and so on. All this halves the size.
"""

from __future__ import annotations

import base64
import hashlib
import json
import math
from html import escape
from importlib import resources
from string import Template
from typing import Any

import deflate
import numpy as np
from numpy.typing import NDArray

from scannet_prep.view.coloring import UNLABELED, Category, Coloring, ViewedScene, estimate_spacing

# The longest side of the scene's box has so many steps: in a room, a step is about 0.1 mm.
_STEPS = 65_535
_DEFLATE_LEVEL = 9


def make_scene_page(
    scene: ViewedScene,
    *,
    color: str = "",
    beside: str = "",
    is_served: bool = False,
    picture: bytes = b"",
) -> bytes:
    """Make the page of a scene.

    Args:
        scene: The scene.
        color: The initial colouring; by default the first.
        beside: The initial colouring of a second picture beside the first one; none by default.
        is_served: Whether the page comes from a server of scenes: it then links to their list.
        picture: PNG to show where scripts are disabled; none by default.

    Returns:
        The whole file, UTF-8. The same scene always gives the same bytes.
    """
    points = scene.points.astype(np.float64)
    origin = points.min(axis=0)
    size = points.max(axis=0) - origin
    # A scene of one point has no extent.
    step = (float(size.max()) or 1.0) / _STEPS
    grid = np.rint((points - origin) / step).astype(np.uint16)
    arrays: dict[str, NDArray[Any]] = {"steps": np.diff(grid, axis=0, prepend=np.uint16(0))}
    if scene.faces is not None:
        arrays["faces"] = _pack_faces(scene.faces)
    colorings = scene.colorings.items()
    for name, coloring in colorings:
        arrays[f"color-{name}"] = _find_values(coloring)

    data = {
        "name": scene.scene_id,
        "color": color,
        "beside": beside,
        "origin": origin.tolist(),
        "size": size.tolist(),
        "step": step,
        "spacing": estimate_spacing(scene.points),
        "unlabeled": UNLABELED,
        "arrays": [{"name": name, "width": each.itemsize} for name, each in arrays.items()],
        "colorings": [_describe_coloring(*each) for each in colorings],
    }
    # Escape "<", so that no name can end the element.
    text = json.dumps(data, separators=(",", ":")).replace("<", "\\u003c")
    blocks = [_embed("data", text)]
    blocks += [_embed(f"array-{name}", _pack(array)) for name, array in arrays.items()]
    style = _read_asset("page.css")
    script = _read_asset("drawing.js") + _read_asset("viewer.js")
    still = ""
    if picture:
        png = base64.b64encode(picture).decode()
        still = f'<img src="data:image/png;base64,{png}" alt="">'
    return _fill(
        _read_asset("page.html"),
        policy=_make_policy(style, script),
        style=style,
        script=script,
        name=escape(scene.scene_id),
        facts=escape(_describe_scene(scene, size)),
        home='<a href="/">All scenes</a>' if is_served else "",
        choices="".join(_make_choice(*each) for each in colorings),
        options="".join(_make_option(*each) for each in colorings),
        still=still,
        low=math.floor(origin[2]),
        high=math.ceil(origin[2] + size[2]),
        mesh="disabled" if scene.faces is None else "checked",
        blocks="\n".join(blocks),
    )


def _pack_faces(faces: NDArray[np.int32]) -> NDArray[np.int32]:
    """Sort triangles, (F, 3), and return their differences; see the docstring of the module."""
    # Rotating a triangle does not turn it over.
    rotations = (faces.argmin(axis=1)[:, np.newaxis] + np.arange(3)) % 3
    corners = np.take_along_axis(faces, rotations, axis=1).astype(np.int32)
    # The last key of `lexsort` comes first.
    corners = corners[np.lexsort(corners.T[::-1])]
    lowest = corners[:, :1]
    return np.hstack([np.diff(lowest, axis=0, prepend=np.int32(0)), corners[:, 1:] - lowest])


def _find_values(coloring: Coloring) -> NDArray[np.unsignedinteger[Any]]:
    """Return the indices of categories, (V,), or the colours if there are none, (V, 3)."""
    if coloring.indices is None:
        return coloring.colors
    is_small = len(coloring.categories) <= 1 << 8
    return coloring.indices.astype(np.uint8) if is_small else coloring.indices


def _pack(array: NDArray[Any]) -> str:
    """Pack an array; see the docstring of the module."""
    ordered = np.ascontiguousarray(array, array.dtype.newbyteorder("<"))
    planes = ordered.view(np.uint8).reshape(-1, array.dtype.itemsize).T
    packed = deflate.deflate_compress(planes.tobytes(), _DEFLATE_LEVEL)
    return base64.b64encode(packed).decode()


def _describe_scene(scene: ViewedScene, size: NDArray[np.float64]) -> str:
    """Describe a scene in a line."""
    parts = [scene.split, scene.frame, f"{len(scene.points):,} vertices"]
    if scene.faces is not None:
        parts.append(f"{len(scene.faces):,} faces")
    parts.append(" x ".join(f"{length:.1f}" for length in size.tolist()) + " m")
    return " · ".join(part for part in parts if part)


def _describe_coloring(name: str, coloring: Coloring) -> dict[str, Any]:
    """Describe a colouring for the script."""
    return {
        "name": name,
        "title": coloring.title,
        "isPerScene": coloring.is_per_scene,
        "categories": [_describe_category(category) for category in coloring.categories],
        "tables": [
            {"title": table.title, "columns": table.columns, "rows": table.rows}
            for table in coloring.tables
        ],
    }


def _describe_category(category: Category) -> dict[str, Any]:
    """Describe a category; those of the same key share a line of the legend."""
    description = {
        "key": category.instance,
        "name": category.name,
        "color": category.color,
        "count": category.count,
        "note": category.note,
        "raw": category.raw_category,
        "object": category.object_id,
    }
    return {key: value for key, value in description.items() if value not in ("", None)}


def _make_choice(name: str, coloring: Coloring) -> str:
    """Make the button that chooses a colouring."""
    name = escape(name)
    field = f'<input type="radio" name="color" value="{name}">'
    return f'<label title="{escape(coloring.title)}">{field}{name}</label>'


def _make_option(name: str, coloring: Coloring) -> str:
    """Make the line of a list that chooses a colouring."""
    return f'<option value="{escape(name)}">{escape(coloring.title)}</option>'


def _make_policy(style: str, script: str) -> str:
    """Make a Content-Security-Policy under which a page loads nothing and runs its own script."""
    rules = (
        "default-src 'none'",
        "img-src data:",
        f"style-src {_hash_source(style)}",
        f"script-src {_hash_source(script)}",
        "base-uri 'none'",
        "form-action 'none'",
    )
    return "; ".join(rules)


def _hash_source(text: str) -> str:
    """Return the source expression of a style or a script."""
    digest = hashlib.sha256(text.encode()).digest()
    return f"'sha256-{base64.b64encode(digest).decode()}'"


def _embed(name: str, text: str) -> str:
    """Embed data for the script, which browsers do not run."""
    return f'<script type="text/plain" id="{escape(name)}">{text}</script>'


def _read_asset(name: str) -> str:
    """Read one of the files that pages are made of."""
    folder = resources.files("scannet_prep").joinpath("assets", "page")
    return folder.joinpath(name).read_text(encoding="utf-8")


def _fill(template: str, **texts: object) -> bytes:
    """Fill the places of a template, which are marked by `$name`."""
    # Paths may contain lone surrogates, which UTF-8 cannot encode.
    return Template(template).substitute(texts).encode("utf-8", "backslashreplace")
