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
seg_scannet200.yaml train and test without changes; the processed scenes are in its subfolder
`processed`. Other options are passed on to scannet-prep process. generate_output_seg turns scores
(V, K + 1) into raw ids, and calc_iou prints their IoU.
"""

from __future__ import annotations

import argparse
import shlex
import sys
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from scannet_prep.cli.main import main as run_command
from scannet_prep.release.label_sets import SCANNET20, SCANNET200, LabelSet


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
    label_set = SCANNET200 if arguments.scannet200 else SCANNET20
    if arguments.run == "process_scannet":
        if any(word.startswith(("-o", "--output")) for word in others):
            parser.error("the folder for the output is --path_out here")
        return process(arguments, others, label_set)
    if others or (arguments.run == "generate_output_seg" and arguments.filelist is None):
        parser.error(f"unknown: {others}" if others else "generate_output_seg needs --filelist")
    try:
        if arguments.run == "calc_iou":
            calc_iou(arguments.path_in, arguments.path_pred, label_set)
        else:
            generate_output_seg(arguments, label_set)
    except (OSError, ValueError, KeyError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    return 0


def process(arguments: argparse.Namespace, others: list[str], label_set: LabelSet) -> int:
    """Process the raw scenes, then export them for OctFormer."""
    processed = str(arguments.path_out / "processed")
    labels = ["--scannet200"] if arguments.scannet200 else ["--labels-from", "ply"]
    frame = ["--align-axis"] if arguments.align_axis else []
    export = ["export", processed, "--format", "octformer", "-o", str(arguments.path_out)]
    export += ["--label-set", label_set.name.lower()]
    export.append("--aligned" if arguments.align_axis else "--unaligned")
    statuses = []
    for command in (
        ["process", str(arguments.path_in), "-o", processed, *labels, *frame, *others],
        export,
    ):
        print(f"this is: scannet-prep {shlex.join(command)}", file=sys.stderr)
        statuses.append(run_command(command))
        # After status 3, some scenes have failed, and the others can be exported.
        if statuses[-1] not in (0, 3) or "--dry-run" in others:
            break
    return max(statuses)


def generate_output_seg(arguments: argparse.Namespace, label_set: LabelSet) -> None:
    """Turn the scores of each scene in the list into a file with a raw id per vertex."""
    raw_ids = np.array([0, *label_set.ids])
    arguments.path_out.mkdir(parents=True, exist_ok=True)
    for line in arguments.filelist.read_text(encoding="utf-8").split():
        name = Path(line).stem
        path = arguments.path_pred / f"{name}.eval.npz"
        with np.load(path) as content:
            scores = content["prob"]
        if scores.ndim != 2 or scores.shape[1] != len(raw_ids):
            raise ValueError(f"{path}: prob is {scores.shape}, expected (V, {len(raw_ids)})")
        np.savetxt(arguments.path_out / f"{name}.txt", raw_ids[scores.argmax(axis=1)], "%d")


def calc_iou(truth_dir: Path, prediction_dir: Path, label_set: LabelSet) -> None:
    """Print the IoU of each class over all `<scene>.txt` of a folder, and their mean."""
    class_count = len(label_set)
    # Rows are the true classes, columns the predicted ones; the last is for all other ids.
    counts = np.zeros((class_count + 1, class_count + 1), np.int64)
    paths = sorted(prediction_dir.glob("scene*.txt"))
    if not paths:
        raise ValueError(f"{prediction_dir} holds no <scene>.txt: --run generate_output_seg")
    for path in paths:
        files = (truth_dir / path.name, path)
        truth, predicted = (
            label_set.train_ids_from_raw_ids(np.loadtxt(file, np.int64, ndmin=1), class_count)
            for file in files
        )
        if truth.shape != predicted.shape:
            raise ValueError(f"{path}: {len(predicted):,} ids, expected {len(truth):,}")
        np.add.at(counts, (truth, predicted), 1)
    counts = counts[:class_count]
    right = counts.diagonal()
    unions = counts.sum(axis=0)[:class_count] + counts.sum(axis=1) - right
    ious = right / np.maximum(unions, 1)
    for name, iou in zip(label_set.names, ious, strict=True):
        print(f"{name:<24}{iou:8.4f}")
    print(f"{'mean IoU':<24}{ious.mean():8.4f}   (over all {class_count} classes)")
    print(f"{'accuracy':<24}{right.sum() / counts.sum():8.4f}   (of {len(paths)} scenes)")


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
