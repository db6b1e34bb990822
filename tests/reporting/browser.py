"""A headless Chromium that opens one page and ends."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
from pathlib import Path

import pytest

BINARIES = ("chromium", "chromium-browser", "google-chrome")
OPTIONS = (
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--enable-logging=stderr",
    "--v=0",
)


def browse(page: Path, folder: Path, *options: str, timeout_s: float = 120) -> tuple[str, str]:
    """What Chromium prints and logs about ``page``; its whole process group is ended, whatever happens."""
    binary = next(filter(None, map(shutil.which, BINARIES)), None)
    if binary is None:
        pytest.skip(f"no headless browser: none of {', '.join(BINARIES)} is installed")
    command = [binary, *OPTIONS, f"--user-data-dir={folder / 'profile'}", *options, page.as_uri()]
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, errors="replace", start_new_session=True
    ) as process:
        try:
            output, log = process.communicate(timeout=timeout_s)
        finally:
            with contextlib.suppress(ProcessLookupError):  # Gone by itself, with all that it had started.
                os.killpg(process.pid, signal.SIGKILL)
    assert process.returncode == 0, log
    return output, log
