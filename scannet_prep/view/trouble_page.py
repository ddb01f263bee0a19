"""The page of a scene that a server cannot show: the reason, and the way to other scenes."""

from __future__ import annotations

from scannet_prep.view.markup import append, element, make_page, read_asset, read_fragment

# Each script uses only those before it.
_SCRIPTS = ("page/request.js", "page/filter.js", "page/neighbours.js", "page/trouble.js")


def make_trouble_page(scene_id: str, problem: str, hint: str) -> bytes:
    """Make the page.

    Args:
        scene_id: The scene.
        problem: Why it cannot be shown.
        hint: What to do about it; may be empty.
    """
    header, main = read_fragment("page/trouble.html")
    append(header[0], scene_id)
    append(main, [element("p", text) for text in (problem, hint) if text])
    return make_page(
        scene_id,
        header,
        main,
        style=read_asset("page/scenes.css"),
        script=read_asset(*_SCRIPTS),
        is_served=True,
    )
