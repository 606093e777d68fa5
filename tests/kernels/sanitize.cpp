// The kernels of every instruction set of this machine, called as Python calls them, under a sanitizer:
// make sanitize.
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

// The calls to try: one line each. How many failed.
int run_all() {
    int failed = 0;
    failed += knotflow_run(nullptr) != 0;  // a placeholder until Call has members
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
