// Checkpoints whose every value a name determines (tools/oracle/deterministic_weights.py is the
// same rule), so that a golden needs no stored weights.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "model/config.h"
#include "model/model.h"

namespace onecard::test {

/// A checkpoint of make_tiny_model's (F32) with this text_config.
void write_tiny_checkpoint(const std::string& directory, const std::string& text_config_json);

/// Written, loaded, and the directory removed with the object.
class TinyModel {
 public:
  explicit TinyModel(const std::string& text_config_json, Backend backend = Backend::kCpu);
  ~TinyModel();
  TinyModel(TinyModel&&) noexcept;

  const model::Model& operator*() const { return *model_; }
  const model::Model* operator->() const { return model_.get(); }
  const std::string& directory() const;

 private:
  struct Directory;
  std::unique_ptr<Directory> directory_;
  std::unique_ptr<model::Model> model_;
};

}  // namespace onecard::test
