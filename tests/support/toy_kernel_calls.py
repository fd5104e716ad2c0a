"""Toy kernels, calls that launch them, and a process that compiles them ahead without a GPU."""

import json
import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]
TOYS = """
import os
import sys
from typing import NamedTuple

import triton
import triton.language as tl
from triton.compiler import ASTSource

class Sizes(NamedTuple):
    num_values: int
    limit: int

OTHER = tl.constexpr(0.5)

@triton.jit
def read(values, offsets, sizes):
    return tl.load(values + offsets, mask=offsets < sizes.num_values, other=OTHER)

@triton.jit
def scaling_kernel(values, sizes, BLOCK: tl.constexpr):
    offsets = tl.arange(0, BLOCK)
    tl.store(values + offsets, read(values, offsets, sizes) * sizes.limit, mask=offsets < sizes.num_values)

@triton.jit
def shifting_kernel(values, sizes, BLOCK: tl.constexpr):
    offsets = tl.arange(0, BLOCK)
    tl.store(values + offsets, read(values, offsets, sizes) + sizes.limit, mask=offsets < sizes.num_values)

@triton.jit
def wrong_kernel(values):
    tl.static_assert(False, "never right")

@triton.jit
def deadly_kernel(values):
    pass

if any("compiling_processes" in each for each in sys.orig_argv):
    # where kernels are compiled ahead
    make_ir = ASTSource.make_ir
    ASTSource.make_ir = lambda asked, *given: os._exit(3) if asked.name == "deadly_kernel" else make_ir(asked, *given)
"""
CALLS = '''
import json, sys
import torch
from triton.runtime.driver import driver
from harness.engine.compile_ahead.compilation import Compilation
from harness.engine.compile_ahead.variant import RecordingDriver
from toys import Sizes, deadly_kernel, scaling_kernel, shifting_kernel, wrong_kernel

def scale(device, launch):
    """Two types, a size that is a multiple of 16 and one that is not, and memory that begins anywhere."""
    for dtype in (torch.float32, torch.float16):
        values = torch.zeros(100, dtype=dtype, device=device)
        for given, sizes in ((values, Sizes(96, 7)), (values, Sizes(99, 7)), (values[1:], Sizes(99, 7))):
            launch(scaling_kernel)(given, sizes, BLOCK=128)
        launch(shifting_kernel)(values, sizes, BLOCK=128)

def rest(device, launch):
    values = torch.zeros(100, device=device)
    launch(wrong_kernel)(values)
    launch(deadly_kernel)(values)

def run(kernel):
    return kernel[(1,)]

def only_compile(kernel):
    return lambda *given, **named: kernel.warmup(*given, grid=(1,), **named)

class Device(RecordingDriver):
    """Has kernels of its own, which are compiled."""

    def get_current_device(self):
        return 0

looked_at = []

def unknown(device, launch):
    torch.zeros(3, device="meta").tolist()

def looked(device, launch):
    """A kernel of `scale`."""
    if device == "meta":
        looked_at.append(1)
    launch(shifting_kernel)(torch.zeros(100, device=device), Sizes(99, 7), BLOCK=128)

name = sys.argv[1]
calls = {
    "found": [scale],
    "failing": [unknown, rest, scale],
    "nothing": [],
    "six and one": [scale, *6 * [looked]],
}[name]
named = {f"{name} {number}": call for number, call in enumerate(calls)}
compilation = Compilation({each: (lambda call=call: call("meta", run)) for each, call in named.items()}, 90)
compilation.wait()
driver.set_active(Device(90))
compiled_s = []
for each, call in named.items() or [("", scale)]:
    with compilation.launching(each) as seconds:
        if call not in (unknown, rest):
            call("cpu", only_compile)
    compiled_s += seconds
print(json.dumps({
    "summary": compilation.summary, "num_compiled_later": len(compiled_s), "num_looked_at": len(looked_at)
}))
'''


def in_process_of_its_own(code: str, folder: Path, *arguments: str) -> dict:
    """What code prints as JSON, where kernels are compiled and not interpreted, with a cache of its own."""
    (folder / "toys.py").write_text(TOYS)
    (folder / "asked.py").write_text(code)
    environment = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    environment |= {"PYTHONPATH": f"{ROOT}{os.pathsep}{folder}", "TRITON_CACHE_DIR": str(folder / "cache")}
    command = [sys.executable, str(folder / "asked.py"), *arguments]
    done = subprocess.run(command, env=environment, cwd=folder, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])
