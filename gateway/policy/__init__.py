"""Policies: schema, strict loading, and what is written where."""
