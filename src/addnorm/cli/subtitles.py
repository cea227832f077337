"""Segments of a text with times, written as lines or as subtitles in SubRip or WebVTT."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Literal

from addnorm.cli.lines import one_line

if TYPE_CHECKING:
    from addnorm.generate.generated import Segment

SubtitleForm = Literal["srt", "vtt"]


def timed_line(segment: "Segment") -> str:
    """`[00:00:00.000 --> 00:00:06.440] the text`."""
    times = f"{clock(segment.start)} --> {clock(segment.end)}"
    return f"[{times}] {one_line(segment.text.strip())}"


def subtitles(segments: "Sequence[Segment]", form: SubtitleForm) -> str:
    """The segments in the format of a `.srt` or `.vtt` file, without the last line break.

    A cue of SubRip has a number, its times with a comma, and its text; WebVTT begins with its name
    and has a point in the times. A text is one line, in which WebVTT escapes `&`, `<` and `>`.
    """
    cues = [_cue(number, segment, form) for number, segment in enumerate(segments, 1)]
    return "\n\n".join(cues if form == "srt" else ["WEBVTT", *cues])


def _cue(number: int, segment: "Segment", form: SubtitleForm) -> str:
    mark = "," if form == "srt" else "."
    text = " ".join(segment.text.split())
    if form == "vtt":
        text = text.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
    times = f"{clock(segment.start, mark)} --> {clock(segment.end, mark)}\n{text}"
    return f"{number}\n{times}" if form == "srt" else times


def clock(seconds: float, mark: str = ".") -> str:
    """A time as hours, minutes, seconds and thousandths: `01:02:03.450`."""
    minutes, thousandths = divmod(round(1000 * seconds), 60_000)
    hours, minutes = divmod(minutes, 60)
    return f"{hours:02}:{minutes:02}:{thousandths // 1000:02}{mark}{thousandths % 1000:03}"
