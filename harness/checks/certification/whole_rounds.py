"""One round of toy requests of a subject whose code drafts, calls both models and verifies in one call.

Some packages have no verification that takes rows: their step gets the models and a context, one request at a time.
Here it gets the toy pair as two models, and the law of what it emits is tested as that of any subject.
"""

from __future__ import annotations

import torch
from torch import Tensor

from harness.checks.certification.slot_table import SlotTable
from harness.checks.certification.subject import EmittedTokens, ModelRound, Subject
from harness.config.schema import SettingsError
from kernels.contract import VerificationResult

PROMPT = (0,)
"""A token that leaves a toy pair in the state in which requests begin."""


class ToyModel:
    """A toy model as packages call one; answers are kept, because requests share a few short contexts."""

    def __init__(self, rows: Tensor) -> None:
        """Args:
        rows: [C, V] float32, logits after each state.
        """
        self.rows, self.known = rows, dict[tuple[int, ...], Tensor]()

    def __call__(self, token_ids: Tensor) -> Tensor:
        """[1, n] int64 -> [1, n, V], the logits of the token after each."""
        context = tuple(token_ids[0].tolist())
        if context not in self.known:
            state, states = 0, []
            for token_id in context:
                state = (state * self.rows.shape[1] + token_id) % len(self.rows)
                states.append(state)
            self.known[context] = self.rows[states][None]
        return self.known[context]


def simulate_whole_round(subject: Subject, table: SlotTable, slots: Tensor) -> None:
    """One round of those of some slots that are busy, one request after another."""
    run_round = getattr(subject, "run_round", None)
    if run_round is None:
        raise SettingsError("--subject: expected run_round of a subject whose features say whole_rounds, found none")
    slots = slots[table.is_busy(slots)]
    if table.num_rounds == 0:
        torch.manual_seed((table.seed + int(table.requests[0])) % 2**63)
    table.num_rounds += 1
    depth, width = table.depth, table.depth + 1
    models = ToyModel(table.target_rows), ToyModel(table.draft_rows)
    temperatures = table.sampling(slots).temperature.tolist()
    written, counts = table.tokens[slots].tolist(), table.num_emitted[slots].tolist()
    tokens, accepted, num_emitted, num_faults = [], [], [], 0
    for row, count, temperature in zip(written, counts, temperatures, strict=True):
        context = torch.tensor([[*PROMPT, *row[:count]]])
        found = run_round(ModelRound(*models, context, depth, temperature, table.case.verification))
        num_faults += not is_sound(found, depth, table.models.num_ids)
        emitted = found.token_ids[:width] or [0]
        tokens.append([*emitted, *[-1] * (width - len(emitted))])
        accepted.append(found.num_accepted)
        num_emitted.append(len(emitted))
    table.tallies[0] += num_faults
    num_accepted = torch.tensor(accepted)
    verdict = VerificationResult(torch.tensor(tokens), num_accepted, torch.zeros_like(num_accepted, dtype=torch.bool))
    table.commit(slots, verdict, torch.full_like(num_accepted, depth), torch.tensor(num_emitted))


def is_sound(found: EmittedTokens, depth: int, num_ids: int) -> bool:
    """Whether a round emitted tokens of the vocabulary, no more than it may, and counts no more drafts than tokens."""
    token_ids, num_accepted = found
    counts = 0 <= num_accepted <= min(depth, len(token_ids)) and 0 < len(token_ids) <= depth + 1
    return counts and all(0 <= token_id < num_ids for token_id in token_ids)
