"""Checks of logs, listings and calls against a history, for the simulation and the tests of faults.

`loraplane-verify` checks the history alone: that is what an operator has at hand.
"""
