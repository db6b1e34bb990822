"""A diagnostic that breaks says so once and switches itself off."""

from __future__ import annotations

import pytest

from lightning_speedups.measuring.guard import diagnostic


class Looker:
    def __init__(self) -> None:
        self.broken = False
        self.told: list[tuple[str, str]] = []
        self.looks = 0

    def broke(self, error: Exception, what: str) -> None:
        self.told.append((str(error), what))

    @diagnostic
    def _look_at_it(self, fails: type[BaseException] | None = None) -> None:
        """Looks."""
        self.looks += 1
        if fails is not None:
            raise fails("on purpose")


def test_it_runs_until_it_breaks_and_then_no_more() -> None:
    looker = Looker()
    looker._look_at_it()
    looker._look_at_it(fails=ValueError)
    looker._look_at_it(fails=ValueError)
    assert (looker.looks, looker.told) == (2, [("on purpose", "look at it")])


@pytest.mark.parametrize("leaves", [KeyboardInterrupt, SystemExit])
def test_what_ends_a_program_goes_through(leaves: type[BaseException]) -> None:
    looker = Looker()
    with pytest.raises(leaves):
        looker._look_at_it(fails=leaves)
    assert not looker.broken


def test_it_looks_like_the_method() -> None:
    assert (Looker._look_at_it.__name__, Looker._look_at_it.__doc__) == ("_look_at_it", "Looks.")
