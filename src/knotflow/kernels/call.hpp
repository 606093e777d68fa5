// What Python hands to the kernels, and what the kernels may use of the process around them.
#pragma once

struct Call;

extern "C" {

// GOMP_parallel: calls function(data) on so many threads at once, this one included, and waits for all.
typedef void (*knotflow_parallel_t)(void (*function)(void*), void* data, unsigned threads, unsigned flags);

// That of torch's own OpenMP runtime; null if it has none: then everything runs on one thread.
extern knotflow_parallel_t knotflow_parallel_function;
}
