// Rows of memory, one per point, to vectors of points and back; and gathers with an index per lane.
#pragma once

#include "call.hpp"
#include "vector.hpp"

namespace {

// Raw parameters of up to `lanes` points (each a row of n numbers), one vector per parameter.
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
    // Square tiles side by side; the last overlaps the one before, so that nothing is read beyond a row.
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

// All n raw parameters of points; for dual numbers with their tangents.
template <class F, class S>
KNOTFLOW_INLINE void read_raw(const Call& call, int64_t first, int points, int n, S* to) {
    const F* raw = static_cast<const F*>(call.raw) + first * call.raw_stride;
    if constexpr (sizeof(S) == sizeof(Vec<F>)) {
        read_rows<F>(raw, call.raw_stride, points, n, [to](int i, Vec<F> v) { to[i] = v; });
    } else {
        read_rows<F>(raw, call.raw_stride, points, n, [to](int i, Vec<F> v) { to[i] = {v, Vec<F>{}}; });
        if (call.hraw == nullptr) return;
        const F* tangent = static_cast<const F*>(call.hraw) + first * call.hraw_stride;
        read_rows<F>(tangent, call.hraw_stride, points, n, [to](int i, Vec<F> v) { to[i].d = v; });
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

// Rows index .. index + n - 1, with a different index in every lane.
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

}  // namespace
