"""A draft-logit cache of another type than the drafter's logits: settings, the distribution drawn from, reports."""

from dataclasses import replace

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from harness.config.backend import Local
from harness.config.cell import CellConfig, InvalidCombinationError
from harness.config.drafter import DrafterKind, drafter_of
from harness.config.drafting import CacheDtype, DraftingConfig, DraftSamplingChoice, DrawnFrom
from harness.config.guarantee import OTHER_DRAFTS, guarantee, labels
from harness.config.identity import determinants
from harness.config.sampling import SamplingSettings
from harness.config.sections import DecodingConfig
from harness.config.usage import normal_form, without_effect
from harness.drafters.draft_logits import Caching
from harness.drafters.registry import caching_of
from harness.engine.engine import Engine
from harness.records.acceptance_terms import collect_terms
from kernels.contract import DraftSampling, VerificationMethod
from kernels.core import Core, reference_core
from kernels.verification import Verification
from tests.support.toy_markov import ToyHead, outputs, toy_engine, toy_requests, transitions

Method = VerificationMethod
HALF = Caching(torch.bfloat16, draws_unrounded=False)
HALF_UNROUNDED = Caching(torch.bfloat16, draws_unrounded=True)


def cell(
    dtype="auto",
    drawn="stored",
    *,
    method=Method.probabilistic,
    kind=DrafterKind.eagle3,
    sampling="auto",
    of_drafter="float32",
    temperature=1.0,
):
    drafting = DraftingConfig(4, DraftSamplingChoice(sampling), CacheDtype(dtype), DrawnFrom(drawn))
    return CellConfig(
        drafter=drafter_of(kind),
        drafting=drafting,
        decoding=DecodingConfig(temperature=temperature),
        verification=Verification(method),
        backend=Local(dtype=of_drafter),
    )


ONE_CELL = {
    "a type that is the drafter's own": (cell(), cell("float32")),
    "unrounded logits of an exact cache": (cell(), cell("float32", "unrounded")),
    "unrounded logits of the drafter's own type": (
        cell(of_drafter="bfloat16"),
        cell("bfloat16", "unrounded", of_drafter="bfloat16"),
    ),
    "unrounded logits of a wider cache": (
        cell("float32", of_drafter="float16"),
        cell("float32", "unrounded", of_drafter="float16"),
    ),
    "greedy drafts": (cell(sampling="greedy"), cell("bfloat16", "unrounded", sampling="greedy")),
    "ngram": (cell(kind=DrafterKind.ngram), cell("float16", "unrounded", kind=DrafterKind.ngram)),
}


@pytest.mark.parametrize("name", ONE_CELL)
def test_what_cannot_differ_is_one_cell(name):
    first, second = ONE_CELL[name]
    assert normal_form(first) == normal_form(second) and determinants(first) == determinants(second)
    assert labels(second) == ()


def test_caches_that_differ_are_cells_of_their_own():
    """A wider cache holds the same values in more memory; two types of one size round differently."""
    cells = [cell(dtype, drawn) for dtype in ("auto", "bfloat16", "float16") for drawn in ("stored", "unrounded")]
    assert len({repr(determinants(item)) for item in cells}) == 5
    assert determinants(cell("float32", of_drafter="bfloat16")) != determinants(cell(of_drafter="bfloat16"))


@pytest.mark.parametrize("kept", [item for item in Method if item not in (Method.greedy, Method.synthetic)])
def test_only_methods_that_compare_with_the_cache_are_biased(kept):
    sampled = {"method": kept, "sampling": "coupled" if kept in (Method.coupled, Method.pr35461) else "sampled"}
    biased = {Method.probabilistic, Method.block, Method.lenient, Method.fly, Method.pr35461}
    assert (guarantee(cell("bfloat16", "unrounded", **sampled)).value == "biased") is (kept in biased)
    assert (OTHER_DRAFTS in labels(cell("bfloat16", "unrounded", **sampled))) is (kept in biased)
    assert guarantee(cell("bfloat16", **sampled)) is guarantee(cell(**sampled))
    at_zero = cell("bfloat16", "unrounded", temperature=0.0, **sampled)
    assert guarantee(at_zero) is guarantee(cell(**sampled)), "at temperature 0 nothing is compared"


def test_a_type_needs_to_know_what_it_rounds():
    with pytest.raises(InvalidCombinationError, match=r"give backend\.dtype too"):
        cell("bfloat16", of_drafter="auto")
    cell("bfloat16", of_drafter="auto", sampling="greedy")


def test_settings_without_effect_are_named():
    assert without_effect(["drafting.cache_dtype"], [cell(sampling="greedy")])
    assert without_effect(["drafting.drawn_from"], [cell("float32", "unrounded")])
    assert without_effect(["drafting.cache_dtype", "drafting.drawn_from"], [cell("float16", "unrounded")]) is None


def test_a_cell_says_how_its_logits_are_kept():
    assert caching_of(cell()) == Caching() == caching_of(cell("auto", "unrounded"))
    assert caching_of(cell("bfloat16", "unrounded")) == HALF_UNROUNDED
    assert caching_of(cell("float32", "unrounded")) == Caching(torch.float32)


class CopiesOf(TorchDispatchMode):
    """Counts copies of matrices of so many columns."""

    def __init__(self, num_columns: int) -> None:
        super().__init__()
        self.num_columns, self.number = num_columns, 0

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        if function is torch.ops.aten.copy_.default and args[0].dim() == 2:
            self.number += args[0].shape[1] == self.num_columns
        return function(*args, **(kwargs or {}))


def engine_of(
    caching: Caching, sampling=DraftSampling.sampled, method=Method.probabilistic, core: Core | None = None, **options
):
    return toy_engine(
        transitions(9, seed=1),
        transitions(9, seed=2),
        method,
        sampling,
        num_speculative_tokens=3,
        max_new_tokens=7,
        num_slots=4,
        sampling=SamplingSettings(0.4),
        draft_ids=torch.tensor([0, 2, 3, 5, 8]),
        core=core,
        caching=caching,
        **options,
    )


def seen_by_the_core(caching: Caching, sampling: DraftSampling) -> tuple[list, list, Engine]:
    """(logits of each draw, drafts of each verification, the engine) of a run; copies."""
    drawn, drafts = [], []
    right = reference_core()

    def draw(logits, *rest, **options):
        drawn.append(logits.clone())
        return right.draw(logits, *rest, **options)

    def coupled_draw(logits, *rest, **options):
        drawn.append(logits.clone())
        return right.coupled_draw(logits, *rest, **options)

    def verify(target_logits, draft, *rest, **options):
        rows = None if engine.drafter.drawn_rows is None else engine.drafter.drawn_rows.clone()
        if draft.token_ids.shape[1]:
            drafts.append((replace(draft, logits=draft.logits.clone()), rows, drawn[-3].clone()))
        return right.verify(target_logits, draft, *rest, **options)

    method = Method.strict if sampling is DraftSampling.coupled else Method.probabilistic
    core = replace(right, draw=draw, coupled_draw=coupled_draw, verify=verify)
    engine = engine_of(caching, sampling, method, core)
    engine.run(toy_requests(5), lambda record: None)
    return drawn, drafts, engine


@pytest.mark.parametrize("sampling", [DraftSampling.sampled, DraftSampling.coupled], ids=lambda item: item.value)
def test_drafts_are_drawn_from_what_is_cached(sampling):
    """Would catch the bug of the kind that it is about: another distribution drawn from than verified with."""
    drawn, drafts, engine = seen_by_the_core(HALF, sampling)
    assert {logits.dtype for logits in drawn} == {torch.bfloat16} and engine.drafter.drawn_rows is None
    for draft, _, first_step in drafts:
        assert draft.logits.dtype is torch.bfloat16
        assert draft.logits[:, 0].equal(first_step)


@pytest.mark.parametrize("sampling", [DraftSampling.sampled, DraftSampling.coupled], ids=lambda item: item.value)
def test_unrounded_drafts_leave_the_rounded_cache_and_no_statistics(sampling):
    drawn, drafts, engine = seen_by_the_core(HALF_UNROUNDED, sampling)
    assert {logits.dtype for logits in drawn} == {torch.float32}
    for draft, rows, first_step in drafts:
        assert draft.row_stats is None, "those of the draw would be of other values"
        assert rows[: len(first_step)].equal(first_step), "of the first position"
        assert draft.logits.dtype is torch.bfloat16 and draft.logits[:, 0].equal(first_step.bfloat16())
    assert any(not first_step.equal(first_step.bfloat16().float()) for _, _, first_step in drafts)
    assert engine.drafter.logit_cache_bytes == 4 * 3 * 5 * 2


def test_memory_is_that_of_the_type():
    full, half = (engine_of(caching).drafter.logit_cache_bytes for caching in (Caching(), HALF))
    assert full - half == 4 * 3 * 5 * 2


def test_a_cache_that_holds_every_value_changes_no_token():
    """float32 logits in a float32 cache, drawn either way; and a method that reads no cache, however it rounds."""
    requests = toy_requests(8)
    exact = outputs(engine_of(Caching()), requests)
    assert outputs(engine_of(Caching(torch.float32, True)), requests) == exact
    strict = [outputs(engine_of(item, method=Method.strict), requests) for item in (Caching(), HALF_UNROUNDED)]
    assert strict[0] == strict[1]


@pytest.mark.parametrize("caching", [Caching(), HALF, HALF_UNROUNDED], ids=["own", "stored", "unrounded"])
@pytest.mark.parametrize("sampling", DraftSampling, ids=lambda item: item.value)
def test_a_drafter_may_write_its_logits_into_the_cache(sampling, caching, monkeypatch):
    """Only where the cache holds them as they are; the drafts are those of a drafter whose logits are copied."""
    method = Method.strict if sampling is DraftSampling.coupled else Method.probabilistic
    expected = outputs(engine_of(caching, sampling, method), toy_requests(5))
    plain, written = ToyHead.logits, []

    def logits(head, hidden, out=None):
        found = plain(head, hidden)
        if out is None:
            return found
        written.append(out)
        return torch.add(found, 0, out=out)

    with CopiesOf(5) as before:
        outputs(engine_of(caching, sampling, method), toy_requests(5))
    monkeypatch.setattr(ToyHead, "logits", logits)
    with CopiesOf(5) as copies:
        assert outputs(engine_of(caching, sampling, method), toy_requests(5)) == expected
    assert bool(written) == (caching == Caching() and sampling is not DraftSampling.greedy)
    assert copies.number == before.number - len(written), "nothing is copied that was written there"


@pytest.mark.parametrize("method", [Method.probabilistic, Method.block, Method.strict], ids=lambda item: item.value)
@pytest.mark.parametrize("caching", [HALF, HALF_UNROUNDED], ids=["stored", "unrounded"])
def test_bias_and_bound_are_recorded(caching, method):
    """Would catch a bias beyond its bound, one of drafts that are drawn from the cache, and rows of another round."""
    engine = engine_of(caching, method=method, expected_acceptance=True, round_terms=True)
    terms = collect_terms("x", engine.run(toy_requests(8), lambda record: None).terms).values
    assert ("draft_tv" in terms) is caching.draws_unrounded
    assert ("output_tv" in terms) is not (caching.draws_unrounded and method is Method.block)
    if caching.draws_unrounded:
        assert 1e-4 < terms["draft_tv"].max() < 0.05
    if caching.draws_unrounded and method is Method.probabilistic:
        assert (terms["output_tv"] <= terms["draft_tv"] + 1e-12).all() and terms["output_tv"].max() > 1e-5
    elif "output_tv" in terms:
        assert not terms["output_tv"].any()
