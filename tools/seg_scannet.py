#!/usr/bin/env python3
r"""The command lines of OctFormer's tools/seg_scannet.py, done by scannet-prep.

    tools/seg_scannet.py --run process_scannet --path_in data/ScanNet --path_out data/scannet.npz
    tools/seg_scannet.py --run process_scannet --path_in data/ScanNet --path_out data/scannet200.npz \
        --align_axis --scannet200
    tools/seg_scannet.py --run generate_output_seg --path_in data/scannet.npz/test --path_pred logs/eval \
        --path_out logs/seg --filelist data/scannet.npz/scannetv2_test_npz.txt
    tools/seg_scannet.py --run calc_iou --path_in data/scannet.npz/train --path_pred logs/seg

process_scannet makes the folder that OctFormer's configurations seg_scannet.yaml and seg_scannet200.yaml train and test
from, as they are; the processed scenes lie in its folder `processed`, and are linked. The other two turn predictions
into files of raw ids, and tell the IoU of such files. Options that this program does not know are handed to
scannet-prep process, for example --jobs and --scenes.
"""

from __future__ import annotations

import argparse
import shlex
import sys
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from scannet_prep.base.errors import (
    ContentError,
    FileError,
    MissingFileError,
    ScanNetPrepError,
    UsageError,
)
from scannet_prep.base.files import make_directory, read_file, write_atomically
from scannet_prep.cli.main import main as run_command
from scannet_prep.evaluation import SemanticScores
from scannet_prep.export import make_format
from scannet_prep.export.format import ExportOptions, encode_lines
from scannet_prep.predictions.arrays import load_arrays, load_scores, parse_lines
from scannet_prep.release.label_sets import SCANNET20, SCANNET200, LabelSet
from scannet_prep.release.scene import Split
from scannet_prep.release.splits import official_scenes
from scannet_prep.stages.export.planning import check_target

_CHUNK_END = len(".chunk_x")


def main(words: list[str]) -> int:
    """Run one of the three parts, and give the exit status."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--run", required=True, choices=("process_scannet", "generate_output_seg", "calc_iou")
    )
    parser.add_argument("--path_in", type=Path, default=Path("data/ScanNet"))
    parser.add_argument("--path_out", type=Path, default=Path("data/scannet.npz"))
    parser.add_argument("--path_pred", type=Path, help="folder of the predictions")
    parser.add_argument("--filelist", type=Path, help="list of the scenes, for generate_output_seg")
    parser.add_argument("--scannet200", action="store_true", help="the 200 classes; else the 20")
    parser.add_argument(
        "--align_axis", action="store_true", help="points in the axis-aligned frame"
    )
    parser.add_argument(
        "--suffix_out", default=".npz", help=".npz; there is no .ply: see scannet-prep export"
    )
    arguments, others = parser.parse_known_args(words)
    if arguments.run == "process_scannet":
        if arguments.suffix_out != ".npz":
            parser.error(
                f"--suffix_out {arguments.suffix_out}: only .npz; for .ply: scannet-prep export --format ply"
            )
        for word in others:
            if word.startswith(("-o", "--output")):
                parser.error(f"{word}: the folder for the output is --path_out here")
        return process(arguments, others)
    if others:
        parser.error(f"unknown: {' '.join(others)}")
    if arguments.path_pred is None or (
        arguments.run == "generate_output_seg" and arguments.filelist is None
    ):
        parser.error(
            f"{arguments.run} needs --path_pred"
            + (" and --filelist" if arguments.path_pred else "")
        )
    label_set = SCANNET200 if arguments.scannet200 else SCANNET20
    command = ["evaluate"] if arguments.run == "calc_iou" else ["submit", "-o", "submission.zip"]
    command += [str(arguments.path_pred), "--gt", str(arguments.path_in.parent / "processed")]
    print(
        f"much like: scannet-prep {shlex.join([*command, '--labels', label_set.name.lower()])}",
        file=sys.stderr,
    )
    try:
        if arguments.run == "calc_iou":
            calc_iou(arguments.path_in, arguments.path_pred, label_set)
        else:
            generate_output_seg(arguments, label_set)
    except ScanNetPrepError as error:
        print(
            f"error: {error.message}" + (f"\nhint: {error.hint}" if error.hint else ""),
            file=sys.stderr,
        )
        return 1
    return 0


def process(arguments: argparse.Namespace, others: list[str]) -> int:
    """Process the raw scenes, then export them for OctFormer."""
    label_set = SCANNET200 if arguments.scannet200 else SCANNET20
    out_dir = str(arguments.path_out)
    processed_dir = str(arguments.path_out / "processed")
    if arguments.path_out.name == "scanet200.npz":
        print(
            "OctFormer's configuration reads data/scannet200.npz, with two n: rename the folder",
            file=sys.stderr,
        )
    # Checked before the scenes are processed, which takes much longer than the export.
    try:
        format_ = make_format("octformer", ExportOptions(label_set, arguments.align_axis))
        check_target(arguments.path_out, Path(processed_dir), format_.settings)
    except ScanNetPrepError as error:
        hint = error.hint.replace("-o", "--path_out")
        print(f"error: {error.message}" + (f"\nhint: {hint}" if hint else ""), file=sys.stderr)
        return 2 if isinstance(error, UsageError) else 1

    labels = ["--scannet200"] if arguments.scannet200 else ["--labels-from", "ply"]
    frame = ["--align-axis"] if arguments.align_axis else []
    status = _call("process", str(arguments.path_in), "-o", processed_dir, *labels, *frame, *others)
    if (
        status not in (0, 3) or "--dry-run" in others
    ):  # 3: some scenes failed; the others can be used
        return status
    export = [
        "export",
        processed_dir,
        "--format",
        "octformer",
        "-o",
        out_dir,
        "--labels",
        label_set.name.lower(),
    ]
    export.append("--aligned" if arguments.align_axis else "--unaligned")
    return _call(*export) or status


def generate_output_seg(arguments: argparse.Namespace, label_set: LabelSet) -> None:
    """Turn `<scene>.eval.npz`, with the scores `prob` (V, K + 1), into `<scene>.txt`, a raw id for each vertex."""
    raw_ids = np.array([0, *label_set.ids])
    sums: dict[str, Any] = {}
    lines = read_file(arguments.filelist).decode("utf-8", "replace").splitlines()
    names = [line.split()[0][:-4] for line in lines if line.strip()]
    if not names:
        raise FileError(arguments.filelist, "names no scene")
    make_directory(arguments.path_out)
    for name in names:
        scores = load_scores(arguments.path_pred / f"{name}.eval.npz", len(label_set))
        if "chunk" in name:  # a part of a scene: the scores of all parts are added up
            mask_path = arguments.path_in / f"{name}.mask.npy"
            mask = load_arrays(mask_path)[""].astype(bool)
            name = name.rpartition(".chunk_")[0] or name[:-_CHUNK_END]
            whole = sums.setdefault(name, np.zeros((len(mask), len(raw_ids))))
            if mask.shape != whole.shape[:1] or np.count_nonzero(mask) != len(scores):
                problem = f"has {np.count_nonzero(mask):,} of {len(mask):,} vertices"
                raise FileError(mask_path, f"{problem}, expected {len(scores):,} of {len(whole):,}")
            whole[mask] += scores
            scores = whole
        write_atomically(
            arguments.path_out / f"{name}.txt", [encode_lines(raw_ids[scores.argmax(axis=1)])]
        )
    print(f"{len(names)} predictions: raw ids in {arguments.path_out}")


def calc_iou(truth_dir: Path, prediction_dir: Path, label_set: LabelSet) -> None:
    """Compare raw ids, `<scene>.txt`, with those of the same name in another folder."""
    paths = sorted(prediction_dir.glob("scene*.txt"))
    if not paths:
        raise MissingFileError(
            prediction_dir, "holds no <scene>.txt", "make them: --run generate_output_seg"
        )
    scores, accuracies = SemanticScores(label_set), []
    for path in paths:
        truth, found = (
            label_set.train_ids_from_raw_ids(_parse(place), -1)
            for place in (truth_dir / path.name, path)
        )
        try:
            scores.add(found, truth)
        except ContentError as error:
            raise FileError(path, f"{error.message} ({truth_dir / path.name})") from None
        is_counted = truth >= 0
        accuracies.append(
            np.mean(found[is_counted] == truth[is_counted]) if is_counted.any() else 0.0
        )
    result = scores.result()
    for name, values in result.classes.items():
        iou = values["iou"]
        print(f"{name:<24}{0.0 if iou is None else iou:8.4f}")
    print(
        f"{'mean IoU':<24}{result.means['all']['over_all'] or 0.0:8.4f}   (over all {len(label_set)} classes)"
    )
    print(f"{'accuracy':<24}{np.mean(accuracies):8.4f}   (mean over {len(paths)} scenes)")
    if missing := set(official_scenes(Split.VAL)).difference(path.stem for path in paths):
        print(f"note: {len(missing)} of the scenes of val have no prediction here", file=sys.stderr)


def _parse(path: Path) -> NDArray[np.int64]:
    try:
        return parse_lines(read_file(path))
    except ContentError as error:
        raise FileError(path, error.message) from None


def _call(*words: str) -> int:
    print(f"this is: scannet-prep {shlex.join(words)}", file=sys.stderr)
    return run_command(words)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
