/* build_info.h - what this program was built from, and how; written by the build. Any thread. */
#ifndef CLD_BASE_BUILD_INFO_H
#define CLD_BASE_BUILD_INFO_H

/* The commit in git, "-dirty" behind it where files differed; "" where it was not built there. */
const char *cld_build_commit(void);
/* "GNU 12.2.0 Release -O3 -DNDEBUG": compiler, build type and options. */
const char *cld_build_compiler(void);

#endif
