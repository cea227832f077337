"""Pages: reference counts, copies before writing, reuse of published beginnings."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from addnorm.serve.engine.pages import Copy, OutOfPages, PagePool, PageTable, digest_after


def test_a_fork_copies_the_last_page_before_either_writes_it() -> None:
    pool = PagePool(4, page_size=4)
    table = PageTable(pool)
    assert table.append(6) == []
    twin = table.fork()
    [copy] = twin.append(1)
    assert copy == Copy(table.slot(4) // 4, twin.slot(4) // 4, 2)
    assert table.pages[0] == twin.pages[0]
    assert table.append(1) == []  # now the only holder
    assert pool.held == 3


def test_a_fork_at_the_end_of_a_page_copies_nothing() -> None:
    pool = PagePool(4, page_size=4)
    table = PageTable(pool)
    table.append(4)
    twin = table.fork()
    assert twin.append(1) == []
    assert table.append(1) == []
    assert pool.held == 3


def test_append_that_finds_too_few_pages_changes_nothing() -> None:
    pool = PagePool(2, page_size=4)
    table = PageTable(pool)
    table.append(3)
    with pytest.raises(OutOfPages):
        table.append(6)
    assert (table.length, pool.held, len(table.pages)) == (3, 1, 1)


def test_published_pages_are_found_until_taken_least_recently_used_first() -> None:
    pool = PagePool(2, page_size=2)
    digests = [digest_after(b"", [1, 2]), digest_after(b"", [3, 4])]
    for digest in digests:
        table = PageTable(pool)
        table.append(2)
        pool.publish(pool_page(table), digest)
        table.clear()
    assert pool.available == 2
    again = PageTable(pool, [page for page in [pool.find(digests[0])] if page is not None])
    again.clear()  # used after the other one
    taken = pool.take()
    assert pool.find(digests[1]) is None
    assert pool.find(digests[0]) not in (None, taken)
    pool.take()
    assert pool.find(digests[0]) is None
    with pytest.raises(OutOfPages):
        pool.take()


def pool_page(table: PageTable) -> int:
    [page] = table.pages
    assert page is not None
    return page


def test_pages_before_the_reach_of_a_window_are_given_back() -> None:
    pool = PagePool(4, page_size=4)
    table = PageTable(pool)
    table.append(13)
    table.give_back(9)
    assert table.pages[:2] == [None, None]
    assert pool.held == 2
    table.give_back(-3)
    assert pool.held == 2
    twin = table.fork()
    twin.clear()
    table.clear()
    assert pool.available == 4


def test_digests_differ_by_what_comes_before() -> None:
    assert digest_after(b"a", [1]) != digest_after(b"", [1]) != digest_after(b"", [1, 0])
    assert digest_after(b"", [2**40]) != digest_after(b"", [2**41])


@given(
    st.lists(
        st.tuples(st.sampled_from(["append", "fork", "clear"]), st.integers(0, 9)), max_size=60
    )
)
def test_every_page_is_held_as_often_as_tables_name_it(actions: list[tuple[str, int]]) -> None:
    pool = PagePool(12, page_size=3)
    tables = [PageTable(pool)]
    for action, n in actions:
        table = tables[n % len(tables)]
        if action == "append":
            needed, before = table.needed(n), pool.available
            try:
                table.append(n)
                assert before - pool.available == needed
            except OutOfPages:
                assert needed > before
        elif action == "fork":
            tables.append(table.fork())
        else:
            table.clear()
        named = [page for each in tables for page in each.pages if page is not None]
        assert all(pool.holders(page) == named.count(page) for page in range(12))
        assert pool.held == len(set(named))
        for each in tables:
            assert len(each.pages) == -(-each.length // 3)
