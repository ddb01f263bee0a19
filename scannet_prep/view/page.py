"""HTML pages that show scenes in a browser, without network, server or installation.

A page is one file: style, script, a description as JSON, and arrays as base64 of deflate.

Positions are steps of a grid, each stored as the difference from the vertex before. Triangles begin
with their lowest corner, and are sorted by it. This corner is stored as the difference from that of
the triangle before, the two others as differences from this corner. In arrays of numbers of several
bytes, the first bytes of all numbers are stored first, then the second bytes, and so on. All this
halves the size.
"""

from __future__ import annotations

import base64
import hashlib
import json
import math
from dataclasses import asdict
from html import escape
from importlib import resources
from string import Template
from typing import Any

import deflate
import numpy as np
from numpy.typing import NDArray

from scannet_prep.view.coloring import UNLABELED, Category, Coloring, ViewedScene, estimate_spacing

# The longest side of the scene's box has this many steps: in a room, a step is about 0.1 mm.
_STEPS = 65_535
_DEFLATE_LEVEL = 9


def make_scene_page(
    scene: ViewedScene,
    *,
    color: str = "",
    beside: str = "",
    is_served: bool = False,
) -> bytes:
    """Make the page of a scene.

    Args:
        scene: The scene.
        color: The initial colouring; by default the first.
        beside: The initial colouring of a second picture beside the first one; none by default.
        is_served: Whether the page comes from a server of scenes: it then links to their list.

    Returns:
        The whole file, UTF-8. The same scene always gives the same bytes.
    """
    points = scene.points.astype(np.float64)
    origin = points.min(axis=0)
    size = points.max(axis=0) - origin
    # A scene of one point has no extent.
    step = float(size.max()) / _STEPS or 1.0
    arrays: dict[str, NDArray[Any]] = {}
    arrays["steps"] = _find_steps((points - origin) / step)
    if scene.faces is not None:
        arrays["faces"] = _sort_faces(scene.faces)

    choices = ""
    options = ""
    descriptions = []
    for name, coloring in scene.colorings.items():
        # Without categories, the colours themselves.
        values = coloring.colors if coloring.indices is None else coloring.indices
        arrays[f"color-{name}"] = values
        title = escape(coloring.title)
        choices += _make_choice(name, title)
        options += f'<option value="{name}">{title}</option>'
        descriptions.append(_describe_coloring(name, coloring))

    data = {
        "name": scene.scene_id,
        "color": color,
        "beside": beside,
        "origin": origin.tolist(),
        "size": size.tolist(),
        "step": step,
        "spacing": estimate_spacing(scene.points),
        "unlabeled": UNLABELED,
        "widths": {name: array.itemsize for name, array in arrays.items()},
        "colorings": descriptions,
    }
    text = json.dumps(data, separators=(",", ":"))
    # No name can end the element.
    text = text.replace("<", "\\u003c")
    blocks = _embed("data", text)
    for name, array in arrays.items():
        blocks += _embed(f"array-{name}", _pack(array))

    style = _read_asset("page.css")
    script = _read_asset("drawing.js") + _read_asset("viewer.js")
    page = Template(_read_asset("page.html")).substitute(
        policy=_make_policy(style, script),
        style=style,
        script=script,
        name=escape(scene.scene_id),
        facts=escape(_describe_scene(scene, size.tolist())),
        home='<a href="/">All scenes</a>' if is_served else "",
        choices=choices,
        options=options,
        low=math.floor(origin[2]),
        # Above the highest vertex, which rounding must not cut off.
        high=math.floor(origin[2] + size[2]) + 1,
        mesh="disabled" if scene.faces is None else "checked",
        blocks=blocks,
    )
    # Paths may contain lone surrogates, which UTF-8 cannot encode.
    return page.encode("utf-8", "backslashreplace")


def _find_steps(steps: NDArray[np.float64]) -> NDArray[np.uint16]:
    """Round positions in steps, (V, 3), and return their differences, which wrap around."""
    grid = np.rint(steps).astype(np.uint16)
    return np.diff(grid, axis=0, prepend=np.uint16(0))


def _sort_faces(faces: NDArray[np.int32]) -> NDArray[np.int32]:
    """Sort triangles, (F, 3), and return their differences; see the docstring of the module."""
    # Rotating a triangle does not turn it over.
    first = faces.argmin(axis=1)[:, np.newaxis]
    columns = (first + np.arange(3)) % 3
    corners = np.take_along_axis(faces, columns, axis=1)
    # The last key of `lexsort` comes first.
    order = np.lexsort(corners.T[::-1])
    corners = corners[order].astype(np.int32)
    lowest = corners[:, 0]
    corners[:, 1:] -= lowest[:, np.newaxis]
    differences = np.diff(lowest, prepend=np.int32(0))
    corners[:, 0] = differences
    return corners


def _pack(array: NDArray[Any]) -> str:
    """Pack an array; see the docstring of the module."""
    little_endian = array.dtype.newbyteorder("<")
    ordered = np.ascontiguousarray(array, little_endian)
    numbers = ordered.view(np.uint8).reshape(-1, array.itemsize)
    planes = numbers.T.tobytes()
    return _encode(deflate.deflate_compress(planes, _DEFLATE_LEVEL))


def _describe_scene(scene: ViewedScene, size: list[float]) -> str:
    """Describe a scene in a line; its size is in metres."""
    parts = [f"{len(scene.points):,} vertices"]
    if scene.faces is not None:
        parts.append(f"{len(scene.faces):,} faces")
    sides = " x ".join(f"{side:.1f}" for side in size)
    parts.append(f"{sides} m".replace(" ", "\N{NO-BREAK SPACE}"))
    return " · ".join(parts)


def _describe_coloring(name: str, coloring: Coloring) -> dict[str, Any]:
    """Describe a colouring for the script."""
    return {
        "name": name,
        "title": coloring.title,
        "isPerScene": coloring.is_per_scene,
        "categories": list(map(_describe_category, coloring.categories)),
        "tables": list(map(asdict, coloring.tables)),
    }


def _describe_category(category: Category) -> dict[str, Any]:
    """Describe a category, without empty fields."""
    fields = asdict(category)
    return {key: value for key, value in fields.items() if value != ""}


def _make_choice(name: str, title: str) -> str:
    """Make the button that chooses a colouring; its title is escaped."""
    field = f'<input type="radio" name="color" value="{name}">'
    return f'<label title="{title}">{field}{name}</label>'


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
    return f"'sha256-{_encode(digest)}'"


def _encode(data: bytes | bytearray) -> str:
    """Return data as base64."""
    return base64.b64encode(data).decode()


def _embed(name: str, text: str) -> str:
    """Embed data for the script, in an element that browsers do not run."""
    return f'<script type="text/plain" id="{name}">{text}</script>\n'


def _read_asset(name: str) -> str:
    """Read one of the files that pages are made of."""
    folder = resources.files("scannet_prep").joinpath("assets", "page")
    return folder.joinpath(name).read_text(encoding="utf-8")
