"""Web addresses: check them, and redact what is secret in them."""

from __future__ import annotations

from urllib.parse import urlsplit


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


def is_server_address(text: str) -> bool:
    """Whether a text is an http or https address with a valid host and port."""
    try:
        parts = urlsplit(text)
        port = parts.port
        host = parts.hostname or ""
        host.encode("idna")
    except ValueError:
        # A bracket is not closed, the port is not a number, or a label of the host name is empty
        # or longer than 63 characters.
        return False
    return parts.scheme in ("http", "https") and host != "" and port != 0
