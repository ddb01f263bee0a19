"""Show scenes, labels and predictions: as a page, a picture, or a mesh.

Writes processed scenes with their labels and predictions as one page for a browser, which needs
neither network nor server; as pictures; or as coloured meshes for MeshLab and other programs. Needs
no display.

The ending of -o determines the form: .html, .png or .ply. Surfaces are not drawn from behind, so
the inside of a room is visible through its nearer walls. Scenes that were processed with --faces
are drawn as triangles, others as points.

With predictions, "error" shows right and wrong classes, or instances as evaluate counts them at an
IoU of 0.5: matched, wrong class, missed, false positive, merged, split. A second --pred adds
"prediction-2", "error-2" and "difference"; a page then shows both predictions side by side.

examples:
  scannet-prep view scene0011_00
  scannet-prep view scene0011_00 scene0015_00 -o val.html
  scannet-prep view scene0011_00 --pred predictions --beside labels
  scannet-prep view scene0011_00 --pred old --pred new
  scannet-prep view scene0011_00 --view top -o scene.png
  scannet-prep view @ids.txt --png -o out
  scannet-prep view scene0011_00 --color rgb -o scene.ply
  scannet-prep view --serve --source data/scannet.tar.zst
"""

from __future__ import annotations

import argparse
import re
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

from scannet_prep.base.disk import format_bytes
from scannet_prep.base.errors import UsageError
from scannet_prep.cli import arguments as shared
from scannet_prep.cli.benchmark_arguments import add_labels_argument
from scannet_prep.cli.console import Console, format_count

if TYPE_CHECKING:
    from scannet_prep.stages.view import Viewing, ViewReport
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
_MAX_PREDICTIONS = 2
# Beside the first one.
_MAX_PANES = 2
_TASKS = ("semantic", "instance")
_DEFAULT_SIZE = (800, 600)
_DEFAULT_PORT = 8808
_SIZE = re.compile(r"(\d{1,5})x(\d{1,5})")


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
    add_labels_argument(
        content, "label set of the labels and of the predictions (default: that of PLACE)"
    )
    content.add_argument(
        "--beside",
        action="append",
        choices=_COLORS,
        default=[],
        metavar="COLOR",
        help="also show the scene in these colours, beside the first ones and from the same side; "
        "repeatable (default: with two predictions, the second one)",
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
    content.add_argument(
        "--task",
        choices=_TASKS,
        default=_TASKS[0],
        help=f"task of the predictions (default: {_TASKS[0]})",
    )

    pictures = parser.add_argument_group("pictures")
    pictures.add_argument(
        "--view",
        metavar="VIEW",
        help="orbit, top, or azimuth and elevation in degrees: --view=-60,40 (default: orbit)",
    )
    pictures.add_argument(
        "--size", type=_size_argument, metavar="WxH", help="size in pixels (default: 800x600)"
    )
    shared.add_trust_arguments(parser.add_argument_group("server, for addresses"))


def run(arguments: argparse.Namespace, console: Console) -> int:
    """Run the command."""
    from scannet_prep.stages import view

    options = _picture_options(arguments)
    _check_counts(arguments)
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
        label_set=arguments.labels,
        certificates=shared.certificates_from(arguments, console),
    )
    if arguments.serve is not None:
        if options or arguments.output:
            raise UsageError(
                "--serve writes no file, but -o, --view and --size are for files",
                "leave out --serve, or -o, --view and --size",
            )
        return _serve(viewing, arguments.serve, console)
    report = view.run(viewing, arguments.output, arguments.export, options, progress=console)
    text = _describe(viewing, report)
    return console.result(text, report, status=0, label_set=viewing.label_set.name)


def _check_counts(arguments: argparse.Namespace) -> None:
    """Check how often arguments are repeated.

    Raises:
        UsageError: There are more predictions or panes than a page shows.
    """
    if len(arguments.pred) > _MAX_PREDICTIONS:
        raise UsageError(
            f"{len(arguments.pred)} predictions are given, but at most two can be compared",
            "name two folders: --pred A --pred B",
        )
    if len(arguments.beside) > _MAX_PANES:
        raise UsageError(
            f"{len(arguments.beside)} colourings are to be shown beside the first one, "
            "expected at most two",
            "repeat --beside at most twice",
        )


def _picture_options(arguments: argparse.Namespace) -> PictureOptions | None:
    """Return the options of pictures; None if none are given."""
    from scannet_prep.view.camera import Camera
    from scannet_prep.view.renderer import PictureOptions

    if not (arguments.view or arguments.size):
        return None
    width, height = arguments.size or _DEFAULT_SIZE
    return PictureOptions(width, height, Camera.parse(arguments.view or "orbit"))


def _serve(viewing: Viewing, port: int, console: Console) -> int:
    """Serve scenes until the user presses Ctrl-C, which is the normal end."""
    import socket

    from scannet_prep.stages.serve import SceneServer

    server = SceneServer(viewing, port)
    scenes = format_count(len(viewing.scene_ids), "scene")
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
        console.result(text, value, status=0)
        server.serve_forever()
    return 0


def _describe(viewing: Viewing, report: ViewReport) -> str:
    """Describe the files that were written."""
    scenes = format_count(len(report.colors), "scene")
    colors = ", ".join(dict.fromkeys(report.colors.values()))
    label_set = viewing.label_set.name
    lines = [f"{viewing.place.name}: {scenes}, {label_set}, coloured by {colors}"]
    lines += [f"{path}: {format_bytes(size)}" for path, size in report.files.items()]
    return "\n".join(lines)


def _size_argument(text: str) -> tuple[int, int]:
    """Parse a size such as `1600x1200`."""
    match = _SIZE.fullmatch(text)
    if match is None:
        raise argparse.ArgumentTypeError(f"{text!r} is not a size in pixels, such as 1600x1200")
    return int(match[1]), int(match[2])


def _port_argument(text: str) -> int:
    """Parse a port."""
    is_number = text.isascii() and text.isdigit()
    if not is_number or int(text) >= 1 << 16:
        raise argparse.ArgumentTypeError(
            f"{text!r} is not a port: expected a number below 65536, or 0 for any free port"
        )
    return int(text)
