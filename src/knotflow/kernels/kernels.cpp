// The kernels of one instruction set: this file is compiled once for each, with -DKNOTFLOW_ISA=<its name>.
//
// All that is defined here or in a header must have internal linkage (an anonymous namespace): of an inline
// function that several sets share, the linker keeps any one copy, perhaps one this processor cannot run.
#include "call.hpp"

#define KNOTFLOW_JOIN_(a, b) a##b
#define KNOTFLOW_JOIN(a, b) KNOTFLOW_JOIN_(a, b)

extern "C" int KNOTFLOW_JOIN(knotflow_run_, KNOTFLOW_ISA)(const Call*) {
    return 0;
}
