"""`scannet-prep doctor`: what it finds, that nothing that hangs keeps it, and what it says of the ranks of a job."""

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
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from commands import COMMAND, Outcome, run_command, run_main
from test_cli import run_on_terminal

from scannet_prep.cli.main import main
from scannet_prep.processed.folder import find_state, mark_unfinished
from scannet_prep.stages.doctor import probes
from scannet_prep.stages.doctor.check import Check

TOPICS = [
    "versions", "cores", "memory", "shared memory", "open files", "environment",
    "folder", "scenes", "server", "GPU",
]  # fmt: skip
CLOSED = "http://127.0.0.1:9/"  # nobody listens there


def look(topic: str, argument: Path | str) -> Check:
    """Make one check that may hang, here."""
    return probes.make_check(topic, probes.PROBES[topic], str(argument))


@pytest.fixture
def stub_dir(tmp_path: Path) -> Path:
    """A torch that is imported at once; a test may put another one there."""
    (tmp_path / "stubs/torch").mkdir(parents=True)
    (tmp_path / "stubs/torch/__init__.py").write_text(
        "raise OSError('libcuda.so is of another version')\n"
    )
    return tmp_path / "stubs"


def consult(*words: str | Path, stub_dir: Path, **variables: str) -> tuple[Outcome, dict[str, Any]]:
    """Run the command; gives its findings by topic, too."""
    inherited = {"SCANNET_PREP_BASE_URL": CLOSED, **os.environ, **variables}
    path = os.pathsep.join([str(stub_dir), os.environ.get("PYTHONPATH", "")])
    outcome = run_command("doctor", *words, "--json", environment=inherited | {"PYTHONPATH": path})
    checks = outcome.json["checks"]
    assert [check["topic"] for check in checks] == [
        topic for topic in TOPICS if topic in {c["topic"] for c in checks}
    ]
    for check in checks:
        assert check["severity"] in {"ok", "note", "problem"}
        assert check["severity"] != "problem" or check["hint"]
    has_problems = any(check["severity"] == "problem" for check in checks)
    assert outcome.json["exit_status"] == outcome.status == (3 if has_problems else 0)
    return outcome, {check["topic"]: check for check in checks}


def test_findings_of_a_whole_folder_are_one_screen_and_one_object(
    whole_dir: Path, stub_dir: Path
) -> None:
    _, found = consult(whole_dir / "processed", stub_dir=stub_dir)
    assert list(found) == TOPICS
    assert found["scenes"]["message"].endswith("3 processed scenes")
    assert (found["scenes"]["severity"], "locks work" in found["folder"]["message"]) == ("ok", True)
    assert (
        f"python {sys.version.split()[0]}, numpy {np.__version__}" in found["versions"]["message"]
    )
    assert f"of {os.cpu_count()} may be used" in found["cores"]["message"]
    assert (
        f"soft limit {resource.getrlimit(resource.RLIMIT_NOFILE)[0]:,}"
        in found["open files"]["message"]
    )
    assert (
        found["server"]["severity"],
        "refuses the connection" in found["server"]["message"],
    ) == ("note", True)
    assert "libcuda.so is of another version" in found["GPU"]["message"]
    assert list((whole_dir / "processed").glob(".*doctor*")) == []


@pytest.mark.parametrize("columns", [60, 100])
def test_findings_are_one_screen_of_lines_without_the_passwords_of_addresses(
    stub_dir: Path, tmp_path: Path, columns: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    place, url, proxy = (
        f"http://me:{word}@127.0.0.1:9/" for word in ("se/cret", "se[cret", "se@cret")
    )
    monkeypatch.setenv("SCANNET_PREP_BASE_URL", url)
    monkeypatch.setenv("HTTP_PROXY", proxy)
    monkeypatch.setenv(
        "PYTHONPATH", os.pathsep.join([str(stub_dir), os.environ.get("PYTHONPATH", "")])
    )
    monkeypatch.chdir(tmp_path)
    words = [f"{place}x.tar.zst"] if columns == 100 else []
    status, shown = run_on_terminal([*COMMAND, "doctor", *words], columns)
    lines = shown.replace("\r", "").splitlines()
    assert re.fullmatch(r"(no|\d+) problems?, (no|\d+) notes?, in .*", lines[-1])
    assert len(lines) < (28 if columns == 100 else 48)
    assert ("scenes: data/processed is not there" in shown) == (not words)  # the default folder
    assert (status, "cret" in shown) == (3, False)


def test_a_file_system_that_never_answers_is_a_finding(tmp_path: Path, stub_dir: Path) -> None:
    """A FUSE file system whose server reads no request."""
    folder, libc = tmp_path / "hangs", ctypes.CDLL(None, use_errno=True)
    folder.mkdir()
    try:
        device = os.open("/dev/fuse", os.O_RDWR)
    except OSError as error:
        pytest.skip(f"/dev/fuse: {error.strerror}")
    options = f"fd={device},rootmode=40000,user_id={os.getuid()},group_id={os.getgid()}"
    if libc.mount(b"hangs", os.fsencode(folder), b"fuse", 0, options.encode()):
        os.close(device)
        pytest.skip(f"mount: {os.strerror(ctypes.get_errno())}")
    try:
        (stub_dir / "torch/__init__.py").write_text("import time\ntime.sleep(1000)\n")
        with socket.create_server(("127.0.0.1", 0)) as silent:
            url = f"http://127.0.0.1:{silent.getsockname()[1]}/"
            _, found = consult(folder / "processed", stub_dir=stub_dir, SCANNET_PREP_BASE_URL=url)
    finally:
        libc.umount2(os.fsencode(folder), 2)
        os.close(device)
    hanging = {
        topic: check["severity"] for topic, check in found.items() if "answer" in check["message"]
    }
    gpu = "problem" if list(Path("/dev").glob("nvidia[0-9]*")) else "note"
    assert hanging == {"folder": "problem", "scenes": "problem", "server": "note", "GPU": gpu}
    assert "nvidia-smi" in found["GPU"]["hint"]


def test_an_interrupted_check_up_leaves_no_process(tmp_path: Path, stub_dir: Path) -> None:
    mark = tmp_path / "started"
    (stub_dir / "torch/__init__.py").write_text(
        f"import os, time\nopen({str(mark)!r}, 'w').write(str(os.getpid()))\n"
    )
    with (stub_dir / "torch/__init__.py").open("a") as file:
        file.write("time.sleep(1000)\n")
    environment = {**os.environ, "SCANNET_PREP_BASE_URL": CLOSED}
    environment["PYTHONPATH"] = os.pathsep.join([str(stub_dir), os.environ.get("PYTHONPATH", "")])
    process = subprocess.Popen(
        [*COMMAND, "doctor"], env=environment, cwd=tmp_path, stderr=subprocess.PIPE
    )
    while not (mark.exists() and mark.read_text()):
        assert process.poll() is None
        time.sleep(0.02)
    time.sleep(0.2)  # until Popen, which such a child can be faster than, has come back
    process.terminate()
    assert process.communicate(timeout=30)[1] == b"interrupted: run the same command again\n"
    assert process.returncode == 130
    with pytest.raises(ProcessLookupError):
        os.kill(int(mark.read_text()), 0)


def test_what_is_wrong_with_a_folder_is_what_every_command_says(
    out_dir: Path, raw_dir: Path, archive_path: Path
) -> None:
    assert look("scenes", raw_dir).message == f"{raw_dir}: 3 raw scenes"
    assert look("scenes", archive_path).message == f"{archive_path}: 3 processed scenes"
    mark_unfinished(out_dir, ["scene0000_00"])
    (fault,) = find_state(out_dir).faults
    assert look("scenes", out_dir) == Check("scenes", fault.message, "problem", fault.hint)
    (out_dir / "manifest.json").write_text("{")
    assert look("scenes", out_dir).severity == "problem"
    archive_path.write_bytes(archive_path.read_bytes()[:-40])
    assert look("scenes", archive_path).severity == "problem"
    (raw_dir / "failed.txt").write_text("scene0000_00\n")
    found = look("scenes", raw_dir)
    assert (found.severity, found.message.endswith("failed: 1, such as scene0000_00")) == (
        "problem",
        True,
    )
    nothing = look("scenes", out_dir / "none")
    assert (nothing.severity, "no such folder" in nothing.message, bool(nothing.hint)) == (
        "problem",
        True,
        True,
    )


def test_missing_and_truncated_scenes_of_a_folder_are_a_problem(out_dir: Path) -> None:
    train, val = out_dir / "train/scene0000_00.npz", out_dir / "val/scene0011_00.npz"
    size_bytes = train.stat().st_size
    os.truncate(train, 5000)
    found = look("scenes", out_dir)
    assert found.severity == "problem"
    assert (
        f"another size than in the manifest: 1, such as {train} (5,000 bytes, expected {size_bytes:,})"
        in found.message
    )
    val.unlink()
    found = look("scenes", out_dir)
    assert f"missing: 1, such as {val}" in found.message
    assert f"scannet-prep verify {out_dir} names all of them" in found.hint


@pytest.mark.parametrize("cut", [-1, -5000, 3000])
def test_truncated_archive_is_a_problem(cut: int, archive_path: Path) -> None:
    archive_path.write_bytes(archive_path.read_bytes()[:cut])
    assert look("scenes", archive_path).severity == "problem"


def test_archive_that_lacks_bytes_in_the_middle_is_a_problem(archive_path: Path) -> None:
    data = archive_path.read_bytes()
    archive_path.write_bytes(data[:5000] + data[5100:])
    assert look("scenes", archive_path).severity == "problem"


def test_without_a_place_the_default_folder_counts_if_it_is_there(
    whole_dir: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    found = look("scenes", "")
    assert (found.severity, found.message) == ("note", "data/processed is not there")
    assert look("folder", "").message.startswith(f"{tmp_path}: ")
    shutil.copytree(whole_dir / "processed", "data/processed")
    assert look("scenes", "") == look("scenes", "data/processed")


def test_locks_that_keep_nobody_out_are_a_problem(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert "locks work" in look("folder", tmp_path).message
    monkeypatch.setattr(fcntl, "flock", lambda *_: None)  # as file systems with `nolock` do
    found = look("folder", tmp_path)
    assert (found.severity, "was not kept out" in found.message) == ("problem", True)
    assert list(tmp_path.iterdir()) == []


def in_mount_namespace(setup: str, *words: str) -> subprocess.CompletedProcess[str]:
    prefix = (
        ["unshare", "--mount"]
        if os.geteuid() == 0
        else ["unshare", "--user", "--map-root-user", "--mount"]
    )
    if (
        shutil.which("unshare") is None
        or subprocess.run([*prefix, "true"], capture_output=True, check=False).returncode
    ):
        pytest.skip("no mount namespaces here (unshare --mount)")
    return subprocess.run(
        [*prefix, "sh", "-c", f'{setup} && exec "$@"', "sh", *words],
        capture_output=True,
        text=True,
        check=True,
    )


def test_full_read_only_and_small_file_systems_are_told_with_what_to_do(tmp_path: Path) -> None:
    names = ("full", "fixed", "files")
    for name in names:
        (tmp_path / name).mkdir()
    setup = (
        f"mount -t tmpfs -o size=1m none {tmp_path}/full && mount -t tmpfs -o ro none {tmp_path}/fixed && "
        f"mount -t tmpfs -o nr_inodes=9 none {tmp_path}/files && mount -t tmpfs -o size=64m none /dev/shm"
    )
    code = (
        "import sys\nfrom scannet_prep.stages.doctor import probes\n"
        "for name in sys.argv[1:]:\n    print(probes.make_check('', probes.check_folder, name))\n"
        "print(probes.make_check('', probes.check_shared_memory, {}))\n"
    )
    paths = [str(tmp_path / name) for name in names]
    full, fixed, files, shared = in_mount_namespace(
        setup, sys.executable, "-c", code, *paths
    ).stdout.splitlines()
    assert "problem" in full
    assert "it is full" in full
    assert "tmpfs" in full
    assert "nothing can be written here" in fixed
    assert "no more files can be made" in files
    assert "locks were not tried" in fixed
    assert "--shm-size" in shared
    assert "collate_torch need no room" in shared


class Answering(BaseHTTPRequestHandler):
    def do_HEAD(self) -> None:
        self.send_response(int(self.path.split("/")[1]))
        self.send_header("Content-Length", "0")
        self.end_headers()

    def log_message(self, *_: object) -> None:
        pass


def test_a_server_that_answers_anything_is_reachable_and_passwords_never_show() -> None:
    with HTTPServer(("127.0.0.1", 0), Answering) as server:
        threading.Thread(target=server.serve_forever, args=[0.01], daemon=True).start()
        for status in (200, 404, 403, 503):
            found = look("server", f"http://user:secret@127.0.0.1:{server.server_port}/{status}/")
            assert (found.severity, "secret" in found.message) == ("ok", False)
        server.shutdown()


def test_a_server_that_is_not_there_is_a_note_and_an_address_that_is_none_a_problem() -> None:
    assert look("server", CLOSED).severity == "note"
    assert look("server", "http://nobody.invalid/").severity == "note"
    assert look("server", "kaldir").severity == "problem"


def test_variables_that_lead_connections_elsewhere_show_without_passwords() -> None:
    proxies = {"HTTPS_PROXY": "http://me:sec/ret@proxy:3128", "http_proxy": "me:sec[ret@proxy"}
    others = {"SSL_CERT_FILE": "/x.pem", "NCCL_DEBUG": "INFO", "no_proxy": ""}
    found = probes.make_check("", probes.check_environment, proxies | others)
    assert found == Check("", "set: HTTPS_PROXY, SSL_CERT_FILE, http_proxy, NCCL_DEBUG=INFO")


def test_little_memory_few_files_and_a_limit_of_addresses_say_what_to_type() -> None:
    code = (
        "import resource\nfrom scannet_prep.stages.doctor import probes\n"
        "resource.setrlimit(resource.RLIMIT_NOFILE, (256, 512))\n"
        "resource.setrlimit(resource.RLIMIT_AS, (1 << 30, 1 << 31))\n"
        "for check in (probes.check_open_files, probes.check_memory):\n    print(probes.make_check('', check, {}))\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    files, memory = done.stdout.splitlines()
    assert "soft limit 256, hard limit 512" in files
    assert "ulimit -n 65536" in files
    assert "too little for several workers" in memory
    assert "ulimit -v unlimited" in memory


def test_ddp_outside_a_job_says_how_to_start_it(
    whole_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("RANK", "WORLD_SIZE"):
        monkeypatch.delenv(name, raising=False)
    outcome = run_main("doctor", "--ddp", whole_dir / "processed")
    assert (outcome.status, "torchrun --nproc_per_node=2" in outcome.stderr) == (2, True)


def be_consulted(out_dir: Path, *words: str) -> None:
    """What each rank does; `{rank}` in the words is its number."""
    if os.environ["RANK"] == "1":
        if (out_dir / "lame").exists():
            os.environ["GLOO_SOCKET_IFNAME"] = "eth77"
        time.sleep(4 * (out_dir / "late").exists() + 1000 * (out_dir / "lost").exists())
    sys.exit(
        main(["doctor", "--ddp", *(word.replace("{rank}", os.environ["RANK"]) for word in words)])
    )


def consult_ranks(
    tmp_path: Path, *words: str, count: int = 2
) -> tuple[list[int | None], list[str]]:
    from test_distributed import run_ranks  # without PyTorch, the test is skipped here

    statuses = run_ranks(be_consulted, tmp_path, *words, count=count)
    return statuses, [(tmp_path / f"output{rank}.txt").read_text() for rank in range(count)]


@pytest.mark.torch
def test_ranks_that_agree_and_a_late_one_are_told_by_rank_0_alone_as_one_object(
    training_folder: Path, tmp_path: Path
) -> None:
    (tmp_path / "late").touch()
    statuses, (first, *others) = consult_ranks(tmp_path, str(training_folder), "--json")
    assert (statuses, others) == ([0, 0], [""])
    value = json.loads(first)
    assert [(check["topic"], check["severity"]) for check in value["checks"] if check["severity"] != "note"] == [
        ("ranks", "ok"), ("agreement", "ok"), ("all-reduce", "ok"),
    ]  # fmt: skip
    assert re.search(r"rank 1 \(.*\) is slow: it was ready [1-9]", json.dumps(value["checks"]))
    agreed = value["checks"][-2]["message"]
    assert re.search(
        r"digest of the scenes \w+, numpy .*, steps of the epoch [1-9]\d*, plan of the epoch \w",
        agreed,
    )


@pytest.mark.torch
def test_a_rank_that_cannot_read_is_named_by_rank_0_alone(
    training_folder: Path, folder: Path, tmp_path: Path
) -> None:
    other_dir = tmp_path / "other"
    assert (
        run_main("process", training_folder.parent / "ScanNet", "-o", other_dir).status == 0
    )  # without faces
    for number, target in enumerate((training_folder, folder, tmp_path / "none", other_dir)):
        (tmp_path / f"place{number}").symlink_to(target)
    statuses, outputs = consult_ranks(tmp_path, "place{rank}", count=4)
    assert 3 in statuses
    named = r"^problem: ranks: rank 2 \(.*, process \d+\): place2: no such folder\n  to do: "
    different = r"^problem: agreement: rank 3 \(.*\): digest of the scenes: \w+; 2 ranks have \w+$"
    for pattern in (named, different):
        assert re.search(pattern, outputs[0], re.MULTILINE), outputs
    assert outputs[1:] == ["", "", ""]
    assert "all-reduce" not in outputs[0]


@pytest.mark.torch
def test_an_all_reduce_that_one_rank_cannot_make_is_told_with_its_rank(
    training_folder: Path, tmp_path: Path
) -> None:
    (tmp_path / "lame").touch()
    statuses, outputs = consult_ranks(tmp_path, str(training_folder), "--timeout", "5")
    assert 3 in statuses
    assert re.search(r"^problem: all-reduce: rank 1 .*eth77", outputs[0], re.MULTILINE), outputs


@pytest.mark.torch
def test_torchrun_with_a_rank_that_never_comes_names_it(
    training_folder: Path, tmp_path: Path
) -> None:
    from test_distributed import read_output, run_ranks, run_torchrun

    (tmp_path / "lost").touch()
    words = [str(training_folder), "--timeout", "4"]
    (tmp_path / "rank.py").write_text(
        f"import pathlib, test_doctor\ntest_doctor.be_consulted(pathlib.Path(), *{words})\n"
    )
    assert run_ranks(run_torchrun, tmp_path, "rank.py", count=1) == [
        1
    ]  # torchrun's own, whatever its ranks end with
    output = read_output(tmp_path)
    assert "problem: ranks: rank 1 is missing: it never came\n  to do: was it started" in output
    assert "rank 0 is missing" not in output
    assert "all-reduce" not in output
