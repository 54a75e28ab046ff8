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
#include "kernels/mathfn.inl"
#include "kernels/rows.inl"
#include "kernels/panel.inl"
#include "kernels/kv_store.inl"
#include "kernels/attention.inl"
#include "kernels/attention_codes.inl"
#include "kernels/sampling.inl"

namespace pellucid {

const KernelTable kAvx2Kernels = {
    "avx2",
    PELLUCID_EXACT,
    PELLUCID_FAST,
    rms_norm_row,
    rms_norm_add_row,
    layer_norm_row,
    gate_row,
    rotate_row,
    store_kv,
    unpack_keys,
    unpack_values,
    pack_queries,
    attend_split,
    attend_codes,
    merge_split,
    finish_row,
    decode_row,
    PELLUCID_SAMPLING,
};

}  // namespace pellucid
