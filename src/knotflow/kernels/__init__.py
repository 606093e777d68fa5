"""Native kernels for B-splines on the CPU: plain C++, built with the package and called through ctypes."""
