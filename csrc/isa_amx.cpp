// Products of many rows on the tiles of Intel AMX.
#include <algorithm>
#include <cstring>
#include <type_traits>

#include "kernel_table.h"
#include "simd/vec_avx512.h"
#include "simd/unit.h"
#include "simd/tiles_amx.h"
#include "kernels/panel.inl"
#include "kernels/tiles.inl"

namespace pellucid {

const Products kAmxExact = PELLUCID_TILE_EXACT;
const Products kAmxFast = PELLUCID_TILE_FAST;

}  // namespace pellucid
