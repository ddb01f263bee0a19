"""ScanNet's server on this machine: real sockets, a synthetic release, and faults on demand.

A rule is a function from a request to the faults that the request meets. All faults of all rules
apply, in order:

    at(path, Cut(1000), Status(503))
        the first and the second request of a path; the third one is answered
    at(ending(".ply"), None, Reset(10), then=...)
        each path with this ending: its first request is answered, its second one is reset
    at(None, then=Stall(100))
        every request of every path

A fault is a function that changes the answer before it is sent. The faults are listed below.
"""

import contextlib
import gzip
import http.server
import itertools
import re
import select
import socket
import ssl
import struct
import subprocess
import threading
import time
from collections import Counter
from email.utils import formatdate
from http import HTTPStatus
from pathlib import Path
from types import SimpleNamespace
from urllib.parse import unquote, urlsplit

import pytest
from commands import SCENES, digests

from scannet_prep.base.progress import Progress
from scannet_prep.release.files import LABEL_MAP
from scannet_prep.stages import download
from scannet_prep.stages.selection import Selection

ROOT = "/scannet/"
LABEL_MAP_URL_PATH = f"{ROOT}v2/tasks/{LABEL_MAP.suffix}"
BEFORE_STATUS = -1
PAGE = (
    b"<!DOCTYPE html>\n<html><head><title>Maintenance</title></head>"
    b"<body>Back soon.</body></html>\n"
)
_PIECE_BYTES = 1 << 18


def scene_url_path(scene_id, suffix):
    """Return the path of a scene's file on the server."""
    return f"{ROOT}v2/scans/{scene_id}/{scene_id}{suffix}"


def release_urls(root):
    """Find the files of a raw tree, by their paths on the server."""
    urls = {LABEL_MAP_URL_PATH: root / LABEL_MAP.suffix}
    for path in itertools.chain(root.glob("scans/*/*"), root.glob("scans_test/*/*")):
        is_old = path.suffix == ".sens" and path.parents[1].name == "scans"
        version = "v1" if is_old else "v2"
        urls[f"{ROOT}{version}/scans/{path.parent.name}/{path.name}"] = path
    return urls


# An answer that is to be sent, and a request, are namespaces. Positions count bytes of the body.
#
# answer
#     status, headers     the names of headers are in lower case; those with None are not sent
#     body
#     offset              position of the body in the release's file; None if it is not part of it
#     cut_at, is_reset    position at which the connection ends; by RST, not by FIN
#     stall_at            position from which nothing is sent until the client leaves
#     is_chunked          whether the body is sent in chunks
#     before              bytes to send before the status line
#     is_down             whether the server stops
# request
#     path, headers       the names of headers are in lower case
#     number              its number among those of this path, from 1
#     range               the header Range
#     connection          the client's address and port
#     content             the server's content of the path; None if there is none
#     faults              the faults that the request meets
#     sent                position in the release's file, and number of bytes sent; None before


# Answers.


def answer_status(answer, code, retry_after=None, body=b"Wrong.\n"):
    """Replace an answer by one with a status and a body that is not the file."""
    answer.status = code
    answer.body = body
    answer.offset = None
    answer.headers = {"content-length": str(len(body)), "retry-after": retry_after}


def answer_whole(answer, content):
    """Answer with the whole file."""
    answer.status = 200
    answer.body = content
    answer.offset = 0
    answer.headers |= {"content-length": str(len(content)), "accept-ranges": "bytes"}
    answer.headers.pop("content-range", None)


def answer_part(answer, content, first, end):
    """Answer with a range of the file, or with status 416 if the range is empty."""
    if first < end:
        answer.status = 206
        answer.body = content[first:end]
        answer.offset = first
        span = f"{first}-{end - 1}"
    else:
        answer.status = 416
        answer.body = b""
        answer.offset = None
        span = "*"
    answer.headers["content-length"] = str(len(answer.body))
    answer.headers["content-range"] = f"bytes {span}/{len(content)}"


# Faults.


def fault(change):
    """Make a fault of a function.

    The arguments of the function after the answer and the request become arguments of the fault.
    """

    def make(*values, **options):
        return lambda answer, request: change(answer, request, *values, **options)

    return make


@fault
def Set(answer, _request, **values):
    """Set attributes of the answer."""
    vars(answer).update(values)


@fault
def Cut(answer, _request, after_bytes=BEFORE_STATUS):
    """End the connection by FIN."""
    answer.cut_at = after_bytes


@fault
def Reset(answer, _request, after_bytes=BEFORE_STATUS):
    """End the connection by RST."""
    answer.cut_at = after_bytes
    answer.is_reset = True


@fault
def Stall(answer, _request, after_bytes=BEFORE_STATUS):
    """Send nothing more until the client leaves."""
    answer.stall_at = after_bytes


@fault
def Header(answer, _request, name, value=None):
    """Give a header another value, or remove it."""
    answer.headers[name.lower()] = value


@fault
def WrongLength(answer, _request, by):
    """Announce a wrong length, send the whole body, and end the connection."""
    answer.headers["content-length"] = str(len(answer.body) + by)
    answer.headers["connection"] = "close"


@fault
def NoLength(answer, _request):
    """Send the body in chunks, without a length."""
    answer.is_chunked = True
    answer.headers["content-length"] = None
    answer.headers["transfer-encoding"] = "chunked"


@fault
def UntilClosed(answer, _request):
    """Send no length: the body ends with the connection."""
    answer.headers["content-length"] = None
    answer.headers["connection"] = "close"


@fault
def Status(answer, _request, code, retry_after=None):
    """Answer with another status. One body is empty."""
    answer_status(answer, code, retry_after, b"" if code == 429 else b"Wrong.\n")


@fault
def Page(answer, _request, content=PAGE):
    """Answer with status 200 and a page in place of the file."""
    answer_status(answer, 200, body=content)


@fault
def Redirect(answer, request, path="", origin=""):
    """Redirect to another path or server; by default to the same path, in a circle."""
    answer_status(answer, 302)
    answer.headers["location"] = f"{origin}{path or request.path}"


@fault
def RangesIgnored(answer, request):
    """Answer with the whole file although a range was requested."""
    answer_whole(answer, request.content or b"")


@fault
def ShiftedRange(answer, request, by):
    """Answer with status 206 whatever If-Range contains, and with another start of the range.

    Content-Range contains this start. A shift by 0 leaves it as requested.
    """
    content = request.content or b""
    span = find_span(request.range, len(content))
    if span is not None:
        first, end = span
        answer_part(answer, content, max(0, first + by), end)


@fault
def Gzip(answer, request):
    """Answer with the whole file compressed, although identity was requested."""
    answer_whole(answer, gzip.compress(request.content or b""))
    answer.offset = None
    answer.headers["content-encoding"] = "gzip"


# Rules.


def at(where, *faults, then=None):
    """Let the n-th request of a path meet the n-th fault, and later ones `then`.

    Args:
        where: A path, a condition on paths, or None for all paths.
        faults: Faults of the first requests; None for no fault.
        then: The fault of all later requests.
    """

    def matches(path):
        if callable(where):
            return where(path)
        return where in (None, path)

    def rule(request):
        is_early = request.number <= len(faults)
        fault = faults[request.number - 1] if is_early else then
        if fault is None or not matches(request.path):
            return []
        return [fault]

    return rule


def ending(suffix):
    """Return the condition that a path ends with a suffix."""
    return lambda path: path.endswith(suffix)


# The server.


class ReleaseServer:
    """Serves a raw tree with ScanNet's URLs. All settings may change while the server runs.

    Attributes:
        root: The raw tree, as `write_release` makes it.
        faults: The rules.
        certificate: A file with a certificate and its key, for https.
        request_latency_s: Delay of each request.
        etag: "strong" or "weak" ETags of the content, or None for no ETags.
        has_last_modified: Whether answers have the header Last-Modified.
        files: The files or contents by path of the URL.
        change: Makes another version of a file's content for a request.
        origin: Scheme, host and port.
        base_url: The base URL for `scannet-prep download`.
        connection_count: Number of connections so far.
    """

    def __init__(self, root, faults=(), certificate=None, request_latency_s=0):
        self.root = root
        self.faults = faults
        self.certificate = certificate
        self.request_latency_s = request_latency_s
        self.etag = "strong"
        self.has_last_modified = True
        self.files = release_urls(self.root)
        self.change = lambda _request, content: content
        self.lock = threading.Lock()
        self.switching = threading.Lock()
        self.closing = threading.Event()
        self.port = 0
        self.sockets = set()
        self.server = None
        self.forget()

    def __enter__(self):
        self.start()
        scheme = "https" if self.certificate else "http"
        self.origin = f"{scheme}://127.0.0.1:{self.port}"
        self.base_url = f"{self.origin}{ROOT}"
        return self

    def __exit__(self, *exception):
        self.closing.set()
        self.stop()

    def start(self):
        """Listen; after `stop`, on the same port."""
        with self.switching:
            if self.server or self.closing.is_set():
                return
            handler = type("Handler", (_Handler,), {"owner": self})
            self.server = _Listener(("127.0.0.1", self.port), handler)
            self.port = self.server.server_port
            poll_interval_s = 0.02
            threading.Thread(
                target=self.server.serve_forever, args=(poll_interval_s,), daemon=True
            ).start()

    def stop(self):
        """Refuse new connections, and end all existing ones."""
        # The port is free at the end: until then, it cannot be used again.
        with self.switching:
            if self.server:
                self.server.shutdown()
                self.server.server_close()
                self.server = None
        with self.lock:
            for sock in self.sockets:
                with contextlib.suppress(OSError):
                    socket.socket.shutdown(sock, socket.SHUT_RDWR)

    def forget(self):
        """Forget all requests so far. Their numbers begin at 1 again."""
        with self.lock:
            self.seen = []
            self.counts = Counter()
            self.connection_count = 0

    def requests(self, path=None):
        """Return the requests so far, of one path or of all."""
        with self.lock:
            return [request for request in self.seen if path in (None, request.path)]

    def bytes_sent_again(self, path):
        """Count the bytes of a path that were sent more than once.

        Single bytes do not count: they are requested to find out whether the server is up.
        """
        spans = [request.sent for request in self.requests(path) if request.sent]
        end = 0
        repeated_bytes = 0
        for offset, length in sorted(span for span in spans if span[1] > 1):
            repeated_bytes += max(0, min(end, offset + length) - offset)
            end = max(end, offset + length)
        return repeated_bytes


class _Listener(http.server.ThreadingHTTPServer):
    request_queue_size = 128

    def handle_error(self, *_arguments):
        """Ignore clients that leave, which many tests do on purpose."""


class _Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True

    def setup(self):
        owner = self.owner
        if owner.certificate:
            context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
            context.load_cert_chain(owner.certificate)
            self.request = context.wrap_socket(self.request, server_side=True)
        with owner.lock:
            owner.sockets.add(self.request)
            owner.connection_count += 1
        super().setup()

    def finish(self):
        with self.owner.lock:
            self.owner.sockets.discard(self.request)
        with contextlib.suppress(OSError):
            super().finish()
        self.request.close()

    def log_message(self, *_arguments):
        """Print nothing."""

    def do_GET(self):
        owner = self.owner
        path = unquote(urlsplit(self.path).path)
        content, time_s = self._read_file(path)
        request = self._record(path, content)

        answer = self._make_answer(request, owner.change(request, content), time_s)
        for fault in request.faults:
            fault(answer, request)

        if answer.is_down:
            owner.stop()
            answer.cut_at = BEFORE_STATUS
        owner.closing.wait(owner.request_latency_s)
        self._send(answer, request)

    do_CONNECT = do_GET  # noqa: N815 - the name that the library calls

    def _read_file(self, path):
        """Return the content of a path, None if there is none, and its time of modification."""
        file = self.owner.files.get(path)
        if not isinstance(file, Path):
            return file, 0
        return file.read_bytes(), file.stat().st_mtime

    def _record(self, path, content):
        """Number and record the request, and find the faults that it meets."""
        owner = self.owner
        headers = {name.lower(): value for name, value in self.headers.items()}
        with owner.lock:
            owner.counts[path] += 1
            request = SimpleNamespace(
                path=path,
                number=owner.counts[path],
                headers=headers,
                range=headers.get("range"),
                connection=self.client_address,
                content=content,
                sent=None,
            )
            owner.seen.append(request)
            request.faults = [fault for rule in owner.faults for fault in rule(request)]
        return request

    def _make_answer(self, request, content, time_s):
        """Answer a request as a server without faults does."""
        answer = SimpleNamespace(
            cut_at=None, is_reset=False, stall_at=None, is_chunked=False, before=b"", is_down=False
        )
        if content is None:
            answer_status(answer, 404)
            return answer

        digest = f'"{hash(content):x}"'
        etag = {"strong": digest, "weak": f"W/{digest}", None: None}[self.owner.etag]
        date = formatdate(time_s, usegmt=True) if self.owner.has_last_modified else None
        answer.headers = {"etag": etag, "last-modified": date}
        answer_whole(answer, content)
        span = find_span(request.range, len(content))
        if span is not None and _is_range_valid(request.headers.get("if-range"), etag, date):
            answer_part(answer, content, *span)
        # Bytes of another version are not bytes of the release's file.
        if content != request.content:
            answer.offset = None
        return answer

    def _send(self, answer, request):
        """Send an answer, with its cut or stall."""
        if answer.headers.get("connection") == "close":
            self.close_connection = True
        stops = {answer.cut_at, answer.stall_at} - {None}
        if BEFORE_STATUS in stops:
            self._interrupt(answer, BEFORE_STATUS)
        self.wfile.write(answer.before + _format_head(answer))
        body = memoryview(answer.body)
        position = 0
        while position < len(body) or position in stops:
            if position in stops:
                self._interrupt(answer, position)
            end = min([position + _PIECE_BYTES, *(stop for stop in stops if stop > position)])
            piece = body[position:end]
            position += len(piece)
            # Before the piece is sent: a client that has a byte must never see it uncounted.
            if answer.offset is not None:
                request.sent = (answer.offset, position)
            self.wfile.write(_make_chunk(piece) if answer.is_chunked else piece)
        if answer.is_chunked:
            self.wfile.write(_make_chunk(b""))

    def _interrupt(self, answer, position):
        """Stall until the client leaves, or end the connection."""
        if answer.stall_at == position:
            select.select([self.connection], [], [], 3600)
        elif answer.is_reset:
            # Let the bytes arrive that were sent before: Linux would drop them.
            time.sleep(0.05)
            self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        else:
            with contextlib.suppress(OSError):
                socket.socket.shutdown(self.connection, socket.SHUT_RDWR)
        raise ConnectionError


def _is_range_valid(if_range, etag, date):
    """Whether If-Range, if there is one, names the version of the file by a strong validator."""
    if if_range is None:
        return True
    return if_range in (etag, date) and not if_range.startswith("W/")


def _format_head(answer):
    lines = [f"HTTP/1.1 {answer.status} {HTTPStatus(answer.status).phrase}"]
    for name, text in answer.headers.items():
        if text is not None:
            lines.append(f"{name}: {text}")
    return "\r\n".join([*lines, "", ""]).encode("latin-1")


def _make_chunk(piece):
    return b"%x\r\n%b\r\n" % (len(piece), piece)


def find_span(text, size):
    """Parse the header Range, for a file of a size.

    Returns:
        The first byte and the one after the last, or None for no valid range. The range is empty
        if it lies outside the file.
    """
    match = re.fullmatch(r"bytes=(\d+)-(\d*)", text or "")
    if match is None:
        return None
    return int(match[1]), min(int(match[2] or size) + 1, size)


MESH = "_vh_clean_2.ply"
OWN_NAMES = {"scannet.lock", "failed.txt", "terms_accepted.txt", ".scannet-prep.lock"}
# A hurried run, with pauses of at most 17 ms. On a busy machine, a server that is up may be silent
# for a second: only tests of silence are as impatient as `SOON`.
PATIENCE = {"_SILENCE_S": 60, "_OUTAGE_S": 60, "_FIRST_ANSWER_S": 60, "_FIRST_PAUSE_S": 5e-6}
SOON = {"_SILENCE_S": 0.4}


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
    subprocess.run(["openssl", *words], check=True, capture_output=True)


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


def fetch(
    server, data_dir, scene_ids=SCENES, *, types=("seg",), bar=Progress(), jobs=4, patience=()
):
    """Download the label map and the files of some scenes, in a hurry."""
    selection = Selection(scene_ids=tuple(scene_ids))
    plan = download.plan(data_dir, types, selection=selection, base_url=server.base_url)
    with pytest.MonkeyPatch.context() as patch:
        for name, seconds in (PATIENCE | dict(patience)).items():
            patch.setattr(download.fetch, name, seconds)
        return download.run(plan, jobs=jobs, progress=bar, accepts_terms=True)


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
