"""HumanEval: whether the function in an answer passes the data set's tests (functional correctness, pass at 1).

The function is that of the last block of code that defines it, or of the text where there is no block; code without the
definition continues the prompt, up to the first line that ends a function, as openai/human-eval cuts it.
"""

from __future__ import annotations

import json
import re

from harness.workload.tasks.sandbox import Outcome, run_program

_BLOCK = re.compile(r"```[\w+-]*[ \t]*\n(.*?)(?:\n[ \t]*```|\Z)", re.DOTALL)
_FUTURE = re.compile(r"^from __future__ import [^\n(]+$", re.MULTILINE)
_STOPS = ("\nclass ", "\ndef ", "\n#", "\nif ", "\nprint(", "\n@", "\nassert ")


def known(prompt: str, test: str, entry_point: str) -> str:
    """What a program needs beside the answer, as text."""
    return json.dumps({"prompt": prompt, "test": test, "entry_point": entry_point})


def program(given: str, answer: str) -> str:
    """The program that ends without an error if the answer is right.

    Args:
        given: from `known`.
        answer: of the model, without its reasoning.
    """
    parts = json.loads(given)
    defines = re.compile(rf"^def {re.escape(parts['entry_point'])}\b", re.MULTILINE)
    blocks = _BLOCK.findall(answer)
    code = next((block for block in reversed(blocks) if defines.search(block)), blocks[-1] if blocks else answer)
    if not defines.search(code):
        end = min((place for stop in _STOPS if (place := code.find(stop)) >= 0), default=len(code))
        code = parts["prompt"] + code[:end]
    else:
        # what the prompt imports and defines before the function; Python takes future imports at the beginning alone
        futures = "\n".join(_FUTURE.findall(code))
        code = f"{futures}\n{parts['prompt']}\n    pass\n\n{_FUTURE.sub('', code)}"
    return f"{code}\n{parts['test']}\ncheck({parts['entry_point']})\n"


def judge(given: str, answer: str) -> Outcome:
    """Whether an answer is right, and how well its program was confined; arguments are those of `program`."""
    return run_program(program(given, answer))
