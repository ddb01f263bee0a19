#!/usr/bin/env python3
"""Run the command lines of ScanNet's own download-scannet.py with `scannet-prep download`.

    tools/download-scannet.py -o data/ScanNet --type _vh_clean_2.ply
    tools/download-scannet.py -o data/ScanNet --id scene0000_00
    tools/download-scannet.py -o data/ScanNet --label_map

The files get the same names. The download can be resumed, and every file is checked. The exit
status is that of `scannet-prep download`. Other options, such as --accept-terms, --jobs, --base-url
and --dry-run, are passed on to that command.
"""

from __future__ import annotations

import argparse
import shlex
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from scannet_prep.__main__ import main
from scannet_prep.release.files import DATA_EFFICIENT_KINDS, FRAMES, KINDS, LABEL_MAP, TEST_FRAMES

# Options of the official script that this one refuses, with the reason.
_REFUSED = {
    "--v1": "the labels of version 1 were replaced by those of version 2",
    "--task_data": "the task files belong to version 1",
    "--tf_semantic": "the TFRecord files belong to version 1",
}


def translate(words: list[str]) -> list[str]:
    """Turn arguments of the official script into those of `scannet-prep`.

    Raises:
        SystemExit: The arguments are wrong, or ask for files of version 1.
    """
    arguments, others = _make_parser().parse_known_args(words)
    _check(arguments, others)
    if arguments.id:
        selection = ["--scenes", arguments.id]
    elif arguments.test_scans:
        selection = ["--splits", "test"]
    else:
        selection = []
    types = _find_types(arguments)
    return ["download", "-o", arguments.out_dir, *selection, *others, "--types", *types]


def _make_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("-o", "--out_dir", required=True, help="folder for the files")
    parser.add_argument("--id", help="only this scene")
    parser.add_argument(
        "--type",
        help="only this kind of file: " + ", ".join(KINDS),
        choices=KINDS,
        metavar="SUFFIX",
    )
    parser.add_argument("--label_map", action="store_true", help="only the label map")
    parser.add_argument(
        "--preprocessed_frames", action="store_true", help="only the 25,000 frames (5.6 GB)"
    )
    parser.add_argument(
        "--test_frames_2d", action="store_true", help="only the frames of the test scenes (610 MB)"
    )
    parser.add_argument(
        "--data_efficient", action="store_true", help="only the lists of limited annotations"
    )
    parser.add_argument("--test_scans", action="store_true", help="only scenes of the test split")
    parser.add_argument(
        "--skip_existing",
        action="store_true",
        help="always done; existing files are checked",
    )
    for option in _REFUSED:
        parser.add_argument(
            option, action="append_const", dest="refused", const=option, help=argparse.SUPPRESS
        )
    return parser


def _check(arguments: argparse.Namespace, others: list[str]) -> None:
    """Exit with an error if the arguments ask for something that is refused."""
    for option in arguments.refused or ():
        _make_parser().error(f"{option}: {_REFUSED[option]}; it is not fetched")
    if any(word.partition("=")[0] == "--types" for word in others):
        _make_parser().error(
            "--types: the official script has --type, which takes one; "
            "for several: scannet-prep download"
        )


def _find_types(arguments: argparse.Namespace) -> list[str]:
    """Find the arguments of `--types`."""
    kinds = []
    if arguments.label_map:
        kinds.append(LABEL_MAP)
    if arguments.preprocessed_frames:
        kinds.append(FRAMES)
    if arguments.test_frames_2d:
        kinds.append(TEST_FRAMES)
    if arguments.data_efficient:
        kinds += DATA_EFFICIENT_KINDS
    if kinds:
        return [kind.suffix for kind in kinds]
    if arguments.type:
        return [arguments.type]
    return [*KINDS, LABEL_MAP.suffix]


if __name__ == "__main__":
    command = translate(sys.argv[1:])
    print(f"this is: scannet-prep {shlex.join(command)}", file=sys.stderr)
    sys.argv[1:] = command
    sys.exit(main())
