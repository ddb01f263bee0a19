"""Shards of work: several runs, each on a machine of its own, do one job in one folder, without locks.

    manifest.d/0003-of-0016.json     what a shard has made, written as the manifest of the whole folder is
    manifest.d/0003-of-0016.begun    empty: it is at work, or was killed
    manifest.d/job-3fa2b1c0          empty: the CRC-32 of all names and sizes of the job, and of its options

Nobody else writes the files of a shard, so that file systems whose locks cannot be relied on do no harm. Readers take
the parts together. A run without a shard makes what is missing, writes one manifest, and removes the parts.
"""

from __future__ import annotations

import re
import shutil
import zlib
from collections.abc import Collection, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from scannet_prep.errors import ManifestError, UsageError
from scannet_prep.failures import list_some
from scannet_prep.files import make_directory, output_error, remove_file, write_if_changed
from scannet_prep.typed_json import encode_json

MAX_COUNT = 9_999  # four digits in the names of files
_BEGUN_SUFFIX, _JOB_PREFIX = ".begun", "job-"
_MERGED_NAME = ".scannet-prep-merged"
_OTHER_JOB = "with other options, or for other scenes, or before files changed"
_NAME = re.compile(r"(\d{4})-of-(\d{4})\.(.+)")

# What says which task this is, and of how many. In a job, SLURM_NTASKS says nothing: a batch script is not started once
# for each task, but it has SLURM_PROCID=0, too. Containers often get only that pair.
_VARIABLES = (
    ("SLURM_ARRAY_TASK_ID", "SLURM_ARRAY_TASK_COUNT"),
    ("SLURM_PROCID", "SLURM_STEP_NUM_TASKS"),
    ("SLURM_PROCID", "SLURM_NTASKS"),
    ("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE"),
    ("PMI_RANK", "PMI_SIZE"),
    ("RANK", "WORLD_SIZE"),
)
_RANGE = ("MIN", "MAX", "STEP")
_BY_HAND = "say which one of how many this is, counted from 0, such as 0/16"


@dataclass(frozen=True, slots=True, order=True)
class Shard:
    """One of `count` parts of a job, counted from 0.

    Raises:
        UsageError: There is no such part.
    """

    index: int
    count: int

    def __post_init__(self) -> None:
        """Check the numbers."""
        if not 0 <= self.index < self.count <= MAX_COUNT:
            hint = f"they are counted from 0: of 16 shards, the last is 15/16; there may be up to {MAX_COUNT:,}"
            raise UsageError(f"there is no shard {self}", hint)

    def __str__(self) -> str:
        """As in `--shard`."""
        return f"{self.index}/{self.count}"

    @property
    def name(self) -> str:
        """What the names of its files begin with."""
        return f"{self.index:04d}-of-{self.count:04d}"

    @classmethod
    def parse(cls, text: str) -> Shard:
        """Read what `--shard` takes, such as `3/16`.

        Raises:
            UsageError: It is something else.
        """
        match = re.fullmatch(r"(-?[0-9]{1,9})/(-?[0-9]{1,9})", text)
        if match is None:
            raise UsageError(f"{text[:40]!r} is not a shard", f"{_BY_HAND}; or let the scheduler say: auto")
        return cls(int(match[1]), int(match[2]))

    @classmethod
    def from_environment(cls, environ: Mapping[str, str]) -> Shard:
        """Find out which shard this is from what Slurm, MPI or torchrun tell their tasks.

        A pair of variables that says 0 of 1 says nothing where another says more. Of launchers that start each other,
        the one with the most processes counts: mpirun may start its daemons with srun, and srun may start torchrun.

        Raises:
            UsageError: They say nothing, something impossible, or contradict each other.
        """
        found, environ = dict[str, Shard](), {name: value for name, value in environ.items() if value}
        ignored = "SLURM_NTASKS" if "SLURM_JOB_ID" in environ else ""
        for names in _VARIABLES:
            if all(name in environ and name != ignored for name in names):
                index, count = (environ[name] for name in names)
                words = " and ".join(f"{name}={environ[name]}" for name in names)
                if names[0].startswith("SLURM_ARRAY"):  # which may begin anywhere and have steps, but no gaps
                    for name, value in environ.items():
                        if name.startswith("SLURM_ARRAY_TASK_") and not re.fullmatch(r"[0-9]{1,9}", value):
                            raise UsageError(f"shard auto: {name} is {value[:40]!r}, which is not a number", _BY_HAND)
                    first, last, step = (int(environ.get(f"SLURM_ARRAY_TASK_{it}", 0)) for it in _RANGE)
                    if last and last - first != (int(count) - 1) * max(1, step):
                        problem = f"shard auto: the {count} tasks of the job array do not follow each other"
                        hint = "to run some again, name the shard: $SLURM_ARRAY_TASK_ID/16, for 16 in all"
                        raise UsageError(problem, hint)
                    index = str((int(index) - first) // max(1, step))
                try:
                    found[words] = cls.parse(f"{index}/{count}")
                except UsageError as error:
                    raise UsageError(f"{words}: {error.message}", _BY_HAND) from None
        if not found:
            what = ", ".join(f"{index} with {count}" for index, count in _VARIABLES if count != ignored)
            problem = f"shard auto: the environment names no task; looked for {what}"
            raise UsageError(problem, f"start it as a job array, or with srun or mpirun; or {_BY_HAND}")
        most = max((shard.count for words, shard in found.items() if "ARRAY" not in words), default=1)
        counting = {words: shard for words, shard in found.items() if shard.count == most or "ARRAY" in words}
        telling = {words: shard for words, shard in counting.items() if shard.count > 1} or found
        if len(set(telling.values())) > 1:
            what = "; ".join(f"{words} is shard {shard}" for words, shard in telling.items())
            raise UsageError(f"shard auto: the environment contradicts itself: {what}", _BY_HAND)
        return next(iter(telling.values()))

    def choose(self, sizes: Mapping[str, int]) -> frozenset[str]:
        """Choose what falls to this shard: dealt out by size, forwards and backwards in turn.

        Every name falls to one of the shards, and the same ones always to the same. Two shards differ by one name at
        most, and in bytes by the largest at most.

        Args:
            sizes: Bytes by name.
        """
        ordered, turn = sorted(sizes, key=lambda name: (-sizes[name], name)), 2 * self.count
        mine = {self.index, turn - 1 - self.index}
        return frozenset(name for place, name in enumerate(ordered) if place % turn in mine)


@dataclass(frozen=True, slots=True)
class ShardFolder:
    """Where the shards of a job leave their parts; it may not be there.

    Attributes:
        path: The folder, such as `manifest.d`.
        command: What they are shards of, such as `process`.
        suffix: What the names of the parts end in.
    """

    path: Path
    command: str
    suffix: str = ".json"

    def exists(self) -> bool:
        """Whether there are shards that have not been merged."""
        return self.path.is_dir()

    def list_files(self, suffix: str = "") -> dict[Shard, Path]:
        """The parts, or other files of the shards, in order."""
        found = {}
        for path in sorted(self.path.glob("*")):
            match = _NAME.fullmatch(path.name)
            if match is not None and f".{match[3]}" == (suffix or self.suffix):
                with suppress(UsageError):  # not ours
                    found[Shard(int(match[1]), int(match[2]))] = path
        return found

    def take(
        self, shard: Shard | None, sizes: Mapping[str, int], settings: Mapping[str, bool | str], *, is_restricted: bool
    ) -> Share | None:
        """Find out what a run has to do of a job; nothing is written.

        Args:
            shard: Which part; None for a run that does all, and merges.
            sizes: Bytes of all that is asked for, by name.
            settings: How it is made.
            is_restricted: Whether only some of all scenes are asked for.

        Returns:
            The share of the shard; None for a run that does all.

        Raises:
            UsageError: There are other shards that this run does not go together with.
        """
        job = f"{_JOB_PREFIX}{zlib.crc32(encode_json([settings, sorted(sizes.items())])):08x}"
        is_other_job = bool(self._find_jobs() - {job})
        if shard is None:
            if is_restricted and is_other_job and (faults := self.find_faults()):
                raise UsageError(f"{faults[0].message}; a run for other scenes cannot merge that", faults[0].hint)
            return None
        for other in self._find_shards():
            if other.count != shard.count or is_other_job:
                found = f"of {other.count} shards" if other.count != shard.count else _OTHER_JOB
                problem = f"{self.path.parent}: shard {other} was run {found}; this is shard {shard}"
                hint = "finish those first, by their command for the whole job; or choose another output folder"
                raise UsageError(problem, hint)
        return Share(self, shard, job, shard.choose(sizes), frozenset(sizes))

    def find_faults(self) -> list[ManifestError]:
        """Find out why the parts cannot be taken for the whole; empty where all are there, and where there are none."""
        shards, parts, begun = self._find_shards(), self.list_files(), self.list_files(_BEGUN_SUFFIX)
        again = f"the same scannet-prep {self.command} command without a shard: it makes what is missing"
        counts = sorted({shard.count for shard in shards})
        if len(counts) > 1 or len(self._find_jobs()) > 1:
            found = f"of {' and of '.join(map(str, counts))} shards" if len(counts) > 1 else _OTHER_JOB
            problem = f"holds shards that do not go together: some were run {found}"
            return [ManifestError(self.path, problem, f"run {again}")]
        every = (Shard(index, count) for count in counts for index in range(count))
        if lacking := [shard for shard in every if shard in begun or shard not in parts]:
            names = list_some([str(shard) for shard in lacking])
            problem = f"is not there, or not whole: shards that have not come to their end: {names}"
            hint = f"run shard {lacking[0]} again; or {again}, and merges"
            return [ManifestError(self.path / f"{lacking[0].name}{self.suffix}", problem, hint)]
        return []

    def remove(self) -> None:
        """Remove all parts, which have been merged; they go all at once, so that none ever seems to be missing.

        Raises:
            OutputError: They cannot be removed.
        """
        merged_path = self.path.with_name(_MERGED_NAME)
        shutil.rmtree(merged_path, ignore_errors=True)  # where a run was killed at the last line
        if self.exists():
            try:
                self.path.replace(merged_path)
            except OSError as error:
                raise output_error(self.path, error) from error
            shutil.rmtree(merged_path, ignore_errors=True)  # nobody reads it

    def _find_shards(self) -> list[Shard]:
        return sorted({*self.list_files(), *self.list_files(_BEGUN_SUFFIX)})

    def _find_jobs(self) -> set[str]:
        return {path.name for path in self.path.glob(f"{_JOB_PREFIX}*")}


@dataclass(frozen=True, slots=True)
class Share:
    """What falls to one shard of a job.

    Attributes:
        folder: Where it leaves its part.
        shard: Which one it is.
        job: Name of the file that says what it is a shard of.
        names: What it has to do.
        job_names: What all shards have to do.
    """

    folder: ShardFolder
    shard: Shard
    job: str
    names: frozenset[str] = field(hash=False)
    job_names: frozenset[str] = field(hash=False)

    def is_covered_by(self, merged: Collection[str]) -> bool:
        """Whether shards have been merged that had made all of the job."""
        return not self.folder.exists() and self.job_names.issubset(merged)

    def begin(self) -> None:
        """Say that the shard is at work; from now on, readers refuse the folder.

        Raises:
            OutputError: It cannot be written.
        """
        make_directory(self.folder.path)
        for path in (self.path(_BEGUN_SUFFIX), self.folder.path / self.job):
            write_if_changed(path, b"", is_durable=True)

    def finish(self, part: bytes) -> None:
        """Write the part, and say that the shard came to its end.

        Raises:
            OutputError: It cannot be written, for example because another run has merged the shards in the meantime.
        """
        write_if_changed(self.path(), part, is_durable=True)
        remove_file(self.path(_BEGUN_SUFFIX))

    def path(self, suffix: str = "") -> Path:
        """The part of the shard, or another file of its own."""
        return self.folder.path / f"{self.shard.name}{suffix or self.folder.suffix}"
