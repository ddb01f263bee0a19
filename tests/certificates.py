"""Certificates by an authority that no machine trusts."""

from __future__ import annotations

import subprocess
from pathlib import Path


def make_private_authority(folder: Path, names: str = "IP:127.0.0.1,DNS:localhost", days: int = 2) -> tuple[Path, Path]:
    """Make an authority and a certificate signed by it: paths of the CA, and of the certificate with its key."""
    ca, ca_key, certificate, request, extensions = (folder / name for name in ("ca", "ca-key", "server", "csr", "ext"))
    key = ["-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes", "-keyout"]
    folder.mkdir(parents=True, exist_ok=True)
    extensions.write_text(
        "[req]\ndistinguished_name=dn\n[dn]\n"
        "[ca]\nbasicConstraints=critical,CA:TRUE\nkeyUsage=critical,keyCertSign,cRLSign\nsubjectKeyIdentifier=hash\n"
        "[server]\nbasicConstraints=CA:FALSE\nkeyUsage=critical,digitalSignature\nextendedKeyUsage=serverAuth\n"
        f"subjectKeyIdentifier=hash\nauthorityKeyIdentifier=keyid\nsubjectAltName={names}\n"
    )
    for command in (
        ["req", "-x509", *key, ca_key, "-out", ca, "-subj", "/CN=authority", "-extensions", "ca", "-days", "2"],
        ["req", *key, certificate, "-out", request, "-subj", "/CN=server"],
        ["x509", "-req", "-in", request, "-CA", ca, "-CAkey", ca_key, "-set_serial", "1", "-days", str(days),
         "-extfile", extensions, "-extensions", "server", "-out", folder / "signed"],
    ):  # fmt: skip
        config = ["-config", extensions] if command[0] == "req" else []
        subprocess.run(["openssl", *map(str, command), *map(str, config)], check=True, capture_output=True)
    with certificate.open("ab") as file:
        file.write((folder / "signed").read_bytes())
    return ca, certificate
