"""The command line as such: help, usage errors, JSON, what goes where."""

from __future__ import annotations

import contextlib
import io
import json
import os
import re
import shlex
import signal
import subprocess
import sys
import textwrap
import time
from pathlib import Path

import pytest
from commands import COMMAND, PYTHON, Outcome, run_command, run_main, run_words, start_command

from scannet_prep.base.disk import format_bytes
from scannet_prep.base.version import VERSION
from scannet_prep.cli.console import format_table
from scannet_prep.cli.main import main, make_parser

PARSER = make_parser()
COMMANDS = [*PARSER._subparsers._group_actions[0].choices]
INTERRUPTED = "interrupted: run the same command again\n"


@pytest.fixture(scope="module")
def demo(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Outcome]:
    """An empty folder in which the demo ran, and what it said; no environment was active."""
    directory = tmp_path_factory.mktemp("here")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PATH", "/usr/bin:/bin")
        return directory, run_main("demo", cwd=directory)


@pytest.fixture
def demo_dir(demo: tuple[Path, Outcome]) -> Path:
    return demo[0] / "data/demo"


def run_on_terminal(words: list[str], columns: int = 100) -> tuple[int, str]:
    """Run a command whose output is a terminal, and return what that shows."""
    # The environment as Python knows it: readline, which pytest loads, sets COLUMNS beside it, and xdist sets it, too.
    environment = {name: value for name, value in os.environ.items() if name != "COLUMNS"}
    line = f"stty rows 24 cols {columns}; {shlex.join(words)}"
    outcome = run_words("script", "-qec", line, "/dev/null", env=environment)
    return outcome.status, outcome.stdout


def test_no_arguments_print_the_help_and_nothing_else_and_exit_with_2() -> None:
    assert run_main() == Outcome(2, "", run_main("--help").stdout)


def test_help_shows_commands_and_exit_statuses() -> None:
    text = run_main("--help").stdout
    assert [word for word in (*COMMANDS, "exit status", "130") if word not in text] == []
    assert run_main("--version").stdout == f"scannet-prep {VERSION}\n"


@pytest.mark.parametrize(
    ("words", "error", "hint"),
    [
        (["proces"], "invalid choice: 'proces'", "did you mean process?"),
        (["process", "--split", "train"], "unknown argument: --split", "did you mean --splits?"),
        (["download", "--type", "seg"], "unknown argument: --type", "did you mean --types?"),
        (
            ["download", "--types", "seg", "--shard", "0/2"],
            "unknown argument: --shard",
            "download --help",
        ),
        (["process", "--scannet20"], "unknown argument: --scannet20", "did you mean --scannet200?"),
        (
            ["process", "--labels-from", "obj"],
            "invalid choice: 'obj'",
            "scannet-prep process --help",
        ),
        (["verify", "--splits", "tain"], "invalid choice: 'tain'", "did you mean train?"),
        (
            ["process", "--scenes", "scene0007"],
            "'scene0007' is not a scene id",
            "did you mean scene0007_00?",
        ),
        (
            ["process", "--scenes", "Scene0007_00"],
            "'Scene0007_00' is not",
            "did you mean scene0007_00?",
        ),
        (
            ["process", "--scenes", "scene0007_00,scene0008_00"],
            "not a scene",
            "mean scene0007_00 scene0008_00?",
        ),
        (["process", "--scenes", "ids.txt"], "'ids.txt' is not a scene id", "Write @ids.txt"),
        (
            ["process", "--scenes", "bedroom"],
            "'bedroom' is not a scene id",
            "scene ids look like scene0011_00",
        ),
        (
            ["verify", ".", "--limit", "0"],
            "'0' is not a positive whole number",
            "scannet-prep verify --help",
        ),
    ],
)
def test_wrong_usage_ends_with_2_and_a_likely_hint(
    words: list[str], error: str, hint: str, tmp_path: Path
) -> None:
    (tmp_path / "ids.txt").write_text("scene0007_00\n")
    outcome = run_main(*words, cwd=tmp_path)
    assert (outcome.status, outcome.stdout) == (2, "")
    first, second = outcome.stderr.splitlines()
    assert (first[:7], error in first) == ("error: ", True)
    assert (second[:6], hint in second) == ("hint: ", True)


@pytest.mark.parametrize(
    "command", ["process --oops", "process", "pack", "unpack", "verify", "info"]
)
def test_json_is_one_object_also_when_a_command_fails(command: str, tmp_path: Path) -> None:
    outcome = run_main(*command.split(), "--json", "nowhere.tar.zst", cwd=tmp_path)
    assert outcome.status == (2 if "--oops" in command else 1)
    assert outcome.json["exit_status"] == outcome.status
    assert outcome.json["message"] in outcome.stderr


@pytest.mark.parametrize("delay_s", [0.0, 0.2])
def test_signals_at_any_time_end_with_130_and_one_line(
    delay_s: float, demo_dir: Path, tmp_path: Path
) -> None:
    words = [
        "process",
        demo_dir / "ScanNet",
        "-o",
        tmp_path / "out",
        "--json",
        "--no-progress",
        "--jobs",
        "1",
        "-q",
    ]
    # As people start it: with -W error, Python tells of the file that it was importing from, too.
    command = [PYTHON, "-m", "scannet_prep", *map(str, words)]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    status_path = Path(f"/proc/{process.pid}/status")
    while True:  # until Python has started, and signals are no longer Python's own matter
        caught = next(
            line for line in status_path.read_text().splitlines() if line.startswith("SigCgt:")
        )
        if int(caught.split()[1], 16) & 1 << (signal.SIGTERM - 1):
            break
        assert process.poll() is None
        time.sleep(0.001)
    time.sleep(delay_s)
    for number in [signal.SIGINT, signal.SIGTERM, signal.SIGHUP] * 7:
        process.send_signal(number)
        time.sleep(0.002)
    output, errors = process.communicate(timeout=60)
    assert process.returncode == 130
    assert errors == INTERRUPTED
    assert json.loads(output)["exit_status"] == 130


def test_signal_while_a_module_is_loaded_is_not_made_an_import_error(demo_dir: Path) -> None:
    program = """if True:
        import os, signal, sys
        class Finder:
            def find_spec(self, name, path=None, target=None):
                try:
                    os.kill(os.getpid(), signal.SIGINT) if name == "numpy" else None
                except KeyboardInterrupt:
                    raise ImportError("as numpy says of all that happens to it")
        sys.meta_path.insert(0, Finder())
        from scannet_prep.__main__ import main
        sys.exit(main())
    """
    assert run_words(PYTHON, "-c", program, "verify", demo_dir / "processed", "-q") == Outcome(
        130, "", INTERRUPTED
    )


def run_interrupted(body: str) -> Outcome:
    """Run `info` with another body, whose cleanup may take half a second, from the entry point of the program."""
    program = f"""if True:
        import os, signal, sys, time
        import scannet_prep.cli.info
        from scannet_prep import __main__ as program
        def interrupt():
            os.kill(os.getpid(), signal.SIGTERM)
            time.sleep(0.01)
        def run(arguments, console):
{textwrap.indent(textwrap.dedent(body), " " * 12)}
        program._CLEANUP_S = 0.5
        scannet_prep.cli.info.run = run
        sys.exit(program.main())
    """
    return run_words(PYTHON, "-c", program, "info", ".")


def test_interrupt_that_a_finalizer_swallows_ends_the_command_later() -> None:
    body = """
        class Finalized:
            def __del__(self):
                interrupt()
        Finalized()
        time.sleep(100)
    """
    outcome = run_interrupted(body)
    assert outcome.status == 130
    assert outcome.stderr.endswith(INTERRUPTED)


def test_cleanup_that_hangs_is_ended() -> None:
    body = """
        try:
            interrupt()
        finally:
            time.sleep(100)
    """
    assert run_interrupted(body) == Outcome(130, "", INTERRUPTED)


def test_second_signal_ends_a_cleanup_at_once() -> None:
    body = """
        program._CLEANUP_S = 1000
        program._SAME_SIGNAL_S = 0
        try:
            interrupt()
        finally:
            interrupt()
            print("cleaned up", flush=True)
    """
    assert run_interrupted(body) == Outcome(130, "", INTERRUPTED)


def test_same_signal_sent_twice_leaves_the_cleanup_alone() -> None:
    body = """
        try:
            interrupt()
        finally:
            interrupt()
            print("cleaned up", flush=True)
    """
    assert run_interrupted(body) == Outcome(130, "cleaned up\n", INTERRUPTED)


def test_error_in_a_cleanup_is_reported_as_an_interrupt() -> None:
    body = """
        try:
            interrupt()
        finally:
            raise RuntimeError("release unlocked lock")
    """
    assert run_interrupted(body) == Outcome(130, "", INTERRUPTED)


def test_exit_at_once_leaves_the_progress_bar_on_a_line_of_its_own() -> None:
    program = """if True:
        import sys, time
        from scannet_prep import __main__ as program
        sys.stderr.write("process: 5%")
        sys.stderr.flush()
        program._exit_at_once()
    """
    status, shown = run_on_terminal([PYTHON, "-c", program])
    assert status == 130
    assert shown.splitlines() == ["process: 5%", INTERRUPTED.strip()]


def test_ignored_hangup_stays_ignored(demo_dir: Path) -> None:
    words = ["info", demo_dir / "processed", "--json"]
    process = start_command(
        *words, preexec_fn=lambda: signal.signal(signal.SIGHUP, signal.SIG_IGN)
    )  # as nohup does
    for _ in range(20):
        process.send_signal(signal.SIGHUP)
        time.sleep(0.01)
    assert json.loads(process.communicate(timeout=60)[0])["exit_status"] == 0


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs a device that is always full")
@pytest.mark.parametrize("words", ["info processed --json", "pack --help"])
def test_full_standard_output_is_named(demo_dir: Path, words: str) -> None:
    with Path("/dev/full").open("w") as full:
        outcome = run_command(*words.split(), cwd=demo_dir, stdout=full)
    told = "error: standard output: cannot be written: No space left on device\n"
    assert (outcome.status, outcome.stderr) == (1, told)


@pytest.mark.parametrize("redirection", ["2>&- <&-", ">&-", "| true"])
def test_closed_streams_cost_no_result(demo_dir: Path, tmp_path: Path, redirection: str) -> None:
    command = [
        *COMMAND,
        "process",
        str(demo_dir / "ScanNet"),
        "-o",
        str(tmp_path),
        "--json",
        "--limit",
        "1",
    ]
    outcome = run_words("sh", "-c", f"{shlex.join(command)} {redirection}")
    assert len(list(tmp_path.rglob("scene*.npz"))) == 1
    assert (outcome.status, "Traceback" in outcome.stderr, "BrokenPipe" in outcome.stderr) == (
        0,
        False,
        False,
    )


def test_letters_that_a_terminal_cannot_show_are_no_error(demo_dir: Path, tmp_path: Path) -> None:
    folder = tmp_path / "Räume 教室"
    folder.symlink_to(demo_dir / "processed")
    with contextlib.redirect_stdout(io.TextIOWrapper(io.BytesIO(), encoding="ascii")) as stream:
        assert main(["info", str(folder)]) == 0
        assert b"R\\xe4ume" in stream.buffer.getvalue()


def test_errors_are_red_on_a_terminal_unless_colors_are_unwanted_and_names_never_control_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    words = [*COMMAND, "info", str(tmp_path / "a\x1b[2Jb")]
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.delenv("NO_COLOR", raising=False)
    assert run_on_terminal(words)[1].startswith(f"\x1b[1;31merror:\x1b[0m {tmp_path}/a\\x1b[2Jb: ")
    monkeypatch.setenv("NO_COLOR", "1")
    assert run_on_terminal(words)[1].startswith("error: ")


def test_demo_runs_from_an_empty_folder_and_again(demo: tuple[Path, Outcome]) -> None:
    directory, outcome = demo
    assert (outcome.status, outcome.stderr) == (0, "")
    assert "11 made, 0 already there" in outcome.stdout
    assert (directory / "data/demo/scene.png").read_bytes()[:4] == b"\x89PNG"
    assert (directory / "data/demo/scene.html").read_bytes()[:9] == b"<!doctype"
    lines = [line.strip() for line in outcome.stdout.splitlines()]
    commands = [line for line in lines if line.startswith("scannet-prep ")]
    assert commands[0] == "scannet-prep download --types seg --accept-terms"
    for command in commands:
        PARSER.parse_args(command.split()[1:])
    assert lines[lines.index(commands[0]) - 1] == f"source {sys.prefix}/bin/activate"
    assert run_main("demo", "--json", cwd=directory).json["process"]["made"] == []
    for name in ("ScanNet", "processed"):
        assert run_main("verify", f"data/demo/{name}", cwd=directory).status == 0


def test_demo_never_writes_into_a_folder_that_is_not_its_own(tmp_path: Path) -> None:
    (tmp_path / "ScanNet").mkdir()
    outcome = run_main("demo", tmp_path)
    assert (outcome.status, "was not made by the demo" in outcome.stderr) == (2, True)
    assert [path.name for path in tmp_path.iterdir()] == ["ScanNet"]


def test_quiet_says_only_what_is_wrong_and_else_results_go_to_standard_output(
    demo_dir: Path, tmp_path: Path
) -> None:
    words = ["process", demo_dir / "ScanNet", "-o", tmp_path]
    outcome = run_main(*words)
    assert "warning: groups dropped that repeat an earlier group exactly" in outcome.stderr
    assert "100%" not in outcome.stderr
    assert outcome.stdout.startswith("11 made, 0 already there, 0 failed")
    assert run_main(*words, "-q") == Outcome(0, "", "")
    outcome = run_main(*words, "-q", "--scenes", "scene0003_00")
    assert (outcome.status, outcome.stderr[:22]) == (3, "failed: scene0003_00: ")


def test_bar_is_drawn_on_a_terminal_only_and_fits_60_columns(
    demo_dir: Path, tmp_path: Path
) -> None:
    words = [*COMMAND, "verify", str(demo_dir / "processed"), "--jobs", "1", "--limit", "2"]
    for columns in (60, 0):  # some containers' terminals do not know their width
        status, shown = run_on_terminal(words, columns)
        assert all(
            len(line) <= (columns or 80)
            for line in shown.replace("\r", "\n").splitlines()
            if "%|" in line
        )
        assert (status, bool(re.search(r"verify: .* 2/2 \[", shown))) == (0, True)
    assert "100%" not in run_on_terminal([*words, "--no-progress"])[1]
    program = """if True:
        from scannet_prep.cli.console import Console
        progress = Console()
        with progress.work("download", 21_000_000_000, "B"):
            progress.status("7,766/7,766 files")
            progress.advance(20_900_000_000)
    """
    assert re.search(
        r"download: 100%\|.*\| 20\.9G/21\.0G \[", run_on_terminal([PYTHON, "-c", program], 60)[1]
    )


def test_status_is_drawn_within_80_columns_though_nothing_is_counted() -> None:
    program = """if True:
        import time
        from scannet_prep.cli.console import Console
        progress = Console()
        with progress.work("download", 21_000_000_000, "B"):
            progress.advance(9_450_000_000)
            for text in ("3,412/7,766 files", "down, retry in 30 s", "3,413/7,766 files"):
                time.sleep(0.2)
                progress.status(text)
    """
    lines = run_on_terminal([PYTHON, "-c", program], 80)[1].replace("\r", "\n").splitlines()
    assert any("down, retry in 30 s]" in line and len(line) <= 80 for line in lines)


def test_rate_on_the_bar_falls_when_less_arrives_while_a_status_is_shown() -> None:
    program = """if True:
        import time
        from scannet_prep.cli.console import Console
        progress = Console()
        with progress.work("download", 21_000_000_000, "B"):
            time.sleep(0.2)
            progress.advance(9_450_000_000)
            for _ in range(20):
                time.sleep(0.11)
                progress.status("3,412/7,766 files")
                progress.advance()
    """
    *rates, _ = re.findall(
        r"([0-9.]+[kMG]?)B/s, 3,412/7,766", run_on_terminal([PYTHON, "-c", program], 80)[1]
    )
    assert rates[-1] != rates[0]  # the one after them is the mean of the run


@pytest.mark.parametrize("command", ["", *COMMANDS])
def test_help_fits_60_columns_and_its_examples_are_commands(
    monkeypatch: pytest.MonkeyPatch, command: str
) -> None:
    monkeypatch.setenv("COLUMNS", "60")
    outcome = run_main(*command.split(), "--help")
    assert (outcome.status, outcome.stderr, outcome.stdout[:7]) == (0, "", "usage: ")
    shown = (
        "--verbose",
        "--quiet",
        "--json",
        "--no-progress",
        f"examples:\n  scannet-prep {command}",
    )
    assert [text for text in shown if command and text not in outcome.stdout] == []
    for line in outcome.stdout.splitlines():
        if line.startswith("  scannet-prep "):
            PARSER.parse_args(shlex.split(re.split(r"  \S|\||>", line.strip())[0])[1:])
        else:
            assert len(line) <= 60 or line.startswith("  torchrun ")


def test_sizes_and_tables_read_well_and_tables_fit_the_terminal(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    sizes = ["0 B", "999 B", "1.0 kB", "21.0 GB", "10.00 TB"]
    assert [format_bytes(n) for n in (0, 999, 1000, 20_999_000_000, 10**13)] == sizes
    monkeypatch.setenv("COLUMNS", "30")
    table = format_table(
        ["type", "already there"], [["mesh with its labels", "1,201"]], right=frozenset({1})
    )
    assert table.splitlines() == [
        "type             already there",
        "---------------  -------------",
        "mesh with its            1,201",
        "labels",
    ]
