"""Times of a series: what is read, the interval found, and what is refused by its place."""

from datetime import UTC, date, datetime, timedelta, timezone
from typing import Any
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given
from hypothesis import strategies as st

from addnorm.data.times import (
    Interval,
    check_order,
    comparable,
    parsed_time,
    regular_interval,
    steps_of,
)
from addnorm.errors import InputError

START = datetime(2016, 7, 1)
HOUR = timedelta(hours=1)


@pytest.mark.parametrize(
    ("cell", "expected"),
    [
        ("2016-07-01 01:00:00", datetime(2016, 7, 1, 1)),
        ("2016-07", START),
        (" 2016-07-01 ", START),
        ("2016-07-01T00:00:00Z", datetime(2016, 7, 1, tzinfo=UTC)),
        (date(2016, 7, 1), START),
        (START, START),
        ("01/07/2016", None),
        (3.5, None),
        (None, None),
    ],
)
def test_only_times_are_times(cell: object, expected: datetime | None) -> None:
    assert parsed_time(cell) == expected


@given(
    interval=st.one_of(
        st.sampled_from([1, 3, 12]).map(Interval),
        st.integers(1, 10**6).map(lambda s: Interval(fixed=timedelta(seconds=s))),
    ),
    steps=st.lists(st.integers(1, 4), min_size=3, max_size=20),
)
def test_times_on_a_grid_have_their_steps(interval: Interval, steps: list[int]) -> None:
    """Whatever is missing, as long as most neighbours are one step apart."""
    places = [0]
    for gap in [1] * (len(steps) + 1) + steps:
        places.append(places[-1] + gap)
    times = [interval.after(START, step) for step in places]
    found = regular_interval(times)
    assert steps_of(times, [""] * len(times), found).tolist() == places
    assert all(found.after(START, step) == interval.after(START, step) for step in places)


@pytest.mark.parametrize(
    ("interval", "season"),
    [
        (Interval(fixed=HOUR), 24),
        (Interval(fixed=15 * timedelta(minutes=1)), 96),
        (Interval(fixed=24 * HOUR), 7),
        (Interval(fixed=168 * HOUR), None),
        (Interval(fixed=7 * HOUR), None),
        (Interval(1), 12),
        (Interval(3), 4),
        (Interval(12), None),
    ],
)
def test_seasons(interval: Interval, season: int | None) -> None:
    assert interval.season == season


def test_intervals_in_words() -> None:
    assert [str(Interval(1)), str(Interval(3))] == ["1 month", "3 months"]
    assert str(Interval(fixed=HOUR)) == "1:00:00"


EAST = timezone(timedelta(hours=2))
WRONG: dict[str, tuple[list[datetime], str]] = {
    "unsorted": ([START, START + 2 * HOUR, START + HOUR], "f:3: .* sort the table by time"),
    "twice": ([START, START], "f:2: the time .* comes twice"),
    "two zones": (
        [START.replace(tzinfo=UTC), (START + HOUR).replace(tzinfo=EAST)],
        r"f:2: .* zone UTC\+02:00, and the first in UTC: bring all",
    ),
    "a zone and none": ([START, (START + HOUR).replace(tzinfo=UTC)], "f:2: .* and the first in no"),
}


@pytest.mark.parametrize("case", WRONG)
def test_wrong_times_are_named(case: str) -> None:
    times, message = WRONG[case]
    with pytest.raises(InputError, match=message):
        check_order(times, ["f:1", "f:2", "f:3"][: len(times)])


def test_a_time_between_two_steps_is_named() -> None:
    times = [START, START + HOUR, START + 2 * HOUR, START + 2.5 * HOUR]
    with pytest.raises(InputError, match=r"f:3: .* 02:30:00 is not on the interval of 1:00:00"):
        steps_of(times, [f"f:{i}" for i in range(4)], regular_interval(times))


@pytest.mark.parametrize("zone", [None, UTC, EAST])
def test_dates_without_a_zone_are_of_the_table_s(zone: Any) -> None:
    there = START.replace(tzinfo=zone)
    assert comparable(START, there) == there
    assert str(comparable(START, there)) == str(there)


def test_a_date_with_a_zone_is_refused_where_the_table_has_none() -> None:
    with pytest.raises(InputError, match=r"2016-07-01 00:00:00\+02:00 has a zone"):
        comparable(START.replace(tzinfo=EAST), START)
    assert comparable(START.replace(tzinfo=EAST), START.replace(tzinfo=UTC)).tzinfo == EAST


def test_a_zone_with_summer_time_is_so_many_hours_from_utc() -> None:
    """Steps after the clocks change are as long as those before."""
    winter = datetime(2023, 3, 25, 12, tzinfo=ZoneInfo("Europe/Berlin"))
    found = parsed_time(winter)
    assert found == winter
    assert str(Interval(fixed=24 * HOUR).after(found, 1)) == "2023-03-26 12:00:00+01:00"
    summer = parsed_time(winter + timedelta(days=1))
    with pytest.raises(InputError, match=r"f:2: .* is in zone UTC\+02:00, and the first in UTC\+0"):
        check_order([found, summer], ["f:1", "f:2"])


def test_times_of_pandas() -> None:
    pandas = pytest.importorskip("pandas")
    found = parsed_time(pandas.Timestamp("2016-07-01 01:00"))
    assert (type(found), found) == (datetime, START + HOUR)
    assert parsed_time(pandas.Timestamp(10**18 + 1)) is None  # nanoseconds would be lost
    assert parsed_time(pandas.NaT) is None
