"""Records what the real llama-server sends, for tests that replay it: `python -m tests.support.record_llama_cpp
ENVIRONMENT`.

ENVIRONMENT is what `rejection-lab demo-server --engine llama_cpp` has made. Each arm answers one prompt; the files go
to tests/data/llama_cpp_VERSION/. Another run gives the same files but for times and ids of requests.
"""

import json
import re
import sys
import urllib.request
from pathlib import Path

from experiments.demo_server import LLAMA_CPP
from harness.backends.server.adapters.llama_cpp_run import LlamaCppAdapter
from harness.backends.server.get import get, get_json
from harness.backends.server.launch_of_cell import launch_of_cell
from harness.backends.server.llama_cpp.environment import folders
from harness.backends.server.load_generator import LoadGenerator
from harness.backends.server.process import Servers
from harness.backends.server.prompts import Question, ServedPrompts
from harness.runner.plan.compose import compose_plan
from harness.workload.chat import chat_messages, encode_chat
from harness.workload.conversations import Conversation, Prompt

DATA = Path(__file__).parents[1] / "data"
MAX_TOKENS = 24
QUESTIONS = {
    "none": "Count from one to twelve.",
    "ngram": "Repeat after me: the cat sat on the mat, the cat sat on the mat, the cat",
    "draft_model": "What is the capital of France?",
}
HELD = "Repeat exactly: \U0001f600 \U0001f389 \u65e5\u672c\u8a9e \u2603"
"""Its answer has characters of several tokens."""
KEPT_PROPS = ("total_slots", "build_info")


def question(cell, prompts, text):
    """One turn as the backend asks it."""
    messages = chat_messages([text], [])
    ids = tuple(encode_chat(prompts.tokenizer, messages).token_ids)
    conversation = Conversation(Prompt("recorded", "recorded", (text,)), 0, cell.seed)
    return Question(conversation, 0, ids, tuple(messages), cell.decoding.sampling)


def ask(url, body):
    """The raw stream."""
    request = urllib.request.Request(url, json.dumps(body).encode(), {"Content-Type": "application/json"})
    with urllib.request.urlopen(request) as answer:
        return answer.read().decode()


def main(environment):
    target, drafter = folders(Path(environment))
    settings = [f"server.environment={environment}", "target=local", f"target.path={target}", "target.name=smollm2"]
    settings += ["backend=server", f"drafter.path={drafter}", f"decoding.max_new_tokens={MAX_TOKENS}"]
    of_demo = [item for item in LLAMA_CPP if not item.startswith(("backend=", "decoding.max_new_tokens"))]
    cells = compose_plan([*of_demo, *settings]).cells
    servers = Servers()
    for cell in cells:
        arm = cell.drafter.kind.value
        adapter, prompts = LlamaCppAdapter(cell, str(drafter)), ServedPrompts(cell)
        launch = launch_of_cell(cell, adapter, num_tokens=512)
        url = servers.url(launch, "/health", 120.0, Path(cell.server.log_folder))
        version = get_json(url + "/props")["build_info"]
        folder = DATA / f"llama_cpp_{version}"
        folder.mkdir(exist_ok=True)
        generator = LoadGenerator(cell, adapter, prompts, url, "smollm2")
        asked = generator.body(question(cell, prompts, QUESTIONS[arm]))
        (folder / f"{arm}.txt").write_text(ask(generator.endpoint, asked))
        (folder / f"{arm}_metrics.txt").write_text(get(url + "/metrics"))
        if arm != "draft_model":
            continue
        (folder / "held.txt").write_text(ask(generator.endpoint, generator.body(question(cell, prompts, HELD))))
        (folder / "openai.txt").write_text(ask(f"{url}/v1/completions", asked))
        props = {name: value for name, value in get_json(url + "/props").items() if name in KEPT_PROPS}
        (folder / "props.json").write_text(json.dumps(props, indent=1) + "\n")
        models = re.sub(r'"created":\d+', '"created":0', get(url + "/v1/models"))
        (folder / "models.json").write_text(models + "\n")
    servers.stop()


if __name__ == "__main__":
    main(sys.argv[1])
