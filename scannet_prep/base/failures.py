"""Words for exceptions and for long lists."""

from __future__ import annotations

import traceback
from collections.abc import Sequence

from scannet_prep.errors import ScanNetPrepError, WorkerDiedError

_HINT_ONE_JOB = "memory may have run out: try again with --jobs 1"


def explain(error: Exception) -> tuple[str, str, str]:
    """Describe an exception to users.

    Returns:
        The problem; a hint, which may be empty; and, if the exception is a bug of this program,
        its traceback, otherwise empty.
    """
    if isinstance(error, ScanNetPrepError):
        hint = error.hint
        # Where the pool knows a better hint, such as for an executor, the error already has it.
        if not hint and isinstance(error, WorkerDiedError):
            hint = _HINT_ONE_JOB
        return error.message, hint, ""
    if isinstance(error, MemoryError):
        return "memory ran out", "try again with fewer workers: --jobs 1", ""
    if isinstance(error, OSError):
        return f"cannot be read: {error.strerror or error}", "", ""
    # All errors that users can cause have been handled above, so this one is a bug.
    trace = "".join(traceback.format_exception(error))
    return f"unforeseen {type(error).__name__}: {error}", "please report this", trace


def list_some(names: Sequence[str], shown: int = 3) -> str:
    """Join the first names and count the others, as in `a, b, c and 4 more`."""
    text = ", ".join(names[:shown])
    if len(names) > shown:
        text += f" and {len(names) - shown:,} more"
    return text
