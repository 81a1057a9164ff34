// A bounded queue between threads: producers never block, consumers may wait. Closing wakes every
// waiter.
#pragma once

#include <condition_variable>
#include <cstddef>
#include <deque>
#include <mutex>
#include <optional>
#include <stop_token>
#include <utility>

namespace onecard {

template <typename T>
class BoundedQueue {
 public:
  explicit BoundedQueue(size_t capacity) : capacity_(capacity) {}

  /// False when the queue is full or closed; `value` is then untouched.
  bool try_push(T&& value) {
    {
      const std::lock_guard lock(mutex_);
      if (closed_ || items_.size() >= capacity_) return false;
      items_.push_back(std::move(value));
    }
    ready_.notify_one();
    return true;
  }

  std::optional<T> try_pop() {
    const std::lock_guard lock(mutex_);
    return pop_locked();
  }

  /// Waits for an item. Empty once the queue is closed and drained, or when `stop` is requested.
  std::optional<T> pop(std::stop_token stop) {
    std::unique_lock lock(mutex_);
    ready_.wait(lock, stop, [this] { return closed_ || !items_.empty(); });
    return pop_locked();
  }

  /// No more pushes; what is queued can still be popped.
  void close() {
    {
      const std::lock_guard lock(mutex_);
      closed_ = true;
    }
    ready_.notify_all();
  }

  size_t size() const {
    const std::lock_guard lock(mutex_);
    return items_.size();
  }

 private:
  std::optional<T> pop_locked() {
    if (items_.empty()) return std::nullopt;
    std::optional<T> item(std::move(items_.front()));
    items_.pop_front();
    return item;
  }

  const size_t capacity_;
  mutable std::mutex mutex_;  // guards items_ and closed_
  std::condition_variable_any ready_;
  std::deque<T> items_;
  bool closed_ = false;
};

}  // namespace onecard
