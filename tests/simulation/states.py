"""Where a simulated server stands, and the ways in which it lies."""

from __future__ import annotations

import enum


class Process(enum.Enum):
    """Where the server process stands."""

    DOWN = "down"
    STARTING = "starting"
    UP = "up"
    STOPPING = "stopping"


class Lie(enum.Flag):
    """Ways in which a server says one thing and does another."""

    NONE = 0
    GONE = enum.auto()
    """Liveness, readiness and index are good; inference says that the model is not there."""
    WRONG_VERSION = enum.auto()
    """Answers name another version than the one that ran."""
    WRONG_MODEL = enum.auto()
    """Answers name another model."""
    FAST_ERRORS = enum.auto()
    """Inference fails at once: the error looks like the fastest replica."""
    NOT_READY = enum.auto()
    """Server readiness is false although every model serves."""


class Metrics(enum.Enum):
    """What the metrics port does."""

    GOOD = "good"
    GONE = "gone"
    GARBAGE = "garbage"
