#include "base/random.h"

#include <math.h>

double cld_random_normal(uint64_t bits)
{
    double u = ((double)(bits >> 32) + 0.5) * 0x1p-32; /* never 0 */
    double v = (double)(bits & 0xffffffffu) * 0x1p-32;
    return sqrt(-2.0 * log(u)) * cos(6.283185307179586 * v);
}
