/* check_out.c - results of checks: a list of them, and each as a line. */
#include "check/check.h"

#include <stdlib.h>

#include "base/grow.h"
#include "base/size.h"

void cld_check_results_free(struct cld_check_results *r)
{
    free(r->at);
    *r = (struct cld_check_results){0};
}

enum cld_status cld_check_results_add(struct cld_check_results *r,
                                      const struct cld_check_result *result, struct cld_error *err)
{
    enum cld_status s = cld_grow(&r->at, &r->cap, r->n + 1, sizeof *r->at, err);
    if (!s)
        r->at[r->n++] = *result;
    return s;
}

const char *cld_kernel_family_name(enum cld_kernel_family family)
{
    return family == CLD_KERNEL_FAMILY_CPU ? "cpu" : "gpu";
}

const char *cld_check_verdict_name(enum cld_check_verdict verdict)
{
    return verdict == CLD_CHECK_PASSED   ? "pass"
           : verdict == CLD_CHECK_FAILED ? "FAIL"
                                         : "unsupported";
}

double cld_check_gb_s(const struct cld_check_result *r)
{
    return r->bytes / (r->ms * 1e6);
}

void cld_check_print(const struct cld_check_result *r, FILE *to)
{
    fprintf(to, "%s  %s %-4s  ", cld_check_verdict_name(r->verdict),
            cld_kernel_family_name(r->family), r->storage == CLD_BF16 ? "bf16" : "f32");
    if (r->verdict == CLD_CHECK_PASSED && r->ms > 0)
        fprintf(to, "%s  %.4g ms, %.4g GB/s by %s\n", r->name, r->ms, cld_check_gb_s(r),
                r->by_events ? "events" : "the host's clock");
    else if (r->verdict == CLD_CHECK_PASSED)
        fprintf(to, "%s  (%.2g of tolerance)\n", r->name, r->worst);
    else if (r->verdict == CLD_CHECK_FAILED)
        fprintf(to, "%s: %s\n      again: %s\n", r->name, r->why, r->again);
    else
        fprintf(to, "%s: %s\n", r->op, r->why);
}
