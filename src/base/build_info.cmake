# Writes OUT, a C file that says what a build is of: the commit of SOURCE, where it is in git, with
# "-dirty" after it if files differ from the commit, and COMPILER. OUT stays as it is where it
# says so already, so that nothing is built again.
execute_process(COMMAND git -C ${SOURCE} describe --always --dirty --abbrev=12 --exclude=*
    OUTPUT_VARIABLE commit OUTPUT_STRIP_TRAILING_WHITESPACE ERROR_QUIET RESULT_VARIABLE failed)
if(failed)
    set(commit "")
endif()
string(STRIP "${COMPILER}" COMPILER)
string(REGEX REPLACE " +" " " COMPILER "${COMPILER}")
string(REPLACE "\\" "\\\\" COMPILER "${COMPILER}")
string(REPLACE "\"" "\\\"" COMPILER "${COMPILER}")
file(CONFIGURE OUTPUT ${OUT} @ONLY CONTENT [[
#include "base/build_info.h"

const char *cld_build_commit(void)
{
    return "@commit@";
}

const char *cld_build_compiler(void)
{
    return "@COMPILER@";
}
]])
