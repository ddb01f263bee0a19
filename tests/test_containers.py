"""Tests of the package in containers, of limits of cores and memory, and of the container files.

`.ci/container` builds the image and runs it, if buildah is available.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import yaml
from archives import write_tree
from commands import Outcome, digests, is_running, run_command, run_main, run_words, start_command
from extras import find_program
from launches import LAUNCHES, Launch
from test_readme import find_commands

from scannet_prep.base.machine import find_core_limits, find_memory_limits
from scannet_prep.cli.main import make_parser

REPOSITORY_DIR = Path(__file__).parents[1]
COMPOSE_PATH = REPOSITORY_DIR / "compose.yaml"
COMPOSE_TEXT = COMPOSE_PATH.read_text(encoding="utf-8")
DOCKERFILE = (REPOSITORY_DIR / "Dockerfile").read_text(encoding="utf-8")
DOCKERFILE_LINES = [line for line in DOCKERFILE.splitlines() if line and line[0] != "#"]

GIB = 1 << 30


# Signals to process 1.

NAMESPACE = ["unshare", "--pid", "--fork", "--kill-child", "--mount-proc"]
if os.geteuid() != 0:
    NAMESPACE[1:1] = ["--user", "--map-root-user"]


def has_process_namespaces() -> bool:
    if shutil.which("unshare") is None:
        return False
    return run_words(*NAMESPACE, "sh", "-c", "echo $$").stdout == "1\n"


def children_of(pid: int) -> list[int]:
    path = Path(f"/proc/{pid}/task/{pid}/children")
    return [int(word) for word in path.read_text().split()]


class Terminated(NamedTuple):
    """A run of `process` as process 1 that was ended by SIGTERM.

    Attributes:
        status: Exit status.
        stdout: Standard output.
        stderr: Standard error.
        workers: The process ids of its workers.
        raw_dir: Its input.
        out_dir: Its output.
    """

    status: int
    stdout: str
    stderr: str
    workers: list[int]
    raw_dir: Path
    out_dir: Path


@pytest.fixture
def terminated(raw_dir: Path, tmp_path: Path) -> Terminated:
    if not has_process_namespaces():
        pytest.skip("this machine has no process namespaces (unshare --pid)")
    out_dir = tmp_path / "out"
    words = ("process", str(raw_dir), "-o", str(out_dir), "--jobs", "2")
    outer = start_command(*words, before=NAMESPACE)
    while not (out_dir / "manifest.json").exists():
        assert outer.poll() is None, outer.communicate()
        time.sleep(0.001)
    (first,) = children_of(outer.pid)
    status_text = Path(f"/proc/{first}/status").read_text()
    assert re.search(r"^NSpid:\s+\d+\s+1$", status_text, re.MULTILINE)
    workers = children_of(first)

    # As `docker stop` does.
    os.kill(first, signal.SIGTERM)

    stdout, stderr = outer.communicate(timeout=30)
    return Terminated(outer.returncode, stdout, stderr, workers, raw_dir, out_dir)


def test_sigterm_ends_process_one_and_its_workers(terminated: Terminated) -> None:
    assert terminated.status == 130
    assert terminated.stdout == ""
    assert terminated.stderr.splitlines()[-1] == "interrupted: run the same command again"
    assert [pid for pid in terminated.workers if is_running(pid)] == []


def test_run_after_sigterm_completes_the_folder(terminated: Terminated, whole_dir: Path) -> None:
    words = ("process", terminated.raw_dir, "-o", terminated.out_dir, "--jobs", "1")

    assert run_main(*words).status == 0
    assert digests(terminated.out_dir) == digests(whole_dir / "processed")


# Users without a home, and folders without a volume.


def test_process_of_a_user_without_terminal_prints_plain_lines(
    raw_dir: Path, tmp_path: Path
) -> None:
    environment = {
        "PATH": os.environ["PATH"],
        "HOME": "/nonexistent",
        "PYTHONPATH": str(REPOSITORY_DIR),
    }
    words = ("process", raw_dir, "-o", tmp_path / "out", "--jobs", "1")

    outcome = run_command(*words, environment=environment)

    assert outcome.status == 0
    assert not set("\r\x1b") & set(outcome.stdout + outcome.stderr)


def test_pack_of_a_user_without_home_writes_an_intact_archive(
    whole_dir: Path, tmp_path: Path
) -> None:
    environment = {"PATH": os.environ["PATH"], "PYTHONPATH": str(REPOSITORY_DIR)}
    archive_path = tmp_path / "a.tar.zst"
    words = ("pack", whole_dir / "processed", "-o", archive_path)

    assert run_command(*words, environment=environment).status == 0
    assert run_main("verify", archive_path).status == 0


# The Dockerfile.


@pytest.mark.extra("hadolint")
def test_hadolint_accepts_the_dockerfile() -> None:
    assert run_words(str(find_program("hadolint")), REPOSITORY_DIR / "Dockerfile") == Outcome(
        0, "", ""
    )


def test_image_has_two_stages() -> None:
    assert len([line for line in DOCKERFILE_LINES if line.startswith("FROM ")]) == 2


def test_image_runs_as_a_numeric_user() -> None:
    users = [line for line in DOCKERFILE_LINES if line.startswith("USER ")]
    assert users == ["USER 1000:1000"]


def test_image_contains_neither_accepted_terms_nor_secrets() -> None:
    pattern = r"ACCEPT_TERMS|TOKEN|PASSWORD|HEALTHCHECK|^ADD "
    assert not re.search(pattern, "\n".join(DOCKERFILE_LINES), re.MULTILINE)


def test_image_runs_the_command_and_shows_its_help_by_default() -> None:
    assert DOCKERFILE_LINES[-2:] == ['ENTRYPOINT ["scannet-prep"]', 'CMD ["--help"]']


def test_build_context_holds_only_the_files_that_are_copied() -> None:
    # So no data, no .netrc and no history of the repository can enter the image.
    text = (REPOSITORY_DIR / ".dockerignore").read_text()
    rules = [line for line in text.splitlines() if line[:1] != "#"]
    allowed = {rule[1:] for rule in rules if rule[0] == "!"}
    copied = set()
    for sources in re.findall(r"^COPY (?!--from)(.+) \S+$", DOCKERFILE, re.MULTILINE):
        copied.update(sources.split())

    assert rules[0] == "*"
    assert copied == allowed


# The compose file.


@pytest.fixture
def service() -> dict[str, Any]:
    (service,) = yaml.safe_load(COMPOSE_TEXT)["services"].values()
    return service


def test_compose_file_only_passes_variables_on(service: dict[str, Any]) -> None:
    assert set(service["environment"].values()) == {None}


def test_compose_file_runs_as_the_given_user(service: dict[str, Any]) -> None:
    assert service["user"] == "${UID:-1000}:${GID:-1000}"


@pytest.mark.parametrize("key", ["shm_size", "privileged"])
def test_compose_file_needs_no_larger_shared_memory_and_no_privileges(
    service: dict[str, Any], key: str
) -> None:
    assert key not in service


def test_comment_of_compose_file_explains_shared_memory() -> None:
    assert "shm_size" in COMPOSE_TEXT


def test_command_in_the_compose_file_passes_the_user_id_on() -> None:
    pattern = r"^# +(.* )docker compose run --rm scannet-prep \.\.\."
    (prefix,) = re.findall(pattern, COMPOSE_TEXT, re.MULTILINE)
    environment = {"PATH": os.environ["PATH"]}

    outcome = run_words("bash", "-c", f"{prefix}printenv UID GID", env=environment)

    assert outcome.stdout.split() == [str(os.getuid()), str(os.getgid())]
    assert outcome.stderr == ""


@pytest.mark.extra("docker-compose")
def test_docker_compose_takes_user_and_data_from_the_env_file(tmp_path: Path) -> None:
    shutil.copy(COMPOSE_PATH, tmp_path)
    (tmp_path / ".env").write_text("UID=77\nGID=78\nSCANNET_DATA=/scratch\n")
    environment = {"PATH": os.environ["PATH"], "HOME": str(tmp_path)}

    outcome = run_words("docker-compose", "config", cwd=tmp_path, env=environment)

    (service,) = yaml.safe_load(outcome.stdout)["services"].values()
    assert service["user"] == "77:78"
    assert service["volumes"][0].startswith("/scratch:/data")


# The development container and the documentation.


@pytest.fixture
def development_container() -> dict[str, Any]:
    text = (REPOSITORY_DIR / ".devcontainer/devcontainer.json").read_text(encoding="utf-8")
    value: dict[str, Any] = json.loads(re.sub(r"^\s*//.*$", "", text, flags=re.MULTILINE))
    return value


def test_development_container_runs_an_existing_command(
    development_container: dict[str, Any],
) -> None:
    for path in development_container["postCreateCommand"].split():
        assert (REPOSITORY_DIR / path).exists(), path


def test_development_container_runs_the_tests(development_container: dict[str, Any]) -> None:
    settings = development_container["customizations"]["vscode"]["settings"]
    assert settings["python.testing.pytestArgs"] == ["tests"]


def iter_container_commands() -> Iterator[list[str]]:
    """Iterate over the commands that the container files and their page start in a container."""
    page = (REPOSITORY_DIR / "docs/containers.md").read_text(encoding="utf-8")
    start = re.compile(r"(env UID=.+ GID=\S+ )?(docker|podman) .*\brun ")
    for text in (DOCKERFILE, COMPOSE_TEXT, page):
        for line in text.replace("\\\n", " ").splitlines():
            command = line.strip("# ")
            if start.match(command) and "..." not in command:
                yield from find_commands(command)


def test_documented_container_commands_are_valid() -> None:
    commands = list(iter_container_commands())
    assert len(commands) > 5
    for words in commands:
        make_parser().parse_args(words or ["demo"])


# Limits of cores and memory.

GROUPS = "sys/fs/cgroup"
MEMBERSHIP = "proc/self/cgroup"


def write_group(root: Path, files: dict[str, str]) -> Path:
    """Write the files of control groups, of which this process belongs to `/job/step`."""
    contents = {f"{GROUPS}/{name}": text.encode() for name, text in files.items()}
    contents[MEMBERSHIP] = b"3:cpu,cpuacct:/box\n0::/job/step\n"
    return write_tree(root, contents)


@pytest.fixture
def root_group(tmp_path: Path) -> Path:
    """A control group with limits at its root, as in a container."""
    return write_group(tmp_path, {"cpu.max": "150000 100000", "memory.max": f"{3 * GIB}\n"})


@pytest.fixture
def nested_group(tmp_path: Path) -> Path:
    """Control groups of which only the outer one has limits."""
    files = {
        "job/cpu.max": "100000 100000",
        "job/memory.max": f"{2 * GIB}",
        "job/step/cpu.max": "max 100000",
        "job/step/memory.max": "max",
    }
    return write_group(tmp_path, files)


def test_fraction_of_a_core_in_a_control_group_is_rounded_up(root_group: Path) -> None:
    assert find_core_limits({}, root_group)["container"] == 2


def test_memory_limit_of_a_control_group_is_found(root_group: Path) -> None:
    assert find_memory_limits({}, root_group)["container"] == 3 * GIB


def test_core_limits_are_those_of_outer_group_and_slurm(nested_group: Path) -> None:
    environ = {"SLURM_CPUS_PER_TASK": "7", "SLURM_CPUS_ON_NODE": "9"}
    limits = find_core_limits(environ, nested_group)

    assert set(limits) == {"affinity", "Slurm", "container"}
    assert limits["Slurm"] == 7
    assert limits["container"] == 1


def test_memory_limits_are_those_of_outer_group_and_slurm(nested_group: Path) -> None:
    limits = find_memory_limits({"SLURM_MEM_PER_NODE": "1024"}, nested_group)

    assert set(limits) == {"machine", "container", "Slurm"}
    assert limits["container"] == 2 * GIB
    assert limits["Slurm"] == 1 * GIB


def test_memory_per_core_of_slurm_is_multiplied_by_the_cores(nested_group: Path) -> None:
    environ = {"SLURM_MEM_PER_CPU": "512", "SLURM_CPUS_ON_NODE": "4"}
    assert find_memory_limits(environ, nested_group)["Slurm"] == 2 * GIB


def test_machine_without_control_groups_has_no_container_limit(tmp_path: Path) -> None:
    assert "container" not in find_core_limits({}, tmp_path)


@pytest.mark.parametrize("launch", LAUNCHES, ids=lambda launch: launch.name)
def test_cores_of_slurm_are_shared_by_the_processes_of_a_node(
    launch: Launch, tmp_path: Path
) -> None:
    assert find_core_limits(launch.environ, tmp_path).get("Slurm") == launch.cores


@pytest.fixture
def invalid_group(tmp_path: Path) -> Path:
    """Control groups with values that are not limits."""
    files = {"job/cpu.max": "100000 0", "job/step/cpu.max": "", "job/memory.max": "²"}
    root = write_group(tmp_path, files)
    (root / GROUPS / "job/step/memory.max").write_bytes(b"\xff\xfe\0")
    return root


INVALID_SLURM = {
    "SLURM_CPUS_PER_TASK": "²",
    "SLURM_CPUS_ON_NODE": "4(x2)",
    "SLURM_STEP_TASKS_PER_NODE": "0,²(x2)",
    "SLURM_MEM_PER_NODE": "8G",
    "SLURM_MEM_PER_CPU": "-1",
}


def test_invalid_limits_of_cores_are_ignored(invalid_group: Path) -> None:
    assert list(find_core_limits(INVALID_SLURM, invalid_group)) == ["affinity"]


def test_invalid_limits_of_memory_are_ignored(invalid_group: Path) -> None:
    limits = find_memory_limits(INVALID_SLURM, invalid_group)
    assert set(limits) <= {"machine", "ulimit -v"}


def test_negative_period_of_cores_is_ignored(invalid_group: Path) -> None:
    (invalid_group / GROUPS / "job/cpu.max").write_text("100000 -1")
    assert list(find_core_limits(INVALID_SLURM, invalid_group)) == ["affinity"]


def test_invalid_membership_of_control_groups_is_ignored(invalid_group: Path) -> None:
    (invalid_group / MEMBERSHIP).write_bytes(b"0::/\0\n::\n\xff\n0::/../../..\n")
    assert list(find_core_limits({}, invalid_group)) == ["affinity"]
