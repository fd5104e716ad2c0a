"""A pass of torch's compiler: of products with the same operands the first is computed.

Torch computes each call of modeling code, also where two are the same; `harness.models.general.joint_products` makes
such.
"""

from __future__ import annotations

from typing import Any

import torch
from torch._inductor.custom_graph_pass import CustomGraphPass, get_hash_for_files
from torch.fx import Graph, Node

_ATEN = torch.ops.aten
SAME = frozenset(
    (
        *(_ATEN.mm.default, _ATEN.addmm.default, _ATEN.permute.default, _ATEN.t.default, _ATEN.transpose.int),
        *(_ATEN.view.default, _ATEN.reshape.default, _ATEN._unsafe_view.default),
    )
)
"""Operations without effects, whose results nothing changes in place where torch runs its passes."""


class SameProducts(CustomGraphPass):
    """Lets later products of the same operands be the first one."""

    def __call__(self, graph: Graph) -> None:
        first: dict[Any, Node] = {}
        for node in list(graph.nodes):
            if node.op != "call_function" or node.target not in SAME:
                continue
            key = node.target, _hashable(node.args), _hashable(tuple(node.kwargs.items()))
            found = first.setdefault(key, node)
            if found is not node:
                node.replace_all_uses_with(found)
                graph.erase_node(node)

    def uuid(self) -> Any:
        return get_hash_for_files((__file__,))


def _hashable(given: Any) -> Any:
    return tuple(map(_hashable, given)) if isinstance(given, (tuple, list)) else given
