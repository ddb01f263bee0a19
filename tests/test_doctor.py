"""Tests of `scannet-prep doctor`: its checks, odd file systems, and the ranks of a job."""

import ctypes
import fcntl
import json
import os
import shutil
import sys

import pytest
from commands import TRAIN, leave_unfinished, run_command, run_main, run_words, succeed
from release_server import ReleaseServer, Status, at
from training import run_ranks

from scannet_prep import doctor
from scannet_prep.errors import FileError
from scannet_prep.source.place import open_place

TOPICS = [
    "versions", "cores", "memory", "shared memory", "open files", "environment", "folder",
    "scenes", "server", "GPU"
]  # fmt: skip
# PyTorch, as far as doctor asks it, on a machine with a GPU and without NCCL.
TORCH = """
from types import SimpleNamespace
__version__ = "2.13.0"
version = SimpleNamespace(cuda="13.0")
cuda = SimpleNamespace(
    is_available=lambda: True, device_count=lambda: 2, get_device_name=lambda: "A100"
)
"""
# No server listens at this address.
CLOSED = "http://127.0.0.1:9/"


def check_by_topic(place):
    """Make all checks but that of the GPU, because importing PyTorch is slow."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(doctor, "check_gpu", doctor.check_open_files)
        findings = doctor.check_machine(str(place), os.environ, CLOSED)
    return {finding.subject: finding for finding in findings}


def test_doctor_shows_a_line_for_each_check_and_no_password(whole_dir, tmp_path):
    (tmp_path / "torch").mkdir()
    (tmp_path / "torch/__init__.py").write_text("raise OSError('libcuda.so is too old')\n")
    environment = os.environ | {
        "PYTHONPATH": os.pathsep.join([str(tmp_path), os.environ.get("PYTHONPATH", "")]),
        "SCANNET_PREP_BASE_URL": "http://me:se[cret@127.0.0.1:9/",
        "HTTP_PROXY": "http://me:se@cret@127.0.0.1:9/",
        "https_proxy": "me:sec/cret@proxy",
        "NCCL_DEBUG": "INFO",
        "SLURM_CPUS_PER_TASK": "1",
    }
    place = whole_dir / "processed"

    as_json = run_command("doctor", place, "--json", environment=environment)
    as_text = run_command(
        "doctor", "http://me:se/cret@127.0.0.1:9/x.tar.zst", environment=environment
    )
    (tmp_path / "torch/__init__.py").write_text(TORCH)
    empty = run_command("doctor", environment=environment, cwd=tmp_path)

    checks = {check["path"]: check for check in as_json.json["checks"]}
    assert list(checks) == TOPICS
    assert as_json.status == 3
    assert as_json.json["exit_status"] == 3
    assert checks["scenes"]["message"] == f"{place}: 3 scenes (processed)"
    assert f"python {sys.version.split()[0]}, numpy " in checks["versions"]["message"]
    assert f"1 of {os.cpu_count()} may be used" in checks["cores"]["message"]
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
    assert (
        "problem: scenes: http://...@127.0.0.1:9/x.tar.zst: cannot be requested" in as_text.stdout
    )
    assert "  to do: export SCANNET_PREP_BASE_URL=https://HOST/scannet/" in as_text.stdout
    assert "problems, in " in lines[-1]
    assert as_text.stderr == ""
    for output in (as_json, as_text):
        assert "cret" not in output.stdout + output.stderr
    assert f"folder: {tmp_path}: " in empty.stdout
    assert "scenes:" not in empty.stdout
    assert "ok: GPU: PyTorch 2.13.0, built for CUDA 13.0: 2 x A100\n" in empty.stdout

    quiet = run_main("doctor", tmp_path / "none", "--quiet")
    assert quiet.status == 3
    assert quiet.stdout == ""
    assert f"problem: scenes: {tmp_path / 'none'}: no such file or folder\n" in quiet.stderr
    # Not at once, if another check was too slow.
    assert "\nhint: name an archive, or a whole folder" in quiet.stderr


def test_ranks_cannot_be_compared_without_pytorch(monkeypatch):
    monkeypatch.setitem(sys.modules, "torch", None)
    (check,) = doctor.check_ranks("")
    assert check.severity == "problem"
    assert check.hint == "pip install torch"


def test_scenes_are_counted_and_faults_of_the_place_are_problems(
    raw_dir, out_dir, packed_dir, tmp_path
):
    archive_path = packed_dir / "processed.tar.zst"
    truncated = tmp_path / "truncated.tar.zst"
    truncated.write_bytes(archive_path.read_bytes()[:-40])
    damaged = shutil.copytree(out_dir, tmp_path / "damaged")
    (damaged / "manifest.json").write_text("{")
    leave_unfinished(out_dir)
    with pytest.raises(FileError) as fault:
        open_place(out_dir)

    raw = check_by_topic(raw_dir)["scenes"]
    archive = check_by_topic(archive_path)
    unfinished = check_by_topic(out_dir)["scenes"]
    others = [check_by_topic(place)["scenes"] for place in (truncated, damaged, tmp_path / "none")]
    (raw_dir / f"scans/{TRAIN}/{TRAIN}_vh_clean_2.ply").write_bytes(b"ply\n")
    assert run_main("process", raw_dir, "-o", tmp_path / "out").status == 3
    failed = check_by_topic(tmp_path / "out")["scenes"]

    assert raw.severity == "ok"
    assert raw.message == f"{raw_dir}: 3 scenes (raw)"
    assert archive["scenes"].message == f"{archive_path}: 3 scenes (archive)"
    assert archive["folder"].message.startswith(f"{packed_dir}: ")
    assert unfinished.message == fault.value.message
    assert unfinished.hint == fault.value.hint
    assert TRAIN in failed.message
    for finding in (unfinished, failed, *others):
        assert finding.severity == "problem"
        assert finding.message
        assert finding.hint


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


CHECK = """\
import resource
from pathlib import Path
from scannet_prep import doctor
resource.setrlimit(resource.RLIMIT_NOFILE, (256, 512))
print(repr(doctor.check_open_files()))
for name in ("full", "closed"):
    print(repr(doctor.check_folder(Path(name))))
print(repr(doctor.check_shared_memory()))
"""


def test_low_limits_and_full_and_read_only_file_systems_are_reported(tmp_path):
    prefix = "unshare --mount"
    if os.geteuid() != 0:
        prefix += " --user --map-root-user"
    if os.system(f"{prefix} true"):
        pytest.skip("this machine has no mount namespaces (unshare --mount)")
    setup = (
        "mkdir full closed && mount -t tmpfs -o size=64m none /dev/shm && "
        "mount -t tmpfs -o size=1m none full && mount -t tmpfs -o ro none closed && "
        'exec "$@"'
    )
    done = succeed(
        *prefix.split(),
        "sh",
        "-c",
        setup,
        "sh",
        sys.executable,
        "-c",
        CHECK,
        cwd=tmp_path,
        run=run_words,
    )
    files, full, closed, shared_memory = done.stdout.splitlines()
    assert "soft limit 256, hard limit 512" in files
    assert "ulimit -n 65536" in files
    assert "tmpfs, " in full
    assert "it is full" in full
    assert "severity='problem'" in full
    assert "nothing can be written here" in closed
    assert "severity='note'" in closed
    assert "--shm-size" in shared_memory
    assert "collate_torch need none of it" in shared_memory


def test_server_is_there_if_it_answers_whatever_the_status(tmp_path, monkeypatch):
    with ReleaseServer(tmp_path) as server:
        for status in (200, 403, 404, 503):
            server.faults = [at(None, then=Status(status))]
            finding = doctor.check_server(server.base_url.replace("//", "//me:secret@"))
            assert finding.severity == "ok"
            assert "secret" not in finding.message
    for url in (CLOSED, "http://nobody.invalid/", "http://[::1]:9/scannet/"):
        assert doctor.check_server(url).severity == "note"
    assert doctor.check_server("kaldir").severity == "problem"
    # The name of a server may be looked up for longer than the time limit.
    monkeypatch.setattr(doctor, "TIME_LIMIT_S", 0)
    assert check_by_topic("")["server"].severity == "note"


def diagnose(out_dir, places, is_unset):
    """Run `doctor --ddp` as a rank of a job, each on its place; a rank without one is absent."""
    from scannet_prep.cli.main import main

    doctor.RANK_TIME_LIMIT_S = 4.0
    rank = int(os.environ["RANK"])
    if is_unset:
        del os.environ["RANK"]
    if rank < len(places):
        main(["doctor", "--ddp", str(places[rank]), "--json"])


def check_ranks(out_dir, *places, is_unset=False):
    """Run `doctor --ddp` on a rank for each place; return the report of each."""
    run_ranks(diagnose, out_dir, places, is_unset)
    outputs = [out_dir / f"output{rank}.txt" for rank in range(len(places))]
    return [json.loads(path.read_text().splitlines()[-1]) for path in outputs]


@pytest.mark.extra("torch")
def test_ranks_that_agree_add_numbers_and_others_are_named(training_folder, tmp_path):
    other_dir = tmp_path / "other"
    succeed("process", training_folder.parent / "ScanNet", "-o", other_dir, "--faces")

    reports = check_ranks(tmp_path, training_folder, training_folder)
    assert [report["exit_status"] for report in reports] == [0, 0]
    checks = reports[0]["checks"]
    found = [[check["path"], check["severity"]] for check in checks]
    assert found == [["rank 0", "ok"], ["all-reduce", "ok"]]
    assert checks[0]["message"] == "2 ranks have the same 8 scenes and versions"
    assert "67.1 MB on cpu in " in checks[1]["message"]

    for places, is_unset, text in (
        ([tmp_path / "none"], False, f"{tmp_path / 'none'}: no such file or folder"),
        ([training_folder, other_dir], False, "rank 1 has digest="),
        ([training_folder], False, "1/2 clients joined"),
        ([training_folder], True, "variable RANK expected, but not set"),
    ):
        reports = check_ranks(tmp_path, *places, is_unset=is_unset)
        assert {report["exit_status"] for report in reports} == {3}
        (check,) = reports[0]["checks"]
        assert check["severity"] == "problem"
        assert text in check["message"], check
        assert check["hint"]
