"""Deterministic simulation: the whole gateway on virtual time, before an in-memory fleet that breaks.

`python -m tests.simulation --seeds N` runs many seeds, `--seed S --trace` replays one. The files, from the inside out:

- `loop.py`: the event loop: virtual time, seeded order, refusal of everything real. `trace.py`: what two runs share.
- `triton.py`, `states.py`: one Triton server, its life and its lies. `intake.py`: what it does with a request before a
  model has it, and ModelStreamInfer. `batcher.py`, `streamer.py`, `sequencer.py`: models with one response, with any
  number, with a state. `descriptions.py`, `metrics_page.py`: what it says of them.
- `network.py`, `network_stream.py`: machines, connections, streams, names, black holes. `pipe.py`: a client's
  connection as a byte stream.
- `plans.py`: what clients do, as data. `scenario.py`, `stream_plans.py`: all that a seed decides.
- `clients.py`: who comes when. `entrance.py`, `generate_entrance.py`: calls as objects or as HTTP.
  `stream_entrance.py`: streams, through the edge's own `ClientStream` over a port in memory. `stream_parts.py`: which
  message answers which call.
- The codec half (`Scenario.codecs`), in which calls enter and leave as HTTP/2: `http2_end.py`, a strict peer made of
  frames by hand; `grpc_bytes.py`, gRPC above it. `codec_replica.py`: the gRPC server of a simulated Triton.
  `codec_network.py`: the product's own client over connections to it. `grpc_callers.py`: clients of the gRPC port.
- `house.py`: the product's assembly over these faces. `small_house.py`: a tiny one, for its own tests.
- `run.py`: one run. `watch.py`: what is judged as it happens. `report.py`: what a run leaves. `checks.py`,
  `stream_checks.py`, `sequence_checks.py`: the invariants. `runner.py`: many runs, and the command.

`stress/` is the same gateway in the scenarios of the load lab, many seeds each: not whether, but how well.

What is not in it: gRPC's own library, in front or behind (C threads; the integration tests have it), TLS, the admin
server, signals. To add a fault, add a function to `_FAULTS` in `scenario.py` and, if it is a new event, a row to
`_EVENTS` in `run.py`. To add an invariant, add a function to a list of checks, and a test that plants what it must
find.
"""
