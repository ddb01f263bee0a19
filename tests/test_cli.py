"""The command line as such: help, usage errors, JSON, what goes where."""

from __future__ import annotations

import fcntl
import json
import os
import pty
import signal
import struct
import subprocess
import sys
import termios
import time
from pathlib import Path

import pytest
from commands import COMMAND, run_command, start_command

from scannet_prep.cli.console import format_duration, format_table
from scannet_prep.cli.main import make_parser
from scannet_prep.space import format_bytes
from scannet_prep.version import VERSION

COMMANDS = ("download", "process", "pack", "verify", "info", "demo")


@pytest.fixture(scope="module")
def demo_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    demo_dir = tmp_path_factory.mktemp("here") / "demo"
    assert run_command("demo", demo_dir).status == 0
    return demo_dir


def run_on_terminal(words: list[str], columns: int = 100) -> tuple[int, str]:
    """Run a command whose standard error is a terminal, and return what that shows."""
    leader, follower = pty.openpty()
    fcntl.ioctl(follower, termios.TIOCSWINSZ, struct.pack("4H", 24, columns, 0, 0))
    process = subprocess.Popen(words, stdin=follower, stdout=subprocess.DEVNULL, stderr=follower)
    os.close(follower)
    shown = b""
    while True:
        try:
            chunk = os.read(leader, 4096)
        except OSError:  # the terminal has no more writers
            break
        shown += chunk
    os.close(leader)
    return process.wait(), shown.decode()


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_has_help_with_examples_and_the_common_options(command: str) -> None:
    outcome = run_command(command, "--help")
    assert (outcome.status, outcome.stderr) == (0, "")
    assert f"examples:\n  scannet-prep {command}" in outcome.stdout
    for option in ("--verbose", "--quiet", "--json", "--no-progress"):
        assert option in outcome.stdout


def test_help_lists_all_commands_and_exit_statuses() -> None:
    outcome = run_command("--help")
    for word in (*COMMANDS, "exit status", "130"):
        assert word in outcome.stdout


def test_the_version_is_that_of_the_package() -> None:
    assert run_command("--version").stdout == f"scannet-prep {VERSION}\n"


@pytest.mark.parametrize(
    ("words", "error", "hint"),
    [
        (["proces"], "invalid choice: 'proces'", "did you mean process?"),
        (["process", "--split", "train"], "unknown argument: --split", "did you mean --splits?"),
        (["process", "--scannet20"], "unknown argument: --scannet20", "did you mean --scannet200?"),
        (["process", "--labels-from", "obj"], "invalid choice: 'obj'", "scannet-prep process --help"),
        (["verify", "--splits", "tain"], "invalid choice: 'tain'", "did you mean train?"),
        (["process", "--scenes", "scene0007"], "'scene0007' is not a scene id", "did you mean scene0007_00?"),
        (["process", "--scenes", "Scene0007_00"], "'Scene0007_00' is not", "did you mean scene0007_00?"),
        (["process", "--scenes", "scene0007_00,scene0008_00"], "not a scene", "mean scene0007_00 scene0008_00?"),
        (["process", "--scenes", "ids.txt"], "'ids.txt' is not a scene id", "Write @ids.txt"),
        (["process", "--scenes", "bedroom"], "'bedroom' is not a scene id", "scene ids look like scene0011_00"),
        (["verify", ".", "--limit", "0"], "'0' is not a positive whole number", "scannet-prep verify --help"),
    ],
)
def test_wrong_usage_ends_with_2_and_says_what_was_probably_meant(
    words: list[str], error: str, hint: str, tmp_path: Path
) -> None:
    (tmp_path / "ids.txt").write_text("scene0007_00\n")
    outcome = run_command(*words, cwd=tmp_path)
    assert (outcome.status, outcome.stdout) == (2, "")
    first, second = outcome.stderr.splitlines()
    assert first.startswith("error: ")
    assert error in first
    assert second.startswith("hint: ")
    assert hint in second


def test_no_command_shows_the_overview() -> None:
    outcome = run_command()
    assert (outcome.status, outcome.stdout) == (2, "")
    assert "scannet-prep download --types seg" in outcome.stderr
    assert "error: the following arguments are required: COMMAND" in outcome.stderr


@pytest.mark.parametrize(
    ("words", "status"),
    [
        (["process", "--json", "--oops"], 2),
        (["process", "--json", "nowhere"], 1),
        (["pack", "--json", "nowhere"], 1),
        (["unpack", "--json", "nowhere.tar.zst"], 1),
        (["verify", "--json", "nowhere"], 1),
        (["info", "--json", "nowhere"], 1),
    ],
)
def test_json_is_one_object_also_when_a_command_fails(words: list[str], status: int, tmp_path: Path) -> None:
    outcome = run_command(*words, cwd=tmp_path)
    assert outcome.status == status
    assert outcome.json["exit_status"] == status
    assert outcome.json["message"] in outcome.stderr


@pytest.mark.parametrize("name", ["SIGINT", "SIGTERM", "SIGHUP"])
@pytest.mark.parametrize("delay_s", [0.0, 0.3])
def test_signals_at_any_time_end_with_130_and_one_line(
    name: str, delay_s: float, demo_dir: Path, tmp_path: Path
) -> None:
    words = ["process", demo_dir / "ScanNet", "-o", tmp_path / "out", "--json", "--no-progress", "--jobs", "1", "-q"]
    # As people start it: with -W error, Python tells of the file that it was importing from, too.
    command = [sys.executable, "-m", "scannet_prep", *map(str, words)]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    status_path = Path(f"/proc/{process.pid}/status")
    while True:  # until Python has started, and signals are no longer Python's own matter
        caught = next(line for line in status_path.read_text().splitlines() if line.startswith("SigCgt:"))
        if int(caught.split()[1], 16) & 1 << (signal.SIGTERM - 1):
            break
        time.sleep(0.001)
    time.sleep(delay_s)
    for _ in range(20):
        process.send_signal(getattr(signal, name))
        time.sleep(0.002)
    output, errors = process.communicate(timeout=60)
    assert process.returncode == 130
    assert errors == "interrupted: run the same command again\n"
    assert json.loads(output)["exit_status"] == 130


def test_ignored_hangup_stays_ignored(demo_dir: Path) -> None:
    words = ["info", demo_dir / "processed", "--json"]
    process = start_command(*words, preexec_fn=lambda: signal.signal(signal.SIGHUP, signal.SIG_IGN))  # as nohup does
    for _ in range(20):
        process.send_signal(signal.SIGHUP)
        time.sleep(0.01)
    assert json.loads(process.communicate(timeout=60)[0])["exit_status"] == 0


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs a device that is always full")
@pytest.mark.parametrize("form", [[], ["--json"]])
def test_full_standard_output_is_named(form: list[str], demo_dir: Path) -> None:
    with Path("/dev/full").open("w") as full:
        words = [*COMMAND, "info", str(demo_dir / "processed"), *form]
        done = subprocess.run(words, stdout=full, stderr=subprocess.PIPE, text=True, check=False)
    assert (done.returncode, done.stderr) == (1, "error: standard output: cannot be written: No space left on device\n")


def test_errors_are_red_on_a_terminal_unless_colors_are_unwanted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    words = [*COMMAND, "info", str(tmp_path / "nowhere")]
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.delenv("NO_COLOR", raising=False)
    assert run_on_terminal(words)[1].startswith("\x1b[1;31merror:\x1b[0m ")
    monkeypatch.setenv("NO_COLOR", "1")
    assert run_on_terminal(words)[1].startswith("error: ")
    assert run_command(*words[len(COMMAND) :]).stderr.startswith("error: ")


def test_names_never_control_the_terminal(tmp_path: Path) -> None:
    outcome = run_command("info", tmp_path / "a\x1b[2Jb")
    assert "\x1b" not in outcome.stderr
    assert "a\\x1b[2Jb" in outcome.stderr


def test_demo_runs_from_an_empty_folder_and_again(tmp_path: Path) -> None:
    outcome = run_command("demo", cwd=tmp_path)
    assert (outcome.status, outcome.stderr) == (0, "")
    assert "11 made, 0 already there" in outcome.stdout
    assert run_command("demo", "--json", cwd=tmp_path).json["process"]["made"] == []
    assert run_command("verify", "data/demo/ScanNet", cwd=tmp_path).status == 0
    assert run_command("verify", "data/demo/processed", cwd=tmp_path).status == 0


def test_last_lines_of_the_demo_are_commands_that_parse_after_the_activation_they_begin_with(tmp_path: Path) -> None:
    environment = {"PATH": "/usr/bin:/bin", "PYTHONPATH": str(Path(__file__).parents[1])}
    done = subprocess.run([*COMMAND, "demo"], cwd=tmp_path, env=environment, capture_output=True, text=True, check=True)
    lines = [line.strip() for line in done.stdout.splitlines()]
    commands = [line for line in lines if line.startswith("scannet-prep ")]
    assert commands[0] == "scannet-prep download --types seg --accept-terms"
    for command in commands:
        make_parser().parse_args(command.split()[1:])
    assert lines[lines.index(commands[0]) - 1] == f"source {sys.prefix}/bin/activate"


def test_demo_never_writes_into_a_folder_that_is_not_its_own(tmp_path: Path) -> None:
    (tmp_path / "ScanNet").mkdir()
    outcome = run_command("demo", tmp_path)
    assert outcome.status == 2
    assert "was not made by the demo" in outcome.stderr
    assert [path.name for path in tmp_path.iterdir()] == ["ScanNet"]


def test_quiet_says_nothing_when_all_is_well_and_all_that_is_wrong_when_not(demo_dir: Path, tmp_path: Path) -> None:
    outcome = run_command("process", demo_dir / "ScanNet", "-o", tmp_path, "-q")
    assert (outcome.status, outcome.stdout, outcome.stderr) == (0, "", "")
    outcome = run_command("process", demo_dir / "ScanNet", "-o", tmp_path, "-q", "--scenes", "scene0003_00")
    assert outcome.status == 3
    assert outcome.stderr.startswith("failed: scene0003_00: ")


def test_bar_is_drawn_on_a_terminal_only_and_fits_60_columns(demo_dir: Path, tmp_path: Path) -> None:
    words = [*COMMAND, "process", str(demo_dir / "ScanNet"), "-o", str(tmp_path), "--force"]
    for columns in (100, 60, 0):  # some containers' terminals do not know their width
        status, shown = run_on_terminal(words, columns)
        assert all(len(line) <= (columns or 80) for line in shown.replace("\r", "\n").splitlines() if "%|" in line)
        assert status == 0
        assert "process: 100%|" in shown
        assert "11/11 scenes" in shown
    assert "100%" not in run_on_terminal([*words, "--no-progress"])[1]
    assert "100%" not in run_command(*words[len(COMMAND) :]).stderr


def test_warnings_and_errors_go_to_standard_error_and_results_to_standard_output(
    demo_dir: Path, tmp_path: Path
) -> None:
    outcome = run_command("process", demo_dir / "ScanNet", "-o", tmp_path)
    assert "warning: groups dropped that repeat an earlier group exactly" in outcome.stderr
    assert outcome.stdout.startswith("11 made, 0 already there, 0 failed")
    assert json.loads(run_command("process", demo_dir / "ScanNet", "-o", tmp_path, "--json").stdout)["exit_status"] == 0


def test_sizes_durations_and_tables_read_well() -> None:
    assert [format_bytes(n) for n in (0, 999, 1000, 20_999_000_000, 10**13)] == [
        "0 B",
        "999 B",
        "1.0 kB",
        "21.0 GB",
        "10.00 TB",
    ]
    assert [format_duration(s) for s in (0.12, 59, 200, 3900)] == ["0.1 s", "59 s", "3:20 min", "1:05 h"]
    assert (
        format_table(["a", "n"], [["x", "10"], ["yy", "9"]], right=frozenset({1})) == "a    n\n--  --\nx   10\nyy   9"
    )
