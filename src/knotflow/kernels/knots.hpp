// Widths and rises of splines from raw parameters, for as many points as a vector has lanes, and gradients back.
//
// The formulas are those of knotflow/transforms/knots.py. Widths are stored with q more at each end, zero on an
// interval or a line and periodic on a circle. There are q more rises than bins, on a circle periodic as well.
// So the window around any bin is contiguous on every domain.
#pragma once

#include "bins.hpp"
#include "piece.hpp"

namespace {

// Sizes and constants of a call.
template <class F, int q> struct Plan {
    Space<F> space;
    DomainKind domain;
    ParametrisationKind parametrisation;
    bool phase;
    int bins, pieces, lead, raw_widths, raw_rises, parameters;  // lead: 2 parameters of an affine map, or 0
    F low, length;
    F width_scale, width_floor, rise_scale, rise_floor;  // a share p becomes scale p + floor
    F shift, least;                                      // of slopes: sigmoid(raw + shift) + least
    F affine;                                            // bound of its log-scale

    explicit Plan(const Call& call)
        : space(call),
          domain(space.domain),
          parametrisation(ParametrisationKind(call.parametrisation)),
          phase(call.phase != 0),
          bins(call.bins),
          low(space.low),
          length(space.length) {
        const bool circle = domain == CIRCLE, line = domain == LINE;
        pieces = line ? bins + 2 * q : bins;
        raw_widths = circle ? bins : parametrisation == PAPER ? bins + 2 * q : pieces;
        raw_rises = circle ? bins : bins + q;
        affine = F(call.affine);
        lead = call.affine > 0 ? 2 : 0;
        parameters = lead + raw_widths + raw_rises + phase;
        const double total = call.high - call.low;
        width_scale = F(total * (1 - raw_widths * call.width_floor)), width_floor = F(total * call.width_floor);
        rise_scale = F(total * (1 - raw_rises * call.rise_floor)), rise_floor = F(total * call.rise_floor);
        shift = F(__builtin_log((1 - call.min_slope) / (call.max_slope - 1)));
        least = F(call.min_slope / (call.max_slope - call.min_slope));
    }

    // On a line, and with the paper's parametrisation on an interval, rises differ from those of the parameters.
    bool joins_identity() const { return domain == LINE; }
    bool clamps() const { return domain == INTERVAL && parametrisation == PAPER; }
    int padded() const { return pieces + 2 * q; }
    int rises() const { return pieces + q; }
};

template <class F, class S, int q> struct Knots {
    const Plan<F, q>& plan;
    S* all;      // (parameters): raw parameters
    S* raw;      // raw parameters of the spline; those of the widths later become their exponentials
    S* widths;   // (pieces + 2 q)
    S* rises;    // (pieces + q)
    S* outer;    // (raw_widths): paper, on an interval: widths including those outside
    S* parts;    // (raw_rises): bounded slopes, or exponentials
    S* before;   // (raw_rises): rises before they are clamped or joined to the identity
    S* ends;     // (pieces + 1): the start of each bin, and the end of the last
    S* levels;   // (pieces + q + 1): coefficients, sums of rises
    S width_total, part_total, scale, room, outer_scale;
    S bounded, log_scale, stretch;  // of the affine map: tanh, log-scale and scale

    static int rows(const Plan<F, q>& plan) {
        return plan.parameters + plan.padded() + plan.rises() + plan.raw_widths + 2 * plan.raw_rises
            + plan.pieces + 1 + plan.rises() + 1;
    }

    Knots(const Plan<F, q>& plan_, S* scratch) : plan(plan_) {
        all = scratch;
        raw = all + plan.lead;
        widths = all + plan.parameters;
        rises = widths + plan.padded();
        outer = rises + plan.rises();
        parts = outer + plan.raw_widths;
        before = parts + plan.raw_rises;
        ends = before + plan.raw_rises;
        levels = ends + plan.pieces + 1;
    }

    // ---- forward

    // Not inlined: maps and inverses must see the same bits. Without `values`, levels are not computed.
    __attribute__((noinline)) void build(bool values) {
        const int n = plan.pieces;
        if (plan.lead) {
            bounded = F(1) - F(2) / (exponential<F>(all[1] * F(2 / plan.affine)) + F(1));
            log_scale = bounded * plan.affine;
            stretch = exponential<F>(log_scale);
        }
        S* parted = plan.clamps() ? outer : widths + q;
        width_total = exponentials<F>(raw, raw, plan.raw_widths);
        const S per_width = plan.width_scale / width_total;
        for (int i = 0; i < plan.raw_widths; ++i) parted[i] = raw[i] * per_width + plan.width_floor;
        if (plan.clamps()) {
            outer_scale = plan.length / sum_of<F>(outer + q, n);
            for (int i = 0; i < plan.raw_widths; ++i) outer[i] = outer[i] * outer_scale;
            for (int i = 0; i < n; ++i) widths[q + i] = outer[q + i];
        }
        for (int i = 0; i < q; ++i) {
            widths[i] = plan.domain == CIRCLE ? widths[q + wrapped(i - q)] : S{};
            widths[q + n + i] = plan.domain == CIRCLE ? widths[q + wrapped(i)] : S{};
        }
        const S* raw_rises = raw + plan.raw_widths;
        S* to = plan.joins_identity() || plan.clamps() ? before : rises;
        if (plan.parametrisation == SLOPES) {
            const S* window = plan.joins_identity() ? widths + q : widths;
            for (int i = 0; i < plan.raw_rises; ++i) {
                parts[i] = sigmoid<F>(raw_rises[i] + plan.shift);
                S support = window[i] + window[i + 1];
                for (int m = 2; m <= q; ++m) support = support + window[i + m];
                to[i] = parts[i] * support + support * plan.least;
            }
        } else {
            part_total = exponentials<F>(raw_rises, parts, plan.raw_rises);
            const S per_rise = plan.rise_scale / part_total;
            for (int i = 0; i < plan.raw_rises; ++i) to[i] = parts[i] * per_rise + plan.rise_floor;
        }
        if (plan.joins_identity()) join();
        if (plan.clamps()) clamp_ends();
        // On a circle, the paper's rises already add up to the length.
        if (!plan.joins_identity() && !(plan.domain == CIRCLE && plan.parametrisation == PAPER)) {
            const int own = plan.domain == CIRCLE ? n : plan.rises();
            scale = plan.length / sum_of<F>(rises, own);
            for (int i = 0; i < own; ++i) rises[i] = rises[i] * scale;
        }
        if (plan.domain == CIRCLE)
            for (int i = 0; i < q; ++i) rises[n + i] = rises[wrapped(i)];
        prefix_sums<F>(widths + q, n, plan.low, ends);
        if (values) prefix_sums<F>(rises, plan.rises(), plan.low, levels);
    }

    KNOTFLOW_INLINE int wrapped(int i) const {
        const int n = plan.pieces;
        return ((i % n) + n) % n;
    }

    // Slopes of 1 at both ends of a line; the rises between them share the remaining height.
    void join() {
        const int n = plan.pieces, middle = plan.raw_rises;
        S left = S{}, right = S{}, ends = S{};
        for (int i = 0; i < q; ++i) {
            left = left + widths[q + i];
            right = right + widths[q + n - 1 - i];
            ends = ends + left + right;
            rises[i] = left * F(1.0 / (q + 1));
            rises[n + q - 1 - i] = right * F(1.0 / (q + 1));
        }
        room = plan.length - ends * F(1.0 / (q + 1));
        scale = room / sum_of<F>(before, middle);
        for (int i = 0; i < middle; ++i) rises[q + i] = before[i] * scale;
    }

    // One end of Algorithm 1's spline, with its q outer knots moved onto it. Counts inwards: step is 1 or -1.
    struct End {
        S left[q], right[q], slopes[q], support[q];
        Triangle<F, S, q> triangle;

        static const S* filled(End& end, const S* outer, const S* before, int step) {
            // `outer` is the first width inside, `before` the outermost rise.
            end.left[0] = outer[-step], end.right[0] = outer[0];
            for (int i = 1; i < q; ++i) {
                end.left[i] = end.left[i - 1] + outer[-step * (1 + i)];
                end.right[i] = end.right[i - 1] + outer[step * i];
            }
            for (int i = 0; i < q; ++i) {
                end.support[i] = F(1) / (end.left[q - 1 - i] + end.right[i]);
                end.slopes[i] = before[step * i] * end.support[i] * F(q + 1);
            }
            return end.slopes;
        }

        KNOTFLOW_INLINE End(const S* outer, const S* before, int step)
            : triangle(filled(*this, outer, before, step), left, right) {}

        // Slope coefficient number i from the end is last(q - 1 - i); its support is the part inside.
        KNOTFLOW_INLINE S rise(int i) const { return triangle.last(q - 1 - i) * right[i] * F(1.0 / (q + 1)); }
    };

    void clamp_ends() {
        const int n = plan.rises();
        const End left(outer + q, before, 1), right(outer + q + plan.pieces - 1, before + n - 1, -1);
        for (int i = q; i < n - q; ++i) rises[i] = before[i];
        for (int i = 0; i < q; ++i) {
            rises[i] = left.rise(i);
            rises[n - 1 - i] = right.rise(i);
        }
    }

    // ---- backward: gradients of widths (padded) and rises become those of raw parameters; the inputs are overwritten

    void pull(S* g_widths, S* g_rises, S* g_raw) {
        const int n = plan.pieces;
        S* g_parts = g_raw + plan.raw_widths;  // first gradients of the rises before, then of raw parameters
        S* g_outer = g_raw;
        if (plan.domain == CIRCLE)
            for (int i = 0; i < q; ++i) g_rises[wrapped(i)] = g_rises[wrapped(i)] + g_rises[n + i];
        if (plan.joins_identity()) {
            pull_join(g_widths, g_rises, g_parts);
        } else if (plan.domain == CIRCLE && plan.parametrisation == PAPER) {
            for (int i = 0; i < n; ++i) g_parts[i] = g_rises[i];
        } else {
            const int own = plan.domain == CIRCLE ? n : plan.rises();
            S dot = S{};
            for (int i = 0; i < own; ++i) dot = dot + g_rises[i] * rises[i];
            dot = dot * F(1 / plan.length);
            for (int i = 0; i < own; ++i) g_rises[i] = (g_rises[i] - dot) * scale;
            if (plan.clamps())
                pull_clamped(g_rises, g_parts, g_outer);
            else
                for (int i = 0; i < own; ++i) g_parts[i] = g_rises[i];
        }
        if (plan.parametrisation == SLOPES) {
            S* g_window = plan.joins_identity() ? g_widths + q : g_widths;
            const S* window = plan.joins_identity() ? widths + q : widths;
            for (int i = 0; i < plan.raw_rises; ++i) {
                S support = window[i] + window[i + 1];
                for (int m = 2; m <= q; ++m) support = support + window[i + m];
                const S g_support = g_parts[i] * (parts[i] + plan.least);
                for (int m = 0; m <= q; ++m) g_window[i + m] = g_window[i + m] + g_support;
                g_parts[i] = g_parts[i] * support * (parts[i] * (F(1) - parts[i]));
            }
        } else {
            pull_shares<F>(g_parts, parts, part_total, plan.rise_scale, plan.raw_rises, g_parts);
        }
        if (plan.clamps()) {
            // All widths are scaled by one number, which depends on the widths inside.
            for (int i = 0; i < n; ++i) g_outer[q + i] = g_outer[q + i] + g_widths[q + i];
            S dot = S{};
            for (int i = 0; i < plan.raw_widths; ++i) dot = dot + g_outer[i] * outer[i];
            dot = dot * F(1 / plan.length);
            for (int i = 0; i < plan.raw_widths; ++i) {
                const bool inside = i >= q && i < q + n;
                g_outer[i] = (inside ? g_outer[i] - dot : g_outer[i]) * outer_scale;
            }
            pull_shares<F>(g_outer, raw, width_total, plan.width_scale, plan.raw_widths, g_raw);
            return;
        }
        if (plan.domain == CIRCLE)
            for (int i = 0; i < q; ++i) {
                S &before_first = g_widths[q + wrapped(i - q)], &after_last = g_widths[q + wrapped(i)];
                before_first = before_first + g_widths[i];
                after_last = after_last + g_widths[q + n + i];
            }
        pull_shares<F>(g_widths + q, raw, width_total, plan.width_scale, plan.raw_widths, g_raw);
    }

    void pull_join(S* g_widths, const S* g_rises, S* g_before) {
        const int n = plan.pieces, middle = plan.raw_rises;
        S dot = S{};
        for (int i = 0; i < middle; ++i) dot = dot + g_rises[q + i] * rises[q + i];
        dot = dot / room;
        for (int i = 0; i < middle; ++i) g_before[i] = (g_rises[q + i] - dot) * scale;
        S left = S{}, right = S{};
        for (int i = q - 1; i >= 0; --i) {
            left = left + (g_rises[i] - dot) * F(1.0 / (q + 1));
            right = right + (g_rises[n + q - 1 - i] - dot) * F(1.0 / (q + 1));
            g_widths[q + i] = g_widths[q + i] + left;
            g_widths[q + n - 1 - i] = g_widths[q + n - 1 - i] + right;
        }
    }

    void pull_clamped(const S* g_rises, S* g_before, S* g_outer) {
        const int n = plan.rises();
        for (int i = 0; i < plan.raw_widths; ++i) g_outer[i] = S{};
        for (int i = 0; i < n; ++i) g_before[i] = i < q || i >= n - q ? S{} : g_rises[i];
        pull_end(End(outer + q, before, 1), g_rises, g_before, g_outer + q, 1);
        pull_end(
            End(outer + q + plan.pieces - 1, before + n - 1, -1), g_rises + n - 1, g_before + n - 1,
            g_outer + q + plan.pieces - 1, -1);
    }

    void pull_end(const End& end, const S* g_rises, S* g_before, S* g_outer, int step) {
        S g[q][q] = {}, g_left[q] = {}, g_right[q] = {};
        for (int i = 0; i < q; ++i) {
            const S scaled = g_rises[step * i] * F(1.0 / (q + 1));
            const int r = q - 1 - i;
            g[r][q - 1 - r] = g[r][q - 1 - r] + scaled * end.right[i];
            g_right[i] = g_right[i] + scaled * end.triangle.last(r);
        }
        end.triangle.pull(g, g_left, g_right);
        for (int i = 0; i < q; ++i) {
            const S scaled = g[0][i] * end.support[i];
            g_before[step * i] = g_before[step * i] + scaled * F(q + 1);
            const S distance = scaled * end.slopes[i];
            g_left[q - 1 - i] = g_left[q - 1 - i] - distance;
            g_right[i] = g_right[i] - distance;
        }
        S sum_left = S{}, sum_right = S{};
        for (int i = q - 1; i >= 0; --i) {
            sum_left = sum_left + g_left[i];
            sum_right = sum_right + g_right[i];
            g_outer[-step * (1 + i)] = g_outer[-step * (1 + i)] + sum_left;
            g_outer[step * i] = g_outer[step * i] + sum_right;
        }
    }
};

}  // namespace
