"""What all structs of a policy share. Apart from `schema.py`, so that parts of the schema can stand in files of their
own.
"""

from __future__ import annotations

from msgspec import Struct


class Strict(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Frozen; an unknown key is an error."""
