"""Web addresses without what is secret in them."""

from __future__ import annotations

import re
from urllib.parse import urlsplit

SECRETS = re.compile(r"(?<=//)[^/\s]*@|(?<=\?)[^\s')]+")
"""What is secret in a text with addresses: user and password, and the query."""


def public_url(url: str) -> str:
    """Return an address that is safe to show: without user, password, query values and fragment.

    The query of a signed address holds signatures and tokens.
    """
    try:
        parts = urlsplit(url)
        # Reading the port checks it.
        _ = parts.port
    except ValueError:
        # A bracket is not closed, or the password contains a slash, so that a part of the password
        # is taken for the port.
        scheme = url.partition(":")[0]
        return f"{scheme}://..."
    host = parts.netloc.rpartition("@")[2]
    query = "..." if parts.query else ""
    return parts._replace(netloc=host, query=query, fragment="").geturl()
