"""Tests of `scannet-prep doctor`: its checks, odd file systems, and the ranks of a job."""

import ctypes
import fcntl
import json
import multiprocessing
import os
import shutil
import socket
import subprocess
import sys
import threading
import time
from http.server import BaseHTTPRequestHandler, HTTPServer

import pytest
from commands import TRAIN, leave_unfinished, run_command, run_main, run_words

from scannet_prep import doctor
from scannet_prep.errors import FileError
from scannet_prep.processed.manifest import check_complete, read_manifest

TOPICS = [
    "versions", "cores", "memory", "shared memory", "open files", "environment", "folder",
    "scenes", "server", "GPU",
]  # fmt: skip
# No server listens at this address.
CLOSED = "http://127.0.0.1:9/"


def check_by_topic(place, base_url=CLOSED):
    """Make all checks but that of the GPU, because importing PyTorch is slow."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(doctor, "check_gpu", doctor.check_open_files)
        findings = doctor.check_machine(str(place), os.environ, base_url)
    return {finding.subject: finding for finding in findings}


def test_doctor_shows_a_line_for_each_check_and_no_password(whole_dir, tmp_path):
    (tmp_path / "torch").mkdir()
    (tmp_path / "torch/__init__.py").write_text("raise OSError('libcuda.so is too old')\n")
    variables = {
        "PYTHONPATH": os.pathsep.join([str(tmp_path), os.environ.get("PYTHONPATH", "")]),
        "SCANNET_PREP_BASE_URL": "http://me:se[cret@127.0.0.1:9/",
        "HTTP_PROXY": "http://me:se@cret@127.0.0.1:9/",
        "https_proxy": "me:sec/cret@proxy",
        "NCCL_DEBUG": "INFO",
    }
    place = whole_dir / "processed"

    as_json = run_command("doctor", place, "--json", environment=os.environ | variables)
    as_text = run_command(
        "doctor", "http://me:se/cret@127.0.0.1:9/x.tar.zst", environment=os.environ | variables
    )
    empty = run_command("doctor", environment=os.environ | variables, cwd=tmp_path)

    checks = {check["path"]: check for check in as_json.json["checks"]}
    assert list(checks) == TOPICS
    assert (as_json.status, as_json.json["exit_status"]) == (3, 3)
    assert checks["scenes"]["message"] == f"{place}: 3 scenes (processed)"
    assert f"python {sys.version.split()[0]}, numpy " in checks["versions"]["message"]
    assert f"of {os.cpu_count()} may be used" in checks["cores"]["message"]
    assert "locks work" in checks["folder"]["message"]
    assert {"HTTP_PROXY", "NCCL_DEBUG=INFO", "https_proxy"} <= set(
        checks["environment"]["message"].removeprefix("set: ").split(", ")
    )
    assert checks["server"]["severity"] == "problem"
    assert checks["GPU"]["severity"] == "problem"
    assert "libcuda.so is too old" in checks["GPU"]["message"]
    assert not list(place.glob(".*"))

    lines = as_text.stdout.splitlines()
    shown = [line.split(": ")[1] for line in lines if line.startswith(("ok", "note", "problem"))]
    assert shown == [topic for topic in TOPICS if topic != "folder"]
    assert "problem: scenes: http://...: cannot be requested" in as_text.stdout
    assert "  to do: export SCANNET_PREP_BASE_URL=https://HOST/scannet/" in as_text.stdout
    assert "problems, in " in lines[-1]
    for output in (as_json, as_text):
        assert "cret" not in output.stdout + output.stderr
    assert f"folder: {tmp_path}: " in empty.stdout
    assert "scenes:" not in empty.stdout


def test_scenes_are_counted_and_faults_of_the_place_are_problems(
    raw_dir, out_dir, archive_path, tmp_path
):
    truncated = tmp_path / "truncated.tar.zst"
    truncated.write_bytes(archive_path.read_bytes()[:-40])
    damaged = shutil.copytree(out_dir, tmp_path / "damaged")
    (damaged / "manifest.json").write_text("{")
    leave_unfinished(out_dir, TRAIN)
    with pytest.raises(FileError) as fault:
        check_complete(read_manifest(out_dir), out_dir)

    raw = check_by_topic(raw_dir)["scenes"]
    archive = check_by_topic(archive_path)
    unfinished = check_by_topic(out_dir)["scenes"]
    others = [check_by_topic(place)["scenes"] for place in (truncated, damaged, tmp_path / "none")]

    assert (raw.severity, raw.message) == ("ok", f"{raw_dir}: 3 scenes (raw)")
    assert archive["scenes"].message == f"{archive_path}: 3 scenes (archive)"
    assert archive["folder"].message.startswith(f"{tmp_path}: ")
    assert unfinished.severity == "problem"
    assert (unfinished.message, unfinished.hint) == (fault.value.message, fault.value.hint)
    assert [finding.severity for finding in others] == ["problem"] * 3
    assert all(finding.message and finding.hint for finding in others)


def test_scene_that_failed_is_a_problem(raw_dir, tmp_path):
    (raw_dir / f"scans/{TRAIN}/{TRAIN}_vh_clean_2.ply").write_bytes(b"ply\n")
    assert run_main("process", raw_dir, "-o", tmp_path / "out").status == 3

    finding = check_by_topic(tmp_path / "out")["scenes"]

    assert finding.severity == "problem"
    assert TRAIN in finding.message


def test_locks_that_keep_nobody_out_are_a_problem(tmp_path, monkeypatch):
    # File systems with `nolock` accept every lock.
    monkeypatch.setattr(fcntl, "flock", lambda *_: None)

    finding = check_by_topic(tmp_path)["folder"]

    assert finding.severity == "problem"
    assert "a second run is not kept out" in finding.message
    assert not list(tmp_path.iterdir())


def test_file_system_that_hangs_is_a_problem_and_other_checks_are_made(tmp_path, monkeypatch):
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
    monkeypatch.setattr(doctor, "TIME_LIMIT_S", 2.0)

    checks = check_by_topic(folder / "processed")
    libc.umount2(os.fsencode(folder), 2)
    os.close(device)

    hanging = [topic for topic, finding in checks.items() if "no answer" in finding.message]
    assert hanging == ["folder", "scenes"]
    assert {checks[topic].severity for topic in hanging} == {"problem"}
    assert list(checks) == TOPICS


CHECK_FOLDERS = """\
import sys
from pathlib import Path
from scannet_prep import doctor
for name in sys.argv[1:]:
    print(repr(doctor.check_folder(Path(name))))
print(repr(doctor.check_shared_memory()))
"""


def test_full_and_read_only_file_systems_and_small_shared_memory_are_reported(tmp_path):
    prefix = ["unshare", "--mount"]
    if os.geteuid() != 0:
        prefix[1:1] = ["--user", "--map-root-user"]
    if shutil.which("unshare") is None:
        pytest.skip("this machine has no unshare")
    if subprocess.run([*prefix, "true"], capture_output=True, check=False).returncode != 0:
        pytest.skip("this machine has no mount namespaces (unshare --mount)")
    (tmp_path / "full").mkdir()
    (tmp_path / "closed").mkdir()
    setup = (
        "mount -t tmpfs -o size=64m none /dev/shm && mount -t tmpfs -o size=1m none full && "
        'mount -t tmpfs -o ro none closed && exec "$@"'
    )
    words = [*prefix, "sh", "-c", setup, "sh", sys.executable, "-c", CHECK_FOLDERS]

    done = run_words(*words, "full", "closed", cwd=tmp_path)

    assert done.status == 0, done.stderr
    full, closed, shared_memory = done.stdout.splitlines()
    assert "tmpfs, " in full
    assert "it is full" in full
    assert "severity='problem'" in full
    assert "nothing can be written here" in closed
    assert "severity='note'" in closed
    assert "--shm-size" in shared_memory
    assert "collate_torch need none of it" in shared_memory


CHECK_LIMITS = """\
import resource
from scannet_prep import doctor
resource.setrlimit(resource.RLIMIT_NOFILE, (256, 512))
print(repr(doctor.check_open_files()))
"""


def test_low_limits_are_reported_with_commands():
    done = subprocess.run(
        [sys.executable, "-c", CHECK_LIMITS], capture_output=True, text=True, check=True
    )

    files = done.stdout
    assert "soft limit 256, hard limit 512" in files
    assert "ulimit -n 65536" in files


class StatusHandler(BaseHTTPRequestHandler):
    """Answers with the status that the path names."""

    def do_GET(self):
        self.send_response(int(self.path.split("/")[1]))
        self.send_header("Content-Length", "0")
        self.end_headers()

    def log_message(self, *_):
        pass


def test_server_is_there_if_it_answers_whatever_the_status():
    with HTTPServer(("127.0.0.1", 0), StatusHandler) as server:
        threading.Thread(target=server.serve_forever, args=[0.01], daemon=True).start()
        url = f"http://me:secret@127.0.0.1:{server.server_port}"
        findings = [doctor.check_server(f"{url}/{status}/") for status in (200, 403, 404, 503)]
        server.shutdown()

    assert {finding.severity for finding in findings} == {"ok"}
    assert not any("secret" in finding.message for finding in findings)
    assert doctor.check_server(CLOSED).severity == "note"
    assert doctor.check_server("http://nobody.invalid/").severity == "note"
    assert doctor.check_server("kaldir").severity == "problem"


def test_ddp_outside_a_job_is_refused_with_the_command(whole_dir, monkeypatch):
    monkeypatch.delenv("RANK", raising=False)
    pytest.importorskip("torch", reason="this machine has no PyTorch")

    outcome = run_main("doctor", "--ddp", whole_dir / "processed")

    assert outcome.status == 2
    assert "torchrun --nproc_per_node=2" in outcome.stderr


def be_rank(rank, port, place, output_path, delay_s):
    """Run `doctor --ddp` as one of two ranks, which opens its scenes late."""
    from scannet_prep.cli.main import main
    from scannet_prep.training import dataset

    variables = {"RANK": rank, "WORLD_SIZE": 2, "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
    os.environ |= {name: str(value) for name, value in variables.items()}
    sys.stdout = sys.stderr = output_path.open("w", buffering=1)
    open_dataset = dataset.ScanNet

    def open_late(*arguments, **options):
        time.sleep(delay_s)
        return open_dataset(*arguments, **options)

    dataset.ScanNet = open_late
    sys.exit(main(["doctor", "--ddp", str(place), "--timeout", "4", "--json"]))


def run_ranks(tmp_path, places, delay_s=0.0):
    """Run `doctor --ddp` on a rank for each place; the last one opens it late.

    The processes are forked from a server that has imported torch (see conftest.py).
    """
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    context = multiprocessing.get_context("forkserver")
    paths = [tmp_path / f"rank{rank}.txt" for rank in range(len(places))]
    ranks = []
    for rank, place in enumerate(places):
        delay = delay_s if rank == len(places) - 1 else 0.0
        ranks.append(context.Process(target=be_rank, args=(rank, port, place, paths[rank], delay)))
        ranks[-1].start()
    ranks[0].join()
    for process in ranks:
        process.join(20)
        process.kill()
    return ranks[0].exitcode, [path.read_text() for path in paths]


@pytest.mark.extra("torch")
def test_ranks_that_agree_add_numbers_and_others_are_named(training_folder, tmp_path):
    other_dir = tmp_path / "other"
    raw_dir = training_folder.parent / "ScanNet"
    assert run_main("process", raw_dir, "-o", other_dir, "--faces").status == 0

    agree = run_ranks(tmp_path, [training_folder, training_folder])
    unreadable = run_ranks(tmp_path, [training_folder, tmp_path / "none"])
    different = run_ranks(tmp_path, [training_folder, other_dir])
    missing = run_ranks(tmp_path, [training_folder])
    late = run_ranks(tmp_path, [training_folder, training_folder], delay_s=6)

    status, outputs = agree
    checks = json.loads(outputs[0])["checks"]
    assert status == 0, outputs
    assert [(check["path"], check["severity"]) for check in checks] == [
        ("ranks", "ok"),
        ("all-reduce", "ok"),
    ]
    assert "rank 1 on " in checks[0]["message"]
    assert "the same 8 scenes, 1 step in an epoch" in checks[0]["message"]
    assert "67.1 MB on cpu in " in checks[1]["message"]

    for (status, outputs), text in (
        (unreadable, f"{tmp_path / 'none'}: no such file or folder"),
        (different, "rank 1 has "),
        (missing, "1/2 clients joined"),
        (late, "Ranks 1 failed to pass monitoredBarrier"),
    ):
        (check,) = json.loads(outputs[0].splitlines()[-1])["checks"]
        assert status == 3
        assert (check["path"], check["severity"]) == ("ranks", "problem")
        assert text in check["message"], check
        assert check["hint"]
