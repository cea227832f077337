"""Peers that are inference engines: CTranslate2 and llama.cpp. They must run without torch.

llama.cpp runs by the low-level bindings of llama-cpp-python; its int8 is `q8_0`, blocks of 32
weights with a scale each.
"""

import json
from importlib import import_module
from pathlib import Path
from typing import Any

from addnorm.bench.decoding import DecodingSizes, Precision, decoding
from addnorm.bench.implementation import Run, timed
from addnorm.machine import cores

FOLDER = "ctranslate2"


def decode_ctranslate2(folder: Path, *, sizes: DecodingSizes, precision: Precision) -> Run:
    """Return rounds of greedy continuations of all prompts in a batch."""
    library: Any = import_module("ctranslate2")
    generator = library.Generator(
        str(folder / FOLDER), compute_type=precision, intra_threads=cores(), inter_threads=1
    )
    prompts = named_tokens(folder / FOLDER / "vocabulary.json", sizes.prompts())

    def generate(n: int) -> None:
        generator.generate_batch(
            prompts,
            max_length=n,
            min_length=n,
            beam_size=1,
            sampling_topk=1,
            include_prompt_in_result=False,
        )

    return decoding(generate, sizes)


def translate_ctranslate2(
    folder: Path, *, sizes: DecodingSizes, beams: int, precision: Precision, workers: bool = False
) -> Run:
    """Return rounds of beam search, with all threads on one batch or divided among `workers`."""
    library: Any = import_module("ctranslate2")
    translator = library.Translator(
        str(folder / FOLDER),
        compute_type=precision,
        intra_threads=1 if workers else cores(),
        inter_threads=cores() if workers else 1,
    )
    # CTranslate2 adds eos to sources itself.
    rows = [row[:-1] for row in sizes.prompts()]
    sources = named_tokens(folder / FOLDER / "shared_vocabulary.json", rows)

    def step() -> None:
        translator.translate_batch(
            sources,
            beam_size=beams,
            max_decoding_length=sizes.new,
            min_decoding_length=sizes.new,
            max_batch_size=-(-sizes.batch // cores()) if workers else 0,
        )

    return timed(step, sizes.batch * sizes.new)


def named_tokens(vocabulary: Path, rows: list[list[int]]) -> list[list[str]]:
    """Convert rows of tokens to their names in a CTranslate2 vocabulary."""
    names: list[str] = json.loads(vocabulary.read_text("utf-8"))
    return [[names[i] for i in row] for row in rows]


GGUF = "{}.gguf"


def decode_llama_cpp(folder: Path, *, sizes: DecodingSizes, precision: Precision) -> Run:
    """Return rounds of greedy continuations of all prompts in a batch."""
    prompts = sizes.prompts()
    context = LlamaCppContext(folder, precision, prompts, sizes.new)
    return decoding(lambda n: context.generate(prompts, [n] * len(prompts)), sizes)


def _quantize(library: Any, source: Path, target: Path, precision: Precision) -> None:
    """Quantise every matrix, the head too: by default llama.cpp leaves it more bits than four."""
    options = library.llama_model_quantize_default_params()
    name = {"int8": "Q8_0", "int4": "Q4_0"}[precision]
    options.ftype = getattr(library, f"LLAMA_FTYPE_MOSTLY_{name}")
    options.pure = True
    options.nthread = cores()
    partial = target.with_suffix(".partial")
    if library.llama_model_quantize(str(source).encode(), str(partial).encode(), options):
        raise OSError(f"llama.cpp cannot quantise {source.name}")
    partial.rename(target)


class LlamaCppContext:
    """A llama.cpp context with a sequence per prompt, for up to `most_new` tokens each."""

    def __init__(
        self, folder: Path, precision: Precision, prompts: list[list[int]], most_new: int
    ) -> None:
        self.library: Any = import_module("llama_cpp")
        library, model = self.library, self._model(folder, precision)
        options = library.llama_context_default_params()
        options.n_ctx = len(prompts) * (max(map(len, prompts)) + most_new)
        options.n_batch = sum(map(len, prompts))
        options.n_seq_max = len(prompts)
        options.n_threads = options.n_threads_batch = cores()
        self.context = library.llama_init_from_model(model, options)
        if not self.context:
            raise MemoryError("llama.cpp cannot allocate a context of that size")
        self.batch = library.llama_batch_init(options.n_batch, 0, 1)
        self.greedy = library.llama_sampler_init_greedy()

    def _model(self, folder: Path, precision: Precision) -> Any:
        file = folder / GGUF.format(precision)
        if precision in ("int8", "int4") and not file.exists():
            _quantize(self.library, folder / GGUF.format("float32"), file, precision)
        options = self.library.llama_model_default_params()
        model = self.library.llama_model_load_from_file(str(file).encode(), options)
        if not model:
            raise OSError(f"llama.cpp cannot read {file.name}")
        return model

    def generate(self, prompts: list[list[int]], limits: list[int]) -> list[list[int]]:
        """Generate this many tokens for each prompt; complete sequences leave the batch."""
        self.library.llama_memory_clear(self.library.llama_get_memory(self.context), True)
        firsts = self.read([(i, prompt, 0) for i, prompt in enumerate(prompts)])
        rows = [[token] for token in firsts]
        while running := [i for i, row in enumerate(rows) if len(row) < limits[i]]:
            parts = [(i, rows[i][-1:], len(prompts[i]) + len(rows[i]) - 1) for i in running]
            for i, token in zip(running, self.read(parts), strict=True):
                rows[i].append(token)
        return rows

    def read(self, parts: list[tuple[int, list[int], int]]) -> list[int]:
        """Process the sequences' next tokens; return the most probable token of each.

        Each part is the number of its sequence, the tokens, and the position of the first one.
        """
        batch, ends, n = self.batch, list[int](), 0
        for number, tokens, first in parts:
            for place, token in enumerate(tokens):
                batch.token[n], batch.pos[n] = token, first + place
                batch.n_seq_id[n], batch.seq_id[n][0] = 1, number
                batch.logits[n] = place == len(tokens) - 1
                n += 1
            ends.append(n - 1)
        batch.n_tokens = n
        if status := self.library.llama_decode(self.context, batch):
            raise RuntimeError(f"llama_decode returned {status}")
        sample = self.library.llama_sampler_sample
        return [sample(self.greedy, self.context, end) for end in ends]
