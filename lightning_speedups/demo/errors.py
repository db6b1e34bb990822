"""How the demo says that it cannot go on."""

from __future__ import annotations

from typing import Final

FAILED: Final = 1
USAGE: Final = 2
INTERRUPTED: Final = 130
"""What a shell expects of a program that Ctrl-C ended: 128 and the signal's number."""


class DemoError(Exception):
    """The demo cannot go on; the text says why and what to do. ``exit_code`` is what the command ends with."""

    def __init__(self, message: str, exit_code: int = FAILED) -> None:
        super().__init__(message)
        self.exit_code = exit_code
