"""Every error that this package raises on purpose.

ScanNetPrepError
 ├── UsageError              the request makes no sense, or the terms are not accepted; nothing was touched
 │    └── UnknownSceneError       a scene id that is malformed, or that the data does not hold
 ├── FileError               one file is not as expected; names it
 │    ├── MissingFileError        it does not exist
 │    ├── RawFileError            a mesh, segments, groups, metadata, a label map or scannet.lock is damaged
 │    ├── ProcessedFileError      a processed scene (.npz) is damaged
 │    ├── OldFormatError          a processed folder has the format of another version
 │    └── ArchiveError            an archive (.tar.zst) is damaged
 │         └── ForeignFileError        a file of another kind is in the place of an archive
 ├── TransferError           a file cannot be fetched
 │    ├── NotOnServerError        the server does not have the file
 │    ├── CertificateError        the server cannot prove its identity, so nothing can be fetched
 │    ├── ProxyError              the proxy of the environment lets nothing through
 │    └── ServerDownError         the server does not answer anybody
 ├── ContentError            a value is not as expected; readers turn it into a FileError
 ├── AnnotationError         the files of one scene are whole but do not fit together
 ├── TransformError          a transform of the training source failed on a scene
 ├── WorkerDiedError         the operating system ended a worker while it worked on a scene
 ├── LockedError             another run is working in the same folder
 └── OutputError             the results cannot be written, for example without permission
      └── DiskFullError           disk full, quota used up, or mounted read-only

A class of its own is for an error that a program treats in its own way. All others are of the nearest class above.

All arguments are positional, so that an error survives a process pool. `hint` says what to type or to do; it is empty
where nothing helpful can be said.
"""

from __future__ import annotations

from pathlib import Path


class ScanNetPrepError(Exception):
    """Base of all errors of this package.

    Attributes:
        message: What is wrong, with the numbers.
        hint: What to type or to do about it; may be empty.
    """

    def __init__(self, message: str = "", hint: str = "") -> None:
        # Not super(): OSError, which some of these are too, would take the message for an errno.
        BaseException.__init__(self, message, hint)
        self.message = message
        self.hint = hint

    def __reduce__(self) -> tuple[type[ScanNetPrepError], tuple[object, ...]]:
        """Pickle by the arguments of the constructor; OSError's own way expects an errno first."""
        return type(self), self.args

    def __str__(self) -> str:
        """Return the message, and the hint on a line of its own; `message` is the first part alone."""
        return f"{self.message}\nhint: {self.hint}" if self.hint else self.message


class UsageError(ScanNetPrepError, ValueError):
    """What was asked for makes no sense; nothing was touched."""


class UnknownSceneError(UsageError, KeyError):
    """A scene id that is malformed, or that the data does not hold."""


class FileError(ScanNetPrepError):
    """One file is not what it should be.

    Attributes:
        path: The file.
        place: The same as a text; an address, if it is on the web.
        problem: What was found and what was expected.
    """

    def __init__(self, path: str | Path = "", problem: str = "", hint: str = "") -> None:
        # PyTorch makes the error of a worker again from its message alone.
        super().__init__(f"{path}: {problem}" if problem else str(path), hint)
        self.args = (path, problem, hint)
        self.path = Path(path)
        self.place = str(path)
        self.problem = problem


class MissingFileError(FileError, FileNotFoundError):
    """A file that should be there is not."""


class RawFileError(FileError, ValueError):
    """A file of the raw tree is damaged, or of an unexpected kind."""


class ProcessedFileError(FileError, ValueError):
    """A processed scene (.npz) is damaged, or was written by something else."""


class OldFormatError(FileError, ValueError):
    """A processed folder has the format of another version of this package."""


class TransferError(ScanNetPrepError):
    """A file cannot be fetched."""


class NotOnServerError(TransferError):
    """The server says that it has no such file."""


class CertificateError(TransferError):
    """The server's certificate cannot be verified: it may be somebody else, and no file is fetched from it."""


class ProxyError(TransferError):
    """The proxy that the environment names cannot be used, or lets nothing through."""


class ServerDownError(TransferError):
    """The server does not answer anybody."""


class ArchiveError(FileError, ValueError):
    """An archive (.tar.zst) is damaged, or was written by something else."""


class ForeignFileError(ArchiveError):
    """A file where an archive is expected is whole, for all that is known, but of another kind."""


class ContentError(ScanNetPrepError, ValueError):
    """A value is not what it should be, found where the file's name is not known; readers make a `FileError` of it."""


class AnnotationError(ScanNetPrepError, ValueError):
    """The files of one scene are whole, each by itself, but do not fit together."""


class TransformError(ScanNetPrepError, RuntimeError):
    """A transform of the training source failed; names the scene, its file, and how to see it again."""


class WorkerDiedError(ScanNetPrepError, RuntimeError):
    """The operating system ended a worker process while it worked on a scene."""


class LockedError(ScanNetPrepError, RuntimeError):
    """Another run is working in the same folder; names its machine, process and start."""


class OutputError(ScanNetPrepError, OSError):
    """The results cannot be written: disk full, quota used up, no permission."""


class DiskFullError(OutputError):
    """The disk is full, a quota is used up, or the file system is read-only: nothing more can be written at all."""
