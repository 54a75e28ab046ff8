// The kernels for the instruction set "avx512vnni".
#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>
#include <type_traits>
#include <utility>

#include "half.h"
#include "kernel_table.h"
#include "simd/vec_avx512.h"
#include "simd/unit.h"
#include "simd/select_avx512.h"
#include "kernels/all.inl"

namespace pellucid {

const KernelTable kAvx512VnniKernels = PELLUCID_KERNELS("avx512vnni");

}  // namespace pellucid
