"""Whom to trust on the web: arguments that several commands share."""

from __future__ import annotations

import argparse
import warnings
from pathlib import Path

from scannet_prep.cli.arguments import Container, path_argument
from scannet_prep.cli.console import Console


def add_trust_arguments(parser: Container) -> None:
    """Add the choice of authorities."""
    trust = parser.add_mutually_exclusive_group()
    trust.add_argument("--ca-bundle", type=path_argument, metavar="FILE", help="certificate authorities to trust")
    trust.add_argument(
        "--insecure", action="store_true", help="accept any certificate, so that anybody can pose as the server"
    )


def certificates_from(arguments: argparse.Namespace, console: Console) -> bool | Path:
    """The choice that was made: the system's authorities (True), those in a file, or anybody (False).

    The last is warned about: once and loudly, what urllib3 would say of every request.
    """
    if not arguments.insecure:
        return arguments.ca_bundle or True
    from urllib3.exceptions import InsecureRequestWarning

    console.warn("warning: --insecure: certificates are not verified; anybody can pose as the server")
    warnings.simplefilter("ignore", InsecureRequestWarning)
    return False
