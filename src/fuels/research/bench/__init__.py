"""`fuels bench`: how fast training is, compared with common simulators and the hardware.

All contenders do the same work on the same data with the same number of threads, taking turns:
local epochs of FUELS and of FedAvg. work.py defines the work; ours.py does it with a site, eager.py
client by client in plain PyTorch; flower_rival.py and pfl_rival.py run that same client code in
Flower's simulation and Apple's pfl, in separate processes (process.py). floor.py times only the
matrix products, divergence.py the comparison of prototypes. measure.py runs the turns, figures.py
turns the results into tables and JSON.
"""
