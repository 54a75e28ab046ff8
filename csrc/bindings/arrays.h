// NumPy arrays as the kernels take them.
#pragma once
#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/optional.h>

#include <optional>
#include <stdexcept>

#include "ops.h"

namespace pellucid {

namespace nb = nanobind;

using Floats2 = nb::ndarray<float, nb::ndim<2>, nb::device::cpu>;
using Floats1 = nb::ndarray<const float, nb::ndim<1>, nb::c_contig, nb::device::cpu>;
using Ints1 = nb::ndarray<const int32_t, nb::ndim<1>, nb::c_contig, nb::device::cpu>;
using Longs1 = nb::ndarray<const int64_t, nb::ndim<1>, nb::c_contig, nb::device::cpu>;
using Ints2 = nb::ndarray<const int32_t, nb::ndim<2>, nb::c_contig, nb::device::cpu>;
using Bytes1 = nb::ndarray<const uint8_t, nb::ndim<1>, nb::c_contig, nb::device::cpu>;
using Bools1 = nb::ndarray<bool, nb::ndim<1>, nb::c_contig, nb::device::cpu>;

inline void check(bool ok, const char* what) {
  if (!ok) throw std::invalid_argument(what);
}

inline Rows rows(Floats2& a) {
  check(a.shape(1) <= 1 || a.stride(1) == 1, "rows must be contiguous");
  const int64_t count = static_cast<int64_t>(a.shape(0)), width = static_cast<int64_t>(a.shape(1));
  return {a.data(), count, width, count > 1 ? a.stride(0) : width};
}

inline Norm norm_of(const std::optional<Floats1>& weight, float eps, int64_t width) {
  if (!weight) return {nullptr, 0.0f};
  check(static_cast<int64_t>(weight->shape(0)) == width, "norm weight has the wrong length");
  return {weight->data(), eps};
}

}  // namespace pellucid
