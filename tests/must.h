/* must.h - what tests say of calls that take `&err`: it is declared here. Include cmocka.h before.
 */
#ifndef MUST_H
#define MUST_H

#include <string.h>

#include "base/error.h"

/* The call succeeds. */
#define OK(call)                                                                                   \
    do {                                                                                           \
        struct cld_error err = CLD_ERROR_INIT;                                                     \
        (void)err;                                                                                 \
        if (call)                                                                                  \
            fail_msg("%s", err.what);                                                              \
    } while (0)

/* The call fails with this status and these words in its message. */
#define FAILS(call, status, words)                                                                 \
    do {                                                                                           \
        struct cld_error err = CLD_ERROR_INIT;                                                     \
        assert_int_equal(call, status);                                                            \
        if (!strstr(err.what, words))                                                              \
            fail_msg("'%s' is not in: %s", words, err.what);                                       \
    } while (0)

#endif
