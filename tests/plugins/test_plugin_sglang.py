"""The plug-in for SGLang, on tensors laid out as in its source; SGLang itself was not run."""

import inspect
import sys
from importlib import metadata
from types import ModuleType, SimpleNamespace

import pytest
import torch

from harness.checks.certification.goodness_of_fit import fit
from harness.plugins.sglang import register
from harness.plugins.sglang.chain import ChainVerification, seeds_of
from harness.plugins.sglang.register import FUNCTION, MODULE, PARAMETERS, TRY
from kernels.contract import VerificationMethod

pytestmark = pytest.mark.fast

R, K, V = 60_000, 2, 3


@pytest.mark.parametrize("method", ["strict", "probabilistic", "block"])
def test_the_first_token_has_the_targets_law(method):
    """Would catch coins that decide about acceptance and residual alike, and tokens written to other places."""
    generator = torch.Generator().manual_seed(3)
    target = torch.tensor([[0.5, 0.4, 0.1], [0.2, 0.2, 0.6], [0.1, 0.3, 0.6]])
    draft = torch.tensor([[0.2, 0.3, 0.5], [0.6, 0.2, 0.2]])
    drafts = torch.multinomial(draft, R, replacement=True, generator=generator).T
    places = torch.randperm(R * (K + 1), generator=generator).view(R, K + 1)
    predicts, index = torch.full((R * (K + 1),), -9, dtype=torch.int32), torch.full((R, K + 1), -1, dtype=torch.int32)
    counts = torch.empty(R, dtype=torch.int32)
    ChainVerification(VerificationMethod(method)).verify(
        predicts=predicts,
        accept_index=index,
        accept_token_num=counts,
        candidates=torch.nn.functional.pad(drafts, (1, 0)),
        retrive_index=places,
        retrive_next_token=None,
        retrive_next_sibling=None,
        uniform_samples=torch.rand(R, K + 1, generator=generator),
        uniform_samples_for_final_sampling=torch.rand(R, generator=generator),
        target_probs=target.expand(R, -1, -1),
        draft_probs=draft.expand(R, -1, -1),
        threshold_single=1.0,
        threshold_acc=1.0,
        deterministic=True,
        block_verification=method == "block",
    )
    emitted = predicts[places].long()
    columns = torch.arange(K + 1)
    is_accepted, is_emitted = columns[1:] <= counts[:, None], columns <= counts[:, None]
    assert torch.equal(emitted[:, :-1][is_accepted], drafts[is_accepted])
    assert torch.equal(emitted == -9, ~is_emitted) and torch.equal(index.long(), torch.where(is_emitted, places, -1))
    halves = torch.stack([torch.bincount(half, minlength=V) for half in emitted[:, 0].view(2, -1)])
    assert fit(halves[None], target[:1].double()).p_value > 1e-6
    assert 0.1 < float(counts.float().mean()) < 2


def test_a_round_has_the_seed_of_its_coins():
    coins, final = torch.rand(50, 3), torch.rand(50)
    assert len(set(seeds_of(coins, final).tolist())) == 50
    for changed in (0, 1):
        other = coins.clone()
        other[:, changed] = (other[:, changed] + 0.5) % 1
        assert not bool((seeds_of(other, final) == seeds_of(coins, final)).any())


def install(monkeypatch, version, parameters=PARAMETERS):
    """A stand-in for the modules that the plug-in takes hold of; returns what is registered."""
    monkeypatch.setenv("REJECTION_LAB_VERIFICATION", "block")
    own = metadata.version
    monkeypatch.setattr(metadata, "version", lambda name: version if name == "sglang" else own(name))
    calls = []

    def function(**arguments):
        pass

    kinds = inspect.Parameter.POSITIONAL_OR_KEYWORD
    function.__signature__ = inspect.Signature([inspect.Parameter(name, kinds) for name in parameters.split()])
    registry = SimpleNamespace(register=lambda *arguments: calls.append(arguments))
    modules = {
        MODULE: {FUNCTION: function},
        "sglang.srt.plugins.hook_registry": {"HookRegistry": registry, "HookType": SimpleNamespace(REPLACE="replace")},
    }
    for name, items in modules.items():
        for depth in range(1, name.count(".") + 1):
            parent = ".".join(name.split(".")[:depth])
            monkeypatch.setitem(sys.modules, parent, ModuleType(parent))
        module = ModuleType(name)
        vars(module).update(items)
        monkeypatch.setitem(sys.modules, name, module)
    return calls


def test_the_hook_is_registered_only_when_it_was_asked_for_twice(monkeypatch):
    """A refusal must end the process: of an Exception SGLang would log, and verify by its own function."""
    calls = install(monkeypatch, "0.5.23")
    with pytest.raises(SystemExit, match=f"never ran in it; to try it, set {TRY}=0.5.23"):
        register()
    monkeypatch.setenv(TRY, "0.5.23")
    register()
    assert [call[0] for call in calls] == [f"{MODULE}.{FUNCTION}"] and calls[0][2] == "replace"
    monkeypatch.delenv("REJECTION_LAB_VERIFICATION")
    register()
    assert len(calls) == 1


@pytest.mark.parametrize(
    ("version", "parameters", "found"),
    [("0.5.24", PARAMETERS, "expected SGLang 0.5.23, found 0.5.24"), ("0.5.23", "predicts", r"found \(predicts\)")],
)
def test_another_sglang_is_refused(monkeypatch, version, parameters, found):
    calls = install(monkeypatch, version, parameters)
    monkeypatch.setenv(TRY, version)
    with pytest.raises(SystemExit, match=found):
        register()
    assert not calls
