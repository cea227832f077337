"""The client of `addnorm chat`: pieces, errors, and an answer that is stopped."""

import pytest
from tests.serve.servers import serving

from addnorm.errors import InputError
from addnorm.serve.client import ChatClient

HELLO = [{"role": "user", "content": "Hallo"}]


@pytest.mark.long
def test_pieces_of_an_answer() -> None:
    with serving("fake?delay=0.002&text=Gut und dir?", "other", key="sesame") as url:
        for address in (url, f"{url}/v1", f"{url}/v1/"):
            client = ChatClient(address, "sesame")
            assert client.models() == ["fake", "other"]
            pieces = [*client.stream(HELLO, model="fake")]
            assert "".join(pieces) == "Gut und dir?"
            assert len(pieces) > 2
        stopped = client.stream(HELLO, model="other")
        next(stopped)
        stopped.close()
        with pytest.raises(InputError, match="key is missing"):
            ChatClient(url).models()
        with pytest.raises(InputError, match='no model "x"'):
            [*client.stream(HELLO, model="x")]


def test_an_address_that_is_none() -> None:
    for wrong in ("localhost:8000", "ftp://a", "http://"):
        with pytest.raises(InputError, match="give an address"):
            ChatClient(wrong)
    with pytest.raises(InputError, match="refused"):
        ChatClient("http://127.0.0.1:1").models()
