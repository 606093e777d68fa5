// Intervals, circles and lines: knotflow/transforms/domains.py for vectors of points.
#pragma once

#include "call.hpp"
#include "vector.hpp"

namespace {

// The stretch [low, high] on which a map acts, and what happens outside.
template <class F> struct Space {
    DomainKind domain;
    F low, high, length;

    explicit Space(const Call& call)
        : domain(DomainKind(call.domain)), low(F(call.low)), high(F(call.high)), length(F(call.high - call.low)) {}

    KNOTFLOW_INLINE Vec<F> remainder(Vec<F> x) const { return x - floor_of<F>(x / length) * length; }

    // The user's points as points of [low, high].
    KNOTFLOW_INLINE Vec<F> enter(Vec<F> x) const {
        const Vec<F> first = splat<F>(low), last = splat<F>(high);
        if (domain == LINE) return outside(x) ? first : x;
        if (domain == CIRCLE) {
            const Mask<F> beyond = (x < first) | (x > last);
            if (any<F>(beyond)) x = beyond ? first + remainder(x - first) : x;
        }
        return clamp<F>(x, first, last);
    }

    // Mask of the points on which the map is the identity; only a line has any.
    KNOTFLOW_INLINE Mask<F> outside(Vec<F> x) const {
        const Mask<F> beyond = (x < low) | (x > high);
        return domain == LINE ? beyond : beyond ^ beyond;
    }

    // Keeps images inside despite rounding, and maps the upper end exactly to itself.
    KNOTFLOW_INLINE Vec<F> onto(Vec<F> source, Vec<F> image) const {
        const Vec<F> last = splat<F>(high);
        return source >= last ? last : clamp<F>(image, splat<F>(low), last);
    }
};

}  // namespace
