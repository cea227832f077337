"""The options of shards: numbers in range."""

import pytest

from addnorm.data.shards.options import ShardOptions
from addnorm.errors import InputError


def test_numbers_out_of_range_are_refused() -> None:
    with pytest.raises(InputError, match="`valid_fraction = 1`: give 0 to less than 1"):
        ShardOptions(valid_fraction=1.0)
    with pytest.raises(InputError, match="`shard_tokens = 0`: give 1 to"):
        ShardOptions(shard_tokens=0)
