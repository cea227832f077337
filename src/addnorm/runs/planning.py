"""Planning the training of a recipe on a cluster, and which plans `train` can run."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

from addnorm.arguments import known_keywords
from addnorm.data.batches.buckets import TokensConfig
from addnorm.errors import InputError, path_of
from addnorm.models import EncoderDecoderConfig, ModelConfig, refuse_dual
from addnorm.models.earlier_layers import reads_of
from addnorm.models.layers import LayerParts
from addnorm.nn.init import without_values
from addnorm.parts import kind_of
from addnorm.runs.files.weights import sized_model
from addnorm.runs.inference.results import FileName
from addnorm.runs.recipes.parallel_plan import check_parallel, named_layers
from addnorm.runs.recipes.recipe import Recipe, read_recipe
from addnorm.training.loss import CrossEntropyConfig
from addnorm.training.optim import AdadeltaConfig, AdamW8bitConfig, AdamWConfig, MuonConfig
from addnorm.training.parallel.plan import ParallelTrainingConfig
from addnorm.training.parallel.planner.cluster import Cluster, cluster_of
from addnorm.training.parallel.planner.estimate import Estimate, Plans, plans, why_not
from addnorm.training.parallel.planner.model import ModelSizes
from addnorm.training.parallel.planner.plan import Plan
from addnorm.training.parallel.planner.sizes import sizes_of
from addnorm.training.parallel.planner.speed import link_of
from addnorm.training.parallel.planner.training import OURS, States, Training


@dataclass(frozen=True, kw_only=True)
class Planned:
    """All plans for a recipe on a cluster, the best first."""

    recipe: Recipe
    training: Training
    cluster: Cluster
    plans: Plans

    @property
    def best(self) -> Estimate:
        """The best plan; if none fits, the one with the least memory."""
        return self.plans.estimates[0]

    def refusal(self, plan: Plan) -> str | None:
        """Why `addnorm train` cannot split the work as planned; None if it can."""
        return refusal(self.recipe, plan, self.training)

    def runs(self, plan: Plan) -> bool:
        """Whether `addnorm train` can run a plan on these cards; several processes need CPUs."""
        return self.refusal(plan) is None and (plan.cards == 1 or self.cluster.card.name == "cpu")

    def why(self, estimate: Estimate) -> str:
        """Why a plan is not the best; empty for the best."""
        return (
            ""
            if estimate is self.best and estimate.fits
            else why_not(estimate, self.best, self.cluster)
        )

    def links(self, estimate: Estimate) -> list[str]:
        """The name of the link that each exchange of a plan uses."""
        return [
            link_of(e, estimate.plan, self.cluster, OURS.order)[0].name for e in estimate.exchanges
        ]

    def fields(self, plan: Plan) -> dict[str, Any]:
        """The fields of the recipe that a plan changes, by their names on the command line."""
        train, parallel = self.recipe.train, self.recipe.parallel
        changed = batches(self.recipe, plan, self.training)
        size = "tokens" if isinstance(train.batching, TokensConfig) else "batch_size"
        pairs: dict[str, tuple[Any, Any]] = {
            f"train.batching.{size}": (
                getattr(changed.pop("batching"), size),
                getattr(train.batching, size),
            )
        }
        pairs |= {f"train.{k}": (value, getattr(train, k)) for k, value in changed.items()}
        chosen = _parallel(plan)
        pairs |= {f"parallel.{k}": (value, getattr(parallel, k)) for k, value in chosen.items()}
        fields = {name: value for name, (value, before) in pairs.items() if value != before}
        return {k: str(v).lower() if isinstance(v, bool) else v for k, v in fields.items()}

    def rows(self) -> list[dict[str, Any]]:
        """Every plan with all its values, as plain numbers and strings."""
        return [self._row(estimate) for estimate in self.plans.estimates]

    def _row(self, estimate: Estimate) -> dict[str, Any]:
        values = asdict(estimate)
        links = self.links(estimate)
        for exchange, link in zip(values["exchanges"], links, strict=True):
            exchange["link"] = link
        problem = self.refusal(estimate.plan)
        memory = {**values["memory"], "total": estimate.memory.total}
        time = {**values["time"], "total": estimate.time.total}
        more = {
            "splits": problem is None,
            "train": self.runs(estimate.plan),
            "problem": problem,
            "why": self.why(estimate),
        }
        return values | {"memory": memory, "time": time} | more


@known_keywords
def plan_training(
    recipe: Recipe | FileName,
    overrides: Mapping[str, str] | None = None,
    *,
    cards: int,
    card: str,
    link: str | None = None,
    per_node: int | None = None,
) -> Planned:
    """Plan a training on many cards by arithmetic alone, as `addnorm plan` does.

    `recipe` is one, or the file of one, with `overrides` as `{"train.accumulate": "8"}`. `card` is
    the name of a card, such as `"h100"`, or a table of TOML with figures of its own; `link` are its
    links within a node and between nodes, as `"nvlink,ib400"`, and `per_node` the cards of a node.
    Of the result, `best` is the first plan, `plans.estimates` are all, and `rows()` has them as
    plain numbers and texts.

    Raises `InputError` for a name that does not exist, with the nearest; if the recipe does not say
    the sizes of its model and of a step; or if it cannot be split among so many cards.
    """
    if not isinstance(recipe, Recipe):
        recipe = read_recipe(path_of(recipe), overrides or {}, import_parts=True)
    elif overrides:
        raise InputError("`overrides` are for a recipe in a file: give `recipe` with its fields")
    return plan_recipe(recipe, cluster_of(cards, card, link, per_node))


def plan_recipe(recipe: Recipe, cluster: Cluster) -> Planned:
    """All plans for a recipe on a cluster.

    Raises `InputError` if the recipe does not say the sizes of its model and of a step, has a part
    whose memory is not known, or cannot be split among so many cards.
    """
    training = training_of(recipe, cluster)
    every = plans(Outline.of(recipe).sizes, training, cluster)
    if not every.estimates:
        raise InputError(
            f"{cluster.cards} cards: rows of a step, layers, heads and positions are too few, or "
            f"do not divide among so many: a step has {training.rows} rows of {training.seq_len} "
            "tokens, which is train.batching times train.accumulate"
        )
    return Planned(recipe=recipe, training=training, cluster=cluster, plans=every)


def training_of(recipe: Recipe, cluster: Cluster) -> Training:
    """The training step of a recipe.

    Raises `InputError` for batches that have no fixed size in tokens.
    """
    train = recipe.train
    for field, counted in _counted(recipe).items():
        if not counted:
            raise InputError(f"{field}: plan does not count what it costs: leave it out for a plan")
    rows, seq_len = _step(recipe)
    precision = train.precision
    if precision == "auto":
        precision = "bfloat16" if cluster.card.name != "cpu" else "float32"
    cluster.card.peak(precision)
    return Training(
        rows=rows * train.accumulate,
        seq_len=seq_len,
        steps=train.steps,
        precision=precision,
        states=states_of(train.optimizer),
        average=train.ema is not None,
        smoothed=train.label_smoothing > 0,
        on_cpu=cluster.card.name == "cpu",
    )


def _counted(recipe: Recipe) -> dict[str, bool]:
    """The fields of a recipe that change the cost of a step, and whether the estimate counts it."""
    train = recipe.train
    return {
        "model.exits": not getattr(recipe.model, "exits", ()),
        "model.mtp": getattr(recipe.model, "mtp", None) is None,
        "model.canon": getattr(recipe.model, "canon", None) is None,
        "train.adapter": train.adapter is None,
        "train.distillation": train.distillation is None,
        "train.r_drop": not train.r_drop,
        "train.logit_adjustment": not train.logit_adjustment,
        "train.loss": isinstance(train.loss, CrossEntropyConfig),
    }


def _step(recipe: Recipe) -> tuple[int, int]:
    """The rows of a batch, and their length in tokens."""
    batching: Any = recipe.train.batching
    if isinstance(batching, TokensConfig):
        seq_len = min(batching.max_len or recipe.model.max_len, batching.tokens)
        return batching.tokens // seq_len, seq_len
    rows, seq_len = (getattr(batching, name, None) for name in ("batch_size", "seq_len"))
    if not (isinstance(rows, int) and isinstance(seq_len, int)):
        raise InputError(
            f"train.batching: plan counts tokens, and batches of {kind_of(batching)} have none: "
            'give batching = { kind = "windows", batch_size = …, seq_len = … }'
        )
    return rows, seq_len


def states_of(optimizer: Any) -> States:
    """The state of an optimiser. Raises `InputError` for one whose states are not known."""
    match optimizer:
        case AdamWConfig() | AdadeltaConfig():
            return States()
        case MuonConfig():
            return States(inner=1.0, inner_numbers=0, by_matrix=True)
        case AdamW8bitConfig():  # two codes of a byte, and a scale for each block
            return States(inner=0.5 + 2 / optimizer.block_size)
        case _:
            raise InputError(
                f"train.optimizer: plan does not know the states of {kind_of(optimizer)}: use "
                "adamw, adamw_8bit, muon or adadelta"
            )


@dataclass(frozen=True, kw_only=True)
class Outline:
    """A recipe's model without values, with at most two layers of each kind."""

    model: ModelConfig
    """The configuration of the few layers that are built."""
    vocabularies: tuple[int, int]
    layers: tuple[int, ...]
    """For each layer of the recipe's model, the layer here that is like it."""
    names: tuple[str, ...]
    """The names of the layers here, by their numbers in the recipe's model."""

    @classmethod
    def of(cls, recipe: Recipe) -> "Outline":
        """The outline of a recipe's model. Raises `InputError` without a vocabulary's size."""
        model = recipe.model
        refuse_dual(model, "planned")
        chosen, numbers = dict[str, list[int]](), list[int]()
        for stack, layers in model.stacks.items():
            whole = reads_of(layers) or model.per_layer is not None
            built = [*range(len(layers))] if whole else _different(layers)
            first = sum(map(len, chosen.values()))
            numbers += [first + _like(layers, built, i) for i in range(len(layers))]
            chosen[stack] = built
        smaller = replace(model, **model.fields_of_layers(chosen))
        names = [name for name, _ in named_layers(model)]
        return cls(
            model=smaller,
            vocabularies=_vocabularies(recipe),
            layers=tuple(numbers),
            names=tuple(names[numbers.index(i)] for i in range(max(numbers) + 1)),
        )

    def sizes(self, tensor: int) -> ModelSizes:
        """The sizes of the model's parts in one of `tensor` processes.

        Raises `InputError` if it cannot be split so.
        """
        with without_values():
            built = sized_model(self.model, *self.vocabularies, 1)
        sizes = sizes_of(built, self.model.d_model, tensor, names=self.names)
        return replace(sizes, layers=tuple(sizes.layers[i] for i in self.layers))


def _different(layers: Sequence[LayerParts]) -> list[int]:
    """The first two layers of each kind; weights shared by both are shared by all of that kind."""
    kinds = list[LayerParts]()
    chosen = list[int]()
    for i, layer in enumerate(layers):
        if kinds.count(layer) < 2:
            kinds.append(layer)
            chosen.append(i)
    return chosen


def _like(layers: Sequence[LayerParts], built: Sequence[int], i: int) -> int:
    """The index of the built layer that equals layer i: itself, or the last equal one."""
    if i in built:
        return built.index(i)
    return max(n for n, k in enumerate(built) if layers[k] == layers[i])


def _vocabularies(recipe: Recipe) -> tuple[int, int]:
    """The numbers of rows of the source and the target table."""
    model = recipe.model
    configured = getattr(recipe.tokenizer, "vocab_size", None)
    source = model.vocab_size or configured
    target = source
    if isinstance(model, EncoderDecoderConfig):
        target = model.target_vocab_size or source
    if source is None or target is None:
        kind = "" if recipe.tokenizer is None else f" of tokenizer {kind_of(recipe.tokenizer)!r}"
        raise InputError(
            f"plan reads no data, so the vocabulary{kind} is not known: give its size as "
            "`model.vocab_size = 32000`"
        )
    return int(source), int(target)


STAGES = 2
"""The stages of a process of an interleaved pipeline."""


def refusal(recipe: Recipe, plan: Plan, training: Training) -> str | None:
    """Why `addnorm train` cannot run a plan for a recipe; None if it can."""
    if plan.stages > STAGES:
        return f"train has {STAGES} stages in each process of interleaved, and not {plan.stages}"
    config = ParallelTrainingConfig(**_parallel(plan))
    train = replace(recipe.train, device="cpu", **batches(recipe, plan, training))
    try:
        check_parallel(recipe.model, train, config, lambda path: ".".join(path))
    except InputError as error:
        return str(error)
    return None


def _parallel(plan: Plan) -> dict[str, Any]:
    """The fields of `[parallel]` that make a plan."""
    sizes = {"data": plan.data, "shard": plan.shard} | plan.splits
    return sizes | ({"schedule": plan.schedule} if plan.pipeline > 1 else {})


def batches(recipe: Recipe, plan: Plan, training: Training) -> dict[str, Any]:
    """The fields of `[train]` that give the batches of a plan; the rows of a step stay the same."""
    batching: Any = recipe.train.batching
    passes = plan.micro_batches(training.rows)
    rows = training.rows // passes
    if isinstance(batching, TokensConfig):
        changed = replace(batching, tokens=rows * training.seq_len)
    else:
        changed = replace(batching, batch_size=rows)
    return {
        "batching": changed,
        "accumulate": passes,
        "activation_checkpointing": plan.checkpointing,
    }
