"""Sizes and durations as people type them."""

import pytest
from commands import run_main
from hypothesis import given
from hypothesis import strategies as st

from scannet_prep.base.units import format_duration, parse_duration, parse_size


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
def test_sizes_are_parsed_with_their_units(text: str, size_bytes: int) -> None:
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
def test_durations_are_parsed_with_their_units(text: str, seconds: float) -> None:
    assert parse_duration(text) == seconds


@pytest.mark.parametrize("text", ["2", "0", "2.5", " 3 "])
def test_numbers_without_a_unit_are_refused_with_an_example(text: str) -> None:
    with pytest.raises(ValueError, match=r"has no unit, for example 500kB"):
        parse_size(text)
    with pytest.raises(ValueError, match=r"has no unit, for example 90s, 30m or 12h30m"):
        parse_duration(text)


@pytest.mark.parametrize("text", ["", "MB", "-2MB", "0kB", "0.1B", "2XB", "2MB3kB"])
def test_texts_that_are_not_sizes_are_refused_with_an_example(text: str) -> None:
    with pytest.raises(ValueError, match=r", for example 500kB"):
        parse_size(text)


@pytest.mark.parametrize("text", ["", "h", "-1h", "0s", "30m12h", "1h1h", "1w"])
def test_texts_that_are_not_durations_are_refused_with_an_example(text: str) -> None:
    with pytest.raises(ValueError, match=r", for example 90s"):
        parse_duration(text)


@pytest.mark.parametrize(
    ("words", "example"),
    [
        (
            ["download", "--types", "seg", "--limit-rate", "2"],
            "--limit-rate: '2' has no unit, for example 500kB",
        ),
        (["download", "--types", "seg", "--wait", "3"], "--wait: '3' has no unit, for example 90s"),
        (["pack", "--shard-size", "4"], "--shard-size: '4' has no unit, for example 500kB"),
    ],
)
def test_options_without_a_unit_are_wrong_usage(words: list[str], example: str) -> None:
    outcome = run_main(*words)
    assert (outcome.status, example in outcome.stderr) == (2, True)


def test_durations_are_shown_with_their_two_largest_units() -> None:
    seconds = (0.12, 1, 9.97, 59.6, 60, 200, 3_600, 3_905, 45_000, 90_000)
    texts = [
        "0.1 s",
        "1 s",
        "10 s",
        "1 min",
        "1 min",
        "3 min 20 s",
        "1 h",
        "1 h 5 min",
        "12 h 30 min",
        "1 d 1 h",
    ]
    assert [format_duration(number) for number in seconds] == texts


@given(st.integers(1, 3_599))
def test_shown_durations_below_an_hour_parse_to_the_same_number(seconds: int) -> None:
    assert parse_duration(format_duration(seconds)) == seconds
