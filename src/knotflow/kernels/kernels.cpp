// The kernels of one instruction set (KNOTFLOW_ISA), among which dispatch.cpp chooses. Points lie side by side in
// vectors and are distributed among threads. Tests compare the maps with those of knotflow/transforms.

#include <atomic>
#include <cstdlib>

#include "bspline.hpp"
#include "rational.hpp"

namespace {

constexpr int GRAIN = 128;  // points that a thread takes at a time; a multiple of every number of lanes

// Map is BSpline or Rational: it reads raw parameters and then maps points, or pulls gradients back.
template <class F, class S, class Map, int operation>
void run_points(const Call& call, const typename Map::Plan& plan, S* scratch, int64_t first, int64_t last) {
    constexpr int W = lanes<F>;
    Map spline(plan, scratch);
    for (; first < last; first += W) {
        const int points = int(last - first < W ? last - first : W);
        spline.read(call, first, points, operation != BACKWARD && operation != INVERSE_BACKWARD);
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
            const bool with_raw = call.graw != nullptr;
            F* to = with_raw ? static_cast<F*>(call.graw) + first * plan.parameters : nullptr;
            if constexpr (operation == DOUBLE_BACKWARD) {
                const S at{x, read_points<F>(call.hx, first, points)};
                S y, ladj, gx;
                spline.forward(at, y, ladj);
                spline.template backward<false>(at, S{gy, Vec<F>{}}, S{gl, Vec<F>{}}, gx, with_raw);
                write_points<F>(call.y, first, points, y.d);
                write_points<F>(call.ladj, first, points, ladj.d);
                write_points<F>(call.gx, first, points, gx.d);
                if (with_raw) write_rows<F>(to, plan.parameters, points, plan.parameters, [&](int i) { return spline.g_all[i].d; });
            } else {
                Vec<F> gx;
                spline.template backward<operation == INVERSE_BACKWARD>(x, gy, gl, gx, with_raw);
                write_points<F>(call.gx, first, points, gx);
                if (with_raw) write_rows<F>(to, plan.parameters, points, plan.parameters, [&](int i) { return spline.g_all[i]; });
            }
        }
    }
}

template <class F, class S, class Map, int operation> struct Work {
    const Call& call;
    typename Map::Plan plan;
    std::atomic<int64_t> next{0};
    std::atomic<bool> failed{false};

    explicit Work(const Call& call_) : call(call_), plan(call_) {}

    static void run(void* data) {
        Work& work = *static_cast<Work*>(data);
        void* memory = nullptr;
        const size_t size = sizeof(S) * Map::rows(work.plan);
        if (posix_memalign(&memory, 64, size) != 0) {
            work.failed = true;
            return;
        }
        for (;;) {
            const int64_t first = work.next.fetch_add(GRAIN);
            if (first >= work.call.points) break;
            const int64_t rest = work.call.points - first;
            run_points<F, S, Map, operation>(
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
        // A thread that gets no memory leaves its share to the others; if no thread gets any, nothing was done.
        return failed && next < call.points ? 2 : 0;
    }
};

// Plain is the map on vectors, Dualised the map on dual numbers.
template <class F, class Plain, class Dualised> int by_operation(const Call& call) {
    using V = Vec<F>;
    switch (call.operation) {
        case FORWARD: return Work<F, V, Plain, FORWARD>(call).start();
        case BACKWARD: return Work<F, V, Plain, BACKWARD>(call).start();
        case DOUBLE_BACKWARD: return Work<F, Dual<F>, Dualised, DOUBLE_BACKWARD>(call).start();
        case INVERSE: return Work<F, V, Plain, INVERSE>(call).start();
        case INVERSE_BACKWARD: return Work<F, V, Plain, INVERSE_BACKWARD>(call).start();
        default: return 1;
    }
}

template <class F, int q> int bspline(const Call& call) {
    return by_operation<F, BSpline<F, Vec<F>, q>, BSpline<F, Dual<F>, q>>(call);
}

template <class F> int by_family(const Call& call) {
    if (call.family == RATIONAL) return by_operation<F, Rational<F, Vec<F>>, Rational<F, Dual<F>>>(call);
    switch (call.order) {
        case 3: return bspline<F, 1>(call);
        case 4: return bspline<F, 2>(call);
        case 5: return bspline<F, 3>(call);
        default: return 1;
    }
}

}  // namespace

#define KNOTFLOW_JOIN(a, b) a##b
#define KNOTFLOW_NAME(isa) KNOTFLOW_JOIN(knotflow_run_, isa)

// Returns 0 if done, 1 for an unknown operation or order, 2 if out of memory.
extern "C" int KNOTFLOW_NAME(KNOTFLOW_ISA)(const Call* call) {
    return call->is_double ? by_family<double>(*call) : by_family<float>(*call);
}
