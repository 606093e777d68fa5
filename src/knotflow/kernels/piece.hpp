// The polynomial on one bin from the widths and rises around it, and gradients back in reverse mode.
//
// The formulas are those of knotflow/transforms/basis.py, which explains them; q = order - 2. Every struct
// computes in its constructor and keeps what its `pull` needs. `pull` adds gradients to its arguments.
#pragma once

#include "vector.hpp"

namespace {

constexpr int binomial(int n, int k) {
    int result = 1;
    for (int i = 1; i <= k; ++i) result = result * (n - k + i) / i;
    return result;
}

// De Boor's triangle at a knot, with its first and last diagonal.
template <class F, class S, int q> struct Triangle {
    S level[q][q];     // level[r][i], i < q - r; level[0] are the given slopes
    S weight[q][q];    // reciprocal of the sum of the two distances that weight level[r][i]
    const S *left, *right;

    KNOTFLOW_INLINE Triangle(const S* slopes, const S* left_, const S* right_) : left(left_), right(right_) {
        for (int i = 0; i < q; ++i) level[0][i] = slopes[i];
        for (int r = 1; r < q; ++r)
            for (int i = 0; i < q - r; ++i) {
                const S a = right[i], b = left[q - 1 - r - i];
                weight[r][i] = F(1) / (a + b);
                level[r][i] = (a * level[r - 1][i] + b * level[r - 1][i + 1]) * weight[r][i];
            }
    }

    KNOTFLOW_INLINE S first(int r) const { return level[r][0]; }
    KNOTFLOW_INLINE S last(int r) const { return level[r][q - 1 - r]; }

    // g[r][i] holds the gradients of all levels; on return g[0] is the gradient of the slopes.
    KNOTFLOW_INLINE void pull(S g[q][q], S* g_left, S* g_right) const {
        for (int r = q - 1; r >= 1; --r)
            for (int i = 0; i < q - r; ++i) {
                const int j = q - 1 - r - i;
                const S scaled = g[r][i] * weight[r][i];
                g_right[i] = g_right[i] + scaled * (level[r - 1][i] - level[r][i]);
                g_left[j] = g_left[j] + scaled * (level[r - 1][i + 1] - level[r][i]);
                g[r - 1][i] = g[r - 1][i] + scaled * right[i];
                g[r - 1][i + 1] = g[r - 1][i + 1] + scaled * left[j];
            }
    }
};

// Distances from the middle knot to the others, and the slope coefficients of the q rises before it.
template <class F, class S, int q> struct Around {
    S left[q], right[q], slopes[q], support[q];

    KNOTFLOW_INLINE Around(const S* widths, const S* rises) {
        left[0] = widths[q - 1], right[0] = widths[q];
        for (int i = 1; i < q; ++i) {
            left[i] = left[i - 1] + widths[q - 1 - i];
            right[i] = right[i - 1] + widths[q + i];
        }
        for (int m = 0; m < q; ++m) {
            support[m] = F(1) / (left[q - 1 - m] + right[m]);
            slopes[m] = rises[m] * support[m] * F(q + 1);
        }
    }

    KNOTFLOW_INLINE void pull(const S* g_slopes, S* g_left, S* g_right, S* g_widths, S* g_rises) const {
        for (int m = 0; m < q; ++m) {
            const S scaled = g_slopes[m] * support[m];
            g_rises[m] = g_rises[m] + scaled * F(q + 1);
            const S distance = scaled * slopes[m];
            g_left[q - 1 - m] = g_left[q - 1 - m] - distance;
            g_right[m] = g_right[m] - distance;
        }
        S sum_left = S{}, sum_right = S{};
        for (int i = q - 1; i >= 0; --i) {
            sum_left = sum_left + g_left[i];
            sum_right = sum_right + g_right[i];
            g_widths[q - 1 - i] = g_widths[q - 1 - i] + sum_left;
            g_widths[q + i] = g_widths[q + i] + sum_right;
        }
    }
};

// Height of the spline's value at a knot above its coefficient, from widths of q bins on each side and q rises.
template <class F, class S, int q> struct KnotValue {
    Around<F, S, q> around;
    Triangle<F, S, q> triangle;
    S offset;

    KNOTFLOW_INLINE KnotValue(const S* widths, const S* rises)
        : around(widths, rises), triangle(around.slopes, around.left, around.right) {
        offset = around.left[q - 1] * triangle.first(0);
        for (int r = 1; r < q; ++r) offset = offset + around.left[q - 1 - r] * triangle.first(r);
        offset = offset * F(1.0 / (q + 1));
    }

    // Takes gradients of the offset and of the last diagonal, and adds to those of the distances.
    KNOTFLOW_INLINE void pull(
        S g_offset, const S* g_last, S* g_left, S* g_right, S* g_widths, S* g_rises) const {
        S g[q][q] = {};
        const S scaled = g_offset * F(1.0 / (q + 1));
        for (int r = 0; r < q; ++r) {
            g[r][0] = g[r][0] + scaled * around.left[q - 1 - r];
            g_left[q - 1 - r] = g_left[q - 1 - r] + scaled * triangle.first(r);
            g[r][q - 1 - r] = g[r][q - 1 - r] + g_last[r];
        }
        triangle.pull(g, g_left, g_right);
        around.pull(g[0], g_left, g_right, g_widths, g_rises);
    }
};

// The slope polynomial of a bin: Bernstein coefficients d[0 .. q], and the value of its left knot.
template <class F, class S, int q> struct Piece {
    S widths[2 * q + 1], rises[q + 1];
    KnotValue<F, S, q> knot;
    S last_slope, support, beyond[q + 1], right_inverse[q + 1];
    S polar[q + 1][q + 1];  // polar[c][r]: with c copies of the right knot inserted
    S d[q + 1];

    KNOTFLOW_INLINE Piece(const S* widths_, const S* rises_) : knot(widths_, rises_) {
        for (int i = 0; i <= 2 * q; ++i) widths[i] = widths_[i];
        for (int i = 0; i <= q; ++i) rises[i] = rises_[i];
        beyond[0] = widths[q + 1];
        for (int i = 1; i < q; ++i) beyond[i] = beyond[i - 1] + widths[q + 1 + i];
        support = F(1) / (knot.around.right[q - 1] + widths[2 * q]);
        last_slope = rises[q] * support * F(q + 1);
        polar[1][0] = last_slope;
        for (int r = 1; r <= q; ++r) polar[1][r] = knot.triangle.last(r - 1);
        d[0] = polar[1][q];
        d[1] = polar[1][q - 1];
        for (int i = 1; i < q; ++i) right_inverse[i] = F(1) / knot.around.right[i];
        for (int copies = 2; copies <= q; ++copies) {
            for (int r = 0; r <= q - copies; ++r) {
                const int i = q - r - copies;
                polar[copies][r] =
                    (beyond[i] * polar[copies - 1][r + 1] + widths[q] * polar[copies - 1][r])
                    * right_inverse[i + 1];
            }
            d[copies] = polar[copies][q - copies];
        }
    }

    KNOTFLOW_INLINE S offset() const { return knot.offset; }

    // Gradients of the coefficients and of the offset become gradients of widths and rises.
    KNOTFLOW_INLINE void pull(const S* g_d, S g_offset, S* g_widths, S* g_rises) const {
        S g[q + 1][q + 1] = {}, g_left[q] = {}, g_right[q] = {}, g_beyond[q] = {}, g_last[q];
        for (int copies = q; copies >= 2; --copies) {
            g[copies][q - copies] = g[copies][q - copies] + g_d[copies];
            for (int r = 0; r <= q - copies; ++r) {
                const int i = q - r - copies;
                const S scaled = g[copies][r] * right_inverse[i + 1];
                g_beyond[i] = g_beyond[i] + scaled * polar[copies - 1][r + 1];
                g_widths[q] = g_widths[q] + scaled * polar[copies - 1][r];
                g_right[i + 1] = g_right[i + 1] - scaled * polar[copies][r];
                g[copies - 1][r + 1] = g[copies - 1][r + 1] + scaled * beyond[i];
                g[copies - 1][r] = g[copies - 1][r] + scaled * widths[q];
            }
        }
        g[1][q] = g[1][q] + g_d[0];
        g[1][q - 1] = g[1][q - 1] + g_d[1];
        for (int r = 1; r <= q; ++r) g_last[r - 1] = g[1][r];
        const S scaled = g[1][0] * support;
        g_rises[q] = g_rises[q] + scaled * F(q + 1);
        const S distance = scaled * last_slope;
        g_right[q - 1] = g_right[q - 1] - distance;
        g_widths[2 * q] = g_widths[2 * q] - distance;
        S sum = S{};
        for (int i = q - 1; i >= 0; --i) {
            sum = sum + g_beyond[i];
            g_widths[q + 1 + i] = g_widths[q + 1 + i] + sum;
        }
        knot.pull(g_offset, g_last, g_left, g_right, g_widths, g_rises);
    }
};

// Bernstein polynomials: C(q, i) u^i v^(q-i).
template <class F, class S, int q> KNOTFLOW_INLINE void bernstein(S u, S v, S* basis) {
    S up[q + 1], vp[q + 1];
    set<F>(up[0], splat<F>(1)), set<F>(vp[0], splat<F>(1));
    for (int i = 1; i <= q; ++i) up[i] = up[i - 1] * u, vp[i] = vp[i - 1] * v;
    for (int i = 0; i <= q; ++i) basis[i] = up[i] * vp[q - i] * F(binomial(q, i));
}

// Rise from 0 to u in units of the width, and slope, with their derivatives by d.
template <class F, class S, int q> struct Evaluated {
    S basis[q + 1];     // of the slope
    S integral[q + 1];  // d rise / d d[i]
    S rise, slope;

    KNOTFLOW_INLINE Evaluated(const S* d, S u) {
        const S v = F(1) - u;
        bernstein<F, S, q>(u, v, basis);
        // rise = u sum_k (d_0 + .. + d_k) C(q+1, k+1) / (q+1) u^k v^(q-k)
        S sum = S{};
        for (int k = q; k >= 0; --k) {
            sum = sum + basis[k] * F(double(binomial(q + 1, k + 1)) / ((q + 1) * binomial(q, k)));
            integral[k] = sum * u;
        }
        rise = integral[0] * d[0], slope = basis[0] * d[0];
        for (int i = 1; i <= q; ++i) {
            rise = rise + integral[i] * d[i];
            slope = slope + basis[i] * d[i];
        }
    }
};

template <class F, class S, int q> KNOTFLOW_INLINE S curvature(const S* d, S u) {
    S basis[q];
    bernstein<F, S, q - 1>(u, F(1) - u, basis);
    S sum = (d[1] - d[0]) * basis[0];
    for (int i = 1; i < q; ++i) sum = sum + (d[i + 1] - d[i]) * basis[i];
    return sum * F(q);
}

}  // namespace
