"""An S3 server on this machine (moto), which does harm when asked to."""

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
from typing import Any

BUCKET = "scannet"
ACCESS_KEY, SECRET_KEY, TOKEN = "AKIDT0PS3CRET", "s3cretkey", "s3ssiontoken"
SECRETS = (ACCESS_KEY, SECRET_KEY, TOKEN, "pa55word", "s1gnature")
# What stores say of signatures that they do not accept: it holds all that must not be shown.
TELLTALE = (
    f"<Error><Code>{{code}}</Code><AWSAccessKeyId>{ACCESS_KEY}</AWSAccessKeyId><StringToSign>x-amz-security-token:{TOKEN}"
    "</StringToSign><SignatureProvided>s1gnature</SignatureProvided><Region>eu-west-1</Region></Error>"
)
Fault = int | str | tuple[int, str] | Callable[[], object] | None


class BucketServer:
    """`faults` hit the next requests of objects, one each; `rule` hits all for which it gives a fault.

    A fault is a status, or one and the store's code, a call to be made before the request goes on,
    or `reset`, `short`, `silent`, `no if-match`. All servers have the same objects.
    """

    def __init__(self, certificate: Path | None = None) -> None:
        from moto.server import DomainDispatcherApplication, create_backend_app
        from werkzeug.serving import make_server

        logging.getLogger("werkzeug").setLevel(logging.CRITICAL)
        self.faults: list[Fault] = []
        self.rule: Callable[[str, str], Fault] = lambda *_: None
        self.requests: list[tuple[str, str]] = []
        self.store = DomainDispatcherApplication(create_backend_app)
        keys = (str(certificate), str(certificate)) if certificate else None
        self.server = make_server("127.0.0.1", 0, self, threaded=True, ssl_context=keys)
        self.origin = f"http{'s' if certificate else ''}://127.0.0.1:{self.server.port}"
        threading.Thread(target=self.server.serve_forever, daemon=True).start()

    def environment(self) -> dict[str, str]:
        keys = {
            "AWS_ACCESS_KEY_ID": ACCESS_KEY,
            "AWS_SECRET_ACCESS_KEY": SECRET_KEY,
            "AWS_SESSION_TOKEN": TOKEN,
        }
        # No other credentials: neither those in the files of this user nor those of a cloud machine.
        others = {"AWS_EC2_METADATA_DISABLED": "true"}
        others |= dict.fromkeys(("AWS_CONFIG_FILE", "AWS_SHARED_CREDENTIALS_FILE"), os.devnull)
        return {
            "AWS_ENDPOINT_URL": self.origin,
            "AWS_DEFAULT_REGION": "us-east-1",
            **keys,
            **others,
        }

    def boto(self) -> Any:
        import boto3

        keys = {
            "aws_access_key_id": ACCESS_KEY,
            "aws_secret_access_key": SECRET_KEY,
            "region_name": "us-east-1",
        }
        return boto3.client("s3", endpoint_url=self.origin, **keys)

    def put(self, key: str, data: bytes) -> str:
        self.boto().put_object(Bucket=BUCKET, Key=key, Body=data)
        return f"s3://{BUCKET}/{key}"

    def get(self, key: str) -> bytes:
        return bytes(self.boto().get_object(Bucket=BUCKET, Key=key)["Body"].read())

    def keys(self) -> list[str]:
        return [
            item["Key"] for item in self.boto().list_objects_v2(Bucket=BUCKET).get("Contents", [])
        ]

    def unfinished(self) -> list[str]:
        return [
            item["Key"]
            for item in self.boto().list_multipart_uploads(Bucket=BUCKET).get("Uploads", [])
        ]

    def reset(self) -> None:
        self.faults, self.rule = [], lambda *_: None
        urllib.request.urlopen(f"{self.origin}/moto-api/reset", b"").close()
        self.boto().create_bucket(Bucket=BUCKET)
        self.requests = []

    def __call__(self, environ: dict[str, Any], start: Callable[..., Any]) -> Iterable[bytes]:
        if "Boto3" in environ.get("HTTP_USER_AGENT", ""):  # asked by the tests themselves
            return self.store(environ, start)
        environ["wsgi.input"] = io.BytesIO(
            environ["wsgi.input"].read(int(environ.get("CONTENT_LENGTH") or 0))
        )
        self.requests.append((environ["REQUEST_METHOD"], environ["RAW_URI"]))
        fault = self.faults.pop(0) if self.faults else self.rule(*self.requests[-1])
        if callable(fault):
            fault = fault()
        if fault == "silent":
            time.sleep(5)
        if fault == "no if-match":
            environ.pop("HTTP_IF_MATCH", None)
        if isinstance(fault, int | tuple):
            status, code = fault if isinstance(fault, tuple) else (fault, "SlowDown")
            body = TELLTALE.format(code=code).encode()
            start(f"{status} Fault", [("Content-Length", str(len(body)))])
            return [] if environ["REQUEST_METHOD"] == "HEAD" else [body]
        body = b"".join(self.store(environ, start))
        if fault == "reset":  # when what has been sent is closed
            environ["werkzeug.socket"].setsockopt(
                socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0)
            )
            environ["werkzeug.socket"].close()
        return [body[: len(body) // 2] if fault in ("reset", "short") else body]
