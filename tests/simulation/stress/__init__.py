"""The rows of the stress table (DESIGN.md, section 7) in simulation: each over many seeds, with the table's numbers.

The random seeds of `tests.simulation` ask whether anything goes wrong that must never go wrong. This asks how good the
gateway is: the scenarios of the load lab (`load/scenarios`), with their rates, policies, faults and checks as they
stand in the files, against simulated Tritons, a thousand times with other arrivals. Percentiles, shares and ratios are
of all seeds together; what must never happen is checked in each, and the seed in which it did is named.

- `timeline.py`, `rows.py`: which seconds of which scenario are played, for a minute of each, a thousand times, would
  take days. `policies.py`: what the load lab would start the gateway with.
- `accel.py`: the lab's model `accel` in a simulated Triton. `faults.py`: what happens to the machines.
- `house.py`: the product's assembly in front of them. `callers.py`: open-loop and closed-loop clients. `play.py`: one
  run.
- `invariants.py`: what is checked in each seed. `pool.py`: the figures of all seeds together, in constant memory.
- `battery.py`: many seeds of one row, in several processes. `table.py`: figures beside their limits. `command.py`:
  `python -m tests.simulation stress`.

The gateway takes no time in it: a virtual clock stands still while code runs. So the one number of the table that is
about its CPU (of a refusal) is not here, and latencies are those of waiting and of the model alone.
"""
