// B-spline maps, inverses and derivatives: one pass over the raw parameters, points side by side in vectors.
// Compiled once for every instruction set (KNOTFLOW_ISA); dispatch.cpp chooses among them.
//
// The maps are those of knotflow/transforms/bspline.py, the reference, to which tests compare them.

#include <atomic>
#include <cstdlib>

#include "knots.hpp"

namespace {

// ---- rows of memory <-> vectors of points

// Raw parameters of up to `lanes` points (each a row of n numbers), one vector a parameter.
template <class F, class Put>
KNOTFLOW_INLINE void read_rows(const F* from, int64_t stride, int points, int n, Put put) {
    constexpr int W = lanes<F>;
    if (n < W) {
        for (int k = 0; k < n; ++k) {
            Vec<F> column{};
            for (int i = 0; i < W; ++i) column[i] = from[(i < points ? i : points - 1) * stride + k];
            put(k, column);
        }
        return;
    }
    // Squares side by side; the last one overlaps the one before, so that nothing is read beyond a row.
    for (int done = 0; done < n; done += W) {
        const int first = done + W <= n ? done : n - W;
        Vec<F> tile[W];
        for (int i = 0; i < W; ++i) tile[i] = load(from + (i < points ? i : points - 1) * stride + first);
        transpose<F>(tile);
        for (int i = 0; i < W; ++i) put(first + i, tile[i]);
    }
}

template <class F, class Get>
KNOTFLOW_INLINE void write_rows(F* to, int64_t stride, int points, int n, Get get) {
    constexpr int W = lanes<F>;
    if (n < W) {
        for (int k = 0; k < n; ++k) {
            const Vec<F> column = get(k);
            for (int i = 0; i < points; ++i) to[i * stride + k] = column[i];
        }
        return;
    }
    for (int done = 0; done < n; done += W) {
        const int first = done + W <= n ? done : n - W;
        Vec<F> tile[W];
        for (int i = 0; i < W; ++i) tile[i] = get(first + i);
        transpose<F>(tile);
        for (int i = 0; i < points; ++i) store(to + i * stride + first, tile[i]);
    }
}

template <class F> KNOTFLOW_INLINE Vec<F> read_points(const void* from, int64_t first, int points) {
    const F* values = static_cast<const F*>(from) + first;
    if (points == lanes<F>) return load(values);
    Vec<F> v;
    for (int i = 0; i < lanes<F>; ++i) v[i] = values[i < points ? i : points - 1];
    return v;
}

template <class F> KNOTFLOW_INLINE void write_points(void* to, int64_t first, int points, Vec<F> v) {
    F* values = static_cast<F*>(to) + first;
    if (points == lanes<F>) return store(values, v);
    for (int i = 0; i < points; ++i) values[i] = v[i];
}

// Rows index .. index + n - 1, of every lane its own index.
template <class F, class S, int n>
KNOTFLOW_INLINE void gather(const S* rows, Mask<F> index, S (&out)[n]) {
    constexpr int step = sizeof(S) / sizeof(F), parts = step / lanes<F>;
    alignas(KNOTFLOW_BYTES) F found[n][step];
    for (int lane = 0; lane < lanes<F>; ++lane) {
        const F* from = reinterpret_cast<const F*>(rows + index[lane]) + lane;
        for (int m = 0; m < n; ++m)
            for (int part = 0; part < parts; ++part)
                found[m][part * lanes<F> + lane] = from[m * step + part * lanes<F>];
    }
    for (int m = 0; m < n; ++m) std::memcpy(&out[m], found[m], sizeof(S));
}

template <class F, class S, int n>
KNOTFLOW_INLINE void scatter_add(S* rows, Mask<F> index, const S (&values)[n]) {
    constexpr int step = sizeof(S) / sizeof(F), parts = step / lanes<F>;
    alignas(KNOTFLOW_BYTES) F given[n][step];
    for (int m = 0; m < n; ++m) std::memcpy(given[m], &values[m], sizeof(S));
    for (int lane = 0; lane < lanes<F>; ++lane) {
        F* to = reinterpret_cast<F*>(rows + index[lane]) + lane;
        for (int m = 0; m < n; ++m)
            for (int part = 0; part < parts; ++part)
                to[m * step + part * lanes<F>] += given[m][part * lanes<F> + lane];
    }
}

// ---- the maps

template <class F, int q> struct Space {
    const Plan<F, q>& plan;

    KNOTFLOW_INLINE Vec<F> remainder(Vec<F> x) const { return x - floor_of<F>(x / plan.length) * plan.length; }

    // Points of a user as points of [low, high].
    KNOTFLOW_INLINE Vec<F> enter(Vec<F> x) const {
        const Vec<F> low = splat<F>(plan.low), high = splat<F>(plan.high);
        if (plan.domain == LINE) return outside(x) ? low : x;
        if (plan.domain == CIRCLE) {
            const Mask<F> beyond = (x < low) | (x > high);
            if (any<F>(beyond)) x = beyond ? low + remainder(x - low) : x;
        }
        return clamp<F>(x, low, high);
    }

    // Where a line has the identity; nowhere else.
    KNOTFLOW_INLINE Mask<F> outside(Vec<F> x) const {
        const Mask<F> beyond = (x < plan.low) | (x > plan.high);
        return plan.domain == LINE ? beyond : beyond ^ beyond;
    }

    // Keep images inside in spite of rounding, and send the upper end exactly to itself.
    KNOTFLOW_INLINE Vec<F> onto(Vec<F> source, Vec<F> image) const {
        const Vec<F> high = splat<F>(plan.high);
        return source >= high ? high : clamp<F>(image, splat<F>(plan.low), high);
    }
};

template <class F, class S, int q> struct Spline {
    const Plan<F, q>& plan;
    Space<F, q> space;
    Knots<F, S, q> knots;
    S seam;      // on a circle, how far f(low) lies above its first coefficient
    S rotation;  // the phase
    S *g_widths, *g_rises, *g_all;

    static int rows(const Plan<F, q>& plan) {
        return Knots<F, S, q>::rows(plan) + plan.padded() + plan.rises() + plan.parameters;
    }

    Spline(const Plan<F, q>& plan_, S* scratch) : plan(plan_), space{plan_}, knots(plan_, scratch) {
        g_widths = scratch + Knots<F, S, q>::rows(plan);
        g_rises = g_widths + plan.padded();
        g_all = g_rises + plan.rises();
    }

    KNOTFLOW_INLINE void read(const Call& call, int64_t first, int points) {
        const F* raw = static_cast<const F*>(call.raw) + first * call.raw_stride;
        S* to = knots.all;
        if constexpr (sizeof(S) == sizeof(Vec<F>)) {
            read_rows<F>(raw, call.raw_stride, points, plan.parameters, [to](int i, Vec<F> v) { to[i] = v; });
        } else {
            const F* tangent = static_cast<const F*>(call.hraw) + first * call.hraw_stride;
            read_rows<F>(raw, call.raw_stride, points, plan.parameters, [to](int i, Vec<F> v) { to[i].v = v; });
            read_rows<F>(tangent, call.hraw_stride, points, plan.parameters, [to](int i, Vec<F> v) { to[i].d = v; });
        }
        if (plan.phase) {
            S angle = knots.all[plan.parameters - 1] * per_radian();
            set_value<F>(angle, space.remainder(value<F>(angle)));
            rotation = angle;
        }
        knots.build();
        seam = S{};
        if (plan.domain == CIRCLE) seam = KnotValue<F, S, q>(knots.widths, knots.rises).offset;
    }

    KNOTFLOW_INLINE F per_radian() const { return F(plan.length / (2 * 3.14159265358979323846)); }

    // The bin of points, its left knot, and the coefficient that its values are counted from.
    KNOTFLOW_INLINE Mask<F> locate(Vec<F> x, S& knot, S& coefficient) const {
        Mask<F> bin{};
        S end, sum;
        set<F>(knot, splat<F>(plan.low)), set<F>(coefficient, splat<F>(plan.low));
        end = knot, sum = coefficient;
        for (int i = 0; i < plan.pieces - 1; ++i) {
            end = end + knots.widths[q + i];
            sum = sum + knots.rises[i];
            const Mask<F> passed = x >= value<F>(end);
            knot = select<F>(passed, end, knot);
            coefficient = select<F>(passed, sum, coefficient);
            bin -= passed;
        }
        return bin;
    }

    KNOTFLOW_INLINE Piece<F, S, q> piece(Mask<F> bin) const {
        S widths[2 * q + 1], rises[q + 1];
        gather<F>(knots.widths, bin, widths);
        gather<F>(knots.rises, bin, rises);
        return Piece<F, S, q>(widths, rises);
    }

    // Where in its bin a point lies.
    KNOTFLOW_INLINE S local(S x, S knot, S width) const {
        S u = (x - knot) / width;
        set_value<F>(u, clamp<F>(value<F>(u), splat<F>(0), splat<F>(1)));
        return u;
    }

    // The affine map, if there is one.
    KNOTFLOW_INLINE S moved(S x) const { return plan.lead ? x * knots.stretch + knots.all[0] : x; }

    KNOTFLOW_INLINE void forward(S x, S& y, S& ladj) const {
        x = moved(x);
        const Mask<F> outside = space.outside(value<F>(x));
        S entered = x, knot, coefficient;
        set_value<F>(entered, space.enter(value<F>(x)));
        const Mask<F> bin = locate(value<F>(entered), knot, coefficient);
        S widths[2 * q + 1], rises[q + 1];
        gather<F>(knots.widths, bin, widths);
        gather<F>(knots.rises, bin, rises);
        const Piece<F, S, q> piece(widths, rises);
        const Evaluated<F, S, q> at(piece.d, local(entered, knot, widths[q]));
        S image = coefficient + (piece.offset() - seam) + widths[q] * at.rise;
        set_value<F>(image, space.onto(value<F>(entered), value<F>(image)));
        if (plan.phase) {
            image = image + rotation;
            set_value<F>(image, space.enter(value<F>(image)));
        }
        y = select<F>(outside, x, image);
        ladj = select<F>(outside, S{}, logarithm<F>(at.slope));
        if (plan.lead) ladj = ladj + knots.log_scale;
    }

    // Gradient of gy y + gl ladj; for inverses, that of gy x + gl ladj of the inverse, at x, by the image.
    template <bool of_inverse> KNOTFLOW_INLINE void backward(S x, S gy, S gl, S& gx) {
        if (!plan.lead) return backward_of_spline<of_inverse>(x, gy, gl, gx);
        S g_shift, g_log_scale;
        if constexpr (of_inverse) {
            const S g_moved = gy / knots.stretch;
            g_shift = -g_moved, g_log_scale = -(gy * x) - gl;
            backward_of_spline<true>(moved(x), g_moved, gl, gx);
        } else {
            backward_of_spline<false>(moved(x), gy, gl, gx);
            g_shift = gx, gx = gx * knots.stretch, g_log_scale = gx * x + gl;
        }
        g_all[0] = g_shift;
        g_all[1] = g_log_scale * (F(1) - knots.bounded * knots.bounded);
    }

    template <bool of_inverse> KNOTFLOW_INLINE void backward_of_spline(S x, S gy, S gl, S& gx) {
        const Mask<F> outside = space.outside(value<F>(x));
        S entered = x, knot, coefficient;
        set_value<F>(entered, space.enter(value<F>(x)));
        const Mask<F> bin = locate(value<F>(entered), knot, coefficient);
        S widths[2 * q + 1], rises[q + 1];
        gather<F>(knots.widths, bin, widths);
        gather<F>(knots.rises, bin, rises);
        const Piece<F, S, q> piece(widths, rises);
        const S u = local(entered, knot, widths[q]);
        const Evaluated<F, S, q> at(piece.d, u);
        const S per_slope = F(1) / at.slope, per_width = F(1) / widths[q];
        const S bend = curvature<F, S, q>(piece.d, u) * per_width;  // d slope / dx
        S g_result;
        if constexpr (of_inverse) {
            g_result = (gy - gl * (bend * per_slope)) * per_slope;
            gx = select<F>(outside, gy, g_result);
            gy = -g_result, gl = -gl;
        }
        const S g_outside = gy;
        gy = select<F>(outside, S{}, gy);
        const S g_slope = select<F>(outside, S{}, gl * per_slope);
        const S g_place = gy * at.slope + g_slope * bend;
        if constexpr (!of_inverse) gx = select<F>(outside, g_outside, g_place);

        S g_d[q + 1], g_window[2 * q + 1] = {}, g_step[q + 1] = {};
        const S g_rise = gy * widths[q];
        for (int i = 0; i <= q; ++i) g_d[i] = g_rise * at.integral[i] + g_slope * at.basis[i];
        g_window[q] = gy * at.rise - g_place * u;
        piece.pull(g_d, gy, g_window, g_step);
        // Widths and rises before the bin move its left knot and the value there.
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

    KNOTFLOW_INLINE Vec<F> value_at(Mask<F> knot, const Vec<F>* sums) const {
        Vec<F> widths[2 * q], rises[q], sum[1];
        gather<F>(knots.widths, knot, widths);
        gather<F>(knots.rises, knot, rises);
        gather<F>(sums, knot, sum);
        return sum[0] + (KnotValue<F, S, q>(widths, rises).offset - seam);
    }

    // The bin between whose knots' values an image lies. Between two coefficients there are q knots to try.
    KNOTFLOW_INLINE Mask<F> locate_image(Vec<F> y, Vec<F>* sums) const {
        using Int = typename Types<F>::Int;
        const Vec<F> level = y + seam;
        Mask<F> above{};
        Vec<F> sum = splat<F>(plan.low);
        sums[0] = sum;
        for (int i = 0; i < plan.rises() - 1; ++i) {
            sum = sum + knots.rises[i];
            sums[i + 1] = sum;
            above -= level >= sum;
        }
        Mask<F> bin = above - Int(q);
        for (int m = 1; m <= q; ++m) {
            const Mask<F> knot = above + Int(m - q);
            const Mask<F> low = knot < Int(0), high = knot > Int(plan.pieces);
            const Mask<F> inside = low ? knot - knot : high ? knot - knot + Int(plan.pieces) : knot;
            const Mask<F> passed = value_at(inside, sums) <= y;
            bin -= (knot <= Int(0)) | ((knot < Int(plan.pieces)) & passed);
        }
        const Mask<F> none{}, last = none + Int(plan.pieces - 1);
        bin = bin < none ? none : bin;
        return bin > last ? last : bin;
    }

    // Solve rise(u) = goal on [0, 1]: from the parabola with the same end slopes, Halley's steps within a
    // bracket that shrinks, as long as any point still moves, and a last Newton step.
    KNOTFLOW_INLINE Vec<F> root(const Vec<F>* d, Vec<F> goal) const {
        Vec<F> whole = d[0];
        for (int i = 1; i <= q; ++i) whole = whole + d[i];
        const Vec<F> zero{}, one = splat<F>(1);
        const Vec<F> share = goal * (d[0] + d[q]) * F(0.5 * (q + 1)) / whole;
        Vec<F> square = d[0] * d[0] + F(2) * (d[q] - d[0]) * share;
        square = square > zero ? square : zero;
        Vec<F> u = clamp<F>(F(2) * share / (d[0] + sqrt_of<F>(square)), zero, one);
        Vec<F> left = zero, right = one;
        for (int step = 0; step < MOST_STEPS; ++step) {
            const Evaluated<F, Vec<F>, q> at(d, u);
            const Vec<F> error = at.rise - goal;
            left = error < zero ? u : left;
            right = error > zero ? u : right;
            const Vec<F> second = curvature<F, Vec<F>, q>(d, u);
            const Vec<F> halley = u - F(2) * error * at.slope / (F(2) * at.slope * at.slope - error * second);
            const Mask<F> inside = (halley >= left) & (halley <= right);
            const Vec<F> next = inside ? halley : F(0.5) * (left + right);
            const Vec<F> moved = next - u;
            u = next;
            if (!any<F>((moved > Types<F>::eps) | (moved < -Types<F>::eps))) break;
        }
        const Evaluated<F, Vec<F>, q> at(d, u);
        return clamp<F>(u - (at.rise - goal) / at.slope, zero, one);
    }

    static constexpr int MOST_STEPS = 40;

    KNOTFLOW_INLINE void inverse(Vec<F> y, Vec<F>& x, Vec<F>& ladj) const {
        const Mask<F> outside = space.outside(y);
        Vec<F> entered = space.enter(y);
        if (plan.phase) entered = space.enter(entered - rotation);
        Vec<F>* sums = g_rises;  // as many rows, and free
        const Mask<F> bin = locate_image(entered, sums);
        Vec<F> knot = splat<F>(plan.low), end = knot, coefficient[1];
        for (int i = 0; i < plan.pieces - 1; ++i) {
            end = end + knots.widths[q + i];
            knot = bin > typename Types<F>::Int(i) ? end : knot;
        }
        gather<F>(sums, bin, coefficient);
        Vec<F> widths[2 * q + 1], rises[q + 1];
        gather<F>(knots.widths, bin, widths);
        gather<F>(knots.rises, bin, rises);
        const Piece<F, Vec<F>, q> piece(widths, rises);
        const Vec<F> width = widths[q];
        const Vec<F> goal = (entered - (coefficient[0] + (piece.offset() - seam))) / width;
        const Vec<F> u = root(piece.d, goal);
        const Evaluated<F, Vec<F>, q> at(piece.d, u);
        // Widths do not add up to the knots to the last digit, and a steep slope would multiply the
        // difference: x must not pass the right knot, and what is that knot's value up to rounding is its.
        const Vec<F> right = knot + width;
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

// ---- calls

constexpr int GRAIN = 128;  // points that a thread takes at a time: a multiple of all numbers of lanes

template <class F, class S, int q, int operation>
void run_points(const Call& call, const Plan<F, q>& plan, S* scratch, int64_t first, int64_t last) {
    constexpr int W = lanes<F>;
    Spline<F, S, q> spline(plan, scratch);
    for (; first < last; first += W) {
        const int points = int(last - first < W ? last - first : W);
        spline.read(call, first, points);
        const Vec<F> x = read_points<F>(call.x, first, points);
        if constexpr (operation == FORWARD) {
            Vec<F> y, ladj;
            spline.forward(x, y, ladj);
            write_points<F>(call.y, first, points, y);
            write_points<F>(call.ladj, first, points, ladj);
        } else if constexpr (operation == INVERSE) {
            Vec<F> found, ladj;
            spline.inverse(x, found, ladj);
            write_points<F>(call.y, first, points, found);
            write_points<F>(call.ladj, first, points, ladj);
        } else {
            const Vec<F> gy = read_points<F>(call.gy, first, points), gl = read_points<F>(call.gl, first, points);
            F* to = static_cast<F*>(call.graw) + first * plan.parameters;
            if constexpr (operation == DOUBLE_BACKWARD) {
                const S at{x, read_points<F>(call.hx, first, points)};
                S y, ladj, gx;
                spline.forward(at, y, ladj);
                spline.template backward<false>(at, S{gy, Vec<F>{}}, S{gl, Vec<F>{}}, gx);
                write_points<F>(call.y, first, points, y.d);
                write_points<F>(call.ladj, first, points, ladj.d);
                write_points<F>(call.gx, first, points, gx.d);
                write_rows<F>(to, plan.parameters, points, plan.parameters, [&](int i) { return spline.g_all[i].d; });
            } else {
                Vec<F> gx;
                spline.template backward<operation == INVERSE_BACKWARD>(x, gy, gl, gx);
                write_points<F>(call.gx, first, points, gx);
                write_rows<F>(to, plan.parameters, points, plan.parameters, [&](int i) { return spline.g_all[i]; });
            }
        }
    }
}

template <class F, class S, int q, int operation> struct Work {
    const Call& call;
    Plan<F, q> plan;
    std::atomic<int64_t> next{0};
    std::atomic<bool> failed{false};

    explicit Work(const Call& call_) : call(call_), plan(call_) {}

    static void run(void* data) {
        Work& work = *static_cast<Work*>(data);
        void* memory = nullptr;
        const size_t size = sizeof(S) * Spline<F, S, q>::rows(work.plan);
        if (posix_memalign(&memory, 64, size) != 0) {
            work.failed = true;
            return;
        }
        for (;;) {
            const int64_t first = work.next.fetch_add(GRAIN);
            if (first >= work.call.points) break;
            const int64_t rest = work.call.points - first;
            run_points<F, S, q, operation>(
                work.call, work.plan, static_cast<S*>(memory), first, first + (rest < GRAIN ? rest : GRAIN));
        }
        std::free(memory);
    }

    int start() {
        const int64_t most = (call.points + GRAIN - 1) / GRAIN;
        const int64_t threads = call.threads < most ? call.threads : most;
        if (threads > 1 && knotflow_parallel_function != nullptr)
            knotflow_parallel_function(run, this, unsigned(threads), 0);
        else
            run(this);
        // A thread without memory leaves its share to the others; if all have none, nothing was done.
        return failed && next < call.points ? 2 : 0;
    }
};

template <class F, int q> int by_operation(const Call& call) {
    using V = Vec<F>;
    switch (call.operation) {
        case FORWARD: return Work<F, V, q, FORWARD>(call).start();
        case BACKWARD: return Work<F, V, q, BACKWARD>(call).start();
        case DOUBLE_BACKWARD: return Work<F, Dual<F>, q, DOUBLE_BACKWARD>(call).start();
        case INVERSE: return Work<F, V, q, INVERSE>(call).start();
        case INVERSE_BACKWARD: return Work<F, V, q, INVERSE_BACKWARD>(call).start();
        default: return 1;
    }
}

template <class F> int by_order(const Call& call) {
    switch (call.order) {
        case 3: return by_operation<F, 1>(call);
        case 4: return by_operation<F, 2>(call);
        case 5: return by_operation<F, 3>(call);
        default: return 1;
    }
}

}  // namespace

#define KNOTFLOW_JOIN(a, b) a##b
#define KNOTFLOW_NAME(isa) KNOTFLOW_JOIN(knotflow_run_, isa)

// 0: done; 1: an operation or order that is not here; 2: out of memory.
extern "C" int KNOTFLOW_NAME(KNOTFLOW_ISA)(const Call* call) {
    return call->is_double ? by_order<double>(*call) : by_order<float>(*call);
}
