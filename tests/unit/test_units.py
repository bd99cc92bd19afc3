"""Numbers with units as people read them."""

import pytest

from laconic.units import format_bytes, format_count, format_seconds


@pytest.mark.parametrize(
    ("size", "text"), [(0, "0 B"), (1023, "1023 B"), (1536, "1.5 KiB"), (3_400_000, "3.2 MiB"), (2**50, "1024.0 TiB")]
)
def test_bytes(size, text):
    assert format_bytes(size) == text


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0.041, "41 ms"),
        (3.21, "3.2 s"),
        (59.94, "59.9 s"),
        (125, "2 min 05 s"),
        (3600, "1 h 00 min"),
        (7323, "2 h 02 min"),
    ],
)
def test_seconds(seconds, text):
    assert format_seconds(seconds) == text


def test_counts_are_grouped():
    assert format_count(1473932) == "1,473,932"
