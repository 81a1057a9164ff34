#include "model/tiny_checkpoint.h"

#include <utility>

#include "io/checkpoint.h"
#include "make_tiny_model/tiny_model.h"
#include "support/temp_dir.h"

namespace onecard::test {

void write_tiny_checkpoint(const std::string& directory, const std::string& text_config_json) {
  tiny::write_checkpoint(
      directory,
      model::parse_model_config("{\"text_config\":" + text_config_json + "}", "config.json"));
}

struct TinyModel::Directory {
  TempDir dir;
};

TinyModel::TinyModel(const std::string& text_config_json, Backend backend)
    : directory_(std::make_unique<Directory>()) {
  write_tiny_checkpoint(directory(), text_config_json);
  model_ = model::Model::load(io::Checkpoint::open(directory()),
                              model::load_model_config(directory()), {.backend = backend});
}
TinyModel::~TinyModel() = default;
TinyModel::TinyModel(TinyModel&&) noexcept = default;

const std::string& TinyModel::directory() const { return directory_->dir.path(); }

}  // namespace onecard::test
