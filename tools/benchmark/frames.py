"""Part `frames`: extraction from a stream of 500 frames, beside a port of the official reader."""

from __future__ import annotations

import io
import json
import shutil
import struct
import subprocess
import sys
import time
import zlib
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from benchmark.timing import time_call
from scannet_prep.base.images import encode_jpeg
from scannet_prep.frames import FrameOptions, project
from scannet_prep.frames.extraction import extract_scene
from scannet_prep.frames.options import STREAM
from scannet_prep.raw.tree import find_raw_scenes
from scannet_prep.release.label_map import builtin_label_map
from scannet_prep.release.scene import SceneId, Split
from scannet_prep.stages import frames
from scannet_prep.synthetic import make_scene
from scannet_prep.synthetic.frames import make_cameras, render_frames

if TYPE_CHECKING:
    from collections.abc import Callable

    from benchmark.settings import Result, Settings

_SCENE_IDS = ("scene0000_00", "scene0001_00")
_FRAME_COUNT = 500
_DIFFERENT_FRAMES = 10
_COLOR_SIZE = (1296, 968)
_DEPTH_SIZE = (640, 480)


def measure(settings: Settings) -> Result:
    """Measure reading, extraction and projection."""
    raw_dir = settings.folder / "frames" / "raw"
    stream_bytes = _write_streams(raw_dir, settings.vertex_count)
    scene = find_raw_scenes(raw_dir)[SceneId(_SCENE_IDS[0])]
    out_dir = settings.folder / "frames" / "out"
    # Interleaved, because the load of a shared machine changes.
    reference_s = []
    extraction_s: dict[int, list[float]] = {20: [], 1: []}
    two_scenes_s: dict[int, list[float]] = {1: [], 2: []}
    for _ in range(settings.repeat):
        reference_s.append(_time_cpu(out_dir, read_like_reference, scene.path(STREAM), out_dir, 20))
        for every, seconds in extraction_s.items():
            options = FrameOptions(every=every)
            arguments = (scene, Split.TRAIN, options, builtin_label_map(), out_dir)
            seconds.append(_time_cpu(out_dir, extract_scene, *arguments))
        for jobs, seconds in two_scenes_s.items():
            shutil.rmtree(out_dir, ignore_errors=True)
            seconds.append(time_call(_extract_all, raw_dir, out_dir, jobs))
    result: Result = {
        "frames": _FRAME_COUNT,
        "stream_mb": stream_bytes / 1e6,
        "cpu_s": {
            "reference, every 20th": min(reference_s),
            "every 20th": min(extraction_s[20]),
            "all": min(extraction_s[1]),
        },
        "two_scenes_s": {jobs: min(seconds) for jobs, seconds in two_scenes_s.items()},
    }
    result["peak_mb"] = _measure_memory(raw_dir, out_dir)
    result["project_ms"] = _measure_projection(settings)
    return result


def read_like_reference(stream_path: Path, out_dir: Path, every: int) -> None:
    """Extract frames as ports of the official reader.py do: read all, decode all, write some."""
    from PIL import Image

    with stream_path.open("rb") as file:
        file.read(4)
        (name_bytes,) = struct.unpack("Q", file.read(8))
        file.read(name_bytes + 4 * 64 + 8)
        sizes = struct.unpack("4I", file.read(16))
        file.read(4)
        (frame_count,) = struct.unpack("Q", file.read(8))
        stored = []
        for _ in range(frame_count):
            pose = np.frombuffer(file.read(64), np.float32).reshape(4, 4)
            _, _, color_bytes, depth_bytes = struct.unpack("4Q", file.read(32))
            stored.append((pose, file.read(color_bytes), file.read(depth_bytes)))
    for name in ("color", "depth", "pose"):
        (out_dir / name).mkdir(parents=True)
    for number, (pose, jpeg, compressed) in enumerate(stored):
        color = np.array(Image.open(io.BytesIO(jpeg)))
        values = np.frombuffer(zlib.decompress(compressed), np.uint16)
        depth = values.reshape(sizes[3], sizes[2])
        if number % every:
            continue
        Image.fromarray(color).save(out_dir / f"color/{number}.jpg")
        Image.fromarray(depth).save(out_dir / f"depth/{number}.png")
        np.savetxt(out_dir / f"pose/{number}.txt", pose, fmt="%f")


def _extract_all(raw_dir: Path, out_dir: Path, jobs: int) -> None:
    """Extract all frames of both scenes."""
    report = frames.run(frames.plan(raw_dir, out_dir, FrameOptions(every=1)), jobs=jobs)
    if report.failures:
        raise RuntimeError(report.failures[0].message)


def _time_cpu(out_dir: Path, function: Callable[..., object], *arguments: object) -> float:
    """Return the CPU seconds of a call, which depend less on other work on the machine."""
    shutil.rmtree(out_dir, ignore_errors=True)
    start_s = time.process_time()
    function(*arguments)
    return time.process_time() - start_s


def _write_streams(raw_dir: Path, vertex_count: int) -> int:
    """Write two streams whose images have the sizes of the release, and return the size of one."""
    scene = make_scene(_SCENE_IDS[0], vertices=vertex_count)
    rng = np.random.default_rng(0)
    bodies = []
    for frame in list(render_frames(scene, _DIFFERENT_FRAMES + 2))[2:]:
        # Enlarged, with the noise of a sensor.
        rows = np.arange(_COLOR_SIZE[1]) * frame.color.shape[0] // _COLOR_SIZE[1]
        columns = np.arange(_COLOR_SIZE[0]) * frame.color.shape[1] // _COLOR_SIZE[0]
        color = frame.color[rows[:, None], columns].astype(np.float32)
        color += rng.normal(0, 6, color.shape)
        jpeg = encode_jpeg(color.clip(0, 255).astype(np.uint8), quality=85)
        depth = frame.depth.repeat(4, axis=0).repeat(4, axis=1)
        depth = depth + rng.integers(0, 4, depth.shape, np.uint16)
        compressed = zlib.compress(depth.astype("<u2").tobytes())
        sizes = struct.pack("<4Q", 0, 0, len(jpeg), len(compressed))
        bodies.append(frame.pose.tobytes() + sizes + jpeg + compressed)

    cameras = [
        camera.resized(size)
        for camera, size in zip(make_cameras(), (_COLOR_SIZE, _DEPTH_SIZE), strict=True)
    ]
    header = struct.pack("<IQ9s", 4, 9, b"StructSen")
    for camera in cameras:
        header += camera.intrinsic.tobytes() + camera.extrinsic.tobytes()
    header += struct.pack("<2i4IfQ", 2, 1, *_COLOR_SIZE, *_DEPTH_SIZE, 1000, _FRAME_COUNT)
    for scene_id in _SCENE_IDS:
        path = raw_dir / "scans" / scene_id / f"{scene_id}.sens"
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("wb") as file:
            file.write(header)
            for number in range(_FRAME_COUNT):
                file.write(bodies[number % len(bodies)])
            file.write(struct.pack("<Q", 0))
    return path.stat().st_size


def _measure_memory(raw_dir: Path, out_dir: Path) -> float:
    """Return the peak memory of a process that extracts every 20th frame, in MB."""
    shutil.rmtree(out_dir, ignore_errors=True)
    program = """
import json, sys
from pathlib import Path
from scannet_prep.frames.extraction import extract_scene
from scannet_prep.frames.options import FrameOptions
from scannet_prep.raw.tree import find_raw_scenes
from scannet_prep.release.label_map import builtin_label_map
from scannet_prep.release.scene import Split
raw_dir, out_dir = map(Path, sys.argv[1:])
scene = next(iter(find_raw_scenes(raw_dir).values()))
extract_scene(scene, Split.TRAIN, FrameOptions(), builtin_label_map(), out_dir)
lines = Path("/proc/self/status").read_text().splitlines()
print(json.dumps([int(line.split()[1]) for line in lines if line.startswith("VmHWM")]))
"""
    command = [sys.executable, "-c", program, str(raw_dir), str(out_dir)]
    done = subprocess.run(command, check=True, capture_output=True, text=True)
    return float(json.loads(done.stdout)[0]) / 1024


def _measure_projection(settings: Settings) -> float:
    """Return the time of projecting the points of a scene into a depth image, in ms."""
    scene = make_scene(_SCENE_IDS[0], vertices=settings.vertex_count)
    _, camera = make_cameras()
    frame = next(render_frames(scene, 1))
    arguments = (scene.positions, frame.pose, camera.intrinsic, camera.size, frame.depth)
    return 1e3 * min(time_call(project, *arguments) for _ in range(10 * settings.repeat))


def describe(result: Result) -> str:
    """Format the results as a table."""
    seconds = result["cpu_s"]
    ratio = seconds["reference, every 20th"] / seconds["every 20th"]
    one_worker_s, two_workers_s = result["two_scenes_s"].values()
    lines = [f"frames: a stream of {result['frames']} frames, {result['stream_mb']:.0f} MB"]
    for title, duration in seconds.items():
        lines.append(f"  {title:<24}{duration:9.2f} s of CPU")
    workers = f"{one_worker_s:.2f} s with one worker, {two_workers_s:.2f} s with two"
    lines += [
        f"  the reference takes {ratio:.1f} times as long for every 20th frame",
        f"  all frames of two scenes: {workers}",
        f"  peak memory, every 20th: {result['peak_mb']:.0f} MB",
        f"  project: {result['project_ms']:.2f} ms",
    ]
    return "\n".join(lines)
