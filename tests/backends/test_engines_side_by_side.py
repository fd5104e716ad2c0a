"""This engine and a server on the same work: turns, servers that stay up, pairs, one table, and a peer that fails."""

import asyncio
import io
import json
import math
import re
import sys
from dataclasses import replace
from types import SimpleNamespace

import pytest

from harness.analysis.engines import block_pairs, engine_pairs, ratio_by_blocks
from harness.analysis.estimates import paired_ratio
from harness.analysis.results import read_results
from harness.backends.server.launch_of_cell import launch_of_cell
from harness.backends.server.process import Launch, Servers
from harness.backends.server.server import ServerBackend
from harness.config.schema import SettingsError
from harness.records.schema import CLIENT_CPU, Block
from harness.report.console import print_summary
from harness.report.tables.engines import engine_tables
from harness.runner.groups import comparable_groups
from harness.runner.plan.compose import compose_plan
from harness.runner.plan.run_plan import cell_rows
from harness.runner.run_cells import run_cells
from tests.runner.test_sweep import Silent
from tests.support.scripted_server import ScriptedServer
from tests.support.server_cells import DEPTH, cell_on, run_on
from tests.support.synthetic_cells import analysed, cell_record, config, request_record, round_record, simulated_cell

COMMAND = (
    "{python} -m tests.support.scripted_server --port {port} --max-num-seqs {max_concurrency} {speculation} {details}"
)
SMALL = (
    "drafter=eagle3",
    "server=vllm",
    f"server.environment={sys.prefix}",
    "server.num_retries=0",
    "workload.num_prompts=8",
    "decoding.max_new_tokens=8",
    "measurement.num_warmup_requests=1",
    "measurement.num_resamples=100",
    "backend.device=cpu",
)


def run_both(tmp_path, *settings, command=COMMAND):
    """The cells of a small run on this engine and on a scripted server, by (engine, drafter)."""
    plan = compose_plan([
        "experiment=demo_server", *SMALL, f"server.command='{command}'", f"server.log_folder={tmp_path / 'logs'}",
        f"output.folder={tmp_path}", *settings,
    ])  # fmt: skip
    run_cells(plan, tmp_path, Silent(), [])
    return {(cell["engine"], cell["drafter"]): cell for cell in read_results(tmp_path).cells}


@pytest.fixture(scope="module")
def both(tmp_path_factory):
    """Cells of a run, and what each server that was started printed."""
    folder = tmp_path_factory.mktemp("both")
    cells = run_both(folder, "measurement.num_blocks=4", "server.max_running=2", "server.num_waiting=3")
    return SimpleNamespace(cells=cells, logs=[path.read_text() for path in sorted((folder / "logs").glob("*.log"))])


def test_engines_take_turns_block_by_block_on_servers_that_stay_up(both):
    """Would catch one engine after the other, whose difference holds the machine's drift, and a restart each turn."""
    turns = sorted((block.start_unix_s, key) for key, cell in both.cells.items() for block in cell.record.blocks)
    forwards = [(engine, drafter) for engine in ("vllm", "local") for drafter in ("none", "eagle3")]
    assert {key for _, key in turns} == set(forwards) and len(turns) == 16
    order = [key for _, key in turns]
    assert sorted(order[:4]) == sorted(forwards)
    assert order == [*order[:4], *order[3::-1], *order[:4], *order[3::-1]]
    assert len(both.logs) == 2 and ["speculative-config" in text for text in both.logs].count(True) == 1


def test_both_play_the_same_prompts_in_one_session(both):
    asked = {
        key: {item.key: (item.seed, item.num_prompt_tokens) for item in cell.record.requests}
        for key, cell in both.cells.items()
    }
    assert len({str(sorted(item.items())) for item in asked.values()}) == 1
    assert len({block.session for cell in both.cells.values() for block in cell.record.blocks}) == 1


def test_the_table_pairs_what_differs_in_the_engine_alone(both):
    """Would catch a baseline beside drafts, a speed of other blocks, and a table that hides versions or settings."""
    (table,) = engine_tables(list(both.cells.values()))
    rows = [dict(zip(table.header, row, strict=True)) for row in table.rows]
    assert [row["drafter"] for row in rows] == ["none", "eagle3"]
    for row in rows:
        own, peer = (both.cells[engine, row["drafter"]] for engine in ("local", "vllm"))
        assert row["engines"] == "local / vllm" and row["blocks"].value == 4
        speeds = [
            sum(item.num_output_tokens for item in cell.record.requests) / cell.record.wall_s for cell in (own, peer)
        ]
        assert [row["tok/s, first"].value, row["tok/s, second"].value] == pytest.approx(speeds)
        assert row["ratio by prompts"].value == pytest.approx(speeds[0] / speeds[1])
        logs = [
            math.log(mine.num_output_tokens / mine.wall_s / (other.num_output_tokens / other.wall_s))
            for mine, other in zip(own.record.blocks, peer.record.blocks, strict=True)
        ]
        assert row["ratio by blocks"].value == pytest.approx(math.exp(sum(logs) / 4))
        assert row["ratio by blocks"].low < row["ratio by blocks"].value < row["ratio by blocks"].high
        assert all(block.reported[CLIENT_CPU] > 0 for block in peer.record.blocks)
        assert row["client busy (%)"].value > 0
    text = table.to_markdown()
    session = both.cells["local", "none"].record.blocks[0].session
    found = (
        "vllm 0.33.0, started by",
        "tests.support.scripted_server",
        "num_waiting = 3",
        f"session {session}",
        "local: commit",
    )
    assert all(item in text for item in found), text
    assert any("waited at the server" in note for note in both.cells["vllm", "none"].record.fallbacks)


def test_a_peer_that_does_not_start_leaves_this_engine_measured(tmp_path):
    """Would catch a comparison that is lost with its peer, and a failure without the place of its log."""
    command = f'{sys.executable} -c "raise SystemExit(3)" {{speculation}}'
    cells = run_both(tmp_path, "measurement.num_blocks=2", command=command)
    (table,) = engine_tables(list(cells.values()))
    for row in (dict(zip(table.header, row, strict=True)) for row in table.rows):
        assert row["tok/s, first"].value > 0 and row["labels"] == "vllm: failed"
        assert all(row[name].is_missing for name in ("tok/s, second", "ratio by prompts", "ratio by blocks"))
    text = table.to_markdown()
    assert "ended with status 3" in text and str(tmp_path / "logs") in text


def test_peers_that_differ_in_a_setting_are_told_apart():
    """Would catch two rows of one name, and speeds of one peer under the settings of another."""
    peers = [
        simulated_cell(
            config(backend__kind="server", server__engine="vllm", server__num_waiting=n),
            [0.5],
            num_prompts=4,
            step_s=0.01 * (1 + n),
        )
        for n in (0, 4)
    ]
    own = simulated_cell(config(), [0.5], num_prompts=4)
    (table,) = engine_tables(analysed(*peers, own))
    rows = {row[table.header.index("engines")]: row[table.header.index("ratio by prompts")].value for row in table.rows}
    assert rows == {f"local / vllm (server.num_waiting={n})": pytest.approx(1 + n) for n in (0, 4)}


def paired_cells(own_speeds, peer_speeds, peer_sessions):
    """A pair of cells, a block for each speed: 4 requests of other prompts with 10 tokens each."""
    records = []
    for kind, speeds, sessions in (
        ("local", own_speeds, "s" * len(own_speeds)),
        ("server", peer_speeds, peer_sessions),
    ):
        requests, blocks = [], []
        for index, (speed, session) in enumerate(zip(speeds, sessions, strict=True)):
            wall_s = 40 / speed
            rounds = [round_record(0, 0, 0.1, share_s=wall_s / 40)] * 10
            requests += [request_record(rounds, f"{index}{place}") for place in range(4)]
            blocks.append(Block(index, session, 0, 10.0 * index, 10.0 * index + wall_s, 4, 40, wall_s))
        settings = config(backend__kind=kind, drafter__kind="none", server__engine="vllm")
        wall_s = sum(block.wall_s for block in blocks)
        records.append(cell_record(requests, wall_s, settings, blocks=tuple(blocks), cell_id=kind))
    (pair,) = engine_pairs(analysed(*records))
    return pair


def test_a_ratio_is_of_blocks_of_one_session():
    """Would catch blocks that a stopped run measured on another day, and a mean that big blocks decide."""
    pair = paired_cells([100, 200, 100, 50], [50, 100, 100, 1], "sss!")
    assert (pair.own["engine"], pair.peer["engine"]) == ("local", "vllm")
    assert [item.ratio for item in block_pairs(pair)] == pytest.approx([2, 2, 1])
    found = ratio_by_blocks(pair)
    assert found.value == pytest.approx(2 ** (2 / 3))
    # Student's t of log 2, log 2, 0 with two degrees of freedom
    reach = 4.302653 * math.log(2) / 3
    assert (found.low, found.high) == pytest.approx((found.value * math.exp(-reach), found.value * math.exp(reach)))
    by_prompts = paired_ratio(pair.peer.estimates, pair.own.estimates, "output_tokens_per_s")
    assert by_prompts.value == pytest.approx((40 / 50 + 40 / 100 + 40 / 100) / (40 / 100 + 40 / 200 + 40 / 100))
    two = ratio_by_blocks(paired_cells([100, 100], [50, 50], "ss"))
    assert two.value == pytest.approx(2) and math.isnan(two.low)
    assert math.isnan(ratio_by_blocks(paired_cells([100], [50], "!")).value)


def test_settings_of_this_engine_alone_do_not_part_it_from_a_server():
    """Would catch engines in two groups, which run one after the other, and two engines of ours in one."""
    settings = ["experiment=demo_server", "drafter=eagle3", "backend.graphs=false", "backend.max_length=512"]
    (group,) = comparable_groups(compose_plan(settings).cells)
    assert [cell.backend.kind for cell in group].count("server") == 2 and len(group) == 4
    parted = comparable_groups(compose_plan([*settings[:2], "backend=local", "backend.graphs=true,false"]).cells)
    assert [len(group) for group in parted] == [2, 2]


def test_the_list_of_cells_tells_engines_apart_without_their_settings():
    """Would catch the command line of a server in a column of its own, beside the null of this engine."""
    header, *rows = cell_rows(compose_plan(["experiment=side_by_side", "backend.device=cuda"]).cells)
    assert header[-1] == "backend.kind" and [row[-1] for row in rows] == ["server", "local"] * 2


SHAPE = ("experiment=throughput_qwen3_8b", "backend=server", "server=vllm")


def test_a_server_draws_random_weights_of_the_same_sizes(tmp_path):
    """Would catch the zoo's own target served in the place of a shape, and heads of other sizes than ours."""
    plan = compose_plan([*SHAPE, f"server.log_folder={tmp_path}"])
    baseline, drafted = (ServerBackend(cell, Servers()) for cell in plan.cells)
    arguments = launch_of_cell(drafted.cell, drafted.adapter).arguments
    assert arguments[arguments.index("--load-format") :][:2] == ("--load-format", "dummy")
    target = json.loads((tmp_path / drafted.weights()["target"].split()[-1] / "config.json").read_text())
    assert (target["architectures"], target["hidden_size"], target["vocab_size"]) == (
        ["Qwen3ForCausalLM"],
        4096,
        151936,
    )
    assert any(word.endswith(drafted.weights()["target"].split()[-1]) for word in arguments)
    speculative = json.loads(arguments[arguments.index("--speculative-config") + 1])
    head = json.loads((tmp_path / drafted.weights()["drafter"] / "config.json").read_text())
    assert speculative["model"].endswith(drafted.weights()["drafter"])
    assert head["architectures"] == ["LlamaForCausalLMEagle3"] and head["num_hidden_layers"] == 1
    assert (head["draft_vocab_size"], head["target_hidden_size"]) == (32000, 4096)
    assert baseline.weights()["target"] == drafted.weights()["target"] and "drafter" not in baseline.weights()


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        (["server=sglang", "drafter=none"], r"server=sglang\), found random"),
        (["server=vllm", "drafter.weights=checkpoint", "drafter.path=x"], "drafter.weights: expected random"),
        (["server=vllm", "server.command=serve"], r"server.command: expected \{weights\}"),
        (["server=vllm", "server.url=http://127.0.0.1:1"], "target.weights: expected checkpoint"),
    ],
)
def test_random_weights_that_a_server_cannot_draw_are_refused(settings, message):
    with pytest.raises(SettingsError, match=message):
        compose_plan(["experiment=throughput_qwen3_8b", "backend=server", *settings])


@pytest.mark.parametrize("how", ["server.command=serve", "server.url=http://127.0.0.1:1"])
def test_requests_that_would_not_wait_are_refused(how):
    """Would catch a speed with more requests in flight than the record says."""
    with pytest.raises(SettingsError, match=r"server.num_waiting: expected 0 unless .* found 3"):
        compose_plan(["backend=server", "server=vllm", "drafter=none", how, "server.num_waiting=3"])


class FullServer(ScriptedServer):
    """Answers its first requests once as many are in flight as it waits for, and remembers how many ever were."""

    wanted = most = num_in_flight = 0

    async def complete(self, request):
        self.num_in_flight += 1
        self.most = max(self.most, self.num_in_flight)
        try:
            while self.most < self.wanted:
                await asyncio.sleep(0.001)
            return await super().complete(request)
        finally:
            self.num_in_flight -= 1


def test_requests_wait_at_the_server_for_a_place(tmp_path):
    """Would catch places that stay empty until the client has seen an answer, and a queue without an end."""
    with FullServer(depth=DEPTH) as server:
        server.wanted = 5
        cell = cell_on(server, num_requests=12, concurrency=2, stall_timeout_s=10.0, num_blocks=1)
        cell = replace(cell, server=replace(cell.server, num_waiting=3))
        (record,), _ = run_on(tmp_path, cell)
    assert not record.failures and len(record.requests) == 12 and server.most == 5


def test_a_server_that_was_not_asked_longest_makes_room(tmp_path):
    """Would catch servers beyond the limit, which share the memory, and the wrong one stopped."""
    servers = Servers()
    launches = [
        Launch((sys.executable, "-m", "tests.support.scripted_server", "--port", "{port}", "--says", name))
        for name in "abc"
    ]

    def url(launch):
        return servers.url(launch, "/health", 60.0, tmp_path, max_running=2)

    first, second = url(launches[0]), url(launches[1])
    assert url(launches[0]) == first and servers.log.endswith("a\n")
    url(launches[2])
    assert url(launches[0]) == first and url(launches[1]) != second
    servers.stop()
    assert not any(servers.deaths.values()) and len(list(tmp_path.glob("*.log"))) == 4


def test_the_console_has_a_line_for_every_pair(both):
    stream = io.StringIO()
    print_summary(list(both.cells.values()), stream)
    text = " ".join(stream.getvalue().split())
    for what in ("baseline", "eagle3, K = 4, probabilistic"):
        assert re.search(rf"local / vllm, {what}, T = 0: [\d,.]+ / [\d,.]+ tok/s; ratio .* by 4 blocks", text), text


def test_a_run_of_one_engine_has_no_such_table(both):
    assert engine_tables([cell for key, cell in both.cells.items() if key[0] == "local"]) == []
