// Half precision and bfloat16 on any machine (IEEE 754-2008 binary16, rounding to nearest, ties to even).
#pragma once
#include <cstdint>
#include <cstring>

namespace {

inline float bits_to_float(uint32_t b) {
  float f;
  std::memcpy(&f, &b, 4);
  return f;
}
inline uint32_t float_to_bits(float f) {
  uint32_t b;
  std::memcpy(&b, &f, 4);
  return b;
}

[[maybe_unused]] inline float half_to_float(uint16_t h) {
  const uint32_t sign = static_cast<uint32_t>(h & 0x8000u) << 16;
  const uint32_t exponent = (h >> 10) & 31u;
  const uint32_t mantissa = h & 0x3ffu;
  if (exponent == 31) return bits_to_float(sign | 0x7f800000u | (mantissa << 13));
  if (exponent != 0) return bits_to_float(sign | ((exponent + 112) << 23) | (mantissa << 13));
  const float subnormal = static_cast<float>(mantissa) * 5.9604644775390625e-08f;  // 2^-24
  return bits_to_float(sign | float_to_bits(subnormal));
}

[[maybe_unused]] inline uint16_t float_to_half(float f) {
  const uint32_t bits = float_to_bits(f);
  const uint16_t sign = static_cast<uint16_t>((bits >> 16) & 0x8000u);
  const uint32_t a = bits & 0x7fffffffu;
  if (a > 0x7f800000u) return static_cast<uint16_t>(sign | 0x7e00u | ((a >> 13) & 0x3ffu));
  if (a >= 0x477ff000u) return static_cast<uint16_t>(sign | 0x7c00u);  // 65520 and above round to infinity
  if (a < 0x38800000u) {                                               // below 2^-14: subnormal or zero
    const float scaled = bits_to_float(a) * 16777216.0f;               // exact: units of 2^-24
    const uint32_t whole = static_cast<uint32_t>(scaled);
    const float rest = scaled - static_cast<float>(whole);
    const uint32_t up = rest > 0.5f || (rest == 0.5f && (whole & 1u));
    return static_cast<uint16_t>(sign | (whole + up));
  }
  const uint32_t rounded = a + 0xfffu + ((a >> 13) & 1u);
  return static_cast<uint16_t>(sign | ((rounded - 0x38000000u) >> 13));
}

[[maybe_unused]] inline float bf16_to_float(uint16_t h) { return bits_to_float(static_cast<uint32_t>(h) << 16); }

}  // namespace
