"""A Markov target and a Markov drafter in the place of networks: the whole engine runs, and the output's law is known.

The "hidden state" of a token is its one-hot vector, so that logits are rows of a table of log probabilities.
"""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Iterable, Mapping
from types import SimpleNamespace
from typing import Any

import torch
from scipy import stats
from torch import Tensor

from harness.config.sampling import SamplingSettings
from harness.drafters.chain import ChainDrafter, DrafterShape
from harness.drafters.draft_logits import AS_DRAFTED, Caching
from harness.drafters.none_run import NoDrafter
from harness.drafters.parallel import ParallelDrafter
from harness.drafters.protocol import Drafter
from harness.drafters.tree import TreeHeadDrafter
from harness.drafters.tree_growth import TreeShape
from harness.engine.depth import Depth
from harness.engine.engine import Engine
from harness.engine.request import Limits, Request
from harness.engine.settings import EngineSettings, draft_slack
from harness.models.head import HeadOutput
from harness.models.slot_cache import SlotCache
from harness.models.target import TargetOutput
from kernels.contract import DraftSampling, VerificationMethod
from kernels.core import Core
from kernels.methods import TreeMethod
from kernels.verification import probe

NO_EOS: frozenset[int] = frozenset()
LONGEST_PROMPT = 8


class ToyTarget:
    """logits(token) = log of the token's row of transition probabilities."""

    num_parameters = 0
    fallbacks: tuple[str, ...] = ()
    device = torch.device("cpu")
    is_recurrent = False

    def __init__(self, transitions: Tensor) -> None:
        self.log_transitions = transitions.log()
        self.vocab_size = transitions.shape[0]

    def fuse(self) -> None:
        """There are no layers."""

    def new_cache(self, num_slots: int, capacity: int, rewind: int = 0) -> SlotCache:
        return SlotCache(1, num_slots, capacity, 1, 1, torch.float32, torch.device("cpu"))

    def forward(self, token_ids: Tensor, positions: Tensor, view: object, aux_layers: tuple[int, ...] = ()):
        assert token_ids.shape == positions.shape
        return TargetOutput(torch.nn.functional.one_hot(token_ids, self.vocab_size).float(), ())

    def logits(self, hidden: Tensor, out: Tensor | None = None) -> Tensor:
        return self.log_transitions[hidden.argmax(-1)]


class ToyHead(ToyTarget):
    """The same for the drafter: pair t reads token x_{t+1} and predicts x_{t+2}."""

    aux_layers: tuple[int, ...] = ()
    features_are_hidden = False
    decoder_layers: tuple[object, ...] = ()

    def __init__(self, transitions: Tensor, draft_ids: Tensor | None = None) -> None:
        super().__init__(transitions)
        self.draft_to_target = draft_ids
        self._num_tokens = self.vocab_size
        self.hidden_size = self.vocab_size
        self._columns = torch.arange(self.vocab_size) if draft_ids is None else draft_ids
        self.vocab_size = len(self._columns)

    def logits(self, hidden: Tensor, out: Tensor | None = None) -> Tensor:
        return super().logits(hidden)[..., self._columns]

    def features(self, output: TargetOutput) -> Tensor:
        return output.hidden

    def __call__(
        self, token_ids: Tensor, features: Tensor, positions: Tensor, view: object, wanted: None = None
    ) -> HeadOutput:
        hidden = torch.nn.functional.one_hot(token_ids, self._num_tokens).float()
        return HeadOutput(hidden, hidden)


class ToyParallelHead(ToyHead):
    """The same; a masked pair goes on from a token that its position gives, whatever was drafted before it."""

    config = SimpleNamespace(mask_token_id=0)

    def mask_features(self) -> Tensor:
        return torch.zeros(1, 1, self._num_tokens)

    def __call__(
        self, token_ids: Tensor, features: Tensor, positions: Tensor, view: object, wanted: None = None
    ) -> HeadOutput:
        is_masked = features.sum(-1) == 0
        return super().__call__(torch.where(is_masked, positions % self._num_tokens, token_ids), features, positions, 0)


def transitions(vocab_size: int, seed: int, sharpness: float = 1.5) -> Tensor:
    """[V, V] rows of transition probabilities."""
    noise = torch.randn(vocab_size, vocab_size, generator=torch.Generator().manual_seed(seed))
    return (sharpness * noise).softmax(-1)


def toy_engine(
    target: Tensor,
    draft: Tensor,
    method: VerificationMethod | TreeMethod,
    draft_sampling: DraftSampling,
    *,
    num_speculative_tokens: int = 0,
    max_new_tokens: int,
    num_slots: int,
    tree: TreeShape | None = None,
    temperature: float = 1.0,
    eos_token_ids: frozenset[int] = NO_EOS,
    sampling: SamplingSettings | None = None,
    draft_ids: Tensor | None = None,
    drafter: Drafter | None = None,
    core: Core | None = None,
    caching: Caching = AS_DRAFTED,
    depth: Depth | None = None,
    parallel: bool = False,
    **options: Any,
) -> Engine:
    """An engine over the two chains, ready to run; `options` are fields of EngineSettings.

    parallel: whether all drafts of a round come from one forward.
    """
    num_speculative_tokens = num_speculative_tokens if tree is None else tree.num_nodes
    slack = draft_slack(num_speculative_tokens, graphs=options.get("graphs", False))
    capacity = LONGEST_PROMPT + max_new_tokens + slack
    shape = DrafterShape(num_slots, capacity, num_speculative_tokens, target.shape[0])
    settings = EngineSettings(
        num_slots=num_slots,
        capacity=capacity,
        num_speculative_tokens=num_speculative_tokens,
        sampling=sampling or SamplingSettings(temperature),
        verification=probe(method, num_speculative_tokens),
        limits=Limits(max_new_tokens, eos_token_ids),
        drafts_trees=tree is not None,
        **options,
    )
    if tree is not None and drafter is None:
        drafter = TreeHeadDrafter(ToyHead(draft, draft_ids), draft_sampling, shape, tree, caching)
    if parallel:
        drafter = ParallelDrafter(ToyParallelHead(draft, draft_ids), draft_sampling, shape, caching)
    if drafter is None and num_speculative_tokens:
        drafter = ChainDrafter(ToyHead(draft, draft_ids), draft_sampling, shape, caching)
    drafter = drafter or NoDrafter()
    return Engine(ToyTarget(target), drafter, settings, core, depth)


def toy_requests(count: int, first_seed: int = 0, prompt: tuple[int, ...] = (0,)) -> list[Request]:
    return [Request(str(index), "toy", 0, 0, first_seed + index, prompt) for index in range(count)]


def outputs(engine: Engine, requests: list[Request]) -> dict[str, tuple[int, ...]]:
    """Output tokens by prompt id."""
    run = engine.run(requests, lambda record: None)
    return {record.prompt_id: record.output_token_ids for record in run.requests}


def exact_law(target: Tensor, length: int) -> dict[tuple[int, ...], float]:
    """Probability of every sequence of `length` tokens after token 0."""
    law = {}
    for path in itertools.product(range(target.shape[0]), repeat=length):
        probability = 1.0
        for before, after in itertools.pairwise((0, *path)):
            probability *= float(target[before, after])
        law[path] = probability
    return law


def fits(sequences: Iterable[tuple[int, ...]], law: Mapping[tuple[int, ...], float]) -> float:
    """p-value of the chi-square test that sequences follow a law."""
    counts = Counter(sequences)
    total = sum(counts.values())
    assert all(law[path] > 0 for path in counts), "a sequence that the target cannot produce"
    # sequences too rare for the chi-square law are pooled into one cell
    common = [path for path, probability in law.items() if probability * total >= 5]
    observed, expected = [counts[path] for path in common], [law[path] * total for path in common]
    rest = total - sum(expected)
    if rest > 1:
        observed.append(total - sum(observed))
        expected.append(rest)
    scale = sum(observed) / sum(expected)
    return float(stats.chisquare(observed, [value * scale for value in expected]).pvalue)
