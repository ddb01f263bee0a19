"""Show processed scenes as pages, pictures and coloured meshes.

The journey of a scene into a page, a picture or a mesh:

    open_scenes  find scenes and predictions by name (`viewing.py`)
    run          choose the output files
                 --> Viewing.load: read, check, add the prediction
                 --> view/: choose the colours, encode
                 --> a temporary file
                 after the last scene: give all files their final names

If a scene is damaged or cannot be shown, no file is written.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal, TypeAlias

from scannet_prep.base.files import (
    Buffer,
    check_is_folder,
    make_directory,
    put_in_place,
    write_temporary,
)
from scannet_prep.base.progress import Progress
from scannet_prep.errors import UsageError
from scannet_prep.export.ply import encode_ply
from scannet_prep.stages.viewing import Viewing, open_scenes
from scannet_prep.view.coloring import ViewedScene
from scannet_prep.view.png import encode_png
from scannet_prep.view.renderer import PictureOptions, choose_samples, render_scene

__all__ = ["KINDS", "Kind", "ViewReport", "open_scenes", "run"]

Kind: TypeAlias = Literal["html", "png", "ply"]
KINDS: tuple[Kind, ...] = ("html", "png", "ply")
_DEFAULT_PICTURE = PictureOptions(800, 600, samples=choose_samples(800, 600), has_edges=True)


@dataclass(frozen=True, slots=True)
class ViewReport:
    """The result of `run`.

    Attributes:
        kind: `html`, `png` or `ply`: a file for each scene.
        colors: The colouring of each scene.
        files: Size in bytes of each file that was written.
    """

    kind: Kind
    colors: Mapping[str, str] = field(hash=False)
    files: Mapping[str, int] = field(hash=False)


def run(
    viewing: Viewing,
    output: Path | None = None,
    kind: Kind | None = None,
    options: PictureOptions | None = None,
    *,
    progress: Progress | None = None,
) -> ViewReport:
    """Read, check and encode all scenes; then write all files, or none.

    Args:
        viewing: The scenes.
        output: A file, whose ending determines its kind, or a folder; by default the current
            folder.
        kind: The kind of the files; by default that of the ending of the output, otherwise `html`.
        options: Options of pictures.
        progress: Advanced by each scene.

    Raises:
        UsageError: The ending contradicts the kind, several scenes are to go into one file,
            options of pictures are given for other files, several panes are to go into another
            file than a page, or a scene has no such colouring.
        FileError: A scene or a prediction is damaged, has invalid values, or they do not match.
        OutputError: A file cannot be written.
    """
    kind, paths = _choose_paths(viewing.scene_ids, output, kind)
    if options is not None and kind != "png":
        raise UsageError(
            f"a view and a size are for pictures, but a .{kind} file is to be written",
            "pass --png, or leave out the options of pictures",
        )
    if viewing.beside and kind != "html":
        raise UsageError(
            f"only pages have several panes, but a .{kind} file is to be written",
            "leave out --beside, and write a file for each --color",
        )
    progress = progress or Progress()
    colors: dict[str, str] = {}
    sizes: dict[str, int] = {}
    temporaries: dict[Path, Path] = {}
    # All files are written to the same folder.
    folder = next(iter(paths.values())).parent
    # From the innermost to the outermost.
    new_folders = [path for path in (folder, *folder.parents) if not path.exists()]
    try:
        with progress.work("view", len(paths), "scenes"):
            scenes = _load_scenes(viewing, colors, progress)
            for scene in scenes:
                path = paths[scene.scene_id]
                content = _encode(viewing, scene, kind, options)
                make_directory(folder)
                temporaries[path] = write_temporary(path, content)
                sizes[str(path)] = sum(map(len, content))
        for path, temporary in temporaries.items():
            put_in_place(temporary, path)
    finally:
        for temporary in temporaries.values():
            temporary.unlink(missing_ok=True)
        for path in new_folders:
            # Only empty folders are removed, so a folder with written files stays.
            with suppress(OSError):
                path.rmdir()
    return ViewReport(kind, colors, sizes)


def _choose_paths(
    scene_ids: Sequence[str], output: Path | None, kind: Kind | None
) -> tuple[Kind, dict[str, Path]]:
    """Choose the kind of the files and the file of each scene.

    Raises:
        UsageError: See `run`.
        OutputError: The folder is a file.
    """
    ending = None
    if output is not None:
        ending = next((known for known in KINDS if output.suffix == f".{known}"), None)
        _check_ending(output, ending, kind)
    kind = kind or ending or "html"

    if output is not None and ending is not None:
        if len(scene_ids) > 1:
            raise UsageError(
                f"{output} is one file, but {len(scene_ids):,} scenes are to be shown",
                f"name a folder for the .{kind} files: -o DIR",
            )
        paths = dict.fromkeys(scene_ids, output)
    else:
        folder = output or Path()
        paths = {scene_id: folder / f"{scene_id}.{kind}" for scene_id in scene_ids}
    for path in set(paths.values()):
        check_is_folder(path.parent)
    return kind, paths


def _check_ending(output: Path, ending: Kind | None, kind: Kind | None) -> None:
    """Check that the output is a folder, or a file with the ending of its kind.

    Raises:
        UsageError: The output has another ending.
    """
    if not output.suffix or output.is_dir():
        return
    if ending is not None and kind in (None, ending):
        return
    expected = ".html, .png or .ply"
    if kind is not None:
        expected = f".{kind}"
    raise UsageError(
        f"{output} does not end in {expected}",
        "name a file with this ending, or an existing folder: -o OUT",
    )


def _load_scenes(
    viewing: Viewing, colors: dict[str, str], progress: Progress
) -> Iterator[ViewedScene]:
    """Load the scenes one after the other, and add the colouring of each to `colors`.

    Raises:
        UsageError: A scene does not have the requested colouring.
    """
    for scene_id in viewing.scene_ids:
        scene = viewing.load(scene_id)
        color = viewing.choose_color(scene)
        for name in (color, viewing.choose_beside(scene)):
            if name:
                scene.check_coloring(name)
        colors[scene_id] = color
        yield scene
        progress.advance()


def _encode(
    viewing: Viewing, scene: ViewedScene, kind: Kind, options: PictureOptions | None
) -> list[Buffer]:
    """Encode the file of a scene."""
    color = viewing.choose_color(scene)
    if kind == "html":
        from scannet_prep.view.page import make_scene_page

        return [make_scene_page(scene, color=color, beside=viewing.choose_beside(scene))]
    if kind == "png":
        return [encode_png(render_scene(scene, color, options or _DEFAULT_PICTURE))]
    comment = f"{scene.scene_id}, coloured by {color}"
    return encode_ply(comment, scene.points, scene.coloring(color).colors, scene.faces)
