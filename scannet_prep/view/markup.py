"""Trees of HTML and SVG elements, and whole pages.

All HTML that the program writes is made here. Content is text, never markup: it is escaped when the
tree is written. Only style sheets and scripts are written unescaped.
"""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Iterable, Mapping
from importlib import resources
from typing import TypeAlias
from xml.etree.ElementTree import Element, fromstring, tostring

Child: TypeAlias = "Element | str | Iterable[Element | str]"


def element(tag: str, *children: Child, **attributes: object) -> Element:
    """Make an element.

    Args:
        tag: Its name.
        children: Elements, texts, or lists of them.
        attributes: Their names are written with `-` for `_`, as in `fill_opacity`. A `_` at the end
            is removed, as in `class_`. Attributes that are None are left out.
    """
    tree = Element(tag)
    for name, value in attributes.items():
        if value is None:
            continue
        text = f"{value:.6g}" if isinstance(value, float) else str(value)
        attribute_name = name.rstrip("_").replace("_", "-")
        tree.set(attribute_name, text)
    append(tree, *children)
    return tree


def append(parent: Element, *children: Child) -> None:
    """Append elements and texts to an element."""
    for child in children:
        if isinstance(child, Element):
            parent.append(child)
        elif isinstance(child, str):
            _append_text(parent, child)
        else:
            append(parent, *child)


def make_page(
    title: str,
    *content: Child,
    style: str,
    script: str = "",
    is_served: bool = False,
) -> bytes:
    """Make a page that may load nothing, which its Content-Security-Policy enforces.

    Args:
        title: Title of the page.
        content: Content of the body.
        style: The style sheet.
        script: The script; none by default.
        is_served: Whether the page may load images and data from the server that it comes from.

    Returns:
        The whole file, UTF-8.
    """
    images = "'self' data:" if is_served else "data:"
    rules = ["default-src 'none'", f"img-src {images}", f"style-src {_hash_source(style)}"]
    if is_served:
        rules.append("connect-src 'self'")
    scripts = []
    if script:
        rules.append(f"script-src {_hash_source(script)}")
        scripts.append(element("script", script, type="module"))
    rules += ["base-uri 'none'", "form-action 'none'"]
    head = element(
        "head",
        element("meta", charset="utf-8"),
        element("meta", http_equiv="Content-Security-Policy", content="; ".join(rules)),
        element("meta", name="viewport", content="width=device-width, initial-scale=1"),
        element("meta", name="referrer", content="no-referrer"),
        element("title", title),
        # Without this, browsers request an icon from the server.
        element("link", rel="icon", href="data:,"),
        element("style", style),
    )
    body = element("body", *content, scripts)
    return b"<!doctype html>\n" + to_html(element("html", head, body, lang="en")) + b"\n"


def to_html(tree: Element) -> bytes:
    """Write an element as a part of a page, UTF-8."""
    # Paths may contain lone surrogates, which UTF-8 cannot encode.
    return tostring(tree, "unicode", method="html").encode("utf-8", "backslashreplace")


def to_svg(picture: Element) -> str:
    """Write a picture as a file of its own."""
    picture.set("xmlns", "http://www.w3.org/2000/svg")
    return tostring(picture, "unicode") + "\n"


def embed_png(data: bytes) -> str:
    """Return the data URL of a PNG, which contains the whole picture."""
    return f"data:image/png;base64,{base64.b64encode(data).decode()}"


def embed_data(content_type: str, texts: Mapping[str, str]) -> list[Element]:
    """Make elements that hold data for the script of a page, each with its id.

    Args:
        content_type: The type of the data.
        texts: The data by id. The caller must have escaped each `<`, because the content of a
            script is written as it is, and `</script>` would end it.
    """
    return [element("script", text, type=content_type, id=name) for name, text in texts.items()]


def read_asset(*names: str) -> str:
    """Read one of the files that pages are made of, or join several."""
    folder = resources.files("scannet_prep").joinpath("assets")
    return "\n".join(folder.joinpath(name).read_text(encoding="utf-8") for name in names)


def read_fragment(name: str) -> Element:
    """Read an asset that is a well-formed element."""
    return fromstring(read_asset(name))  # noqa: S314 - a file of this package


def _append_text(parent: Element, text: str) -> None:
    """Append a text: after the last child, or as the beginning of an element without children."""
    if len(parent):
        parent[-1].tail = (parent[-1].tail or "") + text
    else:
        parent.text = (parent.text or "") + text


def _hash_source(text: str) -> str:
    """Return the source expression of a script or a style sheet for a Content-Security-Policy."""
    digest = hashlib.sha256(text.encode()).digest()
    return f"'sha256-{base64.b64encode(digest).decode()}'"
