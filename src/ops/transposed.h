/* transposed.h - the block that kernels transpose at once, as in cl/transposed_block.clh; for
 * op_*.c and gemm_tensor.c. Work-groups have cld_transposed_group items; kernels count blocks in 32
 * bits, of which 2^32 would be 64 TiB. */
#ifndef CLD_TRANSPOSED_H
#define CLD_TRANSPOSED_H

enum { cld_transposed_rows = 128, cld_transposed_columns = 64, cld_transposed_group = 256 };

#endif
