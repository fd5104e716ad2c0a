"""Drafters that are no part of the harness, as a user would name them: drafter=tests.support.own_drafters:NAME."""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from harness.config.drafter import DrafterConfig
from harness.drafters.draft_logits import DraftLogits
from harness.drafters.protocol import Batch, Drafter, StatelessDrafter
from harness.drafters.registry import DrafterSetup
from kernels.contract import Draft

NUMBER = 7


class LastToken(StatelessDrafter):
    """Repeats the last token."""

    can_be_captured = True

    def __init__(self, setup: DrafterSetup) -> None:
        """It needs nothing of the setup."""

    def propose(self, batch: Batch) -> Draft:
        last = batch.token_ids.gather(1, batch.lengths.unsqueeze(1) - 1)
        token_ids = last.expand(-1, batch.num_speculative_tokens).contiguous()
        return Draft(token_ids, torch.full_like(batch.lengths, batch.num_speculative_tokens))


@dataclass(frozen=True)
class Repeats(DrafterConfig):
    """Repeats the last token, so many times at most."""

    most: int = 2
    """Draft tokens of a round."""

    def __post_init__(self) -> None:
        if self.most < 1:
            raise ValueError(f"drafter.most: expected 1 or more, found {self.most}")

    def build(self, setup: DrafterSetup) -> Drafter:
        return FewTokens(setup, self.most)


class FewTokens(LastToken):
    """Repeats the last token so many times at most."""

    def __init__(self, setup: DrafterSetup, most: int) -> None:
        super().__init__(setup)
        self._most = most

    def propose(self, batch: Batch) -> Draft:
        draft = super().propose(batch)
        return replace(draft, num_draft_tokens=draft.num_draft_tokens.clamp(max=self._most))


class FixedLogits(StatelessDrafter):
    """Draws every token from the same distribution, and has parameters and a cache."""

    def __init__(self, setup: DrafterSetup) -> None:
        size, device = setup.target.vocab_size, setup.target.device
        self._row = torch.linspace(-1, 1, size).to(device)
        self.num_parameters = size
        logits_size = setup.shape.logits_size(size)
        self._logits = DraftLogits(
            setup.draft_sampling, logits_size, size, None, self._row.dtype, device, setup.caching
        )
        self.logit_cache_bytes = self._logits.num_bytes

    def propose(self, batch: Batch) -> Draft:
        rows: Tensor = self._row.expand(batch.num_rows, -1)
        drafted = [self._logits.draw(rows, batch, step) for step in range(batch.num_speculative_tokens)]
        return self._logits.draft(drafted, batch)


class CannotBeMade(LastToken):
    """Fails while it is made."""

    def __init__(self, setup: DrafterSetup) -> None:
        raise OSError("no such table")


class NoDraft(LastToken):
    """Returns token ids instead of a Draft."""

    def propose(self, batch: Batch) -> list[int]:  # type: ignore[override]
        return [1] * batch.num_speculative_tokens


class TooWide(LastToken):
    """Drafts a token more than its batch asks for."""

    def propose(self, batch: Batch) -> Draft:
        return super().propose(replace(batch, num_speculative_tokens=batch.num_speculative_tokens + 1))


class OutsideVocabulary(LastToken):
    """Drafts a token that the target does not have, in the second place."""

    def __init__(self, setup: DrafterSetup) -> None:
        self._outside = setup.target.vocab_size

    def propose(self, batch: Batch) -> Draft:
        draft = super().propose(batch)
        draft.token_ids[:, 1] = self._outside
        return draft


class Placeholder(LastToken):
    """Drafts -1 where it has no token, instead of a shorter draft."""

    def propose(self, batch: Batch) -> Draft:
        draft = super().propose(batch)
        draft.token_ids[:, -1] = -1
        return draft


class LessThanNone(LastToken):
    """Drafts a negative number of tokens."""

    def propose(self, batch: Batch) -> Draft:
        return Draft(super().propose(batch).token_ids, torch.full_like(batch.lengths, -1))


class MoreThanAsked(LastToken):
    """Counts two draft tokens more than it returns."""

    def propose(self, batch: Batch) -> Draft:
        draft = super().propose(batch)
        return replace(draft, num_draft_tokens=draft.num_draft_tokens + 2)


class NarrowLogits(FixedLogits):
    """Gives logits of too few tokens."""

    def propose(self, batch: Batch) -> Draft:
        draft = super().propose(batch)
        assert draft.logits is not None
        return replace(draft, logits=draft.logits[..., :-100].contiguous())


class WholeLogits(FixedLogits):
    """Gives logits that are whole numbers."""

    def propose(self, batch: Batch) -> Draft:
        draft = super().propose(batch)
        assert draft.logits is not None
        return replace(draft, logits=draft.logits.to(torch.int32))


class NoNumbers(FixedLogits):
    """Gives logits that are no numbers."""

    def propose(self, batch: Batch) -> Draft:
        draft = super().propose(batch)
        assert draft.logits is not None
        return replace(draft, logits=torch.full_like(draft.logits, torch.nan), row_stats=None)


class RubbishBehind(LastToken):
    """Drafts one token; what lies behind it is no token."""

    def propose(self, batch: Batch) -> Draft:
        draft = super().propose(batch)
        draft.token_ids[:, 1:] = 10**12
        return Draft(draft.token_ids, torch.ones_like(batch.lengths))


class LogitsOfCertain(LastToken):
    """Gives logits with greedy drafts, which are one-hot."""

    def __init__(self, setup: DrafterSetup) -> None:
        self._vocab_size = setup.target.vocab_size

    def propose(self, batch: Batch) -> Draft:
        logits = torch.zeros(batch.num_rows, batch.num_speculative_tokens, self._vocab_size)
        return replace(super().propose(batch), logits=logits)


class Incomplete:
    """Lacks most of the protocol."""

    aux_layers = ()

    def __init__(self, setup: DrafterSetup) -> None:
        """See above."""

    def propose(self, batch: Batch) -> Draft:
        raise NotImplementedError


def broken(setup: DrafterSetup) -> LastToken:
    """Fails while it makes its drafter."""
    raise RuntimeError("no such file")
