"""Tell a mistyped metric name from a metric that will be logged later. Pure: names in, name out."""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable

# Below this, two words of a metric name are different words: "acc" and "auc" have 0.67, "los" and "loss" 0.86.
_SAME_WORD = 0.75

# Words that differ by a letter or two and yet name different things.
# fmt: off
_DISTINCT_WORDS = frozenset({
    "acc", "bacc", "macc", "auc", "auroc", "aupr", "ap", "map", "mar", "iou", "miou", "dice", "f1", "mcc",
    "mae", "mse", "rmse", "nrmse", "msle", "rmsle", "mape", "smape", "wmape", "psnr", "snr", "sdr", "sdri",
    "sisdr", "ssim", "msssim", "fid", "kid", "lpips", "nll", "elbo", "ppl", "bpc", "bpd", "kl", "bce", "ce",
    "ece", "ter", "per", "wer", "cer", "mer", "wil", "wip", "bleu", "rouge", "macro", "micro", "max", "min",
    "mean", "median", "std", "best", "test", "last", "first", "train", "trains", "eval", "class", "clean",
    "precision", "recall", "left", "right", "source", "sources", "target", "targets", "loss", "losses",
})
# fmt: on

# Words for the same stage.
_SAME_STAGE = frozenset({"val", "valid", "validation"})


def misspelling(monitor: str, keys: Iterable[str]) -> str | None:
    """The logged key that ``monitor`` is a close misspelling of, or None.

    Names are compared word by word (``val_loss`` has two). Words that stand for different things (``rmse`` and
    ``mse``), and words told apart by a digit or a single letter (``top1`` and ``top5``), are no misspelling.

    Example:
        >>> misspelling("val_los", ["val_loss", "val_acc"])
        'val_loss'
        >>> misspelling("val_auc", ["val_loss", "val_acc"]) is None
        True
    """
    near = [key for key in sorted(keys) if _same_but_mistyped(monitor, key)]
    return max(near, key=lambda key: _likeness(monitor, key), default=None)


def closest(monitor: str, keys: Iterable[str]) -> str | None:
    """The key that looks most like ``monitor``, however far it is; None where there is no likeness at all."""
    matches = difflib.get_close_matches(monitor, sorted(keys), n=1, cutoff=0.4)
    return matches[0] if matches else None


def _same_but_mistyped(monitor: str, key: str) -> bool:
    typed, meant = _words(monitor), _words(key)
    if "".join(typed) == "".join(meant):
        return True
    if len(typed) != len(meant):
        return False
    return all(left == right or _mistyped_word(left, right) for left, right in zip(typed, meant, strict=True))


def _mistyped_word(typed: str, meant: str) -> bool:
    if {typed, meant} <= _SAME_STAGE:
        return True
    if min(len(typed), len(meant)) < 3 or re.sub(r"\D", "", typed) != re.sub(r"\D", "", meant):
        return False
    if typed in _DISTINCT_WORDS and meant in _DISTINCT_WORDS:
        return False
    if _undoubled(typed) == _undoubled(meant) or sorted(typed) == sorted(meant):
        return True
    # A letter in front makes another metric (snr and psnr, iou and miou), as does another letter in a short name.
    if typed.endswith(meant) or meant.endswith(typed) or len(typed) == len(meant) < 5:
        return False
    return difflib.SequenceMatcher(None, typed, meant).ratio() >= _SAME_WORD


def _undoubled(word: str) -> str:
    return re.sub(r"(.)\1+", r"\1", word)


def _words(name: str) -> list[str]:
    return [word for word in re.split(r"[\s_\-./]+", name.casefold()) if word]


def _likeness(monitor: str, key: str) -> float:
    return difflib.SequenceMatcher(None, monitor.casefold(), key.casefold()).ratio()
