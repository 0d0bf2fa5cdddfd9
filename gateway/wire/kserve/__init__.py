"""KServe v2 (Open Inference Protocol) codecs, without I/O: HTTP JSON and binary on one side, protobuf on the other.

The canonical form of a call between the rooms is the bytes of `inference.ModelInferRequest` and of
`inference.ModelInferResponse`; this package makes them, reads what a router needs of them, and renders them.
"""
