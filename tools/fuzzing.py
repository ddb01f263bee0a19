"""Feed damaged bytes to every reader of files, and report exceptions of other packages.

Uses atheris if it is installed (guided by coverage; `pip install atheris`), otherwise hypothesis.
Bytes that break a reader are written to the current folder as `crash-<kind>...`. To read them
again, run `tools/fuzz KIND --replay FILE`.
"""

from __future__ import annotations

import argparse
import importlib.util
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from scannet_prep.release.files import FileKind

MAX_MEMORY_BYTES = 4 << 30
MAX_INPUT_S = 20
KINDS = (
    "mesh",
    "own-scan",
    "labels-mesh",
    "segments",
    "aggregation",
    "info",
    "label-map",
    "lock",
    "processed",
    "manifest",
    "archive",
    "export",
    "sensor-stream",
    "frames",
)

Reader = Callable[[Path], object]


def find_readers(folder: Path) -> dict[str, tuple[Path, Reader]]:
    """Make an intact file of each kind.

    Returns:
        The path of the file and its reader, by kind.
    """
    from plyfile import PlyData

    from scannet_prep import sample_from_mesh
    from scannet_prep.archive.format import Archive
    from scannet_prep.archive.sources import open_source
    from scannet_prep.export.manifest import read_export
    from scannet_prep.frames import SensorStream
    from scannet_prep.frames.record import read_record
    from scannet_prep.processed.manifest import read_manifest
    from scannet_prep.processed.scene import ProcessOptions, read_processed
    from scannet_prep.raw.check import read_raw_file
    from scannet_prep.raw.lock import read_tree_lock
    from scannet_prep.release.files import AGGREGATION, INFO, LABELS_MESH, MESH, SEGMENTS
    from scannet_prep.release.label_map import read_label_map
    from scannet_prep.stages import export, frames, pack, process
    from scannet_prep.synthetic import make_scene, write_label_map, write_scene

    scene_id = "scene0191_00"
    raw_dir = folder / "raw"
    out_dir = folder / "processed"
    archive_path = folder / "scannet.tar.zst"
    start = f"{write_scene(make_scene(scene_id, vertices=500), raw_dir, frames=3)}/{scene_id}"
    label_map_path = write_label_map(raw_dir)
    # The first rows are enough: all 600 are alike.
    rows = label_map_path.read_bytes().splitlines(keepends=True)
    label_map_path.write_bytes(b"".join(rows[:5]))
    lock_path = folder / "scannet.lock"
    lock_path.write_text(f"{'0' * 64}  12  scans/{scene_id}/{scene_id}.txt\n", encoding="ascii")
    process.run(process.plan(raw_dir, out_dir, ProcessOptions(align_axis=True)))
    pack.run(out_dir, archive_path)
    export.run(export.plan(out_dir, folder / "export", "pointcept"))
    frames.run(frames.plan(raw_dir, folder / "frames", {"every": 2}))

    # Binary files are those of the kind "mesh".
    own_path = folder / "room.ply"
    PlyData(PlyData.read(f"{start}{MESH.suffix}").elements, text=True).write(own_path)

    def read_archive(path: Path) -> None:
        archive = Archive(open_source(path))
        for scene_id in ["", *(scene.scene_id for scene in archive.index.scenes)]:
            archive.read(scene_id)

    def read_stream(path: Path) -> None:
        with SensorStream(path) as stream:
            for frame in stream:
                frame.checked_jpeg()
                frame.depth()
                frame.color()
            _ = stream.is_tracked

    def find_raw_reader(kind: FileKind) -> tuple[Path, Reader]:
        return Path(f"{start}{kind.suffix}"), partial(read_raw_file, kind)

    return {
        "mesh": find_raw_reader(MESH),
        "own-scan": (own_path, partial(sample_from_mesh, compute_segments=True)),
        "labels-mesh": find_raw_reader(LABELS_MESH),
        "segments": find_raw_reader(SEGMENTS),
        "aggregation": find_raw_reader(AGGREGATION),
        "info": find_raw_reader(INFO),
        "label-map": (label_map_path, read_label_map),
        "lock": (lock_path, lambda path: read_tree_lock(path.parent)),
        "processed": (out_dir / "train" / f"{scene_id}.npz", read_processed),
        "manifest": (out_dir / "manifest.json", lambda path: read_manifest(path.parent)),
        "archive": (archive_path, read_archive),
        "sensor-stream": (Path(f"{start}.sens"), read_stream),
        "frames": (folder / "frames" / scene_id / "frames.json", read_record),
        "export": (folder / "export" / "export.json", lambda path: read_export(path.parent)),
    }


def attempt(path: Path, read: Reader, data: bytes) -> None:
    """Read bytes, and pass on every exception except errors of this package with a message."""
    from scannet_prep.errors import ScanNetPrepError

    path.write_bytes(data)
    try:
        read(path)
    except ScanNetPrepError as error:
        if not error.message:
            raise AssertionError("an error without a message") from error


def fuzz_with_atheris(kind: str, folder: Path, seconds: int) -> None:
    """Search for bytes that reach new code, and end the process."""
    import atheris

    with atheris.instrument_imports(include=["scannet_prep"]):
        path, read = find_readers(folder)[kind]
    seeds = folder / "seeds"
    seeds.mkdir()
    (seeds / kind).write_bytes(path.read_bytes())
    options = [
        f"-max_total_time={seconds}",
        f"-timeout={MAX_INPUT_S}",
        f"-rss_limit_mb={MAX_MEMORY_BYTES >> 20}",
        "-max_len=65536",
        "-verbosity=0",
        "-print_final_stats=1",
        f"-artifact_prefix=crash-{kind}-",
    ]
    atheris.Setup([sys.argv[0], *options, str(seeds)], lambda data: attempt(path, read, data))
    atheris.Fuzz()


def fuzz_with_hypothesis(kind: str, folder: Path, seconds: int) -> None:
    """Change an intact file at random until the time is over."""
    from hypothesis import HealthCheck, given, settings
    from hypothesis import strategies as st

    path, read = find_readers(folder)[kind]
    whole = path.read_bytes()
    # An edit: first byte, number of bytes removed, bytes added in their place.
    edits = st.tuples(st.integers(0, len(whole)), st.integers(0, 40), st.binary(max_size=12))
    end_s = time.monotonic() + seconds
    count = 0

    @settings(
        max_examples=200, deadline=None, database=None, suppress_health_check=list(HealthCheck)
    )
    @given(st.lists(edits, min_size=1))
    def read_changed(drawn_edits: list[tuple[int, int, bytes]]) -> None:
        nonlocal count
        data = whole
        for start, removed_bytes, added in drawn_edits:
            data = data[:start] + added + data[start + removed_bytes :]
        count += 1
        try:
            attempt(path, read, data)
        except BaseException:
            Path(f"crash-{kind}").write_bytes(data)
            raise

    while time.monotonic() < end_s:
        read_changed()
    print(f"stat::number_of_executed_units: {count}")


def main() -> int:
    """Fuzz some or all kinds, each in a new process."""
    parser = argparse.ArgumentParser(prog="tools/fuzz", description=__doc__)
    parser.add_argument(
        "kinds", nargs="*", metavar="KIND", help=f"{', '.join(KINDS)}; all by default"
    )
    parser.add_argument(
        "--seconds", type=int, default=60, help="for all kinds together (default: %(default)s)"
    )
    parser.add_argument(
        "--replay",
        type=Path,
        metavar="FILE",
        help="read this file as the given KIND, without fuzzing",
    )
    parser.add_argument("--one", action="store_true", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    kinds = arguments.kinds or KINDS
    unknown = sorted(set(kinds) - set(KINDS))
    if unknown:
        parser.error(f"there are no readers of {', '.join(unknown)}; known: {', '.join(KINDS)}")
    if arguments.replay is not None:
        _replay(kinds[0], arguments.replay)
        return 0
    if arguments.one:
        _fuzz_one(kinds[0], arguments.seconds)
        return 0

    seconds_each = max(1, arguments.seconds // len(kinds))
    results = [_fuzz_in_new_process(kind, seconds_each) for kind in kinds]
    return 0 if all(results) else 1


def _replay(kind: str, replayed_path: Path) -> None:
    with tempfile.TemporaryDirectory(prefix="scannet-prep-fuzz-") as name:
        path, read = find_readers(Path(name))[kind]
        attempt(path, read, replayed_path.read_bytes())


def _fuzz_one(kind: str, seconds: int) -> None:
    with tempfile.TemporaryDirectory(prefix="scannet-prep-fuzz-") as name:
        if importlib.util.find_spec("atheris") is not None:
            fuzz_with_atheris(kind, Path(name), seconds)
        else:
            fuzz_with_hypothesis(kind, Path(name), seconds)


def _fuzz_in_new_process(kind: str, seconds: int) -> bool:
    """Fuzz one kind, print the result, and return whether there was no fault."""
    done = subprocess.run(
        [sys.executable, __file__, kind, "--one", "--seconds", str(seconds)],
        capture_output=True,
        text=True,
        check=False,
        preexec_fn=_limit_memory,
    )
    lines = (done.stdout + done.stderr).splitlines()
    count = next((line.split()[-1] for line in lines if "number_of_executed_units" in line), "?")
    is_clean = done.returncode == 0
    print(f"{kind}: {count} inputs, {'no fault' if is_clean else 'FAULT'}", flush=True)
    if not is_clean:
        print("\n".join(lines[-30:]), flush=True)
    return is_clean


def _limit_memory() -> None:
    resource.setrlimit(resource.RLIMIT_AS, (MAX_MEMORY_BYTES, MAX_MEMORY_BYTES))


if __name__ == "__main__":
    sys.exit(main())
