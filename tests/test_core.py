"""Which sampling core a device gets, and what of it is imported."""

import torch

from kernels.core import core_for, reference_core
from kernels.reference.coupled import coupled_draw
from kernels.reference.draw import draw
from kernels.reference.verify import verify
from tests.own_process import output_of

WITHOUT_TRITON = """
import sys
sys.modules["triton"] = None
import torch
from kernels.core import core_for
print(core_for(torch.device("cpu")).name)
"""


def test_a_cpu_gets_the_reference():
    core = core_for(torch.device("cpu"))
    assert (core.name, core.verify, core.draw, core.coupled_draw) == ("reference", verify, draw, coupled_draw)
    assert core == reference_core()


def test_a_machine_without_triton_has_a_core():
    assert output_of(WITHOUT_TRITON) == "reference\n"
