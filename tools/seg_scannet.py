#!/usr/bin/env python3
r"""Run the command lines of OctFormer's tools/seg_scannet.py with scannet-prep.

    tools/seg_scannet.py --run process_scannet --path_in data/ScanNet --path_out data/scannet.npz
    tools/seg_scannet.py --run process_scannet --path_in data/ScanNet \
        --path_out data/scannet200.npz --align_axis --scannet200
    tools/seg_scannet.py --run generate_output_seg --path_in data/scannet.npz/test \
        --path_pred logs/eval --path_out logs/seg \
        --filelist data/scannet.npz/scannetv2_test_npz.txt
    tools/seg_scannet.py --run calc_iou --path_in data/scannet.npz/train --path_pred logs/seg

process_scannet makes a folder from which OctFormer's configurations seg_scannet.yaml and
seg_scannet200.yaml train and test without changes; the processed scenes are beside it, in
data/scannet.processed. Other options are passed on to scannet-prep process. generate_output_seg
turns scores (V, K + 1) into raw ids, and calc_iou is scannet-prep evaluate.
"""

from __future__ import annotations

import argparse
import shlex
import sys
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from scannet_prep.base.files import read_text
from scannet_prep.cli.main import main as run_command
from scannet_prep.errors import ScanNetPrepError
from scannet_prep.predictions.reader import load_arrays
from scannet_prep.release.label_sets import parse_label_set
from scannet_prep.release.scenes import SCENE_ID


def main(words: list[str]) -> int:
    """Run one of the three parts, and return the exit status."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    runs = ("process_scannet", "generate_output_seg", "calc_iou")
    parser.add_argument("--run", required=True, choices=runs)
    parser.add_argument("--path_in", type=Path, default=Path("data/ScanNet"))
    parser.add_argument("--path_out", type=Path, default=Path("data/scannet.npz"))
    parser.add_argument("--path_pred", type=Path, default=Path("logs"))
    parser.add_argument("--filelist", type=Path)
    parser.add_argument("--scannet200", action="store_true")
    parser.add_argument("--align_axis", action="store_true")
    arguments, others = parser.parse_known_args(words)
    label_set = "scannet200" if arguments.scannet200 else "scannet20"
    if arguments.run == "process_scannet":
        return process(arguments, others, label_set)
    if arguments.run == "calc_iou":
        truth = arguments.path_in.parent.with_suffix(".processed")
        return run(
            "evaluate", arguments.path_pred, "--gt", truth, "--label-set", label_set, *others
        )
    if others or arguments.filelist is None:
        parser.error(f"generate_output_seg needs --filelist, and does not know {others}")
    try:
        generate_output_seg(arguments, label_set)
    except (OSError, ScanNetPrepError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    return 0


def process(arguments: argparse.Namespace, others: list[str], label_set: str) -> int:
    """Process the raw scenes, then export them for OctFormer."""
    processed = arguments.path_out.with_suffix(".processed")
    labels = ["--scannet200"] if arguments.scannet200 else ["--labels-from", "ply"]
    frame = ["--align-axis"] if arguments.align_axis else []
    status = run("process", arguments.path_in, *labels, *frame, *others, "-o", processed)
    # After status 3, some scenes have failed, and the others can be exported.
    if status not in (0, 3) or "--dry-run" in others:
        return status
    options = ["--label-set", label_set, "--aligned" if arguments.align_axis else "--unaligned"]
    target = ["-o", arguments.path_out]
    exported = run("export", processed, "--format", "octformer", *target, *options)
    return exported or status


def run(*words: object) -> int:
    """Print and run a command of scannet-prep, and return its exit status."""
    command = [str(word) for word in words]
    print(f"this is: scannet-prep {shlex.join(command)}", file=sys.stderr)
    return run_command(command)


def generate_output_seg(arguments: argparse.Namespace, label_set: str) -> None:
    """Turn the scores of each scene in the list into a file with a raw id per vertex."""
    raw_ids = np.array([0, *parse_label_set(label_set).ids])
    arguments.path_out.mkdir(parents=True, exist_ok=True)
    for line in read_text(arguments.filelist).split():
        name = Path(line).stem
        if not SCENE_ID.fullmatch(name):
            raise OSError(f"{arguments.filelist}: {name} is not a scene; parts are not joined")
        path = arguments.path_pred / f"{name}.eval.npz"
        [scores] = load_arrays(path, "prob")
        if scores.shape[1:] != raw_ids.shape:
            raise OSError(f"{path}: prob is {scores.shape}, expected (V, {len(raw_ids)})")
        np.savetxt(arguments.path_out / f"{name}.txt", raw_ids[scores.argmax(axis=1)], "%d")


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
