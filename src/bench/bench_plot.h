/* bench_plot.h - records of a sweep as drawings. Thread: main. */
#ifndef CLD_BENCH_BENCH_PLOT_H
#define CLD_BENCH_BENCH_PLOT_H

#include <jansson.h>

#include "base/error.h"

/* Draws an array of records, for each kind the time and the rate, over the swept key `x` (NULL: the
 * one with the most numbers; without any a dimension of the shapes that varies), one line a series.
 * Beside `path` NAME.svg it writes NAME-roofline.svg where records have operations and bytes.
 * CLD_E_USAGE: nothing varies, or nothing was measured; CLD_E_IO. */
enum cld_status cld_bench_plot(const json_t *records, const char *x, const char *path,
                               struct cld_error *err);

#endif
