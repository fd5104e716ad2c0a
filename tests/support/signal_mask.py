"""A worker that only tells which signals are blocked where it begins."""

import signal

from harness.runner.channel import Channel


def send_mask(connection, plan, device):
    Channel(connection).send("mask", *map(int, signal.pthread_sigmask(signal.SIG_BLOCK, [])))
