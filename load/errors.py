"""What can go wrong in the lab itself, as opposed to in what it measures."""

from __future__ import annotations


class LoadError(Exception):
    """A run cannot start or go on. The message says what happened, where, and what to do next."""


class UsageError(LoadError):
    """What was asked for makes no sense. The command ends with 2."""
