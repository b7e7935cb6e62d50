"""How much of a client's data its uploads reveal: attackers, and what they find."""
