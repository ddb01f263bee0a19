"""What a program does with irregular inputs.

A program runs on a few small scenes, of which one is irregular. Its output is compared with its
output for the same scenes when all of them are regular.
"""

from __future__ import annotations

import re
import shutil
from dataclasses import dataclass

from comparison.irregular import SCENE, TRAIN_SCENES, Irregularity, write_regular_scenes
from comparison.outputs import (
    Arrays,
    DamagedOutputError,
    describe_difference,
    list_fields,
    read_arrays,
)
from comparison.programs import Job, Program
from comparison.run import Run, run_program

# What a program can do with an irregular input, for the page.
KINDS = {
    "right": "the output of every scene is as for regular scenes, or, for a test scene, complete",
    "reported": "the irregular scene differs or is missing, a message says so, and all other "
    "scenes are right",
    "stopped": "other scenes are missing, too",
    "silent": "the irregular scene differs or is missing, and no message says so",
}

_MESSAGE = re.compile(r"error|warning|fail|unknown|exception|stopiteration", re.IGNORECASE)
_NUMBERS = re.compile(r"[\d.,]+")
# Escape sequences that colour a terminal.
_ESCAPE = re.compile(r"\x1b\[[\d;]*m")
_LONGEST_MESSAGE = 160


class NothingMadeError(Exception):
    """A program made nothing of regular scenes; the message is its last line."""


@dataclass(frozen=True, slots=True)
class Verdict:
    """What a program did with an irregular input.

    Attributes:
        kind: One of `KINDS`.
        details: A sentence for the page.
    """

    kind: str
    details: str


class Trials:
    """Runs of one program on small scenes.

    Args:
        program: The program.
        job: How to run it. Its `raw_dir` and `folder` are emptied for each run.

    Raises:
        NothingMadeError: The program makes nothing of regular scenes.
    """

    def __init__(self, program: Program, job: Job) -> None:
        self._program = program
        self._job = job
        run = self._run(irregularity=None)
        # A line of output that regular scenes cause too, whatever its numbers, is no message.
        self._regular_lines = {_NUMBERS.sub("", line) for line in run.output.splitlines()}
        self._expected: dict[str, Arrays] = {}
        for scene_id in TRAIN_SCENES:
            self._expected[scene_id] = read_arrays(job.out_dir, scene_id)
            if not self._expected[scene_id]:
                last_line = (run.output.strip().splitlines() or ["no output"])[-1]
                raise NothingMadeError(last_line)

    def try_input(self, irregularity: Irregularity) -> Verdict:
        """Run the program on an irregular input."""
        run = self._run(irregularity)
        message = self._find_message(run, irregularity.scene_id)
        ending = f"status {run.status}" + (f"; `{message}`" if message else "")

        others = [scene_id for scene_id in TRAIN_SCENES if scene_id != irregularity.scene_id]
        right = [scene_id for scene_id in others if not self._compare(scene_id)]
        difference = self._compare(irregularity.scene_id)
        if len(right) < len(others):
            return Verdict("stopped", f"{len(right)} of {len(others)} others made; {ending}")
        if difference:
            return Verdict("reported" if message else "silent", f"{difference}; {ending}")
        if irregularity.scene_id != SCENE:
            arrays = read_arrays(self._job.out_dir, irregularity.scene_id)
            fields = list_fields(arrays, self._program.contents)
            return Verdict("right", f"made: {fields}; {ending}")
        return Verdict("right", f"as for regular scenes; {ending}")

    def _run(self, irregularity: Irregularity | None) -> Run:
        for folder in (self._job.raw_dir, self._job.folder):
            shutil.rmtree(folder, ignore_errors=True)
        write_regular_scenes(self._job.raw_dir)
        if irregularity is not None:
            irregularity.apply(self._job.raw_dir / "scans" / SCENE)
        return run_program(self._program, self._job)

    def _compare(self, scene_id: str) -> str:
        """Describe how a scene differs from the regular run; empty if it does not."""
        try:
            arrays = read_arrays(self._job.out_dir, scene_id)
        except DamagedOutputError as error:
            return f"a damaged file: {error}"
        if not arrays:
            return "not made"
        # The regular run has no test scene.
        expected = self._expected.get(scene_id, {})
        return describe_difference(arrays, expected, self._program.contents)

    def _find_message(self, run: Run, scene_id: str) -> str:
        """Find the last message of a run; one that names the scene comes first."""
        lines = [line for line in run.output.splitlines() if _MESSAGE.search(line)]
        messages = [line for line in lines if _NUMBERS.sub("", line) not in self._regular_lines]
        naming = [message for message in messages if scene_id in message]
        chosen = (naming or messages)[-1:]
        return self._shorten(chosen[0]) if chosen else ""

    def _shorten(self, message: str) -> str:
        """Shorten a message to the words that matter elsewhere, fit for Markdown."""
        for folder in (self._job.raw_dir, self._job.folder):
            message = message.replace(f"{folder}/", "")
        text = _ESCAPE.sub("", message).strip().replace("`", "'")
        return text if len(text) <= _LONGEST_MESSAGE else f"{text[:_LONGEST_MESSAGE]} ..."
