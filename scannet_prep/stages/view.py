"""Processed scenes in, pages, pictures and coloured meshes out.

Everything is read and checked before anything is written: scenes, predictions, and whether all of it can be shown so.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from shlex import quote
from typing import Literal, TypeAlias

from scannet_prep.archive.source import Place
from scannet_prep.base.errors import (
    FileError,
    MissingFileError,
    ProcessedFileError,
    UnknownSceneError,
    UsageError,
)
from scannet_prep.base.failures import list_some
from scannet_prep.base.files import Buffer, check_is_folder, make_directory, write_atomically
from scannet_prep.base.progress import Progress
from scannet_prep.export.ply import encode_ply
from scannet_prep.place import ProcessedPlace, open_place
from scannet_prep.predictions.reader import Predictions, Task, find_prediction_files
from scannet_prep.processed.npz import again_hint
from scannet_prep.processed.scene import check_meta, find_problems, parse_processed
from scannet_prep.release.label_map import MAX_NYU40_ID, MAX_SCANNET_ID
from scannet_prep.release.label_sets import SCANNET200, LabelSet
from scannet_prep.release.scene import SceneId
from scannet_prep.stages.selection import Selection, parse_scene_ids
from scannet_prep.tree import is_archive
from scannet_prep.view.coloring import Prediction, ViewedScene, view_scene
from scannet_prep.view.png import encode_png
from scannet_prep.view.renderer import PictureOptions, render_scene

DEFAULT_SOURCE = Path("data/processed")
Kind: TypeAlias = Literal["html", "png", "ply"]
KINDS: tuple[Kind, ...] = ("html", "png", "ply")


@dataclass(frozen=True, slots=True)
class Viewing:
    """Scenes that are to be shown, unread, and how they are coloured.

    Attributes:
        place: Where the scenes are.
        scene_ids: Which of them.
        predictions: Of all of these; None where nothing is predicted.
        color: What was asked for; empty for the prediction, the labels, or the colours of the scan, whichever there is.
        label_set: Whose labels are meant by `labels`.
    """

    place: ProcessedPlace
    scene_ids: tuple[str, ...]
    predictions: Predictions | None
    color: str
    label_set: LabelSet

    def load(self, name: str, *, only: str | None = None) -> ViewedScene:
        """Read one of the scenes and its prediction, and check them; `only` is the one colouring to make.

        Raises:
            FileError: One is damaged, has values that none has, or they do not fit each other.
        """
        path = self.place.file_path(name)
        scene = parse_processed(self.place.read(name), path)
        check_meta(scene.meta, path, name, self.place.entries[name].split, self.place.options)
        for problem in find_problems(scene):
            raise ProcessedFileError(path, problem, again_hint(path))
        prediction = (
            None
            if self.predictions is None
            else _read_prediction(self.predictions, name, len(scene.points))
        )
        return view_scene(scene, prediction=prediction, only=only)

    def color_of(self, scene: ViewedScene) -> str:
        """The colouring that was asked for, or the one that says most of what the scene has."""
        labels = self.label_set.name.lower()
        if self.color:
            return labels if self.color == "labels" else self.color
        return next(name for name in ("prediction", labels, "rgb") if name in scene.colorings)


@dataclass(frozen=True, slots=True)
class ViewReport:
    """What `run` did.

    Attributes:
        kind: `html`: one page of all scenes; `png` or `ply`: a file for each.
        colors: The colouring of each scene; of a page, the one that it begins with.
        files: Size in bytes of each file that was written.
    """

    kind: Kind
    colors: Mapping[str, str] = field(hash=False)
    files: Mapping[str, int] = field(hash=False)


def open_scenes(
    words: Sequence[str],
    source: Place,
    *,
    takes_all: bool = False,
    pred_dir: Path | None = None,
    task: Task = "semantic",
    color: str = "",
    label_set: LabelSet | None = None,
    certificates: bool | Path = True,
) -> Viewing:
    """Find the scenes that are to be shown, and their predictions; none is read.

    Args:
        words: Scene ids, and `@FILE` with one id a line; empty for all that there are, or that have a prediction.
        source: A processed folder or an archive.
        takes_all: Whether all may be more than one.
        pred_dir: Folder with predictions of the scenes, in the forms that `evaluate` takes.
        task: What is predicted.
        color: One of `COLORINGS`, or `labels`; what there is by default.
        label_set: Of the labels, and of the prediction; None for the one that the scenes were processed with.
        certificates: Of addresses, whom to trust, as `RangeSource` takes it.

    Raises:
        UsageError: It is not clear which scene is meant, or an error is to be shown without a prediction.
        UnknownSceneError: A scene is not there.
        FileError: The source cannot be used, or predictions are missing.
        TransferError: An archive is on a web server, which does not give it.
    """
    if pred_dir is None and color in {"prediction", "error"}:
        raise UsageError(
            f"without a prediction, there is no colouring by {color}",
            "name the folder of the predictions: --pred DIR",
        )
    for word in (source, *words):
        _check_is_no_scene_file(word)
    place = open_place([source], certificates=certificates)
    if not place.entries:
        raise FileError(
            place.name, "holds no scenes", f"to see why: scannet-prep verify {quote(place.name)}"
        )
    label_set = label_set or place.options.label_set
    paths = None if pred_dir is None else find_prediction_files(pred_dir, task)
    names = [name for name in place.entries if paths is None or name in paths]
    if words:
        names = [*_choose_scenes(words, place)]
    elif len(names) > 1 and not takes_all:
        raise UsageError(
            f"{place.name}: holds {len(names):,} scenes; which of them?",
            _show_commands(place, names[0]),
        )
    predictions = None
    if pred_dir is not None and paths is not None:
        missing = sorted(set(names or place.entries) - paths.keys())
        if missing:
            told = f"{len(missing):,} of {max(len(names), len(missing)):,} scenes: {list_some(missing)}"
            raise MissingFileError(
                pred_dir,
                f"has no predictions of {told}",
                f"to view one that is there: scannet-prep view {min(paths)} --pred {quote(str(pred_dir))}",
            )
        predictions = Predictions(task, label_set, (), paths, (), ())
    return Viewing(place, tuple(names), predictions, color, label_set)


def _check_is_no_scene_file(place: Place) -> None:
    """Refuse the `.npz` of a scene where a scene id, a folder or an archive is expected."""
    path = Path(str(place))
    if not (path.suffix == ".npz" and SceneId.is_valid(path.stem)):
        return
    folder = path.absolute().parents[1] if len(path.parents) < 2 else path.parents[1]
    raise UsageError(
        f"{place} is the file of a scene, expected a scene id",
        _view_command(str(folder), path.stem),
    )


def _choose_scenes(words: Sequence[str], place: ProcessedPlace) -> list[SceneId]:
    """Find the scenes that were named; words are scene ids, and `@FILE` with one id a line.

    Raises:
        UnknownSceneError: A word is not a scene id, or the scene is not there.
        UsageError: A word is a place that holds scenes.
    """
    example = next(iter(place.entries))
    for word in words:
        if (
            not word.startswith("@")
            and not SceneId.is_valid(word)
            and (Path(word).is_dir() or is_archive(word))
        ):
            raise UsageError(f"{word} is not a scene id, but a place", _view_command(word, "SCENE"))
    selection = Selection(scene_ids=parse_scene_ids(words))
    names = list(selection.scene_ids or ())
    for name in names:
        if name in place.failures:
            failure = place.failures[name]
            raise UnknownSceneError(
                f"{place.name}: {name} failed in processing: {failure.message}", failure.hint
            )
    held = {name: str(entry.split) for name, entry in place.entries.items()}
    selection.check_found(place.name, held, _show_commands(place, example))
    return names


def _show_commands(place: ProcessedPlace, example: str) -> str:
    """Return the hint for a scene that is not named, or not there."""
    command = _view_command(place.name, example)
    return f"for example: {command}; to list the scenes: scannet-prep info {quote(place.name)} --scenes"


def _view_command(source: str, scene_id: str) -> str:
    """Return a command that shows a scene of a place."""
    option = "" if Path(source) == DEFAULT_SOURCE else f" --source {quote(source)}"
    return f"scannet-prep view {scene_id}{option}"


def run(
    viewing: Viewing,
    output: Path | None = None,
    kind: Kind | None = None,
    options: PictureOptions | None = None,
    *,
    progress: Progress | None = None,
) -> ViewReport:
    """Read and check all scenes and predictions, then write.

    Args:
        viewing: What is shown.
        output: A file, whose ending says what it is; else a folder; by default the current one.
        kind: What is written; by default what the ending of the output says, else `html`.
        options: How pictures look.
        progress: Told of every scene.

    Raises:
        UsageError: The ending is another one, several scenes are to go into one picture, or options of pictures are
            given for something else; or a scene cannot be coloured so.
        FileError: A scene or a prediction is damaged, has values that none has, or they do not fit each other.
        OutputError: A file cannot be written.
    """
    kind, paths = _choose_paths(viewing.scene_ids, output, kind)
    if options is not None and kind != "png":
        raise UsageError(
            f"a view and a size are for pictures, but a .{kind} file is to be written",
            "pass --png, or leave out --view and --size",
        )
    progress, colors, sizes = progress or Progress(), dict[str, str](), dict[str, int]()
    with progress.work("check", len(paths), "scenes"):
        for name in paths:
            scene = viewing.load(name)
            colors[name] = scene.coloring(viewing.color_of(scene)).name
            progress.advance()
    for path in set(paths.values()):
        make_directory(path.parent)
    with progress.work("write", len(set(paths.values())), "files"):
        for path, content in _encode(viewing, kind, paths, colors, options):
            sizes[str(path)] = sum(map(len, content))
            write_atomically(path, content)
            progress.advance()
    return ViewReport(kind, colors, sizes)


def _choose_paths(
    names: Sequence[str], output: Path | None, kind: Kind | None
) -> tuple[Kind, dict[str, Path]]:
    """What is written, and the file of each scene; for a page, the one of all."""
    ending = next(
        (item for item in KINDS if output is not None and output.suffix == f".{item}"), None
    )
    if (
        output is not None
        and output.suffix
        and not output.is_dir()
        and ending not in ((kind,) if kind else KINDS)
    ):
        expected = f".{kind}" if kind else ".html, .png or .ply"
        raise UsageError(
            f"{output} does not end in {expected}",
            "name a file that ends so, or a folder that exists: -o OUT",
        )
    kind = kind or ending or "html"
    if output is not None and ending:
        if kind != "html" and len(names) > 1:
            problem = f"{output} is one file, but {len(names):,} scenes are to be shown"
            raise UsageError(problem, f"name a folder for the .{kind} files: -o DIR")
        paths = dict.fromkeys(names, output)
    else:
        stems = {name: "scenes" if kind == "html" and len(names) > 1 else name for name in names}
        paths = {name: (output or Path()) / f"{stem}.{kind}" for name, stem in stems.items()}
    for path in set(paths.values()):
        check_is_folder(path.parent)
    return kind, paths


def _encode(
    viewing: Viewing,
    kind: Kind,
    paths: Mapping[str, Path],
    colors: Mapping[str, str],
    options: PictureOptions | None,
) -> Iterator[tuple[Path, list[Buffer]]]:
    """Give the files and their content, one at a time."""
    if kind == "html":
        from scannet_prep.view.page import make_page

        scenes = (viewing.load(name) for name in paths)
        yield next(iter(paths.values())), [make_page(scenes, color=next(iter(colors.values())))]
        return
    for name, path in paths.items():
        scene = viewing.load(name, only=colors[name])
        if kind == "png":
            yield path, [encode_png(render_scene(scene, colors[name], options))]
        else:
            comment = f"{scene.scene_id}, coloured by {colors[name]}"
            yield (
                path,
                encode_ply(
                    comment, scene.points, scene.colorings[colors[name]].colors, scene.faces
                ),
            )


def _read_prediction(predictions: Predictions, name: str, vertex_count: int) -> Prediction:
    """Read a prediction; ids that nothing has are an error. Raw ids of other classes are shown as unlabeled."""
    predictions.unknown_ids.clear()
    found, path, label_set = (
        predictions.read(name, vertex_count),
        predictions.paths[name],
        predictions.label_set,
    )
    max_raw_id = MAX_NYU40_ID if label_set.raw_ids_key == "nyu40_ids" else MAX_SCANNET_ID
    known = range(max_raw_id + 1) if path.suffix == ".txt" else range(-1, len(label_set))
    if unknown := [str(number) for number in predictions.unknown_ids if number not in known]:
        problem = f"has ids that {label_set.name} does not have, expected {known[0]}..{known[-1]}: "
        other = "scannet20" if label_set == SCANNET200 else "scannet200"
        hint = (
            f"pass --labels {other} if that is predicted; subtract 1 if train ids count from 1; "
            "raw ids are in .txt, train ids in arrays"
        )
        raise FileError(path, problem + list_some(unknown), hint)
    return Prediction(label_set, found)
