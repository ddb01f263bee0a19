"""2D labels of frames: images in the zip files of the release, and the conversion of their ids."""

from __future__ import annotations

import zipfile
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from scannet_prep.base.errors import ContentError, FileError
from scannet_prep.base.failures import list_some
from scannet_prep.base.images import check_gray_png, decode_gray, encode_png, resize_nearest
from scannet_prep.frames.options import LabelIds
from scannet_prep.raw.zip_file import read_member
from scannet_prep.release.label_map import MAX_SCANNET_ID, LabelMap
from scannet_prep.release.label_sets import SCANNET20, SCANNET200


class LabelTable:
    """The conversion of ScanNet ids to other ids.

    Args:
        label_set: The other ids.
        label_map: The label map.

    Attributes:
        is_identity: Whether ids stay as they are.
    """

    def __init__(self, label_set: LabelIds, label_map: LabelMap) -> None:
        self.is_identity = label_set == "raw"
        self._ids = np.zeros(MAX_SCANNET_ID + 1, np.uint8)
        self._is_known = np.zeros(MAX_SCANNET_ID + 1, np.bool_)
        self._is_known[0] = True
        nyu40_ids = np.zeros(MAX_SCANNET_ID + 1, np.uint8)
        # Three ScanNet ids have rows with two nyu40 ids. As in the official script
        # (convert_scannet_label_image.py), the last row counts.
        for ids in label_map.rows.values():
            self._is_known[ids.scannet_id] = True
            nyu40_ids[ids.scannet_id] = ids.nyu40_id
        if label_set == "nyu40":
            self._ids = nyu40_ids
        elif label_set == "scannet20":
            train_ids = np.zeros(256, np.uint8)
            train_ids[list(SCANNET20.ids)] = np.arange(1, len(SCANNET20) + 1)
            self._ids = train_ids[nyu40_ids]
        elif label_set == "scannet200":
            self._ids[list(SCANNET200.ids)] = np.arange(1, len(SCANNET200) + 1)

    def convert(self, scannet_ids: NDArray[np.uint8] | NDArray[np.uint16]) -> NDArray[np.uint8]:
        """Convert ScanNet ids, of any shape.

        Raises:
            ContentError: An id is not in the label map.
        """
        is_unknown = ~self._is_known[scannet_ids]
        if is_unknown.any():
            unknown = [str(number) for number in np.unique(scannet_ids[is_unknown])]
            raise ContentError(
                f"has ScanNet ids that are not in the label map: {list_some(unknown)}",
                "to extract the ids as they are stored: --label-set raw",
            )
        return self._ids[scannet_ids]


def read_label_image(
    archive: zipfile.ZipFile,
    path: Path,
    name: str,
    color_size: tuple[int, int],
    size: tuple[int, int],
    table: LabelTable | None,
) -> bytes:
    """Read an image of labels or objects from a zip file, and convert it.

    Args:
        archive: The zip file.
        path: Its path, for messages.
        name: The name of the image in it.
        color_size: Width and height of the color images, which it must have.
        size: Width and height of the result.
        table: The conversion of its ids; None for images of objects.

    Returns:
        A PNG image of 8 or 16 bits; the stored one if nothing is converted.

    Raises:
        FileError: The image is missing, damaged, of another size, or has an unknown id.
        UsageError: Pillow is not installed, and is needed.
    """
    stored = read_member(archive, path, name)
    try:
        if size == color_size and (table is None or table.is_identity):
            check_gray_png(stored, color_size)
            return stored
        image = decode_gray(stored, color_size)
        image = resize_nearest(image, size)
        if table is not None and not table.is_identity:
            image = table.convert(image)
        return encode_png(image)
    except ContentError as error:
        raise FileError(path, f"{name!r} in it {error.message}", error.hint) from None
