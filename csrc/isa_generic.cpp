// The kernels for the instruction set "generic".
#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>
#include <type_traits>
#include <utility>

#include "half.h"
#include "kernel_table.h"
#include "simd/vec_generic.h"
#include "simd/unit.h"
#include "simd/select_generic.h"
#include "kernels/all.inl"

namespace pellucid {

const KernelTable kGenericKernels = PELLUCID_KERNELS("generic");

}  // namespace pellucid
