"""Show processed scenes as pages, pictures and coloured meshes.

The journey of a scene into a file, or to a browser:

    open_scenes  find scenes and predictions by name; nothing is read
    load         read and check a scene and its predictions, and choose their colours
    run          --> a file for each scene: page, picture or mesh
    serve        --> a server, which makes each page when it is requested
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, TypeAlias

from scannet_prep.base.files import write_atomically
from scannet_prep.base.images import encode_png
from scannet_prep.base.ply import encode_ply
from scannet_prep.base.progress import Progress
from scannet_prep.errors import FileError, UsageError
from scannet_prep.predictions.ids import IdCounts
from scannet_prep.predictions.numberings import Task
from scannet_prep.predictions.reader import Predictions, find_predictions
from scannet_prep.processed.scene import ProcessedScene
from scannet_prep.release.label_sets import LabelSet, parse_label_set
from scannet_prep.release.scenes import Split
from scannet_prep.source.place import ProcessedScenes, open_processed
from scannet_prep.stages.selection import Selection, parse_scene_ids
from scannet_prep.view.coloring import ViewedScene, view_scene
from scannet_prep.view.page import make_scene_page
from scannet_prep.view.picture import THUMBNAIL, PictureOptions, draw_scene
from scannet_prep.view.predictions import Prediction, Truth, color_predictions
from scannet_prep.view.server import SceneServer

Kind: TypeAlias = Literal["html", "png", "ply"]

_HINT_SCENES = "name some of the scenes, before the options; info PLACE --table scenes lists them"


@dataclass(frozen=True, slots=True)
class Viewing:
    """The scenes to show, which are not read yet, and their colouring.

    Attributes:
        place: The place that holds the scenes.
        scene_ids: The scenes to show.
        predictions: One or two folders of predictions for all of these; empty to show none.
        label_set: The label set that the colouring `labels` stands for.
        color: The colouring; if empty, that of `ViewedScene.choose`.
        beside: The colouring of a second picture on a page. If it is empty and the first prediction
            is shown, this is that of the second prediction.
        is_forced: Whether predicted ids that look wrong are accepted, with a warning.
        warn: Called with the text of each warning.
    """

    place: ProcessedScenes
    scene_ids: tuple[str, ...]
    predictions: tuple[Predictions, ...]
    label_set: LabelSet
    color: str
    beside: str
    is_forced: bool
    warn: Callable[[str], object]

    def load(self, scene_id: str) -> ViewedScene:
        """Read one of the scenes and its predictions, and check them.

        Raises:
            FileError: The scene or a prediction is damaged, or they do not match.
        """
        scene = self.place.read(scene_id)
        viewed = view_scene(scene)
        if self.predictions:
            truth = None
            if scene.meta.split != Split.TEST:
                truth = Truth.of(scene, self.label_set)
            read = [self._read_prediction(each, scene) for each in self.predictions]
            viewed.colorings.update(color_predictions(read, truth))
        return viewed

    def choose_colors(self, scene: ViewedScene) -> tuple[str, str]:
        """Choose the colouring of a scene, and that of the picture beside it; empty for none.

        Raises:
            UsageError: The scene does not have a requested colouring.
        """
        color = scene.choose(self.color, self.label_set)
        if self.beside:
            return color, scene.choose(self.beside, self.label_set)
        second = f"{color}-2"
        return color, second if second in scene.colorings else ""

    def _read_prediction(self, predictions: Predictions, scene: ProcessedScene) -> Prediction:
        """Read a prediction of a scene, with unknown ids as unlabeled.

        Raises:
            FileError: The prediction is damaged, or its ids look wrong. In a scene with ground
                truth, they are compared with it.
        """
        scene_id = str(scene.meta.scene_id)
        counts = IdCounts(predictions)
        values = counts.read(scene_id, len(scene.points), scene)
        path = predictions.paths[scene_id]
        warning = counts.check(path, is_forced=self.is_forced)
        if warning:
            self.warn(f"warning: {path}: {warning}")
        return Prediction(self.label_set, values, str(predictions.folder))


@dataclass(frozen=True, slots=True)
class ViewReport:
    """The result of `run`.

    Attributes:
        kind: `html`, `png` or `ply`.
        colors: The colouring of each scene; a page shows it first.
        files: Size in bytes of each file that was written.
    """

    kind: Kind
    colors: Mapping[str, str]
    files: Mapping[str, int]


def open_scenes(
    words: Sequence[str],
    source: str | Path,
    *,
    takes_all: bool = False,
    pred_dirs: Sequence[Path] = (),
    task: Task = "semantic",
    color: str = "",
    beside: str = "",
    label_set: LabelSet | str | None = None,
    is_forced: bool = False,
    warn: Callable[[str], object] = lambda _: None,
) -> Viewing:
    """Find the scenes to show and their predictions, without reading them.

    Args:
        words: Scene ids, and `@FILE` with one id per line; empty for all scenes, or for all that
            have a prediction, in the order of their names.
        source: A processed folder or an archive.
        takes_all: Whether several scenes are shown if no words are given.
        pred_dirs: At most two folders with predictions, in the forms that `evaluate` reads.
        task: The task of the predictions.
        color: The name of a colouring, or `labels`; empty for the default of each scene.
        beside: The colouring of a second picture, like `color`.
        label_set: The label set of labels and predictions; None for the one that the scenes were
            processed with.
        is_forced: Accept predicted ids that look wrong; see `IdCounts.check`.
        warn: Called with the text of each warning about these ids.

    Raises:
        UsageError: Several scenes are possible, or there are more than two predictions, or none
            for the task.
        UnknownSceneError: A word is not a scene id, or the place does not have the scene.
        FileError: The place cannot be used, or predictions are missing.
        TransferError: An archive on a web server cannot be read.
    """
    if len(pred_dirs) > 2:
        raise UsageError(
            f"{len(pred_dirs)} predictions are given, but at most two can be compared",
            "name two folders: --pred A --pred B",
        )
    if task == "instance" and not pred_dirs:
        raise UsageError("a task is given, but no predictions", "name their folder: --pred DIR")
    place = open_processed(source)
    if not place.scenes:
        raise FileError(place.name, "holds no scenes")
    label_set = parse_label_set(label_set or place.options.label_set)
    predictions = [find_predictions(each, task, label_set, place.scenes) for each in pred_dirs]
    scene_ids = parse_scene_ids(words)
    if words:
        Selection(scene_ids=scene_ids).find(place.name, place.scenes, _HINT_SCENES)
    else:
        predicted = [
            each for each in place.scenes if all(each in found.paths for found in predictions)
        ]
        # If none has a prediction, all are missing.
        scene_ids = tuple(predicted or place.scenes)
    for found in predictions:
        found.check_scenes(scene_ids, "name scenes that have one")
    if len(scene_ids) > 1 and not takes_all and not words:
        raise UsageError(
            f"{place.name}: {len(scene_ids):,} scenes can be shown, but none is named", _HINT_SCENES
        )
    return Viewing(place, scene_ids, tuple(predictions), label_set, color, beside, is_forced, warn)


def run(
    viewing: Viewing,
    output: Path | None = None,
    options: PictureOptions | None = None,
    *,
    is_png: bool = False,
    progress: Progress = Progress(),
) -> ViewReport:
    """Read, check and encode the scenes, and write a file for each.

    Args:
        viewing: The scenes.
        output: A file, whose ending determines its kind, or a folder; by default the current
            folder.
        options: Options of pictures.
        is_png: Whether the files of a folder are pictures; pages by default.
        progress: Advanced by each scene.

    Raises:
        UsageError: The ending is of no kind or of another one, several scenes are to go into one
            file, options do not fit the kind, or a scene has no such colouring.
        FileError: A scene or a prediction is damaged, or they do not match.
        OutputError: A file cannot be written.
    """
    kind, paths = _choose_paths(viewing.scene_ids, output, is_png=is_png)
    if options is not None and kind != "png":
        raise UsageError(
            f"a view, a size and hidden classes are for pictures, not for a .{kind} file",
            "write a picture: -o scene.png",
        )
    if viewing.beside and kind != "html":
        raise UsageError(
            f"only a page shows two colourings, not a .{kind} file",
            "leave out --beside, and write a file for each --color",
        )
    colors: dict[str, str] = {}
    sizes: dict[str, int] = {}
    with progress.work("view", len(paths), "scenes"):
        for scene_id, path in paths.items():
            scene = viewing.load(scene_id)
            color, beside = viewing.choose_colors(scene)
            content: list[Any]
            if kind == "html":
                content = [make_scene_page(scene, color=color, beside=beside)]
            elif kind == "png":
                content = [encode_png(draw_scene(scene, color, options))]
            else:
                comment = (
                    f"{scene_id}, coloured by {color}; derived from ScanNet, under its terms of use"
                )
                vertex_colors = scene.colorings[color].colors
                content = encode_ply(comment, scene.points, vertex_colors, scene.faces)
            write_atomically(path, content)
            colors[scene_id] = color
            sizes[str(path)] = path.stat().st_size
            progress.advance()
    return ViewReport(kind, colors, sizes)


def serve(viewing: Viewing, port: int) -> SceneServer:
    """Make a server of scenes; see `SceneServer`.

    Raises:
        UsageError: The port cannot be used.
    """

    def make_page(scene_id: str) -> bytes:
        scene = viewing.load(scene_id)
        color, beside = viewing.choose_colors(scene)
        return make_scene_page(scene, color=color, beside=beside, is_served=True)

    def make_picture(scene_id: str) -> bytes:
        scene = viewing.load(scene_id)
        color, _ = viewing.choose_colors(scene)
        return encode_png(draw_scene(scene, color, THUMBNAIL))

    return SceneServer(viewing.place.name, viewing.scene_ids, make_page, make_picture, port)


def _choose_paths(
    scene_ids: Sequence[str], output: Path | None, *, is_png: bool
) -> tuple[Kind, dict[str, Path]]:
    """Choose the kind of the files, and the file of each scene.

    Raises:
        UsageError: See `run`.
    """
    path = output or Path()
    if not path.suffix or path.is_dir():
        kind: Kind = "png" if is_png else "html"
        return kind, {scene_id: path / f"{scene_id}.{kind}" for scene_id in scene_ids}
    kinds: tuple[Kind, ...] = ("png",) if is_png else ("html", "png", "ply")
    for kind in kinds:
        if path.suffix == f".{kind}" and len(scene_ids) == 1:
            return kind, {scene_ids[0]: path}
    if len(scene_ids) > 1:
        problem = f"{path} is one file, but {len(scene_ids):,} scenes are to be shown"
        raise UsageError(problem, "name a folder for the files: -o DIR")
    endings = " or ".join(f".{kind}" for kind in kinds)
    raise UsageError(
        f"{path} does not end in {endings}",
        "name a file with this ending, or an existing folder: -o OUT",
    )
