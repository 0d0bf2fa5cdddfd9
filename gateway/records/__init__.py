"""Prediction records: one per call, written off the request path."""
