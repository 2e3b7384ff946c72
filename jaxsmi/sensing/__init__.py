"""How a signal becomes fields, and back: forward and adjoint, exactly transposes of each other."""
