"""Test from outside that a server emits the law of the target that it serves.

Asks a server with an OpenAI-compatible interface many short requests and compares the joint law of the first tokens of
its answers with the exact one, computed here from the target's weights. It must serve the built-in target, or one that
fits this machine (--target), and give token ids (vLLM, SGLang, llama.cpp). Whether it drafts is the server's matter:
certify one that drafts and one that does not. First its token ids, its tokenizer and its greedy answers are compared
with the target's. Exits with 1 if a case has another law than the target's; it is then asked once more with fresh
requests.

examples:
  rejection-lab certify-server http://127.0.0.1:8000
  rejection-lab certify-server http://127.0.0.1:8000 --requests 100000 --budget-s 3600 --temperature 1,0.7 --top-p 1,0.9
  rejection-lab certify-server http://127.0.0.1:8000 --target FOLDER --dtype bfloat16
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from harness.checks.server_certification.config import CertifyServerConfig
from harness.config.cli.command_line import CommandParser, say
from harness.config.cli.ending import FAILED, SUCCESS


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command; returns its exit code."""
    parser = CommandParser("certify-server", __doc__, "URL")
    parser.add_argument("url", metavar="URL", help="of the server, such as http://127.0.0.1:8000")
    parser.add_settings(CertifyServerConfig, "certify-server")
    return parser.call(_run, arguments)


def _run(options: argparse.Namespace) -> int:
    """Certify, print one line per case and the verdict, and write the report."""
    from harness.checks.server_certification.certify_server import certify_server
    from harness.checks.server_certification.known_model import LocalModel
    from harness.checks.server_certification.report import headline, line, notes, write

    config: CertifyServerConfig = options.settings

    def load() -> LocalModel:
        return LocalModel(config.target, config.dtype.value, config.accept_unknown)

    result = certify_server(options.url, config, load, say)
    page = write(result, Path(config.output))
    print(*map(line, result.cases), headline(result), sep="\n")
    for note in notes(result):
        print(f"  {note}")
    say(f"report: {page}")
    return SUCCESS if result.is_green else FAILED


if __name__ == "__main__":
    sys.exit(main())
