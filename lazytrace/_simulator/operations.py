"""Torch operations during a capture: which wait, which allocate, and how one is recorded."""

from __future__ import annotations

from typing import Any

import torch
from torch.utils._pytree import tree_map_only

from lazytrace._simulator.memory import Pool, TensorView
from lazytrace._simulator.nodes import OperationNode, _flat
from lazytrace._simulator.rules import Capture, StreamState

_PASSIVE = {"detach", "alias", "lift_fresh", "record_stream", "_unsafe_view"}
_INDEXING = {"index", "index_put", "index_put_", "_unsafe_index", "_unsafe_index_put"}


def base_name(function: Any) -> str:
    """``add_`` for ``aten::add_.Tensor``."""
    name: str = function._schema.name.split("::")[-1]
    return name


def waits_for_device(function: Any, args: Any) -> bool:
    """Whether the result's value or shape must come to the host."""
    if base_name(function) in _INDEXING:  # a mask is turned into indices, which are then counted
        masks = (torch.bool, torch.uint8)
        return any(index is not None and index.dtype in masks for index in args[1])
    tags = function.tags
    return torch.Tag.data_dependent_output in tags or torch.Tag.dynamic_output_shape in tags


def is_passive(function: Any) -> bool:
    """Whether the operation only describes memory that exists: no node, no allocation."""
    if function.is_view or torch.Tag.inplace_view in function.tags:
        return True
    if base_name(function) in _PASSIVE:
        return True
    returns = function._schema.returns
    return not _mutated(function) and not any("Tensor" in str(ret.type) for ret in returns)


def only_allocates(function: Any) -> bool:
    """Whether the operation hands out memory that it leaves as it is."""
    return base_name(function).startswith(("empty", "new_empty"))


def allocates(function: Any) -> bool:
    """Whether a result of the operation is new memory."""
    if is_passive(function):
        return False
    return any(ret.alias_info is None for ret in function._schema.returns)


def record(capture: Capture, stream: StreamState, function: Any, args: Any, kwargs: Any) -> Any:
    """Record an operation as a node instead of running it; returns what the caller gets."""
    if is_passive(function):
        return function(*args, **kwargs)
    pool = capture.pool
    shapes = _meta_results(function, args, kwargs)
    if only_allocates(function):
        return tree_map_only(torch.Tensor, pool.tensor_like, shapes)
    results = _results(function, args, kwargs, shapes, pool)
    node = OperationNode(
        function,
        tree_map_only(torch.Tensor, lambda tensor: TensorView.of(tensor, pool), args),
        tree_map_only(torch.Tensor, lambda tensor: TensorView.of(tensor, pool), kwargs),
        _fresh_views(function, results, pool),
    )
    capture.add(stream, node)
    return results[0] if len(function._schema.returns) == 1 else tuple(results) or None


def _results(function: Any, args: Any, kwargs: Any, shapes: Any, pool: Pool) -> list[Any]:
    returns = function._schema.returns
    values = [shapes] if len(returns) == 1 else list(shapes or ())
    results = []
    for ret, value in zip(returns, values, strict=True):
        if ret.alias_info is None:
            results.append(tree_map_only(torch.Tensor, pool.tensor_like, value))
        else:
            results.append(_aliased(function, ret, args, kwargs))
    return results


def _fresh_views(function: Any, results: list[Any], pool: Pool) -> tuple[TensorView | None, ...]:
    views: list[TensorView | None] = []
    for ret, result in zip(function._schema.returns, results, strict=True):
        for tensor in _flat(result):
            if isinstance(tensor, torch.Tensor):
                fresh = ret.alias_info is None
                views.append(TensorView.of(tensor, pool) if fresh else None)
    return tuple(views)


def _aliased(function: Any, ret: Any, args: Any, kwargs: Any) -> Any:
    for position, parameter in enumerate(function._schema.arguments):
        alias = parameter.alias_info
        if alias is not None and alias.before_set == ret.alias_info.before_set:
            return args[position] if position < len(args) else kwargs[parameter.name]
    raise NotImplementedError(f"lazytrace.testing.simulate: {function} returns an unknown alias")


def _mutated(function: Any) -> bool:
    return any(
        parameter.alias_info is not None and parameter.alias_info.is_write
        for parameter in function._schema.arguments
    )


def _meta_results(function: Any, args: Any, kwargs: Any) -> Any:
    """The results' shapes, without computing a value: no memory of the capture was written yet."""

    def on_meta(tensor: torch.Tensor) -> torch.Tensor:
        return torch.empty_strided(
            tensor.size(), tensor.stride(), dtype=tensor.dtype, device="meta"
        )

    meta_args, meta_kwargs = tree_map_only(torch.Tensor, on_meta, (args, dict(kwargs)))
    names = [parameter.name for parameter in function._schema.arguments]
    if "device" in names and names.index("device") >= len(args):
        meta_kwargs["device"] = torch.device("meta")
    try:
        return function(*meta_args, **meta_kwargs)
    except (NotImplementedError, RuntimeError):
        if _mutated(function):
            raise
        return function(*args, **kwargs)
