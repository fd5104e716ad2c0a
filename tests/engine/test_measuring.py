"""Drafts that are measured while steps are launched ahead: what is measured of them is that of steps one by one."""

from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from harness.config.sampling import SamplingSettings
from harness.config.tree import branching
from harness.drafters.draft_logits import Caching
from harness.drafters.draft_tree import DraftTree
from harness.engine import engine as engine_module
from harness.engine import measure_drafts, measuring
from harness.engine.request import Request
from harness.engine.to_records import Keeping
from kernels.contract import DraftSampling, SiblingDraws, VerificationMethod
from kernels.core import cpu_core
from kernels.methods import TreeMethod
from kernels.reference.acceptance import acceptance_terms
from tests.support.reasoning_end_runs import grammar_states_of, play, without_time
from tests.support.toy_markov import toy_engine, toy_requests, transitions

TARGET, DRAFT = transitions(11, seed=3), transitions(11, seed=4)
SAMPLINGS = (SamplingSettings(0.7), SamplingSettings(1.3, top_k=3), None, SamplingSettings(0.0))
"""Of the requests in turn: a slot's next one has others, and writes them to the device before the last step is read."""
UNROUNDED = Caching(torch.float16, draws_unrounded=True)
AHEAD = pytest.mark.parametrize("graphs", [False, True], ids=["in pieces", "in rows"])


def in_one_memory(subject):
    """Let every step leave its results where the last one did, as CUDA graphs do."""
    launch, memory = subject._runner.launch, {}

    def left(name, tensor):
        place = memory.setdefault((name, tensor.shape[1:]), tensor.new_empty((1000, *tensor.shape[1:])))[: len(tensor)]
        return place.copy_(tensor)

    def launch_in_memory(plan):
        launched = launch(plan)
        output, draft = launched.output, launched.output.draft
        ids, counts = left("token_ids", draft.token_ids), left("num_draft_tokens", draft.num_draft_tokens)
        output = output._replace(
            decided=left("decided", output.decided),
            logits=left("logits", output.logits),
            draft=replace(draft, token_ids=ids, num_draft_tokens=counts),
        )
        return launched._replace(output=output)

    subject._runner.launch = launch_in_memory
    return subject


def core_of_kernels():
    """A core that leaves nothing of what it has compared, as the kernels do."""
    core = cpu_core()
    return replace(core, verify=lambda *inputs, **options: replace(core.verify(*inputs, **options), compared=None))


def engine(**options):
    """Three slots, an end of sequence now and then; results lie as on a GPU."""
    settings = {"num_speculative_tokens": 3, "max_new_tokens": 17, "num_slots": 3, "truncates": True}
    settings |= {"expected_acceptance": True, "eos_token_ids": frozenset({2})}
    if "tree" in options:
        settings.pop("num_speculative_tokens")
    method, sampling = options.pop("method", VerificationMethod.block), options.pop("drafts", DraftSampling.sampled)
    core = options.pop("core", core_of_kernels)()
    return in_one_memory(toy_engine(TARGET, DRAFT, method, sampling, core=core, **(settings | options)))


def asked(count=11):
    """Prompts of different lengths, of requests with different sampling."""
    return [
        Request(str(index), "toy", 0, 0, 50 + index, (0,) * (1 + index % 5), sampling=SAMPLINGS[index % 4])
        for index in range(count)
    ]


def found(engine, requests=None, **options):
    """By request: its tokens, its rounds without their times, and the terms of its drafts."""
    run = engine.run(asked() if requests is None else requests, lambda answer: None, **options)
    return of_run(run)


def of_run(run):
    terms = {item.key: item for item in run.terms}
    return {
        record.prompt_id: (without_time([record]), None if not terms else plain(terms[record.key]))
        for record in run.requests
    }


def plain(terms):
    """Every value of a request's terms, so that == compares bit by bit."""
    values = {name: np.asarray(column).tolist() for name, column in terms.values.items()}
    return terms.round_index.tolist(), terms.num_draft_tokens.tolist(), values


CASES = {
    "expected acceptance": {},
    "terms": {"round_terms": True},
    "drawn from other rows than are cached": {
        "round_terms": True,
        "caching": UNROUNDED,
        "method": VerificationMethod.probabilistic,
    },
    "drafts that verification did not read": {"round_terms": True, "method": VerificationMethod.strict},
    "the statistics of drafts": {"round_terms": True, "method": VerificationMethod.strict, "core": cpu_core},
    "greedy drafts": {"round_terms": True, "drafts": DraftSampling.greedy, "method": VerificationMethod.strict},
}


@AHEAD
@pytest.mark.parametrize("case", CASES)
def test_what_is_measured_does_not_depend_on_launching_ahead(case, graphs):
    """Would catch rows, sampling or statistics of the next step, and rounds that get another step's values or none."""
    one_by_one = found(engine(**CASES[case], graphs=graphs, overlaps=False))
    assert found(engine(**CASES[case], graphs=graphs, overlaps=True)) == one_by_one
    rounds = [item for (record,), _ in one_by_one.values() for item in record[3]]
    full = [item for item in rounds if item.num_draft_tokens == item.num_proposed_tokens > 0]
    assert len(full) > 20 and all(item.expected_accepted for item in full)
    assert len({item.expected_accepted for item in full}) > 10, "values that tell the rounds apart"


@pytest.mark.parametrize("limits", [(3, 2**30), (1, 2**30), (32, 4000), (32, 0)], ids=str)
def test_what_is_measured_does_not_depend_on_how_many_steps_wait(limits, monkeypatch):
    """Would catch the rows of the step under way, which are measured where they lie, after the next was launched."""
    one_by_one = found(engine(round_terms=True, overlaps=False))
    monkeypatch.setattr(measuring, "MAX_STEPS", limits[0])
    monkeypatch.setattr(measuring, "MAX_BYTES", limits[1])
    assert found(engine(round_terms=True, overlaps=True)) == one_by_one


def test_terms_of_several_drafts_do_not_depend_on_launching_ahead():
    """As above. The bound of distinct drafts is an integral whose points follow from the rows beside it, to 1e-9."""
    options = {"round_terms": True, "multi_draft_terms": True, "num_slots": 2}
    ahead, one_by_one = (
        engine(**options, overlaps=overlaps).run(asked(5), lambda answer: None) for overlaps in (True, False)
    )
    terms = {item.key: item for item in one_by_one.terms}
    for item in ahead.terms:
        expected = terms[item.key]
        assert (
            item.round_index.tolist() == expected.round_index.tolist() and item.values.keys() == expected.values.keys()
        )
        for name, values in item.values.items():
            np.testing.assert_allclose(values, expected.values[name], rtol=0, atol=1e-9, err_msg=name)


@AHEAD
def test_bounds_of_trees_do_not_depend_on_launching_ahead(graphs):
    """Would catch nodes that the next step accepted in the place of this one's."""
    tree = {"tree": DraftTree(branching(2, 2), SiblingDraws.distinct), "method": TreeMethod.recursive}
    one_by_one = found(engine(**tree, graphs=graphs, overlaps=False))
    assert found(engine(**tree, graphs=graphs, overlaps=True)) == one_by_one
    assert len({item.position_bounds for (record,), _ in one_by_one.values() for item in record[3]}) > 10


@pytest.mark.parametrize("policy", ["commit", "mask"])
def test_rounds_beside_grammars_are_measured_alike(policy):
    """Steps in parts, deferred ones and steps of one graph: would catch masked rounds that are measured, a round that
    gets the values of the step that deferred it, and free rows under the masks of a later step."""

    def measured(**way):
        options = {"expected_acceptance": True, "graphs": True, "core": core_of_kernels()}
        return without_time(play(grammar_states_of(policy, "two tokens"), 3, **options, **way))

    ahead, one_by_one = measured(overlaps=True), measured(overlaps=False)
    assert ahead == one_by_one
    drafted = [item for record in ahead for item in record[3] if item.num_proposed_tokens]
    in_answer = [item for item in drafted if item.num_free_tokens == 0]
    assert in_answer and any(item.expected_accepted for item in drafted)
    assert policy == "commit" or not any(item.expected_accepted or item.position_bounds for item in in_answer)


@AHEAD
def test_what_an_interruption_hands_over_is_measured(graphs):
    """Would catch finished requests that are written without the expected acceptance of their last rounds."""
    whole, kept, left = found(engine(graphs=graphs, overlaps=True, round_terms=True)), [], [25]

    def on_round():
        left[0] -= 1
        if not left[0]:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        subject = engine(graphs=graphs, overlaps=True, round_terms=True)
        subject.run(asked(), lambda answer: None, keeping=Keeping(1e9, kept.append), on_round=on_round)
    handed_over = {name: each for run in kept for name, each in of_run(run).items()}
    assert 3 <= len(handed_over) < len(whole)
    assert handed_over == {name: whole[name] for name in handed_over}


@pytest.mark.parametrize("place", [1, 14, 17, 30])
def test_an_interruption_of_measuring_loses_and_doubles_nothing(place, monkeypatch):
    """Would catch terms that a round has twice, or a step that counts as measured before its rounds know."""
    whole, kept, calls = found(engine(overlaps=True, round_terms=True)), [], []

    def interrupted(*arguments, **options):
        calls.append(arguments)
        if len(calls) == place:
            raise KeyboardInterrupt
        return acceptance_terms(*arguments, **options)

    monkeypatch.setattr(measure_drafts, "acceptance_terms", interrupted)
    monkeypatch.setattr(measuring, "MAX_STEPS", 12)
    with pytest.raises(KeyboardInterrupt):
        subject = engine(overlaps=True, round_terms=True)
        subject.run(asked(), lambda answer: None, keeping=Keeping(1e9, kept.append))
    handed_over = {name: each for run in kept for name, each in of_run(run).items()}
    assert handed_over and handed_over == {name: whole[name] for name in handed_over}


def test_requests_handed_over_early_are_measured():
    """Would catch a request whose record is made before the steps that wait are measured."""
    whole, kept = found(engine(overlaps=True, round_terms=True)), []
    run = engine(overlaps=True, round_terms=True).run(asked(), lambda answer: None, keeping=Keeping(0.0, kept.append))
    assert not run.requests
    assert {name: each for part in kept for name, each in of_run(part).items()} == whole


def test_setting_rows_aside_takes_time_of_the_run_and_measuring_takes_none(monkeypatch):
    """Would catch tokens per second that leave out what launching ahead of the measuring costs on the device, and ones
    that count the measuring."""
    monkeypatch.setattr(measuring, "MAX_STEPS", 4)
    walls = []
    for is_measured in (False, True):
        subject, seconds = engine(overlaps=True, expected_acceptance=is_measured), [0.0]

        def after(amount, function, seconds=seconds):
            def timed(*arguments, **options):
                seconds[0] += amount
                return function(*arguments, **options)

            return timed

        clock = SimpleNamespace(perf_counter=lambda seconds=seconds: seconds[0])
        with monkeypatch.context() as patched:
            patched.setattr(engine_module, "time", clock)
            patched.setattr(subject.target, "forward", after(1.0, subject.target.forward))
            patched.setattr(measure_drafts, "acceptance_terms", after(1000.0, acceptance_terms))
            patched.setattr(measuring, "copied", after(0.001, measuring.copied))
            walls.append(subject.run(toy_requests(9), lambda answer: None).wall_s)
    assert 0.001 <= walls[1] - walls[0] < 0.1


def test_what_waits_is_bounded(monkeypatch):
    """Would catch a long run that fills the memory of the device with rows, and one that stops for every step."""
    counts = {}
    for limits in ((32, 2**30), (5, 2**30), (32, 2000)):
        held, stops, measure = [], [], measuring.Measuring.measure

        def counted(self, held=held, stops=stops, measure=measure):
            held.append((len(self._waiting), sum(item.num_bytes for item in self._waiting)))
            stops.append(self.is_due)
            measure(self)

        with monkeypatch.context() as patched:
            patched.setattr(measuring, "MAX_STEPS", limits[0])
            patched.setattr(measuring, "MAX_BYTES", limits[1])
            patched.setattr(measuring.Measuring, "measure", counted)
            engine(overlaps=True).run(asked(14), lambda answer: None)
        assert max(steps for steps, _ in held) <= limits[0] + 1 and max(size for _, size in held) <= limits[1]
        counts[limits] = sum(stops)
    fewest, five, small = counts.values()
    assert 1 <= fewest < five and fewest < small
