// The CPU half of kl_div's table, once per instruction set (kernels/common/cpu_isa.h).

#ifndef KERNELS_KL_DIV_KL_DIV_CPU_H_
#define KERNELS_KL_DIV_KL_DIV_CPU_H_

#include "kernels/common/row_loss_table.h"

namespace fuseboard::kl_div {

namespace baseline {
extern const row_loss::CpuEntries kCpuEntries;
}
namespace avx2 {
extern const row_loss::CpuEntries kCpuEntries;
}
namespace avx512 {
extern const row_loss::CpuEntries kCpuEntries;
}

}  // namespace fuseboard::kl_div

#endif  // KERNELS_KL_DIV_KL_DIV_CPU_H_
