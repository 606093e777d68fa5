// Bins: the one in which a point lies, where in it, and shares of a whole, with gradients.
#pragma once

#include "vector.hpp"

namespace {

// In four strands: faster, and with a quarter of the rounding.
template <class F, class S> KNOTFLOW_INLINE S sum_of(const S* rows, int n) {
    S strands[4] = {};
    int i = 0;
    for (; i + 4 <= n; i += 4)
        for (int k = 0; k < 4; ++k) strands[k] = strands[k] + rows[i + k];
    for (; i < n; ++i) strands[i % 4] = strands[i % 4] + rows[i];
    return (strands[0] + strands[1]) + (strands[2] + strands[3]);
}

// exp(x - max x) and their sum. The largest enters as a constant, which cancels from shares.
template <class F, class S> KNOTFLOW_INLINE S exponentials(const S* from, S* to, int n) {
    Vec<F> most = value<F>(from[0]);
    for (int i = 1; i < n; ++i) {
        const Vec<F> other = value<F>(from[i]);
        most = most > other ? most : other;
    }
    // A NaN that the comparison passed over comes back through its own exponential.
    for (int i = 0; i < n; ++i) to[i] = exponential<F>(from[i] - most);
    return sum_of<F>(to, n);
}

// Gradients of scale e_i / sum e + floor, with e_i = exp(raw_i), become gradients of raw_i.
template <class F, class S>
KNOTFLOW_INLINE void pull_shares(const S* g, const S* e, S total, F scale, int n, S* g_raw) {
    S dot = S{};
    for (int i = 0; i < n; ++i) dot = dot + g[i] * e[i];
    const S per = scale / total;
    dot = dot / total;
    for (int i = 0; i < n; ++i) g_raw[i] = (g[i] - dot) * e[i] * per;
}

// The bin of points among n, the sum of the widths before it, and that of the rises; both begin at `start`.
template <class F, class S>
KNOTFLOW_INLINE Mask<F> locate(Vec<F> x, F start, const S* widths, const S* rises, int n, S& knot, S& level) {
    Mask<F> bin{};
    set<F>(knot, splat<F>(start)), set<F>(level, splat<F>(start));
    S end = knot, sum = level;
    for (int i = 0; i < n - 1; ++i) {
        end = end + widths[i];
        sum = sum + rises[i];
        const Mask<F> passed = x >= value<F>(end);
        knot = select<F>(passed, end, knot);
        level = select<F>(passed, sum, level);
        bin -= passed;
    }
    return bin;
}

// Where in its bin a point lies, within [0, 1] in spite of rounding.
template <class F, class S> KNOTFLOW_INLINE S local(S x, S knot, S width) {
    S u = (x - knot) / width;
    set_value<F>(u, clamp<F>(value<F>(u), splat<F>(0), splat<F>(1)));
    return u;
}

}  // namespace
