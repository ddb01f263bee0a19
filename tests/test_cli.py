"""The command line as a whole: help, usage errors, JSON, signals, streams and the progress bar."""

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

from scannet_prep.base.text import format_bytes
from scannet_prep.base.version import VERSION
from scannet_prep.cli.arguments import CommandParser
from scannet_prep.cli.console import format_table
from scannet_prep.cli.main import main, make_parser
from scannet_prep.frames import FrameFolder

PARSER = make_parser()
COMMANDS = [*PARSER._subparsers._group_actions[0].choices]
INTERRUPTED = "interrupted: run the same command again\n"


@pytest.fixture(scope="module")
def demo(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Outcome]:
    """A folder in which the demo ran without an active environment, and its outcome."""
    directory = tmp_path_factory.mktemp("here")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PATH", "/usr/bin:/bin")
        outcome = run_main("demo", cwd=directory)
    return directory, outcome


@pytest.fixture(scope="module")
def demo_dir(demo: tuple[Path, Outcome]) -> Path:
    """The folder that the demo made."""
    directory, _ = demo
    return directory / "data/demo"


def run_on_terminal(words: list[str], columns: int = 100) -> tuple[int, str]:
    """Run a command on a terminal, and return its exit status and what the terminal shows."""
    # COLUMNS would override the width of the terminal; readline and xdist set it.
    environment = {name: value for name, value in os.environ.items() if name != "COLUMNS"}
    line = f"stty rows 24 cols {columns}; {shlex.join(words)}"
    outcome = run_words("script", "-qec", line, "/dev/null", env=environment)
    return outcome.status, outcome.stdout


def test_command_without_arguments_prints_help_and_exits_with_2() -> None:
    help_text = run_main("--help").stdout

    assert run_main() == Outcome(2, stdout="", stderr=help_text)


@pytest.mark.parametrize("text", [*COMMANDS, "exit status", "130"])
def test_help_shows_commands_and_exit_statuses(text: str) -> None:
    assert text in run_main("--help").stdout


@pytest.mark.parametrize("text", ["  a row  of a table", "Words.\n\n  a row  of a table"])
def test_single_row_of_a_table_keeps_its_spaces_in_the_help(text: str) -> None:
    help_text = CommandParser(text).format_help()

    assert "\n  a row  of a table\n" in help_text


def test_version_is_printed() -> None:
    assert run_main("--version").stdout == f"scannet-prep {VERSION}\n"


@pytest.mark.parametrize(
    ("words", "problem", "hint"),
    [
        ("proces", "invalid choice: 'proces'", "did you mean process?"),
        ("process --split train", "unknown argument: --split", "did you mean --splits?"),
        ("download --type seg", "unknown argument: --type", "did you mean --types?"),
        ("download --types seg --shard 0/2", "unknown argument: --shard", "download --help"),
        ("process --scannet20", "unknown argument: --scannet20", "did you mean --scannet200?"),
        ("process --labels-from obj", "invalid choice: 'obj'", "scannet-prep process --help"),
        ("verify --splits tain", "invalid choice: 'tain'", "did you mean train?"),
        (
            "process --scenes scene0007",
            "'scene0007' is not a scene id",
            "did you mean scene0007_00?",
        ),
        (
            "process --scenes Scene0007_00",
            "'Scene0007_00' is not",
            "did you mean scene0007_00?",
        ),
        (
            "process --scenes scene0007_00,scene0008_00",
            "not a scene",
            "mean scene0007_00 scene0008_00?",
        ),
        ("process --scenes ids.txt", "'ids.txt' is not a scene id", "Write @ids.txt"),
        (
            "process --scenes bedroom",
            "'bedroom' is not a scene id",
            "scene ids look like scene0011_00",
        ),
        (
            "verify . --limit 0",
            "'0' is not a positive whole number",
            "scannet-prep verify --help",
        ),
    ],
)
def test_wrong_usage_exits_with_2_and_a_hint(
    words: str, problem: str, hint: str, tmp_path: Path
) -> None:
    (tmp_path / "ids.txt").write_text("scene0007_00\n")

    outcome = run_main(*words.split(), cwd=tmp_path)

    assert outcome.status == 2
    assert outcome.stdout == ""
    error_line, hint_line = outcome.stderr.splitlines()
    assert error_line.startswith("error: ")
    assert problem in error_line
    assert hint_line.startswith("hint: ")
    assert hint in hint_line


@pytest.mark.parametrize(
    ("words", "status"),
    [
        ("process --oops", 2),
        ("process", 1),
        ("pack", 1),
        ("unpack", 1),
        ("verify", 1),
        ("info", 1),
    ],
)
def test_json_of_failed_command_is_one_object(words: str, status: int, tmp_path: Path) -> None:
    outcome = run_main(*words.split(), "--json", "nowhere.tar.zst", cwd=tmp_path)

    assert outcome.status == status
    assert outcome.json["exit_status"] == status
    assert outcome.json["message"] in outcome.stderr


def wait_until_signals_are_handled(process: subprocess.Popen[str]) -> None:
    """Wait until the program has replaced Python's handlers of signals."""
    status_path = Path(f"/proc/{process.pid}/status")
    while True:
        lines = status_path.read_text().splitlines()
        caught_line = next(line for line in lines if line.startswith("SigCgt:"))
        caught_mask = int(caught_line.split()[1], base=16)
        if caught_mask & 1 << (signal.SIGTERM - 1):
            return
        assert process.poll() is None
        time.sleep(0.001)


@pytest.mark.parametrize("delay_s", [0.0, 0.2])
def test_many_signals_end_command_with_130_and_one_line(
    delay_s: float, demo_dir: Path, tmp_path: Path
) -> None:
    words = ["process", str(demo_dir / "ScanNet"), "-o", str(tmp_path / "out"), "--jobs", "1"]
    # Without `-W error`, as people start it: with it, Python also prints a warning about the file
    # that it was importing from.
    process = subprocess.Popen(
        [PYTHON, "-m", "scannet_prep", *words, "--json", "--no-progress", "-q"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    wait_until_signals_are_handled(process)
    time.sleep(delay_s)

    for number in [signal.SIGINT, signal.SIGTERM, signal.SIGHUP] * 7:
        process.send_signal(number)
        time.sleep(0.002)
    output, errors = process.communicate(timeout=60)

    assert process.returncode == 130
    assert errors == INTERRUPTED
    assert json.loads(output)["exit_status"] == 130


def test_signal_during_an_import_is_not_reported_as_import_error(demo_dir: Path) -> None:
    program = """if True:
        import os, signal, sys
        class Finder:
            def find_spec(self, name, path=None, target=None):
                if name != "numpy":
                    return
                try:
                    os.kill(os.getpid(), signal.SIGINT)
                except KeyboardInterrupt:
                    raise ImportError("numpy turns every exception into this one")
        sys.meta_path.insert(0, Finder())
        from scannet_prep.__main__ import main
        sys.exit(main())
    """

    outcome = run_words(PYTHON, "-c", program, "verify", demo_dir / "processed", "-q")

    assert outcome == Outcome(130, stdout="", stderr=INTERRUPTED)


def run_interrupted(body: str) -> Outcome:
    """Run the program with `body` as the command `info`; cleanup may take half a second."""
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


def test_interrupt_lost_in_a_finalizer_ends_command_later() -> None:
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


def test_interrupted_command_whose_cleanup_hangs_is_ended() -> None:
    body = """
        try:
            interrupt()
        finally:
            time.sleep(100)
    """

    assert run_interrupted(body) == Outcome(130, stdout="", stderr=INTERRUPTED)


def test_second_signal_ends_cleanup_at_once() -> None:
    body = """
        program._CLEANUP_S = 1000
        program._SAME_SIGNAL_S = 0
        try:
            interrupt()
        finally:
            interrupt()
            print("cleaned up", flush=True)
    """

    assert run_interrupted(body) == Outcome(130, stdout="", stderr=INTERRUPTED)


def test_same_signal_sent_twice_does_not_end_cleanup() -> None:
    body = """
        try:
            interrupt()
        finally:
            interrupt()
            print("cleaned up", flush=True)
    """

    assert run_interrupted(body) == Outcome(130, stdout="cleaned up\n", stderr=INTERRUPTED)


def test_error_in_cleanup_is_reported_as_interrupt() -> None:
    body = """
        try:
            interrupt()
        finally:
            raise RuntimeError("release unlocked lock")
    """

    assert run_interrupted(body) == Outcome(130, stdout="", stderr=INTERRUPTED)


def test_exit_at_once_prints_its_line_below_the_progress_bar() -> None:
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


def test_hangup_that_is_ignored_stays_ignored(demo_dir: Path) -> None:
    def ignore_hangup() -> None:
        """Do what nohup does."""
        signal.signal(signal.SIGHUP, signal.SIG_IGN)

    process = start_command("info", demo_dir / "processed", "--json", preexec_fn=ignore_hangup)
    for _ in range(20):
        process.send_signal(signal.SIGHUP)
        time.sleep(0.01)
    output, _ = process.communicate(timeout=60)

    assert json.loads(output)["exit_status"] == 0


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs a device that is always full")
@pytest.mark.parametrize("words", ["info processed --json", "pack --help"])
def test_full_standard_output_is_an_error(demo_dir: Path, words: str) -> None:
    with Path("/dev/full").open("w") as full:
        outcome = run_command(*words.split(), cwd=demo_dir, stdout=full)

    assert outcome.status == 1
    problem = "error: standard output: cannot be written: No space left on device\n"
    assert outcome.stderr == problem


@pytest.mark.parametrize("redirection", ["2>&- <&-", ">&-", "| true"])
def test_closed_streams_do_not_stop_the_command(
    demo_dir: Path, tmp_path: Path, redirection: str
) -> None:
    words = ["process", str(demo_dir / "ScanNet"), "-o", str(tmp_path), "--json", "--limit", "1"]
    command = shlex.join([*COMMAND, *words])

    outcome = run_words("sh", "-c", f"{command} {redirection}")

    assert len(list(tmp_path.rglob("scene*.npz"))) == 1
    assert outcome.status == 0
    assert "Traceback" not in outcome.stderr
    assert "BrokenPipe" not in outcome.stderr


def test_letters_that_the_terminal_lacks_are_escaped(demo_dir: Path, tmp_path: Path) -> None:
    folder = tmp_path / "Räume 教室"
    folder.symlink_to(demo_dir / "processed")

    with contextlib.redirect_stdout(io.TextIOWrapper(io.BytesIO(), encoding="ascii")) as stream:
        status = main(["info", str(folder)])

    assert status == 0
    assert b"R\\xe4ume" in stream.buffer.getvalue()


@pytest.fixture
def terminal_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """A command that fails, on a terminal with colors; its path has a control character."""
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.delenv("NO_COLOR", raising=False)
    return [*COMMAND, "info", str(tmp_path / "a\x1b[2Jb")]


def test_error_on_terminal_is_red_and_escapes_control_characters(
    terminal_error: list[str], tmp_path: Path
) -> None:
    _, shown = run_on_terminal(terminal_error)

    assert shown.startswith(f"\x1b[1;31merror:\x1b[0m {tmp_path}/a\\x1b[2Jb: ")


def test_error_on_terminal_is_plain_with_no_color(
    terminal_error: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("NO_COLOR", "1")

    _, shown = run_on_terminal(terminal_error)

    assert shown.startswith("error: ")


def test_demo_runs_from_an_empty_folder(demo: tuple[Path, Outcome]) -> None:
    _, outcome = demo

    assert outcome.status == 0
    assert outcome.stderr == ""


def test_demo_processes_its_scenes(demo: tuple[Path, Outcome]) -> None:
    _, outcome = demo

    assert "11 made, 0 already there" in outcome.stdout


@pytest.mark.parametrize(("name", "magic"), [("scene.png", b"\x89PNG"), ("scene.html", b"<!doc")])
def test_demo_writes_a_picture_and_a_page(
    demo: tuple[Path, Outcome], name: str, magic: bytes
) -> None:
    directory, _ = demo

    assert (directory / "data/demo" / name).read_bytes().startswith(magic)


def test_demo_ends_with_commands_that_work(demo: tuple[Path, Outcome]) -> None:
    _, outcome = demo
    lines = [line.strip() for line in outcome.stdout.splitlines()]

    commands = [line for line in lines if line.startswith("scannet-prep ")]

    assert commands[0] == "scannet-prep download --types seg --accept-terms"
    for command in commands:
        PARSER.parse_args(command.split()[1:])
    # Without an active environment, they only work after this one.
    line_before = lines[lines.index(commands[0]) - 1]
    assert line_before == f"source {sys.prefix}/bin/activate"


def test_demo_that_runs_again_makes_nothing(demo: tuple[Path, Outcome]) -> None:
    directory, _ = demo

    outcome = run_main("demo", "--json", cwd=directory)

    assert outcome.json["process"]["made"] == []


def test_demo_extracts_frames_of_val_scenes(demo_dir: Path) -> None:
    pytest.importorskip("PIL")

    assert len(FrameFolder(demo_dir / "frames")) == 3
    assert run_main("verify", demo_dir / "frames").status == 0


@pytest.mark.parametrize("name", ["ScanNet", "processed"])
def test_demo_makes_folders_that_verify(demo_dir: Path, name: str) -> None:
    assert run_main("verify", demo_dir / name).status == 0


def test_demo_refuses_folder_that_it_did_not_make(tmp_path: Path) -> None:
    (tmp_path / "ScanNet").mkdir()

    outcome = run_main("demo", tmp_path)

    assert outcome.status == 2
    assert "was not made by the demo" in outcome.stderr
    assert [path.name for path in tmp_path.iterdir()] == ["ScanNet"]


@pytest.fixture(scope="module")
def process_outcome(demo_dir: Path, tmp_path_factory: pytest.TempPathFactory) -> Outcome:
    """The outcome of `process` without a terminal."""
    return run_main("process", demo_dir / "ScanNet", "-o", tmp_path_factory.mktemp("process"))


def test_process_prints_its_results_to_stdout(process_outcome: Outcome) -> None:
    assert process_outcome.stdout.startswith("11 made, 0 already there, 0 failed")


def test_process_prints_its_warnings_to_stderr(process_outcome: Outcome) -> None:
    warning = "warning: groups dropped that repeat an earlier group exactly"
    assert warning in process_outcome.stderr


def test_process_shows_no_bar_without_a_terminal(process_outcome: Outcome) -> None:
    assert "100%" not in process_outcome.stderr


def test_quiet_process_prints_nothing_if_all_is_well(demo_dir: Path, tmp_path: Path) -> None:
    outcome = run_main("process", demo_dir / "ScanNet", "-o", tmp_path, "-q")

    assert outcome == Outcome(0, stdout="", stderr="")


def test_quiet_process_prints_failures(demo_dir: Path, tmp_path: Path) -> None:
    words = ["process", demo_dir / "ScanNet", "-o", tmp_path, "-q"]

    outcome = run_main(*words, "--scenes", "scene0003_00")

    assert outcome.status == 3
    assert outcome.stderr.startswith("failed: scene0003_00: ")


@pytest.fixture
def verify_words(demo_dir: Path) -> list[str]:
    return [*COMMAND, "verify", str(demo_dir / "processed"), "--jobs", "1", "--limit", "2"]


@pytest.mark.parametrize(("columns", "widest"), [(60, 60), (0, 80)], ids=["60", "unknown"])
def test_bar_fits_the_terminal(verify_words: list[str], columns: int, widest: int) -> None:
    status, shown = run_on_terminal(verify_words, columns)

    assert status == 0
    assert re.search(r"verify: .* 2/2 \[", shown)
    bars = [line for line in shown.replace("\r", "\n").splitlines() if "%|" in line]
    assert [bar for bar in bars if len(bar) > widest] == []


def test_bar_is_not_drawn_with_no_progress(verify_words: list[str]) -> None:
    _, shown = run_on_terminal([*verify_words, "--no-progress"])

    assert "100%" not in shown


def test_note_before_any_work_is_shown_on_a_terminal() -> None:
    program = "from scannet_prep.cli.console import Console; Console().note('not recorded')"

    status, shown = run_on_terminal([PYTHON, "-c", program])

    assert status == 0
    assert shown.strip() == "not recorded"


def run_progress(body: str, columns: int) -> list[str]:
    """Run code that reports the progress of a download of 21 GB; return the lines shown."""
    program = f"""if True:
        import time
        from scannet_prep.cli.console import Console
        progress = Console()
        with progress.work("download", 21_000_000_000, "B"):
{textwrap.indent(textwrap.dedent(body), " " * 12)}
    """
    _, shown = run_on_terminal([PYTHON, "-c", program], columns)
    return shown.replace("\r", "\n").splitlines()


def test_bar_shows_bytes_in_60_columns() -> None:
    lines = run_progress(
        """
        progress.status("7,766/7,766 files")
        progress.advance(20_900_000_000)
        """,
        columns=60,
    )

    assert any(re.search(r"download: 100%\|.*\| 20\.9G/21\.0G \[", line) for line in lines)


def test_status_is_shown_in_80_columns_while_nothing_is_counted() -> None:
    lines = run_progress(
        """
        progress.advance(9_450_000_000)
        for text in ("3,412/7,766 files", "down, retry in 30 s", "3,413/7,766 files"):
            time.sleep(0.2)
            progress.status(text)
        """,
        columns=80,
    )

    assert any("down, retry in 30 s]" in line and len(line) <= 80 for line in lines)


def test_rate_falls_when_less_arrives_while_a_status_is_shown() -> None:
    lines = run_progress(
        """
        time.sleep(0.2)
        progress.advance(9_450_000_000)
        for _ in range(20):
            time.sleep(0.11)
            progress.status("3,412/7,766 files")
            progress.advance()
        """,
        columns=80,
    )

    # The last rate is the mean of the whole run.
    *rates, _ = re.findall(r"([0-9.]+[kMG]?)B/s, 3,412/7,766", "\n".join(lines))
    assert rates[-1] != rates[0]


@pytest.fixture(scope="module", params=["", *COMMANDS])
def help_of_command(request: pytest.FixtureRequest) -> tuple[str, Outcome]:
    """A command, or nothing for the program itself, and its help for 60 columns."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("COLUMNS", "60")
        outcome = run_main(*request.param.split(), "--help")
    return request.param, outcome


def is_example(line: str) -> bool:
    return line.startswith(("  scannet-prep ", "  torchrun "))


def test_help_goes_to_stdout_and_exits_with_0(help_of_command: tuple[str, Outcome]) -> None:
    _, outcome = help_of_command

    assert outcome.status == 0
    assert outcome.stderr == ""
    assert outcome.stdout.startswith("usage: ")


def test_help_shows_shared_options_and_examples(help_of_command: tuple[str, Outcome]) -> None:
    command, outcome = help_of_command
    shown = []
    if command:
        shown = ["--verbose", "--quiet", "--json", "--no-progress"]
        shown.append(f"examples:\n  scannet-prep {command}")

    assert [text for text in shown if text not in outcome.stdout] == []


def test_help_fits_60_columns_except_examples(help_of_command: tuple[str, Outcome]) -> None:
    _, outcome = help_of_command
    lines = [line for line in outcome.stdout.splitlines() if not is_example(line)]

    assert [line for line in lines if len(line) > 60] == []


def test_examples_in_help_fit_80_columns(help_of_command: tuple[str, Outcome]) -> None:
    _, outcome = help_of_command

    assert [line for line in outcome.stdout.splitlines() if len(line) > 80] == []


@pytest.mark.parametrize("command", ["", "process"])
def test_help_command_prints_help_of_command(command: str) -> None:
    words = command.split()

    assert run_main("help", *words) == run_main(*words, "--help")


def test_help_of_unknown_command_suggests_a_similar_one() -> None:
    outcome = run_main("help", "proces")

    assert outcome.status == 2
    assert "did you mean process?" in outcome.stderr


def test_examples_in_help_are_accepted_by_parser(help_of_command: tuple[str, Outcome]) -> None:
    _, outcome = help_of_command

    for line in outcome.stdout.splitlines():
        if line.startswith("  scannet-prep "):
            # An explanation after two blanks, a pipe or a redirection ends the command.
            command = re.split(r"  \S|\||>", line.strip())[0]
            PARSER.parse_args(shlex.split(command)[1:])


@pytest.mark.parametrize(
    ("size_bytes", "text"),
    [
        (0, "0 B"),
        (999, "999 B"),
        (1000, "1.0 kB"),
        (20_999_000_000, "21.0 GB"),
        (10**13, "10.00 TB"),
    ],
)
def test_size_is_formatted_in_decimal_units(size_bytes: int, text: str) -> None:
    assert format_bytes(size_bytes) == text


def test_table_is_wrapped_to_the_width_of_the_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
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
