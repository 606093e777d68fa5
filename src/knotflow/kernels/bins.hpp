// Bins: the bin of a point, the place in it, and shares of a whole, with gradients.
#pragma once

#include "rows.hpp"
#include "space.hpp"

namespace {

// A sum that keeps its rounding errors: exactly where the sum is larger than the next term (Dekker), elsewhere to
// within the rounding of that term.
template <class S> struct CarefulSum {
    S sum, lost{};

    KNOTFLOW_INLINE void add(S term) {
        const S next = sum + term;
        lost = lost + (term - (next - sum));
        sum = next;
    }
    KNOTFLOW_INLINE S total() const { return sum + lost; }
};

template <class F, class S> KNOTFLOW_INLINE S sum_of(const S* rows, int n) {
    CarefulSum<S> sum{rows[0]};
    for (int i = 1; i < n; ++i) sum.add(rows[i]);
    return sum.total();
}

// exp(x - max x) and their sum. The maximum is treated as a constant, which cancels from shares.
template <class F, class S> KNOTFLOW_INLINE S exponentials(const S* from, S* to, int n) {
    Vec<F> most = value<F>(from[0]);
    for (int i = 1; i < n; ++i) {
        const Vec<F> other = value<F>(from[i]);
        most = most > other ? most : other;
    }
    // A NaN that the comparison skipped reappears through its own exponential.
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

// Sums of the first 0 .. n rows, starting at `start`, each rounded once: where a map is flat an ulp of its image is
// a long distance, and where it is steep an ulp of a knot is. A point that rounding puts beyond an end is moved back
// to the end, and loses its place.
template <class F, class S> KNOTFLOW_INLINE void prefix_sums(const S* rows, int n, F start, S* sums) {
    CarefulSum<S> sum;
    set<F>(sum.sum, splat<F>(start));
    sums[0] = sum.sum;
    for (int i = 0; i < n; ++i) {
        sum.add(rows[i]);
        sums[i + 1] = sum.total();
    }
}

// The bin of a point among n, found from the knots between them; the outer bins are unbounded.
template <class F, class S> KNOTFLOW_INLINE Mask<F> locate(Vec<F> x, const S* knots, int n) {
    Mask<F> bin{};
    for (int i = 1; i < n; ++i) bin -= x >= value<F>(knots[i]);
    return bin;
}

// The place of a point in the domain, and in one of n bins that begin at `ends`.
template <class F, class S> struct Place {
    Mask<F> outside, bin;
    S entered, knot;

    KNOTFLOW_INLINE Place(const Space<F>& space, S x, const S* ends, int n)
        : outside(space.outside(value<F>(x))), entered(x) {
        set_value<F>(entered, space.enter(value<F>(x)));
        bin = locate<F>(value<F>(entered), ends, n);
        S found[1];
        gather<F>(ends, bin, found);
        knot = found[0];
    }

    // The fraction of the bin that lies before the point, within [0, 1] despite rounding.
    KNOTFLOW_INLINE S within(S width) const {
        S u = (entered - knot) / width;
        set_value<F>(u, clamp<F>(value<F>(u), splat<F>(0), splat<F>(1)));
        return u;
    }
};

}  // namespace
