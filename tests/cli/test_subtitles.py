"""Subtitles in SubRip and WebVTT, and lines with times."""

import re

import hypothesis.strategies as st
import pytest
from hypothesis import given

from addnorm.cli.subtitles import clock, subtitles, timed_line
from addnorm.generate.generated import Segment

SEGMENTS = (Segment(0.0, 6.44, " He has <grave> doubts & more"), Segment(6.44, 3725.9, " a\nb"))


def test_the_forms_of_subtitles() -> None:
    assert subtitles(SEGMENTS, "srt") == (
        "1\n00:00:00,000 --> 00:00:06,440\nHe has <grave> doubts & more\n\n"
        "2\n00:00:06,440 --> 01:02:05,900\na b"
    )
    assert subtitles(SEGMENTS, "vtt") == (
        "WEBVTT\n\n00:00:00.000 --> 00:00:06.440\nHe has &lt;grave&gt; doubts &amp; more\n\n"
        "00:00:06.440 --> 01:02:05.900\na b"
    )
    assert subtitles((), "srt") == ""
    assert subtitles((), "vtt") == "WEBVTT"


def test_a_line_has_the_times_before_the_text() -> None:
    line = timed_line(SEGMENTS[1])
    assert line == "[00:00:06.440 --> 01:02:05.900] a\\nb"


@given(st.integers(0, 10**7))
def test_a_clock_shows_every_stamp_exactly(stamp: int) -> None:
    shown = clock(round(0.02 * stamp, 2))
    hours, minutes, seconds, thousandths = map(int, re.split("[:.]", shown))
    assert minutes < 60
    assert seconds < 60
    total = ((hours * 60 + minutes) * 60 + seconds) * 1000 + thousandths
    assert total == pytest.approx(20 * stamp)
