// Which of the builds of a CPU source this machine can run. fb_kernel compiles each CPU source once
// per instruction set into its own namespace; an operation's table picks one when it is first asked
// for. What such a source includes must live in its namespace (FB_CPU_ISA) or be a template over a
// type of its own: the linker would otherwise keep one copy of an inline function for all sets.

#ifndef KERNELS_COMMON_CPU_ISA_H_
#define KERNELS_COMMON_CPU_ISA_H_

namespace fuseboard {

// kAvx2 is -march=x86-64-v3, kAvx512 is -march=x86-64-v4.
enum class CpuIsa { kBaseline, kAvx2, kAvx512 };

inline CpuIsa DetectCpuIsa() {
#if defined(FB_HAVE_X86_ISAS)
  __builtin_cpu_init();
  // The compiler may use any instruction of the level, so the whole level is asked for. clang
  // before 17 does not know the level names, nor lzcnt, movbe and f16c; every CPU with AVX2, FMA
  // and BMI2 has those.
#if defined(__clang__)
  const bool v3 = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") &&
                  __builtin_cpu_supports("bmi") && __builtin_cpu_supports("bmi2");
  const bool v4 = v3 && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
                  __builtin_cpu_supports("avx512cd") && __builtin_cpu_supports("avx512dq") &&
                  __builtin_cpu_supports("avx512vl");
#else
  const bool v3 = __builtin_cpu_supports("x86-64-v3");
  const bool v4 = __builtin_cpu_supports("x86-64-v4");
#endif
  if (v4) return CpuIsa::kAvx512;
  if (v3) return CpuIsa::kAvx2;
#endif
  return CpuIsa::kBaseline;
}

// The best of three builds of one thing for this machine.
template <typename T>
T SelectIsa(T baseline, T avx2, T avx512) {
  switch (DetectCpuIsa()) {
    case CpuIsa::kAvx512:
      return avx512;
    case CpuIsa::kAvx2:
      return avx2;
    case CpuIsa::kBaseline:
      break;
  }
  return baseline;
}

}  // namespace fuseboard

#endif  // KERNELS_COMMON_CPU_ISA_H_
