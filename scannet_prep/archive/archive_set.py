"""Archives that are read together in order, such as the shards of a set."""

from __future__ import annotations

from collections.abc import Sequence

from scannet_prep.archive.byte_source import ByteSource
from scannet_prep.archive.groups import GroupReader, Wants
from scannet_prep.archive.layout import StoredGroup
from scannet_prep.archive.shards import check_held_once, find_missing_shards
from scannet_prep.base.text import list_some
from scannet_prep.errors import UsageError


class ArchiveSet:
    """Archives that are read together; each is read once.

    Args:
        sources: The bytes of each archive.
        wants: Whether a scene is wanted.
        limit: Maximum number of scenes; None for all.

    Attributes:
        readers: The archives.
        names: Their paths or addresses.
        kind: The kind of their scenes.
        missing_shards: The names of the other shards of the set, if only one shard was given.
        chosen: The wanted scenes that are known before everything has been read.
        size_bytes: Size of their tar bytes.

    Raises:
        UsageError: The archives are of two kinds, a scene is in two of them, or shards of a set
            are missing.
        ScanNetPrepError: See `GroupReader`.
    """

    def __init__(self, sources: Sequence[ByteSource], wants: Wants, limit: int | None) -> None:
        self.readers: list[GroupReader] = []
        self.chosen: list[StoredGroup] = []
        for source in sources:
            remaining = None if limit is None else limit - len(self.chosen)
            reader = GroupReader(source, wants, remaining)
            self.readers.append(reader)
            self.chosen += reader.chosen
        self.names = [reader.name for reader in self.readers]
        self.kind = self.readers[0].head.kind
        if any(reader.head.kind is not self.kind for reader in self.readers):
            problem = "the archives hold raw and processed scenes"
            raise UsageError(problem, "name archives of one kind only")
        check_held_once([(reader.name, reader.held) for reader in self.readers])
        self.missing_shards = find_missing_shards(self.names)
        if self.missing_shards:
            missing = list_some(self.missing_shards)
            problem = f"shards of the set are not among the archives: {missing}"
            if len(self.names) > 1:
                hint = "name all shards of the set (NAME-*-of-*.tar.zst), or a single one"
                raise UsageError(problem, hint)
            self.readers[0].warnings.append(problem)
        self.size_bytes = sum(group.size_bytes for group in self.chosen)

    @property
    def has_indexes(self) -> bool:
        """Whether all indexes have been read; the index of a pipe comes last, or never."""
        return all(reader.index is not None for reader in self.readers)

    @property
    def held(self) -> dict[str, str]:
        """The splits of the scenes that are known so far, by id."""
        held: dict[str, str] = {}
        for reader in self.readers:
            held |= reader.held
        return held
