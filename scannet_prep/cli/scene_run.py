"""Options, dry run, run and result, which the commands that make scenes share."""

from __future__ import annotations

import argparse
from contextlib import nullcontext
from pathlib import Path
from typing import TYPE_CHECKING

from scannet_prep.base.text import count_of, format_duration, list_some
from scannet_prep.cli import arguments as shared
from scannet_prep.cli.console import Console, Outcome

if TYPE_CHECKING:
    from scannet_prep.stages.scene_run import RunPlan


def add_run_arguments(parser: shared.CommandParser) -> shared.Container:
    """Add the options for how to run, and return their group."""
    group = parser.add_argument_group("how to run")
    workers = group.add_mutually_exclusive_group()
    shared.add_jobs_argument(workers)
    workers.add_argument(
        "--dask",
        metavar="ADDRESS",
        help="scheduler of a dask cluster that does the work, such as tcp://node01:8786",
    )
    group.add_argument(
        "--force", action="store_true", help="make scenes again even if they are up to date"
    )
    group.add_argument(
        "--dry-run",
        action="store_true",
        help="show which scenes would be made and why, and write nothing",
    )
    return group


def resolve_paths(arguments: argparse.Namespace) -> None:
    """Make paths absolute if dask does the work: its workers have another current folder."""
    for name, value in vars(arguments).items():
        if arguments.dask is not None and isinstance(value, Path):
            setattr(arguments, name, value.absolute())


def carry_out(plan: RunPlan, arguments: argparse.Namespace, console: Console) -> Outcome:
    """Describe a plan, and carry it out unless it is a dry run."""
    from scannet_prep.base.workers import dask_executor
    from scannet_prep.stages import scene_run

    scenes = count_of(len(plan.tasks) + len(plan.kept), "scene")
    console.say(f"{plan.stage.name}: {plan.source} -> {plan.out_dir}: {scenes}\n{plan.about}")
    facts = {"out_dir": plan.out_dir, "options": plan.about, "kept": plan.kept}
    if arguments.dry_run:
        reasons: dict[str, list[str]] = {}
        for task in plan.tasks:
            reasons.setdefault(task.reason, []).append(task.scene_id)
        scenes = count_of(len(plan.tasks), "scene")
        lines = [f"dry run: {scenes} would be made; nothing was written"]
        for reason, scene_ids in reasons.items():
            lines.append(f"  {len(scene_ids):,}: {reason} ({list_some(scene_ids)})")
        facts |= {
            "dry_run": True,
            "to_make": reasons,
            "failures": plan.failures,
            "notes": plan.notes,
        }
        return Outcome(facts, lines, (*plan.failures, *plan.notes))
    with dask_executor(arguments.dask) if arguments.dask is not None else nullcontext() as executor:
        report = scene_run.run(
            plan, jobs=shared.jobs_from(arguments), progress=console, executor=executor
        )
    facts |= {"made": report.made, "failures": report.failures, "notes": report.notes}
    line = (
        f"{len(report.made):,} made, {len(report.kept):,} kept, {len(report.failures):,} failed, "
        f"in {format_duration(console.seconds)}: {plan.out_dir}"
    )
    return Outcome(facts, [line], (*report.failures, *report.notes))
