"""How many bytes a forward pass keeps for its backward pass, read off the graph that it has built anyway."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor

from lightning_speedups import _torch


def saved_bytes(loss: Tensor, leave_out: Iterable[Tensor] = ()) -> int | None:
    """The bytes that the graph behind ``loss`` keeps until its backward: each storage once.

    Nothing is put around the forward: the graph is read when it is complete, and no hook of the program is called.
    What the program's own hooks keep in a tensor's place counts where it is a tensor; activations that are recomputed
    do not count.

    Args:
        loss: what ``backward`` will be called on.
        leave_out: tensors that are alive in any case, such as the parameters.

    Returns:
        The bytes; None where this torch does not show what a graph keeps (before 2.8 or so).

    Example:
        >>> layer = torch.nn.Linear(4, 4, bias=False)
        >>> loss = layer(torch.ones(2, 4)).square().sum()
        >>> saved_bytes(loss, layer.parameters())  # the layer's input, and the output that is squared
        64
    """
    if not _torch.shows_saved_tensors():
        return None
    left_out = {_address(tensor) for tensor in leave_out}
    sizes: dict[int, int] = {}
    seen: set[Any] = set()
    open_nodes = [loss.grad_fn]
    while open_nodes:
        node = open_nodes.pop()
        if node is None or node in seen:
            continue
        seen.add(node)
        open_nodes += [parent for parent, _ in node.next_functions]
        for tensor in _torch.saved_tensors(node):
            address = _address(tensor)
            # A node keeps plain numbers, such as the 2 of ``x * 2``, as tensors without a dimension.
            if address is not None and address not in left_out and tensor.dim():
                sizes[address] = max(sizes.get(address, 0), tensor.untyped_storage().nbytes())
    return sum(sizes.values())


def _address(tensor: Tensor) -> int | None:
    """Where the storage lies; None for a tensor that has none of its own, such as a sparse or an uninitialized one."""
    if tensor.layout is not torch.strided or torch.nn.parameter.is_lazy(tensor):
        return None
    return tensor.untyped_storage().data_ptr()
