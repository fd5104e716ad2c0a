"""One chunk for every step of a stream, where vLLM's front end would merge the steps that it has fallen behind with.

Version 0.25 tells of drafts by counters alone; with a chunk a step, a client sees what every step has accepted.
"""

from __future__ import annotations

from collections import deque
from importlib import import_module
from typing import Any

COLLECTOR = "vllm.v1.engine.async_llm"
NAME = "RequestOutputCollector"


def send_every_step() -> None:
    """Have the front end of this process queue the outputs of a stream and not merge them; once is enough."""
    module: Any = import_module(COLLECTOR)
    own: Any = getattr(module, NAME)
    if getattr(own, "is_rejection_lab", False):
        return

    class EveryStep(own):
        """vLLM's own, which has room for one output, and a queue before it."""

        is_rejection_lab = True

        def __init__(self, *arguments: Any, **named: Any) -> None:
            super().__init__(*arguments, **named)
            self._waiting: deque[Any] = deque()

        def put(self, output: Any) -> None:
            if self.output is None or isinstance(output, Exception):
                self._waiting.clear()
                super().put(output)
            else:
                self._waiting.append(output)

        async def get(self) -> Any:
            return self._next(await super().get())

        def get_nowait(self) -> Any:
            return self._next(super().get_nowait())

        def _next(self, output: Any) -> Any:
            if self._waiting and self.output is None:
                super().put(self._waiting.popleft())
            return output

    setattr(module, NAME, EveryStep)
