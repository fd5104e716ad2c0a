"""The built-in models, and a random P-EAGLE head, through the local backend, in float32 on a CPU."""

from dataclasses import replace

import pytest

from harness.backends.local.local import LocalBackend
from harness.backends.local.model_store import ModelStore
from harness.config.backend import Local
from harness.config.cell import CellConfig
from harness.config.drafter import DrafterKind, drafter_of
from harness.config.drafting import DraftingConfig
from harness.config.models import Weights
from harness.config.sections import DecodingConfig
from harness.config.tree import depths_of, read_tree
from harness.config.workload import WorkloadConfig
from harness.workload.conversations import conversations, load_prompts
from kernels.contract import Guarantee, VerificationMethod
from kernels.methods import TreeMethod
from kernels.verification import Verification

DRAFTERS = [
    DrafterKind.eagle,
    DrafterKind.eagle3,
    DrafterKind.mtp,
    DrafterKind.draft_model,
    DrafterKind.ngram,
    DrafterKind.peagle,
    DrafterKind.dflash,
    DrafterKind.self_speculation,
    DrafterKind.medusa,
    DrafterKind.dspark,
    DrafterKind.dflash2,
]
GIVEN = {
    DrafterKind.self_speculation: {"skip_layers": (3, 6)},
    **{
        kind: {"weights": Weights.random}
        for kind in (DrafterKind.dflash, DrafterKind.medusa, DrafterKind.dspark, DrafterKind.dflash2)
    },
}
"""Settings that a drafter needs."""
LOSSLESS = [method for method in VerificationMethod if method.traits.guarantee is Guarantee.lossless]


@pytest.fixture(scope="module")
def store() -> ModelStore:
    return ModelStore()


def cell(
    drafter: DrafterKind,
    method: VerificationMethod | TreeMethod = VerificationMethod.probabilistic,
    *,
    temperature: float = 0.0,
    num_prompts: int = 3,
    max_new_tokens: int = 20,
    max_concurrency: int = 3,
    num_turns: int = 1,
    graphs: bool | None = None,
    fused: bool | None = None,
    tree: str | None = None,
) -> CellConfig:
    return CellConfig(
        drafter=drafter_of(drafter, **GIVEN.get(drafter, {})),
        drafting=DraftingConfig(4, tree=tree),
        decoding=DecodingConfig(temperature=temperature, max_new_tokens=max_new_tokens),
        verification=Verification(method),
        workload=WorkloadConfig(num_prompts=num_prompts, num_turns=num_turns),
        backend=Local(device="cpu", dtype="float32", max_concurrency=max_concurrency, graphs=graphs, fused=fused),
    )


def run(config: CellConfig, store: ModelStore):
    played = conversations(load_prompts(config.workload, config.seed), config.workload, config.seed)
    return LocalBackend(config, store).generate(played).requests


def texts(config: CellConfig, store: ModelStore):
    return {(item.prompt_id, item.turn): item.output_token_ids for item in run(config, store)}


@pytest.fixture(scope="module")
def stores() -> dict[bool, ModelStore]:
    """Fused or not -> models, so that they are loaded once for each."""
    return {}


@pytest.fixture(scope="module")
def baseline(store):
    return texts(cell(DrafterKind.none), store)


@pytest.mark.parametrize(
    ("drafter", "method"),
    [
        *((drafter, VerificationMethod.probabilistic) for drafter in DRAFTERS),
        *((DrafterKind.eagle, method) for method in LOSSLESS if method is not VerificationMethod.probabilistic),
    ],
    ids=lambda item: item.value,
)
def test_greedy_decoding_emits_the_baselines_tokens(drafter, method, store, baseline):
    """Would catch a wrong position, a cache row that was not rolled back, a tie broken differently."""
    assert texts(cell(drafter, method), store) == baseline


@pytest.mark.parametrize(
    ("drafter", "tree", "method"),
    [
        (DrafterKind.eagle, "[-1,-1,-1,0,0,1,3,6]", TreeMethod.recursive),
        (DrafterKind.eagle3, "3-2", TreeMethod.traversal),
        (DrafterKind.mtp, "2-1-1", TreeMethod.kseq),
        (DrafterKind.draft_model, "[-1,-1,-1,0,0,1,3,6]", TreeMethod.traversal),
        (DrafterKind.self_speculation, "2-2", TreeMethod.recursive),
    ],
    ids=lambda item: getattr(item, "value", item),
)
def test_trees_emit_the_baselines_tokens_in_no_more_rounds_than_chains_of_their_depth(
    drafter, tree, method, store, baseline
):
    """At temperature 0. Would catch a node that is read at another position, or behind another one than it follows."""
    found = run(cell(drafter, method, tree=tree), store)
    assert {(item.prompt_id, item.turn): item.output_token_ids for item in found} == baseline
    chain = run(cell(drafter, method, tree="-".join("1" * max(depths_of(read_tree(tree, 0, 32))))), store)
    rounds = [sum(len(item.rounds) for item in records) for records in (found, chain)]
    assert rounds[0] <= rounds[1] < sum(len(tokens) for tokens in baseline.values())


@pytest.mark.parametrize("fused", [False, True], ids=["layers of transformers", "fused layers"])
@pytest.mark.parametrize(
    ("drafter", "tree"),
    [
        (DrafterKind.eagle, "[-1,-1,-1,0,0,1,3,6]"),
        (DrafterKind.eagle3, "dynamic:6-3-3"),
        (DrafterKind.mtp, "3-2"),
        (DrafterKind.draft_model, "2-1-1"),
        (DrafterKind.medusa, "3-2"),
        (DrafterKind.lookahead, "dynamic:20-6-10"),
    ],
    ids=lambda item: getattr(item, "value", item),
)
def test_trees_in_steps_of_fixed_sizes_emit_the_baselines_tokens(drafter, tree, fused, stores, baseline):
    """As many rounds too as operation by operation: would catch a node that is never accepted, as it stands wrongly."""
    store = stores.setdefault(fused, ModelStore())
    config = cell(drafter, TreeMethod.recursive, tree=tree, max_concurrency=2)
    found = run(replace(config, backend=replace(config.backend, graphs=True, fused=fused)), store)
    assert {(item.prompt_id, item.turn): item.output_token_ids for item in found} == baseline
    alone = run(config, stores.setdefault(False, ModelStore()))
    assert [len(item.rounds) for item in found] == [len(item.rounds) for item in alone]


@pytest.mark.parametrize("fused", [False, True], ids=["layers of transformers", "fused layers"])
@pytest.mark.parametrize("drafter", [DrafterKind.none, *DRAFTERS], ids=lambda item: item.value)
def test_steps_of_fixed_sizes_emit_the_baselines_tokens(drafter, fused, stores, baseline):
    """Prompts cut into rows beside decoding rows, idle rows on the spare slot: what CUDA graphs hold, run on a CPU."""
    store = stores.setdefault(fused, ModelStore())
    assert texts(cell(drafter, graphs=True, fused=fused, max_concurrency=2), store) == baseline


@pytest.mark.parametrize("drafter", [DrafterKind.none, *DRAFTERS], ids=lambda item: item.value)
def test_batch_size_changes_no_greedy_token(drafter, store, baseline):
    """The baseline and the same drafters beside other requests are compared above: here each request runs alone."""
    assert texts(cell(drafter, max_concurrency=1), store) == baseline


def test_the_second_turn_reads_the_models_own_first_answer(store):
    records = run(cell(DrafterKind.eagle, num_prompts=2, num_turns=2), store)
    by_turn = {(item.prompt_id, item.turn): item for item in records}
    assert sorted(turn for _, turn in by_turn) == [0, 0, 1, 1]
    for prompt_id in {item.prompt_id for item in records}:
        first, second = by_turn[prompt_id, 0], by_turn[prompt_id, 1]
        assert second.num_prompt_tokens > first.num_prompt_tokens + len(first.output_token_ids) - 1
        assert second.seed != first.seed


@pytest.mark.parametrize(
    ("drafter", "least"),
    [(DrafterKind.eagle3, 1.9), (DrafterKind.eagle, 1.9), (DrafterKind.mtp, 1.8), (DrafterKind.draft_model, 1.8)],
    ids=lambda item: getattr(item, "value", str(item)),
)
def test_drafters_fit_their_target(drafter, least, store):
    """A head fed the wrong pair or feature keeps the law and loses the acceptance: far below what was measured."""
    records = run(cell(drafter, temperature=1.0, num_prompts=12, max_new_tokens=32, max_concurrency=12), store)
    rounds = [item for record in records for item in record.rounds if item.num_draft_tokens]
    assert 1 + sum(item.num_accepted_tokens for item in rounds) / len(rounds) > least
