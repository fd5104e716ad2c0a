"""Penalties in front of a verification, whose work is timed and whose result is the same.

The strengths are so small that rounding leaves every logit of 16 bits as it was, and moves one of float32 by 2^-23 of
itself: the same rows are edited again and again, and the verdict is compared with the reference of the rows as they
were. Every request's text is as many distinct tokens as the case says, half of them its prompt.

Shapes: R requests, K the number of draft tokens.
"""

from __future__ import annotations

from collections.abc import Callable

import torch

from harness.checks.agreement.round_inputs import RoundInputs
from harness.checks.kernel_bench.case import Case
from kernels.contract import LogitEdits, Texts, TokenTally
from kernels.core import Core

NEXT_TO_ONE, NEARLY_NOTHING = 1 + 2.0**-23, 1e-30
SECTOR_BYTES = 32
"""That one logit takes of memory, read and written."""


def edit_of(case: Case, core: Core, inputs: RoundInputs) -> Callable[[], None]:
    """The call that edits the target rows of a case."""
    num_requests, device = case.num_requests, inputs.target_logits.device
    generator = torch.Generator(device).manual_seed(case.edited_tokens)
    order = torch.rand(num_requests, case.vocab_size, generator=generator, device=device)
    token_ids = order.topk(case.edited_tokens, dim=1).indices
    numbers = torch.full((num_requests,), case.edited_tokens, device=device)
    texts = Texts(token_ids, numbers, numbers // 2)
    floats = torch.ones(num_requests, device=device)
    none = torch.full((num_requests, 1), -1, dtype=torch.int32, device=device)
    edits = LogitEdits(
        repetition_penalty=floats * NEXT_TO_ONE,
        frequency_penalty=floats * NEARLY_NOTHING,
        presence_penalty=floats * NEARLY_NOTHING,
        min_tokens=torch.zeros_like(numbers),
        token_ids=none,
        biases=none.float(),
        ends=none > 0,
    )
    tally = TokenTally.empty(num_requests, 1 + case.edited_tokens + case.width, device)
    arguments = inputs.draft.token_ids, torch.ones_like(numbers), texts, edits, tally
    return lambda: core.edit_logits(inputs.target_logits, *arguments)


def edited_bytes(case: Case) -> int:
    """What an edit moves of the rows: of each token a sector, read and written."""
    return 2 * SECTOR_BYTES * case.edited_tokens * case.num_target_rows
