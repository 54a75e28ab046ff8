// The kernels for the instruction set "avxvnni": AVX2 with AVX-VNNI, which has products and sums in one.
#define PELLUCID_AVXVNNI
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

const KernelTable kAvxVnniKernels = PELLUCID_KERNELS("avxvnni");

}  // namespace pellucid
