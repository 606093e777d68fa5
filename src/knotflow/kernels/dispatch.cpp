// The functions that Python calls, and the choice of an instruction set. Compiled without processor-specific flags.
#include <atomic>
#include <cstring>

#include "call.hpp"

#define KNOTFLOW_EXPORT extern "C" __attribute__((visibility("default")))

extern "C" {
int knotflow_run_baseline(const Call*);
int knotflow_run_avx2(const Call*);
int knotflow_run_avx512(const Call*);

knotflow_parallel_t knotflow_parallel_function = nullptr;
}

namespace {

// Version of the functions below and of the layout of Call; ABI in library.py must be the same number.
constexpr int ABI = 4;

struct Variant {
    const char* name;
    int (*run)(const Call*);
    bool (*supported)();
};

// The best comes first.
const Variant VARIANTS[] = {
#ifdef KNOTFLOW_HAVE_avx512
    {"avx512", knotflow_run_avx512,
     [] {
         __builtin_cpu_init();
         return __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512dq") &&
                __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512vl") &&
                __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma");
     }},
#endif
#ifdef KNOTFLOW_HAVE_avx2
    {"avx2", knotflow_run_avx2,
     [] {
         __builtin_cpu_init();
         return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma");
     }},
#endif
    {"baseline", knotflow_run_baseline, [] { return true; }},
};

std::atomic<const Variant*> in_use{nullptr};

const Variant* chosen() {
    const Variant* variant = in_use.load(std::memory_order_acquire);
    if (variant == nullptr) {
        for (const Variant& candidate : VARIANTS) {
            if (candidate.supported()) {
                variant = &candidate;
                break;
            }
        }
        // If another thread has chosen in the meantime, its choice stays.
        const Variant* none = nullptr;
        if (!in_use.compare_exchange_strong(none, variant, std::memory_order_acq_rel)) {
            variant = none;
        }
    }
    return variant;
}

}  // namespace

KNOTFLOW_EXPORT int knotflow_abi() {
    return ABI;
}

// The name of the instruction set in use.
KNOTFLOW_EXPORT const char* knotflow_isa() {
    return chosen()->name;
}

// The name of an instruction set that was built and that this processor supports: 0 is the best; null after the last.
KNOTFLOW_EXPORT const char* knotflow_supported(int index) {
    for (const Variant& variant : VARIANTS) {
        if (variant.supported() && index-- == 0) {
            return variant.name;
        }
    }
    return nullptr;
}

// Uses another instruction set from now on. Returns 0, or 1 if it is unknown or not supported by this processor.
KNOTFLOW_EXPORT int knotflow_use(const char* name) {
    for (const Variant& variant : VARIANTS) {
        if (std::strcmp(variant.name, name) == 0 && variant.supported()) {
            in_use.store(&variant, std::memory_order_release);
            return 0;
        }
    }
    return 1;
}

// Lets kernels use threads: takes a function like GOMP_parallel, or null. Must not be called while a kernel runs.
KNOTFLOW_EXPORT void knotflow_parallel(void* function) {
    knotflow_parallel_function = reinterpret_cast<knotflow_parallel_t>(function);
}

KNOTFLOW_EXPORT int knotflow_run(const Call* call) {
    return chosen()->run(call);
}
