"""Processed scenes in, pages, pictures and coloured meshes out.

Everything is read and checked before anything is written: scenes, predictions, and whether all of it can be shown so.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal, TypeAlias

import numpy as np

from scannet_prep.archive.source import Place
from scannet_prep.errors import MissingFileError, PredictionError, ProcessedFileError, UnknownSceneError, UsageError
from scannet_prep.export.ply import encode_ply
from scannet_prep.failures import list_some
from scannet_prep.files import Buffer, check_is_folder, make_directory, write_atomically
from scannet_prep.labels import MAX_NYU40_ID, MAX_SCANNET_ID, SCANNET20, LabelSet
from scannet_prep.place import ProcessedPlace, open_place
from scannet_prep.processed.scene import find_problems, parse_processed, read_processed
from scannet_prep.progress import Progress
from scannet_prep.stages.predictions import Predictions, Task, find_prediction_files
from scannet_prep.stages.selection import Selection, parse_scene_ids
from scannet_prep.view.coloring import Prediction, ViewedScene, view_scene
from scannet_prep.view.png import encode_png
from scannet_prep.view.renderer import PictureOptions, find_below, render_scene

Kind: TypeAlias = Literal["html", "png", "ply"]
KINDS: tuple[Kind, ...] = ("html", "png", "ply")
_SCENE_SUFFIX = ".npz"
_OTHER_ENDING = re.compile(r"\.[A-Za-z]{2,4}")
_HINT = "process the scene again: scannet-prep process --checksum, with the same options"


@dataclass(frozen=True, slots=True)
class ViewPlan:
    """What `run` is going to show; making it touches nothing.

    Attributes:
        kind: `html`: one page of all scenes; `png` or `ply`: a file for each.
        scenes: Where each scene is, by id: its file, or the place that holds it.
        predictions: Of all scenes; None where nothing is predicted.
        color: What was asked for; empty for the prediction, the labels, or the colours of the scan, whichever there is.
        label_set: Whose labels are meant by `labels`.
        options: How pictures look; of pages and meshes, what they have of it.
        paths: The file of each scene, by id; that of all, for a page.
    """

    kind: Kind
    scenes: Mapping[str, Path | ProcessedPlace] = field(hash=False)
    predictions: Predictions | None
    color: str
    label_set: LabelSet
    options: PictureOptions
    paths: Mapping[str, Path] = field(hash=False)


@dataclass(frozen=True, slots=True)
class ViewReport:
    """What `run` did.

    Attributes:
        kind: As planned.
        colors: The colouring of each scene; of a page, the one that it begins with.
        files: Size in bytes of each file that was written.
    """

    kind: Kind
    colors: Mapping[str, str] = field(hash=False)
    files: Mapping[str, int] = field(hash=False)


def plan(
    words: Sequence[str],
    source: Place,
    output: Path | None = None,
    kind: Kind | None = None,
    *,
    pred_dir: Path | None = None,
    task: Task = "semantic",
    color: str = "",
    label_set: LabelSet = SCANNET20,
    options: PictureOptions | None = None,
    certificates: bool | Path = True,
) -> ViewPlan:
    """Decide what to show; no scene is read.

    Args:
        words: Scene ids, `@FILE` with one id a line, and `.npz` files of processed scenes; may be empty where the
            source holds one scene.
        source: Where scenes are that are named by their id: a processed folder or an archive.
        output: A file, whose ending says what it is; else a folder; by default the current one.
        kind: `html`, `png` or `ply`; by default what the ending of the output says, else `html`.
        pred_dir: Folder with predictions of the scenes, in the forms that `evaluate` takes.
        task: What is predicted.
        color: One of `COLORINGS`, or `labels`; what there is by default.
        label_set: Of the labels, and of the prediction.
        options: How pictures look.
        certificates: Of addresses, whom to trust, as `RangeSource` takes it.

    Raises:
        UsageError: No scene is named, one is named twice, or several are to go into one picture.
        UnknownSceneError: A scene is not there.
        FileError: The source cannot be used, or predictions are missing.
        OutputError: The output lies in something that is not a folder.
        TransferError: An archive is on a web server, which does not give it.
    """
    ending = next((item for item in KINDS if output is not None and output.suffix == f".{item}"), None)
    if output is not None and not ending and _OTHER_ENDING.fullmatch(output.suffix) and not output.is_dir():
        raise UsageError(f"{output} does not end in .html, .png or .ply", "name such a file, or a folder that is there")
    if kind and ending and kind != ending:
        raise UsageError(f"{output} does not end in .{kind}", f"name a .{kind} file, or a folder")
    kind = kind or ending or "html"
    if not words and str(source).endswith(_SCENE_SUFFIX):
        words = [str(source)]
    files = [Path(word).expanduser() for word in words if word.endswith(_SCENE_SUFFIX)]
    ids = [word for word in words if not word.endswith(_SCENE_SUFFIX)]
    scenes: dict[str, Path | ProcessedPlace] = {path.stem: path for path in files}
    place = open_place([source], certificates=certificates) if ids or not files else None
    names = find_scenes(ids, place) if place else ()
    if len({*scenes, *names}) < len(files) + len(names):
        raise UsageError("a scene is named twice", "name each scene by its id or by its file")
    scenes |= {name: place for name in names if place}
    predictions = None
    if pred_dir is None and color in {"prediction", "error"}:
        raise UsageError(f"without a prediction, there is no colouring by {color}", "add --pred DIR")
    if pred_dir is not None:
        predictions = Predictions(task, label_set, (), find_prediction_files(pred_dir, task), (), ())
        if missing := sorted(scenes.keys() - predictions.paths.keys()):
            problem = f"has no predictions of {len(missing):,} of {len(scenes):,} scenes: {list_some(missing)}"
            raise MissingFileError(pred_dir, problem, "show scenes that have one")
    paths = _choose_paths(kind, list(scenes), output, is_file=ending is not None)
    return ViewPlan(kind, scenes, predictions, color, label_set, options or PictureOptions(), paths)


def run(plan: ViewPlan, *, progress: Progress | None = None) -> ViewReport:
    """Read and check all scenes and predictions, then write.

    Raises:
        FileError: A scene or a prediction is damaged, has values that none has, or they do not fit each other.
        UsageError: A scene cannot be coloured so, or nothing of it is left.
        OutputError: A file cannot be written.
    """
    progress, colors, sizes = progress or Progress(), dict[str, str](), dict[str, int]()
    with progress.work("check", len(plan.scenes), "scenes"):
        for name in plan.scenes:
            scene = load_scene(plan, name)
            colors[name] = scene.coloring(choose_color(plan, scene)).name
            find_below(scene.points, plan.options.ceiling)
            progress.advance()
    for path in set(plan.paths.values()):
        make_directory(path.parent)
    with progress.work("write", len(set(plan.paths.values())), "files"):
        for path, content in _encode(plan, colors):
            sizes[str(path)] = sum(map(len, content))
            write_atomically(path, content)
            progress.advance()
    return ViewReport(plan.kind, colors, sizes)


def _encode(plan: ViewPlan, colors: Mapping[str, str]) -> Iterator[tuple[Path, list[Buffer]]]:
    """Give the files and their content, one at a time."""
    if plan.kind == "html":
        from scannet_prep.view.page import make_page

        scenes = (load_scene(plan, name) for name in plan.scenes)
        yield next(iter(plan.paths.values())), [make_page(scenes, color=next(iter(colors.values())))]
        return
    for name in plan.scenes:
        scene = load_scene(plan, name, only=colors[name])
        if plan.kind == "png":
            content: list[Buffer] = [encode_png(render_scene(scene, colors[name], plan.options))]
        else:
            content = _encode_mesh(scene, colors[name], plan.options.ceiling)
        yield plan.paths[name], content


def _encode_mesh(scene: ViewedScene, name: str, ceiling: float | None) -> list[Buffer]:
    """Encode what is below the ceiling, and the triangles all of whose vertices are."""
    shown, faces = find_below(scene.points, ceiling), scene.faces
    if faces is not None:
        faces = (np.cumsum(shown, dtype=np.int32) - 1)[faces[shown[faces].all(axis=1)]]
    comment = f"{scene.scene_id}, coloured by {name}"
    return encode_ply(comment, scene.points[shown], scene.colorings[name].colors[shown], faces)


def load_scene(plan: ViewPlan, name: str, *, only: str | None = None) -> ViewedScene:
    """Read one of the scenes and its prediction, and check them.

    Args:
        plan: Of the scenes.
        name: Which of them.
        only: The one colouring to make; all by default.

    Raises:
        FileError: One is damaged, has values that none has, or they do not fit each other.
    """
    home = plan.scenes[name]
    path = home if isinstance(home, Path) else home.file_path(name)
    scene = read_processed(home) if isinstance(home, Path) else parse_processed(home.read(name), path)
    if scene.meta.scene_id != name and not isinstance(home, Path):
        raise ProcessedFileError(path, f"holds {scene.meta.scene_id}, expected {name}", _HINT)
    for problem in find_problems(scene):
        raise ProcessedFileError(path, problem, _HINT)
    prediction = None
    if plan.predictions is not None:
        prediction = _read_prediction(plan.predictions, name, len(scene.points))
    return view_scene(scene, prediction=prediction, only=only)


def _read_prediction(predictions: Predictions, name: str, vertex_count: int) -> Prediction:
    """Read a prediction; ids that nothing has are an error. Raw ids of other classes are shown as unlabeled."""
    predictions.unknown_ids.clear()
    found, path, label_set = predictions.read(name, vertex_count), predictions.paths[name], predictions.label_set
    max_raw_id = MAX_NYU40_ID if label_set.raw_ids_key == "nyu40_ids" else MAX_SCANNET_ID
    known = range(max_raw_id + 1) if path.suffix == ".txt" else range(-1, len(label_set))
    if unknown := [str(number) for number in predictions.unknown_ids if number not in known]:
        problem = f"has ids that {label_set.name} does not have, expected {known[0]}..{known[-1]}: {list_some(unknown)}"
        hint = "--labels says which label set is predicted; raw ids are in .txt, train ids in arrays"
        raise PredictionError(path, problem, hint)
    return Prediction(label_set, found)


def choose_color(plan: ViewPlan, scene: ViewedScene) -> str:
    """The colouring that was asked for, or the one that says most of what the scene has."""
    labels = plan.label_set.name.lower()
    if plan.color:
        return labels if plan.color == "labels" else plan.color
    return next(name for name in ("prediction", labels, "rgb") if name in scene.colorings)


def find_scenes(words: Sequence[str], place: ProcessedPlace) -> Sequence[str]:
    """The scenes that are named, which are there; or the only one."""
    if not words:
        if len(place.entries) != 1:
            hint = f"name some, such as {next(iter(place.entries), 'scene0000_00')}"
            raise UsageError(f"{place.name}: holds {len(place.entries):,} scenes; which of them?", hint)
        return list(place.entries)
    names = parse_scene_ids(words)
    held = {name: str(entry.split) for name, entry in place.entries.items()}
    for name in names:
        if name in place.failures:
            raise UnknownSceneError(f"{name} failed in processing: {place.failures[name]}", "mend it, process again")
    hint = f"scannet-prep info {place.name} tells what is there"
    Selection(scene_ids=names).check_found(place.name, held, hint)
    return names


def _choose_paths(kind: Kind, names: Sequence[str], output: Path | None, *, is_file: bool) -> dict[str, Path]:
    """The file of each scene; for a page, the one of all."""
    if output is not None and is_file:
        if kind != "html" and len(names) > 1:
            problem = f"{output} is one file, but {len(names):,} scenes are to be shown"
            raise UsageError(problem, f"name a folder: --export {kind} -o DIR")
        paths = dict.fromkeys(names, output)
    else:
        stems = {name: "scenes" if kind == "html" and len(names) > 1 else name for name in names}
        paths = {name: (output or Path()) / f"{stem}.{kind}" for name, stem in stems.items()}
    for path in set(paths.values()):
        check_is_folder(path.parent)
    return paths
