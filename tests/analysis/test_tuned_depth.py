"""Draft depths tuned to measured acceptance and round times: by hand, against a known optimum, and on held-out load."""

import math
from types import SimpleNamespace

import numpy as np
import pytest

from experiments import tune
from harness.analysis.tuning.from_files import read_measurements
from harness.analysis.tuning.from_runs import measured_of
from harness.analysis.tuning.held_out import check_apart, held_out_of
from harness.analysis.tuning.rates import DepthRates
from harness.analysis.tuning.schedule import Schedule
from harness.checks.tune_depth import Loads, arrivals_of, check_overrides, on_other_prompts, worth_a_check
from harness.config.schema import SettingsError
from harness.records.schema import Block
from harness.report.tuning import choice_table, verdict
from tests.support.synthetic_cells import analysed, baseline_settings, cell_record, config, request_record, round_record

pytestmark = pytest.mark.fast

RATES = "position,rate\n1,0.5\n2,0.25\n"
TIMES = "batch_size,depth,round_ms\n1,0,10\n1,1,12\n1,2,13\n3,0,10\n3,1,16\n3,2,25\n"


def given(tmp_path, acceptance, times):
    files = {"acceptance": acceptance, "times": times}
    for name, text in files.items():
        (tmp_path / name).write_text(text, encoding="utf-8")
    return read_measurements(*(tmp_path / name for name in files))


def test_two_files_give_the_depths_that_are_found_by_hand(tmp_path):
    """A round emits 1, 1.5 or 1.75 tokens. One request then waits 10, 8 or 7.43 ms for a token, three wait 10, 10.67 or
    14.29 ms, and two, on the lines between, 10, 9.33 or 10.86 ms. Would catch the bonus token left out, rates taken as
    conditional (1.625 tokens), and times of another batch size."""
    (found,) = given(tmp_path, RATES, TIMES)
    schedule = Schedule(found.rates)
    assert schedule.text == "1:2/2:1/3:0" and schedule.table == ((1, 2), (2, 1), (3, 0))
    one, three = schedule.choices
    assert (one.best, three.best) == (2, 0)
    assert one.regrets[0].value == pytest.approx(1 - (13 / 1.75) / 10)
    assert one.regrets[1].value == pytest.approx(1 - (13 / 1.75) / (12 / 1.5))
    assert three.tokens_per_s.value == pytest.approx(3 / 0.010)
    depth, loss = schedule.one_depth
    assert depth == 1 and loss.value == pytest.approx(1 - ((13 / 1.75) / (12 / 1.5) * 10 / (16 / 1.5)) ** 0.5)
    assert math.isnan(one.regrets[1].low) and one.indistinguishable == ()


def test_what_one_depth_loses_is_that_of_this_depth_in_all_resamples():
    """K = 1 is the best as observed, and loses a tenth in every second resample, where K = 2 is. Would catch the loss
    of whichever depth is the best of a resample, which is 0 in all of them."""
    seconds = np.array([[1.0, 0.9], [0.9, 1.0]] * 50 + [[1.0, 1.01]])[:, :, None]
    rates = DepthRates((1, 2), (1,), np.ones_like(seconds), seconds, num_units=20, confidence=0.95)
    depth, loss = Schedule(rates).one_depth
    assert depth == 1 and loss.value == 0 and loss.low == 0 and loss.high == pytest.approx(0.1)


def test_prompts_and_repeats_are_what_intervals_draw_again(tmp_path):
    """Prompts that agree leave no doubt, prompts of which each second is hard do; so do times that scatter. Would catch
    intervals over rounds, which 1,000 rounds a prompt would make narrow."""
    times = "batch_size,depth,round_ms\n1,0,10\n1,1,15\n"

    def regret(accepted, times=times):
        lines = [f"{prompt},1,1000,{value}" for prompt, value in enumerate(accepted)]
        (found,) = given(tmp_path, "\n".join(["prompt,position,drafted,accepted", *lines]), times)
        return Schedule(found.rates).choice(1)

    sure, unsure = regret([530] * 20), regret([530 + 400 * (-1) ** place for place in range(20)])
    assert sure.best == unsure.best == 1 and sure.regrets[0].value == pytest.approx(unsure.regrets[0].value)
    assert sure.indistinguishable == () and unsure.indistinguishable == (0,)
    assert sure.shares_best == {0: 0, 1: 1} and 0 < unsure.shares_best[0] < 0.5
    scattered = regret([530] * 20, f"{times}1,1,11\n1,1,19\n")
    assert scattered.regrets[0].value == pytest.approx(sure.regrets[0].value)
    assert scattered.indistinguishable == (0,)


def test_acceptance_of_a_depth_of_its_own_and_settings_apart(tmp_path):
    """Would catch acceptance at one temperature that tunes another, and of one depth that stands for another."""
    acceptance = (
        '[{"position": 1, "rate": 0.9, "depth": 1, "temperature": 0}, {"position": 1, "rate": 0.5, "depth": 2, '
        '"temperature": 0}, {"position": 2, "rate": 0.2, "depth": 2, "temperature": 0}, {"position": 1, "rate": 0.1, '
        '"temperature": 1}, {"position": 2, "rate": 0.05, "temperature": 1}]'
    )
    greedy, sampled = given(tmp_path, acceptance, TIMES)
    assert [each.key for each in (greedy, sampled)] == [("0", ""), ("1", "")]
    assert greedy.rates.tokens[-1, :, 0].tolist() == pytest.approx([1, 1.9, 1.7])
    assert sampled.rates.tokens[-1, :, 0].tolist() == pytest.approx([1, 1.1, 1.15])
    assert Schedule(greedy.rates).text == "1" and Schedule(sampled.rates).text == "0"


def test_a_depth_that_is_not_there_loses_nothing(tmp_path):
    """Would catch what one batch size loses above the table, as if all lost it: dashes do not count there."""
    (found,) = given(tmp_path, RATES, TIMES.replace("3,0,10", "3,0,16"))
    table = choice_table(Schedule(found.rates)).compact
    above = table.header.index("regret of the depth above (%)")
    assert [str(row[above]) for row in table.rows] == ["none", "25.33 (K = 2)"]


@pytest.mark.parametrize(
    ("acceptance", "times", "message"),
    [
        ("position,rate\n1,0.5\n", TIMES, "expected acceptance of position 2, which depth 2 needs, found none"),
        (
            "position,rate\n1,1.5\n",
            TIMES,
            "acceptance: line 2: rate: expected a number 0 or more, at most 1, found '1.5'",
        ),
        ("position,rate\n0,0.5\n", TIMES, "line 2: position: expected a whole number, 1 or more, found '0'"),
        ("position\n1\n", TIMES, "line 2: expected drafted and accepted, or rate, found neither"),
        ("position,drafted,accepted\n1,5,6\n", TIMES, "accepted: expected a number 0 or more, at most 5, found '6'"),
        ("position,rate\n1,0.5\n1,0.4\n", TIMES, "line 3: position 1 stands there twice"),
        (
            "position,rate\n2,0.8\n1,0.6\n",
            TIMES,
            "position 2: expected at most what position 1 has, 0.6, as a draft counts as accepted only behind",
        ),
        (
            "prompt,position,drafted,accepted\na,1,9,6\na,2,5,5\nb,1,9,6\nb,2,9,7\n",
            TIMES,
            "position 2 of prompt b: expected at most what position 1 has, 6,",
        ),
        ("position,rate,colour\n1,0.5,red\n", TIMES, "line 2: expected columns among position, drafted"),
        ("", TIMES, "acceptance: expected lines with position, found none"),
        (RATES, "batch_size,depth,round_ms\n1,0,1\n1,1,0\n", "round_ms: expected a number above 0, found '0'"),
        (RATES, "batch_size,depth,round_ms\n1,0,1\n2,1,2\n", "found no batch_size 1 depth 1 (and 1 more)"),
        (RATES, "batch_size,depth,round_ms\n1,1,1\n", "expected two depths or more to choose from, found 1 alone"),
        (RATES, "batch_size,depth\n1,1\n", "line 2: expected a value of round_ms, found none"),
        (RATES, f"temperature,{TIMES}".replace("\n", "\n1,").removesuffix("1,"), "expected times at any temperature"),
    ],
)
def test_files_that_say_something_else_are_refused(tmp_path, acceptance, times, message):
    with pytest.raises(ValueError) as raised:
        given(tmp_path, acceptance, times)
    assert message in str(raised.value)


STEP_S = {1: {0: 0.010, 1: 0.014, 3: 0.018}, 4: {0: 0.010, 1: 0.014, 3: 0.030}}
CONDITIONAL = (0.8, 0.75, 0.7)
NUM_PROMPTS, NUM_ROUNDS = 24, 60
PROMPT_S = 0.1


def load(depth, size, slowed=1.0):
    """A closed load of `size` requests at a time, whose drafts are accepted at the rates of CONDITIONAL on average;
    each group begins with a step that reads prompts. In the second of two blocks steps take `slowed` times as long."""
    generator = np.random.default_rng([depth, size])
    requests, now = [], 0.0
    for first in range(0, NUM_PROMPTS, size):
        now += PROMPT_S
        group = [[round_record(0, 0, now, share_s=PROMPT_S / size)] for _ in range(size)]
        step_s = STEP_S[size][depth] * (slowed if first >= NUM_PROMPTS // 2 else 1)
        for _ in range(NUM_ROUNDS):
            now += step_s
            for rounds in group:
                passed = generator.random(depth) < np.array(CONDITIONAL[:depth])
                accepted = int(np.cumprod(passed).sum())
                rounds.append(round_record(depth, accepted, now, share_s=step_s / size))
        requests += [
            request_record(rounds, f"{first + place:02}", submitted_s=0.0) for place, rounds in enumerate(group)
        ]
    concurrency = {"backend__max_concurrency": size, "verification__method": "probabilistic"}
    settings = config(drafting__num_speculative_tokens=depth, **concurrency) if depth else None
    fields = {"session": "a", "provenance": 0, "start_unix_s": 0.0, "end_unix_s": 1.0, "wall_s": now / 2}
    counts = {"num_requests": NUM_PROMPTS // 2, "num_output_tokens": 1}
    blocks = tuple(Block(index, **fields, **counts) for index in (0, 1))
    return cell_record(requests, now, settings or baseline_settings(backend__max_concurrency=size), blocks=blocks)


def test_a_simulated_load_is_tuned_to_its_known_optimum():
    """A round emits 1, 1.8 and 2.82 tokens: for one request 3 drafts are best (6.4 ms a token, against 7.8 and 10), for
    four 1 (7.8 ms, against 10.6 and 10). Without the bonus token 3 drafts would be best for four, too (16.5 ms against
    17.5). Would also catch steps that read prompts among those of tokens: they add 0.1 s to the 60 rounds of a
    request."""
    cells = analysed(*(load(depth, size) for size in STEP_S for depth in (0, 1, 3)))
    (measured,) = measured_of(cells)
    schedule = Schedule(measured.rates)
    one, four = schedule.choices
    assert (one.size, one.best, four.size, four.best) == (1, 3, 4, 1)
    assert one.indistinguishable == four.indistinguishable == ()
    lengths = {depth: 1 + np.cumprod(CONDITIONAL[:depth]).sum() for depth in (0, 1, 3)}
    for choice in (one, four):
        costs = {depth: (STEP_S[choice.size][depth] + PROMPT_S / NUM_ROUNDS) / lengths[depth] for depth in lengths}
        assert choice.tokens_per_s.value == pytest.approx(choice.size / min(costs.values()), rel=0.03)
        for depth, regret in choice.regrets.items():
            true = 1 - min(costs.values()) / costs[depth]
            assert regret.low - 0.01 <= true <= regret.high + 0.01
    assert schedule.table[0] == (1, 3) and schedule.table[-1][1] == 1
    # arrivals pass through the sizes at which the schedule drafts 3, too
    assert (
        worth_a_check(schedule, (1, 4)) == worth_a_check(schedule, (1, 5)) == worth_a_check(schedule, (4, 5)) == [1, 3]
    )


def test_steps_that_another_job_slowed_do_not_count():
    """The best depth takes five times as long in its second block, as where another process shares the GPU. Would catch
    a plain mean, by which one draft would be the best for one request."""
    cells = analysed(*(load(depth, 1, slowed=5.0 if depth == 3 else 1.0) for depth in (0, 1, 3)))
    (measured,) = measured_of(cells)
    (choice,) = Schedule(measured.rates).choices
    assert choice.best == 3
    assert choice.tokens_per_s.value == pytest.approx(2.82 / (0.018 + PROMPT_S / NUM_ROUNDS), rel=0.03)
    assert "% of their time is left out, in steps that something else slowed" in measured.how


def test_steps_that_take_longer_as_contexts_grow_count():
    """Steps grow by 20 ms within a request: 15 ms a token without drafts, 13.9 ms with one, of which .8 are accepted,
    and 4.2 ms for the prompt.
    Would catch a limit on steps that takes their growth for another job, by which no draft would be the best."""

    def cell(depth):
        generator, requests, now = np.random.default_rng([depth]), [], 0.0
        for prompt in range(NUM_PROMPTS):
            now += 0.5
            rounds, num_tokens = [round_record(0, 0, now, share_s=0.5)], 0
            while num_tokens < 120:
                step_s = 0.005 + 0.010 * depth + 0.020 * num_tokens / 120
                now, accepted = now + step_s, int(generator.random() < 0.8 * depth)
                num_tokens += accepted + 1
                rounds.append(round_record(depth, accepted, now, share_s=step_s))
            requests.append(request_record(rounds, f"{prompt:02}"))
        concurrency = {"backend__max_concurrency": 1, "verification__method": "probabilistic"}
        settings = config(drafting__num_speculative_tokens=depth, **concurrency) if depth else None
        return cell_record(requests, now, settings or baseline_settings(backend__max_concurrency=1))

    (measured,) = measured_of(analysed(cell(0), cell(1)))
    (choice,) = Schedule(measured.rates).choices
    assert choice.best == 1 and choice.tokens_per_s.value == pytest.approx(1 / (0.025 / 1.8 + 0.5 / 120), rel=0.03)


@pytest.mark.parametrize(("num_tokens", "best"), [(20, 0), (400, 1)], ids=["short answers", "long answers"])
def test_a_drafter_that_reads_prompts_pays_where_answers_are_long(num_tokens, best):
    """Two requests decode at a time; a round takes 10 ms and emits 1 token, or 14 ms and 1.8 on average. A prompt of
    every second request adds 20 ms to a step, with a drafter 100 ms. A token takes 11 ms without drafts and 12.8 with
    one where answers have 20, 10.1 and 8.0 where they have 400. Would catch reading left out, by which one draft is the
    best for both, and all of a step that reads, its 10 or 14 ms of decoding included, counted as reading."""

    def cell(depth):
        generator, now = np.random.default_rng([depth, num_tokens]), 0.0
        answers = [[] for _ in range(NUM_PROMPTS)]
        left, slots, waiting = {}, [], [*range(NUM_PROMPTS)]
        while slots or waiting:
            new = [waiting.pop(0)] if waiting and len(slots) < 2 else []
            step_s = (0.010 + 0.004 * depth if slots else 0.0) + ((0.100 if depth else 0.020) if new else 0.0)
            now, num_rounds = now + step_s, len(slots) + len(new)
            for place in slots:
                accepted = int(generator.random() < 0.8 * depth)
                answers[place].append(round_record(depth, accepted, now, share_s=step_s / num_rounds))
                left[place] -= accepted + 1
            for place in new:
                answers[place].append(round_record(0, 0, now, share_s=step_s / num_rounds))
                left[place] = num_tokens
            slots = [place for place in (*slots, *new) if left[place] > 0]
        requests = [request_record(rounds, f"{place:02}") for place, rounds in enumerate(answers)]
        concurrency = {"backend__max_concurrency": 2, "verification__method": "probabilistic"}
        settings = config(drafting__num_speculative_tokens=depth, **concurrency) if depth else None
        return cell_record(requests, now, settings or baseline_settings(backend__max_concurrency=2))

    (measured,) = measured_of(analysed(cell(0), cell(1)))
    choice = Schedule(measured.rates).choice(2)
    assert choice.best == best
    waits_s = {0: 0.010 + 2 * 0.020 / num_tokens, 1: 0.014 / 1.8 + 2 * 0.100 / num_tokens}
    assert choice.tokens_per_s.value == pytest.approx(2 / waits_s[best], rel=0.05)
    assert choice.regrets[1 - best].value == pytest.approx(1 - waits_s[best] / waits_s[1 - best], abs=0.04)


def test_an_engine_that_waits_for_requests_does_not_read_prompts_meanwhile():
    """Would catch the time until a request arrives counted as its reading."""
    cells = [load(depth, 1) for depth in (0, 1, 3)]
    assert measured_of(analysed(*cells))[0].rates.reading is not None
    for cell in cells:
        cell.config["workload"]["request_rate"] = 2.0
    assert measured_of(analysed(*cells))[0].rates.reading is None


def test_runs_at_one_concurrency_each_are_one_measurement():
    """Would catch requests, as many as each load needs, that part them."""
    runs = [analysed(*(load(depth, size) for depth in (0, 1, 3))) for size in STEP_S]
    for cell in runs[1]:
        cell.record.config["workload"]["num_requests"] = 99
    assert len(measured_of([*runs[0], *runs[1]])) == 2
    (measured,) = measured_of([*runs[0], *runs[1]], across_runs=True)
    assert [choice.best for choice in Schedule(measured.rates).choices] == [3, 1]


def test_depths_that_cost_the_same_are_indistinguishable_and_not_changed_between():
    """Two drafts of which the second never passes, at no cost, against one. Would catch a schedule that changes depth
    with noise."""
    STEP = {0: 0.010, 1: 0.014}

    def cell(size, depth, seed):
        generator, requests, now = np.random.default_rng([seed, size]), [], 0.0
        for prompt in range(NUM_PROMPTS):
            now += 0.5
            rounds = [round_record(0, 0, now, share_s=0.5)]
            for _ in range(NUM_ROUNDS):
                now += STEP[min(depth, 1)]
                accepted = int(depth > 0 and generator.random() < 0.8)
                rounds.append(round_record(depth, accepted, now, share_s=STEP[min(depth, 1)]))
            requests.append(request_record(rounds, f"{prompt:02}"))
        concurrency = {"backend__max_concurrency": size, "verification__method": "probabilistic"}
        settings = config(drafting__num_speculative_tokens=depth, **concurrency) if depth else None
        return cell_record(requests, now, settings or baseline_settings(backend__max_concurrency=size))

    cells = analysed(*(cell(1, depth, depth) for depth in (0, 1, 2)))
    (measured,) = measured_of(cells)
    (choice,) = Schedule(measured.rates).choices
    assert {choice.best, *choice.indistinguishable} == {1, 2}
    assert choice.regrets[0].low > 0


def test_a_run_of_one_depth_is_refused():
    with pytest.raises(ValueError, match="expected cells of two fixed depths or more at one concurrency"):
        measured_of(analysed(load(3, 1)))


def played(depth, seconds, rate=None):
    """A cell with a block of one request for each duration, both of the block and of the request; `depth` as
    drafting.depth takes it."""
    text = str(depth) if ":" in str(depth) else None
    changes = {"workload__request_rate": rate, "verification__method": "probabilistic"}
    drafts = 3 if text else int(depth)
    settings = config(drafting__num_speculative_tokens=drafts, drafting__depth=text, **changes)
    requests, blocks = [], []
    for index, took_s in enumerate(seconds):
        rounds = [round_record(0, 0, took_s * (1 if rate else 0.5), share_s=0.0)]
        requests.append(request_record(rounds, f"{index:02}", sample=index))
        fields = {"session": "a", "provenance": 0, "start_unix_s": 0.0, "end_unix_s": 1.0, "num_requests": 1}
        blocks.append(Block(index, **fields, num_output_tokens=1, wall_s=9.0 if rate else took_s))
    return cell_record(requests, sum(seconds), settings, blocks=tuple(blocks))


def test_a_schedule_is_held_against_fixed_depths_block_by_block():
    """Ratios 1.25, 1.25, 1.25 beside K = 1 although blocks differ fivefold. Would catch ratios of sums, an interval
    over blocks that are not paired, and a ratio the wrong way round."""
    cells = analysed(
        played("1:3/4:1", [1.0, 2.0, 5.0]),
        played(1, [1.25, 2.5, 6.25]),
        played(3, [1.1, 1.9, 6.0]),
        played(2, [4, 9, 22]),
    )
    (found,) = held_out_of(cells, "1:3/4:1")
    assert found.num_repeats == 3 and not found.arrives
    one, two, three = found.fixed
    assert found.ratio(one) == pytest.approx((1.25, 1.25, 1.25))
    assert found.best is three and found.ratio(two).low > 1
    wide = found.ratio(three)
    assert wide.value == pytest.approx((1.1 * 0.95 * 1.2) ** (1 / 3)) and wide.low < 1 < wide.high
    # 0.75 .. 1.5 lies on both sides of .97 and of 1
    assert found.is_within is None and found.beats_all is None


def test_where_requests_arrive_their_own_time_counts():
    """The wall time of the blocks is that of the arrivals, the same in all cells. Would catch throughput, which the
    rate of arrivals bounds whatever the depth."""
    cells = analysed(
        *(played(depth, [length] * 4, rate=2.0) for depth, length in (("1:3/4:1", 1.0), (1, 1.02), (3, 2.0)))
    )
    (found,) = held_out_of(cells, "1:3/4:1")
    one, three = found.fixed
    assert found.arrives and found.best is one
    assert found.ratio(one).value == pytest.approx(1.02) and found.ratio(three).value == pytest.approx(2)
    assert found.speed(three) == pytest.approx(0.5) and found.is_within and found.beats_all


def test_every_rate_of_arrivals_counts_alike():
    """Of each repeat one conversation arrives at one rate and takes 1 s a token, three at another and take 9 s each:
    1 / 3 tokens a second. Would catch tokens over the seconds of all, 4 / 28, in which the busiest rate drowns the
    others, and rates in the order of the records, which is not that of arrivals."""

    def cell(depth, slowed):
        text = str(depth) if ":" in str(depth) else None
        changes = {"workload__request_rates": "1:1/100:3", "verification__method": "probabilistic"}
        settings = config(drafting__num_speculative_tokens=3 if text else depth, drafting__depth=text, **changes)
        requests, blocks = [], []
        for index in range(3):
            for place in (3, 2, 1, 0):
                took_s = slowed * (9.0 if place else 1.0)
                rounds = [round_record(0, 0, place + took_s, share_s=0.0)]
                requests.append(request_record(rounds, f"{index}{place}", sample=index, submitted_s=float(place)))
            fields = {"session": "a", "provenance": 0, "start_unix_s": 0.0, "end_unix_s": 1.0, "num_requests": 4}
            blocks.append(Block(index, **fields, num_output_tokens=4, wall_s=50.0))
        return cell_record(requests, 150.0, settings, blocks=tuple(blocks))

    (found,) = held_out_of(analysed(cell("1:3/4:1", 1.0), cell(1, 1.5)), "1:3/4:1")
    assert found.speed(found.scheduled) == pytest.approx(1 / 3)
    assert found.ratio(found.fixed[0]).value == pytest.approx(1.5)


def test_a_schedule_without_drafts_is_held_against_depths():
    """Its cell is the baseline. Would catch drafting.depth=0, which no drafter takes, looked for among the others."""
    requests = [request_record([round_record(0, 0, 0.5)], f"{index:02}", sample=index) for index in range(3)]
    plain = cell_record(requests, 6.0, baseline_settings(), blocks=played(1, [1.0, 2.0, 3.0]).blocks)
    (found,) = held_out_of(analysed(plain, played(1, [2.0, 4.0, 6.0])), "0")
    assert found.scheduled.is_baseline and found.is_fixed and found.best is found.scheduled
    assert found.ratio(found.fixed[-1]).value == pytest.approx(2)


def test_a_check_on_the_prompts_or_another_pair_than_were_tuned_is_refused():
    """Would catch a schedule that is called good on the data that chose it, and one checked with another drafter."""
    measured = analysed(*(load(depth, 1) for depth in (0, 1, 3)))
    own = held_out_of(analysed(played("1:3/4:1", [1.0] * 3), played(1, [1.0] * 3)), "1:3/4:1")
    with pytest.raises(ValueError, match="found 3 of them in both, such as 00"):
        check_apart(measured, own)
    settings = own[0].scheduled.record.config
    settings["workload"]["path"] = "others.jsonl"
    check_apart(measured, own)
    for cells, cache in ((measured, "/one/cache"), ([own[0].scheduled], "/two/cache")):
        for each in cells:
            if not each.is_baseline:
                each.record.config["drafter"]["path"] = f"{cache}/unpacked/0123456789abcdef/eagle3"
    check_apart(measured, own)
    settings["drafter"]["kind"] = "mtp"
    with pytest.raises(ValueError, match="found another drafter in it"):
        check_apart(measured, own)


def test_the_check_leaves_out_what_was_measured():
    """Would catch prompts of the measurement among those of the check, of which there are as many as were asked for."""
    given = ["drafter=mtp", "drafting.num_speculative_tokens=1,2", "workload.num_prompts=24"]
    assert on_other_prompts(given) == ["drafter=mtp", "workload.held_out=24"]
    for wrong in ("workload.held_out=10", "workload.num_prompts=null", "workload.num_prompts=20,40"):
        with pytest.raises(SettingsError, match=wrong.partition("=")[0]):
            check_overrides([wrong])


def test_prompts_that_leave_none_to_check_on_are_refused_before_the_first_run(tmp_path, monkeypatch, capsys):
    """Would catch minutes of measurement in front of the refusal."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "40.jsonl").write_text("".join(f'{{"prompt": "Question {place}"}}\n' for place in range(40)))
    assert tune.main(["--measure", "mine", "drafter=eagle3", "workload.path=40.jsonl"]) == 2
    shown = capsys.readouterr().err
    assert "workload.held_out: expected fewer than 40, the prompts there are, found 40" in shown
    assert not (tmp_path / "results").exists()


def test_two_repeats_have_no_interval_in_words():
    (found,) = held_out_of(analysed(played("1:3/4:1", [1.0] * 2), played(1, [1.1] * 2)), "1:3/4:1")
    assert "1.100 times the speed of K = 1" in verdict(found) and "do not say" in verdict(found)


def test_a_schedule_of_one_depth_is_within_only_where_repeats_say_so():
    """Its depth reaches .98 of the best, between .8 and 1.2. Would catch a verdict by the mean alone."""
    cells = analysed(played(1, [1.0, 1.0, 1.0]), played(2, [0.8, 1.2, 0.98]))
    (found,) = held_out_of(cells, "1")
    assert found.is_fixed and found.best is not found.scheduled and found.is_within is None
    assert held_out_of(cells, "2")[0].is_within is True


def test_a_second_cell_of_a_depth_is_left_out_aloud():
    """Would catch a run among several that counts for nothing without a word."""
    cells = analysed(*(load(depth, 1) for depth in (0, 1, 3)))
    (measured,) = measured_of([*cells, *analysed(load(3, 1))], across_runs=True)
    assert [reason for _, reason in measured.left_out] == ["another cell of this depth and concurrency came before"]


def test_a_schedule_that_did_not_run_is_named():
    cells = analysed(played(1, [1.0, 1.0, 1.0]))
    with pytest.raises(ValueError, match=r"expected a cell of drafting\.depth=1:2/8:1 beside fixed depths, found 1"):
        held_out_of(cells, "1:2/8:1")


def test_arrivals_move_between_the_rates_that_were_served():
    def cell(size, rate):
        distribution = {"requests_per_s": (rate, None)}.__getitem__
        estimates = SimpleNamespace(distribution=distribution)
        return type("Cell", (dict,), {"estimates": estimates})(max_concurrency=size)

    cells = (cell(1, 50.0), cell(1, 60.0), cell(8, 300.0), cell(3, 999.0))
    found = arrivals_of(SimpleNamespace(cells=cells), Loads((1, 8), requests=10))
    assert found == ((60.0, 60), (270.0, 128))


def test_the_command_writes_the_schedule_and_names_what_is_wrong(tmp_path, capsys):
    """Would catch a schedule on the page that is not the one in the files, and a run of nothing."""
    (tmp_path / "a.csv").write_text(RATES)
    (tmp_path / "t.csv").write_text(TIMES)
    files = ["--acceptance", str(tmp_path / "a.csv"), "--round-times", str(tmp_path / "t.csv")]
    assert tune.main([*files, "--output", str(tmp_path / "out")]) == 0
    shown = capsys.readouterr().out
    assert "Schedule: 1:2/2:1/3:0 (2 drafts from 1 to 1, 1 draft from 2 to 2, no drafts from 3 on)" in shown
    assert "Nothing has an interval" in shown and "Not checked on held-out load" in shown
    assert "One depth for all, K = 1, loses 6.70 %" in shown
    assert (tmp_path / "out/depth.txt").read_text() == "drafting.depth=1:2/2:1/3:0\n"
    page = (tmp_path / "out/tuned.md").read_text()
    assert (tmp_path / "out/vllm.json").read_text().strip() in page and "Neither engine was run with one here" in page
    for wrong in (
        [],
        files[:2],
        [*files, "somewhere"],
        ["--measure", "a", "workload.num_requests=9"],
        ["--measure", "a", *files],
    ):
        assert tune.main(wrong) == 2
        assert capsys.readouterr().err.startswith("error: ")
