"""Servers of the client protocols: bytes to Call, Reply to bytes."""
