"""Files that are whole or not there: written beside their place, then renamed into it."""

from __future__ import annotations

import contextlib
import secrets
from pathlib import Path


def write_aside(path: Path, data: bytes) -> None:
    """Write ``data`` to a new file in the folder of ``path`` and rename it to ``path``.

    A reader sees the old file or the new one. The new file has the permissions that any file of this process gets,
    which one from ``tempfile`` has not.

    Raises:
        OSError: where the folder takes no file or the disk is full; the unfinished file is removed.
    """
    aside = path.with_name(f".{path.name}.{secrets.token_hex(6)}.part")
    try:
        with aside.open("xb") as file:
            file.write(data)
        aside.replace(path)
    except BaseException:
        with contextlib.suppress(OSError):
            aside.unlink(missing_ok=True)
        raise
