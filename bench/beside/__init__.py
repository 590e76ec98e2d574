"""How fast it is beside what a user would pick instead: `python -m bench.beside`.

Scenarios are run for every contender in turn, round after round, in processes of their own, on the
same machine and with the same promise: what a call stored is on the disk when it returns.
"""
