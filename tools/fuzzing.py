"""Feeds damaged bytes to every reader of files, and reports each exception that is not an error of this package.

With atheris (coverage-guided; `pip install atheris`), else with hypothesis. Bytes that break a reader are written to
the current folder as `crash-<kind>...`; `tools/fuzz KIND --replay FILE` reads them again.
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
from pathlib import Path
from typing import Any

MEMORY_BYTES = 4 << 30
SECONDS_EACH = 20

Reader = Callable[[Path], object]


def find_readers(folder: Path) -> dict[str, tuple[Path, Reader]]:
    """For each kind of file a whole one in `folder`, and what reads it."""
    from scannet_prep.archive import open_archive
    from scannet_prep.export.manifest import read_export
    from scannet_prep.processed.manifest import read_manifest
    from scannet_prep.processed.scene import ProcessOptions, read_processed
    from scannet_prep.raw.info import read_scan_info
    from scannet_prep.raw.lock import read_lock
    from scannet_prep.raw.mesh import read_labels_mesh, read_mesh
    from scannet_prep.raw.segments import read_aggregation, read_segments
    from scannet_prep.release.label_map import read_label_map
    from scannet_prep.stages import export, pack, process
    from scannet_prep.synthetic import make_scene, write_label_map, write_scene

    scene_id = "scene0191_00"
    raw_dir, out_dir, archive_path = (
        folder / "raw",
        folder / "processed",
        folder / "scannet.tar.zst",
    )
    start = f"{write_scene(make_scene(scene_id, vertices=500), raw_dir)}/{scene_id}"
    label_map_path = write_label_map(raw_dir)
    # A label map of a few rows: the whole one is 600 lines, most of them alike.
    label_map_path.write_bytes(b"".join(label_map_path.read_bytes().splitlines(keepends=True)[:5]))
    lock_path = folder / "scannet.lock"
    lock_path.write_text(f"{'0' * 64}  12  scans/{scene_id}/{scene_id}.txt\n", encoding="ascii")
    process.run(process.plan(raw_dir, out_dir, ProcessOptions(align_axis=True)))
    pack.run(out_dir, archive_path)
    export.run(export.plan([out_dir], folder / "export", "pointcept"))

    def read_archive(path: Path) -> None:
        archive = open_archive(path)
        for group in archive.index.scenes:
            for member in group.members:
                archive.read_member(group, member)

    return {
        "mesh": (Path(f"{start}_vh_clean_2.ply"), read_mesh),
        "labels-mesh": (Path(f"{start}_vh_clean_2.labels.ply"), read_labels_mesh),
        "segments": (Path(f"{start}_vh_clean_2.0.010000.segs.json"), read_segments),
        "aggregation": (Path(f"{start}.aggregation.json"), read_aggregation),
        "info": (Path(f"{start}.txt"), read_scan_info),
        "label-map": (label_map_path, read_label_map),
        "lock": (lock_path, read_lock),
        "processed": (out_dir / "train" / f"{scene_id}.npz", read_processed),
        "manifest": (out_dir / "manifest.json", lambda path: read_manifest(path.parent)),
        "archive": (archive_path, read_archive),
        "export": (folder / "export" / "export.json", lambda path: read_export(path.parent)),
    }


KINDS = (
    "mesh", "labels-mesh", "segments", "aggregation", "info", "label-map", "lock", "processed", "manifest", "archive",
    "export",
)  # fmt: skip


def attempt(path: Path, read: Reader, data: bytes) -> None:
    """Read bytes; only errors of this package may come of it."""
    from scannet_prep.base.errors import ScanNetPrepError

    path.write_bytes(data)
    try:
        read(path)
    except ScanNetPrepError as error:
        if not error.message:
            raise AssertionError("an error without a message") from error


def fuzz_with_atheris(kind: str, folder: Path, seconds: int) -> None:
    """Look for bytes that reach new code; does not return."""
    import atheris

    with atheris.instrument_imports(include=["scannet_prep"]):
        path, read = find_readers(folder)[kind]
    seeds = folder / "seeds"
    seeds.mkdir()
    (seeds / kind).write_bytes(path.read_bytes())
    options = [
        f"-max_total_time={seconds}", f"-timeout={SECONDS_EACH}", f"-rss_limit_mb={MEMORY_BYTES >> 20}",
        "-max_len=65536", "-verbosity=0", "-print_final_stats=1", f"-artifact_prefix=crash-{kind}-",
    ]  # fmt: skip
    atheris.Setup([sys.argv[0], *options, str(seeds)], lambda data: attempt(path, read, data))
    atheris.Fuzz()


def fuzz_with_hypothesis(kind: str, folder: Path, seconds: int) -> None:
    """Change a whole file in random places until the time is over."""
    from hypothesis import HealthCheck, given, settings
    from hypothesis import strategies as st

    path, read = find_readers(folder)[kind]
    whole = path.read_bytes()
    edits = st.lists(
        st.tuples(st.integers(0, len(whole)), st.integers(0, 40), st.binary(max_size=12)),
        min_size=1,
    )
    end_s, count = time.monotonic() + seconds, 0

    @settings(
        max_examples=200, deadline=None, database=None, suppress_health_check=list(HealthCheck)
    )
    @given(edits)
    def change(places: list[tuple[int, int, bytes]]) -> None:
        nonlocal count
        data = whole
        for start, removed, added in places:
            data = data[:start] + added + data[start + removed :]
        count += 1
        try:
            attempt(path, read, data)
        except BaseException:
            Path(f"crash-{kind}").write_bytes(data)
            raise

    while time.monotonic() < end_s:
        change()
    print(f"stat::number_of_executed_units: {count}")


def main() -> int:
    """Fuzz some or all kinds, each in a process of its own."""
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
        help="read these bytes as the one KIND, and nothing else",
    )
    parser.add_argument("--one", action="store_true", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    kinds = arguments.kinds or KINDS
    if unknown := set(kinds) - set(KINDS):
        parser.error(
            f"there are no readers of {', '.join(sorted(unknown))}; known: {', '.join(KINDS)}"
        )
    if arguments.replay is not None or arguments.one:
        with tempfile.TemporaryDirectory(prefix="scannet-prep-fuzz-") as name:
            if arguments.replay is not None:
                path, read = find_readers(Path(name))[kinds[0]]
                attempt(path, read, arguments.replay.read_bytes())
            elif importlib.util.find_spec("atheris") is not None:
                fuzz_with_atheris(kinds[0], Path(name), arguments.seconds)
            else:
                fuzz_with_hypothesis(kinds[0], Path(name), arguments.seconds)
        return 0
    return (
        1
        if [
            kind for kind in kinds if not _runs_clean(kind, max(1, arguments.seconds // len(kinds)))
        ]
        else 0
    )


def _runs_clean(kind: str, seconds: int) -> bool:
    command = [sys.executable, __file__, kind, "--one", "--seconds", str(seconds)]
    limits: dict[str, Any] = {"preexec_fn": _limit_memory}
    done = subprocess.run(command, capture_output=True, text=True, check=False, **limits)
    lines = (done.stdout + done.stderr).splitlines()
    count = next((line.split()[-1] for line in lines if "number_of_executed_units" in line), "?")
    print(f"{kind}: {count} inputs, {'no fault' if done.returncode == 0 else 'FAULT'}", flush=True)
    if done.returncode != 0:
        print("\n".join(lines[-30:]), flush=True)
    return done.returncode == 0


def _limit_memory() -> None:
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY_BYTES, MEMORY_BYTES))


if __name__ == "__main__":
    sys.exit(main())
