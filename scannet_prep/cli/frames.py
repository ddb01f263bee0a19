"""Extract images, depth, poses and 2D labels from the sensor streams of scans.

Reads .sens files without decoding what is not needed: every 20th frame by
default, in the layout and number format of ScanNet's own reader. Frames in
which tracking was lost have no usable pose; they are omitted, counted and
listed. Intrinsics are those of the images that are written.

Running a command again extracts only scenes that are missing, or whose files
have changed. A folder has one set of options, which a later command need not
repeat. Each scene has a frames.json with the numbers of its frames, its
cameras, and a checksum of every file.

Scenes without a stream are left out. All streams together take 1.2 TB: download
those of some scenes, as in the last example, or let --fetch download, extract
and remove one after the other.

layouts, each with its own default options (docs/frames.md has the programs):
  official      color/0.jpg, depth/0.png, pose/0.txt, intrinsic/
  neuralrecon   the same in scans/ and scans_test/
  frames25k     color/000000.jpg and so on: scannet_frames_25k
  mmdet3d       00000.jpg, 00000.png, 00000.txt: posed_images of mmdetection3d
  embodiedscan  posed_images/ of EmbodiedScan, Video-3D-LLM, LLaVA-3D
  concerto      images/ of Concerto and Utonia
  colmap        a model of COLMAP with start points: 3DGS, 2DGS, gsplat
  nerfstudio    transforms.json with start points
  relpose       evaluation of poses: MonST3R, CUT3R, TTT3R
  cut3r         training of CUT3R, StreamVGGT, TTT3R
  openeqa       episodes of OpenEQA
  sens          files of ScanNet's SensReader for C++: SuperGlue
  simplerecon   SimpleRecon
  monosdf       MonoSDF: square images, cameras.npz

examples:
  scannet-prep frames --size 320x240
  scannet-prep frames --with color pose labels --label-set scannet200
  scannet-prep frames --at-most 300 --layout mmdet3d -o data/posed_images
  scannet-prep frames --layout colmap --every 10 -o data/colmap
  scannet-prep frames --frames @pairs.txt --keep-lost
  scannet-prep frames --fetch --every 10
  scannet-prep frames --every 1 --scenes scene0000_00 --dry-run
  scannet-prep download --types .sens --scenes scene0000_00
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
        default="data/frames",
        text="folder for the frames",
    )
    shared.add_path_argument(
        parser,
        "--processed",
        metavar="DIR",
        default="data/processed",
        text="processed scenes, for start points of colmap and nerfstudio where no mesh is beside "
        "the stream",
    )
    options = parser.add_argument_group("what to extract (default: the options of the folder)")
    number = options.add_mutually_exclusive_group()
    number.add_argument(
        "--every",
        type=shared.positive_number,
        metavar="N",
        help="every n-th frame, beginning with the first; 1 for all (default: 20)",
    )
    number.add_argument(
        "--at-most",
        type=shared.positive_number,
        metavar="N",
        help="at most N frames of each scene, evenly spaced",
    )
    number.add_argument(
        "--frames",
        type=lambda text: shared.path_argument(text.removeprefix("@")),
        metavar="@FILE",
        help="the frames of a list: on each line, a scene and numbers of frames",
    )
    options.add_argument(
        "--first",
        type=shared.positive_number,
        metavar="N",
        help="of these, only the first N",
    )
    options.add_argument(
        "--size",
        type=shared.size_argument,
        metavar="WxH",
        help="width and height of all images, such as 320x240 "
        "(default: as stored, without decoding colour images)",
    )
    options.add_argument(
        "--with",
        dest="contents",
        nargs="+",
        action="extend",
        metavar="CONTENT",
        help="color, depth, pose, labels, instances, vertices, correspondences (default: color "
        "depth pose); labels and instances come from the _2d-label-filt.zip and "
        "_2d-instance-filt.zip of the scene, vertices and correspondences from its mesh",
    )
    options.add_argument(
        "--label-set",
        choices=("raw", "nyu40", "scannet20", "scannet200"),
        help="ids in label images: raw (ScanNet ids, the default), nyu40 ids, or train id + 1 of a "
        "label set; 0 is unlabeled",
    )
    options.add_argument(
        "--layout",
        metavar="LAYOUT",
        help="names of the files (default: official; see layouts above)",
    )
    options.add_argument(
        "--keep-lost",
        dest="keeps_lost",
        action=argparse.BooleanOptionalAction,
        help="also write frames without tracking, like the official reader; their poses are -inf",
    )
    shared.add_selection_arguments(parser)
    group = add_run_arguments(parser)
    group.add_argument(
        "--fetch",
        type=shared.server_argument,
        nargs="?",
        default="",
        const=shared.find_base_url(),
        metavar="URL",
        help="download the stream of each scene, from the ScanNet server or a mirror, and remove "
        "it when its frames are complete",
    )


def run(arguments: argparse.Namespace, console: Console) -> Outcome:
    """Run the command."""
    from scannet_prep.frames.options import FrameOptions
    from scannet_prep.stages import frames

    resolve_paths(arguments)
    options = {
        name: value
        for name, value in vars(arguments).items()
        if name in FrameOptions.__slots__ and value is not None
    }
    # Each replaces the other one in the options of the folder.
    if arguments.at_most:
        options["every"] = 1
    elif arguments.every:
        options["at_most"] = None
    if arguments.fetch:
        # While one stream is extracted, the next one is downloaded. As for `download`, there are at
        # most 8 connections: the server is shared.
        arguments.jobs = min(max(2, shared.jobs_from(arguments)), 8)
    plan = frames.plan(
        arguments.raw,
        arguments.output,
        options,
        selection=shared.selection_from(arguments),
        is_forced=arguments.force,
        list_path=arguments.frames,
        base_url=arguments.fetch,
        processed_dir=arguments.processed,
    )
    if arguments.dry_run and not arguments.fetch:
        plan = frames.count(plan)
    return carry_out(plan, arguments, console)
