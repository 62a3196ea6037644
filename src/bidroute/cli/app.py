"""The application: its commands, and how every error becomes one line and an exit code."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from importlib import import_module
from itertools import pairwise
from typing import Annotated, cast

import typer

from bidroute import __version__
from bidroute.errors import BidrouteError

EXIT_BAD_INPUT = 2
EXIT_INTERRUPTED = 130
# Newer versions of typer carry their own copy of click; this finds the class in both.
_USAGE_ERROR = cast("type[Exception]", typer.BadParameter.__mro__[1])

# Command `a-b` is `a_b_command` in `bidroute.cli.a_b`; in the order of --help.
_COMMANDS = (
    "compare",
    "explain",
    "bound",
    "ladder",
    "robustness",
    "sweep",
    "recommend",
    "theory",
    "bench",
    "serve",
    "worker",
    "replay",
    "demo-live",
)


def _command(name: str) -> Callable[..., None]:
    module = name.replace("-", "_")
    found: Callable[..., None] = getattr(import_module(f"bidroute.cli.{module}"), f"{module}_command")
    return found


def _application(arguments: Sequence[str]) -> typer.Typer:
    """The application with the command that is asked for, else with all: importing what nobody asked for takes time."""
    app = typer.Typer(
        name="bidroute",
        no_args_is_help=True,
        rich_markup_mode="rich",
        pretty_exceptions_enable=False,
        add_completion=False,
        context_settings={"help_option_names": ["-h", "--help"]},
    )
    app.callback()(bidroute)
    for name in [name for name in _COMMANDS if name in arguments[:1]] or _COMMANDS:
        app.command(name)(_command(name))
    return app


def _show_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"bidroute {__version__}")
        raise typer.Exit


def bidroute(
    version: Annotated[
        bool, typer.Option("--version", help="Show the version and end.", callback=_show_version, is_eager=True)
    ] = False,
) -> None:
    """Route LLM requests by shadow prices of batch slots and KV cache.

    Begin with [bold]bidroute compare[/bold]: it runs price-based routing and today's policies on the same
    arrivals and says which is better on what, and by how much.
    """


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line and return its exit code: 0, 2 for bad input, 130 when interrupted."""
    given = list(sys.argv[1:] if arguments is None else arguments)
    try:
        code = _application(given)(args=given, standalone_mode=False)
    except BidrouteError as problem:
        return _failed(str(problem))
    except OSError as problem:
        return _failed(f"{problem.filename or 'input or output'}: {problem.strerror or problem}")
    except MemoryError as problem:
        return _failed(f"out of memory: {problem or 'no more to be had'}; use fewer requests, devices or --jobs")
    except _USAGE_ERROR as problem:
        return _failed(_usage_message(problem, given))
    except (KeyboardInterrupt, typer.Abort):
        code = EXIT_INTERRUPTED
    if code == EXIT_INTERRUPTED:
        print("interrupted", file=sys.stderr)
    return code if isinstance(code, int) else 0


def _failed(message: str) -> int:
    print("error:", " ".join(message.split()), file=sys.stderr)
    return EXIT_BAD_INPUT


def _usage_message(problem: Exception, arguments: Sequence[str]) -> str:
    """What is wrong, the value that was given (newer versions of typer leave it out), and where help is."""
    message = str(getattr(problem, "format_message", problem.__str__)()).rstrip(".")
    names = getattr(getattr(problem, "param", None), "opts", [])
    given = [value for name, value in pairwise(_split(arguments)) if name in names]
    if given and repr(given[-1]) not in message:
        message = f"{message}; given: {given[-1]!r}"
    command = getattr(getattr(problem, "ctx", None), "info_name", None)
    return f"{message} (see {f'bidroute {command}' if command in _COMMANDS else 'bidroute'} --help)"


def _split(arguments: Sequence[str]) -> list[str]:
    """The arguments, with `--name=value` as two."""
    return [part for argument in arguments for part in (argument.split("=", 1) if argument[:2] == "--" else [argument])]
