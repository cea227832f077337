"""Pages of the key/value cache: tables, reference counts, shared prefixes and reuse.

A page holds the keys and values of `page_size` consecutive tokens in every layer. Each text has a
table of its pages; texts with a common beginning share pages, and a shared page is copied before it
is written (Kwon et al. 2023, arXiv 2309.06180, section 4). No tensor is touched here.
"""

from array import array
from collections import OrderedDict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from hashlib import blake2b

Digest = bytes
"""What identifies the content of a full page: its tokens and all tokens before them."""


class OutOfPages(Exception):
    """No page is free, and none can be reused."""


class PagePool:
    """The pages in a fixed amount of memory, each with its number of holders.

    A page that no table holds is free. If its digest was published, its content stays valid until
    the page is taken again, least recently used first, so that a later text with the same
    beginning finds it.
    """

    def __init__(self, n_pages: int, page_size: int) -> None:
        self.n_pages = n_pages
        self.page_size = page_size
        self._holders = [0] * n_pages
        self._empty = list(range(n_pages))[::-1]
        self._reusable: OrderedDict[int, None] = OrderedDict()
        self._page_of: dict[Digest, int] = {}
        self._digest_of: dict[int, Digest] = {}

    @property
    def available(self) -> int:
        """The number of pages that can be taken."""
        return len(self._empty) + len(self._reusable)

    @property
    def held(self) -> int:
        """The number of pages that tables hold."""
        return self.n_pages - self.available

    def holders(self, page: int) -> int:
        """The number of tables that hold a page."""
        return self._holders[page]

    def take(self) -> int:
        """Take a page to overwrite. Raises `OutOfPages` if there is none."""
        if self._empty:
            page = self._empty.pop()
        elif self._reusable:
            page, _ = self._reusable.popitem(last=False)
            del self._page_of[self._digest_of.pop(page)]
        else:
            raise OutOfPages
        self._holders[page] = 1
        return page

    def hold(self, page: int) -> None:
        """Add a holder to a page with valid content."""
        self._reusable.pop(page, None)
        self._holders[page] += 1

    def release(self, page: int) -> None:
        """Remove a holder of a page; without any, the page becomes available."""
        self._holders[page] -= 1
        assert self._holders[page] >= 0, "released more often than held"
        if self._holders[page]:
            return
        if page in self._digest_of:
            self._reusable[page] = None
        else:
            self._empty.append(page)

    def publish(self, page: int, digest: Digest) -> None:
        """Let later texts find a full page by its digest, unless one with the same exists."""
        if digest not in self._page_of and page not in self._digest_of:
            self._page_of[digest], self._digest_of[page] = page, digest

    def find(self, digest: Digest) -> int | None:
        """The page with this digest, if it still exists."""
        return self._page_of.get(digest)


@dataclass(frozen=True, slots=True)
class Copy:
    """A copy of the first `n_tokens` from page `source` to `target`, made before a step."""

    source: int
    target: int
    n_tokens: int


class PageTable:
    """The pages of one text, in order, and the number of tokens in them.

    Pages before the reach of a window are given back: their places in the table hold None.
    """

    def __init__(self, pool: PagePool, shared: Sequence[int] = ()) -> None:
        """A table that begins with `shared` full pages of another text."""
        self.pool = pool
        self.pages: list[int | None] = list(shared)
        self.length = len(shared) * pool.page_size
        for page in shared:
            pool.hold(page)

    def needed(self, n_tokens: int) -> int:
        """The number of pages to take for `n_tokens` more, including a copy of a shared one."""
        added = -(-(self.length + n_tokens) // self.pool.page_size) - len(self.pages)
        return added + (n_tokens > 0 and self._last_is_shared)

    def append(self, n_tokens: int) -> list[Copy]:
        """Make room for `n_tokens` more; return the copies to make before they are written.

        Raises `OutOfPages`, and then changes nothing, if too few pages are available.
        """
        needed = self.needed(n_tokens)
        if needed > self.pool.available:
            raise OutOfPages
        copies: list[Copy] = []
        if not needed:
            self.length += n_tokens
            return copies
        if n_tokens and self._last_is_shared:
            source = self.pages[-1]
            assert source is not None
            self.pages[-1] = target = self.pool.take()
            copies.append(Copy(source, target, self.length % self.pool.page_size))
            self.pool.release(source)
        self.length += n_tokens
        while len(self.pages) * self.pool.page_size < self.length:
            self.pages.append(self.pool.take())
        return copies

    @property
    def _last_is_shared(self) -> bool:
        """Whether the page of the next token is also held by another table."""
        if self.length % self.pool.page_size == 0:
            return False
        page = self.pages[-1]
        return page is not None and self.pool.holders(page) > 1

    def fork(self) -> "PageTable":
        """A table for the same text that holds the same pages."""
        twin = PageTable(self.pool)
        twin.pages, twin.length = list(self.pages), self.length
        for page in self._held():
            self.pool.hold(page)
        return twin

    def give_back(self, first: int) -> None:
        """Release the pages that hold only tokens before number `first`."""
        for i in range(min(first // self.pool.page_size, len(self.pages))):
            if (page := self.pages[i]) is not None:
                self.pool.release(page)
                self.pages[i] = None

    def truncate(self, length: int) -> None:
        """Release the pages that hold no token before number `length`."""
        while len(self.pages) * self.pool.page_size >= length + self.pool.page_size:
            if (page := self.pages.pop()) is not None:
                self.pool.release(page)
        self.length = length

    def clear(self) -> None:
        """Release all pages, last ones first, so that prefixes stay reusable longest."""
        for page in reversed(list(self._held())):
            self.pool.release(page)
        self.pages, self.length = [], 0

    def slot(self, token: int) -> int:
        """The index of a token's slot among those of all pages: `page · page_size + offset`."""
        page = self.pages[token // self.pool.page_size]
        assert page is not None, "given back"
        return page * self.pool.page_size + token % self.pool.page_size

    def _held(self) -> Iterator[int]:
        return (page for page in self.pages if page is not None)


def digest_after(before: Digest, tokens: Sequence[int]) -> Digest:
    """The digest of a page, chained to the page before: `d_i = H(d_{i-1}, tokens of page i)`.

    That of the first page begins with the salt of its request, so that texts of different salts
    share no pages.
    """
    hashed = blake2b(len(before).to_bytes(8, "little") + before, digest_size=16)
    hashed.update(array("q", tokens).tobytes())
    return hashed.digest()
