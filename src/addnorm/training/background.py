"""Work in a thread during training: one piece at a time, such as writing a checkpoint."""

import threading
from collections.abc import Callable, Generator
from contextlib import contextmanager, suppress
from dataclasses import replace

import torch

from addnorm.training.stored import SavedTensor, Tensors


class Background:
    """A thread that does one piece of work at a time; its error is raised where it is awaited."""

    def __init__(self) -> None:
        self._thread: threading.Thread | None = None
        self._error: BaseException | None = None

    def start(self, work: Callable[[], None]) -> None:
        """Start the work, after the one before. Raises the error of the one before."""
        self.finish()

        def run() -> None:
            try:
                work()
            except BaseException as error:
                self._error = error

        self._thread = threading.Thread(target=run, name="background", daemon=True)
        self._thread.start()

    def finish(self) -> None:
        """Wait for the work, if there is any; raise its error."""
        if self._thread is not None:
            self._thread.join()
            self._thread = None
        error, self._error = self._error, None
        if error is not None:
            raise error

    @contextmanager
    def finishing(self) -> Generator[None]:
        """Wait for the work at the end of this context, also after an error, but not Ctrl-C."""
        try:
            yield
        except KeyboardInterrupt:
            raise
        except BaseException:
            with suppress(Exception):  # the first error is the one to report
                self.finish()
            raise
        self.finish()


class Copies:
    """Copies of tensors that training changes; the next ones take the memory of the last."""

    def __init__(self) -> None:
        self._last: dict[str, dict[str, SavedTensor]] = {}

    @torch.no_grad()
    def of(self, groups: Tensors) -> Tensors:
        """The tensors as they are now."""
        self._last = {
            group: {name: _copy(t, self._last.get(group, {}).get(name)) for name, t in ts.items()}
            for group, ts in groups.items()
        }
        return self._last


def _copy(saved: SavedTensor, last: SavedTensor | None) -> SavedTensor:
    tensor, memory = saved.tensor, None if last is None else last.tensor
    fits = memory is not None and (memory.shape, memory.dtype) == (tensor.shape, tensor.dtype)
    copy = memory.copy_(tensor) if memory is not None and fits else tensor.detach().cpu().clone()
    return replace(saved, tensor=copy)
