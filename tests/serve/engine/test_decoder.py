"""A paged decoder gives each sequence the logits that it has alone."""

from math import inf

import pytest
import torch
from torch import Tensor

from addnorm.errors import InputError
from addnorm.models import DecoderConfig, DecoderModel
from addnorm.nn.attention import AttentionConfig, DifferentialCoreConfig, ScaledDotConfig
from addnorm.nn.attention.patterns import WindowPatternConfig
from addnorm.nn.positions import ALiBiConfig, RotaryConfig, T5BiasConfig
from addnorm.serve.engine import paged_step
from addnorm.serve.engine.decoder import Kernels, PagedDecoder
from addnorm.serve.engine.pages import PagePool
from addnorm.serve.engine.schedule import Limits, Schedule
from addnorm.serve.engine.sequence import Request

VOCAB = 50
CONFIGS = {
    "rotary": DecoderConfig(
        d_model=16, n_layers=2, position=RotaryConfig(), attention=AttentionConfig(n_heads=4)
    ),
    "alibi, one key head": DecoderConfig(
        d_model=16,
        n_layers=2,
        position=ALiBiConfig(),
        attention=AttentionConfig(n_heads=4, n_kv_heads=1),
    ),
    "window": DecoderConfig(
        d_model=16,
        n_layers=2,
        position=RotaryConfig(),
        attention=AttentionConfig(n_heads=2, pattern=WindowPatternConfig(size=5)),
    ),
    "softcap, bias of pairs": DecoderConfig(
        d_model=16,
        n_layers=2,
        position=T5BiasConfig(buckets=6, max_distance=5),
        attention=AttentionConfig(
            n_heads=4, n_kv_heads=2, score=ScaledDotConfig(factor=0.7, softcap=2.0)
        ),
    ),
    "differential, gathered in any case": DecoderConfig(
        d_model=16,
        n_layers=1,
        attention=AttentionConfig(n_heads=2, core=DifferentialCoreConfig()),
    ),
}


def alone(model: DecoderModel, prompt: list[int], n: int) -> list[tuple[int, Tensor]]:
    """Greedy tokens without a cache, each with its logits."""
    tokens, out = list(prompt), list[tuple[int, Tensor]]()
    for _ in range(n):
        with torch.inference_mode():
            logits = model(torch.tensor([tokens]))[0, -1]
        tokens.append(int(logits.argmax()))
        out.append((tokens[-1], logits))
    return out


@pytest.mark.sampled(4)
@pytest.mark.parametrize("kernels", ["gathered", "in_place"])
@pytest.mark.parametrize("name", CONFIGS)
@pytest.mark.parametrize("page_size", [1, 4, 7])
def test_logits_are_those_of_the_sequence_alone(
    name: str, page_size: int, kernels: Kernels
) -> None:
    check_logits(name, page_size, kernels)


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize("name", CONFIGS)
def test_so_are_those_of_a_compiled_step(name: str) -> None:
    check_logits(name, 4, "compiled")


def check_logits(name: str, page_size: int, kernels: Kernels) -> None:
    torch.manual_seed(0)
    model = CONFIGS[name].build(VOCAB).eval()
    generator = torch.Generator().manual_seed(1)
    lengths = [1, 3, 14, 14, 22, 9]
    prompts = [torch.randint(0, VOCAB, (n,), generator=generator).tolist() for n in lengths]
    prompts[3][:12] = prompts[2][:12]
    pool = PagePool(36 // page_size, page_size)
    reach = 5.0 if name == "window" else inf
    schedule = Schedule(pool, Limits(rows=4, chunk=6, reach=reach))
    decoder = PagedDecoder(model, pool, kernels)
    expected = {f"r{i}": alone(model, prompt, 9) for i, prompt in enumerate(prompts)}
    for i, prompt in enumerate(prompts):
        schedule.add(Request(name=f"r{i}", prompt=tuple(prompt), limit=9, n=1 + (i == 2)))
    n_compared = 0
    while schedule.running or schedule.n_waiting:
        step = schedule.next_step()
        logits = decoder.compute(step)
        schedule.finish(step)
        parts = [*step.decode, *([] if step.chunk is None else [step.chunk[0]])]
        for first, row in zip(parts, logits, strict=True):
            if first.missing:
                continue
            for sequence in schedule.fork(first) if first.forks else [first]:
                token, reference = expected[sequence.request.name][len(sequence.written)]
                torch.testing.assert_close(row, reference, atol=1e-5, rtol=1e-5)
                n_compared += 1
                sequence.tokens.append(token)
                if sequence.is_full:
                    schedule.end(sequence, "length")
    assert n_compared == 9 * 7
    assert pool.held == 0
    assert schedule.n_set_aside > 0 or name == "window"


def test_slots_that_were_never_written_are_never_read() -> None:
    """Only then does the system give memory to used pages alone."""
    model = CONFIGS["window"].build(VOCAB).eval()
    pool = PagePool(36, 4)
    schedule, decoder = Schedule(pool, Limits(rows=4, chunk=6, reach=5)), PagedDecoder(model, pool)
    for buffer in decoder._buffers:
        assert torch.equal(buffer[-1], torch.zeros_like(buffer[-1]))
        buffer[:-1] = torch.nan
    for i in range(3):
        schedule.add(Request(name=str(i), prompt=(3,) * (9 + i), limit=8))
    while schedule.running or schedule.n_waiting:
        step = schedule.next_step()
        assert not decoder.compute(step).isnan().any()
        schedule.finish(step)
        for sequence in schedule.running:
            if not sequence.missing:
                sequence.tokens.append(5)
            if sequence.is_full:
                schedule.end(sequence, "length")


def test_without_a_compiler_that_works_keys_are_gathered(monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(source: str) -> None:
        raise InputError("the C++ compiler fails: no headers")

    monkeypatch.setattr(paged_step, "load_operator", fails)
    model = CONFIGS["rotary"].build(VOCAB).eval()
    decoder = PagedDecoder(model, PagePool(9, 4), exact=True)
    assert decoder._step.why_gathered == "the C++ compiler fails: no headers"
    assert decoder.tiles is not None
    assert decoder.tiles.why_one == "attention of layer 0 does not read its keys in place"
