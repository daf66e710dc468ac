"""Most devices on which communication of a sharded feed-forward layer takes no longer than its matrix products.

The layer has three matrices, D x F, D x F and F x D, of two bytes per number; B is the number of tokens on all devices.
A device has C FLOP/s and sends W bytes/s. Per device of N_F x N_T = N, for FSDP x TP, of which one may be 1:

              FLOP             bytes sent by FSDP           bytes sent by TP
    forward    6 B D F / N     6 D F (N_F - 1) / N          4 B D (N_T - 1) / N
    backward  12 B D F / N     12 D F (N_F - 1) / N         4 B D (N_T - 1) / N

So FSDP's communication takes (N_F - 1) / a of the time of the products, with a = B W / C, and TP's (N_T - 1) / b, with
b = 3 F W / (2 C) forward and 3 F W / C backward. Data parallelism sends nothing forward and as much as FSDP backward.
"""


def device_limits(
    tokens: int, d_ff: int, flop_per_s: float, bytes_per_s: float
) -> dict[str, tuple[float | None, float]]:
    """Return the most devices of each strategy, forward and backward, as fractions; None without a limit.

    Any type with arithmetic will do for the rates.
    """
    a = tokens * bytes_per_s / flop_per_s
    b = 3 * d_ff * bytes_per_s / (2 * flop_per_s)
    return {
        "data parallel": (None, 1 + a),
        "FSDP": (1 + a, 1 + a),
        "TP": (1 + b, 1 + 2 * b),
        "FSDP × TP, overlapped": ((1 + a) * (1 + b), (1 + a) * (1 + 2 * b)),
        "FSDP × TP, not overlapped": (in_turn(a, b), in_turn(a, 2 * b)),
    }


def in_turn(a: float, b: float) -> float:
    """Return the greatest N_F N_T with (N_F - 1) / a + (N_T - 1) / b <= 1 and neither below 1.

    It is where N_F / a = N_T / b, unless one of them were below 1 there.
    """
    if a * (b + 1) < b or b * (a + 1) < a:
        return 1 + max(a, b)
    both = a * b + a + b
    return both * both / (4 * a * b)
