"""Downloads of a synthetic release from a server on this machine."""

import random
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from commands import SCENES, digests
from release_server import (
    Cut,
    Fault,
    Gzip,
    Header,
    NoLength,
    Page,
    RangesIgnored,
    ReleaseServer,
    Reset,
    Set,
    ShiftedRange,
    Stall,
    Status,
    UntilClosed,
    WrongLength,
)

from scannet_prep.base.progress import Progress
from scannet_prep.release.scene import SceneId
from scannet_prep.remote.policy import TransferPolicy
from scannet_prep.stages import download
from scannet_prep.stages.download import DownloadReport
from scannet_prep.stages.selection import Selection
from scannet_prep.synthetic import write_release

MESH = "_vh_clean_2.ply"
OWN_NAMES = frozenset({"scannet.lock", "failed.txt", "terms_accepted.txt", ".scannet-prep.lock"})
# In a hurry.
PATIENCE = TransferPolicy(
    connect_timeout_s=5,
    answer_timeout_s=0.4,
    slowest_bytes_per_s=200,
    slow_window_s=0.4,
    first_delay_s=0.005,
    tries=5,
    longest_delay_s=0.02,
    longest_interval_s=0.02,
    longest_retry_after_s=0.05,
    outage_patience_s=20,
    first_answer_patience_s=5,
)
# Faults of the first requests of a file, after which all is well again.
PASSING = {
    "cut before the status": [Cut()],
    "cut at the first byte": [Cut(0)],
    "cut in the middle": [Cut(20_000), Cut(10_000), Cut(1)],
    "reset": [Reset(), Reset(10_000)],
    "silence within the body": [Stall(5_000)],
    "silence before the status": [Stall()],
    "trickle of content": [Set(trickle=(5_000, 0.05))],
    "busy": [Status(503, "1"), Status(429, "Thu, 01 Jan 1970 00:00:00 GMT"), Status(500)],
    "early hints": [Set(before=b"HTTP/1.1 103 Early Hints\r\nLink: </style.css>; rel=preload\r\n\r\n")],
    "range refused": [Cut(20_000), Status(416)],
    "ranges ignored": [Cut(20_000), RangesIgnored()],
    "shifted range": [Cut(20_000), ShiftedRange(-100), ShiftedRange(100)],
    "length too large": [WrongLength(100)],
    "length too small": [WrongLength(-100)],
    "no length": [NoLength()],
    "body ends with the connection": [UntilClosed()],
    "gzip": [Cut(10_000), Gzip()],
    "page": [Page()],
    "page of plain text": [Page(b"Back soon.\n")],
    "empty page": [Page(b"")],
    **{f"no sense {number}": faults for number, faults in enumerate([
        [Cut(20_000), Header("Content-Encoding", "gzip")], [Cut(20_000), Header("ETag")],
        [Cut(20_000), Header("Content-Type", "multipart/byteranges")],
        [Cut(20_000), Header("Content-Range")], [Cut(20_000), Header("Content-Range", "bytes 20000-20099/*")],
        [Cut(20_000), Header("Content-Range", f"bytes 20000-{'9' * 5_000}/*")],
        *([Header("Content-Length", value)] for value in ("\u00b2", "9" * 5_000, "9" * 30, "-1", "", "1, 2")),
        [lambda *to: (NoLength()(*to), Header("Content-Length", "7")(*to))],
    ])},
}  # fmt: skip


def random_faults(dice: random.Random, most: int) -> list[Fault]:
    """Not WrongLength(-9): a text file that is cut short, and announced as that short, looks whole."""
    cuts = [
        Cut(dice.randrange(-1, 60_000)),
        Cut(dice.randrange(-1, 60_000)),
        Reset(dice.randrange(-1, 60_000)),
    ]
    answers = [
        Status(500),
        Status(503, "0"),
        Status(429),
        Status(416),
        RangesIgnored(),
        ShiftedRange(7),
        Page(),
    ]
    return dice.sample(
        [*cuts, *answers, WrongLength(9), NoLength(), Gzip()], dice.randrange(most + 1)
    )


def make_private_authority(
    folder: Path, names: str = "IP:127.0.0.1,DNS:localhost", days: int = 2
) -> tuple[Path, Path]:
    """Make an authority that no machine trusts, and a certificate: paths of the CA, and of that with its key."""
    ca, ca_key, certificate, request, extensions = (
        folder / name for name in ("ca", "ca-key", "server", "csr", "ext")
    )
    key = ["-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes", "-keyout"]
    folder.mkdir(parents=True, exist_ok=True)
    extensions.write_text(
        "[req]\ndistinguished_name=dn\n[dn]\n"
        "[ca]\nbasicConstraints=critical,CA:TRUE\nkeyUsage=critical,keyCertSign,cRLSign\nsubjectKeyIdentifier=hash\n"
        "[server]\nbasicConstraints=CA:FALSE\nkeyUsage=critical,digitalSignature\nextendedKeyUsage=serverAuth\n"
        f"subjectKeyIdentifier=hash\nauthorityKeyIdentifier=keyid\nsubjectAltName={names}\n"
    )
    for command in (
        ["req", "-x509", *key, ca_key, "-out", ca, "-subj", "/CN=authority", "-extensions", "ca", "-days", "2"],
        ["req", *key, certificate, "-out", request, "-subj", "/CN=server"],
        ["x509", "-req", "-in", request, "-CA", ca, "-CAkey", ca_key, "-set_serial", "1", "-days", str(days),
         "-extfile", extensions, "-extensions", "server", "-out", folder / "signed"],
    ):  # fmt: skip
        config = ["-config", extensions] if command[0] == "req" else []
        subprocess.run(
            ["openssl", *map(str, command), *map(str, config)], check=True, capture_output=True
        )
    with certificate.open("ab") as file:
        file.write((folder / "signed").read_bytes())
    return ca, certificate


class Bar(Progress):
    """Adds up what a bar would show."""

    def __init__(self) -> None:
        self.left, self.notes, self.statuses = 0, list[str](), list[str]()
        self.status, self.note = self.statuses.append, self.notes.append

    @contextmanager
    def work(self, title: str, total: int, unit: str) -> Iterator[None]:  # noqa: ARG002 - as its base class has it
        self.left += total
        yield

    def advance(self, count: int = 1) -> None:
        self.left -= count


@pytest.fixture(scope="session")
def authority(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    return make_private_authority(tmp_path_factory.mktemp("authority"))


@pytest.fixture(scope="session")
def authority_dir(authority: tuple[Path, Path], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The same authority in a folder, under the hash of its name, as OpenSSL looks it up."""
    folder = tmp_path_factory.mktemp("authorities")
    command = ["openssl", "x509", "-in", authority[0], "-noout", "-subject_hash"]
    name = subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip()
    (folder / f"{name}.0").write_bytes(authority[0].read_bytes())
    return folder


@pytest.fixture(scope="session")
def release_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Not to be changed; each scene has another number of vertices."""
    release_dir = tmp_path_factory.mktemp("release")
    for number, scene_id in enumerate(SCENES):
        write_release(release_dir, [scene_id], vertices=3_000 + 100 * number)
    return release_dir


@pytest.fixture
def server(release_dir: Path) -> Iterator[ReleaseServer]:
    with ReleaseServer(release_dir) as server:
        yield server


def fetch(
    server: ReleaseServer,
    data_dir: Path,
    scene_ids: Sequence[str] = SCENES,
    *,
    types: Sequence[str] = ("seg",),
    policy: TransferPolicy = PATIENCE,
    bar: Bar | None = None,
    **options: Any,
) -> DownloadReport:
    """Fetch what segmentation needs of some scenes, and the label map."""
    selection = Selection(scene_ids=tuple(map(SceneId, scene_ids)))
    plan = download.plan(data_dir, types, selection=selection, base_url=server.base_url)
    return download.run(plan, policy=policy, progress=bar, needs_terms=False, **options)


def words(base_url: str, data_dir: Path, *more: str | Path) -> list[str | Path]:
    """The command that does the same."""
    scenes = ["--types", "seg", "--accept-terms", "--scenes", *SCENES]
    return ["download", "-o", data_dir, "--base-url", base_url, *scenes, *more]


def fetched(data_dir: Path) -> dict[str, str]:
    """Digests of all files but those that the program makes itself."""
    return {name: digest for name, digest in digests(data_dir).items() if name not in OWN_NAMES}


def finished(data_dir: Path) -> dict[str, str]:
    """The same without what is hidden: files that are not whole yet."""
    return {name: digest for name, digest in fetched(data_dir).items() if "/." not in f"/{name}"}
