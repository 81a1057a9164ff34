// What a sequence carries: batches, threads, snapshots, rollback, and what is refused.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <string>
#include <vector>

#include "base/error.h"
#include "base/json.h"
#include "io/lost_pages.h"
#include "model/forward_runner.h"
#include "model/tiny_checkpoint.h"
#include "support/files.h"

namespace onecard::test {
namespace {

using engine::PrefillMode;

/// The published quantised model: packed rows, rings of 8, both ratios, engram.
TinyModel quantised_model() {
  const json::Value golden = json::parse(read_file(golden_path("model/published.json")));
  return TinyModel(json::dump(*golden.find("cases")->find("T-Q")->find("config")));
}

std::vector<int32_t> tokens(int64_t count, int64_t seed) {
  std::vector<int32_t> result;
  for (int64_t i = 0; i < count; ++i) result.push_back(int32_t((5 * i * i + 3 * i + seed) % 96));
  return result;
}

std::vector<cpu::Isa> isas() {
  std::vector<cpu::Isa> result{cpu::Isa::kPlain};
  if (cpu::detect_isa() >= cpu::Isa::kAvx2) result.push_back(cpu::Isa::kAvx2);
  return result;
}

// Bit for bit: a row's result depends neither on the rows beside it nor on the number of threads.
TEST(DecodeStep, SequencesTogetherEqualSequencesAlone) {
  const TinyModel model = quantised_model();
  for (const cpu::Isa isa : isas()) {
    std::vector<std::unique_ptr<Runner>> together;
    std::vector<std::vector<Row>> alone;
    const std::vector<int64_t> lengths{1, 7, 8, 23};
    for (const int64_t length : lengths) {
      const std::vector<int32_t> prompt = tokens(length, length);
      Runner solo(*model, {.isa = isa, .threads = 1}, 40);
      solo.prefill(prompt);
      alone.push_back(solo.decode_all(tokens(5, 2 * length)));
      together.push_back(std::make_unique<Runner>(
          *model, RunOptions{.mode = PrefillMode::kExact, .isa = isa, .threads = 2}, 40));
      together.back()->prefill(prompt);
    }
    engine::DecodeStep step(*model, 4, 40);
    for (size_t i = 0; i < 5; ++i) {
      std::vector<engine::DecodeStep::Row> rows;
      for (size_t s = 0; s < together.size(); ++s)
        rows.push_back({&together[s]->state(), tokens(5, 2 * lengths[s])[i]});
      Row logits(rows.size() * size_t(model->vocab_size()));
      step.run(together[0]->exec(), rows,
               View<float>(logits.data(), int64_t(rows.size()), model->vocab_size()));
      for (size_t s = 0; s < rows.size(); ++s) {
        const auto begin = logits.begin() + std::ptrdiff_t(s) * model->vocab_size();
        EXPECT_EQ(Row(begin, begin + model->vocab_size()), alone[s][i])
            << cpu::isa_name(isa) << ", sequence " << s << ", step " << i;
      }
    }
  }
}

TEST(PrefillPass, ExactEqualsFullBitForBit) {
  const TinyModel model = quantised_model();
  for (const cpu::Isa isa : isas()) {
    for (const int64_t length : {1, 2, 7, 8, 9, 22, 29, 30, 48}) {
      Runner full(*model, {.isa = isa, .threads = 2}, 60);
      Runner exact(*model, {.mode = PrefillMode::kExact, .isa = isa, .chunks = {length}}, 60);
      EXPECT_EQ(full.prefill(tokens(length, 11)).back(), exact.prefill(tokens(length, 11)).back())
          << length;
      EXPECT_EQ(full.decode_all(tokens(9, 3)), exact.decode_all(tokens(9, 3))) << length;
    }
  }
}

TEST(PrefillPass, DecodeStepsOfOthersBetweenItsLayersChangeNothing) {
  const TinyModel model = quantised_model();
  Runner alone(*model, {.mode = PrefillMode::kExact}, 40);
  const Row want = alone.prefill(tokens(30, 11)).back();
  Runner other(*model, {.mode = PrefillMode::kExact}, 40);
  other.prefill(tokens(5, 1));

  model::SequenceState state(model->config(), {.capacity_tokens = 40});
  model::Workspace workspace(
      model->config(),
      engine::PrefillPass::workspace_rows(model->config(), PrefillMode::kExact, 30), 40);
  engine::EncoderTail tail(model->config(), PrefillMode::kExact);
  Row logits(static_cast<size_t>(model->vocab_size()));
  const std::vector<int32_t> prompt = tokens(30, 11);
  engine::PrefillPass pass({}, *model, workspace, state, tail, prompt, {},
                           View<float>(logits.data(), 1, model->vocab_size()));
  int layers = 0;
  EXPECT_EQ(pass.num_layers_left(), 10);
  while (!pass.run_layer()) {
    ++layers;
    EXPECT_EQ(pass.num_layers_left(), 10 - layers);
    other.decode(int32_t(layers));
  }
  EXPECT_EQ(logits, want);
  EXPECT_EQ(state.num_tokens(), 30);
}

TEST(SequenceState, RollbackTakesTokensBack) {
  const TinyModel model = quantised_model();
  for (int64_t taken = 1; taken <= 5; ++taken) {
    Runner runner(*model, {.max_rollback_tokens = 5}, 60);
    Runner straight(*model, {}, 60);
    runner.prefill(tokens(17, 11));
    straight.prefill(tokens(17, 11));
    // Wrong guesses, taken back, then the real continuation: more of it than the window is long.
    runner.decode_all(tokens(2, 40));
    straight.decode_all(tokens(2, 40));
    runner.decode_all(tokens(taken, 70));
    EXPECT_GE(runner.state().rollback_limit(), taken);
    runner.state().rollback(taken);
    EXPECT_EQ(runner.state().num_tokens(), 19);
    EXPECT_EQ(runner.decode_all(tokens(12, 5)), straight.decode_all(tokens(12, 5))) << taken;
  }
}

TEST(SequenceState, RollbackHasLimits) {
  const TinyModel model = quantised_model();
  Runner runner(*model, {.mode = PrefillMode::kExact, .max_rollback_tokens = 3}, 60);
  runner.prefill(tokens(17, 11));
  EXPECT_EQ(runner.state().rollback_limit(), 0);  // the decoder never saw most of the prompt
  runner.decode_all(tokens(5, 1));
  EXPECT_EQ(runner.state().rollback_limit(), 3);
  EXPECT_THROW(runner.state().rollback(4), Error);
  runner.state().rollback(2);
  EXPECT_EQ(runner.state().rollback_limit(), 1);  // rows before that are overwritten
  EXPECT_THROW(runner.state().rollback(-1), Error);
}

TEST(SequenceState, SnapshotAndGlobalRowsMoveASequence) {
  const TinyModel model = quantised_model();
  Runner original(*model, {}, 60);
  original.prefill(tokens(19, 11));  // odd: a group is open
  const model::Snapshot snapshot = original.state().snapshot(model::SequenceState::Windows::kAll);
  const std::vector<std::pair<int64_t, int64_t>> pieces{{0, 8}, {8, 18}, {18, 19}};
  std::vector<std::vector<std::byte>> rows;
  for (const auto& [begin, end] : pieces) {
    rows.emplace_back(size_t(original.state().global_rows_bytes(begin, end)));
    original.state().read_global_rows(begin, end, rows.back());
  }
  const std::vector<Row> want = original.decode_all(tokens(12, 5));

  Runner other(*model, {.max_rollback_tokens = 4}, 50);  // another ring, another capacity
  other.prefill(tokens(33, 2));
  for (size_t i = 0; i < pieces.size(); ++i)
    other.state().write_global_rows(pieces[i].first, pieces[i].second, rows[i]);
  EXPECT_THROW(other.state().write_global_rows(1, 2, {}), Error);
  other.state().restore(snapshot);
  EXPECT_EQ(other.state().num_tokens(), 19);
  EXPECT_EQ(other.decode_all(tokens(12, 5)), want);

  // The original itself, 12 tokens later: its rows are still in place.
  original.state().restore(snapshot);
  EXPECT_EQ(original.decode_all(tokens(12, 5)), want);
}

// Inside a prompt only the encoder's windows exist; the next prefill has to be long enough to
// make the decoder's.
TEST(SequenceState, EncoderSnapshotContinuesALongPrompt) {
  const TinyModel model = quantised_model();
  const std::vector<int32_t> prompt = tokens(48, 11);
  Runner whole(*model, {.mode = PrefillMode::kExact}, 60);
  const Row want = whole.prefill(prompt).back();
  const std::vector<Row> want_decode = whole.decode_all(tokens(4, 5));

  const int64_t tail = model::exact_tail_tokens(model->config());
  ASSERT_EQ(tail, 29);  // 8 + 3 * 7
  Runner runner(*model, {.mode = PrefillMode::kExact}, 60);
  runner.prefill(std::span(prompt).first(19));
  model::Snapshot snapshot = runner.state().snapshot(model::SequenceState::Windows::kEncoder);
  EXPECT_LT(snapshot.bytes.size(),
            runner.state().snapshot(model::SequenceState::Windows::kAll).bytes.size());
  runner.prefill(tokens(20, 3));
  runner.state().restore(snapshot);
  EXPECT_FALSE(runner.state().has_decoder_windows());
  EXPECT_THROW(runner.decode(1), Error);
  EXPECT_THROW(runner.prefill(std::span(prompt).subspan(19, 28)), Error);
  EXPECT_EQ(runner.prefill(std::span(prompt).subspan(19)).back(), want);
  EXPECT_EQ(runner.decode_all(tokens(4, 5)), want_decode);
}

TEST(SequenceState, ForeignSnapshotsAreRefused) {
  const TinyModel model = quantised_model();
  Runner runner(*model, {}, 30);
  runner.prefill(tokens(9, 11));
  model::Snapshot snapshot = runner.state().snapshot(model::SequenceState::Windows::kAll);
  snapshot.bytes.pop_back();
  EXPECT_THROW(runner.state().restore(snapshot), Error);
  snapshot.bytes.clear();
  snapshot.num_tokens = 31;
  EXPECT_THROW(runner.state().restore(snapshot), Error);
  snapshot.num_tokens = -1;
  EXPECT_THROW(runner.state().restore(snapshot), Error);
}

// 890 bytes a token and 2,703,360 bytes of windows at the published sizes.
TEST(SequenceState, BytesOfThePublishedModel) {
  model::ModelConfig config;
  config.compress_ratios = {0, 0};
  for (int i = 0; i < 18; ++i) config.compress_ratios.push_back(2);
  for (int i = 0; i < 20; ++i) config.compress_ratios.push_back(1);
  config.kv_source_layer_ids = {2, 8, 14, 20};
  config.index_source_layer_ids = {2, 8, 14, 20, 24, 28, 32, 36};
  config.candidate_source_layer_id = 20;
  model::SequenceState state(config, {.capacity_tokens = 1000});
  EXPECT_EQ(state.global_rows_bytes(0, 1000), 890 * 1000);
  EXPECT_EQ(state.global_rows_bytes(0, 2), 890 * 2);
  state.commit(1000, true, true);
  EXPECT_EQ(state.used_bytes(), 890 * 1000 + 2703360);
  EXPECT_EQ(model::exact_tail_tokens(config), 2541);
  EXPECT_EQ(model::exact_tail_tokens(config, 39), 128);
}

TEST(Forward, RefusesWhatDoesNotFit) {
  const TinyModel model = quantised_model();
  Runner runner(*model, {}, 10);
  EXPECT_THROW(runner.prefill(tokens(11, 1)), Error);
  EXPECT_THROW(runner.prefill(std::vector<int32_t>{3, 96}), Error);
  EXPECT_THROW(runner.prefill(std::vector<int32_t>{-1}), Error);
  runner.prefill(tokens(10, 1));  // nothing has changed: the whole capacity is there
  try {
    runner.decode(1);
    FAIL();
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::kResourceExhausted);
  }
}

// Experts in plain form stay mapped. A shard that shrinks under them is no silent zero and no
// signal: the layer that touched it says which file.
TEST(Model, FileThatShrinksIsAnErrorThatNamesIt) {
  io::guard_lost_pages();
  const TinyModel model = quantised_model();
  Runner runner(*model, {}, 40);
  runner.prefill(tokens(3, 1));
  const std::string shard = model.directory() + "/model.safetensors";
  std::filesystem::resize_file(shard, 0);
  try {
    runner.decode(1);
    ADD_FAILURE() << "the forward used weights that are gone";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::kDevice);
    EXPECT_THAT(error.what(),
                testing::AllOf(testing::HasSubstr(shard), testing::HasSubstr("became shorter")));
  }
}

}  // namespace
}  // namespace onecard::test
