// The kernels of every instruction set of this machine, called as Python calls them, under a sanitizer:
// make sanitize.
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <thread>
#include <vector>

#include "call.hpp"

extern "C" {
const char* knotflow_isa();
const char* knotflow_supported(int index);
int knotflow_use(const char* name);
int knotflow_run(const Call* call);
void knotflow_parallel(void* function);
}

namespace {

constexpr unsigned THREADS = 4;

// GOMP_parallel with threads that the sanitizer understands; those of libgomp it does not.
void parallel(void (*function)(void*), void* data, unsigned threads, unsigned) {
    std::vector<std::thread> others;
    for (unsigned i = 1; i < (threads == 0 ? THREADS : threads); ++i) {
        others.emplace_back(function, data);
    }
    function(data);
    for (std::thread& other : others) {
        other.join();
    }
}

// Numbers between -limit and limit, the same ones at every run.
template <class F> std::vector<F> numbers(size_t n, double limit, uint64_t seed) {
    std::vector<F> values(n);
    for (F& value : values) {
        seed = seed * 6364136223846793005u + 1442695040888963407u;
        value = F(limit * (double(seed >> 11) / double(1ull << 52) - 1.0));
    }
    return values;
}

int raw_parameters(const Call& call) {
    const int q = call.order - 2;
    if (call.family == RATIONAL) {
        return 3 * call.bins + (call.domain == CIRCLE ? 0 : call.domain == LINE ? -1 : 1);
    }
    if (call.domain == CIRCLE) {
        return 2 * call.bins + call.phase;
    }
    const int widths = call.parametrisation == PAPER || call.domain == LINE ? call.bins + 2 * q : call.bins;
    return widths + call.bins + q;
}

// All operations of one family, on arrays of exactly the right size: whether anything failed or is not finite.
template <class F> bool fails(Call call, int64_t points, double scale) {
    const int n = raw_parameters(call);
    call.is_double = sizeof(F) == sizeof(double);
    call.points = points;
    call.raw_stride = call.hraw_stride = n;
    std::vector<F> x = numbers<F>(points, 1.0, 1), raw = numbers<F>(points * n, scale, 2);
    const std::vector<F> gy = numbers<F>(points, 1.0, 3), gl = numbers<F>(points, 1.0, 4);
    const std::vector<F> hx = numbers<F>(points, 1.0, 5), hraw = numbers<F>(points * n, 1.0, 6);
    std::vector<F> y(points), ladj(points), gx(points), graw(points * n);
    call.x = x.data(), call.raw = raw.data(), call.gy = gy.data(), call.gl = gl.data();
    call.hx = hx.data(), call.hraw = hraw.data();
    call.y = y.data(), call.ladj = ladj.data(), call.gx = gx.data(), call.graw = graw.data();
    bool bad = false;
    for (int32_t operation = FORWARD; operation <= INVERSE_BACKWARD; ++operation) {
        call.operation = operation;
        bad |= knotflow_run(&call) != 0;
        for (const std::vector<F>* values : {&y, &ladj, &gx, &graw}) {
            for (F value : *values) {
                bad |= !std::isfinite(value);
            }
        }
    }
    return bad;
}

// How many families failed.
int run_all() {
    int failed = 0;
    Call call{};
    call.threads = THREADS, call.low = -1.0, call.high = 1.0;
    call.min_slope = 0.1, call.max_slope = 20.0;
    for (call.order = 3; call.order <= 5; ++call.order)
        for (call.domain = INTERVAL; call.domain <= LINE; ++call.domain)
            for (call.parametrisation = SLOPES; call.parametrisation <= PAPER; ++call.parametrisation)
                for (call.bins = 3; call.bins <= 33; call.bins += 15)
                    for (call.phase = 0; call.phase <= (call.domain == CIRCLE); ++call.phase) {
                        call.width_floor = call.rise_floor = 0.1 / (call.bins + 2 * call.order);
                        // One point, a share of a vector, and enough for all threads with a rest.
                        for (int64_t points : {1, 13, 1003}) {
                            failed += fails<float>(call, points, 3.0) + fails<double>(call, points, 300.0);
                        }
                    }
    call.family = RATIONAL, call.phase = 0;
    for (call.domain = INTERVAL; call.domain <= LINE; ++call.domain)
        for (call.bins = 1; call.bins <= 33; call.bins += 16) {
            call.width_floor = call.rise_floor = 0.1 / call.bins;
            for (int64_t points : {1, 13, 1003}) {
                failed += fails<float>(call, points, 3.0) + fails<double>(call, points, 300.0);
            }
        }
    return failed;
}

}  // namespace

int main() {
    int failed = 0;
    for (void* threads : {reinterpret_cast<void*>(&parallel), static_cast<void*>(nullptr)}) {
        knotflow_parallel(threads);
        for (int i = 0; knotflow_supported(i) != nullptr; ++i) {
            failed += knotflow_use(knotflow_supported(i));
            const int here = run_all();
            std::printf("%s, %s: %d failed\n", knotflow_isa(), threads ? "threads" : "one thread", here);
            failed += here;
        }
    }
    return failed == 0 ? 0 : 1;
}
