"""Unpacks an archive that comes through a pipe: in one pass, in bounded memory; the index comes last."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

from scannet_prep.archive.foreign import LOOK_BYTES, explain_foreign
from scannet_prep.archive.group_start import GroupKind, GroupStart, read_group_start, read_head
from scannet_prep.archive.index import GroupEntry, Index, parse_index
from scannet_prep.archive.pending import FileOutcome
from scannet_prep.archive.reader import take_index
from scannet_prep.archive.seek_table import parse_seek_table
from scannet_prep.archive.stream import PipeReader, StreamGroup, find_group
from scannet_prep.archive.tar import END_OF_ARCHIVE, member_bytes
from scannet_prep.errors import ArchiveError, DiskFullError, ScanNetPrepError, UnknownSceneError
from scannet_prep.failures import SceneFailure
from scannet_prep.files import find_free_bytes, remove_stale_temporaries
from scannet_prep.processed.folder import processed_path
from scannet_prep.progress import NoProgress, Progress
from scannet_prep.stages.selection import Selection
from scannet_prep.stages.threads import run_in_threads
from scannet_prep.stages.unpack.group import UnpackedGroup, Unpacker
from scannet_prep.stages.unpack.passed import DISTRUST_HINT, PassedGroup, compare_groups
from scannet_prep.stages.unpack.planning import choose_out_dir, find_unfiled, is_wanted
from scannet_prep.stages.unpack.processed import ProcessedRecord, make_record
from scannet_prep.stages.unpack.report import UnpackReport, make_report
from scannet_prep.stages.unpack.running import add_missing, make_failure
from scannet_prep.stages.unpack.target import RESERVE_BYTES

_MAX_INDEX_BYTES = 1 << 28
_MAX_TABLE_BYTES = 1 << 26
_MAX_HELD_BYTES = 96 << 20
_PIECE_BYTES = 4 << 20
_AGAIN_HINT = "send it again into the same folder; or, to make do with what is whole, add --salvage"


def run_pipe(
    pipe: PipeReader,
    out_dir: Path | None = None,
    *,
    selection: Selection | None = None,
    is_salvage: bool = False,
    jobs: int = 1,
    progress: Progress | None = None,
) -> UnpackReport:
    """Unpack an archive as it comes.

    A group is written when its frames, its headers and its names have been checked; the sha256 of each group is
    compared with the index when that comes, and what contradicts it is removed again.

    Args:
        pipe: At the beginning of the archive.
        out_dir: Where the files go; by default `data/processed` or `data/ScanNet`, by the kind of the archive.
        selection: Which scenes; all by default. Files that belong to no scene are always unpacked.
        is_salvage: Whether a part will do.
        jobs: Number of threads.
        progress: Told of tar bytes.

    Raises:
        ArchiveError: It ends early, contradicts its index, or is no archive. What is whole stays.
        UsageError: `out_dir` is needed for this kind of archive.
        DiskFullError: The disk does not hold it.
        OutputError: The folder cannot be written to.
        ManifestError: The folder holds scenes that were made in another way.
    """
    run = _PipeRun(pipe, out_dir, selection or Selection(), jobs, progress or NoProgress(), is_salvage=is_salvage)
    try:
        return run.run()
    finally:
        run.close()


class _PipeRun:
    def __init__(
        self,
        pipe: PipeReader,
        out_dir: Path | None,
        selection: Selection,
        jobs: int,
        progress: Progress,
        *,
        is_salvage: bool,
    ) -> None:
        self._pipe = pipe
        self._out_dir = out_dir
        self._selection = selection
        self._jobs = jobs
        self._progress = progress
        self._is_salvage = is_salvage
        self._index: Index | None = None
        self._end_problem = ""
        self._last_scene_id = ""
        self._file_names: set[str] = set()
        self._passed: dict[int, PassedGroup] = {}
        self._seen_scenes: set[str] = set()
        self._damaged_offsets: dict[int, str] = {}
        self._damages: list[str] = []
        self._cleaned: set[Path] = set()
        self._wanted_count = 0
        self._scenes: dict[str, bool] = {}

    def run(self) -> UnpackReport:
        """Do it."""
        explained = explain_foreign(self._pipe.peek(LOOK_BYTES), "FILE")
        if explained is not None:
            raise ArchiveError(self._pipe.name, *explained)
        self._begin()
        try:
            outcomes = run_in_threads(
                self._extract,
                self._iter_held(),
                jobs=self._jobs,
                weigh=lambda work: work[0].held_bytes + _PIECE_BYTES,
                max_weight=_MAX_HELD_BYTES,
            )
            try:
                for (group, scene_id), outcome in outcomes:
                    self._take(group, scene_id, outcome)
            except BaseException:
                self._unpacker.stop()
                raise
            finally:
                outcomes.close()
        finally:
            self._progress.finish()
        return self._finish()

    def close(self) -> None:
        """Let go of the folder."""
        if hasattr(self, "_record"):
            self._record.release()

    def _begin(self) -> None:
        """Unpack the first group, which says what the archive is and which files belong to no scene."""
        try:
            group = StreamGroup(self._pipe)
            self._head = read_head(group.start)
        except (ValueError, EOFError) as error:
            if isinstance(error, ArchiveError):
                raise
            problem = f"its beginning is damaged: {error}"
            raise ArchiveError(
                self._pipe.name, problem, "save it to a file: scannet-prep unpack FILE --salvage"
            ) from None
        self._kind = self._head.kind
        self._record = make_record(self._kind, choose_out_dir(self._kind, self._out_dir), self._is_wanted)
        self._unpacker = Unpacker(self._record)
        self._remove_leftovers(self._record.out_dir)
        self._check_space(group.size_bytes)
        outcome = self._extract((group, ""))
        self._progress.start("unpack", self._expected_bytes(), "B")
        self._take(group, "", outcome)
        try:
            group.finish()
        except (ValueError, EOFError) as error:
            self._lose(error, group.offset)

    def _iter_held(self) -> Iterator[tuple[StreamGroup, str]]:
        """Read group after group; those that are too large to be held are unpacked on the way."""
        while not self._end_problem and not self._pipe.is_at_table():
            offset = self._pipe.offset
            try:
                group = StreamGroup(self._pipe)
                start = self._look(group)
                if start is not None and start.kind is GroupKind.SCENE and self._is_chosen(start.scene_id):
                    self._check_space(group.size_bytes)
                    if group.is_held:
                        yield group, start.scene_id
                        continue
                    self._take(group, start.scene_id, self._extract((group, start.scene_id)))
                elif start is not None and start.kind is GroupKind.INDEX:
                    self._index = self._read_index(group)
                elif start is not None and start.kind is GroupKind.END:
                    self._check_end(group)
                else:
                    self._progress.advance(group.size_bytes)
                group.finish()
            except (ValueError, EOFError) as error:
                if isinstance(error, ScanNetPrepError):
                    raise
                self._lose(error, offset)

    def _look(self, group: StreamGroup) -> GroupStart | None:
        """What a group is; None where its beginning is damaged."""
        try:
            start = read_group_start(group.start)
            if start.kind is GroupKind.FILES:
                raise ValueError("files that belong to no scene come a second time")  # noqa: TRY301 - as all others
        except ValueError as error:
            self._add_damage(group.offset, "", str(error))
            group.is_damaged = True
            return None
        if start.kind is GroupKind.SCENE:
            if start.scene_id <= self._last_scene_id:
                raise ArchiveError(
                    self._pipe.name,
                    f"is not safe to unpack: {start.scene_id} comes after {self._last_scene_id}, or twice",
                    DISTRUST_HINT,
                )
            self._last_scene_id = start.scene_id
            self._seen_scenes.add(start.scene_id)
        return start

    def _is_chosen(self, scene_id: str) -> bool:
        limit = self._selection.limit
        if not self._is_wanted(scene_id, "") or (limit is not None and self._wanted_count >= limit):
            return False
        self._wanted_count += 1
        return True

    def _is_wanted(self, scene_id: str, split: str) -> bool:
        if not split and isinstance(self._record, ProcessedRecord) and scene_id in self._record.manifest.scenes:
            split = self._record.manifest.scenes[scene_id].split
        return is_wanted(self._selection, scene_id, split)

    def _extract(self, work: tuple[StreamGroup, str]) -> UnpackedGroup | ArchiveError:
        group, scene_id = work
        try:
            return self._unpacker.extract(group.iter_content(), scene_id, self._pipe.name, files=self._file_names)
        except ArchiveError as error:
            return error

    def _take(self, group: StreamGroup, scene_id: str, outcome: UnpackedGroup | ArchiveError) -> None:
        self._progress.advance(group.size_bytes)
        if isinstance(outcome, ArchiveError):
            group.is_damaged = True
            self._add_damage(group.offset, scene_id, outcome.problem)
            return
        self._record.add_files(outcome.files)
        if scene_id:
            self._scenes[scene_id] = outcome.is_new
            for folder in {(self._record.out_dir / file.name).parent for file in outcome.files}:
                self._remove_leftovers(folder)
        else:
            self._file_names = {member.name for member in outcome.members}
        written = tuple(file.name for file in outcome.files if file.outcome is not FileOutcome.KEPT)
        self._passed[group.offset] = PassedGroup(
            scene_id, group.stored_bytes, group.stored_crc32, group.size_bytes, group.sha256, outcome.members, written
        )

    def _lose(self, error: ValueError | EOFError, offset: int) -> None:
        """The stream has ended, or what comes is no frame: the next group must be searched for."""
        if isinstance(error, EOFError):
            self._end_problem = str(error)
        elif self._is_salvage:
            find_group(self._pipe)
            self._add_damage(offset, "", f"bytes {offset:,} to {self._pipe.offset:,} hold no whole scene: {error}")
        else:
            self._end_problem = f"is damaged at byte {self._pipe.offset:,}: {error}"

    def _add_damage(self, offset: int, scene_id: str, problem: str) -> None:
        self._progress.note(f"damaged: {problem}")
        self._damaged_offsets[offset] = problem
        if scene_id:
            self._record.add_failure(make_failure(scene_id, ArchiveError(self._pipe.name, problem)))

    def _check_end(self, group: StreamGroup) -> None:
        if b"".join(group.iter_content()) != END_OF_ARCHIVE:
            raise ValueError("the end of the tar stream is damaged")

    def _read_index(self, group: StreamGroup) -> Index:
        if group.size_bytes > _MAX_INDEX_BYTES:
            raise ValueError(f"the index has {group.size_bytes:,} bytes, at most {_MAX_INDEX_BYTES:,} are expected")
        return parse_index(take_index(b"".join(group.iter_content(_MAX_INDEX_BYTES))))

    def _finish(self) -> UnpackReport:
        """Compare what has gone by with the index, and bring the folder's lists up to date."""
        name = self._pipe.name
        if self._index is None:
            problem = self._end_problem or "has no index"
            if not self._is_salvage:
                counted = f"{len(self._scenes):,} whole scenes of it were unpacked"
                raise ArchiveError(name, f"{problem}; {counted}, the others are missing", _AGAIN_HINT)
            self._damages += [*self._damaged_offsets.values(), f"{name}: {problem}"]
            add_missing(self._record, self._scenes, self._is_wanted)
            self._record.end(is_whole=False)
            return make_report(self._record, self._kind, (name,), self._scenes, self._damages)
        tail_problem = self._end_problem or self._check_table()
        self._compare(self._index)
        is_whole = len(self._scenes) == len(self._index.scenes)
        self._record.end(is_whole=is_whole)
        if tail_problem and not self._is_salvage:
            raise ArchiveError(
                name,
                f"is damaged behind its index, though all that was asked for has been unpacked and is right: "
                f"{tail_problem}",
                "nothing needs to be done here; make or fetch the archive again",
            )
        if tail_problem:
            self._damages.append(f"{name}: {tail_problem}")
        left_out = find_unfiled(self._selection, {entry.scene_id: entry.split for entry in self._index.scenes})
        return make_report(self._record, self._kind, (name,), self._scenes, self._damages, left_out=left_out)

    def _compare(self, index: Index) -> None:
        """Compare every group with the index.

        Raises:
            ArchiveError: The index speaks of something else; what it does not confirm has been removed.
        """
        comparison = compare_groups(self._passed, index, self._head, self._pipe.name)
        for group in comparison.contradicted:
            for name in group.written:
                (self._record.out_dir / name).unlink(missing_ok=True)
                self._record.remove(name)
            self._scenes.pop(group.scene_id, None)
        if comparison.contradicted:
            names = [group.scene_id or "files that belong to no scene" for group in comparison.contradicted]
            raise ArchiveError(
                self._pipe.name,
                f"contradicts its index about {', '.join(names[:3])} ({len(names):,} in all); what was written of them "
                "has been removed again",
                DISTRUST_HINT,
            )
        for name in comparison.altered:
            self._damages.append(f"{name}: its frames are not those that the index names; its files are whole")
        for entry in comparison.absent:
            self._add_absent(entry)
        present = {entry.scene_id: entry.split for entry in index.scenes}
        for scene_id in self._selection.scene_ids or ():
            if scene_id not in present or not self._is_wanted(scene_id, present[scene_id]):
                problem = f"{self._pipe.name}: has no scene {scene_id} that was asked for"
                self._record.add_failure(SceneFailure(scene_id, UnknownSceneError.__name__, problem, "leave it out"))

    def _add_absent(self, entry: GroupEntry) -> None:
        """Say of a group that is not there why it is not, if it was asked for."""
        problem = self._damaged_offsets.get(entry.offset)
        is_known = entry.scene_id in self._record.failures
        if not entry.scene_id:
            self._damages.append(f"{entry.name}: {problem or 'not found where the index says'}")
        elif is_known or not self._is_wanted(entry.scene_id, entry.split):
            return
        elif problem is not None or entry.scene_id not in self._seen_scenes:
            error = ArchiveError(self._pipe.name, f"{entry.scene_id}: {problem or 'not found where the index says'}")
            self._record.add_failure(make_failure(entry.scene_id, error))
        elif self._selection.limit is None:
            problem = f"{entry.scene_id}: that it is a {entry.split} scene stands only at the end of the archive"
            failure = make_failure(entry.scene_id, ArchiveError(self._pipe.name, problem))
            self._record.add_failure(replace(failure, hint="save the archive to a file, then unpack that"))

    def _check_table(self) -> str:
        """What is wrong with the seek table; empty where nothing is."""
        table = self._pipe.peek(_MAX_TABLE_BYTES)
        try:
            parse_seek_table(table, self._pipe.offset + len(table))
        except ValueError as error:
            self._pipe.drain()
            return str(error)
        return ""

    def _expected_bytes(self) -> int:
        """Size of the tar bytes, where a manifest tells; else 0."""
        if not isinstance(self._record, ProcessedRecord):
            return 0
        return sum(
            member_bytes(str(processed_path(Path(), entry.split, name)), entry.fingerprint.size_bytes)
            for name, entry in self._record.manifest.scenes.items()
            if self._is_wanted(name, entry.split)
        )

    def _check_space(self, size_bytes: int) -> None:
        free_bytes = find_free_bytes(self._record.out_dir)
        if free_bytes < size_bytes + RESERVE_BYTES:
            raise DiskFullError(
                f"{self._record.out_dir}: the disk is nearly full: {free_bytes:,} bytes are free",
                "free some space or choose another folder with -o, then send the archive again: what is there is kept",
            )

    def _remove_leftovers(self, folder: Path) -> None:
        if folder not in self._cleaned and folder.is_dir():
            self._cleaned.add(folder)
            remove_stale_temporaries(folder)
