/* cl_error.h - names and hints for OpenCL error codes; for the OpenCL layer only. */
#ifndef CLD_OPENCL_CL_ERROR_H
#define CLD_OPENCL_CL_ERROR_H

#include "base/error.h"

const char *cld_cl_error_name(int code);

/* "what: CL_NAME (-5)" with a hint that fits the code. Out-of-memory codes become CLD_E_MEMORY,
 * all others CLD_E_DEVICE. */
enum cld_status cld_cl_fail(struct cld_error *err, int code, const char *fmt, ...)
    __attribute__((format(printf, 3, 4)));

#endif
