// One line an event on stderr: `ts=... level=info event=name key=value ...`. Never prompt text or
// model output, nothing per token. Safe from any thread; a line is written with one call, so that
// lines never mix.
#pragma once

#include <initializer_list>
#include <string>
#include <string_view>

namespace onecard::log {

enum class Level { kDebug, kInfo, kWarn, kError };

struct Field {
  std::string_view key;
  std::string value;
};

/// Events below `level` are dropped. Default kInfo.
void set_level(Level level);

/// Writes one event. Values with spaces, quotes, '=' or control characters are quoted and escaped,
/// so a line stays a line.
void event(Level level, std::string_view name, std::initializer_list<Field> fields = {});

inline void debug(std::string_view name, std::initializer_list<Field> fields = {}) {
  event(Level::kDebug, name, fields);
}
inline void info(std::string_view name, std::initializer_list<Field> fields = {}) {
  event(Level::kInfo, name, fields);
}
inline void warn(std::string_view name, std::initializer_list<Field> fields = {}) {
  event(Level::kWarn, name, fields);
}
inline void error(std::string_view name, std::initializer_list<Field> fields = {}) {
  event(Level::kError, name, fields);
}

/// The line event() would write, without time stamp and newline; for tests.
std::string format(Level level, std::string_view name, std::initializer_list<Field> fields);

}  // namespace onecard::log
