"""The form of web addresses, and what is secret in them."""

from __future__ import annotations

import re

ADDRESS = re.compile(r"https?://([^\s/?#\[\]]|\[[\da-fA-F:.]+\])+(/[^\s?#]*)?")
"""A web address to which paths can be appended."""

# User and password, and the query, which in a signed address holds signatures and tokens. A
# password may contain a slash, against the rules; a port is not taken for one.
_SECRETS = re.compile(
    r"(?<=//)(?:[^/?\s]*|[^/?\s:]*:(?!\d*/)[^?\s]*)(?=@)"
    r"|(?<=\?)\S+"
)


def hide_secrets(text: str) -> str:
    """Return an address, or a text with addresses, that is safe to show."""
    return _SECRETS.sub("...", text)
