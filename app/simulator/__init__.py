"""A Shortcut workspace on this machine, that delivers badly on purpose."""

from app.simulator.server import create_simulator

__all__ = ["create_simulator"]
