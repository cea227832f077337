"""llama.cpp, through the low-level bindings of llama-cpp-python.

Its int8 is `q8_0`: blocks of 32 weights with a scale each.
"""

from importlib import import_module
from pathlib import Path
from typing import Any

from addnorm.bench.decoding import DecodingSizes, Precision, decoding
from addnorm.bench.implementation import Run
from addnorm.processor import cores

FILE = "{}.gguf"


def decode(folder: Path, *, sizes: DecodingSizes, precision: Precision) -> Run:
    """Greedy continuations of all prompts in a batch."""
    library: Any = import_module("llama_cpp")
    file = folder / FILE.format(precision)
    if precision == "int8" and not file.exists():
        _quantize(library, folder / FILE.format("float32"), file)
    options = library.llama_model_default_params()
    model = library.llama_model_load_from_file(str(file).encode(), options)
    if not model:
        raise OSError(f"llama.cpp cannot read {file.name}")
    writer = Writer(library, model, sizes)
    return decoding(writer.generate, sizes)


def _quantize(library: Any, source: Path, target: Path) -> None:
    options = library.llama_model_quantize_default_params()
    options.ftype = library.LLAMA_FTYPE_MOSTLY_Q8_0
    options.nthread = cores()
    partial = target.with_suffix(".partial")
    if library.llama_model_quantize(str(source).encode(), str(partial).encode(), options):
        raise OSError(f"llama.cpp cannot quantise {source.name}")
    partial.rename(target)


class Writer:
    """Parallel sequences in a llama.cpp context."""

    def __init__(self, library: Any, model: Any, sizes: DecodingSizes) -> None:
        self.library = library
        self.sizes = sizes
        self.prompts = sizes.prompts()
        options = library.llama_context_default_params()
        options.n_ctx = sizes.batch * (sizes.prompt + sizes.new)
        options.n_batch = sizes.batch * sizes.prompt
        options.n_seq_max = sizes.batch
        options.n_threads = options.n_threads_batch = cores()
        self.context = library.llama_init_from_model(model, options)
        if not self.context:
            raise MemoryError("llama.cpp makes no context of that size")
        self.batch = library.llama_batch_init(options.n_batch, 0, 1)
        self.greedy = library.llama_sampler_init_greedy()

    def generate(self, n: int) -> list[list[int]]:
        """Generate `n` tokens for each prompt."""
        self.library.llama_memory_clear(self.library.llama_get_memory(self.context), True)
        length = self.sizes.prompt
        written = [[token] for token in self.read(self.prompts, 0)]
        for i in range(n - 1):
            tokens = self.read([row[-1:] for row in written], length + i)
            for row, token in zip(written, tokens, strict=True):
                row.append(token)
        return written

    def read(self, rows: list[list[int]], first: int) -> list[int]:
        """Process the next tokens of each sequence; return the most probable next token of each."""
        batch, ends, n = self.batch, list[int](), 0
        for number, row in enumerate(rows):
            for place, token in enumerate(row):
                batch.token[n], batch.pos[n] = token, first + place
                batch.n_seq_id[n], batch.seq_id[n][0] = 1, number
                batch.logits[n] = place == len(row) - 1
                n += 1
            ends.append(n - 1)
        batch.n_tokens = n
        if status := self.library.llama_decode(self.context, batch):
            raise RuntimeError(f"llama_decode returned {status}")
        sample = self.library.llama_sampler_sample
        return [sample(self.greedy, self.context, end) for end in ends]
