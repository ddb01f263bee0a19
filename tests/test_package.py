"""The files around the package: distributions, requirements, containers, workflows."""

import json
import os
import re
import runpy
import shlex
import tarfile
import zipfile

import pytest
import yaml
from commands import (
    ACTIONLINT_DIR,
    PYTHON,
    REPOSITORY_DIR,
    fail,
    find_program,
    make_processed,
    run_words,
    succeed,
)

from scannet_prep.base.version import VERSION

tomllib = pytest.importorskip("tomllib", reason="this Python has no tomllib")

WORKFLOW_PATHS = sorted((REPOSITORY_DIR / ".github/workflows").glob("*.yml"))
PROJECT = tomllib.loads((REPOSITORY_DIR / "pyproject.toml").read_text())["project"]
SUPPORTED = ["3.10", "3.11", "3.12", "3.13", "3.14"]
# Packages whose wheels are made for one version of Python.
COMPILED = {"deflate", "msgspec", "numpy", "pandas", "pillow", "pyarrow", "zstandard"}
LINT = """
const { createLinter } = require(process.argv[1]);
const text = require("fs").readFileSync(process.argv[2], "utf8");
createLinter().then((lint) => {
    console.log(JSON.stringify(lint(text, process.argv[2])));
    process.exit(0);
});
"""
# Runs the command, or `-c PROGRAM`, without the parts of the standard library that are POSIX only.
AS_ON_WINDOWS = """
import os, runpy, shutil, signal, sys
from multiprocessing import reduction
# NumPy asks for POSIX functions on its own when it is first imported here.
import numpy

usage = shutil.disk_usage("/")
for name in "fcntl grp pwd resource termios".split():
    sys.modules[name] = None  # makes importing it fail
for name in '''
    fork geteuid getuid killpg memfd_create mkfifo pread preadv pwrite register_at_fork
    sched_getaffinity statvfs sysconf O_CLOEXEC O_NOFOLLOW O_NONBLOCK
'''.split():
    delattr(os, name)
del signal.SIGHUP, reduction.DupFd
shutil.disk_usage = lambda _path: usage  # it uses statvfs here

if sys.argv[1] == "-c":
    exec(sys.argv[2])
else:
    runpy.run_module("scannet_prep", run_name="__main__", alter_sys=True)
"""


def read(name):
    return (REPOSITORY_DIR / name).read_text(encoding="utf-8")


def test_distributions_have_the_package_and_a_page_for_the_index(tmp_path):
    succeed(PYTHON, "-m", "hatchling", "build", "-d", tmp_path, cwd=REPOSITORY_DIR, run=run_words)
    succeed(PYTHON, "-m", "twine", "check", "--strict", *tmp_path.iterdir(), run=run_words)
    (wheel_path,) = tmp_path.glob("*.whl")
    (sdist_path,) = tmp_path.glob("*.tar.gz")
    expected = {
        path.relative_to(REPOSITORY_DIR).as_posix()
        for path in (REPOSITORY_DIR / "scannet_prep").rglob("*")
        if path.is_file() and "__pycache__" not in path.parts
    }

    with zipfile.ZipFile(wheel_path) as wheel:
        names = {*wheel.namelist()}
        metadata = wheel.read(f"scannet_prep-{VERSION}.dist-info/METADATA").decode()
    assert {name for name in names if not name.startswith("scannet_prep-")} == expected
    links = re.findall(r"\]\(([^)\s]+)\)", metadata.partition("\n\n")[2])
    assert links
    assert all(link.startswith("https://") for link in links)

    with tarfile.open(sdist_path) as sdist:
        names = {name.partition("/")[2] for name in sdist.getnames()}
    assert names >= {"LICENSE", "hatch_build.py", "docs/access.md", "tools/test", "Dockerfile"}
    assert ".github/workflows/tests.yml" in names
    assert not [name for name in names if name.startswith("data")]


def test_links_of_the_page_lead_into_a_repository_that_has_an_address():
    make_description = runpy.run_path(str(REPOSITORY_DIR / "hatch_build.py"))["make_description"]

    text = make_description("![a](docs/a.png) [b](docs/b.md#c)", "https://example.org/r")

    image = "![a](https://example.org/r/raw/main/docs/a.png)"
    assert text == f"{image} [b](https://example.org/r/blob/main/docs/b.md#c)"


def test_every_declaration_has_the_same_versions_and_requirements():
    recipe = yaml.safe_load(read("tools/conda/recipe.yaml"))
    assert re.findall(r"Python :: (3\.\d+)", "\n".join(PROJECT["classifiers"])) == SUPPORTED
    assert PROJECT["requires-python"] == f">={SUPPORTED[0]}"
    workflow = yaml.safe_load(read(".github/workflows/tests.yml"))
    assert workflow["jobs"]["linux"]["strategy"]["matrix"]["python"] == SUPPORTED
    assert recipe["context"]["version"] == VERSION
    assert yaml.safe_load(read("CITATION.cff"))["version"] == VERSION
    for_conda = {line.replace(" ", "") for line in recipe["requirements"]["run"]}
    for_pip = {line.replace(" ", "") for line in PROJECT["dependencies"] if ";" not in line}
    assert for_conda == for_pip | {"python>=${{python_min}}"}

    # New versions of Python need later versions of compiled packages.
    for lines in (PROJECT["dependencies"], *PROJECT["optional-dependencies"].values()):
        for name in COMPILED.intersection(re.match(r"[\w-]+", line)[0] for line in lines):
            markers = [line.partition("; ")[2] for line in lines if line.startswith(f"{name}>=")]
            assert "python_version >= '3.13'" in markers, name


def test_nothing_installs_the_package_by_its_name():
    # Nobody owns that name in the index yet.
    for path in (
        REPOSITORY_DIR / "README.md",
        *REPOSITORY_DIR.glob("docs/*.md"),
        *REPOSITORY_DIR.glob("scannet_prep/**/*.py"),
    ):
        pattern = r"(?:pip|uv|pipx) (?:install|add) [^\n`]*(?<!/)scannet-prep\b"
        assert re.findall(pattern, path.read_text()) == [], path


@pytest.mark.extra("cffconvert")
def test_citation_follows_its_schema():
    import cffconvert

    cffconvert.Citation(read("CITATION.cff")).validate()


# Containers.


@pytest.mark.extra("hadolint")
def test_hadolint_accepts_the_dockerfile():
    outcome = run_words(str(find_program("hadolint")), REPOSITORY_DIR / "Dockerfile")
    assert (outcome.status, outcome.stdout) == (0, "")


def test_image_can_contain_neither_data_nor_terms_nor_secrets():
    dockerfile = read("Dockerfile")
    rules = [line for line in read(".dockerignore").splitlines() if line[:1] != "#"]
    copied = set()
    for sources in re.findall(r"^COPY (?!--from)(.+) \S+$", dockerfile, re.MULTILINE):
        copied.update(sources.split())

    assert rules[0] == "*"
    assert copied == {rule[1:] for rule in rules if rule[0] == "!"}
    assert not re.search(r"^[^#]*(ACCEPT_TERMS|TOKEN|PASSWORD|^ADD )", dockerfile, re.MULTILINE)
    (service,) = yaml.safe_load(read("compose.yaml"))["services"].values()
    assert {*service["environment"].values()} == {None}
    assert service["user"] == "${UID:-1000}:${GID:-1000}"
    container = json.loads(
        re.sub(r"^\s*//.*$", "", read(".devcontainer/devcontainer.json"), flags=re.MULTILINE)
    )
    for path in container["postCreateCommand"].split():
        assert (REPOSITORY_DIR / path).exists()


# Workflows.


@pytest.mark.extra("actionlint", "node")
@pytest.mark.parametrize("path", WORKFLOW_PATHS, ids=lambda path: path.name)
def test_actionlint_accepts_workflow(path):
    outcome = run_words("node", "-e", LINT, ACTIONLINT_DIR, path)

    assert json.loads(outcome.stdout) == []


def test_workflows_may_only_read_and_publish_without_a_password():
    for path in WORKFLOW_PATHS:
        assert yaml.safe_load(path.read_text())["permissions"] == {"contents": "read"}
        assert "secrets" not in path.read_text()
    release = yaml.safe_load(read(".github/workflows/release.yml"))
    assert release["jobs"]["publish"]["permissions"] == {"id-token": "write"}
    assert run_words("bash", "-n", REPOSITORY_DIR / ".ci/run").status == 0


# Windows, where scenes can be read.


def test_steps_for_windows_work_without_what_windows_lacks(tmp_path):
    scene_ids = ("scene0191_00", "scene0568_00")
    make_processed(tmp_path, scene_ids, "--scannet200", "--align-axis", vertices=600)
    run = run_windows_steps(tmp_path)
    assert [program for program, _ in run] == ["scannet-prep"] * 3 + ["python"]
    for step, outcome in run:
        assert outcome.status == 0, (step, outcome.stderr)

    for line in ("process raw -o out", "pack processed", "export processed --format octformer"):
        problem = "can be written to on Linux and macOS only\nhint: run this in WSL"
        fail(1, problem, *line.split(), cwd=tmp_path, run=run_as_windows)


def run_as_windows(*words, cwd):
    environment = os.environ | {"PYTHONPATH": str(REPOSITORY_DIR)}
    return run_words(PYTHON, "-c", AS_ON_WINDOWS, *words, cwd=cwd, env=environment)


def run_windows_steps(folder):
    """Run the steps of the workflow for Windows that use the package."""
    run = []
    workflow = yaml.safe_load(read(".github/workflows/tests.yml"))
    for step in workflow["jobs"]["windows"]["steps"]:
        program, *words = shlex.split(step.get("run", "none none"))
        # `doctor` checks this machine.
        if words[0] != "doctor" and (program == "scannet-prep" or words[0] == "-c"):
            run.append((program, run_as_windows(*words, cwd=folder)))
    return run
