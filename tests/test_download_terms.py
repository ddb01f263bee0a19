"""The terms of use: a question at a terminal, an option elsewhere, and a record."""

import os
import shlex
import subprocess
from pathlib import Path

import pytest
from commands import COMMAND, Outcome, run_command, run_main
from release_server import ReleaseServer

from scannet_prep.release.files import TERMS_URL

SIGNING = (
    TERMS_URL,
    "institution",
    "scannet@googlegroups.com",
    "within a week",
    "docs/access.md",
)
QUESTION = "[y/N]"


def run_at_terminal(answer: str, *words: str) -> Outcome:
    """Run the command with a terminal for its input and its messages, and type an answer ahead."""
    leader, follower = os.openpty()
    os.write(leader, answer.encode())
    with open(follower, "wb") as terminal:  # noqa: PTH123 - a descriptor
        done = subprocess.run(
            [*COMMAND, *words],
            stdin=terminal,
            stdout=subprocess.PIPE,
            stderr=terminal,
            text=True,
            timeout=60,
            check=False,
        )
        shown = os.read(leader, 1 << 16).decode().replace("\r\n", "\n")
    os.close(leader)
    return Outcome(done.returncode, done.stdout, shown)


@pytest.fixture
def words(server: ReleaseServer, tmp_path: Path) -> list[str]:
    """The command that downloads a scene."""
    output = ["-o", str(tmp_path / "my data"), "--base-url", server.base_url]
    return ["download", "--types", "seg", *output, "--scenes", "scene0000_00"]


@pytest.mark.parametrize("answer", ["y\n", "Yes\n"])
def test_accepting_at_the_terminal_downloads_and_records(
    words: list[str], tmp_path: Path, answer: str
) -> None:
    outcome = run_at_terminal(answer, *words)

    assert outcome.status == 0, outcome.stderr
    assert TERMS_URL in (tmp_path / "my data/terms_accepted.txt").read_text()


def test_question_explains_how_to_sign(words: list[str]) -> None:
    outcome = run_at_terminal("y\n", *words)

    shown = " ".join(outcome.stderr.split())
    assert [text for text in (*SIGNING, QUESTION) if text not in shown] == []


@pytest.mark.parametrize("answer", ["n\n", "\n", "\x04", "yesterday\n"])
def test_any_other_answer_is_status_2_and_touches_nothing(
    server: ReleaseServer, words: list[str], tmp_path: Path, answer: str
) -> None:
    assert run_at_terminal(answer, *words).status == 2

    assert server.requests() == []
    assert list(tmp_path.iterdir()) == []


def test_question_is_asked_once(words: list[str]) -> None:
    run_at_terminal("y\n", *words)

    outcome = run_at_terminal("", *words)

    assert outcome.status == 0
    assert QUESTION not in outcome.stderr


def test_json_at_a_terminal_is_an_error_without_question(words: list[str]) -> None:
    outcome = run_at_terminal("y\n", *words, "--json")

    assert outcome.status == 2
    assert outcome.json["error"] == "UsageError"
    assert QUESTION not in outcome.stderr


def test_error_without_a_terminal_explains_how_to_sign(
    server: ReleaseServer, words: list[str], tmp_path: Path
) -> None:
    outcome = run_command(*words)

    assert outcome.status == 2
    assert [text for text in SIGNING if text not in outcome.stderr] == []
    assert server.requests() == []
    assert list(tmp_path.iterdir()) == []


def test_hint_without_a_terminal_is_a_command_that_works(words: list[str]) -> None:
    hint = run_main(*words, "--json").json["hint"]

    command = shlex.split(hint.partition("scannet-prep ")[2])
    assert command == [*words, "--json", "--accept-terms"]
    assert run_main(*command).status == 0


def test_hint_does_not_repeat_a_password(words: list[str]) -> None:
    secret_words = [word.replace("http://", "http://user:secret@") for word in words]

    outcome = run_main(*secret_words)

    assert outcome.status == 2
    assert "secret" not in outcome.stderr


def test_terms_accepted_in_the_environment_are_recorded(
    words: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SCANNET_PREP_ACCEPT_TERMS", "1")

    assert run_main(*words).status == 0

    assert TERMS_URL in (tmp_path / "my data/terms_accepted.txt").read_text()
