"""The adapter for vLLM, on a stand-in with vLLM's signatures; vLLM itself was not run."""

import sys

import pytest
import torch

import tests.support.stand_in_vllm as stand_in
from harness.checks.certification.certify import certify
from harness.checks.certification.config import CertifyConfig, Size
from harness.checks.certification.evaluate import CaseVerdict
from harness.checks.certification.subject import load_subject
from harness.config.device import Device
from harness.config.schema import SettingsError

PATH = "vllm"


def certified(methods: str, cases: str = "", samples: int = 40_000, subject: str = PATH) -> dict[str, CaseVerdict]:
    config = CertifyConfig(
        subject=subject,
        device=Device.cpu,
        size=Size.small,
        samples=samples,
        methods=tuple(methods.split(",")),
        cells=cases,
        controls=False,
    )
    return {outcome.name: outcome.verdict for outcome in certify(config, lambda outcome: None).outcomes}


def test_methods_that_do_not_mind_streams_without_rounds_pass(monkeypatch):
    stand_in.install(monkeypatch)
    found = certified("strict,probabilistic,greedy", samples=20_000)
    supported = [verdict for verdict in found.values() if verdict is not CaseVerdict.unsupported]
    assert len(supported) >= 8
    assert set(supported) == {CaseVerdict.passed}
    assert found["probabilistic, sampled cached, bfloat16, mixed, ragged, padded slots"] is CaseVerdict.passed


def test_block_with_streams_without_rounds_fails(monkeypatch):
    stand_in.install(monkeypatch)
    assert (
        certified("block", "sampled cached, float32, none", 60_000)["block, sampled cached, float32, none"]
        is CaseVerdict.failed
    )


def test_the_plugin_gives_block_the_targets_law_with_the_same_draft_sampler(monkeypatch):
    """Target rows over the temperature beside draft rows that are not, as the stand-in's version keeps them."""
    stand_in.install(monkeypatch)
    found = certified("block", "sampled cached, float32", subject="vllm_plugin", samples=20_000)
    assert found["block, sampled cached, float32, none"] is CaseVerdict.passed
    assert set(found.values()) <= {CaseVerdict.passed, CaseVerdict.unsupported}


def test_what_vllm_does_not_have_is_listed(monkeypatch):
    stand_in.install(monkeypatch)
    found = certified("probabilistic,coupled", "narrow draft")
    assert set(found.values()) == {CaseVerdict.unsupported}


def test_without_vllm_one_line_says_so():
    with pytest.raises(SettingsError, match=r"expected vllm\.v1\S*gumbel .*pip download --no-deps vllm"):
        load_subject(PATH, torch.device("cpu"))


def test_an_argument_of_another_version_is_named(monkeypatch):
    stand_in.install(monkeypatch)

    def gumbel_sample(logits, pos, novelty): ...

    monkeypatch.setattr(sys.modules[stand_in.GUMBEL], "gumbel_sample", gumbel_sample)
    with pytest.raises(ValueError, match="gumbel_sample needs novelty"):
        certified("probabilistic", "probabilistic, sampled cached, float32, none")
