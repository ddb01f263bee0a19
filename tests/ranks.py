"""Processes that train together, as torchrun starts them, and the scripts of the training page."""

import multiprocessing
import os
import re
import runpy
import socket
import sys
from pathlib import Path

PAGE = (Path(__file__).parents[1] / "docs/training.md").read_text(encoding="utf-8")
BLOCKS = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)
TRAIN_PY, EVALUATE_PY = [block for block in BLOCKS if "PATH, CHECKPOINT" in block]
SCRIPTS = {"train.py": TRAIN_PY, "evaluate.py": EVALUATE_PY}
# After two minutes, a rank counts as hanging.
TIMEOUT_S = 120


def change_script(script, changes):
    """Replace texts, of which each occurs once."""
    for old, new in changes.items():
        assert script.count(old) == 1, old
        script = script.replace(old, new)
    return script


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
    """Run a function in several processes, and return their exit statuses; None if one hangs.

    If one fails, the others are killed. The processes are forked from a server without threads,
    which has already imported torch (see conftest.py).
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

    poll_s = 0.1
    for _ in range(int(TIMEOUT_S / poll_s)):
        alive = [process for process in ranks if process.is_alive()]
        has_failed = any(process.exitcode for process in ranks)
        if not alive or has_failed:
            break
        alive[0].join(poll_s)

    statuses = [process.exitcode for process in ranks]
    for process in ranks:
        process.kill()
        process.join()
    return statuses


def read_output(out_dir):
    """Read the output of all ranks."""
    return "".join(path.read_text() for path in sorted(out_dir.glob("output?.txt")))


def run_script(out_dir, name, times=1):
    for _ in range(times):
        runpy.run_path(name, run_name="__main__")


def run_torchrun(out_dir, *names):
    """Run scripts by torchrun on two ranks, which are forked and need not import torch again."""
    from torch.distributed import run

    # torchrun sets it to this value itself, but with a warning.
    os.environ["OMP_NUM_THREADS"] = "1"
    for name in names:
        run.main(
            [
                "--standalone",
                "--nproc_per_node=2",
                "--start-method=fork",
                "--run-path",
                str(out_dir / name),
            ]
        )
