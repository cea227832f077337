"""The processes that train together; one process alone is the plain case."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import TypeVar

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from addnorm.data.batches.batch import Batch
from addnorm.errors import RankLostError
from addnorm.models.weights import weights_of
from addnorm.nn.context import Context
from addnorm.nn.heads import TokenHead
from addnorm.training.interruptions import to_standard_error
from addnorm.training.loss import head_cross_entropy_sum
from addnorm.training.objective import LossFunction
from addnorm.training.stored import SavedTensor

T = TypeVar("T")
ModelT = TypeVar("ModelT", bound=nn.Module)


class World(ABC):
    """What the training loop needs from the processes that train together.

    Every process calls the same methods in the same order. The process of rank 0 leads: it
    validates, and writes the files. `say` receives messages that the user should see immediately.
    """

    rank: int = 0
    size: int = 1
    holds_pieces: bool = False
    """Whether each process holds pieces of weights, which it saves itself."""
    gathers: bool = False
    """Whether each layer's whole weights are gathered when it runs, which leaves gaps in memory."""

    def __init__(self, say: Callable[[str], None] = to_standard_error) -> None:
        self.say = say

    @property
    def leads(self) -> bool:
        """Whether this process is the one that writes files and prints messages."""
        return self.rank == 0

    def lead(self, do: Callable[[], T], otherwise: T) -> T:
        """The result of `do` in the leading process; `otherwise` in the others."""
        return do() if self.leads else otherwise

    @abstractmethod
    def place(self, model: nn.Module, *, by_token: bool = True) -> nn.Module:
        """The model that this process trains, with its share of the weights of `model`.

        `by_token` says that the loss is a sum over tokens, each of its own outputs alone.
        """

    def built(self, build: Callable[[], ModelT]) -> ModelT:
        """A new model for `place`, without memory for weights if processes split them."""
        return build()

    @torch.no_grad()
    def begin(self, model: nn.Module, change: Callable[[str, Tensor], None]) -> None:
        """Let each weight of a new model begin as `change` leaves it, which gets its name too."""
        for name, weight in weights_of(model).items():
            change(name, weight)

    @abstractmethod
    def lead_whole(
        self,
        model: nn.Module,
        placed: nn.Module,
        do: Callable[[Mapping[str, Tensor]], T],
        otherwise: T,
        *,
        often: bool = False,
    ) -> T:
        """The result of `do` in the leading process, called with the whole weights of `placed`.

        It is called with these weights by name; in `model`, it can compute with them. `often` says
        that it needs each of them again and again.
        """

    @abstractmethod
    def masks(self, model: nn.Module, *, copies: int) -> AbstractContextManager[None]:
        """In this context, dropout draws different masks for the rows of other processes.

        `copies` is how often each row of a batch is in the model's input.
        """

    def objective(self, model: nn.Module, objective: LossFunction) -> LossFunction:
        """The objective of a model in this process, which may hold only some of its layers."""
        return objective

    def differentiate(
        self,
        model: nn.Module,
        batches: Sequence[Batch],
        loss_of: Callable[[Batch], Tensor],
        scale: Callable[[Tensor], Tensor],
    ) -> list[Tensor]:
        """Accumulate the gradients of micro-batches; return this process's share of their losses.

        `loss_of` returns its share of the loss of one, which `scale` scales for the gradient.
        """
        losses = list[Tensor]()
        for batch in batches:
            loss = loss_of(batch)
            scale(loss).backward()
            losses.append(loss.detach())
        return losses

    @abstractmethod
    def share(self, batch: Batch) -> Batch:
        """The rows of a batch that this process takes."""

    @abstractmethod
    def own_tokens(self, inputs: Mapping[str, Tensor]) -> Mapping[str, Tensor]:
        """The inputs, with the masks of the tokens that this process computes."""

    @abstractmethod
    def counted(self, sums: Tensor) -> Tensor:
        """Sums over the tokens of its last share; zero if another process counts them."""

    @abstractmethod
    def counted_loss(self, loss: Tensor) -> Tensor:
        """The loss of the last share; zero if another process counts its targets."""

    @abstractmethod
    def total(self, sums: Tensor) -> Tensor:
        """The sum over all processes, without a gradient."""

    @abstractmethod
    def total_load(self, choices: Tensor, n_tokens: int) -> tuple[Tensor, int]:
        """The choices of each expert and the number of tokens, summed over all processes."""

    @abstractmethod
    def cross_entropy_sum(
        self,
        head: TokenHead,
        x: Float[Tensor, "batch seq d_model"],
        ctx: Context,
        targets: Int[Tensor, "batch seq"],
        label_smoothing: float,
    ) -> Float[Tensor, ""]:
        """The cross-entropy of `head(x)`, summed over the targets."""

    @abstractmethod
    def norm(self, parameters: Sequence[nn.Parameter]) -> Tensor:
        """`√Σ g²` over all values of all gradients in all processes."""

    @abstractmethod
    def sum_gradients(self, model: nn.Module) -> None:
        """Sum the gradients of whole weights over all processes; shards are summed already."""

    @abstractmethod
    def own_gradients(self, model: nn.Module) -> dict[str, Tensor]:
        """The gradients of this process by name, before the sum over processes if possible."""

    @abstractmethod
    def any(self, flag: bool) -> bool:
        """Whether the flag is set in any process."""

    @abstractmethod
    def same(self, text: Callable[[], str]) -> bool:
        """Whether a string is the same in every process."""

    def agreed(self, scores: dict[str, float]) -> dict[str, float]:
        """The scores computed by the leading process."""
        return scores

    @abstractmethod
    def to_save(self, tensor: Tensor, parameter: Tensor | None) -> SavedTensor | None:
        """The part that this process saves of a tensor split like a parameter; None for nothing.

        Of several processes that hold the same, one saves it.
        """

    @abstractmethod
    def exchange(self, text: str) -> Sequence[str]:
        """The strings of all processes, by rank; called from the thread that saves."""

    @abstractmethod
    def awaited(self) -> AbstractContextManager[None]:
        """In this context, the other processes wait for this one without a time limit."""

    @abstractmethod
    def where(self, problem: str, *, own_loss: Tensor, sound: bool) -> str:
        """The problem of the process at fault: by its loss, or else by an unsound part."""

    @abstractmethod
    def stepped(self, step: int, saved: int) -> None:
        """Record the last step and the last saved step."""

    @abstractmethod
    def lost(self, error: RuntimeError) -> RankLostError | None:
        """The loss of another process, if that caused the error; else None."""

    @abstractmethod
    def wait(self) -> None:
        """Wait for every process, so that all see the files that one has written before."""

    @abstractmethod
    def in_turn(self) -> AbstractContextManager[None]:
        """The leading process passes through this context first, then all others at once."""


class OneProcess(World):
    """A single process, which has all rows and all weights."""

    def place(self, model: nn.Module, *, by_token: bool = True) -> nn.Module:
        """Return the model itself."""
        return model

    def lead_whole(
        self,
        model: nn.Module,
        placed: nn.Module,
        do: Callable[[Mapping[str, Tensor]], T],
        otherwise: T,
        *,
        often: bool = False,
    ) -> T:
        """The result of `do`, called with the weights of the model."""
        return do(weights_of(model))

    @contextmanager
    def masks(self, model: nn.Module, *, copies: int) -> Generator[None]:
        """Do nothing."""
        yield

    def share(self, batch: Batch) -> Batch:
        """Return the whole batch."""
        return batch

    def own_tokens(self, inputs: Mapping[str, Tensor]) -> Mapping[str, Tensor]:
        """Return the inputs themselves."""
        return inputs

    def counted(self, sums: Tensor) -> Tensor:
        """Return the sums themselves."""
        return sums

    def counted_loss(self, loss: Tensor) -> Tensor:
        """Return the loss itself."""
        return loss

    def total(self, sums: Tensor) -> Tensor:
        """Return the sums themselves."""
        return sums

    def total_load(self, choices: Tensor, n_tokens: int) -> tuple[Tensor, int]:
        """Return the numbers themselves."""
        return choices, n_tokens

    def cross_entropy_sum(
        self,
        head: TokenHead,
        x: Float[Tensor, "batch seq d_model"],
        ctx: Context,
        targets: Int[Tensor, "batch seq"],
        label_smoothing: float,
    ) -> Float[Tensor, ""]:
        """The cross-entropy, with the logits of a few rows at a time."""
        return head_cross_entropy_sum(head, x, ctx, targets, label_smoothing)

    def norm(self, parameters: Sequence[nn.Parameter]) -> Tensor:
        """The norm of the gradients."""
        return nn.utils.get_total_norm([p.grad for p in parameters if p.grad is not None])

    def sum_gradients(self, model: nn.Module) -> None:
        """Do nothing."""

    def own_gradients(self, model: nn.Module) -> dict[str, Tensor]:
        """The gradients by name."""
        return {n: p.grad for n, p in model.named_parameters() if p.grad is not None}

    def any(self, flag: bool) -> bool:
        """Return the flag itself."""
        return flag

    def same(self, text: Callable[[], str]) -> bool:
        """Return true: a single process has no other to compare with."""
        return True

    def to_save(self, tensor: Tensor, parameter: Tensor | None) -> SavedTensor:
        """Return the tensor itself."""
        return SavedTensor(tensor)

    def exchange(self, text: str) -> Sequence[str]:
        """Return the string itself, in a list."""
        return [text]

    def awaited(self) -> AbstractContextManager[None]:
        """Do nothing: no other process waits."""
        return nullcontext()

    def where(self, problem: str, *, own_loss: Tensor, sound: bool) -> str:
        """Return the problem itself."""
        return problem

    def stepped(self, step: int, saved: int) -> None:
        """Do nothing."""

    def lost(self, error: RuntimeError) -> RankLostError | None:
        """Return None: there is no other process."""
        return None

    def wait(self) -> None:
        """Do nothing: there is no other process."""

    def in_turn(self) -> AbstractContextManager[None]:
        """Do nothing: no other process waits."""
        return nullcontext()
