# Compiles the SPIR-V modules of the configurations in modules.txt (docs/spirv.md): runs CLDRAFT with the arguments
# ARGS and writes to the directory OUT. The variants of a run are listed by running its code, which takes an OpenCL
# device; without one the command ends with 4 and there are no modules.
file(STRINGS ${CMAKE_CURRENT_LIST_DIR}/modules.txt configs REGEX "^[^#]")
execute_process(COMMAND ${CLDRAFT} spirv ${configs} --out ${OUT} ${ARGS} RESULT_VARIABLE status)
if(status EQUAL 4)
    message(STATUS "no SPIR-V modules: there is no OpenCL device")
elseif(NOT status EQUAL 0)
    message(FATAL_ERROR "cannot compile the SPIR-V modules")
endif()
file(WRITE ${OUT}.stamp "")
