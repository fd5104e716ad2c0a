"""Random layouts of calls of the sampling core: sizes, types, strides, and which arguments are given at all."""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import log2
from random import Random

from harness.checks.agreement.config import ALL_METHODS, AgreementConfig
from harness.config.cli.methods import method_of
from kernels.methods import DraftSampling, Method, SiblingDraws, TreeMethod, VerificationMethod, methods_with

MAX_LOGITS = 2**23
"""Of the target in one call: the reference makes several float64 copies of them."""

TREES = 0.25
"""Of the layouts with draft tokens."""
OF_TREES = (*TreeMethod, *sorted(methods_with(lambda traits: traits.siblings), key=lambda method: method.value))
"""Methods that verify trees."""


@dataclass(frozen=True)
class Layout:
    """What changes the code of a kernel, or how it is launched."""

    method: Method
    """One for trees where drafts are trees."""
    dtype: str
    num_requests: int
    num_draft_tokens: int
    vocab_size: int
    num_draft_ids: int
    """V_draft."""
    is_mapped: bool
    """The drafter's ids are not the first of the target's."""
    is_one_hot: bool
    is_packed: bool
    keeps_stats: bool
    has_slots: bool
    """Slots are found through idx_mapping."""
    is_masked: bool
    truncates: bool
    is_mixed: bool
    spacing: int
    """Elements between two rows."""
    offset: int
    """Elements in front of the first row, which decide what it is aligned to."""
    siblings: SiblingDraws | None = None
    """How verification is told that the children of a node were drawn; None: chains."""

    @property
    def name(self) -> str:
        fields = {name: value for name, value in vars(self).items() if name not in ("method", "dtype")}
        return f"{self.method.value}, {self.dtype}, " + ", ".join(f"{name} {each}" for name, each in fields.items())

    @property
    def shares_noise(self) -> bool:
        return self.method.traits.decided_by_noise


def _size(random: Random, largest: int) -> int:
    """A size up to the largest, small ones as often as large ones."""
    return min(largest, int(2 ** random.uniform(0.0, log2(largest + 1))))


def _drawn_from(config: AgreementConfig) -> tuple[tuple[str, ...], tuple[Method, ...]]:
    """Names of methods for chains, and methods for trees: those that were asked for, or all there are."""
    if config.methods == ALL_METHODS:
        return (*config.chain_methods, VerificationMethod.greedy.value), OF_TREES
    return tuple(config.chain_methods), tuple(method for method in OF_TREES if method.value in config.methods)


def random_layout(config: AgreementConfig, random: Random) -> Layout:
    """A layout within the sizes of the settings, of the methods that were asked for."""
    chains, trees = _drawn_from(config)
    width = random.randint(0 if chains else 1, config.draft_tokens)
    largest = config.vocab_size
    vocab_size = max(2, random.choice((largest, largest - 1, _size(random, largest), _size(random, largest))))
    if random.random() < 0.4:
        # Whole vectors of any type.
        vocab_size = min(largest, vocab_size + -vocab_size % 16)
    num_requests = _size(random, max(1, min(config.requests, MAX_LOGITS // (vocab_size * (width + 1)))))
    is_smaller = random.random() < 0.4
    truncates = random.random() < 0.5
    layout = Layout(
        method=method_of(random.choice(chains)) if chains else trees[0],
        dtype=random.choice(config.dtypes),
        num_requests=num_requests,
        num_draft_tokens=width,
        vocab_size=vocab_size,
        num_draft_ids=random.randint(1, vocab_size) if is_smaller else vocab_size,
        is_mapped=is_smaller and random.random() < 0.7,
        is_one_hot=random.random() < 0.25,
        is_packed=random.random() < 0.4,
        keeps_stats=random.random() < 0.7,
        has_slots=random.random() < 0.8,
        is_masked=random.random() < 0.3,
        truncates=truncates,
        is_mixed=truncates and random.random() < 0.4,
        spacing=random.choice((0, 0, 1, 16)),
        offset=random.choice((0, 0, 0, 1)),
    )
    if width == 0 or not trees or (chains and random.random() >= TREES):
        return layout
    method = random.choice(trees)
    is_one_hot = layout.is_one_hot and DraftSampling.greedy in method.traits.draft_samplings
    return replace(layout, method=method, siblings=random.choice(method.traits.siblings), is_one_hot=is_one_hot)
