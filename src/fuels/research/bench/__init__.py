"""`fuels bench`: how fast the training is, against the simulators people use and the hardware.

Everybody does the same work on the same data with the same number of threads, in turns, in one run:
local epochs of FUELS and of FedAvg. work.py says what the work is, ours.py does it with the site,
eager.py client after client in plain PyTorch; flower_rival.py and pfl_rival.py put that same client
code into Flower's simulation and Apple's pfl, each in processes of its own (process.py). floor.py
times the matrix products alone, divergence.py the comparison of prototypes. measure.py takes the
turns, figures.py makes tables and JSON of them.
"""
