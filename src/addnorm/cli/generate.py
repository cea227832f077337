"""`addnorm generate`: continue, translate or transcribe with a run."""

from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from cyclopts import Parameter

from addnorm.cli.imports import Imports, import_named
from addnorm.cli.lines import STRICT, Files, Lines, Reading, Rows, check_files
from addnorm.cli.where import Where
from addnorm.errors import InputError

if TYPE_CHECKING:
    from addnorm.generate import DecodingConfig, Generated
    from addnorm.generate.early_exit import EarlyExit
    from addnorm.runs.inference.chat import Messages
    from addnorm.runs.inference.text import Compiled
    from addnorm.runs.run import Run


@Parameter(name="*")
@dataclass(frozen=True, kw_only=True)
class Choices:
    """How the next token is chosen.

    Parameters
    ----------
    beams
        Beam search with so many beams; 1 is greedy. Where no option of this kind and no recipe says
        how to write, a language model samples and a translator searches with 5 beams.
    n_best
        How many results of a beam search to write for each input, best first.
    length_penalty
        Beam search that divides log p by ((5 + length) / 6) ** this, or in Hugging Face folders by
        length ** this: larger ones favour longer texts, 0 leaves log p. As in the recipe where it
        is not given, or else 0.6; in Hugging Face folders 1.
    early_stopping
        Beam search that ends as soon as enough texts have ended (true), when no other looks better
        (false), or when none can get better (never). As in the recipe where it is not given, or
        else never. A language model then searches with beams instead of drawing.
    no_repeat_ngram
        Write no sequence of so many tokens twice, 0 for any; as in the recipe where it is not
        given, or else 0.
    forced_bos
        Begin a translation with this token, by its id or by its name in the vocabulary, as models
        of several languages need it. As in the recipe where it is not given, or else none.
    temperature
        Sample, dividing the logits by this: 1 where other options ask for samples.
    top_k
        Sample from the k likeliest tokens; from all where it is not given.
    top_p
        Sample from the likeliest tokens that together have this probability; from all where it is
        not given.
    min_p
        Sample from the tokens at least this share as likely as the likeliest; from all where it is
        not given.
    seed
        The seed of the sampling.
    """

    beams: int | None = None
    n_best: int = 1
    length_penalty: float | None = None
    early_stopping: Literal["true", "false", "never"] | None = None
    no_repeat_ngram: int | None = None
    forced_bos: str | None = None
    temperature: float | None = None
    top_k: int | None = None
    top_p: float | None = None
    min_p: float | None = None
    seed: int = 0

    def decoding(self, run: "Run") -> "DecodingConfig":
        """The decoding that these ask for. Raises `InputError` where that cannot be."""
        stopping = {"true": True, "false": False, "never": "never", None: None}
        options: dict[str, Any] = asdict(self) | {"early_stopping": stopping[self.early_stopping]}
        return run.decoding(**options)


@Parameter(name="*")
@dataclass(frozen=True, kw_only=True)
class Speed(Where):
    """How fast a model writes, where, and at what cost.

    Parameters
    ----------
    compile
        Write through a compiled graph: one and a half to five times as fast, on a CPU. The first
        time takes up to a minute; the graph is then kept on disk.
    weights
        Keep the weights in fewer bits while this runs: faster, and slightly different.
    exit
        Let a token leave at the first early exit that is sure of it: `confidence:0.9` for two
        likeliest tokens more than 0.9 apart, `entropy:0.3` for an entropy below 0.3 nats. Prompts
        take every layer. The mean layers of a token are said of each text, on standard error.
    """

    compile: Annotated[bool, Parameter(negative="", show_default=False)] = False
    weights: Literal["bfloat16", "int8"] | None = None
    exit: str | None = None

    def early_exit(self, run: "Run") -> "EarlyExit | None":
        """The early exits that were asked for. Raises `InputError` where the run has none."""
        from addnorm.generate.early_exit import EarlyExit, exit_rule
        from addnorm.runs.evaluation import check_early

        if self.exit is None:
            return None
        if self.compile:
            raise InputError("a compiled graph runs every layer: leave --exit or --compile out")
        rule = exit_rule(self.exit)
        check_early(run)
        return EarlyExit(rule)


@Parameter(name="*")
@dataclass(frozen=True, kw_only=True)
class End:
    """When a text ends.

    Parameters
    ----------
    max_new_tokens
        The most tokens to write: 256, or for a translation 50 more than the source has.
    stop
        End before this string; may be given several times.
    """

    max_new_tokens: int | None = None
    stop: Annotated[tuple[str, ...], Parameter(negative="", show_default=False)] = ()


@Parameter(name="*")
@dataclass(frozen=True, kw_only=True)
class Asked:
    """What is continued, and how it is read.

    Parameters
    ----------
    prompt
        One text instead of files.
    chat
        Take each text as a user's message, and write the answer by the chat template of the model's
        folder. A `.jsonl` or `.parquet` file holds conversations, as `data.kind = "chat"` reads
        them; an answer at their end is written again. A run that learnt from such data does so
        without being told.
    """

    prompt: str | None = None
    chat: Annotated[bool, Parameter(negative="", show_default=False)] = False

    def of(self, text: "str | Messages") -> "str | Messages":
        """A text or a conversation; of a model that is to chat, the one that begins with a text."""
        return [{"role": "user", "content": text}] if self.chat and isinstance(text, str) else text


DEFAULT = Choices()
PLAIN = Speed()
UNSAID = End()
FILES = Asked()


def generate(
    run: Path,
    *files: Files,
    asked: Asked = FILES,
    choices: Choices = DEFAULT,
    speed: Speed = PLAIN,
    end: End = UNSAID,
    json_lines: Annotated[bool, Parameter(name="--json", negative="", show_default=False)] = False,
    reading: Reading = STRICT,
    imports: Imports = (),
) -> None:
    r"""Continue or translate text, a line at a time; or write the text of images or sound.

    Reads the files, or standard input. Writes one line for each line read, in their order, empty
    ones too: an empty line translates to an empty one, and a language model begins a text of its
    own there. With `--n-best N` there are N lines for each line read, empty where fewer were
    found. A line break within a text is written as `\n`; `--json` writes texts exactly.

    A language model given `--prompt` writes its text as it comes, line breaks and all. Decoding is
    the recipe's own (a language model's that names none: sampling) unless an option says otherwise.
    Example: `addnorm generate runs/my --prompt "To be" --temperature 0.8`.

    A model that reads images or sound takes files, as in `addnorm generate runs/speech clip.wav`,
    and writes the text of each before its name, with a tab between them.

    Parameters
    ----------
    run
        The run folder.
    files
        Text files, a line an input; `-` is standard input. Or image or sound files.
    json_lines
        Write JSON lines: the number of the input, the text, its score (the log-probability, of
        beams divided by the length penalty), and why it ended; with `--exit` its depth too, of a
        conversation all messages.
    """
    check_files(files)
    prompt = asked.prompt
    if prompt is not None and files:
        raise InputError("give either --prompt or files, and not both")
    import_named(imports)
    opened = _opened(run, speed, asked)
    from addnorm.cli.generated import write_files
    from addnorm.runs.inference.media import reads_files

    decoding = choices.decoding(opened)
    if reads_files(opened):
        _check_plain(run, asked, end, speed)
        most = end.max_new_tokens
        write_files(opened, files, decoding, most, reading, json_lines=json_lines)
        return
    early = speed.early_exit(opened)
    graph = _compiled(opened, decoding, early, several=prompt is None, wanted=speed.compile)
    streams = opened.task == "language" and not json_lines
    if prompt is not None and streams and decoding.kind != "beam":
        pieces = opened.stream(asked.of(prompt), decoding=decoding, **asdict(end), compiled=graph)
        for piece in pieces:
            print(piece, end="", flush=True)
        print()
        _report(early)
        return

    def answer(first: int, group: list[Any]) -> list[tuple[Any, list["Generated"]]]:
        texts = [asked.of(text) for text in group]
        written = opened.write(texts, decoding, **asdict(end), first=first, compiled=graph)
        return [*zip(texts, written, strict=True)]

    lines = Lines(files, reading, _conversations(opened, asked, reading))
    found = lines.answers(answer) if prompt is None else enumerate(answer(0, [prompt]), 1)
    for number, (text, best) in found:
        _print(text, best, number, decoding, json_lines=json_lines, deep=early is not None)
    _report(early)


def _check_plain(run: Path, asked: Asked, end: End, speed: Speed) -> None:
    """Raise `InputError` for what only text has."""
    given = {
        "--prompt": asked.prompt is not None,
        "--chat": asked.chat,
        "--stop": bool(end.stop),
        "--compile": speed.compile,
        "--exit": speed.exit is not None,
    }
    if wrong := [option for option, there in given.items() if there]:
        raise InputError(f"{run}: it reads image or sound files: leave out {', '.join(wrong)}")


def _conversations(opened: "Run", asked: Asked, reading: Reading) -> "Rows | None":
    """How files of conversations are read, by a model that is to chat."""
    from addnorm.data.readers.chat import holds_conversations
    from addnorm.runs.inference.chat import chats, conversations

    if not (asked.chat or chats(opened)):
        return None
    return lambda file: (
        conversations(opened, file, reading.encoding) if holds_conversations(file) else None
    )


def _print(
    text: "str | Messages",
    best: "list[Generated]",
    number: int,
    decoding: "DecodingConfig",
    *,
    json_lines: bool,
    deep: bool,
) -> None:
    """Print the texts for one input, a line each."""
    from addnorm.cli.generated import as_json, as_lines, depth_of
    from addnorm.cli.terminal import console

    messages = () if isinstance(text, str) else text
    n_best = decoding.n_best if decoding.kind == "beam" else 1
    lines = (
        as_json(best, number, deep=deep, messages=messages)
        if json_lines
        else as_lines(best, n_best)
    )
    print("\n".join(lines), flush=True)
    if deep and not json_lines:
        console.out(depth_of(best, number), highlight=False)


def _opened(run: Path, speed: Speed, asked: Asked) -> "Run":
    """The run, its weights in few bits where that is asked for; it can chat if it has to."""
    opened = speed.open(run)
    from addnorm.quantize import with_weights
    from addnorm.runs.inference.chat import template_of

    if asked.chat:
        template_of(opened)
    if speed.weights is not None:
        with_weights(opened.model, speed.weights)
    return opened


def _compiled(
    opened: "Run",
    decoding: "DecodingConfig",
    graph: "Compiled | None",
    *,
    several: bool,
    wanted: bool,
) -> "Compiled | None":
    """The run's compiled graph where one is wanted, or what runs in its place."""
    from addnorm.cli.terminal import console
    from addnorm.runs.inference.text import compiled

    if not wanted:
        return graph
    with console.status("compiling, once for this kind of model"):
        return compiled(opened, decoding, several=several)


def _report(early: "EarlyExit | None") -> None:
    """Say at which layers tokens left, if any could."""
    from addnorm.cli.terminal import console

    if early is not None:
        console.out(f"exits: {early}", highlight=False)
