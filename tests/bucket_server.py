"""An S3 server on this machine (moto, in a process of its own), behind a proxy that does harm when asked to."""

from __future__ import annotations

import http.client
import http.server
import socket
import ssl
import struct
import subprocess
import sys
import threading
import time
import urllib.request
from collections.abc import Callable
from pathlib import Path
from typing import Any

BUCKET = "scannet"  # moto does not know how Google writes other characters, such as %2D
ACCESS_KEY, SECRET_KEY, TOKEN = "AKIDT0PS3CRET", "s3cretkey", "s3ssiontoken"
SECRETS = (ACCESS_KEY, SECRET_KEY, TOKEN, "pa55word", "s1gnature")
# What stores say of signatures that they do not accept: it holds all that must not be shown.
TELLTALE = (
    f"<Error><Code>{{code}}</Code><AWSAccessKeyId>{ACCESS_KEY}</AWSAccessKeyId><StringToSign>x-amz-security-token:{TOKEN}"
    "</StringToSign><SignatureProvided>s1gnature</SignatureProvided><Region>eu-west-1</Region></Error>"
)
_MOTO = """
import logging, sys
logging.getLogger("werkzeug").setLevel(logging.CRITICAL)
from moto.server import ThreadedMotoServer
server = ThreadedMotoServer("127.0.0.1", 0, verbose=False)
server.start()
print(server.get_host_and_port()[1], flush=True)
sys.stdin.read()
"""

Fault = int | str | tuple[int, str] | Callable[[], object] | None


class BucketServer(http.server.ThreadingHTTPServer):
    """`faults` hit the next requests of objects, one each; `rule` hits all for which it gives a fault.

    A fault is a status, or one and the store's code, a call to be made before the request goes on,
    or `reset`, `short`, `silent`, `no if-match`.
    """

    daemon_threads = True

    def __init__(self, certificate: Path | None = None, other: BucketServer | None = None) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        if certificate is not None:
            context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
            context.load_cert_chain(certificate)
            self.socket = context.wrap_socket(self.socket, server_side=True)
        self.origin = f"http{'s' if certificate else ''}://127.0.0.1:{self.server_port}"
        self.faults: list[Fault] = []
        self.rule: Callable[[str, str], Fault] = lambda *_: None
        self.requests: list[tuple[str, str]] = []
        self._moto: subprocess.Popen[bytes] | None = None
        if other is None:
            command, pipe = [sys.executable, "-c", _MOTO], subprocess.PIPE
            self._moto = subprocess.Popen(command, stdin=pipe, stdout=pipe, stderr=subprocess.DEVNULL)
        self.port: int = other.port if other else int(self._moto.stdout.readline())
        threading.Thread(target=self.serve_forever, daemon=True).start()

    def environment(self, **more: str) -> dict[str, str]:
        keys = {"AWS_ACCESS_KEY_ID": ACCESS_KEY, "AWS_SECRET_ACCESS_KEY": SECRET_KEY, "AWS_SESSION_TOKEN": TOKEN}
        return {"AWS_ENDPOINT_URL": self.origin, "AWS_ALLOW_HTTP": "true", "AWS_REGION": "us-east-1", **keys, **more}

    def boto(self) -> Any:
        import boto3

        keys = {"aws_access_key_id": ACCESS_KEY, "aws_secret_access_key": SECRET_KEY, "region_name": "us-east-1"}
        return boto3.client("s3", endpoint_url=f"http://127.0.0.1:{self.port}", **keys)

    def put(self, key: str, data: bytes) -> str:
        self.boto().put_object(Bucket=BUCKET, Key=key, Body=data)
        return f"s3://{BUCKET}/{key}"

    def get(self, key: str) -> bytes:
        return bytes(self.boto().get_object(Bucket=BUCKET, Key=key)["Body"].read())

    def keys(self) -> list[str]:
        return [item["Key"] for item in self.boto().list_objects_v2(Bucket=BUCKET).get("Contents", [])]

    def unfinished(self) -> list[str]:
        return [item["Key"] for item in self.boto().list_multipart_uploads(Bucket=BUCKET).get("Uploads", [])]

    def reset(self) -> None:
        self.faults, self.rule, self.requests = [], lambda *_: None, []
        urllib.request.urlopen(f"http://127.0.0.1:{self.port}/moto-api/reset", b"").close()
        self.boto().create_bucket(Bucket=BUCKET)

    def stop(self) -> None:
        self.shutdown()
        self.server_close()
        if self._moto:
            self._moto.kill()
            self._moto.communicate()

    def handle_error(self, *_: object) -> None:
        """Clients that leave early are part of the tests."""


class _Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: BucketServer

    def log_message(self, *_: object) -> None:
        pass

    def do_GET(self) -> None:
        server, content = self.server, self.rfile.read(int(self.headers.get("Content-Length", 0)))
        server.requests.append((self.command, self.path))
        fault = server.faults.pop(0) if server.faults else server.rule(self.command, self.path)
        if callable(fault):
            fault = fault()
        if fault == "silent":
            time.sleep(5)
        headers = dict(self.headers)
        if fault == "no if-match":
            headers.pop("if-match", None)
        if isinstance(fault, int | tuple):
            status, code = fault if isinstance(fault, tuple) else (fault, "SlowDown")
            reason, kept, body = "Fault", [], TELLTALE.format(code=code).encode()
        else:
            upstream = http.client.HTTPConnection("127.0.0.1", server.port)
            upstream.request(self.command, self.path, content, headers)
            answer = upstream.getresponse()
            status, reason, kept, body = answer.status, answer.reason, answer.getheaders(), answer.read()
            upstream.close()
        self.send_response_only(status, reason)
        for name, value in kept:
            if name.lower() not in {"connection", "transfer-encoding", "content-length"}:
                self.send_header(name, value)
        if status != 204:
            self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if fault in ("reset", "short"):
            body = body[: len(body) // 2]
            self.close_connection = True
        self.wfile.write(body)
        if fault == "reset":
            self.wfile.flush()
            self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            self.connection.close()

    do_PUT = do_POST = do_HEAD = do_DELETE = do_GET  # noqa: N815
