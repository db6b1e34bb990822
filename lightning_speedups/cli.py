"""The command line: ``lightning-speedups COMMAND``.

Exit codes: 0 fine, 1 a finding or mismatch, 2 wrong usage, 130 ended by Ctrl-C.
"""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Optional

import typer

from lightning_speedups._version import __version__

app = typer.Typer(
    name="lightning-speedups",
    help="Makes PyTorch Lightning training faster, or says with measured evidence what is slow.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)


def _print_version(wanted: bool) -> None:
    if wanted:
        print(f"lightning-speedups {__version__}")
        raise typer.Exit


@app.callback()
def _options(
    version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version and exit.")
    ] = False,
) -> None:
    """Options that come before the command."""


def _whole_number(least: int, most: int, example: str) -> Callable[[str], int]:
    """A parser for typer, whose own message does not repeat what it got."""

    def parse(value: str) -> int:
        with contextlib.suppress(ValueError):
            if least <= int(value) <= most:
                return int(value)
        raise typer.BadParameter(f"got {value}; give a whole number from {least} to {most}, such as {example}")

    return parse


_epochs = _whole_number(1, 10_000, "--epochs 40")
_seed = _whole_number(0, 2**32 - 1, "--seed 0")


@app.command()
def demo(
    epochs: Annotated[int, typer.Option(metavar="N", parser=_epochs, help="Epochs that both runs plan.")] = 40,
    seed: Annotated[int, typer.Option(metavar="N", parser=_seed, help="Seed of both runs.")] = 0,
    report_dir: Annotated[Path, typer.Option(metavar="DIR", help="Folder for the report's files.")] = Path(
        "demo_report"
    ),
    cache_dir: Annotated[
        Optional[Path],  # noqa: UP045  typer evaluates it, on Python 3.10 too
        typer.Option(metavar="DIR", help="Folder that keeps the images.", show_default="the platform's cache folder"),
    ] = None,
    quick: Annotated[bool, typer.Option("--quick", help="Take one image in four: under a minute.")] = False,
) -> None:
    """Train on real images twice, with a stock Trainer and with the pack, and compare."""
    from lightning_speedups.demo.demo import run_demo
    from lightning_speedups.demo.errors import INTERRUPTED, DemoError
    from lightning_speedups.demo.images import default_cache_dir

    try:
        run_demo(
            epochs=epochs, seed=seed, report_dir=report_dir, cache_dir=cache_dir or default_cache_dir(), quick=quick
        )
    except DemoError as error:
        print(f"lightning-speedups demo: {error}", file=sys.stderr)
        raise typer.Exit(error.exit_code) from error
    except KeyboardInterrupt:
        print("lightning-speedups demo: stopped by Ctrl-C", file=sys.stderr)
        raise typer.Exit(INTERRUPTED) from None


def main() -> None:
    """The console entry point."""
    app()
