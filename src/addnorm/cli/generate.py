"""`addnorm generate`: continue, translate or transcribe with a run."""

import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, field
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from cyclopts import Parameter

from addnorm.cli.batch_file import answer_batch
from addnorm.cli.lines import (
    STANDARD_INPUT,
    STRICT,
    Files,
    Lines,
    Reading,
    Rows,
    check_files,
    media_files,
    one_line,
)
from addnorm.cli.main import NewFile
from addnorm.cli.structured import grammar_asked
from addnorm.cli.subtitles import SubtitleForm, subtitles, timed_line
from addnorm.cli.where import GROUP, Imports, InProcesses, import_named, working
from addnorm.errors import InputError
from addnorm.runs.options import (
    CacheDtype,
    DecodingOptions,
    SpeechOptions,
    StopOptions,
    Weights,
)

if TYPE_CHECKING:
    from addnorm.data.conversation import Message
    from addnorm.generate import DecodingConfig, Generated
    from addnorm.generate.early_exit import EarlyExit
    from addnorm.runs.inference.chat import Messages
    from addnorm.runs.inference.writers import Compiled
    from addnorm.runs.run import Run


@Parameter(name="*")
@dataclass(frozen=True, kw_only=True)
class Speed(InProcesses):
    """How fast a model writes, where, and at what cost.

    Parameters
    ----------
    compile
        Write through a compiled graph: one and a half to five times as fast, on a CPU. The first
        time takes up to a minute; the graph is then kept on disk.
    weights
        Keep the weights in fewer bits while this runs: faster, and slightly different.
    cache_dtype
        Round the keys and values of earlier tokens to this type: with --compile, attention of a
        language model in float32 then reads half as much.
    exit
        Let a token leave at the first early exit that is sure of it: `confidence:0.9` for two
        likeliest tokens more than 0.9 apart, `entropy:0.3` for an entropy below 0.3 nats. Prompts
        take every layer. The mean layers of a token of each text are printed on standard error.
    speculate
        Speculative decoding by the model's own multi-token prediction (`model.mtp`): it drafts the
        next tokens, and they are verified in one step. The texts stay the same; one is written at a
        time.
    """

    compile: Annotated[bool, Parameter(negative="", show_default=False)] = False
    weights: Weights | None = None
    cache_dtype: CacheDtype | None = None
    exit: str | None = None
    speculate: Annotated[bool, Parameter(negative="", show_default=False)] = False

    def check(self) -> None:
        """Raise `InputError` for an option without the one that it is for."""
        if self.cache_dtype is not None and not self.compile:
            raise InputError("--cache-dtype is for compiled graphs: give --compile too")

    def early_exit(self, run: "Run") -> "EarlyExit | None":
        """Return the early exits, if they are chosen. Raises `InputError` if the run has none."""
        if self.exit is not None and self.compile:
            raise InputError("a compiled graph runs every layer: leave --exit or --compile out")
        return None if self.exit is None else run.early_exit(self.exit)

    def compiled(
        self, run: "Run", decoding: "DecodingConfig", *, several: bool
    ) -> "Compiled | None":
        """Return the compiled graph or the speculative decoder that the options choose, if any."""
        if self.speculate and (self.compile or self.exit is not None):
            raise InputError(
                "--speculate runs every layer as it is: leave --exit and --compile out"
            )
        if self.speculate:
            return run.speculation()
        if not self.compile:
            return None
        with working("compiling, once for this kind of model"):
            return run.compiled(decoding, several=several, cache_dtype=self.cache_dtype)


@Parameter(name="*")
@dataclass(frozen=True, kw_only=True)
class PromptOptions:
    """The input of the model, and how it is read.

    Parameters
    ----------
    prompt
        One text instead of files.
    chat
        Take each text as a user's message, and write the answer by the chat template of the model's
        folder. A `.jsonl` or `.parquet` file holds conversations, as `data.kind = "chat"` reads
        them; an answer at their end is written again. A run that learnt from such data does so
        without being told.
    messages
        A JSON file with one conversation to answer, as OpenAI's API and chat templates have them: a
        list of messages, or an object with `messages` and `tools`. Content may be in pieces of
        text; `tool_calls` and messages of the role `tool` are for the template to write. The calls
        of the answer are in its message with `--json`.
    batch
        A file of requests as OpenAI's batches have them, a JSON object a line: `custom_id`,
        `method`, `url` and `body`. Many are answered at once, as `addnorm serve` answers them, and
        the answers are in the same order. Needs the extra `serve`.
    out
        The file for the answers to `--batch`; by default standard output. A file that has the first
        answers already is continued.
    exact
        With `--batch`: the answer to a line with a seed, or at temperature 0, is the same, to the
        last bit, whatever the other lines.
    """

    prompt: str | None = None
    chat: Annotated[bool, Parameter(negative="", show_default=False)] = False
    messages: Annotated[Path | None, Parameter(show_default=False)] = None
    batch: Annotated[Path | None, Parameter(show_default=False)] = None
    out: Annotated[NewFile | None, Parameter(show_default=False)] = None
    exact: Annotated[bool, Parameter(negative="", show_default=False)] = False
    speech: Annotated[SpeechOptions, GROUP] = field(default_factory=SpeechOptions)

    @property
    def requests(self) -> Path | None:
        """The file of requests to answer; None without one.

        Raises `InputError` for an option that needs one.
        """
        if self.out is not None and self.batch is None:
            raise InputError("--out is the file for the answers to --batch: give both")
        if self.exact and self.batch is None:
            raise InputError("--exact is for the lines of --batch: give both, or leave it out")
        return self.batch

    def check(self, run: "Run") -> None:
        """Raise `InputError` for a chat without a chat template."""
        if self.chat or self.messages is not None:
            run.check_chats()

    @property
    def single(self) -> bool:
        """Whether there is a single input, and no files."""
        return self.prompt is not None or self.messages is not None

    def input(self) -> "str | Messages":
        """The single input. Raises `InputError` for messages that cannot be read."""
        if self.messages is None:
            return self.of(self.prompt or "")
        from addnorm.data.chat_input import ChatInput

        return ChatInput.of_file(self.messages)

    def of(self, text: "str | Messages") -> "str | Messages":
        """The text itself; for a chat model, a conversation that begins with it."""
        return [{"role": "user", "content": text}] if self.chat and isinstance(text, str) else text


@Parameter(name="*")
@dataclass(frozen=True, kw_only=True)
class Output:
    """How the texts are written.

    Parameters
    ----------
    json_lines
        Write JSON lines: the number of the input, the text, its score (the log-probability, of
        beams divided by the length penalty), and why it ended; with `--exit` its depth too, of a
        conversation all messages, of a sound its language and the segments with their times.
    subtitles
        Write the segments of one sound file as subtitles, in SubRip (`srt`) or WebVTT (`vtt`).
    json_schema
        A file with a JSON schema that every text of a language model follows, from its first token
        to its last, as structured output of `addnorm serve` does. A text that reaches
        `--max-new-tokens` before is cut. Needs the extra `structured`.
    regex
        A regular expression that every text matches as a whole. Needs the extra `structured`.
    """

    json_lines: Annotated[bool, Parameter(name="--json", negative="", show_default=False)] = False
    subtitles: SubtitleForm | None = None
    json_schema: Annotated[Path | None, Parameter(show_default=False)] = None
    regex: str | None = None

    @property
    def grammar(self) -> tuple[str, str] | None:
        """The grammar for every text, and the option that gave it.

        Raises `InputError` for a wrong one.
        """
        if self.json_schema is None and self.regex is None:
            return None
        return grammar_asked(self.json_schema, self.regex)

    @property
    def given(self) -> dict[str, object]:
        """The options that were given, by name."""
        options = {
            "--json": self.json_lines,
            "--subtitles": self.subtitles,
            "--json-schema": self.json_schema,
            "--regex": self.regex,
        }
        return {name: value for name, value in options.items() if value not in (None, False)}

    def check(self, files: Sequence[Path], asked: PromptOptions) -> None:
        """Raise `InputError` for subtitles unless there is exactly one file."""
        if self.subtitles is None:
            return
        if self.json_lines:
            raise InputError("give either --json or --subtitles, and not both")
        if len(files) != 1 or asked.prompt is not None:
            raise InputError("--subtitles are those of one sound file: name a single file")


USUAL: DecodingOptions = {}
PLAIN = Speed()
ANY_END: StopOptions = {}
FILES = PromptOptions()
AS_LINES = Output()


def generate(
    run: Path,
    *files: Files,
    asked: PromptOptions = FILES,
    choices: Annotated[DecodingOptions, GROUP] = USUAL,
    speed: Speed = PLAIN,
    end: Annotated[StopOptions, GROUP] = ANY_END,
    output: Output = AS_LINES,
    reading: Reading = STRICT,
    imports: Imports = (),
) -> int | None:
    r"""Continue or translate text, a line at a time; or write the text of images or sound.

    Reads the files, or standard input. Writes one line for each line read, in their order, empty
    ones too: an empty line translates to an empty one, and a language model begins a new text
    there. With `--n-best N` there are N lines for each line read, empty where fewer were
    found. A line break within a text is written as `\n`; `--json` writes texts exactly.

    A language model given `--prompt` writes its text as it comes, line breaks and all. Decoding is
    the recipe's own (a language model's that names none: sampling) unless an option says otherwise.
    Example: `addnorm generate runs/my --prompt "To be" --temperature 0.8`.

    A model that reads images or sound takes files, as in `addnorm generate runs/speech clip.wav`,
    and writes the text of each before its name, with a tab between them. Whisper reads sound of any
    length: `addnorm generate whisper/ talk.mp3 --language de --task translate --timestamps`.

    Parameters
    ----------
    run
        The run folder.
    files
        Text files, a line an input; `-` is standard input. Or image or sound files.
    """
    if (batch := asked.requests) is not None:
        named = {
            "files": files,
            **output.given,
            **asked.speech,
            **choices,
            **end,
        }
        _check_alone(asked, speed, [name for name, given in named.items() if given])
        answer_batch(run, batch, asked.out, speed, speed.weights, imports, exact=asked.exact)
        return None
    _check_inputs(files, asked)
    output.check(files, asked)
    grammar = output.grammar
    speed.check()
    _check_processes(files, asked, speed)
    import_named(imports)
    if (status := speed.started(run, speed.weights)) is not None:
        return status
    with speed.opened(run, weights=speed.weights) as opened:
        asked.check(opened)
        decoding = opened.decoding(**choices)
        if opened.reads_files:
            _check_plain(run, asked, end, speed, grammar)
            most = end.get("max_new_tokens")
            for lines in _of_files(opened, files, decoding, most, asked.speech, reading, output):
                print(*lines, sep="\n", end="\n" if lines else "", flush=True)
            return None
        _check_text(run, asked, output)
        from addnorm.runs.inference.chat import whole_conversation

        follows = None if grammar is None else opened.grammar(*grammar)
        early = speed.early_exit(opened)
        graph = speed.compiled(opened, decoding, several=not asked.single) or early
        single = asked.input() if asked.single else None
        if single is not None and not output.json_lines and opened.can_stream(decoding):
            _print_pieces(
                opened.stream(single, decoding=decoding, compiled=graph, grammar=follows, **end)
            )
            _report(early)
            return None

        def answer(first: int, group: list[Any]) -> list[tuple[Any, list["Generated"]]]:
            texts = [asked.of(text) for text in group]
            written = opened.write(
                texts, decoding, first=first, compiled=graph, grammar=follows, **end
            )
            return [*zip(texts, written, strict=True)]

        lines = Lines(files, reading, _conversations(opened, asked, reading))
        answers = (
            lines.answers(answer) if single is None else enumerate(answer(0, [single]), start=1)
        )
        for number, (text, best) in answers:
            whole = partial(whole_conversation, opened, text)
            _print(
                whole, best, number, decoding, json_lines=output.json_lines, deep=early is not None
            )
        _report(early)
        return None


def _check_inputs(files: Sequence[Path], asked: PromptOptions) -> None:
    """Raise `InputError` for missing files, and for files together with a prompt."""
    if files:
        check_files(files)
        if asked.single:
            option = "--messages" if asked.prompt is None else "--prompt"
            raise InputError(f"give either {option} or files, and not both")
    if asked.prompt is not None and asked.messages is not None:
        raise InputError("give either --prompt or --messages, and not both")


def _check_processes(files: Sequence[Path], asked: PromptOptions, speed: Speed) -> None:
    """Raise `InputError` for options that several processes do not support."""
    if speed.processes in (None, 1):
        return
    speed.check_exit(speed.exit)
    if speed.compile:
        raise InputError("a compiled graph runs in one process: leave --compile or --processes out")
    if speed.speculate:
        raise InputError("drafts are made in one process: leave --speculate or --processes out")
    if not asked.single and (not files or STANDARD_INPUT in files):
        raise InputError(
            "several processes cannot read standard input: give files or --prompt, or leave "
            "--processes out"
        )


def _check_alone(asked: PromptOptions, speed: Speed, others: Sequence[str]) -> None:
    """Raise `InputError` for options that `--batch` replaces, since each line has its own."""
    given = {
        "--prompt": asked.prompt is not None,
        "--messages": asked.messages is not None,
        "--chat": asked.chat,
        "--compile": speed.compile,
        "--cache-dtype": speed.cache_dtype is not None,
        "--speculate": speed.speculate,
        "--exit": speed.exit is not None,
        "--processes": speed.processes is not None,
    }
    wrong = [*others, *(option for option, there in given.items() if there)]
    if wrong:
        raise InputError(f"each line of --batch has its own options: leave out {', '.join(wrong)}")


def _check_plain(
    run: Path,
    asked: PromptOptions,
    end: StopOptions,
    speed: Speed,
    grammar: tuple[str, str] | None,
) -> None:
    """Raise `InputError` for text options if the model reads files."""
    given = {
        "--prompt": asked.prompt is not None,
        "--messages": asked.messages is not None,
        "--chat": asked.chat,
        "--stop": bool(end.get("stop")),
        "--compile": speed.compile,
        "--cache-dtype": speed.cache_dtype is not None,
        "--speculate": speed.speculate,
        "--exit": speed.exit is not None,
        "" if grammar is None else grammar[1]: grammar is not None,
    }
    if wrong := [option for option, there in given.items() if there]:
        raise InputError(f"{run}: it reads image or sound files: leave out {', '.join(wrong)}")


def _check_text(run: Path, asked: PromptOptions, output: Output) -> None:
    """Raise `InputError` for sound options if the model reads text."""
    given = [*asked.speech, *(() if output.subtitles is None else ("subtitles",))]
    if given:
        shown = ", ".join(f"--{name}" for name in given)
        raise InputError(f"{run}: it reads text, and no sound: leave out {shown}")


def _conversations(opened: "Run", asked: PromptOptions, reading: Reading) -> Rows | None:
    """How files of conversations are read, for a chat model."""
    from addnorm.data.readers.chat import holds_conversations

    if not (asked.chat or opened.chats):
        return None
    return lambda file: (
        opened.conversations(file, reading.encoding) if holds_conversations(file) else None
    )


def _of_files(
    opened: "Run",
    files: Sequence[Path],
    decoding: "DecodingConfig",
    most: int | None,
    speech: SpeechOptions,
    reading: Reading,
    output: Output,
) -> Iterator[list[str]]:
    """Yield the output lines for each file; none for a sound without words."""
    timed = bool(speech.get("timestamps")) or output.subtitles is not None
    speech = {**speech, "timestamps": True} if timed else speech
    paths, skipped = media_files(files, reading)
    with skipped:
        texts = opened.transcribe(paths, decoding, max_new_tokens=most, skipped=skipped, **speech)
        for file, best in texts:
            yield _of_file(file, best, _n_best(decoding), output, timed=timed)


def _of_file(
    file: Path, best: "Sequence[Generated]", n_best: int, output: Output, *, timed: bool
) -> list[str]:
    """The lines for a file: a text or its segments, a tab, and the file's name."""
    segments = best[0].segments or () if best else ()
    if output.json_lines:
        return as_json(best, str(file))
    if output.subtitles is not None:
        return [subtitles(segments, output.subtitles)]
    lines = map(timed_line, segments) if timed else as_lines(best, n_best)
    return [f"{line}\t{file}" for line in lines]


def _print_pieces(pieces: Iterator[str]) -> None:
    """Print the pieces of a text as they are generated."""
    for piece in pieces:
        print(piece, end="", flush=True)
    print()


def _print(
    whole: "Callable[[str], Sequence[Message]]",
    best: "list[Generated]",
    number: int,
    decoding: "DecodingConfig",
    *,
    json_lines: bool,
    deep: bool,
) -> None:
    """Print the texts for one input, one line each."""
    if json_lines:
        print("\n".join(as_json(best, number, deep=deep, whole=whole)), flush=True)
        return
    print("\n".join(as_lines(best, _n_best(decoding))), flush=True)
    if deep:
        from addnorm.cli.terminal import console

        console.out(depth_of(best, number), highlight=False)


def _report(early: "EarlyExit | None") -> None:
    """Print the layers at which tokens left, if early exit is on."""
    if early is not None:
        from addnorm.cli.terminal import console

        console.out(f"exits: {early}", highlight=False)


def _n_best(decoding: "DecodingConfig") -> int:
    return decoding.n_best if decoding.kind == "beam" else 1


def as_lines(best: "Sequence[Generated]", n_best: int) -> list[str]:
    """One line for each text, padded with empty lines up to `n_best`."""
    return [one_line(text.text) for text in best] + [""] * (n_best - len(best))


def as_json(
    best: "Sequence[Generated]",
    number: int | str,
    *,
    deep: bool = False,
    whole: "Callable[[str], Sequence[Message]]" = lambda answer: (),
) -> list[str]:
    """One line of JSON for each text, with the number of its input or the name of its file.

    `deep` adds the depth, of models whose tokens leave early; `whole` gives the conversation with
    the answer at its end, if it answers one.
    """
    rows = [
        {
            "input": number,
            **({"messages": messages} if (messages := whole(text.text)) else {}),
            "text": text.text,
            "score": text.score,
            "finished": text.finished,
            **({"depth": text.depth} if deep else {}),
            **_heard(text),
        }
        for text in best
    ]
    return [json.dumps(row, ensure_ascii=False) for row in rows]


def _heard(text: "Generated") -> dict[str, object]:
    """The language of a sound, and the segments of its text with times."""
    segments = None if text.segments is None else [asdict(part) for part in text.segments]
    heard = {"language": text.language, "segments": segments}
    return {key: value for key, value in heard.items() if value is not None}


def depth_of(best: "Sequence[Generated]", number: int) -> str:
    """Describe the mean number of layers that a text's tokens used."""
    depth = best[0].depth
    mean = "its one token took every layer" if depth is None else f"mean depth {depth:.2f} layers"
    return f"text {number}: {mean}"
