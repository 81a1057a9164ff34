#include "io/checkpoint.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstring>
#include <filesystem>
#include <fstream>
#include <string>

#include "base/error.h"
#include "io/checkpoint_index.h"
#include "io/safetensors_writer.h"
#include "support/temp_dir.h"

namespace onecard::io {
namespace {

using testing::AllOf;
using testing::HasSubstr;
namespace fs = std::filesystem;

std::string bytes_of(std::span<const std::byte> bytes) {
  return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
}

void write(SafetensorsWriter& writer, std::string_view name, std::string_view bytes) {
  writer.append(name, std::as_bytes(std::span(bytes)));
}

// Two shards of U8 tensors: a, b | c.table, d.
void write_two_shards(const std::string& directory, char fill = '1') {
  SafetensorsWriter writer(
      directory,
      {{"model-00001-of-00002.safetensors", {{"a", DType::kU8, {5000}}, {"b", DType::kU8, {7}}}},
       {"model-00002-of-00002.safetensors",
        {{"c.table", DType::kU8, {2, 3}}, {"d", DType::kU8, {4}}}}});
  write(writer, "d", std::string(4, fill));
  write(writer, "c.table", "abcdef");
  write(writer, "a", std::string(5000, fill));
  write(writer, "b", "123");
  write(writer, "b", "4567");
  writer.finish();
}

std::string open_error(const std::string& directory, std::vector<ExtraDirectory> extra = {}) {
  try {
    Checkpoint::open(directory, extra);
  } catch (const Error& error) {
    EXPECT_NE(error.code(), ErrorCode::kInvalidArgument) << error.what();
    return error.what();
  }
  return "no error";
}

TEST(Checkpoint, ReadsWhatTheWriterWrote) {
  const test::TempDir dir;
  write_two_shards(dir.path());
  const Checkpoint checkpoint = Checkpoint::open(dir.path());
  ASSERT_EQ(checkpoint.tensors().size(), 4u);
  EXPECT_EQ(checkpoint.tensors()[0].name, "a");
  EXPECT_EQ(checkpoint.tensors()[2].name, "c.table");
  EXPECT_EQ(checkpoint.total_bytes(), 5000 + 7 + 6 + 4);
  EXPECT_EQ(bytes_of(checkpoint.at("b").bytes), "1234567");
  EXPECT_EQ(bytes_of(checkpoint.at("c.table").bytes), "abcdef");
  EXPECT_EQ(checkpoint.at("c.table").shape[1], 3);
  EXPECT_EQ(checkpoint.find("c"), nullptr);
  std::string part(3, ' ');
  Checkpoint::read(checkpoint.at("c.table"), 2, std::as_writable_bytes(std::span(part)));
  EXPECT_EQ(part, "cde");
  EXPECT_THROW(
      Checkpoint::read(checkpoint.at("c.table"), 4, std::as_writable_bytes(std::span(part))),
      Error);
  Checkpoint::drop_pages(checkpoint.at("a"));
  EXPECT_EQ(bytes_of(checkpoint.at("a").bytes), std::string(5000, '1'));
  EXPECT_THAT([&] { checkpoint.at("nope"); },
              testing::ThrowsMessage<Error>(AllOf(HasSubstr("\"nope\""), HasSubstr(dir.path()))));
}

TEST(Checkpoint, OneFileNeedsNoIndex) {
  const test::TempDir dir;
  SafetensorsWriter writer(dir.path(), plan_shards({{"a.x", DType::kF32, {1}}}, 1000));
  write(writer, "a.x", "1234");
  writer.finish();
  EXPECT_FALSE(fs::exists(dir.file("model.safetensors.index.json")));
  EXPECT_EQ(Checkpoint::open(dir.path()).tensors().size(), 1u);
  fs::rename(dir.file("model.safetensors"), dir.file("other.safetensors"));
  EXPECT_EQ(Checkpoint::open(dir.path()).tensors().size(), 1u);
}

// Robustness R5 a to d, and the same for a tensor that only the index names.
TEST(Checkpoint, RefusesIncompleteShardsNamingWhatIsWrong) {
  const test::TempDir dir;
  write_two_shards(dir.path());
  const std::string shard = dir.file("model-00001-of-00002.safetensors");
  const auto size = fs::file_size(shard);
  const std::string repair =
      "to repair: hf download REPOSITORY model-00001-of-00002.safetensors "
      "--force-download --local-dir " +
      dir.path();

  fs::resize_file(shard, size - 1000);  // (a)
  EXPECT_THAT(open_error(dir.path()),
              AllOf(HasSubstr(shard), HasSubstr("tensor \"a\": is cut off"),
                    HasSubstr("expected a file of " + std::to_string(size) + " bytes, found " +
                              std::to_string(size - 1000)),
                    HasSubstr(repair)));

  fs::remove(shard);  // (b)
  EXPECT_THAT(open_error(dir.path()),
              AllOf(HasSubstr(shard), HasSubstr("tensor \"a\""), HasSubstr("1 more"),
                    HasSubstr("no such file"), HasSubstr(repair)));
  const std::string index_file = dir.file("model.safetensors.index.json");
  fs::rename(index_file, index_file + ".away");
  EXPECT_THAT(open_error(dir.path()),
              AllOf(HasSubstr(shard), HasSubstr("there are 2 shards"), HasSubstr(repair)));
  fs::rename(index_file + ".away", index_file);

  write_two_shards(dir.path());
  {  // (c)
    std::fstream file(shard, std::ios::in | std::ios::out | std::ios::binary);
    file.write(std::string(4096, '\0').data(), 4096);
  }
  EXPECT_THAT(open_error(dir.path()),
              AllOf(HasSubstr(shard), HasSubstr("no safetensors header"), HasSubstr(repair)));

  write_two_shards(dir.path());
  fs::resize_file(shard, size + 1);  // (d)
  EXPECT_THAT(open_error(dir.path()), AllOf(HasSubstr(shard), HasSubstr("tensor \"b\""),
                                            HasSubstr("1 bytes follow"), HasSubstr(repair)));

  write_two_shards(dir.path());
  std::ifstream in(index_file);
  std::string text((std::istreambuf_iterator<char>(in)), {});
  text.replace(text.find("\"b\""), 3, "\"e\"");
  std::ofstream(index_file) << text;
  EXPECT_THAT(open_error(dir.path()),
              AllOf(HasSubstr(shard), HasSubstr("tensor \"e\": expected it here")));
}

TEST(Checkpoint, RefusesDirectoriesWithoutOne) {
  const test::TempDir dir;
  EXPECT_THAT(open_error(dir.file("nothing")), HasSubstr("found nothing"));
  EXPECT_THAT(open_error(dir.path()), HasSubstr("found neither"));
  std::ofstream(dir.file("file")) << "x";
  EXPECT_THAT(open_error(dir.file("file")), HasSubstr("found something else"));
}

TEST(Checkpoint, RefusesOneTensorInTwoFiles) {
  const test::TempDir dir;
  for (const char* file : {"x.safetensors", "y.safetensors"}) {
    SafetensorsWriter writer(dir.path(), {{file, {{"same", DType::kU8, {1}}}}});
    write(writer, "same", "1");
    writer.finish();
  }
  fs::remove(dir.file("model.safetensors.index.json"));
  EXPECT_THAT(
      open_error(dir.path()),
      AllOf(HasSubstr("tensor \"same\""), HasSubstr("x.safetensors"), HasSubstr("y.safetensors")));
}

TEST(Checkpoint, ExtraDirectorySuppliesItsTensorsOnly) {
  const test::TempDir main;
  const test::TempDir extra;
  write_two_shards(main.path(), '1');
  write_two_shards(extra.path(), '2');
  fs::remove(extra.file("model-00001-of-00002.safetensors"));  // holds nothing that is wanted
  {
    SafetensorsWriter writer(main.path(), {{"model.safetensors", {{"d", DType::kU8, {4}}}}});
    write(writer, "d", "main");
    writer.finish();
    fs::remove(main.file("model.safetensors.index.json"));
    fs::remove(main.file("model-00001-of-00002.safetensors"));
    fs::remove(main.file("model-00002-of-00002.safetensors"));
  }
  const Checkpoint checkpoint =
      Checkpoint::open(main.path(), std::vector<ExtraDirectory>{{extra.path(), ".table"}});
  ASSERT_EQ(checkpoint.tensors().size(), 2u);
  EXPECT_EQ(bytes_of(checkpoint.at("d").bytes), "main");
  EXPECT_EQ(checkpoint.at("c.table").file->path(), extra.file("model-00002-of-00002.safetensors"));
  EXPECT_EQ(checkpoint.total_bytes(), 10);

  fs::remove(extra.file("model-00002-of-00002.safetensors"));
  EXPECT_THAT(
      open_error(main.path(), {{extra.path(), ".table"}}),
      AllOf(HasSubstr(extra.file("model-00002-of-00002.safetensors")), HasSubstr("no such file")));
  EXPECT_THAT(open_error(main.path(), {{extra.path(), ".none"}}), HasSubstr("found none"));
}

TEST(Checkpoint, ExtraDirectoryReplacesAndFillsIn) {
  const test::TempDir main;
  const test::TempDir extra;
  write_two_shards(main.path(), '1');
  write_two_shards(extra.path(), '2');
  const std::vector<ExtraDirectory> dirs{{extra.path(), ".table"}};
  EXPECT_EQ(Checkpoint::open(main.path(), dirs).at("c.table").file->path(),
            extra.file("model-00002-of-00002.safetensors"));
  EXPECT_EQ(Checkpoint::open(main.path(), dirs).tensors().size(), 4u);
  // A shard that only lies in the other directory serves for all its tensors.
  fs::remove(main.file("model-00002-of-00002.safetensors"));
  EXPECT_EQ(bytes_of(Checkpoint::open(main.path(), dirs).at("d").bytes), "2222");
}

TEST(Checkpoint, ShrinkingFileIsAnErrorWhenRead) {
  const test::TempDir dir;
  write_two_shards(dir.path());
  const Checkpoint checkpoint = Checkpoint::open(dir.path());
  const StoredTensor& tensor = checkpoint.at("a");
  tensor.file->check_unchanged();
  fs::resize_file(tensor.file->path(), fs::file_size(tensor.file->path()) - 4000);
  EXPECT_THAT([&] { tensor.file->check_unchanged(); },
              testing::ThrowsMessage<Error>(HasSubstr("changed while in use")));
  std::string all(5000, ' ');
  EXPECT_THAT(
      [&] { Checkpoint::read(tensor, 0, std::as_writable_bytes(std::span(all))); },
      testing::ThrowsMessage<Error>(AllOf(HasSubstr("tensor \"a\""), HasSubstr("ends too early"))));
}

TEST(CheckpointIndex, RefusesWhatLeadsElsewhere) {
  const auto index = [](const std::string& shard) {
    return parse_checkpoint_index("{\"weight_map\":{\"a\":\"" + shard + "\"}}", "f");
  };
  EXPECT_EQ(index("m.safetensors").shards.at(0), "m.safetensors");
  for (const char* shard : {"../m.safetensors", "/m.safetensors", "d/m.safetensors", "m.bin", "",
                            ".safetensors", ".m.safetensors", "m\\u0000.safetensors"})
    EXPECT_THROW(index(shard), Error) << shard;
  for (const char* text : {"", "[]", "{}", R"({"weight_map":[]})", R"({"weight_map":{}})",
                           R"({"weight_map":{"a":1}})", R"({"weight_map":{"":"m.safetensors"}})",
                           R"({"weight_map":{"a":"m.safetensors","a":"n.safetensors"}})"})
    EXPECT_THROW(parse_checkpoint_index(text, "f"), Error) << text;
}

TEST(SafetensorsWriter, ShowsNothingBeforeTheEnd) {
  const test::TempDir dir;
  {
    SafetensorsWriter writer(dir.path(), {{"model.safetensors", {{"a", DType::kU8, {4}}}}});
    write(writer, "a", "12");
    EXPECT_FALSE(fs::exists(dir.file("model.safetensors")));
    EXPECT_THROW(write(writer, "b", "1"), Error);
    EXPECT_THROW(write(writer, "a", "345"), Error);
    EXPECT_THROW(writer.finish(), Error);  // two bytes are missing
  }
  EXPECT_TRUE(fs::is_empty(dir.path()));
  EXPECT_THROW(SafetensorsWriter(dir.path(), {{"model.safetensors",
                                               {{"a", DType::kU8, {1}}, {"a", DType::kU8, {1}}}}}),
               Error);
}

TEST(SafetensorsWriter, PlansShardsOfWholeModules) {
  const std::vector<TensorSpec> tensors{{"m.0.w", DType::kU8, {6}}, {"m.0.s", DType::kU8, {2}},
                                        {"m.1.w", DType::kU8, {6}}, {"m.1.s", DType::kU8, {2}},
                                        {"big", DType::kU8, {50}},  {"z", DType::kU8, {1}}};
  const std::vector<ShardSpec> shards = plan_shards(tensors, 17);
  ASSERT_EQ(shards.size(), 3u);
  EXPECT_EQ(shards[0].file, "model-00001-of-00003.safetensors");
  EXPECT_EQ(shards[0].tensors.size(), 4u);
  EXPECT_EQ(shards[1].tensors.size(), 1u);
  EXPECT_EQ(shards[2].tensors.at(0).name, "z");
  EXPECT_EQ(plan_shards(tensors, 15).size(), 4u);
  EXPECT_EQ(plan_shards(tensors, 1000).at(0).file, "model.safetensors");
}

}  // namespace
}  // namespace onecard::io
