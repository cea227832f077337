"""The options of shards: numbers in range."""

import pytest

from addnorm.data.shards.options import OF_NEAR, ShardOptions
from addnorm.errors import InputError


def test_numbers_out_of_range_are_refused() -> None:
    with pytest.raises(InputError, match="`valid_fraction = 1`: give 0 to less than 1"):
        ShardOptions(valid_fraction=1.0)
    with pytest.raises(InputError, match="`shard_tokens = 0`: give 1 to"):
        ShardOptions(shard_tokens=0)
    with pytest.raises(InputError, match=r"`near_threshold = 1\.2`: give more than 0"):
        ShardOptions(dedup="near", near_threshold=1.2)
    with pytest.raises(InputError, match="`permutations = 1`: give 8 to 4,096"):
        ShardOptions(dedup="near", permutations=1)


def test_options_of_near_copies_alone_are_refused_without_them() -> None:
    with pytest.raises(InputError, match="`shingle_words = 9` is for `dedup = 'near'`"):
        ShardOptions(dedup="exact", shingle_words=9)
    assert not ShardOptions(dedup="exact").settings().keys() & {*OF_NEAR}
    assert ShardOptions(dedup="near").settings().keys() > {*OF_NEAR}
