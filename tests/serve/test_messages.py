"""Messages arrive whole, however their bytes are cut, and with every number."""

from math import inf

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from addnorm.serve.engine.events import Event, PromptScores
from addnorm.serve.engine.options import Options
from addnorm.serve.messages import (
    FROM_ENGINE,
    LARGEST,
    LENGTH,
    TO_ENGINE,
    Apply,
    Cancel,
    Events,
    Generate,
    Inbox,
    Stop,
    packed,
)

FLOATS = st.floats(allow_nan=False)
MESSAGES = st.one_of(
    st.builds(
        Generate,
        name=st.text(max_size=9),
        prompt=st.lists(st.integers(0, 2**31)).map(tuple),
        limit=st.none() | st.integers(0, 99),
        options=st.builds(
            Options,
            temperature=st.none() | FLOATS,
            seed=st.none() | st.integers(0, 2**63 - 1),
            logit_bias=st.dictionaries(st.integers(0, 99), st.floats(-100, 100)),
        ),
        salt=st.text(),
    ),
    st.builds(Cancel, name=st.text(), index=st.none() | st.integers(0, 9)),
    st.builds(
        Apply,
        name=st.text(),
        endpoint=st.text(),
        inputs=st.lists(st.text() | st.dictionaries(st.text(), st.integers())).map(tuple),
    ),
    st.just(Stop()),
)


@settings(max_examples=30)
@given(st.lists(MESSAGES, max_size=5), st.data())
def test_messages_are_whole_however_their_bytes_are_cut(
    messages: list[object], data: st.DataObject
) -> None:
    stream = b"".join(packed(TO_ENGINE, message) for message in messages)
    inbox, arrived = Inbox(), list[object]()
    while stream:
        n = data.draw(st.integers(1, len(stream)))
        arrived += inbox.take(stream[:n])
        stream = stream[n:]
    assert arrived == messages


def test_an_event_has_infinite_log_probabilities_too() -> None:
    event = Event(
        name="a",
        tokens=(3,),
        log_probs=(-inf,),
        best=(((4, -0.1), (5, -inf)),),
        prompt=PromptScores((-0.5, -inf), (((1, -0.5),),)),
        finished="eos",
    )
    content = packed(FROM_ENGINE, Events(events=(event,)))[LENGTH:]
    assert FROM_ENGINE.validate_json(content) == Events(events=(event,))


def test_a_length_beyond_all_messages_is_an_error_at_once() -> None:
    with pytest.raises(ValueError, match="bytes: at most"):
        [*Inbox().take((LARGEST + 1).to_bytes(LENGTH, "big"))]
