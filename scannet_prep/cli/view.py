"""Show scenes, labels and predictions: as a page, a picture, or a mesh.

Writes each scene with its labels and predictions as a page for a browser, which
needs neither network nor server; as a picture; or as a coloured mesh for
MeshLab, Blender and other programs. Needs no display.

The ending of -o determines the form: .html, .png or .ply. Surfaces are not
drawn from behind, so the inside of a room is visible through its nearer walls.
Scenes that were processed with --faces are drawn as triangles, others as
points.

With predictions, "error" shows right and wrong classes, or instances as
evaluate counts them at an IoU of 0.5: matched, wrong class, missed, false
positive, merged, split. With a second --pred, a page shows both side by side.

--serve lists all scenes in a browser, sorted by name; if SCENE is given, only
those scenes, in the given order.

examples:
  scannet-prep view scene0011_00
  scannet-prep view scene0011_00 --pred predictions
  scannet-prep view scene0011_00 --pred predictions --beside labels
  scannet-prep view scene0011_00 --pred old --pred new
  scannet-prep view scene0011_00 --pred predictions --color error -o errors.png
  scannet-prep view scene0011_00 --view top --hide ceiling -o scene.png
  scannet-prep view scene0011_00 --color rgb -o scene.ply
  scannet-prep view @ids.txt --png -o pictures
  scannet-prep view --serve --source data/scannet.tar.zst
  scannet-prep view @worst.txt --serve --pred predictions
"""

from __future__ import annotations

import argparse
from contextlib import suppress
from typing import TYPE_CHECKING

from scannet_prep.base.text import count_of, format_bytes
from scannet_prep.cli import arguments as shared
from scannet_prep.cli.console import Console, Outcome
from scannet_prep.errors import UsageError

if TYPE_CHECKING:
    from scannet_prep.stages.view import Viewing, ViewReport
    from scannet_prep.view.picture import PictureOptions

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
)
_DEFAULT_PORT = 8808


def add_arguments(parser: shared.CommandParser) -> None:
    """Add the arguments of the command."""
    parser.add_argument(
        "scenes",
        nargs="*",
        metavar="SCENE",
        help="scene id, or @FILE with one id per line; optional if PLACE holds a single scene",
    )
    shared.add_path_argument(
        parser,
        "--source",
        metavar="PLACE",
        default="data/processed",
        text="processed folder, or an archive: path or address",
    )
    parser.add_argument(
        "--pred",
        action="append",
        type=shared.path_argument,
        default=[],
        metavar="DIR",
        help="folder with one prediction per scene, in the forms that evaluate reads; "
        "twice to compare two predictions",
    )
    shared.add_task_arguments(parser)
    shared.add_output_path(
        parser,
        "OUT",
        "file that ends in .html, .png or .ply, or a folder "
        "(default: SCENE.html in the current folder)",
    )
    parser.add_argument(
        "--color",
        choices=_COLORS,
        default="",
        metavar="COLOR",
        help=f"{', '.join(_COLORS)} "
        "(default: the first that a scene has of prediction, labels and rgb)",
    )
    parser.add_argument(
        "--beside",
        choices=_COLORS,
        default="",
        metavar="COLOR",
        help="also show these colours, in a second picture of the page "
        "(default: with two predictions, the second one)",
    )
    parser.add_argument(
        "--serve",
        nargs="?",
        const=_DEFAULT_PORT,
        type=int,
        metavar="PORT",
        help="serve the named scenes, or all scenes of PLACE, to browsers on this machine "
        f"(default port: {_DEFAULT_PORT})",
    )

    pictures = parser.add_argument_group("pictures")
    pictures.add_argument("--png", action="store_true", help="write pictures, if -o is a folder")
    pictures.add_argument(
        "--view",
        metavar="VIEW",
        help="orbit, top, or azimuth and elevation in degrees: --view=-60,40 (default: orbit)",
    )
    pictures.add_argument(
        "--size", type=shared.size_argument, metavar="WxH", help="size in pixels (default: 800x600)"
    )
    pictures.add_argument(
        "--hide",
        nargs="+",
        action="extend",
        default=[],
        metavar="CLASS",
        help="leave out these classes, in any colouring; in quotes if the name has blanks",
    )
    pictures.add_argument(
        "--no-legend", action="store_true", help="leave out the title and the list of classes"
    )


def run(arguments: argparse.Namespace, console: Console) -> Outcome | None:
    """Run the command."""
    from scannet_prep.stages import view

    options = _picture_options(arguments)
    viewing = view.open_scenes(
        arguments.scenes,
        arguments.source,
        takes_all=arguments.serve is not None,
        pred_dirs=arguments.pred,
        task=arguments.task,
        color=arguments.color,
        beside=arguments.beside,
        label_set=arguments.label_set,
        is_forced=arguments.force,
        warn=console.warn,
    )
    if arguments.serve is not None:
        if options or arguments.output or arguments.png:
            raise UsageError(
                "--serve writes no file, but -o and the options of pictures are for files",
                "leave out --serve, or these options",
            )
        _serve(viewing, arguments.serve, console)
        return None
    report = view.run(viewing, arguments.output, options, is_png=arguments.png, progress=console)
    lines = _describe(viewing, report)
    return Outcome(report, lines)


def _picture_options(arguments: argparse.Namespace) -> PictureOptions | None:
    """Return the options of pictures; None if none are given."""
    from scannet_prep.view.picture import PictureOptions, View

    options = PictureOptions(
        view=View.parse(arguments.view or "orbit"),
        size=arguments.size or PictureOptions().size,
        hidden=tuple(arguments.hide),
        has_legend=not arguments.no_legend,
    )
    is_given = arguments.view or arguments.size or arguments.hide or arguments.no_legend
    return options if is_given else None


def _serve(viewing: Viewing, port: int, console: Console) -> None:
    """Serve scenes until the user presses Ctrl-C, which is the normal end."""
    import socket

    from scannet_prep.stages.view import serve

    server = serve(viewing, port)
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
