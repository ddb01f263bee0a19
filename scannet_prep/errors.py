"""Errors that this package raises on purpose.

ScanNetPrepError
 ├── UsageError              the arguments are wrong or the terms not accepted; nothing was changed
 │    └── UnknownSceneError       a scene id is malformed, or not in the data
 ├── FileError               a file or a scene is not as expected; the message names it
 │    ├── MissingFileError        it does not exist
 │    └── ArchiveError            an archive (.tar.zst) is damaged
 ├── TransferError           a file cannot be fetched
 │    └── OutageError             the server has served nothing for too long
 ├── ContentError            a value is not as expected; readers turn it into a FileError
 ├── WorkerDiedError         the operating system ended a worker process during its work
 └── OutputError             the results cannot be written, for example without permission
      └── DiskFullError           disk full, quota used up, or mounted read-only

An error has a class of its own only if some code handles it in its own way. Any other error is
raised as the class above that describes it best. All arguments are positional, so that an error
survives a process pool.
"""

from __future__ import annotations

from pathlib import Path


class ScanNetPrepError(Exception):
    """Base class of all errors of this package.

    Attributes:
        message: What was found and what was expected, with the numbers.
        hint: A command, option or action that may help; may be empty.
    """

    def __init__(self, message: str = "", hint: str = "") -> None:
        # Not super(): for a subclass that is also an OSError, it would take the message for an
        # errno.
        BaseException.__init__(self, message, hint)
        self.message = message
        self.hint = hint

    def __reduce__(self) -> tuple[type[ScanNetPrepError], tuple[object, ...]]:
        """Pickle by the arguments of the constructor; OSError would expect an errno first."""
        return type(self), self.args

    def __str__(self) -> str:
        """Return the message, and the hint on a line of its own."""
        if not self.hint:
            return self.message
        return f"{self.message}\nhint: {self.hint}"


class UsageError(ScanNetPrepError, ValueError):
    """The arguments are wrong, or the terms are not accepted; nothing was changed."""


class UnknownSceneError(UsageError, KeyError):
    """A scene id is malformed, or not in the data."""


class FileError(ScanNetPrepError, ValueError):
    """A file is not as expected.

    Attributes:
        path: The file.
        place: The same as a string; a URL if the file is on the web.
        problem: What was found and what was expected.
    """

    def __init__(self, path: str | Path = "", problem: str = "", hint: str = "") -> None:
        if problem:
            message = f"{path}: {problem}"
        else:
            # PyTorch rebuilds the error of a DataLoader worker from its text alone, as `cls(text)`:
            # the first argument is then the whole message.
            message = str(path)
        super().__init__(message, hint)
        # The arguments of this constructor, not of the base class: pickling passes them to it.
        self.args = (path, problem, hint)
        self.path = Path(path)
        self.place = str(path)
        self.problem = problem


class MissingFileError(FileError, FileNotFoundError):
    """A file does not exist."""


class TransferError(ScanNetPrepError):
    """A file cannot be fetched."""


class OutageError(TransferError):
    """The server has served nothing for too long."""


class ArchiveError(FileError):
    """An archive (.tar.zst) is damaged, or was written by something else."""


class ContentError(ScanNetPrepError, ValueError):
    """A value is not as expected.

    Raised where the name of the file is not known; readers turn it into a `FileError`.
    """


class WorkerDiedError(ScanNetPrepError, RuntimeError):
    """The operating system ended a worker process during its work."""


class OutputError(ScanNetPrepError, OSError):
    """The results cannot be written: disk full, quota used up, no permission."""


class DiskFullError(OutputError):
    """The disk is full, a quota is used up, or the file system is read-only."""
