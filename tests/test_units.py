"""Sizes and durations as people type them, and counts as pages show them."""

import pytest
from commands import run_main
from hypothesis import given
from hypothesis import strategies as st

from scannet_prep.base.text import count_of, format_duration, parse_duration, parse_size


@pytest.mark.parametrize(
    ("text", "size_bytes"),
    [
        ("500kB", 500_000),
        ("2MB", 2_000_000),
        ("1.5 GB", 1_500_000_000),
        ("4G", 4 << 30),
        ("4GiB", 4 << 30),
        ("7B", 7),
    ],
)
def test_size_is_parsed_with_its_unit(text: str, size_bytes: int) -> None:
    assert parse_size(text) == size_bytes


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("90s", 90),
        ("30m", 1_800),
        ("12h30m", 45_000),
        ("1d", 86_400),
        ("1.5h", 5_400),
        ("12 h 30 min", 45_000),
    ],
)
def test_duration_is_parsed_with_its_units(text: str, seconds: float) -> None:
    assert parse_duration(text) == seconds


numbers_without_unit = pytest.mark.parametrize("text", ["2", "0", "2.5", " 3 "])


@numbers_without_unit
def test_size_without_unit_is_refused_with_examples(text: str) -> None:
    with pytest.raises(ValueError, match=r"has no unit, for example 500kB"):
        parse_size(text)


@numbers_without_unit
def test_duration_without_unit_is_refused_with_examples(text: str) -> None:
    with pytest.raises(ValueError, match=r"has no unit, for example 90s, 30m or 12h30m"):
        parse_duration(text)


@pytest.mark.parametrize("text", ["", "MB", "-2MB", "0kB", "0.1B", "2XB", "2MB3kB"])
def test_text_that_is_not_a_size_is_refused_with_examples(text: str) -> None:
    with pytest.raises(ValueError, match=r", for example 500kB"):
        parse_size(text)


@pytest.mark.parametrize("text", ["", "h", "-1h", "0s", "30m12h", "1h1h", "1w"])
def test_text_that_is_not_a_duration_is_refused_with_examples(text: str) -> None:
    with pytest.raises(ValueError, match=r", for example 90s"):
        parse_duration(text)


@pytest.mark.parametrize(
    ("words", "problem"),
    [
        ("download --types seg --limit-rate 2", "--limit-rate: '2' has no unit, for example 500kB"),
        ("download --types seg --wait 3", "--wait: '3' has no unit, for example 90s"),
        ("pack --shard-size 4", "--shard-size: '4' has no unit, for example 500kB"),
    ],
)
def test_option_without_unit_is_wrong_usage(words: str, problem: str) -> None:
    outcome = run_main(*words.split())

    assert outcome.status == 2
    assert problem in outcome.stderr


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0.12, "0.1 s"),
        (1, "1 s"),
        (9.97, "10 s"),
        (59.6, "1 min"),
        (60, "1 min"),
        (200, "3 min 20 s"),
        (3_600, "1 h"),
        (3_905, "1 h 5 min"),
        (45_000, "12 h 30 min"),
        (90_000, "1 d 1 h"),
    ],
)
def test_duration_is_formatted_with_its_two_largest_units(seconds: float, text: str) -> None:
    assert format_duration(seconds) == text


@given(st.integers(1, 3_599))
def test_formatted_duration_below_an_hour_parses_to_the_same_number(seconds: int) -> None:
    assert parse_duration(format_duration(seconds)) == seconds


@pytest.mark.parametrize(
    ("number", "text"), [(0, "0 vertices"), (1, "1 vertex"), (1513, "1,513 vertices")]
)
def test_count_has_the_noun_of_its_number(number: int, text: str) -> None:
    assert count_of(number, "vertex", "vertices") == text


def test_plural_ends_in_s_by_default() -> None:
    assert count_of(2, "scene") == "2 scenes"
