"""Export formats: two functions for each program. Foreign names occur only in this package.

processed scene       --in_frame, export_<format>--> files, record
records of all scenes --share_<format>--> lists
"""

from __future__ import annotations

from importlib import import_module
from typing import Any, NamedTuple

EXPORT_NAME = "export.json"


class Format(NamedTuple):
    """The layout that another program reads.

    Attributes:
        module: The module of its functions. `export_<format>` makes the files of one scene;
            `share_<format>`, if there is one, makes the files that concern all scenes.
        choices: What a user can choose: the label set, if the format has only one; the frame.
        aligned_with: The label set with which the program aligns points, or an empty text if it
            never does; None if it takes any frame.
        needs: What the format needs and test scenes lack; `COMPUTED_SEGMENTS` if it can be computed
            for them. Empty if the format takes test scenes as they are.
    """

    module: str
    choices: tuple[str, ...] = ()
    aligned_with: str | None = None
    needs: str = ""


COMPUTED_SEGMENTS = "segments, unless they are processed with --compute-segments"
_BOTH = ("label set", "frame")
# Modules are named here so that the names are known without importing NumPy.
FORMATS = {
    "octformer": Format(
        "octformer",
        _BOTH,
        aligned_with="ScanNet200",
    ),
    "pointcept": Format(
        "pointcept",
        ("frame",),
        aligned_with="",
    ),
    "mask3d": Format(
        "mask3d",
        _BOTH,
        aligned_with="",
        needs=COMPUTED_SEGMENTS,
    ),
    "mmdet3d": Format(
        "mmdet3d",
        ("frame",),
        aligned_with="",
    ),
    "oneformer3d": Format(
        "mmdet3d",
        _BOTH,
        aligned_with="",
        needs=COMPUTED_SEGMENTS,
    ),
    "pointgroup": Format(
        "pointgroup",
        _BOTH,
        aligned_with="ScanNet200",
    ),
    "spformer": Format(
        "pointgroup",
        _BOTH,
        aligned_with="ScanNet200",
        needs=COMPUTED_SEGMENTS,
    ),
    "votenet": Format(
        "detection",
        needs="annotation",
    ),
    "scanrefer": Format("detection"),
    "benchmark-gt": Format(
        "benchmark_gt",
        ("label set",),
        needs="annotation",
    ),
    "ply": Format("ply", _BOTH),
}


def find_function(verb: str, name: str) -> Any:  # noqa: ANN401 - see `Format.module`
    """Find a function of a format, such as `export_ply`; by default, one that makes no files."""
    module = import_module(f"{__name__}.{FORMATS[name].module}")
    return getattr(module, f"{verb}_{name.replace('-', '_')}", lambda *_: {})
