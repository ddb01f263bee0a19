"""The addresses of a server of scenes, which pages link to."""

from __future__ import annotations

DEFAULT_PORT = 8808
"""The port of `view --serve`, if the user chooses none."""


def scene_url(scene_id: str) -> str:
    """Return the address of a scene on a server with the default port, on this machine."""
    return f"http://127.0.0.1:{DEFAULT_PORT}/scene/{scene_id}"
