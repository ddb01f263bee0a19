"""Look at scenes, labels and predictions: a page, a picture, or a mesh.

Shows processed scenes, their labels and predictions: as one page for a browser, which needs neither network nor server;
as pictures; or as coloured meshes for MeshLab and other programs. Needs no display.

The ending of -o says which: .html, .png or .ply. Surfaces are not drawn from behind, so that one looks into a room
through its nearer walls. Triangles are there where process --faces kept them.

examples:
  scannet-prep view scene0011_00
  scannet-prep view scene0011_00 scene0015_00 -o val.html
  scannet-prep view scene0011_00 --pred predictions
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

_COLORS = (
    "labels", "rgb", "scannet20", "scannet200", "instances", "segments", "normals", "prediction", "error",
)  # fmt: skip
_SIZE = re.compile(r"(\d{1,5})x(\d{1,5})")
_VIEWS = "orbit, top, or azimuth and elevation in degrees: --view=-60,40 (default: orbit)"


def add_arguments(parser: shared.CommandParser) -> None:
    """Add the arguments of the command."""
    what = "scene id, or @FILE with one id per line; optional if PLACE holds a single scene"
    parser.add_argument("scenes", nargs="*", metavar="SCENE", help=what)
    what, default = (
        "processed folder, or an archive: path or address (default: data/processed)",
        Path("data/processed"),
    )
    parser.add_argument(
        "--source", type=shared.place_argument, default=default, metavar="PLACE", help=what
    )
    what = "file that ends in .html, .png or .ply, or a folder (default: SCENE.html in the current one)"
    parser.add_argument("-o", "--output", type=shared.path_argument, metavar="OUT", help=what)
    form = parser.add_mutually_exclusive_group()
    form.add_argument(
        "--export", choices=("html", "png", "ply"), help="what to write, where -o does not say it"
    )
    what = "write a picture of each scene: --export png"
    form.add_argument("--png", action="store_const", const="png", dest="export", help=what)
    what = "serve all scenes of PLACE, or those named, to browsers on this machine; the port is 8808 by default"
    form.add_argument(
        "--serve", nargs="?", const=8808, type=_port_argument, metavar="PORT", help=what
    )
    shown = parser.add_argument_group("what is shown")
    what = f"{', '.join(_COLORS)} (default: the prediction, the labels, or rgb: the first that there is)"
    shown.add_argument("--color", choices=_COLORS, default="", metavar="COLOR", help=what)
    add_labels_argument(
        shown, "label set of the labels, and of the prediction (default: that of PLACE)"
    )
    what = "folder with one prediction a scene, in the forms that evaluate takes"
    shown.add_argument("--pred", type=shared.path_argument, metavar="DIR", help=what)
    tasks = ("semantic", "instance")
    shown.add_argument(
        "--task", choices=tasks, default=tasks[0], help=f"what is predicted (default: {tasks[0]})"
    )
    pictures = parser.add_argument_group("pictures")
    pictures.add_argument("--view", metavar="VIEW", help=_VIEWS)
    pictures.add_argument(
        "--size", type=_size_argument, metavar="WxH", help="pixels (default: 800x600)"
    )
    shared.add_trust_arguments(parser.add_argument_group("server, for addresses"))


def run(arguments: argparse.Namespace, console: Console) -> int:
    """Run the command."""
    from scannet_prep.stages import view
    from scannet_prep.view.camera import Camera
    from scannet_prep.view.renderer import PictureOptions

    options = None
    if arguments.view or arguments.size:
        width, height = arguments.size or (800, 600)
        options = PictureOptions(width, height, Camera.parse(arguments.view or "orbit"))
    viewing = view.open_scenes(
        arguments.scenes,
        arguments.source,
        takes_all=arguments.serve is not None,
        pred_dir=arguments.pred,
        task=arguments.task,
        color=arguments.color,
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
    return console.result(_describe(viewing, report), report, 0, label_set=viewing.label_set.name)


def _serve(viewing: Viewing, port: int, console: Console) -> int:
    """Serve until somebody interrupts it, which is how it is to end."""
    import socket

    from scannet_prep.stages.serve import SceneServer

    server = SceneServer(viewing, port)
    ssh = f"ssh -L {server.server_port}:127.0.0.1:{server.server_port} {socket.gethostname()}"
    text = f"""\
{format_count(len(viewing.scene_ids), "scene")} of {viewing.place.name}, {viewing.label_set.name}; Ctrl-C ends it
open in a browser: {server.url}
if that is on another machine, first type there:
  {ssh}"""
    value = {"url": server.url, "port": server.server_port, "scenes": viewing.scene_ids, "ssh": ssh}
    with server, suppress(KeyboardInterrupt):
        console.result(text, value, 0)
        server.serve_forever()
    return 0


def _describe(viewing: Viewing, report: ViewReport) -> str:
    colors = ", ".join(dict.fromkeys(report.colors.values()))
    scenes = format_count(len(report.colors), "scene")
    lines = [f"{viewing.place.name}: {scenes}, {viewing.label_set.name}, coloured by {colors}"]
    lines += [f"{path}: {format_bytes(size)}" for path, size in report.files.items()]
    return "\n".join(lines)


def _size_argument(text: str) -> tuple[int, int]:
    if (match := _SIZE.fullmatch(text)) is None:
        raise argparse.ArgumentTypeError(f"{text!r} is not a size in pixels, such as 1600x1200")
    return int(match[1]), int(match[2])


def _port_argument(text: str) -> int:
    if not (text.isascii() and text.isdigit() and int(text) < 1 << 16):
        raise argparse.ArgumentTypeError(
            f"{text!r} is not a port: a number below 65536, or 0 for any that is free"
        )
    return int(text)
