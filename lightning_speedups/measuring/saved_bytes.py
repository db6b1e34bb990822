"""How many bytes a forward pass keeps for its backward pass, read from a pass that happens anyway."""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import Tensor
from torch.autograd.graph import disable_saved_tensors_hooks, saved_tensors_hooks


class SavedBytes:
    """Counts what autograd saves between ``start`` and ``stop``: each storage once, the tensors left out never.

    The hooks see each saved tensor and keep only its storage's address and size; what they hand to autograd in its
    place is the same memory. ``torch.func`` transforms refuse to run under such hooks: do not start one around code
    that may call them. Activations that the program offloads or recomputes itself are counted as its own hooks are
    not: by what is saved outside of them.

    Args:
        leave_out: tensors that are alive in any case, such as the parameters.

    Example:
        >>> layer = torch.nn.Linear(4, 4, bias=False)
        >>> counter = SavedBytes(leave_out=layer.parameters())
        >>> started = counter.start()
        >>> loss = layer(torch.ones(2, 4)).square().sum()
        >>> counter.stop()
        >>> counter.bytes  # the input, which the weight's gradient needs, and the output, which is squared
        64
    """

    def __init__(self, leave_out: Iterable[Tensor] = ()) -> None:
        self._left_out = {address for tensor in leave_out if (address := _address(tensor)) is not None}
        self._sizes: dict[int, int] = {}
        self._hooks: saved_tensors_hooks | None = None

    @property
    def bytes(self) -> int:
        """What was saved so far."""
        return sum(self._sizes.values())

    @property
    def running(self) -> bool:
        """Whether the hooks are on."""
        return self._hooks is not None

    def start(self) -> bool:
        """Count from here on; False, and nothing done, where the program has hooks of its own on."""
        if _hooks_are_on():
            return False
        self._hooks = saved_tensors_hooks(self._pack, _unpack)
        self._hooks.__enter__()
        return True

    def stop(self) -> None:
        """Count no further; what is saved already stays as it is."""
        hooks, self._hooks = self._hooks, None
        if hooks is not None:
            hooks.__exit__()

    def _pack(self, tensor: Tensor) -> Tensor:
        address = _address(tensor)
        if address is not None and address not in self._left_out:
            self._sizes[address] = max(self._sizes.get(address, 0), tensor.untyped_storage().nbytes())
        # Not the tensor itself: autograd would hold a cycle that no collection frees.
        return tensor.detach()


def _unpack(tensor: Tensor) -> Tensor:
    return tensor


def _hooks_are_on() -> bool:
    # torch refuses to disable hooks while some are on, and has no other public way to ask.
    try:
        with disable_saved_tensors_hooks("asked, not disabled"):
            return False
    except RuntimeError:
        return True


def _address(tensor: Tensor) -> int | None:
    """Where the storage lies; None for a tensor that has none of its own, such as a sparse or an uninitialized one."""
    if tensor.layout is not torch.strided or torch.nn.parameter.is_lazy(tensor):
        return None
    return tensor.untyped_storage().data_ptr()
