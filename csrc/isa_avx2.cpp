// The kernels for the instruction set "avx2".
#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>
#include <type_traits>
#include <utility>

#include "half.h"
#include "kernel_table.h"
#include "simd/vec_avx2.h"
#include "simd/unit_avx2.h"
#include "simd/select_avx2.h"
#include "kernels/all.inl"

namespace pellucid {

const KernelTable kAvx2Kernels = PELLUCID_KERNELS("avx2");

}  // namespace pellucid
