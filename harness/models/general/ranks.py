"""The processes that compute one target together, and what the first of them tells the others.

Rank 0 is the process that runs the engine. It starts the others on this host, and each joins its process group by a
store of rank 0 (what torchrun's rendezvous does). From then on the others do what rank 0 tells them: a command comes
through a pipe, its tensors follow by broadcast, and then all ranks run the same operation. Whatever decides anything,
such as draws, time and limits, is known to rank 0 alone.

A rank ends when rank 0 has gone, since the pipe between them closes. If another rank ends, a thread of rank 0 notes it
and aborts the collectives that wait for it, and the next thing that rank 0 asks for raises RankDiedError. So it does
after an error of rank 0 alone in what all ranks compute, such as too little memory: the others are still in the middle
of that.
"""

from __future__ import annotations

import datetime
import faulthandler
import itertools
import multiprocessing
import os
import signal
import sys
import threading
import traceback
import weakref
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from multiprocessing import resource_tracker
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from typing import Any, NamedTuple, Protocol

import torch
import torch.distributed as dist
from torch import Tensor

from harness.models.rank_died import RankDiedError

HOST = "127.0.0.1"
TIMEOUT = datetime.timedelta(minutes=30)
"""Of a collective: loading and compiling may keep one rank longer than another. A rank that ends is noticed at once."""
NOTED_S = 10.0
"""How long rank 0 waits for the reason, after a collective failed."""
END_S = 10.0
"""How long another rank may take to end."""
ABORT_S = 120.0
"""How long rank 0 may take to notice that a rank has died, before it ends too."""


class Sent(NamedTuple):
    """A command on its way to the other ranks."""

    name: str
    args: tuple[Any, ...]
    """Plain values, and functions by their name."""
    shapes: tuple[tuple[tuple[int, ...], torch.dtype], ...] = ()
    """Of the tensors that follow."""


class Member(Protocol):
    """What another rank computes with; its methods are the commands."""

    device: torch.device


def backend_on(device_type: str) -> str:
    """The backend of collectives on a kind of device."""
    return "nccl" if device_type == "cuda" else "gloo"


class Ranks:
    """All ranks, as rank 0 knows them."""

    def __init__(self, num_ranks: int, device_type: str, member: Callable[[], Member]) -> None:
        """Start the others and wait until all have joined.

        Args:
            num_ranks: rank 0 included.
            device_type: cuda or cpu; rank r has the GPU of number r of those that are visible.
            member: makes what runs the commands in another process; a function of a module.

        Raises:
            RankDiedError: another rank ended before it joined.
        """
        self.num_ranks, self.device_type = num_ranks, device_type
        self.device = rank_device(device_type, 0)
        self.numbers = itertools.count()
        """Names what ranks keep for each other."""
        self._dropped: list[tuple[str, int]] = []
        """What the other ranks may forget; sent with the next command, since nothing may be sent while tensors are
        collected."""
        store = dist.TCPStore(HOST, 0, num_ranks, is_master=True, wait_for_workers=False)
        num_threads = max(1, torch.get_num_threads() // num_ranks)
        context = multiprocessing.get_context("spawn")
        # Python's first start of a process would begin this one, which lets SIGINT through again
        resource_tracker.ensure_running()
        connections: list[Connection] = []
        processes: list[BaseProcess] = []
        before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
        try:
            for rank in range(1, num_ranks):
                ours, theirs = context.Pipe()
                given = Place(rank, num_ranks, device_type, store.port, num_threads)
                process = context.Process(target=follow, args=(theirs, given, member), daemon=True)
                process.start()
                theirs.close()
                connections.append(ours)
                processes.append(process)
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, before)
        self._connections = connections
        self._watch = Watch(processes, connections, device_type)
        self.close = weakref.finalize(self, _close, self._watch)
        """Ends the other ranks; also done when the process ends."""
        try:
            self._watch.wait_until_ready()
            self._watch.start()
            with self._told():
                join(Place(0, num_ranks, device_type, store.port, num_threads), store)
        except BaseException:
            self.close()
            raise

    def call(self, name: str, args: tuple[Any, ...] = (), tensors: Sequence[Tensor] = ()) -> None:
        """Tell the others to run a command; this process runs the same operation next.

        Args:
            name: of a method of the members.
            args: what it takes.
            tensors: what it takes beside them, all int64 or bool, or one of another type.

        Raises:
            RankDiedError: a rank has ended.
        """
        self.check()
        dropped, self._dropped = self._dropped, []
        commands = [Sent("drop", each) for each in dropped]
        commands.append(Sent(name, args, tuple((tuple(each.shape), each.dtype) for each in tensors)))
        with self._told():
            for connection in self._connections:
                for command in commands:
                    connection.send(command)
            if tensors:
                broadcast(joined(tensors))

    @contextmanager
    def running(self) -> Iterator[None]:
        """Around the operation that all ranks run: a collective that fails since a rank died says so, and any other
        error is the last of what they run together."""
        with self._told():
            yield

    def forget_with(self, owner: object, kind: str, number: int) -> None:
        """Let the others drop what they keep under a number once its owner here has gone."""
        weakref.finalize(owner, self._dropped.append, (kind, number)).atexit = False

    def check(self) -> None:
        """Raise RankDiedError if a rank has ended, or rank 0 has left the others behind."""
        if self._watch.died is not None:
            self._watch.is_told.set()
            raise RankDiedError(self._watch.died)

    @contextmanager
    def _told(self) -> Iterator[None]:
        try:
            yield
        except RankDiedError:
            raise
        except Exception as error:
            may_be_told = isinstance(error, (RuntimeError, OSError))
            if may_be_told and self._watch.has_died.wait(NOTED_S if _is_of_peers(error) else 0):
                self._watch.is_told.set()
                raise RankDiedError(self._watch.died) from error
            self._watch.leave_behind(error)
            raise


def _is_of_peers(error: Exception) -> bool:
    """Whether an error may be of another process that has ended."""
    text = str(error).lower()
    told = ("connection", "gloo", "nccl", "socket", "abort", "broken pipe", "peer")
    return isinstance(error, OSError | dist.DistError) or any(word in text for word in told)


class Watch:
    """Notes when a rank ends that should not."""

    def __init__(self, processes: Sequence[BaseProcess], connections: Sequence[Connection], device_type: str) -> None:
        self.processes, self.connections = processes, connections
        self.died: str | None = None
        """Why a rank has ended, or why the others are left behind, in words."""
        self.has_died = threading.Event()
        self.is_told = threading.Event()
        """Whether rank 0 knows it."""
        self.is_closing = False
        self._is_nccl = backend_on(device_type) == "nccl"

    def wait_until_ready(self) -> None:
        """Wait until all other ranks can join. Raises RankDiedError if one cannot."""
        waiting = list(range(len(self.processes)))
        while waiting:
            sources = {self.processes[index].sentinel: index for index in waiting}
            ready = wait([*sources, *(self.connections[index] for index in waiting)])
            for index in list(waiting):
                if self.connections[index] in ready and self.connections[index].poll():
                    with suppress(EOFError, OSError):
                        if self.connections[index].recv() == READY:
                            waiting.remove(index)
                            continue
                if self.processes[index].sentinel in ready:
                    raise RankDiedError(self._told(index))

    def leave_behind(self, error: Exception) -> None:
        """Note that rank 0 failed in what all compute, so that the others wait for it there."""
        if self.died is None:
            self.died = f"rank 0 failed in what all ranks compute: {type(error).__name__}: {error}"

    def start(self) -> None:
        threading.Thread(target=self._run, daemon=True, name="ranks").start()

    def _run(self) -> None:
        sources: dict[Any, int] = {process.sentinel: index for index, process in enumerate(self.processes)}
        sources |= {connection: index for index, connection in enumerate(self.connections)}
        ready = wait(list(sources))
        if self.is_closing:
            return
        self.died = self._told(sources[ready[0]])
        self.has_died.set()
        if self._is_nccl:
            # kernels on this device wait for it
            with suppress(Exception):
                dist.distributed_c10d._abort_process_group()
        if not self.is_told.wait(ABORT_S) and not self.is_closing:
            print(f"this process does not go on after {self.died}, and ends", file=sys.stderr, flush=True)
            os._exit(1)

    def _told(self, index: int) -> str:
        """How a rank ended."""
        process, connection = self.processes[index], self.connections[index]
        where = f"rank {index + 1} of 0 to {len(self.processes)} (backend.tensor_parallel)"
        with suppress(EOFError, OSError):
            while connection.poll(0):
                said = connection.recv()
                if said != READY:
                    return f"{where} failed: {said}"
        process.join(END_S)
        code = process.exitcode
        if code is not None and code < 0:
            return f"{where} was ended by {signal.Signals(-code).name}"
        return f"{where} ended with exit code {code}"


def _close(watch: Watch) -> None:
    watch.is_closing = True
    watch.is_told.set()
    for connection in watch.connections:
        with suppress(OSError):
            connection.send(Sent("end", ()))
    for process in watch.processes:
        process.join(END_S)
        if process.exitcode is None:
            process.kill()
            process.join()
    if dist.is_initialized():
        with suppress(Exception):
            if dist.get_backend() == "nccl":
                # does not wait for captured collectives
                dist.distributed_c10d._abort_process_group()
            else:
                dist.destroy_process_group()


class Place(NamedTuple):
    """Where a rank stands."""

    rank: int
    num_ranks: int
    device_type: str
    port: int
    """Of rank 0's store."""
    num_threads: int


READY = "ready"


def rank_device(device_type: str, rank: int) -> torch.device:
    """The device of a rank."""
    return torch.device(device_type, rank) if device_type == "cuda" else torch.device(device_type)


def join(place: Place, store: Any) -> None:
    """Join the process group."""
    device = rank_device(place.device_type, place.rank)
    if device.type == "cuda":
        torch.cuda.set_device(device)
    dist.init_process_group(
        backend_on(place.device_type),
        store=store,
        rank=place.rank,
        world_size=place.num_ranks,
        timeout=TIMEOUT,
        device_id=device if device.type == "cuda" else None,
    )


@contextmanager
def environment_of(rank: int, num_ranks: int) -> Iterator[None]:
    """What transformers reads of a rank while it loads."""
    wanted = {"RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": str(num_ranks)}
    before = {name: os.environ.get(name) for name in wanted}
    os.environ.update(wanted)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value


def joined(tensors: Sequence[Tensor]) -> Tensor:
    """Tensors as one that can be broadcast."""
    if len(tensors) == 1 and tensors[0].is_floating_point():
        return tensors[0].contiguous()
    assert not any(each.is_floating_point() for each in tensors), "integers, or one tensor of another type"
    return torch.cat([each.to(torch.int64).flatten() for each in tensors])


def received(shapes: Sequence[tuple[tuple[int, ...], torch.dtype]], device: torch.device) -> list[Tensor]:
    """The tensors that rank 0 broadcasts next."""
    if len(shapes) == 1 and shapes[0][1].is_floating_point:
        place = torch.empty(shapes[0][0], dtype=shapes[0][1], device=device)
        broadcast(place)
        return [place]
    sizes = [int(torch.Size(shape).numel()) for shape, _ in shapes]
    place = torch.empty(sum(sizes), dtype=torch.int64, device=device)
    broadcast(place)
    parts = zip(place.split(sizes), shapes, strict=True)
    return [part.view(shape).to(dtype) for part, (shape, dtype) in parts]


def broadcast(values: Tensor) -> None:
    dist.broadcast(values, src=0)


def follow(connection: Connection, place: Place, member: Callable[[], Member]) -> None:
    """What another rank does: commands until rank 0 says `end` or has gone; the body of its process."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    faulthandler.enable()
    commands: Any = _Commands(connection)
    try:
        torch.set_num_threads(place.num_threads)
        runs = member()
        connection.send(READY)
        join(place, dist.TCPStore(HOST, place.port, place.num_ranks, is_master=False))
        runs.device = rank_device(place.device_type, place.rank)
        with environment_of(place.rank, place.num_ranks):
            while True:
                sent = commands.next()
                if sent.name == "end":
                    break
                with torch.inference_mode(sent.name != "load"):
                    tensors = received(sent.shapes, runs.device) if sent.shapes else []
                    getattr(runs, sent.name)(*sent.args, *tensors)
    except BaseException as error:
        with suppress(OSError):
            connection.send(f"{type(error).__name__}: {error}")
        traceback.print_exc()
        os._exit(1)
    # nothing is waited for: rank 0 ends the process group
    os._exit(0)


class _Commands:
    """The commands of rank 0, read ahead by a thread that ends the process when rank 0 has gone."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._waiting: list[Sent] = []
        self._changed = threading.Condition()
        threading.Thread(target=self._listen, daemon=True).start()

    def _listen(self) -> None:
        while True:
            try:
                sent = self._connection.recv()
            except (EOFError, OSError):
                os._exit(1)
            with self._changed:
                self._waiting.append(sent)
                self._changed.notify()
            if sent.name == "end":
                # a collective may keep the main thread
                threading.Timer(END_S, os._exit, (1,)).start()
                return

    def next(self) -> Sent:
        with self._changed:
            self._changed.wait_for(lambda: self._waiting)
            return self._waiting.pop(0)
