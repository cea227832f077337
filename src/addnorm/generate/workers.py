"""Several processes that share out the sources: many texts translated with every core busy."""

import multiprocessing
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from types import TracebackType
from typing import Any

import torch

from addnorm.data.tokenizers import EOS_ID
from addnorm.errors import InputError
from addnorm.generate.compiled import CompiledTranslation
from addnorm.generate.decode import DecodingConfig, translate
from addnorm.generate.next_token import Ids
from addnorm.generate.writing import Generated
from addnorm.models import EncoderDecoderModel


class TranslationWorkers:
    """A `CompiledTranslation` in each of `workers` processes, which divide the threads.

    Two workers of one thread each wait for nothing, where two threads wait for each other after
    every product: with many sources that is a sixth faster (`docs/speed.md`). They share the
    weights, but for what a graph copies. The processes are started anew, so a script that makes
    workers must guard its own start: `if __name__ == "__main__":`.

    Close it when it is no longer needed, or use it in a `with` statement. Raises `InputError` where
    `CompiledTranslation` does.
    """

    def __init__(
        self,
        model: EncoderDecoderModel,
        bos_id: int,
        *,
        beams: int = 1,
        never: Sequence[int] = (),
        workers: int = 2,
    ) -> None:
        if workers < 1:
            raise InputError(f"workers must be at least 1, got {workers}.")
        threads = torch.get_num_threads()
        asked: dict[str, Any] = {"several": True, "beams": beams, "never": tuple(never)}
        torch.set_num_threads(max(threads // workers, 1))
        try:
            CompiledTranslation(model, bos_id, **asked)  # once, where what is wrong is seen
            self._pool = ProcessPoolExecutor(
                workers,
                multiprocessing.get_context("spawn"),
                _begin,
                (torch.get_num_threads(), model.share_memory(), bos_id, asked),
            )
        finally:
            torch.set_num_threads(threads)
        self.workers = workers

    def translate(
        self,
        sources: Sequence[Ids],
        decoding: DecodingConfig,
        *,
        max_new_tokens: int | None = None,
        eos_id: int | None = EOS_ID,
        batch_size: int = 64,
    ) -> list[list[Generated]]:
        """What `translate` gives, in the order of the sources; of each length all get a share."""
        order = sorted(range(len(sources)), key=lambda i: len(sources[i]), reverse=True)
        shares = [order[i :: self.workers] for i in range(self.workers)]
        its = {"max_new_tokens": max_new_tokens, "eos_id": eos_id, "batch_size": batch_size}
        calls = [
            self._pool.submit(_translate, [sources[i] for i in share], decoding, its)
            for share in shares
            if share
        ]
        found = [call.result() for call in calls]
        placed = {
            i: best
            for share, results in zip(shares, found, strict=False)
            for i, best in zip(share, results, strict=True)
        }
        return [placed[i] for i in range(len(sources))]

    def close(self) -> None:
        """End the processes."""
        self._pool.shutdown(cancel_futures=True)

    def __enter__(self) -> "TranslationWorkers":
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()


_mine: dict[str, CompiledTranslation] = {}
"""What the worker that this process is writes with."""


def _begin(threads: int, model: EncoderDecoderModel, bos_id: int, asked: dict[str, Any]) -> None:
    torch.set_num_threads(threads)
    _mine["writer"] = CompiledTranslation(model, bos_id, **asked)


def _translate(
    sources: Sequence[Ids], decoding: DecodingConfig, its: dict[str, Any]
) -> list[list[Generated]]:
    return translate(_mine["writer"], sources, decoding, **its)
