"""Certificate authorities: a file or a folder with those that a connection trusts.

If neither the caller nor the environment names one, connections trust the authorities in the package certifi, not
those of the operating system.
"""

from __future__ import annotations

import re
import ssl
from collections.abc import Mapping
from pathlib import Path

from scannet_prep.base.errors import UsageError

# As httpx and curl read them, in this order: the first that is set replaces certifi's authorities.
_VARIABLES = ("REQUESTS_CA_BUNDLE", "CURL_CA_BUNDLE", "SSL_CERT_FILE", "SSL_CERT_DIR")
_HASHED_NAME = re.compile(r"[0-9a-f]{8}\.[0-9]+")
_HINT = (
    "--ca-bundle PATH takes a file of certificates (PEM), or a folder prepared by `openssl rehash FOLDER`; "
    f"so do {', '.join(_VARIABLES)}"
)


def find_authorities(environ: Mapping[str, str]) -> bool | Path:
    """Find the file or folder of authorities that an environment names; True, for certifi's, if it names none."""
    for name in _VARIABLES:
        if environ.get(name):
            return Path(environ[name])
    return True


def check_authorities(path: Path) -> None:
    """Check that a file or a folder holds certificates that OpenSSL can find.

    Raises:
        UsageError: It holds none, or cannot be read.
    """
    try:
        if path.is_dir():
            # OpenSSL looks a certificate up by the hash in its file name, and silently ignores other files.
            if not any(_HASHED_NAME.fullmatch(entry.name) for entry in path.iterdir()):
                raise UsageError(
                    f"{path}: contains no certificate under its hash, such as 5ed36f99.0", _HINT
                )
        else:
            ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT).load_verify_locations(cafile=path)
    except OSError as error:
        reason = error.strerror
        if isinstance(error, ssl.SSLError):
            reason = "contains no certificate (PEM)"
        raise UsageError(f"{path}: {reason}", _HINT) from None
