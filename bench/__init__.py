"""Compares this broker with the Java broker on one machine, with the official Java client as the judge.

`client/` and `peer/` are the kit (see README.md); `run.py` alternates the two brokers, `plan.py` says what is
measured, `brokers.py` and `pairs.py` start and stop them, `report.py` turns raw lines into ratios.
"""
