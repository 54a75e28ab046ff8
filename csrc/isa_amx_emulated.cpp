// The kernels of isa_amx.cpp on emulated tiles: for tests.
#include <algorithm>
#include <cstring>
#include <type_traits>

#include "kernel_table.h"
#include "simd/vec_avx512.h"
#include "simd/unit.h"
#include "simd/tiles_emulated.h"
#include "kernels/panel.inl"
#include "kernels/tiles.inl"

namespace pellucid {

const Products kAmxEmulatedExact = PELLUCID_TILE_EXACT;
const Products kAmxEmulatedFast = PELLUCID_TILE_FAST;

}  // namespace pellucid
