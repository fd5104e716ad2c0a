"""A check of a loaded model: its forwards over slots against its plain forward, on a few tokens.

Modeling code that keeps or masks by rules of its own may be silently wrong over slots. The probe reads prompts of
different lengths in one padded forward, drafts that are then rejected, and other tokens in their place, and compares
logits with those of the model's own attention over whole sequences. A model that attends in place is read so, too.

Shapes: B rows, L tokens of a row, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from harness.models.checkpoint import CheckpointError, reason_of

if TYPE_CHECKING:
    from harness.models.general.target import GeneralTarget

PROMPT_LENGTHS = (7, 4, 2)
NUM_DRAFTED = 4
LENGTH = max(PROMPT_LENGTHS) + 1 + NUM_DRAFTED
TOLERANCE, TOLERANCE_16_BITS = 2e-3, 0.06
"""Of the largest logit. Sums in another order differ by 1e-6 in float32; in 16 bits by a percent or two, and by more
where rounding sends a token to other experts, so that half of the tokens may differ by more."""


@torch.inference_mode()
def check_over_slots(target: GeneralTarget) -> None:
    """Compare a model's forwards over slots with its plain forward.

    Raises:
        CheckpointError: they disagree, or its code fails over slots.
    """
    kind = type(target.causal_lm).__name__
    with failing_code_told(kind, target.path or target.name):
        difference = difference_over_slots(target)
    tolerance = TOLERANCE if target.dtype.itemsize >= 4 else TOLERANCE_16_BITS
    # a NaN is no agreement
    if not difference <= tolerance:
        raise CheckpointError(
            f"{target.path or target.name}: expected logits over slots to be those of the plain forward of {kind}, "
            f"found them to differ by {difference:.2g} of the largest (allowed: {tolerance:g}) after prompts of "
            f"different lengths and rejected drafts; this architecture does not run here"
        )


@contextmanager
def failing_code_told(kind: str, source: object) -> Iterator[None]:
    """Turn what modeling code of a kind raises over slots into a CheckpointError that names it."""
    try:
        yield
    except CheckpointError:
        raise
    except Exception as error:
        raise CheckpointError(
            f"{source}: expected modeling code that runs over slots, found {kind} to fail in a forward of a few "
            f"tokens: {reason_of(error)}; this architecture does not run here"
        ) from error


def difference_over_slots(target: GeneralTarget) -> float:
    """The largest difference between logits, as a share of the largest logit; NaN where there is one."""
    ways = (False, True) if target.new_cache(1, 1).is_in_place else (False,)
    return float(torch.tensor([_difference(target, is_whole) for is_whole in ways]).max())


def _difference(target: GeneralTarget, is_whole: bool) -> float:
    """That of forwards which read all places of their slots, as steps of fixed sizes do, or those that are filled."""
    device, lengths = target.device, torch.tensor(PROMPT_LENGTHS, device=target.device)
    generator = torch.Generator().manual_seed(0)
    num_rows = len(PROMPT_LENGTHS)
    drawn = torch.randint(target.vocab_size, (2, num_rows, LENGTH), generator=generator).to(device)
    token_ids, wrong_ids = drawn
    plain = target.network.plain_logits(token_ids)[..., : target.vocab_size].float()
    # neither the first slots nor in order
    slots = torch.tensor([2, 0, 3], device=device)
    cache = target.new_cache(num_rows + 1, LENGTH if is_whole else LENGTH + 1, rewind=LENGTH)

    def read(given: Tensor, positions: Tensor) -> Tensor:
        view = cache.view(slots, positions, LENGTH if is_whole else int(positions.max()) + 1)
        return target.logits(target.forward(given, positions, view).hidden).float()

    columns = torch.arange(LENGTH, device=device).expand(num_rows, -1)
    prompts = columns[:, : max(PROMPT_LENGTHS)]
    is_padding = prompts >= lengths[:, None]
    found = read(token_ids[:, : prompts.shape[1]].masked_fill(is_padding, 0), prompts)
    differences = [_per_token(found, plain[:, : prompts.shape[1]])[~is_padding]]
    # the token after the prompt, and drafts that are all rejected
    round_positions = lengths[:, None] + torch.arange(NUM_DRAFTED, device=device)
    drafted = torch.cat([token_ids.gather(1, lengths[:, None]), wrong_ids[:, : NUM_DRAFTED - 1]], dim=1)
    read(drafted, round_positions)
    again = round_positions + 1
    found = read(token_ids.gather(1, again), again)
    wanted = plain.gather(1, again[..., None].expand(-1, -1, plain.shape[-1]))
    differences.append(_per_token(found, wanted).flatten())
    is_exact = target.dtype.itemsize >= 4
    largest = torch.stack([each.max() if is_exact else each.median() for each in differences]).max()
    return float(largest) / float(plain.abs().max().clamp_min(torch.finfo(torch.float32).tiny))


def _per_token(found: Tensor, wanted: Tensor) -> Tensor:
    """[B, L] largest difference of each token's logits; NaN where there is one."""
    return (found - wanted).abs().amax(dim=-1)
