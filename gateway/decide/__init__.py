"""Deciders: pure, synchronous arithmetic that takes `now_s` and returns a decision."""
