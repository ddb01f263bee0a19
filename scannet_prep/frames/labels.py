"""2D labels of frames: images in the zip files of the release, and the conversion of their ids."""

from __future__ import annotations

import zipfile
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from scannet_prep.base.images import (
    GrayImage,
    check_gray_png,
    decode_gray,
    encode_png,
    resize_nearest,
)
from scannet_prep.base.text import list_some
from scannet_prep.errors import ContentError, FileError
from scannet_prep.frames.options import LabelIds
from scannet_prep.raw.sensor_stream import Frame
from scannet_prep.raw.zip_file import read_member
from scannet_prep.release.label_map import MAX_SCANNET_ID, LabelMap
from scannet_prep.release.label_sets import SCANNET20, SCANNET200


def make_label_table(label_set: LabelIds, label_map: LabelMap) -> NDArray[np.int16] | None:
    """Make the conversion of ScanNet ids to those of a label set.

    Returns:
        int16 (MAX_SCANNET_ID + 1,), the other id of each ScanNet id, -1 if the label map lacks it;
        None for `raw`, the ScanNet ids themselves.
    """
    if label_set == "raw":
        return None
    table = np.full(MAX_SCANNET_ID + 1, -1, np.int16)
    table[0] = 0
    # Three ScanNet ids have rows with two nyu40 ids. As in the official script
    # (convert_scannet_label_image.py), the last row counts.
    for row in label_map.rows.values():
        table[row.scannet_id] = row.nyu40_id
    is_known = table >= 0
    if label_set == "scannet20":
        table[is_known] = SCANNET20.labels_from_raw_ids(table[is_known])
    elif label_set == "scannet200":
        table[is_known] = SCANNET200.labels_from_raw_ids(np.flatnonzero(is_known))
    return table


def make_label_image(
    archive: zipfile.ZipFile,
    path: Path,
    table: NDArray[np.int16] | None,
    size: tuple[int, int],
    frame: Frame,
) -> bytes:
    """Make the image of labels, or of objects, of a frame.

    Args:
        archive: The zip file of a scene.
        path: Its path, for messages.
        table: The conversion of its ids; None to leave them as they are.
        size: Width and height of the image to make. Stored images have those of color.
        frame: The frame.

    Returns:
        A PNG image of 8 or 16 bits; the stored one if nothing is converted.

    Raises:
        FileError: The image is missing, damaged, of another size, or has an unknown id.
    """
    # scene0000_00_2d-label-filt.zip holds label-filt/0.png.
    folder = path.stem.partition("_2d-")[2]
    name = f"{folder}/{frame.number}.png"
    stored = read_member(archive, path, name)
    stored_size = frame.stream.color_camera.size
    try:
        if size == stored_size and table is None:
            check_gray_png(stored, stored_size)
            return stored
        image = resize_nearest(decode_gray(stored, stored_size), size)
        if table is not None:
            image = _convert(image, table)
        return encode_png(image)
    except ContentError as error:
        raise FileError(path, f"{name!r} in it {error.message}", error.hint) from None


def _convert(scannet_ids: GrayImage, table: NDArray[np.int16]) -> NDArray[np.uint8]:
    """Convert ScanNet ids, of any shape.

    Raises:
        ContentError: An id is not in the label map.
    """
    ids = table[scannet_ids]
    if (ids < 0).any():
        unknown = [str(number) for number in np.unique(scannet_ids[ids < 0])]
        raise ContentError(
            f"has ScanNet ids that are not in the label map: {list_some(unknown)}",
            "to extract the ids as they are stored: --label-set raw",
        )
    return ids.astype(np.uint8)
