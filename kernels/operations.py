"""The core's functions as custom operations of torch: `torch.ops.rejection_lab.verify` and the like.

An operation takes tensors and numbers alone, each under the name that the contract has for it (those of a group behind
its name: `mask_words`, `draft_temperature`). It writes into nothing but the `counters` and, for a draw, the statistics
that it is given. Triton runs on CUDA, the reference elsewhere. A fake kernel says what comes out: sizes follow from
sizes alone. kernels.custom_ops calls the operations with the contract's own types.

They are registered with `torch.library.define` and not as a `custom_op`, whose wrappers in Python take ten
times as long on the host.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from .contract import Draft, RowStats, Sampling, Streams, TokenMask, Verification
from .core import Core, reference_core, triton_core
from .launch.call_memory import CallMemory, counters_for
from .methods import NAMED_METHODS, SiblingDraws

NAMESPACE = "rejection_lab"
SAMPLING = ("temperature", "top_k", "top_p", "min_p")
STREAMS = ("seeds", "positions", "rounds")
STATS = ("maximum", "normalizer", "threshold")
MASK = ("words", "rows")


def core_of(device: torch.device, num_requests: int, width: int, counters: Tensor | None) -> Core:
    """What one call runs on: of R requests with K drafts, or of R rows; `counters` None takes new ones."""
    if device.type != "cuda":
        return reference_core()
    return triton_core(CallMemory(counters_for(num_requests, width, device) if counters is None else counters))


def _group(kind: Callable[..., Any], named: dict[str, Any], prefix: str, names: tuple[str, ...], *more: Any) -> Any:
    """The reverse; None where the first is."""
    tensors = [named.get(prefix + name) for name in names]
    return None if tensors[0] is None else kind(*tensors, *more)


# The dispatcher leaves out arguments that have their default, so functions below repeat the defaults of the schemas.
def _verify(
    target_logits: Tensor,
    draft_token_ids: Tensor,
    num_draft_tokens: Tensor,
    *,
    method: str,
    truncates: bool = True,
    is_mixed: bool = False,
    parameters: Sequence[float] = (),
    draft_truncates: bool = True,
    siblings: str = SiblingDraws.independent.value,
    counters: Tensor | None = None,
    **named: Any,
) -> tuple[Tensor, ...]:
    draft = Draft(
        draft_token_ids,
        num_draft_tokens,
        named.get("draft_logits"),
        named.get("idx_mapping"),
        named.get("draft_to_target"),
        _group(RowStats, named, "draft_", STATS),
        _group(TokenMask, named, "draft_mask_", MASK),
        named.get("parents"),
        SiblingDraws(siblings),
        _group(Sampling, named, "draft_", SAMPLING, draft_truncates),
    )
    sampling = _group(Sampling, named, "", SAMPLING, truncates, is_mixed)
    named_method = NAMED_METHODS[method]
    verification = Verification(named_method).with_rule(named_method.kind.of_numbers(parameters))
    num_requests, width = draft_token_ids.shape
    found = core_of(target_logits.device, num_requests, width, counters).verify(
        target_logits,
        draft,
        sampling,
        verification,
        _group(Streams, named, "", STREAMS),
        mask=_group(TokenMask, named, "mask_", MASK),
    )
    path = () if found.path is None else (found.path,)
    return _owned(found.token_ids, found.num_accepted, found.invalid, *path)


def _draw(
    logits: Tensor,
    *,
    purpose: int = 0,
    vocab_size: int = 0,
    truncates: bool = True,
    is_mixed: bool = False,
    draft_to_target: Tensor | None = None,
    counters: Tensor | None = None,
    **named: Any,
) -> tuple[Tensor, ...]:
    """Both draws: with noise of a vocabulary, or with the numbers of a purpose."""
    core = core_of(logits.device, len(logits), 0, counters)
    sampling, streams = _group(Sampling, named, "", SAMPLING, truncates, is_mixed), _group(Streams, named, "", STREAMS)
    mask, stats = _group(TokenMask, named, "mask_", MASK), _group(RowStats, named, "", STATS)
    if vocab_size:
        found = core.coupled_draw(logits, sampling, streams, vocab_size, draft_to_target, mask=mask)
    else:
        found = core.draw(logits, sampling, streams, purpose, draft_to_target, stats, mask=mask)
    return _owned(found.token_ids, found.logprobs, found.invalid)


def _logprobs(
    logits: Tensor,
    token_ids: Tensor,
    num_top: int,
    *,
    truncates: bool = True,
    counters: Tensor | None = None,
    **named: Any,
) -> tuple[Tensor, ...]:
    sampling = _group(Sampling, named, "", SAMPLING, truncates)
    mask = _group(TokenMask, named, "mask_", MASK)
    return _owned(
        *core_of(logits.device, len(logits), 0, counters).logprobs(logits, token_ids, num_top, sampling, mask)
    )


def _owned(*results: Tensor) -> tuple[Tensor, ...]:
    """The results as their fake kernels describe them: without gaps."""
    return tuple(result.contiguous() for result in results)


def _fake_verify(target_logits: Tensor, draft_token_ids: Tensor, *_: Any, **__: Any) -> tuple[Tensor, ...]:
    num_requests, width = draft_token_ids.shape
    token_ids = target_logits.new_empty((num_requests, width + 1), dtype=torch.int64)
    counts = target_logits.new_empty(num_requests, dtype=torch.int64)
    return token_ids, counts, target_logits.new_empty(num_requests, dtype=torch.bool)


def _fake_verify_tree(target_logits: Tensor, draft_token_ids: Tensor, *_: Any, **__: Any) -> tuple[Tensor, ...]:
    path = target_logits.new_empty(draft_token_ids.shape, dtype=torch.int64)
    return *_fake_verify(target_logits, draft_token_ids), path


def _fake_draw(logits: Tensor, *_: Any, **__: Any) -> tuple[Tensor, ...]:
    return tuple(logits.new_empty(logits.shape[0], dtype=each) for each in (torch.int64, torch.float32, torch.bool))


def _fake_logprobs(logits: Tensor, token_ids: Tensor, num_top: int, *_: Any, **__: Any) -> tuple[Tensor, ...]:
    num_rows, num_found = logits.shape[0], min(num_top, logits.shape[1])
    return (
        logits.new_empty(num_rows, dtype=torch.float32),
        logits.new_empty((num_rows, num_found), dtype=torch.int64),
        logits.new_empty((num_rows, num_found), dtype=torch.float32),
        logits.new_empty(num_rows, dtype=torch.int64),
    )


class Operation(NamedTuple):
    """A schema, what it runs, and its fake kernel."""

    schema: str
    call: Callable[..., tuple[Tensor, ...]]
    fake: Callable[..., tuple[Tensor, ...]]


def _tensors(names: Sequence[str], prefix: str = "") -> str:
    """Those of a group, which must be given."""
    return ", ".join(f"Tensor {prefix}{name}" for name in names)


def _optional(names: Sequence[str], prefix: str = "", written: str = "") -> str:
    """Those that may be None; written into, each with a letter of its own, or read."""
    kinds = [f"Tensor({letter}!)?" for letter in written] or ["Tensor?"] * len(names)
    return ", ".join(f"{kind} {prefix}{name}=None" for kind, name in zip(kinds, names, strict=True))


_OF_ROWS = f"{_tensors(SAMPLING)}, {_tensors(STREAMS)}, bool truncates=True, bool is_mixed=False"
_MASKED = _optional(MASK, "mask_")
_COUNTERS = _optional(["counters"], written="z")
_DRAFT = ", ".join(
    [
        _optional(["draft_logits", "idx_mapping", "draft_to_target"]),
        _optional(STATS, "draft_"),
        _optional(MASK, "draft_mask_"),
        _optional(SAMPLING, "draft_"),
        "bool draft_truncates=True",
    ]
)
_VERIFY = (
    f"(Tensor target_logits, Tensor draft_token_ids, Tensor num_draft_tokens, *, {_OF_ROWS}, str method, "
    f"float[] parameters=[], {_DRAFT}, {_MASKED}, {_COUNTERS}"
)
_TREE = f'Tensor? parents=None, str siblings="{SiblingDraws.independent.value}"'
_VERIFIED = "Tensor token_ids, Tensor num_accepted, Tensor invalid"
_DRAWN = "(Tensor token_ids, Tensor logprobs, Tensor invalid)"
OPERATIONS = {
    "verify": Operation(f"{_VERIFY}) -> ({_VERIFIED})", _verify, _fake_verify),
    "verify_tree": Operation(f"{_VERIFY}, {_TREE}) -> ({_VERIFIED}, Tensor path)", _verify, _fake_verify_tree),
    "draw": Operation(
        f"(Tensor logits, *, {_OF_ROWS}, int purpose, Tensor? draft_to_target=None, "
        f"{_optional(STATS, written='abc')}, {_MASKED}, {_COUNTERS}) -> {_DRAWN}",
        _draw,
        _fake_draw,
    ),
    "coupled_draw": Operation(
        f"(Tensor logits, *, {_OF_ROWS}, SymInt vocab_size, Tensor? draft_to_target=None, {_MASKED}, {_COUNTERS}) "
        f"-> {_DRAWN}",
        _draw,
        _fake_draw,
    ),
    "logprobs": Operation(
        f"(Tensor logits, Tensor token_ids, SymInt num_top, *, {_optional(SAMPLING)}, bool truncates=True, {_MASKED}, "
        f"{_COUNTERS}) -> (Tensor token_logprob, Tensor top_token_ids, Tensor top_logprobs, Tensor rank)",
        _logprobs,
        _fake_logprobs,
    ),
}


def register() -> None:
    """Register the operations, unless the core has done so under its other name.

    Raises:
        ImportError: another version of the core has, with other arguments.
    """
    for name, operation in OPERATIONS.items():
        qualified = f"{NAMESPACE}::{name}"
        schema = torch._C.parse_schema(qualified + operation.schema)
        if hasattr(getattr(torch.ops, NAMESPACE), name):
            found = getattr(getattr(torch.ops, NAMESPACE), name).default._schema
            if found != schema:
                raise ImportError(
                    f"expected one version of the sampling core in a process, found two: {qualified} is registered as "
                    f"{found}; remove rejection-lab-core or rejection-lab, or install one version of both"
                )
            continue
        torch.library.define(qualified, operation.schema, tags=torch.Tag.pt2_compliant_tag)
        torch.library.impl(qualified, "default", operation.call)
        torch.library.register_fake(qualified, operation.fake)
