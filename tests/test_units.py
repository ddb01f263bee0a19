"""Numbers, sizes and lists as messages show them."""

import pytest

from scannet_prep.base.text import count_of, format_bytes, format_duration, list_some


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (format_duration(0.12), "0.1 s"),
        (format_duration(9.97), "10 s"),
        (format_duration(59.6), "1 min 0 s"),
        (format_duration(3_905), "1 h 5 min"),
        (format_bytes(999), "999 B"),
        (format_bytes(1000), "1.0 kB"),
        (format_bytes(999_960), "1.0 MB"),
        (format_bytes(10**13), "10.00 TB"),
        (count_of(1513, "scene"), "1,513 scenes"),
        (list_some(["a", "b", "c"]), "a, b, c"),
    ],
)
def test_numbers_and_lists_as_text(text, expected):
    assert text == expected
