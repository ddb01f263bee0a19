#!/usr/bin/env python3
"""Run the command lines of ScanNet's own download-scannet.py with `scannet-prep download`.

    tools/download-scannet.py -o data/ScanNet --type _vh_clean_2.ply
    tools/download-scannet.py -o data/ScanNet --id scene0000_00
    tools/download-scannet.py -o data/ScanNet --label_map

The files get the same names. The download can be resumed, and every file is checked. Other options,
such as --accept-terms, --jobs, --base-url and --dry-run, are passed on. The files of version 1
(--v1, --task_data, --tf_semantic) are not fetched: version 2 replaced its labels.
"""

from __future__ import annotations

import argparse
import shlex
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from scannet_prep.__main__ import main
from scannet_prep.release.files import DATA_EFFICIENT_KINDS, FRAMES, KINDS, LABEL_MAP, TEST_FRAMES


def translate(words: list[str]) -> list[str]:
    """Turn arguments of the official script into those of `scannet-prep`.

    Raises:
        SystemExit: The arguments are wrong, or ask for files of version 1.
    """
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("-o", "--out_dir", required=True, help="folder for the files")
    parser.add_argument("--id", help="only this scene")
    parser.add_argument("--test_scans", action="store_true", help="only scenes of the test split")
    parser.add_argument("--type", choices=KINDS, metavar="SUFFIX", help="only this kind of file")
    shared = {
        "label_map": [LABEL_MAP],
        "preprocessed_frames": [FRAMES],
        "test_frames_2d": [TEST_FRAMES],
        "data_efficient": DATA_EFFICIENT_KINDS,
    }
    for name in shared:
        parser.add_argument(f"--{name}", action="store_true", help="only these files")
    parser.add_argument("--skip_existing", action="store_true", help="always done")
    arguments, others = parser.parse_known_args(words)
    for option in ("--v1", "--task_data", "--tf_semantic"):
        if option in others:
            parser.error(f"{option}: the files of version 1 are not fetched")
    if any(word.startswith("--types") for word in others):
        parser.error("--types: here it is --type; for several: scannet-prep download")

    types = [kind.suffix for name in shared if getattr(arguments, name) for kind in shared[name]]
    if not types:
        types = [arguments.type] if arguments.type else [*KINDS, LABEL_MAP.suffix]
    command = ["download", "-o", arguments.out_dir]
    if arguments.id:
        command += ["--scenes", arguments.id]
    elif arguments.test_scans:
        command += ["--splits", "test"]
    return [*command, *others, "--types", *types]


if __name__ == "__main__":
    command = translate(sys.argv[1:])
    print(f"this is: scannet-prep {shlex.join(command)}", file=sys.stderr)
    sys.argv[1:] = command
    sys.exit(main())
