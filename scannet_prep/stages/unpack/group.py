"""Unpacks one group of an archive: its files get their names when everything about it has been checked."""

from __future__ import annotations

import threading
from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

from scannet_prep.archive.extraction import Extraction, UnpackedFile
from scannet_prep.archive.frames import check_frame_size, decompress_frame
from scannet_prep.archive.index import FORMAT_NAME, OWN_PREFIX, MemberEntry
from scannet_prep.archive.pending import FileOutcome, has_content
from scannet_prep.archive.reader import ArchivedGroup
from scannet_prep.archive.source import ByteSource
from scannet_prep.archive.walk import FoundGroup
from scannet_prep.errors import ArchiveError, ScanNetPrepError
from scannet_prep.stages.unpack.record import FolderRecord
from scannet_prep.stages.unpack.salvage import FoundTask


@dataclass(frozen=True, slots=True)
class UnpackedGroup:
    """One group that is on the disk.

    Attributes:
        scene_id: The scene; empty for the files that belong to none.
        files: Its files.
        captured: Content of the files that were not written, by name.
        members: Its files, as an index has them.
    """

    scene_id: str
    files: tuple[UnpackedFile, ...]
    captured: dict[str, bytearray] = field(default_factory=dict)
    members: tuple[MemberEntry, ...] = ()

    @property
    def is_new(self) -> bool:
        """Whether anything of it was written."""
        return any(file.outcome is not FileOutcome.KEPT for file in self.files)


class Unpacker:
    """Unpacks groups into one folder, in any thread.

    Args:
        record: Of the folder.
    """

    def __init__(self, record: FolderRecord) -> None:
        self._record = record
        self._stop = threading.Event()
        self._captured = {FORMAT_NAME, *record.captured_names}

    @property
    def out_dir(self) -> Path:
        """The folder."""
        return self._record.out_dir

    def stop(self) -> None:
        """Make everything that is under way end soon."""
        self._stop.set()

    def unpack(self, task: ArchivedGroup | FoundTask) -> UnpackedGroup | ArchiveError:
        """Unpack a group of a file, unless all of it is there.

        Returns:
            The group, or why it cannot be had.

        Raises:
            OutputError: The folder does not take it.
            TransferError: The server does not give it.
        """
        try:
            if isinstance(task, FoundTask):
                content = _iter_found(task.source, task.group)
                return self.extract(content, task.scene_id, task.source.name)
            entry = task.entry
            kept = [
                member
                for member in entry.members
                if not self._is_captured(member.name, task.scene_id)
                and has_content(self.out_dir / member.name, member.size_bytes, member.crc32)
            ]
            if len(kept) == len(entry.members):
                files = [UnpackedFile(item.name, item.size_bytes, item.crc32, FileOutcome.KEPT) for item in kept]
                return UnpackedGroup(task.scene_id, tuple(files), members=entry.members)
            return self.extract(
                task.archive.iter_content(entry),
                task.scene_id,
                task.archive.name,
                kept={member.name for member in kept},
                expected=entry.members,
            )
        except ArchiveError as error:
            return error

    def extract(
        self,
        content: Iterable[bytes],
        scene_id: str,
        archive_name: str,
        *,
        kept: Collection[str] = (),
        files: Collection[str] = (),
        expected: tuple[MemberEntry, ...] | None = None,
    ) -> UnpackedGroup:
        """Take tar bytes apart and write the files.

        Args:
            content: The tar bytes of a group; what proves them has been compared when the last piece has been taken.
            scene_id: The scene; empty for the files that belong to none.
            archive_name: For messages.
            kept: Names of files that are there, and right.
            files: Names of files that no file of a scene may have for a folder.
            expected: What the index says of them.

        Raises:
            ArchiveError: The group is damaged or not safe; nothing of it has been written.
            OutputError: The folder does not take it.
        """
        captured = self._captured if not scene_id else ()
        extraction = Extraction(self.out_dir, scene_id, kept=kept, captured=captured, files=files)
        if scene_id:
            self._record.begin()
        try:
            for piece in content:
                if self._stop.is_set():
                    raise KeyboardInterrupt
                extraction.feed(piece)
            extraction.finish()
            members = tuple(extraction.members)
            if expected is not None and members != expected:
                raise ValueError("its files are not those that the index names")  # noqa: TRY301 - as all the others
            if not scene_id:
                self._record.add_captured(extraction.captured)
                if extraction.has_pending:
                    self._record.begin()
            return UnpackedGroup(scene_id, tuple(extraction.commit()), extraction.captured, members)
        except (ValueError, EOFError) as error:
            if isinstance(error, ScanNetPrepError):
                raise
            raise ArchiveError(archive_name, f"{scene_id or 'files that belong to no scene'}: {error}") from None
        finally:
            extraction.discard()

    def _is_captured(self, name: str, scene_id: str) -> bool:
        return not scene_id and (name in self._captured or name.startswith(OWN_PREFIX))


def _iter_found(source: ByteSource, group: FoundGroup) -> Iterator[bytes]:
    for span in group.spans:
        check_frame_size(span.size_bytes)
        yield decompress_frame(source.read(span.offset, span.stored_bytes), span.size_bytes)
