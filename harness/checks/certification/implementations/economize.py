"""economize's `rejection` verifier, of chains and of trees, with drafts by the verifier and its samplers.

    pip download --no-deps economize==0.3.2
    PYTHONPATH=economize-0.3.2-py3-none-any.whl rejection-lab certify --subject economize

As its decoding loop does, requests that sample alike form a group with one selector: `TopPSampler` with temperature and
top-p of its own, `GreedySelector` at temperature 0. Where a batch takes top-k or min-p, which economize leaves to
transformers, target rows arrive processed and drafts are not truncated.

Siblings of a tree are drawn by the reference, because economize's own trees (Medusa's) take the best tokens; the law of
each, given those before it, is worked out here, as the verifier asks. Padded slots are left out before economize.
"""

from __future__ import annotations

from collections.abc import Iterator
from types import ModuleType
from typing import Any

import torch
from torch import Tensor

from harness.checks.certification.implementations.kernel_package import import_modules, version_of
from harness.checks.certification.implementations.probabilities import (
    GREEDY,
    SAMPLED,
    Method,
    drawn,
    no_coupled_draw,
)
from harness.checks.certification.subject import Features, Functions
from kernels.contract import NO_TOKEN, Draft, Drawn, Sampling, Streams, Verification, VerificationResult
from kernels.methods import SiblingDraws, TreeMethod
from kernels.random.streams import Purpose
from kernels.reference.tree_shape import first_siblings
from kernels.reference.truncation import process, sampling_rows

GET = "pip download --no-deps economize==0.3.2"
VERIFIERS, SELECTORS = "economize.decoding.verifiers", "economize.decoding.selectors"
PROTOCOLS, CONFIG = "economize.decoding.protocols", "economize.decoding.config"
FEATURES = Features(
    methods=frozenset({Method.probabilistic, TreeMethod.recursive}),
    draft_samplings=frozenset({GREEDY, SAMPLED}),
    dtypes=frozenset({torch.float32}),
    narrow_draft=False,
    padded_rows=False,
    remark="temperature and top-p by its own sampler, for drafts too; with top-k or min-p target rows arrive processed "
    "and drafts are not truncated; padded slots are left out before economize; random numbers from its generators",
)


def rejection_verifier(device: torch.device) -> Functions:
    """The subject; raises SettingsError where economize is missing."""
    core = EconomizeCore(device, *import_modules("economize", (VERIFIERS, SELECTORS, PROTOCOLS, CONFIG), GET))
    return Functions(f"economize {version_of('economize')}", core.verify, core.draw, no_coupled_draw, FEATURES)


class EconomizeCore:
    """The verifier, and the selectors of a batch's requests, which live as long as the batch."""

    def __init__(
        self,
        device: torch.device,
        verifiers: ModuleType,
        selectors: ModuleType,
        protocols: ModuleType,
        config: ModuleType,
    ) -> None:
        self.verifier = verifiers.RejectionVerifier(config.DecodeConfig(verifier="rejection"))
        self.make_draft, self.selectors, self.device = protocols.Draft, selectors, device
        self.known: dict[tuple[float, float], Any] = {}

    def draw(
        self,
        logits: Tensor,
        sampling: Sampling,
        streams: Streams,
        purpose: Purpose,
        draft_to_target: Tensor | None = None,
    ) -> Drawn:
        """The next draft of every request."""
        self._seed(streams)
        token_ids = torch.empty(len(logits), dtype=torch.long, device=logits.device)
        probs = torch.empty_like(logits, dtype=torch.float32)
        for selector, rows in self._groups(sampling, cuts_itself(sampling)):
            token_ids[rows], probs[rows] = self.verifier.draft_many(logits[rows], selector)
        return drawn(token_ids, probs)

    def verify(
        self, target_logits: Tensor, draft: Draft, sampling: Sampling, verification: Verification, streams: Streams
    ) -> VerificationResult:
        """The end of a round."""
        if draft.parents is not None:
            self._seed(streams)
        present = (draft.num_draft_tokens >= 0).nonzero()[:, 0]
        counts, num_rows, width = draft.num_draft_tokens[present], *draft.token_ids.shape
        own, own_cut = sampling_rows(sampling, present), cuts_itself(sampling)
        columns = torch.arange(width + 1, device=target_logits.device)
        is_row = columns <= counts[:, None]
        if not own_cut:
            request = torch.arange(len(present), device=target_logits.device).repeat_interleave(counts + 1)
            target_logits = process(target_logits, sampling_rows(own, request)).float()
        logits = torch.zeros(len(present), width + 1, target_logits.shape[1], device=target_logits.device)
        logits[is_row] = target_logits
        probs = None if draft.logits is None else self._draft_probs(draft, present, own, own_cut)
        token_ids = draft.token_ids[present].masked_fill(columns[:-1] >= counts[:, None], -1)
        emitted = torch.full((num_rows, width + 1), -1, device=token_ids.device)
        num_accepted = torch.zeros_like(draft.num_draft_tokens)
        path = None if draft.parents is None else torch.full_like(draft.token_ids, -1)
        for selector, rows in self._groups(own, own_cut, is_processed=not own_cut):
            given = self.make_draft(
                token_ids[rows], counts[rows].tolist(), probs=None if probs is None else probs[rows]
            )
            parents = None if draft.parents is None else draft.parents[present[rows]]
            places, following = self._verify_alike(logits[rows], given, parents, selector)
            accepted = (places >= 0).sum(dim=1)
            kept = token_ids[rows].gather(1, places.clamp(min=0)).masked_fill(places < 0, -1)
            kept = torch.nn.functional.pad(kept, (0, 1), value=-1)
            emitted[present[rows]] = kept.scatter(1, accepted[:, None], following[:, None])
            num_accepted[present[rows]] = accepted
            if path is not None:
                path[present[rows]] = places
        invalid = torch.zeros_like(num_accepted, dtype=torch.bool)
        return VerificationResult(emitted, num_accepted, invalid, path=path)

    def _verify_alike(self, logits: Tensor, given: Any, parents: Tensor | None, selector: Any) -> tuple[Tensor, Tensor]:
        """([r, K] int64 accepted places and -1 beyond them, [r] the token after them) of requests of one selector."""
        width = given.tokens.shape[1]
        if parents is None:
            # the sequences are read by selectors that look at them, which these do not
            accepted, following = self.verifier.verify_batch(logits, given, selector, given.tokens, [])
            columns = torch.arange(width, device=logits.device)
            return torch.where(columns < accepted[:, None], columns, -1), following
        given.parents = _without_missing(parents, given.tokens)
        paths, following = self.verifier.verify_tree(logits, given, selector)
        places = [[*path, *[-1] * (width - len(path))] for path in paths]
        return torch.tensor(places, device=logits.device), torch.tensor(following, device=logits.device)

    def _draft_probs(self, draft: Draft, present: Tensor, own: Sampling, own_cut: bool) -> Tensor:
        """[r, K, V] float32, what each draft token of the present requests was drawn from; 0 where there is none."""
        assert draft.logits is not None
        slots = present if draft.idx_mapping is None else draft.idx_mapping[present]
        rows = draft.logits[slots].nan_to_num()
        if draft.parents is not None:
            return _sibling_probs(rows, draft, present, own)
        probs = torch.empty_like(rows, dtype=torch.float32)
        for selector, members in self._groups(own, own_cut):
            probs[members] = selector.distributions(rows[members])
        return probs

    def _groups(self, sampling: Sampling, own_cut: bool, is_processed: bool = False) -> Iterator[tuple[Any, Tensor]]:
        """The selectors of a batch and the rows of their requests."""
        ways = torch.stack(
            [sampling.temperature, sampling.top_p if own_cut else torch.ones_like(sampling.top_p)], dim=1
        )
        for temperature, top_p in ways.unique(dim=0).tolist():
            rows = (ways == torch.tensor([temperature, top_p], device=ways.device)).all(dim=1).nonzero()[:, 0]
            # processed rows are over their temperature already
            yield self._selector(1.0 if is_processed and temperature > 0 else temperature, top_p), rows

    def _selector(self, temperature: float, top_p: float) -> Any:
        if temperature == 0:
            return self.selectors.GreedySelector()
        if (temperature, top_p) not in self.known:
            seed = int(torch.randint(2**62, ()))
            self.known[temperature, top_p] = self.selectors.TopPSampler(temperature, top_p, seed, self.device)
        return self.known[temperature, top_p]

    def _seed(self, streams: Streams) -> None:
        """New selectors when a batch begins, so that a case does not depend on what ran before it.

        Never between the drafts of a chain and their verification, which would then take the same random numbers.
        """
        if bool((streams.rounds == 1).all()) and len(streams.rounds):
            torch.manual_seed(int(streams.seeds[0] ^ streams.positions[0]))
            self.known.clear()


def cuts_itself(sampling: Sampling) -> bool:
    """Whether economize's sampler has all that the requests ask for."""
    return not bool(((sampling.top_k > 0) | (sampling.min_p > 0)).any())


def _sibling_probs(rows: Tensor, draft: Draft, present: Tensor, own: Sampling) -> Tensor:
    """[r, K, V] float32, the law of each node given the siblings before it, as the reference draws them.

    Args:
        rows: [r, K, V], draft logits; those of siblings are at the first of them.
        draft: the round's trees.
        present: [r] int64, rows of the batch.
        own: the parameters of those requests.
    """
    assert draft.parents is not None
    num_requests, width, size = rows.shape
    token_ids, first = draft.token_ids[present].clamp(min=0), first_siblings(draft.parents[present])
    request = torch.arange(num_requests, device=rows.device).repeat_interleave(width)
    probs = process(rows.view(-1, size), sampling_rows(own, request)).float().softmax(dim=-1).view_as(rows)
    probs = probs.gather(1, first[..., None].expand_as(probs))
    drafted = torch.nn.functional.one_hot(token_ids, size)
    if draft.siblings is SiblingDraws.distinct:
        for place in range(1, width):
            same = first[:, :place] == first[:, place, None]
            taken = (drafted[:, :place] * same[..., None]).any(dim=1)
            probs[:, place] = probs[:, place].masked_fill(taken, 0.0)
        probs = probs / probs.sum(dim=2, keepdim=True)
    return torch.where(own.temperature[:, None, None] == 0, drafted.float(), probs)


def _without_missing(parents: Tensor, token_ids: Tensor) -> Tensor:
    """[r, K] parents; a place where nothing was drafted becomes its own parent, so that no walk comes to it."""
    places = torch.arange(parents.shape[1], device=parents.device)
    return torch.where(token_ids == NO_TOKEN, places, parents)
