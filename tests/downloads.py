"""Downloads of a synthetic release from a server on this machine."""

import subprocess

import pytest
from commands import SCENES, digests
from release_server import (
    Cut,
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
from scannet_prep.stages import download
from scannet_prep.stages.selection import Selection
from scannet_prep.synthetic import write_release

MESH = "_vh_clean_2.ply"
OWN_NAMES = {"scannet.lock", "failed.txt", "terms_accepted.txt", ".scannet-prep.lock"}
# A hurried run, with pauses of at most 17 ms.
PATIENCE = {"_OUTAGE_S": 20, "_FIRST_ANSWER_S": 5, "_FIRST_PAUSE_S": 5e-6}


def announce_two_lengths(answer, request):
    """Send a chunked body that also has a length, which does not count."""
    NoLength()(answer, request)
    Header("Content-Length", "7")(answer, request)


# Faults of the first requests of a file, after which all requests are answered.
PASSING = {
    "cut before the status": [Cut()],
    "cut at the first byte": [Cut(0)],
    "cut in the middle": [Cut(20_000), Cut(10_000), Cut(1)],
    "reset": [Reset(), Reset(10_000)],
    "silence within the body": [Stall(5_000)],
    "silence before the status": [Stall()],
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


def random_faults(dice, most):
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


def run_openssl(*words):
    done = subprocess.run(["openssl", *words], check=True, capture_output=True, text=True)
    return done.stdout


def make_private_authority(folder, names="IP:127.0.0.1,DNS:localhost", days=2):
    """Make an authority that no machine trusts, and a certificate that it has signed.

    Returns:
        The file of the authority, and the file with the certificate and its key.
    """
    folder.mkdir(parents=True, exist_ok=True)
    ca, ca_key, certificate, request, signed, extensions = (
        folder / name for name in ("ca", "ca-key", "server", "csr", "signed", "ext")
    )
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
    """Keeps the progress of a run: bytes that are left, notes and statuses."""

    def __init__(self):
        self.left = 0
        self.lefts = []
        self.notes = []
        self.statuses = []

    def work(self, title, total, unit):
        self.left += total
        return super().work(title, total, unit)

    def advance(self, count=1):
        self.left -= count
        self.lefts.append(self.left)

    def status(self, text):
        self.statuses.append(text)

    def note(self, message):
        self.notes.append(message)


@pytest.fixture(scope="session")
def authority(tmp_path_factory):
    """A private authority, and a file with a certificate that it has signed."""
    return make_private_authority(tmp_path_factory.mktemp("authority"))


@pytest.fixture(scope="session")
def release_dir(tmp_path_factory):
    """A release that tests do not change. Each scene has another number of vertices."""
    release_dir = tmp_path_factory.mktemp("release")
    for number, scene_id in enumerate(SCENES):
        write_release(release_dir, [scene_id], vertices=3_000 + 100 * number)
    return release_dir


@pytest.fixture
def server(release_dir):
    """A server of that release."""
    with ReleaseServer(release_dir) as server:
        yield server


def fetch(server, data_dir, scene_ids=SCENES, *, types=("seg",), bar=None, jobs=4, patience=()):
    """Download the label map and the files of some scenes, in a hurry."""
    selection = Selection(scene_ids=tuple(scene_ids))
    plan = download.plan(data_dir, types, selection=selection, base_url=server.base_url)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(download, "_SILENCE_S", 0.4)
        for name, seconds in (PATIENCE | dict(patience)).items():
            patch.setattr(download.fetch, name, seconds)
        return download.run(plan, jobs=jobs, progress=bar, accepts_terms=True)


def fetch_whole(server, data_dir, scene_ids=SCENES, **options):
    """Download, and check that the folder has what the server has."""
    report = fetch(server, data_dir, scene_ids, **options)
    assert not report.failures, report.failures
    assert fetched(data_dir) == digests(server.root)
    return report


def failed_names(report):
    """Return the names of the files that failed."""
    return sorted(finding.subject.rpartition("/")[2] for finding in report.failures)


def words(base_url, data_dir, *more):
    """Return the command that downloads the same as `fetch`."""
    scenes = ["--types", "seg", "--accept-terms", "--scenes", *SCENES]
    return ["download", "-o", data_dir, "--base-url", base_url, *scenes, *more]


def fetched(data_dir):
    """Return the digests of all downloaded files, partial ones included, by local path."""
    return {name: digest for name, digest in digests(data_dir).items() if name not in OWN_NAMES}


def finished(data_dir):
    """Return the digests of the downloaded files that have their final names."""
    return {name: digest for name, digest in fetched(data_dir).items() if "/." not in f"/{name}"}
