"""Tests of `scannet-prep doctor`: its checks, hanging file systems, and the ranks of a job."""

from __future__ import annotations

import ctypes
import fcntl
import json
import os
import re
import resource
import shutil
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from commands import COMMAND, Outcome, leave_unfinished, run_command, run_main
from test_cli import run_on_terminal

from scannet_prep.base.findings import Finding
from scannet_prep.cli.main import main
from scannet_prep.doctor import probes
from scannet_prep.errors import FileError
from scannet_prep.processed.manifest import check_complete, read_manifest

TRAIN = "scene0000_00"
VAL = "scene0011_00"

TOPICS = [
    "versions",
    "cores",
    "memory",
    "shared memory",
    "open files",
    "environment",
    "folder",
    "scenes",
    "server",
    "GPU",
]
# No server listens at this address.
CLOSED = "http://127.0.0.1:9/"

Checks = dict[str, dict[str, Any]]


def check(topic: str, argument: Path | str) -> Finding:
    """Make one of the checks that may hang, in this process."""
    return probes.make_check(topic, probes.PROBES[topic], str(argument))


@pytest.fixture(scope="module")
def stub_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a torch package that fails at once, because importing the real one is slow."""
    stub_dir = tmp_path_factory.mktemp("stubs")
    write_torch(stub_dir, "raise OSError('libcuda.so is of another version')\n")
    return stub_dir


def write_torch(stub_dir: Path, code: str) -> None:
    (stub_dir / "torch").mkdir(parents=True)
    (stub_dir / "torch/__init__.py").write_text(code)


def python_path(stub_dir: Path) -> str:
    return os.pathsep.join([str(stub_dir), os.environ.get("PYTHONPATH", "")])


def run_doctor(*words: str | Path, stub_dir: Path, **variables: str) -> tuple[Outcome, Checks]:
    """Run the command, and return its outcome and its checks by topic."""
    environment = {"SCANNET_PREP_BASE_URL": CLOSED, **os.environ, **variables}
    environment["PYTHONPATH"] = python_path(stub_dir)
    outcome = run_command("doctor", *words, "--json", environment=environment)
    return outcome, {check["path"]: check for check in outcome.json["checks"]}


# All checks of a processed folder.


@pytest.fixture(scope="module")
def doctor_of_folder(whole_dir: Path, stub_dir: Path) -> tuple[Outcome, Checks]:
    return run_doctor(whole_dir / "processed", stub_dir=stub_dir)


@pytest.fixture(scope="module")
def checks(doctor_of_folder: tuple[Outcome, Checks]) -> Checks:
    return doctor_of_folder[1]


def test_doctor_makes_one_check_per_topic_in_a_fixed_order(checks: Checks) -> None:
    assert list(checks) == TOPICS


def test_doctor_severities_are_ok_note_or_problem(checks: Checks) -> None:
    assert {check["severity"] for check in checks.values()} <= {"ok", "note", "problem"}


def test_doctor_gives_a_hint_for_every_problem(checks: Checks) -> None:
    problems = [check for check in checks.values() if check["severity"] == "problem"]

    assert problems
    assert all(check["hint"] for check in problems)


def test_doctor_with_problems_has_exit_status_3(
    doctor_of_folder: tuple[Outcome, Checks],
) -> None:
    outcome, checks = doctor_of_folder

    assert any(check["severity"] == "problem" for check in checks.values())
    assert outcome.status == 3
    assert outcome.json["exit_status"] == 3


def test_doctor_counts_the_scenes_of_an_intact_folder(checks: Checks) -> None:
    assert checks["scenes"]["severity"] == "ok"
    assert checks["scenes"]["message"].endswith("3 processed scenes")


def test_doctor_finds_that_locks_work(checks: Checks) -> None:
    assert "locks work" in checks["folder"]["message"]


def test_doctor_shows_the_versions_of_python_and_numpy(checks: Checks) -> None:
    versions = f"python {sys.version.split()[0]}, numpy {np.__version__}"
    assert versions in checks["versions"]["message"]


def test_doctor_shows_the_cores_of_the_machine(checks: Checks) -> None:
    assert f"of {os.cpu_count()} may be used" in checks["cores"]["message"]


def test_doctor_shows_the_limit_of_open_files(checks: Checks) -> None:
    soft_limit = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    assert f"soft limit {soft_limit:,}" in checks["open files"]["message"]


def test_doctor_notes_a_server_that_refuses_connections(checks: Checks) -> None:
    assert checks["server"]["severity"] == "note"
    assert "cannot be reached" in checks["server"]["message"]


def test_doctor_reports_an_exception_of_pytorch(checks: Checks) -> None:
    assert checks["GPU"]["severity"] == "problem"
    assert "libcuda.so is of another version" in checks["GPU"]["message"]


@pytest.mark.usefixtures("doctor_of_folder")
def test_doctor_leaves_no_file_in_the_folder(whole_dir: Path) -> None:
    assert list((whole_dir / "processed").glob(".*doctor*")) == []


# The text of the command.


@dataclass(frozen=True)
class Screen:
    """The text of the command on a terminal.

    Attributes:
        max_lines: How many lines it may have.
        has_place: Whether an address was given, or the default folder is used.
    """

    status: int
    text: str
    max_lines: int
    has_place: bool

    @property
    def lines(self) -> list[str]:
        return self.text.replace("\r", "").splitlines()


@pytest.fixture(
    scope="module", params=[(60, 48, False), (100, 28, True)], ids=["default folder", "address"]
)
def screen(
    request: pytest.FixtureRequest, stub_dir: Path, tmp_path_factory: pytest.TempPathFactory
) -> Screen:
    """The text where passwords are in all addresses."""
    columns, max_lines, has_place = request.param
    words = ["http://me:se/cret@127.0.0.1:9/x.tar.zst"] if has_place else []
    with pytest.MonkeyPatch.context() as monkeypatch:
        monkeypatch.setenv("SCANNET_PREP_BASE_URL", "http://me:se[cret@127.0.0.1:9/")
        monkeypatch.setenv("HTTP_PROXY", "http://me:se@cret@127.0.0.1:9/")
        monkeypatch.setenv("PYTHONPATH", python_path(stub_dir))
        monkeypatch.chdir(tmp_path_factory.mktemp("screen"))
        status, text = run_on_terminal([*COMMAND, "doctor", *words], columns)
    return Screen(status, text, max_lines, has_place)


def test_doctor_text_ends_with_the_numbers_of_problems_and_notes(screen: Screen) -> None:
    assert screen.status == 3
    assert re.fullmatch(r"(no|\d+) problems?, (no|\d+) notes?, in .*", screen.lines[-1])


def test_doctor_text_fits_one_screen(screen: Screen) -> None:
    assert len(screen.lines) < screen.max_lines


def test_doctor_text_has_no_passwords(screen: Screen) -> None:
    assert "cret" not in screen.text


def test_doctor_text_names_the_default_folder_if_no_place_is_given(screen: Screen) -> None:
    names_default_folder = "scenes: data/processed does not exist" in screen.text

    assert names_default_folder is not screen.has_place


# Checks that hang.


@pytest.fixture
def hanging_dir(tmp_path: Path) -> Iterator[Path]:
    """A FUSE file system whose server reads no request."""
    folder = tmp_path / "hangs"
    folder.mkdir()
    libc = ctypes.CDLL(None, use_errno=True)
    try:
        device = os.open("/dev/fuse", os.O_RDWR)
    except OSError as error:
        pytest.skip(f"this machine has no FUSE: {error.strerror}")
    options = f"fd={device},rootmode=40000,user_id={os.getuid()},group_id={os.getgid()}"
    if libc.mount(b"hangs", os.fsencode(folder), b"fuse", 0, options.encode()):
        os.close(device)
        pytest.skip(f"this user cannot mount: {os.strerror(ctypes.get_errno())}")
    yield folder
    libc.umount2(os.fsencode(folder), 2)
    os.close(device)


def test_doctor_reports_folder_server_and_gpu_that_hang(hanging_dir: Path, tmp_path: Path) -> None:
    stub_dir = tmp_path / "stubs"
    write_torch(stub_dir, "import time\ntime.sleep(1000)\n")
    with socket.create_server(("127.0.0.1", 0)) as silent:
        url = f"http://127.0.0.1:{silent.getsockname()[1]}/"
        place = hanging_dir / "processed"
        outcome, checks = run_doctor(place, stub_dir=stub_dir, SCANNET_PREP_BASE_URL=url)

    hanging = {}
    for topic, check in checks.items():
        if "answer" in check["message"]:
            hanging[topic] = check["severity"]
    has_gpu = any(Path("/dev").glob("nvidia[0-9]*"))
    assert outcome.status == 3
    assert list(checks) == TOPICS
    assert hanging == {
        "folder": "problem",
        "scenes": "problem",
        "server": "note",
        "GPU": "problem" if has_gpu else "note",
    }
    assert "nvidia-smi" in checks["GPU"]["hint"]


# Scenes.


def test_doctor_counts_raw_scenes(raw_dir: Path) -> None:
    assert check("scenes", raw_dir).message == f"{raw_dir}: 3 raw scenes"


def test_doctor_counts_the_scenes_of_an_archive(archive_path: Path) -> None:
    assert check("scenes", archive_path).message == f"{archive_path}: 3 processed scenes"


def test_doctor_reports_the_fault_of_an_unfinished_folder(out_dir: Path) -> None:
    leave_unfinished(out_dir, TRAIN)
    with pytest.raises(FileError) as fault:
        check_complete(read_manifest(out_dir), out_dir)

    finding = check("scenes", out_dir)

    assert finding.severity == "problem"
    assert finding.message == fault.value.message
    assert finding.hint == fault.value.hint


def test_damaged_manifest_is_a_problem(out_dir: Path) -> None:
    (out_dir / "manifest.json").write_text("{")
    assert check("scenes", out_dir).severity == "problem"


def test_raw_scenes_that_failed_are_a_problem(raw_dir: Path) -> None:
    (raw_dir / "failed.txt").write_text(f"{TRAIN}\n")

    finding = check("scenes", raw_dir)

    assert finding.severity == "problem"
    assert finding.message.endswith(f"failed: 1, such as {TRAIN}")


def test_missing_folder_is_a_problem_with_a_hint(tmp_path: Path) -> None:
    finding = check("scenes", tmp_path / "none")

    assert finding.severity == "problem"
    assert "no such file or folder" in finding.message
    assert finding.hint


def test_truncated_scene_of_a_folder_is_a_problem_with_its_sizes(out_dir: Path) -> None:
    path = out_dir / f"train/{TRAIN}.npz"
    size_bytes = path.stat().st_size
    os.truncate(path, 5000)

    finding = check("scenes", out_dir)

    sizes = f"(5,000 bytes, expected {size_bytes:,})"
    assert finding.severity == "problem"
    assert f"another size than in the manifest: 1, such as {path} {sizes}" in finding.message


def test_missing_scene_of_a_folder_is_a_problem_with_a_command(out_dir: Path) -> None:
    path = out_dir / f"val/{VAL}.npz"
    path.unlink()

    finding = check("scenes", out_dir)

    assert finding.severity == "problem"
    assert f"missing: 1, such as {path}" in finding.message
    assert "verify names all of them" in finding.hint


@pytest.mark.parametrize("end", [-1, -40, -5000, 3000])
def test_truncated_archive_is_a_problem(end: int, archive_path: Path) -> None:
    archive_path.write_bytes(archive_path.read_bytes()[:end])
    assert check("scenes", archive_path).severity == "problem"


def test_archive_that_lacks_bytes_in_the_middle_is_a_problem(archive_path: Path) -> None:
    data = archive_path.read_bytes()
    archive_path.write_bytes(data[:5000] + data[5100:])

    assert check("scenes", archive_path).severity == "problem"


def test_missing_default_folder_is_a_note(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    finding = check("scenes", "")

    assert finding.severity == "note"
    assert finding.message == "data/processed does not exist"


def test_existing_default_folder_is_checked(
    whole_dir: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    shutil.copytree(whole_dir / "processed", "data/processed")

    assert check("scenes", "") == check("scenes", "data/processed")


# File systems and locks.


def test_parent_of_a_missing_default_folder_is_checked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert check("folder", "").message.startswith(f"{tmp_path}: ")


def test_locks_that_do_not_keep_others_out_are_a_problem(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # File systems with `nolock` accept every lock.
    monkeypatch.setattr(fcntl, "flock", lambda *_: None)

    finding = check("folder", tmp_path)

    assert finding.severity == "problem"
    assert "was not kept out" in finding.message
    assert list(tmp_path.iterdir()) == []


def in_mount_namespace(setup: str, *words: str) -> subprocess.CompletedProcess[str]:
    """Run a program in a mount namespace, after a shell command that prepares it."""
    prefix = ["unshare", "--mount"]
    if os.geteuid() != 0:
        prefix[1:1] = ["--user", "--map-root-user"]
    if shutil.which("unshare") is None:
        pytest.skip("this machine has no unshare")
    trial = subprocess.run([*prefix, "true"], capture_output=True, check=False)
    if trial.returncode != 0:
        pytest.skip("this machine has no mount namespaces (unshare --mount)")
    return subprocess.run(
        [*prefix, "sh", "-c", f'{setup} && exec "$@"', "sh", *words],
        capture_output=True,
        text=True,
        check=True,
    )


_CHECK_FOLDERS = """\
import sys
from scannet_prep.doctor import probes
for name in sys.argv[1:]:
    print(repr(probes.make_check("", probes.check_folder, name)))
print(repr(probes.make_check("", probes.check_shared_memory, {})))
"""


@pytest.fixture(scope="module")
def odd_file_systems(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """The checks of a full, a read-only and a small file system, and of small shared memory."""
    root = tmp_path_factory.mktemp("file-systems")
    mount_options = {"full": "size=1m", "read-only": "ro", "few files": "nr_inodes=9"}
    commands = ["mount -t tmpfs -o size=64m none /dev/shm"]
    paths = []
    for name, options in mount_options.items():
        path = root / name.replace(" ", "-")
        path.mkdir()
        paths.append(str(path))
        commands.append(f"mount -t tmpfs -o {options} none {path}")

    done = in_mount_namespace(" && ".join(commands), sys.executable, "-c", _CHECK_FOLDERS, *paths)

    names = [*mount_options, "shared memory"]
    return dict(zip(names, done.stdout.splitlines(), strict=True))


def test_full_file_system_is_a_problem(odd_file_systems: dict[str, str]) -> None:
    shown = odd_file_systems["full"]

    assert "problem" in shown
    assert "it is full" in shown
    assert "tmpfs" in shown


def test_locks_of_a_read_only_file_system_are_not_checked(
    odd_file_systems: dict[str, str],
) -> None:
    shown = odd_file_systems["read-only"]

    assert "nothing can be written here" in shown
    assert "locks were not checked" in shown


def test_file_system_without_room_for_more_files_is_reported(
    odd_file_systems: dict[str, str],
) -> None:
    assert "no more files can be made" in odd_file_systems["few files"]


def test_small_shared_memory_is_reported_with_an_option(
    odd_file_systems: dict[str, str],
) -> None:
    shown = odd_file_systems["shared memory"]

    assert "--shm-size" in shown
    assert "collate_torch need no room" in shown


# Servers and the environment.


class StatusHandler(BaseHTTPRequestHandler):
    """Answers with the status that the path names."""

    def do_GET(self) -> None:
        self.send_response(int(self.path.split("/")[1]))
        self.send_header("Content-Length", "0")
        self.end_headers()

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture
def status_server() -> Iterator[HTTPServer]:
    with HTTPServer(("127.0.0.1", 0), StatusHandler) as server:
        threading.Thread(target=server.serve_forever, args=[0.01], daemon=True).start()
        yield server
        server.shutdown()


@pytest.mark.parametrize("status", [200, 404, 403, 503])
def test_server_that_answers_with_any_status_is_ok(status_server: HTTPServer, status: int) -> None:
    url = f"http://user:secret@127.0.0.1:{status_server.server_port}/{status}/"
    finding = check("server", url)

    assert finding.severity == "ok"
    assert "secret" not in finding.message


@pytest.mark.parametrize(
    ("address", "severity"),
    [(CLOSED, "note"), ("http://nobody.invalid/", "note"), ("kaldir", "problem")],
    ids=["closed port", "unknown host", "no address"],
)
def test_unreachable_server_is_a_note_and_invalid_address_a_problem(
    address: str, severity: str
) -> None:
    assert check("server", address).severity == severity


def test_variables_for_connections_are_listed_without_passwords() -> None:
    environ = {
        "HTTPS_PROXY": "http://me:sec/ret@proxy:3128",
        "http_proxy": "me:sec[ret@proxy",
        "SSL_CERT_FILE": "/x.pem",
        "NCCL_DEBUG": "INFO",
        "no_proxy": "",
    }

    finding = probes.make_check("", probes.check_environment, environ)

    expected = "set: HTTPS_PROXY, SSL_CERT_FILE, http_proxy, NCCL_DEBUG=INFO"
    assert finding == Finding(message=expected, severity="ok")


_CHECK_LOW_LIMITS = """\
import resource
from scannet_prep.doctor import probes
resource.setrlimit(resource.RLIMIT_NOFILE, (256, 512))
resource.setrlimit(resource.RLIMIT_AS, (1 << 30, 1 << 31))
for check in (probes.check_open_files, probes.check_memory):
    print(repr(probes.make_check("", check, {})))
"""


@pytest.fixture(scope="module")
def low_limits() -> list[str]:
    """The checks of open files and of memory in a process with low limits."""
    command = [sys.executable, "-c", _CHECK_LOW_LIMITS]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    return done.stdout.splitlines()


def test_low_limit_of_open_files_is_reported_with_a_command(low_limits: list[str]) -> None:
    files, _ = low_limits

    assert "soft limit 256, hard limit 512" in files
    assert "ulimit -n 65536" in files


def test_low_limit_of_memory_is_reported_with_a_command(low_limits: list[str]) -> None:
    _, memory = low_limits

    assert "too little for several workers" in memory
    assert "ulimit -v unlimited" in memory


# The ranks of a job.


def test_ddp_outside_a_job_is_refused_with_the_command(
    whole_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("RANK", "WORLD_SIZE"):
        monkeypatch.delenv(name, raising=False)

    outcome = run_main("doctor", "--ddp", whole_dir / "processed")

    assert outcome.status == 2
    assert "torchrun --nproc_per_node=2" in outcome.stderr


def run_doctor_rank(out_dir: Path, *words: str) -> None:
    """Run `doctor --ddp` as one rank; `{rank}` in the words becomes its number.

    Files in `out_dir` control rank 1: `late` delays it, `lost` stops it, and with `bad network`
    its all-reduce fails.
    """
    rank = os.environ["RANK"]
    if rank == "1":
        if (out_dir / "bad network").exists():
            os.environ["GLOO_SOCKET_IFNAME"] = "eth77"
        if (out_dir / "late").exists():
            time.sleep(8)  # the first rank may be late, too, on a busy machine
        if (out_dir / "lost").exists():
            time.sleep(1000)
    arguments = [word.replace("{rank}", rank) for word in words]
    sys.exit(main(["doctor", "--ddp", *arguments]))


def run_doctor_ranks(
    tmp_path: Path, *words: str, count: int = 2
) -> tuple[list[int | None], list[str]]:
    """Run `doctor --ddp` on several ranks, and return their exit statuses and outputs."""
    # Imported here: it needs PyTorch.
    from test_distributed import run_ranks

    statuses = run_ranks(run_doctor_rank, tmp_path, *words, count=count)
    outputs = [(tmp_path / f"output{rank}.txt").read_text() for rank in range(count)]
    return statuses, outputs


@pytest.fixture(scope="module")
def late_rank(
    training_folder: Path, tmp_path_factory: pytest.TempPathFactory
) -> tuple[list[int | None], list[str]]:
    """Statuses and outputs of two ranks that agree, of which the second is late."""
    out_dir = tmp_path_factory.mktemp("late")
    (out_dir / "late").touch()
    return run_doctor_ranks(out_dir, str(training_folder), "--json")


@pytest.mark.extra("torch")
def test_ranks_that_agree_have_no_problems(late_rank: tuple[list[int | None], list[str]]) -> None:
    statuses, outputs = late_rank

    checks = json.loads(outputs[0])["checks"]

    results = [(check["path"], check["severity"]) for check in checks]
    assert statuses == [0, 0]
    assert [result for result in results if result[1] != "note"] == [
        ("ranks", "ok"),
        ("agreement", "ok"),
        ("all-reduce", "ok"),
    ]


@pytest.mark.extra("torch")
def test_only_rank_0_prints_on_standard_output(
    late_rank: tuple[list[int | None], list[str]],
) -> None:
    _, outputs = late_rank
    assert outputs[1] == ""


@pytest.mark.extra("torch")
def test_late_rank_is_reported(late_rank: tuple[list[int | None], list[str]]) -> None:
    _, outputs = late_rank
    assert re.search(r"rank 1 \(.*\) is slow: it was ready [1-9]", outputs[0])


@pytest.mark.extra("torch")
def test_facts_on_which_ranks_agree_are_shown(
    late_rank: tuple[list[int | None], list[str]],
) -> None:
    _, outputs = late_rank
    agreement = json.loads(outputs[0])["checks"][-2]["message"]

    pattern = (
        r"digest of the scenes \w+, numpy .*, steps of the epoch [1-9]\d*, plan of the epoch \w"
    )
    assert re.search(pattern, agreement)


@pytest.fixture(scope="module")
def disagreeing_ranks(
    training_folder: Path, tmp_path_factory: pytest.TempPathFactory
) -> tuple[list[int | None], list[str]]:
    """Statuses and outputs of four ranks: two alike, one without scenes, one with other scenes."""
    out_dir = tmp_path_factory.mktemp("disagreeing")
    copy_dir = out_dir / "copy"
    shutil.copytree(training_folder, copy_dir)
    # Processed without faces.
    other_dir = out_dir / "other"
    raw_dir = training_folder.parent / "ScanNet"
    assert run_main("process", raw_dir, "-o", other_dir).status == 0
    for rank, target in enumerate((training_folder, copy_dir, out_dir / "none", other_dir)):
        (out_dir / f"place{rank}").symlink_to(target)
    return run_doctor_ranks(out_dir, "place{rank}", count=4)


@pytest.mark.extra("torch")
def test_rank_that_cannot_read_its_scenes_is_named(
    disagreeing_ranks: tuple[list[int | None], list[str]],
) -> None:
    statuses, outputs = disagreeing_ranks

    pattern = r"^problem: ranks: rank 2 \(.*, process \d+\): place2: is a link that leads nowhere$"
    assert 3 in statuses
    assert re.search(pattern, outputs[0], re.MULTILINE), outputs


@pytest.mark.extra("torch")
def test_rank_with_other_scenes_is_named(
    disagreeing_ranks: tuple[list[int | None], list[str]],
) -> None:
    _, outputs = disagreeing_ranks

    pattern = r"^problem: agreement: rank 3 \(.*\): digest of the scenes: \w+; 2 ranks have \w+$"
    assert re.search(pattern, outputs[0], re.MULTILINE), outputs


@pytest.mark.extra("torch")
def test_other_ranks_print_nothing_about_a_rank_with_problems(
    disagreeing_ranks: tuple[list[int | None], list[str]],
) -> None:
    _, outputs = disagreeing_ranks
    assert outputs[1:] == ["", "", ""]


@pytest.mark.extra("torch")
def test_ranks_that_disagree_make_no_all_reduce(
    disagreeing_ranks: tuple[list[int | None], list[str]],
) -> None:
    _, outputs = disagreeing_ranks
    assert "all-reduce" not in outputs[0]


@pytest.mark.extra("torch")
def test_rank_whose_all_reduce_fails_is_named(training_folder: Path, tmp_path: Path) -> None:
    (tmp_path / "bad network").touch()

    statuses, outputs = run_doctor_ranks(tmp_path, str(training_folder), "--timeout", "5")

    assert 3 in statuses
    assert re.search(r"^problem: all-reduce: rank 1 .*eth77", outputs[0], re.MULTILINE), outputs


@pytest.mark.extra("torch")
def test_rank_that_does_not_reach_rank_0_under_torchrun_is_named(
    training_folder: Path, tmp_path: Path
) -> None:
    from test_distributed import read_output, run_ranks, run_torchrun

    (tmp_path / "lost").touch()
    words = [str(training_folder), "--timeout", "4"]
    script = f"import pathlib, test_doctor\ntest_doctor.run_doctor_rank(pathlib.Path(), *{words})\n"
    (tmp_path / "rank.py").write_text(script)

    statuses = run_ranks(run_torchrun, tmp_path, "rank.py", count=1)

    output = read_output(tmp_path)
    # The status of torchrun itself, whatever those of its ranks are.
    assert statuses == [1]
    assert (
        "problem: ranks: rank 1 is missing: it has not reached rank 0\n  to do: start it" in output
    )
    assert "rank 0 is missing" not in output
    assert "all-reduce" not in output
