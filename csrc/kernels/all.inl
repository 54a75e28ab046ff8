// All kernels, over the vectors, units and selections of one instruction set that were included before.
#include "kernels/mathfn.inl"
#include "kernels/rows.inl"
#include "kernels/panel.inl"
#include "kernels/kv_store.inl"
#include "kernels/attention.inl"
#include "kernels/attention_codes.inl"
#include "kernels/sampling.inl"

#define PELLUCID_KERNELS(NAME)                                                                                           \
  {                                                                                                                      \
    NAME, PELLUCID_EXACT, PELLUCID_FAST, rms_norm_row, rms_norm_add_row, layer_norm_row, gate_row, rotate_row, store_kv, \
        unpack_keys, unpack_values, pack_queries, attend_split, attend_codes, merge_split, finish_row, decode_row,       \
        PELLUCID_SAMPLING                                                                                                \
  }
