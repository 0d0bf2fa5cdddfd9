"""Sluice: a multi-model inference gateway and router in front of NVIDIA Triton."""
