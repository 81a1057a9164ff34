// Recorded work.
#include <gtest/gtest.h>

#include "base/error.h"
#include "cuda/device.h"
#include "cuda/random_exl3.h"
#include "device/cuda/graph.h"
#include "ops/rms_norm.h"
#include "ops/swiglu.h"

namespace onecard {
namespace {

using test::DeviceArray;
using test::random_values;

class CudaRuntime : public test::CudaTest {};

TEST_F(CudaRuntime, AGraphRepeatsWhatWasRecordedOnWhatMemoryHoldsThen) {
  const std::vector<float> first = random_values(3 * 70, 1), second = random_values(3 * 70, 2);
  const std::vector<float> w = random_values(70, 3);
  const DeviceArray<float> x(first), dw(w), out(3 * 70);
  const View<float> rows = out.view(3, 70);
  const auto work = [&] {
    ops::rms_norm(exec, x.view(3, 70), dw.span(), 1e-6f, rows);
    ops::swiglu(exec, rows, x.view(3, 70), {}, 2, rows);
  };
  const std::vector<float> marker(3 * 70, 5.0f);
  ONECARD_CUDA_CHECK(cudaMemcpyAsync(out.data(), marker.data(), marker.size() * sizeof(float),
                                     cudaMemcpyDefault, stream().get()));
  const cuda::Graph graph = cuda::Graph::record(stream().get(), work);
  EXPECT_EQ(out.host(), marker) << "recorded work has run";
  for (const std::vector<float>& values : {first, second}) {
    ONECARD_CUDA_CHECK(cudaMemcpyAsync(x.data(), values.data(), values.size() * sizeof(float),
                                       cudaMemcpyDefault, stream().get()));
    graph.launch(stream().get());
    const std::vector<float> replayed = out.host();
    work();
    EXPECT_EQ(out.host(), replayed);
  }
}

TEST_F(CudaRuntime, AFailedRecordingIsDroppedAndTheErrorGoesOn) {
  EXPECT_THROW(cuda::Graph::record(stream().get(),
                                   [] { throw Error(ErrorCode::kInvalidArgument, "on purpose"); }),
               Error);
  const DeviceArray<float> x(random_values(70, 1));
  EXPECT_NO_THROW(ops::swiglu(exec, x.view(1, 70), x.view(1, 70), {}, 2, x.view(1, 70)));
}

}  // namespace
}  // namespace onecard
