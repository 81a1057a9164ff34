#include "model/precision_record.h"

#include <gtest/gtest.h>

#include "base/error.h"
#include "io/file.h"
#include "make_tiny_model/tiny_model.h"
#include "support/temp_dir.h"

namespace onecard::model {
namespace {

using ops::Exl3Precision;

PrecisionMeasure measure(bool dense_int16, Exl3Precision experts, double prompt_kl,
                         double decoded_kl = 0) {
  return {.arithmetic = {dense_int16, experts},
          .prompt_tokens = 4096,
          .decoded_tokens = 256,
          .prompt_kl = prompt_kl,
          .decoded_kl = decoded_kl,
          .largest_kl = 0.5};
}

TEST(PrecisionRecord, AMeasurePassesUpToItsLimitsOnly) {
  EXPECT_TRUE(measure(true, Exl3Precision::kInt8, 1e-4, 1e-4).passes());
  EXPECT_FALSE(measure(true, Exl3Precision::kInt8, 1.01e-4, 0).passes());
  EXPECT_FALSE(measure(true, Exl3Precision::kInt8, 0, 1.01e-4).passes());
  PrecisionMeasure few = measure(true, Exl3Precision::kInt8, 0);
  few.prompt_tokens = 4095;
  EXPECT_FALSE(few.passes());
  few = measure(true, Exl3Precision::kInt8, 0);
  few.decoded_tokens = 255;
  EXPECT_FALSE(few.passes());
}

TEST(PrecisionRecord, WithoutARecordOnlyTheDefaultsRun) {
  EXPECT_EQ(choose_arithmetic({}, {}), (Arithmetic{false, {}}));
  EXPECT_EQ(choose_arithmetic({}, Exl3Precision::kF32), (Arithmetic{false, Exl3Precision::kF32}));
  EXPECT_EQ(choose_arithmetic({}, Exl3Precision::kInt16),
            (Arithmetic{false, Exl3Precision::kInt16}));
  EXPECT_THROW(choose_arithmetic({}, Exl3Precision::kInt8), Error);
}

TEST(PrecisionRecord, TheFastestThatPassesRuns) {
  const Arithmetic all{true, Exl3Precision::kInt16}, experts{false, Exl3Precision::kInt16};
  PrecisionRecord record{
      "",
      {measure(true, Exl3Precision::kInt8, 1e-5), measure(true, Exl3Precision::kInt16, 1e-5),
       measure(false, Exl3Precision::kInt16, 1e-6)}};
  EXPECT_EQ(choose_arithmetic(record, {}), all);  // never int8 unasked
  EXPECT_EQ(choose_arithmetic(record, Exl3Precision::kInt16), all);
  EXPECT_EQ(choose_arithmetic(record, Exl3Precision::kInt8),
            (Arithmetic{true, Exl3Precision::kInt8}));
  EXPECT_EQ(choose_arithmetic(record, Exl3Precision::kF32),
            (Arithmetic{false, Exl3Precision::kF32}));
  record.measures[1].decoded_kl = 1e-3;
  EXPECT_EQ(choose_arithmetic(record, {}), experts);
  record.measures[2].prompt_kl = 1e-3;
  EXPECT_EQ(choose_arithmetic(record, {}), (Arithmetic{false, {}}));
}

TEST(PrecisionRecord, ARefusalSaysWhatWasMeasured) {
  const PrecisionRecord record{"", {measure(true, Exl3Precision::kInt8, 0.0123, 0.5)}};
  try {
    choose_arithmetic(record, Exl3Precision::kInt8);
    FAIL() << "not refused";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::kInvalidArgument);
    const std::string text = error.what();
    EXPECT_NE(text.find("0.0123 over a prompt of 4096"), std::string::npos) << text;
    EXPECT_NE(text.find("0.5 over 256"), std::string::npos) << text;
  }
}

TEST(PrecisionRecord, IsReadBackForItsOwnWeightsAlone) {
  const test::TempDir dir;
  const ModelConfig config = tiny::preset_config("t-nq");
  tiny::write_checkpoint(dir.path(), config, {.seed = 1});
  PrecisionRecord record{weights_fingerprint(io::Checkpoint::open(dir.path())),
                         {measure(true, Exl3Precision::kInt16, 1.5e-5, 2.5e-5),
                          measure(false, Exl3Precision::kInt8, 0.25, 0.125)}};
  record.measures[1].decoded_tokens = 7;
  EXPECT_FALSE(read_precision_record(io::Checkpoint::open(dir.path())));
  write_precision_record(dir.path(), record);
  const auto read = read_precision_record(io::Checkpoint::open(dir.path()));
  ASSERT_TRUE(read);
  EXPECT_EQ(read->weights, record.weights);
  ASSERT_EQ(read->measures.size(), 2u);
  for (size_t i = 0; i < 2; ++i) {
    const PrecisionMeasure &got = read->measures[i], &want = record.measures[i];
    EXPECT_EQ(got.arithmetic, want.arithmetic);
    EXPECT_EQ(got.prompt_tokens, want.prompt_tokens);
    EXPECT_EQ(got.decoded_tokens, want.decoded_tokens);
    EXPECT_EQ(got.prompt_kl, want.prompt_kl);
    EXPECT_EQ(got.decoded_kl, want.decoded_kl);
    EXPECT_EQ(got.largest_kl, want.largest_kl);
  }
  // Other weights under the same names and shapes.
  tiny::write_checkpoint(dir.path(), config, {.seed = 2});
  EXPECT_FALSE(read_precision_record(io::Checkpoint::open(dir.path())));
}

TEST(PrecisionRecord, ABrokenFileIsNamed) {
  const test::TempDir dir;
  tiny::write_checkpoint(dir.path(), tiny::preset_config("t-nq"), {.seed = 1});
  for (const char* text : {"", "{", "[]", R"({"weights":"x"})",
                           R"({"weights":"x","measures":[{"dense":"int16","experts":"int4"}]})"}) {
    io::write_file_atomically(dir.file("precision.json"), text);
    try {
      read_precision_record(io::Checkpoint::open(dir.path()));
      ADD_FAILURE() << "accepted: " << text;
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ErrorCode::kDataCorrupt) << text;
      EXPECT_NE(std::string(error.what()).find("precision.json"), std::string::npos) << text;
    }
  }
}

}  // namespace
}  // namespace onecard::model
