"""certify-server: sound servers pass, faulty ones fail with the reason, and other models are refused beforehand."""

import json
from itertools import product

import pytest
import torch

from experiments import certify_server as command
from harness.checks.certification.goodness_of_fit import detectable_variation, fit
from harness.checks.server_certification.certify_server import certify_server
from harness.checks.server_certification.config import CertifyServerConfig, options_of
from harness.checks.server_certification.known_model import LocalModel
from harness.checks.server_certification.same_model import OtherModel
from harness.checks.server_certification.sequence_law import sequence_laws
from harness.config.cli.ending import FAILED, SUCCESS, WRONG_SETTINGS
from harness.config.sampling import SamplingSettings
from harness.models.checkpoint import CheckpointError
from harness.models.target import load_target
from tests.support.sampling_server import VOCAB_SIZE, SamplingServer, ToyModel
from tests.support.tiny_models import edit_config, random_causal_lm, save_target_folder

SETTINGS = {"requests": 1000, "prompts": 1, "tokens": 3, "budget_s": 60}


def certified(server, model=None, **settings):
    config = CertifyServerConfig(**{**SETTINGS, **settings})
    return certify_server(server.url, config, lambda: model or ToyModel(), lambda _: None)


@pytest.mark.parametrize(("depth", "top_p"), [(0, (1.0,)), (3, (1.0, 0.8))])
def test_a_sound_server_passes(depth, top_p):
    """Would catch a law of other sequences, seeds that come twice, and drafts that are not counted."""
    with SamplingServer(depth=depth) as server:
        result = certified(server, prompts=2, temperature=(0.7,), top_p=top_p)
        seeds = [body["seed"] for body in server.bodies if body["temperature"]]
    assert result.is_green and len(result.cases) == len(top_p)
    assert all(case.fit.num_samples == 1000 and case.detectable < 0.2 for case in result.cases)
    assert len(set(seeds)) == len(seeds) == 1000 * len(top_p)
    assert result.drafts is not None and (result.drafts.num_accepted_tokens > 0) == (depth > 0)


@pytest.mark.parametrize(
    ("fault", "settings"),
    [
        ("temperature", {"temperature": (0.5,)}),
        ("stream", {"temperature": (1.0,), "tokens": 2}),
        ("top_p", {"temperature": (1.0,), "top_p": (0.8,)}),
        ("seed", {"temperature": (1.0,)}),
    ],
)
def test_a_faulty_server_fails_and_fresh_requests_confirm_it(fault, settings):
    with SamplingServer(depth=3, fault=fault) as server:
        result = certified(server, **settings)
        seeds = [body["seed"] for body in server.bodies if body["temperature"]]
    (case,) = result.cases
    assert not result.is_green and case.reason.endswith("confirmed") and "not confirmed" not in case.reason
    assert case.confirmation is not None and len(set(seeds)) == len(seeds) == 2000


def test_answers_that_end_early_are_a_failure():
    """Would catch a law that is tested on the answers alone that are whole."""
    with SamplingServer(fault="end") as server:
        (case,) = certified(server, temperature=(1.0,), tokens=2).cases
    assert case.num_short > 100 and f"{case.num_short} answers of another length" in case.reason


@pytest.mark.parametrize(
    ("fault", "model", "message"),
    [
        ("", ToyModel(shift=1), r"expected the target's greedy continuation .* other weights"),
        ("tokens", ToyModel(), r"expected token ids .*\(return_token_ids\)"),
    ],
)
def test_another_model_is_refused_before_anything_is_sampled(fault, model, message):
    with SamplingServer(fault=fault) as server:
        with pytest.raises(OtherModel, match=message):
            certified(server, model)
        assert not any(body["temperature"] for body in server.bodies)


def test_requests_that_fail_end_it(monkeypatch):
    """Would catch a server that is certified by the requests that it cared to answer."""
    answer = SamplingServer.rounds

    def at_zero_alone(self, body):
        assert not body["temperature"]
        return answer(self, body)

    monkeypatch.setattr(SamplingServer, "rounds", at_zero_alone)
    with SamplingServer() as server, pytest.raises(ValueError, match=r"found 21 failures in .* status 500"):
        certified(server, concurrency=1)


def test_the_command_writes_its_report_and_its_verdict_is_the_exit_code(tmp_path, monkeypatch, capsys):
    known = "harness.checks.server_certification.known_model.LocalModel"
    monkeypatch.setattr(known, lambda path, dtype, accepted: ToyModel(assumptions=accepted))
    options = ["--requests", "1000", "--prompts", "1", "--temperature", "0.5", "--tokens", "2"]
    options += ["--accept-unknown", "attend_twice"]
    for fault, code in (("", SUCCESS), ("temperature", FAILED)):
        with SamplingServer(depth=2, fault=fault) as server:
            assert command.main([server.url, *options, "--output", str(tmp_path / fault)]) == code
        found = json.loads((tmp_path / fault / "certification.json").read_text())
        assert found["green"] == (code == SUCCESS) and found["drafts"]["num_accepted_tokens"] > 0
        assert ("FAIL" in (tmp_path / fault / "report.md").read_text()) == (code == FAILED)
        assert found["assumptions"] == ["attend_twice"]
        assert "--accept-unknown attend_twice" in options_of(found["config"])
    report = (tmp_path / "report.md").read_text()
    assert "TV detectable" in report and "Target: attend_twice." in report
    capsys.readouterr()
    assert command.main([server.url, *options]) == FAILED
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith(f"error: expected a server at {server.url}, found none")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--top-p", "0.9", "--dtype", "bfloat16"], "--dtype: expected float32 beside top-p"),
        (["--temperature", "0"], "--temperature: expected more than 0"),
        (["--min-p", "0.1", "--top-k", "3"], "--min-p: expected no other cut beside it, found top-k"),
        (["--requests", "10"], "--requests: expected 1000 or more"),
    ],
)
def test_what_cannot_be_tested_is_refused(options, message, capsys):
    assert command.main(["http://127.0.0.1:1", *options]) == WRONG_SETTINGS
    assert message in capsys.readouterr().err


def test_every_answer_has_one_bin_with_its_mass():
    """Would catch masses that are counted twice, and other tokens that are put behind the wrong beginning."""
    sampling = SamplingSettings(temperature=0.8)
    model, prompt = ToyModel(), (0, 0)
    (law,) = sequence_laws(model, prompt, [sampling], num_tokens=3, num_requests=2000)
    rows = (model.logits(prompt, [(token,) for token in range(VOCAB_SIZE)])[0] / 0.8).softmax(1)
    masses = torch.zeros_like(law.exact)
    for answer in product(range(VOCAB_SIZE), repeat=3):
        steps = zip((prompt[-1], *answer), answer, strict=False)
        masses[law.place(answer)] += torch.stack([rows[before, token] for before, token in steps]).prod()
    torch.testing.assert_close(masses, law.exact)
    assert float(law.exact.sum()) == pytest.approx(1) and 4 < len(law.exact) < VOCAB_SIZE**3
    assert law.variation < 1e-7


def test_logits_behind_a_prompt_are_those_of_each_sequence_alone(tmp_path):
    """Would catch a beginning that sees another one, and rounding that is not that of the server's dtype."""
    folder = save_target_folder(tmp_path, random_causal_lm())
    model, prompt = LocalModel(str(folder), "bfloat16"), (5, 9, 2)
    nodes = [(), (4,), (7,), (4, 1), (7, 1), (4, 1, 8)]
    for dtype, found in zip((torch.float64, torch.bfloat16), model.logits(prompt, nodes), strict=True):
        target = load_target(folder, dtype=dtype)
        for node, row in zip(nodes, found, strict=True):
            ids = torch.tensor([[*prompt, *node]])
            hidden = target.forward(ids, torch.arange(ids.shape[1])[None], None).hidden[:, -1]
            tolerance = 1e-5 if dtype is torch.float64 else 0.1
            torch.testing.assert_close(row, target.logits(hidden)[0].double(), rtol=0, atol=tolerance)


def test_what_its_files_say_and_is_not_computed_is_vouched_for_by_an_option(tmp_path):
    """Would catch a message that names a setting which the command does not have."""
    folder = save_target_folder(tmp_path, random_causal_lm())
    edit_config(folder, attend_twice=3)
    with pytest.raises(CheckpointError, match="nothing here depends on it, --accept-unknown attend_twice"):
        LocalModel(str(folder), "float32")
    (told,) = LocalModel(str(folder), "float32", ("attend_twice",)).assumptions
    assert told.endswith("left out, because --accept-unknown vouches for it")


def test_what_rounding_may_do_is_tolerated_and_twice_as_much_is_not():
    """Would catch a test of the exact law where the server computes in another dtype, and one that lets all pass."""
    law = torch.tensor([[0.25, 0.25, 0.25, 0.25]], dtype=torch.float64)
    shift = torch.tensor([[0.03, -0.03, 0.03, -0.03]], dtype=torch.float64)
    num = 100_000
    tolerated = num * float((shift**2 / law).sum())
    p_values = []
    for times in (1, 2):
        counts = ((law + times * shift) * num / 2).round().long()[:, None].expand(-1, 2, -1)
        p_values += [fit(counts, law).p_value, fit(counts, law, tolerated).p_value]
    assert p_values[0] < 1e-30 and p_values[1] > 0.4 and p_values[3] < 1e-30
    tight, loose = (detectable_variation(num, 1e-8, 3, 0.99, each) for each in (0.0, tolerated))
    assert tight < 0.02
    assert 0.06 < loose < 0.1
