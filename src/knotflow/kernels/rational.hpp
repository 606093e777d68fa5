// Rational-quadratic maps, inverses and derivatives: knotflow/transforms/rational_quadratic.py.
#pragma once

#include "bins.hpp"

namespace {

template <class F> struct RationalPlan {
    Space<F> space;
    int bins, raw_slopes, first_slope, parameters;
    F width_scale, width_floor, height_scale, height_floor, min_slope, shift;

    explicit RationalPlan(const Call& call) : space(call), bins(call.bins) {
        raw_slopes = space.domain == CIRCLE ? bins : space.domain == LINE ? bins - 1 : bins + 1;
        first_slope = space.domain == LINE ? 1 : 0;
        parameters = 2 * bins + raw_slopes;
        const double total = call.high - call.low;
        width_scale = F(total * (1 - bins * call.width_floor)), width_floor = F(total * call.width_floor);
        height_scale = F(total * (1 - bins * call.rise_floor)), height_floor = F(total * call.rise_floor);
        min_slope = F(call.min_slope);
        shift = F(__builtin_log(__builtin_expm1(1 - call.min_slope)));
    }
};

// f on a bin: the fraction of the height reached at u, the slope, and gradients of both.
template <class F, class S> struct RationalPiece {
    S width, height, d0, d1, s, u, v, uv, a, p, per_denominator, fraction, slope;

    KNOTFLOW_INLINE RationalPiece(S width_, S height_, S d0_, S d1_, S u_)
        : width(width_), height(height_), d0(d0_), d1(d1_), s(height_ / width_), u(u_), v(F(1) - u_) {
        uv = u * v;
        per_denominator = F(1) / (s * (F(1) - uv * F(2)) + (d0 + d1) * uv);
        a = s * u + d0 * v;
        p = d1 * u * u + s * uv * F(2) + d0 * v * v;
        fraction = u * a * per_denominator;
        slope = s * s * p * per_denominator * per_denominator;
    }

    // d log slope / du
    KNOTFLOW_INLINE S bend() const {
        const S dp = (d1 * u - d0 * v + s * (v - u)) * F(2);
        return dp / p - (v - u) * (d0 + d1 - s * F(2)) * per_denominator * F(2);
    }

    // Gradient of gy f + gl log slope; g_place is that of the point.
    KNOTFLOW_INLINE void pull(S gy, S gl, S& g_place, S& g_width, S& g_height, S* g_slopes) const {
        const S g_fraction = gy * height, g_p = gl / p;
        const S g_denominator = -(g_fraction * fraction + gl * F(2)) * per_denominator;
        const S g_n = g_fraction * per_denominator, g_a = g_n * u;
        const S g_uv = g_p * s * F(2) + g_denominator * (d0 + d1 - s * F(2));
        const S g_v = g_a * d0 + g_p * d0 * v * F(2) + g_uv * u;
        const S g_u = g_n * a + g_a * s + g_p * d1 * u * F(2) + g_uv * v - g_v;
        const S g_s = gl * F(2) / s + g_a * u + g_p * uv * F(2) + g_denominator * (F(1) - uv * F(2));
        g_slopes[0] = g_a * v + g_p * v * v + g_denominator * uv;
        g_slopes[1] = g_p * u * u + g_denominator * uv;
        const S per_width = F(1) / width;
        g_place = g_u * per_width;
        g_height = gy * fraction + g_s * per_width;
        g_width = -(g_u * u + g_s * s) * per_width;
    }
};

template <class F, class S> struct Rational {
    using Plan = RationalPlan<F>;
    const Plan& plan;
    const Space<F>& space;
    S *all, *e_heights, *widths, *heights, *slopes, *ends, *levels, *g_widths, *g_heights, *g_slopes, *g_all;
    S width_total, height_total;

    static int rows(const Plan& plan) { return 2 * plan.parameters + 9 * plan.bins + 4; }

    Rational(const Plan& plan_, S* scratch) : plan(plan_), space(plan_.space) {
        const int n = plan.bins;
        all = scratch, g_all = all + plan.parameters, e_heights = g_all + plan.parameters;
        widths = e_heights + n, heights = widths + n, slopes = heights + n;
        ends = slopes + n + 1, levels = ends + n + 1;
        g_widths = levels + n + 1, g_heights = g_widths + n, g_slopes = g_heights + n;
    }

    KNOTFLOW_INLINE void read(const Call& call, int64_t first, int points, bool) {
        read_raw<F>(call, first, points, plan.parameters, all);
        build();
    }

    // Not inlined: maps and inverses must see the same bits.
    __attribute__((noinline)) void build() {
        const int n = plan.bins;
        width_total = exponentials<F>(all, all, n);
        height_total = exponentials<F>(all + n, e_heights, n);
        const S per_width = plan.width_scale / width_total, per_height = plan.height_scale / height_total;
        for (int i = 0; i < n; ++i) {
            widths[i] = all[i] * per_width + plan.width_floor;
            heights[i] = e_heights[i] * per_height + plan.height_floor;
        }
        slopes[0] = S{}, slopes[n] = S{};  // the end slopes of a line are 1 and have no parameters
        for (int i = 0; i < plan.raw_slopes; ++i) slopes[plan.first_slope + i] = all[2 * n + i] + plan.shift;
        if (space.domain == CIRCLE) slopes[n] = slopes[0];
        prefix_sums<F>(widths, n, space.low, ends);
        prefix_sums<F>(heights, n, space.low, levels);
    }

    // log(1 + e^x) = max(x, 0) + log(1 + e^-|x|)
    KNOTFLOW_INLINE static S softplus(S x) {
        const Mask<F> positive = value<F>(x) > Vec<F>{};
        return select<F>(positive, x, S{}) + logarithm<F>(exponential<F>(select<F>(positive, -x, x)) + F(1));
    }

    // The shape of a bin. Only two of all slopes matter for a point.
    struct Bin {
        S width[1], height[1], raw[2], ends[2];
        Mask<F> fixed[2];  // whether an end of the bin is an end of the line, where the slope is 1

        KNOTFLOW_INLINE Bin(const Rational& map, Mask<F> bin) {
            gather<F>(map.widths, bin, width);
            gather<F>(map.heights, bin, height);
            gather<F>(map.slopes, bin, raw);
            using Int = typename Types<F>::Int;
            const bool line = map.space.domain == LINE;
            fixed[0] = bin == Int(line ? 0 : -1);
            fixed[1] = bin == Int(line ? map.plan.bins - 1 : -1);
            S one;
            set<F>(one, splat<F>(1));
            for (int i = 0; i < 2; ++i)
                ends[i] = select<F>(fixed[i], one, softplus(raw[i]) + map.plan.min_slope);
        }

        KNOTFLOW_INLINE RationalPiece<F, S> at(S u) const {
            return RationalPiece<F, S>(width[0], height[0], ends[0], ends[1], u);
        }
    };

    KNOTFLOW_INLINE void forward(S x, S& y, S& ladj) const {
        const Place<F, S> place(space, x, ends, plan.bins);
        const Mask<F> outside = place.outside, bin = place.bin;
        const Bin shape(*this, bin);
        const RationalPiece<F, S> at = shape.at(place.within(shape.width[0]));
        S level[1];
        gather<F>(levels, bin, level);
        S image = level[0] + at.height * at.fraction;
        set_value<F>(image, space.onto(value<F>(place.entered), value<F>(image)));
        y = select<F>(outside, x, image);
        ladj = select<F>(outside, S{}, logarithm<F>(at.slope));
    }

    // As in BSpline.
    template <bool of_inverse> KNOTFLOW_INLINE void backward(S x, S gy, S gl, S& gx, bool with_raw) {
        const int n = plan.bins;
        const Place<F, S> place(space, x, ends, plan.bins);
        const Mask<F> outside = place.outside, bin = place.bin;
        const Bin shape(*this, bin);
        const RationalPiece<F, S> at = shape.at(place.within(shape.width[0]));
        const S g_outside = gy;
        if constexpr (of_inverse) {
            const S g_image = (gy - gl * at.bend() / at.width) / at.slope;
            gx = select<F>(outside, gy, g_image);
            gy = -g_image, gl = -gl;
        }
        gy = select<F>(outside, S{}, gy), gl = select<F>(outside, S{}, gl);
        S g_place, g_width[1], g_height[1], g_ends[2];
        at.pull(gy, gl, g_place, g_width[0], g_height[0], g_ends);
        for (int i = 0; i < 2; ++i)
            g_ends[i] = select<F>(shape.fixed[i], S{}, g_ends[i] * sigmoid<F>(shape.raw[i]));
        if constexpr (!of_inverse) gx = select<F>(outside, g_outside, g_place);
        if (!with_raw) return;
        // Widths and heights before the bin shift its left knot and the value there.
        const S nothing{}, g_knot = -g_place;
        for (int i = 0; i < n; ++i) {
            const Mask<F> before = bin > typename Types<F>::Int(i);
            g_widths[i] = select<F>(before, g_knot, nothing);
            g_heights[i] = select<F>(before, gy, nothing);
        }
        for (int i = 0; i <= n; ++i) g_slopes[i] = nothing;
        scatter_add<F>(g_widths, bin, g_width);
        scatter_add<F>(g_heights, bin, g_height);
        scatter_add<F>(g_slopes, bin, g_ends);
        if (space.domain == CIRCLE) g_slopes[0] = g_slopes[0] + g_slopes[n];
        pull_shares<F>(g_widths, all, width_total, plan.width_scale, n, g_all);
        pull_shares<F>(g_heights, e_heights, height_total, plan.height_scale, n, g_all + n);
        for (int i = 0; i < plan.raw_slopes; ++i) g_all[2 * n + i] = g_slopes[plan.first_slope + i];
    }

    KNOTFLOW_INLINE void inverse(Vec<F> y, Vec<F>& x, Vec<F>& ladj) const {
        const Mask<F> outside = space.outside(y);
        const Vec<F> entered = space.enter(y);
        const Mask<F> bin = locate<F>(entered, levels, plan.bins);
        Vec<F> knot[2], level[1];
        gather<F>(ends, bin, knot);
        gather<F>(levels, bin, level);
        const Bin shape(*this, bin);
        const RationalPiece<F, Vec<F>> start = shape.at(Vec<F>{});
        const Vec<F> zero{}, one = splat<F>(1), s = start.s;
        const Vec<F> goal = (entered - level[0]) / start.height;
        const Vec<F> bend = (start.d0 + start.d1 - F(2) * s) * goal;
        const Vec<F> a = s - start.d0 + bend, b = start.d0 - bend, c = s * goal;
        Vec<F> square = b * b + F(4) * a * c;
        square = square > zero ? square : square < zero ? zero : square;
        const Vec<F> root = clamp<F>(F(2) * c / (b + sqrt_of<F>(square)), zero, one);
        // One last Newton step with the full formulas.
        const RationalPiece<F, Vec<F>> near = shape.at(root);
        const Vec<F> u = clamp<F>(root - (near.fraction - goal) * s / near.slope, zero, one);
        const RationalPiece<F, Vec<F>> at = shape.at(u);
        x = outside ? y : space.onto(entered, clamp<F>(knot[0] + at.width * u, knot[0], knot[1]));
        ladj = outside ? zero : -log_of<F>(at.slope);
    }
};

}  // namespace
