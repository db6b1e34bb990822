"""Which Lightning runs, and the only place that touches Lightning's private parts.

``pytorch_lightning`` and ``lightning.pytorch`` are the same framework under two import names, with two sets
of classes: a callback of the one does not belong in the other's ``Trainer``. Everything here was checked on
Lightning 2.6.6; ``tests/test_lightning_canaries.py`` fails by name when one of the private parts moves.
"""

from __future__ import annotations

import functools
import importlib
import importlib.util
import inspect
import sys
import weakref
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    import pytorch_lightning as pl

    LightningModule = pl.LightningModule
    Trainer = pl.Trainer
    StockCallback = pl.Callback
    StockEarlyStopping = pl.callbacks.EarlyStopping
else:
    # What rooms annotate with. They do not import it themselves: jsonargparse runs the `if TYPE_CHECKING` block of a
    # callback's module, and so would bring pytorch_lightning into a program of lightning.pytorch.
    LightningModule = Trainer = Any
    StockCallback = StockEarlyStopping = object

PYTORCH_LIGHTNING: Final = "pytorch_lightning"
LIGHTNING: Final = "lightning.pytorch"
NAMESPACES: Final = (PYTORCH_LIGHTNING, LIGHTNING)


def imported_namespaces() -> tuple[str, ...]:
    """The Lightning namespaces that this program has imported so far."""
    return tuple(name for name in NAMESPACES if name in sys.modules)


def preferred_namespace() -> str:
    """The namespace in which an object made now belongs.

    The one that the program has imported; ``pytorch_lightning`` where it has imported both or neither, and
    ``lightning.pytorch`` only where the first is not installed.
    """
    imported = imported_namespaces()
    if len(imported) == 1:
        return imported[0]
    if importlib.util.find_spec(PYTORCH_LIGHTNING) is None:
        return LIGHTNING
    return PYTORCH_LIGHTNING


def resolve(namespace: str, path: str) -> Any:
    """The object at a dotted ``path`` of a namespace, such as ``"callbacks.EarlyStopping"``.

    Raises:
        ValueError: for a namespace that is none of ``NAMESPACES``.
    """
    if namespace not in NAMESPACES:
        raise ValueError(f"namespace must be one of {NAMESPACES}, got {namespace!r}")
    module, _, name = path.rpartition(".")
    return getattr(importlib.import_module(f"{namespace}.{module}" if module else namespace), name)


def namespace_of(obj: object) -> str | None:
    """The namespace whose class ``obj`` is an instance of, or None for an object of neither."""
    for cls in type(obj).__mro__:
        for name in NAMESPACES:
            if cls.__module__.startswith(name + "."):
                return name
    return None


def misconfiguration(namespace: str, message: str) -> Exception:
    """A ``MisconfigurationException`` of the given namespace, so that the user's ``except`` catches it."""
    exception: Exception = resolve(namespace, "utilities.exceptions.MisconfigurationException")(message)
    return exception


def require_same_namespace(callback: object, trainer: object) -> None:
    """Refuse a callback that meets the Trainer of the other namespace.

    Raises:
        MisconfigurationException: naming both and the import that cures it.
    """
    ours, theirs = namespace_of(callback), namespace_of(trainer)
    if ours is None or theirs is None or ours == theirs:
        return
    name, submodule = type(callback).__name__, theirs.partition(".")[0]
    raise misconfiguration(
        theirs,
        f"{name} was made for {ours}, but this Trainer is from {theirs}; the program imports both. Import one of"
        f" the two only, or name the namespace: `from lightning_speedups.bound.{submodule} import {name}`.",
    )


class Voice:
    """How one callback speaks: from rank 0 only, through Lightning's own log, under its own name.

    Args:
        namespace: the Lightning namespace of the callback.
        who: what every message begins with.
    """

    def __init__(self, namespace: str, who: str) -> None:
        self._namespace, self._who = namespace, who
        self._said: set[str] = set()

    def say(self, message: str) -> None:
        """Tell the user something."""
        resolve(self._namespace, "utilities.rank_zero.rank_zero_info")(f"{self._who}: {message}")

    def warn(self, message: str) -> None:
        """Warn the user."""
        resolve(self._namespace, "utilities.rank_zero.rank_zero_warn")(f"{self._who}: {message}", stacklevel=2)

    def say_once(self, message: str, about: str) -> None:
        """Tell the user something about a thing that would be true of it again and again."""
        if self._is_new(f"say {about}"):
            self.say(message)

    def warn_once(self, message: str, about: str) -> None:
        """Warn the user of something about a thing that would be true of it again and again."""
        if self._is_new(f"warn {about}"):
            self.warn(message)

    def _is_new(self, topic: str) -> bool:
        new = topic not in self._said
        self._said.add(topic)
        return new


class HeldWeakly:
    """An attribute that does not keep alive what is assigned to it.

    Lightning hangs ``log`` and ``log_dict``, bound methods of the user's module, on every callback at each run and
    never takes them off: a callback that outlives the run would keep the module, its Trainer and its data.
    """

    def __init__(self) -> None:
        self._held: weakref.WeakKeyDictionary[object, weakref.ReferenceType[Any]] = weakref.WeakKeyDictionary()

    def __set_name__(self, owner: type, name: str) -> None:
        self._name = name

    def __get__(self, instance: object | None, owner: type) -> Any:
        if instance is None:
            return self
        reference = self._held.get(instance)
        value = None if reference is None else reference()
        if value is None:
            raise AttributeError(f"{owner.__name__}.{self._name} is there while a Trainer runs; none does now")
        return value

    def __set__(self, instance: object, value: Any) -> None:
        self._held[instance] = weakref.WeakMethod(value) if inspect.ismethod(value) else weakref.ref(value)


def stored_metrics(trainer: Any) -> dict[str, Any]:
    """The metric tensors as the Trainer last stored them, without computing the running loop's metrics anew.

    A metric that is logged again gets a new tensor object, one that is not keeps its old one; the public
    ``trainer.callback_metrics`` would replace the objects at each look.
    """
    stored: dict[str, Any] = trainer._logger_connector._callback_metrics
    return stored


def final_module(trainer: Any) -> Any:
    """The module whose weights a fit would leave behind if it ended now.

    That is the average where a ``WeightAveraging`` callback keeps one: it is what validation measures, and what the
    callback copies into the user's module at the end.
    """
    for callback in trainer.callbacks:
        average = getattr(callback, "_average_model", None)
        if any(cls.__name__ == "WeightAveraging" for cls in type(callback).__mro__) and average is not None:
            return average.module
    return trainer.lightning_module


def logged_keys(trainer: Any) -> set[str]:
    """Every key that the running loop has logged, of all its dataloaders, also while it keeps them out of sight."""
    results = trainer._results
    if results is None:
        return set()
    keys: set[str] = set()
    for metric in results.values():
        for on_step in (True, False):
            keys.update(results._forked_name(metric, on_step))
    return keys


def evaluation_loop(trainer: Any, loop: str) -> Any:
    """The object that runs ``"fit_validation"`` (and ``"sanity"``), ``"validate"``, ``"test"`` or ``"predict"``.

    Its ``inference_mode`` says whether it runs under ``torch.inference_mode``; it is read when the loop starts.
    """
    if loop in ("fit_validation", "sanity"):
        return trainer.fit_loop.epoch_loop.val_loop
    return getattr(trainer, f"{loop}_loop")


def rules_out_inference_mode(trainer: Any, namespace: str) -> str | None:
    """Why Lightning runs evaluation under ``no_grad`` whatever its loops say; None where it does not."""
    from torch import distributed  # Late: this module is imported with the package, which loads no torch.

    if distributed.is_available() and distributed.is_initialized() and distributed.get_backend() == "gloo":
        return "the process group's backend is gloo"
    if isinstance(trainer.accelerator, resolve(namespace, "accelerators.XLAAccelerator")):
        return "the accelerator is XLA"
    if isinstance(trainer.strategy, resolve(namespace, "strategies.FSDPStrategy")):
        return "the strategy is FSDP"
    return None


def flags_before_evaluation(loop: Any) -> dict[str, bool]:
    """Each submodule's ``training`` flag by name, as it was before the running loop set eval mode."""
    return dict(loop._module_mode.mode)


def accumulation_is_open(trainer: Any) -> bool:
    """Whether gradients wait for more batches before the optimizer steps."""
    return bool(trainer.fit_loop._should_accumulate())


def kept_predictions(trainer: Any) -> list[list[Any]]:
    """What predict has kept so far: a list for each dataloader, an entry for each batch."""
    kept: list[list[Any]] = trainer.predict_loop._predictions
    return kept


def after_loaders_are_set_up(loop: Any, change: Callable[[list[Any], str], list[Any]]) -> Callable[[], None]:
    """Let ``change`` replace an evaluation loop's loaders each time that the loop has set new ones up.

    ``change`` gets the loaders that the loop would run, samplers for several ranks included, and how they are combined
    (``"sequential"`` unless the program says otherwise); it returns as many. It is called before the loop draws its
    first batch. Loaders that it changes must run from end to end.

    Returns:
        A function that takes this back and gives the loop its loaders again.
    """
    stock = loop.setup_data
    originals: list[tuple[Any, list[Any]]] = []

    def setup_data() -> None:
        before = loop._combined_loader
        stock()
        combined = loop._combined_loader
        if combined is None or combined is before:
            return
        loaders = list(combined.flattened)
        changed = change(loaders, combined._mode)
        if any(new is not old for new, old in zip(changed, loaders, strict=True)):
            originals.append((combined, loaders))
            combined.flattened = changed
            loop._max_batches = [len(loader) for loader in changed]

    def undo() -> None:
        vars(loop).pop("setup_data", None)
        for combined, loaders in originals:
            combined.flattened = loaders

    loop.setup_data = setup_data
    return undo


def fabric_of(namespace: str) -> str:
    """The package under a namespace that does the work below the Trainer."""
    return "lightning_fabric" if namespace == PYTORCH_LIGHTNING else "lightning.fabric"


def lone_trainer(namespace: str, device: Any, precision: str) -> Any:
    """A Trainer on this process and ``device`` alone, that writes nothing, whatever started the process."""
    alone = resolve(namespace, "plugins.environments.LightningEnvironment")()
    return resolve(namespace, "Trainer")(
        accelerator="gpu" if device.type == "cuda" else device.type,
        devices=[device.index or 0] if device.type == "cuda" else 1,
        num_nodes=1,
        precision=precision,
        plugins=[alone],
        inference_mode=False,
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )


def shards_parameters(trainer: Any, namespace: str) -> str | None:
    """Why a copy of the module could not run by itself: no process has all of its parameters. None where one has."""
    strategies = [resolve(namespace, f"strategies.{name}") for name in ("FSDPStrategy", "DeepSpeedStrategy")]
    whole = all(type(parameter.data).__name__ == "Tensor" for parameter in trainer.lightning_module.parameters())
    if whole and not isinstance(trainer.strategy, tuple(strategies)):
        return None
    return f"{type(trainer.strategy).__name__} splits the parameters among processes"


class LoaderHooks:
    """Tells when the loaders of a fit are there, and when each is ready: after Lightning has given it its sampler and
    before anything iterates over it.

    Args:
        trainer: the Trainer, in ``setup``.
        on_loaders: called with "train" or "val" and the number of loaders that the program gave.
        on_loader: called with each of them, in their order.
    """

    def __init__(self, trainer: Any, on_loaders: Callable[[str, int], None], on_loader: Callable[[Any], None]) -> None:
        self._on_loaders, self._on_loader = on_loaders, on_loader
        self._strategy = trainer.strategy
        self._process = self._strategy.process_dataloader
        self._strategy.process_dataloader = self._ready
        loops = {"train": trainer.fit_loop, "val": trainer.fit_loop.epoch_loop.val_loop}
        self._sources = [loop._data_source for loop in loops.values()]
        combined = resolve(namespace_of(trainer) or PYTORCH_LIGHTNING, "utilities.combined_loader.CombinedLoader")
        for stage, source in zip(loops, self._sources, strict=True):
            source.dataloader = functools.partial(self._asked, stage, source.dataloader, combined)

    def detach(self) -> None:
        """Take the hooks off, unless another has been put over them; they call no one any more either way."""
        if vars(self._strategy).get("process_dataloader") == self._ready:
            del self._strategy.process_dataloader
        for source in self._sources:
            hook = vars(source).get("dataloader")
            if isinstance(hook, functools.partial) and hook.func == self._asked:
                del source.dataloader
        self._on_loaders, self._on_loader = (lambda stage, count: None), (lambda loader: None)

    def _asked(self, stage: str, dataloader: Callable[[], Any], combined: Any) -> Any:
        loaders = dataloader()
        flat = loaders.flattened if isinstance(loaders, combined) else combined(loaders, "sequential").flattened
        self._on_loaders(stage, len(flat))
        return loaders

    def _ready(self, loader: Any) -> Any:
        self._on_loader(loader)
        return self._process(loader)
