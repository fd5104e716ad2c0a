"""The extension of vLLM's workers: switches the verification of a running engine, for every worker alike."""

from __future__ import annotations

import logging
from dataclasses import asdict
from importlib import import_module
from pathlib import Path
from typing import Any

import torch

from harness.plugins.vllm.attest import LEVEL, NUM_REQUESTS, Attestation, Way, attest
from harness.plugins.vllm.recording import RECORDED, Recording, refuse
from harness.plugins.vllm.signatures import GUMBEL, checked_version
from harness.plugins.vllm.swap import Swap
from harness.plugins.vllm.verification import OURS, CoreVerification, Method
from kernels.core import Core, core_for

logger = logging.getLogger("vllm.rejection_lab")
OWN = {"vllm:standard": False, "vllm:block": True}
"""vLLM's own methods by name, and whether each is block."""
NAMES = ("vllm", *OWN, *(method.value for method in OURS))


class WorkerExtension:
    """Methods for `collective_rpc`; vLLM adds them to its worker class, which has `model_runner` and `device`."""

    model_runner: Any
    device: Any
    rejection_lab_core: Core | None = None
    rejection_lab_attested: dict[str, dict[str, float | bool]] | None = None
    rejection_lab_recording: Recording | None = None

    def set_verification(
        self, name: str, synthetic_rates: tuple[float, ...] = (), certify: bool = True
    ) -> dict[str, float | bool] | None:
        """Verify by another method from the next step on.

        Call it while no request runs, where the tokens of a request are to come from one method alone.

        Args:
            name: `vllm`, its own method as configured; `vllm:standard` or `vllm:block`; strict, probabilistic, block or
                synthetic, by this project's core.
            synthetic_rates: unconditional acceptance rate of each position, of `synthetic` alone.
            certify: test a lossless method of the core on this device before the first time that it runs.

        Returns:
            What `attest` found, None where nothing was tested.

        Raises:
            ValueError: no such name, or no rates for synthetic.
            RefusedVersion: vLLM is not one that the plug-in may run in.
            RuntimeError: the method did not pass, and vLLM's own stays; or a recording is running.
        """
        if name not in NAMES:
            raise ValueError(f"set_verification: expected {', '.join(NAMES)}, found {name!r}")
        if self.rejection_lab_recording is not None:
            raise RuntimeError("set_verification: expected no recording, found one; call stop_recording first")
        swap = self._swap()
        if name == "vllm":
            swap.restore()
            return None
        if name in OWN:
            swap.own(OWN[name])
            return None
        method = Method(name)
        if method is Method.synthetic and not synthetic_rates:
            raise ValueError("set_verification: expected synthetic_rates, one for each position, found none")
        if self.rejection_lab_core is None:
            self.rejection_lab_core = core_for(self.device)
        raw = swap.version.caches_raw_logits
        verification = CoreVerification(method, self.device, tuple(synthetic_rates), self.rejection_lab_core, raw)
        found = None
        if certify and method is not Method.synthetic:
            found = self._certified(name)
        swap.ours(verification)
        logger.info("rejection_lab: verification is %s", name)
        return found

    def start_recording(self, folder: str, name: str = "block", certify: bool = True) -> str:
        """Verify by a method of the core from the next step on, and record what `rejection-lab replay FOLDER` needs.

        Requests that are running already are left out. Each worker writes a file of its own.

        Args:
            folder: where the file goes; one that every worker can write to.
            name: strict, probabilistic or block.
            certify: as for `set_verification`.

        Returns:
            The path of the file.

        Raises:
            ValueError: no such method.
            RefusedVersion: vLLM is not one that the plug-in may record in.
            RefusedRecording: what replay needs cannot be recorded in this worker, or not written to the folder.
            RuntimeError: as for `set_verification`.
        """
        known = [method.value for method in RECORDED]
        if name not in known:
            raise ValueError(f"start_recording: expected {', '.join(known)}, found {name!r}")
        swap = self._swap()
        refuse(swap, self.model_runner, Path(folder))
        self.set_verification(name, certify=certify)
        # what the engine itself calls
        verification = swap.module.rejection_sample
        self.rejection_lab_recording = Recording(
            self.model_runner, swap, verification, Path(folder), torch.device(self.device)
        )
        logger.info("rejection_lab: recording to %s", self.rejection_lab_recording.path)
        return str(self.rejection_lab_recording.path)

    def stop_recording(self) -> dict[str, Any]:
        """End the recording; the verification stays.

        Returns:
            file, num_rounds, num_requests.

        Raises:
            RuntimeError: there is no recording, or not all was recorded; the message says why.
        """
        recording, self.rejection_lab_recording = self.rejection_lab_recording, None
        if recording is None:
            raise RuntimeError("stop_recording: expected a recording, found none; call start_recording first")
        return recording.stop()

    def attest_verification(self, name: str, num_requests: int = NUM_REQUESTS) -> list[dict[str, float | bool]]:
        """Test a method on this device without switching to it.

        Args:
            name: as for `set_verification`, but `vllm` and synthetic.
            num_requests: simulated in each test.

        Returns:
            A test for each kind of target rows that the method meets: processed ones, and the core's also raw ones.
        """
        swap = self._swap()
        gumbel_sample = import_module(GUMBEL).gumbel_sample
        is_sampled = swap.speculator.draft_logits is not None
        if name in OWN:
            ways = [Way(swap.own_function, gumbel_sample, is_sampled, has_fresh_seeds=False, is_block=OWN[name])]
        else:
            ways = []
            for is_raw in (False, True)[: 1 if swap.version.caches_raw_logits else 2]:
                raw = swap.version.caches_raw_logits
                verification = CoreVerification(Method(name), self.device, caches_raw_logits=raw)
                verification.is_raw = is_raw
                ways.append(Way(verification, gumbel_sample, is_sampled, has_fresh_seeds=True, is_raw=is_raw))
        return [_plain(attest(way, self.device, num_requests)) for way in ways]

    def _swap(self) -> Swap:
        # Beside what is swapped, where whoever comes next finds it: `register` may have been here before.
        if getattr(self.model_runner, "rejection_lab_swap", None) is None:
            self.model_runner.rejection_lab_swap = Swap(self.model_runner, checked_version())
        return self.model_runner.rejection_lab_swap

    def _certified(self, name: str) -> dict[str, float | bool]:
        if self.rejection_lab_attested is None:
            self.rejection_lab_attested = {}
        if name not in self.rejection_lab_attested:
            found = min(self.attest_verification(name), key=lambda one: one["p_value"])
            if not found["passes"]:
                raise RuntimeError(
                    f"set_verification: {name} does not emit the target's law on this device "
                    f"(p = {found['p_value']:.1e}, allowed {LEVEL:g}); vLLM's own verification stays"
                )
            logger.info("rejection_lab: certified %s, p = %.2g, %d requests", name, found["p_value"], NUM_REQUESTS)
            self.rejection_lab_attested[name] = found
        return self.rejection_lab_attested[name]


def _plain(found: Attestation) -> dict[str, float | bool]:
    return asdict(found) | {"passes": found.passes}
