"""The load lab: real servers, real proxies, load on them, and figures side by side. `python -m load --help`."""
