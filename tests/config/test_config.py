"""The settings of a cell: what is refused, and what `auto`, synthetic rates and labels become."""

import re
from itertools import pairwise

import pytest
from omegaconf import OmegaConf

from harness.config.backend import Local
from harness.config.cell import CellConfig, InvalidCombinationError
from harness.config.constraint import constraint_of
from harness.config.drafter import DrafterKind, drafter_of
from harness.config.drafting import MAX_SPECULATIVE_TOKENS, DraftingConfig, DraftSamplingChoice
from harness.config.guarantee import labels
from harness.config.models import TargetConfig, Weights
from harness.config.sections import DecodingConfig, MeasurementConfig
from harness.config.workload import WorkloadConfig
from kernels.contract import DraftSampling, VerificationMethod
from kernels.methods.acceptance_profiles import PROFILES, AcceptanceProfile
from kernels.verification import Verification
from kernels.verify import MAX_COUNT_DRAFTS

pytestmark = pytest.mark.fast

METHODS = list(VerificationMethod)
INF, NAN = float("inf"), float("nan")
RANDOM = Weights.random
PROFILE = AcceptanceProfile.round_eagle_k3
SHAPED = TargetConfig(shape="llama3_8b", weights=RANDOM)


def synthetic(**given):
    return Verification(VerificationMethod.synthetic, **given)


def cell(drafter="eagle3", method="probabilistic", sampling="auto", temperature=1.0, **others):
    parameters = {"rates": (0.5,)} if method == "synthetic" else {}
    return CellConfig(
        drafter=drafter_of(DrafterKind[drafter]),
        drafting=DraftingConfig(others.pop("num_tokens", 4), DraftSamplingChoice[sampling]),
        decoding=DecodingConfig(temperature=temperature),
        verification=others.pop("verification", Verification(VerificationMethod[method], **parameters)),
        **others,
    )


def of_yaml(text):
    """The section decoding of a file of YAML."""
    return OmegaConf.to_object(OmegaConf.merge(OmegaConf.structured(DecodingConfig), OmegaConf.create(text)))


@pytest.mark.parametrize(
    ("build", "message"),
    [
        (lambda: DecodingConfig(temperature=-0.1), "decoding.temperature: expected 0, or a positive number"),
        (lambda: DecodingConfig(temperature=float("nan")), "decoding.temperature: expected 0, or a positive number"),
        (lambda: DecodingConfig(temperature=1e-46), "decoding.temperature: expected 0, or a positive number"),
        (lambda: DecodingConfig(temperature=1e300), "decoding.temperature: expected 0, or a positive number"),
        (lambda: DecodingConfig(top_k=-1), "decoding.top_k"),
        (lambda: DecodingConfig(top_k=2**31), "decoding.top_k"),
        (lambda: DecodingConfig(top_p=1e-46), "decoding.top_p"),
        (lambda: DecodingConfig(top_p=0.0), "decoding.top_p"),
        (lambda: DecodingConfig(min_p=1.0), "decoding.min_p"),
        (lambda: DecodingConfig(max_new_tokens=0), "decoding.max_new_tokens"),
        (lambda: DecodingConfig(stop=["a", ""]), "decoding.stop: expected strings of one character or more"),
        (lambda: DecodingConfig(stop=["a", "a"]), "decoding.stop: expected each string once"),
        (lambda: DecodingConfig(stop=["\udc80"]), "decoding.stop: expected strings of whole characters"),
        (lambda: DecodingConfig(stop=[["a"]]), "decoding.stop: expected text in quotation marks"),
        (lambda: of_yaml("stop: [12:30]"), "are numbers and no is false, found 750"),
        (lambda: of_yaml("stop: [no]"), "are numbers and no is false, found False"),
        (lambda: of_yaml("logit_bias: 11:50"), "are numbers and no is false, found '710'"),
        (
            lambda: DecodingConfig(stop=["\ufffd"]),
            "decoding.stop: expected strings of whole characters, without U+FFFD",
        ),
        (lambda: DecodingConfig(stop=["a", r"\n"]), "decoding.stop: expected no string of backslash and n"),
        (lambda: DecodingConfig(repetition_penalty=0.0), "decoding.repetition_penalty: expected more than 0"),
        (lambda: DecodingConfig(presence_penalty=2.5), "decoding.presence_penalty: expected a number from -2 to 2"),
        (lambda: DecodingConfig(frequency_penalty=NAN), "decoding.frequency_penalty: expected a number from -2 to 2"),
        (lambda: DecodingConfig(min_tokens=65), "decoding.min_tokens: expected at most decoding.max_new_tokens=64"),
        (lambda: DecodingConfig(min_tokens=-1), "decoding.min_tokens: expected 0"),
        (lambda: DecodingConfig(logit_bias="5:101"), "from -100 to 100, found '5:101'"),
        (
            lambda: DecodingConfig(logit_bias="5:1/5:2"),
            "from -100 to 100, found token 5 twice",
        ),
        (lambda: DecodingConfig(logit_bias="a:1"), "from -100 to 100, found 'a:1'"),
        (lambda: DraftingConfig(-1), "drafting.num_speculative_tokens"),
        (
            lambda: DraftingConfig(MAX_SPECULATIVE_TOKENS + 1),
            "drafting.num_speculative_tokens: expected 0 to 32, found 33",
        ),
        (lambda: drafter_of("ngram", ngram_min=5), "drafter.ngram_min"),
        (lambda: Verification(VerificationMethod.typical, epsilon=0.0), "epsilon"),
        (lambda: Verification(VerificationMethod.lenient, leniency=1.5), "leniency"),
        (lambda: Verification(VerificationMethod.fly, window_size=0), "window_size must be 1 or more, found 0"),
        (lambda: Verification(VerificationMethod.fly, entropy_threshold=-0.1), "entropy_threshold must be 0 or more"),
        (lambda: Verification(VerificationMethod.fly, entropy_top_k=0), "entropy_top_k must be 1 or more, found 0"),
        (lambda: Verification(VerificationMethod.probabilistic, length=2.0), "among (none), found length"),
        (lambda: Verification(VerificationMethod.lenient, epsilon=0.1), "among leniency, found epsilon"),
        (lambda: Verification(VerificationMethod.synthetic, rates=(0.2, 0.5)), "not increase"),
        (lambda: Verification(VerificationMethod.synthetic, length=0.5), "length"),
        (lambda: Verification(VerificationMethod.synthetic, length=INF), "length"),
        (lambda: Verification(VerificationMethod.typical, delta=INF), "delta must be positive and finite, found inf"),
        (lambda: WorkloadConfig(path="a", dataset="b"), "found path=a and dataset=b"),
        (lambda: WorkloadConfig(path=""), "workload.path=FILE"),
        (lambda: WorkloadConfig(num_prompts=0), "workload.num_prompts"),
        (
            lambda: WorkloadConfig(request_rate=0),
            "workload.request_rate: expected more than 0 conversations",
        ),
        (lambda: WorkloadConfig(request_rates="20"), "workload.request_rates: expected RATE:CONVERSATIONS pairs"),
        (
            lambda: WorkloadConfig(request_rates="20:5/0:5"),
            "workload.request_rates: expected rates and numbers above 0",
        ),
        (lambda: WorkloadConfig(request_rate=2, request_rates="2:1/3:1"), "null beside workload.request_rate"),
        (lambda: WorkloadConfig(held_out=0), "workload.held_out: expected 1 or more"),
        (lambda: WorkloadConfig(prompt_tokens=0, num_turns=1), "workload.prompt_tokens: expected 1 or more"),
        (lambda: WorkloadConfig(prompt_tokens=8), "expected workload.num_turns=1 beside it"),
        (lambda: WorkloadConfig(prompt_tokens=8, num_turns=2), "found num_turns=2"),
        (
            lambda: synthetic(rates=(0.5,), profile=PROFILE),
            "expected one of them, found rates, profile; clear the others",
        ),
        (lambda: TargetConfig(shape="a"), "target.shape: expected target.weights=random beside it"),
        (lambda: TargetConfig(shape="a", path="b", weights=RANDOM), "a shape or target.path, not both, found both"),
        (lambda: drafter_of("draft_model", shape="a"), "drafter.shape: expected drafter.weights=random beside it"),
        (lambda: Local(dtype="float8"), "backend.dtype: expected auto, float32"),
        (lambda: Local(device="tpu"), "backend.device"),
        (lambda: Local(device="cuda:x"), "backend.device: expected auto, cpu, cuda or cuda:N, found cuda:x"),
        (lambda: Local(device="cuda:"), "backend.device"),
        (lambda: Local(max_concurrency=0), "backend.max_concurrency"),
        (lambda: Local(max_length=0), "backend.max_length"),
        (lambda: MeasurementConfig(confidence=1.0), "measurement.confidence"),
        (lambda: MeasurementConfig(num_blocks=0), "measurement.num_blocks"),
        (lambda: TargetConfig(path=""), "target.path=PATH"),
    ],
)
def test_a_value_out_of_range_is_refused_with_its_name(build, message):
    with pytest.raises(ValueError, match=re.escape(message)):
        build()


def test_the_most_draft_tokens_are_those_that_every_kernel_takes():
    """Would catch a K that one method of a sweep runs and another refuses in the middle of it."""
    assert DraftingConfig(MAX_SPECULATIVE_TOKENS).num_speculative_tokens == MAX_COUNT_DRAFTS


@pytest.mark.parametrize(
    "build",
    [
        lambda: DecodingConfig(temperature=NAN),
        lambda: DecodingConfig(top_p=NAN),
        lambda: DecodingConfig(min_p=NAN),
        lambda: Verification(VerificationMethod.typical, epsilon=NAN),
        lambda: Verification(VerificationMethod.typical, delta=NAN),
        lambda: Verification(VerificationMethod.lenient, leniency=NAN),
        lambda: Verification(VerificationMethod.fly, entropy_threshold=NAN),
        lambda: synthetic(rates=(NAN,)),
        lambda: synthetic(rates=(0.5, NAN)),
        lambda: synthetic(length=NAN),
        lambda: MeasurementConfig(confidence=NAN),
    ],
)
def test_what_is_not_a_number_is_refused(build):
    with pytest.raises(ValueError, match=r"found .*nan"):
        build()


@pytest.mark.parametrize("device", ["auto", "cpu", "cuda", "cuda:0", "cuda:12"])
def test_devices_that_torch_knows_are_taken(device):
    assert Local(device=device).device == device


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"method": "greedy"}, "only at decoding.temperature=0"),
        ({"method": "coupled", "sampling": "sampled"}, "decides by the noise"),
        ({"method": "probabilistic", "sampling": "coupled"}, "never reach verification=probabilistic"),
        ({"method": "block", "sampling": "coupled"}, "never reach verification=block"),
        ({"method": "lenient", "sampling": "coupled"}, "never reach verification=lenient"),
        ({"method": "fly", "sampling": "coupled"}, "never reach verification=fly"),
        (
            {"verification": Verification(VerificationMethod.fly, window_size=4)},
            "verification=fly: a draft token is deferred",
        ),
        ({"verification": Verification(VerificationMethod.fly), "num_tokens": 1}, "to 2 or more"),
        ({"method": "pr35461", "sampling": "sampled"}, "decides by the noise"),
        ({"method": "pr35461", "drafter": "ngram"}, "needs a drafter with a distribution"),
        ({"drafter": "ngram", "sampling": "sampled"}, "no distribution to draw from"),
        ({"verification": synthetic(length=5.1)}, "length=5.1 is out of reach"),
        ({"verification": synthetic(length=1e300)}, "raise drafting.num_speculative_tokens=4"),
        (
            {"workload": WorkloadConfig(thinking=False), "constraint": constraint_of("mask", parser="qwen3")},
            "constraint.parser=qwen3 finds no end",
        ),
        ({"workload": WorkloadConfig(thinking=True)}, "target=zoo has none that heeds it"),
        ({"num_tokens": 0}, "are nothing that drafter=eagle3 proposes"),
        ({"target": TargetConfig(path="owner/model")}, "drafter=eagle3 for target model needs drafter.path"),
        ({"target": SHAPED}, "drafter=eagle3 for target llama3_8b needs drafter.path, or drafter.weights=random"),
        ({"drafter": "dflash"}, "drafter=dflash needs drafter.path, or drafter.weights=random: none is built in"),
        ({"target": SHAPED, "drafter": "mtp"}, "target.shape=llama3_8b has none; use drafter.weights=random"),
        ({"verification": synthetic()}, "verification=synthetic: expected rates of chains, found none"),
        ({"verification": synthetic(profile=PROFILE)}, "round_eagle_k3 holds for drafting.num_speculative_tokens=3"),
    ],
)
def test_a_combination_without_meaning_is_refused_with_the_reason(settings, message):
    with pytest.raises(InvalidCombinationError, match=re.escape(message)):
        cell(**settings)


@pytest.mark.parametrize(
    ("drafter", "method"),
    [
        (drafter, method)
        for drafter in ("eagle", "eagle3", "mtp", "draft_model", "ngram")
        for method in METHODS
        if method is not VerificationMethod.greedy and (drafter, method) != ("ngram", VerificationMethod.pr35461)
    ],
)
def test_auto_draft_sampling_has_a_meaning_with_every_method(drafter, method):
    expected = DraftSampling.sampled
    if method in (VerificationMethod.coupled, VerificationMethod.pr35461):
        expected = DraftSampling.coupled
    if drafter == "ngram":
        expected = DraftSampling.greedy
    assert cell(drafter, method.value).draft_sampling is expected


def test_the_mtp_layer_of_a_target_of_ones_own_needs_no_path():
    assert cell("mtp", target=TargetConfig(path="owner/model")).invalid_reason() is None


def test_a_target_is_labelled_by_its_path_unless_it_is_named():
    assert TargetConfig(path="owner/model-8b").name == "model-8b"
    assert TargetConfig(name="mine", path="owner/model-8b").name == "mine"
    assert TargetConfig().name == "zoo"
    assert SHAPED.name == "llama3_8b"


@pytest.mark.parametrize(
    ("given", "num_tokens", "expected"),
    [
        ({"length": 2.5}, 4, (1.0, 0.5, 0.0, 0.0)),
        ({"length": 1.0}, 2, (0.0, 0.0)),
        ({"length": 5.0}, 4, (1.0, 1.0, 1.0, 1.0)),
        ({"rates": (0.9, 0.4)}, 3, (0.9, 0.4, 0.0)),
        ({"rates": (0.9, 0.4, 0.2)}, 2, (0.9, 0.4)),
        ({"profile": PROFILE}, 3, (0.6, 0.37, 0.23)),
    ],
)
def test_synthetic_rates_fit_the_depth(given, num_tokens, expected):
    found = cell(verification=synthetic(**given), num_tokens=num_tokens).verification
    assert found.at(num_tokens).rule.rates == pytest.approx(expected)


@pytest.mark.parametrize("profile", PROFILES, ids=lambda profile: profile.value)
def test_every_profile_is_a_rule_for_its_own_depth_and_names_its_source(profile):
    """Would catch rates that increase, and a depth in the name that the rates do not have."""
    num_tokens = profile.num_speculative_tokens
    assert profile.value.endswith(f"_k{num_tokens}") and f"K = {num_tokens}:" in profile.source
    found = cell(verification=synthetic(profile=profile), num_tokens=num_tokens).verification
    assert found.at(num_tokens).rule.rates == profile.rates
    assert profile.value.startswith("round_") == ("no publication" in profile.source)
    assert profile.value.startswith("derived_") == ("computed" in profile.source)


def test_derived_profiles_have_what_is_published_of_them():
    """Would catch rates typed wrong: position 1 of both methods, and 6.69 points between their acceptance rates."""
    strict = AcceptanceProfile.derived_glm47_mtp_strict_k3.rates
    probabilistic = AcceptanceProfile.derived_glm47_mtp_probabilistic_k3.rates
    assert (strict[0], probabilistic[0]) == (0.1332, 0.2804)
    assert sum(probabilistic) - sum(strict) == pytest.approx(3 * 0.0669, abs=1e-4)
    conditional = [second / first for rates in (strict, probabilistic) for first, second in pairwise(rates)]
    assert conditional == pytest.approx([0.2832] * 4, abs=0.001)


def test_labels_of_a_random_target_without_a_drafting_network_name_no_role():
    random = TargetConfig(weights=RANDOM)
    assert labels(cell("ngram", target=random)) == labels(cell("none", target=random)) == ("weights: random",)
    synthetic_cell = cell(target=random, method="synthetic")
    assert labels(synthetic_cell) == ("synthetic", "target weights: random")


def test_a_random_draft_model_needs_sizes_of_its_own():
    message = "drafter=draft_model with drafter.weights=random needs drafter.shape or drafter.path"
    with pytest.raises(InvalidCombinationError, match=message):
        CellConfig(SHAPED, drafter_of(DrafterKind.draft_model, weights=RANDOM))
    CellConfig(SHAPED, drafter_of(DrafterKind.draft_model, weights=RANDOM, shape="llama32_1b"))
