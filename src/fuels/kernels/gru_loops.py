"""The compiled loops of the GRU encoder, forward and backward, one client at a time (stages.py).

A stage runs on one thread, without the GIL; the caller spreads groups of clients over threads, so
results do not depend on their number. A state is stored as [unit, row], with the rows of a block
padded to whole registers: every product then reads the weights in memory order, and the
element-wise work of a unit follows its product while the numbers are still in the nearest cache.

The tape of a block of rows, kept from forward to backward, has r, z, n and W_hn h + b_hn for each
step and unit, padded rows each. States are computed again from z and n: memory traffic would cost
more.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import float32, int64, void

from fuels.kernels.jit import compiled
from fuels.kernels.matmul import multiply, transpose
from fuels.kernels.simd import (
    LANES,
    TILE,
    broadcast,
    clamp,
    get,
    lanes,
    load,
    put,
    ratio,
    store,
    total,
)
from fuels.kernels.stages import STAGE, ints

MAX_ROWS = 96  # rows of a block: its tape and the weights of one branch stay in a 1 MB cache
GATES = 4  # what the tape keeps of a unit at each step: r, z, n, W_hn h + b_hn

# A plan [branch, 9] has for each branch the address of its inputs [client, row, step, input], their
# four strides, its length, its inputs per step, its offset in the parameters and its column in the
# result. Strides and offsets count float32 numbers.
PLAN = 9

Lanes = Any  # a register; Numba infers its type


@compiled(lanes(lanes))
def tanh(x: Lanes) -> Lanes:
    """Rational approximation on [-8, 8], fitted to the largest error; within 3e-7 in float32."""
    x = clamp(x, np.float32(8.0))
    s = x * x
    p = s * np.float32(2.32401778e-11) + np.float32(-1.46003519e-08)
    p = p * s + np.float32(9.84371864e-06)
    p = p * s + np.float32(2.98196789e-03)
    p = p * s + np.float32(0.129755588)
    p = p * s + np.float32(0.99999995)
    q = s * np.float32(2.36669607e-04) + np.float32(2.40118683e-02)
    q = q * s + np.float32(0.463088657)
    q = q * s + np.float32(1.0)
    return ratio(x * p, q)


@compiled(lanes(lanes))
def sigmoid(x: Lanes) -> Lanes:
    return tanh(x * np.float32(0.5)) * np.float32(0.5) + np.float32(0.5)


@compiled(void(*[int64] * 6))
def _copy_inputs(branch: int, client: int, first: int, rows: int, padded: int, work: int) -> None:
    """Rows of one client's inputs to work [step, input, padded row]; padding is zero."""
    x, x_client, x_row, x_step, x_input, length, inputs = ints(branch, 0, 7)
    base = x + 4 * (client * x_client + first * x_row)
    for t in range(length):
        for i in range(inputs):
            at = (t * inputs + i) * padded
            for row in range(rows):
                put(work, at + row, get(base, row * x_row + t * x_step + i * x_input))
            for row in range(rows, padded):
                put(work, at + row, np.float32(0.0))


@compiled(void(*[int64] * 10))
def _cells_forward(
    first: int, last: int, hidden: int, inputs: int, padded: int, w_ih: int, x: int,
    gates: int, before: int, after: int,
) -> None:  # fmt: skip
    """Gates and new states of some units; before = 0 at the first step."""
    b_ih = w_ih + 4 * 3 * hidden * (inputs + hidden)
    b_hh = b_ih + 4 * 3 * hidden
    for unit in range(first, last):
        bias_r = get(b_ih, unit) + get(b_hh, unit)
        bias_z = get(b_ih, hidden + unit) + get(b_hh, hidden + unit)
        bias_n = get(b_ih, 2 * hidden + unit)
        bias_h = get(b_hh, 2 * hidden + unit)
        for row in range(0, padded, LANES):
            at = unit * GATES * padded + row
            a_r, a_z = broadcast(bias_r), broadcast(bias_z)
            a_n, hn = broadcast(bias_n), broadcast(bias_h)
            for i in range(inputs):
                value = load(x, i * padded + row)
                a_r = a_r + value * get(w_ih, unit * inputs + i)
                a_z = a_z + value * get(w_ih, (hidden + unit) * inputs + i)
                a_n = a_n + value * get(w_ih, (2 * hidden + unit) * inputs + i)
            if before != 0:
                a_r = a_r + load(gates, at)
                a_z = a_z + load(gates, at + padded)
                hn = hn + load(gates, at + 2 * padded)
            r, z = sigmoid(a_r), sigmoid(a_z)
            n = tanh(a_n + r * hn)
            h = n - z * n
            if before != 0:
                h = h + z * load(before, unit * padded + row)
                store(gates, at + 3 * padded, hn)
            store(gates, at, r)
            store(gates, at + padded, z)
            store(gates, at + 2 * padded, n)
            store(after, unit * padded + row, h)


@compiled(inline="always")  # compiled once, inside its only caller
def _forward(
    branch: int, hidden: int, client: int, params: int, first: int, count: int, padded: int,
    tape: int, work: int, out: int, out_row: int,
) -> None:  # fmt: skip
    """One branch of one client: a block of rows, from its inputs to its final state."""
    length, inputs, offset, column = ints(branch, 5, 4)
    plane = hidden * padded
    states = work  # two, the one before and the one after a step
    x = states + 4 * 2 * plane
    w_ih = params + 4 * offset
    w_hh = w_ih + 4 * 3 * hidden * inputs
    _copy_inputs(branch, client, first, count, padded, x)
    before = 0
    for t in range(length):
        gates = tape + 4 * t * GATES * plane
        after = states + 4 * (t % 2) * plane
        for unit in range(0, hidden, TILE):
            units = min(TILE, hidden - unit)
            for gate in range(3 if t > 0 else 0):  # the first state is 0: no product
                multiply(
                    w_hh + 4 * (gate * hidden + unit) * hidden, hidden, 1, units,
                    before, padded, hidden,
                    gates + 4 * (unit * GATES + gate) * padded, GATES * padded, padded, False,
                )  # fmt: skip
            _cells_forward(
                unit, unit + units, hidden, inputs, padded, w_ih, x + 4 * t * inputs * padded,
                gates, before, after,
            )  # fmt: skip
        before = after
    transpose(before, padded, hidden, count, out + 4 * column, out_row)


@compiled(STAGE)
def gru_forward(table: int, client: int) -> None:
    """One client's rows to its final states in out [client, rows, width].

    The tape of a client has tape_size numbers and follows that of the previous client, unless they
    share one. Without keep, each block and branch overwrites the previous one.
    """
    plan, branches, hidden, params, size, out, rows, width, block, padded = ints(table, 0, 10)
    tape, tape_size, shared, keep, work = ints(table, 10, 5)
    place = tape if shared else tape + 4 * client * tape_size
    for first in range(0, rows, block):
        count = min(block, rows - first)
        for b in range(branches):
            branch = plan + 8 * PLAN * b
            _forward(
                branch, hidden, client, params + 4 * client * size, first, count, padded,
                place, work, out + 4 * (client * rows + first) * width, width,
            )  # fmt: skip
            if keep:
                place += 4 * ints(branch, 5, 1)[0] * GATES * hidden * padded


@compiled(void(*[int64] * 5, float32, *[int64] * 7))
def _cell_backward(
    unit: int, hidden: int, inputs: int, padded: int, x: int, bias: float,
    gates: int, before: int, dh: int, dg: int, dg_row: int, grad: int, lane_work: int,
) -> None:  # fmt: skip
    """Gradients of one unit at one step: into grad (biases, W_ih), dg (W_hh h) and dh (direct)."""
    d_r = d_z = d_n = d_h = broadcast(np.float32(0.0))
    one = np.float32(1.0)
    for row in range(0, padded, LANES):
        at = unit * GATES * padded + row
        r, z, n = load(gates, at), load(gates, at + padded), load(gates, at + 2 * padded)
        d = load(dh, unit * padded + row)
        hn, change = broadcast(bias), broadcast(np.float32(0.0)) - n
        if before != 0:
            hn = load(gates, at + 3 * padded)
            change = load(before, unit * padded + row) - n
        a_n = d * (one - z) * (one - n * n)
        a_z = d * change * z * (one - z)
        a_h = a_n * r
        a_r = a_h * hn * (one - r)
        d_r, d_z, d_n, d_h = d_r + a_r, d_z + a_z, d_n + a_n, d_h + a_h
        store(lane_work, row, a_r)
        store(lane_work, padded + row, a_z)
        store(lane_work, 2 * padded + row, a_n)
        if before != 0:
            store(dg, unit * dg_row + row, a_r)
            store(dg, (hidden + unit) * dg_row + row, a_z)
            store(dg, (2 * hidden + unit) * dg_row + row, a_h)
            store(dh, unit * padded + row, d * z)
    b_ih = 3 * hidden * (inputs + hidden)
    b_hh = b_ih + 3 * hidden
    sum_r, sum_z = total(d_r), total(d_z)
    for at, value in (
        (b_ih + unit, sum_r),
        (b_ih + hidden + unit, sum_z),
        (b_ih + 2 * hidden + unit, total(d_n)),
        (b_hh + unit, sum_r),
        (b_hh + hidden + unit, sum_z),
        (b_hh + 2 * hidden + unit, total(d_h)),
    ):
        put(grad, at, get(grad, at) + value)
    for i in range(inputs):
        for gate in range(3):
            weighted = broadcast(np.float32(0.0))
            for row in range(0, padded, LANES):
                weighted = weighted + load(lane_work, gate * padded + row) * load(
                    x, i * padded + row
                )
            at = (gate * hidden + unit) * inputs + i
            put(grad, at, get(grad, at) + total(weighted))


@compiled(void(*[int64] * 5))
def _states(tape: int, length: int, hidden: int, padded: int, states: int) -> None:
    """The states after all steps but the last, [step, H, padded], from the z and n of the tape."""
    plane = hidden * padded
    for t in range(length - 1):
        gates, after = tape + 4 * t * GATES * plane, states + 4 * t * plane
        for unit in range(hidden):
            for row in range(0, padded, LANES):
                at = unit * GATES * padded + row
                z, n = load(gates, at + padded), load(gates, at + 2 * padded)
                h = n - z * n
                if t > 0:
                    h = h + z * load(after - 4 * plane, unit * padded + row)
                store(after, unit * padded + row, h)


@compiled(inline="always")  # compiled once, inside its only caller
def _backward(
    branch: int, hidden: int, client: int, params: int, first: int, count: int, padded: int,
    tape: int, work: int, upstream: int, upstream_row: int, grad: int,
) -> None:  # fmt: skip
    """Gradient of one branch of one client, summed over blocks of rows."""
    length, inputs, offset, column = ints(branch, 5, 4)
    plane = hidden * padded
    wide = (hidden + LANES - 1) // LANES * LANES
    steps = (length - 1) * padded  # rows of all steps but the first, side by side
    dh = work
    dg = dh + 4 * plane
    states = dg + 4 * 3 * hidden * steps
    transposed = states + 4 * hidden * steps  # the states again, [row, unit]
    tile = transposed + 4 * steps * wide
    lane_work = tile + 4 * TILE * wide
    x = lane_work + 4 * 3 * padded
    w_hh = params + 4 * (offset + 3 * hidden * inputs)
    b_hn = w_hh + 4 * hidden * (3 * hidden + 5)
    d = grad + 4 * offset
    d_hh = d + 4 * 3 * hidden * inputs
    if first == 0:  # W_hh is set by its product, if there is more than one step
        for i in range(3 * hidden * inputs):
            put(d, i, np.float32(0.0))
        for i in range(0 if length == 1 else 3 * hidden * hidden, 3 * hidden * (hidden + 2)):
            put(d_hh, i, np.float32(0.0))
    if count < padded:
        for i in range(plane):
            put(dh, i, np.float32(0.0))
    _copy_inputs(branch, client, first, count, padded, x)
    transpose(upstream + 4 * column, upstream_row, count, hidden, dh, padded)
    _states(tape, length, hidden, padded, states)
    for t in range(length - 1, -1, -1):
        before = states + 4 * (t - 1) * plane if t > 0 else 0
        dg_t = dg + 4 * (t - 1) * padded
        for unit in range(hidden):
            _cell_backward(
                unit, hidden, inputs, padded, x + 4 * t * inputs * padded, get(b_hn, unit),
                tape + 4 * t * GATES * plane, before, dh, dg_t, steps, d, lane_work,
            )  # fmt: skip
        for unit in range(0, hidden if t > 0 else 0, TILE):
            multiply(
                w_hh + 4 * unit, 1, hidden, min(TILE, hidden - unit), dg_t, steps, 3 * hidden,
                dh + 4 * unit * padded, padded, padded, True,
            )  # fmt: skip
        if t > 0:
            transpose(
                before, padded, hidden, padded, transposed + 4 * (t - 1) * padded * wide, wide
            )
    for gate in range(0, 3 * hidden if length > 1 else 0, TILE):
        gates = min(TILE, 3 * hidden - gate)
        target, stride = tile, wide  # a row of W_hh may not be whole registers
        if wide == hidden:
            target, stride = d_hh + 4 * gate * hidden, hidden
        multiply(
            dg + 4 * gate * steps, steps, 1, gates, transposed, wide, steps,
            target, stride, wide, wide == hidden and first > 0,
        )  # fmt: skip
        for j in range(gates if wide != hidden else 0):
            for k in range(hidden):
                at = (gate + j) * hidden + k
                held = get(d_hh, at) if first > 0 else np.float32(0.0)
                put(d_hh, at, held + get(tile, j * wide + k))


@compiled(STAGE)
def gru_backward(table: int, client: int) -> None:
    """One client's gradient [size] from upstream [client, rows, width] and the tape.

    If shared, tape, upstream and gradient hold the client at hand only.
    """
    plan, branches, hidden, params, size, upstream, rows, width, block, padded = ints(table, 0, 10)
    tape, tape_size, shared, grad, work = ints(table, 10, 5)
    here = 0 if shared else client
    place = tape + 4 * here * tape_size
    for first in range(0, rows, block):
        for b in range(branches):
            branch = plan + 8 * PLAN * b
            _backward(
                branch, hidden, client, params + 4 * client * size, first,
                min(block, rows - first), padded, place, work,
                upstream + 4 * (here * rows + first) * width, width, grad + 4 * here * size,
            )  # fmt: skip
            place += 4 * ints(branch, 5, 1)[0] * GATES * hidden * padded
