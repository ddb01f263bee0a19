"""Show scenes, labels and predictions: as a page, a picture, or a mesh.

Writes processed scenes with their labels and predictions as one page for a
browser, which needs neither network nor server; as pictures; or as coloured
meshes for MeshLab and other programs. Needs no display.

The ending of -o determines the form: .html, .png or .ply. Surfaces are not
drawn from behind, so the inside of a room is visible through its nearer walls.
Scenes that were processed with --faces are drawn as triangles, others as
points.

--serve lists all scenes in a browser, with search, filters and an order. With
--pred, the order may be the mIoU or the AP of each scene, the worst first.

With predictions, "error" shows right and wrong classes, or instances as
evaluate counts them at an IoU of 0.5: matched, wrong class, missed, false
positive, merged, split. A second --pred adds "prediction-2", "error-2" and
"difference"; a page then shows both predictions side by side.

examples:
  scannet-prep view scene0011_00
  scannet-prep view scene0011_00 scene0015_00 -o out
  scannet-prep view scene0011_00 --pred predictions --beside labels
  scannet-prep view scene0011_00 --pred old --pred new
  scannet-prep view scene0011_00 --view top -o scene.png
  scannet-prep view scene0011_00 --width 2000 -o figure.png
  scannet-prep view @ids.txt --png -o out
  scannet-prep view scene0011_00 --color rgb -o scene.ply
  scannet-prep view --serve --source data/scannet.tar.zst
  scannet-prep view --serve --pred predictions
"""

from __future__ import annotations

import argparse
import re
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

from scannet_prep.base.text import count_of, format_bytes
from scannet_prep.cli import arguments as shared
from scannet_prep.cli.console import Console
from scannet_prep.cli.outcome import Outcome
from scannet_prep.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from scannet_prep.stages.view import ViewReport
    from scannet_prep.stages.viewing import Viewing
    from scannet_prep.view.categories import Color
    from scannet_prep.view.renderer import PictureOptions

_COLORS = (
    "labels",
    "rgb",
    "scannet20",
    "scannet200",
    "instances",
    "segments",
    "normals",
    "prediction",
    "error",
    "prediction-2",
    "error-2",
    "difference",
)
_DEFAULT_PORT = 8808
_MAX_PREDICTIONS = 2
_DEFAULT_SIZE = (800, 600)
_SIZE = re.compile(r"(\d{1,5})x(\d{1,5})")
_TRANSPARENT = "transparent"
_NAMED_BACKGROUNDS: Mapping[str, Color | str] = {
    "white": (255, 255, 255),
    "black": (0, 0, 0),
    _TRANSPARENT: _TRANSPARENT,
}
_HEX_COLOR = re.compile("#[0-9a-fA-F]{6}")
_LEGENDS = ("right", "none")
_PICTURE_OPTIONS = "--view, --size, --width, --legend, --background and --hide"


def add_arguments(parser: shared.CommandParser) -> None:
    """Add the arguments of the command."""
    parser.add_argument(
        "scenes",
        nargs="*",
        metavar="SCENE",
        help="scene id, or @FILE with one id per line; optional if PLACE holds a single scene",
    )
    parser.add_argument(
        "--source",
        type=shared.place_argument,
        default=Path("data/processed"),
        metavar="PLACE",
        help="processed folder, or an archive: path or address (default: data/processed)",
    )
    parser.add_argument(
        "-o",
        "--output",
        type=shared.path_argument,
        metavar="OUT",
        help="file that ends in .html, .png or .ply, or a folder "
        "(default: SCENE.html in the current folder)",
    )
    form = parser.add_mutually_exclusive_group()
    form.add_argument(
        "--export",
        choices=("html", "png", "ply"),
        help="form of the files, if -o is not a file",
    )
    form.add_argument(
        "--png",
        action="store_const",
        const="png",
        dest="export",
        help="write a picture of each scene; the same as --export png",
    )
    form.add_argument(
        "--serve",
        nargs="?",
        const=_DEFAULT_PORT,
        type=_port_argument,
        metavar="PORT",
        help="serve the named scenes, or all scenes of PLACE, to browsers on this machine "
        f"(default port: {_DEFAULT_PORT})",
    )

    content = parser.add_argument_group("content")
    content.add_argument(
        "--color",
        choices=_COLORS,
        default="",
        metavar="COLOR",
        help=f"{', '.join(_COLORS)} "
        "(default: the first that a scene has of prediction, labels and rgb)",
    )
    content.add_argument(
        "--beside",
        choices=_COLORS,
        default="",
        metavar="COLOR",
        help="also show the scene in these colours, beside the first ones and from the same side "
        "(default: with two predictions, the second one)",
    )
    content.add_argument(
        "--pred",
        action="append",
        type=shared.path_argument,
        default=[],
        metavar="DIR",
        help="folder with one prediction per scene, in the forms that evaluate reads; "
        "twice to compare two predictions",
    )
    shared.add_task_arguments(content, "PLACE")

    pictures = parser.add_argument_group("pictures")
    pictures.add_argument(
        "--view",
        metavar="VIEW",
        help="orbit, top, or azimuth and elevation in degrees: --view=-60,40 (default: orbit)",
    )
    size = pictures.add_mutually_exclusive_group()
    size.add_argument(
        "--size", type=_size_argument, metavar="WxH", help="size in pixels (default: 800x600)"
    )
    size.add_argument(
        "--width",
        type=_width_argument,
        metavar="W",
        help="width in pixels; the height is three quarters of it",
    )
    pictures.add_argument(
        "--legend",
        choices=_LEGENDS,
        help="where to list the classes in the picture (default: right)",
    )
    pictures.add_argument(
        "--background",
        type=_background_argument,
        metavar="COLOR",
        help="white, black, transparent, or #rrggbb in quotes (default: white)",
    )
    pictures.add_argument(
        "--hide",
        nargs="+",
        default=(),
        metavar="CLASS",
        help="hide these classes, in any colouring; in quotes if the name has blanks",
    )


def run(arguments: argparse.Namespace, console: Console) -> Outcome | None:
    """Run the command."""
    from scannet_prep.stages import view

    options = _picture_options(arguments)
    if len(arguments.pred) > _MAX_PREDICTIONS:
        raise UsageError(
            f"{len(arguments.pred)} predictions are given, but at most two can be compared",
            "name two folders: --pred A --pred B",
        )
    folders: list[Path] = arguments.pred
    pred_dir, second_dir, *_ = [*folders, None, None]
    viewing = view.open_scenes(
        arguments.scenes,
        arguments.source,
        takes_all=arguments.serve is not None,
        pred_dir=pred_dir,
        second_dir=second_dir,
        task=arguments.task,
        color=arguments.color,
        beside=arguments.beside,
        label_set=arguments.label_set,
    )
    if arguments.serve is not None:
        if options or arguments.output:
            raise UsageError(
                f"--serve writes no file, but -o, {_PICTURE_OPTIONS} are for files",
                f"leave out --serve, or -o, {_PICTURE_OPTIONS}",
            )
        _serve(viewing, arguments.serve, console)
        return None
    report = view.run(viewing, arguments.output, arguments.export, options, progress=console)
    lines = _describe(viewing, report)
    return Outcome(report, lines, more={"label_set": viewing.label_set.name})


def _picture_options(arguments: argparse.Namespace) -> PictureOptions | None:
    """Return the options of pictures; None if none are given."""
    from scannet_prep.view.camera import Camera
    from scannet_prep.view.renderer import BACKGROUNDS, PictureOptions, choose_samples
    from scannet_prep.view.visibility import Visibility

    is_given = (
        arguments.view, arguments.size, arguments.width, arguments.legend, arguments.background,
        arguments.hide,
    )  # fmt: skip
    if not any(is_given):
        return None
    width, height = arguments.size or _DEFAULT_SIZE
    if arguments.width:
        width = arguments.width
        height = round(width * _DEFAULT_SIZE[1] / _DEFAULT_SIZE[0])
    background = arguments.background or BACKGROUNDS["light"][0]
    return PictureOptions(
        width,
        height,
        Camera.parse(arguments.view or "orbit"),
        has_legend=arguments.legend != "none",
        samples=choose_samples(width, height),
        background=None if background == _TRANSPARENT else background,
        visibility=Visibility(hidden=tuple(arguments.hide)),
        has_edges=True,
    )


def _serve(viewing: Viewing, port: int, console: Console) -> None:
    """Serve scenes until the user presses Ctrl-C, which is the normal end."""
    import socket

    from scannet_prep.stages.serve import SceneServer

    server = SceneServer(viewing, port)
    scenes = count_of(len(viewing.scene_ids), "scene")
    ssh = f"ssh -L {server.server_port}:127.0.0.1:{server.server_port} {socket.gethostname()}"
    text = f"""\
{scenes} of {viewing.place.name}, {viewing.label_set.name}; stop with Ctrl-C
open in a browser: {server.url}
if the browser is on another machine, first type there:
  {ssh}"""
    value = {
        "url": server.url,
        "port": server.server_port,
        "scenes": viewing.scene_ids,
        "ssh": ssh,
    }
    with server, suppress(KeyboardInterrupt):
        console.show(Outcome(value, [text]))
        server.serve_forever()


def _describe(viewing: Viewing, report: ViewReport) -> list[str]:
    """Describe the files that were written."""
    scenes = count_of(len(report.colors), "scene")
    colors = ", ".join(dict.fromkeys(report.colors.values()))
    label_set = viewing.label_set.name
    lines = [f"{viewing.place.name}: {scenes}, {label_set}, coloured by {colors}"]
    lines += [f"{path}: {format_bytes(size)}" for path, size in report.files.items()]
    return lines


def _size_argument(text: str) -> tuple[int, int]:
    """Parse a size such as `1600x1200`."""
    match = _SIZE.fullmatch(text)
    if match is None:
        raise argparse.ArgumentTypeError(f"{text!r} is not a size in pixels, such as 1600x1200")
    return int(match[1]), int(match[2])


def _width_argument(text: str) -> int:
    """Parse a width in pixels."""
    is_number = text.isascii() and text.isdigit()
    if not is_number or not 0 < int(text) < 100_000:
        raise argparse.ArgumentTypeError(f"{text!r} is not a width in pixels, such as 2000")
    return int(text)


def _background_argument(text: str) -> Color | str:
    """Parse the colour of a background; `transparent` remains a word."""
    if text in _NAMED_BACKGROUNDS:
        return _NAMED_BACKGROUNDS[text]
    if not _HEX_COLOR.fullmatch(text):
        known = ", ".join(_NAMED_BACKGROUNDS)
        raise argparse.ArgumentTypeError(
            f"{text!r} is not a background, expected {known}, or a colour such as '#f0f0f0'"
        )
    red, green, blue = bytes.fromhex(text[1:])
    return red, green, blue


def _port_argument(text: str) -> int:
    """Parse a port."""
    is_number = text.isascii() and text.isdigit()
    if not is_number or int(text) >= 1 << 16:
        raise argparse.ArgumentTypeError(
            f"{text!r} is not a port: expected a number below 65536, or 0 for any free port"
        )
    return int(text)
