"""Random configurations, each executed in several ways that must agree in every bit.

    python -m tests.stress.bits [--count 500] [--seconds 1200] [--seed 0]

A configuration is a JSON object drawn from a seed (`configuration.py`): a model (`models.py`), how
the caller's data lie in memory (`data.py`), an algorithm and its options. `ways.py` executes it in
this process, in workers, on a kept pool, in a comparison, and interrupted by a signal and resumed;
`fuzz.py` compares, and shrinks what differs to a script. `mutants.py` are mistakes that it must
find.
"""
