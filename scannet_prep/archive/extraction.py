"""Takes the tar bytes of one group apart and writes its files, which get their names when the group is whole."""

from __future__ import annotations

import unicodedata
from collections import defaultdict
from collections.abc import Collection
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import deflate

from scannet_prep.archive.index import FORMAT_NAME, MemberEntry
from scannet_prep.archive.pending import FileOutcome, PendingFile
from scannet_prep.archive.safety import check_name, check_parents
from scannet_prep.archive.tar import TarMember, TarParser, header_bytes, padding_bytes
from scannet_prep.errors import OutputError
from scannet_prep.files import Buffer

MAX_CAPTURED_BYTES = 64 << 20


@dataclass(frozen=True, slots=True)
class UnpackedFile:
    """One file that has its name.

    Attributes:
        name: Its name in the archive.
        size_bytes: Its size.
        crc32: Its CRC-32.
        outcome: What became of it.
    """

    name: str
    size_bytes: int
    crc32: int
    outcome: FileOutcome


class Extraction:
    """One group on its way to the disk.

    Args:
        out_dir: Where its files go.
        scene_id: The scene; empty for the files that belong to none.
        kept: Names of files that are there already, and right.
        captured: Names of files that are not written, but kept in memory.
        files: Names of the files that belong to no scene; no file of a scene may have one for a folder.

    Attributes:
        members: The files so far, as an index would have them.
        captured: Content by name, of those that were to be captured.
    """

    def __init__(
        self,
        out_dir: Path,
        scene_id: str,
        *,
        kept: Collection[str] = (),
        captured: Collection[str] = (),
        files: Collection[str] = (),
    ) -> None:
        self.members: list[MemberEntry] = []
        self.captured: dict[str, bytearray] = {}
        self._out_dir = out_dir
        self._scene_id = scene_id
        self._kept = kept
        self._to_capture = captured
        self._files = files
        self._parser = TarParser()
        self._names: set[str] = set()
        self._pending: dict[str, PendingFile] = {}
        self._position = 0
        self._member = TarMember("", 0)
        self._crc32 = 0
        self._target: PendingFile | bytearray | None = None

    def feed(self, content: Buffer) -> None:
        """Take the next tar bytes.

        Raises:
            ValueError: They are not as this program writes them, or a name is refused.
            OutputError: A file cannot be written.
        """
        for item in self._parser.feed(content):
            if isinstance(item, TarMember):
                self._begin(item)
            elif item is None:
                self._end()
            else:
                self._write(item)

    def finish(self) -> None:
        """All tar bytes of the group have come.

        Raises:
            ValueError: A file is not whole, or is the folder of another.
        """
        if not self._parser.is_at_boundary or not self.members:
            raise ValueError("its tar bytes end in the middle of a file")
        check_parents(self._names)
        for name in self._names:
            parts = name.split("/")
            for count in range(1, len(parts)) if self._files else ():
                if "/".join(parts[:count]) in self._files:
                    raise ValueError(f"{'/'.join(parts[:count])[:80]!r} is a file, and the folder of another one")

    @property
    def has_pending(self) -> bool:
        """Whether a file waits for its name."""
        return bool(self._pending)

    def commit(self) -> list[UnpackedFile]:
        """Give all files their names.

        Raises:
            OutputError: One cannot be renamed; those before it have their names, and are right.
        """
        done = []
        for name, _, size_bytes, crc32 in self.members:
            if name in self._pending:
                outcome = self._pending[name].commit()
                del self._pending[name]
            elif name in self._kept:
                outcome = FileOutcome.KEPT
            else:
                continue  # captured
            done.append(UnpackedFile(name, size_bytes, crc32, outcome))
        self._check_distinct()
        return done

    def discard(self) -> None:
        """Remove what has not got its name, and the folders that were made for it."""
        made_dirs: dict[Path, None] = {}
        for file in self._pending.values():
            file.discard()
            made_dirs.update(dict.fromkeys(file.made_dirs))
        self._pending.clear()
        for folder in sorted(made_dirs, key=lambda path: len(path.parts), reverse=True):
            with suppress(OSError):  # not empty: somebody else uses it
                folder.rmdir()

    def _begin(self, member: TarMember) -> None:
        name = member.name
        if not (name == FORMAT_NAME and not self._scene_id and not self.members):
            check_name(name, self._scene_id)
        if name in self._names:
            raise ValueError(f"the name {name[:80]!r} is there twice")
        self._names.add(name)
        self._member, self._crc32 = member, 0
        if name in self._to_capture:
            if member.size_bytes > MAX_CAPTURED_BYTES:
                raise ValueError(f"{name} has {member.size_bytes:,} bytes, at most {MAX_CAPTURED_BYTES:,} are expected")
            self._target = self.captured[name] = bytearray()
        elif name in self._kept:
            self._target = None
        else:
            self._target = self._pending[name] = PendingFile(self._out_dir / name)

    def _write(self, piece: memoryview) -> None:
        if isinstance(self._target, PendingFile):
            self._target.write(piece)
            return
        if self._target is not None:
            self._target += piece
        self._crc32 = deflate.crc32(piece, self._crc32)

    def _end(self) -> None:
        if isinstance(self._target, PendingFile):
            self._target.close()
            self._crc32 = self._target.crc32
        name, size_bytes = self._member.name, self._member.size_bytes
        self._position += header_bytes(name, size_bytes)
        self.members.append(MemberEntry(name, self._position, size_bytes, self._crc32))
        self._position += size_bytes + padding_bytes(size_bytes)
        self._target = None

    def _check_distinct(self) -> None:
        """Make sure that the file system tells names apart that differ in case or in how letters are composed."""
        alike = defaultdict(list)
        for name in self._names - set(self._to_capture):
            alike[unicodedata.normalize("NFC", name).casefold()].append(name)
        for first, *others in alike.values():
            for name in others:
                path = self._out_dir / name
                if path.exists() and path.samefile(self._out_dir / first):
                    raise OutputError(
                        f"{path}: is the same file as {first} on this file system, but the archive has both",
                        "unpack to a file system that tells upper from lower case",
                    )
