"""The command line as a whole: help, wrong usage, JSON, findings, signals, streams, progress."""

import contextlib
import io
import json
import re
import shlex
import signal
import time
from pathlib import Path

import pytest
from commands import (
    COMMAND,
    PLAIN_COMMAND,
    PYTHON,
    Outcome,
    fail,
    raw_file,
    run_command,
    run_main,
    run_on_terminal,
    run_words,
    start_command,
    succeed,
)
from tiny import make_stream

from scannet_prep.base.findings import Finding
from scannet_prep.base.version import VERSION
from scannet_prep.cli import console as cli_console
from scannet_prep.cli.console import Console, format_table
from scannet_prep.cli.main import main, make_parser

PARSER = make_parser()
COMMANDS = [*PARSER._subparsers._group_actions[0].choices]
INTERRUPTED = "interrupted: run the same command again\n"


def test_help_lists_commands_and_exit_statuses():
    outcome = succeed("--help")
    assert outcome.stderr == ""
    for text in [*COMMANDS, "exit status", "130"]:
        assert text in outcome.stdout
    assert max(map(len, outcome.stdout.splitlines())) <= 80
    assert run_main("--version").stdout == f"scannet-prep {VERSION}\n"


@pytest.mark.parametrize("command", COMMANDS)
def test_help_of_command_fits_80_columns_and_its_examples_are_accepted(command, monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")

    outcome = succeed(command, "--help")
    assert outcome.stderr == ""
    for text in ("usage: ", "--verbose", "--quiet", "--json", "--no-progress"):
        assert text in outcome.stdout
    assert f"examples:\n  scannet-prep {command}" in outcome.stdout
    lines = outcome.stdout.splitlines()
    assert not [line for line in lines if len(line) > 80]
    for line in lines:
        if line.startswith("  scannet-prep "):
            # An explanation after two blanks, a pipe or a redirection ends the command.
            example = re.split(r"  \S|\||>", line.strip())[0]
            PARSER.parse_args(shlex.split(example)[1:])

    monkeypatch.setenv("COLUMNS", "60")
    _, description, *_ = run_main(command, "--help").stdout.split("\n\n")
    assert max(map(len, description.splitlines())) <= 60


@pytest.mark.parametrize(
    ("words", "problem", "hint"),
    [
        ("proces", "invalid choice: 'proces'", "scannet-prep --help"),
        ("", "arguments are required: COMMAND", "scannet-prep --help"),
        ("process --split train", "unrecognized arguments: --split", "scannet-prep process --help"),
        ("process --jobs 2 --dask x", "--dask: not allowed with argument --jobs", "process --help"),
        ("download", "arguments are required: --types", "scannet-prep download --help"),
        ("download --types seg --scenes scene9999_00", "has no scene scene9999_00", "release run"),
        ("download --types .txt --jobs 9", "--jobs: invalid choice: 9", "download --help"),
        ("download --types seg --dry-run --print-urls", "not allowed with", "download --help"),
        ("download --types seg --base-url kaldir", "'kaldir' is not the address", "--help"),
        ("download --types seg --base-url http://[::1", "'http://[::1' is not the", "--help"),
        (
            "download --types _vh_clean_2.labels.ply --splits test",
            "no file of these types exists",
            "test scenes have no annotation",
        ),
        ("process --labels-from obj", "invalid choice: 'obj'", "scannet-prep process --help"),
        ("verify --splits tain", "invalid choice: 'tain'", "verify --help"),
        ("process -o s3://a:b@c", "'s3://...@c' is an address, expected a path", "process --help"),
        ("verify . --limit 0", "'0' is not a whole number of at least 1", "verify --help"),
        ("frames --fetch raw", "'raw' is not the address of a server", "frames --help"),
        ("pack . -o a.zip", "a.zip: an archive is a .tar.zst file", "such as scannet.tar.zst"),
        ("pack . --level 23", "--level: invalid choice: 23", "pack --help"),
        ("--print-completion ksh", "invalid choice: 'ksh'", "scannet-prep --help"),
        ("verify . --jobs ²", "'²' is not a whole number of at least 1", "verify --help"),
    ],
)
def test_wrong_usage_exits_with_2_and_a_hint(words, problem, hint, tmp_path):
    outcome = run_main(*words.split(), cwd=tmp_path)

    assert outcome.status == 2
    assert not outcome.stdout
    error_line, hint_line = outcome.stderr.splitlines()
    assert error_line.startswith("error: ")
    assert problem in error_line
    assert hint_line.startswith("hint: ")
    assert hint in hint_line
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("words", "status", "error"),
    [
        ("process --oops", 2, "UsageError"),
        ("process", 1, "MissingFileError"),
        ("pack -o -", 2, "UsageError"),
        ("info", 1, "MissingFileError"),
        ("verify --scenes @~nowhere", 1, "MissingFileError"),
    ],
)
def test_json_of_failed_command_is_one_object(words, status, error, tmp_path):
    outcome = run_main(*words.split(), "--json", "~nowhere.tar.zst", cwd=tmp_path)

    value = outcome.json
    assert outcome.status == value["exit_status"] == status
    assert value["error"] == error
    assert value["message"] in outcome.stderr
    assert value["path"] in outcome.stderr


def test_findings_of_outcome_are_listed_with_each_hint_once_and_make_the_status(capsys):
    note = Finding(message="is old", subject="b.txt", severity="note")
    errors = [
        Finding(message=f"fault {number}", subject="a.ply", scene_id="scene0000_00", hint="copy it")
        for number in range(120)
    ]
    shown = cli_console.Outcome({"scenes": 1}, ["1 scene"], [note, *errors])

    assert Console().show(shown) == 3
    out, err = capsys.readouterr()
    lines = err.splitlines()
    assert out == "1 scene\n"
    assert lines[:2] == ["note: b.txt: is old", "error: a.ply: scene0000_00: fault 0"]
    assert lines[100:] == ["... and 21 more; all of them with -v or --json", "hint: copy it"]

    assert Console(is_verbose=True).show(shown) == 3
    assert "fault 119" in capsys.readouterr().err

    assert Console(is_quiet=True).show(shown) == 3
    out, err = capsys.readouterr()
    assert out == ""
    assert "note" not in err

    assert Console(command="verify", is_json=True).show(shown) == 3
    value = json.loads(capsys.readouterr().out)
    assert value.pop("seconds") >= 0
    assert value == {"exit_status": 3, "command": "verify", "scenes": 1}

    assert Console().show(cli_console.Outcome({}, [], [note])) == 0
    assert capsys.readouterr().out == ""


def test_bug_is_reported_with_its_traceback(monkeypatch):
    def divide(arguments, console):
        return 1 // 0

    monkeypatch.setattr("scannet_prep.cli.info.run", divide)

    outcome = run_main("info", ".", "--json")

    assert outcome.status == 1
    assert "unforeseen ZeroDivisionError" in outcome.stderr
    assert "return 1 // 0" in outcome.stderr
    assert "return 1 // 0" in outcome.json["trace"]


def test_table_aligns_numbers_to_the_right():
    table = format_table(["type", "already there"], [["mesh with labels", "1,201"], ["txt", "2"]])

    assert table.splitlines() == [
        "type              already there",
        "----------------  -------------",
        "mesh with labels          1,201",
        "txt                           2",
    ]


def wait_until_signals_are_handled(process):
    """Wait until the program has replaced Python's handlers of signals."""
    path = Path(f"/proc/{process.pid}/status")
    bit = 1 << (signal.SIGTERM - 1)
    while not int(re.search(r"SigCgt:\s+(\w+)", path.read_text())[1], base=16) & bit:
        assert process.poll() is None
        time.sleep(0.001)


@pytest.mark.parametrize("delay_s", [0.0, 0.2])
def test_many_signals_end_command_with_130_and_one_line(delay_s, whole_dir, tmp_path):
    words = ["process", whole_dir / "raw", "-o", tmp_path / "out", "--jobs", "1", "--json", "-q"]
    # With `-W error`, Python also prints a warning about the file that it was importing from.
    process = start_command(*words, command=PLAIN_COMMAND)
    wait_until_signals_are_handled(process)
    time.sleep(delay_s)

    for number in [signal.SIGINT, signal.SIGTERM, signal.SIGHUP] * 7:
        process.send_signal(number)
        time.sleep(0.002)
    output, errors = process.communicate(timeout=120)

    assert process.returncode == 130
    assert errors == INTERRUPTED
    assert json.loads(output)["exit_status"] == 130


def test_signal_during_an_import_is_not_reported_as_import_error(whole_dir):
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

    outcome = run_words(PYTHON, "-c", program, "verify", whole_dir / "processed", "-q")

    assert outcome == Outcome(130, "", INTERRUPTED)


@pytest.mark.parametrize(
    ("interrupt", "cleanup"),
    [
        ("kill()", "pass"),
        ("Pool()", "pass"),
        ("kill()", "kill(); time.sleep(100)"),
        ("kill()", "raise RuntimeError('release unlocked lock')"),
    ],
)
def test_interrupted_command_exits_with_130_and_one_line(interrupt, cleanup):
    program = f"""if True:
        import os, signal, sys, time
        import scannet_prep.cli.info
        from scannet_prep import __main__ as program
        def kill(*_):
            os.kill(os.getpid(), signal.SIGTERM)
            time.sleep(0.01)
        Pool = type("Pool", (), {{"__del__": kill}})
        def run(*_):
            try:
                {interrupt}
            finally:
                {cleanup}
        scannet_prep.cli.info.run = run
        sys.exit(program.main())
    """

    assert run_words(PYTHON, "-c", program, "info", ".") == Outcome(130, "", INTERRUPTED)


def test_error_does_not_wait_for_threads():
    program = """if True:
        import threading
        import scannet_prep.cli.info
        from scannet_prep.__main__ import main
        def run(*_):
            threading.Thread(target=threading.Event().wait).start()
            open("nowhere")
        scannet_prep.cli.info.run = run
        main()
    """

    assert run_words(PYTHON, "-c", program, "info", ".").status == 1


def test_interrupt_after_the_result_writes_no_second_one(whole_dir):
    program = """if True:
        import os, signal, sys
        from scannet_prep.__main__ import main
        class Stream:
            def __getattr__(self, name):
                return getattr(sys.__stdout__, name)
            def write(self, text):
                sys.__stdout__.write(text)
                os.kill(os.getpid(), signal.SIGINT)
        sys.stdout = Stream()
        sys.exit(main())
    """

    done = run_words(PYTHON, "-c", program, "info", whole_dir / "processed", "--json")

    assert (done.status, done.stderr) == (0, "")
    assert done.json["exit_status"] == 0


def test_last_line_is_below_the_progress_bar():
    program = """if True:
        import sys, time
        from scannet_prep import __main__ as program
        sys.stderr.write("process: 5%")
        sys.stderr.flush()
        program._exit()
    """

    status, shown = run_on_terminal([PYTHON, "-c", program])

    assert status == 130
    assert shown.splitlines() == ["process: 5%", INTERRUPTED.strip()]


def test_hangup_that_is_ignored_stays_ignored(whole_dir):
    words = [*COMMAND, "info", str(whole_dir / "processed"), "--json"]
    # What nohup does.
    hang_up = "for i in $(seq 20); do kill -HUP $!; sleep 0.01; done; wait $!"
    outcome = run_words("bash", "-c", f"trap '' HUP; {shlex.join(words)} & {hang_up}")

    assert outcome.json["exit_status"] == 0


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="this machine has no full device")
def test_full_standard_output_is_an_error(whole_dir):
    with Path("/dev/full").open("w") as full:
        outcome = run_command("info", whole_dir / "processed", "--json", stdout=full)

    assert outcome.status == 1
    problem = "error: standard output: cannot be written: No space left on device\n"
    assert outcome.stderr == problem


@pytest.mark.parametrize("redirection", ["2>&- <&-", "2</dev/null", ">&-", "| true"])
def test_closed_streams_do_not_stop_the_command(redirection, whole_dir, tmp_path):
    words = ["process", str(whole_dir / "raw"), "-o", str(tmp_path), "--json", "--limit", "1"]

    outcome = run_words("sh", "-c", f"{shlex.join([*COMMAND, *words])} {redirection}")

    assert len(list(tmp_path.rglob("scene*.npz"))) == 1
    assert outcome.status == 0
    assert "Traceback" not in outcome.stderr
    assert "BrokenPipe" not in outcome.stderr
    if "2" in redirection:
        assert outcome.json["exit_status"] == 0


@pytest.mark.parametrize(
    "words",
    ["process RAW", "frames RAW", "download --types seg --accept-terms --scenes scene0000_00"],
)
def test_error_in_a_deleted_folder_names_what_cannot_be_written(words, raw_dir, tmp_path):
    raw_file(raw_dir, ".sens").write_bytes(make_stream())
    command = words.replace("RAW", str(raw_dir))
    script = f'mkdir gone; cd gone; rmdir ../gone; "{PYTHON}" -m scannet_prep {command} -o out'

    problem = "error: out: cannot be written: No such file or directory"
    fail(1, problem, "sh", "-c", script, cwd=tmp_path, run=run_words)


def test_letters_that_the_terminal_lacks_are_escaped(whole_dir, tmp_path):
    folder = tmp_path / "Räume 教室"
    folder.symlink_to(whole_dir / "processed")

    with contextlib.redirect_stdout(io.TextIOWrapper(io.BytesIO(), encoding="ascii")) as stream:
        status = main(["info", str(folder)])

    assert status == 0
    assert b"R\\xe4ume" in stream.buffer.getvalue()


def test_error_on_terminal_escapes_control_characters(tmp_path):
    _, shown = run_on_terminal([*COMMAND, "info", tmp_path / "a\x1b[2J\nb"])

    assert shown.startswith(f"error: {tmp_path}/a\\x1b[2J\\x0ab: ")


def test_quiet_command_prints_failures_only(raw_dir, tmp_path):
    mesh_path = raw_file(raw_dir, "_vh_clean_2.ply")
    mesh_path.write_bytes(b"")
    outcome = run_main("process", raw_dir, "-o", tmp_path / "out", "-q")

    assert (outcome.status, outcome.stdout) == (3, "")
    error, hint = outcome.stderr.splitlines()
    assert error.startswith(f"error: {mesh_path}: ")
    assert hint.startswith("hint: ")


@pytest.mark.parametrize(("columns", "widest"), [(60, 60), (0, 80)], ids=["60", "unknown"])
def test_bar_fits_the_terminal(columns, widest, whole_dir):
    words = [*COMMAND, "verify", whole_dir / "processed", "--jobs", "1"]

    status, shown = run_on_terminal(words, columns)
    assert status == 0
    # The check of what belongs to no scene is not counted.
    assert re.search(r"verify: .* 3/3 \[", shown)
    bars = [line for line in shown.replace("\r", "\n").splitlines() if "%|" in line]
    assert not [bar for bar in bars if len(bar) > widest]

    _, shown = run_on_terminal([*words, "--no-progress"], columns)
    assert "100%" not in shown
    assert "100%" not in run_main(*words[len(COMMAND) :]).stderr


def test_bar_shows_bytes_a_status_while_nothing_is_counted_and_notes_above():
    program = """if True:
        import time
        from scannet_prep.cli.console import Console
        progress = Console()
        with progress.work("download", 21_000_000_000, "B"):
            time.sleep(0.2)
            progress.advance(9_450_000_000)
            for _ in range(20):
                time.sleep(0.11)
                progress.status("waiting for the server")
                progress.advance()
            progress.note("not recorded")
            progress.status("7,766/7,766 files")
            progress.advance(11_500_000_000)
    """

    _, shown = run_on_terminal([PYTHON, "-c", program], 80)

    lines = shown.replace("\r", "\n").splitlines()
    assert "not recorded" in [line.strip() for line in lines]
    assert re.search(r"download: 100%\|.*\| 21\.0G/21\.0G \[.* 7,766/7,766 files\]", lines[-1])
    assert max(map(len, lines)) <= 80
    # Less and less arrives each second.
    rates = re.findall(r"([0-9.]+[kMG]?)B/s, waiting for the server\]", shown)
    assert rates[-1] != rates[0]
