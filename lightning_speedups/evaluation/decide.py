"""Which mode a loop gets, and why. Pure: facts in, decision out."""

from __future__ import annotations

from dataclasses import dataclass

from lightning_speedups.evaluation.settings import LOOP_NAMES, STEPS, Loop, Mode

INSIDE_FIT = "Lightning validates inside fit without inference_mode, which would gain less than 2 %"


@dataclass(frozen=True)
class Facts:
    """What the decision rests on.

    Attributes:
        inference_mode: what the loop's own switch says, as the Trainer set it.
        ruled_out: why Lightning runs every loop under no_grad here; None where it does not.
        need: the first call found that needs gradients, in words; None for none.
        backward_runs: how often autograd ran during validation inside fit.
        compiled: the first compiled part, by name; None for none.
    """

    inference_mode: bool
    ruled_out: str | None = None
    need: str | None = None
    backward_runs: int = 0
    compiled: str | None = None


@dataclass(frozen=True)
class Decision:
    """The mode that the loop is to run in, the reason, and a warning to the user where a request has its risks."""

    mode: Mode
    reason: str
    warning: str | None = None


def decide(loop: Loop, request: Mode | None, facts: Facts, asked_through: Loop | None = None) -> Decision:
    """The mode of one loop.

    Args:
        loop: which one.
        request: the mode that the user asked for; None for what is best.
        facts: about the module and the Trainer.
        asked_through: the loop for which the user asked, where this one follows it.
    """
    if request is not None:
        return _requested(loop, request, facts, asked_through or loop)
    in_fit = loop in ("fit_validation", "sanity")
    if facts.ruled_out is not None and not in_fit:
        return Decision("no_grad", f"{facts.ruled_out}: Lightning falls back from inference_mode")
    if not facts.inference_mode:
        return Decision("no_grad", INSIDE_FIT if in_fit else "Trainer(inference_mode=False)")
    if (why := _needs(loop, facts)) is not None:
        return Decision("no_grad", why)
    if facts.compiled is not None:
        return Decision("no_grad", _compiled(facts.compiled))
    return Decision("inference_mode", "Lightning's default outside fit")


def _requested(loop: Loop, request: Mode, facts: Facts, asked_through: Loop) -> Decision:
    asked = f"asked for by mode={{{asked_through!r}: {request!r}}}"
    if asked_through != loop:
        asked += f", which {LOOP_NAMES[loop]} follows"
    if request == "no_grad":
        return Decision("no_grad", asked)
    if facts.ruled_out is not None:
        return Decision("no_grad", f"{facts.ruled_out}, where Lightning falls back; inference_mode was {asked}")
    if facts.compiled is not None and loop in ("fit_validation", "sanity"):
        return Decision("no_grad", f"{_compiled(facts.compiled)}; inference_mode was {asked}")
    why = _needs(loop, facts)
    warning = None if why is None else f"{why}, which inference_mode does not allow; it was {asked}"
    return Decision("inference_mode", asked, warning)


def _compiled(name: str) -> str:
    return f"compiled module found ({name}): inference_mode would compile one more graph"


def _needs(loop: Loop, facts: Facts) -> str | None:
    if facts.need is not None:
        return f"{STEPS[loop]} may need gradients: {facts.need}"
    if facts.backward_runs:
        times = "once" if facts.backward_runs == 1 else f"{facts.backward_runs} times"
        return f"{STEPS[loop]} may need gradients: validation inside fit ran autograd {times}"
    return None
