"""Addresses on the web: told from paths, and as messages may show them."""

from __future__ import annotations

from urllib.parse import urlsplit


def public_url(url: str) -> str:
    """An address without what may be secret in it: user, password, and the query, which holds signatures and tokens."""
    try:
        parts = urlsplit(url)
    except ValueError:  # brackets that do not close
        return f"{url.partition(':')[0]}://..."
    host = parts.netloc.rpartition("@")[2]
    return parts._replace(netloc=host, query="..." if parts.query else "", fragment="").geturl()


def is_url(place: object) -> bool:
    """Whether it is an address on the web; a `Path` is none, also where it looks like one."""
    return isinstance(place, str) and place.lower().startswith(("https://", "http://"))


def is_server_address(text: str) -> bool:
    """Whether an address names a server on the web, and a port that there can be."""
    try:
        parts = urlsplit(text)
        return parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError:  # brackets without an address between them, a port that is not a number
        return False
