"""Compiled loops (numba) and their plain equivalents; tracing of steps that are linear in the state.

links.py mixing.py     mixing over active links: in PyTorch, and its compiled loops
steps.py               what rounds are computed from: states, active clients and links, a batch
tracing.py program.py  a method's step, recorded with symbols; the operations it consists of
coefficients.py        the numbers per client that a program uses, for many rounds
compiled_rounds.py run_program.py  runs a program for the runs of a batch; its compiled loops
event_batches.py       compiled loops for gradient tracking in virtual time

A new operation of steps needs a symbol in `tracing` and, if it works on rows, a kind in `program`
(`_Emitter.compute`) and a loop in `run_program` (`_run`); if it works on one number per client, a
case in `CoefficientTables._value`.
"""
