"""Whole peers in one thread, on a virtual clock, a simulated network and simulated disks, under one seed.

    virtual ◀─ disk, network          the world: time, files, connections; each can fail
    cluster                           peers on hosts, an operator, the authority of the run
    plan, faults, *_faults            what a seed draws: a run and a schedule of faults
    checks                            what must hold at every commit, and after the faults
    simulator                         one plan from its start to its verdict
    liars                             members that send frames no honest peer sends
    mutants                           wrong versions of the program, each found by some seeds
    shrink, pool, __main__            a smaller schedule that still fails; processes; the command line

`docs/results/simulation.md` has the list of bugs that were found this way.
"""
