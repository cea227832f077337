"""Check that data, tokenizer, model, batching and metric of a recipe are compatible."""

from collections.abc import Callable

from addnorm.data import (
    AudioConfig,
    ChatConfig,
    DataConfig,
    ImageFilesConfig,
    ShardsConfig,
    medium_of,
)
from addnorm.data.batches.buckets import TokensConfig, medium_of_batches
from addnorm.data.batches.sharded import check_rows
from addnorm.data.example import PROPERTIES, Medium, has_signals
from addnorm.data.tokenizing.tokenizers import TokenizerConfig
from addnorm.errors import InputError
from addnorm.models import (
    DecoderConfig,
    DualEncoderConfig,
    EncoderConfig,
    EncoderDecoderConfig,
    ModelConfig,
)
from addnorm.nn.crf import CRFHeadConfig
from addnorm.nn.heads import has_joint_loss
from addnorm.nn.patches import PatchEmbeddingConfig
from addnorm.parts import kind_of
from addnorm.tasks.eval_config import EvalConfig
from addnorm.tasks.registry import check_batching, task_of_training, writes_text
from addnorm.tasks.task import Task
from addnorm.training.loss import CrossEntropyConfig
from addnorm.training.settings import TrainConfig

Location = Callable[[list[str]], str]
"""A function that gives the source location of a field, for error messages."""


def check_input(
    data: DataConfig,
    tokenizer: TokenizerConfig | None,
    model: ModelConfig,
    train: TrainConfig,
    place: Location,
) -> None:
    """Raise `InputError` if data, tokenizer, model and batching are inconsistent."""
    if isinstance(data, ShardsConfig):
        _check_shards(tokenizer, model, train, place)
    else:
        _check_examples(data, tokenizer, model, train, place)


def _check_examples(
    data: DataConfig,
    tokenizer: TokenizerConfig | None,
    model: ModelConfig,
    train: TrainConfig,
    place: Location,
) -> None:
    batching = train.batching
    reads = "tokens" if isinstance(model, DecoderConfig) else model.input.kind
    # Custom data are assumed to fit the model's input; `encode` checks the examples.
    medium = medium_of(data) or MEDIA.get(reads, "text")
    fitting = [name for name in MEDIA if MEDIA[name] == medium] or ["tokens"]
    has_text = not has_signals(medium) or writes_text(model)
    kind = f"data.kind = {kind_of(data)!r}"
    batched = medium_of_batches(batching) or medium
    rules = [
        (
            reads not in fitting,
            "model.input.kind",
            f"the model reads {reads}, but {kind} needs model.input.kind = "
            + " or ".join(map(repr, fitting)),
        ),
        (
            tokenizer is None and has_text and not train.has_tokens,
            "tokenizer",
            "tokenizer is missing.",
        ),
        (
            tokenizer is not None and train.start is not None,
            "tokenizer",
            "the tokenizer is that of train.start: leave [tokenizer] out",
        ),
        (
            tokenizer is not None and not has_text,
            "tokenizer",
            f"{medium} with classes need no tokenizer: leave [tokenizer] out with {kind}, or write "
            "texts by model.kind = 'encoder_decoder'",
        ),
        (
            batched != medium and has_signals(medium),
            "train.batching.kind",
            f"train.batching.kind = {kind_of(batching)!r} is for {batched}: {kind} needs "
            f"{PROPERTIES[medium].batching!r}",
        ),
        (
            isinstance(model, EncoderConfig)
            and reads != "tokens"
            and model.embedding != EncoderConfig().embedding,
            "model.embedding",
            f"model.embedding is for tokens, and the model reads {reads}: leave it out",
        ),
    ]
    for wrong, path, message in rules:
        if wrong:
            raise InputError(f"{place(path.split('.'))}: {message}")
    if isinstance(data, ChatConfig) and not isinstance(batching, TokensConfig):
        raise InputError(
            f"{place(['train', 'batching', 'kind'])}: train.batching.kind = {kind_of(batching)!r} "
            "makes every token a target, but only the answers of a conversation are: it needs "
            "'tokens'"
        )
    if isinstance(data, ImageFilesConfig) and not isinstance(model, DecoderConfig):
        patch = model.input.patch if isinstance(model.input, PatchEmbeddingConfig) else 1
        if data.image_size == "own" and data.size_multiple % patch:
            raise InputError(
                f"{place(['data', 'size_multiple'])}: images of their own sizes need "
                f"data.size_multiple = {patch}, or a multiple of it, for patches of {patch} pixels"
            )
    if isinstance(data, AudioConfig) and not isinstance(model, DecoderConfig):
        _check_heard(data, model, place)


def _check_shards(
    tokenizer: TokenizerConfig | None, model: ModelConfig, train: TrainConfig, place: Location
) -> None:
    """Raise `InputError` unless a recipe with shards is that of a language model in rows."""
    if tokenizer is not None:
        raise InputError(
            f"{place(['tokenizer'])}: the tokenizer is that of the shards: leave [tokenizer] out"
        )
    if not isinstance(model, DecoderConfig):
        raise InputError(
            f"{place(['model', 'kind'])}: data.kind = 'shards' is for language models: it needs "
            "model.kind = 'decoder'"
        )
    try:
        check_rows(train.batching)
    except InputError as error:
        raise InputError(f"{place(['train', 'batching'])}: {error}") from error


def check_targets(train: TrainConfig, task: Task, place: Location) -> None:
    """Raise `InputError` for a setting for single classes if targets are numbers or label sets."""
    for name in ("r_drop", "label_smoothing"):
        if (value := getattr(train, name)) and not task.classes:
            raise InputError(
                f"{place(['train', name])}: train.{name} = {value} is for a single class; this "
                "model learns several labels or numbers: leave it out"
            )


def check_joint_loss(model: ModelConfig, train: TrainConfig, place: Location) -> None:
    """Raise `InputError` for a loss of single outputs if the head has a joint loss."""
    if not has_joint_loss(model.head):
        return
    instead = (
        ", or use model.head.kind = 'tagging'" if isinstance(model.head, CRFHeadConfig) else ""
    )
    rules = (
        ("loss", not isinstance(train.loss, CrossEntropyConfig)),
        ("label_smoothing", bool(train.label_smoothing)),
        ("r_drop", bool(train.r_drop)),
        ("distillation", train.distillation is not None),
    )
    if isinstance(model, DualEncoderConfig) and train.accumulate > 1:
        raise InputError(
            f"{place(['train', 'accumulate'])}: train.accumulate = {train.accumulate}: a picture "
            "is compared with all texts of its batch, which micro-batches would divide: leave it "
            "out, and give train.batching.size the pairs of a step"
        )
    for name, given in rules:
        if given:
            raise InputError(
                f"{place(['train', name])}: train.{name} is for labels that are learnt one by one, "
                f"and a {kind_of(model.head)} head learns its outputs together: leave it "
                f"out{instead}"
            )


def _check_heard(
    data: AudioConfig,
    model: EncoderConfig | EncoderDecoderConfig | DualEncoderConfig,
    place: Location,
) -> None:
    """Raise `InputError` if clips are read in another form than the model reads."""
    form = "waveform" if model.input.kind == "waveform" else "log_mel"
    if data.form != form:
        raise InputError(
            f"{place(['data', 'form'])}: data.form = {data.form!r}, and the model reads "
            f"{model.input.kind}: give data.form = {form!r}"
        )
    read = getattr(model.input, "n_mels", None)
    if form == "log_mel" and data.n_mels != read:
        raise InputError(
            f"{place(['data', 'n_mels'])}: data.n_mels = {data.n_mels}, and the model reads "
            f"{read} mel features: give model.input the same n_mels"
        )


MEDIA: dict[str, Medium] = {
    "patches": "images",
    "convolutions": "images",
    "log_mel": "audio",
    "waveform": "audio",
    "series": "series",
}
"""The medium that each kind of model input reads, other than tokens."""


def check_training(
    model: ModelConfig, train: TrainConfig, settings: EvalConfig, place: Location
) -> None:
    """Check the rules of training that hold for any data and command.

    Raises `InputError` if the model has no task, if batches, metric, loss or targets are for
    another task, and if the tags of a CRF are to be learnt one by one.
    """
    check_joint_loss(model, train, place)
    try:
        task = task_of_training(model, train.batching)
    except InputError as error:
        raise InputError(f"{place(['model', 'head', 'kind'])}: {error}") from error
    try:
        check_batching(task, train.batching)
    except InputError as error:
        raise InputError(f"{place(['train', 'batching', 'kind'])}: {error}") from error
    if train.logit_adjustment and not (task.labels and task.classes):
        raise InputError(
            f"{place(['train', 'logit_adjustment'])}: train.logit_adjustment is for classes and "
            f"tags, and this model is for {task.name.replace('_', ' ')}: leave it out"
        )
    check_targets(train, task, place)
    metric = settings.metric
    try:
        task.check_metric(metric)
        if metric in task.written_metrics:
            settings.check_written()
    except InputError as error:
        raise InputError(f"{place(['eval', 'metric'])}: {error}") from error
    reads_text = isinstance(model, DecoderConfig) or model.input.kind == "tokens"
    if metric in ("wer", "cer") and metric in task.written_metrics and reads_text:
        raise InputError(
            f"{place(['eval', 'metric'])}: eval.metric = {metric!r} is for images and sound: for "
            "translations take 'bleu' or 'chrf'"
        )
