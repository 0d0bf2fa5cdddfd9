"""What tests share: a clock that stands still until told, a scripted service, a fleet that never changes by itself."""
