"""Deterministic simulation: the whole gateway on virtual time, before an in-memory fleet that breaks.

`python -m tests.simulation --seeds N` runs many seeds, `--seed S --trace` replays one. The files, from the inside out:

- `loop.py`: the event loop: virtual time, seeded order, refusal of everything real. `trace.py`: what two runs share.
- `batcher.py`, `triton.py`, `metrics_page.py`: one Triton server and its faults. `network.py`: machines, connections,
  names, black holes. `pipe.py`: a client's connection as a byte stream.
- `scenario.py`: everything that a seed decides, as data. `entrance.py`: how its calls enter, as objects or as HTTP.
- `house.py`: the product's assembly over these faces. `small_house.py`: a tiny one, for its own tests.
- `run.py`: one run. `report.py`: what it leaves. `checks.py`: the invariants. `runner.py`: many runs, and the command.

What is not in it: the gRPC edge and the gRPC client (C threads; the integration tests have them), the admin server,
signals. To add a fault, add a function to `_FAULTS` in `scenario.py` and, if it is a new event, a row to `_EVENTS` in
`run.py`. To add an invariant, add a function to `CHECKS`, and a test that plants what it must find.
"""
