"""A dask cluster that exists already, as the executor of a run."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import Executor
from contextlib import contextmanager

from scannet_prep.base.version import VERSION
from scannet_prep.errors import UsageError

_CONNECT_TIMEOUT_S = 30
_HINT_INSTALL = 'pip install ".[dask]" in a clone, here and in the environment of the workers'


@contextmanager
def dask_executor(address: str) -> Iterator[Executor]:
    """Connect to a dask scheduler, and give an executor that runs tasks on its workers.

    Args:
        address: The address of the scheduler, such as `tcp://node01:8786`.

    Raises:
        UsageError: dask is not installed, nothing answers at the address, or a worker has no
            scannet_prep of the same version.
    """
    try:
        from distributed import Client
        from distributed.comm import parse_address, parse_host_port
        from distributed.comm.registry import get_backend
    except ImportError as error:
        raise UsageError(f"--dask needs the package distributed: {error}", _HINT_INSTALL) from None
    try:
        # Check the address here: if `Client` refuses it, Python waits for a minute at its end, and
        # then prints a traceback.
        scheme, location = parse_address(address)
        get_backend(scheme)
        parse_host_port(location)
        client = Client(address, timeout=_CONNECT_TIMEOUT_S, set_as_default=False)
    except (OSError, ValueError, TypeError) as error:
        raise UsageError(
            f"--dask {address}: no scheduler answers: {error}",
            "give the address that the scheduler prints when it starts, such as tcp://node01:8786",
        ) from None
    with client:
        _check_versions(client.run(_find_version, on_error="return"))
        yield client.get_executor(pure=False)


def _find_version() -> str:
    """Return the version of this package on a worker."""
    return VERSION


def _check_versions(answers: dict[str, object]) -> None:
    """Refuse workers that lack this package, or have another version of it."""
    for worker, answer in answers.items():
        if answer != VERSION:
            version = answer if isinstance(answer, str) else f"none ({answer})"
            raise UsageError(
                f"the dask worker {worker} has scannet_prep {version}, expected {VERSION}",
                _HINT_INSTALL,
            )
