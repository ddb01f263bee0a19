"""The ScanNet Terms of Use: how to sign them, and the local record that they were accepted.

The record is for `download` only. Each person accepts the terms individually, so no other command
reads or copies it.
"""

from __future__ import annotations

import datetime as dt
from pathlib import Path

from scannet_prep.base.files import make_directory, write_atomically
from scannet_prep.release.files import TERMS_URL

TERMS_NAME = "terms_accepted.txt"

# The address, the procedure and the week are from the README of ScanNet's own repository.
HOW_TO_SIGN = (
    f"To sign the terms, fill in the form {TERMS_URL} and send it from the e-mail address of your "
    "institution to scannet@googlegroups.com. The answer comes by e-mail; if there is none within "
    "a week, your message has probably bounced. There is no account and no password: once your "
    "form is accepted, you may accept the terms here. docs/access.md describes all of it, and what "
    "works without the data."
)


def has_accepted_terms(data_dir: Path) -> bool:
    """Whether a data folder contains the record that the terms were accepted."""
    return (data_dir / TERMS_NAME).is_file()


def record_acceptance(data_dir: Path) -> None:
    """Record in a data folder that the terms were accepted now, unless there is a record already.

    Raises:
        OutputError: The folder cannot be written to.
    """
    if has_accepted_terms(data_dir):
        return
    make_directory(data_dir)
    now = dt.datetime.now(dt.timezone.utc).isoformat(timespec="seconds")
    text = f"ScanNet Terms of Use accepted at {now}\n{TERMS_URL}\n"
    write_atomically(data_dir / TERMS_NAME, [text.encode()])
