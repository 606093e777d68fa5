"""Native spline kernels for the CPU: plain C++, built with the package and called through ctypes."""
