/* dpace.cl - weights of a block's rows by how likely the drafter makes their labels (D-PACE, arXiv
 * 2605.18810). A piece of work is LANES blocks, one for each work-item.
 *
 *     s = (1 - alpha) exp(-CE) + alpha     of a row with a loss; 1 of another
 *     P(o) = s(0) ... s(o)                 probability that the block is accepted so far
 *     w(o) = scale * sum of P(m) over rows m >= o with a loss
 *
 * Nothing is subtracted: the second sweep adds from the block's end. */
#include "common.clh"
#include "wide.clh"

/* place: of a draft row among the rows with a loss, or -1 */
__kernel void dpace_weights(__global const int *place, ulong place_at, __global const float *loss,
                            ulong loss_at, __global float *weights, ulong weights_at,
                            ulong n_blocks, ulong block_size, float alpha, float scale)
{
    CLD_SHARE(piece, (n_blocks + LANES - 1) / LANES) {
        const ulong block = piece * LANES + LANE;
        if (block < n_blocks) {
            __global const int *rows = place + place_at + block * block_size;
            float p = 1.0f, sum = 0.0f;
            for (ulong o = 0; o < block_size; o++)
                if (rows[o] >= 0) {
                    p *= (1.0f - alpha) * exp(-loss[loss_at + rows[o]]) + alpha;
                    weights[weights_at + rows[o]] = p;
                }
            for (ulong o = block_size; o-- > 0;)
                if (rows[o] >= 0) {
                    sum += weights[weights_at + rows[o]];
                    weights[weights_at + rows[o]] = scale * sum;
                }
        }
    }
}
