/* gemm_sum.cl - C = sum of n_parts matrices (+ bias) (+ R), in this order, in float.
 *
 * It ends a GEMM whose k was split (parts: [n_parts, m, n] f32 one after another), and with
 * n_parts = 0 it gives C where k is 0 or before a GEMM that adds to C. */
#include "common.clh"

#include "gemm_out.clh"

/* A piece of work is `span` elements of one row; n_spans cover a row. */
__kernel void gemm_sum(ulong m, ulong n, ulong n_parts, __global const float *parts,
                       __global CLD_ELEM(TC) *c, ulong c_at, ulong c_ld,
                       __global const CLD_ELEM(TBIAS) *bias, ulong bias_at,
                       __global const CLD_ELEM(TR) *r, ulong r_at, ulong r_ld, ulong span,
                       ulong n_spans)
{
    CLD_SHARE(piece, m * n_spans) {
        ulong i = piece / n_spans, begin = piece % n_spans * span;
        for (ulong j = begin + get_local_id(0); j < min(begin + span, n); j += get_local_size(0)) {
            float x = 0;
            for (ulong part = 0; part < n_parts; part++)
                x += parts[(part * m + i) * n + j];
            if (bias)
                x += CLD_LOAD(TBIAS, bias, bias_at + j);
            if (r)
                x += CLD_LOAD(TR, r, r_at + i * r_ld + j);
            CLD_STORE(TC, x, c, c_at + i * c_ld + j);
        }
    }
}
