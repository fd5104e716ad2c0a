"""A server that answers from a script, in the formats of real engines: every step follows from a request's seed.

The formats of vLLM 0.25 and 0.33, SGLang 0.5 and TensorRT-LLM are written from their sources, not recorded from them;
those of vLLM 0.32 and llama.cpp are held against recorded ones (tests/backends/test_server_formats.py). Faults by seed:
`dies`, `stalls`, `malformed`, `unlimited` (twice the tokens that were asked for), `busy` (429, then an answer),
`always_busy` (503), `refused`, `resets` (the counters start anew), `backwards` (drafts that do not add up),
`incomplete` (no list of drafted tokens), `silent` (no drafts, and no list of steps).
"""

import argparse
import asyncio
import json
import os
import signal
import threading
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field, replace

from aiohttp import web

from tests.support.server_scripts import SEEDS, endless, script_of

END_THINK = 6
WORDS = {301: " of", 302: " and", END_THINK: "</think>"}
EOS = 4
FORMATS = ("plain", "vllm_0.25", "vllm_0.32", "vllm_0.33", "sglang", "tensorrt_llm", "llama_cpp")
VERSIONS = {"vllm_0.25": "0.25.1", "vllm_0.32": "0.32.0", "vllm_0.33": "0.33.0", "sglang": "0.5.23"}


@dataclass
class ScriptedServer:
    """Serves in a thread of its own while it is entered."""

    format: str = "vllm_0.33"
    depth: int = 3
    faults: dict[int, str] = field(default_factory=dict)
    """Seed modulo SEEDS -> fault."""
    model: str = "zoo"
    info: dict = field(default_factory=dict)
    """Answer of /server_info."""
    counts: Counter = field(default_factory=Counter)
    bodies: list = field(default_factory=list)
    killed_at: int | None = None
    closes_at: int | None = None
    """Request with which it stops to answer anything, while its process lives on."""
    closes_kept: bool = False
    """Announces to keep a connection, and closes it at the second request without an answer."""
    waits_for: int = 0
    """Requests that must be there before any is answered: then all of them are in flight."""
    max_tokens: int = 4096
    """A limit of its own."""
    max_length: int = 4096
    """Tokens of prompt and answer."""
    num_slots: int = 256
    """Requests that llama.cpp answers at a time."""
    num_held: int = 0
    """Tokens of every answer that llama.cpp holds back, as of a character that is not whole yet: its second ones."""
    num_others: int = 0
    """Drafts of other clients that its counters hold after every answer."""
    cuts_drafts: bool = False
    """Steps draft no more tokens than are accepted, some none, as by a least probability."""
    cuts_at: int = 0
    """Limit of answers: steps draft no more tokens than are left up to it, but for the one that comes anyway."""
    num_cached: int = 0
    """Prompt tokens from its prefix cache."""
    detail: str = "detailed"
    """How much vLLM tells of each answer: detailed, summary."""
    chunks_of: Callable[[tuple[int, ...]], tuple[int, ...]] = tuple
    """Steps of an answer -> its chunks, by their tokens."""
    reasoning_tokens: int | None = None
    """Output tokens up to the end of reasoning, the marker included; None: there is none."""
    port: int = 0
    """Known once it serves."""
    version: str | None = None
    """None: that of its format."""

    _answered: set = field(default_factory=set)
    """Connections that have had a request."""

    def __enter__(self):
        ready = threading.Event()
        self._thread = threading.Thread(target=asyncio.run, args=(self._serve(ready),), daemon=True)
        self._thread.start()
        assert ready.wait(30)
        return self

    def __exit__(self, *_):
        self._loop.call_soon_threadsafe(self._stop.set)
        self._thread.join(30)

    @property
    def url(self):
        return f"http://127.0.0.1:{self.port}"

    async def _serve(self, ready, port=0):
        self._loop, self._stop, self._all_there = asyncio.get_running_loop(), asyncio.Event(), asyncio.Event()
        runner = web.AppRunner(self.app(), shutdown_timeout=0)
        await runner.setup()
        self._site = web.TCPSite(runner, "127.0.0.1", port, backlog=1024)
        await self._site.start()
        self.port = runner.addresses[0][1]
        ready.set()
        await self._stop.wait()
        await runner.cleanup()

    def app(self):
        app = web.Application()
        self.version = self.version or VERSIONS.get(self.format, "1")
        app.router.add_get("/health", _says({}))
        model = (
            {"meta": {"n_ctx": self.max_length}} if self.format == "llama_cpp" else {"max_model_len": self.max_length}
        )
        app.router.add_get("/v1/models", _says({"data": [{"id": self.model, **model}]}))
        app.router.add_get("/props", _says({"build_info": self.version, "total_slots": self.num_slots}))
        app.router.add_get("/version", _says(lambda: json.dumps({"version": self.version})))
        app.router.add_get("/server_info", _says(lambda: json.dumps({"version": self.version, **self.info})))
        if self.format != "plain":
            for path in ("/metrics", "/prometheus/metrics"):
                app.router.add_get(path, _says(self.metrics))
        app.router.add_post("/v1/completions", self.complete)
        app.router.add_post("/completion", self.complete)
        app.router.add_post("/v1/chat/completions", self.complete)
        return app

    async def complete(self, request):
        body = await request.json()
        if self.closes_kept and request.transport in self._answered:
            request.transport.abort()
            return web.Response()
        self._answered.add(request.transport)
        self.bodies.append(body)
        if len(self.bodies) >= self.waits_for:
            self._all_there.set()
        await self._all_there.wait()
        if len(self.bodies) == self.killed_at:
            os.kill(os.getpid(), signal.SIGKILL)
        if self.closes_at is not None and len(self.bodies) >= self.closes_at:
            request.transport.abort()
            if len(self.bodies) == self.closes_at:
                await self._site.stop()
        fault = self.faults.get(body["seed"] % SEEDS)
        if body["model"] != self.model:
            return _error(404, f"The model `{body['model']}` does not exist.")
        if fault == "refused":
            return _error(400, "prompt is too long")
        if fault in ("busy", "always_busy"):
            if fault == "busy":
                del self.faults[body["seed"] % SEEDS]
            return web.Response(status=429 if fault == "busy" else 503, headers={"Retry-After": "0"})
        return await self.stream(request, body, fault)

    async def stream(self, request, body, fault):
        """Send an answer, event by event; a fault shows at the third."""
        script = script_of(body["seed"], self.depth, min(body["max_tokens"], self.max_tokens))
        if body.get("ignore_eos"):
            script = endless(script, min(body["max_tokens"], self.max_tokens))
        script = replace(script, sizes=self.chunks_of(script.sizes))
        if fault == "unlimited":
            script = endless(script, 2 * body["max_tokens"])
        script = stopped(script, body.get("stop", ()))
        if fault == "silent":
            script = replace(script, accepted=(), sizes=(1,) * script.num_tokens)
        response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
        await response.prepare(request)
        events = self.completion if request.path == "/completion" else self.events
        for index, event in enumerate(events(script, body, fault)):
            if index == 2 and fault == "dies":
                request.transport.abort()
                return response
            if index == 2 and fault == "stalls":
                await self._stop.wait()
            if index == 2 and fault == "malformed":
                await response.write(b"data: {not json\n\n")
            await response.write(f"data: {json.dumps(event)}\n\n".encode())
            await asyncio.sleep(0)
        self.count(script)
        if fault == "resets":
            self.counts.clear()
        if request.path != "/completion":
            await response.write(b"data: [DONE]\n\n")
        return response

    def completion(self, script, body, fault):
        """The events of llama.cpp's own endpoint: one a token, with what was counted up to there."""
        accepted = [0, *script.accepted] if script.accepted else [0] * len(script.sizes)
        num, drafted, taken, text, whole = 0, 0, 0, "", ""
        for place, size in enumerate(script.sizes):
            drafted += self.drafted(script)[place - 1] if place and script.accepted else 0
            taken += accepted[place] + (fault == "backwards" and place == 2) * (script.depth - accepted[place] - 5)
            for _ in range(size):
                if script.stop is not None and script.stop in whole:
                    break
                num += 1
                is_end = num == script.num_tokens and script.finish_reason == "stop" and script.stop is None
                token = EOS if is_end else 302 - num % 2
                text += WORDS.get(token, "")
                whole += WORDS.get(token, "")
                drafts = {"draft_n": drafted, "draft_n_accepted": taken} if drafted else {}
                timings = {"cache_n": self.num_cached, "predicted_n": num, **drafts}
                tokens = {"tokens_predicted": num, "tokens_evaluated": len(body["prompt"])}
                if 1 < num <= 1 + self.num_held:
                    continue
                yield {"content": text, "tokens": [token], "stop": False, "timings": timings, **tokens}
                text = ""
        why = {"stop": "eos", "length": "limit"}[script.finish_reason] if script.stop is None else "word"
        end = {"stop_type": why, "stopping_word": script.stop or ""}
        yield {"content": "", "tokens": [], "stop": True, **end, "timings": timings, **tokens}

    def events(self, script, body, fault):
        """The chunks of an answer, the finish reason in the last of them, and the usage behind them."""
        has_ids = body.get("return_token_ids", False)
        num_before = 0
        for size in script.sizes:
            ids = [301 + (num_before + i) % 2 for i in range(size)]
            num_before += size
            is_last = num_before == script.num_tokens
            if self.reasoning_tokens is not None and 0 < self.reasoning_tokens - (num_before - size) <= size:
                ids[self.reasoning_tokens - (num_before - size) - 1] = END_THINK
            if is_last and script.finish_reason == "stop" and script.stop is None:
                ids[-1] = EOS
            text = "".join(WORDS.get(token, "") for token in ids)
            choice = {"index": 0, "finish_reason": script.finish_reason if is_last else None}
            if is_last and script.stop is not None:
                # the tokens are all of the step's, and the text is none that belongs to the stop string
                text = ""
            name = {"plain": None, "sglang": "matched_stop"}.get(self.format, "stop_reason")
            choice |= {name: script.stop} if is_last and name else {}
            choice |= {"delta": {"content": text}} if "messages" in body else {"text": text}
            yield {"choices": [choice | ({"token_ids": ids} if has_ids else {})]} | (
                {"timings": {"draft_n": script.depth * len(script.accepted)}}
                if self.format == "llama_cpp" and is_last
                else {}
            )
        usage = {"prompt_tokens": len(body.get("prompt", [])) or 7, "completion_tokens": script.num_tokens}
        usage |= {"prompt_tokens_details": {"cached_tokens": self.num_cached}} if self.num_cached else {}
        yield {"choices": [], "usage": usage, **self.details(script, fault)}

    def details(self, script, fault):
        """The drafts of one answer as an engine reports them."""
        accepted, steps = list(script.accepted), len(script.accepted)
        histogram = [accepted.count(number) for number in range(script.depth + 1)]
        if not script.depth:
            return {}
        if self.format in ("vllm_0.32", "vllm_0.33"):
            if fault == "backwards":
                accepted = [script.depth] * (steps + 5)
            drafted = [script.depth] * len(accepted) if fault == "backwards" else self.drafted(script)
            found = {
                "mean_acceptance_length": 1 + sum(accepted) / max(1, steps),
                "acceptance_histogram": histogram,
                "num_spec_steps": steps,
                "num_accepted_draft_tokens": sum(accepted),
                "num_draft_tokens": sum(drafted),
                "num_spec_tokens": script.depth,
            }
            if steps and self.detail == "detailed":
                listed = [place for place, number in enumerate(drafted) if number]
                found["num_spec_steps"] = len(listed)
                found |= {"per_step_accepted": [accepted[place] for place in listed]}
                found |= {"per_step_drafted": [drafted[place] for place in listed]}
            if fault == "incomplete":
                del found["per_step_drafted"]
            return {"metrics": {"speculative_decoding": found}}
        if self.format == "sglang":
            found = {
                "spec_accept_length": script.num_tokens / max(1, steps),
                "spec_num_correct_drafts": sum(accepted) + (fault == "backwards"),
                "spec_num_proposed_drafts": script.depth * steps,
                "spec_verify_ct": steps,
                "spec_correct_drafts_histogram": histogram,
            }
            return {"sglext": {"spec_tokens_details": found}}
        return {}

    def drafted(self, script):
        """Draft tokens of each step."""
        if self.cuts_drafts:
            return list(script.accepted)
        if not self.cuts_at:
            return [script.depth] * len(script.accepted)
        left = [self.cuts_at - sum(script.sizes[:place]) for place in range(1, len(script.sizes))]
        return [min(script.depth, max(num - 1, accepted)) for num, accepted in zip(left, script.accepted, strict=True)]

    def count(self, script):
        """Add an answer to the server's counters."""
        self.counts["tokens"] += script.num_tokens
        self.counts["drafts"] += sum(number > 0 for number in self.drafted(script))
        self.counts["drafted"] += sum(self.drafted(script)) + self.depth * self.num_others
        self.counts["drafts"] += self.num_others
        self.counts["accepted"] += sum(script.accepted)
        for place in range(script.depth):
            self.counts["drafted", place] += len(script.accepted)
            self.counts["accepted", place] += sum(number > place for number in script.accepted)

    def metrics(self):
        """The text of /metrics."""
        counts, places = self.counts, range(self.depth)
        lines = ["# TYPE process_start_time_seconds gauge", "process_start_time_seconds 1.7e+09"]
        if self.format == "tensorrt_llm":
            for what in ("drafted", "accepted"):
                name = f"trtllm_spec_decode_{what}_tokens"
                lines += [f"# TYPE {name} counter"]
                lines += [f'{name}_total{{token_position="{i}"}} {float(counts[what, i])}' for i in places]
        elif self.format == "sglang":
            lines += ["# TYPE sglang:generation_tokens counter", f"sglang:generation_tokens_total {counts['tokens']}"]
        elif self.format.startswith("vllm") or self.format == "llama_cpp":
            engine = self.format.partition("_")[0].replace("llama", "llamacpp")
            values = {
                "tokens_predicted" if engine == "llamacpp" else "generation_tokens": counts["tokens"],
                "spec_decode_num_drafts": counts["drafts"],
                "spec_decode_num_draft_tokens": counts["drafted"],
                "spec_decode_num_accepted_tokens": counts["accepted"],
            }
            for name, value in values.items():
                labels = '{engine="0",model_name="zoo"}' if engine == "vllm" else ""
                lines += [f"# TYPE {engine}:{name} counter", f"{engine}:{name}_total{labels} {value}.0"]
            name = f"{engine}:spec_decode_num_accepted_tokens_per_pos"
            lines += [f"# TYPE {name} counter"]
            lines += [f'{name}_total{{position="{i}"}} {counts["accepted", i]}.0' for i in places]
        return "\n".join(lines) + "\n"


def stopped(script, strings):
    """The script up to the step in which its text holds one of some strings."""
    num = 0
    for place, size in enumerate(script.sizes):
        num += size
        has_end = num == script.num_tokens and script.finish_reason == "stop"
        text = "".join(WORDS[301 + index % 2] for index in range(num - has_end))
        found = [string for string in strings if string in text]
        if found:
            sizes, accepted = script.sizes[: place + 1], script.accepted[:place]
            return replace(script, sizes=sizes, accepted=accepted, finish_reason="stop", stop=found[0])
    return script


def _says(content):
    """A handler that always gives this answer: a function's text, or JSON."""

    async def answer(_):
        return web.Response(text=content()) if callable(content) else web.json_response(content)

    return answer


def _error(status, message):
    return web.json_response({"error": {"message": message}}, status=status)


def main():
    """Serve until the process is ended: `--speculative-config` decides the depth, as vLLM's does."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--format", choices=FORMATS, default="vllm_0.33")
    parser.add_argument("--per-request-spec-decode-metrics")
    parser.add_argument("--max-num-seqs", help="taken and not heeded")
    parser.add_argument("--says", default="", help="printed at the start")
    parser.add_argument("--killed-at", type=int, help="request during which it is killed as by kill -9")
    parser.add_argument("--closes-at", type=int, help="request with which it stops to answer")
    parser.add_argument("--speculative-config", type=json.loads, default={})
    given = parser.parse_args()
    if given.per_request_spec_decode_metrics and not given.speculative_config:
        parser.error("--per-request-spec-decode-metrics requires speculative decoding to be enabled")
    print(f"pid {os.getpid()}\n{given.says}", flush=True)
    depth = given.speculative_config.get("num_speculative_tokens", 0)
    server = ScriptedServer(given.format, depth, killed_at=given.killed_at, closes_at=given.closes_at)
    asyncio.run(server._serve(threading.Event(), given.port))


if __name__ == "__main__":
    main()
