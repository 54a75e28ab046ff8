// Storing one token's keys and values in the paged cache, in its number type.

namespace {

using pellucid::KVView;

template <class T>
bool store_kv_as(const KVView& kv, int64_t block, int64_t offset, int64_t head, const float* key, const float* value) {
  const int64_t dim = kv.head_dim, bs = kv.block_size;
  T* keys = static_cast<T*>(const_cast<void*>(kv.keys)) + kv.at(block, head) + offset;
  T* values = static_cast<T*>(const_cast<void*>(kv.values)) + kv.at(block, head) + offset * dim;
  bool finite = true;
  for (int64_t d = 0; d < dim; d += 16) {
    const int64_t count = dim - d < 16 ? dim - d : 16;
    if constexpr (sizeof(T) == 2) {
      uint16_t k[16], v[16];
      vstore_half(k, vload_tail(key + d, count));
      vstore_half(v, vload_tail(value + d, count));
      for (int64_t i = 0; i < count; ++i) {
        keys[(d + i) * bs] = k[i];
        values[d + i] = v[i];
        finite &= (k[i] & 0x7c00) != 0x7c00 && (v[i] & 0x7c00) != 0x7c00;
      }
    } else {
      for (int64_t i = 0; i < count; ++i) {
        keys[(d + i) * bs] = key[d + i];
        values[d + i] = value[d + i];
        finite &= std::isfinite(key[d + i]) && std::isfinite(value[d + i]);
      }
    }
  }
  return finite;
}
bool store_kv(const KVView& kv, int64_t block, int64_t offset, int64_t head, const float* key, const float* value) {
  return kv.half ? store_kv_as<uint16_t>(kv, block, offset, head, key, value)
                 : store_kv_as<float>(kv, block, offset, head, key, value);
}

}  // namespace
