"""The `addnorm` command: its sub-commands, and what a failure looks like."""

import sys

from cyclopts import App

from addnorm import __version__
from addnorm.errors import InputError

app = App(
    name="addnorm",
    version=__version__,
    help="Build, train and use your own Transformers. Start with `addnorm demo`.",
    help_format="markdown",
    result_action="return_value",
)
for name in ("demo", "train", "evaluate", "generate", "classify", "info"):
    app.command(f"addnorm.cli.{name}:{name}", name=name)


def main() -> None:
    """Run the command that the arguments name.

    Exit status: 0 done, 2 wrong input, 3 training met a number that is not finite, 130 stopped by
    Ctrl-C. A fault of AddNorm's own keeps its traceback and exits with 1.
    """
    try:
        app()
    except InputError as error:
        print(f"addnorm: {error}", file=sys.stderr)
        sys.exit(2)
    except KeyboardInterrupt:
        sys.exit(130)
    except BrokenPipeError:
        # The reader of our output went away, as `head` does: nothing is wrong.
        sys.stdout = None
