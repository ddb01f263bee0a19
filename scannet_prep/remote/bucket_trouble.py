"""What can go wrong with a bucket, in words, and what to type about it."""

from __future__ import annotations

from scannet_prep.errors import (
    ArchiveError,
    CertificateError,
    FileError,
    NotOnServerError,
    OutputError,
    RefusedError,
    ScanNetPrepError,
    ServerDownError,
    TransferError,
    UsageError,
)
from scannet_prep.remote.bucket_process import PREFIXES, Trouble

TRY_LATER = "run the same command again later"
_CHECK_SERVER = "is this machine online? Check {server}, if it is set; else " + TRY_LATER

# Of each kind of store: what says who asks, and what names another server.
_LOGINS = {
    "s3": "set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY (and AWS_SESSION_TOKEN), for example by "
    'eval "$(aws configure export-credentials --format env)"; for a public bucket, AWS_SKIP_SIGNATURE=true',
    "gs": "type gcloud auth application-default login, or set GOOGLE_APPLICATION_CREDENTIALS=FILE; for a public "
    "bucket, GOOGLE_SKIP_SIGNATURE=true",
    "az": "set AZURE_STORAGE_ACCOUNT_NAME, and AZURE_STORAGE_ACCOUNT_KEY or AZURE_STORAGE_SAS_KEY (or "
    "AZURE_USE_AZURE_CLI=true, after az login); for a public container, AZURE_SKIP_SIGNATURE=true",
}
_SERVERS = {"s3": "AWS_ENDPOINT_URL", "gs": "GOOGLE_BASE_URL", "az": "AZURE_STORAGE_ENDPOINT"}
# By cause.
_WORDS: dict[str, tuple[type[ScanNetPrepError], str, str]] = {
    "package": (UsageError, "obstore is not installed, which it takes", "pip install 'scannet-prep[cloud]'"),
    "settings": (UsageError, "the settings in the environment cannot be used", "check {prefix}_*; see docs/archive.md"),
    "http": (UsageError, "the server has an http:// address, not encrypted", "to allow it: {prefix}_ALLOW_HTTP=true"),
    "login": (RefusedError, "no credentials were found", "{login}"),
    "rejected": (RefusedError, "the credentials are not accepted{told}", "expired, or is `date` wrong? Else {login}"),
    "denied": (RefusedError, "permission denied{told}", "ask its owner for the right to {right} it; or {login}"),
    "region": (RefusedError, "the bucket is in another region{told}", "set AWS_REGION, which its owner knows"),
    "refused": (RefusedError, "{host} refuses it{told}", "check {server}, if it is set; else {login}"),
    "bucket": (NotOnServerError, "there is no such bucket{told}", "check its name, and {server}, if it is set"),
    "object": (NotOnServerError, "there is no such object{told}", "check its name; upper and lower case differ"),
    "changed": (ArchiveError, "was replaced or changed since it was opened", "open it again"),
    "empty": (ArchiveError, "is empty, or shorter than it was{told}", "write it again with scannet-prep pack"),
    "ranges": (ArchiveError, "the server gives no part of it, only the whole", "copy it to a disk first"),
    "failing": (ServerDownError, "{host} fails, after several attempts{told}", TRY_LATER),
    "network": (ServerDownError, "{host} does not answer or breaks off, after several attempts", _CHECK_SERVER),
    "certificate": (CertificateError, "the certificate of {host} cannot be verified", "set SSL_CERT_FILE=FILE"),
    "ended": (TransferError, "the process that talks to the store has ended", "is memory short? Else " + TRY_LATER),
}


def make_error(address: str, trouble: Trouble, *, is_writing: bool = False) -> ScanNetPrepError:
    """Say what went wrong with an object, without what may be secret."""
    kind, words, hint = _WORDS[trouble.cause]
    scheme = address[:2].lower()
    values = {
        "told": f" ({trouble.told})" if trouble.told else "",
        "host": trouble.host or "the store",
        "login": _LOGINS[scheme],
        "server": _SERVERS[scheme],
        "prefix": PREFIXES[scheme],
        "right": "write" if is_writing else "read",
    }
    words, hint = words.format_map(values), hint.format_map(values)
    if is_writing and not issubclass(kind, UsageError):
        return OutputError(f"{address}: cannot be written: {words}", hint)
    return kind(address, words, hint) if issubclass(kind, FileError) else kind(f"{address}: {words}", hint)
