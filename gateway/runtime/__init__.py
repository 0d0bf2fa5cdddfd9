"""Time, chance, timers, tasks and worker pools: everything that a simulation replaces."""
