"""Rounds of trees for the tests of the kernels: ragged, packed, slots in no order, and poison in what is not used."""

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from harness.config.tree import Tree
from kernels.contract import NO_TOKEN, Draft, Sampling, SiblingDraws, Streams, TokenMask, Verification
from kernels.contract import VerificationResult as Verdict
from kernels.launch.workspace import Workspace
from kernels.methods import TreeMethod, VerificationMethod
from kernels.reference.draw_children import draw_children
from kernels.reference.tree_shape import branches, depths
from kernels.reference.truncation import sampling_rows
from kernels.reference.verify import verify as reference_verify
from tests.support.kernel_rounds import DEVICE, RUBBISH, moved, random_words, streams_of
from tests.support.random_round import PLAIN, Setting, sampling_of

TREE_RATES = ((0.5, 0.2, 0.1), (0.1, 0.7), (0.9,), (0.2, 0.6))
"""Of synthetic acceptance, by depth and child."""
AnyMethod = TreeMethod | VerificationMethod


@dataclass(frozen=True)
class TreeRound:
    """The arguments of one verification."""

    rows: Tensor
    draft: Draft
    sampling: Sampling
    streams: Streams
    mask: TokenMask | None = None

    def expected(self, method: AnyMethod = TreeMethod.recursive) -> Verdict:
        """What the reference finds."""
        return reference_verify(*self._arguments(method), mask=self.mask)

    def found(self, workspace: Workspace | None = None, method: AnyMethod = TreeMethod.recursive) -> Verdict:
        """What the kernels find."""
        from kernels.verify import verify

        return verify(*self._arguments(method), workspace=workspace, mask=self.mask)

    def _arguments(self, method: AnyMethod) -> tuple[Tensor, Draft, Sampling, Verification, Streams]:
        given = {"tree_rates": TREE_RATES} if method.traits.ignores_tokens else {}
        rule = Verification(method, **given)
        return self.rows, self.draft, self.sampling, rule, self.streams


def assert_same(found: Verdict, expected: Verdict) -> None:
    for name in ("token_ids", "path", "num_accepted", "invalid"):
        assert getattr(found, name).tolist() == getattr(expected, name).tolist(), name


def checked(batch: TreeRound, method: AnyMethod = TreeMethod.recursive) -> Verdict:
    """The verdict of the kernels, which is the reference's; the workspace is left as it was found."""
    workspace = Workspace()
    found = batch.found(workspace, method)
    assert workspace.busy_counters() == []
    assert_same(found, batch.expected(method))
    return found


def masked(batch: TreeRound) -> TreeRound:
    """The round with most of its target rows masked, and half of its draft rows: these allow all that was drafted."""
    words = random_words(8, batch.rows.shape[1], torch.Generator().manual_seed(1))
    rows = (2 + torch.arange(len(batch.rows), device=DEVICE) % 7) % 8
    assert batch.draft.logits is not None
    of_drafts, inside = words.clone(), batch.draft.token_ids.cpu().flatten()
    for token in inside[(inside >= 0) & (inside < batch.rows.shape[1])].tolist():
        of_drafts[:, token // 32] |= torch.tensor(1 << (token % 32)).to(torch.int32)
    places = torch.arange(batch.draft.logits.shape[0] * batch.draft.logits.shape[1], device=DEVICE)
    of_cache = torch.where(places % 2 == 0, 2 + places % 6, -1).view(batch.draft.logits.shape[:2])
    mask = TokenMask(words.to(DEVICE), torch.where(rows < 2, -1, rows))
    return replace(batch, mask=mask, draft=replace(batch.draft, mask=TokenMask(of_drafts.to(DEVICE), of_cache)))


def check_in_a_graph(batch: TreeRound, method: TreeMethod) -> None:
    """Capture the kernels once, and play them for other streams; the verdicts are the reference's."""
    workspace = Workspace()
    assert_same(batch.found(workspace, method), batch.expected(method))
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        found = batch.found(workspace, method)
    for position in (3, 70_000):
        batch.streams.positions.fill_(position)
        graph.replay()
        assert_same(found, batch.expected(method))
    assert workspace.busy_counters() == []


def tree_round(
    settings: list[Setting],
    shapes: list[Tree | None],
    vocab_size: int,
    siblings: SiblingDraws,
    dtype: torch.dtype = torch.float32,
    one_hot: bool = False,
    padded: bool = False,
    error: float = 1.0,
    seed: int = 0,
    device: torch.device = DEVICE,
) -> TreeRound:
    """Trees whose children are drawn from their cached rows, near enough to the targets to be accepted at times.

    Args:
        settings: temperature, top-k, top-p and min-p of each request.
        shapes: of each request; None is a padded slot.
        vocab_size: V.
        siblings: how they are drawn.
        dtype: of all logits.
        one_hot: no cache of logits.
        padded: the target rows of a request start at a multiple of K + 1; packed else.
        error: of the draft rows, in logits.
        seed: of everything.
        device: where it lies.
    """
    generator = torch.Generator().manual_seed(seed)
    count, width = len(shapes), max(len(shape or ()) for shape in shapes)
    sampling, streams = sampling_of(*settings), streams_of(count, seed)
    sampling = replace(sampling, truncates=any(each[1:] != PLAIN[1:] for each in settings))
    mapping = torch.randperm(count + 2, generator=generator)[:count]
    cache = torch.full((count + 2, width + 1, vocab_size), torch.nan, dtype=dtype)
    token_ids, parents = torch.full((count, width), RUBBISH), torch.full((count, width), -1)
    target = torch.full((count, width + 1, vocab_size), torch.nan, dtype=dtype)
    for request, shape in enumerate(shapes):
        if shape is None:
            continue
        one = torch.tensor([request])
        levels = depths(torch.tensor([shape or [-1]]))
        at_branch = branches(levels)
        rows = 3 * torch.randn(len(shape) + 1, vocab_size, generator=generator)
        target[request, : len(shape) + 1] = rows.to(dtype)
        parents[request, : len(shape)] = torch.tensor(shape, dtype=torch.int64)
        for node in range(-1, len(shape)):
            children = [place for place, parent in enumerate(shape) if parent == node]
            if not children:
                continue
            noise = torch.randn(vocab_size, generator=generator)
            cache[mapping[request], children[0]] = (rows[node + 1] + error * noise).to(dtype)
            here = Streams(streams.seeds[one], streams.positions[one] + levels[0, node + 1], streams.rounds[one])
            row = cache[mapping[one], children[0]]
            drawn = draw_children(row, sampling_rows(sampling, one), here, siblings, at_branch[:, children])
            is_absent = node >= 0 and int(token_ids[request, node]) == NO_TOKEN
            token_ids[request, children] = NO_TOKEN if is_absent else drawn[0]
    counts = torch.tensor([-1 if shape is None else len(shape) for shape in shapes])
    kept = torch.arange(width + 1) <= (counts if not padded else torch.full_like(counts, width))[:, None]
    draft = Draft(
        token_ids,
        counts,
        None if one_hot else cache,
        None if one_hot else mapping,
        parents=parents,
        siblings=siblings,
    )
    batch = TreeRound(target[kept], draft, sampling, streams)
    return TreeRound(*(moved(each, device) for each in (batch.rows, batch.draft, batch.sampling, batch.streams)))
