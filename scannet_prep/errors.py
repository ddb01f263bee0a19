"""Every error that this package raises on purpose.

ScanNetPrepError
 ├── UsageError              what was asked for makes no sense; nothing was touched
 │    ├── TermsError              the ScanNet Terms of Use have not been accepted
 │    ├── UnknownSceneError       a scene id that is malformed, or that the data does not hold
 │    └── UnknownSplitError       a split that does not exist, or that a scene has none of
 ├── FileError               one file is not what it should be; names it
 │    ├── MissingFileError        it is not there
 │    ├── MeshError               a mesh (.ply)
 │    ├── SegmentsError           an over-segmentation (.segs.json)
 │    ├── AggregationError        annotated groups (.aggregation.json)
 │    ├── ScanInfoError           a scan's metadata (.txt)
 │    ├── LabelMapError           a label map (.tsv)
 │    ├── LockError               the digests of a raw tree (scannet.lock)
 │    ├── ProcessedFileError      a processed scene (.npz)
 │    ├── ManifestError           the manifest of a processed folder
 │    ├── PredictionError         the prediction of a scene
 │    └── ArchiveError            an archive (.tar.zst)
 │         └── ForeignFileError        a file of another kind where an archive is expected
 ├── TransferError           a file cannot be fetched
 │    ├── NotOnServerError        the server says that it has no such file
 │    ├── RefusedError            the server says that it will not give a file
 │    ├── CertificateError        the server cannot prove who it is, so that nothing can be fetched
 │    ├── ProxyError              the proxy that the environment names lets nothing through
 │    └── ServerDownError         the server does not answer anybody
 ├── ContentError            a value is not what it should be; readers tell it as a FileError
 ├── AnnotationError         the files of one scene are whole but do not fit together
 ├── ExportError             a scene cannot be told in the format of another program
 ├── TransformError          a transform of the training source failed on a scene
 ├── WorkerDiedError         the operating system ended a worker while it worked on a scene
 ├── LockedError             another run is working in the same folder
 └── OutputError             the results cannot be written, for example without permission
      └── DiskFullError           disk full, quota used up, or mounted read-only

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
        if hint and hasattr(self, "add_note"):  # from Python 3.11 on
            self.add_note(f"hint: {hint}")  # printed below a traceback

    def __reduce__(self) -> tuple[type[ScanNetPrepError], tuple[object, ...]]:
        """Pickle by the arguments of the constructor; OSError's own way expects an errno first."""
        return type(self), self.args

    def __str__(self) -> str:
        """The message; and the hint, where Python is too old (3.10) to show it below a traceback."""
        return f"{self.message}\nhint: {self.hint}" if self.hint and not hasattr(self, "add_note") else self.message


class UsageError(ScanNetPrepError, ValueError):
    """What was asked for makes no sense; nothing was touched."""


class TermsError(UsageError):
    """The ScanNet Terms of Use have not been accepted, so nothing is fetched."""


class UnknownSceneError(UsageError, KeyError):
    """A scene id that is malformed, or that the data does not hold."""


class UnknownSplitError(UsageError):
    """A split that does not exist, or that holds no scene."""


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


class MeshError(FileError, ValueError):
    """A mesh file (.ply) is damaged or of an unexpected kind."""


class SegmentsError(FileError, ValueError):
    """An over-segmentation (.segs.json) is damaged."""


class AggregationError(FileError, ValueError):
    """A list of annotated groups (.aggregation.json) is damaged."""


class ScanInfoError(FileError, ValueError):
    """A scan's metadata (.txt) is damaged."""


class LabelMapError(FileError, ValueError):
    """A label map (.tsv) is damaged, or of another version."""


class LockError(FileError, ValueError):
    """The digests of a raw tree (scannet.lock) are damaged."""


class ProcessedFileError(FileError, ValueError):
    """A processed scene (.npz) is damaged, or was written by something else."""


class ManifestError(FileError, ValueError):
    """The manifest of a processed folder is damaged."""


class PredictionError(FileError, ValueError):
    """The prediction of a scene is damaged, or does not fit the scene."""


class TransferError(ScanNetPrepError):
    """A file cannot be fetched."""


class NotOnServerError(TransferError):
    """The server says that it has no such file."""


class RefusedError(TransferError):
    """The server says that it will not give a file, for example without permission."""


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


class ExportError(ScanNetPrepError, ValueError):
    """A scene cannot be told in the format of another program."""


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
