#include "cuda_emulator/emulator.h"

#include <sys/mman.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <deque>
#include <memory>
#include <random>

struct EmulatedGraph {
  std::vector<std::function<void()>> nodes;
};
struct EmulatedStream {
  std::unique_ptr<EmulatedGraph> capturing;
};
struct EmulatedEvent {};

namespace onecard::cuda_emulator {
namespace {

constexpr size_t kStackBytes = 64 << 10;
constexpr unsigned kMaxThreads = 1024;

[[noreturn]] void fail(const char* what) {
  std::fprintf(stderr, "cuda emulator: %s\n", what);
  std::abort();
}

// Saves the callee-saved registers on the stack it leaves, and takes them from the one it enters.
extern "C" void onecard_emulator_switch(void** from, void* to);
asm(R"(
.text
.globl onecard_emulator_switch
.type onecard_emulator_switch,@function
onecard_emulator_switch:
  pushq %rbp
  pushq %rbx
  pushq %r12
  pushq %r13
  pushq %r14
  pushq %r15
  movq %rsp, (%rdi)
  movq %rsi, %rsp
  popq %r15
  popq %r14
  popq %r13
  popq %r12
  popq %rbx
  popq %rbp
  ret
.size onecard_emulator_switch,.-onecard_emulator_switch
)");

struct Copy {
  void* to;
  const void* from;
  size_t bytes;
};

struct Fiber {
  void* stack_pointer = nullptr;
  Position position;
  bool done = false;
  unsigned thread = 0;
  uint64_t block_round = 0;
  uint64_t warp_round = 0;
  std::deque<std::vector<Copy>> groups;
  std::vector<Copy> open_group;
};

struct Warp {
  Slot slots[32];
  Slot results[32];
  uint32_t arrived = 0;
  uint32_t live = 0;
  uint64_t round = 0;
};

struct Machine {
  std::byte* stacks = nullptr;
  std::vector<Fiber> fibers;
  std::vector<Warp> warps;
  std::vector<std::byte> shared;
  void* scheduler = nullptr;
  Fiber* running = nullptr;
  const std::function<void()>* thread = nullptr;
  unsigned live = 0;
  unsigned at_barrier = 0;
  uint64_t barrier_round = 0;
  int barrier_or = 0, barrier_result = 0;
  bool progress = false;
  Order order = Order::kAscending;
  std::mt19937 random{1};
};

Machine& machine() {
  static Machine machine;
  return machine;
}

void yield() {
  Machine& m = machine();
  onecard_emulator_switch(&m.running->stack_pointer, m.scheduler);
}

void release_block_if_all_there(Machine& m) {
  if (m.live == 0 || m.at_barrier < m.live) return;
  m.at_barrier = 0;
  m.barrier_result = m.barrier_or;
  m.barrier_or = 0;
  ++m.barrier_round;
  m.progress = true;
}

extern "C" void onecard_emulator_thread() {
  Machine& m = machine();
  (*m.thread)();
  Fiber& fiber = *m.running;
  if (!fiber.open_group.empty() || !fiber.groups.empty())
    fail("a thread ends with copies that nobody waited for");
  fiber.done = true;
  --m.live;
  m.warps[fiber.thread / 32].live &= ~(1u << fiber.thread % 32);
  if (m.warps[fiber.thread / 32].arrived != 0) fail("a lane ends while its warp meets");
  m.progress = true;
  release_block_if_all_there(m);
  yield();
}

void run_block(Machine& m, dim3 grid, dim3 block, dim3 block_idx) {
  const unsigned count = block.x * block.y * block.z;
  m.warps.assign((count + 31) / 32, {});
  m.live = count;
  m.at_barrier = 0;
  for (unsigned t = 0; t < count; ++t) {
    Fiber& fiber = m.fibers[t];
    fiber.done = false;
    fiber.thread = t;
    fiber.position = {
        {t % block.x, t / block.x % block.y, t / (block.x * block.y)}, block_idx, block, grid};
    m.warps[t / 32].live |= 1u << t % 32;
    auto** top = reinterpret_cast<void**>(m.stacks + (t + 1) * kStackBytes);
    *--top = nullptr;  // where onecard_emulator_thread would return to; keeps the stack aligned
    *--top = reinterpret_cast<void*>(&onecard_emulator_thread);
    for (int i = 0; i < 6; ++i) *--top = nullptr;
    fiber.stack_pointer = top;
  }
  std::vector<unsigned> turn(count);
  for (unsigned t = 0; t < count; ++t) turn[t] = m.order == Order::kDescending ? count - 1 - t : t;
  while (m.live > 0) {
    if (m.order == Order::kShuffled) std::shuffle(turn.begin(), turn.end(), m.random);
    m.progress = false;
    for (const unsigned t : turn) {
      if (m.fibers[t].done) continue;
      m.running = &m.fibers[t];
      onecard_emulator_switch(&m.scheduler, m.running->stack_pointer);
    }
    if (!m.progress) fail("threads wait for each other for ever: a barrier that not all reach");
  }
}

void run_now(dim3 grid, dim3 block, size_t shared_bytes, const std::function<void()>& thread) {
  Machine& m = machine();
  const unsigned count = block.x * block.y * block.z;
  if (count == 0 || count > kMaxThreads || grid.x == 0 || grid.y == 0 || grid.z == 0 ||
      grid.y > 65535 || grid.z > 65535)
    fail("a launch with an impossible grid or block");
  if (shared_bytes > 48 << 10) fail("a launch with more than 48 KiB of dynamic shared memory");
  if (m.stacks == nullptr) {
    m.stacks =
        static_cast<std::byte*>(mmap(nullptr, kMaxThreads * kStackBytes, PROT_READ | PROT_WRITE,
                                     MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0));
    m.fibers.resize(kMaxThreads);
  }
  m.thread = &thread;
  for (unsigned z = 0; z < grid.z; ++z)
    for (unsigned y = 0; y < grid.y; ++y)
      for (unsigned x = 0; x < grid.x; ++x) {
        m.shared.assign(shared_bytes + 16, std::byte{0xA5});  // never zeroed on a GPU either
        run_block(m, grid, block, {x, y, z});
      }
  m.running = nullptr;
}

}  // namespace

void set_order(Order order) { machine().order = order; }

const Position& current() { return machine().running->position; }
unsigned lane_id() { return machine().running->thread % 32; }
void* dynamic_shared() {
  auto address = reinterpret_cast<uintptr_t>(machine().shared.data());
  return reinterpret_cast<void*>((address + 15) / 16 * 16);
}

int sync_block_or(int value) {
  Machine& m = machine();
  m.barrier_or |= value;
  const uint64_t round = m.barrier_round;
  ++m.at_barrier;
  release_block_if_all_there(m);
  while (m.barrier_round == round) yield();
  return m.barrier_result;
}
void sync_block() { sync_block_or(0); }

void meet(unsigned mask, Slot& slot, Combine combine) {
  Machine& m = machine();
  Warp& warp = m.warps[m.running->thread / 32];
  const unsigned lane = m.running->thread % 32;
  if ((mask >> lane & 1) == 0) fail("a lane outside the mask that it names");
  const uint32_t expected = mask & warp.live;
  warp.slots[lane] = slot;
  warp.arrived |= 1u << lane;
  const uint64_t round = warp.round;
  if (warp.arrived == expected) {
    std::copy(std::begin(warp.slots), std::end(warp.slots), std::begin(warp.results));
    if (combine != nullptr) combine(warp.results, warp.arrived);
    warp.arrived = 0;
    ++warp.round;
    m.progress = true;
  }
  while (warp.round == round) yield();
  slot = warp.results[lane];
}

unsigned ballot(unsigned mask, bool predicate) {
  Slot slot{};
  slot.bytes[0] = std::byte(predicate);
  meet(mask, slot, [](Slot* slots, uint32_t lanes) {
    uint32_t result = 0;
    for (int lane = 0; lane < 32; ++lane)
      if ((lanes >> lane & 1) != 0 && slots[lane].bytes[0] != std::byte{0}) result |= 1u << lane;
    for (int lane = 0; lane < 32; ++lane) std::memcpy(slots[lane].bytes, &result, sizeof(result));
  });
  uint32_t result = 0;
  std::memcpy(&result, slot.bytes, sizeof(result));
  return result;
}

void async_copy(void* to, const void* from, size_t bytes) {
  machine().running->open_group.push_back({to, from, bytes});
}
void async_commit() {
  Fiber& fiber = *machine().running;
  fiber.groups.push_back(std::move(fiber.open_group));
  fiber.open_group.clear();
}
void async_wait(int groups_left) {
  Fiber& fiber = *machine().running;
  while (int(fiber.groups.size()) > groups_left) {
    for (const Copy& copy : fiber.groups.front()) std::memcpy(copy.to, copy.from, copy.bytes);
    fiber.groups.pop_front();
  }
}

void run(cudaStream_t stream, dim3 grid, dim3 block, size_t shared_bytes,
         std::function<void()> thread) {
  if (stream != nullptr && stream->capturing)
    return stream->capturing->nodes.push_back(
        [=, thread = std::move(thread)] { run_now(grid, block, shared_bytes, thread); });
  run_now(grid, block, shared_bytes, thread);
}

namespace {

cudaError_t queue(cudaStream_t stream, std::function<void()> work) {
  if (stream != nullptr && stream->capturing)
    stream->capturing->nodes.push_back(std::move(work));
  else
    work();
  return cudaSuccess;
}

}  // namespace
}  // namespace onecard::cuda_emulator

using onecard::cuda_emulator::queue;

const char* cudaGetErrorString(cudaError_t error) {
  return error == cudaSuccess ? "no error" : "emulated error";
}
cudaError_t cudaGetLastError() { return cudaSuccess; }
cudaError_t cudaGetDeviceCount(int* count) {
  *count = 1;
  return cudaSuccess;
}
cudaError_t cudaSetDevice(int device) { return device == 0 ? cudaSuccess : cudaErrorInvalidValue; }
cudaError_t cudaGetDeviceProperties(cudaDeviceProp* properties, int) {
  *properties = {"emulated", size_t{8} << 30, 4, 0, 0, 1 << 20};
  return cudaSuccess;
}
cudaError_t cudaDeviceGetAttribute(int* value, cudaDeviceAttr attribute, int) {
  *value = attribute == cudaDevAttrMultiProcessorCount ? 4 : 0;
  return cudaSuccess;
}
cudaError_t cudaDeviceSynchronize() { return cudaSuccess; }
cudaError_t cudaMemGetInfo(size_t* free_bytes, size_t* total_bytes) {
  *free_bytes = *total_bytes = size_t{8} << 30;
  return cudaSuccess;
}
cudaError_t cudaMalloc(void** data, size_t bytes) {
  *data = std::aligned_alloc(256, (bytes + 255) / 256 * 256);
  if (*data == nullptr) return cudaErrorMemoryAllocation;
  std::memset(*data, 0xA5, (bytes + 255) / 256 * 256);  // fresh device memory holds anything
  return cudaSuccess;
}
cudaError_t cudaFree(void* data) {
  std::free(data);
  return cudaSuccess;
}
cudaError_t cudaMallocHost(void** data, size_t bytes) { return cudaMalloc(data, bytes); }
cudaError_t cudaFreeHost(void* data) { return cudaFree(data); }
cudaError_t cudaStreamCreateWithFlags(cudaStream_t* stream, unsigned) {
  *stream = new EmulatedStream;
  return cudaSuccess;
}
cudaError_t cudaStreamSynchronize(cudaStream_t) { return cudaSuccess; }
cudaError_t cudaStreamDestroy(cudaStream_t stream) {
  delete stream;
  return cudaSuccess;
}
cudaError_t cudaMemcpyAsync(void* to, const void* from, size_t bytes, cudaMemcpyKind,
                            cudaStream_t stream) {
  return queue(stream, [=] { std::memmove(to, from, bytes); });
}
cudaError_t cudaMemcpy2DAsync(void* to, size_t to_pitch, const void* from, size_t from_pitch,
                              size_t width, size_t height, cudaMemcpyKind, cudaStream_t stream) {
  return queue(stream, [=] {
    for (size_t row = 0; row < height; ++row)
      std::memmove(static_cast<std::byte*>(to) + row * to_pitch,
                   static_cast<const std::byte*>(from) + row * from_pitch, width);
  });
}
cudaError_t cudaMemsetAsync(void* data, int value, size_t bytes, cudaStream_t stream) {
  return queue(stream, [=] { std::memset(data, value, bytes); });
}
cudaError_t cudaStreamBeginCapture(cudaStream_t stream, cudaStreamCaptureMode) {
  stream->capturing = std::make_unique<EmulatedGraph>();
  return cudaSuccess;
}
cudaError_t cudaStreamEndCapture(cudaStream_t stream, cudaGraph_t* graph) {
  *graph = stream->capturing.release();
  return cudaSuccess;
}
cudaError_t cudaGraphInstantiate(cudaGraphExec_t* exec, cudaGraph_t graph, unsigned long long) {
  *exec = new EmulatedGraph(*graph);
  return cudaSuccess;
}
cudaError_t cudaGraphLaunch(cudaGraphExec_t exec, cudaStream_t) {
  for (const auto& node : exec->nodes) node();
  return cudaSuccess;
}
cudaError_t cudaGraphExecDestroy(cudaGraphExec_t exec) {
  delete exec;
  return cudaSuccess;
}
cudaError_t cudaGraphDestroy(cudaGraph_t graph) {
  delete graph;
  return cudaSuccess;
}
cudaError_t cudaEventCreateWithFlags(cudaEvent_t* event, unsigned) {
  *event = new EmulatedEvent;
  return cudaSuccess;
}
cudaError_t cudaEventRecord(cudaEvent_t, cudaStream_t) { return cudaSuccess; }
cudaError_t cudaEventSynchronize(cudaEvent_t) { return cudaSuccess; }
cudaError_t cudaEventElapsedTime(float* ms, cudaEvent_t, cudaEvent_t) {
  *ms = 1;
  return cudaSuccess;
}
cudaError_t cudaEventDestroy(cudaEvent_t event) {
  delete event;
  return cudaSuccess;
}
