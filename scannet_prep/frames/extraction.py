"""Extract the frames of one scene into a folder, or estimate what that would write.

sources --select--> numbers of frames --encode--> files --> record
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from scannet_prep.base.files import Fingerprint, make_directory, output_error
from scannet_prep.frames.encoding import FrameEncoder, FrameSources, open_encoder
from scannet_prep.frames.options import LAYOUTS, FrameContent, FrameOptions
from scannet_prep.frames.record import RECORD_NAME, CameraRecord, FramesRecord, encode_record
from scannet_prep.raw.tree import RawScene
from scannet_prep.release.label_map import LabelMap
from scannet_prep.release.scene import Split

# Enough for an estimate, and done in a fraction of a second.
_SAMPLE_FRAMES = 8


def extract_scene(
    scene: RawScene,
    split: Split,
    options: FrameOptions,
    label_map: LabelMap,
    out_dir: Path,
) -> FramesRecord:
    """Extract the frames of a scene.

    Args:
        scene: The scene.
        split: Its split.
        options: The options.
        label_map: The label map, for label images.
        out_dir: The folder of the scene, which is made.

    Returns:
        The record, which is also in the folder.

    Raises:
        FileError: A source is missing or damaged.
        OutputError: The folder cannot be written to.
    """
    sources = FrameSources.from_scene(scene, split, options)
    # Measured first: if a file is replaced meanwhile, the next run extracts the scene again.
    source_sizes = sources.measure()
    contents = options.contents_of(split)
    layout = LAYOUTS[options.layout]
    files = _Files(out_dir)

    with open_encoder(sources, options, label_map) as encoder:
        stream_frames = len(encoder.stream)
        numbers, lost = options.select(encoder.stream.is_tracked)
        for position, number in enumerate(numbers):
            for content in contents:
                data = encoder.encode(content, number)
                files.write(layout.path(content, position, number), data)
        for name, path_name in layout.matrices.items():
            files.write(path_name, encoder.encode_matrix(name))

    depends_on_map = "labels" in contents and options.label_set != "raw"
    record = FramesRecord(
        scene_id=scene.scene_id,
        split=split,
        options=options,
        sources=source_sizes,
        stream_frames=stream_frames,
        frames=tuple(numbers),
        lost=tuple(lost),
        color_camera=CameraRecord.from_camera(encoder.color_camera),
        depth_camera=CameraRecord.from_camera(encoder.depth_camera),
        label_map=label_map.digest if depends_on_map else "",
        files=dict(sorted(files.fingerprints.items())),
    )
    files.write(RECORD_NAME, encode_record(record))
    return record


class _Files:
    """The files of a folder that are written, and their fingerprints.

    Args:
        folder: The folder. No other program uses it, so files are written in place.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._made_folders: set[Path] = set()
        self.fingerprints: dict[str, Fingerprint] = {}

    def write(self, name: str, data: bytes) -> None:
        """Write a file.

        Raises:
            OutputError: It cannot be written.
        """
        path = self._folder / name
        if path.parent not in self._made_folders:
            make_directory(path.parent)
            self._made_folders.add(path.parent)
        try:
            path.write_bytes(data)
        except OSError as error:
            raise output_error(path, error) from error
        self.fingerprints[name] = Fingerprint.from_bytes(data)


class Estimate(NamedTuple):
    """What an extraction would write.

    Attributes:
        frames: The number of frames.
        lost: The number of frames without tracking.
        size_bytes: The approximate size of their files.
    """

    frames: int
    lost: int
    size_bytes: int


def estimate_scene(
    scene: RawScene, split: Split, options: FrameOptions, label_map: LabelMap
) -> Estimate:
    """Estimate the result of an extraction, from a few frames.

    All files of these frames are encoded as in an extraction. Those of the other frames are assumed
    to be in the same proportion to their stored images.

    Raises:
        FileError: A source is missing or damaged.
    """
    sources = FrameSources.from_scene(scene, split, options)
    size_bytes = 0.0
    with open_encoder(sources, options, label_map) as encoder:
        numbers, lost = options.select(encoder.stream.is_tracked)
        for content in options.contents_of(split):
            size_bytes += _estimate_bytes(encoder, content, numbers)
        for name in LAYOUTS[options.layout].matrices:
            size_bytes += len(encoder.encode_matrix(name))
    return Estimate(len(numbers), len(lost), round(size_bytes))


def _estimate_bytes(encoder: FrameEncoder, content: FrameContent, numbers: Sequence[int]) -> float:
    """Estimate the size of the files with one content, from those of a few frames."""
    if not numbers:
        return 0
    sample = _choose_sample(numbers)
    sample_bytes = sum(len(encoder.encode(content, number)) for number in sample)
    sample_weight = sum(encoder.weigh(content, number) for number in sample)
    weight = sum(encoder.weigh(content, number) for number in numbers)
    return sample_bytes * weight / sample_weight


def _choose_sample(numbers: Sequence[int]) -> list[int]:
    """Choose some frames, evenly spaced; all if there are few."""
    count = min(len(numbers), _SAMPLE_FRAMES)
    return [numbers[position * len(numbers) // count] for position in range(count)]
