"""Acceptance of the ScanNet Terms of Use, recorded in the data folder."""

from __future__ import annotations

import datetime as dt
from pathlib import Path

from scannet_prep.errors import TermsError
from scannet_prep.files import make_directory, write_atomically
from scannet_prep.release import TERMS_URL

RECORD_NAME = "terms_accepted.txt"


def has_accepted_terms(data_dir: Path) -> bool:
    """Whether the folder records that the terms were accepted."""
    return (data_dir / RECORD_NAME).is_file()


def require_terms(data_dir: Path) -> None:
    """Make sure that the terms were accepted.

    Raises:
        TermsError: They were not.
    """
    if not has_accepted_terms(data_dir):
        raise TermsError(
            f"the ScanNet Terms of Use have not been accepted: {TERMS_URL}",
            "read them, sign them as they say, then add --accept-terms or set SCANNET_PREP_ACCEPT_TERMS=1",
        )


def accept_terms(data_dir: Path) -> None:
    """Record in the data folder that the terms were accepted, and when.

    Raises:
        OutputError: The folder cannot be written to.
    """
    make_directory(data_dir)
    if not has_accepted_terms(data_dir):
        now = dt.datetime.now(dt.timezone.utc).isoformat(timespec="seconds")
        text = f"ScanNet Terms of Use accepted at {now}\n{TERMS_URL}\n"
        write_atomically(data_dir / RECORD_NAME, [text.encode()])
