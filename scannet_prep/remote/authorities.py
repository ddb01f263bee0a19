"""Certificate authorities that a connection trusts: a file, or a folder of them.

If neither the caller nor the environment names any, connections trust the authorities in the Python
package certifi, not those of the operating system.
"""

from __future__ import annotations

import re
import ssl
from collections.abc import Mapping
from pathlib import Path
from typing import Literal

from scannet_prep.errors import UsageError

# In the order of httpx and curl. The first one that is set replaces the authorities of certifi.
_VARIABLES = ("REQUESTS_CA_BUNDLE", "CURL_CA_BUNDLE", "SSL_CERT_FILE", "SSL_CERT_DIR")
_HASHED_NAME = re.compile(r"[0-9a-f]{8}\.[0-9]+")
_HINT_CA_BUNDLE = (
    "--ca-bundle PATH takes a file of certificates (PEM), or a folder prepared by "
    f"`openssl rehash FOLDER`; so do {', '.join(_VARIABLES)}"
)


def find_authorities(environ: Mapping[str, str]) -> Path | Literal[True]:
    """Return the file or folder of authorities named in an environment, or True for certifi's."""
    for name in _VARIABLES:
        if environ.get(name):
            return Path(environ[name])
    return True


def check_authorities(path: Path) -> None:
    """Check that OpenSSL finds certificates in a file or a folder.

    Raises:
        UsageError: The path contains none, or cannot be read.
    """
    try:
        if path.is_dir():
            _check_folder(path)
        else:
            ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT).load_verify_locations(cafile=path)
    except ssl.SSLError:
        raise UsageError(f"{path}: contains no certificate (PEM)", _HINT_CA_BUNDLE) from None
    except OSError as error:
        raise UsageError(f"{path}: {error.strerror}", _HINT_CA_BUNDLE) from None


def _check_folder(folder: Path) -> None:
    """Check that a folder contains a file that is named by the hash of a certificate's subject.

    OpenSSL looks certificates up by this hash, and silently ignores other files.
    """
    if not any(_HASHED_NAME.fullmatch(entry.name) for entry in folder.iterdir()):
        problem = "contains no certificate under its hash, such as 5ed36f99.0"
        raise UsageError(f"{folder}: {problem}", _HINT_CA_BUNDLE)
