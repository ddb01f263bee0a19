"""Helpers for training: the same scenes in every form that `ScanNet` reads, samples, and ranks.

Ranks are processes that train together, as torchrun starts them. They run the scripts of the
training page.
"""

import multiprocessing
import os
import re
import runpy
import shutil
import socket
import sys
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace

import numpy as np
from commands import PAGES
from release_server import ReleaseServer

from scannet_prep.processed.scene import ProcessOptions
from scannet_prep.stages import pack, process
from scannet_prep.synthetic import write_release

KINDS = ("folder", "archive", "url")
# The forms with which most tests of the dataset are run.
SOURCES = ("folder", "archive")
# Vertices of each scene.
SIZES = {
    "scene0000_00": 900,
    "scene0000_01": 520,
    "scene0000_02": 500,
    "scene0001_00": 700,
    "scene0002_00": 800,
    "scene0003_00": 540,
    "scene0005_00": 1500,
    "scene0006_00": 510,
    "scene0011_00": 600,
    "scene0707_00": 650,
}
TRAIN = [scene_id for scene_id in SIZES if scene_id < "scene0011"]


def make_folder(root):
    """Process synthetic scenes of the sizes above into a folder, beside their raw tree."""
    for scene_id, vertices in SIZES.items():
        write_release(root / "ScanNet", [scene_id], vertices=vertices)
    options = ProcessOptions(scannet200=True, faces=True)
    plan = process.plan(root / "ScanNet", root / "processed", options)
    assert not process.run(plan, jobs=1).failures
    return root / "processed"


def pack_into(folder, path):
    """Pack a processed folder."""
    pack.run(folder, path)
    return path


@contextmanager
def store(kind, folder, target):
    """Copy or pack the scenes of a processed folder into another one, or serve them from there.

    The result has their `kind`, the `place` for `ScanNet`, and the `path` of the folder or archive.
    """
    target.mkdir()
    if kind == "folder":
        path = Path(shutil.copytree(folder, target / "processed"))
    else:
        path = pack_into(folder, target / "scannet.tar.zst")
    if kind != "url":
        yield SimpleNamespace(kind=kind, place=path, path=path)
        return
    with ReleaseServer(target) as server:
        server.etag = "weak"
        server.files["/scannet.tar.zst"] = path
        yield SimpleNamespace(kind=kind, place=f"{server.origin}/{path.name}", path=path)


def make_sample(count=40, seed=0):
    """Make a sample in which the label of a vertex is its index.

    `height` is a user's array of the vertices, and `boxes` one that has other rows.
    """
    generator = np.random.default_rng(seed)
    normals = generator.normal(size=(count, 3))
    return {
        "points": generator.uniform(-1, [1, 6, 2], (count, 3)).astype(np.float32),
        "normals": (normals / np.linalg.norm(normals, axis=1, keepdims=True)).astype(np.float32),
        "colors": generator.integers(0, 256, (count, 3), dtype=np.uint8),
        "labels": np.arange(count),
        "instances": generator.integers(-1, 3, count),
        "segments": generator.integers(0, 9, count),
        "height": np.arange(count) / 7,
        "vertex_keys": ["height"],
        "boxes": np.ones((count + 1, 6)),
        "scene_id": "scene0000_00",
    }


BLOCKS = re.findall(r"```python\n(.*?)```", PAGES["docs/training.md"], re.DOTALL)
TRAIN_PY, EVALUATE_PY = [block for block in BLOCKS if "PATH, CHECKPOINT" in block]
SCRIPTS = {"train.py": TRAIN_PY, "evaluate.py": EVALUATE_PY}
# After two minutes, a rank counts as hanging.
TIMEOUT_S = 120


def be_rank(job, out_dir, arguments, environment):
    """Run a job as in a process of torchrun: the rank is in the environment.

    The output is appended to a file for each rank.
    """
    import torch

    torch.set_num_threads(1)
    # The start method of its workers; it was started with another one itself.
    multiprocessing.set_start_method("fork", force=True)
    os.environ |= environment
    os.chdir(out_dir)
    output_path = out_dir / f"output{environment.get('RANK', 0)}.txt"
    sys.stdout = sys.stderr = output_path.open("a", buffering=1)
    job(out_dir, *arguments)


def run_ranks(job, out_dir, *arguments, count=2):
    """Run a function in several processes, which must succeed, and return the output of all.

    If one fails, the others are killed; the status of one that hangs is None. The processes are
    forked from a server without threads, which has already imported torch (see conftest.py).
    """
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    context = multiprocessing.get_context("forkserver")
    ranks = []
    for rank in range(count):
        environment = {}
        if count > 1:
            environment = {
                "RANK": f"{rank}",
                "LOCAL_RANK": f"{rank}",
                "WORLD_SIZE": f"{count}",
                "MASTER_ADDR": "127.0.0.1",
                "MASTER_PORT": f"{port}",
            }
        process = context.Process(target=be_rank, args=(job, out_dir, arguments, environment))
        process.start()
        ranks.append(process)

    for _ in range(10 * TIMEOUT_S):
        alive = [process for process in ranks if process.is_alive()]
        has_failed = any(process.exitcode for process in ranks)
        if not alive or has_failed:
            break
        alive[0].join(0.1)

    statuses = [process.exitcode for process in ranks]
    for process in ranks:
        process.kill()
        process.join()
    output = "".join(path.read_text() for path in sorted(out_dir.glob("output?.txt")))
    assert statuses == [0] * count, (statuses, output)
    return output


def run_script(out_dir, name, times=1):
    for _ in range(times):
        runpy.run_path(name, run_name="__main__")
