"""Whether torch is in a state in which tensors are not what they seem."""

from __future__ import annotations

import torch


def reading_refused() -> str | None:
    """Why values must not be read on this thread now; None if nothing forbids it."""
    if torch.compiler.is_compiling():
        return "compiling"
    if torch._C._functorch.peek_interpreter_stack() is not None:
        return "functorch"
    mode_key = torch._C._TorchDispatchModeKey
    if torch._C._get_dispatch_mode(mode_key.FAKE) is not None:
        return "fake_tensor"
    if torch.cuda._is_in_bad_fork():
        return "forked_child"
    return None
