"""The chain of tags against all paths, one by one, in float64."""

from itertools import pairwise, product

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor
from torch.testing import assert_close

from addnorm.models import EncoderConfig
from addnorm.nn.context import Context
from addnorm.nn.crf import Chain, CRFHead, CRFHeadConfig, best_tags, log_likelihood
from addnorm.nn.masks import Full
from addnorm.nn.patches import PatchEmbeddingConfig

TAGS = 3


def chain_of(seed: int) -> Chain:
    torch.manual_seed(seed)
    chain = Chain(TAGS).double()
    for parameter in chain.parameters():
        torch.nn.init.normal_(parameter)
    return chain


def score(chain: Chain, rows: Tensor, path: tuple[int, ...]) -> Tensor:
    """The score of one path over the words of one text."""
    total = chain.start[path[0]] + chain.end[path[-1]]
    for row, tag in zip(rows, path, strict=True):
        total = total + row[tag]
    for one, other in pairwise(path):
        total = total + chain.transitions[one, other]
    return total


MASKS = st.lists(
    st.lists(st.booleans(), min_size=6, max_size=6).filter(any), min_size=1, max_size=3
)


@given(MASKS, st.integers(0, 99))
def test_likelihood_and_best_path_are_those_of_all_paths(rows: list[list[bool]], seed: int) -> None:
    """Words stand anywhere: what lies between them is no part of the chain, NaN included."""
    chain, words = chain_of(seed), torch.tensor(rows)
    scores = torch.randn(*words.shape, TAGS, dtype=torch.float64)
    tags = torch.randint(TAGS, words.shape)
    dirty = torch.where(words[..., None], scores, torch.nan)
    found = log_likelihood(chain, dirty, tags.where(words, -100), words)
    paths = best_tags(chain, dirty, words)
    for i, mask in enumerate(words):
        own, said = scores[i][mask], tuple(tags[i][mask].tolist())
        every = {p: score(chain, own, p) for p in product(range(TAGS), repeat=len(own))}
        total = torch.stack(list(every.values())).logsumexp(0)
        assert_close(found[i], every[said] - total)
        assert tuple(paths[i]) == max(every, key=lambda p: every[p].item())


def test_gradients() -> None:
    chain = chain_of(1)
    words = torch.tensor([[True, False, True, True], [False, True, False, False]])
    tags = torch.tensor([[0, 2, 1, 1], [2, 0, 1, 2]])
    scores = torch.randn(2, 4, TAGS, dtype=torch.float64, requires_grad=True)

    def loss(scores: Tensor, *_: Tensor) -> Tensor:
        return log_likelihood(chain, scores, tags, words)

    assert torch.autograd.gradcheck(loss, (scores, *chain.parameters()))
    loss(scores).sum().backward()
    assert scores.grad is not None
    assert not scores.grad[~words].any()
    # The gradient is what was said less what was expected: over the tags of a word it sums to 0.
    assert_close(scores.grad.sum(-1), torch.zeros(2, 4, dtype=torch.float64))


def test_a_text_without_words_has_likelihood_one_and_no_tags() -> None:
    chain, scores = chain_of(2), torch.randn(2, 3, TAGS, dtype=torch.float64)
    words = torch.tensor([[False] * 3, [True] * 3])
    tags = torch.zeros(2, 3, dtype=torch.long)
    found = log_likelihood(chain, scores, tags, words)
    assert found[0] == 0
    assert found[1] < 0
    assert [len(path) for path in best_tags(chain, scores, words)] == [0, 3]
    nothing = torch.zeros(2, 3, dtype=torch.bool)
    assert best_tags(chain, scores, nothing) == [[], []]
    assert not log_likelihood(chain, scores, tags, nothing).any()


def test_batch_mates_and_padding_change_nothing() -> None:
    chain, scores = chain_of(3), torch.randn(1, 4, TAGS, dtype=torch.float64)
    tags = torch.tensor([[0, 1, 2, 1]])
    alone = log_likelihood(chain, scores, tags, tags >= 0)
    wide = torch.cat([scores, torch.full((1, 3, TAGS), torch.inf, dtype=torch.float64)], dim=1)
    both = torch.cat([wide, torch.randn(1, 7, TAGS, dtype=torch.float64)])
    words = torch.tensor([[True] * 4 + [False] * 3, [True] * 7])
    said = torch.cat([torch.nn.functional.pad(tags, (0, 3), value=-100), torch.ones(1, 7).long()])
    beside = log_likelihood(chain, both, said, words)
    assert_close(beside[:1], alone)
    assert best_tags(chain, both, words)[0] == best_tags(chain, scores, tags >= 0)[0]


def test_low_precision_is_summed_in_float32() -> None:
    chain, words = chain_of(4).float(), torch.ones(1, 300, dtype=torch.bool)
    scores = (10 * torch.randn(1, 300, TAGS)).bfloat16()
    tags = torch.randint(TAGS, (1, 300))
    found = log_likelihood(chain, scores, tags, words)
    assert found.dtype == torch.float32
    assert_close(found, log_likelihood(chain, scores.float(), tags, words))


def test_the_head_gives_the_scores_of_words() -> None:
    head = CRFHeadConfig(dropout=0.5).build(4, TAGS).eval()
    x = torch.randn(2, 5, 4)
    assert isinstance(head, CRFHead)
    assert_close(head(x, Context.over(x, Full())), x @ head.proj.weight.T + head.proj.bias)
    assert {name for name, _ in head.chain.named_parameters()} == {"start", "transitions", "end"}


def test_rejects_other_inputs_and_early_exits() -> None:
    with pytest.raises(ValueError, match="early exits"):
        EncoderConfig(n_layers=2, head=CRFHeadConfig(), exits=(1,))
    with pytest.raises(ValueError, match=r"needs model\.input\.kind = 'tokens'"):
        EncoderConfig(input=PatchEmbeddingConfig(), head=CRFHeadConfig())
    with pytest.raises(ValueError, match="needs n_labels"):
        EncoderConfig(head=CRFHeadConfig()).build(10)
