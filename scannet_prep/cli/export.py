"""Write what other programs read: OctFormer, Pointcept, Mask3D and others.

Takes processed scenes, from a folder or an archive.

Running a command again exports only scenes that are missing or have been
processed again. All scenes of an export have the same format and options, and
were processed with the same options; the file export.json records them.

formats:
  octformer     OctFormer: train/*.npz and *.txt, test/*.npz, lists of files
  pointcept     Pointcept: train/<scene>/coord.npy and so on, both label sets
  mask3d        Mask3D: train/0000_00.npy and so on, databases, instance_gt/
  mmdet3d       mmdetection3d: points/, masks, infos, seg_info/
  oneformer3d   OneFormer3D: as mmdet3d, with super_points/
  pointgroup    PointGroup, HAIS, SoftGroup, ISBNet: *_inst_nostuff.pth
  spformer      SPFormer: the same with segments in each tuple
  votenet       VoteNet: <scene>_vert.npy and others, boxes of 18 classes
  scanrefer     ScanRefer, Scan2Cap and others: normals, boxes of 37 classes
  benchmark-gt  ground truth for the official evaluators: semantic/, instance/
  ply           meshes or points for MeshLab, with raw ids

examples:
  scannet-prep export --format octformer --label-set scannet20 -o scannet.npz
  scannet-prep export --format pointcept -o Pointcept/data/scannet
  scannet-prep export --format oneformer3d -o oneformer3d
  scannet-prep export --format votenet -o scannet_train_detection_data
  scannet-prep export --format scanrefer -o scannet_data
  scannet-prep export --format benchmark-gt --splits val
  scannet-prep export --format ply --scenes scene0011_00
"""

from __future__ import annotations

import argparse
from pathlib import Path

from scannet_prep.cli import arguments as shared
from scannet_prep.cli.console import Console, Outcome
from scannet_prep.cli.scene_run import add_run_arguments, carry_out, resolve_paths
from scannet_prep.export import FORMATS


def add_arguments(parser: shared.CommandParser) -> None:
    """Add the arguments of the command."""
    shared.add_path_argument(
        parser,
        "place",
        metavar="PLACE",
        default="data/processed",
        text="processed folder, or the path or address of an archive",
    )
    parser.add_argument(
        "--format",
        required=True,
        choices=tuple(FORMATS),
        metavar="FORMAT",
        help="one of the formats above",
    )
    shared.add_output_path(parser, "DIR", "folder for the export (default: data/export/FORMAT)")
    options = parser.add_argument_group(
        "what to make (default: what the program uses, with the label set of PLACE)"
    )
    shared.add_label_set_argument(options, "label set, if the format has only one")
    frame = options.add_mutually_exclusive_group()
    frame.add_argument(
        "--aligned",
        dest="is_aligned",
        action="store_true",
        default=None,
        help="points in the axis-aligned frame",
    )
    frame.add_argument(
        "--unaligned",
        dest="is_aligned",
        action="store_false",
        help="points in the frame of the scan",
    )
    shared.add_selection_arguments(parser)
    add_run_arguments(parser)


def run(arguments: argparse.Namespace, console: Console) -> Outcome:
    """Run the command."""
    from scannet_prep.stages import export

    arguments.output = arguments.output or Path("data/export", arguments.format)
    resolve_paths(arguments)
    plan = export.plan(
        arguments.place,
        arguments.output,
        arguments.format,
        label_set=arguments.label_set,
        is_aligned=arguments.is_aligned,
        selection=shared.selection_from(arguments),
        is_forced=arguments.force,
    )
    return carry_out(plan, arguments, console)
