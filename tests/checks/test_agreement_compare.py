"""Comparing cores: what is counted, that a wrong core is found out, and the entry point with its report."""

import json
import re
from dataclasses import replace
from typing import Any

import pytest
import torch
from scipy import stats

from experiments.agreement import main
from harness.checks.agreement.compare import compare_draw, compare_verify, num_accept_decisions
from harness.checks.agreement.config import AgreementConfig, Candidate
from harness.checks.agreement.counts import ROUNDING, Agreement, Disagreement, total
from harness.checks.agreement.rates import excessive_rates, lower_bound, upper_bound
from harness.checks.agreement.report import headline, is_green
from harness.checks.agreement.round_inputs import DrawInputs
from harness.checks.agreement.rows import DraftedRound, RoundShape, drafted_round
from harness.checks.agreement.run import Case, CaseResult, cases_of, compare_case
from harness.config.device import Device
from harness.config.schema import SettingsError
from kernels.contract import Draft, Sampling, Streams, Verification, VerificationResult
from kernels.core import Core, reference_core
from kernels.random.streams import gumbel
from kernels.reference.draw import draw
from kernels.reference.truncation import process
from kernels.reference.verify import verify
from tests.support.random_round import PLAIN, SAMPLED_METHODS, SHARES_NOISE, Method, sampling_of, verification_of

ALL_BUT_GREEDY = pytest.mark.parametrize("method", SAMPLED_METHODS, ids=lambda method: method.value)


def batch_of(seed: int = 0, vocab_size: int = 400, **settings) -> DraftedRound:
    shape = RoundShape(64, 3, vocab_size, torch.bfloat16, **settings)
    return drafted_round(shape, reference_core(), torch.Generator().manual_seed(seed))


@ALL_BUT_GREEDY
def test_a_core_agrees_with_itself(method: Method):
    batch, core = batch_of(shared_noise=method in SHARES_NOISE), reference_core()
    found = compare_verify(core, core, batch.inputs, verification_of(method))
    accepted = core.verify(
        batch.inputs.target_logits,
        batch.inputs.draft,
        batch.inputs.sampling,
        verification_of(method),
        batch.inputs.streams,
    ).num_accepted
    assert found.num_disagreements == 0
    if method is Method.coupled:
        assert (found.num_accept_decisions, found.num_tokens) == (0, 64 + int(accepted.sum()))
    else:
        assert found.num_tokens == 64
    if method not in (Method.coupled, Method.block):
        assert found.num_accept_decisions == int((accepted + 1).clamp(max=3).sum())


def test_decisions_of_block_are_those_about_the_last_accepted_token_and_behind():
    lengths, accepted = torch.tensor([3, 3, 3, 3, 0, 1]), torch.tensor([0, 1, 2, 3, 0, 1])
    assert num_accept_decisions(lengths, accepted, Method.block) == 3 + 3 + 2 + 1 + 0 + 1
    assert num_accept_decisions(lengths, accepted, Method.probabilistic) == 1 + 2 + 3 + 3 + 0 + 1


def broken_verify(
    target_logits: torch.Tensor,
    draft: Draft,
    sampling: Sampling,
    verification: Verification,
    streams: Streams,
    **others,
) -> VerificationResult:
    """Verification that forgets the draft distribution."""
    return verify(target_logits, replace(draft, logits=None), sampling, verification, streams, **others)


def later_draw(logits, sampling, streams, purpose, draft_to_target=None, row_stats=None, **others):
    """A draw from another round's numbers."""
    streams = Streams(streams.seeds, streams.positions, streams.rounds + 1)
    return draw(logits, sampling, streams, purpose, draft_to_target, row_stats, **others)


def cooler_draw(logits, sampling, streams, purpose, draft_to_target=None, row_stats=None, **others):
    """A draw at a temperature that is 0.1 % off."""
    cooler = replace(sampling, temperature=sampling.temperature * 0.999)
    return draw(logits, cooler, streams, purpose, draft_to_target, row_stats, **others)


def test_a_wrong_verification_is_found_out():
    broken = replace(reference_core(), verify=broken_verify)
    found = compare_verify(broken, reference_core(), batch_of().inputs, verification_of(Method.probabilistic))
    assert found.num_unexplained > 0
    assert found.num_accept_disagreements > 0
    assert found.num_unexplained == sum(each.margin > ROUNDING for each in found.disagreements)


@pytest.mark.parametrize("wrong", [later_draw, cooler_draw], ids=["other numbers", "temperature slightly off"])
def test_a_wrong_draw_is_found_out(wrong):
    broken: Core = replace(reference_core(), draw=wrong)
    unexplained = 0
    for seed in range(5):
        unexplained += compare_draw(broken, reference_core(), batch_of(seed).drafts).num_unexplained
    assert unexplained > 0


def test_counts_add_up_and_know_what_is_explained():
    inside = Agreement(5, 2, (Disagreement("verify", True, (1,), (2,), ROUNDING / 2),))
    outside = Agreement(3, 1, (Disagreement("draw", False, (1,), (2,), float("inf")),))
    both = total([inside, outside])
    assert (both.num_decisions, both.num_disagreements, both.num_unexplained) == (11, 2, 1)
    assert (both.num_accept_disagreements, both.num_token_disagreements) == (1, 1)
    assert (inside.largest_margin, outside.largest_margin) == (ROUNDING / 2, float("inf"))
    with pytest.raises(ValueError, match="expected at most one disagreement a decision, found 1 in 0"):
        Agreement(0, 0, inside.disagreements)


@pytest.mark.parametrize(("count", "trials"), [(0, 20), (3, 20), (20, 20)])
def test_bounds_are_the_rates_that_leave_the_count_a_probability_of_5_percent(count: int, trials: int):
    """Would catch bounds of two sides, and counts that are off by one."""
    upper, lower = upper_bound(count, trials), lower_bound(count, trials)
    assert upper == 1.0 if count == trials else stats.binom.cdf(count, trials, upper) == pytest.approx(0.05)
    assert lower == 0.0 if count == 0 else stats.binom.sf(count - 1, trials, lower) == pytest.approx(0.05)


def test_nothing_is_known_of_a_rate_that_was_never_looked_at():
    assert (lower_bound(0, 0), upper_bound(0, 0)) == (0.0, 1.0)


def result_of(found: Agreement) -> CaseResult:
    return CaseResult(Case(Method.probabilistic, "bfloat16", "none", 1.0), found, Agreement(), 0.0)


def agreement_of(accept: tuple[int, int], tokens: tuple[int, int]) -> Agreement:
    """So many disagreements of so many decisions, all within rounding."""
    kinds = [True] * accept[0] + [False] * tokens[0]
    return Agreement(accept[1], tokens[1], tuple(Disagreement("verify", kind, (1,), (2,), 1e-8) for kind in kinds))


@pytest.mark.parametrize(
    ("accept", "tokens", "green"),
    [
        ((0, 525_854), (46, 1_232_899), True),
        ((0, 500), (1, 1_000), True),
        ((0, 0), (0, 1), True),
        ((20, 525_854), (0, 1_232_899), False),
        ((0, 525_854), (800, 1_232_899), False),
        ((0, 40), (4, 160), False),
    ],
    ids=["as measured", "once in a short run", "hardly anything", "accepts too often", "draws too often", "short run"],
)
def test_rates_of_what_rounding_explains_are_held_to_limits(accept, tokens, green: bool):
    assert is_green([result_of(agreement_of(accept, tokens))], []) == green


def test_a_rate_that_one_case_hides_in_many_is_found():
    cases = [result_of(agreement_of((0, 2_000), (0, 5_000))) for _ in range(200)]
    assert is_green(cases, [])
    assert len(excessive_rates([*cases, result_of(agreement_of((0, 2_000), (30, 5_000)))])) == 1


def late_draw(logits, sampling, streams, purpose, draft_to_target=None, row_stats=None, **others):
    """A draw that gives the id after the drawn one wherever that is improbable: every margin is within rounding."""
    found = draw(logits, sampling, streams, purpose, draft_to_target, row_stats, **others)
    late = (found.logprobs.exp() < 1.9e-5) & (found.token_ids + 1 < logits.shape[1])
    return replace(found, token_ids=found.token_ids + late)


def test_a_draw_that_is_wrong_only_where_rounding_explains_it_fails():
    config = AgreementConfig(core=Candidate.reference, device=Device.cpu, vocab_size=60_000, requests=32)
    case = Case(Method.strict, "bfloat16", "none", 1.0)
    assert is_green([compare_case(case, config, reference_core(), 200)], [])
    found = compare_case(case, config, replace(reference_core(), draw=late_draw), 200)
    assert found.agreement.num_disagreements > 0
    assert found.agreement.num_unexplained == 0
    assert not is_green([found], [])


@pytest.mark.parametrize(("gap", "explained"), [(2e-6, False), (2e-10, True)], ids=["float32 noise", "float64 noise"])
def test_coupled_draws_must_agree_in_float64(gap: float, explained: bool):
    """Both cores weigh noise in float64: would catch noise that is rounded to float32."""
    zeros = torch.zeros(1, dtype=torch.long)
    streams = Streams(zeros, zeros, zeros)
    logits = torch.tensor([[0.0, gap, -1.0]], dtype=torch.float64) - gumbel(zeros, zeros, 3)

    def second_best(*arguments, **others):
        best = reference_core().coupled_draw(*arguments, **others)
        return replace(best, token_ids=best.token_ids - 1)

    core = replace(reference_core(), coupled_draw=second_best)
    found = compare_draw(core, reference_core(), DrawInputs(logits, sampling_of(PLAIN), streams, None, 3))
    assert [each.found for each in found.disagreements] == [(0,)]
    assert [each.expected for each in found.disagreements] == [(1,)]
    assert found.largest_margin == pytest.approx(gap, rel=1e-4)
    assert found.num_unexplained == (0 if explained else 1)


def test_rows_look_like_a_language_model_s():
    """Less entropy than a flat row's 10 nats, and drafts of which most are accepted, some not."""
    batch = batch_of(vocab_size=20_000)
    logprobs = process(batch.drafts.logits, batch.drafts.sampling)
    entropy = -(logprobs.exp() * logprobs).sum(dim=1)
    assert 2 < float(entropy.mean()) < 6
    assert float(entropy.max()) < 9
    inputs = batch.inputs
    accepted = verify(
        inputs.target_logits, inputs.draft, inputs.sampling, Verification(Method.probabilistic), inputs.streams
    ).num_accepted
    assert 1 < float(accepted.double().mean()) < 2.9


def test_a_case_does_not_depend_on_the_other_cases():
    config = AgreementConfig(core=Candidate.reference, device=Device.cpu, vocab_size=100, requests=8, draft_tokens=2)
    case = cases_of(config)[3]
    first, second = (compare_case(case, config, reference_core(), 30) for _ in range(2))
    assert first.agreement == second.agreement
    assert first.agreement.num_decisions >= 30


def test_entry_point_writes_a_report(tmp_path, capsys):
    settings = {
        "core": "reference",
        "device": "cpu",
        "methods": "probabilistic,coupled",
        "truncations": "none,all",
        "dtypes": "float32",
        "temperatures": "1",
        "vocab_size": "100",
        "requests": "8",
        "decisions": "200",
        "law_vocab_size": "500",
        "law_draws": "50",
        "output": str(tmp_path / "found"),
    }
    assert main([f"--{key.replace('_', '-')}={value}" for key, value in settings.items()]) == 0
    record = json.loads((tmp_path / "found" / "agreement.json").read_text())
    assert record["total"]["num_unexplained"] == 0
    assert record["total"]["num_decisions"] >= 200
    assert len(record["cells"]) == 4
    assert record["provenance"]["python"]
    page = (tmp_path / "found" / "report.md").read_text()
    assert "| probabilistic |" in page and "| Zipf | bfloat16 | top-p | 2 |" in page
    assert "0 unexplained" in page
    told = "the reference against itself: checks this command, not the kernels"
    assert told in page and told in capsys.readouterr().out


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"dtypes": ("float64",)}, "--dtypes: expected some of bfloat16, float16, float32, found 'float64'"),
        ({"methods": ("greedy",)}, "--methods: greedy decides nothing"),
        ({"truncations": ()}, "--truncations: expected some of none, top-p, top-k, min-p, all, found nothing"),
        ({"temperatures": (1.0, 0.0)}, "--temperatures: expected numbers in (0, 100), found [1.0, 0.0]"),
        ({"vocab_size": 300_000}, "--vocab-size: expected at most 262144"),
        ({"decisions": 0}, "--decisions: expected 1 or more, found 0"),
        ({"output": ""}, "--output: expected a folder, found nothing"),
    ],
    ids=lambda item: next(iter(item)) if isinstance(item, dict) else None,
)
def test_settings_that_cannot_be_are_named(settings: dict[str, Any], message: str):
    with pytest.raises(SettingsError, match=re.escape(message)):
        AgreementConfig(**settings)


def test_triton_on_a_cpu_needs_the_interpreter(monkeypatch, capsys):
    """Would catch the traceback of a driver that is not there."""
    monkeypatch.delenv("TRITON_INTERPRET", raising=False)
    assert main(["--core=triton", "--device=cpu"]) == 2
    assert "expected TRITON_INTERPRET=1 in the environment on a CPU, found none" in capsys.readouterr().err


def test_without_a_gpu_nothing_is_compared_unless_a_core_is_given(monkeypatch, capsys, tmp_path):
    """Would catch a green outcome of the reference compared with itself."""
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert main([f"--output={tmp_path / 'found'}"]) == 2
    told = capsys.readouterr()
    assert "--core auto: expected a GPU, found a CPU" in told.err and told.out == ""
    for way in ("triton with TRITON_INTERPRET=1", "--core reference to check the command only"):
        assert way in told.err
    assert not (tmp_path / "found").exists()


def test_only_the_reference_is_said_to_be_compared_with_itself():
    assert headline("reference", [], []).startswith("the reference against itself")
    assert "itself" not in headline("triton", [], [])
