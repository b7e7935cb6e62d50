"""Compiled code. Nobody has to read it to understand the method.

A twin has the name and the arguments of its reference; dispatch.py chooses between the two:

    encode                    model/gru.py         gru.py, gru_loops.py
    adam, sgd, proximal       model/optimiser.py   optimiser.py
    local_losses              paper/losses.py      losses.py
    pairwise_jsd              paper/divergence.py  divergence.py
    descend, differentiate    training/step.py     step.py

mixture.py, intervals.py and smoothing.py (for experts/) and telecom.py (for data/) are loops over
arrays with one source: without Numba they run as plain Python.

Building blocks: simd, simd_f64 (registers), matmul, stages (kernels in turn for each client), jit
and jit_cache (compiling and storing), checks (shapes), numba_internals (Numba's private names).
"""
