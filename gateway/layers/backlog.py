"""What waits in each Triton beside this gateway's calls: the calls of other gateways, and of clients that go there
directly.

With one gateway in front of a Triton nothing does: its own calls it knows exactly, and those that wait in Triton are
some of them. Then nothing is reported, and picks keep to their short way.
"""

from __future__ import annotations

from collections.abc import Mapping

from gateway.layers.admit import AdmitLayer


class Backlogs:
    """Implements `core.faces.Backlog`."""

    def __init__(self) -> None:
        self.admissions: Mapping[str, AdmitLayer] = {}
        """By model."""

    def held(self, replica: str) -> Mapping[tuple[str, str], int]:
        """O(models)."""
        return {
            (model, version): count
            for model, layer in self.admissions.items()
            for version, count in layer.held(replica).items()
            if count
        }

    def told(
        self,
        replica: str,
        pending: Mapping[tuple[str, str], int],
        held: Mapping[tuple[str, str], int],
        now_s: float,
    ) -> bool:
        """Only what is more than our own is passed on; a count that was passed on fades by itself."""
        shared = False
        for key, count in pending.items():
            layer, own = self.admissions.get(key[0]), held.get(key, 0)
            if layer is not None and count > own:
                shared = layer.told(replica, key[1], count, own, now_s) or shared
        return shared
