"""The page of a scene that a server cannot show: the reason, and the way to other scenes."""

from __future__ import annotations

from scannet_prep.view.markup import element, make_page, read_asset


def make_trouble_page(scene_id: str, problem: str, hint: str) -> bytes:
    """Make the page.

    Args:
        scene_id: The scene.
        problem: Why it cannot be shown.
        hint: What to do about it; may be empty.
    """
    header = element("header", element("h1", scene_id), element("a", "All scenes", href="/"))
    texts = ("This scene cannot be shown.", problem, hint)
    main = element("main", [element("p", text) for text in texts if text])
    return make_page(scene_id, header, main, style=read_asset("page/scenes.css"))
