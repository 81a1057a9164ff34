// Rounding to the e2m1 grid, one rule for the host and the device.
#pragma once

#include <cstdint>

namespace onecard {

/// Code 0..7 of the magnitude nearest to `magnitude` in 0..6; ties to the even code.
constexpr uint8_t e2m1_magnitude_code(float magnitude) {
  // Midpoints; those before an odd code belong to the even code below, those before an even code
  // round up to it.
  uint8_t code = 0;
  code += magnitude > 0.25f;
  code += magnitude >= 0.75f;
  code += magnitude > 1.25f;
  code += magnitude >= 1.75f;
  code += magnitude > 2.5f;
  code += magnitude >= 3.5f;
  code += magnitude > 5.0f;
  return code;
}

}  // namespace onecard
