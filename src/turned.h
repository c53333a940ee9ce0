/* turned.h - the block that kernels write turned at once, as in cl/turned_block.clh; for op_*.c and
 * gemm_tensor.c. Work-groups have cld_turned_group items; kernels count blocks in 32 bits, of which
 * 2^32 would be 64 TiB. */
#ifndef CLD_TURNED_H
#define CLD_TURNED_H

enum { cld_turned_rows = 128, cld_turned_columns = 64, cld_turned_group = 256 };

#endif
