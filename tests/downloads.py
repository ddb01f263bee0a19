"""Downloads of a synthetic release from a server on this machine."""

import itertools
import random
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from commands import SCENES, digests
from release_server import (
    Answer,
    Cut,
    Fault,
    Gzip,
    Header,
    NoLength,
    Page,
    RangesIgnored,
    ReleaseServer,
    Request,
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
# A hurried run.
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


def announce_two_lengths(answer: Answer, request: Request) -> None:
    """Send a chunked body that also has a length, which does not count."""
    NoLength()(answer, request)
    Header("Content-Length", "7")(answer, request)


def send_size_of_chunk_without_end(answer: Answer, request: Request) -> None:
    """Send the size of the first chunk byte by byte, and never end it."""
    NoLength()(answer, request)
    size = b"1;" + b"x" * 10_000
    Set(is_chunked=False, body=size, offset=None, trickle=(0, 0.02))(answer, request)


def send_trailer_without_end(answer: Answer, request: Request) -> None:
    """Send the whole body, and then lines that never end."""
    NoLength()(answer, request)
    Set(trailer=itertools.repeat(b"X-Trailer: a\r\n"))(answer, request)


# Faults of the first requests of a file, after which all requests are answered.
PASSING: dict[str, list[Fault]] = {
    "cut before the status": [Cut()],
    "cut at the first byte": [Cut(0)],
    "cut in the middle": [Cut(20_000), Cut(10_000), Cut(1)],
    "reset": [Reset(), Reset(10_000)],
    "silence within the body": [Stall(5_000)],
    "silence before the status": [Stall()],
    "trickle of content": [Set(trickle=(5_000, 0.05))],
    "chunk size without end": [send_size_of_chunk_without_end],
    "trailer without end": [send_trailer_without_end],
    "busy": [Status(503, "1"), Status(429, "Thu, 01 Jan 1970 00:00:00 GMT"), Status(500)],
    "early hints": [
        Set(before=b"HTTP/1.1 103 Early Hints\r\nLink: </style.css>; rel=preload\r\n\r\n")
    ],
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
    # Headers that make no sense.
    "encoding of a range": [Cut(20_000), Header("Content-Encoding", "gzip")],
    "range without etag": [Cut(20_000), Header("ETag")],
    "multipart range": [Cut(20_000), Header("Content-Type", "multipart/byteranges")],
    "no content-range": [Cut(20_000), Header("Content-Range")],
    "content-range without size": [Cut(20_000), Header("Content-Range", "bytes 20000-20099/*")],
    "content-range of 5,000 digits": [
        Cut(20_000),
        Header("Content-Range", f"bytes 20000-{'9' * 5_000}/*"),
    ],
    "content-length of a superscript": [Header("Content-Length", "\u00b2")],
    "content-length of 5,000 digits": [Header("Content-Length", "9" * 5_000)],
    "content-length of 30 digits": [Header("Content-Length", "9" * 30)],
    "negative content-length": [Header("Content-Length", "-1")],
    "empty content-length": [Header("Content-Length", "")],
    "two content-lengths": [Header("Content-Length", "1, 2")],
    "content-length of chunks": [announce_two_lengths],
}


def random_faults(dice: random.Random, most: int) -> list[Fault]:
    """Choose up to `most` faults.

    WrongLength(-9) is not among them: a text file that is cut short, and announced as that short,
    looks complete.
    """
    faults = [
        Cut(dice.randrange(-1, 60_000)),
        Cut(dice.randrange(-1, 60_000)),
        Reset(dice.randrange(-1, 60_000)),
        Status(500),
        Status(503, "0"),
        Status(429),
        Status(416),
        RangesIgnored(),
        ShiftedRange(7),
        Page(),
        WrongLength(9),
        NoLength(),
        Gzip(),
    ]
    return dice.sample(faults, dice.randrange(most + 1))


OPENSSL_EXTENSIONS = """\
[req]
distinguished_name=dn
[dn]
[ca]
basicConstraints=critical,CA:TRUE
keyUsage=critical,keyCertSign,cRLSign
subjectKeyIdentifier=hash
[server]
basicConstraints=CA:FALSE
keyUsage=critical,digitalSignature
extendedKeyUsage=serverAuth
subjectKeyIdentifier=hash
authorityKeyIdentifier=keyid
subjectAltName={names}
"""


def run_openssl(*words: str | Path) -> str:
    done = subprocess.run(["openssl", *words], check=True, capture_output=True, text=True)
    return done.stdout


def make_private_authority(
    folder: Path, names: str = "IP:127.0.0.1,DNS:localhost", days: int = 2
) -> tuple[Path, Path]:
    """Make an authority that no machine trusts, and a certificate that it has signed.

    Returns:
        The file of the authority, and the file with the certificate and its key.
    """
    folder.mkdir(parents=True, exist_ok=True)
    ca = folder / "ca"
    ca_key = folder / "ca-key"
    certificate = folder / "server"
    request = folder / "csr"
    signed = folder / "signed"
    extensions = folder / "ext"
    extensions.write_text(OPENSSL_EXTENSIONS.format(names=names))
    config = ["-config", extensions]
    new_key = ["-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes", "-keyout"]

    authority = ["-subj", "/CN=authority", "-extensions", "ca", "-days", "2"]
    run_openssl("req", "-x509", *new_key, ca_key, "-out", ca, *authority, *config)
    run_openssl("req", *new_key, certificate, "-out", request, "-subj", "/CN=server", *config)
    signing = ["-CA", ca, "-CAkey", ca_key, "-set_serial", "1", "-days", str(days)]
    use = ["-extfile", extensions, "-extensions", "server"]
    run_openssl("x509", "-req", "-in", request, *signing, *use, "-out", signed)
    with certificate.open("ab") as file:
        file.write(signed.read_bytes())
    return ca, certificate


class Bar(Progress):
    """Keeps the progress of a run.

    Attributes:
        left: Bytes that are left.
        notes: The lines that were shown.
        statuses: The texts beside the count.
    """

    def __init__(self) -> None:
        self.left = 0
        self.notes: list[str] = []
        self.statuses: list[str] = []

    @contextmanager
    def work(
        self,
        title: str,  # noqa: ARG002 - as in Progress
        total: int,
        unit: str,  # noqa: ARG002 - as in Progress
    ) -> Iterator[None]:
        self.left += total
        yield

    def advance(self, count: int = 1) -> None:
        self.left -= count

    def status(self, text: str) -> None:
        self.statuses.append(text)

    def note(self, message: str) -> None:
        self.notes.append(message)


@pytest.fixture(scope="session")
def authority(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """A private authority, and a file with a certificate that it has signed."""
    return make_private_authority(tmp_path_factory.mktemp("authority"))


@pytest.fixture(scope="session")
def authority_dir(authority: tuple[Path, Path], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the same authority, under the hash by which OpenSSL looks it up."""
    folder = tmp_path_factory.mktemp("authorities")
    name = run_openssl("x509", "-in", authority[0], "-noout", "-subject_hash").strip()
    (folder / f"{name}.0").write_bytes(authority[0].read_bytes())
    return folder


@pytest.fixture(scope="session")
def release_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A release that tests do not change. Each scene has another number of vertices."""
    release_dir = tmp_path_factory.mktemp("release")
    for number, scene_id in enumerate(SCENES):
        write_release(release_dir, [scene_id], vertices=3_000 + 100 * number)
    return release_dir


@pytest.fixture
def server(release_dir: Path) -> Iterator[ReleaseServer]:
    """A server of that release."""
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
    """Download the label map and the files of some scenes."""
    selection = Selection(scene_ids=tuple(map(SceneId, scene_ids)))
    plan = download.plan(data_dir, types, selection=selection, base_url=server.base_url)
    return download.run(plan, policy=policy, progress=bar, needs_terms=False, **options)


def failed_suffixes(report: DownloadReport) -> list[str]:
    """Return the suffixes of the files that failed, in the order of the plan."""
    return [task.file.kind.suffix for task in report.failures]


def words(base_url: str, data_dir: Path, *more: str | Path) -> list[str | Path]:
    """Return the command that downloads the same as `fetch`."""
    scenes = ["--types", "seg", "--accept-terms", "--scenes", *SCENES]
    return ["download", "-o", data_dir, "--base-url", base_url, *scenes, *more]


def fetched(data_dir: Path) -> dict[str, str]:
    """Return the digests of all downloaded files, partial ones included, by local path."""
    return {name: digest for name, digest in digests(data_dir).items() if name not in OWN_NAMES}


def finished(data_dir: Path) -> dict[str, str]:
    """Return the digests of the downloaded files that have their final names."""
    return {name: digest for name, digest in fetched(data_dir).items() if "/." not in f"/{name}"}
