// B-spline maps, inverses and derivatives: knotflow/transforms/bspline.py, one pass over the raw parameters.
#pragma once

#include "knots.hpp"

namespace {

template <class F, class S, int q> struct BSpline {
    using Plan = ::Plan<F, q>;
    const Plan& plan;
    const Space<F>& space;
    Knots<F, S, q> knots;
    S seam;      // on a circle, height of f(low) above the first coefficient
    S rotation;  // the phase
    S *g_widths, *g_rises, *g_all;

    static int rows(const Plan& plan) {
        return Knots<F, S, q>::rows(plan) + plan.padded() + plan.rises() + plan.parameters;
    }

    BSpline(const Plan& plan_, S* scratch) : plan(plan_), space(plan_.space), knots(plan_, scratch) {
        g_widths = scratch + Knots<F, S, q>::rows(plan);
        g_rises = g_widths + plan.padded();
        g_all = g_rises + plan.rises();
    }

    // Builds the splines of points; gradients do not need the values.
    KNOTFLOW_INLINE void read(const Call& call, int64_t first, int points, bool values) {
        read_raw<F>(call, first, points, plan.parameters, knots.all);
        if (plan.phase) {
            S angle = knots.all[plan.parameters - 1] * per_radian();
            set_value<F>(angle, space.remainder(value<F>(angle)));
            rotation = angle;
        }
        knots.build(values);
        seam = S{};
        if (plan.domain == CIRCLE) seam = KnotValue<F, S, q>(knots.widths, knots.rises).offset;
    }

    KNOTFLOW_INLINE F per_radian() const { return F(plan.length / (2 * 3.14159265358979323846)); }

    // The affine map, if there is one.
    KNOTFLOW_INLINE S moved(S x) const { return plan.lead ? x * knots.stretch + knots.all[0] : x; }

    KNOTFLOW_INLINE void forward(S x, S& y, S& ladj) const {
        x = moved(x);
        const Place<F, S> place(space, x, knots.ends, plan.pieces);
        const Mask<F> outside = place.outside, bin = place.bin;
        S widths[2 * q + 1], rises[q + 1];
        gather<F>(knots.widths, bin, widths);
        gather<F>(knots.rises, bin, rises);
        const Piece<F, S, q> piece(widths, rises);
        const Evaluated<F, S, q> at(piece.d, place.within(widths[q]));
        S coefficient[1];
        gather<F>(knots.levels, bin, coefficient);
        S image = coefficient[0] + (piece.offset() - seam) + widths[q] * at.rise;
        set_value<F>(image, space.onto(value<F>(place.entered), value<F>(image)));
        if (plan.phase) {
            image = image + rotation;
            set_value<F>(image, space.enter(value<F>(image)));
        }
        y = select<F>(outside, x, image);
        ladj = select<F>(outside, S{}, logarithm<F>(at.slope));
        if (plan.lead) ladj = ladj + knots.log_scale;
    }

    // Gradient of gy y + gl ladj. For inverses: gradient of gy x + gl ladj of the inverse with respect to the image,
    // given the preimage x.
    template <bool of_inverse> KNOTFLOW_INLINE void backward(S x, S gy, S gl, S& gx, bool with_raw) {
        if (!plan.lead) return backward_of_spline<of_inverse>(x, gy, gl, gx, with_raw);
        S g_shift, g_log_scale;
        if constexpr (of_inverse) {
            const S g_moved = gy / knots.stretch;
            g_shift = -g_moved, g_log_scale = -(gy * x) - gl;
            backward_of_spline<true>(moved(x), g_moved, gl, gx, with_raw);
        } else {
            backward_of_spline<false>(moved(x), gy, gl, gx, with_raw);
            g_shift = gx, gx = gx * knots.stretch, g_log_scale = gx * x + gl;
        }
        g_all[0] = g_shift;
        g_all[1] = g_log_scale * (F(1) - knots.bounded * knots.bounded);
    }

    template <bool of_inverse> KNOTFLOW_INLINE void backward_of_spline(S x, S gy, S gl, S& gx, bool with_raw) {
        const Place<F, S> place(space, x, knots.ends, plan.pieces);
        const Mask<F> outside = place.outside, bin = place.bin;
        S widths[2 * q + 1], rises[q + 1];
        gather<F>(knots.widths, bin, widths);
        gather<F>(knots.rises, bin, rises);
        const Piece<F, S, q> piece(widths, rises);
        const S u = place.within(widths[q]);
        const Evaluated<F, S, q> at(piece.d, u);
        const S per_slope = F(1) / at.slope, per_width = F(1) / widths[q];
        const S bend = curvature<F, S, q>(piece.d, u) * per_width;  // d slope / dx
        if constexpr (of_inverse) {
            const S g_result = (gy - gl * (bend * per_slope)) * per_slope;
            gx = select<F>(outside, gy, g_result);
            gy = -g_result, gl = -gl;
        }
        const S g_outside = gy;
        gy = select<F>(outside, S{}, gy);
        const S g_slope = select<F>(outside, S{}, gl * per_slope);
        const S g_place = gy * at.slope + g_slope * bend;
        if constexpr (!of_inverse) gx = select<F>(outside, g_outside, g_place);
        if (!with_raw) return;

        S g_d[q + 1], g_window[2 * q + 1] = {}, g_step[q + 1] = {};
        const S g_rise = gy * widths[q];
        for (int i = 0; i <= q; ++i) g_d[i] = g_rise * at.integral[i] + g_slope * at.basis[i];
        g_window[q] = gy * at.rise - g_place * u;
        piece.pull(g_d, gy, g_window, g_step);
        // Widths and rises before the bin shift its left knot and the value there.
        for (int i = 0; i < plan.padded(); ++i) g_widths[i] = S{};
        for (int i = 0; i < plan.rises(); ++i) g_rises[i] = S{};
        const S nothing{}, g_knot = -g_place;
        for (int i = 0; i < plan.pieces - 1; ++i) {
            const Mask<F> before = bin > typename Types<F>::Int(i);
            g_widths[q + i] = select<F>(before, g_knot, nothing);
            g_rises[i] = select<F>(before, gy, nothing);
        }
        scatter_add<F>(g_widths, bin, g_window);
        scatter_add<F>(g_rises, bin, g_step);
        if (plan.domain == CIRCLE) {
            S g_left[q] = {}, g_right[q] = {}, none[q] = {};
            KnotValue<F, S, q>(knots.widths, knots.rises).pull(-gy, none, g_left, g_right, g_widths, g_rises);
        }
        knots.pull(g_widths, g_rises, g_all + plan.lead);
        if (plan.phase) g_all[plan.parameters - 1] = gy * per_radian();
    }

    // ---- inverse (plain vectors only)

    KNOTFLOW_INLINE Vec<F> value_at(Mask<F> knot) const {
        Vec<F> widths[2 * q], rises[q], level[1];
        gather<F>(knots.widths, knot, widths);
        gather<F>(knots.rises, knot, rises);
        gather<F>(knots.levels, knot, level);
        return level[0] + (KnotValue<F, S, q>(widths, rises).offset - seam);
    }

    // The bin whose knot values enclose an image. Between two coefficients there are q knots to try.
    KNOTFLOW_INLINE Mask<F> locate_image(Vec<F> y) const {
        using Int = typename Types<F>::Int;
        const Mask<F> above = locate<F>(y + seam, knots.levels, plan.rises());
        Mask<F> bin = above - Int(q);
        for (int m = 1; m <= q; ++m) {
            const Mask<F> knot = above + Int(m - q);
            const Mask<F> low = knot < Int(0), high = knot > Int(plan.pieces);
            const Mask<F> inside = low ? knot - knot : high ? knot - knot + Int(plan.pieces) : knot;
            const Mask<F> passed = value_at(inside) <= y;
            bin -= (knot <= Int(0)) | ((knot < Int(plan.pieces)) & passed);
        }
        const Mask<F> none{}, last = none + Int(plan.pieces - 1);
        bin = bin < none ? none : bin;
        return bin > last ? last : bin;
    }

    // Solves rise(u) = goal on [0, 1]: starts at the root of the parabola with the same end slopes, takes Halley
    // steps within a shrinking bracket until no point moves, and then a last Newton step.
    KNOTFLOW_INLINE Vec<F> root(const Vec<F>* d, Vec<F> goal) const {
        Vec<F> whole = d[0];
        for (int i = 1; i <= q; ++i) whole = whole + d[i];
        const Vec<F> zero{}, one = splat<F>(1);
        const Vec<F> share = goal * (d[0] + d[q]) * F(0.5 * (q + 1)) / whole;
        Vec<F> square = d[0] * d[0] + F(2) * (d[q] - d[0]) * share;
        square = square > zero ? square : zero;
        Vec<F> u = clamp<F>(F(2) * share / (d[0] + sqrt_of<F>(square)), zero, one);
        Vec<F> left = zero, right = one;
        Mask<F> moving = ~Mask<F>{};
        for (int step = 0; step < MOST_STEPS; ++step) {
            const Evaluated<F, Vec<F>, q> at(d, u);
            const Vec<F> error = at.rise - goal;
            left = error < zero ? u : left;
            right = error > zero ? u : right;
            const Vec<F> second = curvature<F, Vec<F>, q>(d, u);
            const Vec<F> halley = u - F(2) * error * at.slope / (F(2) * at.slope * at.slope - error * second);
            const Mask<F> inside = (halley >= left) & (halley <= right);
            const Vec<F> next = inside ? halley : F(0.5) * (left + right);
            // A point that has settled no longer moves: its bits must not depend on the other points.
            const Vec<F> moved = next - u;
            u = moving ? next : u;
            moving &= (moved > Types<F>::eps) | (moved < -Types<F>::eps);
            if (!any<F>(moving)) break;
        }
        const Evaluated<F, Vec<F>, q> at(d, u);
        return clamp<F>(u - (at.rise - goal) / at.slope, zero, one);
    }

    static constexpr int MOST_STEPS = 40;

    KNOTFLOW_INLINE void inverse(Vec<F> y, Vec<F>& x, Vec<F>& ladj) const {
        const Mask<F> outside = space.outside(y);
        Vec<F> entered = space.enter(y);
        if (plan.phase) entered = space.enter(entered - rotation);
        const Mask<F> bin = locate_image(entered);
        Vec<F> ends[2], coefficient[1];
        gather<F>(knots.ends, bin, ends);
        gather<F>(knots.levels, bin, coefficient);
        const Vec<F> knot = ends[0], right = ends[1];
        Vec<F> widths[2 * q + 1], rises[q + 1];
        gather<F>(knots.widths, bin, widths);
        gather<F>(knots.rises, bin, rises);
        const Piece<F, Vec<F>, q> piece(widths, rises);
        const Vec<F> width = widths[q];
        const Vec<F> goal = (entered - (coefficient[0] + (piece.offset() - seam))) / width;
        const Vec<F> u = root(piece.d, goal);
        const Evaluated<F, Vec<F>, q> at(piece.d, u);
        // Widths do not add up to the knots to the last digit, and a steep slope would multiply the
        // difference. So x must not pass the right knot, and is that knot if y is its value up to rounding.
        Vec<F> mean = piece.d[0];
        for (int i = 1; i <= q; ++i) mean = mean + piece.d[i];
        const Vec<F> missing = width * (mean * F(1.0 / (q + 1)) - goal);
        const Mask<F> at_knot = (missing <= F(2) * Types<F>::eps * plan.length) & (piece.d[q] > F(2));
        const Vec<F> found = at_knot ? right : clamp<F>(knot + width * u, knot, right);
        x = outside ? y : space.onto(entered, found);
        ladj = outside ? Vec<F>{} : -log_of<F>(at.slope);
        if (plan.lead) {
            x = (x - knots.all[0]) / knots.stretch;
            ladj = ladj - knots.log_scale;
        }
    }
};

}  // namespace
