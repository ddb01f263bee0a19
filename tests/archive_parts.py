"""Takes archives apart and puts them together again with other ends, as somebody with bad intentions would."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

from scannet_prep.archive import open_archive
from scannet_prep.archive.frames import checksum_of, store_frame
from scannet_prep.archive.index import INDEX_NAME
from scannet_prep.archive.layout import END_FRAME
from scannet_prep.archive.seek_table import encode_seek_table
from scannet_prep.archive.tar import END_OF_ARCHIVE, encode_header, padding_bytes

Row = tuple[int, int, bytes]


@dataclass(frozen=True)
class Parts:
    """An archive: its groups, the text of its index, the rows of the seek table for the groups, and where all lies."""

    groups: bytes
    index: bytes
    rows: tuple[Row, ...]
    bounds: tuple[tuple[str, int, int], ...]

    @classmethod
    def of(cls, path: Path) -> Parts:
        data = path.read_bytes()
        with open_archive(path) as archive:
            groups, table = archive.index.groups, archive.table
            count = len(table) - 2
            span = table.span(count)
            rows = tuple(
                (table.span(number).stored_bytes, table.span(number).size_bytes, table.checksum(number))
                for number in range(count)
            )
        named = [(group.scene_id or "files", group.offset, group.offset + group.stored_bytes) for group in groups]
        end = span.end + len(END_FRAME)
        tail = [("index", span.offset, span.end), ("end", span.end, end), ("seek table", end, len(data))]
        start = data.index(INDEX_NAME.encode(), span.offset) + 512
        size = int(data[start - 512 + 124 : start - 512 + 135], 8)
        return cls(data[: span.offset], data[start : start + size], rows, (*named, *tail))

    def joined(self, *, extra: bytes = b"") -> bytes:
        """All of it, with checksums that are right."""
        content = encode_header(INDEX_NAME, len(self.index)) + self.index + bytes(padding_bytes(len(self.index)))
        index = store_frame(content)
        rows = [
            *self.rows,
            (len(index), len(content), checksum_of(index)),
            (len(END_FRAME), len(END_OF_ARCHIVE), checksum_of(END_FRAME)),
        ]
        return self.groups + index + END_FRAME + encode_seek_table(rows) + extra

    def with_index(self, index: bytes) -> bytes:
        return replace(self, index=index).joined()

    def part_at(self, offset: int) -> str:
        return next(name for name, start, end in self.bounds if start <= offset < end)


def hostile_rows(rows: tuple[Row, ...]) -> Iterator[tuple[str, tuple[Row, ...]]]:
    """Seek tables that say other things than the file does."""
    for number, (stored, size, checksum) in enumerate(rows):
        for value in (0, 1, stored - 1, stored + 1, 2 * stored, 2**31, 2**32 - 1):
            yield f"frame {number} has {value} bytes", (*rows[:number], (value, size, checksum), *rows[number + 1 :])
        for value in (0, max(0, size - 512), size + 512, 2**26 + 1, 2**30, 2**30 + 1, 2**32 - 1):
            yield f"frame {number} holds {value}", (*rows[:number], (stored, value, checksum), *rows[number + 1 :])
        yield f"without frame {number}", (*rows[:number], *rows[number + 1 :])
        yield f"frame {number} twice", (*rows[:number], rows[number], *rows[number:])
    first, second, *others = rows
    yield "one byte from frame to frame", ((first[0] + 1, *first[1:]), (second[0] - 1, *second[1:]), *others)
    yield "frames exchanged", (second, first, *others)
    yield "a frame of nothing", ((0, 0, b"\0\0\0\0"), *rows)
