#include "profiler/kernel_name.h"

#include <cxxabi.h>

#include <cstdlib>
#include <memory>

namespace fuseboard::profiler {
namespace {

std::string Demangled(const std::string& symbol) {
  // NOTE: the demangler also takes bare type codes: "f" would become "float".
  if (!symbol.starts_with("_Z")) return symbol;
  int status = 0;
  const std::unique_ptr<char, void (*)(void*)> text(
      abi::__cxa_demangle(symbol.c_str(), nullptr, nullptr, &status), std::free);
  return status == 0 ? std::string(text.get()) : symbol;
}

// Returns where the argument list that ends `name` begins, or npos if it ends in none.
size_t ArgumentsBegin(const std::string& name) {
  if (name.empty() || name.back() != ')') return std::string::npos;
  int depth = 0;
  for (size_t i = name.size(); i-- > 0;) {
    if (name[i] == ')') ++depth;
    if (name[i] == '(' && --depth == 0) return i;
  }
  return std::string::npos;
}

}  // namespace

std::string ReadableKernelName(const std::string& symbol) {
  std::string name = Demangled(symbol);
  // "[clone .kd]" and the like stand behind the arguments.
  if (const size_t clone = name.rfind(" [clone"); clone != std::string::npos) name.resize(clone);
  // A kernel returns void, and only templates say so.
  if (name.starts_with("void ")) name.erase(0, 5);
  if (const size_t begin = ArgumentsBegin(name); begin != std::string::npos && begin > 0) {
    name.resize(begin);
  }
  if (name.size() > kMaxKernelNameBytes) {
    name.resize(kMaxKernelNameBytes - 3);
    name += "...";
  }
  return name;
}

}  // namespace fuseboard::profiler
