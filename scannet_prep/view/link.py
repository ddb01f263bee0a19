"""The link of a view: the part of the address of a page after `#`, as `link.js` writes it.

#scene=scene0568_00&color=scannet20&view=-1.0472,0.6981,7.5,1.2,2.1,0.9&hide=wall&ceiling=2

scene     the scene
color     its colouring
view      azimuth and elevation in radians, distance in metres, and the target: x, y, z in metres
aspect    width of the view divided by its height
hide      the name of a hidden category; once for each
only      the name of a category; all others are hidden; once for each
hidden    numbers of hidden categories as bits, in base64 (of an address); for many of them
hide.NAME, only.NAME, hidden.NAME   likewise, of another colouring
points    factor of the size of points
ceiling   everything higher above the floor is hidden, in metres
mesh      whether triangles are drawn, otherwise points
backs     whether surfaces are drawn from behind, too
light     whether the background is light
edges     whether edges are shaded
cameras   whether the cameras of frames are drawn; pictures have none
grid      whether there is a grid of metres
boxes     whether instances have boxes
ortho     whether the view has no perspective
clip      the box outside of which nothing is drawn: both ends of x, of y and of z, in metres
"""

from __future__ import annotations

import base64
import binascii
import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from urllib.parse import parse_qs

import numpy as np

from scannet_prep.errors import UsageError
from scannet_prep.view.camera import NEAR, OrthographicCamera, PlacedCamera
from scannet_prep.view.coloring import COLORINGS
from scannet_prep.view.visibility import Visibility

_WORDS = (
    "scene", "color", "view", "aspect", "hide", "only", "hidden", "points", "ceiling", "mesh",
    "backs", "light", "edges", "cameras", "grid", "boxes", "ortho", "clip",
)  # fmt: skip
_HIDING_WORDS = ("hide", "only", "hidden")
_NUMBER = re.compile(r"[-+]?\d+(\.\d+)?(e[-+]?\d+)?")
_MAX_NUMBER = 1e9
_MAX_ASPECT = 100
_HINT = "copy the link of a page again, with its button, and put it in quotes: --link '#...'"


@dataclass(frozen=True, slots=True)
class Link:
    """The view of a page.

    Attributes:
        scene_id: The scene; empty if the link contains none.
        color: The colouring; empty if the link contains none.
        camera: The camera; None for the initial view.
        visibility: What is hidden.
        has_mesh: Whether triangles are drawn, if there are any.
        has_backs: Whether surfaces are also drawn from behind.
        point_scale: Factor of the size of points.
        has_boxes: Whether instances have boxes.
        has_grid: Whether there is a grid of metres.
        has_edges: Whether edges are shaded.
        is_light: Whether the background is light; None if the link does not contain it.
    """

    scene_id: str = ""
    color: str = ""
    camera: PlacedCamera | None = None
    visibility: Visibility = field(default_factory=Visibility)
    has_mesh: bool = True
    has_backs: bool = False
    point_scale: float = 1.0
    has_boxes: bool = False
    has_grid: bool = False
    has_edges: bool = True
    is_light: bool | None = None


def parse_link(text: str) -> Link:
    """Parse a link: the part of an address after `#`, or a whole address.

    Raises:
        UsageError: It is not a link of a page, or it contains something that pictures do not show.
    """
    _, mark, content = text.rpartition("#")
    if not mark and "=" not in text:
        raise UsageError(f"{text!r:.80} is not the link of a view", _HINT)
    words = parse_qs(content, keep_blank_values=True)
    if "beside" in words:
        raise UsageError(
            "the link shows several pictures side by side",
            "press Save and Copy command in the page, for the link of the first one",
        )
    colorings = _find_colorings(words)
    suffixed = {f"{word}.{name}" for word in _HIDING_WORDS for name in colorings}
    unknown = [word for word in words if word not in _WORDS and word not in suffixed]
    if unknown:
        raise UsageError(f"the link contains {unknown[0]!r:.80}, which pictures do not have", _HINT)
    values = {word: texts[0] for word, texts in words.items()}
    visibility = replace(
        _parse_hidden(words),
        clip=_parse_clip(values),
        ceiling=_parse_number(values, "ceiling", 0, _MAX_NUMBER),
        others={name: _parse_hidden(words, f".{name}") for name in colorings},
    )
    return Link(
        scene_id=values.get("scene", ""),
        color=values.get("color", ""),
        camera=_parse_camera(values),
        visibility=visibility,
        has_mesh=_parse_switch(values, "mesh") is not False,
        has_backs=_parse_switch(values, "backs") is True,
        point_scale=_parse_number(values, "points", 1 / 4, 4) or 1.0,
        has_boxes=_parse_switch(values, "boxes") is True,
        has_grid=_parse_switch(values, "grid") is True,
        has_edges=_parse_switch(values, "edges") is not False,
        is_light=_parse_switch(values, "light"),
    )


def _find_colorings(words: Mapping[str, list[str]]) -> list[str]:
    """Find the colourings, in addition to that of the view, whose categories a link hides."""
    pairs = [word.partition(".") for word in words]
    names = {name for word, _, name in pairs if word in _HIDING_WORDS and name in COLORINGS}
    return sorted(names)


def _parse_hidden(words: Mapping[str, list[str]], suffix: str = "") -> Visibility:
    """Parse what is hidden of a colouring.

    Raises:
        UsageError: Bits are not base64.
    """
    only = words.get(f"only{suffix}")
    return Visibility(
        hidden=tuple(words.get(f"hide{suffix}", ())),
        only=None if only is None else frozenset(only),
        hidden_numbers=_parse_bits(words.get(f"hidden{suffix}", [""])[0]),
    )


def _parse_camera(values: Mapping[str, str]) -> PlacedCamera | None:
    """Parse the camera; None if the link contains none.

    Raises:
        UsageError: The numbers are not those of a camera.
    """
    is_orthographic = _parse_switch(values, "ortho") is True
    if "view" not in values:
        if is_orthographic:
            raise UsageError("the link has ortho=true, but no view", _HINT)
        return None
    numbers = _parse_numbers(values["view"])
    if not numbers or numbers[2] <= 0 or abs(numbers[1]) > math.pi / 2 + 1e-3:
        raise UsageError(
            f"the link has the view {values['view']!r:.80}, "
            "expected azimuth, elevation, distance, x, y, z",
            _HINT,
        )
    azimuth, elevation, distance, x, y, z = numbers
    kind = OrthographicCamera if is_orthographic else PlacedCamera
    return kind(
        azimuth=math.degrees(azimuth),
        elevation=math.degrees(elevation),
        target=(x, y, z),
        distance=max(distance, 2 * NEAR),
        aspect=_parse_number(values, "aspect", 1 / _MAX_ASPECT, _MAX_ASPECT) or 0.0,
    )


def _parse_clip(values: Mapping[str, str]) -> tuple[float, ...] | None:
    """Parse the ends of the clip box; None if the link contains none.

    Raises:
        UsageError: They are not the ends of a box.
    """
    if "clip" not in values:
        return None
    numbers = _parse_numbers(values["clip"])
    is_box = all(low <= high for low, high in zip(numbers[::2], numbers[1::2], strict=True))
    if not numbers or not is_box:
        raise UsageError(
            f"the link has the clip box {values['clip']!r:.80}, "
            "expected six numbers: both ends of x, of y and of z",
            _HINT,
        )
    return tuple(numbers)


def _parse_numbers(text: str) -> list[float]:
    """Parse six numbers; none if the text is something else."""
    numbers = [_parse_float(part) for part in text.split(",")]
    # Not a number is not below the limit either.
    is_valid = len(numbers) == 6 and all(abs(number) < _MAX_NUMBER for number in numbers)
    return numbers if is_valid else []


def _parse_number(values: Mapping[str, str], word: str, low: float, high: float) -> float | None:
    """Parse a number; None if the link contains none.

    Raises:
        UsageError: It is not a number of this range.
    """
    if word not in values:
        return None
    number = _parse_float(values[word])
    if not low <= number <= high:
        raise UsageError(
            f"the link has {word}={values[word]!r:.80}, expected {low:g} to {high:g}", _HINT
        )
    return number


def _parse_float(text: str) -> float:
    """Parse a number as JavaScript writes it; not a number if it is none."""
    return float(text) if _NUMBER.fullmatch(text) else math.nan


def _parse_switch(values: Mapping[str, str], word: str) -> bool | None:
    """Parse true or false; None if the link contains neither.

    Raises:
        UsageError: It is another word.
    """
    text = values.get(word)
    if text is None:
        return None
    if text not in ("true", "false"):
        raise UsageError(f"the link has {word}={text!r:.80}, expected true or false", _HINT)
    return text == "true"


def _parse_bits(text: str) -> frozenset[int]:
    """Parse numbers as bits, the lowest bit of each byte first.

    Raises:
        UsageError: The text is not base64.
    """
    try:
        data = base64.b64decode(text + "=" * (-len(text) % 4), b"-_", validate=True)
    except (binascii.Error, ValueError) as error:
        raise UsageError(f"the link has hidden={text!r:.80}, expected base64", _HINT) from error
    bits = np.unpackbits(np.frombuffer(data, np.uint8), bitorder="little")
    return frozenset(np.flatnonzero(bits).tolist())
