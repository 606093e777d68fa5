// The interface between Python and the kernels: one structure that describes a call. knotflow/kernels/ops.py fills it.
#pragma once

#include <cstdint>

enum Operation : int32_t {
    FORWARD = 0,           // x, raw -> y, log f'(x)
    BACKWARD = 1,          // x, raw, gy, gl -> gx, graw: gradient of gy y + gl log f'
    DOUBLE_BACKWARD = 2,   // also hx, hraw -> gradients in x, raw, gy, gl of hx gx + hraw graw
    INVERSE = 3,           // y (as x), raw -> x (as y), -log f'(x)
    INVERSE_BACKWARD = 4,  // x = f^-1(y), raw, gx (as gy), gl -> gradient in y (as gx), graw
};

enum Family : int32_t { BSPLINE = 0, RATIONAL = 1 };
enum DomainKind : int32_t { INTERVAL = 0, CIRCLE = 1, LINE = 2 };
enum ParametrisationKind : int32_t { SLOPES = 0, PAPER = 1 };

struct Call {
    int32_t operation;
    int32_t is_double;
    int32_t family;
    int32_t order;
    int32_t domain;
    int32_t parametrisation;
    int32_t phase;
    int32_t bins;
    int32_t threads;
    int64_t points;
    int64_t raw_stride;   // distance between the raw parameters of successive points, in numbers; may be 0
    int64_t hraw_stride;
    double low, high;
    double width_floor;   // smallest share of a width
    double rise_floor;    // smallest share of a rise (paper)
    double min_slope, max_slope;  // bounds of slopes before normalisation (slopes)
    double affine;        // on a line: bound of the log-scale of an affine map before the spline; 0 if there is none
    const void *x, *raw, *gy, *gl, *hx, *hraw;  // hraw may be null if the raw parameters do not move
    void *y, *ladj, *gx, *graw;                 // graw may be null if it is not wanted
};

// The signature of GOMP_parallel: runs a function with its data on this many threads, including the current one.
using knotflow_parallel_t = void (*)(void (*)(void*), void*, unsigned, unsigned);
extern "C" knotflow_parallel_t knotflow_parallel_function;
