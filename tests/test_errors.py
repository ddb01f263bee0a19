"""Errors keep everything they know on the way through pickle and a process pool, and stand in the documented tree."""

import copy
import inspect
import multiprocessing
import pickle
import re
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

import pytest

from scannet_prep import errors
from scannet_prep.errors import FileError, MissingFileError, OutputError, ScanNetPrepError, UnknownSceneError

CLASSES = [item for _, item in inspect.getmembers(errors, inspect.isclass) if issubclass(item, ScanNetPrepError)]


def make(error_type: type[ScanNetPrepError]) -> ScanNetPrepError:
    if issubclass(error_type, FileError):
        return error_type(Path("folder/scene0000_00.ply"), "has 5 vertices, expected 6", "download it again")
    return error_type("scene0000_00: has 5 vertices, expected 6", "download it again")


def assert_same(found: BaseException, expected: ScanNetPrepError) -> None:
    assert type(found) is type(expected)
    assert str(found) == str(expected)
    assert vars(found) == vars(expected)
    assert found.args == expected.args


def raise_error(error_type: type[ScanNetPrepError]) -> None:
    raise make(error_type)


@pytest.mark.parametrize("error_type", CLASSES)
@pytest.mark.parametrize("protocol", range(pickle.HIGHEST_PROTOCOL + 1))
def test_every_error_survives_pickling_with_all_attributes(error_type: type[ScanNetPrepError], protocol: int) -> None:
    error = make(error_type)
    assert_same(pickle.loads(pickle.dumps(error, protocol)), error)
    assert_same(copy.copy(error), error)


def test_every_error_survives_a_process_pool_which_then_still_works() -> None:
    with ProcessPoolExecutor(1, mp_context=multiprocessing.get_context("spawn")) as pool:
        futures = [pool.submit(raise_error, error_type) for error_type in CLASSES]
        for future, error_type in zip(futures, CLASSES, strict=True):
            assert_same(future.exception(), make(error_type))
        assert pool.submit(len, "abc").result() == 3


def test_the_tree_in_the_docstring_names_every_error_once_and_in_its_place() -> None:
    matches = (re.match(r"([ │├└─]*)(\w+Error)\b", line) for line in (errors.__doc__ or "").splitlines())
    drawn = [(len(match[1]), match[2]) for match in matches if match]
    assert sorted(name for _, name in drawn) == sorted(item.__name__ for item in CLASSES)
    for index, (indent, name) in enumerate(drawn):
        parents = [other for depth, other in drawn[:index] if depth < indent]
        bases = [base.__name__ for base in getattr(errors, name).__bases__]
        assert not parents or parents[-1] in bases or any(parent in bases for parent in parents)
        assert index == 0 or any(base in bases for base in parents)


@pytest.mark.parametrize("error_type", CLASSES)
def test_every_error_has_a_sentence_and_shows_its_message_without_the_hint(error_type: type[ScanNetPrepError]) -> None:
    assert (error_type.__doc__ or "").splitlines()[0].endswith(".")
    error = make(error_type)
    assert str(error).endswith("has 5 vertices, expected 6")
    assert error.hint == "download it again"


@pytest.mark.parametrize(
    ("error_type", "builtin"),
    [
        (MissingFileError, FileNotFoundError),
        (OutputError, OSError),
        (UnknownSceneError, KeyError),
        (errors.MeshError, ValueError),
    ],
)
def test_errors_are_also_the_builtin_that_a_user_would_catch(error_type, builtin: type[Exception]) -> None:
    with pytest.raises(builtin):
        raise_error(error_type)


def test_an_error_that_is_an_os_error_too_holds_no_text_where_a_number_belongs() -> None:
    for error in (make(MissingFileError), make(OutputError)):
        assert isinstance(error, OSError)
        assert error.errno is None or isinstance(error.errno, int)
