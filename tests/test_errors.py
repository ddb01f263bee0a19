"""Errors keep everything they know on the way through pickle, and stand in the documented tree."""

import copy
import inspect
import pickle
import re
from pathlib import Path

import pytest

from scannet_prep import errors
from scannet_prep.errors import FileError, ScanNetPrepError

CLASSES = [item for _, item in inspect.getmembers(errors, inspect.isclass) if issubclass(item, ScanNetPrepError)]


@pytest.mark.parametrize("error_type", CLASSES)
def test_every_error_has_a_sentence_and_survives_pickling_with_attributes(error_type: type[ScanNetPrepError]) -> None:
    where = [Path("folder/scene0000_00.ply")] if issubclass(error_type, FileError) else []
    error = error_type(*where, "has 5 vertices, expected 6", "download it again")
    for found in (copy.copy(error), *(pickle.loads(pickle.dumps(error, number)) for number in range(6))):
        assert type(found) is error_type
        assert (str(found), vars(found), found.args) == (str(error), vars(error), error.args)
    assert error.message.endswith("has 5 vertices, expected 6")
    assert error.message in str(error)
    assert error.hint == "download it again"
    assert (error_type.__doc__ or "").splitlines()[0].endswith(".")
    # One that is an OSError too holds no text where a number belongs.
    assert not isinstance(error, OSError) or error.errno is None or isinstance(error.errno, int)
    # Those that a user would catch as a builtin.
    builtin = {"MissingFileError": FileNotFoundError, "OutputError": OSError, "UnknownSceneError": KeyError}
    assert isinstance(error, builtin.get(error_type.__name__, Exception))


def test_the_tree_in_the_docstring_names_every_error_once_and_in_its_place() -> None:
    matches = (re.match(r"([ │├└─]*)(\w+Error)\b", line) for line in (errors.__doc__ or "").splitlines())
    drawn = [(len(match[1]), match[2]) for match in matches if match]
    assert sorted(name for _, name in drawn) == sorted(item.__name__ for item in CLASSES)
    for index, (indent, name) in enumerate(drawn):
        parents = [other for depth, other in drawn[:index] if depth < indent]
        bases = [base.__name__ for base in getattr(errors, name).__bases__]
        assert not parents or parents[-1] in bases or any(parent in bases for parent in parents)
        assert index == 0 or any(base in bases for base in parents)
