"""Trees of HTML and SVG elements. What stands in one is text, never markup: it is escaped when the tree is written."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TypeAlias
from xml.etree.ElementTree import Element, tostring

Child: TypeAlias = "Element | str | Iterable[Element | str]"


def element(tag: str, *children: Child, **attributes: object) -> Element:
    """Make an element.

    Args:
        tag: Its name.
        children: Elements, texts, or several of them.
        attributes: `_` stands for `-`, one at the end is left out (`class_`), and so are attributes that are None.
    """
    names = {
        name.rstrip("_").replace("_", "-"): value
        for name, value in attributes.items()
        if value is not None
    }
    made = Element(
        tag,
        {
            name: f"{value:.6g}" if isinstance(value, float) else str(value)
            for name, value in names.items()
        },
    )
    for child in children:
        for item in [child] if isinstance(child, str | Element) else child:
            if isinstance(item, Element):
                made.append(item)
            elif len(made):
                made[-1].tail = (made[-1].tail or "") + item
            else:
                made.text = (made.text or "") + item
    return made


def to_html(page: Element) -> str:
    """Write a whole page."""
    return "<!DOCTYPE html>\n" + tostring(page, "unicode", method="html") + "\n"


def to_svg(picture: Element) -> str:
    """Write a picture as a file of its own."""
    picture.set("xmlns", "http://www.w3.org/2000/svg")
    return tostring(picture, "unicode") + "\n"
