"""Metrics and events: every name, unit and label set."""
