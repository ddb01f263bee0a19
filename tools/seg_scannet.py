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
seg_scannet200.yaml train and test without changes. Its processed scenes are in the subfolder
`processed`. Other options, such as --jobs and --scenes, are passed on to
scannet-prep process.

generate_output_seg turns predictions into files of raw ids. calc_iou prints the IoU of such files.
"""

from __future__ import annotations

import argparse
import shlex
import sys
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from scannet_prep.base.files import make_directory, read_file, write_atomically
from scannet_prep.cli.main import main as run_command
from scannet_prep.errors import (
    ContentError,
    FileError,
    MissingFileError,
    ScanNetPrepError,
)
from scannet_prep.evaluation import SemanticScores
from scannet_prep.export.format import encode_lines
from scannet_prep.predictions.arrays import load_arrays, load_scores, parse_lines
from scannet_prep.release.label_sets import SCANNET20, SCANNET200, LabelSet
from scannet_prep.release.scene import Split
from scannet_prep.release.splits import official_scenes

# Of part names such as `scene0000_00.chunk_x`.
_CHUNK_SUFFIX_LENGTH = len(".chunk_x")


def main(words: list[str]) -> int:
    """Run one of the three parts, and return the exit status."""
    parser = _make_parser()
    arguments, others = parser.parse_known_args(words)
    if arguments.run == "process_scannet":
        _check_process(parser, arguments, others)
        return process(arguments, others)
    _check_prediction(parser, arguments, others)
    label_set = _find_label_set(arguments)
    _print_similar_command(arguments, label_set)
    try:
        if arguments.run == "calc_iou":
            calc_iou(arguments.path_in, arguments.path_pred, label_set)
        else:
            generate_output_seg(arguments, label_set)
    except ScanNetPrepError as error:
        _print_error(error.message, error.hint)
        return 1
    return 0


def _make_parser() -> argparse.ArgumentParser:
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
    parser.add_argument("--scannet200", action="store_true", help="200 classes instead of 20")
    parser.add_argument(
        "--align_axis", action="store_true", help="points in the axis-aligned frame"
    )
    parser.add_argument(
        "--suffix_out", default=".npz", help="only .npz; for .ply, see scannet-prep export"
    )
    return parser


def _check_process(
    parser: argparse.ArgumentParser, arguments: argparse.Namespace, others: list[str]
) -> None:
    """Exit with an error if `process_scannet` cannot be run with these arguments."""
    if arguments.suffix_out != ".npz":
        parser.error(
            f"--suffix_out {arguments.suffix_out}: only .npz; "
            "for .ply: scannet-prep export --format ply"
        )
    for word in others:
        if word.startswith(("-o", "--output")):
            parser.error(f"{word}: the folder for the output is --path_out here")


def _check_prediction(
    parser: argparse.ArgumentParser, arguments: argparse.Namespace, others: list[str]
) -> None:
    """Exit with an error if the other two parts cannot be run with these arguments."""
    if others:
        parser.error(f"unknown: {' '.join(others)}")
    if arguments.path_pred is None:
        parser.error(f"{arguments.run} needs --path_pred")
    if arguments.run == "generate_output_seg" and arguments.filelist is None:
        parser.error(f"{arguments.run} needs --path_pred and --filelist")


def _find_label_set(arguments: argparse.Namespace) -> LabelSet:
    return SCANNET200 if arguments.scannet200 else SCANNET20


def _print_similar_command(arguments: argparse.Namespace, label_set: LabelSet) -> None:
    """Print the command of scannet-prep that does nearly the same."""
    if arguments.run == "calc_iou":
        command = ["evaluate"]
    else:
        command = ["submit", "-o", "submission.zip"]
    command += [str(arguments.path_pred), "--gt", str(arguments.path_in.parent / "processed")]
    command += ["--label-set", label_set.name.lower()]
    print(f"much like: scannet-prep {shlex.join(command)}", file=sys.stderr)


def _print_error(message: str, hint: str) -> None:
    print(f"error: {message}", file=sys.stderr)
    if hint:
        print(f"hint: {hint}", file=sys.stderr)


def process(arguments: argparse.Namespace, others: list[str]) -> int:
    """Process the raw scenes, then export them for OctFormer.

    Args:
        arguments: The options of OctFormer's script.
        others: Options of `scannet-prep process`.

    Returns:
        The exit status.
    """
    label_set = _find_label_set(arguments)
    out_dir = arguments.path_out
    processed_dir = out_dir / "processed"
    if out_dir.name == "scanet200.npz":
        print(
            "OctFormer's configuration reads data/scannet200.npz, with two n: rename the folder",
            file=sys.stderr,
        )
    labels = ["--scannet200"] if arguments.scannet200 else ["--labels-from", "ply"]
    frame = ["--align-axis"] if arguments.align_axis else []
    status = _run(
        *("process", str(arguments.path_in), "-o", str(processed_dir)), *labels, *frame, *others
    )
    # After status 3, some scenes have failed, and the others can be exported.
    if status not in (0, 3) or "--dry-run" in others:
        return status
    export_status = _run(
        *("export", str(processed_dir), "--format", "octformer", "-o", str(out_dir)),
        *("--label-set", label_set.name.lower()),
        "--aligned" if arguments.align_axis else "--unaligned",
    )
    return export_status or status


def generate_output_seg(arguments: argparse.Namespace, label_set: LabelSet) -> None:
    """Turn scores into raw ids.

    Reads `<scene>.eval.npz` with the array `prob`, (V, K + 1), and writes `<scene>.txt` with one
    raw id per vertex. A scene may be divided into parts, `<scene>.chunk_<number>.eval.npz`, whose
    scores are added up; `<part>.mask.npy`, bool (V,), selects the vertices of a part.
    """
    raw_ids = np.array([0, *label_set.ids])
    names = _read_names(arguments.filelist)
    make_directory(arguments.path_out)
    # Scores of each scene that is divided into parts, (V, K + 1).
    totals: dict[str, NDArray[np.float64]] = {}
    for name in names:
        scores = load_scores(arguments.path_pred / f"{name}.eval.npz", len(label_set))
        scene_id = name
        if "chunk" in name:
            scene_id = name.rpartition(".chunk_")[0] or name[:-_CHUNK_SUFFIX_LENGTH]
            mask_path = arguments.path_in / f"{name}.mask.npy"
            mask = load_arrays(mask_path)[""].astype(bool)
            total = totals.setdefault(scene_id, np.zeros((len(mask), len(raw_ids))))
            if mask.shape != total.shape[:1] or np.count_nonzero(mask) != len(scores):
                raise FileError(
                    mask_path,
                    f"has {np.count_nonzero(mask):,} of {len(mask):,} vertices, "
                    f"expected {len(scores):,} of {len(total):,}",
                )
            total[mask] += scores
            scores = total
        lines = encode_lines(raw_ids[scores.argmax(axis=1)])
        write_atomically(arguments.path_out / f"{scene_id}.txt", [lines])
    print(f"{len(names)} predictions: raw ids in {arguments.path_out}")


def _read_names(path: Path) -> list[str]:
    """Read the names in a list of `<name>.npz`, one per line."""
    lines = read_file(path).decode("utf-8", "replace").splitlines()
    names = [line.split()[0][:-4] for line in lines if line.strip()]
    if not names:
        raise FileError(path, "names no scene")
    return names


def calc_iou(truth_dir: Path, prediction_dir: Path, label_set: LabelSet) -> None:
    """Print the IoU of raw ids, `<scene>.txt`, against those of the same name in another folder."""
    paths = sorted(prediction_dir.glob("scene*.txt"))
    if not paths:
        raise MissingFileError(
            prediction_dir, "holds no <scene>.txt", "make them: --run generate_output_seg"
        )
    scores = SemanticScores(label_set)
    accuracies = []
    for path in paths:
        truth_path = truth_dir / path.name
        truth = label_set.train_ids_from_raw_ids(_read_raw_ids(truth_path), -1)
        prediction = label_set.train_ids_from_raw_ids(_read_raw_ids(path), -1)
        try:
            scores.add(prediction, truth)
        except ContentError as error:
            raise FileError(path, f"{error.message} ({truth_path})") from None
        is_labeled = truth >= 0
        accuracy = 0.0
        if is_labeled.any():
            accuracy = np.mean(prediction[is_labeled] == truth[is_labeled])
        accuracies.append(accuracy)

    result = scores.result()
    for name, values in result.classes.items():
        iou = values["iou"]
        print(f"{name:<24}{0.0 if iou is None else iou:8.4f}")
    mean_iou = result.means["all"]["over_all"] or 0.0
    print(f"{'mean IoU':<24}{mean_iou:8.4f}   (over all {len(label_set)} classes)")
    print(f"{'accuracy':<24}{np.mean(accuracies):8.4f}   (mean over {len(paths)} scenes)")
    missing = set(official_scenes(Split.VAL)) - {path.stem for path in paths}
    if missing:
        print(f"note: {len(missing)} of the scenes of val have no prediction here", file=sys.stderr)


def _read_raw_ids(path: Path) -> NDArray[np.int64]:
    """Read one raw id per line."""
    try:
        return parse_lines(read_file(path))
    except ContentError as error:
        raise FileError(path, error.message) from None


def _run(*words: str) -> int:
    """Print and run a command of scannet-prep, and return its exit status."""
    print(f"this is: scannet-prep {shlex.join(words)}", file=sys.stderr)
    return run_command(words)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
