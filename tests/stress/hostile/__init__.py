"""What can be done to the program from outside, in numbers; nothing of it may break it.

    python -m tests.stress.hostile [--lines 1500] [--forged 1000] [--damaged 500] [--kills 300]

`lines.py` makes command lines, `folders.py` run folders that a stranger forged or a disk has
damaged, `kills.py` ends commands by signals at moments spread over their lives. Every case is drawn
from a seed and a number alone. `trial.py` does one command in a process of its own and looks at
what it left: no traceback, no hang, nothing written elsewhere; each kind adds what a right result
is. `mutants.py` are mistakes that must be found.
"""
