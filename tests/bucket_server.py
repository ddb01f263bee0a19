"""An S3 server on this machine (moto), with faults on demand."""

import io
import logging
import os
import socket
import struct
import threading
import time
import urllib.request
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, TypeAlias

BUCKET = "scannet"
ACCESS_KEY = "AKIDT0PS3CRET"
SECRET_KEY = "s3cretkey"
TOKEN = "s3ssiontoken"
SECRETS = (ACCESS_KEY, SECRET_KEY, TOKEN, "pa55word", "s1gnature")
# Stores answer like this to signatures that they do not accept. Nothing of it may be shown.
TELLTALE = (
    f"<Error><Code>{{code}}</Code><AWSAccessKeyId>{ACCESS_KEY}</AWSAccessKeyId>"
    f"<StringToSign>x-amz-security-token:{TOKEN}</StringToSign>"
    "<SignatureProvided>s1gnature</SignatureProvided><Region>eu-west-1</Region></Error>"
)

Fault: TypeAlias = int | str | tuple[int, str] | Callable[[], object] | None
"""A fault of one request:

- a status, or a status and the store's code;
- a function that is called before the request goes on;
- "reset" or "short" (half of the answer, then the connection ends or not), "silent" (a pause of
  5 s), or "no if-match" (the header If-Match is ignored);
- None for no fault.
"""


class BucketServer:
    """An S3 server. All servers have the same objects.

    Args:
        certificate: A file with a certificate and its key, for https.

    Attributes:
        faults: Faults of the next requests, one each.
        rule: Returns the fault of any other request, from its method and path.
        requests: Methods and paths of the requests so far, without those of `boto`.
        origin: Scheme, host and port.
    """

    def __init__(self, certificate: Path | None = None) -> None:
        from moto.server import DomainDispatcherApplication, create_backend_app
        from werkzeug.serving import make_server

        logging.getLogger("werkzeug").setLevel(logging.CRITICAL)
        self.faults: list[Fault] = []
        self.rule: Callable[[str, str], Fault] = _no_fault
        self.requests: list[tuple[str, str]] = []
        self.store = DomainDispatcherApplication(create_backend_app)
        keys = None
        if certificate is not None:
            keys = (str(certificate), str(certificate))
        self.server = make_server("127.0.0.1", 0, self, threaded=True, ssl_context=keys)
        scheme = "http" if certificate is None else "https"
        self.origin = f"{scheme}://127.0.0.1:{self.server.port}"
        threading.Thread(target=self.server.serve_forever, daemon=True).start()

    def environment(self) -> dict[str, str]:
        """Return the settings of this server, for s3fs."""
        return {
            "AWS_ENDPOINT_URL": self.origin,
            "AWS_DEFAULT_REGION": "us-east-1",
            "AWS_ACCESS_KEY_ID": ACCESS_KEY,
            "AWS_SECRET_ACCESS_KEY": SECRET_KEY,
            "AWS_SESSION_TOKEN": TOKEN,
            # No other credentials: neither those of a cloud machine nor those in files of the user.
            "AWS_EC2_METADATA_DISABLED": "true",
            "AWS_CONFIG_FILE": os.devnull,
            "AWS_SHARED_CREDENTIALS_FILE": os.devnull,
        }

    def boto(self) -> Any:
        """Return a client for the tests themselves, which meets no faults."""
        import boto3

        return boto3.client(
            "s3",
            endpoint_url=self.origin,
            aws_access_key_id=ACCESS_KEY,
            aws_secret_access_key=SECRET_KEY,
            region_name="us-east-1",
        )

    def put(self, key: str, data: bytes) -> str:
        """Store an object, and return its address."""
        self.boto().put_object(Bucket=BUCKET, Key=key, Body=data)
        return f"s3://{BUCKET}/{key}"

    def get(self, key: str) -> bytes:
        """Return the content of an object."""
        return bytes(self.boto().get_object(Bucket=BUCKET, Key=key)["Body"].read())

    def keys(self) -> list[str]:
        """Return the names of all objects."""
        objects = self.boto().list_objects_v2(Bucket=BUCKET).get("Contents", [])
        return [value["Key"] for value in objects]

    def unfinished(self) -> list[str]:
        """Return the names of objects of which parts are left."""
        uploads = self.boto().list_multipart_uploads(Bucket=BUCKET).get("Uploads", [])
        return [value["Key"] for value in uploads]

    def reset(self) -> None:
        """Delete all objects, and forget faults and requests."""
        self.faults = []
        self.rule = _no_fault
        urllib.request.urlopen(f"{self.origin}/moto-api/reset", b"").close()
        self.boto().create_bucket(Bucket=BUCKET)
        self.requests = []

    def __call__(self, environ: dict[str, Any], start: Callable[..., Any]) -> Iterable[bytes]:
        """Answer a request, as a WSGI application."""
        is_of_tests = "Boto3" in environ.get("HTTP_USER_AGENT", "")
        if is_of_tests:
            return self.store(environ, start)
        # Read the body, so that the connection can be used again whatever happens.
        length = int(environ.get("CONTENT_LENGTH") or 0)
        environ["wsgi.input"] = io.BytesIO(environ["wsgi.input"].read(length))
        method = environ["REQUEST_METHOD"]
        path = environ["RAW_URI"]
        self.requests.append((method, path))

        fault = self.faults.pop(0) if self.faults else self.rule(method, path)
        if callable(fault):
            fault = fault()
        if fault == "silent":
            time.sleep(5)
        if fault == "no if-match":
            environ.pop("HTTP_IF_MATCH", None)
        if isinstance(fault, int):
            fault = (fault, "SlowDown")
        if isinstance(fault, tuple):
            status, code = fault
            body = TELLTALE.format(code=code).encode()
            start(f"{status} Fault", [("Content-Length", str(len(body)))])
            return [] if method == "HEAD" else [body]

        body = b"".join(self.store(environ, start))
        if fault == "reset":
            _close_by_reset(environ["werkzeug.socket"])
        if fault in ("reset", "short"):
            body = body[: len(body) // 2]
        return [body]


def _no_fault(_method: str, _path: str) -> Fault:
    return None


def _close_by_reset(connection: socket.socket) -> None:
    """Close a connection by RST."""
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    connection.close()
