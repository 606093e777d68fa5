// Vectors of points, with the compiler's vector types: exponential, logarithm, transposition, and dual numbers.
// Everything is in an unnamed namespace, so that every instruction set has its own copy.
#pragma once

#include <cstdint>
#include <cstring>
#include <utility>

#if defined(__AVX512F__)
#define KNOTFLOW_BYTES 64
#elif defined(__AVX2__)
#define KNOTFLOW_BYTES 32
#else
#define KNOTFLOW_BYTES 16
#endif
#define KNOTFLOW_INLINE inline __attribute__((always_inline))

namespace {

template <class F> struct Types;
template <> struct Types<float> {
    typedef float V __attribute__((vector_size(KNOTFLOW_BYTES)));
    typedef int32_t I __attribute__((vector_size(KNOTFLOW_BYTES)));
    typedef int32_t Int;
    typedef float Scalar;
    static constexpr float magic = 12582912.0f;  // 1.5 2^23: adding it rounds to an integer
    static constexpr int mantissa = 23, bias = 127;
    static constexpr float least = -87.0f, most = 88.0f;
    static constexpr float eps = 1.1920929e-07f, tiny = 1.17549435e-38f;
    static constexpr float ln2_high = 0.693359375f, ln2_low = -2.12194440e-4f;
    static constexpr int exp_terms = 7, log_terms = 6;
};
template <> struct Types<double> {
    typedef double V __attribute__((vector_size(KNOTFLOW_BYTES)));
    typedef int64_t I __attribute__((vector_size(KNOTFLOW_BYTES)));
    typedef int64_t Int;
    typedef double Scalar;
    static constexpr double magic = 6755399441055744.0;  // 1.5 2^52
    static constexpr int mantissa = 52, bias = 1023;
    static constexpr double least = -708.0, most = 709.0;
    static constexpr double eps = 2.220446049250313e-16, tiny = 2.2250738585072014e-308;
    static constexpr double ln2_high = 6.93145751953125e-1, ln2_low = 1.42860682030941723212e-6;
    static constexpr int exp_terms = 14, log_terms = 12;
};

template <class F> using Vec = typename Types<F>::V;
template <class F> using Mask = typename Types<F>::I;
template <class F> using Scalar = typename Types<F>::Scalar;  // F itself, where it must not be deduced
template <class F> constexpr int lanes = KNOTFLOW_BYTES / sizeof(F);

template <class F> KNOTFLOW_INLINE Vec<F> splat(F value) { return Vec<F>{} + value; }

template <class F> KNOTFLOW_INLINE Vec<F> load(const F* from) {
    Vec<F> v;
    std::memcpy(&v, from, sizeof v);
    return v;
}

template <class F> KNOTFLOW_INLINE void store(F* to, Vec<F> v) { std::memcpy(to, &v, sizeof v); }

template <class To, class From> KNOTFLOW_INLINE To bits(From from) {
    To to;
    static_assert(sizeof to == sizeof from);
    std::memcpy(&to, &from, sizeof to);
    return to;
}

template <class F> KNOTFLOW_INLINE bool any(Mask<F> mask) {
    typename Types<F>::Int all = 0;
    for (int i = 0; i < lanes<F>; ++i) all |= mask[i];
    return all != 0;
}

template <class F> KNOTFLOW_INLINE Vec<F> floor_of(Vec<F> x) {
    Vec<F> y{};
    for (int i = 0; i < lanes<F>; ++i) y[i] = sizeof(F) == 4 ? __builtin_floorf(x[i]) : __builtin_floor(x[i]);
    return y;
}

template <class F> KNOTFLOW_INLINE Vec<F> sqrt_of(Vec<F> x) {
    Vec<F> y{};
    for (int i = 0; i < lanes<F>; ++i) y[i] = sizeof(F) == 4 ? __builtin_sqrtf(x[i]) : __builtin_sqrt(x[i]);
    return y;
}

// Comparisons with NaN are false, so NaN stays NaN.
template <class F> KNOTFLOW_INLINE Vec<F> clamp(Vec<F> x, Vec<F> low, Vec<F> high) {
    x = x < low ? low : x;
    return x > high ? high : x;
}

constexpr double reciprocal_factorial[] = {
    1.0, 1.0, 1.0 / 2, 1.0 / 6, 1.0 / 24, 1.0 / 120, 1.0 / 720, 1.0 / 5040, 1.0 / 40320, 1.0 / 362880,
    1.0 / 3628800, 1.0 / 39916800, 1.0 / 479001600, 1.0 / 6227020800, 1.0 / 87178291200};

// e^x = 2^n e^r with |r| <= log(2) / 2, by the series of e^r.
template <class F> KNOTFLOW_INLINE Vec<F> exp_of(Vec<F> x) {
    using T = Types<F>;
    x = clamp<F>(x, splat<F>(T::least), splat<F>(T::most));
    const Vec<F> shifted = x * F(1.4426950408889634) + T::magic;
    const Vec<F> n = shifted - T::magic;
    const Vec<F> r = (x - n * T::ln2_high) - n * T::ln2_low;
    Vec<F> sum = splat<F>(F(reciprocal_factorial[T::exp_terms]));
#pragma GCC unroll 16
    for (int i = T::exp_terms - 1; i >= 0; --i) sum = sum * r + F(reciprocal_factorial[i]);
    const Mask<F> whole = bits<Mask<F>>(shifted) - bits<Mask<F>>(splat<F>(T::magic));
    return sum * bits<Vec<F>>((whole + T::bias) << T::mantissa);
}

// log(2^n m) = n log 2 + 2 artanh((m - 1) / (m + 1)), m within [sqrt(1/2), sqrt(2)].
template <class F> KNOTFLOW_INLINE Vec<F> log_of(Vec<F> x) {
    using T = Types<F>;
    const Mask<F> half = bits<Mask<F>>(splat<F>(F(0.70710678118654752)));
    const Mask<F> exponent = (bits<Mask<F>>(x) - half) >> T::mantissa;
    const Vec<F> m = bits<Vec<F>>(bits<Mask<F>>(x) - (exponent << T::mantissa));
    const Vec<F> n = __builtin_convertvector(exponent, Vec<F>);
    const Vec<F> s = (m - F(1)) / (m + F(1));
    const Vec<F> square = s * s;
    Vec<F> sum = splat<F>(F(1) / (2 * T::log_terms + 1));
#pragma GCC unroll 16
    for (int i = T::log_terms - 1; i >= 0; --i) sum = sum * square + F(1.0 / (2 * i + 1));
    const Vec<F> log = n * T::ln2_high + (n * T::ln2_low + F(2) * s * sum);
    const Vec<F> nothing = splat<F>(-F(__builtin_inf()));
    // Infinity and NaN stay; below the normal range the result is minus infinity.
    return x < F(__builtin_inf()) ? (x < T::tiny ? nothing : log) : x;
}

// ---- transposition of as many vectors as there are lanes

template <class F, size_t... Lane>
KNOTFLOW_INLINE Vec<F> interleave_low(Vec<F> a, Vec<F> b, std::index_sequence<Lane...>) {
    constexpr int n = lanes<F>;
#if defined(__has_builtin) && __has_builtin(__builtin_shufflevector)
    return __builtin_shufflevector(a, b, (int(Lane) % 2 * n + int(Lane) / 2)...);
#else
    return __builtin_shuffle(a, b, Mask<F>{(int(Lane) % 2 * n + int(Lane) / 2)...});
#endif
}

template <class F, size_t... Lane>
KNOTFLOW_INLINE Vec<F> interleave_high(Vec<F> a, Vec<F> b, std::index_sequence<Lane...>) {
    constexpr int n = lanes<F>;
#if defined(__has_builtin) && __has_builtin(__builtin_shufflevector)
    return __builtin_shufflevector(a, b, (int(Lane) % 2 * n + int(Lane) / 2 + n / 2)...);
#else
    return __builtin_shuffle(a, b, Mask<F>{(int(Lane) % 2 * n + int(Lane) / 2 + n / 2)...});
#endif
}

template <class F> KNOTFLOW_INLINE void transpose(Vec<F>* rows) {
    constexpr int n = lanes<F>;
    constexpr auto all = std::make_index_sequence<n>{};
    Vec<F> other[n];
#pragma GCC unroll 8
    for (int round = 1; round < n; round *= 2) {
#pragma GCC unroll 16
        for (int i = 0; i < n / 2; ++i) {
            other[2 * i] = interleave_low<F>(rows[i], rows[i + n / 2], all);
            other[2 * i + 1] = interleave_high<F>(rows[i], rows[i + n / 2], all);
        }
#pragma GCC unroll 16
        for (int i = 0; i < n; ++i) rows[i] = other[i];
    }
}

// ---- dual numbers: a value and its derivative along one direction

template <class F> struct Dual {
    Vec<F> v, d;
};

template <class F> KNOTFLOW_INLINE Dual<F> operator+(Dual<F> a, Dual<F> b) { return {a.v + b.v, a.d + b.d}; }
template <class F> KNOTFLOW_INLINE Dual<F> operator-(Dual<F> a, Dual<F> b) { return {a.v - b.v, a.d - b.d}; }
template <class F> KNOTFLOW_INLINE Dual<F> operator-(Dual<F> a) { return {-a.v, -a.d}; }
template <class F> KNOTFLOW_INLINE Dual<F> operator*(Dual<F> a, Dual<F> b) {
    return {a.v * b.v, a.v * b.d + a.d * b.v};
}
template <class F> KNOTFLOW_INLINE Dual<F> operator/(Dual<F> a, Dual<F> b) {
    const Vec<F> inverse = F(1) / b.v;
    const Vec<F> ratio = a.v * inverse;
    return {ratio, (a.d - ratio * b.d) * inverse};
}
template <class F> KNOTFLOW_INLINE Dual<F> operator+(Dual<F> a, Scalar<F> b) { return {a.v + b, a.d}; }
template <class F> KNOTFLOW_INLINE Dual<F> operator-(Dual<F> a, Scalar<F> b) { return {a.v - b, a.d}; }
template <class F> KNOTFLOW_INLINE Dual<F> operator-(Scalar<F> a, Dual<F> b) { return {a - b.v, -b.d}; }
template <class F> KNOTFLOW_INLINE Dual<F> operator*(Dual<F> a, Scalar<F> b) { return {a.v * b, a.d * b}; }
template <class F> KNOTFLOW_INLINE Dual<F> operator/(Scalar<F> a, Dual<F> b) {
    const Vec<F> ratio = a / b.v;
    return {ratio, -ratio * b.d / b.v};
}

template <class F> KNOTFLOW_INLINE Dual<F> operator*(Dual<F> a, Vec<F> b) { return {a.v * b, a.d * b}; }
template <class F> KNOTFLOW_INLINE Dual<F> operator-(Dual<F> a, Vec<F> b) { return {a.v - b, a.d}; }

// Functions that differ between plain vectors and dual numbers. S is one of the two.
template <class F> KNOTFLOW_INLINE Vec<F> value(Vec<F> a) { return a; }
template <class F> KNOTFLOW_INLINE Vec<F> value(Dual<F> a) { return a.v; }
template <class F> KNOTFLOW_INLINE void set(Vec<F>& to, Vec<F> v) { to = v; }
template <class F> KNOTFLOW_INLINE void set(Dual<F>& to, Vec<F> v) { to = {v, Vec<F>{}}; }
// Replaces the value and keeps the derivatives: a clamp must not remove them.
template <class F> KNOTFLOW_INLINE void set_value(Vec<F>& to, Vec<F> v) { to = v; }
template <class F> KNOTFLOW_INLINE void set_value(Dual<F>& to, Vec<F> v) { to.v = v; }
template <class F> KNOTFLOW_INLINE Vec<F> select(Mask<F> mask, Vec<F> a, Vec<F> b) { return mask ? a : b; }
template <class F> KNOTFLOW_INLINE Dual<F> select(Mask<F> mask, Dual<F> a, Dual<F> b) {
    return {mask ? a.v : b.v, mask ? a.d : b.d};
}
template <class F> KNOTFLOW_INLINE Vec<F> exponential(Vec<F> a) { return exp_of<F>(a); }
template <class F> KNOTFLOW_INLINE Dual<F> exponential(Dual<F> a) {
    const Vec<F> e = exp_of<F>(a.v);
    return {e, e * a.d};
}
template <class F> KNOTFLOW_INLINE Vec<F> logarithm(Vec<F> a) { return log_of<F>(a); }
template <class F> KNOTFLOW_INLINE Dual<F> logarithm(Dual<F> a) { return {log_of<F>(a.v), a.d / a.v}; }
template <class F> KNOTFLOW_INLINE Vec<F> sigmoid(Vec<F> a) { return F(1) / (exp_of<F>(-a) + F(1)); }
template <class F> KNOTFLOW_INLINE Dual<F> sigmoid(Dual<F> a) {
    const Vec<F> s = sigmoid<F>(a.v);
    return {s, s * (F(1) - s) * a.d};
}

}  // namespace
