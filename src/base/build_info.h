/* build_info.h - what this program was built from, and how; written by the build. Any thread. */
#ifndef CLD_BASE_BUILD_INFO_H
#define CLD_BASE_BUILD_INFO_H

/* The commit in git, "-dirty" after it if files differed; "" if it was not built in a git checkout.
 */
const char *cld_build_commit(void);
/* "GNU 12.2.0 Release -O3 -DNDEBUG": compiler, build type and options. */
const char *cld_build_compiler(void);

#endif
