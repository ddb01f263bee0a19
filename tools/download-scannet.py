#!/usr/bin/env python3
"""The command lines of ScanNet's own download-scannet.py, done by `scannet-prep download`, into the same layout.

    tools/download-scannet.py -o data/ScanNet --type _vh_clean_2.ply
    tools/download-scannet.py -o data/ScanNet --id scene0000_00
    tools/download-scannet.py -o data/ScanNet --label_map

It resumes, checks every file and exits with the status of `scannet-prep download`. Options that it does not know are
handed to that command, for example --accept-terms, --jobs, --base-url and --dry-run.
"""

from __future__ import annotations

import argparse
import shlex
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from scannet_prep.__main__ import main
from scannet_prep.release.files import DATA_EFFICIENT_KINDS, FRAMES, KINDS, LABEL_MAP, TEST_FRAMES

# What the official script takes and this one does not, and why.
_REFUSED = {
    "--v1": "the labels of version 1 were replaced by those of version 2",
    "--task_data": "the task files belong to version 1",
    "--tf_semantic": "the TFRecord files belong to version 1",
}


def translate(words: list[str]) -> list[str]:
    """Turn arguments of the official script into those of `scannet-prep`."""
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
        help="is always done, after a check of what is there",
    )
    for option in _REFUSED:
        parser.add_argument(
            option, action="append_const", dest="refused", const=option, help=argparse.SUPPRESS
        )
    arguments, others = parser.parse_known_args(words)
    for option in arguments.refused or ():
        parser.error(f"{option}: {_REFUSED[option]}; it is not fetched")
    if any(word.partition("=")[0] == "--types" for word in others):
        parser.error(
            "--types: the official script has --type, which takes one; for several: scannet-prep download"
        )
    wanted = [
        *([LABEL_MAP] if arguments.label_map else []),
        *([FRAMES] if arguments.preprocessed_frames else []),
        *([TEST_FRAMES] if arguments.test_frames_2d else []),
        *(DATA_EFFICIENT_KINDS if arguments.data_efficient else []),
    ]
    types = [kind.suffix for kind in wanted] or (
        [arguments.type] if arguments.type else [*KINDS, LABEL_MAP.suffix]
    )
    selection = (
        ["--scenes", arguments.id]
        if arguments.id
        else ["--splits", "test"]
        if arguments.test_scans
        else []
    )
    return ["download", "-o", arguments.out_dir, *selection, *others, "--types", *types]


if __name__ == "__main__":
    command = translate(sys.argv[1:])
    print(f"this is: scannet-prep {shlex.join(command)}", file=sys.stderr)
    sys.argv[1:] = command
    sys.exit(main())
