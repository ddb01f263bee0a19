"""Checks of the large files of the release, zip files and sensor streams.

No processed scene is made from these files.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from scannet_prep.raw.sensor_stream import check_sensor_stream
from scannet_prep.raw.zip_file import check_zip
from scannet_prep.release.files import Content

LARGE_FILE_CHECKS: dict[Content, Callable[[Path, Callable[[int], None]], None]] = {
    "zip": check_zip,
    "sensor stream": check_sensor_stream,
}
"""The check for each kind of content.

A check reads a whole file, and raises FileError if a part of it is damaged. Its second argument is
called with the number of bytes that were checked since the last call.
"""
