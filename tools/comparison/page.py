"""The page docs/comparison.md."""

# ruff: noqa: E501 - each paragraph of the page is one line

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from comparison.irregular import IRREGULARITIES, TRAIN_SCENES, VERTEX_COUNT
from comparison.measure import Measurement
from comparison.programs import Program
from comparison.trials import KINDS, Verdict

_PAGE = """\
# Comparison

Time, memory, size and fields of preprocessing scripts on the same scenes, and what each of them does with irregular inputs. This page is written by `tools/compare`; do not edit it by hand.

All scenes are synthetic (`scannet_prep.synthetic`), in the format of the release. Each script runs unchanged, at the commit stated [below](#how-it-was-run), in processes of its own, with one worker. None of them is part of this repository.

## Summary

{summary}

- *CPU time per scene* is that of {scene_count} scenes minus that of one, divided by {more_count}. Each has {vertex_count:,} vertices. Short runs are repeated, and the least time counts. The start is the rest of the CPU time of one scene, such as imports and the label map.
- *Memory* is the largest resident set of one process. *Times* is relative to scannet_prep.
- *Bytes* are those of the files of a scene. *Fields* are their arrays.
- A *second run* is the same command once more.
- *Irregular inputs* are counted in the next section.
{obstacles}
## Irregular inputs

{small_count} scenes of {small_vertex_count:,} vertices, of which one is irregular. The output is compared with that of the same program for regular scenes.

{kinds}

{verdicts}

### Details

The last message about the scene is quoted.

{details}
## How it was run

```sh
python3.10 -m venv peers
peers/bin/pip install -r tools/comparison/requirements.txt
tools/compare --repositories DIR --python peers/bin/python --scenes {scene_count}
```

`DIR` contains the clones. If one is missing or at another commit, the command shows what to type.

| program | repository, commit | script |
| --- | --- | --- |
{programs}

| | |
| --- | --- |
{machine}
"""


@dataclass(frozen=True, slots=True)
class Result:
    """Results of one program.

    Attributes:
        program: The program.
        obstacle: Why it was not run; empty if it was.
        measurement: Its figures, if it was run.
        verdicts: What it did with each irregular input, by title.
    """

    program: Program
    obstacle: str = ""
    measurement: Measurement | None = None
    verdicts: Mapping[str, Verdict] = field(default_factory=dict)


def make_page(
    results: Sequence[Result], *, machine: Mapping[str, str], scene_count: int, vertex_count: int
) -> str:
    """Make the page from the results of all programs; the first program is ours."""
    obstacles = [result for result in results if result.obstacle]
    return _PAGE.format(
        summary=make_summary(results),
        scene_count=scene_count,
        more_count=scene_count - 1,
        vertex_count=vertex_count,
        obstacles="".join(
            f"- {result.program.name} was not run: {result.obstacle}\n" for result in obstacles
        ),
        small_count=len(TRAIN_SCENES),
        small_vertex_count=VERTEX_COUNT,
        kinds="\n".join(f"- *{kind}*: {meaning}" for kind, meaning in KINDS.items()),
        verdicts=_make_verdicts(results),
        details=_make_details(results),
        programs="\n".join(describe_program(result.program) for result in results),
        machine="\n".join(f"| {name} | {value} |" for name, value in machine.items()),
    )


def make_summary(results: Sequence[Result]) -> str:
    """Make the table that README contains too, with a column for each program."""
    ours = results[0].measurement
    rows: dict[str, list[str]] = {
        "CPU time per scene": [],
        "start, once": [],
        "memory": [],
        "bytes per vertex": [],
        "fields": [],
        "second run": [],
        "irregular inputs: right or reported": [],
        "the run stopped": [],
        "silently wrong": [],
    }
    for result in results:
        measurement = result.measurement
        if measurement is None or ours is None:
            cells = ["not run"] * len(rows)
        else:
            cells = [
                f"{measurement.cpu_s * 1e3:,.0f} ms{_ratio(measurement.cpu_s, ours.cpu_s)}",
                f"{measurement.start_s:.1f} s",
                f"{measurement.peak_bytes / 1e6:,.0f} MB{_ratio(measurement.peak_bytes, ours.peak_bytes)}",
                f"{measurement.bytes_per_vertex:.1f}",
                measurement.fields,
                _describe_second_run(measurement.rewritten_share),
                str(_count(result, "right") + _count(result, "reported")),
                str(_count(result, "stopped")),
                str(_count(result, "silent")),
            ]
        for row, cell in zip(rows.values(), cells, strict=True):
            row.append(cell)
    return _make_table(results, rows)


def replace_summary(text: str, results: Sequence[Result]) -> str:
    """Replace the summary in a page that contains one."""
    table = re.compile(r"^\| \| scannet_prep \|.*?\n(?=\n)", re.DOTALL | re.MULTILINE)
    summary = make_summary(results)
    return table.sub(lambda _: f"{summary}\n", text, count=1)


def _make_table(results: Sequence[Result], rows: Mapping[str, Sequence[str]]) -> str:
    lines = [
        f"| | {' | '.join(result.program.name for result in results)} |",
        f"| --- |{' --- |' * len(results)}",
    ]
    lines += [f"| {name} | {' | '.join(cells)} |" for name, cells in rows.items()]
    return "\n".join(lines)


def _ratio(value: float, ours: float) -> str:
    ratio = value / ours
    if ratio == 1:
        return ""
    return f", {ratio:.0f} times" if ratio >= 10 else f", {ratio:.1f} times"


def _describe_second_run(rewritten_share: float) -> str:
    if rewritten_share == 0:
        return "keeps all files"
    if rewritten_share == 1:
        return "makes all files again"
    return f"makes {rewritten_share:.0%} of the files again"


def _count(result: Result, kind: str) -> int:
    return sum(verdict.kind == kind for verdict in result.verdicts.values())


def _make_verdicts(results: Sequence[Result]) -> str:
    rows = {}
    for irregularity in IRREGULARITIES:
        verdicts = [result.verdicts.get(irregularity.title) for result in results]
        rows[irregularity.title] = [verdict.kind if verdict else "not run" for verdict in verdicts]
    return _make_table(results, rows)


def _make_details(results: Sequence[Result]) -> str:
    """Make a list of the programs for each irregular input."""
    lines = []
    for irregularity in IRREGULARITIES:
        title = irregularity.title
        lines += [f"{title[0].upper()}{title[1:]}:", ""]
        for result in results:
            if title in result.verdicts:
                verdict = result.verdicts[title]
                lines.append(f"- {result.program.name}, {verdict.kind}: {verdict.details}")
        lines.append("")
    return "\n".join(lines)


def describe_program(program: Program) -> str:
    """Make a row of the table of programs."""
    origin = f"{program.repository} `{program.commit}`" if program.repository else "this one"
    return f"| {program.name} | {origin} | {program.remark} |"
