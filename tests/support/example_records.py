"""Records of an engine's cell and of a server's, with every kind of field."""

from dataclasses import replace

from harness.records.counts import Arrival, DraftCounts, Knowledge
from harness.records.request import CutReason, FinishReason, StopFound
from harness.records.schema import Block, Failure
from harness.records.token_logprobs import TokenLogprobs
from tests.support.synthetic_cells import cell_record, request_record, round_record

HELD = {"is_whole": False, "num_held_steps": 2}


def example_cell():
    """A cell with a cut, a missing expectation, the path of a tree and every optional field of rounds."""
    rounds = [
        round_record(0, 0, 0.1),
        round_record(3, 2, 0.1 + 0.2, expected=(1 / 3, 0.5, 2.0), path=(0, 2), num_draft_positions=2),
        round_record(1, 1, 0.7, num_proposed=3, cut=CutReason.eos),
    ]
    constrained = [
        round_record(0, 0, 0.1, num_free_tokens=0, host_us=1 / 3, is_whole=True),
        round_record(2, 1, 0.7, num_free_tokens=1, num_cut_tokens=1, cut=CutReason.grammar, **HELD),
    ]
    asked = replace(
        request_record(rounds[:1], turn=3),
        sampling={"temperature": 0.7, "top_k": 5, "top_p": 1.0, "min_p": 0.0},
        logprobs=TokenLogprobs((None,), (3,), ((1, 0),), ((-0.1, -2.5),)),
    )
    stopped = replace(request_record(rounds[:1], turn=4), finish_reason=FinishReason.stop, stop=StopFound("é\n", 3))
    requests = [request_record(rounds), request_record(rounds, turn=1), request_record(constrained, turn=2)]
    return cell_record(
        [*requests, asked, stopped],
        wall_s=1 / 3,
        fallbacks=("no chat template",),
        labels=("lossy",),
        num_skipped_turns=2,
        target_cache_bytes=2**20,
        drafter_cache_bytes=2**18,
        graph_bytes=2**17,
    )


def coarse_cell(**changes):
    """A cell of two sessions on a server that counts drafts by request, or by block, and lost a request."""
    counts = DraftCounts(2, 6, 3, (2, 2, 2), (2, 1, 0))
    arrivals = (Arrival(0.1, 1), Arrival(1 / 3, 4))
    requests = [
        replace(request_record([round_record(0, 0, 0.1)], turn=turn), rounds=(), output_token_ids=(), arrivals=arrivals)
        for turn in range(2)
    ]
    blocks = [
        Block(place, f"session{place}", place, 1e9 + place, 1e9 + place + 1, 1, 5, 0.5, counts, {"steps_total": 2.0})
        for place in range(2)
    ]
    fields = {
        "knowledge": Knowledge.requests,
        "blocks": tuple(blocks),
        "more_provenances": ({"gpu": "another"},),
        "failures": (Failure("OSError", "gone", "Traceback", {"timeout_s": 60}, ("b", 0, 0)),),
        "graph_bytes": None,
    }
    return cell_record([replace(item, counts=counts) for item in requests], **(fields | changes))
