"""Real Triton servers on this machine: an environment of their own, demo models, and start, stop, kill, freeze, thaw.

Needs the standard library only. `python -m deploy.local --help` is the command; `LocalFleet` the same in code.
"""

from deploy.local.check import Problem, preflight
from deploy.local.environment import TritonEnvironment, ensure_environment
from deploy.local.errors import LocalFleetError
from deploy.local.fleet import LocalFleet
from deploy.local.layout import CORE_MODELS, MODELS
from deploy.local.repository import build_repository
from deploy.local.server import Ports, ServerSpec, TritonServer, free_ports

__all__ = [
    "CORE_MODELS",
    "MODELS",
    "LocalFleet",
    "LocalFleetError",
    "Ports",
    "Problem",
    "ServerSpec",
    "TritonEnvironment",
    "TritonServer",
    "build_repository",
    "ensure_environment",
    "free_ports",
    "preflight",
]
