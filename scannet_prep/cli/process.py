"""Make one .npz of each raw scene, with points, colours, labels and segments.

Scenes are found wherever their files lie together under the names of the
release: in scans/SCENE/ and scans_test/SCENE/, in train/, val/ and test/, and
elsewhere. A scene of your own lies in scans_test/NAME/NAME_vh_clean_2.ply or,
with segments and groups, in scans/NAME/.

A processed folder has one set of options. They are stored in its manifest, so a
later command need not repeat them, and a command with different options is
refused. To change them, process the whole folder again with --force.

Running a command again makes only what is missing: a scene is kept if its file
is the recorded one and not older than its raw files. A scene that fails does
not stop the others. It is listed, and written to failed.txt.

examples:
  scannet-prep process --scannet200 --align-axis
  scannet-prep process /datasets/ScanNet -o /fast/scannet --jobs 16
  scannet-prep process --scenes @data/processed/failed.txt
  scannet-prep process --scannet200 --align-axis --compute-segments
  scannet-prep process --dry-run
  scannet-prep process --scannet200 --align-axis --faces --force
  scannet-prep process --dask tcp://node01:8786
"""

from __future__ import annotations

import argparse

from scannet_prep.cli import arguments as shared
from scannet_prep.cli.console import Console, Outcome
from scannet_prep.cli.scene_run import add_run_arguments, carry_out, resolve_paths


def add_arguments(parser: shared.CommandParser) -> None:
    """Add the arguments of the command."""
    shared.add_path_argument(
        parser,
        "raw",
        metavar="RAW",
        default="data/ScanNet",
        text="folder with the scenes, such as scans/ and scans_test/",
    )
    shared.add_path_argument(
        parser,
        "-o",
        "--output",
        metavar="DIR",
        default="data/processed",
        text="folder for the processed scenes",
    )
    options = parser.add_argument_group("what to make (default: the options of the folder)")
    switches = {
        "--scannet200": "labels of ScanNet200 (default for a new folder: ScanNet20)",
        "--align-axis": "points in the axis-aligned frame (default for a new folder: the frame of "
        "the scan)",
        "--faces": "keep the triangles (default for a new folder: no)",
        "--compute-segments": "compute segments (superpoints) for scenes that have none in the "
        "release, such as test scenes; they are marked as computed",
    }
    for name, text in switches.items():
        options.add_argument(
            name, action=argparse.BooleanOptionalAction, default=argparse.SUPPRESS, help=text
        )
    options.add_argument(
        "--labels-from",
        choices=("aggregation", "ply"),
        default=argparse.SUPPRESS,
        help="source of the nyu40 ids: aggregation (default for a new folder), or ply for "
        "labels.ply",
    )
    shared.add_selection_arguments(parser)
    add_run_arguments(parser).add_argument(
        "--strict",
        action="store_true",
        help="treat doubts about labels, such as an unknown raw category, as errors",
    )


def run(arguments: argparse.Namespace, console: Console) -> Outcome:
    """Run the command."""
    from scannet_prep.stages import process

    resolve_paths(arguments)
    # Options that the command leaves out are those of the folder.
    names = ("scannet200", "align_axis", "faces", "labels_from", "compute_segments")
    options = {name: value for name, value in vars(arguments).items() if name in names}
    plan = process.plan(
        arguments.raw,
        arguments.output,
        options,
        selection=shared.selection_from(arguments),
        is_forced=arguments.force,
        is_strict=arguments.strict,
    )
    return carry_out(plan, arguments, console)
